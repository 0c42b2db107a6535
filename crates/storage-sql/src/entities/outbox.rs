//! Table `outbox`.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "outbox")]
pub struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    pub sale_id: i64,
    pub partition: i32,
    pub order_id: i64,
    pub user_id: String,
    pub generation: i32,
    pub cause: String,
    pub returns_unit: bool,
    pub instead_order_id: Option<i64>,
    pub created_ms: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
