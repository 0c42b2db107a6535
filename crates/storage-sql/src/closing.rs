//! Orders that end without money: given up by their buyer, or overdue.
//!
//! Each is a compare-and-set from `awaiting_payment`, in one transaction with the unit that comes
//! back in the database and the release that Redis is owed. Whoever comes second finds another state
//! and does nothing, so that a unit comes back once.

use std::collections::BTreeMap;

use flashsale_domain::{DIRECT_PARTITION, OrderId, OrderState, UserId};
use sea_orm::sea_query::{Expr, ExprTrait as _, LockBehavior, LockType, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use crate::clock::now_ms;
use crate::entities::{order, sale};
use crate::events::insert_events;
use crate::outbox::{NewRelease, insert_releases};
use crate::{Database, SqlFault, StoredOrder};

/// What became of a buyer's wish to cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancellation {
    /// The order is cancelled, now or by an earlier try.
    Cancelled(Box<StoredOrder>),
    /// The order is in a state that cannot be cancelled.
    Refused(OrderState),
    /// The buyer has no such row.
    NotFound,
}

/// When the next unpaid order is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextDue {
    /// The database's clock: milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// The earliest `pay_by`; `None` when no order waits for payment.
    pub due_ms: Option<i64>,
}

impl Database {
    /// Cancels a buyer's order that waits for payment. Cancelling it again is the same as once.
    ///
    /// # Errors
    /// When the database cannot be asked; after a lost connection the order may be cancelled.
    pub async fn cancel_order(&self, id: OrderId, user: &UserId) -> Result<Cancellation, SqlFault> {
        let transaction = self.begin_write().await?;
        let row = lock_order(&transaction, id).await?;
        let Some(row) = row.filter(|row| row.user_id == user.as_str()) else {
            transaction.rollback().await?;
            return Ok(Cancellation::NotFound);
        };
        let stored = StoredOrder::try_from(row.clone())?;
        match stored.order.state {
            OrderState::AwaitingPayment => {
                let now = self.read_now(&transaction).await?;
                let closed =
                    self.end_orders(&transaction, vec![row], OrderState::Cancelled, now).await?;
                transaction.commit().await?;
                let closed = closed.into_iter().next();
                Ok(closed.map_or(Cancellation::NotFound, |c| Cancellation::Cancelled(Box::new(c))))
            }
            OrderState::Cancelled => {
                transaction.rollback().await?;
                Ok(Cancellation::Cancelled(Box::new(stored)))
            }
            state => {
                transaction.rollback().await?;
                Ok(Cancellation::Refused(state))
            }
        }
    }

    /// Expires overdue orders, at most `limit`, the longest overdue first, and returns them. Several
    /// callers side by side each get others: what one has locked, the others pass over.
    ///
    /// # Errors
    /// When the database cannot be asked; after a lost connection they may be expired.
    pub async fn expire_orders(&self, limit: u64) -> Result<Vec<StoredOrder>, SqlFault> {
        let transaction = self.begin_write().await?;
        // As a value: PostgreSQL searches no index for what its clock may change from row to row, and
        // would look at every order that waits for payment.
        let now = self.read_now(&transaction).await?;
        let rows = order::Entity::find()
            .filter(order::Column::State.eq(OrderState::AwaitingPayment.as_str()))
            .filter(order::Column::PayByMs.lte(now))
            .order_by_asc(order::Column::PayByMs)
            .limit(limit)
            .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
            .all(&transaction)
            .await?;
        if rows.is_empty() {
            transaction.rollback().await?;
            return Ok(Vec::new());
        }
        let expired = self.end_orders(&transaction, rows, OrderState::Expired, now).await?;
        transaction.commit().await?;
        Ok(expired)
    }

