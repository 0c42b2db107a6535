//! A private PostgreSQL: own cluster in an own folder, reachable on 127.0.0.1 without a password.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, geteuid};

use crate::port::free_port;
use crate::process::{AtOurDeath, Process, command, find_on_path, setpriv, signal_pid};
use crate::program::{read_log, tail};
use crate::temp::{TempDir, temp_dir};
use crate::unique::unique;

/// Generous, because a start may wait for a busy machine or recover after a kill.
const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
const ATTEMPTS_MAX: u32 = 20;

/// Where Debian and Ubuntu put each version's programs; they are not on the PATH.
const DEBIAN_VERSIONS: &str = "/usr/lib/postgresql";

/// PostgreSQL refuses to run as root; the package brings this user for it.
const AS_POSTGRES: [&str; 3] = ["--reuid=postgres", "--regid=postgres", "--clear-groups"];

/// A running PostgreSQL on 127.0.0.1. Dropping it stops it and removes its folder.
pub struct PostgresServer {
    process: Process,
    port: u16,
    bin: PathBuf,
    options: PostgresServerBuilder,
    directory: TempDir,
}

/// How to start a [`PostgresServer`].
#[derive(Clone, Default)]
pub struct PostgresServerBuilder {
    fsync: bool,
}

impl PostgresServer {
    /// Starts one of the caller's own, for tests that stop or kill it. Takes a second or two.
    ///
    /// # Panics
    /// When it cannot be started; a missing PostgreSQL says how to get it.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The same with options.
    pub fn builder() -> PostgresServerBuilder {
        PostgresServerBuilder::default()
    }

    /// One for the whole test process; each test calls [`PostgresServer::create_database`]. It ends
    /// with the process; do not stop or kill it.
    ///
    /// # Panics
    /// As [`PostgresServer::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PostgresServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// `postgres://postgres@127.0.0.1:<port>/<database>`; the port stays the same over
    /// [`PostgresServer::start_again`].
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster's present process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What PostgreSQL has logged so far.
    pub fn log(&self) -> String {
        read_log(&log_path(&self.directory))
    }

    /// Creates an empty database with a unique name and returns its URL.
    ///
    /// # Panics
    /// When PostgreSQL does not run.
    pub fn create_database(&self) -> String {
        let name = unique("test");
        self.run_sql("postgres", &format!("CREATE DATABASE {name}"))
            .unwrap_or_else(|error| panic!("{error:#}"));
        self.url(&name)
    }

    /// Stops it in order (SIGINT, the fast shutdown: connections are cut, nothing is lost).
    ///
    /// # Panics
    /// When it has not ended within 30 s.
    pub fn stop(&self) {
        self.resume(); // A paused one would not see the request.
        self.process.signal(Signal::INT);
        assert!(
            self.process.wait_exit(STOPPED_WITHIN).is_some(),
            "PostgreSQL did not stop within {STOPPED_WITHIN:?}:\n{}",
            tail(&self.log())
        );
    }

