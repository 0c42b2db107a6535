//! The audit log: what operators did, and what was found to be lost. Only ever added to.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum AuditLog {
    Table,
    Id,
    AtMs,
    Actor,
    Action,
    Subject,
    Detail,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let table = Table::create()
            .table(AuditLog::Table)
            .col(
                ColumnDef::new(AuditLog::Id)
                    .big_integer()
                    .not_null()
                    .auto_increment()
                    .primary_key(),
            )
            .col(ColumnDef::new(AuditLog::AtMs).big_integer().not_null())
            .col(ColumnDef::new(AuditLog::Actor).text().not_null())
            .col(ColumnDef::new(AuditLog::Action).text().not_null())
            .col(ColumnDef::new(AuditLog::Subject).text().not_null())
            .col(ColumnDef::new(AuditLog::Detail).text().not_null())
            .to_owned();
        manager.create_table(table).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(AuditLog::Table).to_owned()).await
    }
}
