//! Reads the ledgers of live sales now and then, and shows what does not balance.
//!
//! One worker a partition does it, whoever holds the lock: its readings say all, and those of others
//! would only cost.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_bootstrap::{Quiet, Shutdown, clock};
use flashsale_domain::{Partition, Sale, SaleId, SaleState};
use flashsale_operations::{OperationError, Operations};
use flashsale_storage_redis::{Lock, Redis};
use flashsale_storage_sql::Database;
use futures_util::future::join_all;
use tokio::time::sleep;
use tracing::{error, warn};

use crate::backoff::jittered;

/// So many intervals after its last reading a worker that is gone is replaced.
const LOCK_INTERVALS: u32 = 3;

/// How long after its window a sale is looked after: its orders are paid, expire and are given up.
const LIVES_ON_MS: i64 = 24 * 3600 * 1000;

pub(crate) struct LedgerWatch {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) interval: Duration,
}

impl LedgerWatch {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        join_all(self.redis.partitions().map(|partition| self.watch(partition, &shutdown))).await;
    }

    async fn watch(&self, partition: Partition, shutdown: &Shutdown) {
        let mut watcher = Watcher {
            watch: self,
            operations: Operations::new(self.redis.clone(), self.database.clone()),
            partition,
            lock: None,
            shown: HashSet::new(),
            unread: Quiet::every_ten_seconds(),
        };
        let work = async {
            loop {
                sleep(jittered(self.interval)).await;
                if let Err(fault) = watcher.look().await
                    && let Some(kept_back) = watcher.unread.allows()
                {
                    warn!(%partition, error = %fault, kept_back, "ledgers cannot be read now");
                }
            }
        };
        // A reading that hangs in a store holds no shutdown up.
        tokio::select! {
            () = work => {}
            () = shutdown.requested() => {}
        }
        if let Some(lock) = watcher.lock {
            // If this fails it runs out by itself.
            let _unlocked = lock.unlock().await;
        }
    }
}

/// One partition's.
struct Watcher<'a> {
    watch: &'a LedgerWatch,
    operations: Operations,
    partition: Partition,
    lock: Option<Lock>,
    /// Sales whose imbalance is shown.
    shown: HashSet<SaleId>,
    unread: Quiet,
}

impl Watcher<'_> {
    async fn look(&mut self) -> Result<(), OperationError> {
        let read = self.read().await;
        if !matches!(read, Ok(true)) {
            // Unknown, or another's to say: what was shown may be long over.
            for sale in self.shown.drain() {
                show(sale, f64::NAN);
            }
        }
        read.map(|_| ())
    }

    /// Whether it was this worker's turn.
    async fn read(&mut self) -> Result<bool, OperationError> {
        let held = match &self.lock {
            Some(lock) => lock.extend().await?,
            None => false,
        };
        if !held {
            let ttl = self.watch.interval * LOCK_INTERVALS;
            self.lock = self.watch.redis.try_lock_ledger(self.partition, ttl).await?;
            if self.lock.is_none() {
                return Ok(false);
            }
        }
        let homed = self.watch.database.list_sales_of(self.partition).await?;
        let live: Vec<&Sale> = homed.iter().filter(|sale| is_live(sale)).collect();
        // One that is looked after no longer, or is no more, would be shown for good as it was last.
        for gone in self.shown.extract_if(|id| live.iter().all(|sale| sale.id != *id)) {
            show(gone, f64::NAN);
        }
        for sale in live {
            let ledger = self.operations.read_ledger(sale.id).await?;
            self.shown.insert(sale.id);
            show(sale.id, i32::try_from(ledger.imbalance).map_or(f64::INFINITY, f64::from));
            for problem in &ledger.problems {
                error!(sale.id = %sale.id, "the ledger of sale {} does not balance: {problem}", sale.id);
            }
        }
        Ok(true)
    }
}

fn is_live(sale: &Sale) -> bool {
    sale.state != SaleState::Draft && clock::now_ms() < sale.window.closes_ms() + LIVES_ON_MS
}

fn show(sale: SaleId, imbalance: f64) {
    metrics::gauge!("flashsale_ledger_imbalance", "sale" => sale.to_string()).set(imbalance);
}
