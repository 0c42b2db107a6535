//! Loading a partition's memory from the database: when a Redis is new, empty, or not to be trusted.
//!
//! Fence; wait until what is on the stream is applied; for every sale of the partition raise the
//! epoch and load what the database knows; open. Load and open carry the fence's token, so that a
//! rebuilder that woke up late is refused.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use flashsale_domain::{EntryId, NewOrder, OrderId, Partition, Sale, SaleId, SaleState, UserId};
use flashsale_storage_redis::{
    DeadLetter, Fence, GateStatus, Lock, Record, RecordItem, SOLD_OUT_LEASE,
};
use flashsale_storage_sql::HeldOrder;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{OperationError, Operations, Refused};

/// How far two Redis servers' clocks may lie apart: ids given after a rebuild are later than any
/// that a server before it, with its clock ahead, can have given.
const CLOCK_SKEW_MAX_MS: u64 = 2_000;

/// Ids that are ahead of Redis's clock by more are not given (`lua/lib/order_id.lua`).
const CLOCK_FAULT_MS: u64 = 60_000;

/// How long to wait for workers to apply what is on the stream.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// A rebuild that waits says so after this time, and then each time it has passed again.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// Where a rebuild stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RebuildStep {
    /// The gate is closed.
    Fenced,
    /// Entries are still to be applied by order-workers; told only when that takes a while.
    Waiting {
        /// Of which partition.
        partition: Partition,
        /// How many; at least so many while Redis does not know.
        entries: u64,
    },
    /// A sale's epoch is raised, and its orders are read.
    EpochRaised(SaleId),
    /// A sale is loaded.
    Loaded(SaleId),
    /// All is loaded, and the gate is about to be opened.
    Opening,
}

/// Told each step; the rebuild goes on when it has returned.
pub type RebuildWatch =
    dyn Fn(RebuildStep) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Whether a partition has ever admitted anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartitionUse {
    /// Its first sale is being published: there was no memory that could be lost.
    Never,
    /// Orders of before may have been lost, and their ids must not be given again.
    Before,
}

/// What a rebuild did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The partition's number.
    pub partition: u16,
    /// Its sales, as they were loaded.
    pub sales: Vec<RebuiltSale>,
}

/// A sale as a rebuild loaded it.
#[derive(Debug, Serialize, Deserialize)]
pub struct RebuiltSale {
    /// The sale.
    pub sale_id: SaleId,
    /// Its new epoch.
    pub epoch: i64,
    /// Units for sale.
    pub stock: i64,
    /// Units held by open orders and dead letters.
    pub held: i64,
}

impl Operations {
    /// Rebuilds the partition that `sale` lives in.
    ///
    /// # Errors
    /// See [`Operations::rebuild_partition`]; also when the sale lives in none.
    pub async fn rebuild_sale(&self, sale: SaleId) -> Result<Rebuilt, OperationError> {
        let partition = self.get_sale(sale).await?.partition;
        self.rebuild_partition(partition.ok_or(Refused::NoPartition(sale))?).await
    }

    /// Loads a partition's memory from the database. Nobody is admitted there meanwhile.
    ///
    /// # Errors
    /// When entries stay unapplied, when the fence is lost to somebody else, or a store fails. The
    /// gate stays closed then.
    pub async fn rebuild_partition(&self, partition: Partition) -> Result<Rebuilt, OperationError> {
        self.load_partition(partition, PartitionUse::Before).await
    }

    /// The same, unless its memory can be trusted: `None` then. Who saw the gate closed may have seen
    /// the rebuild of somebody else, and closing it once more would turn buyers away for nothing.
    ///
    /// # Errors
    /// See [`Operations::rebuild_partition`].
    pub async fn recover_partition(
        &self,
        partition: Partition,
    ) -> Result<Option<Rebuilt>, OperationError> {
        let lock = self.lock_rebuild(partition).await?;
        if self.redis.gate_status(partition).await? == GateStatus::Open {
            let _unlocked = lock.unlock().await;
            return Ok(None);
        }
        self.load_locked(partition, PartitionUse::Before, lock).await.map(Some)
    }

    pub(crate) async fn load_partition(
        &self,
        partition: Partition,
        used: PartitionUse,
    ) -> Result<Rebuilt, OperationError> {
        let lock = self.lock_rebuild(partition).await?;
        self.load_locked(partition, used, lock).await
    }

    pub(crate) async fn lock_rebuild(&self, partition: Partition) -> Result<Lock, OperationError> {
        let lock = self.redis.try_lock_rebuild(partition).await?;
        Ok(lock.ok_or(Refused::RebuildRunning(partition))?)
    }

