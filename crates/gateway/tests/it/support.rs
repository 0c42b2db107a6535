//! A whole deployment for each test: a gateway that listens on a free port, and what a test needs to
//! ask it, to work for it and to look behind it.
//!
//! Gateway and order-worker run as the programs run them, each on a thread and a runtime of its own,
//! and are asked to leave when the test is over.

use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashsale_bootstrap::telemetry::{PrometheusHandle, init_metrics};
use flashsale_bootstrap::{Settings, Shutdown};
use flashsale_domain::{NewSale, OrderId, Partition, Price, SaleId, SaleMode, UserId, Window};
use flashsale_gateway::Gateway;
use flashsale_operations::{Operations, Receipt, connect};
use flashsale_order_worker::OrderWorker;
use flashsale_storage_redis::{Keys, Redis};
use flashsale_storage_sql::Database;
use flashsale_test_support::{
    PostgresServer, Program, RedisServer, TempDir, eventually, free_port, temp_dir, unique,
};
use flashsale_webhooks::{ID_HEADER, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// What HS256 gateways check tokens with.
pub(crate) const SECRET: &str = "a secret of at least thirty-two bytes";
/// What the payment provider signs with.
pub(crate) const PAYMENT_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// For whatever should happen at once: only a broken program takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How soon a gateway follows the operator: within a second, and half a one for a busy machine.
pub(crate) const A_SECOND: Duration = Duration::from_millis(1500);
/// 2024-01-01: the earliest moment that a window may open.
pub(crate) const LONG_AGO_MS: i64 = 1_704_067_200_000;
/// Some day in 2090.
pub(crate) const FAR_AHEAD_MS: i64 = 3_800_000_000_000;

/// A program that runs beside the test. Dropping it asks it to leave; [`Running::stop`] waits for it.
pub(crate) struct Running {
    shutdown: Shutdown,
    ended: oneshot::Receiver<anyhow::Result<()>>,
}

impl Running {
    /// Runs `program`, which says `ready` once it may be asked. `keep` lives as long as it does.
    async fn start<R, F>(
        keep: Arc<TempDir>,
        program: impl FnOnce(oneshot::Sender<R>, Shutdown) -> F + Send + 'static,
    ) -> (R, Self)
    where
        R: Send + 'static,
        F: Future<Output = anyhow::Result<()>>,
    {
        let shutdown = Shutdown::new();
        let (ready, is_ready) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let stop = shutdown.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made");
            let result = runtime.block_on(program(ready, stop));
            drop(runtime);
            drop(keep);
            // Nobody may wait for it any more.
            let _ = end.send(result);
        });
        let mut running = Self { shutdown, ended };
        match is_ready.await {
            Ok(ready) => (ready, running),
            Err(_) => panic!("the program did not start: {:?}", (&mut running.ended).await),
        }
    }

    /// Asks the program to leave.
    pub(crate) fn request_stop(&self) {
        self.shutdown.request();
    }

    /// Asks the program to leave and waits until it has, in order and within `deadline`.
    pub(crate) async fn stop(mut self, deadline: Duration) {
        self.request_stop();
        let ended = timeout(deadline, &mut self.ended).await;
        let ended = ended.unwrap_or_else(|_| panic!("it did not leave within {deadline:?}"));
        ended.expect("its thread did not panic").expect("it left in order");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.request();
    }
}

/// Where a gateway listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// A gateway, and access to its stores.
pub(crate) struct TestApp {
    pub(crate) at: Addresses,
    pub(crate) gateway: Running,
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) operations: Operations,
    pub(crate) keys: Keys,
    pub(crate) client: Client,
    settings: Settings,
    variables: Vec<(String, String)>,
    directory: Arc<TempDir>,
}

impl TestApp {
    /// On SQLite and the shared Redis.
    pub(crate) async fn spawn() -> Self {
        Self::spawn_with(&[]).await
    }

    /// On a database of the shared PostgreSQL.
    pub(crate) async fn spawn_on_postgres() -> Self {
        let url = PostgresServer::shared().create_database();
        Self::spawn_with(&[("database.url", &url)]).await
    }

