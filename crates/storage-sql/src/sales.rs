//! Sales: creating, finding, listing, and moving from state to state.

use flashsale_domain::{NewSale, Partition, Sale, SaleId, SaleState};
use sea_orm::sea_query::{Expr, ExprTrait as _, Query};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, EntityTrait as _, QueryFilter as _, QueryOrder as _,
};

use crate::clock::now_ms;
use crate::entities::sale::{Column, Entity};
use crate::{Database, SqlFault};

/// A sale, and when its description last changed.
#[derive(Debug, Clone)]
pub struct ChangedSale {
    /// The sale.
    pub sale: Sale,
    /// Milliseconds since the Unix epoch, by the database's clock.
    pub changed_ms: i64,
}

/// What became of a change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaleChange {
    /// The sale as it is now.
    Done(Box<Sale>),
    /// There is no such sale.
    NotFound,
    /// The sale is in a state that the new one may not follow.
    Refused(SaleState),
}

impl Database {
    /// Stores a new sale, as a draft.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn insert_sale(&self, sale: &NewSale) -> Result<Sale, SqlFault> {
        let now = now_ms(self.backend());
        let statement = Query::insert()
            .into_table(Entity)
            .columns([
                Column::Title,
                Column::Mode,
                Column::State,
                Column::StockTotal,
                Column::StockLeft,
                Column::OpensMs,
                Column::ClosesMs,
                Column::PerBuyer,
                Column::PriceAmount,
                Column::PriceCurrency,
                Column::PaymentWindowS,
                Column::LatePayment,
                Column::CreatedMs,
                Column::ChangedMs,
            ])
            .values_panic([
                sale.title.trim().into(),
                sale.mode.as_str().into(),
                SaleState::Draft.as_str().into(),
                sale.stock.into(),
                sale.stock.into(),
                sale.window.opens_ms().into(),
                sale.window.closes_ms().into(),
                i32::from(sale.per_buyer).into(),
                sale.price.amount.into(),
                sale.price.currency.to_string().into(),
                sale.payment_window_s.into(),
                sale.late_payment.as_str().into(),
                now.clone(),
                now,
            ])
            .returning_col(Column::Id)
            .to_owned();
        let row = self.connection.query_one(&statement).await?;
        let id: i64 = row.ok_or_else(|| SqlFault::row("sales", 0, "id"))?.try_get("", "id")?;
        let id = SaleId::from_i64(id).ok_or_else(|| SqlFault::row("sales", id, "id"))?;
        self.find_sale(id).await?.ok_or_else(|| SqlFault::row("sales", id.as_i64(), "id"))
    }

    /// A sale by its id.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn find_sale(&self, id: SaleId) -> Result<Option<Sale>, SqlFault> {
        let row = Entity::find_by_id(id.as_i64()).one(&self.connection).await?;
        row.map(Sale::try_from).transpose()
    }

    /// Every sale, newest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_sales(&self) -> Result<Vec<Sale>, SqlFault> {
        let rows = Entity::find().order_by_desc(Column::Id).all(&self.connection).await?;
        rows.into_iter().map(Sale::try_from).collect()
    }

    /// The sales whose memory lives in `partition`: all that were ever published there.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_sales_of(&self, partition: Partition) -> Result<Vec<Sale>, SqlFault> {
        let rows = Entity::find()
            .filter(Column::Partition.eq(i32::from(partition.number())))
            .order_by_asc(Column::Id)
            .all(&self.connection)
            .await?;
        rows.into_iter().map(Sale::try_from).collect()
    }

    /// The published, paused and closed sales whose description changed at `since_ms` or later.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_sales_changed(&self, since_ms: i64) -> Result<Vec<ChangedSale>, SqlFault> {
        let rows = Entity::find()
            .filter(Column::ChangedMs.gte(since_ms))
            .filter(Column::State.ne(SaleState::Draft.as_str()))
            .order_by_asc(Column::Id)
            .all(&self.connection)
            .await?;
        rows.into_iter()
            .map(|row| {
                let changed_ms = row.changed_ms;
                Ok(ChangedSale { sale: row.try_into()?, changed_ms })
            })
            .collect()
    }

    /// Gives a draft its home, unless it has one already. The home stays for good.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn set_sale_partition(
        &self,
        id: SaleId,
        partition: Partition,
    ) -> Result<(), SqlFault> {
        let statement = Query::update()
            .table(Entity)
            .value(Column::Partition, i32::from(partition.number()))
            .and_where(Expr::col(Column::Id).eq(id.as_i64()))
            .and_where(Expr::col(Column::Partition).is_null())
            .to_owned();
        self.connection.execute(&statement).await?;
        Ok(())
    }

    /// Moves a sale to another state; a sale that is in it already is left as it is.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn set_sale_state(
        &self,
        id: SaleId,
        state: SaleState,
    ) -> Result<SaleChange, SqlFault> {
        let before = SaleState::ALL.into_iter().filter(|before| before.can_become(state));
        let statement = Query::update()
            .table(Entity)
            .value(Column::State, state.as_str())
            .value(Column::ChangedMs, now_ms(self.backend()))
            .and_where(Expr::col(Column::Id).eq(id.as_i64()))
            .and_where(Expr::col(Column::State).is_in(before.map(SaleState::as_str)))
            .to_owned();
        let changed = self.connection.execute(&statement).await?.rows_affected() == 1;
        Ok(match self.find_sale(id).await? {
            None => SaleChange::NotFound,
            Some(sale) if changed || sale.state == state => SaleChange::Done(Box::new(sale)),
            Some(sale) => SaleChange::Refused(sale.state),
        })
    }
}
