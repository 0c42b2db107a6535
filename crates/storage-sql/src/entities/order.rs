//! Table `orders`.

use flashsale_domain::{IdempotencyDigest, Order, OrderId, Price, SaleId, UserId};
use sea_orm::entity::prelude::*;

use crate::{SqlFault, StoredOrder};

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "orders")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i64,
    pub sale_id: i64,
    pub user_id: String,
    pub slot: i32,
    pub generation: i32,
    pub epoch: i64,
    pub digest: Option<String>,
    pub state: String,
    pub reason: Option<String>,
    pub price_amount: i64,
    pub price_currency: String,
    pub pay_by_ms: Option<i64>,
    pub committed_ms: i64,
    pub settled_ms: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

impl TryFrom<Model> for StoredOrder {
    type Error = SqlFault;

    fn try_from(row: Model) -> Result<Self, SqlFault> {
        let bad = |column| SqlFault::row("orders", row.id, column);
        let order = Order {
            id: OrderId::from_i64(row.id).ok_or_else(|| bad("id"))?,
            sale_id: SaleId::from_i64(row.sale_id).ok_or_else(|| bad("sale_id"))?,
            user_id: UserId::new(row.user_id.clone()).map_err(|_| bad("user_id"))?,
            state: row.state.parse().map_err(|_| bad("state"))?,
            reason: row.reason.clone(),
            price: Some(Price {
                amount: row.price_amount,
                currency: row.price_currency.parse().map_err(|_| bad("price_currency"))?,
            }),
            pay_by_ms: row.pay_by_ms,
            committed_ms: Some(row.committed_ms),
            settled_ms: row.settled_ms,
        };
        Ok(Self {
            order,
            slot: row.slot.try_into().map_err(|_| bad("slot"))?,
            generation: row.generation.try_into().map_err(|_| bad("generation"))?,
            digest: match &row.digest {
                None => None,
                Some(text) => {
                    Some(IdempotencyDigest::from_stored(text).ok_or_else(|| bad("digest"))?)
                }
            },
        })
    }
}
