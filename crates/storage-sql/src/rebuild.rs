//! What a rebuild of Redis's memory needs: a new epoch, and everything that the old memory held.

use flashsale_domain::{
    IdempotencyDigest, OrderId, OrderState, Partition, RejectReason, Sale, SaleId, UserId,
};
use sea_orm::sea_query::{Expr, ExprTrait as _, Order, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use crate::adjustments::absorb_growth;
use crate::entities::{order, sale};
use crate::{Database, SqlFault};

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

/// Orders read at a time.
const PAGE: u64 = 10_000;

impl Database {
    /// As [`Database::read_new_epoch`], with all orders in one list.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn begin_epoch(&self, id: SaleId, from: i64) -> Result<Option<NewEpoch>, SqlFault> {
        let mut orders = Vec::new();
        let sale = self.read_new_epoch(id, from, |order| orders.push(order)).await?;
        Ok(sale.map(|sale| NewEpoch { sale, orders }))
    }

    /// Raises a sale's epoch above `from` and reads its orders, in one transaction: what a worker
    /// commits afterwards for the old epoch is no longer taken. `None` when there is no such sale, or
    /// its epoch is another one by now: somebody else rebuilds it.
    ///
    /// `take` gets the orders one by one, oldest first, so that nobody has to hold them all as rows;
    /// what it got does not count when this fails. Until the end the sale's row is locked: whatever
    /// moves a unit waits, so that the pages are of one moment.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn read_new_epoch(
        &self,
        id: SaleId,
        from: i64,
        take: impl FnMut(HeldOrder) + Send,
    ) -> Result<Option<Sale>, SqlFault> {
        let transaction = self.begin_write().await?;
        let begun = raise_and_read(&transaction, id, from, take).await;
        Self::end(transaction, begun).await
    }

    /// The highest id of an order of a partition's sales.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn last_order_id(&self, partition: Partition) -> Result<Option<OrderId>, SqlFault> {
        // Not max(): it would read every row of the join, this stops at the first from the end.
        let statement = Query::select()
            .expr_as(Expr::col((order::Entity, order::Column::Id)), "last")
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
            .order_by((order::Entity, order::Column::Id), Order::Desc)
            .limit(1)
            .to_owned();
        let row = self.connection.query_one(&statement).await?;
        let last: Option<i64> = row.map(|row| row.try_get("", "last")).transpose()?;
        Ok(last.and_then(OrderId::from_i64))
    }
}

async fn raise_and_read(
    transaction: &DatabaseTransaction,
    id: SaleId,
    from: i64,
    mut take: impl FnMut(HeldOrder) + Send,
) -> Result<Option<Sale>, SqlFault> {
    let raise = Query::update()
        .table(sale::Entity)
        .value(sale::Column::Epoch, Expr::col(sale::Column::Epoch).add(1))
        .and_where(Expr::col(sale::Column::Id).eq(id.as_i64()))
        .and_where(Expr::col(sale::Column::Epoch).eq(from))
        .to_owned();
    if transaction.execute(&raise).await?.rows_affected() == 0 {
        return Ok(None);
    }
    let Some(row) = sale::Entity::find_by_id(id.as_i64()).one(transaction).await? else {
        return Ok(None);
    };
    absorb_growth(transaction, id).await?;
    // An order lost with Redis's memory leaves its key free again. Without `is_null`, a rejected
    // row that has no reason would be neither lost nor kept.
    let kept = order::Column::State
        .ne(OrderState::Rejected.as_str())
        .or(order::Column::Reason.is_null())
        .or(order::Column::Reason.ne(RejectReason::MemoryLost.as_str()));
    let mut after = 0;
    loop {
        let page: Vec<HeldRow> = order::Entity::find()
            .select_only()
            .columns([
                order::Column::Id,
                order::Column::UserId,
                order::Column::Slot,
                order::Column::Generation,
                order::Column::State,
                order::Column::Digest,
            ])
            .filter(order::Column::SaleId.eq(id.as_i64()))
            .filter(order::Column::Id.gt(after))
            .filter(kept.clone())
            .order_by_asc(order::Column::Id)
            .limit(PAGE)
            .into_tuple()
            .all(transaction)
            .await?;
        let is_last = u64::try_from(page.len()).is_ok_and(|rows| rows < PAGE);
        for row in page {
            after = row.0;
            take(held_order(row)?);
        }
        if is_last {
            return Ok(Some(row.try_into()?));
        }
    }
}

/// Id, buyer, slot, generation, state, digest.
type HeldRow = (i64, String, i32, i32, String, Option<String>);

fn held_order(row: HeldRow) -> Result<HeldOrder, SqlFault> {
    let (id, user_id, slot, generation, state, digest) = row;
    let bad = |column| SqlFault::row("orders", id, column);
    let state: OrderState = state.parse().map_err(|_| bad("state"))?;
    Ok(HeldOrder {
        id: OrderId::from_i64(id).ok_or_else(|| bad("id"))?,
        user_id: UserId::new(user_id).map_err(|_| bad("user_id"))?,
        slot: slot.try_into().map_err(|_| bad("slot"))?,
        generation: generation.try_into().map_err(|_| bad("generation"))?,
        open: state.is_open(),
        digest: match digest {
            None => None,
            Some(text) => Some(IdempotencyDigest::from_stored(&text).ok_or_else(|| bad("digest"))?),
        },
    })
}
