//! Our own programs as child processes: what the whole-path tests and the demo run.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;

use crate::process::{AtOurDeath, Process, command};
use crate::temp::{TempDir, temp_dir};

/// How much of the log a failed test shows.
const TAIL_LINES: usize = 60;

/// A started program with its standard output and error in one log file. Dropping it kills it, and
/// prints the end of its log when the test is failing.
pub struct Program {
    process: Process,
    name: String,
    log_path: PathBuf,
    _directory: TempDir,
}

/// How to start a [`Program`].
pub struct ProgramBuilder {
    path: PathBuf,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    directory: Option<PathBuf>,
}

impl Program {
    /// Starts `path` with `envs` added to the environment.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(path: impl AsRef<Path>, envs: &[(&str, String)], args: &[&str]) -> Self {
        Self::builder(path).envs(envs).args(args).start()
    }

    /// The same in steps.
    ///
    /// Inherited `FLASHSALE…` variables are not passed on: settings of the person at the keyboard
    /// must not lead a test to their own Redis. The working folder is a fresh temporary one, where
    /// a program's relative default paths do no harm.
    pub fn builder(path: impl AsRef<Path>) -> ProgramBuilder {
        ProgramBuilder {
            path: path.as_ref().to_owned(),
            args: Vec::new(),
            envs: Vec::new(),
            directory: None,
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends SIGTERM: the polite request that an orchestrator sends.
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.process.signal(Signal::INT);
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill_9(&self) {
        self.process.kill_9();
    }

    /// Freezes the program (SIGSTOP): alive to the kernel, silent to everybody else.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets a paused program go on (SIGCONT).
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    /// How the program ended, or `None` while it runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.process.exit_status()
    }

    /// Blocks until the program has ended, `limit` at most. In async tests whose other tasks must
    /// go on meanwhile, poll [`Program::exit_status`] with [`crate::eventually`].
    pub fn wait_exit(&self, limit: Duration) -> Option<ExitStatus> {
        self.process.wait_exit(limit)
    }

    /// What the program has written so far, output and errors together.
    pub fn log(&self) -> String {
        read_log(&self.log_path)
    }

    /// The file that [`Program::log`] reads; it is removed with the program.
    pub fn log_path(&self) -> &Path {
        &self.log_path
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.process.kill_9();
        if std::thread::panicking() {
            eprintln!("---- the end of the log of {} ----\n{}\n----", self.name, tail(&self.log()));
        }
    }
}

impl ProgramBuilder {
    /// Adds one argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// Sets one environment variable.
    pub fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.envs.push((key.to_owned(), value.into()));
        self
    }

    /// Sets environment variables.
    pub fn envs(mut self, envs: &[(&str, String)]) -> Self {
        self.envs.extend(envs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        self
    }

    /// Runs the program in `directory` in place of a fresh temporary folder.
    pub fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Starts the program.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn start(self) -> Program {
        self.try_start().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts the program, with an error where [`ProgramBuilder::start`] panics.
    pub fn try_start(self) -> anyhow::Result<Program> {
        let name =
            self.path.file_name().unwrap_or(OsStr::new("program")).to_string_lossy().into_owned();
        let directory = temp_dir(&name);
        let log_path = directory.path().join("program.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log_path)
            .with_context(|| format!("cannot create {}", log_path.display()))?;

        // The working folder changes, so a relative path would miss.
        let path = std::path::absolute(&self.path)
            .with_context(|| format!("{} is not a path", self.path.display()))?;
        // Through `setpriv` a missing program would only show up in the log.
        anyhow::ensure!(path.is_file(), "cannot start {}: no such file", path.display());

        let mut command = command(&path, AtOurDeath::Kill, &[]);
        forget_settings(&mut command);
        command
            .args(&self.args)
            .envs(self.envs)
            .current_dir(self.directory.as_deref().unwrap_or(directory.path()))
            .stdout(log.try_clone().context("cannot share the log file")?)
            .stderr(log);
        let process =
            Process::spawn(command).with_context(|| format!("cannot start {}", path.display()))?;
        Ok(Program { process, name, log_path, _directory: directory })
    }
}

/// Keeps the settings in this process's environment from a program: those of the person at the keyboard
/// must not lead one of ours to a real Redis.
pub fn forget_settings(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("FLASHSALE") {
            command.env_remove(key);
        }
    }
}

/// Where Cargo put our program `name`: beside the running program, or a folder above a running test.
///
/// # Panics
/// When it is not there. `cargo test` does not build the programs of other packages.
pub fn binary(name: &str) -> PathBuf {
    let running = std::env::current_exe().expect("the running program has a path");
    let mut directory = running.parent().expect("a program lies in a folder");
    if directory.ends_with("deps") || directory.ends_with("examples") {
        directory = directory.parent().expect("deps lies in the profile's folder");
    }
    let path = directory.join(name);
    if !path.is_file() {
        let profile = match directory.file_name().and_then(OsStr::to_str) {
            Some("debug") | None => "dev",
            Some(profile) => profile,
        };
        panic!(
            "{} is not built: run `cargo build --workspace --bins --profile {profile}` first",
            path.display()
        );
    }
    path
}

pub(crate) fn read_log(path: &Path) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
