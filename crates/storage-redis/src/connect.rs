//! Connections: a pool for short commands, dedicated ones for admission and for blocking reads.
//!
//! A pooled connection costs a PING each time it is taken; admission cannot afford that, and a
//! blocking read would hold everybody else up behind it. So both own their connections.

use std::time::Duration;

use flashsale_domain::Partition;
use rand::RngExt as _;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::primary::Primary;
use crate::{AdmissionConnection, Keys, NotFound, OrderReader, RedisFault};

/// Where Redis is and how to treat it.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port[/db]`, or
    /// `redis+sentinel://[user:password@]host:port[,host:port...]/service[/db]`.
    pub url: String,
    /// Prefix of every key.
    pub prefix: String,
    /// How many partitions the deployment has.
    pub partitions: u16,
    /// How long a command may take before its outcome counts as unknown.
    pub response_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// The most pooled connections.
    pub pool_max: usize,
}

/// Access to the deployment's Redis. Cheap to clone.
#[derive(Clone)]
pub struct Redis {
    pub(crate) primary: Primary,
    pub(crate) config: RedisConfig,
    pub(crate) keys: Keys,
}

impl Redis {
    /// Prepares access; connects only when something is asked.
    ///
    /// # Errors
    /// When the URL is not one of Redis.
    pub fn new(config: RedisConfig) -> Result<Self, RedisFault> {
        let primary = Primary::new(&config)?;
        let keys = Keys::new(config.prefix.clone());
        Ok(Self { primary, config, keys })
    }

    /// Every partition of the deployment.
    pub fn partitions(&self) -> impl Iterator<Item = Partition> + Clone + use<> {
        Partition::all(self.config.partitions)
    }

    /// A connection of one's own for admission. Connects in the background and reconnects by itself;
    /// a command on a broken connection fails, it is never sent twice.
    ///
    /// # Errors
    /// When the connection's settings are refused.
    pub fn admission_connection(&self) -> Result<AdmissionConnection, RedisFault> {
        AdmissionConnection::new(&self.primary, &self.config, self.keys.clone())
    }

    /// A reader of one partition's orders stream, with a connection of its own whose timeout lies
    /// above `block`: the client must not give up before the server does, or the server hands the
    /// next entry to nobody.
    ///
    /// # Errors
    /// When Redis cannot be reached.
    pub async fn order_reader(
        &self,
        partition: Partition,
        consumer: &str,
        block: Duration,
    ) -> Result<OrderReader, RedisFault> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(block + self.config.response_timeout))
            .set_connection_timeout(Some(self.config.connect_timeout));
        let server = self.primary.server().await?;
        let connected = server.client.get_multiplexed_async_connection_with_config(&config).await;
        let connection: MultiplexedConnection = connected.inspect_err(|_| self.primary.doubt())?;
        let key = self.keys.orders(partition);
        let at = (self.primary.clone(), server);
        Ok(OrderReader::new(connection, at, key, consumer.to_owned(), block))
    }

    /// Asks the sentinels, where there are some, whether they know the service of the URL: what they
    /// have never heard of does not come by waiting.
    ///
    /// # Errors
    /// When they answer, and do not know it.
    pub async fn check_service(&self) -> Result<(), RedisFault> {
        match self.primary.server().await {
            Err(unknown @ RedisFault::Primary(NotFound::UnknownService(_))) => Err(unknown),
            _ => Ok(()),
        }
    }

    /// Asks Redis whether it is there.
    ///
    /// # Errors
    /// When it is not.
    pub async fn ping(&self) -> Result<(), RedisFault> {
        let mut connection = self.connection().await?;
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        Ok(())
    }

    /// Redis's clock: milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn time_ms(&self) -> Result<i64, RedisFault> {
        let mut connection = self.connection().await?;
        let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    /// How the pool is used at this moment; `None` while sentinels have named no primary yet.
    pub fn pool_use(&self) -> Option<PoolUse> {
        let status = self.primary.pool_status()?;
        let idle = status.available.min(status.size);
        Some(PoolUse { busy: status.size - idle, idle, waiting: status.waiting })
    }

    pub(crate) async fn connection(&self) -> Result<deadpool_redis::Connection, RedisFault> {
        let server = self.primary.server().await?;
        Ok(server.pool.get().await.inspect_err(|_| self.primary.doubt())?)
    }
}

/// How the pool of connections is used: `redis.pool_max` is the most of both kinds together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// Connections in somebody's hands.
    pub busy: usize,
    /// Connections that nobody uses.
    pub idle: usize,
    /// Those who wait for a connection.
    pub waiting: usize,
}

/// 128 random bits: who holds a lock or a fence. Nobody can guess another's.
pub(crate) fn random_token() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

/// A duration as Redis takes it.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
