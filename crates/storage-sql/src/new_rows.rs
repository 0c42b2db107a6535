//! New rows of `orders`, many in one statement.
//!
//! PostgreSQL gets the columns as arrays: one prepared statement for batches of every size, and a few
//! long parameters instead of thousands of short ones. SQLite, which has no arrays and no server to
//! send them to, gets a list of VALUES.

use std::collections::HashSet;

use flashsale_domain::{
    IdempotencyDigest, NewOrder, Order, OrderId, OrderState, Price, RejectReason,
};
use sea_orm::sea_query::{OnConflict, Query};
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, DbBackend, DbErr, Statement, Value};

use crate::arrays::array;
use crate::entities::order;
use crate::{SqlFault, StoredOrder};

/// Rows of one INSERT on SQLite, which takes 32,766 values a statement; a row has 12.
const ROWS_PER_INSERT: usize = 32_766 / 12;

/// What a row needs to know of its sale.
pub(crate) struct SaleGuard {
    pub(crate) epoch: i64,
    pub(crate) price_amount: i64,
    pub(crate) price_currency: String,
    pub(crate) payment_window_ms: i64,
}

/// A row to insert: `awaiting_payment`, or rejected for a reason.
pub(crate) struct NewRow<'a> {
    pub(crate) order: &'a NewOrder,
    pub(crate) guard: &'a SaleGuard,
    pub(crate) rejected: Option<RejectReason>,
}

impl NewRow<'_> {
    const fn state(&self) -> OrderState {
        match self.rejected {
            Some(_) => OrderState::Rejected,
            None => OrderState::AwaitingPayment,
        }
    }

    fn pay_by_ms(&self, now: i64) -> Option<i64> {
        self.rejected.is_none().then_some(now + self.guard.payment_window_ms)
    }

    fn digest(&self) -> Option<&str> {
        self.order.digest.as_ref().map(IdempotencyDigest::as_str)
    }

    /// The row as it is read back.
    pub(crate) fn stored(&self, now: i64) -> Result<StoredOrder, SqlFault> {
        let bad = || SqlFault::row("sales", self.order.sale_id.as_i64(), "price_currency");
        Ok(StoredOrder {
            order: Order {
                id: self.order.id,
                sale_id: self.order.sale_id,
                user_id: self.order.user_id.clone(),
                state: self.state(),
                reason: self.rejected.map(|reason| reason.as_str().to_owned()),
                price: Some(Price {
                    amount: self.guard.price_amount,
                    currency: self.guard.price_currency.parse().map_err(|_| bad())?,
                }),
                pay_by_ms: self.pay_by_ms(now),
                committed_ms: Some(now),
                settled_ms: None,
            },
            slot: self.order.slot,
            generation: 1,
            digest: self.order.digest.clone(),
        })
    }
}

/// Which rows are new.
pub(crate) enum Inserted {
    All,
    Only(HashSet<OrderId>),
}

impl Inserted {
    pub(crate) fn contains(&self, id: OrderId) -> bool {
        match self {
            Self::All => true,
            Self::Only(ids) => ids.contains(&id),
        }
    }
}

/// What becomes of a row that a unique constraint refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The statement fails. On PostgreSQL this costs a third less: it need not look for a conflict
    /// first and insert tentatively.
    Fails,
    /// It is left out.
    Skips,
}

