//! Sales of rehearsals: made like any other, and erased with all that was written of them.
//!
//! Only what bears the mark can be erased. It goes in two steps, because Redis has the sale's keys too:
//! first all rows but the sale's own, which loses its home, so that no worker misses it in Redis; and
//! when Redis has forgotten it, the sale. So an erasure that was interrupted is found, and goes on.

use flashsale_domain::{NewSale, PaymentOutcome, Sale, SaleId, SaleState};
use sea_orm::sea_query::{Expr, ExprTrait as _, LockType, Query, SelectStatement};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    PaginatorTrait as _, QueryFilter as _, QueryOrder as _, QuerySelect as _,
};

use crate::adjustments::PENDING;
use crate::entities::{adjustment, answer, event, order, outbox, payment, sale};
use crate::{Database, SqlFault};

/// What became of the wish to erase a rehearsal's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Erasure {
    /// They are gone, now or by an earlier try.
    Done,
    /// There is no such sale.
    NotFound,
    /// It is a sale like any other.
    NotARehearsal,
    /// It is still on: only a closed one, or a draft, is erased.
    State(SaleState),
    /// So many releases, adjustments and late payments of it are not finished in Redis.
    Unfinished(u64),
}

/// Ids of the rehearsals' sales.
pub(crate) fn rehearsals() -> SelectStatement {
    Query::select()
        .column(sale::Column::Id)
        .from(sale::Entity)
        .and_where(Expr::col(sale::Column::Rehearsal).eq(true))
        .to_owned()
}

impl Database {
    /// Stores a new sale of a rehearsal, as a draft.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn insert_rehearsal(&self, sale: &NewSale) -> Result<Sale, SqlFault> {
        self.insert_draft(sale, true).await
    }

    /// Every sale of a rehearsal, oldest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_rehearsals(&self) -> Result<Vec<Sale>, SqlFault> {
        let rows = sale::Entity::find()
            .filter(sale::Column::Rehearsal.eq(true))
            .order_by_asc(sale::Column::Id)
            .all(&self.connection)
            .await?;
        rows.into_iter().map(Sale::try_from).collect()
    }

    /// Erases all that was written of a rehearsal's sale, and takes its home away. The sale itself
    /// stays, until [`Database::delete_rehearsal`].
    ///
    /// # Errors
    /// When the database refuses or cannot be asked: then all of it is there.
    pub async fn erase_rehearsal(&self, id: SaleId) -> Result<Erasure, SqlFault> {
        let transaction = self.begin_write().await?;
        let erased = erase(&transaction, id).await;
        Self::end(transaction, erased).await
    }

    /// Deletes the sale of a rehearsal that was erased; false when there is none.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn delete_rehearsal(&self, id: SaleId) -> Result<bool, SqlFault> {
        let deleted = sale::Entity::delete_many()
            .filter(sale::Column::Id.eq(id.as_i64()))
            .filter(sale::Column::Rehearsal.eq(true))
            .filter(sale::Column::Partition.is_null())
            .exec(&self.connection)
            .await?;
        Ok(deleted.rows_affected == 1)
    }

    /// Deletes counts of answers of sales that are no more: a gateway adds its last ones when it
    /// can. How many.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn delete_stray_answers(&self) -> Result<u64, SqlFault> {
        let known = Query::select().column(sale::Column::Id).from(sale::Entity).to_owned();
        let deleted = answer::Entity::delete_many()
            .filter(Expr::col(answer::Column::SaleId).not_in_subquery(known))
            .exec(&self.connection)
            .await?;
        Ok(deleted.rows_affected)
    }
}

async fn erase(transaction: &DatabaseTransaction, id: SaleId) -> Result<Erasure, SqlFault> {
    let number = id.as_i64();
    let row = sale::Entity::find_by_id(number).lock(LockType::Update).one(transaction).await?;
    let Some(row) = row else { return Ok(Erasure::NotFound) };
    let stock_total = row.stock_total;
    let found = Sale::try_from(row)?;
    if !found.rehearsal {
        return Ok(Erasure::NotARehearsal);
    }
    if !matches!(found.state, SaleState::Closed | SaleState::Draft) {
        return Ok(Erasure::State(found.state));
    }
    let orders = Query::select()
        .column(order::Column::Id)
        .from(order::Entity)
        .and_where(Expr::col(order::Column::SaleId).eq(number))
        .to_owned();
    let releases =
        outbox::Entity::find().filter(outbox::Column::SaleId.eq(number)).count(transaction).await?;
    let adjusting = adjustment::Entity::find()
        .filter(adjustment::Column::SaleId.eq(number))
        .filter(adjustment::Column::State.eq(PENDING))
        .count(transaction)
        .await?;
    let late = payment::Entity::find()
        .filter(payment::Column::Outcome.eq(PaymentOutcome::Reacquiring.as_str()))
        .filter(Expr::col(payment::Column::OrderId).in_subquery(orders.clone()))
        .count(transaction)
        .await?;
    if releases + adjusting + late > 0 {
        return Ok(Erasure::Unfinished(releases + adjusting + late));
    }
    payment::Entity::delete_many()
        .filter(Expr::col(payment::Column::OrderId).in_subquery(orders))
        .exec(transaction)
        .await?;
    event::Entity::delete_many().filter(event::Column::SaleId.eq(number)).exec(transaction).await?;
    order::Entity::delete_many().filter(order::Column::SaleId.eq(number)).exec(transaction).await?;
    adjustment::Entity::delete_many()
        .filter(adjustment::Column::SaleId.eq(number))
        .exec(transaction)
        .await?;
    answer::Entity::delete_many()
        .filter(answer::Column::SaleId.eq(number))
        .exec(transaction)
        .await?;
    let homeless = Query::update()
        .table(sale::Entity)
        .value(sale::Column::Partition, Option::<i32>::None)
        .value(sale::Column::StockLeft, stock_total)
        .and_where(Expr::col(sale::Column::Id).eq(number))
        .to_owned();
    transaction.execute(&homeless).await?;
    Ok(Erasure::Done)
}
