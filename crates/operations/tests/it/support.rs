//! One deployment a test: a key prefix of its own, a database of its own, and the worker's processor
//! for turning entries into rows when the test wants it.

use std::time::Duration;

use flashsale_bootstrap::Settings;
use flashsale_domain::{
    Admission, AdmissionRequest, IdempotencyKey, NewSale, OrderId, Partition, Price, Refusal, Sale,
    SaleId, SaleMode, UserId, Window,
};
use flashsale_operations::{Audit, Finding, Ledger, OperationError, Operations, Refused, connect};
use flashsale_order_worker::{Processed, Processor};
use flashsale_storage_redis::{
    GROUP, Keys, RawEntry, ReacquireRequest, Reacquired, Redis, ReleaseRequest, Released,
};
use flashsale_storage_sql::{Database, Reacquiring, Release, TakenUnit};
use flashsale_test_support::{PostgresServer, RedisServer, TempDir, temp_dir, unique};
use redis::FromRedisValue;
use sea_orm::{ConnectOptions, ConnectionTrait as _, DatabaseConnection};
use tokio_util::sync::CancellationToken;

/// For whatever should happen at once: only a broken program takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// 2024-01-02 and 2090-01-01: a window that is open while anybody runs these tests.
const OPENS_MS: i64 = 1_704_153_600_000;
const CLOSES_MS: i64 = 3_786_912_000_000;

/// What one call of the admission script takes: the greatest `admission.batch_max`.
const PRESSES_PER_CALL: usize = 1_000;

/// Runs a test on a SQLite database and on a PostgreSQL database, as `name::sqlite` and
/// `name::postgres`.
macro_rules! on_both {
    ($name:ident, $test:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                $crate::support::run(Stand::sqlite().await, $test).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                $crate::support::run(Stand::postgres().await, $test).await;
            }
        }
    };
}
pub(crate) use on_both;

pub(crate) async fn run(stand: Stand, test: impl AsyncFnOnce(Stand)) {
    test(stand).await;
}

/// A deployment without programs.
pub(crate) struct Stand {
    pub(crate) operations: Operations,
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) keys: Keys,
    settings: Settings,
    sql: DatabaseConnection,
    client: redis::Client,
    _directory: TempDir,
}

/// The only partition of a deployment.
pub(crate) fn only() -> Partition {
    Partition::new(0).expect("a partition")
}

pub(crate) fn user_id(id: &str) -> UserId {
    UserId::new(id).expect("a buyer's id")
}

/// The id that the same partition gives so many milliseconds later.
pub(crate) fn neighbour(id: OrderId, ms: i64) -> OrderId {
    // Below the milliseconds lie 10 bits of partition and 12 of sequence.
    OrderId::from_i64(id.as_i64() + (ms << 22)).expect("an order id")
}

