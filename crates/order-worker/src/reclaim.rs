//! Takes over entries whose worker has held them for too long: it crashed, or lost its way.
//!
//! An entry that comes this way twice is a suspect: it may be what its workers crashed of. Suspects
//! run alone, so that they take no neighbours with them.

use std::ops::ControlFlow;
use std::time::Duration;

use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_bootstrap::{Quiet, Shutdown};
use flashsale_domain::{EntryId, OrderId, Partition};
use flashsale_storage_redis::{RawEntry, Redis, RedisFault};
use flashsale_storage_sql::{Database, SqlFault};
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::backoff::jittered;
use crate::hands::Hands;
use crate::in_flight::Busy;
use crate::process::Batch;
use crate::redis_faults::count_redis_fault;
use crate::spans::order_id;

/// The longest pause between two looks: what a leaving worker handed back is taken within it.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// An entry that has come by reclaim so often runs alone.
const SUSPECT_AFTER: u32 = 2;

pub(crate) struct Reclaimer {
    pub(crate) redis: Redis,
    pub(crate) partition: Partition,
    pub(crate) consumer: String,
    pub(crate) settings: WorkerSettings,
    pub(crate) database: Database,
    pub(crate) hands: Hands,
    pub(crate) busy: Busy,
    pub(crate) batches: Sender<Batch>,
    pub(crate) unwritten_log: Quiet,
}

impl Reclaimer {
    /// Looks through the pending list again and again until the shutdown is requested.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let mut failing = false;
        loop {
            tokio::select! {
                () = sleep(jittered(self.interval())) => {}
                () = shutdown.requested() => return,
            }
            let looked = self.look_through(&shutdown).await;
            match looked.and(self.write_down_lost().await) {
                Ok(()) => failing = false,
                Err(fault) => {
                    count_redis_fault("reclaim");
                    if !failing {
                        warn!(partition = %self.partition, error = %fault,
                            "held entries cannot be looked through; trying again");
                    }
                    failing = true;
                }
            }
        }
    }

    /// Half the idle time at the most: an entry of a dead worker waits at most one and a half of it.
    fn interval(&self) -> Duration {
        (self.settings.reclaim_idle / 2).min(INTERVAL_MAX)
    }

    /// The whole pending list, page by page. One page looks at ten times its size, so without the
    /// cursor what stands behind busy entries would never be reached.
    async fn look_through(&self, shutdown: &Shutdown) -> Result<(), RedisFault> {
        let mut from = None;
        let lost_log = Quiet::every_second();
        loop {
            let page = self
                .redis
                .claim(
                    self.partition,
                    &self.consumer,
                    self.settings.reclaim_idle,
                    from,
                    self.settings.batch,
                )
                .await?;
            self.report_lost(&page.deleted, &lost_log);
            if !page.entries.is_empty() && self.hand_over(page.entries).await?.is_break() {
                return Ok(());
            }
            from = page.next;
            if from.is_none() || shutdown.is_requested() {
                return Ok(());
            }
        }
    }

    /// Passes entries on: suspects one by one, the rest together.
    async fn hand_over(&self, entries: Vec<RawEntry>) -> Result<ControlFlow<()>, RedisFault> {
        self.hands.take(&entries);
        let ids: Vec<EntryId> = entries.iter().map(|entry| entry.id).collect();
        let reclaims = match self.redis.count_reclaims(self.partition, &ids).await {
            Ok(reclaims) => reclaims,
            Err(fault) => {
                // Nobody works on them: a heartbeat that kept them would keep them for ever.
                self.hands.put_down(ids);
                return Err(fault);
            }
        };
        let count = entries.len();
        metrics::counter!("flashsale_reclaimed_total")
            .increment(u64::try_from(count).unwrap_or(u64::MAX));
        info!(partition = %self.partition, count, "took over entries held for too long");
        let (mut together, mut batches) = (Vec::new(), Vec::new());
        for (entry, reclaims) in entries.into_iter().zip(reclaims) {
            if reclaims < SUSPECT_AFTER {
                together.push(entry);
            } else {
                batches.push(Batch::Suspect(entry));
            }
        }
        if !together.is_empty() {
            batches.insert(0, Batch::Reclaimed(together));
        }
        for batch in batches {
            self.busy.begin();
            if self.batches.send(batch).await.is_err() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Entries that were pending and are gone from the stream: orders that Redis lost, and only this
    /// reply says so.
    fn report_lost(&self, lost: &[EntryId], log: &Quiet) {
        for id in lost {
            metrics::counter!("flashsale_entries_lost_total").increment(1);
            if let Some(kept_back) = log.allows() {
                error!(partition = %self.partition, entry.id = %id,
                    order.id = order_id(self.partition, *id), kept_back,
                    "entry {id} was pending and is gone from the stream: an order was lost");
            }
        }
    }

    /// Writes lost entries into the audit log: those that this worker found, and those of workers that
    /// came to nothing just then. Redis keeps each until it is written.
    async fn write_down_lost(&self) -> Result<(), RedisFault> {
        loop {
            let lost = self.redis.list_lost(self.partition, self.settings.batch).await?;
            for &id in &lost {
                if let Err(fault) = self.write_down(id).await {
                    if let Some(kept_back) = self.unwritten_log.allows() {
                        error!(error = %fault, count = lost.len(), kept_back,
                            "lost entries could not be written to the audit log; trying again");
                    }
                    return Ok(());
                }
                self.redis.forget_lost(self.partition, id).await?;
            }
            if lost.len() < self.settings.batch {
                return Ok(());
            }
        }
    }

    async fn write_down(&self, id: EntryId) -> Result<(), SqlFault> {
        let order = OrderId::from_entry(self.partition, id).map(|id| id.to_string());
        let detail = format!(
            "entry {id} of partition {} was deleted while it was pending; order {}",
            self.partition,
            order.as_deref().unwrap_or("unknown"),
        );
        // An entry that is no order's has no other name.
        let subject = order.unwrap_or_else(|_| format!("{}/{id}", self.partition));
        self.database.insert_audit_once(&self.consumer, "entry.lost", &subject, &detail).await
    }
}
