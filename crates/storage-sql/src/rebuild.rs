//! What a rebuild of Redis's memory needs: a new epoch, and everything that the old memory held.

use flashsale_domain::{
    IdempotencyDigest, OrderId, OrderState, Partition, RejectReason, Sale, SaleId, UserId,
};
use sea_orm::sea_query::{Expr, ExprTrait as _, Func, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _,
};

use crate::adjustments::absorb_growth;
use crate::entities::{order, sale};
use crate::{Database, SqlFault, StoredOrder};

/// A sale at the beginning of a new epoch.
#[derive(Debug)]
pub struct NewEpoch {
    /// The sale, with its new epoch.
    pub sale: Sale,
    /// Every order of it that Redis should know, oldest first.
    pub orders: Vec<HeldOrder>,
}

/// What Redis should know of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldOrder {
    /// Its id.
    pub id: OrderId,
    /// Whose.
    pub user_id: UserId,
    /// Its slot.
    pub slot: u16,
    /// How often it took a unit.
    pub generation: u32,
    /// Whether it holds its unit.
    pub open: bool,
    /// Digest of the key it was ordered with.
    pub digest: Option<IdempotencyDigest>,
}

impl Database {
    /// Raises a sale's epoch above `from` and reads its orders, in one transaction: what a worker
    /// commits afterwards for the old epoch is no longer taken. `None` when there is no such sale, or
    /// its epoch is another one by now: somebody else rebuilds it.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn begin_epoch(&self, id: SaleId, from: i64) -> Result<Option<NewEpoch>, SqlFault> {
        let transaction = self.begin_write().await?;
        let raise = Query::update()
            .table(sale::Entity)
            .value(sale::Column::Epoch, Expr::col(sale::Column::Epoch).add(1))
            .and_where(Expr::col(sale::Column::Id).eq(id.as_i64()))
            .and_where(Expr::col(sale::Column::Epoch).eq(from))
            .to_owned();
        if transaction.execute(&raise).await?.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(None);
        }
        let Some(row) = sale::Entity::find_by_id(id.as_i64()).one(&transaction).await? else {
            transaction.rollback().await?;
            return Ok(None);
        };
        absorb_growth(&transaction, id).await?;
        // An order lost with Redis's memory leaves its key free again. Without `is_null`, a rejected
        // row that has no reason would be neither lost nor kept.
        let kept = order::Column::State
            .ne(OrderState::Rejected.as_str())
            .or(order::Column::Reason.is_null())
            .or(order::Column::Reason.ne(RejectReason::MemoryLost.as_str()));
        let rows = order::Entity::find()
            .filter(order::Column::SaleId.eq(id.as_i64()))
            .filter(kept)
            .order_by_asc(order::Column::Id)
            .all(&transaction)
            .await?;
        transaction.commit().await?;
        let orders = rows
            .into_iter()
            .map(|row| {
                let stored = StoredOrder::try_from(row)?;
                Ok(HeldOrder {
                    id: stored.order.id,
                    open: stored.order.state.is_open(),
                    user_id: stored.order.user_id,
                    slot: stored.slot,
                    generation: stored.generation,
                    digest: stored.digest,
                })
            })
            .collect::<Result<_, SqlFault>>()?;
        Ok(Some(NewEpoch { sale: row.try_into()?, orders }))
    }

    /// The highest id of an order of a partition's sales.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn last_order_id(&self, partition: Partition) -> Result<Option<OrderId>, SqlFault> {
        let statement = Query::select()
            .expr_as(Func::max(Expr::col((order::Entity, order::Column::Id))), "last")
            .from(order::Entity)
            .inner_join(
                sale::Entity,
                Expr::col((order::Entity, order::Column::SaleId))
                    .equals((sale::Entity, sale::Column::Id)),
            )
            .and_where(
                Expr::col((sale::Entity, sale::Column::Partition))
                    .eq(i32::from(partition.number())),
            )
            .to_owned();
        let row = self.connection.query_one(&statement).await?;
        let last: Option<i64> = match row {
            Some(row) => row.try_get("", "last")?,
            None => None,
        };
        Ok(last.and_then(OrderId::from_i64))
    }
}
