//! Taking entries over from consumers that held them for too long.

use std::time::Duration;

use flashsale_domain::{EntryId, Partition};
use redis::Value;

use super::reading::{parse_entries, parse_id};
use super::{GROUP, RawEntry};
use crate::connect::millis;
use crate::scripts::CLAIM;
use crate::{Redis, RedisFault};

/// One page of entries taken over from consumers that held them for too long.
#[derive(Debug)]
pub struct ClaimedPage {
    /// Taken over, with their bodies.
    pub entries: Vec<RawEntry>,
    /// Pending, but gone from the stream: orders that Redis lost.
    pub deleted: Vec<EntryId>,
    /// Where the next page begins; `None` at the end. An empty page is not the end.
    pub next: Option<EntryId>,
}

impl Redis {
    /// Takes over up to `count` entries that their consumer has held for `min_idle`. Those that are
    /// gone are named here once, and in [`Redis::list_lost`] until they are forgotten.
    ///
    /// # Errors
    /// When Redis cannot be asked, or there is no group.
    pub async fn claim(
        &self,
        partition: Partition,
        consumer: &str,
        min_idle: Duration,
        from: Option<EntryId>,
        count: usize,
    ) -> Result<ClaimedPage, RedisFault> {
        let (next, entries, deleted): (Value, Value, Vec<Value>) = CLAIM
            .key(self.keys.orders(partition))
            .key(self.keys.lost(partition))
            .arg(GROUP)
            .arg(consumer)
            .arg(millis(min_idle))
            .arg(from.map_or_else(|| "0-0".to_owned(), |id| id.to_string()))
            .arg(count)
            .invoke_async(&mut self.connection().await?)
            .await?;
        let next = parse_id("claim", &next)?;
        Ok(ClaimedPage {
            entries: parse_entries("claim", entries)?,
            deleted: deleted.iter().map(|id| parse_id("claim", id)).collect::<Result<_, _>>()?,
            next: (next != EntryId { ms: 0, seq: 0 }).then_some(next),
        })
    }

    /// Up to `count` entries that were pending and are gone, and of which nobody has said yet that he
    /// wrote it down.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn list_lost(
        &self,
        partition: Partition,
        count: usize,
    ) -> Result<Vec<EntryId>, RedisFault> {
        let ids: Vec<Value> = redis::cmd("SRANDMEMBER")
            .arg(self.keys.lost(partition))
            .arg(count)
            .query_async(&mut self.connection().await?)
            .await?;
        ids.iter().map(|id| parse_id("SRANDMEMBER", id)).collect()
    }

    /// A lost entry is written down elsewhere.
    ///
    /// # Errors
    /// When Redis cannot be asked: then it is listed again.
    pub async fn forget_lost(&self, partition: Partition, id: EntryId) -> Result<(), RedisFault> {
        let mut connection = self.connection().await?;
        let command =
            redis::cmd("SREM").arg(self.keys.lost(partition)).arg(id.to_string()).to_owned();
        Ok(command.query_async(&mut connection).await?)
    }
}