    /// On a Redis of the test's own.
    pub(crate) async fn spawn_on(redis: &RedisServer, settings: &[(&str, &str)]) -> Self {
        Self::spawn_with(&[&[("redis.url", redis.url().as_str())], settings].concat()).await
    }

    /// With other settings, named as in the defaults (`http.workers`).
    pub(crate) async fn spawn_with(other: &[(&str, &str)]) -> Self {
        let directory = Arc::new(temp_dir("gateway"));
        let prefix = unique("gateway");
        let sqlite = format!("sqlite://{}", directory.path().join("flashsale.db").display());
        let redis = RedisServer::shared().url();
        let mut chosen = vec![
            ("http.listen", "127.0.0.1:0"),
            ("http.workers", "2"),
            ("admin.listen", "127.0.0.1:0"),
            ("redis.url", &redis),
            ("redis.prefix", &prefix),
            ("database.url", &sqlite),
            ("worker.block", "100ms"),
            ("worker.retry_max", "200ms"),
            ("payment.webhook_secret", PAYMENT_SECRET),
        ];
        if !other.iter().any(|(key, _)| *key == "auth.jwt_public_key_file") {
            chosen.push(("auth.jwt_secret", SECRET));
        }
        chosen.retain(|(key, _)| other.iter().all(|(other, _)| other != key));
        chosen.extend(other);
        let variables = chosen.iter().map(|(key, value)| {
            let name = key.to_ascii_uppercase().replace('.', "__");
            (format!("FLASHSALE__{name}"), (*value).to_owned())
        });
        let variables: Vec<_> = variables.collect();
        let settings = Settings::from_sources(None, variables.clone()).expect("they are sound");

        let redis = connect::redis(&settings).expect("a URL of Redis");
        let database = connect::database(&settings).await.expect("the database can be reached");
        database.migrate().await.expect("the schema can be made");
        let (at, gateway) = start_gateway(&settings, &directory).await;
        Self {
            at,
            gateway,
            operations: Operations::new(redis.clone(), database.clone()),
            keys: Keys::new(prefix),
            redis,
            database,
            client: client(),
            settings,
            variables,
            directory,
        }
    }

    /// Another gateway of the same deployment.
    pub(crate) async fn start_another_gateway(&self) -> (Addresses, Running) {
        start_gateway(&self.settings, &self.directory).await
    }

    /// Another gateway of the same deployment, as a program of its own: for what only a process has,
    /// a log and an exit code.
    pub(crate) async fn start_gateway_program(&self) -> (Addresses, Program) {
        let (at, program) = self.start_gateway_program_with(&[]);
        // It listens before it serves, so a connection alone says nothing.
        let url = format!("http://{}/api/v1/sales", at.http);
        eventually(SOON, "the program serves", async || {
            try_send(self.client.get(&url)).await.is_ok_and(|answer| answer.status == 200)
        })
        .await;
        (at, program)
    }

    /// The same with these variables on top, and not waited for.
    pub(crate) fn start_gateway_program_with(
        &self,
        more: &[(&str, String)],
    ) -> (Addresses, Program) {
        let free = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let at = Addresses { http: free(), admin: free() };
        let mut builder = Program::builder(env!("CARGO_BIN_EXE_gateway"));
        for (name, value) in &self.variables {
            builder = builder.env(name, value);
        }
        let program = builder
            .env("FLASHSALE__HTTP__LISTEN", at.http.to_string())
            .env("FLASHSALE__ADMIN__LISTEN", at.admin.to_string())
            .envs(more)
            .start();
        (at, program)
    }

    /// An order-worker of the same deployment.
    pub(crate) async fn start_worker(&self) -> Running {
        let settings = self.settings.clone();
        let keep = Arc::clone(&self.directory);
        let ((), running) = Running::start(keep, async move |ready, shutdown| {
            let worker = OrderWorker::build(&settings, metrics()).await?;
            let _ = ready.send(());
            worker.run(shutdown).await
        })
        .await;
        running
    }