    /// Ends every connection (`pg_terminate_backend`), as a failover of a pooler or an administrator
    /// would; new ones are taken at once.
    ///
    /// # Panics
    /// When PostgreSQL does not run.
    pub fn terminate_backends(&self) {
        const ALL_BUT_OURS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        self.run_sql("postgres", ALL_BUT_OURS).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Kills the postmaster and the processes that serve its connections, as a power cut would.
    pub fn kill_9(&self) {
        // Stopped, it neither starts another child nor frees the pid of a dead one.
        self.process.signal(Signal::STOP);
        for child in self.children() {
            signal_pid(child, Signal::KILL);
        }
        self.process.kill_9();
    }

    /// Starts it again on the same port and folder and waits until it takes connections; what still
    /// runs is killed first.
    ///
    /// # Panics
    /// When it does not come up again.
    pub fn start_again(&self) {
        self.try_start_again().unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Keeps a copy of all that a stopped one has, as a backup would.
    ///
    /// # Panics
    /// When it still runs, or its files cannot be copied.
    pub fn keep_copy(&self) {
        self.copy_files(&data_path(&self.directory), &copy_path(&self.directory));
    }

    /// Sets a stopped one back to the copy that was kept: what it was given since is gone.
    ///
    /// # Panics
    /// When it still runs, or no copy was kept.
    pub fn put_copy_back(&self) {
        self.copy_files(&copy_path(&self.directory), &data_path(&self.directory));
    }

    fn copy_files(&self, from: &Path, to: &Path) {
        assert!(self.process.exit_status().is_some(), "a running PostgreSQL still writes");
        assert!(from.is_dir(), "there is nothing to copy: {}", from.display());
        std::fs::remove_dir_all(to).ok();
        let mut copy = Command::new("cp");
        // With owners and permissions, which PostgreSQL insists on.
        copy.arg("-a").arg(from).arg(to);
        run(copy).unwrap_or_else(|error| panic!("cannot copy PostgreSQL's files: {error:#}"));
    }

    /// Freezes the postmaster and its present connections (SIGSTOP): nothing answers.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
        for child in self.children() {
            signal_pid(child, Signal::STOP);
        }
    }

    /// Lets a paused one go on (SIGCONT).
    pub fn resume(&self) {
        for child in self.children() {
            signal_pid(child, Signal::CONT);
        }
        self.process.signal(Signal::CONT);
    }

    fn try_start_again(&self) -> anyhow::Result<()> {
        self.kill_9();
        for _ in 0..ATTEMPTS_MAX {
            let command = self.options.command(&self.bin, self.port, &self.directory)?;
            self.process.replace(command).context("cannot start PostgreSQL again")?;
            if wait_until_ready(&self.process, &self.directory) {
                return Ok(());
            }
            // A killed child may hold the shared memory a moment longer.
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("PostgreSQL did not come up again on port {}:\n{}", self.port, tail(&self.log()));
    }

    /// The postmaster's children; none where the kernel does not list them.
    fn children(&self) -> Vec<u32> {
        if self.process.exit_status().is_some() {
            return Vec::new();
        }
        let pid = self.pid();
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .collect()
    }

    fn run_sql(&self, database: &str, sql: &str) -> anyhow::Result<()> {
        let mut psql = Command::new(self.bin.join("psql"));
        for (key, _) in std::env::vars_os() {
            // PGHOST, PGOPTIONS and the like are meant for somebody else's server.
            if key.to_string_lossy().starts_with("PG") {
                psql.env_remove(key);
            }
        }
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1"])
            .args(["-p", &self.port.to_string()])
            .args(["-U", "postgres", "-d", database, "-c", sql]);
        run(psql).with_context(|| format!("psql failed on: {sql}"))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Immediate shutdown: nothing of this cluster is needed any more, but its children must go.
        self.resume();
        self.process.signal(Signal::QUIT);
        if self.process.wait_exit(STOPPED_WITHIN).is_none() {
            self.kill_9();
        }
    }
}

impl PostgresServerBuilder {
    /// Whether commits wait for the disk. Off by default, because a test's files need not survive
    /// the machine; a killed server loses nothing either way.
    pub fn fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// Starts it and waits until it takes connections.
    ///
    /// # Panics
    /// As [`PostgresServer::start`].
    pub fn start(self) -> PostgresServer {
        self.try_start().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts it, with an error where [`PostgresServerBuilder::start`] panics.
    pub fn try_start(self) -> anyhow::Result<PostgresServer> {
        let bin = find_bin()?;
        let directory = temp_dir("postgres");
        if geteuid().is_root() {
            ensure!(
                setpriv().is_some(),
                "PostgreSQL cannot run as root, and `setpriv` (util-linux) was not found to run \
                 it as the user postgres"
            );
            let mut chown = Command::new("chown");
            chown.arg("postgres:postgres").arg(directory.path());
            run(chown).context("cannot give PostgreSQL's folder to the user postgres")?;
        }
        init_database(&bin, &directory)?;

        for _ in 0..ATTEMPTS_MAX {
            let port = free_port();
            let process = Process::spawn(self.command(&bin, port, &directory)?)
                .context("cannot start PostgreSQL")?;
            if wait_until_ready(&process, &directory) {
                return Ok(PostgresServer { process, port, bin, options: self, directory });
            }
            let log = read_log(&log_path(&directory));
            if !log.contains("Address already in use") {
                bail!("PostgreSQL did not start:\n{}", tail(&log));
            }
        }
        bail!("PostgreSQL found {ATTEMPTS_MAX} ports taken, one after the other");
    }

    fn command(&self, bin: &Path, port: u16, directory: &TempDir) -> anyhow::Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log_path(directory))
            .context("cannot create PostgreSQL's log file")?;
        let fsync = if self.fsync { "on" } else { "off" };
        let mut command = as_its_user(&bin.join("postgres"), AtOurDeath::Interrupt);
        command
            .arg("-D")
            .arg(data_path(directory))
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", &format!("port={port}")])
            // A socket's path may be too long for the kernel, and nobody needs one.
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "max_connections=200"])
            .args(["-c", &format!("fsync={fsync}")])
            .args(["-c", &format!("full_page_writes={fsync}")])
            .current_dir(directory.path())
            .stdout(log.try_clone().context("cannot share the log file")?)
            .stderr(log);
        Ok(command)
    }
}