/// Inserts rows in the order given.
pub(crate) async fn insert_rows(
    transaction: &DatabaseTransaction,
    rows: &[NewRow<'_>],
    conflict: Conflict,
    now: i64,
) -> Result<Inserted, DbErr> {
    let mut inserted = HashSet::new();
    if transaction.get_database_backend() != DbBackend::Postgres {
        for chunk in rows.chunks(ROWS_PER_INSERT) {
            insert_values(transaction, chunk, now, &mut inserted).await?;
        }
        return Ok(Inserted::Only(inserted));
    }
    // Within a batch the epoch says whether a row is rejected.
    let alike = |a: &NewRow<'_>, b: &NewRow<'_>| {
        a.order.sale_id == b.order.sale_id && a.order.epoch == b.order.epoch
    };
    for alike in rows.chunk_by(alike) {
        let mut sql = INSERT_ARRAYS.to_owned();
        if conflict == Conflict::Skips {
            sql.push_str(SKIPPING);
        }
        let statement =
            Statement::from_sql_and_values(DbBackend::Postgres, sql, arrays(alike, now));
        if conflict == Conflict::Fails {
            transaction.execute_raw(statement).await?;
            continue;
        }
        for row in transaction.query_all_raw(statement).await? {
            let id: i64 = row.try_get("", "id")?;
            inserted.extend(OrderId::from_i64(id));
        }
    }
    Ok(match conflict {
        Conflict::Fails => Inserted::All,
        Conflict::Skips => Inserted::Only(inserted),
    })
}

/// Rows that have all but the arrays in common. No digest is empty.
const INSERT_ARRAYS: &str = r#"
INSERT INTO "orders" ("id", "user_id", "slot", "digest", "sale_id", "epoch", "state", "reason",
                      "price_amount", "price_currency", "pay_by_ms", "committed_ms")
SELECT id, user_id, slot, nullif(digest, ''), $5::bigint, $6::bigint, $7::text, $8::text,
       $9::bigint, $10::text, $11::bigint, $12::bigint
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[]) AS batch (id, user_id, slot, digest)"#;

/// Without a column named, every constraint is covered: the primary key and the slot.
const SKIPPING: &str = r#" ON CONFLICT DO NOTHING RETURNING "id""#;

fn arrays(rows: &[NewRow<'_>], now: i64) -> [Value; 12] {
    let any = &rows[0];
    [
        array(rows, |row| row.order.id.as_i64()),
        array(rows, |row| row.order.user_id.as_str().to_owned()),
        array(rows, |row| i32::from(row.order.slot)),
        array(rows, |row| row.digest().unwrap_or_default().to_owned()),
        any.order.sale_id.as_i64().into(),
        any.order.epoch.into(),
        any.state().as_str().into(),
        any.rejected.map(RejectReason::as_str).into(),
        any.guard.price_amount.into(),
        any.guard.price_currency.as_str().into(),
        any.pay_by_ms(now).into(),
        now.into(),
    ]
}

async fn insert_values(
    transaction: &DatabaseTransaction,
    rows: &[NewRow<'_>],
    now: i64,
    inserted: &mut HashSet<OrderId>,
) -> Result<(), DbErr> {
    let mut statement = Query::insert();
    statement.into_table(order::Entity).columns([
        order::Column::Id,
        order::Column::SaleId,
        order::Column::UserId,
        order::Column::Slot,
        order::Column::Epoch,
        order::Column::Digest,
        order::Column::State,
        order::Column::Reason,
        order::Column::PriceAmount,
        order::Column::PriceCurrency,
        order::Column::PayByMs,
        order::Column::CommittedMs,
    ]);
    for row in rows {
        let NewRow { order, guard, rejected } = row;
        statement.values_panic([
            order.id.as_i64().into(),
            order.sale_id.as_i64().into(),
            order.user_id.as_str().into(),
            i32::from(order.slot).into(),
            order.epoch.into(),
            row.digest().into(),
            row.state().as_str().into(),
            rejected.map(RejectReason::as_str).into(),
            guard.price_amount.into(),
            guard.price_currency.as_str().into(),
            row.pay_by_ms(now).into(),
            now.into(),
        ]);
    }
    statement
        .on_conflict(OnConflict::new().do_nothing().to_owned())
        .returning_col(order::Column::Id);
    for row in transaction.query_all(&statement).await? {
        let id: i64 = row.try_get("", "id")?;
        inserted.extend(OrderId::from_i64(id));
    }
    Ok(())
}
