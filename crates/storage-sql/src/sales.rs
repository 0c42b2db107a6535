//! Sales: creating, finding, listing, and moving from state to state.

use flashsale_domain::{LatePayment, NewSale, Partition, Price, Sale, SaleId, SaleState, Window};
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

/// What of a sale's description is to be another. Units and state have calls of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaleEdit {
    /// What buyers read; the one thing that changes while the sale is on.
    pub title: Option<String>,
    /// When. Of a draft only, like all that follows.
    pub window: Option<Window>,
    /// How many open orders of one unit a buyer may hold.
    pub per_buyer: Option<u16>,
    /// What a unit costs.
    pub price: Option<Price>,
    /// How long a buyer has to pay, in seconds.
    pub payment_window_s: Option<i64>,
    /// What happens to money that comes later.
    pub late_payment: Option<LatePayment>,
}

impl SaleEdit {
    /// Whether it needs a sale that no gateway knows yet.
    pub fn is_for_drafts(&self) -> bool {
        *self != Self { title: self.title.clone(), ..Self::default() }
    }
}

/// What became of a change.
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
        self.insert_draft(sale, false).await
    }

    pub(crate) async fn insert_draft(
        &self,
        sale: &NewSale,
        rehearsal: bool,
    ) -> Result<Sale, SqlFault> {
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
                Column::Rehearsal,
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
                rehearsal.into(),
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

    /// Changes a sale's description, if its state allows it.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn edit_sale(&self, id: SaleId, edit: &SaleEdit) -> Result<SaleChange, SqlFault> {
        let allowed = if edit.is_for_drafts() {
            &[SaleState::Draft][..]
        } else {
            &[SaleState::Draft, SaleState::Published, SaleState::Paused]
        };
        let mut update = Query::update();
        update
            .table(Entity)
            .value(Column::ChangedMs, now_ms(self.backend()))
            .and_where(Expr::col(Column::Id).eq(id.as_i64()))
            .and_where(Expr::col(Column::State).is_in(allowed.iter().map(|state| state.as_str())));
        if let Some(title) = &edit.title {
            update.value(Column::Title, title.trim());
        }
        if let Some(window) = edit.window {
            update.value(Column::OpensMs, window.opens_ms());
            update.value(Column::ClosesMs, window.closes_ms());
        }
        if let Some(per_buyer) = edit.per_buyer {
            update.value(Column::PerBuyer, i32::from(per_buyer));
        }
        if let Some(price) = edit.price {
            update.value(Column::PriceAmount, price.amount);
            update.value(Column::PriceCurrency, price.currency.to_string());
        }
        if let Some(payment_window_s) = edit.payment_window_s {
            update.value(Column::PaymentWindowS, payment_window_s);
        }
        if let Some(late_payment) = edit.late_payment {
            update.value(Column::LatePayment, late_payment.as_str());
        }
        let changed = self.connection.execute(&update).await?.rows_affected() == 1;
        Ok(match self.find_sale(id).await? {
            None => SaleChange::NotFound,
            Some(sale) if changed => SaleChange::Done(Box::new(sale)),
            Some(sale) => SaleChange::Refused(sale.state),
        })
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
