//! One batch: decode, commit in one transaction, acknowledge once.
//!
//! What the database refuses is found by halving the batch, and set aside alone; its neighbours go
//! on. What the *infrastructure* refuses is tried again for as long as it takes, and counts against
//! no order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_bootstrap::telemetry::count;
use flashsale_bootstrap::{Quiet, clock};
use flashsale_domain::{EntryId, NewOrder, OrderId, Partition, RejectReason, SaleId};
use flashsale_storage_redis::{DeadLetter, RawEntry, Redis, decode};
use flashsale_storage_sql::{BatchFailure, Commit, CommitRefusal, CommittedBatch, Database};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::backoff::Backoff;
use crate::hands::Hands;
use crate::housekeeping::Progress;
use crate::redis_faults::count_redis_fault;
use crate::spans::{self, BatchSpan, order_id, trace_id};

/// How often an acknowledgement is tried before the entries are left to be delivered again.
const ACK_TRIES: usize = 3;

/// What is handed to the processor.
#[derive(Debug)]
pub(crate) enum Batch {
    /// New from the stream.
    Fresh(Vec<RawEntry>),
    /// Taken over from another consumer.
    Reclaimed(Vec<RawEntry>),
    /// Taken over before: it may be what its workers crashed of.
    Suspect(RawEntry),
}

/// Turns batches of one partition's entries into rows.
pub struct Processor {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) partition: Partition,
    consumer: String,
    pub(crate) retry: (Duration, Duration),
    pub(crate) attempts_max: u32,
    hands: Option<Hands>,
    /// Rows written since the start, and when the last ones were: for measuring.
    progress: Progress,
    /// Whether the database took no orders when it was last asked.
    outage: AtomicBool,
    letters_log: Quiet,
    unstored_log: Quiet,
    unacked_log: Quiet,
    /// How long a transaction may take. The server ends what is slow; only a connection that has
    /// gone silent takes this long, and by now the entries are another worker's as well.
    pub(crate) commit_timeout: Duration,
    /// When this fires, waiting for the infrastructure ends; what is not done stays pending.
    pub(crate) give_up: CancellationToken,
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
pub(crate) enum Verdict {
    Done,
    DeadLetter { reason: &'static str, detail: String, code: Option<String> },
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
        Self {
            redis,
            database,
            partition,
            consumer,
            retry,
            commit_timeout: settings.reclaim_idle,
            attempts_max: settings.max_deliveries,
            hands: None,
            progress: Progress::default(),
            outage: AtomicBool::new(false),
            letters_log: Quiet::every_second(),
            unstored_log: Quiet::every_ten_seconds(),
            unacked_log: Quiet::every_ten_seconds(),
            give_up,
        }
    }

    /// Only what is in these hands is processed; what is done leaves them.
    pub(crate) fn with_hands(mut self, hands: Hands, progress: Progress) -> Self {
        self.hands = Some(hands);
        self.progress = progress;
        self
    }

    pub(crate) async fn process_batch(&self, batch: Batch) {
        match batch {
            Batch::Fresh(entries) => {
                self.process(entries).await;
            }
            Batch::Reclaimed(entries) => {
                let ids: Vec<EntryId> = entries.iter().map(|entry| entry.id).collect();
                if self.process(entries).await.left == 0 {
                    self.forget(&ids).await;
                }
            }
            Batch::Suspect(entry) => {
                self.process_suspect(entry).await;
            }
        }
    }

    pub(crate) async fn forget(&self, ids: &[EntryId]) {
        // What is left behind is forgotten with the partition's next quiet moment.
        let _unimportant = self.redis.forget_suspects(self.partition, ids).await;
    }

    pub(crate) fn is_ours(&self, id: EntryId) -> bool {
        self.hands.as_ref().is_none_or(|hands| hands.hold(id))
    }

    fn put_down(&self, ids: impl IntoIterator<Item = EntryId>) {
        if let Some(hands) = &self.hands {
            hands.put_down(ids);
        }
    }