    pub(crate) async fn load_locked(
        &self,
        partition: Partition,
        used: PartitionUse,
        lock: Lock,
    ) -> Result<Rebuilt, OperationError> {
        let loaded = tokio::select! {
            loaded = self.load_behind_fence(partition, used) => loaded,
            never = lock.keep() => match never {},
        };
        // If this fails it runs out by itself; what counts is what the load came to.
        let _unlocked = lock.unlock().await;
        loaded
    }

    async fn load_behind_fence(
        &self,
        partition: Partition,
        used: PartitionUse,
    ) -> Result<Rebuilt, OperationError> {
        let fence = self.redis.fence(partition).await?;
        let fenced_at = Instant::now();
        self.tell(RebuildStep::Fenced).await;
        // Where the group is gone, nobody can say what is applied: all that is on the stream counts.
        self.redis.ensure_group(partition).await?;
        self.wait_until_applied(&fence, partition).await?;

        // Listed after the fence: a sale published meanwhile is in the list or finds the gate closed.
        let sales = self.database.list_sales_of(partition).await?;
        let dead = self.list_dead_orders(partition).await?;
        let mut rebuilt = Rebuilt { partition: partition.number(), sales: Vec::new() };
        for sale in sales.iter().filter(|sale| sale.state != SaleState::Draft) {
            let (sale, held) = self.raise_epoch(&fence, partition, sale).await?;
            self.tell(RebuildStep::EpochRaised(sale.id)).await;
            let loaded = self.plan_load(&fence, sale, held, &dead).await?;
            let (stock, held) = (loaded.stock, loaded.held);
            if !self.redis.load_sale(&fence, &loaded.sale, stock, held, &loaded.records).await? {
                return Err(Refused::FenceLost(partition).into());
            }
            self.tell(RebuildStep::Loaded(loaded.sale.id)).await;
            rebuilt.sales.push(RebuiltSale {
                sale_id: loaded.sale.id,
                epoch: loaded.sale.epoch,
                stock,
                held,
            });
        }

        let last_id = match used {
            PartitionUse::Never => EntryId { ms: 0, seq: 0 },
            PartitionUse::Before => {
                // A sale that was sold out may have units now. Gateways that refuse from memory learned
                // it before the fence; they must have asked again before anybody gets one.
                sleep(SOLD_OUT_LEASE.saturating_sub(fenced_at.elapsed())).await;
                self.last_id(&fence, partition, &dead).await?
            }
        };
        self.tell(RebuildStep::Opening).await;
        if !self.redis.open_gate(fence, last_id).await? {
            return Err(Refused::FenceLost(partition).into());
        }
        Ok(rebuilt)
    }

    /// Raises the sale's epoch, only while the fence is ours.
    ///
    /// A rebuilder that has lost it, and does not know yet, must not raise an epoch that the other
    /// has loaded already: Redis would go on with the lower one, and every order admitted from then
    /// on would count as lost. So the epoch to raise is read first, then the fence is looked at, and
    /// then the epoch is raised if it is still the same. Whoever fences after that look reads the
    /// epoch after it, and one of the two finds it changed.
    async fn raise_epoch(
        &self,
        fence: &Fence,
        partition: Partition,
        sale: &Sale,
    ) -> Result<(Sale, Held), OperationError> {
        let mut from = sale.epoch;
        loop {
            if !self.redis.holds_fence(fence).await? {
                return Err(Refused::FenceLost(partition).into());
            }
            let mut held = Held::default();
            let begun = self.database.read_new_epoch(sale.id, from, |order| held.add(order));
            if let Some(sale) = begun.await? {
                return Ok((sale, held));
            }
            from = self.get_sale(sale.id).await?.epoch;
        }
    }

    /// No order of before the fence can have a higher id than this.
    async fn last_id(
        &self,
        fence: &Fence,
        partition: Partition,
        dead: &[(DeadLetter, NewOrder)],
    ) -> Result<EntryId, OperationError> {
        let server_ms = u64::try_from(fence.now_ms).unwrap_or(0) + CLOCK_SKEW_MAX_MS;
        let by_clock = EntryId { ms: server_ms, seq: 0 };
        // An id that no clock can have given, such as that of an entry that somebody else wrote: if an
        // order has it all the same, it is a row or a dead letter.
        let in_stream = Some(fence.last_id).filter(|id| id.ms <= server_ms + CLOCK_FAULT_MS);
        let in_rows = self.database.last_order_id(partition).await?.map(OrderId::entry);
        let in_dead = dead.iter().map(|(letter, _)| letter.entry.id).max();
        Ok(by_clock
            .max(in_stream.unwrap_or(by_clock))
            .max(in_rows.unwrap_or(by_clock))
            .max(in_dead.unwrap_or(by_clock)))
    }

