//! Statements that only a drill sends to the database.

use std::collections::BTreeMap;

use anyhow::Context as _;
use flashsale_domain::OrderId;
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, QueryResult, Statement,
};

/// PostgreSQL, as somebody with a prompt sees it.
pub(crate) struct RawSql {
    connection: DatabaseConnection,
}

/// A payment's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PaymentRow {
    pub(crate) webhook_id: String,
    pub(crate) order_id: i64,
    pub(crate) outcome: String,
}

impl RawSql {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).sqlx_logging(false);
        Ok(Self { connection: Database::connect(options).await? })
    }

    async fn ask(&self, sql: String) -> anyhow::Result<Vec<QueryResult>> {
        let statement = Statement::from_string(self.connection.get_database_backend(), sql);
        Ok(self.connection.query_all_raw(statement).await?)
    }

    /// How many orders are rows.
    pub(crate) async fn count_orders(&self) -> anyhow::Result<i64> {
        let rows = self.ask("SELECT count(*) FROM orders".to_owned()).await?;
        Ok(rows.first().context("a count is one row")?.try_get_by_index(0)?)
    }

    /// Lets the time to pay for these orders run out within the next `from_ms` to `to_ms`; when that
    /// is, for each: milliseconds since the Unix epoch, by the database's clock.
    pub(crate) async fn bring_deadlines_near(
        &self,
        orders: &[OrderId],
        from_ms: u64,
        to_ms: u64,
    ) -> anyhow::Result<BTreeMap<OrderId, i64>> {
        if orders.is_empty() {
            return Ok(BTreeMap::new());
        }
        let ids: Vec<String> = orders.iter().map(ToString::to_string).collect();
        let width = to_ms - from_ms;
        let rows = self
            .ask(format!(
                "UPDATE orders SET pay_by_ms = {from_ms} + id % {width} \
                     + (extract(epoch FROM clock_timestamp()) * 1000)::bigint \
                 WHERE state = 'awaiting_payment' AND id IN ({}) RETURNING id, pay_by_ms",
                ids.join(",")
            ))
            .await?;
        let deadline = |row: QueryResult| {
            let (id, pay_by_ms) = (row.try_get_by_index(0)?, row.try_get_by_index(1)?);
            let order = OrderId::from_i64(id).with_context(|| format!("order {id}"))?;
            Ok((order, pay_by_ms))
        };
        rows.into_iter().map(deadline).collect()
    }

    /// Every payment for a sale's orders.
    pub(crate) async fn list_payments(&self, sale: i64) -> anyhow::Result<Vec<PaymentRow>> {
        let rows = self
            .ask(format!(
                "SELECT webhook_id, order_id, outcome FROM payments \
                 WHERE order_id IN (SELECT id FROM orders WHERE sale_id = {sale}) ORDER BY id"
            ))
            .await?;
        let payment = |row: QueryResult| {
            Ok(PaymentRow {
                webhook_id: row.try_get_by_index(0)?,
                order_id: row.try_get_by_index(1)?,
                outcome: row.try_get_by_index(2)?,
            })
        };
        rows.into_iter().map(payment).collect()
    }
}
