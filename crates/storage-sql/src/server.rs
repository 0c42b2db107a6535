//! What a database says of itself: how it is set up, not what it holds.

use sea_orm::sea_query::Query;
use sea_orm::{ConnectionTrait as _, DbBackend, Statement, TryGetable};

use crate::clock::now_ms;
use crate::{Database, SqlFault};

/// Every index that a query or a rule relies on, and that a migration made.
const INDEXES: [&str; 11] = [
    "adjustments_by_request_key",
    "adjustments_one_pending",
    "events_due",
    "orders_by_user",
    "orders_due",
    "orders_one_open_per_slot",
    "outbox_one_release_per_generation",
    "payments_by_order",
    "payments_one_per_webhook",
    "payments_open",
    "sales_by_change",
];

/// How the database is set up, by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseFacts {
    /// An embedded file.
    Sqlite {
        /// Such as `wal`.
        journal_mode: String,
    },
    /// A server.
    Postgres {
        /// Such as 150018: major times 10,000 plus minor.
        version: u32,
        /// Such as `read committed`.
        isolation: String,
        /// Settings of this session that should end what takes too long, and are off.
        timeouts_off: Vec<&'static str>,
    },
}

impl Database {
    /// Asks the database how it is set up, over a connection as all others are.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn facts(&self) -> Result<DatabaseFacts, SqlFault> {
        if self.backend() != DbBackend::Postgres {
            return Ok(DatabaseFacts::Sqlite {
                journal_mode: self.ask("PRAGMA journal_mode").await?,
            });
        }
        let mut timeouts_off = Vec::new();
        for name in ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"] {
            if self.ask::<String>(&format!("SHOW {name}")).await? == "0" {
                timeouts_off.push(name);
            }
        }
        let version = self.ask::<i32>("SELECT current_setting('server_version_num')::int").await?;
        Ok(DatabaseFacts::Postgres {
            version: u32::try_from(version).unwrap_or(0),
            isolation: self.ask("SHOW transaction_isolation").await?,
            timeouts_off,
        })
    }

    /// The indexes that are needed and are not there, or are not finished.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn missing_indexes(&self) -> Result<Vec<&'static str>, SqlFault> {
        let sql = match self.backend() {
            DbBackend::Postgres => {
                "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
                 WHERE i.indisvalid AND pg_table_is_visible(c.oid)"
            }
            _ => "SELECT name FROM sqlite_master WHERE type = 'index'",
        };
        let rows =
            self.connection.query_all_raw(Statement::from_string(self.backend(), sql)).await?;
        let there = rows
            .iter()
            .map(|row| Ok(row.try_get_by_index::<String>(0)?))
            .collect::<Result<Vec<_>, SqlFault>>()?;
        Ok(INDEXES.into_iter().filter(|index| !there.iter().any(|it| it == index)).collect())
    }

    /// The database's clock: milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn time_ms(&self) -> Result<i64, SqlFault> {
        let statement = Query::select().expr(now_ms(self.backend())).to_owned();
        let row = self.connection.query_one(&statement).await?;
        Ok(row.map(|row| row.try_get_by_index(0)).transpose()?.unwrap_or_default())
    }

    /// The one value that a statement of one row answers.
    async fn ask<T: TryGetable>(&self, sql: &str) -> Result<T, SqlFault> {
        let statement = Statement::from_string(self.backend(), sql);
        let row = self.connection.query_one_raw(statement).await?;
        let row =
            row.ok_or_else(|| sea_orm::DbErr::RecordNotFound(format!("no answer to {sql}")))?;
        Ok(row.try_get_by_index(0)?)
    }
}
