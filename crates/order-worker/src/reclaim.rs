//! Takes over entries whose worker has held them for too long: it crashed, or lost its way.

use std::time::Duration;

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_domain::Partition;
use flashsale_storage_redis::{RawEntry, Redis, RedisFault};
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::backoff::jittered;

pub(crate) struct Reclaimer {
    pub(crate) redis: Redis,
    pub(crate) partition: Partition,
    pub(crate) consumer: String,
    pub(crate) settings: WorkerSettings,
    pub(crate) batches: Sender<Vec<RawEntry>>,
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
            match self.look_through(&shutdown).await {
                Ok(()) => failing = false,
                Err(fault) => {
                    if !failing {
                        warn!(partition = %self.partition, error = %fault,
                            "held entries cannot be looked through; trying again");
                    }
                    failing = true;
                }
            }
        }
    }

    /// Half the idle time: an entry of a dead worker waits at most one and a half of it.
    fn interval(&self) -> Duration {
        self.settings.reclaim_idle / 2
    }

    /// The whole pending list, page by page. One page looks at ten times its size, so without the
    /// cursor what stands behind busy entries would never be reached.
    async fn look_through(&self, shutdown: &Shutdown) -> Result<(), RedisFault> {
        let mut from = None;
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
            for id in &page.deleted {
                metrics::counter!("flashsale_entries_lost_total").increment(1);
                error!(partition = %self.partition, entry.id = %id,
                    "entry {id} was pending and is gone from the stream: an order was lost");
            }
            if !page.entries.is_empty() {
                let count = page.entries.len();
                metrics::counter!("flashsale_reclaimed_total")
                    .increment(u64::try_from(count).unwrap_or(u64::MAX));
                info!(partition = %self.partition, count, "took over entries held for too long");
                if self.batches.send(page.entries).await.is_err() {
                    return Ok(());
                }
            }
            from = page.next;
            if from.is_none() || shutdown.is_requested() {
                return Ok(());
            }
        }
    }
}
