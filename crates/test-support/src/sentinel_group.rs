//! Three private sentinels that watch a private primary.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::RedisServer;
use crate::port::free_port;
use crate::process::{AtOurDeath, Process, command};
use crate::program::{read_log, tail};
use crate::redis_server::{ask, find_program};
use crate::temp::{TempDir, temp_dir};

/// How many; a majority of them decides.
const COUNT: usize = 3;
const QUORUM: usize = 2;
/// A primary that is silent for so long is down.
const DOWN_AFTER_MS: &str = "700";
const FAILOVER_TIMEOUT_MS: &str = "3000";

/// They meet over the primary, which takes some seconds; generous, for a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Running sentinels on 127.0.0.1. Dropping it kills them and removes their folders.
pub struct SentinelGroup {
    sentinels: Vec<Sentinel>,
    program: PathBuf,
    service: String,
}

struct Sentinel {
    process: Process,
    port: u16,
    directory: TempDir,
}

impl SentinelGroup {
    /// Starts three sentinels that watch `primary` and its replicas under the name `service`, and
    /// waits until each knows the others and so many replicas.
    ///
    /// # Panics
    /// When they cannot be started, or do not meet within a minute.
    pub fn start(service: &str, primary: &RedisServer, replicas: usize) -> Self {
        Self::try_start(service, primary, replicas).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// The same, with an error where [`SentinelGroup::start`] panics.
    ///
    /// # Errors
    /// See there.
    pub fn try_start(
        service: &str,
        primary: &RedisServer,
        replicas: usize,
    ) -> anyhow::Result<Self> {
        let program = find_program()?;
        let mut sentinels = Vec::new();
        for _ in 0..COUNT {
            let (port, directory) = (free_port(), temp_dir("sentinel"));
            write_configuration(&directory, port, service, primary.port())?;
            let process = Process::spawn(command_of(&program, &directory)?)
                .context("cannot start a sentinel")?;
            sentinels.push(Sentinel { process, port, directory });
        }
        let group = Self { sentinels, program, service: service.to_owned() };
        group.wait_until_met(replicas)?;
        Ok(group)
    }

    /// `redis+sentinel://127.0.0.1:<port>,.../<service>`.
    pub fn url(&self) -> String {
        self.url_of(&self.service)
    }

    /// The same for a service of another name.
    pub fn url_of(&self, service: &str) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/{service}", hosts.join(","))
    }

    /// The port of the primary that a majority of the sentinels names; `None` while they do not agree.
    pub fn primary_port(&self) -> Option<u16> {
        let question = format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", self.service);
        let named: Vec<Option<u16>> = self
            .sentinels
            .iter()
            .filter(|sentinel| sentinel.process.exit_status().is_none())
            .map(|sentinel| {
                let answer = ask(sentinel.port, &question).ok()?;
                // Host and port, each after its length; PING's answer comes behind them.
                answer.lines().nth(4)?.parse().ok()
            })
            .collect();
        let by_many = |port: &&Option<u16>| {
            port.is_some() && named.iter().filter(|other| other == port).count() >= QUORUM
        };
        *named.iter().find(by_many)?
    }

    /// Asks the first of the sentinels that run to promote a replica although the primary is well;
    /// false when it would not.
    pub fn fail_over(&self) -> bool {
        let runs = |sentinel: &&Sentinel| sentinel.process.exit_status().is_none();
        let first = self.sentinels.iter().find(runs).expect("a sentinel runs");
        ask(first.port, &format!("SENTINEL FAILOVER {}", self.service))
            .is_ok_and(|answer| answer.starts_with("+OK"))
    }

    /// Sends SIGKILL to one of the three, counted from 0.
    pub fn kill_9(&self, number: usize) {
        self.sentinels[number].process.kill_9();
    }

    /// Starts a killed one again, with what it had written down.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_again(&self, number: usize) {
        let sentinel = &self.sentinels[number];
        let command = command_of(&self.program, &sentinel.directory);
        command
            .and_then(|command| Ok(sentinel.process.replace(command)?))
            .unwrap_or_else(|error| panic!("cannot start a sentinel again: {error:#}"));
    }

    /// What each of them has logged so far.
    pub fn logs(&self) -> Vec<String> {
        self.sentinels.iter().map(Sentinel::log).collect()
    }

    fn wait_until_met(&self, replicas: usize) -> anyhow::Result<()> {
        let ends = Instant::now() + READY_WITHIN;
        for sentinel in &self.sentinels {
            while !sentinel.has_met(&self.service, replicas) {
                if Instant::now() > ends || sentinel.process.exit_status().is_some() {
                    bail!("a sentinel did not get ready:\n{}", tail(&sentinel.log()));
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

impl Sentinel {
    fn log(&self) -> String {
        read_log(&log_path(&self.directory))
    }

    fn has_met(&self, service: &str, replicas: usize) -> bool {
        let Ok(answer) = ask(self.port, &format!("SENTINEL MASTER {service}")) else {
            return false;
        };
        // Each name and value stands behind its length.
        let mut lines = answer.lines();
        let mut field = |name: &str| {
            lines.find(|line| *line == name)?;
            lines.nth(1)
        };
        field("flags") == Some("master")
            && field("num-slaves") == Some(replicas.to_string().as_str())
            && field("num-other-sentinels") == Some((COUNT - 1).to_string().as_str())
    }
}

fn write_configuration(
    directory: &TempDir,
    port: u16,
    service: &str,
    primary: u16,
) -> anyhow::Result<()> {
    let text = format!(
        "port {port}\n\
         bind 127.0.0.1\n\
         sentinel monitor {service} 127.0.0.1 {primary} {QUORUM}\n\
         sentinel down-after-milliseconds {service} {DOWN_AFTER_MS}\n\
         sentinel failover-timeout {service} {FAILOVER_TIMEOUT_MS}\n"
    );
    std::fs::write(configuration(directory), text).context("cannot write a sentinel's settings")
}

/// A sentinel is the same program; it writes what it learns into its settings.
fn command_of(program: &Path, directory: &TempDir) -> anyhow::Result<Command> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log_path(directory))
        .context("cannot create a sentinel's log file")?;
    let mut command = command(program, AtOurDeath::Kill, &[]);
    command
        .arg(configuration(directory))
        .arg("--sentinel")
        .current_dir(directory.path())
        .stdout(log.try_clone().context("cannot share a sentinel's log file")?)
        .stderr(log);
    Ok(command)
}

fn configuration(directory: &TempDir) -> PathBuf {
    directory.path().join("sentinel.conf")
}

fn log_path(directory: &TempDir) -> PathBuf {
    directory.path().join("sentinel.log")
}