    /// Publishes a sale and waits until the gateway knows it.
    pub(crate) async fn publish(&self, new: &NewSale) -> SaleId {
        let sale = self.operations.create_sale(new).await.expect("a sound sale").id;
        self.operations.publish_sale(sale).await.expect("it can be published");
        self.wait_until_known(self.at, sale).await;
        sale
    }

    /// A queued sale of `stock` units, open now, one a buyer.
    pub(crate) async fn sale(&self, stock: i64) -> SaleId {
        self.publish(&new_sale(stock)).await
    }

    /// The same as a direct sale.
    pub(crate) async fn direct_sale(&self, stock: i64) -> SaleId {
        self.publish(&NewSale { mode: SaleMode::Direct, ..new_sale(stock) }).await
    }

    pub(crate) async fn wait_until_known(&self, at: Addresses, sale: SaleId) {
        let url = format!("http://{}/api/v1/sales/{sale}", at.http);
        eventually(SOON, "the gateway knows the sale", async || {
            send(self.client.get(&url)).await.status == 200
        })
        .await;
    }

    /// A request without a token.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.request_at(self.at, method, path)
    }

    /// The same of another gateway.
    pub(crate) fn request_at(&self, at: Addresses, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", at.http))
    }

    /// A buyer's wish to have a unit, not sent yet.
    pub(crate) fn press(&self, sale: impl Display, buyer: &str) -> RequestBuilder {
        self.press_at(self.at, sale, buyer)
    }

    /// The same at another gateway.
    pub(crate) fn press_at(
        &self,
        at: Addresses,
        sale: impl Display,
        buyer: &str,
    ) -> RequestBuilder {
        let path = format!("/api/v1/sales/{sale}/orders");
        self.request_at(at, Method::POST, &path).bearer_auth(token(buyer))
    }

    /// Asks for a unit without a key, and waits until the order is a row.
    pub(crate) async fn place_committed(&self, sale: SaleId, buyer: &str) -> OrderId {
        let id = self.place(sale, buyer).await.receipt();
        self.wait_until_committed(buyer, id).await;
        id
    }

    /// Gives an order up.
    pub(crate) async fn cancel(&self, buyer: &str, id: impl Display) -> Answer {
        self.cancel_at(self.at, buyer, id).await
    }

    /// The same at another gateway.
    pub(crate) async fn cancel_at(&self, at: Addresses, buyer: &str, id: impl Display) -> Answer {
        let path = format!("/api/v1/orders/{id}/cancel");
        send(self.request_at(at, Method::POST, &path).bearer_auth(token(buyer))).await
    }

    /// Reports that an order of [`new_sale`] was paid for.
    pub(crate) async fn pay(&self, webhook_id: &str, id: OrderId) -> Answer {
        self.pay_at(self.at, webhook_id, id).await
    }

    /// The same to another gateway.
    pub(crate) async fn pay_at(&self, at: Addresses, webhook_id: &str, id: OrderId) -> Answer {
        let body = payment(id, 9_900, "CNY");
        send(webhook(self.request_at(at, Method::POST, WEBHOOK), webhook_id, &body)).await
    }

    /// Follows an order by events.
    pub(crate) async fn follow(&self, buyer: &str, id: OrderId) -> Events {
        let path = format!("/api/v1/orders/{id}/events");
        Events::open(self.request(Method::GET, &path).bearer_auth(token(buyer))).await
    }

    /// Sends a statement to the database past all code of ours.
    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        use sea_orm::ConnectionTrait as _;
        use secrecy::ExposeSecret as _;
        let url = self.settings.database.url.expose_secret();
        let connection = sea_orm::Database::connect(url).await.expect("the database answers");
        let done = connection.execute_unprepared(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
    }

    /// The one number that a query gives, read past all code of ours.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        use sea_orm::ConnectionTrait as _;
        use secrecy::ExposeSecret as _;
        let url = self.settings.database.url.expose_secret();
        let connection = sea_orm::Database::connect(url).await.expect("the database answers");
        let statement = sea_orm::Statement::from_string(connection.get_database_backend(), sql);
        let row = connection.query_one_raw(statement).await.expect("answered").expect("a row");
        row.try_get_by_index(0).expect("a number")
    }

    /// How many times a script has been called in the app's own Redis.
    pub(crate) fn script_calls(&self) -> u64 {
        let stats: String = self.redis_command(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Asks for a unit without a key.
    pub(crate) async fn place(&self, sale: impl Display, buyer: &str) -> Answer {
        send(self.press(sale, buyer)).await
    }

    /// Asks for a unit with a key.
    pub(crate) async fn place_with_key(
        &self,
        sale: impl Display,
        buyer: &str,
        key: &str,
    ) -> Answer {
        send(self.press(sale, buyer).header("Idempotency-Key", key)).await
    }

    /// Reads what everybody may.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    /// Reads as a buyer.
    pub(crate) async fn get_as(&self, buyer: &str, path: &str) -> Answer {
        send(self.request(Method::GET, path).bearer_auth(token(buyer))).await
    }

    /// A buyer's order.
    pub(crate) async fn order(&self, buyer: &str, id: OrderId) -> Answer {
        self.get_as(buyer, &format!("/api/v1/orders/{id}")).await
    }

    /// Waits until a buyer's order is a row.
    pub(crate) async fn wait_until_committed(&self, buyer: &str, id: OrderId) {
        let answer = self.get_as(buyer, &format!("/api/v1/orders/{id}?wait=20")).await;
        assert_eq!(answer.body["state"], "awaiting_payment", "{answer:?}");
    }

    /// Asks the admin port.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        send(self.client.get(format!("http://{}{path}", self.at.admin))).await
    }

    /// Sends bytes on a connection of their own and returns all that comes back until it is closed.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let stream = TcpStream::connect(self.at.http).await.expect("the gateway listens");
        let (mut reading, mut writing) = stream.into_split();
        let received = async {
            let mut received = Vec::new();
            // A reset after the answer is a way to close.
            let _ = reading.read_to_end(&mut received).await;
            String::from_utf8_lossy(&received).into_owned()
        };
        // The gateway may answer, and stop reading, before it has read all.
        let sent = async {
            let _ = writing.write_all(bytes).await;
        };
        let both = async { tokio::join!(received, sent).0 };
        timeout(SOON, both).await.expect("the gateway answers or closes the connection")
    }

    /// Sends a command to Redis past all code of ours.
    pub(crate) fn redis_command<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        use secrecy::ExposeSecret as _;
        let client = redis::Client::open(self.settings.redis.url.expose_secret());
        let mut connection =
            client.and_then(|client| client.get_connection()).expect("Redis can be reached");
        let (name, arguments) = command.split_first().expect("a command has a name");
        redis::cmd(name).arg(arguments).query(&mut connection).expect("Redis does it")
    }

    /// Lets every script of the app's own Redis wait until [`TestApp::resume_scripts`]; what only
    /// reads is answered meanwhile.
    pub(crate) fn hold_scripts(&self) {
        let _: () = self.redis_command(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    }

    /// Lets them go on.
    pub(crate) fn resume_scripts(&self) {
        let _: () = self.redis_command(&["CLIENT", "UNPAUSE"]);
    }

    /// Waits until so many connections of the app's own Redis have a script that is held.
    pub(crate) async fn wait_until_held(&self, connections: u32) {
        eventually(SOON, "the scripts are held", async || {
            let clients: String = self.redis_command(&["INFO", "clients"]);
            clients.lines().any(|line| line == format!("blocked_clients:{connections}"))
        })
        .await;
    }

    /// The buyer's open and closed orders of a queued sale, as Redis remembers them.
    pub(crate) async fn orders_in_record(&self, sale: SaleId, buyer: &str) -> usize {
        let record = self.redis.find_record(home(), sale, &user(buyer)).await;
        record.expect("Redis answers").map_or(0, |record| record.items.len())
    }

    /// Checks every invariant of the sale: each receipt is a row under its buyer, and every unit is
    /// accounted for.
    pub(crate) async fn assert_sound(&self, sale: SaleId, receipts: &[(OrderId, String)]) {
        let receipts: Vec<Receipt> = receipts
            .iter()
            .map(|(order_id, buyer)| Receipt { order_id: *order_id, user_id: user(buyer) })
            .collect();
        let audit = self.operations.audit_sale(sale, &receipts).await.expect("both stores answer");
        assert!(audit.is_clean(), "{audit:?}");
        assert!(audit.ledger.is_balanced(), "{audit:?}");
        assert_eq!(audit.receipts_checked, receipts.len());
    }
}

