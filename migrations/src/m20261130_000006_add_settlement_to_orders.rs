//! When an order was paid or ended, and which orders are overdue.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Orders {
    Table,
    SettledMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    /// Wholly or not at all, on SQLite too: half of it could not be applied again.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let column = ColumnDef::new(Orders::SettledMs).big_integer().to_owned();
        manager
            .alter_table(Table::alter().table(Orders::Table).add_column(column).to_owned())
            .await?;
        // Only what may still expire: an order leaves the index when it is paid or over. Partial
        // indexes are spelt the same by both databases and by neither's query builder.
        manager
            .get_connection()
            .execute_unprepared(
                "CREATE INDEX orders_due ON orders (pay_by_ms) WHERE state = 'awaiting_payment'",
            )
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.get_connection().execute_unprepared("DROP INDEX orders_due").await?;
        let drop = Table::alter().table(Orders::Table).drop_column(Orders::SettledMs).to_owned();
        manager.alter_table(drop).await
    }
}
