//! The table at the end: how often each kind was in a round, and what came of it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::{Kind, Outcome, Plan};

/// What many rounds came to.
#[derive(Debug, Default)]
pub struct Report {
    rounds: usize,
    failed: usize,
    orders: usize,
    lost: usize,
    took: Duration,
    kinds: BTreeMap<Kind, Line>,
}

#[derive(Debug, Default)]
struct Line {
    rounds: usize,
    orders: usize,
    lost: usize,
    failed: usize,
}

impl Report {
    /// Adds a round.
    pub fn add(&mut self, plan: &Plan, outcome: &Outcome) {
        let failed = usize::from(!outcome.failures.is_empty());
        self.rounds += 1;
        self.failed += failed;
        self.orders += outcome.orders;
        self.lost += outcome.lost;
        self.took += outcome.took;
        for fault in &plan.faults {
            let line = self.kinds.entry(fault.kind).or_default();
            line.rounds += 1;
            line.orders += outcome.orders;
            line.lost += outcome.lost;
            line.failed += failed;
        }
    }

    /// Whether no round failed.
    pub const fn is_good(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<20}{:>8}{:>9}{:>7}{:>8}  what it does",
            "kind", "rounds", "orders", "lost", "failed"
        )?;
        for (kind, line) in &self.kinds {
            let Line { rounds, orders, lost, failed } = line;
            let what = kind.description();
            writeln!(f, "{:<20}{rounds:>8}{orders:>9}{lost:>7}{failed:>8}  {what}", kind.name())?;
        }
        let seconds = self.took.as_secs_f64();
        let Self { rounds, orders, lost, failed, .. } = self;
        writeln!(
            f,
            "{:<20}{rounds:>8}{orders:>9}{lost:>7}{failed:>8}  in {seconds:.0} s",
            "all rounds"
        )?;
        write!(
            f,
            "A round with several kinds counts under each. Lost are orders that the drills themselves \
             destroyed."
        )
    }
}