async fn start_gateway(settings: &Settings, keep: &Arc<TempDir>) -> (Addresses, Running) {
    let settings = settings.clone();
    Running::start(Arc::clone(keep), async move |ready, shutdown| {
        let gateway = Gateway::build(&settings, metrics()).await?;
        let _ = ready.send(Addresses { http: gateway.http_addr()?, admin: gateway.admin_addr() });
        gateway.run(shutdown).await
    })
    .await
}

/// The recorder, which all programs of this process share.
fn metrics() -> PrometheusHandle {
    init_metrics().expect("a recorder can be installed")
}

/// A client that gives up long after every timeout of the gateway.
pub(crate) fn client() -> Client {
    Client::builder().timeout(Duration::from_secs(60)).build().expect("a client can be built")
}

/// A queued sale of `stock` units, open now, one a buyer.
pub(crate) fn new_sale(stock: i64) -> NewSale {
    NewSale {
        title: "Voucher".to_owned(),
        mode: SaleMode::Queued,
        stock,
        window: Window::new(LONG_AGO_MS, FAR_AHEAD_MS).expect("a window"),
        per_buyer: 1,
        price: Price { amount: 9_900, currency: "CNY".parse().expect("a currency") },
        payment_window_s: 900,
        late_payment: flashsale_domain::LatePayment::Reacquire,
    }
}

