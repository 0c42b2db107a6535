//! The outbox: releases that Redis has yet to hear of.

use std::collections::HashMap;

use flashsale_domain::{OrderId, Partition, SaleId, UserId};
use sea_orm::sea_query::{OnConflict, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, EntityTrait as _, QueryFilter as _, QueryOrder as _,
    QuerySelect as _,
};

use crate::entities::outbox::{Column, Entity};
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
    /// Why it is over: `slot-taken`, `stock-gone`, `operator`.
    pub cause: String,
    /// Whether the unit goes back on sale; false when it never existed.
    pub returns_unit: bool,
    /// The open order that has the slot instead, if there is one.
    pub instead: Option<StoredOrder>,
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

/// Writes a release into the outbox, as part of a transaction; one that is there already stays.
pub(crate) async fn insert_release(
    transaction: &impl ConnectionTrait,
    release: &NewRelease<'_>,
) -> Result<(), sea_orm::DbErr> {
    let statement = Query::insert()
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
        .values_panic([
            release.sale_id.as_i64().into(),
            i32::from(release.order_id.partition().number()).into(),
            release.order_id.as_i64().into(),
            release.user_id.as_str().into(),
            i64::from(release.generation).into(),
            release.cause.into(),
            release.returns_unit.into(),
            release.instead.map(OrderId::as_i64).into(),
            release.now_ms.into(),
        ])
        .on_conflict(OnConflict::new().do_nothing().to_owned())
        .to_owned();
    transaction.execute(&statement).await?;
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
}
