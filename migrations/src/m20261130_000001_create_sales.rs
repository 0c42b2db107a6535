//! Sales: the stock, the window and the rules.
//!
//! Times are milliseconds since the Unix epoch, as in Redis and in order ids: one form everywhere,
//! the same on every database, nothing to round.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[derive(DeriveIden)]
enum Sales {
    Table,
    Id,
    Title,
    Mode,
    State,
    StockTotal,
    StockLeft,
    OpensMs,
    ClosesMs,
    PerBuyer,
    PriceAmount,
    PriceCurrency,
    PaymentWindowS,
    Partition,
    Epoch,
    CreatedMs,
    ChangedMs,
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
            .table(Sales::Table)
            .col(ColumnDef::new(Sales::Id).big_integer().not_null().auto_increment().primary_key())
            .col(ColumnDef::new(Sales::Title).text().not_null())
            .col(ColumnDef::new(Sales::Mode).text().not_null())
            .col(ColumnDef::new(Sales::State).text().not_null())
            .col(ColumnDef::new(Sales::StockTotal).big_integer().not_null())
            .col(ColumnDef::new(Sales::StockLeft).big_integer().not_null())
            .col(ColumnDef::new(Sales::OpensMs).big_integer().not_null())
            .col(ColumnDef::new(Sales::ClosesMs).big_integer().not_null())
            .col(ColumnDef::new(Sales::PerBuyer).integer().not_null())
            .col(ColumnDef::new(Sales::PriceAmount).big_integer().not_null())
            .col(ColumnDef::new(Sales::PriceCurrency).text().not_null())
            .col(ColumnDef::new(Sales::PaymentWindowS).big_integer().not_null())
            .col(ColumnDef::new(Sales::Partition).integer())
            .col(ColumnDef::new(Sales::Epoch).big_integer().not_null().default(1))
            .col(ColumnDef::new(Sales::CreatedMs).big_integer().not_null())
            .col(ColumnDef::new(Sales::ChangedMs).big_integer().not_null())
            // Oversell is refused here, whatever the code above believes.
            .check(("sales_stock_not_negative", col(Sales::StockLeft).gte(0)))
            .check(("sales_stock_within_total", col(Sales::StockLeft).lte(col(Sales::StockTotal))))
            .check(("sales_window_in_order", col(Sales::OpensMs).lt(col(Sales::ClosesMs))))
            .check((
                "sales_state_known",
                col(Sales::State).is_in(["draft", "published", "paused", "closed"]),
            ))
            .check(("sales_mode_known", col(Sales::Mode).is_in(["queued", "direct"])))
            .check(("sales_per_buyer_positive", col(Sales::PerBuyer).gte(1)))
            .to_owned();
        manager.create_table(table).await?;
        // Gateways follow changes by asking for what has changed since they last looked.
        let index = Index::create()
            .name("sales_by_change")
            .table(Sales::Table)
            .col(Sales::ChangedMs)
            .to_owned();
        manager.create_index(index).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table(Sales::Table).to_owned()).await
    }
}
