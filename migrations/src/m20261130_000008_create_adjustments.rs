//! Adjustments: changes of a sale's stock while it runs, each with its reason.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Adjustments {
    Table,
    Id,
    SaleId,
    Delta,
    Reason,
    Actor,
    State,
    CreatedMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    /// Wholly or not at all, on SQLite too: half of it could not be applied again.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let col = |column| Expr::col(column);
        let table = Table::create()
            .table(Adjustments::Table)
            .col(
                ColumnDef::new(Adjustments::Id)
                    .big_integer()
                    .not_null()
                    .auto_increment()
                    .primary_key(),
            )
            .col(ColumnDef::new(Adjustments::SaleId).big_integer().not_null())
            .col(ColumnDef::new(Adjustments::Delta).big_integer().not_null())
            .col(ColumnDef::new(Adjustments::Reason).text().not_null())
            .col(ColumnDef::new(Adjustments::Actor).text().not_null())
            .col(ColumnDef::new(Adjustments::State).text().not_null())
            .col(ColumnDef::new(Adjustments::CreatedMs).big_integer().not_null())
            .check(("adjustments_delta_not_zero", col(Adjustments::Delta).ne(0)))
            .check((
                "adjustments_state_known",
                col(Adjustments::State).is_in(["pending", "done", "refused"]),
            ))
            .to_owned();
        manager.create_table(table).await?;
        // One at a time, so that Redis needs to remember only the last one that it carried out.
        manager
            .get_connection()
            .execute_unprepared(
                "CREATE UNIQUE INDEX adjustments_one_pending ON adjustments (sale_id) \
                 WHERE state = 'pending'",
            )
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Adjustments::Table).to_owned()).await
    }
}