    /// Processes a batch to its end, waiting out outages.
    pub async fn process(&self, entries: Vec<RawEntry>) -> Processed {
        let mut processed = Processed::default();
        let mut orders = Vec::with_capacity(entries.len());
        let mut raw = Vec::with_capacity(entries.len());
        for entry in entries {
            if !self.is_ours(entry.id) {
                processed.left += 1;
                continue;
            }
            match decode(self.partition, &entry) {
                Ok(order) => {
                    orders.push(order);
                    raw.push(entry);
                }
                Err(undecodable) => {
                    let (reason, detail) = (undecodable.reason(), undecodable.to_string());
                    let stored = self.set_aside(entry, reason, detail, None).await;
                    *(if stored { &mut processed.dead } else { &mut processed.left }) += 1;
                }
            }
        }

        let span = BatchSpan::begin(self.partition, &raw);
        let verdicts = spans::under(span.as_ref(), self.commit(&orders)).await;
        if let Some(span) = span {
            span.end(&orders, &verdicts);
        }
        let mut acked = Vec::with_capacity(orders.len());
        let mut committed: Vec<OrderId> = Vec::with_capacity(orders.len());
        for ((order, entry), verdict) in orders.iter().zip(raw).zip(verdicts) {
            match verdict {
                Some(Verdict::Done) => {
                    debug!(order.id = %order.id, trace.id = trace_id(&entry), "an order is committed");
                    acked.push(entry.id);
                    committed.push(order.id);
                }
                Some(Verdict::DeadLetter { reason, detail, code }) => {
                    let stored = self.set_aside(entry, reason, detail, code).await;
                    *(if stored { &mut processed.dead } else { &mut processed.left }) += 1;
                }
                None => processed.left += 1,
            }
        }
        // Buyers who wait are told at once; a message that is lost costs them a moment.
        let (acknowledged, _unimportant) =
            tokio::join!(self.acknowledge(&acked), self.redis.announce_changes(&committed));
        *(if acknowledged { &mut processed.done } else { &mut processed.left }) += acked.len();
        // Also what could not be acknowledged: a heartbeat that kept it would keep it for ever.
        self.put_down(acked);
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
            // Whoever took an entry over while we waited writes it now; twice would be harmless.
            if range.clone().any(|i| !self.is_ours(orders[i].id.entry())) {
                if range.len() > 1 {
                    to_do.extend(range.rev().map(|i| i..i + 1));
                }
                continue;
            }
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
                    if self.outage.swap(false, Ordering::Relaxed) {
                        info!(partition = %self.partition, "the database takes orders again");
                    }
                    backoff.reset();
                    record_commit(&orders[range.clone()], &batch);
                    let again = |outcome: &&Commit| **outcome == Commit::Redelivered;
                    let redelivered = batch.outcomes.iter().filter(again).count();
                    self.progress.mark(range.len(), redelivered);
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
                Blame::Reject(reason) => {
                    match self.database.reject_order(&orders[range.start], reason).await {
                        Ok(_) => {
                            count_commits(orders[range.start].sale_id, reason.as_str(), 1);
                            verdicts[range.start] = Some(Verdict::Done);
                        }
                        // The same order comes to the same end when it is tried again.
                        Err(_) => to_do.push(range),
                    }
                }
                Blame::Halves(first, second) => to_do.extend([second, first]),
                Blame::Nobody => {
                    // Said when it begins, not at every try of every batch: an outage has one line.
                    if !self.outage.swap(true, Ordering::Relaxed) {
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
    pub(crate) async fn set_aside(
        &self,
        entry: RawEntry,
        reason: &'static str,
        detail: String,
        code: Option<String>,
    ) -> bool {
        let mut letter =
            DeadLetter::new(entry, reason, detail, self.consumer.as_str(), clock::now_ms());
        letter.code = code;
        let (partition, id) = (self.partition, letter.entry.id);
        match self.redis.store_dead_letter(partition, &letter).await {
            Ok(()) => {
                if let Some(kept_back) = self.letters_log.allows() {
                    error!(%partition, entry.id = %id, order.id = order_id(partition, id),
                        trace.id = trace_id(&letter.entry), reason, detail = %letter.detail, kept_back,
                        "entry {id} is set aside as a dead letter");
                }
                self.put_down([id]);
                if let Ok(order) = OrderId::from_entry(partition, id) {
                    let _unimportant = self.redis.announce_changes(&[order]).await;
                }
                true
            }
            Err(fault) => {
                count_redis_fault("dead-letter");
                if let Some(kept_back) = self.unstored_log.allows() {
                    warn!(%partition, entry.id = %id, order.id = order_id(partition, id),
                        trace.id = trace_id(&letter.entry), reason, error = %fault, kept_back,
                        "dead letter {id} could not be stored; its entry stays pending");
                }
                // Not in hand any more: it comes again by reclaim.
                self.put_down([id]);
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
                    count_redis_fault("acknowledge");
                    if let Some(kept_back) = self.unacked_log.allows() {
                        warn!(partition = %self.partition, error = %fault, count = ids.len(),
                            kept_back,
                            "committed entries could not be acknowledged; they will come again");
                    }
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
    Reject(RejectReason),
    Halves(Range<usize>, Range<usize>),
    Nobody,
}

fn halve_or_blame(range: Range<usize>, failure: &BatchFailure) -> Blame {
    let Some(reason) = failure.reason() else { return Blame::Nobody };
    if range.len() > 1 {
        let middle = range.start + range.len() / 2;
        return Blame::Halves(range.start..middle, middle..range.end);
    }
    Blame::Order(match failure {
        // Redis had one unit too many: the buyer is told so, and the slot goes back.
        BatchFailure::Refused(CommitRefusal::StockGone(_)) => {
            return Blame::Reject(RejectReason::StockGone);
        }
        other => Verdict::DeadLetter { reason, detail: other.to_string(), code: other.code() },
    })
}

fn verdict_of(commit: &Commit) -> Verdict {
    match commit {
        Commit::Inserted | Commit::Redelivered | Commit::Rejected(_) => Verdict::Done,
        Commit::Refused(refusal) => {
            let (reason, detail) = (refusal.as_str(), refusal.to_string());
            Verdict::DeadLetter { reason, detail, code: None }
        }
    }
}

fn record_commit(orders: &[NewOrder], batch: &CommittedBatch) {
    metrics::histogram!("flashsale_commit_batch_size").record(count(orders.len()));
    let committed_ms = u64::try_from(batch.committed_ms).unwrap_or(0);
    let (mut results, mut lags) = (BTreeMap::new(), BTreeMap::new());
    for (order, commit) in orders.iter().zip(&batch.outcomes) {
        let result = match commit {
            Commit::Inserted => "inserted",
            Commit::Redelivered => "redelivered",
            Commit::Rejected(reason) => reason.as_str(),
            Commit::Refused(refusal) => refusal.as_str(),
        };
        *results.entry((order.sale_id, result)).or_insert(0) += 1;
        if *commit == Commit::Inserted {
            // Two clocks: Redis's in the id, the database's here. After a rebuild ids run ahead.
            let lag_ms = committed_ms.saturating_sub(order.id.entry().ms);
            *lags.entry(lag_ms).or_insert(0) += 1;
        }
    }
    for ((sale, result), orders) in results {
        count_commits(sale, result, orders);
    }
    for (lag_ms, orders) in lags {
        let lag = Duration::from_millis(lag_ms).as_secs_f64();
        metrics::histogram!("flashsale_commit_lag_seconds").record_many(lag, orders);
    }
}

fn count_commits(sale: SaleId, result: &'static str, orders: u64) {
    let sale = sale.to_string();
    metrics::counter!("flashsale_orders_committed_total", "sale" => sale, "result" => result)
        .increment(orders);
}
