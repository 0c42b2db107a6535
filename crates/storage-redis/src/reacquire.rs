//! Late payments: an expired order takes a unit again, once, by order id and generation.

use flashsale_domain::{EntryId, IdempotencyDigest, Partition, SaleId, UserId};

use crate::scripts::REACQUIRE;
use crate::{Redis, RedisFault};

/// Which order is to hold a unit again.
#[derive(Debug, Clone)]
pub struct ReacquireRequest<'a> {
    /// The sale's home.
    pub partition: Partition,
    /// The sale.
    pub sale_id: SaleId,
    /// The buyer.
    pub user_id: &'a UserId,
    /// The order's entry.
    pub entry: EntryId,
    /// Its slot.
    pub slot: u16,
    /// The generation of the new hold.
    pub generation: u32,
    /// Digest of the key it was ordered with.
    pub digest: Option<&'a IdempotencyDigest>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reacquired {
    /// The order holds a unit in that generation.
    Taken {
        /// The sale's epoch.
        epoch: i64,
    },
    /// There is no unit for it, or the one that it had in that generation was given back.
    Refused,
    /// The sale is not loaded: ask again later.
    NotLoaded,
}

impl Redis {
    /// Takes a unit again for an expired order; a repeat changes nothing.
    ///
    /// # Errors
    /// When Redis cannot be asked: ask again.
    pub async fn reacquire(
        &self,
        request: &ReacquireRequest<'_>,
    ) -> Result<Reacquired, RedisFault> {
        let (code, epoch): (i64, i64) = REACQUIRE
            .key(self.keys.gate(request.partition))
            .key(self.keys.sale(request.partition, request.sale_id))
            .key(self.keys.buyers(request.partition, request.sale_id))
            .arg(request.user_id.as_str())
            .arg(request.entry.to_string())
            .arg(request.slot)
            .arg(request.generation)
            .arg(request.digest.map(IdempotencyDigest::as_str).unwrap_or_default())
            .invoke_async(&mut self.connection().await?)
            .await?;
        match code {
            0 => Ok(Reacquired::NotLoaded),
            1 => Ok(Reacquired::Taken { epoch }),
            2 => Ok(Reacquired::Refused),
            _ => Err(RedisFault::reply("reacquire", format!("unknown code {code}"))),
        }
    }
}
