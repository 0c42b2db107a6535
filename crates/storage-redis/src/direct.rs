//! What a direct sale needs of Redis: a lock for each buyer, and order ids.
//!
//! The lock only keeps one buyer's presses from meeting in the database. It may be lost (it runs
//! out, Redis restarts) without harm, because the database's constraints have the last word.

use std::time::Duration;

use flashsale_domain::{DIRECT_PARTITION, EntryId, OrderId, SaleId, UserId};

use crate::connect::{millis, random_token};
use crate::scripts::{EXTEND_LOCK, NEXT_DIRECT_ID, UNLOCK};
use crate::{Redis, RedisFault};

/// One buyer's lock in one direct sale, held by this process until [`BuyerLock::unlock`] or its end.
pub struct BuyerLock {
    redis: Redis,
    key: String,
    token: String,
    ttl: Duration,
}

impl Redis {
    /// Takes the buyer's lock if nobody holds it.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn try_lock_buyer(
        &self,
        sale: SaleId,
        user: &UserId,
        ttl: Duration,
    ) -> Result<Option<BuyerLock>, RedisFault> {
        let key = self.keys.buyer_lock(sale, user);
        let token = random_token();
        let mut connection = self.connection().await?;
        let taken: Option<String> = redis::cmd("SET")
            .arg(&key)
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(millis(ttl))
            .query_async(&mut connection)
            .await?;
        Ok(taken.map(|_| BuyerLock { redis: self.clone(), key, token, ttl }))
    }

    /// A new id for an order of a direct sale; `None` on a clock fault.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn next_direct_order_id(&self) -> Result<Option<OrderId>, RedisFault> {
        let mut connection = self.connection().await?;
        let entry: String =
            NEXT_DIRECT_ID.key(self.keys.direct_ids()).invoke_async(&mut connection).await?;
        if entry.is_empty() {
            return Ok(None);
        }
        let bad = |detail: String| RedisFault::reply("next_direct_id", detail);
        let entry: EntryId = entry.parse().map_err(|_| bad(entry.clone()))?;
        OrderId::from_entry(DIRECT_PARTITION, entry).map(Some).map_err(|e| bad(e.to_string()))
    }
}

impl BuyerLock {
    /// Gives the lock its full time again; false when it is no longer ours.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn extend(&self) -> Result<bool, RedisFault> {
        let mut connection = self.redis.connection().await?;
        let extended: i64 = EXTEND_LOCK
            .key(&self.key)
            .arg(&self.token)
            .arg(millis(self.ttl))
            .invoke_async(&mut connection)
            .await?;
        Ok(extended == 1)
    }

    /// Gives the lock back; false when it was no longer ours.
    ///
    /// # Errors
    /// When Redis cannot be asked: then the lock runs out by itself.
    pub async fn unlock(self) -> Result<bool, RedisFault> {
        let mut connection = self.redis.connection().await?;
        let released: i64 =
            UNLOCK.key(&self.key).arg(&self.token).invoke_async(&mut connection).await?;
        Ok(released == 1)
    }

    /// Half the lock's time: how often it wants to be extended while work goes on.
    pub fn extend_interval(&self) -> Duration {
        self.ttl / 2
    }
}
