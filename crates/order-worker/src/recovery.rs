//! Watches the gate of every partition, and loads its memory from the database when it is gone or
//! cannot be trusted: so a Redis that restarted heals without a person.

use std::time::Duration;

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::{RebuildMode, WorkerSettings};
use flashsale_domain::{Partition, SaleState};
use flashsale_operations::{OperationError, Operations, Refused};
use flashsale_storage_redis::{GateStatus, Redis};
use flashsale_storage_sql::Database;
use futures_util::future::join_all;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::backoff::Backoff;

/// How often the gates are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

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
        loop {
            sleep(INTERVAL).await;
            match self.look_at(partition, backoff.is_fresh()).await {
                Ok(()) => backoff.reset(),
                Err(failure) => {
                    if backoff.is_fresh() {
                        warn!(%partition, error = %failure, "a partition's memory is not loaded");
                    }
                    sleep(backoff.pause()).await;
                }
            }
        }
    }

    async fn look_at(&self, partition: Partition, first: bool) -> Result<(), OperationError> {
        let status = self.redis.gate_status(partition).await?;
        let open = status == GateStatus::Open;
        metrics::gauge!("flashsale_gate_open", "partition" => partition.to_string()).set(if open {
            1.0
        } else {
            0.0
        });
        if open {
            return Ok(());
        }
        let homed = self.database.list_sales_of(partition).await?;
        if homed.iter().all(|sale| sale.state == SaleState::Draft) {
            // Nothing was ever sold here: publishing the first sale opens the gate.
            return Ok(());
        }
        if self.settings.rebuild == RebuildMode::Manual {
            if first {
                error!(%partition, ?status,
                    "partition {partition} is closed: run `salectl rebuild` for one of its sales");
            }
            return Ok(());
        }
        let operations = Operations::new(self.redis.clone(), self.database.clone());
        match operations.recover_partition(partition).await {
            Ok(None) => Ok(()),
            Ok(Some(rebuilt)) => {
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
