//! Carries out what committed transactions owe to Redis: the outbox's releases.
//!
//! Several workers may carry out the same one: the script gives back only what the buyer's record
//! still holds in that generation. A release whose sale is not loaded waits in the outbox.

use std::time::Duration;

use flashsale_bootstrap::Shutdown;
use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_domain::OrderState;
use flashsale_storage_redis::{RecordItem, Redis, RedisFault, ReleaseRequest, Released};
use flashsale_storage_sql::{Database, Release, SqlFault, StoredOrder};
use tokio::time::sleep;
use tracing::warn;

use crate::backoff::Backoff;

/// How often the outbox is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// Releases a look.
const PAGE: u64 = 500;

pub(crate) struct Relay {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) settings: WorkerSettings,
}

#[derive(Debug, thiserror::Error)]
enum RelayFault {
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
            let pause = match self.carry_out_all().await {
                Ok(()) => {
                    backoff.reset();
                    INTERVAL
                }
                Err(fault) => {
                    if backoff.is_fresh() {
                        warn!(error = %fault, "releases cannot be carried out; waiting");
                    }
                    backoff.pause()
                }
            };
            sleep(pause).await;
        }
    }

    /// The whole outbox once, page by page: what has to wait must not keep the rest from its turn.
    async fn carry_out_all(&self) -> Result<(), RelayFault> {
        let mut after = 0;
        loop {
            let releases = self.database.list_releases(after, PAGE).await?;
            let Some(last) = releases.last() else { return Ok(()) };
            after = last.id;
            let mut done = Vec::with_capacity(releases.len());
            for release in &releases {
                match self.redis.release(&request_of(release)).await? {
                    Released::Done => {
                        let cause = release.cause.clone();
                        metrics::counter!("flashsale_releases_total", "cause" => cause)
                            .increment(1);
                        done.push(release.id);
                    }
                    Released::Nothing => done.push(release.id),
                    Released::NotLoaded => {}
                }
            }
            self.database.delete_releases(&done).await?;
        }
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