    /// When the next unpaid order is due: how long a sweep may sleep.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn next_due(&self) -> Result<NextDue, SqlFault> {
        let statement = Query::select()
            .expr_as(now_ms(self.backend()), "now_ms")
            .expr_as(Expr::col(order::Column::PayByMs).min(), "due_ms")
            .from(order::Entity)
            .and_where(Expr::col(order::Column::State).eq(OrderState::AwaitingPayment.as_str()))
            .to_owned();
        let row = self.connection.query_one(&statement).await?;
        let row = row.ok_or_else(|| SqlFault::row("orders", 0, "pay_by_ms"))?;
        Ok(NextDue { now_ms: row.try_get("", "now_ms")?, due_ms: row.try_get("", "due_ms")? })
    }

    /// Ends locked rows that wait for payment: their state, their units, and what Redis and the shop
    /// are owed.
    pub(crate) async fn end_orders(
        &self,
        transaction: &DatabaseTransaction,
        mut rows: Vec<order::Model>,
        state: OrderState,
        now: i64,
    ) -> Result<Vec<StoredOrder>, SqlFault> {
        let update = Query::update()
            .table(order::Entity)
            .value(order::Column::State, state.as_str())
            .value(order::Column::SettledMs, now)
            .and_where(Expr::col(order::Column::Id).is_in(rows.iter().map(|row| row.id)))
            .and_where(Expr::col(order::Column::State).eq(OrderState::AwaitingPayment.as_str()))
            .to_owned();
        let updated = transaction.execute(&update).await?.rows_affected();
        if updated != u64::try_from(rows.len()).unwrap_or(u64::MAX) {
            // They are locked, and were read in this state.
            return Err(SqlFault::row("orders", rows.first().map_or(0, |row| row.id), "state"));
        }

        let mut units: BTreeMap<i64, i64> = BTreeMap::new();
        let mut closed = Vec::with_capacity(rows.len());
        for row in &mut rows {
            row.state = state.as_str().to_owned();
            row.settled_ms = Some(now);
            *units.entry(row.sale_id).or_default() += 1;
            closed.push(StoredOrder::try_from(row.clone())?);
        }
        insert_releases_of(transaction, &closed, state.as_str(), now).await?;
        insert_events(self, transaction, &closed, now).await?;
        // The hot rows last, in the order in which every writer takes them.
        for (sale, units) in units {
            return_units(transaction, sale, units).await?;
        }
        Ok(closed)
    }
}

/// What Redis is owed for orders that no longer hold their units. A direct sale has no memory in
/// Redis, and is owed nothing.
pub(crate) async fn insert_releases_of(
    transaction: &DatabaseTransaction,
    orders: &[StoredOrder],
    cause: &str,
    now: i64,
) -> Result<(), SqlFault> {
    let queued = |stored: &&StoredOrder| stored.order.id.partition() != DIRECT_PARTITION;
    let mut releases = Vec::with_capacity(orders.len());
    for stored in orders.iter().filter(queued) {
        releases.push(NewRelease {
            sale_id: stored.order.sale_id,
            order_id: stored.order.id,
            user_id: &stored.order.user_id,
            generation: stored.generation,
            cause,
            returns_unit: true,
            instead: None,
            now_ms: now,
        });
    }
    Ok(insert_releases(transaction, &releases).await?)
}

/// An order's row, locked until the transaction ends. SQLite locks the whole file by itself.
pub(crate) async fn lock_order(
    transaction: &DatabaseTransaction,
    id: OrderId,
) -> Result<Option<order::Model>, SqlFault> {
    Ok(order::Entity::find_by_id(id.as_i64()).lock_exclusive().one(transaction).await?)
}

/// Puts units back on sale in the database; a CHECK refuses more than there are.
async fn return_units(
    transaction: &DatabaseTransaction,
    sale: i64,
    units: i64,
) -> Result<(), SqlFault> {
    let statement = Query::update()
        .table(sale::Entity)
        .value(sale::Column::StockLeft, Expr::col(sale::Column::StockLeft).add(units))
        .and_where(Expr::col(sale::Column::Id).eq(sale))
        .to_owned();
    match transaction.execute(&statement).await?.rows_affected() {
        1 => Ok(()),
        _ => Err(SqlFault::row("sales", sale, "id")),
    }
}
