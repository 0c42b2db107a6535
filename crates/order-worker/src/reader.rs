//! Reads one partition's new entries, a batch at a time, and hands them over.
//!
//! The hand-over holds one batch: a database that is slow or away stops the reading, and the entries
//! wait on the stream, where every worker can get them. After a batch that was not full, nothing more
//! waits there: the reader lets the transactions end, so that what comes meanwhile is one batch. Behind
//! a crowd's it lingers a little for the same reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_domain::Partition;
use flashsale_storage_redis::{OrderReader, ReadError, Redis, RedisFault};
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::backoff::Backoff;
use crate::hands::Hands;
use crate::in_flight::Busy;
use crate::process::Batch;
use crate::redis_faults::count_redis_fault;

/// As many orders in one read are a crowd's.
const CROWD: usize = 64;

/// When a reader last heard from Redis: what readiness looks at.
#[derive(Debug, Clone)]
pub(crate) struct LastPoll {
    origin: Instant,
    millis: Arc<AtomicU64>,
}

impl LastPoll {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), millis: Arc::default() }
    }

    fn mark(&self) {
        let elapsed = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(elapsed, Ordering::Relaxed);
    }

    pub(crate) fn age(&self) -> Duration {
        let at = Duration::from_millis(self.millis.load(Ordering::Relaxed));
        self.origin.elapsed().saturating_sub(at)
    }
}

pub(crate) struct Reader {
    pub(crate) redis: Redis,
    pub(crate) partition: Partition,
    pub(crate) consumer: String,
    pub(crate) settings: WorkerSettings,
    pub(crate) batches: Sender<Batch>,
    pub(crate) hands: Hands,
    pub(crate) busy: Busy,
    pub(crate) last_poll: LastPoll,
}

impl Reader {
    /// Reads until the shutdown is requested. The read in progress is driven to its end: a read
    /// that nobody listens to would swallow the next entry.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        let mut reader: Option<OrderReader> = None;
        while !shutdown.is_requested() {
            let read = match &mut reader {
                Some(reader) => reader.read(self.settings.batch).await,
                None => match self.connect().await {
                    Ok(connected) => {
                        reader = Some(connected);
                        continue;
                    }
                    Err(fault) => Err(ReadError::Fault(fault)),
                },
            };
            match read {
                Ok(entries) => {
                    if !backoff.is_fresh() {
                        info!(partition = %self.partition, "reading again");
                    }
                    backoff.reset();
                    self.last_poll.mark();
                    if entries.is_empty() {
                        continue;
                    }
                    let is_full = entries.len() >= self.settings.batch;
                    let of_a_crowd = entries.len() >= CROWD;
                    self.hands.take(&entries);
                    self.busy.begin();
                    if self.batches.send(Batch::Fresh(entries)).await.is_err() {
                        return;
                    }
                    if !is_full {
                        tokio::join!(self.busy.wait_for_end(), self.linger(of_a_crowd, &shutdown));
                    }
                }
                Err(failure) => {
                    reader = None;
                    let first = backoff.is_fresh();
                    if matches!(failure, ReadError::Fault(_)) {
                        count_redis_fault("reader");
                    }
                    match failure {
                        ReadError::GroupMissing => {
                            metrics::counter!("flashsale_group_recreated_total").increment(1);
                            if first {
                                error!(partition = %self.partition,
                                    "the stream or its group is gone: Redis has lost memory; \
                                     creating the group again");
                            }
                        }
                        ReadError::Fault(fault) if first => {
                            warn!(partition = %self.partition, error = %fault,
                                "the stream cannot be read; waiting");
                        }
                        ReadError::Fault(_) => {}
                    }
                    tokio::select! {
                        () = sleep(backoff.pause()) => {}
                        () = shutdown.requested() => {}
                    }
                }
            }
        }
    }

    /// What comes in meanwhile is one batch. Few orders at a time are no crowd, and never wait.
    async fn linger(&self, of_a_crowd: bool, shutdown: &Shutdown) {
        if of_a_crowd {
            let _either_way = timeout(self.settings.linger, shutdown.requested()).await;
        }
    }

    async fn connect(&self) -> Result<OrderReader, RedisFault> {
        self.redis.ensure_group(self.partition).await?;
        self.redis.order_reader(self.partition, &self.consumer, self.settings.block).await
    }
}
