//! One batch: decode, commit in one transaction, acknowledge once.
//!
//! What the database refuses is found by halving the batch, and set aside alone; its neighbours go
//! on. What the *infrastructure* refuses is tried again for as long as it takes, and counts against
//! no order.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_domain::{EntryId, NewOrder, Partition};
use flashsale_storage_redis::{DeadLetter, RawEntry, Redis, decode};
use flashsale_storage_sql::{BatchFailure, Commit, CommitRefusal, CommittedBatch, Database};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::backoff::Backoff;

/// How often an acknowledgement is tried before the entries are left to be delivered again.
const ACK_TRIES: usize = 3;

/// Turns batches of one partition's entries into rows.
pub struct Processor {
    redis: Redis,
    database: Database,
    partition: Partition,
    consumer: String,
    retry: (Duration, Duration),
    /// How long a transaction may take. The server ends what is slow; only a connection that has
    /// gone silent takes this long, and by now the entries are another worker's as well.
    commit_timeout: Duration,
    /// When this fires, waiting for the infrastructure ends; what is not done stays pending.
    give_up: CancellationToken,
}

/// What became of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Processed {
    /// Entries that are rows now, and acknowledged.
    pub done: usize,
    /// Entries set aside.
    pub dead: usize,
    /// Entries left pending, to be delivered again.
    pub left: usize,
}

/// What is to become of one order.
enum Verdict {
    Done,
    DeadLetter { reason: &'static str, detail: String },
}

impl Processor {
    /// A processor for one partition. `give_up` ends its waiting for an outage's end.
    pub fn new(
        redis: Redis,
        database: Database,
        partition: Partition,
        consumer: String,
        settings: &WorkerSettings,
        give_up: CancellationToken,
    ) -> Self {
        let retry = (settings.retry_min, settings.retry_max);
        let commit_timeout = settings.reclaim_idle;
        Self { redis, database, partition, consumer, retry, commit_timeout, give_up }
    }

    /// Processes a batch to its end, waiting out outages.
    pub async fn process(&self, entries: Vec<RawEntry>) -> Processed {
        let mut processed = Processed::default();
        let mut orders = Vec::with_capacity(entries.len());
        let mut raw = Vec::with_capacity(entries.len());
        for entry in entries {
            match decode(self.partition, &entry) {
                Ok(order) => {
                    orders.push(order);
                    raw.push(entry);
                }
                Err(undecodable) => {
                    let stored =
                        self.set_aside(entry, "undecodable", undecodable.to_string()).await;
                    *(if stored { &mut processed.dead } else { &mut processed.left }) += 1;
                }
            }
        }

        let verdicts = self.commit(&orders).await;
        let mut acked = Vec::with_capacity(orders.len());
        for (entry, verdict) in raw.into_iter().zip(verdicts) {
            match verdict {
                Some(Verdict::Done) => acked.push(entry.id),
                Some(Verdict::DeadLetter { reason, detail }) => {
                    let stored = self.set_aside(entry, reason, detail).await;
                    *(if stored { &mut processed.dead } else { &mut processed.left }) += 1;
                }
                None => processed.left += 1,
            }
        }
        if self.acknowledge(&acked).await {
            processed.done += acked.len();
        } else {
            processed.left += acked.len();
        }
        processed
    }

    /// Commits what can be committed. `None` where the waiting was given up.
    async fn commit(&self, orders: &[NewOrder]) -> Vec<Option<Verdict>> {
        let mut verdicts: Vec<Option<Verdict>> = orders.iter().map(|_| None).collect();
        let mut to_do = Vec::new();
        if !orders.is_empty() {
            to_do.push(0..orders.len());
        }
        let mut backoff = Backoff::new(self.retry.0, self.retry.1);
        while let Some(range) = to_do.pop() {
            let commit = self.database.commit_orders(&orders[range.clone()]);
            // A commit that is given up may still take place: its entries stay pending, and coming
            // again changes nothing.
            let committed = tokio::select! {
                biased;
                () = self.give_up.cancelled() => break,
                committed = timeout(self.commit_timeout, commit) => committed,
            };
            let (blame, why) = match committed {
                Ok(Ok(batch)) => {
                    if !backoff.is_fresh() {
                        info!(partition = %self.partition, "the database takes orders again");
                    }
                    backoff.reset();
                    record_commit(&orders[range.clone()], &batch);
                    for (i, commit) in range.zip(&batch.outcomes) {
                        verdicts[i] = Some(verdict_of(commit));
                    }
                    continue;
                }
                Ok(Err(failure)) => (halve_or_blame(range.clone(), &failure), failure.to_string()),
                Err(elapsed) => (Blame::Nobody, elapsed.to_string()),
            };
            match blame {
                Blame::Order(verdict) => verdicts[range.start] = Some(verdict),
                Blame::Halves(first, second) => to_do.extend([second, first]),
                Blame::Nobody => {
                    // Said when it begins, not at every try: an outage has one line.
                    if backoff.is_fresh() {
                        warn!(partition = %self.partition, error = %why,
                            "the database does not take orders; waiting");
                    }
                    metrics::counter!("flashsale_worker_retries_total").increment(1);
                    to_do.push(range);
                    tokio::select! {
                        () = sleep(backoff.pause()) => {}
                        () = self.give_up.cancelled() => break,
                    }
                }
            }
        }
        verdicts
    }

