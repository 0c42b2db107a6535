//! Connections to SQLite (embedded) and PostgreSQL, with what each needs to be safe.

use std::collections::BTreeSet;
use std::time::Duration;

use flashsale_migrations::Migrator;
use sea_orm::sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use sea_orm::{
    AccessMode, ConnectOptions, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr,
    EntityTrait as _, IsolationLevel, SqliteTransactionMode, TransactionOptions,
    TransactionTrait as _,
};
use sea_orm_migration::{MigratorTrait as _, SchemaManager, seaql_migrations};

use crate::{SqlFault, spans};

/// Where the database is and how to treat it.
#[derive(Clone)]
pub struct DatabaseConfig {
    /// `sqlite://file.db` or `postgres://…`.
    pub url: String,
    /// The most connections of this process.
    pub max_connections: u32,
    /// How long connecting, or waiting for a free connection, may take.
    pub connect_timeout: Duration,
    /// How long a statement may run before the server ends it. A lock is waited for half as long.
    pub statement_timeout: Duration,
}

/// Access to the database. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pub(crate) connection: DatabaseConnection,
    /// Whether changes of orders are written down for a shop that wants to know of them.
    pub(crate) writes_events: bool,
}

impl Database {
    /// Connects, and makes an SQLite file where there is none.
    ///
    /// # Errors
    /// When the database cannot be reached.
    pub async fn connect(config: &DatabaseConfig) -> Result<Self, SqlFault> {
        let mut options = ConnectOptions::new(config.url.clone());
        let lock_wait = config.statement_timeout / 2;
        let statement_ms = config.statement_timeout.as_millis().to_string();
        let lock_ms = lock_wait.as_millis().to_string();
        options
            .max_connections(config.max_connections)
            .connect_timeout(config.connect_timeout)
            .acquire_timeout(config.connect_timeout)
            .sqlx_logging(false)
            .map_sqlx_sqlite_opts(move |options| {
                options
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    // FULL: a COMMIT that was answered is on the disk. An acknowledged entry is
                    // gone from Redis, so nothing less will do.
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(lock_wait)
            })
            .map_sqlx_postgres_opts(move |options| {
                // The server ends what takes too long. A future dropped by us instead would leave
                // the statement running, and its outcome unknown.
                options.options([
                    ("statement_timeout", statement_ms.as_str()),
                    ("lock_timeout", lock_ms.as_str()),
                    ("idle_in_transaction_session_timeout", statement_ms.as_str()),
                ])
            });
        match sea_orm::Database::connect(options).await {
            Ok(connection) => Ok(Self { connection, writes_events: false }),
            // The driver quotes what it cannot parse.
            Err(error) if error.to_string().contains(&config.url) => Err(SqlFault::Url),
            Err(error) => Err(error.into()),
        }
    }

    /// From now on every change of an order is also written down as an event, in the same
    /// transaction, for whoever delivers them to the shop.
    #[must_use]
    pub fn with_events(mut self) -> Self {
        self.writes_events = true;
        self
    }

    /// From now on each statement that is asked for somebody who is traced is a span of his trace.
    #[must_use]
    pub fn with_spans(mut self) -> Self {
        spans::watch(&mut self.connection);
        self
    }

    /// Brings the schema up to date; does nothing when it is, also when a newer version has gone on
    /// from there.
    ///
    /// # Errors
    /// When a migration fails; when some are to be applied to a schema that has others, which this
    /// version does not know.
    pub async fn migrate(&self) -> Result<(), SqlFault> {
        if self.pending_migrations().await? == 0 {
            return Ok(());
        }
        Ok(Migrator::up(&self.connection, None).await?)
    }

    /// Undoes every migration: for tests of the migrations.
    ///
    /// # Errors
    /// When a migration fails.
    pub async fn unmigrate(&self) -> Result<(), SqlFault> {
        Ok(Migrator::down(&self.connection, None).await?)
    }

