//! Clocks that can be set for single programs, and not for the machine: libfaketime, and a file for each
//! program that says how far its clock is off.
//!
//! Only the time of day is set. What measures how long something takes goes on as it is, as with a
//! clock that somebody sets.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use flashsale_test_support::{TempDir, temp_dir};

/// Where Debian and Ubuntu put it, below the folder of the machine's kind.
const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// What the clocks of a deployment need.
pub(crate) struct Clocks {
    library: PathBuf,
    directory: TempDir,
    /// Programs that run, and leave what libfaketime shares in memory behind when they are killed.
    pids: Mutex<Vec<u32>>,
}

/// The clock of one program.
pub(crate) struct Clock(PathBuf);

impl Clocks {
    /// # Errors
    /// When libfaketime is not there.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let library = std::fs::read_dir(LIBRARIES)
            .context("cannot look for libfaketime")?
            .flatten()
            .map(|folder| folder.path().join(LIBRARY))
            .find(|library| library.is_file())
            .context("libfaketime was not found: run `make deps` to install it (faketime)")?;
        Ok(Self { library, directory: temp_dir("clocks"), pids: Mutex::default() })
    }

    /// A clock that is right, and the environment of the program that goes by it.
    pub(crate) fn clock(&self, name: &str) -> anyhow::Result<(Clock, Vec<(&'static str, String)>)> {
        let clock = Clock(self.directory.path().join(name));
        clock.set("+0")?;
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
        let environment = vec![
            ("LD_PRELOAD", text(&self.library)?),
            ("FAKETIME_TIMESTAMP_FILE", text(&clock.0)?),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        Ok((clock, environment))
    }

    /// Remembers whom to clean up after.
    pub(crate) fn note(&self, pid: u32) {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    }

    /// Removes the names of what libfaketime shares in memory. Programs that run have it open, and
    /// need the names no more.
    pub(crate) fn clean_up(&self) {
        for pid in self.pids.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                std::fs::remove_file(Path::new("/dev/shm").join(name)).ok();
            }
        }
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        self.clean_up();
    }
}

/// Whether a program goes by a clock of ours.
pub(crate) fn is_faked(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(LIBRARY))
}

impl Clock {
    /// Sets it: `+5h`, `-30m`.
    pub(crate) fn set(&self, offset: &str) -> anyhow::Result<()> {
        // Whoever reads it at this moment reads the old one or the new one.
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{offset}\n")).context("cannot set a clock")?;
        std::fs::rename(&new, &self.0).context("cannot set a clock")
    }
}
