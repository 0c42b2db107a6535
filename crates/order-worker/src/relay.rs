//! Carries out what committed transactions owe to Redis: the outbox's releases, and adjustments and
//! late payments that were begun and not finished.
//!
//! Several workers may carry out the same one: the script gives back only what the buyer's record
//! still holds in that generation. A release whose sale is not loaded waits in the outbox.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_domain::OrderState;
use flashsale_operations::{OperationError, Operations};
use flashsale_storage_redis::{RecordItem, Redis, RedisFault, ReleaseRequest, Released};
use flashsale_storage_sql::{Database, Release, SqlFault, StoredOrder};
use futures_util::future::join_all;
use tokio::time::sleep;
use tracing::warn;

use crate::backoff::Backoff;
use crate::redis_faults::{count_if_redis, count_redis_fault};

/// How often the outbox is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// Releases a look.
const PAGE: u64 = 500;
/// Releases at a time: fewer than the pool has connections, which others need too.
const SIDE_BY_SIDE: usize = 8;

pub(crate) struct Relay {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) operations: Operations,
    pub(crate) settings: WorkerSettings,
}

#[derive(Debug, thiserror::Error)]
enum RelayFault {
    #[error(transparent)]
    Operation(#[from] OperationError),
    #[error(transparent)]
    Redis(#[from] RedisFault),
    #[error(transparent)]
    Sql(#[from] SqlFault),
}

impl Relay {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        // A store that does not answer must not hold up the end; what is cut off half way is carried
        // out again by whoever looks next, and that is the same as once.
        tokio::select! {
            () = self.work() => {}
            () = shutdown.requested() => {}
        }
    }

    async fn work(&self) {
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        loop {
            let pause = match self.carry_out_everything().await {
                Ok(()) => {
                    backoff.reset();
                    INTERVAL
                }
                Err(fault) => {
                    match &fault {
                        RelayFault::Redis(_) => count_redis_fault("relay"),
                        RelayFault::Operation(failure) => count_if_redis("relay", failure),
                        RelayFault::Sql(_) => {}
                    }
                    if backoff.is_fresh() {
                        warn!(error = %fault, "what Redis is owed cannot be carried out; waiting");
                    }
                    backoff.pause()
                }
            };
            sleep(pause).await;
        }
    }

    async fn carry_out_everything(&self) -> Result<(), RelayFault> {
        // What fails, perhaps for one sale only, keeps nothing else from its turn.
        let released = self.carry_out_all().await;
        let adjusted = self.operations.finish_adjustments(PAGE).await;
        self.operations.finish_late_payments(PAGE).await?;
        adjusted?;
        released
    }

    /// The whole outbox once, page by page: what has to wait must not keep the rest from its turn,
    /// and neither must a sale whose keys are broken.
    async fn carry_out_all(&self) -> Result<(), RelayFault> {
        let (mut after, mut refusal) = (0, None);
        let mut refused_sales = HashSet::new();
        loop {
            let releases = self.database.list_releases(after, PAGE).await?;
            let Some(last) = releases.last() else { break };
            after = last.id;
            let mut done = Vec::with_capacity(releases.len());
            for some in releases.chunks(SIDE_BY_SIDE) {
                let to_do = some.iter().filter(|release| !refused_sales.contains(&release.sale_id));
                let carried_out = join_all(to_do.map(async |release: &Release| {
                    (release, self.redis.release(&request_of(release)).await)
                }));
                for (release, released) in carried_out.await {
                    match released {
                        Ok(Released::Done) => {
                            let cause = release.cause.clone();
                            metrics::counter!("flashsale_releases_total", "cause" => cause)
                                .increment(1);
                            done.push(release.id);
                        }
                        Ok(Released::Nothing) => done.push(release.id),
                        Ok(Released::NotLoaded) => {}
                        Err(fault) if fault.is_refused() => {
                            refused_sales.insert(release.sale_id);
                            refusal = Some(fault);
                        }
                        Err(fault) => return Err(fault.into()),
                    }
                }
            }
            self.database.delete_releases(&done).await?;
        }
        refusal.map_or(Ok(()), |fault| Err(fault.into()))
    }
}

fn request_of(release: &Release) -> ReleaseRequest<'_> {
    ReleaseRequest {
        partition: release.partition,
        sale_id: release.sale_id,
        user_id: &release.user_id,
        entry: release.order_id.entry(),
        generation: release.generation,
        returns_unit: release.returns_unit,
        instead: release.instead.as_ref().and_then(item_of),
    }
}

/// The record item of the order that has the slot instead; none if it has been closed since.
fn item_of(stored: &StoredOrder) -> Option<RecordItem> {
    let open = stored.order.state != OrderState::Queued && stored.order.state.is_open();
    open.then(|| RecordItem {
        entry: stored.order.id.entry(),
        slot: stored.slot,
        generation: stored.generation,
        open: true,
        digest: stored.digest.clone(),
    })
}
