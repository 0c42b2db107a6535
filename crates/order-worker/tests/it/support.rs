//! One deployment a test: a key prefix of its own, a database of its own, and real workers on them.
//!
//! Orders come through the real admission script. What a test wants to see that no crate shows, it
//! asks of Redis and the database itself, over connections of its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flashsale_bootstrap::{Settings, Shutdown, telemetry};
use flashsale_domain::{
    AdmissionRequest, IdempotencyKey, NewSale, OrderId, Partition, Price, Refusal, Sale, SaleMode,
    UserId, Window,
};
use flashsale_operations::{Operations, Receipt, connect};
use flashsale_order_worker::{OrderWorker, Processor};
use flashsale_storage_redis::{DeadLetter, Keys, RawEntry, Redis};
use flashsale_storage_sql::Database;
use flashsale_test_support::{PostgresServer, RedisServer, TempDir, eventually, temp_dir, unique};
use redis::FromRedisValue;
use sea_orm::{ConnectOptions, ConnectionTrait as _, DatabaseConnection, Statement, TryGetable};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// For whatever should happen at once: only a broken program takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// 2024-01-02 and 2090-01-01: a window that is open while anybody runs these tests.
const OPENS_MS: i64 = 1_704_153_600_000;
const CLOSES_MS: i64 = 3_786_912_000_000;

/// Requests of one call of the admission script.
const ADMIT_BATCH: usize = 100;

/// Runs a test on a SQLite database and on a PostgreSQL database, as `name::sqlite` and
/// `name::postgres`.
macro_rules! on_both {
    ($name:ident, $test:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                $crate::support::run(Plan::sqlite().stand().await, $test).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                $crate::support::run(Plan::postgres().stand().await, $test).await;
            }
        }
    };
}
pub(crate) use on_both;

pub(crate) async fn run(stand: Stand, test: impl AsyncFnOnce(Stand)) {
    test(stand).await;
}

/// What a [`Stand`] is to be made of.
pub(crate) struct Plan {
    redis_url: String,
    database_url: String,
    directory: Option<TempDir>,
    more: Vec<(String, String)>,
}

impl Plan {
    /// The shared Redis, and a SQLite file.
    pub(crate) fn sqlite() -> Self {
        let directory = temp_dir("worker");
        let database_url = format!("sqlite://{}", directory.path().join("orders.db").display());
        Self {
            redis_url: RedisServer::shared().url(),
            database_url,
            directory: Some(directory),
            more: Vec::new(),
        }
    }

    /// The shared Redis and the shared PostgreSQL.
    pub(crate) fn postgres() -> Self {
        Self::postgres_on(PostgresServer::shared())
    }

    /// The shared Redis, and a PostgreSQL of the test's own.
    pub(crate) fn postgres_on(server: &PostgresServer) -> Self {
        let database_url = server.create_database();
        Self { database_url, directory: None, ..Self::sqlite() }
    }

    /// The shared Redis, and a PostgreSQL database that is reached through `line`.
    pub(crate) fn postgres_through(line: &SilentLine, database_url: &str) -> Self {
        let (rest, database) = database_url.rsplit_once('/').expect("a URL with a database");
        let (user, _) = rest.rsplit_once('@').expect("a URL with a user");
        let database_url = format!("{user}@{}/{database}", line.address);
        Self { database_url, directory: None, ..Self::sqlite() }
    }

    /// A Redis that is reached through `line`.
    pub(crate) fn redis_through(self, line: &SilentLine) -> Self {
        Self { redis_url: format!("redis://{}", line.address), ..self }
    }

    /// A Redis of the test's own.
    pub(crate) fn redis(self, server: &RedisServer) -> Self {
        Self { redis_url: server.url(), ..self }
    }