fn init_database(bin: &Path, directory: &TempDir) -> anyhow::Result<()> {
    let mut initdb = as_its_user(&bin.join("initdb"), AtOurDeath::Kill);
    initdb
        .args(["--auth=trust", "--username=postgres"])
        .args(["--encoding=UTF8", "--no-locale", "--no-sync"])
        .arg("-D")
        .arg(data_path(directory))
        .current_dir(directory.path());
    run(initdb).context("initdb failed")
}

fn as_its_user(program: &Path, at_our_death: AtOurDeath) -> Command {
    let options: &[&str] = if geteuid().is_root() { &AS_POSTGRES } else { &[] };
    command(program, at_our_death, options)
}

/// Runs to the end; an error carries what the program wrote.
fn run(mut command: Command) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(
        output.status.success(),
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The newest version's programs.
fn find_bin() -> anyhow::Result<PathBuf> {
    let found = match std::env::var_os("PG_BIN_DIR") {
        Some(directory) => Some(PathBuf::from(directory)),
        None => newest_debian_bin().or_else(|| {
            // A link on the PATH leads to the folder that has the other programs too.
            let initdb = find_on_path("initdb")?.canonicalize().ok()?;
            initdb.parent().map(Path::to_owned)
        }),
    };
    let found = found
        .filter(|bin| is_program(&bin.join("initdb")) && is_program(&bin.join("postgres")))
        .context(
            "PostgreSQL's programs were not found: run `make deps` to install them, \
             or name their folder in PG_BIN_DIR",
        )?;
    std::path::absolute(&found).context("the path of PostgreSQL cannot be made absolute")
}

fn newest_debian_bin() -> Option<PathBuf> {
    std::fs::read_dir(DEBIAN_VERSIONS)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let bin = entry.path().join("bin");
            is_program(&bin.join("initdb")).then_some((version, bin))
        })
        .max()
        .map(|(_, bin)| bin)
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn data_path(directory: &TempDir) -> PathBuf {
    directory.path().join("data")
}

fn copy_path(directory: &TempDir) -> PathBuf {
    directory.path().join("copy")
}

fn log_path(directory: &TempDir) -> PathBuf {
    directory.path().join("postgres.log")
}

/// `false` when it ended, or was not ready in time. PostgreSQL writes its pid and its state into
/// postmaster.pid (lines 1 and 8), which no other server on the port can be taken for.
fn wait_until_ready(process: &Process, directory: &TempDir) -> bool {
    let path = data_path(directory).join("postmaster.pid");
    let pid = process.pid().to_string();
    let ends = Instant::now() + READY_WITHIN;
    while process.exit_status().is_none() && Instant::now() < ends {
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines = status.lines().map(str::trim);
        if lines.next() == Some(pid.as_str()) && lines.nth(6) == Some("ready") {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}
