//! A deployment for each test: a prefix of its own on the shared Redis, and a plain connection that
//! looks behind the crate's back.
//!
//! Only a test that breaks, flushes or restarts the server starts one of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use flashsale_domain::{
    AdmissionRequest, EntryId, IdempotencyDigest, IdempotencyKey, Partition, Price, Refusal, Sale,
    SaleId, SaleMode, SaleState, UserId, Window,
};
use flashsale_storage_redis::{
    AdmissionBatch, AdmissionConnection, Keys, OrderReader, RawEntry, Redis, RedisConfig,
    RedisFault, decode,
};
use flashsale_test_support::{RedisServer, unique};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError};

/// 2024-01-01: the earliest moment that a window may open.
pub(crate) const LONG_AGO_MS: i64 = 1_704_067_200_000;
/// Some day in 2090.
pub(crate) const FAR_AHEAD_MS: i64 = 3_800_000_000_000;
/// For whatever should happen at once: only a broken program takes this long.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The text of the script as the crate puts it together, for calls that the crate never makes.
pub(crate) const ADMIT_TEXT: &str = concat!(
    include_str!("../../../../lua/lib/gate.lua"),
    include_str!("../../../../lua/lib/record.lua"),
    include_str!("../../../../lua/lib/order_id.lua"),
    include_str!("../../../../lua/lib/order_entry.lua"),
    include_str!("../../../../lua/admit.lua"),
);

/// What a buyer is told, in a form that is short to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Admitted(EntryId),
    Replayed(EntryId),
    AlreadyOrdered(EntryId),
    SoldOut,
    NotStarted,
    Ended,
    Paused,
    NotLoaded,
    ClockFault,
}

impl Outcome {
    /// The order of a buyer who was admitted.
    pub(crate) fn admitted(self) -> EntryId {
        match self {
            Self::Admitted(id) => id,
            other => panic!("not admitted: {other:?}"),
        }
    }
}

/// The outcomes of a batch, in its order.
pub(crate) fn outcomes(batch: &AdmissionBatch) -> Vec<Outcome> {
    batch
        .outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(admission) if admission.replayed => Outcome::Replayed(admission.order_id.entry()),
            Ok(admission) => Outcome::Admitted(admission.order_id.entry()),
            Err(Refusal::AlreadyOrdered(id)) => Outcome::AlreadyOrdered(id.entry()),
            Err(Refusal::SoldOut) => Outcome::SoldOut,
            Err(Refusal::NotStarted) => Outcome::NotStarted,
            Err(Refusal::Ended) => Outcome::Ended,
            Err(Refusal::Paused) => Outcome::Paused,
            Err(Refusal::NotLoaded) => Outcome::NotLoaded,
            Err(Refusal::ClockFault) => Outcome::ClockFault,
        })
        .collect()
}

/// The sale of most tests: number 42, one unit a buyer, open for all of this century.
pub(crate) fn sale(stock: i64) -> Sale {
    Sale {
        id: SaleId::from_i64(42).expect("positive"),
        title: "Voucher".into(),
        mode: SaleMode::Queued,
        state: SaleState::Published,
        stock_total: stock,
        stock_left: stock,
        window: Window::new(LONG_AGO_MS, FAR_AHEAD_MS).expect("a window"),
        per_buyer: 1,
        price: Price { amount: 9900, currency: "CNY".parse().expect("a currency") },
        payment_window_s: 900,
        late_payment: flashsale_domain::LatePayment::Reacquire,
        partition: None,
        epoch: 7,
        rehearsal: false,
    }
}

pub(crate) fn user(id: &str) -> UserId {
    UserId::new(id).expect("a buyer's id")
}

pub(crate) fn digest(key: &str) -> IdempotencyDigest {
    IdempotencyKey::new(key).expect("an idempotency key").digest()
}

/// A request without an idempotency key.
pub(crate) fn press(id: &str) -> AdmissionRequest {
    AdmissionRequest { user_id: user(id), digest: None, traceparent: None }
}

/// A request with one.
pub(crate) fn press_with_key(id: &str, key: &str) -> AdmissionRequest {
    AdmissionRequest { user_id: user(id), digest: Some(digest(key)), traceparent: None }
}