/// From `opens` to `closes`, in milliseconds from now.
pub(crate) fn window_from_now(opens: i64, closes: i64) -> Window {
    Window::new(now_ms() + opens, now_ms() + closes).expect("a window")
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("fits for long")
}

pub(crate) fn user(id: &str) -> UserId {
    UserId::new(id).expect("a buyer's id")
}

/// Where payments are reported.
pub(crate) const WEBHOOK: &str = "/api/v1/payments/webhook";

/// The body of a report that an order was paid for.
pub(crate) fn payment(id: OrderId, amount: i64, currency: &str) -> String {
    let data = json!({ "order_id": id, "amount": amount, "currency": currency });
    json!({ "type": "payment.succeeded", "data": data }).to_string()
}

/// A report that is signed as it should be, now.
pub(crate) fn webhook(request: RequestBuilder, webhook_id: &str, body: &str) -> RequestBuilder {
    let secrets = Secrets::parse(PAYMENT_SECRET).expect("a secret");
    let now_s = now_ms() / 1000;
    request
        .header(ID_HEADER, webhook_id)
        .header(TIMESTAMP_HEADER, now_s.to_string())
        .header(SIGNATURE_HEADER, secrets.sign(webhook_id, now_s, body.as_bytes()))
        .body(body.to_owned())
}

/// How often a test goes round: `FLASHSALE_TEST_ROUNDS` where it is set, for a longer run.
pub(crate) fn rounds(default: usize) -> usize {
    let chosen = std::env::var("FLASHSALE_TEST_ROUNDS");
    chosen.map_or(default, |text| text.parse().expect("FLASHSALE_TEST_ROUNDS is a number"))
}

/// The one partition of a test's deployment.
pub(crate) fn home() -> Partition {
    Partition::new(0).expect("a partition")
}

/// A good token of a buyer.
pub(crate) fn token(buyer: &str) -> String {
    let secret = EncodingKey::from_secret(SECRET.as_bytes()).expect("a secret");
    sign(Algorithm::HS256, &secret, &claims(buyer))
}

/// What a good token says.
pub(crate) fn claims(buyer: &str) -> Value {
    json!({ "sub": buyer, "exp": now_ms() / 1000 + 3600 })
}

/// A token, good or not.
pub(crate) fn sign(algorithm: Algorithm, key: &EncodingKey, claims: &Value) -> String {
    encode(&Header::new(algorithm), claims, key).expect("can be signed")
}

/// What the gateway answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    /// Null where the body is not JSON.
    pub(crate) body: Value,
}

