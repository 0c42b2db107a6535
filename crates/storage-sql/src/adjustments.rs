//! Adjustments: a sale's stock changes by so many units while it runs, for a reason.
//!
//! What grows the sale is in the database first, what shrinks it in Redis first: so a crash between
//! the two leaves units unsold for a moment, and never sells one too many. Until both have it the
//! adjustment is pending. A sale has one pending adjustment at most, so Redis needs to remember only
//! the last one that it carried out; and both sides are guarded by the sale's epoch, so that one
//! carried out in a memory that was rebuilt since does not count.

use flashsale_domain::{Partition, Sale, SaleId, SaleMode, SaleState};
use sea_orm::sea_query::{Expr, ExprTrait as _, OnConflict, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DatabaseTransaction, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};

use crate::clock::now_ms;
use crate::entities::adjustment::{Column, Entity, Model};
use crate::entities::sale;
use crate::{Database, SqlFault};

/// Every adjustment goes through these.
pub(crate) const PENDING: &str = "pending";
const DONE: &str = "done";
const REFUSED: &str = "refused";

/// An adjustment as it is asked for.
#[derive(Debug, Clone, Copy)]
pub struct NewAdjustment<'a> {
    /// The sale.
    pub sale_id: SaleId,
    /// Units more, or less.
    pub delta: i64,
    /// The most units that a sale can have.
    pub total_max: i64,
    /// Why.
    pub reason: &'a str,
    /// Who asks.
    pub actor: &'a str,
    /// What makes it safe to ask again: the same key of the same sale is the same adjustment.
    pub key: Option<&'a str>,
}

/// An adjustment that Redis has yet to carry out, or has carried out and the database not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adjustment {
    /// Its number; a later one of the same sale has a higher one.
    pub id: i64,
    /// The sale.
    pub sale_id: SaleId,
    /// Its home.
    pub partition: Partition,
    /// The sale's epoch when this was read.
    pub epoch: i64,
    /// Units more, or less.
    pub delta: i64,
}

/// What became of the wish to adjust a stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdjustmentAnswer {
    /// Redis has to carry it out now; then [`Database::finish_adjustment`].
    Pending(Adjustment),
    /// It is done: the sale is a draft or a direct one, and Redis knows nothing of it.
    Done,
    /// There is no such sale.
    SaleNotFound,
    /// The sale is closed.
    Closed,
    /// Fewer units are left than are to be taken away.
    TooFew {
        /// How many are left.
        left: i64,
    },
    /// The stock would be more than a sale can have.
    TooMany,
    /// An earlier adjustment is not finished.
    Busy,
    /// Another adjustment of the sale was asked for under the same key.
    KeyReused,
}

