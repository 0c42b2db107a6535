//! Table `adjustments`.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "adjustments")]
pub struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    pub sale_id: i64,
    pub delta: i64,
    pub reason: String,
    pub actor: String,
    pub state: String,
    pub created_ms: i64,
    pub request_key: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
