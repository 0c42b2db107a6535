//! Events: changes of orders that the shop has yet to be told of. Written in the transaction that
//! changes the order, deleted when the shop has taken it.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Events {
    Table,
    Id,
    Kind,
    OrderId,
    SaleId,
    UserId,
    State,
    Reason,
    PriceAmount,
    PriceCurrency,
    CreatedMs,
    Attempts,
    NextMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    /// Wholly or not at all, on SQLite too: half of it could not be applied again.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table(Events::Table)
            .col(ColumnDef::new(Events::Id).big_integer().not_null().auto_increment().primary_key())
            .col(ColumnDef::new(Events::Kind).text().not_null())
            .col(ColumnDef::new(Events::OrderId).big_integer().not_null())
            .col(ColumnDef::new(Events::SaleId).big_integer().not_null())
            .col(ColumnDef::new(Events::UserId).text().not_null())
            .col(ColumnDef::new(Events::State).text().not_null())
            .col(ColumnDef::new(Events::Reason).text())
            .col(ColumnDef::new(Events::PriceAmount).big_integer().not_null())
            .col(ColumnDef::new(Events::PriceCurrency).text().not_null())
            .col(ColumnDef::new(Events::CreatedMs).big_integer().not_null())
            .col(ColumnDef::new(Events::Attempts).integer().not_null().default(0))
            .col(ColumnDef::new(Events::NextMs).big_integer().not_null())
            .to_owned();
        manager.create_table(table).await?;
        let due =
            Index::create().name("events_due").table(Events::Table).col(Events::NextMs).to_owned();
        manager.create_index(due).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Events::Table).to_owned()).await
    }
}
