//! Holding entries: keeping them while one is still their owner, handing them back, and what is known
//! of entries that keep coming back.

use std::time::Duration;

use flashsale_domain::{EntryId, Partition};

use crate::connect::millis;
use crate::order_stream::GROUP;
use crate::scripts::{COUNT_ATTEMPT, COUNT_SUSPECTS, HOLD};
use crate::{Redis, RedisFault};

/// Idle time that is above any reclaim_idle: entries handed back with it are taken at the next look.
const HANDED_BACK_IDLE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Redis {
    /// Keeps the entries of `ids` that `consumer` still owns for another idle time; returns those
    /// that it no longer owns.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn keep_entries(
        &self,
        partition: Partition,
        consumer: &str,
        ids: &[EntryId],
    ) -> Result<Vec<EntryId>, RedisFault> {
        self.hold(partition, consumer, Duration::ZERO, ids).await
    }

    /// Hands entries back, so that whoever looks through the pending list next takes them.
    ///
    /// # Errors
    /// When Redis cannot be asked: then they wait for their idle time.
    pub async fn hand_back_entries(
        &self,
        partition: Partition,
        consumer: &str,
        ids: &[EntryId],
    ) -> Result<(), RedisFault> {
        self.hold(partition, consumer, HANDED_BACK_IDLE, ids).await.map(drop)
    }

    async fn hold(
        &self,
        partition: Partition,
        consumer: &str,
        idle: Duration,
        ids: &[EntryId],
    ) -> Result<Vec<EntryId>, RedisFault> {
        let mut lost = Vec::new();
        let mut connection = self.connection().await?;
        // 1,000 a call: Redis serves nobody else while a script runs.
        for chunk in ids.chunks(1000) {
            let mut call = HOLD.prepare_invoke();
            call.key(self.keys.orders(partition)).arg(GROUP).arg(consumer);
            call.arg(millis(idle));
            for id in chunk {
                call.arg(id.to_string());
            }
            let gone: Vec<String> = call.invoke_async(&mut connection).await?;
            lost.extend(gone.iter().filter_map(|id| id.parse::<EntryId>().ok()));
        }
        Ok(lost)
    }

    /// Notes that entries came by reclaim; returns how often each has by now.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn count_reclaims(
        &self,
        partition: Partition,
        ids: &[EntryId],
    ) -> Result<Vec<u32>, RedisFault> {
        let mut reclaims = Vec::with_capacity(ids.len());
        // 1,000 a call: Redis serves nobody else while a script runs.
        for chunk in ids.chunks(1000) {
            let fields = chunk.iter().map(|id| format!("r:{id}"));
            reclaims.extend(self.count_suspects(partition, 1, fields).await?);
        }
        let counts = reclaims.into_iter().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Ok(counts.collect())
    }

    /// Counts an attempt with an entry, just before it is made; `None` when none of `allowed` is left.
    ///
    /// # Errors
    /// When Redis cannot be asked: then the attempt must not be made.
    pub async fn count_attempt(
        &self,
        partition: Partition,
        id: EntryId,
        allowed: u32,
    ) -> Result<Option<u32>, RedisFault> {
        let attempt: i64 = COUNT_ATTEMPT
            .key(self.keys.suspects(partition))
            .arg(format!("a:{id}"))
            .arg(allowed)
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok(u32::try_from(attempt).ok())
    }

    /// Takes an attempt back that was not the entry's fault: an outage ended it.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn uncount_attempt(
        &self,
        partition: Partition,
        id: EntryId,
    ) -> Result<(), RedisFault> {
        self.count_suspects(partition, -1, [format!("a:{id}")]).await.map(drop)
    }

    /// Adds to these counts; returns them.
    async fn count_suspects(
        &self,
        partition: Partition,
        add: i64,
        fields: impl IntoIterator<Item = String>,
    ) -> Result<Vec<i64>, RedisFault> {
        let mut call = COUNT_SUSPECTS.prepare_invoke();
        call.key(self.keys.suspects(partition)).arg(add);
        for field in fields {
            call.arg(field);
        }
        Ok(call.invoke_async(&mut self.connection().await?).await?)
    }

    /// Forgets what was counted of entries that are done.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn forget_suspects(
        &self,
        partition: Partition,
        ids: &[EntryId],
    ) -> Result<(), RedisFault> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("HDEL");
        command.arg(self.keys.suspects(partition));
        for id in ids {
            command.arg(format!("r:{id}")).arg(format!("a:{id}"));
        }
        Ok(command.query_async(&mut self.connection().await?).await?)
    }

    /// Forgets all that was counted of a partition's entries: nothing waits there.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn forget_all_suspects(&self, partition: Partition) -> Result<(), RedisFault> {
        let mut command = redis::cmd("DEL");
        command.arg(self.keys.suspects(partition));
        Ok(command.query_async(&mut self.connection().await?).await?)
    }
}