    /// How many migrations are still to be applied.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn pending_migrations(&self) -> Result<usize, SqlFault> {
        let applied = self.applied_migrations().await?;
        let files = Migrator::migrations();
        Ok(files.iter().filter(|file| !applied.contains(file.name())).count())
    }

    /// The migrations that were applied and that this version does not know: a newer one's. It can work
    /// with that schema, because a migration only adds (docs/upgrading.md).
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn unknown_migrations(&self) -> Result<Vec<String>, SqlFault> {
        let mut applied = self.applied_migrations().await?;
        for file in Migrator::migrations() {
            applied.remove(file.name());
        }
        Ok(applied.into_iter().collect())
    }

    /// Reads alone: a program's database user need not be allowed to make tables.
    async fn applied_migrations(&self) -> Result<BTreeSet<String>, SqlFault> {
        let table = Migrator::migration_table_name().to_string();
        if !SchemaManager::new(&self.connection).has_table(table).await? {
            return Ok(BTreeSet::new());
        }
        let applied = seaql_migrations::Entity::find().all(&self.connection).await?;
        Ok(applied.into_iter().map(|row| row.version).collect())
    }

    /// Asks the database whether it is there.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ping(&self) -> Result<(), SqlFault> {
        Ok(self.connection.ping().await?)
    }

    /// Connections of the pool at this moment: those in somebody's hands, and those that nobody uses.
    pub fn pool_use(&self) -> (usize, usize) {
        let (open, idle) = match self.backend() {
            DbBackend::Postgres => {
                let pool = self.connection.get_postgres_connection_pool();
                (pool.size(), pool.num_idle())
            }
            _ => {
                let pool = self.connection.get_sqlite_connection_pool();
                (pool.size(), pool.num_idle())
            }
        };
        // The two are read one after the other.
        (usize::try_from(open).unwrap_or(usize::MAX).saturating_sub(idle), idle)
    }

    /// Closes every connection.
    ///
    /// # Errors
    /// When closing fails.
    pub async fn close(self) -> Result<(), SqlFault> {
        Ok(self.connection.close().await?)
    }

    pub(crate) fn backend(&self) -> DbBackend {
        self.connection.get_database_backend()
    }

    /// How many transactions that write it makes sense to have at once, on so many connections. SQLite
    /// has one writer; a second one would ask for the lock again and again.
    pub fn concurrent_writers(&self, connections: u32) -> usize {
        match self.backend() {
            DbBackend::Sqlite => 1,
            _ => usize::try_from(connections).unwrap_or(usize::MAX),
        }
    }

    /// Ends a transaction as its work has ended: commits what succeeded, undoes what failed.
    pub(crate) async fn end<T, E: From<DbErr>>(
        transaction: DatabaseTransaction,
        done: Result<T, E>,
    ) -> Result<T, E> {
        if done.is_ok() {
            spans::under("COMMIT", transaction.commit()).await?;
        } else {
            // A connection that is gone cannot roll back; the server does it by itself then.
            let _ = transaction.rollback().await;
        }
        done
    }

    /// A transaction that will write. SQLite takes its write lock at once (IMMEDIATE): one that
    /// began by reading could not wait for it later, and would fail instead.
    pub(crate) async fn begin_write(&self) -> Result<DatabaseTransaction, SqlFault> {
        let mode =
            (self.backend() == DbBackend::Sqlite).then_some(SqliteTransactionMode::Immediate);
        let options = TransactionOptions { sqlite_transaction_mode: mode, ..Default::default() };
        Ok(spans::under("BEGIN", self.connection.begin_with_options(options)).await?)
    }

    /// A transaction that only reads, and reads all of it as of one moment.
    pub(crate) async fn begin_snapshot(&self) -> Result<DatabaseTransaction, SqlFault> {
        let options = match self.backend() {
            DbBackend::Sqlite => TransactionOptions {
                sqlite_transaction_mode: Some(SqliteTransactionMode::Deferred),
                ..Default::default()
            },
            _ => TransactionOptions {
                isolation_level: Some(IsolationLevel::RepeatableRead),
                access_mode: Some(AccessMode::ReadOnly),
                ..Default::default()
            },
        };
        Ok(self.connection.begin_with_options(options).await?)
    }
}