    /// One more setting; a later one replaces an earlier one.
    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        let variable = format!("FLASHSALE__{}", key.replace('.', "__").to_uppercase());
        self.more.push((variable, value.to_owned()));
        self
    }

    /// Entries of a consumer that holds them for a second are taken over.
    pub(crate) fn impatient(self) -> Self {
        self.with("worker.reclaim_idle", "1s").with("database.statement_timeout", "450ms")
    }

    pub(crate) async fn stand(self) -> Stand {
        let prefix = unique("worker");
        let ours = [
            ("FLASHSALE__REDIS__URL", self.redis_url.as_str()),
            ("FLASHSALE__REDIS__PREFIX", &prefix),
            ("FLASHSALE__DATABASE__URL", &self.database_url),
            ("FLASHSALE__DATABASE__CONNECT_TIMEOUT", "2s"),
            ("FLASHSALE__ADMIN__LISTEN", "127.0.0.1:0"),
            // A test that rebuilds must not meet a worker that does it too.
            ("FLASHSALE__WORKER__REBUILD", "manual"),
            ("FLASHSALE__WORKER__BLOCK", "200ms"),
            ("FLASHSALE__WORKER__TRIM_INTERVAL", "100ms"),
            ("FLASHSALE__WORKER__RETRY_MIN", "10ms"),
            ("FLASHSALE__WORKER__RETRY_MAX", "200ms"),
        ];
        let mut env: BTreeMap<String, String> =
            ours.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        env.extend(self.more);
        let settings =
            Settings::from_sources(None, env.clone()).expect("the test's settings are valid");
        let redis = connect::redis(&settings).expect("a URL of Redis");
        let database = connect::database(&settings).await.expect("the database can be reached");
        database.migrate().await.expect("an empty database can be migrated");
        let mut options = ConnectOptions::new(self.database_url);
        options.max_connections(3).sqlx_logging(false);
        let sql = sea_orm::Database::connect(options).await.expect("the test can connect");
        Stand {
            operations: Operations::new(redis.clone(), database.clone()),
            keys: Keys::new(prefix),
            client: redis::Client::open(self.redis_url).expect("a URL of Redis"),
            redis,
            database,
            sql,
            settings,
            env: env.into_iter().collect(),
            _directory: self.directory,
        }
    }
}

/// A deployment without programs.
pub(crate) struct Stand {
    pub(crate) operations: Operations,
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) sql: DatabaseConnection,
    pub(crate) settings: Settings,
    /// The same as environment variables, for programs.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) keys: Keys,
    client: redis::Client,
    _directory: Option<TempDir>,
}

/// The partition of a deployment that has only one.
pub(crate) fn only() -> Partition {
    Partition::new(0).expect("a partition")
}

pub(crate) fn user_id(id: &str) -> UserId {
    UserId::new(id).expect("a buyer's id")
}

