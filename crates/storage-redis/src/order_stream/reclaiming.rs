//! Taking entries over from consumers that held them for too long.

use std::time::Duration;

use flashsale_domain::{EntryId, Partition};
use redis::Value;

use super::reading::parse_entries;
use super::{GROUP, RawEntry};
use crate::connect::millis;
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
    /// Takes over up to `count` entries that their consumer has held for `min_idle`.
    ///
    /// With JUSTID, so that the delivery count does not grow: a delivery is not an attempt. The
    /// bodies are read afterwards.
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
        let key = self.keys.orders(partition);
        let mut connection = self.connection().await?;
        let (next, ids, deleted): (String, Vec<String>, Vec<String>) = redis::cmd("XAUTOCLAIM")
            .arg(&key)
            .arg(GROUP)
            .arg(consumer)
            .arg(millis(min_idle))
            .arg(from.map_or_else(|| "0-0".to_owned(), |id| id.to_string()))
            .arg("COUNT")
            .arg(count)
            .arg("JUSTID")
            .query_async(&mut connection)
            .await?;
        let parse = |text: &String| {
            text.parse::<EntryId>().map_err(|_| RedisFault::reply("XAUTOCLAIM", text.as_str()))
        };
        let mut deleted = deleted.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let mut entries = Vec::with_capacity(ids.len());
        if !ids.is_empty() {
            let mut pipeline = redis::pipe();
            for id in &ids {
                pipeline.cmd("XRANGE").arg(&key).arg(id).arg(id);
            }
            let bodies: Vec<Value> = pipeline.query_async(&mut connection).await?;
            for (id, body) in ids.iter().zip(bodies) {
                let found = parse_entries("XRANGE", body)?;
                if found.is_empty() {
                    deleted.push(parse(id)?);
                }
                entries.extend(found);
            }
        }
        let next = parse(&next)?;
        let next = (next != EntryId { ms: 0, seq: 0 }).then_some(next);
        Ok(ClaimedPage { entries, deleted, next })
    }
}
