//! The key under which an operator asked for an adjustment: the same key again is the same adjustment.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Adjustments {
    Table,
    RequestKey,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    /// Wholly or not at all, on SQLite too: half of it could not be applied again.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let column = ColumnDef::new(Adjustments::RequestKey).text().to_owned();
        manager
            .alter_table(Table::alter().table(Adjustments::Table).add_column(column).to_owned())
            .await?;
        // A refusal does not keep its key: asked for again, it is decided anew.
        manager
            .get_connection()
            .execute_unprepared(
                "CREATE UNIQUE INDEX adjustments_by_request_key \
                 ON adjustments (sale_id, request_key) WHERE state <> 'refused'",
            )
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let index = "DROP INDEX adjustments_by_request_key";
        manager.get_connection().execute_unprepared(index).await?;
        let drop = Table::alter()
            .table(Adjustments::Table)
            .drop_column(Adjustments::RequestKey)
            .to_owned();
        manager.alter_table(drop).await
    }
}
