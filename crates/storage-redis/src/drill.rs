//! What a drill does to the order of a sale of its own: things that only befall orders by mistake.

use flashsale_domain::{EntryId, Partition, SaleId, UserId};

use crate::admission::ORDERS_PER_BUYER_MAX;
use crate::order_stream::GROUP;
use crate::scripts::DRILL_ORDER;
use crate::{Redis, RedisFault};

/// What befalls a drill's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrillFate {
    /// A consumer holds it who is no worker.
    Held,
    /// It vanishes from the stream while such a one holds it.
    Lost,
    /// It is of an epoch that its sale has not reached, so that it cannot become a row.
    Ahead,
}

impl DrillFate {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "hold",
            Self::Lost => "lose",
            Self::Ahead => "ahead",
        }
    }
}

impl Redis {
    /// Places an order of `user` and lets `fate` befall it, at the hands of `consumer`. `None` when
    /// others' entries are in the way for the moment, which must not be touched, or nobody has ever
    /// read the partition.
    ///
    /// # Errors
    /// When Redis cannot be asked, or the order is not admitted.
    pub async fn drill_order(
        &self,
        partition: Partition,
        sale: SaleId,
        user: &UserId,
        consumer: &str,
        fate: DrillFate,
    ) -> Result<Option<EntryId>, RedisFault> {
        let (code, id): (i64, String) = DRILL_ORDER
            .key(self.keys.gate(partition))
            .key(self.keys.sale(partition, sale))
            .key(self.keys.buyers(partition, sale))
            .key(self.keys.orders(partition))
            .arg(sale.as_i64())
            .arg(ORDERS_PER_BUYER_MAX)
            .arg("")
            .arg(user.as_str())
            .arg("")
            .arg("")
            .arg(GROUP)
            .arg(consumer)
            .arg(fate.as_str())
            .invoke_async(&mut self.connection().await?)
            .await?;
        match code {
            0 => Ok(None),
            1 => id.parse().map(Some).map_err(|_| RedisFault::reply("drill_order", id)),
            code => Err(RedisFault::reply("drill_order", format!("not admitted: code {code}"))),
        }
    }

    /// Lets Redis hold a unit more of a sale than there is an order for.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn drill_imbalance(
        &self,
        partition: Partition,
        sale: SaleId,
    ) -> Result<(), RedisFault> {
        let mut command = redis::cmd("HINCRBY");
        command.arg(self.keys.sale(partition, sale)).arg("held").arg(1);
        Ok(command.query_async(&mut self.connection().await?).await?)
    }
}
