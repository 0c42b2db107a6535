//! Direct mode: lock the buyer, one database transaction, answer when it is committed.

use std::time::{Duration, Instant};

use flashsale_bootstrap::error_quietly;
use flashsale_bootstrap::settings::DirectSettings;
use flashsale_domain::{IdempotencyDigest, Refusal, SaleId, UserId};
use flashsale_storage_redis::{BuyerLock, ORDERS_PER_BUYER_MAX, Redis};
use flashsale_storage_sql::{Database, DirectAnswer};
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

impl DirectOrders {
    /// Decides and commits an order. Runs to its end even when the buyer hangs up: a transaction
    /// that is dropped half way would leave its lock behind, and its outcome unknown.
    pub(crate) async fn place(
        &self,
        sale: SaleId,
        user: UserId,
        digest: Option<IdempotencyDigest>,
    ) -> Result<DirectAnswer, NoDecision> {
        let this = self.clone();
        let work = actix_web::rt::spawn(async move { this.place_locked(sale, user, digest).await });
        work.await.unwrap_or(Err(NoDecision::OutcomeUnknown))
    }

    async fn place_locked(
        &self,
        sale: SaleId,
        user: UserId,
        digest: Option<IdempotencyDigest>,
    ) -> Result<DirectAnswer, NoDecision> {
        let lock = self.lock(sale, &user).await?;
        let answer = {
            let mut work = std::pin::pin!(self.commit(sale, &user, digest.as_ref()));
            loop {
                tokio::select! {
                    answer = &mut work => break answer,
                    () = sleep(lock.extend_interval()) => {
                        // A lock that is lost changes nothing: the database has the last word.
                        if let Err(fault) = lock.extend().await {
                            warn!(sale.id = %sale, error = %fault, "a buyer's lock was not extended");
                        }
                    }
                }
            }
        };
        // After COMMIT, never before it: the next press must see the row.
        if let Err(fault) = lock.unlock().await {
            warn!(sale.id = %sale, error = %fault, "a buyer's lock was not given back; it runs out");
        }
        answer
    }

    async fn lock(&self, sale: SaleId, user: &UserId) -> Result<BuyerLock, NoDecision> {
        let started = Instant::now();
        loop {
            match self.redis.try_lock_buyer(sale, user, self.settings.lock_ttl).await {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) if started.elapsed() < self.settings.lock_wait => sleep(LOCK_RETRY).await,
                Ok(None) => return Err(NoDecision::Overloaded),
                Err(fault) => {
                    error_quietly!(sale.id = %sale, error = %fault, "a buyer cannot be locked");
                    return Err(NoDecision::Unavailable);
                }
            }
        }
    }

    async fn commit(
        &self,
        sale: SaleId,
        user: &UserId,
        digest: Option<&IdempotencyDigest>,
    ) -> Result<DirectAnswer, NoDecision> {
        for _ in 0..ID_TRIES {
            let id = match self.redis.next_direct_order_id().await {
                Ok(Some(id)) => id,
                Ok(None) => return Ok(DirectAnswer::Refused(Refusal::ClockFault)),
                Err(fault) => {
                    error_quietly!(sale.id = %sale, error = %fault, "no order id can be had");
                    return Err(NoDecision::Unavailable);
                }
            };
            let placed =
                self.database.place_direct_order(id, sale, user, digest, ORDERS_PER_BUYER_MAX);
            match placed.await {
                Ok(DirectAnswer::IdTaken) => {}
                Ok(answer) => return Ok(answer),
                Err(fault) => {
                    error_quietly!(sale.id = %sale, error = %fault, "a direct order was not committed");
                    return Err(NoDecision::OutcomeUnknown);
                }
            }
        }
        Err(NoDecision::Unavailable)
    }
}
