//! The promises of this crate against real processes: they start, die, come back, and nothing is
//! left of them.

mod death_of_the_test;
mod postgres_server;
mod program;
mod redis_server;
mod sentinel_group;

use std::path::Path;

/// A zombie counts as gone: it runs nothing.
fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(')')?.1.trim_start().starts_with('Z')))
        .is_some_and(|zombie| !zombie)
}

fn children_of(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/task/{pid}/children")))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}
