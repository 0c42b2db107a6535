//! Table `sales`.

use flashsale_domain::{Partition, Price, Sale, SaleId, Window};
use sea_orm::entity::prelude::*;

use crate::SqlFault;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "sales")]
pub struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    pub title: String,
    pub mode: String,
    pub state: String,
    pub stock_total: i64,
    pub stock_left: i64,
    pub opens_ms: i64,
    pub closes_ms: i64,
    pub per_buyer: i32,
    pub price_amount: i64,
    pub price_currency: String,
    pub payment_window_s: i64,
    pub late_payment: String,
    pub partition: Option<i32>,
    pub epoch: i64,
    pub rehearsal: bool,
    pub created_ms: i64,
    pub changed_ms: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl TryFrom<Model> for Sale {
    type Error = SqlFault;

    fn try_from(row: Model) -> Result<Self, SqlFault> {
        let bad = |column| SqlFault::row("sales", row.id, column);
        Ok(Self {
            id: SaleId::from_i64(row.id).ok_or_else(|| bad("id"))?,
            mode: row.mode.parse().map_err(|_| bad("mode"))?,
            state: row.state.parse().map_err(|_| bad("state"))?,
            stock_total: row.stock_total,
            stock_left: row.stock_left,
            window: Window::new(row.opens_ms, row.closes_ms).map_err(|_| bad("opens_ms"))?,
            per_buyer: row.per_buyer.try_into().map_err(|_| bad("per_buyer"))?,
            price: Price {
                amount: row.price_amount,
                currency: row.price_currency.parse().map_err(|_| bad("price_currency"))?,
            },
            payment_window_s: row.payment_window_s,
            late_payment: row.late_payment.parse().map_err(|_| bad("late_payment"))?,
            partition: match row.partition {
                None => None,
                Some(number) => Some(
                    u16::try_from(number)
                        .ok()
                        .and_then(Partition::new)
                        .ok_or_else(|| bad("partition"))?,
                ),
            },
            epoch: row.epoch,
            rehearsal: row.rehearsal,
            title: row.title,
        })
    }
}
