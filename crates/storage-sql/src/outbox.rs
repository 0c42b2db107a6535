//! The outbox: releases that Redis has yet to hear of.

use std::collections::HashMap;

use flashsale_domain::{OrderId, Partition, PaymentOutcome, SaleId, UserId};
use sea_orm::sea_query::{Expr, ExprTrait as _, OnConflict, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use crate::entities::outbox::{Column, Entity};
use crate::entities::{order, payment};
use crate::{Database, SqlFault, StoredOrder};

/// What an order that is over gives back in Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The outbox row's id.
    pub id: i64,
    /// The sale.
    pub sale_id: SaleId,
    /// Its home.
    pub partition: Partition,
    /// The order that is over.
    pub order_id: OrderId,
    /// Whose it was.
    pub user_id: UserId,
    /// The generation of its hold.
    pub generation: u32,
    /// Why it is over: `cancelled`, `expired`, `late-payment` (the unit could not be had after all),
    /// or the reason of a rejection.
    pub cause: String,
    /// Whether the unit goes back on sale; false when it never existed.
    pub returns_unit: bool,
    /// The open order that has the slot instead, if there is one.
    pub instead: Option<StoredOrder>,
}

/// Orders of a sale of which the two stores may differ for the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InTransit {
    /// Over in the database; Redis has yet to hear of it.
    pub releases: Vec<OrderId>,
    /// Expired and paid for: Redis may have given the unit already.
    pub late_payments: Vec<OrderId>,
}

/// A release as a transaction writes it.
pub(crate) struct NewRelease<'a> {
    pub(crate) sale_id: SaleId,
    pub(crate) order_id: OrderId,
    pub(crate) user_id: &'a UserId,
    pub(crate) generation: u32,
    pub(crate) cause: &'a str,
    pub(crate) returns_unit: bool,
    pub(crate) instead: Option<OrderId>,
    pub(crate) now_ms: i64,
}

/// Rows of one INSERT: SQLite takes 32,766 values a statement, a row has 9.
const ROWS_PER_INSERT: usize = 32_766 / 9;

/// Writes a release into the outbox, as part of a transaction; one that is there already stays.
pub(crate) async fn insert_release(
    transaction: &impl ConnectionTrait,
    release: &NewRelease<'_>,
) -> Result<(), sea_orm::DbErr> {
    insert_releases(transaction, std::slice::from_ref(release)).await
}

/// The same for any number of them.
pub(crate) async fn insert_releases(
    transaction: &impl ConnectionTrait,
    releases: &[NewRelease<'_>],
) -> Result<(), sea_orm::DbErr> {
    for chunk in releases.chunks(ROWS_PER_INSERT) {
        let mut statement = Query::insert();
        statement
            .into_table(Entity)
            .columns([
                Column::SaleId,
                Column::Partition,
                Column::OrderId,
                Column::UserId,
                Column::Generation,
                Column::Cause,
                Column::ReturnsUnit,
                Column::InsteadOrderId,
                Column::CreatedMs,
            ])
            .on_conflict(OnConflict::new().do_nothing().to_owned());
        for release in chunk {
            statement.values_panic([
                release.sale_id.as_i64().into(),
                i32::from(release.order_id.partition().number()).into(),
                release.order_id.as_i64().into(),
                release.user_id.as_str().into(),
                i64::from(release.generation).into(),
                release.cause.into(),
                release.returns_unit.into(),
                release.instead.map(OrderId::as_i64).into(),
                release.now_ms.into(),
            ]);
        }
        transaction.execute(&statement).await?;
    }
    Ok(())
}

impl Database {
    /// The oldest releases above `after`, at most `limit`.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_releases(&self, after: i64, limit: u64) -> Result<Vec<Release>, SqlFault> {
        let rows = Entity::find()
            .filter(Column::Id.gt(after))
            .order_by_asc(Column::Id)
            .limit(limit)
            .all(&self.connection)
            .await?;
        let instead: Vec<OrderId> =
            rows.iter().filter_map(|row| OrderId::from_i64(row.instead_order_id?)).collect();
        let instead: HashMap<i64, StoredOrder> = self
            .find_orders(&instead)
            .await?
            .into_iter()
            .map(|stored| (stored.order.id.as_i64(), stored))
            .collect();
        rows.into_iter()
            .map(|row| {
                let bad = |column| SqlFault::row("outbox", row.id, column);
                let partition = u16::try_from(row.partition).ok().and_then(Partition::new);
                Ok(Release {
                    id: row.id,
                    sale_id: SaleId::from_i64(row.sale_id).ok_or_else(|| bad("sale_id"))?,
                    partition: partition.ok_or_else(|| bad("partition"))?,
                    order_id: OrderId::from_i64(row.order_id).ok_or_else(|| bad("order_id"))?,
                    user_id: UserId::new(row.user_id.as_str()).map_err(|_| bad("user_id"))?,
                    generation: row.generation.try_into().map_err(|_| bad("generation"))?,
                    cause: row.cause.clone(),
                    returns_unit: row.returns_unit,
                    instead: row.instead_order_id.and_then(|id| instead.get(&id).cloned()),
                })
            })
            .collect()
    }

    /// Removes releases that Redis has carried out.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked: then they are carried out once more.
    pub async fn delete_releases(&self, ids: &[i64]) -> Result<(), SqlFault> {
        if ids.is_empty() {
            return Ok(());
        }
        Entity::delete_many()
            .filter(Column::Id.is_in(ids.iter().copied()))
            .exec(&self.connection)
            .await?;
        Ok(())
    }

    /// How many releases of a sale Redis has yet to hear of.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn count_releases(&self, sale: SaleId) -> Result<u64, SqlFault> {
        use sea_orm::PaginatorTrait as _;
        Ok(Entity::find().filter(Column::SaleId.eq(sale.as_i64())).count(&self.connection).await?)
    }

    /// The orders of a sale of which Redis and the database may differ for the moment: their release
    /// has yet to reach Redis, or they are being paid late.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn orders_in_transit(&self, sale: SaleId) -> Result<InTransit, SqlFault> {
        orders_in_transit(&self.connection, sale).await
    }
}

pub(crate) async fn orders_in_transit(
    connection: &impl ConnectionTrait,
    sale: SaleId,
) -> Result<InTransit, SqlFault> {
    let releases: Vec<i64> = Entity::find()
        .select_only()
        .column(Column::OrderId)
        .filter(Column::SaleId.eq(sale.as_i64()))
        .into_tuple()
        .all(connection)
        .await?;
    let late_payments: Vec<i64> = payment::Entity::find()
        .select_only()
        .column(payment::Column::OrderId)
        .filter(payment::Column::Outcome.eq(PaymentOutcome::Reacquiring.as_str()))
        .filter(
            Expr::col(payment::Column::OrderId).in_subquery(
                Query::select()
                    .column(order::Column::Id)
                    .from(order::Entity)
                    .and_where(Expr::col(order::Column::SaleId).eq(sale.as_i64()))
                    .to_owned(),
            ),
        )
        .into_tuple()
        .all(connection)
        .await?;
    let ids = |ids: Vec<i64>| ids.into_iter().filter_map(OrderId::from_i64).collect();
    Ok(InTransit { releases: ids(releases), late_payments: ids(late_payments) })
}
