//! A private Redis: own port, own folder, nothing shared with the machine's own.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

use crate::port::free_port;
use crate::process::{AtOurDeath, Process, command, find_on_path};
use crate::program::{read_log, tail};
use crate::temp::{TempDir, temp_dir};

/// Generous, because a start may wait for a busy machine or load a large append-only file.
const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(3);
const PORTS_TRIED_MAX: u32 = 20;

/// A running Redis on 127.0.0.1. Dropping it kills it and removes its folder.
pub struct RedisServer {
    process: Process,
    port: u16,
    program: PathBuf,
    options: RedisServerBuilder,
    directory: TempDir,
}

/// How to start a [`RedisServer`]. The default keeps nothing on disk and evicts nothing.
#[derive(Clone, Default)]
pub struct RedisServerBuilder {
    append_only: bool,
    max_memory_bytes: Option<u64>,
    options: Vec<(String, String)>,
}

impl RedisServer {
    /// Starts a Redis of the caller's own.
    ///
    /// # Panics
    /// When it cannot be started; a missing `redis-server` says how to get it.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The same with options.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// One for the whole test process, for tests that need no more than a key prefix of their own
    /// (see [`crate::unique`]). It ends with the process; do not stop or kill it.
    ///
    /// # Panics
    /// As [`RedisServer::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// `redis://127.0.0.1:<port>`; stays the same over [`RedisServer::start_again`].
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The present process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The folder with the append-only file.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What Redis has logged so far.
    pub fn log(&self) -> String {
        read_log(&log_path(&self.directory))
    }

    /// Sends SIGKILL and waits for the end: what was not written to the file is lost.
    pub fn kill_9(&self) {
        self.process.kill_9();
    }

    /// Stops it in order (SIGTERM, which writes out the append-only file) and waits for the end.
    ///
    /// # Panics
    /// When it has not ended within 30 s.
    pub fn stop(&self) {
        self.process.signal(Signal::TERM);
        self.process.signal(Signal::CONT); // A paused one would not see the request.
        assert!(
            self.process.wait_exit(STOPPED_WITHIN).is_some(),
            "redis-server did not stop within {STOPPED_WITHIN:?}:\n{}",
            tail(&self.log())
        );
    }

