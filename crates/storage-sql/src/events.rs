//! Events: what the shop has yet to be told of its orders.
//!
//! Written in the transaction that changes the order, so that none is missed; taken on a lease by
//! whoever delivers them, so that several deliverers do not send the same one at once; deleted when
//! the shop has answered. At least once, in no promised order.

use std::time::Duration;

use flashsale_domain::{OrderId, OrderState, Price, SaleId};
use sea_orm::sea_query::{Expr, ExprTrait as _, LockBehavior, LockType, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, DbBackend, EntityTrait as _,
    PaginatorTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _, Statement,
};

use crate::arrays::array;
use crate::clock::now_ms;
use crate::entities::event::{Column, Entity, Model};
use crate::rehearsals::rehearsals;
use crate::{Database, SqlFault, StoredOrder};

/// Rows of one INSERT on SQLite, which takes 32,766 values a statement; a row has 10.
const ROWS_PER_INSERT: usize = 32_766 / 10;

/// The same on PostgreSQL. No reason is empty.
const INSERT_ARRAYS: &str = r#"
INSERT INTO "events" ("kind", "order_id", "sale_id", "user_id", "state", "reason",
                      "price_amount", "price_currency", "created_ms", "next_ms")
SELECT kind, order_id, sale_id, user_id, state, nullif(reason, ''), price_amount, price_currency,
       $9::bigint, $9::bigint
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[],
            $7::bigint[], $8::text[])
     AS batch (kind, order_id, sale_id, user_id, state, reason, price_amount, price_currency)"#;

/// A change that the shop has yet to be told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its number: the same for every try to deliver it.
    pub id: i64,
    /// What happened: `order.<state>`; of money that bought nothing `payment.refund_due`, or
    /// `payment.mismatch` when it was not what the order costs.
    pub kind: String,
    /// To which order.
    pub order_id: OrderId,
    /// Of which sale.
    pub sale_id: SaleId,
    /// Of which buyer.
    pub user_id: String,
    /// The order's state after it.
    pub state: OrderState,
    /// Why it was rejected, when it was.
    pub reason: Option<String>,
    /// What the order costs; of a payment: what was paid.
    pub price: Price,
    /// When: milliseconds since the Unix epoch, by the database's clock.
    pub created_ms: i64,
    /// How often it was taken to be delivered, this time included.
    pub attempts: u32,
}

/// What is written of an event.
pub(crate) struct NewEvent<'a> {
    pub(crate) kind: String,
    pub(crate) stored: &'a StoredOrder,
    pub(crate) price: Price,
}

/// Writes `order.<state>` of each order, if there is a shop that wants to know.
pub(crate) async fn insert_events(
    database: &Database,
    transaction: &DatabaseTransaction,
    orders: &[StoredOrder],
    now: i64,
) -> Result<(), SqlFault> {
    let events = orders.iter().filter_map(|stored| {
        let price = stored.order.price?;
        Some(NewEvent { kind: format!("order.{}", stored.order.state), stored, price })
    });
    insert_new_events(database, transaction, events.collect(), now).await
}

pub(crate) async fn insert_new_events(
    database: &Database,
    transaction: &DatabaseTransaction,
    events: Vec<NewEvent<'_>>,
    now: i64,
) -> Result<(), SqlFault> {
    if !database.writes_events || events.is_empty() {
        return Ok(());
    }
    if database.backend() == DbBackend::Postgres {
        let values = [
            array(&events, |event| event.kind.clone()),
            array(&events, |event| event.stored.order.id.as_i64()),
            array(&events, |event| event.stored.order.sale_id.as_i64()),
            array(&events, |event| event.stored.order.user_id.as_str().to_owned()),
            array(&events, |event| event.stored.order.state.as_str().to_owned()),
            array(&events, |event| event.stored.order.reason.clone().unwrap_or_default()),
            array(&events, |event| event.price.amount),
            array(&events, |event| event.price.currency.to_string()),
            now.into(),
        ];
        let insert = Statement::from_sql_and_values(DbBackend::Postgres, INSERT_ARRAYS, values);
        transaction.execute_raw(insert).await?;
        return Ok(());
    }
    for chunk in events.chunks(ROWS_PER_INSERT) {
        let mut statement = Query::insert();
        statement.into_table(Entity).columns([
            Column::Kind,
            Column::OrderId,
            Column::SaleId,
            Column::UserId,
            Column::State,
            Column::Reason,
            Column::PriceAmount,
            Column::PriceCurrency,
            Column::CreatedMs,
            Column::NextMs,
        ]);
        for event in chunk {
            let order = &event.stored.order;
            statement.values_panic([
                event.kind.as_str().into(),
                order.id.as_i64().into(),
                order.sale_id.as_i64().into(),
                order.user_id.as_str().into(),
                order.state.as_str().into(),
                order.reason.as_deref().into(),
                event.price.amount.into(),
                event.price.currency.to_string().into(),
                now.into(),
                now.into(),
            ]);
        }
        transaction.execute(&statement).await?;
    }
    Ok(())
}

