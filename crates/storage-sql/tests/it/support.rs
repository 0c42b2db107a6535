//! A database for each test, and the sales and orders that tests are made of.
//!
//! What a test wants to see that the crate does not show, it reads by SQL of its own, over a
//! connection of its own.

use std::ops::{Deref, RangeInclusive};
use std::time::Duration;

use flashsale_domain::{
    DIRECT_PARTITION, IdempotencyDigest, IdempotencyKey, NewOrder, NewSale, Order, OrderId,
    OrderState, Price, Sale, SaleMode, SaleState, UserId, Window,
};
use flashsale_storage_sql::{Commit, Database, DatabaseConfig, Release, SaleChange, StoredOrder};
use flashsale_test_support::{PostgresServer, TempDir, eventually, temp_dir};
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, DatabaseConnection, DbBackend, DbErr, QueryResult,
    Statement, TryGetable,
};

/// Long enough that only a test which shortens it ever meets it.
pub(crate) const PATIENT: Duration = Duration::from_secs(40);

/// How long the tests wait for what must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// 2024-01-02 and 2090-01-01: a window that is open while anybody runs these tests.
pub(crate) const OPENS_MS: i64 = 1_704_153_600_000;
pub(crate) const CLOSES_MS: i64 = 3_786_912_000_000;

/// Runs a test on a SQLite database and on a PostgreSQL database, as `name::sqlite` and
/// `name::postgres`.
macro_rules! on_both {
    ($name:ident, $test:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn sqlite() {
                $crate::support::run(TestDatabase::sqlite().await, $test).await;
            }

            #[tokio::test]
            async fn postgres() {
                $crate::support::run(TestDatabase::postgres().await, $test).await;
            }
        }
    };
}
pub(crate) use on_both;

pub(crate) async fn run(database: TestDatabase, test: impl AsyncFnOnce(TestDatabase)) {
    test(database).await;
}

/// A migrated database of the test's own; gone afterwards.
pub(crate) struct TestDatabase {
    database: Database,
    /// The test's own way in, with plain settings.
    pub(crate) raw: DatabaseConnection,
    url: String,
    _directory: Option<TempDir>,
}

impl Deref for TestDatabase {
    type Target = Database;

    fn deref(&self) -> &Database {
        &self.database
    }
}

impl TestDatabase {
    pub(crate) async fn sqlite() -> Self {
        let directory = temp_dir("sqlite");
        let url = format!("sqlite://{}", directory.path().join("test.db").display());
        Self::open(url, Some(directory)).await
    }

    pub(crate) async fn postgres() -> Self {
        let create = || PostgresServer::shared().create_database();
        let url = tokio::task::spawn_blocking(create).await.expect("a database can be created");
        Self::open(url, None).await
    }

    pub(crate) async fn open(url: String, directory: Option<TempDir>) -> Self {
        let database = connect(&url, PATIENT).await;
        database.migrate().await.expect("an empty database can be migrated");
        let mut options = ConnectOptions::new(url.clone());
        options.max_connections(4).sqlx_logging(false);
        let raw = sea_orm::Database::connect(options).await.expect("the test can connect");
        Self { database, raw, url, _directory: directory }
    }

    /// Another process's access to the same database.
    pub(crate) async fn connect(&self, statement_timeout: Duration) -> Database {
        connect(&self.url, statement_timeout).await
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.raw.get_database_backend() == DbBackend::Postgres
    }

    /// Runs SQL, statements separated by `;`.
    pub(crate) async fn try_execute(&self, sql: &str) -> Result<u64, DbErr> {
        Ok(self.raw.execute_unprepared(sql).await?.rows_affected())
    }

