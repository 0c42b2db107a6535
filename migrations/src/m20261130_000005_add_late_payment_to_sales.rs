//! What a sale does with money that arrives after its order has expired.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Sales {
    Table,
    LatePayment,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let column = ColumnDef::new(Sales::LatePayment)
            .text()
            .not_null()
            .default("reacquire")
            .check((
                "sales_late_payment_known",
                Expr::col(Sales::LatePayment).is_in(["reacquire", "refund"]),
            ))
            .to_owned();
        manager.alter_table(Table::alter().table(Sales::Table).add_column(column).to_owned()).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let drop = Table::alter().table(Sales::Table).drop_column(Sales::LatePayment).to_owned();
        manager.alter_table(drop).await
    }
}
