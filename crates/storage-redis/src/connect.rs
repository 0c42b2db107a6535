//! Connections: a pool for short commands, dedicated ones for admission and for blocking reads.
//!
//! A pooled connection costs a PING each time it is taken; admission cannot afford that, and a
//! blocking read would hold everybody else up behind it. So both own their connections.

use std::time::Duration;

use deadpool_redis::{Manager, Pool, Runtime};
use flashsale_domain::Partition;
use rand::RngExt as _;
use redis::AsyncConnectionConfig;
use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};

use crate::{AdmissionConnection, Keys, OrderReader, RedisFault};

/// Where Redis is and how to treat it.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[user:password@]host:port[/db]`.
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
    pub(crate) client: redis::Client,
    pool: Pool,
    pub(crate) config: RedisConfig,
    pub(crate) keys: Keys,
}

impl Redis {
    /// Prepares access; connects only when something is asked.
    ///
    /// # Errors
    /// When the URL is not one of Redis.
    pub fn new(config: RedisConfig) -> Result<Self, RedisFault> {
        let client = redis::Client::open(config.url.as_str())?;
        let connection = AsyncConnectionConfig::new()
            .set_response_timeout(Some(config.response_timeout))
            .set_connection_timeout(Some(config.connect_timeout));
        let manager = Manager::new_with_config(config.url.as_str(), connection)?;
        let pool = Pool::builder(manager)
            .max_size(config.pool_max)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(config.response_timeout))
            .create_timeout(Some(config.connect_timeout))
            .recycle_timeout(Some(config.response_timeout))
            .build()
            .expect("a runtime is set, which is all that building needs");
        let keys = Keys::new(config.prefix.clone());
        Ok(Self { client, pool, config, keys })
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
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(self.config.response_timeout))
            .set_connection_timeout(Some(self.config.connect_timeout))
            .set_number_of_retries(1)
            .set_max_delay(Duration::from_millis(200));
        let manager = ConnectionManager::new_lazy_with_config(self.client.clone(), config)?;
        Ok(AdmissionConnection::new(manager, self.keys.clone()))
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
        let connection: MultiplexedConnection =
            self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(OrderReader::new(connection, self.keys.orders(partition), consumer.to_owned(), block))
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

    pub(crate) async fn connection(&self) -> Result<deadpool_redis::Connection, RedisFault> {
        Ok(self.pool.get().await?)
    }
}

/// 128 random bits: who holds a lock or a fence. Nobody can guess another's.
pub(crate) fn random_token() -> String {
    format!("{:032x}", rand::rng().random::<u128>())
}

/// A duration as Redis takes it.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