/// `count` different buyers.
pub(crate) fn crowd(count: usize) -> Vec<AdmissionRequest> {
    (0..count).map(|i| press(&format!("buyer-{i}"))).collect()
}

/// Fields as a reader gets them.
pub(crate) fn fields(pairs: &[(&[u8], &[u8])]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

pub(crate) fn ids(entries: &[RawEntry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).expect("a Redis URL");
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(Some(Duration::from_secs(10)))
        .set_connection_timeout(Some(Duration::from_secs(10)));
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    connected.expect("the server answers")
}

/// One partition under a prefix that no other test uses.
pub(crate) struct Deployment {
    pub(crate) redis: Redis,
    pub(crate) partition: Partition,
    keys: Keys,
    raw: MultiplexedConnection,
}

impl Deployment {
    /// On the shared server, with nothing in it: there is not even a gate.
    pub(crate) async fn empty() -> Self {
        Self::on(RedisServer::shared()).await
    }

    /// On the shared server, with an open gate and `sale` published.
    pub(crate) async fn selling(sale: &Sale) -> Self {
        Self::selling_on(RedisServer::shared(), sale).await
    }

    /// The same on a server of the test's own.
    pub(crate) async fn selling_on(server: &RedisServer, sale: &Sale) -> Self {
        let deployment = Self::on(server).await;
        deployment.open_gate().await;
        deployment.publish(sale).await;
        deployment
    }

    /// On any server, with nothing in it.
    pub(crate) async fn on(server: &RedisServer) -> Self {
        Self::with_response_timeout(server, Duration::from_secs(10)).await
    }

    /// The same with another patience than the generous one.
    pub(crate) async fn with_response_timeout(server: &RedisServer, timeout: Duration) -> Self {
        Self::with_url(server, server.url(), timeout).await
    }

    /// The same, where the crate finds the server by another URL.
    pub(crate) async fn with_url(server: &RedisServer, url: String, timeout: Duration) -> Self {
        let prefix = unique("fs");
        let redis = Redis::new(RedisConfig {
            url,
            prefix: prefix.clone(),
            partitions: 4,
            response_timeout: timeout,
            connect_timeout: Duration::from_secs(10),
            pool_max: 4,
        })
        .expect("a Redis URL");
        let partition = Partition::new(3).expect("a partition");
        Self { redis, partition, keys: Keys::new(prefix), raw: connect(server).await }
    }

    /// The same deployment with new connections, after the server was killed.
    pub(crate) async fn reconnected(self, server: &RedisServer) -> Self {
        Self { raw: connect(server).await, ..self }
    }

    /// The whole way of an empty partition to an open gate.
    pub(crate) async fn open_gate(&self) {
        let fence = self.redis.fence(self.partition).await.expect("fenced");
        let last_id = fence.last_id;
        assert!(self.redis.open_gate(fence, last_id).await.expect("answered"), "the gate opens");
    }

    pub(crate) async fn publish(&self, sale: &Sale) {
        let published = self.redis.publish_sale(self.partition, sale).await.expect("answered");
        assert!(published, "the sale is published");
    }

    pub(crate) fn gate_key(&self) -> String {
        self.keys.gate(self.partition)
    }

    pub(crate) fn sale_key(&self) -> String {
        self.keys.sale(self.partition, sale(1).id)
    }

    pub(crate) fn buyers_key(&self) -> String {
        self.keys.buyers(self.partition, sale(1).id)
    }

    pub(crate) fn orders_key(&self) -> String {
        self.keys.orders(self.partition)
    }

    pub(crate) fn dead_key(&self) -> String {
        self.keys.dead(self.partition)
    }

    pub(crate) fn direct_ids_key(&self) -> String {
        self.keys.direct_ids()
    }

    pub(crate) fn changes_channel(&self) -> String {
        self.keys.changes()
    }

    pub(crate) fn lock_key(&self, buyer: &str) -> String {
        self.keys.buyer_lock(sale(1).id, &user(buyer))
    }

    /// The keys of the admission script, in its order.
    pub(crate) fn admit_keys(&self) -> [String; 4] {
        [self.gate_key(), self.sale_key(), self.buyers_key(), self.orders_key()]
    }

    /// A connection as each of the gateway's threads has one.
    pub(crate) fn admission(&self) -> AdmissionConnection {
        self.redis.admission_connection().expect("the settings are sound")
    }

    pub(crate) async fn try_admit(
        &self,
        requests: &[AdmissionRequest],
    ) -> Result<AdmissionBatch, RedisFault> {
        self.admission().admit(self.partition, sale(1).id, requests).await
    }

    /// One call of the script for sale 42.
    pub(crate) async fn admit(&self, requests: &[AdmissionRequest]) -> Vec<Outcome> {
        outcomes(&self.try_admit(requests).await.expect("the script answers"))
    }

    pub(crate) async fn admit_one(&self, request: AdmissionRequest) -> Outcome {
        self.admit(&[request]).await[0]
    }

    pub(crate) async fn reader(&self, consumer: &str, block: Duration) -> OrderReader {
        self.redis.order_reader(self.partition, consumer, block).await.expect("connected")
    }

    /// Up to `count` new entries for `consumer`, without much waiting.
    pub(crate) async fn read(&self, consumer: &str, count: usize) -> Vec<RawEntry> {
        let mut reader = self.reader(consumer, Duration::from_millis(1)).await;
        reader.read(count).await.expect("the group is there")
    }

    /// Sends a command of one's own.
    pub(crate) async fn try_ask<T: FromRedisValue>(
        &self,
        command: &[&str],
    ) -> Result<T, RedisError> {
        let (name, args) = command.split_first().expect("a command has a name");
        redis::cmd(name).arg(args).query_async(&mut self.raw.clone()).await
    }

    /// The same where the answer is certain.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_ask(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    pub(crate) async fn set_field(&self, key: &str, field: &str, value: &str) {
        self.ask::<()>(&["HSET", key, field, value]).await;
    }

    /// Puts an entry with any bytes on the stream.
    pub(crate) async fn append(&self, pairs: &[(&[u8], &[u8])]) -> EntryId {
        let mut command = redis::cmd("XADD");
        command.arg(self.orders_key()).arg("*");
        for (name, value) in pairs {
            command.arg(*name).arg(*value);
        }
        let id: String = command.query_async(&mut self.raw.clone()).await.expect("appended");
        id.parse().expect("an entry id")
    }

    /// Puts `count` entries on the stream.
    pub(crate) async fn append_many(&self, count: usize) -> Vec<EntryId> {
        let mut ids = Vec::with_capacity(count);
        for i in 0..count {
            ids.push(self.append(&[(b"n", i.to_string().as_bytes())]).await);
        }
        ids
    }

    /// The ids on the stream.
    pub(crate) async fn stream_ids(&self) -> Vec<EntryId> {
        let entries: Vec<(String, Vec<String>)> =
            self.ask(&["XRANGE", &self.orders_key(), "-", "+"]).await;
        entries.iter().map(|(id, _)| id.parse().expect("an entry id")).collect()
    }

    /// `[stock, held]` as Redis has them.
    pub(crate) async fn units(&self) -> [i64; 2] {
        self.ask(&["HMGET", &self.sale_key(), "stock", "held"]).await
    }

    /// The slot that each order on the stream took.
    pub(crate) async fn slots_of(&self, buyer: &str) -> Vec<u16> {
        let mut slots = Vec::new();
        for id in self.stream_ids().await {
            let entry = self.redis.find_entry(self.partition, id).await.expect("answered");
            let order = decode(self.partition, &entry.expect("on the stream")).expect("an order");
            if order.user_id.as_str() == buyer {
                slots.push(order.slot);
            }
        }
        slots.sort_unstable();
        slots
    }

    /// Every key of this deployment's partition and what is in it: equal when nothing has changed.
    pub(crate) async fn contents(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut contents = BTreeMap::new();
        for key in self.admit_keys().into_iter().chain([self.dead_key()]) {
            let dump = self.ask(&["DUMP", &key]).await;
            contents.insert(key, dump);
        }
        contents
    }
}