impl Database {
    /// Begins an adjustment of a sale's stock that has no key. `total_max` is the most units that a
    /// sale can have.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn begin_adjustment(
        &self,
        sale_id: SaleId,
        delta: i64,
        total_max: i64,
        reason: &str,
        actor: &str,
    ) -> Result<AdjustmentAnswer, SqlFault> {
        let new = NewAdjustment { sale_id, delta, total_max, reason, actor, key: None };
        self.begin_adjustment_once(&new).await
    }

    /// Begins an adjustment of a sale's stock, or finds the one that was begun under its key.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn begin_adjustment_once(
        &self,
        new: &NewAdjustment<'_>,
    ) -> Result<AdjustmentAnswer, SqlFault> {
        let transaction = self.begin_write().await?;
        match self.begin(&transaction, new).await {
            Ok(answer @ (AdjustmentAnswer::Pending(_) | AdjustmentAnswer::Done)) => {
                transaction.commit().await?;
                Ok(answer)
            }
            Ok(refused) => {
                transaction.rollback().await?;
                Ok(refused)
            }
            Err(fault) => {
                let _ = transaction.rollback().await;
                Err(fault)
            }
        }
    }

    async fn begin(
        &self,
        transaction: &DatabaseTransaction,
        new: &NewAdjustment<'_>,
    ) -> Result<AdjustmentAnswer, SqlFault> {
        let NewAdjustment { sale_id: id, delta, total_max, reason, actor, key } = *new;
        let row = sale::Entity::find_by_id(id.as_i64()).lock_exclusive().one(transaction).await?;
        let Some(row) = row else { return Ok(AdjustmentAnswer::SaleNotFound) };
        let sale = Sale::try_from(row)?;
        // Behind the sale's lock: two with one key come one after the other.
        if let Some(key) = key
            && let Some(before) = find_by_key(transaction, id, key).await?
        {
            return Ok(if (before.delta, before.reason.as_str()) != (delta, reason) {
                AdjustmentAnswer::KeyReused
            } else if let (PENDING, Some(partition)) = (before.state.as_str(), sale.partition) {
                let (id, sale_id, epoch) = (before.id, id, sale.epoch);
                AdjustmentAnswer::Pending(Adjustment { id, sale_id, partition, epoch, delta })
            } else {
                AdjustmentAnswer::Done
            });
        }
        if sale.state == SaleState::Closed {
            return Ok(AdjustmentAnswer::Closed);
        }
        if sale.stock_left.saturating_add(delta) < 0 {
            return Ok(AdjustmentAnswer::TooFew { left: sale.stock_left });
        }
        if sale.stock_total.saturating_add(delta) > total_max {
            return Ok(AdjustmentAnswer::TooMany);
        }
        let in_redis = sale.mode == SaleMode::Queued && sale.state != SaleState::Draft;
        let partition = sale.partition.filter(|_| in_redis);
        let statement = Query::insert()
            .into_table(Entity)
            .columns([
                Column::SaleId,
                Column::Delta,
                Column::Reason,
                Column::Actor,
                Column::State,
                Column::CreatedMs,
                Column::RequestKey,
            ])
            .values_panic([
                id.as_i64().into(),
                delta.into(),
                reason.into(),
                actor.into(),
                if partition.is_some() { PENDING } else { DONE }.into(),
                now_ms(self.backend()),
                key.map(str::to_owned).into(),
            ])
            .on_conflict(OnConflict::new().do_nothing().to_owned())
            .returning_col(Column::Id)
            .to_owned();
        let Some(inserted) = transaction.query_one(&statement).await? else {
            return Ok(AdjustmentAnswer::Busy);
        };
        if partition.is_none() {
            self.insert_line(transaction, id, delta, reason, actor).await?;
        }
        if (delta > 0 || partition.is_none())
            && !change_stock(self, transaction, id, sale.epoch, delta).await?
        {
            return Ok(AdjustmentAnswer::TooFew { left: sale.stock_left });
        }
        Ok(match partition {
            None => AdjustmentAnswer::Done,
            Some(partition) => AdjustmentAnswer::Pending(Adjustment {
                id: inserted.try_get("", "id")?,
                sale_id: id,
                partition,
                epoch: sale.epoch,
                delta,
            }),
        })
    }

    /// The audit log's line of an adjustment, in the transaction that finishes it.
    async fn insert_line(
        &self,
        transaction: &DatabaseTransaction,
        sale: SaleId,
        delta: i64,
        reason: &str,
        actor: &str,
    ) -> Result<(), SqlFault> {
        let detail = format!("{delta:+} units: {reason}");
        self.write_audit(transaction, actor, "sale.stock", &sale.to_string(), &detail).await
    }

    /// Notes that Redis has carried an adjustment out, or refused it. False when the sale was rebuilt
    /// meanwhile: then Redis has to be asked again.
    ///
    /// # Errors
    /// When the database cannot be asked: the worker finishes it.
    pub async fn finish_adjustment(
        &self,
        adjustment: &Adjustment,
        carried_out: bool,
    ) -> Result<bool, SqlFault> {
        let transaction = self.begin_write().await?;
        let locked = sale::Entity::find_by_id(adjustment.sale_id.as_i64())
            .lock_exclusive()
            .one(&transaction)
            .await?;
        let state = if carried_out { DONE } else { REFUSED };
        let update = Query::update()
            .table(Entity)
            .value(Column::State, state)
            .and_where(Expr::col(Column::Id).eq(adjustment.id))
            .and_where(Expr::col(Column::State).eq(PENDING))
            .to_owned();
        let same_epoch = locked.is_some_and(|sale| sale.epoch == adjustment.epoch);
        let ours = same_epoch && transaction.execute(&update).await?.rows_affected() == 1;
        if !ours {
            transaction.rollback().await?;
            // Finished by somebody else, or begun anew in a new epoch.
            let row = Entity::find_by_id(adjustment.id).one(&self.connection).await?;
            return Ok(row.is_some_and(|row| row.state != PENDING));
        }
        let (id, epoch, delta) = (adjustment.sale_id, adjustment.epoch, adjustment.delta);
        if carried_out && delta < 0 && !change_stock(self, &transaction, id, epoch, delta).await? {
            transaction.rollback().await?;
            return Err(SqlFault::row("sales", id.as_i64(), "stock_left"));
        }
        if carried_out
            && let Some(row) = Entity::find_by_id(adjustment.id).one(&transaction).await?
        {
            self.insert_line(&transaction, id, delta, &row.reason, &row.actor).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }

    /// The adjustments that are not finished, oldest first, at most `limit`.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_pending_adjustments(&self, limit: u64) -> Result<Vec<Adjustment>, SqlFault> {
        let rows = Entity::find()
            .filter(Column::State.eq(PENDING))
            .order_by_asc(Column::Id)
            .limit(limit)
            .all(&self.connection)
            .await?;
        let mut pending = Vec::with_capacity(rows.len());
        for row in rows {
            let bad = || SqlFault::row("adjustments", row.id, "sale_id");
            let sale_id = SaleId::from_i64(row.sale_id).ok_or_else(bad)?;
            let sale = self.find_sale(sale_id).await?.ok_or_else(bad)?;
            pending.push(Adjustment {
                id: row.id,
                sale_id,
                partition: sale.partition.ok_or_else(bad)?,
                epoch: sale.epoch,
                delta: row.delta,
            });
        }
        Ok(pending)
    }
}

