//! Watches the gate of every partition, and loads its memory from the database when it is gone or
//! cannot be trusted: so a Redis that restarted heals without a person.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::{RebuildMode, WorkerSettings};
use flashsale_domain::{Partition, SaleId, SaleState};
use flashsale_operations::{OperationError, Operations, RebuildStep, Refused};
use flashsale_storage_redis::{GateStatus, Redis};
use flashsale_storage_sql::Database;
use futures_util::future::join_all;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::backoff::Backoff;
use crate::redis_faults::count_if_redis;

/// How often the gates are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often the sales behind an open gate are looked for. It costs the database a question, and from
/// each worker: so not with every look at the gate.
const SALES_INTERVAL: Duration = Duration::from_secs(5);

/// The last look at the sales behind an open gate.
#[derive(Default)]
struct SalesLook {
    at: Option<Instant>,
    /// Those that Redis did not have.
    unloaded: Vec<SaleId>,
}

pub(crate) struct Recovery {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) settings: WorkerSettings,
}

impl Recovery {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        // A rebuild that is cut off leaves the gate closed and its lock to run out: a peer does it anew.
        tokio::select! {
            () = self.work() => {}
            () = shutdown.requested() => {}
        }
    }

    /// Each partition by itself: one that cannot be loaded keeps no other waiting.
    async fn work(&self) {
        join_all(self.redis.partitions().map(|partition| self.watch(partition))).await;
    }

    async fn watch(&self, partition: Partition) {
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        let mut sales = SalesLook::default();
        loop {
            sleep(INTERVAL).await;
            match self.look_at(partition, &mut sales, backoff.is_fresh()).await {
                Ok(()) => backoff.reset(),
                Err(failure) => {
                    count_if_redis("recovery", &failure);
                    if backoff.is_fresh() {
                        warn!(%partition, error = %failure, "a partition's memory is not loaded");
                    }
                    sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn look_at(
        &self,
        partition: Partition,
        sales: &mut SalesLook,
        first: bool,
    ) -> Result<(), OperationError> {
        let status = self.redis.gate_status(partition).await?;
        let open = status == GateStatus::Open;
        metrics::gauge!("flashsale_gate_open", "partition" => partition.to_string()).set(if open {
            1.0
        } else {
            0.0
        });
        if open && sales.at.is_some_and(|at| at.elapsed() < SALES_INTERVAL) {
            return Ok(());
        }
        let homed = self.database.list_sales_of(partition).await?;
        let mut unload_persists = false;
        if open {
            let live = homed
                .iter()
                .filter(|sale| matches!(sale.state, SaleState::Published | SaleState::Paused));
            let live: Vec<SaleId> = live.map(|sale| sale.id).collect();
            let missing = self.redis.list_unloaded(partition, &live).await?;
            // One that is being published is in the database first.
            unload_persists = missing.iter().any(|sale| sales.unloaded.contains(sale));
            *sales = SalesLook { at: Some(Instant::now()), unloaded: missing };
            if !unload_persists {
                return Ok(());
            }
        }
        if homed.iter().all(|sale| sale.state == SaleState::Draft) {
            // Nothing was ever sold here: publishing the first sale opens the gate.
            return Ok(());
        }
        if self.settings.rebuild == RebuildMode::Manual {
            if first {
                error!(%partition, ?status, unloaded = ?sales.unloaded,
                    "partition {partition} is closed, or misses sales: run `salectl rebuild`");
            }
            return Ok(());
        }
        let operations = Operations::new(self.redis.clone(), self.database.clone())
            .watched_by(Arc::new(|step| Box::pin(log_step(step))));
        let recovered = if unload_persists {
            operations.rebuild_partition(partition).await.map(Some)
        } else {
            operations.recover_partition(partition).await
        };
        match recovered {
            Ok(None) => Ok(()),
            Ok(Some(rebuilt)) => {
                *sales = SalesLook::default();
                metrics::counter!("flashsale_rebuilds_total").increment(1);
                info!(%partition, ?status, sales = rebuilt.sales.len(),
                    "partition {partition} was loaded from the database");
                Ok(())
            }
            Err(OperationError::Refused(Refused::RebuildRunning(_))) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

async fn log_step(step: RebuildStep) {
    if let RebuildStep::Waiting { partition, entries } = step {
        info!(%partition, entries, "a rebuild waits for {entries} entries to be applied");
    }
}
