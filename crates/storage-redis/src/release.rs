//! Releases: what an order that is over gives back, once, by order id and generation.

use std::time::Duration;

use flashsale_domain::{EntryId, Partition, SaleId, UserId};

use crate::connect::millis;
use crate::scripts::RELEASE;
use crate::{RecordItem, Redis, RedisFault};

/// How long stock that rises from 0 is held back: the longest that a gateway may refuse from memory
/// after it learned that a sale was sold out.
pub const SOLD_OUT_LEASE: Duration = Duration::from_millis(500);

/// What is to be released.
#[derive(Debug, Clone)]
pub struct ReleaseRequest<'a> {
    /// The sale's home.
    pub partition: Partition,
    /// The sale.
    pub sale_id: SaleId,
    /// The buyer.
    pub user_id: &'a UserId,
    /// The order's entry.
    pub entry: EntryId,
    /// The generation of the hold.
    pub generation: u32,
    /// Whether the unit goes back on sale; false when it never existed.
    pub returns_unit: bool,
    /// The open order that has the slot instead.
    pub instead: Option<RecordItem>,
}

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The unit and the slot are back.
    Done,
    /// They were back already.
    Nothing,
    /// The sale is not loaded: the release has to wait.
    NotLoaded,
}

impl Redis {
    /// Takes back what an order that is over still holds; a repeat changes nothing.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn release(&self, request: &ReleaseRequest<'_>) -> Result<Released, RedisFault> {
        let instead = request.instead.as_ref().map(ToString::to_string).unwrap_or_default();
        let code: i64 = RELEASE
            .key(self.keys.gate(request.partition))
            .key(self.keys.sale(request.partition, request.sale_id))
            .key(self.keys.buyers(request.partition, request.sale_id))
            .arg(request.user_id.as_str())
            .arg(request.entry.to_string())
            .arg(request.generation)
            .arg(u8::from(request.returns_unit))
            .arg(instead)
            .arg(millis(SOLD_OUT_LEASE))
            .invoke_async(&mut self.connection().await?)
            .await?;
        match code {
            0 => Ok(Released::NotLoaded),
            1 => Ok(Released::Done),
            2 => Ok(Released::Nothing),
            _ => Err(RedisFault::reply("release", format!("unknown code {code}"))),
        }
    }
}