/// The adjustment of this key that was not refused.
async fn find_by_key(
    connection: &impl ConnectionTrait,
    sale: SaleId,
    key: &str,
) -> Result<Option<Model>, SqlFault> {
    Ok(Entity::find()
        .filter(Column::SaleId.eq(sale.as_i64()))
        .filter(Column::RequestKey.eq(key))
        .filter(Column::State.ne(REFUSED))
        .one(connection)
        .await?)
}

/// A sale's pending adjustment, and the sum of those that are done.
pub(crate) async fn sum_adjustments(
    connection: &impl ConnectionTrait,
    sale: SaleId,
) -> Result<(i64, i64), SqlFault> {
    let rows: Vec<(String, i64)> = Entity::find()
        .select_only()
        .column(Column::State)
        .column(Column::Delta)
        .filter(Column::SaleId.eq(sale.as_i64()))
        .filter(Column::State.is_in([PENDING, DONE]))
        .into_tuple()
        .all(connection)
        .await?;
    let sum = |state| rows.iter().filter(|row| row.0 == state).map(|row| row.1).sum();
    Ok((sum(PENDING), sum(DONE)))
}

impl Database {
    /// A sale as it is without growth that Redis has yet to be told of: what a Redis that does not
    /// have the sale is to begin with, because the growth is carried out there afterwards.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn find_sale_before_growth(&self, id: SaleId) -> Result<Option<Sale>, SqlFault> {
        let transaction = self.begin_write().await?;
        // Behind the sale's lock, so that both are of one moment.
        let row = sale::Entity::find_by_id(id.as_i64()).lock_exclusive().one(&transaction).await?;
        let growth = Entity::find()
            .filter(Column::SaleId.eq(id.as_i64()))
            .filter(Column::State.eq(PENDING))
            .filter(Column::Delta.gt(0))
            .one(&transaction)
            .await?;
        transaction.rollback().await?;
        let Some(mut sale) = row.map(Sale::try_from).transpose()? else { return Ok(None) };
        let growth = growth.map_or(0, |row| row.delta);
        sale.stock_total -= growth;
        sale.stock_left -= growth;
        Ok(Some(sale))
    }
}

/// Marks growth as done whose units the rebuild that raises the epoch loads with the rest.
pub(crate) async fn absorb_growth(
    transaction: &DatabaseTransaction,
    id: SaleId,
) -> Result<(), SqlFault> {
    let update = Query::update()
        .table(Entity)
        .value(Column::State, DONE)
        .and_where(Expr::col(Column::SaleId).eq(id.as_i64()))
        .and_where(Expr::col(Column::State).eq(PENDING))
        .and_where(Expr::col(Column::Delta).gt(0))
        .to_owned();
    transaction.execute(&update).await?;
    Ok(())
}

async fn change_stock(
    database: &Database,
    transaction: &DatabaseTransaction,
    id: SaleId,
    epoch: i64,
    delta: i64,
) -> Result<bool, SqlFault> {
    let statement = Query::update()
        .table(sale::Entity)
        .value(sale::Column::StockLeft, Expr::col(sale::Column::StockLeft).add(delta))
        .value(sale::Column::StockTotal, Expr::col(sale::Column::StockTotal).add(delta))
        .value(sale::Column::ChangedMs, now_ms(database.backend()))
        .and_where(Expr::col(sale::Column::Id).eq(id.as_i64()))
        .and_where(Expr::col(sale::Column::Epoch).eq(epoch))
        .and_where(Expr::col(sale::Column::StockLeft).add(delta).gte(0))
        .to_owned();
    Ok(transaction.execute(&statement).await?.rows_affected() == 1)
}
