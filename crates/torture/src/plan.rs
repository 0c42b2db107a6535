//! A round's plan: everything about it that is left to chance, drawn from its seed alone.
//!
//! The same seed and kinds give the same load and the same faults in the same order with the same
//! delays. What the programs do in between is theirs: time itself cannot be replayed.

use flashsale_domain::LatePayment;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};

use crate::Kind;
use crate::deployment::WORKERS;

/// When faults begin, in milliseconds after the first buyer: the load lasts from 1.5 to 2.5 s.
const BEGINS_MS: std::ops::RangeInclusive<u64> = 150..=1_300;
/// The same for what has a round of its own, and needs buyers behind it.
const ALONE_BEGINS_MS: std::ops::RangeInclusive<u64> = 100..=400;

/// Makes what is drawn for the life after the order another thing than what is drawn for the orders.
const AFTER_MIX: u64 = 0x0A_F7E2;

/// What a round does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// The buyers.
    pub load: Load,
    /// The faults, in the order in which they begin.
    pub faults: Vec<Fault>,
    /// What becomes of the orders; `None` where the round ends with the orders.
    pub after: Option<After>,
}

/// The second half of a round: buyers pay, give up, or let their time run out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// What the sale does with money that comes too late.
    pub late_payment: LatePayment,
    /// Decides who does what, and when.
    pub seed: u64,
    /// The faults meanwhile, in the order in which they begin.
    pub faults: Vec<Fault>,
}

/// The buyers of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// How many.
    pub buyers: u32,
    /// Requests of each.
    pub repeat: u32,
    /// Units for sale.
    pub stock: u32,
    /// Requests a second.
    pub rate: u32,
    /// Order of the presses.
    pub seed: u32,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// When it begins: milliseconds after the load.
    pub at_ms: u64,
    /// How long it lasts.
    pub lasts_ms: u64,
    /// Which worker it hits, if it hits one; each fault of a round has another.
    pub worker: usize,
    /// Decides what else is to be chosen, such as entries.
    pub seed: u64,
}

/// Begin or end of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Begin,
    End,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at_ms: u64,
    pub(crate) fault: usize,
    pub(crate) phase: Phase,
}

/// The seed of round `number` (from 1) of a run: 48 bits, so that it is short to copy.
pub fn round_seed(run: u64, number: u64) -> u64 {
    let mixed = run ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    StdRng::seed_from_u64(mixed).random::<u64>() >> 16
}