    async fn wait_until_applied(
        &self,
        fence: &Fence,
        partition: Partition,
    ) -> Result<(), OperationError> {
        let started = Instant::now();
        let mut say_at = started + SAY_EVERY;
        loop {
            let waiting = match self.redis.backlog(partition).await? {
                None => 0,
                // Unknown is not none: count it as one until Redis knows.
                Some(backlog) => backlog.total().unwrap_or(1),
            };
            if waiting == 0 {
                return Ok(());
            }
            // Somebody else rebuilds by now, and what is on the stream is no longer ours to wait for.
            if !self.redis.holds_fence(fence).await? {
                return Err(Refused::FenceLost(partition).into());
            }
            if started.elapsed() > DRAIN_TIMEOUT {
                return Err(Refused::EntriesWaiting { partition, waiting }.into());
            }
            if Instant::now() >= say_at {
                say_at += SAY_EVERY;
                self.tell(RebuildStep::Waiting { partition, entries: waiting }).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The dead letters that are readable orders and have no row: each still holds its unit. Those
    /// that have one are settled, and go.
    async fn list_dead_orders(
        &self,
        partition: Partition,
    ) -> Result<Vec<(DeadLetter, NewOrder)>, OperationError> {
        let mut dead = Vec::new();
        for letter in self.redis.list_dead_letters(partition).await? {
            let Ok(order) = letter.order(partition) else { continue };
            if self.database.find_order(order.id).await?.is_some() {
                self.redis.delete_dead_letter(partition, letter.entry.id).await?;
            } else {
                dead.push((letter, order));
            }
        }
        Ok(dead)
    }

    /// What Redis is to hold of a sale: what the database knows, and the dead letters that have no row,
    /// where a unit and the slot are free.
    ///
    /// A dead letter that the load holds lives on into the new epoch. One that it does not hold keeps
    /// the epoch that it had: requeued, it would take a unit that Redis gives to somebody else, and so
    /// it is rejected as memory lost.
    async fn plan_load(
        &self,
        fence: &Fence,
        sale: Sale,
        held: Held,
        dead: &[(DeadLetter, NewOrder)],
    ) -> Result<Load, OperationError> {
        let Held { open: mut held, mut records } = held;
        let mut stock = sale.stock_left;
        for (letter, order) in dead.iter().filter(|(_, order)| order.sale_id == sale.id) {
            let record = records.get(&order.user_id);
            let takes = |item: &RecordItem| item.open && item.slot == order.slot;
            if stock < 1 || record.is_some_and(|record| record.items.iter().any(takes)) {
                continue;
            }
            match self.redis.stamp_dead_letter(fence, letter, sale.epoch).await? {
                None => return Err(Refused::FenceLost(order.id.partition()).into()),
                // Somebody has dealt with it since it was listed.
                Some(false) => continue,
                Some(true) => {}
            }
            stock -= 1;
            held += 1;
            let record = records.entry(order.user_id.clone()).or_default();
            record.items.push(RecordItem {
                entry: order.id.entry(),
                slot: order.slot,
                generation: 1,
                open: true,
                digest: order.digest.clone(),
            });
            record.items.sort_by_key(|item| item.entry);
        }
        Ok(Load { sale, stock, held, records: records.into_iter().collect() })
    }

    async fn tell(&self, step: RebuildStep) {
        if let Some(watch) = &self.watch {
            watch(step).await;
        }
    }
}

/// A sale's orders as Redis is to know them: gathered while they are read, so that no more of a row is
/// kept than its record.
#[derive(Default)]
struct Held {
    /// How many are open.
    open: i64,
    records: HashMap<UserId, Record>,
}

impl Held {
    fn add(&mut self, order: HeldOrder) {
        let HeldOrder { id, user_id, slot, generation, open, digest } = order;
        self.open += i64::from(open);
        let item = RecordItem { entry: id.entry(), slot, generation, open, digest };
        // Most buyers have one order: a list that grows by itself would have room for four.
        let record = self.records.entry(user_id);
        record.or_insert_with(|| Record { items: Vec::with_capacity(1) }).items.push(item);
    }
}

struct Load {
    sale: Sale,
    stock: i64,
    held: i64,
    records: Vec<(UserId, Record)>,
}
