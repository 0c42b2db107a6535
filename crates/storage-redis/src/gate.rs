//! The gate of a partition, and who may rebuild it.

use std::time::Duration;

use flashsale_domain::Partition;

use crate::connect::{millis, random_token};
use crate::scripts::{EXTEND_LOCK, GATE_STATUS, UNLOCK};
use crate::{Redis, RedisFault};

/// May a partition's memory be trusted?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateStatus {
    /// Yes: it was opened on this server.
    Open,
    /// Somebody loads it, or began to.
    Fenced,
    /// It was opened on another server, or before a restart: what it holds may be too old.
    Stale,
    /// It is gone, or was never loaded.
    Missing,
    /// It was opened on this server, but the stream's last id lies in the future: no order id can be
    /// given. A rebuild puts the stream right.
    ClockAhead,
}

/// The right to do something for a partition alone, for a while.
pub struct Lock {
    redis: Redis,
    key: String,
    token: String,
    ttl: Duration,
}

/// How long a rebuilder that dies keeps others out.
const REBUILD_LOCK_TTL: Duration = Duration::from_secs(10);

impl Redis {
    /// The state of a partition's gate.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn gate_status(&self, partition: Partition) -> Result<GateStatus, RedisFault> {
        let status: String = GATE_STATUS
            .key(self.keys.gate(partition))
            .key(self.keys.orders(partition))
            .invoke_async(&mut self.connection().await?)
            .await?;
        match status.as_str() {
            "open" => Ok(GateStatus::Open),
            "fenced" => Ok(GateStatus::Fenced),
            "stale" => Ok(GateStatus::Stale),
            "missing" => Ok(GateStatus::Missing),
            "ahead" => Ok(GateStatus::ClockAhead),
            _ => Err(RedisFault::reply("gate_status", status)),
        }
    }

    /// Takes the right to rebuild a partition if nobody has it. It only keeps two rebuilders from
    /// working against each other; what keeps a late one out is the fence's token.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn try_lock_rebuild(&self, partition: Partition) -> Result<Option<Lock>, RedisFault> {
        self.try_lock(self.keys.rebuild_lock(partition), REBUILD_LOCK_TTL).await
    }

    /// Takes the right to watch a partition's ledgers for `ttl` if nobody has it: one worker's readings
    /// are enough.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn try_lock_ledger(
        &self,
        partition: Partition,
        ttl: Duration,
    ) -> Result<Option<Lock>, RedisFault> {
        self.try_lock(self.keys.ledger_lock(partition), ttl).await
    }

    /// Whether a worker watches the partition's ledgers: one that lives, or did a moment ago.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn is_ledger_watched(&self, partition: Partition) -> Result<bool, RedisFault> {
        let key = self.keys.ledger_lock(partition);
        Ok(redis::cmd("EXISTS").arg(key).query_async(&mut self.connection().await?).await?)
    }

    async fn try_lock(&self, key: String, ttl: Duration) -> Result<Option<Lock>, RedisFault> {
        let token = random_token();
        let taken: Option<String> = redis::cmd("SET")
            .arg(&key)
            .arg(&token)
            .arg("NX")
            .arg("PX")
            .arg(millis(ttl))
            .query_async(&mut self.connection().await?)
            .await?;
        Ok(taken.map(|_| Lock { redis: self.clone(), key, token, ttl }))
    }

    /// What Redis does when its memory is full, such as `noeviction`: read from INFO, which is
    /// allowed where CONFIG is not.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn eviction_policy(&self) -> Result<String, RedisFault> {
        self.info_field("memory", "maxmemory_policy").await
    }

    /// Whether Redis keeps an append-only file: without one, a restart forgets what is not yet a row.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn keeps_append_only_file(&self) -> Result<bool, RedisFault> {
        Ok(self.info_field("persistence", "aof_enabled").await? == "1")
    }

    async fn info_field(&self, section: &str, field: &str) -> Result<String, RedisFault> {
        let mut connection = self.connection().await?;
        let info: String = redis::cmd("INFO").arg(section).query_async(&mut connection).await?;
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.trim().to_owned())
            .ok_or_else(|| RedisFault::reply("INFO", format!("no {field}")))
    }
}

impl Lock {
    /// Gives the lock its full time again; false when it is no longer ours.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn extend(&self) -> Result<bool, RedisFault> {
        let extended: i64 = EXTEND_LOCK
            .key(&self.key)
            .arg(&self.token)
            .arg(millis(self.ttl))
            .invoke_async(&mut self.redis.connection().await?)
            .await?;
        Ok(extended == 1)
    }

    /// Keeps the lock for as long as this is polled: a rebuild that is alive loses it to nobody,
    /// however long it takes.
    pub async fn keep(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(self.ttl / 4).await;
            // When it cannot be asked, or the lock is another's, the fence decides who goes on.
            let _lost = self.extend().await;
        }
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// When Redis cannot be asked: then it runs out by itself.
    pub async fn unlock(self) -> Result<(), RedisFault> {
        let _released: i64 = UNLOCK
            .key(&self.key)
            .arg(&self.token)
            .invoke_async(&mut self.redis.connection().await?)
            .await?;
        Ok(())
    }
}