/// A press of the buyer with a key of his own, so that pressing again is a replay.
pub(crate) fn press(user: &str) -> AdmissionRequest {
    let key = IdempotencyKey::new(format!("key-of-{user}")).expect("a key");
    AdmissionRequest { user_id: user_id(user), digest: Some(key.digest()), traceparent: None }
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

/// Why an operation was not done.
pub(crate) fn refused<T: std::fmt::Debug>(done: Result<T, OperationError>) -> Refused {
    match done {
        Err(OperationError::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

impl Stand {
    pub(crate) async fn sqlite() -> Self {
        let directory = temp_dir("operations");
        let url = format!("sqlite://{}", directory.path().join("sales.db").display());
        Self::on(RedisServer::shared(), url, directory).await
    }

    pub(crate) async fn postgres() -> Self {
        let url = tokio::task::block_in_place(|| PostgresServer::shared().create_database());
        Self::on(RedisServer::shared(), url, temp_dir("operations")).await
    }

    /// On a Redis of the test's own, and SQLite.
    pub(crate) async fn on_redis(server: &RedisServer) -> Self {
        let directory = temp_dir("operations");
        let url = format!("sqlite://{}", directory.path().join("sales.db").display());
        Self::on(server, url, directory).await
    }

    async fn on(server: &RedisServer, database_url: String, directory: TempDir) -> Self {
        let prefix = unique("operations");
        let env = [
            ("FLASHSALE__REDIS__URL", server.url()),
            ("FLASHSALE__REDIS__PREFIX", prefix.clone()),
            ("FLASHSALE__DATABASE__URL", database_url.clone()),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value));
        let settings = Settings::from_sources(None, env).expect("the test's settings are valid");
        let redis = connect::redis(&settings).expect("a URL of Redis");
        let database = connect::database(&settings).await.expect("the database can be reached");
        database.migrate().await.expect("an empty database can be migrated");
        let mut options = ConnectOptions::new(database_url);
        options.max_connections(2).sqlx_logging(false);
        let sql = sea_orm::Database::connect(options).await.expect("the test can connect");
        Self {
            operations: Operations::new(redis.clone(), database.clone()),
            redis,
            database,
            keys: Keys::new(prefix),
            settings,
            sql,
            client: redis::Client::open(server.url()).expect("a URL of Redis"),
            _directory: directory,
        }
    }

    pub(crate) async fn create(&self, stock: i64) -> Sale {
        self.operations.create_sale(&new_sale(stock)).await.expect("a sale")
    }

    /// A published sale that is open now.
    pub(crate) async fn publish(&self, stock: i64) -> Sale {
        let sale = self.create(stock).await;
        self.operations.publish_sale(sale.id).await.expect("it can be published")
    }

    /// What the admission script says to each of these requests.
    pub(crate) async fn press(
        &self,
        sale: &Sale,
        presses: &[AdmissionRequest],
    ) -> Vec<Result<Admission, Refusal>> {
        let mut connection = self.redis.admission_connection().expect("a connection");
        connection.admit(only(), sale.id, presses).await.expect("answered").outcomes
    }

    /// The buyers `<prefix>-0` to `<prefix>-<count - 1>` get an order each; their ids in that order.
    pub(crate) async fn admit(&self, sale: &Sale, prefix: &str, count: usize) -> Vec<OrderId> {
        let presses: Vec<_> = (0..count).map(|i| press(&format!("{prefix}-{i}"))).collect();
        let order_id = |outcome| match outcome {
            Ok(Admission { order_id, replayed: false }) => order_id,
            other => panic!("not admitted: {other:?}"),
        };
        let mut ids = Vec::with_capacity(count);
        for presses in presses.chunks(PRESSES_PER_CALL) {
            ids.extend(self.press(sale, presses).await.into_iter().map(order_id));
        }
        ids
    }

    /// Reads up to `count` new entries.
    pub(crate) async fn read(&self, count: usize) -> Vec<RawEntry> {
        self.redis.ensure_group(only()).await.expect("a group");
        let block = Duration::from_millis(10);
        let mut reader = self.redis.order_reader(only(), "test", block).await.expect("a reader");
        reader.read(count).await.expect("a reading")
    }

    /// Does what a worker does with these entries.
    pub(crate) async fn process(&self, entries: Vec<RawEntry>) -> Processed {
        let (redis, database) = (self.redis.clone(), self.database.clone());
        let settings = &self.settings.worker;
        let never = CancellationToken::new();
        let processor = Processor::new(redis, database, only(), "test".to_owned(), settings, never);
        processor.process(entries).await
    }

    /// Does what a worker does with whatever is on the stream, and clears it away.
    pub(crate) async fn work(&self) -> Processed {
        let processed = self.process(self.read(10_000).await).await;
        self.redis.trim_acked(only()).await.expect("trimmed");
        processed
    }

    /// These orders should have been paid for by now.
    pub(crate) async fn make_overdue(&self, ids: &[OrderId]) {
        for id in ids {
            self.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id = {id}")).await;
        }
    }

    /// Orders of the buyers `<prefix>-0` and on that were not paid in time; Redis has yet to hear of
    /// it.
    pub(crate) async fn expired(&self, sale: &Sale, prefix: &str, count: usize) -> Vec<OrderId> {
        let ids = self.admit(sale, prefix, count).await;
        self.work().await;
        self.make_overdue(&ids).await;
        let expired = self.operations.expire_orders(10_000).await.expect("expired");
        assert_eq!(usize::try_from(expired), Ok(count));
        ids
    }

    /// Asks Redis to carry a release out, and leaves it in the outbox.
    pub(crate) async fn carry_out(&self, release: &Release) -> Released {
        let request = ReleaseRequest {
            partition: release.partition,
            sale_id: release.sale_id,
            user_id: &release.user_id,
            entry: release.order_id.entry(),
            generation: release.generation,
            returns_unit: release.returns_unit,
            instead: None,
        };
        self.redis.release(&request).await.expect("answered")
    }

    /// Does what a worker does with the outbox: carries every release out, and keeps those that Redis
    /// was not ready for.
    pub(crate) async fn relay(&self) -> Vec<Released> {
        let mut outcomes = Vec::new();
        for release in self.database.list_releases(0, 10_000).await.expect("answered") {
            let outcome = self.carry_out(&release).await;
            if outcome != Released::NotLoaded {
                self.database.delete_releases(&[release.id]).await.expect("deleted");
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Takes a unit in Redis for a late payment; the database does not hear of it.
    pub(crate) async fn reacquire(&self, reacquiring: &Reacquiring) -> TakenUnit {
        let stored = &reacquiring.stored;
        let request = ReacquireRequest {
            partition: only(),
            sale_id: stored.order.sale_id,
            user_id: &stored.order.user_id,
            entry: stored.order.id.entry(),
            slot: stored.slot,
            generation: reacquiring.generation,
            digest: stored.digest.as_ref(),
        };
        match self.redis.reacquire(&request).await.expect("answered") {
            Reacquired::Taken { epoch } => TakenUnit { epoch },
            other => panic!("not taken: {other:?}"),
        }
    }

    /// An order of a buyer becomes one that the database refuses, and so a dead letter.
    pub(crate) async fn refuse_poison(&self) {
        let sql = match self.sql.get_database_backend() {
            sea_orm::DbBackend::Postgres => {
                "ALTER TABLE orders ADD CONSTRAINT no_poison \
                 CHECK (user_id NOT LIKE 'poison%') NOT VALID"
            }
            _ => {
                "CREATE TRIGGER no_poison BEFORE INSERT ON orders \
                 WHEN NEW.user_id LIKE 'poison%' BEGIN SELECT RAISE(ABORT, 'no_poison'); END"
            }
        };
        self.execute(sql).await;
    }

    /// Takes back what [`Stand::refuse_poison`] did.
    pub(crate) async fn allow_poison(&self) {
        self.execute(match self.sql.get_database_backend() {
            sea_orm::DbBackend::Postgres => "ALTER TABLE orders DROP CONSTRAINT no_poison",
            _ => "DROP TRIGGER no_poison",
        })
        .await;
    }

    /// A row past all code of ours, in slot 1.
    pub(crate) async fn insert_row(&self, id: OrderId, sale: &Sale, user: &str, state: &str) {
        let (sale, epoch) = (sale.id, sale.epoch);
        self.execute(&format!(
            "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             VALUES ({id}, {sale}, '{user}', 1, {epoch}, '{state}', 9900, 'CNY', 1)"
        ))
        .await;
    }

    /// As many open rows at once, of the buyers `many-1` and on, with ids from `first` on.
    pub(crate) async fn insert_orders(&self, sale: SaleId, epoch: i64, first: i64, count: i64) {
        let last = count - 1;
        let (before, numbers) = match self.sql.get_database_backend() {
            sea_orm::DbBackend::Postgres => {
                (String::new(), format!("generate_series(0::bigint, {last}) AS numbers (n)"))
            }
            _ => {
                let more = format!("SELECT n + 1 FROM numbers WHERE n < {last}");
                let numbers = format!("WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL {more}) ");
                (numbers, "numbers".to_owned())
            }
        };
        // Sixteen a millisecond: below it lie 22 bits.
        self.execute(&format!(
            "{before}INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             SELECT {first} + n / 16 * 4194304 + n % 16, {sale}, 'many-' || (n + 1), 1, {epoch}, \
             'awaiting_payment', 9900, 'CNY', 1 FROM {numbers}"
        ))
        .await;
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.sql.execute_unprepared(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn ledger(&self, sale: &Sale) -> Ledger {
        self.operations.read_ledger(sale.id).await.expect("a ledger")
    }

    pub(crate) async fn audit(&self, sale: &Sale) -> Audit {
        self.operations.audit_sale(sale.id, &[]).await.expect("an audit")
    }

    /// Requires that the audit is clean.
    pub(crate) async fn assert_clean(&self, sale: &Sale) {
        assert_eq!(self.audit(sale).await.findings, []);
    }

    /// Requires that the audit names this invariant and this offender.
    pub(crate) async fn assert_found(&self, sale: &Sale, invariant: &str, what: &str) {
        let findings = self.audit(sale).await.findings;
        let is_it = |f: &Finding| f.invariant == invariant && f.what.contains(what);
        assert!(findings.iter().any(is_it), "no {invariant} with {what:?} in {findings:#?}");
    }

    /// `[stock, held, epoch]` as Redis has them.
    pub(crate) async fn units(&self, sale: &Sale) -> [i64; 3] {
        let key = self.keys.sale(only(), sale.id);
        self.ask(&["HMGET", &key, "stock", "held", "epoch"]).await
    }

    pub(crate) async fn gate_is_open(&self, sale: &Sale) -> bool {
        self.redis.read_sale(only(), sale.id).await.expect("answered").gate_open
    }

    /// Throws away everything that Redis holds of this deployment.
    pub(crate) async fn forget_everything(&self, sales: &[&Sale]) {
        let mut keys = vec![self.keys.gate(only()), self.keys.orders(only())];
        keys.push(self.keys.dead(only()));
        for sale in sales {
            keys.push(self.keys.sale(only(), sale.id));
            keys.push(self.keys.buyers(only(), sale.id));
        }
        let words: Vec<&str> =
            std::iter::once("DEL").chain(keys.iter().map(String::as_str)).collect();
        self.ask::<i64>(&words).await;
    }

    pub(crate) async fn destroy_group(&self) {
        let key = self.keys.orders(only());
        assert_eq!(self.ask::<i64>(&["XGROUP", "DESTROY", &key, GROUP]).await, 1);
    }

    /// Any command to Redis, over a new connection.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let connected = self.client.get_multiplexed_async_connection().await;
        let mut connection = connected.expect("Redis answers");
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let answer = command.query_async(&mut connection).await;
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }
}