pub(crate) fn home_of(sale: &Sale) -> Partition {
    sale.partition.expect("a published sale has a home")
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

/// Orders as their buyers were told of them.
pub(crate) fn receipts(prefix: &str, ids: &[OrderId]) -> Vec<Receipt> {
    let receipt = |(i, id): (usize, &OrderId)| Receipt {
        order_id: *id,
        user_id: user_id(&format!("{prefix}-{i}")),
    };
    ids.iter().enumerate().map(receipt).collect()
}

impl Stand {
    /// A published sale that is open now.
    pub(crate) async fn publish(&self, stock: i64) -> Sale {
        let sale = self.operations.create_sale(&new_sale(stock)).await.expect("a sale");
        self.operations.publish_sale(sale.id).await.expect("it can be published")
    }

    /// The buyers `<prefix>-0` to `<prefix>-<count - 1>` get an order each; their ids in that order.
    pub(crate) async fn admit(&self, sale: &Sale, prefix: &str, count: usize) -> Vec<OrderId> {
        let presses: Vec<_> = (0..count).map(|i| press(&format!("{prefix}-{i}"))).collect();
        let partition = home_of(sale);
        let mut connection = self.redis.admission_connection().expect("a connection");
        let mut ids = Vec::with_capacity(count);
        for presses in presses.chunks(ADMIT_BATCH) {
            // Units that came back are held back for a moment, until every gateway has asked again.
            let batch = eventually(SOON, "units that are not held back", async || {
                let batch = connection.admit(partition, sale.id, presses).await.expect("answered");
                let all_refused = batch.outcomes.iter().all(|o| *o == Err(Refusal::SoldOut));
                (!all_refused).then_some(batch)
            })
            .await;
            ids.extend(batch.outcomes.into_iter().map(|outcome| match outcome {
                Ok(admission) if !admission.replayed => admission.order_id,
                other => panic!("not admitted: {other:?}"),
            }));
        }
        ids
    }

    /// As [`Stand::admit`], a few at a time and in the background. Whoever gets no answer, or is
    /// told that the sale is not loaded, presses again with the same key.
    pub(crate) fn crowd(
        &self,
        sale: &Sale,
        prefix: &str,
        count: usize,
    ) -> JoinHandle<Vec<OrderId>> {
        const AT_ONCE: usize = 10;
        const PRESS_AGAIN: Duration = Duration::from_millis(50);
        let mut connection = self.redis.admission_connection().expect("a connection");
        let (partition, sale) = (sale.partition.expect("a home"), sale.id);
        let presses: Vec<_> = (0..count).map(|i| press(&format!("{prefix}-{i}"))).collect();
        tokio::spawn(async move {
            let gives_up = Instant::now() + SOON;
            let mut ids = Vec::with_capacity(count);
            for presses in presses.chunks(AT_ONCE) {
                loop {
                    let batch = connection.admit(partition, sale, presses).await;
                    let orders = batch.ok().and_then(|batch| {
                        batch.outcomes.into_iter().collect::<Result<Vec<_>, _>>().ok()
                    });
                    if let Some(orders) = orders {
                        ids.extend(orders.into_iter().map(|order| order.order_id));
                        break;
                    }
                    assert!(Instant::now() < gives_up, "the crowd is not served");
                    tokio::time::sleep(PRESS_AGAIN).await;
                }
            }
            ids
        })
    }

    /// Puts an entry of any content on the only partition's stream.
    pub(crate) async fn append(&self, fields: &[(&[u8], &[u8])]) -> String {
        let mut command = redis::cmd("XADD");
        command.arg(self.keys.orders(only())).arg("*");
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        command.query_async(&mut self.connection().await).await.expect("the stream takes it")
    }

    /// Reads up to `count` new entries of the only partition as the consumer `name`, at once.
    pub(crate) async fn read(&self, name: &str, count: usize) -> Vec<RawEntry> {
        self.read_of(only(), name, count).await
    }

    /// As [`Stand::read`], of any partition.
    pub(crate) async fn read_of(&self, home: Partition, name: &str, count: usize) -> Vec<RawEntry> {
        self.redis.ensure_group(home).await.expect("a group");
        let block = Duration::from_millis(10);
        let mut reader = self.redis.order_reader(home, name, block).await.expect("a reader");
        reader.read(count).await.expect("a reading")
    }

    /// A processor of the only partition that never gives up.
    pub(crate) fn processor(&self) -> Processor {
        self.processor_of(only())
    }

    /// As [`Stand::processor`], of any partition.
    pub(crate) fn processor_of(&self, home: Partition) -> Processor {
        let (redis, database) = (self.redis.clone(), self.database.clone());
        let settings = &self.settings.worker;
        let never = CancellationToken::new();
        Processor::new(redis, database, home, "test".to_owned(), settings, never)
    }

    /// A sale in each of two partitions, the first partition's first.
    pub(crate) async fn publish_in_both_partitions(&self, stock: i64) -> [Sale; 2] {
        let mut sales = [self.publish(stock).await, self.publish(stock).await];
        sales.sort_by_key(|sale| home_of(sale).number());
        assert_eq!(sales.each_ref().map(|sale| home_of(sale).number()), [0, 1]);
        sales
    }

    /// A worker of this deployment, at work.
    pub(crate) async fn worker(&self) -> Worker {
        let metrics = telemetry::init_metrics().expect("one recorder");
        let worker = OrderWorker::build(&self.settings, metrics).await.expect("a worker");
        let (admin, shutdown) = (AdminPort(worker.admin_addr()), Shutdown::new());
        let running = tokio::spawn(worker.run(shutdown.clone()));
        Worker { admin, shutdown, running }
    }

    /// Waits until every entry of the only partition is committed, acknowledged and trimmed.
    pub(crate) async fn settle(&self) {
        eventually(SOON, "an empty stream", async || {
            let left = (self.stream_length().await, self.pending().await);
            if left == (0, 0) { Ok(()) } else { Err(left) }
        })
        .await;
    }

    /// Waits until the database has `count` orders.
    pub(crate) async fn wait_for_rows(&self, count: i64) {
        eventually(SOON, &format!("{count} rows"), async || {
            let rows = self.rows().await;
            if rows == count { Ok(()) } else { Err(rows) }
        })
        .await;
    }

    /// How many rows `orders` has; -1 while the database cannot be asked.
    pub(crate) async fn rows(&self) -> i64 {
        self.try_value("SELECT count(*) FROM orders").await.unwrap_or(-1)
    }

    /// The ids of all rows that wait for payment.
    pub(crate) async fn open_ids(&self) -> HashSet<OrderId> {
        let ids: Vec<i64> =
            self.column("SELECT id FROM orders WHERE state = 'awaiting_payment'").await;
        ids.into_iter().map(|id| OrderId::from_i64(id).expect("an order id")).collect()
    }

    pub(crate) async fn stock_left(&self, sale: &Sale) -> i64 {
        let sql = format!("SELECT stock_left FROM sales WHERE id = {}", sale.id);
        self.try_value(&sql).await.expect("the sale is there")
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.sql.execute_unprepared(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn column<T: TryGetable>(&self, sql: &str) -> Vec<T> {
        let statement = Statement::from_string(self.sql.get_database_backend(), sql);
        let rows = self.sql.query_all_raw(statement).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.iter().map(|row| row.try_get_by_index(0).expect("a column")).collect()
    }

    pub(crate) async fn try_value<T: TryGetable>(&self, sql: &str) -> Option<T> {
        let statement = Statement::from_string(self.sql.get_database_backend(), sql);
        self.sql.query_one_raw(statement).await.ok()??.try_get_by_index(0).ok()
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.sql.get_database_backend() == sea_orm::DbBackend::Postgres
    }

    pub(crate) async fn dead(&self) -> Vec<DeadLetter> {
        self.redis.list_dead_letters(only()).await.expect("the dead letters can be read")
    }

    pub(crate) async fn stream_length(&self) -> i64 {
        self.ask(&["XLEN", &self.keys.orders(only())]).await
    }

    /// How many entries some consumer holds.
    pub(crate) async fn pending(&self) -> u64 {
        self.redis.backlog(only()).await.expect("answered").map_or(0, |backlog| backlog.pending)
    }

    /// The names of the group's consumers.
    pub(crate) async fn consumers(&self) -> Vec<String> {
        let key = self.keys.orders(only());
        let consumers: Vec<HashMap<String, redis::Value>> =
            self.ask(&["XINFO", "CONSUMERS", &key, flashsale_storage_redis::GROUP]).await;
        let name = |consumer: &HashMap<String, redis::Value>| {
            String::from_redis_value_ref(&consumer["name"]).expect("a name")
        };
        consumers.iter().map(name).collect()
    }

    /// Every held entry's id, consumer and delivery count.
    pub(crate) async fn held(&self) -> Vec<(String, String, u64)> {
        let key = self.keys.orders(only());
        let held: Vec<(String, String, u64, u64)> =
            self.ask(&["XPENDING", &key, flashsale_storage_redis::GROUP, "-", "+", "10000"]).await;
        held.into_iter().map(|(id, consumer, _, count)| (id, consumer, count)).collect()
    }

    /// Any command to Redis, over a new connection.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let answer = command.query_async(&mut self.connection().await).await;
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(crate) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let patient = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(SOON))
            .set_response_timeout(Some(SOON));
        let connection = self.client.get_multiplexed_async_connection_with_config(&patient).await;
        connection.expect("Redis answers")
    }
}

/// A worker of this process.
pub(crate) struct Worker {
    admin: AdminPort,
    shutdown: Shutdown,
    pub(crate) running: JoinHandle<anyhow::Result<()>>,
}

impl Worker {
    /// Asks it to end, as SIGTERM does, and waits for its last word.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.shutdown.request();
        let ended = tokio::time::timeout(SOON, self.running).await.expect("it ends");
        ended.expect("it does not panic")
    }

    pub(crate) fn ask_to_stop(&self) {
        self.shutdown.request();
    }

    /// See [`AdminPort::wait_for_readiness`].
    pub(crate) async fn wait_for_readiness(&self, wanted: bool) {
        self.admin.wait_for_readiness(wanted).await;
    }

    pub(crate) async fn readiness(&self) -> (bool, String) {
        self.admin.readiness().await.expect("an answer")
    }

    /// See [`AdminPort::metric`].
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        self.admin.metric(name, labels).await
    }
}

