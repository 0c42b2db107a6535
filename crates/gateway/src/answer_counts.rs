//! How often buyers were told what, sale by sale, for the sale's report: counted in memory, added to the
//! database every few seconds.
//!
//! A gateway that is killed takes the last few seconds' counts with it. They say how large the crowd was;
//! no unit depends on them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use flashsale_bootstrap::Shutdown;
use flashsale_domain::SaleId;
use flashsale_storage_sql::{AnswerCount, Database};
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
    "other",
];

type OfSale = [AtomicU64; OUTCOMES.len()];

/// The counts that the database does not have yet.
#[derive(Default)]
pub(crate) struct AnswerCounts {
    // Replaced when a sale is answered for the first time, so that nobody waits for anybody else.
    by_sale: ArcSwap<HashMap<SaleId, Arc<OfSale>>>,
}

impl AnswerCounts {
    /// Counts one answer.
    pub(crate) fn count(&self, sale: SaleId, outcome: &str) {
        self.add(sale, outcome, 1);
    }

    fn add(&self, sale: SaleId, outcome: &str, count: u64) {
        let place = OUTCOMES.iter().position(|known| *known == outcome);
        let place = place.unwrap_or(OUTCOMES.len() - 1);
        loop {
            if let Some(counts) = self.by_sale.load().get(&sale) {
                counts[place].fetch_add(count, Ordering::Relaxed);
                return;
            }
            self.by_sale.rcu(|known| {
                let mut with_sale = HashMap::clone(known);
                with_sale.entry(sale).or_default();
                with_sale
            });
        }
    }

    fn take(&self) -> Vec<AnswerCount> {
        let mut taken = Vec::new();
        for (sale, counts) in self.by_sale.load().iter() {
            for (place, outcome) in OUTCOMES.into_iter().enumerate() {
                let count = counts[place].swap(0, Ordering::Relaxed);
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
            self.add(*sale_id, outcome, u64::try_from(*count).unwrap_or(0));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_counted_once() {
        let counts = AnswerCounts::default();
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
