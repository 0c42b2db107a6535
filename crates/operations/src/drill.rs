//! Drills: what an alert is about, caused on purpose, to a sale of the drill's own.
//!
//! The sale is a rehearsal's, so that buyers and the shop see nothing of it and cleaning it up puts
//! everything right. Whether drills are allowed here is for whoever calls these to ask first.

use std::time::Duration;

use flashsale_bootstrap::clock;
use flashsale_domain::{EntryId, NewSale, Partition, REHEARSAL_BUYERS, Sale, SaleState, UserId};
use flashsale_storage_redis::DrillFate;
use tokio::time::{Instant, sleep};

use crate::rebuild::PartitionUse;
use crate::{OperationError, Operations, Operator, Rebuilt, Refused};

/// What the title of a drill's sale begins with.
pub const DRILL_TITLE: &str = "Drill: ";

/// How long a moment is waited for in which a drill touches nobody else's orders.
const QUIET_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// An order that a drill holds, so that no worker gets it.
pub struct DrillOrder {
    partition: Partition,
    entry: EntryId,
    consumer: String,
}

impl Operator<'_> {
    /// A sale for the drill of this name, on sale. The audit log says who drills what.
    ///
    /// # Errors
    /// When a field is out of range, or a store fails.
    pub async fn begin_drill(&self, name: &str, new: &NewSale) -> Result<Sale, OperationError> {
        let titled = NewSale { title: format!("{DRILL_TITLE}{name}"), ..new.clone() };
        let sale = self.begin_rehearsal(&titled).await?;
        self.log("drill", sale.id, name).await?;
        Ok(sale)
    }

    /// Notes in the audit log that the drill of this name is led, which touches no store itself.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn note_drill(&self, name: &str) -> Result<(), OperationError> {
        Ok(self.operations.database.insert_audit(self.actor(), "drill", "-", name).await?)
    }
}

impl Operations {
    /// Puts an entry on the stream that becomes a dead letter: of an epoch that the sale has not
    /// reached.
    ///
    /// # Errors
    /// When the sale is no drill's, or Redis fails.
    pub async fn drill_dead_letter(&self, sale: &Sale) -> Result<EntryId, OperationError> {
        Ok(self.drill_order(sale, DrillFate::Ahead).await?.entry)
    }

    /// Loses an order: its buyer was told yes, and it vanishes from the stream.
    ///
    /// # Errors
    /// When the sale is no drill's, other orders are in the way for too long, or Redis fails.
    pub async fn drill_lost_entry(&self, sale: &Sale) -> Result<EntryId, OperationError> {
        Ok(self.drill_order(sale, DrillFate::Lost).await?.entry)
    }

    /// Holds an order, so that it waits. It has to be kept again and again
    /// ([`Operations::keep_drill_order`]); when nobody does, workers take it over.
    ///
    /// # Errors
    /// As [`Operations::drill_lost_entry`].
    pub async fn drill_held_order(&self, sale: &Sale) -> Result<DrillOrder, OperationError> {
        self.drill_order(sale, DrillFate::Held).await
    }

    /// Keeps the order for another while; false when a worker has it.
    ///
    /// # Errors
    /// When Redis fails.
    pub async fn keep_drill_order(&self, order: &DrillOrder) -> Result<bool, OperationError> {
        let DrillOrder { partition, entry, consumer } = order;
        Ok(self.redis.keep_entries(*partition, consumer, &[*entry]).await?.is_empty())
    }

    /// Gives the order to the next worker that looks.
    ///
    /// # Errors
    /// When Redis fails: then workers take it over by themselves.
    pub async fn hand_back_drill_order(&self, order: &DrillOrder) -> Result<(), OperationError> {
        let DrillOrder { partition, entry, consumer } = order;
        Ok(self.redis.hand_back_entries(*partition, consumer, &[*entry]).await?)
    }

    /// Lets Redis hold a unit more than there are orders for.
    ///
    /// # Errors
    /// When the sale is no drill's, or Redis fails.
    pub async fn drill_imbalance(&self, sale: &Sale) -> Result<(), OperationError> {
        let partition = self.home_of_drill(sale).await?;
        Ok(self.redis.drill_imbalance(partition, sale.id).await?)
    }

    /// Closes the gate of the drill's partition until `until` is over, and loads it again. If this
    /// program ends before, workers do, where `worker.rebuild` is `auto`.
    ///
    /// # Errors
    /// When a sale of everybody is on in this partition, somebody else rebuilds it, or a store fails.
    pub async fn drill_closed_gate(
        &self,
        sale: &Sale,
        until: impl Future<Output = ()>,
    ) -> Result<Rebuilt, OperationError> {
        let partition = self.home_of_drill(sale).await?;
        let homed = self.database.list_sales_of(partition).await?;
        let is_on = |sale: &&Sale| {
            !sale.rehearsal
                && matches!(sale.state, SaleState::Published | SaleState::Paused)
                && sale.window.closes_ms() > clock::now_ms()
        };
        if let Some(real) = homed.iter().find(is_on) {
            return Err(Refused::DrillInTheWay { partition, sale: real.id }.into());
        }
        // With the lock in hand, so that no worker opens it meanwhile.
        let lock = self.lock_rebuild(partition).await?;
        self.redis.fence(partition).await?;
        tokio::select! {
            () = until => {}
            never = lock.keep() => match never {},
        }
        self.load_locked(partition, PartitionUse::Before, lock).await
    }

    /// Whether a worker lives: one of them watches each partition's ledgers. What Redis says of consumers
    /// does not tell, because it counts who gets orders.
    ///
    /// # Errors
    /// When Redis fails.
    pub async fn has_worker(&self) -> Result<bool, OperationError> {
        for partition in self.redis.partitions() {
            if self.redis.is_ledger_watched(partition).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether Redis keeps an append-only file.
    ///
    /// # Errors
    /// When Redis fails.
    pub async fn keeps_append_only_file(&self) -> Result<bool, OperationError> {
        Ok(self.redis.keeps_append_only_file().await?)
    }

    /// Whether a full Redis would drop something.
    ///
    /// # Errors
    /// When Redis fails.
    pub async fn may_evict(&self) -> Result<bool, OperationError> {
        Ok(self.redis.eviction_policy().await? != "noeviction")
    }

    async fn drill_order(
        &self,
        sale: &Sale,
        fate: DrillFate,
    ) -> Result<DrillOrder, OperationError> {
        let partition = self.home_of_drill(sale).await?;
        let user = UserId::new(format!("{REHEARSAL_BUYERS}drill")).expect("a short text");
        let consumer = format!("drill-{}", sale.id);
        let quiet_by = Instant::now() + QUIET_WITHIN;
        loop {
            let done = self.redis.drill_order(partition, sale.id, &user, &consumer, fate).await?;
            if let Some(entry) = done {
                return Ok(DrillOrder { partition, entry, consumer });
            }
            if Instant::now() >= quiet_by {
                return Err(Refused::DrillFoundNoQuiet(partition).into());
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    /// Where a drill's sale lives; refused for any other sale, whatever the caller believes.
    async fn home_of_drill(&self, sale: &Sale) -> Result<Partition, OperationError> {
        let sale = self.get_rehearsal(sale.id).await?;
        Ok(sale.partition.ok_or(Refused::NoPartition(sale.id))?)
    }
}