    /// Starts it again on the same port and folder and waits until it answers; what still runs is
    /// killed first. Without `append_only` it comes back empty.
    ///
    /// # Panics
    /// When it does not come up again.
    pub fn start_again(&self) {
        self.try_start_again().unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Removes the append-only file of one that does not run, so that it comes back empty.
    ///
    /// # Panics
    /// When the file cannot be removed.
    pub fn forget(&self) {
        let file = self.directory.path().join("appendonlydir");
        if file.exists() {
            std::fs::remove_dir_all(&file).expect("our own folder can be removed");
        }
    }

    /// Starts a replica of this server and waits until it has all that is there.
    ///
    /// # Panics
    /// When it cannot be started, or does not come into step within a minute.
    pub fn start_replica(&self, options: RedisServerBuilder) -> Self {
        let replica = options.option("replicaof", &format!("127.0.0.1 {}", self.port)).start();
        let ends = Instant::now() + READY_WITHIN;
        let in_step = format!("port={},state=online", replica.port);
        while !info(self.port, "replication").is_ok_and(|it| it.contains(&in_step)) {
            assert!(
                Instant::now() < ends,
                "a replica did not come into step:\n{}",
                tail(&replica.log())
            );
            std::thread::sleep(POLL);
        }
        replica
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets a paused one go on (SIGCONT).
    pub fn resume(&self) {
        self.process.signal(Signal::CONT);
    }

    fn try_start_again(&self) -> anyhow::Result<()> {
        let command = self.options.command(&self.program, self.port, &self.directory)?;
        self.process.replace(command).context("cannot start redis-server again")?;
        if !wait_until_ready(&self.process, self.port) {
            bail!(
                "redis-server did not come up again on port {}:\n{}",
                self.port,
                tail(&self.log())
            );
        }
        Ok(())
    }
}

impl RedisServerBuilder {
    /// Keeps an append-only file, written to disk every second.
    pub fn append_only(mut self, append_only: bool) -> Self {
        self.append_only = append_only;
        self
    }

    /// Refuses writes above this many bytes (nothing is evicted).
    pub fn max_memory(mut self, bytes: u64) -> Self {
        self.max_memory_bytes = Some(bytes);
        self
    }

    /// Any other setting of redis.conf, for example `("appendfsync", "always")`; the last one wins.
    pub fn option(mut self, name: &str, value: &str) -> Self {
        self.options.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// As [`RedisServer::start`].
    pub fn start(self) -> RedisServer {
        self.try_start().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts it, with an error where [`RedisServerBuilder::start`] panics.
    pub fn try_start(self) -> anyhow::Result<RedisServer> {
        let program = find_program()?;
        let directory = temp_dir("redis");
        for _ in 0..PORTS_TRIED_MAX {
            let port = free_port();
            let process = Process::spawn(self.command(&program, port, &directory)?)
                .with_context(|| format!("cannot start {}", program.display()))?;
            if wait_until_ready(&process, port) {
                return Ok(RedisServer { process, port, program, options: self, directory });
            }
            let log = read_log(&log_path(&directory));
            if !log.contains("Address already in use") {
                bail!("redis-server did not start:\n{}", tail(&log));
            }
        }
        bail!("redis-server found {PORTS_TRIED_MAX} ports taken, one after the other");
    }

    fn command(&self, program: &Path, port: u16, directory: &TempDir) -> anyhow::Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log_path(directory))
            .context("cannot create Redis's log file")?;
        let mut command = command(program, AtOurDeath::Kill, &[]);
        command
            .args(["--port", &port.to_string()])
            .args(["--bind", "127.0.0.1"])
            .args(["--save", ""])
            .args(["--appendonly", if self.append_only { "yes" } else { "no" }])
            .args(["--appendfsync", "everysec"])
            .args(["--maxmemory-policy", "noeviction"])
            // A replica need not wait for others that might come.
            .args(["--repl-diskless-sync-delay", "0"])
            .current_dir(directory.path())
            .stdout(log.try_clone().context("cannot share Redis's log file")?)
            .stderr(log);
        if let Some(bytes) = self.max_memory_bytes {
            command.args(["--maxmemory", &bytes.to_string()]);
        }
        for (name, value) in &self.options {
            command.arg(format!("--{name}")).arg(value);
        }
        Ok(command)
    }
}

pub(crate) fn find_program() -> anyhow::Result<PathBuf> {
    let found = match std::env::var_os("REDIS_SERVER_BIN") {
        Some(path) => Some(PathBuf::from(path)).filter(|path| path.is_file()),
        None => find_on_path("redis-server"),
    };
    let found = found.context(
        "redis-server was not found: run `make deps` to install it, \
         or name it in REDIS_SERVER_BIN",
    )?;
    // Redis starts in its own folder, where a relative path would miss.
    std::path::absolute(&found).context("the path of redis-server cannot be made absolute")
}

fn log_path(directory: &TempDir) -> PathBuf {
    directory.path().join("redis.log")
}

/// `false` when it ended, or did not answer in time.
fn wait_until_ready(process: &Process, port: u16) -> bool {
    let ends = Instant::now() + READY_WITHIN;
    while process.exit_status().is_none() && Instant::now() < ends {
        if answers(process.pid(), port).unwrap_or(false) {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}

/// Whether the Redis with this pid serves the port: another one could have taken it just before.
fn answers(pid: u32, port: u16) -> std::io::Result<bool> {
    Ok(info(port, "server")?.contains(&format!("process_id:{pid}\r\n")))
}

/// A section of INFO from a Redis that serves; empty from one that does not yet.
fn info(port: u16, section: &str) -> std::io::Result<String> {
    ask(port, &format!("INFO {section}"))
}

/// What a Redis that serves answers to a command, as it comes over the wire; empty from one that does
/// not serve yet, and where the answer is an error. PING comes last because it is refused while a
/// file is being loaded.
pub(crate) fn ask(port: u16, command: &str) -> std::io::Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(format!("{command}\r\nPING\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Ok(String::new());
        }
        answer.extend_from_slice(&chunk[..length]);
        let text = String::from_utf8_lossy(&answer);
        if text.ends_with("+PONG\r\n") {
            return Ok(text.into_owned());
        }
        if text.ends_with("\r\n") && (text.starts_with('-') || text.contains("\r\n-")) {
            return Ok(String::new());
        }
    }
}
