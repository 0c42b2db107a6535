//! The table at the end: how often each kind was in a round, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
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
    second_halves: usize,
    ended: usize,
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
        self.second_halves += usize::from(outcome.ended > 0);
        self.ended += outcome.ended;
        let after = plan.after.iter().flat_map(|after| &after.faults);
        let kinds: BTreeSet<Kind> = plan.faults.iter().chain(after).map(|f| f.kind).collect();
        for kind in kinds {
            let line = self.kinds.entry(kind).or_default();
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
        let (halves, ended) = (self.second_halves, self.ended);
        writeln!(f, "{halves} rounds went on after the orders: {ended} of them were ended.")?;
        write!(
            f,
            "A round with several kinds counts under each. Lost are orders that the drills themselves \
             destroyed; each was settled."
        )
    }
}