impl Plan {
    /// The plan of a seed: one to three faults of these kinds, each kind at most once; or one alone
    /// that bears no other beside it.
    ///
    /// # Panics
    /// When there is no kind.
    pub fn new(seed: u64, kinds: &[Kind]) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let count = chance.random_range(1..=3);
        let chosen: Vec<Kind> = kinds.sample(&mut chance, count).copied().collect();
        assert!(!chosen.is_empty(), "a round needs a kind of fault");
        if let Some(alone) = chosen.iter().copied().find(|kind| kind.is_alone()) {
            return Self::draw(seed, &mut chance, &[alone]);
        }
        let mut plan = Self::draw(seed, &mut chance, &chosen);
        // From a chance of its own, so that the first half does not depend on it.
        let mut chance = StdRng::seed_from_u64(seed ^ AFTER_MIX);
        if chance.random() {
            let count = chance.random_range(1..=2);
            let possible: Vec<Kind> = kinds
                .iter()
                .copied()
                .filter(|kind| !kind.takes_entries() && !kind.is_alone())
                .collect();
            let chosen: Vec<Kind> = possible.sample(&mut chance, count).copied().collect();
            plan.after = Some(After::draw(&mut chance, &chosen));
        }
        plan
    }

    /// The second half of this round, as a plan of its own.
    pub(crate) fn of_after(&self, after: &After) -> Self {
        Self { faults: after.faults.clone(), after: None, ..self.clone() }
    }

    /// The same round with these faults in a second half.
    #[must_use]
    pub fn followed_by(self, kinds: &[Kind]) -> Self {
        let mut chance = StdRng::seed_from_u64(self.seed ^ AFTER_MIX);
        Self { after: Some(After::draw(&mut chance, kinds)), ..self }
    }

    /// A round with exactly these faults.
    pub fn of(seed: u64, kinds: &[Kind]) -> Self {
        Self::draw(seed, &mut StdRng::seed_from_u64(seed), kinds)
    }

    fn draw(seed: u64, chance: &mut StdRng, kinds: &[Kind]) -> Self {
        let buyers = chance.random_range(300..=800);
        let repeat = chance.random_range(1..=2);
        // Every other sale sells out.
        let stock = if chance.random() { buyers + 100 } else { buyers * 6 / 10 };
        let lasts_ms = chance.random_range(1_500..=2_500);
        let rate = buyers * repeat * 1_000 / lasts_ms;
        let load = Load { buyers, repeat, stock, rate, seed: chance.random() };
        let faults = draw_faults(chance, kinds);
        Self { seed, load, faults, after: None }
    }

    /// Begins and ends in their order. What needs a store waits until one that is down is back, and
    /// what needs memory in Redis until there is some.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (number, fault) in self.faults.iter().enumerate() {
            let begins = self.possible_at(fault, fault.at_ms);
            let ends = self.possible_at(fault, begins + fault.lasts_ms);
            steps.push(Step { at_ms: begins, fault: number, phase: Phase::Begin });
            steps.push(Step { at_ms: ends, fault: number, phase: Phase::End });
        }
        steps.sort_by_key(|step| (step.at_ms, step.phase));
        steps
    }

    /// The first moment from `at_ms` on at which this fault can begin, or end.
    fn possible_at(&self, fault: &Fault, at_ms: u64) -> u64 {
        let mut at_ms = at_ms;
        let asks_redis = fault.kind.asks_redis();
        for (kind, stands_in_the_way) in [
            // Behind each of them another one may have begun.
            (Kind::RedisKill, asks_redis),
            (Kind::RedisAmnesia, asks_redis),
            (Kind::RedisFull, fault.kind == Kind::PoisonEntries),
            (Kind::RedisKill, asks_redis),
            (Kind::RedisAmnesia, asks_redis),
            (Kind::RedisKill, asks_redis),
            (Kind::PostgresStop, fault.kind == Kind::PostgresTerminate),
        ] {
            let other = self.faults.iter().find(|other| other.kind == kind);
            let Some(other) = other.filter(|_| stands_in_the_way) else { continue };
            let begins = self.possible_at(other, other.at_ms);
            let ends = self.possible_at(other, begins + other.lasts_ms);
            if (begins..=ends).contains(&at_ms) {
                at_ms = ends + 1;
            }
        }
        at_ms
    }

    /// Whether a fault of this kind is in it.
    pub fn has(&self, kind: Kind) -> bool {
        self.faults.iter().any(|fault| fault.kind == kind)
    }

    /// Its kinds, in the order in which they begin; those of its second half after an arrow.
    pub fn kinds(&self) -> String {
        let names = |faults: &[Fault]| {
            let names: Vec<String> = faults.iter().map(|fault| fault.kind.name()).collect();
            names.join(" + ")
        };
        match &self.after {
            None => names(&self.faults),
            Some(after) => format!("{} > {}", names(&self.faults), names(&after.faults)),
        }
    }
}

impl After {
    fn draw(chance: &mut StdRng, kinds: &[Kind]) -> Self {
        let late_payment =
            if chance.random() { LatePayment::Reacquire } else { LatePayment::Refund };
        Self { late_payment, seed: chance.random(), faults: draw_faults(chance, kinds) }
    }
}

