//! Orders as they stand: finding one, listing a buyer's.

use flashsale_domain::{IdempotencyDigest, Order, OrderId, OrderState, SaleId, UserId};
use sea_orm::{
    ColumnTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use crate::entities::order::{Column, Entity};
use crate::{Database, SqlFault};

/// An order's row: what its buyer may see, and what the system needs besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOrder {
    /// What its buyer may see.
    pub order: Order,
    /// The slot it holds, or held.
    pub slot: u16,
    /// How often it took a unit.
    pub generation: u32,
    /// Digest of the key it was ordered with.
    pub digest: Option<IdempotencyDigest>,
}

/// Which orders to list.
#[derive(Debug, Clone, Default)]
pub struct OrderFilter {
    /// Only of this sale.
    pub sale_id: Option<SaleId>,
    /// Only in this state.
    pub state: Option<OrderState>,
    /// Only older than this order.
    pub before: Option<OrderId>,
    /// At most so many.
    pub limit: u64,
}

impl Database {
    /// An order by its id.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn find_order(&self, id: OrderId) -> Result<Option<StoredOrder>, SqlFault> {
        let row = Entity::find_by_id(id.as_i64()).one(&self.connection).await?;
        row.map(StoredOrder::try_from).transpose()
    }

    /// The orders among `ids` that are rows, in no order.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn find_orders(&self, ids: &[OrderId]) -> Result<Vec<StoredOrder>, SqlFault> {
        let mut orders = Vec::with_capacity(ids.len());
        // 1,000 at a time: databases limit the values of one statement.
        for chunk in ids.chunks(1000) {
            let rows = Entity::find()
                .filter(Column::Id.is_in(chunk.iter().map(|id| id.as_i64())))
                .all(&self.connection)
                .await?;
            for row in rows {
                orders.push(StoredOrder::try_from(row)?);
            }
        }
        Ok(orders)
    }

    /// A buyer's orders, newest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_orders(
        &self,
        user: &UserId,
        filter: &OrderFilter,
    ) -> Result<Vec<StoredOrder>, SqlFault> {
        self.list_orders_of(Some(user), filter).await
    }

    /// The orders of one buyer or of all, newest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_orders_of(
        &self,
        user: Option<&UserId>,
        filter: &OrderFilter,
    ) -> Result<Vec<StoredOrder>, SqlFault> {
        let mut query = Entity::find().order_by_desc(Column::Id).limit(filter.limit);
        if let Some(user) = user {
            query = query.filter(Column::UserId.eq(user.as_str()));
        }
        if let Some(sale) = filter.sale_id {
            query = query.filter(Column::SaleId.eq(sale.as_i64()));
        }
        if let Some(state) = filter.state {
            query = query.filter(Column::State.eq(state.as_str()));
        }
        if let Some(before) = filter.before {
            query = query.filter(Column::Id.lt(before.as_i64()));
        }
        let rows = query.all(&self.connection).await?;
        rows.into_iter().map(StoredOrder::try_from).collect()
    }

    /// A sale's orders with an id above `after`, oldest first, at most `limit`: for audits.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_sale_orders(
        &self,
        sale: SaleId,
        after: Option<OrderId>,
        limit: u64,
    ) -> Result<Vec<StoredOrder>, SqlFault> {
        let rows = Entity::find()
            .filter(Column::SaleId.eq(sale.as_i64()))
            .filter(Column::Id.gt(after.map_or(0, OrderId::as_i64)))
            .order_by_asc(Column::Id)
            .limit(limit)
            .all(&self.connection)
            .await?;
        rows.into_iter().map(StoredOrder::try_from).collect()
    }
}