impl Answer {
    /// A header that comes once.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().map(|value| value.to_str().expect("is text"));
        assert!(values.next().is_none(), "{name} comes twice: {self:?}");
        value
    }

    /// Status and slug of a problem in due form.
    pub(crate) fn problem(&self) -> (u16, &str) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.body["status"], self.status, "{self:?}");
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self:?}");
        assert_ne!(self.body["title"].as_str().expect("has a title"), "");
        let kind = self.body["type"].as_str().expect("has a type");
        (self.status, kind.strip_prefix("/problems/").expect("names a problem"))
    }

    /// Seconds after which to try again.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|seconds| seconds.parse().expect("whole seconds"))
    }

    /// The order of an answer that says yes, in due form.
    pub(crate) fn receipt(&self) -> OrderId {
        let state = match self.status {
            202 => "queued",
            201 => "awaiting_payment",
            _ => panic!("not a yes: {self:?}"),
        };
        assert_eq!(self.body["state"], state, "{self:?}");
        let id = self.body["order_id"].as_str().expect("the id is a string");
        assert_eq!(self.header("location"), Some(format!("/api/v1/orders/{id}").as_str()));
        assert_eq!(self.header("cache-control"), Some("no-store"));
        id.parse().expect("is an order's id")
    }

    /// Whether it says that the key was answered before.
    pub(crate) fn is_replay(&self) -> bool {
        match self.header("idempotency-replayed") {
            None => false,
            Some("true") => true,
            Some(other) => panic!("idempotency-replayed: {other}"),
        }
    }
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Event {
    /// The order's state that a `state` event tells.
    pub(crate) fn state(&self) -> &str {
        assert_eq!(self.name, "state", "{self:?}");
        let state = self.data["state"].as_str().expect("has a state");
        assert_eq!(self.id, state, "{self:?}");
        state
    }
}

/// A stream of events that is being read.
pub(crate) struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    /// Opens a stream, which begins in due form.
    pub(crate) async fn open(request: RequestBuilder) -> Self {
        let response = request.send().await.expect("the gateway answers");
        assert_eq!(response.status(), 200, "{response:?}");
        let header = |name: &str| response.headers().get(name).map(|value| value.as_bytes());
        assert_eq!(header("content-type"), Some(&b"text/event-stream"[..]));
        assert_eq!(header("cache-control"), Some(&b"no-store"[..]));
        assert_eq!(header("x-accel-buffering"), Some(&b"no"[..]));
        let mut events = Self { response, text: String::new() };
        assert_eq!(events.block().await.as_deref(), Some("retry: 2000"));
        events
    }

    /// The next block, whatever it is; `None` when the stream has ended in order.
    pub(crate) async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                self.text = rest.to_owned();
                return Some(block);
            }
            let chunk = timeout(SOON, self.response.chunk()).await.expect("something comes");
            match chunk.expect("the stream ends in order") {
                Some(bytes) => self.text.push_str(std::str::from_utf8(&bytes).expect("is text")),
                None => {
                    assert_eq!(self.text, "", "it ended within a block");
                    return None;
                }
            }
        }
    }

    /// The next event; `None` when the stream has ended in order.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let block = self.block().await?;
            if block == ":" {
                continue;
            }
            let field = |name: &str| {
                let mut lines = block.lines().filter_map(|line| line.strip_prefix(name));
                let value = lines.next().unwrap_or_else(|| panic!("no {name} in {block:?}"));
                assert_eq!(lines.next(), None, "{block:?}");
                value.to_owned()
            };
            let data = serde_json::from_str(&field("data: ")).expect("the data is JSON");
            return Some(Event { id: field("id: "), name: field("event: "), data });
        }
    }

    /// The next event of an order's stream, which is there.
    pub(crate) async fn next_state(&mut self) -> String {
        self.next().await.expect("the stream goes on").state().to_owned()
    }
}

/// Sends a request that is answered.
pub(crate) async fn send(request: RequestBuilder) -> Answer {
    try_send(request).await.expect("the gateway answers")
}

/// Sends a request that may fail on its way.
pub(crate) async fn try_send(request: RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { status, headers, text, body })
}