/// Where a worker says how it is.
pub(crate) struct AdminPort(pub(crate) SocketAddr);

impl AdminPort {
    /// Waits until it says that it is ready, or that it is not.
    pub(crate) async fn wait_for_readiness(&self, wanted: bool) {
        eventually(SOON, &format!("ready: {wanted}"), async || match self.readiness().await {
            Some((ready, _)) if ready == wanted => Ok(()),
            other => Err(other),
        })
        .await;
    }

    /// Whether it is ready, and its checks; `None` while nobody answers.
    pub(crate) async fn readiness(&self) -> Option<(bool, String)> {
        let answer = self.get("readyz").await?;
        Some((answer.status().is_success(), answer.text().await.unwrap_or_default()))
    }

    /// A metric's value, summed over those of its series that have all these `labels`; `None` while
    /// there is none.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        let text = self.get("metrics").await?.text().await.ok()?;
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, of) = series.split_once('{').unwrap_or((series, ""));
            (found == name && of.contains(labels)).then(|| value.parse::<f64>().ok())?
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    async fn get(&self, path: &str) -> Option<reqwest::Response> {
        // A proxy of the environment has no business with 127.0.0.1.
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        http.get(format!("http://{}/{path}", self.0)).send().await.ok()
    }
}

/// Runs what blocks its thread, such as stopping a server, beside everything else.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// A way to a server whose connections can go silent: they stay open, and nothing passes any more.
/// New connections are not concerned.
pub(crate) struct SilentLine {
    pub(crate) address: SocketAddr,
    port: Arc<AtomicU16>,
    silence: Arc<Mutex<CancellationToken>>,
}

impl SilentLine {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("is bound");
        let silence = Arc::new(Mutex::new(CancellationToken::new()));
        let port = Arc::new(AtomicU16::new(port));
        let (present, end) = (Arc::clone(&silence), Arc::clone(&port));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let port = end.load(Ordering::Relaxed);
                let silent = present.lock().expect("nobody panics").clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = silent.cancelled() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, port, silence }
    }

    /// New connections come to another server.
    pub(crate) fn lead_to(&self, port: u16) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// Silences the present connections.
    pub(crate) fn cut(&self) {
        let mut silence = self.silence.lock().expect("nobody panics");
        std::mem::replace(&mut *silence, CancellationToken::new()).cancel();
    }
}
