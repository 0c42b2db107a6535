//! Commands that only a drill sends: they break what every operation of ours keeps.

use std::time::Duration;

use flashsale_domain::{EntryId, Partition};
use flashsale_storage_redis::{GROUP, Keys};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisError};

use crate::damage::Fields;

/// Redis, as somebody with a prompt sees it.
pub(crate) struct RawRedis {
    client: redis::Client,
    keys: Keys,
}

/// An entry in the hands of a consumer.
pub(crate) struct Pending {
    pub(crate) id: EntryId,
    pub(crate) consumer: String,
}

/// More than any stream of a drill holds.
const MANY: usize = 100_000;

impl RawRedis {
    pub(crate) fn new(url: &str, keys: Keys) -> anyhow::Result<Self> {
        Ok(Self { client: redis::Client::open(url)?, keys })
    }

    /// A fresh one each time: the last one may have gone with a killed server.
    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
        Ok(self.ask_redis(words).await?)
    }

    async fn ask_redis<T: FromRedisValue>(&self, words: &[&str]) -> Result<T, RedisError> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut self.connection().await?).await
    }

    /// `FLUSHALL`.
    pub(crate) async fn flush_all(&self) -> anyhow::Result<()> {
        self.ask(&["FLUSHALL"]).await
    }

    /// Cuts the connections of all replicas.
    pub(crate) async fn cut_replicas(&self) -> anyhow::Result<()> {
        let cut: u64 = self.ask(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
        anyhow::ensure!(cut > 0, "there is no replica to cut off");
        Ok(())
    }

    /// `SCRIPT FLUSH`.
    pub(crate) async fn flush_scripts(&self) -> anyhow::Result<()> {
        self.ask(&["SCRIPT", "FLUSH"]).await
    }

    /// Sets `maxmemory`, in bytes; 0 is no limit.
    pub(crate) async fn limit_memory(&self, bytes: u64) -> anyhow::Result<()> {
        self.ask(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]).await
    }

    /// Destroys the consumer group; nothing is done where a flush took the stream already.
    pub(crate) async fn destroy_group(&self, partition: Partition) -> anyhow::Result<()> {
        let key = self.keys.orders(partition);
        let words = ["XGROUP", "DESTROY", &key, GROUP];
        if_there_is_a_group::<i64>(self.ask_redis(&words).await).map(drop)
    }

    /// Appends an entry above the last one; `None` when Redis has no memory for it.
    pub(crate) async fn append(
        &self,
        partition: Partition,
        fields: &Fields,
    ) -> anyhow::Result<Option<EntryId>> {
        let mut command = redis::cmd("XADD");
        command.arg(self.keys.orders(partition)).arg("NOMKSTREAM").arg("*");
        for (name, value) in fields {
            command.arg(name.as_slice()).arg(value.as_slice());
        }
        let added: Result<Option<String>, RedisError> =
            command.query_async(&mut self.connection().await?).await;
        match added {
            Ok(id) => Ok(id.and_then(|id| id.parse().ok())),
            Err(error) if error.code() == Some("OOM") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The ids on the stream, oldest first.
    pub(crate) async fn list_entries(&self, partition: Partition) -> anyhow::Result<Vec<EntryId>> {
        let entries: Vec<(String, redis::Value)> =
            self.ask(&["XRANGE", &self.keys.orders(partition), "-", "+"]).await?;
        Ok(entries.into_iter().filter_map(|(id, _)| id.parse().ok()).collect())
    }

    /// What consumers hold, oldest first.
    pub(crate) async fn list_pending(&self, partition: Partition) -> anyhow::Result<Vec<Pending>> {
        let key = self.keys.orders(partition);
        let many = MANY.to_string();
        let words = ["XPENDING", &key, GROUP, "-", "+", &many];
        let held: Option<Vec<(String, String, u64, u64)>> =
            if_there_is_a_group(self.ask_redis(&words).await)?;
        Ok(held
            .into_iter()
            .flatten()
            .filter_map(|(id, consumer, ..)| Some(Pending { id: id.parse().ok()?, consumer }))
            .collect())
    }

    /// What is noted of entries that may crash their workers: each field of the hash.
    pub(crate) async fn list_attempts(&self, partition: Partition) -> anyhow::Result<Vec<String>> {
        self.ask(&["HKEYS", &self.keys.suspects(partition)]).await
    }

    /// `XDEL`.
    pub(crate) async fn delete(&self, partition: Partition, ids: &[EntryId]) -> anyhow::Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let mut command = redis::cmd("XDEL");
        command.arg(self.keys.orders(partition)).arg(ids);
        let _deleted: i64 = command.query_async(&mut self.connection().await?).await?;
        Ok(())
    }

    /// `XTRIM` of everything below an entry.
    pub(crate) async fn trim_below(
        &self,
        partition: Partition,
        first_kept: EntryId,
    ) -> anyhow::Result<()> {
        let (key, id) = (self.keys.orders(partition), first_kept.to_string());
        let _trimmed: i64 = self.ask(&["XTRIM", &key, "MINID", "=", &id]).await?;
        Ok(())
    }

    /// How many consumers the group has; none where there is no group.
    pub(crate) async fn count_consumers(&self, partition: Partition) -> anyhow::Result<usize> {
        let key = self.keys.orders(partition);
        let words = ["XINFO", "CONSUMERS", &key, GROUP];
        let listed: Option<Vec<redis::Value>> = if_there_is_a_group(self.ask_redis(&words).await)?;
        Ok(listed.unwrap_or_default().len())
    }
}

/// `None` where the stream or its group is gone; Redis says so in three ways.
fn if_there_is_a_group<T>(answer: Result<T, RedisError>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code() == Some("NOGROUP") => Ok(None),
        Err(error) => {
            let said = error.to_string();
            let no_stream = said.contains("no such key") || said.contains("requires the key");
            if no_stream { Ok(None) } else { Err(error.into()) }
        }
    }
}
