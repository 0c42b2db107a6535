//! The outbox: what a committed transaction owes to Redis. Written in that transaction, carried out
//! afterwards, and deleted when it is done; carrying it out twice changes nothing.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Outbox {
    Table,
    Id,
    SaleId,
    Partition,
    OrderId,
    UserId,
    Generation,
    Cause,
    ReturnsUnit,
    InsteadOrderId,
    CreatedMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table(Outbox::Table)
            .col(ColumnDef::new(Outbox::Id).big_integer().not_null().auto_increment().primary_key())
            .col(ColumnDef::new(Outbox::SaleId).big_integer().not_null())
            .col(ColumnDef::new(Outbox::Partition).integer().not_null())
            .col(ColumnDef::new(Outbox::OrderId).big_integer().not_null())
            .col(ColumnDef::new(Outbox::UserId).text().not_null())
            .col(ColumnDef::new(Outbox::Generation).integer().not_null())
            .col(ColumnDef::new(Outbox::Cause).text().not_null())
            .col(ColumnDef::new(Outbox::ReturnsUnit).boolean().not_null())
            .col(ColumnDef::new(Outbox::InsteadOrderId).big_integer())
            .col(ColumnDef::new(Outbox::CreatedMs).big_integer().not_null())
            .to_owned();
        manager.create_table(table).await?;
        // One release an order and generation, whoever writes it.
        let index = Index::create()
            .name("outbox_one_release_per_generation")
            .table(Outbox::Table)
            .col(Outbox::OrderId)
            .col(Outbox::Generation)
            .unique()
            .to_owned();
        manager.create_index(index).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Outbox::Table).to_owned()).await
    }
}
