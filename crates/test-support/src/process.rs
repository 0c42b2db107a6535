//! A child process that does not outlive us, neither when it is dropped nor when we are killed.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(5);

/// What the kernel does to a child whose parent is gone.
#[derive(Clone, Copy)]
pub(crate) enum AtOurDeath {
    /// SIGKILL: for programs that owe nothing to anybody.
    Kill,
    /// SIGINT: PostgreSQL's fast shutdown. A killed postmaster leaves its children behind.
    Interrupt,
}

/// A command that starts `program` with the kernel told to end it when we end. `setpriv_options`
/// are for `setpriv` (user, groups); they need [`setpriv`] to be there.
pub(crate) fn command(
    program: &Path,
    at_our_death: AtOurDeath,
    setpriv_options: &[&str],
) -> Command {
    let mut command = match setpriv() {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command
                .arg("--pdeathsig")
                .arg(match at_our_death {
                    AtOurDeath::Kill => "KILL",
                    AtOurDeath::Interrupt => "INT",
                })
                .args(setpriv_options)
                .arg("--")
                .arg(program);
            command
        }
        None => Command::new(program),
    };
    // A Ctrl-C in the terminal is for us; we decide what becomes of our children.
    command.process_group(0).stdin(Stdio::null());
    command
}

/// util-linux's `setpriv`, when it is there and knows parent-death signals (BusyBox's does not).
pub(crate) fn setpriv() -> Option<&'static Path> {
    static SETPRIV: OnceLock<Option<PathBuf>> = OnceLock::new();

    SETPRIV
        .get_or_init(|| {
            let path = find_on_path("setpriv")?;
            let works = Command::new(&path)
                .args(["--pdeathsig", "KILL", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
            works.then_some(path)
        })
        .as_deref()
}

/// Where the shell would find `name`.
pub fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Signals a process that is not our child; one that is gone is passed over.
pub(crate) fn signal_pid(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        kill_process(pid, signal).ok();
    }
}

/// A running or ended child; killed when dropped.
pub(crate) struct Process(Mutex<Child>);

impl Process {
    pub(crate) fn spawn(command: Command) -> io::Result<Self> {
        spawn_from_a_lasting_thread(command).map(|child| Self(Mutex::new(child)))
    }

    /// Kills what is left of the present child and starts another in its place.
    pub(crate) fn replace(&self, command: Command) -> io::Result<()> {
        self.kill_9();
        *self.child() = spawn_from_a_lasting_thread(command)?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Does nothing once the child has ended, so that no stranger with its old pid is hit.
    pub(crate) fn signal(&self, signal: Signal) {
        let mut child = self.child();
        if status_of(&mut child).is_none() {
            signal_pid(child.id(), signal);
        }
    }

    pub(crate) fn kill_9(&self) {
        let mut child = self.child();
        if status_of(&mut child).is_none() {
            child.kill().expect("a child of ours can be killed");
            child.wait().expect("a child of ours can be waited for");
        }
    }

    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        status_of(&mut self.child())
    }

    /// Blocks until the child has ended, `limit` at most.
    pub(crate) fn wait_exit(&self, limit: Duration) -> Option<ExitStatus> {
        let ends = Instant::now() + limit;
        loop {
            let status = self.exit_status();
            if status.is_some() || Instant::now() >= ends {
                return status;
            }
            thread::sleep(POLL);
        }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_9();
    }
}

fn status_of(child: &mut Child) -> Option<ExitStatus> {
    child.try_wait().expect("a child of ours can be waited for")
}

/// The parent-death signal comes when the THREAD that started the child ends, not the process: a
/// server started by one test would die under the others that share it. One thread that lasts as
/// long as the process starts all children.
fn spawn_from_a_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();

    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Order>();
        thread::Builder::new()
            .name("test-support-spawn".to_owned())
            .spawn(move || {
                for (mut command, answer) in receiver {
                    answer.send(command.spawn()).ok();
                }
            })
            .expect("a thread can be started");
        sender
    });
    let (sender, receiver) = mpsc::channel();
    orders.send((command, sender)).expect("the spawning thread lasts as long as the process");
    receiver.recv().expect("the spawning thread answers every order")
}
