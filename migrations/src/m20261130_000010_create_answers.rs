//! Answers: how often buyers of a sale were told what, added up by the gateways.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Answers {
    Table,
    SaleId,
    Outcome,
    Count,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    /// Wholly or not at all, on SQLite too: half of it could not be applied again.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table(Answers::Table)
            .col(ColumnDef::new(Answers::SaleId).big_integer().not_null())
            .col(ColumnDef::new(Answers::Outcome).text().not_null())
            .col(ColumnDef::new(Answers::Count).big_integer().not_null())
            .primary_key(Index::create().col(Answers::SaleId).col(Answers::Outcome))
            .to_owned();
        manager.create_table(table).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Answers::Table).to_owned()).await
    }
}
