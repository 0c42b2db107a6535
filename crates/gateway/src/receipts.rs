//! What became of an order: looked for where it can be, in the order in which it moves.
//!
//! Database → dead letters → stream → database once more (it may have been committed and cleared
//! from the stream between the first two looks) → the buyer's record (its entry is lost, and the order
//! waits to be settled). So a buyer with a receipt always gets a true state;
//! and while Redis's memory is not to be trusted, what cannot be found is not said to be nowhere.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use flashsale_domain::{NewOrder, Order, OrderId, OrderState, Partition, SaleId, UserId};
use flashsale_storage_redis::{GateStatus, Redis, RedisFault, decode};
use flashsale_storage_sql::{Database, OrderFilter, SqlFault};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::catalogue::Catalogue;

/// How many orders are looked for at the same time. Thousands of buyers may begin to follow within a
/// second: without a turn for each, most of them would give up waiting for a connection.
const LOOKS_MAX: usize = 32;

/// How long a buyer waits for his turn.
const TURN_WITHIN: Duration = Duration::from_secs(10);

/// Reads orders for their buyers.
#[derive(Clone)]
pub(crate) struct Receipts {
    redis: Redis,
    database: Database,
    catalogue: Arc<Catalogue>,
    turns: Arc<Semaphore>,
}

/// What became of an order.
pub(crate) enum Receipt {
    /// The order as it stands.
    Order(Order),
    /// Redis forgot it before it became a row, and with it whose it was and of which sale.
    MemoryLost(OrderId),
}

/// A store that has to be asked cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiptFault {
    #[error("too many orders are asked for at the same time")]
    Busy,
    #[error("partition {0} is closed: its memory is gone or being loaded")]
    MemoryClosed(Partition),
    #[error(transparent)]
    Redis(#[from] RedisFault),
    #[error(transparent)]
    Sql(#[from] SqlFault),
}

impl Receipts {
    pub(crate) fn new(redis: Redis, database: Database, catalogue: Arc<Catalogue>) -> Self {
        Self { redis, database, catalogue, turns: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }

    /// The buyer's order; `None` when there is none, or it is somebody else's.
    pub(crate) async fn find(
        &self,
        id: OrderId,
        user: &UserId,
    ) -> Result<Option<Receipt>, ReceiptFault> {
        let turn = timeout(TURN_WITHIN, self.turns.acquire()).await;
        let _turn = turn.map_err(|_| ReceiptFault::Busy)?.expect("nobody closes it");
        let owned = |order: Order| Some(order).filter(|o| o.user_id == *user).map(Receipt::Order);
        if let Some(stored) = self.database.find_order(id).await? {
            return Ok(owned(stored.order));
        }
        let (partition, entry) = (id.partition(), id.entry());
        if !self.redis.partitions().any(|known| known == partition) {
            return Ok(None);
        }
        let on_stream = self.redis.find_entry(partition, entry).await?;
        // Asked although the entry is on the stream: it stays there for a while after it was set
        // aside, and an order that is dead must not look as if it were still on its way.
        if let Some(letter) = self.redis.find_dead_letter(partition, entry).await? {
            let order = decode(partition, &letter.entry).ok();
            return Ok(order.and_then(|order| owned(in_state(order, OrderState::Dead))));
        }
        if let Some(raw) = on_stream {
            let order = decode(partition, &raw).ok();
            return Ok(order.and_then(|order| owned(in_state(order, OrderState::Queued))));
        }
        if let Some(stored) = self.database.find_order(id).await? {
            return Ok(owned(stored.order));
        }
        if self.redis.gate_status(partition).await? != GateStatus::Open {
            return Err(ReceiptFault::MemoryClosed(partition));
        }
        // Admitted and not yet a row, whatever became of the entry: that is `queued`.
        let sales = self.catalogue.homed_at(partition, entry.ms);
        let holds = self.redis.find_holding_sale(partition, &sales, user, entry).await?;
        if let Some(sale_id) = holds {
            return Ok(Some(Receipt::Order(queued(id, sale_id, user))));
        }
        if sales.is_empty() {
            // No sale could have given this id.
            return Ok(None);
        }
        let lost = self.redis.rebuilt_id(partition).await?.is_some_and(|last| entry <= last);
        Ok(lost.then_some(Receipt::MemoryLost(id)))
    }

    /// A page of the buyer's orders, newest first. With a sale, those that are not yet rows too: the
    /// buyer's record names them. `home` is the sale's partition.
    pub(crate) async fn list(
        &self,
        user: &UserId,
        filter: &OrderFilter,
        home: Option<Partition>,
    ) -> Result<Vec<Order>, ReceiptFault> {
        let mut orders = Vec::new();
        if filter.state != Some(OrderState::Queued) && filter.state != Some(OrderState::Dead) {
            let rows = self.database.list_orders(user, filter).await?;
            orders.extend(rows.into_iter().map(|row| row.order));
        }
        if let (Some(sale), Some(partition)) = (filter.sale_id, home) {
            let pending = self.list_pending(user, sale, partition).await?;
            let wanted = pending.into_iter().filter(|order| {
                filter.before.is_none_or(|before| order.id < before)
                    && filter.state.is_none_or(|state| order.state == state)
            });
            orders.extend(wanted);
            orders.sort_by_key(|order| std::cmp::Reverse(order.id));
            orders.dedup_by_key(|order| order.id);
            orders.truncate(usize::try_from(filter.limit).unwrap_or(usize::MAX));
        }
        Ok(orders)
    }

    /// The orders of a buyer's record that are not rows.
    async fn list_pending(
        &self,
        user: &UserId,
        sale: SaleId,
        partition: Partition,
    ) -> Result<Vec<Order>, ReceiptFault> {
        let Some(record) = self.redis.find_record(partition, sale, user).await? else {
            return Ok(Vec::new());
        };
        let open = record.items.iter().filter(|item| item.open);
        let ids: Vec<OrderId> =
            open.filter_map(|item| OrderId::from_entry(partition, item.entry).ok()).collect();
        let rows = self.database.find_orders(&ids).await?;
        let rows: HashSet<OrderId> = rows.iter().map(|row| row.order.id).collect();
        let mut found = Vec::new();
        for id in ids.iter().filter(|id| !rows.contains(id)) {
            // Asked one by one, with the second look at the database: a row may have come meanwhile.
            if let Some(Receipt::Order(order)) = self.find(*id, user).await? {
                found.push(order);
            }
        }
        Ok(found)
    }
}

fn in_state(order: NewOrder, state: OrderState) -> Order {
    Order { state, ..queued(order.id, order.sale_id, &order.user_id) }
}

fn queued(id: OrderId, sale_id: SaleId, user: &UserId) -> Order {
    Order {
        id,
        sale_id,
        user_id: user.clone(),
        state: OrderState::Queued,
        reason: None,
        price: None,
        pay_by_ms: None,
        committed_ms: None,
        settled_ms: None,
    }
}
