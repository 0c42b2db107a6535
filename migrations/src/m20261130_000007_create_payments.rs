//! Payments: one row for each message of the payment provider that told of money.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Payments {
    Table,
    Id,
    WebhookId,
    OrderId,
    Amount,
    Currency,
    Outcome,
    ReceivedMs,
    SettledMs,
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
            .table(Payments::Table)
            .col(
                ColumnDef::new(Payments::Id)
                    .big_integer()
                    .not_null()
                    .auto_increment()
                    .primary_key(),
            )
            .col(ColumnDef::new(Payments::WebhookId).text().not_null())
            .col(ColumnDef::new(Payments::OrderId).big_integer().not_null())
            .col(ColumnDef::new(Payments::Amount).big_integer().not_null())
            .col(ColumnDef::new(Payments::Currency).text().not_null())
            .col(ColumnDef::new(Payments::Outcome).text().not_null())
            .col(ColumnDef::new(Payments::ReceivedMs).big_integer().not_null())
            .col(ColumnDef::new(Payments::SettledMs).big_integer())
            .check((
                "payments_outcome_known",
                col(Payments::Outcome).is_in([
                    "paid",
                    "mismatch",
                    "reacquiring",
                    "refund_due",
                    "refunded",
                ]),
            ))
            .to_owned();
        manager.create_table(table).await?;
        // The same message counts once, however often and at how many gateways it arrives.
        let once = Index::create()
            .name("payments_one_per_webhook")
            .table(Payments::Table)
            .col(Payments::WebhookId)
            .unique()
            .to_owned();
        manager.create_index(once).await?;
        let by_order = Index::create()
            .name("payments_by_order")
            .table(Payments::Table)
            .col(Payments::OrderId)
            .to_owned();
        manager.create_index(by_order).await?;
        // What somebody still has to do something about.
        manager
            .get_connection()
            .execute_unprepared(
                "CREATE INDEX payments_open ON payments (outcome, id) \
                 WHERE outcome IN ('reacquiring', 'refund_due', 'mismatch')",
            )
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Payments::Table).to_owned()).await
    }
}
