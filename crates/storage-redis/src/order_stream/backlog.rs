//! What waits on the stream, how long it has waited, and clearing away what no longer does.

use std::collections::HashMap;

use flashsale_domain::{EntryId, Partition};
use redis::{FromRedisValue, RedisError, Value};

use super::group::FoundGroup;
use super::reading::parse_entries;
use super::{GROUP, RawEntry};
use crate::scripts::{OLDEST_UNAPPLIED, TRIM_ACKED};
use crate::{Redis, RedisFault};

/// Entries read at a time.
const PAGE: usize = 1000;

/// How much of a stream is not yet committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Entries that no worker has had yet; `None` when Redis does not know.
    pub undelivered: Option<u64>,
    /// Entries that a worker holds.
    pub pending: u64,
}

impl Backlog {
    /// Undelivered and pending; `None` when one is not known.
    pub fn total(self) -> Option<u64> {
        self.undelivered.map(|undelivered| undelivered + self.pending)
    }
}

fn last_delivered(group: &HashMap<String, Value>) -> Result<String, RedisFault> {
    let id = group.get("last-delivered-id").cloned().unwrap_or(Value::Nil);
    Ok(FromRedisValue::from_redis_value(id).map_err(RedisError::from)?)
}

impl Redis {
    /// How much is not yet committed; `None` when there is no stream. Where the group is gone nobody
    /// can say what is committed, and all that is on the stream counts as undelivered.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn backlog(&self, partition: Partition) -> Result<Option<Backlog>, RedisFault> {
        let key = self.keys.orders(partition);
        let mut connection = self.connection().await?;
        let group = match self.find_group(partition).await? {
            FoundGroup::NoStream => return Ok(None),
            FoundGroup::NoGroup => {
                let length: u64 = redis::cmd("XLEN").arg(key).query_async(&mut connection).await?;
                return Ok(Some(Backlog { undelivered: Some(length), pending: 0 }));
            }
            FoundGroup::Group(group) => group,
        };
        let number = |value: Option<&Value>| match value {
            Some(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        let mut undelivered = number(group.get("lag"));
        if undelivered != Some(0) {
            // Redis gives no lag where ids were skipped (XSETID) or entries deleted, and one that stays
            // too high for good where undelivered entries were trimmed. Whether there is anything at
            // all can still be seen.
            let last = last_delivered(&group)?;
            let next: Vec<Value> = redis::cmd("XRANGE")
                .arg(key)
                .arg(format!("({last}"))
                .arg("+")
                .arg("COUNT")
                .arg(1)
                .query_async(&mut connection)
                .await?;
            if next.is_empty() {
                undelivered = Some(0);
            }
        }
        Ok(Some(Backlog { undelivered, pending: number(group.get("pending")).unwrap_or(0) }))
    }

    /// Entries up to `last` that may not be applied yet: at least those that are pending or undelivered,
    /// and perhaps some that are done and not yet trimmed. Oldest first.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_unapplied(
        &self,
        partition: Partition,
        last: EntryId,
    ) -> Result<Vec<RawEntry>, RedisFault> {
        let key = self.keys.orders(partition);
        let mut connection = self.connection().await?;
        // What waits below these later on has become a row meanwhile, or a group was set back.
        let mut from = match self.find_group(partition).await? {
            FoundGroup::NoStream => return Ok(Vec::new()),
            FoundGroup::NoGroup => "-".to_owned(),
            FoundGroup::Group(group) => {
                let (_count, oldest, _newest, _consumers): (u64, Option<String>, Value, Value) =
                    redis::cmd("XPENDING")
                        .arg(&key)
                        .arg(GROUP)
                        .query_async(&mut connection)
                        .await?;
                match oldest {
                    Some(id) => id,
                    None => format!("({}", last_delivered(&group)?),
                }
            }
        };
        let mut unapplied = Vec::new();
        loop {
            let reply: Value = redis::cmd("XRANGE")
                .arg(&key)
                .arg(&from)
                .arg(last.to_string())
                .arg("COUNT")
                .arg(PAGE)
                .query_async(&mut connection)
                .await?;
            let page = parse_entries("XRANGE", reply)?;
            let full = page.len() == PAGE;
            unapplied.extend(page);
            match unapplied.last() {
                Some(entry) if full => from = format!("({}", entry.id),
                _ => return Ok(unapplied),
            }
        }
    }

    /// How long, by Redis's clock, the oldest entry has waited that is pending or undelivered:
    /// milliseconds, never below 0. `None` when nothing waits, or there is no stream.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn oldest_unapplied_age(
        &self,
        partition: Partition,
    ) -> Result<Option<u64>, RedisFault> {
        let reply: i64 = OLDEST_UNAPPLIED
            .key(self.keys.orders(partition))
            .arg(GROUP)
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok(u64::try_from(reply).ok())
    }

    /// Removes the entries that every group has acknowledged; returns how many.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn trim_acked(&self, partition: Partition) -> Result<u64, RedisFault> {
        let mut connection = self.connection().await?;
        Ok(TRIM_ACKED.key(self.keys.orders(partition)).invoke_async(&mut connection).await?)
    }
}
