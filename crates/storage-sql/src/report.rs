//! What a sale's report needs: answers added up by the gateways, and figures over its rows.

use std::collections::BTreeMap;

use flashsale_domain::{ID_EPOCH_MS, ID_MS_SHIFT, OrderState, SaleId};
use sea_orm::sea_query::{Alias, Expr, ExprTrait as _, Func, OnConflict, Order, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseTransaction, EntityTrait as _,
    PaginatorTrait as _, QueryFilter as _, QueryOrder as _,
};

use crate::commit::open_states;
use crate::entities::{answer, order};
use crate::{Database, SqlFault};

/// Answers of one kind to buyers of one sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerCount {
    /// The sale.
    pub sale_id: SaleId,
    /// What they were told, as in the metric `flashsale_admissions_total`.
    pub outcome: &'static str,
    /// How often.
    pub count: i64,
}

/// Figures over a sale's rows, all of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowFigures {
    /// Rows in all.
    pub rows: i64,
    /// Buyers who hold an order that is paid or can be.
    pub buyers: i64,
    /// Buyers with an order that they did not pay in time.
    pub lapsed_buyers: i64,
    /// Rejected rows by reason.
    pub rejected: BTreeMap<String, i64>,
    /// From admission to COMMIT; absent without rows, and of a direct sale.
    pub lag: Option<LagFigures>,
}

/// How long orders took from admission (by Redis's clock) to COMMIT (by the database's): milliseconds,
/// as far as the two clocks agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LagFigures {
    /// Half of them took at most so long.
    pub p50_ms: i64,
    /// 99 of 100 took at most so long.
    pub p99_ms: i64,
    /// The longest.
    pub max_ms: i64,
}

impl Database {
    /// Adds to what buyers were told.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked: then nothing was added.
    pub async fn add_answers(&self, answers: &[AnswerCount]) -> Result<(), SqlFault> {
        if answers.is_empty() {
            return Ok(());
        }
        let mut statement = Query::insert();
        let new = Expr::col((Alias::new("excluded"), answer::Column::Count));
        let sum = Expr::col((answer::Entity, answer::Column::Count)).add(new);
        statement
            .into_table(answer::Entity)
            .columns([answer::Column::SaleId, answer::Column::Outcome, answer::Column::Count])
            .on_conflict(
                OnConflict::columns([answer::Column::SaleId, answer::Column::Outcome])
                    .value(answer::Column::Count, sum)
                    .to_owned(),
            );
        // In one order everywhere, so that gateways that add at the same time do not deadlock.
        let mut answers = answers.to_vec();
        answers.sort_by_key(|answer| (answer.sale_id, answer.outcome));
        for AnswerCount { sale_id, outcome, count } in answers {
            statement.values_panic([sale_id.as_i64().into(), outcome.into(), count.into()]);
        }
        self.connection.execute(&statement).await?;
        Ok(())
    }

    /// What buyers of a sale were told, and how often, by outcome.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_answers(&self, sale: SaleId) -> Result<BTreeMap<String, i64>, SqlFault> {
        let rows = answer::Entity::find()
            .filter(answer::Column::SaleId.eq(sale.as_i64()))
            .order_by_asc(answer::Column::Outcome)
            .all(&self.connection)
            .await?;
        Ok(rows.into_iter().map(|row| (row.outcome, row.count)).collect())
    }

    /// Figures over the rows of a sale; `from_stream` when its orders come from a stream.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn row_figures(
        &self,
        sale: SaleId,
        from_stream: bool,
    ) -> Result<RowFigures, SqlFault> {
        let snapshot = self.begin_snapshot().await?;
        let figures = read_figures(&snapshot, sale, from_stream).await;
        Self::end(snapshot, figures).await
    }
}

async fn read_figures(
    snapshot: &DatabaseTransaction,
    sale: SaleId,
    from_stream: bool,
) -> Result<RowFigures, SqlFault> {
    let of_sale = || order::Entity::find().filter(order::Column::SaleId.eq(sale.as_i64()));
    let rows = i64::try_from(of_sale().count(snapshot).await?).unwrap_or(i64::MAX);
    let by_reason = Query::select()
        .column(order::Column::Reason)
        .expr_as(Func::count(Expr::col(order::Column::Id)), "orders")
        .from(order::Entity)
        .and_where(order::Column::SaleId.eq(sale.as_i64()))
        .and_where(order::Column::State.eq(OrderState::Rejected.as_str()))
        .group_by_col(order::Column::Reason)
        .to_owned();
    let mut rejected = BTreeMap::new();
    for row in snapshot.query_all(&by_reason).await? {
        let reason: Option<String> = row.try_get("", "reason")?;
        rejected.insert(reason.unwrap_or_default(), row.try_get("", "orders")?);
    }
    Ok(RowFigures {
        rows,
        buyers: count_buyers(snapshot, sale, open_states()).await?,
        lapsed_buyers: count_buyers(snapshot, sale, [OrderState::Expired.as_str()]).await?,
        rejected,
        lag: if from_stream { read_lag(snapshot, sale, rows).await? } else { None },
    })
}

async fn count_buyers(
    snapshot: &DatabaseTransaction,
    sale: SaleId,
    states: impl IntoIterator<Item = &'static str>,
) -> Result<i64, SqlFault> {
    let statement = Query::select()
        .expr_as(Func::count_distinct(Expr::col(order::Column::UserId)), "buyers")
        .from(order::Entity)
        .and_where(order::Column::SaleId.eq(sale.as_i64()))
        .and_where(order::Column::State.is_in(states))
        .to_owned();
    let row = snapshot.query_one(&statement).await?;
    Ok(match row {
        Some(row) => row.try_get("", "buyers")?,
        None => 0,
    })
}

async fn read_lag(
    snapshot: &DatabaseTransaction,
    sale: SaleId,
    rows: i64,
) -> Result<Option<LagFigures>, SqlFault> {
    // An id's upper bits are the milliseconds of its admission.
    let epoch_ms = i64::try_from(ID_EPOCH_MS).expect("a time of our days");
    let admitted = Expr::col(order::Column::Id).div(1_i64 << ID_MS_SHIFT).add(epoch_ms);
    let lag = Expr::col(order::Column::CommittedMs).sub(admitted);
    let mut found = [0; 3];
    for (figure, rank) in found.iter_mut().zip([ranked(rows, 50), ranked(rows, 99), rows - 1]) {
        let statement = Query::select()
            .expr_as(lag.clone(), "lag")
            .from(order::Entity)
            .and_where(order::Column::SaleId.eq(sale.as_i64()))
            .order_by_expr(lag.clone(), Order::Asc)
            .limit(1)
            .offset(u64::try_from(rank).unwrap_or(0))
            .to_owned();
        let Some(row) = snapshot.query_one(&statement).await? else { return Ok(None) };
        // Right after a rebuild ids run ahead of the clock for a moment.
        *figure = Ord::max(row.try_get("", "lag")?, 0);
    }
    let [p50_ms, p99_ms, max_ms] = found;
    Ok(Some(LagFigures { p50_ms, p99_ms, max_ms }))
}

/// The place, from 0, of the value that `percent` of `count` values do not exceed.
fn ranked(count: i64, percent: i64) -> i64 {
    Ord::max((count * percent + 99) / 100, 1) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_value_that_so_many_do_not_exceed() {
        for (count, percent, place) in
            [(0, 50, 0), (1, 99, 0), (2, 50, 0), (3, 50, 1), (100, 99, 98), (101, 99, 99)]
        {
            assert_eq!(ranked(count, percent), place, "{percent} % of {count}");
        }
    }
}
