//! How often buyers were told what, sale by sale: as a metric, and for the sale's report, which is counted
//! in memory and added to the database every few seconds.
//!
//! Every answer passes here, so the metrics are looked up once a sale and not once an answer.
//!
//! A gateway that is killed takes the last few seconds' counts with it. They say how large the crowd was;
//! no unit depends on them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use flashsale_bootstrap::Shutdown;
use flashsale_domain::{Refusal, SaleId};
use flashsale_storage_sql::{AnswerCount, Database};
use metrics::{Counter, counter};
use tokio::time::{sleep, timeout};
use tracing::warn;

/// How often the counts are added to the database.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long the last ones may take, when the gateway leaves.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// Every outcome of `flashsale_admissions_total`.
const OUTCOMES: [&str; 13] = [
    "admitted",
    "replayed",
    "already_ordered",
    "sold_out",
    "not_started",
    "ended",
    "paused",
    "not_loaded",
    "clock_fault",
    "overloaded",
    "unavailable",
    "outcome_unknown",
    OTHER,
];

/// What none of them fits; the metric does not have it.
const OTHER: &str = "other";

/// What can be said without asking Redis.
const FROM_MEMORY: [Refusal; 3] = [Refusal::SoldOut, Refusal::NotStarted, Refusal::Ended];

/// One sale's counts, in the order of [`OUTCOMES`].
struct OfSale {
    unadded: [AtomicU64; OUTCOMES.len()],
    exported: [Counter; OUTCOMES.len()],
}

impl OfSale {
    fn new(sale: SaleId) -> Self {
        let sale = sale.to_string();
        // All of them: an alert on an increase misses the first event of a counter that appears with it.
        let exported = OUTCOMES.map(|outcome| match outcome {
            OTHER => Counter::noop(),
            _ => {
                counter!("flashsale_admissions_total", "sale" => sale.clone(), "outcome" => outcome)
            }
        });
        Self { unadded: Default::default(), exported }
    }
}

/// Counts of all sales. Shared by all threads; counting takes no lock.
pub(crate) struct AnswerCounts {
    // Replaced when a sale is answered for the first time, so that nobody waits for anybody else.
    by_sale: ArcSwap<HashMap<SaleId, Arc<OfSale>>>,
    from_memory: [Counter; FROM_MEMORY.len()],
}

impl AnswerCounts {
    pub(crate) fn new() -> Self {
        let from_memory = FROM_MEMORY.map(
            |refusal| counter!("flashsale_local_refusals_total", "outcome" => refusal.as_str()),
        );
        Self { by_sale: ArcSwap::default(), from_memory }
    }

    /// Counts one answer.
    pub(crate) fn count(&self, sale: SaleId, outcome: &str) {
        let place = place_of(outcome);
        self.with(sale, |counts| {
            counts.exported[place].increment(1);
            counts.unadded[place].fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Counts one refusal that was said from memory.
    pub(crate) fn count_from_memory(&self, sale: SaleId, refusal: Refusal) {
        if let Some(place) = FROM_MEMORY.iter().position(|known| *known == refusal) {
            self.from_memory[place].increment(1);
        }
        self.count(sale, refusal.as_str());
    }

    fn with(&self, sale: SaleId, change: impl Fn(&OfSale)) {
        loop {
            if let Some(counts) = self.by_sale.load().get(&sale) {
                return change(counts);
            }
            self.by_sale.rcu(|known| {
                let mut with_sale = HashMap::clone(known);
                with_sale.entry(sale).or_insert_with(|| Arc::new(OfSale::new(sale)));
                with_sale
            });
        }
    }

    fn take(&self) -> Vec<AnswerCount> {
        let mut taken = Vec::new();
        for (sale, counts) in self.by_sale.load().iter() {
            for (place, outcome) in OUTCOMES.into_iter().enumerate() {
                let count = counts.unadded[place].swap(0, Ordering::Relaxed);
                if count > 0 {
                    let count = i64::try_from(count).unwrap_or(i64::MAX);
                    taken.push(AnswerCount { sale_id: *sale, outcome, count });
                }
            }
        }
        taken
    }

    fn give_back(&self, counts: &[AnswerCount]) {
        for AnswerCount { sale_id, outcome, count } in counts {
            let count = u64::try_from(*count).unwrap_or(0);
            self.with(*sale_id, |counts| {
                counts.unadded[place_of(outcome)].fetch_add(count, Ordering::Relaxed);
            });
        }
    }

    /// Adds what was counted to the database, again and again and once more at the end.
    pub(crate) async fn keep_adding(self: Arc<Self>, database: Database, shutdown: Shutdown) {
        let mut failing = false;
        loop {
            let leaving = tokio::select! {
                () = sleep(INTERVAL) => false,
                () = shutdown.requested() => true,
            };
            let counts = self.take();
            let added = timeout(LAST_WITHIN, database.add_answers(&counts)).await;
            match added {
                Ok(Ok(())) => failing = false,
                // Perhaps added all the same; a count too many is no better than one too few.
                Err(_) => {}
                Ok(Err(fault)) => {
                    self.give_back(&counts);
                    if !failing {
                        warn!(error = %fault, "answers are not added up now; keeping the counts");
                    }
                    failing = true;
                }
            }
            if leaving {
                return;
            }
        }
    }
}

fn place_of(outcome: &str) -> usize {
    let place = OUTCOMES.iter().position(|known| *known == outcome);
    place.unwrap_or(OUTCOMES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_counted_once() {
        let counts = AnswerCounts::new();
        let sale = |id| SaleId::from_i64(id).expect("an id");
        for _ in 0..3 {
            counts.count(sale(1), "sold_out");
        }
        counts.count(sale(2), "admitted");
        let mut taken = counts.take();
        taken.sort_by_key(|count| count.sale_id);
        let expected = [(sale(1), "sold_out", 3), (sale(2), "admitted", 1)]
            .map(|(sale_id, outcome, count)| AnswerCount { sale_id, outcome, count });
        assert_eq!(taken, expected);
        assert_eq!(counts.take(), []);
        counts.give_back(&taken);
        assert_eq!(counts.take().len(), 2);
    }
}
