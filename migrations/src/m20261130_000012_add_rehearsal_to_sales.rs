//! Whether a sale is a rehearsal's: nobody else sees it, nothing is told of it, and it can be erased.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Sales {
    Table,
    Rehearsal,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let column =
            ColumnDef::new(Sales::Rehearsal).boolean().not_null().default(false).to_owned();
        manager.alter_table(Table::alter().table(Sales::Table).add_column(column).to_owned()).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let drop = Table::alter().table(Sales::Table).drop_column(Sales::Rehearsal).to_owned();
        manager.alter_table(drop).await
    }
}
