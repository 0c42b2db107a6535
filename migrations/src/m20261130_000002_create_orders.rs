//! Orders: one row an order, its id fixed at admission.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Orders {
    Table,
    Id,
    SaleId,
    UserId,
    Slot,
    Generation,
    Epoch,
    Digest,
    State,
    Reason,
    PriceAmount,
    PriceCurrency,
    PayByMs,
    CommittedMs,
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    /// Wholly or not at all, on SQLite too: half of it could not be applied again.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let col = |column| Expr::col(column);
        // There is no foreign key to sales: checking it row by row costs more than the insert, and
        // the guarded update of the sale, in the same transaction, finds a missing sale anyway.
        let table = Table::create()
            .table(Orders::Table)
            .col(ColumnDef::new(Orders::Id).big_integer().not_null().primary_key())
            .col(ColumnDef::new(Orders::SaleId).big_integer().not_null())
            .col(ColumnDef::new(Orders::UserId).text().not_null())
            .col(ColumnDef::new(Orders::Slot).integer().not_null())
            .col(ColumnDef::new(Orders::Generation).integer().not_null().default(1))
            .col(ColumnDef::new(Orders::Epoch).big_integer().not_null())
            .col(ColumnDef::new(Orders::Digest).text())
            .col(ColumnDef::new(Orders::State).text().not_null())
            .col(ColumnDef::new(Orders::Reason).text())
            .col(ColumnDef::new(Orders::PriceAmount).big_integer().not_null())
            .col(ColumnDef::new(Orders::PriceCurrency).text().not_null())
            .col(ColumnDef::new(Orders::PayByMs).big_integer())
            .col(ColumnDef::new(Orders::CommittedMs).big_integer().not_null())
            .check((
                "orders_state_known",
                col(Orders::State).is_in([
                    "awaiting_payment",
                    "paid",
                    "cancelled",
                    "expired",
                    "refund_due",
                    "rejected",
                ]),
            ))
            .check(("orders_slot_positive", col(Orders::Slot).gte(1)))
            .to_owned();
        manager.create_table(table).await?;

        // One per buyer, on its own in the database: a slot is held by one open order. Partial
        // indexes are spelt the same by both databases and by neither's query builder.
        manager
            .get_connection()
            .execute_unprepared(
                "CREATE UNIQUE INDEX orders_one_open_per_slot ON orders (sale_id, user_id, slot) \
                 WHERE state IN ('awaiting_payment', 'paid')",
            )
            .await?;
        let own_orders = Index::create()
            .name("orders_by_user")
            .table(Orders::Table)
            .col(Orders::UserId)
            .col(Orders::Id)
            .to_owned();
        manager.create_index(own_orders).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Orders::Table).to_owned()).await
    }
}
