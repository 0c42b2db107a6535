//! Which build this is: the workspace's version, and the commit that it was built from.
//!
//! The commit comes from the environment variable `FLASHSALE_COMMIT` of the *compiler*: `make dist` and
//! the Dockerfile set it, an everyday build does not. A build script that asked git would compile this
//! crate, and with it every other, again after each commit; and a source archive has no git to ask.

use std::sync::LazyLock;

/// The version of every crate of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, with `-dirty` when there was more than it; `unknown` where the build was not told.
pub const COMMIT: &str = match option_env!("FLASHSALE_COMMIT") {
    Some(commit) if !commit.is_empty() => commit,
    _ => "unknown",
};

/// Both, as `--version` prints them after the program's name.
pub fn full() -> &'static str {
    static FULL: LazyLock<String> = LazyLock::new(|| format!("{VERSION} (commit {COMMIT})"));
    &FULL
}