    /// The same where an error is the test's own mistake.
    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        self.try_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub(crate) async fn rows(&self, sql: &str) -> Vec<QueryResult> {
        let statement = Statement::from_string(self.raw.get_database_backend(), sql);
        let rows = self.raw.query_all_raw(statement).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The first column of every row.
    pub(crate) async fn column<T: TryGetable>(&self, sql: &str) -> Vec<T> {
        let rows = self.rows(sql).await;
        let first = |row: &QueryResult| row.try_get_by_index(0);
        let values: Result<Vec<T>, DbErr> = rows.iter().map(first).collect();
        values.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The one value that a query answers with.
    pub(crate) async fn value<T: TryGetable>(&self, sql: &str) -> T {
        let mut values = self.column(sql).await;
        assert_eq!(values.len(), 1, "{sql}");
        values.remove(0)
    }

    /// The database's clock: milliseconds since the Unix epoch.
    pub(crate) async fn now_ms(&self) -> i64 {
        self.value(if self.is_postgres() {
            "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        } else {
            "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)"
        })
        .await
    }

    /// Waits until `count` sessions of a PostgreSQL database wait for a lock.
    pub(crate) async fn until_locked_out(&self, count: i64) {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually(SOON, "sessions that wait", async || self.value::<i64>(waiting).await == count)
            .await;
    }

    /// A published sale that is open now.
    pub(crate) async fn published(&self, new: &NewSale) -> Sale {
        let sale = self.insert_sale(new).await.expect("a sale can be stored");
        self.set_state(&sale, SaleState::Published).await
    }

    /// Moves a sale to a state that it may go to.
    pub(crate) async fn set_state(&self, sale: &Sale, state: SaleState) -> Sale {
        match self.set_sale_state(sale.id, state).await.expect("a state can be set") {
            SaleChange::Done(sale) => *sale,
            other => panic!("sale {} to {state}: {other:?}", sale.id),
        }
    }

    pub(crate) async fn stock_left(&self, sale: &Sale) -> i64 {
        self.value(&format!("SELECT stock_left FROM sales WHERE id = {}", sale.id)).await
    }

    /// How many rows `orders` has.
    pub(crate) async fn order_count(&self) -> i64 {
        self.value("SELECT count(*) FROM orders").await
    }

    /// The orders' ids, smallest first.
    pub(crate) async fn order_ids(&self) -> Vec<i64> {
        self.column("SELECT id FROM orders ORDER BY id").await
    }

    /// A row of `orders` past all code of ours.
    pub(crate) async fn try_insert_order(
        &self,
        id: i64,
        sale: &Sale,
        user: &str,
        slot: i32,
        state: &str,
    ) -> Result<u64, DbErr> {
        let sale = sale.id;
        self.try_execute(&format!(
            "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             VALUES ({id}, {sale}, '{user}', {slot}, 1, '{state}', 9900, 'CNY', {OPENS_MS})"
        ))
        .await
    }

    /// The same where an error is the test's own mistake.
    pub(crate) async fn insert_order(
        &self,
        id: i64,
        sale: &Sale,
        user: &str,
        slot: i32,
        state: OrderState,
    ) {
        let inserted = self.try_insert_order(id, sale, user, slot, state.as_str()).await;
        assert_eq!(inserted, Ok(1));
    }

    /// The sale's order `id`, committed and waiting for payment, of the buyer `user-<id>`.
    pub(crate) async fn ordered(&self, sale: &Sale, id: i64) -> StoredOrder {
        let batch = self.commit_orders(&[order_of(sale, id)]).await.expect("it can be written");
        assert_eq!(batch.outcomes, [Commit::Inserted]);
        self.stored(id).await
    }

    pub(crate) async fn stored(&self, id: i64) -> StoredOrder {
        self.find_order(order_id(id)).await.expect("answered").expect("the order is a row")
    }

    pub(crate) async fn state(&self, id: i64) -> OrderState {
        self.stored(id).await.order.state
    }

    /// Moves the moment by which an order must be paid to `from_now_ms` from now, by the database's
    /// clock.
    pub(crate) async fn set_pay_by(&self, id: i64, from_now_ms: i64) {
        let now = if self.is_postgres() {
            "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        } else {
            "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
        };
        let set = format!("UPDATE orders SET pay_by_ms = {now} + {from_now_ms} WHERE id = {id}");
        assert_eq!(self.execute(&set).await, 1);
    }

    /// An order that was not paid in time, and whose unit is back on sale.
    pub(crate) async fn expired(&self, sale: &Sale, id: i64) -> StoredOrder {
        self.ordered(sale, id).await;
        self.set_pay_by(id, -1_000).await;
        let expired = self.expire_orders(1_000).await.expect("they can be expired");
        expired.into_iter().find(|stored| stored.order.id == order_id(id)).expect("it is overdue")
    }

    /// What Redis is owed: order, generation and cause, oldest first.
    pub(crate) async fn owed(&self) -> Vec<(i64, u32, String)> {
        let releases = self.list_releases(0, 100_000).await.expect("answered");
        let short = |release: Release| {
            assert!(release.returns_unit && release.instead.is_none(), "{release:?}");
            (release.order_id.as_i64(), release.generation, release.cause)
        };
        releases.into_iter().map(short).collect()
    }

    /// Requires that every unit is either left or held by an open order.
    pub(crate) async fn assert_conserved(&self, sale: &Sale) {
        let totals = self.sale_totals(sale.id).await.expect("answered").expect("the sale is there");
        assert_eq!(totals.stock_total, totals.stock_left + totals.open(), "{totals:?}");
    }

    /// Makes the database refuse every order of the buyer `poison`, as it would refuse data that it
    /// cannot store.
    pub(crate) async fn refuse_poison(&self) {
        self.execute(if self.is_postgres() {
            "ALTER TABLE orders ADD CONSTRAINT no_poison CHECK (user_id <> 'poison')"
        } else {
            "CREATE TRIGGER no_poison BEFORE INSERT ON orders WHEN NEW.user_id = 'poison' \
             BEGIN SELECT RAISE(ABORT, 'no_poison'); END"
        })
        .await;
    }
}

/// Access with a short patience for everything but statements.
pub(crate) async fn connect(url: &str, statement_timeout: Duration) -> Database {
    let config = DatabaseConfig {
        url: url.to_owned(),
        max_connections: 8,
        connect_timeout: Duration::from_secs(20),
        statement_timeout,
    };
    Database::connect(&config).await.expect("the database can be reached")
}

/// A sale of `stock` units, open now, one a buyer.
pub(crate) fn new_sale(stock: i64) -> NewSale {
    NewSale {
        title: "Voucher".to_owned(),
        mode: SaleMode::Queued,
        stock,
        window: Window::new(OPENS_MS, CLOSES_MS).expect("a window"),
        per_buyer: 1,
        price: Price { amount: 9_900, currency: "CNY".parse().expect("a currency") },
        payment_window_s: 900,
        late_payment: flashsale_domain::LatePayment::Reacquire,
    }
}

pub(crate) fn order_id(id: i64) -> OrderId {
    OrderId::from_i64(id).expect("an order id is positive")
}

pub(crate) fn user_id(user: &str) -> UserId {
    UserId::new(user).expect("a buyer's id")
}

pub(crate) fn digest_of(key: &str) -> IdempotencyDigest {
    IdempotencyKey::new(key).expect("a key").digest()
}

/// Order `id` of the buyer `user-<id>`, with a key of its own.
pub(crate) fn order_of(sale: &Sale, id: i64) -> NewOrder {
    NewOrder {
        id: order_id(id),
        sale_id: sale.id,
        user_id: user_id(&format!("user-{id}")),
        slot: 1,
        epoch: sale.epoch,
        digest: Some(digest_of(&format!("key-{id}"))),
    }
}

/// One [`order_of`] for each id.
pub(crate) fn orders_of(sale: &Sale, ids: RangeInclusive<i64>) -> Vec<NewOrder> {
    ids.map(|id| order_of(sale, id)).collect()
}

/// What an order becomes when it is written at `committed_ms`.
pub(crate) fn written(order: &NewOrder, sale: &Sale, committed_ms: i64) -> StoredOrder {
    StoredOrder {
        order: Order {
            id: order.id,
            sale_id: order.sale_id,
            user_id: order.user_id.clone(),
            state: OrderState::AwaitingPayment,
            reason: None,
            price: Some(sale.price),
            pay_by_ms: Some(committed_ms + sale.payment_window_s * 1000),
            committed_ms: Some(committed_ms),
            settled_ms: None,
        },
        slot: order.slot,
        generation: 1,
        digest: order.digest.clone(),
    }
}

/// An id as orders of direct sales have it: of the partition that is none of Redis's.
pub(crate) fn direct_id(n: i64) -> i64 {
    (1 << 22) | (i64::from(DIRECT_PARTITION.number()) << 12) | n
}

/// Whether a row may be in this state: queued and dead orders are not rows.
pub(crate) fn is_row_state(state: OrderState) -> bool {
    match state {
        OrderState::Queued | OrderState::Dead => false,
        OrderState::AwaitingPayment
        | OrderState::Paid
        | OrderState::Cancelled
        | OrderState::Expired
        | OrderState::RefundDue
        | OrderState::Rejected => true,
    }
}
