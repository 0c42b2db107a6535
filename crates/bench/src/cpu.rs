//! CPU time by the operating system's accounting: `/proc`, in hundredths of a second.

use std::ops::{Div, Sub};

use anyhow::Context as _;
use serde::Serialize;

/// Linux counts in hundredths of a second wherever we run.
const TICK_US: f64 = 10_000.0;

/// What each process used: microseconds, in all or for one operation.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Cpu {
    /// The HTTP server: the gateway, or the one that stands in its place.
    pub(crate) server: f64,
    pub(crate) redis: f64,
    pub(crate) worker: f64,
    /// All of PostgreSQL, connections that have ended included.
    pub(crate) postgres: f64,
    /// The load generator, while its clock ran.
    pub(crate) load: f64,
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            server: self.server - before.server,
            redis: self.redis - before.redis,
            worker: self.worker - before.worker,
            postgres: self.postgres - before.postgres,
            load: self.load - before.load,
        }
    }
}

impl Div<f64> for Cpu {
    type Output = Self;

    fn div(self, operations: f64) -> Self {
        Self {
            server: self.server / operations,
            redis: self.redis / operations,
            worker: self.worker / operations,
            postgres: self.postgres / operations,
            load: self.load / operations,
        }
    }
}

/// Whose time is counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pids {
    pub(crate) server: Option<u32>,
    pub(crate) redis: Option<u32>,
    pub(crate) worker: Option<u32>,
    /// The postmaster.
    pub(crate) postgres: Option<u32>,
}

impl Pids {
    /// What they have used so far; the load generator tells its own.
    pub(crate) fn used(&self) -> anyhow::Result<Cpu> {
        let one =
            |pid: Option<u32>| pid.map_or(Ok(0.0), |pid| Ok::<_, anyhow::Error>(used(pid)?.own));
        Ok(Cpu {
            server: one(self.server)?,
            redis: one(self.redis)?,
            worker: one(self.worker)?,
            postgres: self.postgres.map_or(Ok(0.0), used_by_tree)?,
            load: 0.0,
        })
    }
}

struct Used {
    own: f64,
    /// Of children that have ended.
    ended: f64,
}

/// A process with its children: those that run, and those that have ended.
fn used_by_tree(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    // One that ends meanwhile is counted with the parent, which is read last.
    let running = children.split_whitespace().filter_map(|child| used(child.parse().ok()?).ok());
    let running: f64 = running.map(|child| child.own + child.ended).sum();
    let parent = used(pid)?;
    Ok(running + parent.own + parent.ended)
}

fn used(pid: u32) -> anyhow::Result<Used> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    parse(&text).with_context(|| format!("{path} is not understood"))
}

fn parse(stat: &str) -> Option<Used> {
    // The name, in brackets, may hold anything; the fields after it are counted from 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(4).map_while(|it| it.parse().ok()).collect();
    let [user, system, ended_user, ended_system] = ticks.try_into().ok()?;
    Some(Used { own: (user + system) * TICK_US, ended: (ended_user + ended_system) * TICK_US })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_counted_behind_a_name_with_brackets_and_spaces() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4 1 2 3 4 150 50 30 20 20 0 4 0 99";
        let used = parse(stat).expect("is understood");
        assert!((used.own - 2_000_000.0).abs() < 1.0 && (used.ended - 500_000.0).abs() < 1.0);
        assert!(parse("7 (a) S 1").is_none());
    }

    #[test]
    fn a_process_and_its_children_use_time() {
        let before = used_by_tree(std::process::id()).expect("we run");
        let busy = std::process::Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"])
            .status()
            .expect("sh runs");
        assert!(busy.success());
        assert!(used_by_tree(std::process::id()).expect("we run") > before);
    }
}
