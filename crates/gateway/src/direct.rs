//! Direct mode: lock the buyer, one database transaction, answer when it is committed.

use std::time::{Duration, Instant};

use flashsale_bootstrap::error_quietly;
use flashsale_bootstrap::settings::DirectSettings;
use flashsale_domain::{IdempotencyDigest, Refusal, SaleId, UserId};
use flashsale_storage_redis::{BuyerLock, ORDERS_PER_BUYER_MAX, Redis};
use flashsale_storage_sql::{Database, DirectAnswer};
use opentelemetry::Context;
use opentelemetry::context::FutureExt as _;
use tokio::time::sleep;
use tracing::warn;

use crate::admission_queue::NoDecision;

/// How often a busy lock is tried again.
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// An id is taken only after Redis lost its counter within the same millisecond.
const ID_TRIES: usize = 5;

/// Places orders of direct sales.
#[derive(Clone)]
pub(crate) struct DirectOrders {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) settings: DirectSettings,
}

/// What a buyer asks for.
pub(crate) struct Press {
    pub(crate) user: UserId,
    pub(crate) digest: Option<IdempotencyDigest>,
    /// What the logs call the request.
    pub(crate) request_id: Option<String>,
}

impl DirectOrders {
    /// Decides and commits an order. Runs to its end even when the buyer hangs up: a transaction
    /// that is dropped half way would leave its lock behind, and its outcome unknown.
    pub(crate) async fn place(
        &self,
        sale: SaleId,
        press: Press,
    ) -> Result<DirectAnswer, NoDecision> {
        let this = self.clone();
        let work = async move { this.place_locked(sale, &press).await };
        let work = actix_web::rt::spawn(work.with_context(Context::current()));
        work.await.unwrap_or(Err(NoDecision::OutcomeUnknown))
    }

    async fn place_locked(&self, sale: SaleId, press: &Press) -> Result<DirectAnswer, NoDecision> {
        let request_id = press.request_id.as_deref();
        let lock = self.lock(sale, press).await?;
        let answer = {
            let mut work = std::pin::pin!(self.commit(sale, press));
            loop {
                tokio::select! {
                    answer = &mut work => break answer,
                    () = sleep(lock.extend_interval()) => {
                        // A lock that is lost changes nothing: the database has the last word.
                        if let Err(fault) = lock.extend().await {
                            warn!(sale.id = %sale, request.id = request_id, error = %fault,
                                "a buyer's lock was not extended");
                        }
                    }
                }
            }
        };
        // After COMMIT, never before it: the next press must see the row.
        if let Err(fault) = lock.unlock().await {
            warn!(sale.id = %sale, request.id = request_id, error = %fault,
                "a buyer's lock was not given back; it runs out");
        }
        answer
    }

    async fn lock(&self, sale: SaleId, press: &Press) -> Result<BuyerLock, NoDecision> {
        let started = Instant::now();
        loop {
            match self.redis.try_lock_buyer(sale, &press.user, self.settings.lock_ttl).await {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) if started.elapsed() < self.settings.lock_wait => sleep(LOCK_RETRY).await,
                Ok(None) => return Err(NoDecision::Overloaded),
                Err(fault) => {
                    error_quietly!(sale.id = %sale, request.id = press.request_id.as_deref(),
                        error = %fault, "a buyer cannot be locked");
                    return Err(NoDecision::Unavailable);
                }
            }
        }
    }

    async fn commit(&self, sale: SaleId, press: &Press) -> Result<DirectAnswer, NoDecision> {
        let (user, digest) = (&press.user, press.digest.as_ref());
        let request_id = press.request_id.as_deref();
        for _ in 0..ID_TRIES {
            let id = match self.redis.next_direct_order_id().await {
                Ok(Some(id)) => id,
                Ok(None) => return Ok(DirectAnswer::Refused(Refusal::ClockFault)),
                Err(fault) => {
                    error_quietly!(sale.id = %sale, request.id = request_id, error = %fault,
                        "no order id can be had");
                    return Err(NoDecision::Unavailable);
                }
            };
            let placed =
                self.database.place_direct_order(id, sale, user, digest, ORDERS_PER_BUYER_MAX);
            match placed.await {
                Ok(DirectAnswer::IdTaken) => {}
                Ok(answer) => return Ok(answer),
                Err(fault) => {
                    error_quietly!(order.id = %id, sale.id = %sale, request.id = request_id,
                        error = %fault, "a direct order was not committed");
                    return Err(NoDecision::OutcomeUnknown);
                }
            }
        }
        Err(NoDecision::Unavailable)
    }
}
