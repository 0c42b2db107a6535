//! The group and its consumers: made, left, pruned.

use std::collections::HashMap;
use std::time::Duration;

use flashsale_domain::Partition;
use redis::{FromRedisValue as _, RedisError, Value};

use super::GROUP;
use crate::connect::millis;
use crate::scripts::{LEAVE_GROUP, PRUNE_CONSUMERS};
use crate::{Redis, RedisFault};

/// What is there of the group.
pub(super) enum FoundGroup {
    NoStream,
    NoGroup,
    /// As XINFO GROUPS describes it.
    Group(HashMap<String, Value>),
}

/// A consumer of the group, as Redis knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// Entries that it holds and has not acknowledged.
    pub pending: u64,
    /// Milliseconds since it was last heard of.
    pub idle_ms: u64,
}

impl Redis {
    /// The consumers of a partition's group; none where there is no stream or no group.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_consumers(&self, partition: Partition) -> Result<Vec<Consumer>, RedisFault> {
        let found: Result<Vec<HashMap<String, Value>>, RedisError> = redis::cmd("XINFO")
            .arg("CONSUMERS")
            .arg(self.keys.orders(partition))
            .arg(GROUP)
            .query_async(&mut self.connection().await?)
            .await;
        let found = match found {
            Ok(found) => found,
            Err(error) if error.code() == Some("NOGROUP") => return Ok(Vec::new()),
            Err(error) if error.detail().is_some_and(|text| text.contains("no such key")) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        let consumer = |mut fields: HashMap<String, Value>| {
            let mut take = |field| fields.remove(field).unwrap_or(Value::Nil);
            let name = String::from_redis_value(take("name")).map_err(RedisError::from)?;
            let mut number = |field| u64::from_redis_value(take(field)).map_err(RedisError::from);
            Ok(Consumer { name, pending: number("pending")?, idle_ms: number("idle")? })
        };
        found.into_iter().map(consumer).collect()
    }

    /// Whether the stream and its group are there.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn has_group(&self, partition: Partition) -> Result<bool, RedisFault> {
        Ok(matches!(self.find_group(partition).await?, FoundGroup::Group(_)))
    }

    pub(super) async fn find_group(&self, partition: Partition) -> Result<FoundGroup, RedisFault> {
        let groups: Result<Vec<HashMap<String, Value>>, RedisError> = redis::cmd("XINFO")
            .arg("GROUPS")
            .arg(self.keys.orders(partition))
            .query_async(&mut self.connection().await?)
            .await;
        let groups = match groups {
            Ok(groups) => groups,
            Err(error) if error.detail().is_some_and(|text| text.contains("no such key")) => {
                return Ok(FoundGroup::NoStream);
            }
            Err(error) => return Err(error.into()),
        };
        let is_ours = |group: &HashMap<String, Value>| {
            group.get("name").is_some_and(|name| *name == Value::BulkString(GROUP.into()))
        };
        Ok(groups.into_iter().find(is_ours).map_or(FoundGroup::NoGroup, FoundGroup::Group))
    }

    /// Creates the group, at the stream's beginning and with the stream, unless it is there. True
    /// when it was created now.
    ///
    /// # Errors
    /// When Redis refuses or cannot be asked.
    pub async fn ensure_group(&self, partition: Partition) -> Result<bool, RedisFault> {
        // A Redis without memory refuses XGROUP CREATE even where the group is there, and only
        // workers that go on reading can make room.
        if self.has_group(partition).await? {
            return Ok(false);
        }
        let mut connection = self.connection().await?;
        // At 0, never at $: orders admitted before the first worker came are orders too.
        let created: Result<(), RedisError> = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg(self.keys.orders(partition))
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM")
            .query_async(&mut connection)
            .await;
        match created {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes a consumer out of the group, if it holds nothing; true when it is gone.
    ///
    /// # Errors
    /// When Redis cannot be asked, or there is no group.
    pub async fn leave_group(
        &self,
        partition: Partition,
        consumer: &str,
    ) -> Result<bool, RedisFault> {
        let removed: i64 = LEAVE_GROUP
            .key(self.keys.orders(partition))
            .arg(GROUP)
            .arg(consumer)
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok(removed == 1)
    }

    /// Removes consumers that hold nothing and were not seen for `idle`; returns how many. Without a
    /// group there are none.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn prune_consumers(
        &self,
        partition: Partition,
        idle: Duration,
    ) -> Result<u64, RedisFault> {
        Ok(PRUNE_CONSUMERS
            .key(self.keys.orders(partition))
            .arg(GROUP)
            .arg(millis(idle))
            .invoke_async(&mut self.connection().await?)
            .await?)
    }
}