/// One fault of each kind, in the order in which they begin.
fn draw_faults(chance: &mut StdRng, kinds: &[Kind]) -> Vec<Fault> {
    let mut workers: Vec<usize> = (0..WORKERS).collect();
    workers.shuffle(chance);
    let mut faults: Vec<Fault> = kinds
        .iter()
        .zip(workers.into_iter().cycle())
        .map(|(&kind, worker)| {
            let (least, most) = kind.lasts_ms();
            Fault {
                kind,
                at_ms: chance.random_range(if kind.is_alone() {
                    ALONE_BEGINS_MS
                } else {
                    BEGINS_MS
                }),
                lasts_ms: chance.random_range(least..=most),
                worker,
                seed: chance.random(),
            }
        })
        .collect();
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_round_again() {
        for seed in 0..200 {
            assert_eq!(Plan::new(seed, Kind::ALL), Plan::new(seed, Kind::ALL));
        }
        assert_ne!(Plan::new(1, Kind::ALL), Plan::new(2, Kind::ALL));
        let seeds: BTreeSet<u64> = (1..=200).map(|number| round_seed(7, number)).collect();
        assert_eq!(seeds.len(), 200);
    }

    #[test]
    fn every_kind_comes_and_only_those_that_are_asked_for() {
        let plans: Vec<Plan> = (0..200).map(|seed| Plan::new(seed, Kind::ALL)).collect();
        for &kind in Kind::ALL {
            assert!(plans.iter().any(|plan| plan.has(kind)), "{kind}");
        }
        for seed in 0..20 {
            let plan = Plan::new(seed, &[Kind::RedisKill]);
            let after = plan.after.iter().flat_map(|after| &after.faults);
            assert!(plan.faults.iter().chain(after).all(|fault| fault.kind == Kind::RedisKill));
        }
    }

    #[test]
    fn some_rounds_have_a_second_half_which_takes_no_entries() {
        let plans: Vec<Plan> = (0..200).map(|seed| Plan::new(seed, Kind::ALL)).collect();
        let halves: Vec<&After> = plans.iter().filter_map(|plan| plan.after.as_ref()).collect();
        assert!((60..=140).contains(&halves.len()), "{}", halves.len());
        for policy in [LatePayment::Reacquire, LatePayment::Refund] {
            assert!(halves.iter().any(|after| after.late_payment == policy));
        }
        for after in halves {
            assert!((1..=2).contains(&after.faults.len()), "{after:?}");
            assert!(after.faults.iter().all(|fault| !fault.kind.takes_entries()), "{after:?}");
            assert!(after.faults.iter().all(|fault| !fault.kind.is_alone()), "{after:?}");
        }
    }

    #[test]
    fn what_could_not_be_told_apart_from_others_has_a_round_of_its_own() {
        let plans = (0..500).map(|seed| Plan::new(seed, Kind::ALL));
        let alone = plans.filter(|plan| plan.faults.iter().any(|fault| fault.kind.is_alone()));
        let alone: Vec<Plan> = alone.collect();
        assert!(alone.len() > 20);
        assert!(alone.iter().all(|plan| plan.faults.len() == 1 && plan.after.is_none()));
    }

    #[test]
    fn each_fault_begins_before_it_ends_and_hits_another_worker() {
        for seed in 0..500 {
            let plan = Plan::new(seed, Kind::ALL);
            let workers: BTreeSet<usize> = plan.faults.iter().map(|fault| fault.worker).collect();
            assert_eq!(workers.len(), plan.faults.len());
            let mut begun = BTreeSet::new();
            for step in plan.steps() {
                match step.phase {
                    Phase::Begin => assert!(begun.insert(step.fault), "{plan:?}"),
                    Phase::End => assert!(begun.remove(&step.fault), "{plan:?}"),
                }
            }
            assert!(begun.is_empty());
        }
    }

    #[test]
    fn nothing_is_asked_of_a_store_that_is_down() {
        for seed in 0..2_000 {
            let plan = Plan::new(seed, Kind::ALL);
            let mut down = BTreeSet::new();
            for step in plan.steps() {
                let kind = plan.faults[step.fault].kind;
                let redis_is_down =
                    [Kind::RedisKill, Kind::RedisAmnesia].iter().any(|kind| down.contains(kind));
                assert!(!(redis_is_down && kind.asks_redis()), "{plan:?}");
                let asks_postgres = kind == Kind::PostgresTerminate;
                assert!(!(down.contains(&Kind::PostgresStop) && asks_postgres), "{plan:?}");
                match step.phase {
                    Phase::Begin => down.insert(kind),
                    Phase::End => down.remove(&kind),
                };
            }
        }
    }
}