/// The shop is told nothing of a rehearsal. Its events are written all the same, so that what is rehearsed
/// is what will be, and are erased with it.
fn of_real_sales() -> Expr {
    Expr::col(Column::SaleId).not_in_subquery(rehearsals())
}

impl Database {
    /// Takes events that are due, at most `limit`, the longest due first. Nobody else gets them for
    /// the time of the `lease`; what is not deleted by then is due again.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn take_events(&self, limit: u64, lease: Duration) -> Result<Vec<Event>, SqlFault> {
        let transaction = self.begin_write().await?;
        // As a value, so that PostgreSQL searches the index for it.
        let now = self.read_now(&transaction).await?;
        let rows = Entity::find()
            .filter(Column::NextMs.lte(now))
            .filter(of_real_sales())
            .order_by_asc(Column::NextMs)
            .order_by_asc(Column::Id)
            .limit(limit)
            .lock_with_behavior(LockType::Update, LockBehavior::SkipLocked)
            .all(&transaction)
            .await?;
        if rows.is_empty() {
            transaction.rollback().await?;
            return Ok(Vec::new());
        }
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let update = Query::update()
            .table(Entity)
            .value(Column::NextMs, now.saturating_add(lease_ms))
            .value(Column::Attempts, Expr::col(Column::Attempts).add(1))
            .and_where(Expr::col(Column::Id).is_in(rows.iter().map(|row| row.id)))
            .to_owned();
        transaction.execute(&update).await?;
        transaction.commit().await?;
        rows.into_iter().map(Event::try_from).collect()
    }

    /// Removes an event that the shop has taken.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked: then it is delivered once more.
    pub async fn delete_event(&self, id: i64) -> Result<(), SqlFault> {
        Entity::delete_by_id(id).exec(&self.connection).await?;
        Ok(())
    }

    /// Lets an event rest for `pause` before it is due again.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked: then it is due when its lease ends.
    pub async fn postpone_event(&self, id: i64, pause: Duration) -> Result<(), SqlFault> {
        let pause_ms = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        let update = Query::update()
            .table(Entity)
            .value(Column::NextMs, now_ms(self.backend()).add(pause_ms))
            .and_where(Expr::col(Column::Id).eq(id))
            .to_owned();
        self.connection.execute(&update).await?;
        Ok(())
    }

    /// How many events the shop has yet to take.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn count_events(&self) -> Result<u64, SqlFault> {
        Ok(Entity::find().filter(of_real_sales()).count(&self.connection).await?)
    }
}

impl TryFrom<Model> for Event {
    type Error = SqlFault;

    fn try_from(row: Model) -> Result<Self, SqlFault> {
        let bad = |column| SqlFault::row("events", row.id, column);
        Ok(Self {
            id: row.id,
            order_id: OrderId::from_i64(row.order_id).ok_or_else(|| bad("order_id"))?,
            sale_id: SaleId::from_i64(row.sale_id).ok_or_else(|| bad("sale_id"))?,
            state: row.state.parse().map_err(|_| bad("state"))?,
            price: Price {
                amount: row.price_amount,
                currency: row.price_currency.parse().map_err(|_| bad("price_currency"))?,
            },
            attempts: u32::try_from(row.attempts + 1).map_err(|_| bad("attempts"))?,
            kind: row.kind.clone(),
            user_id: row.user_id.clone(),
            reason: row.reason.clone(),
            created_ms: row.created_ms,
        })
    }
}
