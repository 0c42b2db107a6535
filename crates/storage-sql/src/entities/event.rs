//! Table `events`.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "events")]
pub struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    pub kind: String,
    pub order_id: i64,
    pub sale_id: i64,
    pub user_id: String,
    pub state: String,
    pub reason: Option<String>,
    pub price_amount: i64,
    pub price_currency: String,
    pub created_ms: i64,
    pub attempts: i32,
    pub next_ms: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
