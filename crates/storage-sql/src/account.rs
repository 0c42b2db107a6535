//! The database's side of the ledger, each figure of one moment.

use std::collections::HashSet;

use flashsale_domain::{OrderId, OrderState, SaleId};
use sea_orm::sea_query::{Expr, ExprTrait as _, Func, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DatabaseTransaction, EntityTrait as _, PaginatorTrait as _,
    QueryFilter as _, QuerySelect as _,
};

use crate::adjustments::sum_adjustments;
use crate::commit::open_states;
use crate::entities::{order, sale};
use crate::outbox::{InTransit, orders_in_transit};
use crate::{Database, SqlFault};

/// A sale's units in the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaleTotals {
    /// Units in all.
    pub stock_total: i64,
    /// Units without an open row.
    pub stock_left: i64,
    /// Orders by state; a state without orders is left out.
    pub orders: Vec<(OrderState, i64)>,
}

impl SaleTotals {
    /// Orders in `state`.
    pub fn count(&self, state: OrderState) -> i64 {
        self.orders.iter().filter(|(s, _)| *s == state).map(|(_, count)| count).sum()
    }

    /// Orders that hold a unit.
    pub fn open(&self) -> i64 {
        self.orders.iter().filter(|(state, _)| state.is_open()).map(|(_, count)| count).sum()
    }
}

/// The database's side of a sale's ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseAccount {
    /// Its units.
    pub totals: SaleTotals,
    /// Orders that hold a unit, but for those that are newer than Redis's reading.
    pub open_up_to_last: i64,
    /// Of the orders that may not be rows yet, those that are none.
    pub unwritten: Vec<OrderId>,
    /// Orders of which the two stores may differ for the moment.
    pub in_transit: InTransit,
    /// Units of an adjustment that one side has and the other not yet: positive when Redis has yet to
    /// get them, negative when the database has yet to give them up.
    pub adjusting: i64,
    /// Units by which finished adjustments have changed the stock.
    pub adjusted: i64,
}

/// A buyer with more open orders of a sale than allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotViolation {
    /// Who.
    pub user_id: String,
    /// How many open orders.
    pub open: i64,
}

impl Database {
    /// A sale's units, in one statement and so of one moment; `None` when there is no such sale.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn sale_totals(&self, id: SaleId) -> Result<Option<SaleTotals>, SqlFault> {
        read_totals(&self.connection, id).await
    }

    /// A sale's side of the ledger, all of it of one moment; `None` when there is no such sale.
    /// `last` is the last order that Redis had given out at its own reading, `None` for no limit, and `waiting` are orders
    /// that may not be rows yet.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn read_account(
        &self,
        id: SaleId,
        last: Option<OrderId>,
        waiting: &[OrderId],
    ) -> Result<Option<DatabaseAccount>, SqlFault> {
        let snapshot = self.begin_snapshot().await?;
        let account = read_account(&snapshot, id, last, waiting).await;
        Self::end(snapshot, account).await
    }

    /// The first buyers, at most ten, with more than `limit` open orders of a sale.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn find_slot_violations(
        &self,
        id: SaleId,
        limit: u16,
    ) -> Result<Vec<SlotViolation>, SqlFault> {
        let count = Func::count(Expr::col(order::Column::Id));
        let statement = Query::select()
            .column(order::Column::UserId)
            .expr_as(count.clone(), "open")
            .from(order::Entity)
            .and_where(Expr::col(order::Column::SaleId).eq(id.as_i64()))
            .and_where(Expr::col(order::Column::State).is_in(open_states()))
            .group_by_col(order::Column::UserId)
            .and_having(Expr::expr(count).gt(i32::from(limit)))
            .limit(10)
            .to_owned();
        let rows = self.connection.query_all(&statement).await?;
        rows.iter()
            .map(|row| {
                Ok(SlotViolation {
                    user_id: row.try_get("", "user_id")?,
                    open: row.try_get("", "open")?,
                })
            })
            .collect()
    }
}

async fn read_totals(
    connection: &impl ConnectionTrait,
    id: SaleId,
) -> Result<Option<SaleTotals>, SqlFault> {
    let statement = Query::select()
        .column((sale::Entity, sale::Column::StockTotal))
        .column((sale::Entity, sale::Column::StockLeft))
        .column((order::Entity, order::Column::State))
        .expr_as(Func::count(Expr::col((order::Entity, order::Column::Id))), "orders")
        .from(sale::Entity)
        .left_join(
            order::Entity,
            Expr::col((order::Entity, order::Column::SaleId))
                .equals((sale::Entity, sale::Column::Id)),
        )
        .and_where(Expr::col((sale::Entity, sale::Column::Id)).eq(id.as_i64()))
        .group_by_columns([
            (sale::Entity, sale::Column::StockTotal),
            (sale::Entity, sale::Column::StockLeft),
        ])
        .group_by_col((order::Entity, order::Column::State))
        .to_owned();
    let mut totals: Option<SaleTotals> = None;
    for row in connection.query_all(&statement).await? {
        let totals = totals.get_or_insert_default();
        totals.stock_total = row.try_get("", "stock_total")?;
        totals.stock_left = row.try_get("", "stock_left")?;
        if let Some(state) = row.try_get::<Option<String>>("", "state")? {
            let state = state.parse().map_err(|_| SqlFault::row("orders", 0, "state"))?;
            totals.orders.push((state, row.try_get("", "orders")?));
        }
    }
    Ok(totals)
}

async fn read_account(
    snapshot: &DatabaseTransaction,
    id: SaleId,
    last: Option<OrderId>,
    waiting: &[OrderId],
) -> Result<Option<DatabaseAccount>, SqlFault> {
    let Some(totals) = read_totals(snapshot, id).await? else { return Ok(None) };
    let newer = order::Entity::find()
        .filter(order::Column::SaleId.eq(id.as_i64()))
        .filter(order::Column::Id.gt(last.map_or(i64::MAX, OrderId::as_i64)))
        .filter(order::Column::State.is_in(open_states()))
        .count(snapshot)
        .await?;
    let mut rows = HashSet::new();
    // 1,000 at a time: databases limit the values of one statement.
    for chunk in waiting.chunks(1000) {
        let found: Vec<i64> = order::Entity::find()
            .select_only()
            .column(order::Column::Id)
            .filter(order::Column::Id.is_in(chunk.iter().map(|id| id.as_i64())))
            .into_tuple()
            .all(snapshot)
            .await?;
        rows.extend(found);
    }
    let (adjusting, adjusted) = sum_adjustments(snapshot, id).await?;
    Ok(Some(DatabaseAccount {
        open_up_to_last: totals.open() - i64::try_from(newer).unwrap_or(i64::MAX),
        unwritten: waiting.iter().copied().filter(|id| !rows.contains(&id.as_i64())).collect(),
        in_transit: orders_in_transit(snapshot, id).await?,
        totals,
        adjusting,
        adjusted,
    }))
}