    /// Stores a dead letter and acknowledges its entry; false when it stays pending instead.
    async fn set_aside(&self, entry: RawEntry, reason: &'static str, detail: String) -> bool {
        let letter = DeadLetter {
            entry,
            reason: reason.to_owned(),
            detail,
            consumer: self.consumer.clone(),
            at_ms: now_ms(),
        };
        let (partition, id) = (self.partition, letter.entry.id);
        match self.redis.store_dead_letter(partition, &letter).await {
            Ok(()) => {
                error!(%partition, entry.id = %id, reason, detail = %letter.detail,
                    "entry {id} is set aside as a dead letter");
                true
            }
            Err(fault) => {
                warn!(%partition, entry.id = %id, reason, error = %fault,
                    "dead letter {id} could not be stored; its entry stays pending");
                false
            }
        }
    }

    /// One XACK for the whole batch. When it fails the entries come again, and change nothing.
    async fn acknowledge(&self, ids: &[EntryId]) -> bool {
        let mut backoff = Backoff::new(self.retry.0, self.retry.1);
        for tries_left in (0..ACK_TRIES).rev() {
            match self.redis.ack(self.partition, ids).await {
                Ok(_) => return true,
                Err(fault) if tries_left == 0 => {
                    warn!(partition = %self.partition, error = %fault, count = ids.len(),
                        "committed entries could not be acknowledged; they will come again");
                }
                Err(_) => sleep(backoff.pause()).await,
            }
        }
        false
    }
}

/// Who pays for a failed transaction.
enum Blame {
    Order(Verdict),
    Halves(Range<usize>, Range<usize>),
    Nobody,
}

fn halve_or_blame(range: Range<usize>, failure: &BatchFailure) -> Blame {
    let reason = match failure {
        BatchFailure::Infrastructure(_) | BatchFailure::Moved => return Blame::Nobody,
        BatchFailure::Refused(refusal) => reason_of(refusal),
        BatchFailure::Data(_) => "data-refused",
    };
    if range.len() > 1 {
        let middle = range.start + range.len() / 2;
        return Blame::Halves(range.start..middle, middle..range.end);
    }
    let detail = match failure {
        BatchFailure::Data(fault) => {
            format!("{} (code {})", fault, fault.code().unwrap_or_default())
        }
        other => other.to_string(),
    };
    Blame::Order(Verdict::DeadLetter { reason, detail })
}

fn verdict_of(commit: &Commit) -> Verdict {
    match commit {
        Commit::Inserted | Commit::Redelivered | Commit::Rejected(_) => Verdict::Done,
        Commit::Refused(refusal) => {
            Verdict::DeadLetter { reason: reason_of(refusal), detail: refusal.to_string() }
        }
    }
}

const fn reason_of(refusal: &CommitRefusal) -> &'static str {
    match refusal {
        CommitRefusal::SaleMissing(_) => "sale-missing",
        CommitRefusal::StockGone(_) => "stock-gone",
        CommitRefusal::SlotTaken(_) => "slot-taken",
        CommitRefusal::ContentConflict(_) => "content-conflict",
        CommitRefusal::EpochAhead { .. } => "epoch-ahead",
    }
}

fn record_commit(orders: &[NewOrder], batch: &CommittedBatch) {
    metrics::histogram!("flashsale_commit_batch_size").record(count_f64(orders.len()));
    for (order, commit) in orders.iter().zip(&batch.outcomes) {
        let result = match commit {
            Commit::Inserted => "inserted",
            Commit::Redelivered => "redelivered",
            Commit::Rejected(reason) => reason.as_str(),
            Commit::Refused(refusal) => reason_of(refusal),
        };
        let sale = order.sale_id.to_string();
        metrics::counter!("flashsale_orders_committed_total", "sale" => sale, "result" => result)
            .increment(1);
        if *commit == Commit::Inserted {
            // Two clocks: Redis's in the id, the database's here. After a rebuild ids run ahead.
            let admitted_ms = order.id.entry().ms;
            let committed_ms = u64::try_from(batch.committed_ms).unwrap_or(0);
            let lag = Duration::from_millis(committed_ms.saturating_sub(admitted_ms));
            metrics::histogram!("flashsale_commit_lag_seconds").record(lag.as_secs_f64());
        }
    }
}

/// A count as the metrics want it; exact up to 2^32.
pub(crate) fn count_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |elapsed| i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX))
}
