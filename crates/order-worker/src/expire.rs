//! Expires orders that were not paid in time: on time, and whichever worker comes first.
//!
//! The sweep sleeps until the next order is due, by the database's clock, but never for long: an
//! order that is committed meanwhile may be due earlier.

use std::time::Duration;

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_operations::{OperationError, Operations};
use tokio::time::sleep;
use tracing::warn;

use crate::backoff::Backoff;

/// Orders of one transaction.
const PAGE: u64 = 500;
/// The longest sleep. Payment windows are whole seconds, so it is well within one.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// The shortest, so that an order that another worker has locked is not asked for in a loop.
const SLEEP_MIN: Duration = Duration::from_millis(10);

pub(crate) struct Expiry {
    pub(crate) operations: Operations,
    pub(crate) settings: WorkerSettings,
}

impl Expiry {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        // A store that does not answer must not hold up the end; an order that is cut off half way
        // is expired by whoever looks next.
        tokio::select! {
            () = self.work() => {}
            () = shutdown.requested() => {}
        }
    }

    async fn work(&self) {
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        loop {
            let pause = match self.sweep().await {
                Ok(pause) => {
                    backoff.reset();
                    pause
                }
                Err(fault) => {
                    if backoff.is_fresh() {
                        warn!(error = %fault, "overdue orders cannot be expired; waiting");
                    }
                    backoff.pause()
                }
            };
            sleep(pause).await;
        }
    }

    /// Expires what is due, and says how long to sleep.
    async fn sweep(&self) -> Result<Duration, OperationError> {
        loop {
            let expired = self.operations.expire_orders(PAGE).await?;
            metrics::counter!("flashsale_orders_expired_total").increment(expired);
            if expired < PAGE {
                break;
            }
        }
        let next = self.operations.next_due().await?;
        let pause = next.due_ms.map_or(SLEEP_MAX, |due_ms| {
            Duration::from_millis(u64::try_from(due_ms - next.now_ms).unwrap_or(0))
        });
        Ok(pause.clamp(SLEEP_MIN, SLEEP_MAX))
    }
}
