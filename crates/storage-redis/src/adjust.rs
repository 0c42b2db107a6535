//! Adjustments of a sale's stock while it runs, each carried out once.

use flashsale_domain::{Partition, SaleId};

use crate::connect::millis;
use crate::scripts::ADJUST_STOCK;
use crate::{Redis, RedisFault, SOLD_OUT_LEASE};

/// What became of an adjustment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adjusted {
    /// Carried out, now or before.
    Done,
    /// Fewer units are for sale than are to be taken away.
    Refused,
    /// The sale is not loaded, or was rebuilt since the adjustment was read.
    NotLoaded,
}

impl Redis {
    /// Changes a sale's stock by `delta` units; a repeat of the same `number` changes nothing.
    ///
    /// # Errors
    /// When Redis cannot be asked: ask again.
    pub async fn adjust_stock(
        &self,
        partition: Partition,
        sale: SaleId,
        number: i64,
        delta: i64,
        epoch: i64,
    ) -> Result<Adjusted, RedisFault> {
        let code: i64 = ADJUST_STOCK
            .key(self.keys.gate(partition))
            .key(self.keys.sale(partition, sale))
            .arg(number)
            .arg(delta)
            .arg(epoch)
            .arg(millis(SOLD_OUT_LEASE))
            .invoke_async(&mut self.connection().await?)
            .await?;
        match code {
            0 => Ok(Adjusted::NotLoaded),
            1 => Ok(Adjusted::Done),
            2 => Ok(Adjusted::Refused),
            _ => Err(RedisFault::reply("adjust_stock", format!("unknown code {code}"))),
        }
    }
}
