//! Temporary folders. All of a process lie below one folder that carries its pid, so that they can
//! be removed although the servers of a `static` are never dropped.
//!
//! Three things remove them, because none is always there: dropping the [`TempDir`]; a shell that
//! waits for the end of this process; and the next process that uses this crate.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

pub use tempfile::TempDir;

const PREFIX: &str = "flashsale-test-";

/// Reads until the pipe's other end, which only we hold, is closed: by our end, however it comes.
/// The second round is for a PostgreSQL that wrote its last files meanwhile.
const REMOVE_AFTER_US: &str = r#"cat >/dev/null; rm -rf -- "$1"; sleep 1; rm -rf -- "$1""#;

/// A new folder of this process, removed when dropped (or, for a `static`, when the process ends).
pub fn temp_dir(name: &str) -> TempDir {
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(process_directory())
        .expect("a folder can be created in our temporary folder")
}

fn process_directory() -> &'static Path {
    static DIRECTORY: OnceLock<(PathBuf, Option<Child>)> = OnceLock::new();

    let (path, _remover) = DIRECTORY.get_or_init(|| {
        let parent = std::env::temp_dir();
        remove_folders_of_dead_processes(&parent);
        let path = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            // Others must be able to pass: PostgreSQL refuses to run as root.
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir_in(&parent)
            .unwrap_or_else(|error| {
                panic!("cannot create a folder in {}: {error}", parent.display())
            })
            .keep();
        let remover = remove_after_us(&path);
        (path, remover)
    });
    path
}

/// Without a shell the folder stays until the next process sweeps it.
fn remove_after_us(path: &Path) -> Option<Child> {
    Command::new("sh")
        .args(["-c", REMOVE_AFTER_US, "remove-after-test"])
        .arg(path)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A Ctrl-C in the terminal must not reach it.
        .process_group(0)
        .spawn()
        .ok()
}

/// Errors are passed over: another process may be sweeping too, or the folder is another user's.
fn remove_folders_of_dead_processes(parent: &Path) {
    if !Path::new("/proc/self").exists() {
        return; // Nothing tells who is alive.
    }
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if let Some(pid) = owner
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            std::fs::remove_dir_all(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_dead_processes_are_removed_and_those_of_living_ones_stay() {
        let mut ended = Command::new("true").spawn().expect("true can be run");
        ended.wait().expect("true can be waited for");

        let parent = temp_dir("sweep");
        let dead = parent.path().join(format!("{PREFIX}{}-abc", ended.id()));
        let alive = parent.path().join(format!("{PREFIX}{}-abc", std::process::id()));
        let foreign = parent.path().join(format!("{PREFIX}notes"));
        for directory in [&dead, &alive, &foreign] {
            std::fs::create_dir(directory).expect("a folder can be created");
        }
        std::fs::write(dead.join("file"), "left behind").expect("a file can be written");

        remove_folders_of_dead_processes(parent.path());

        assert!(!dead.exists());
        assert!(alive.exists());
        assert!(foreign.exists());
    }

    #[test]
    fn a_folder_is_removed_when_dropped() {
        let directory = temp_dir("dropped");
        let path = directory.path().to_owned();
        assert!(path.starts_with(process_directory()));
        drop(directory);
        assert!(!path.exists());
    }
}
