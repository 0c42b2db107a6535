//! Reading entries, and acknowledging what is done.

use std::sync::Arc;
use std::time::Duration;

use flashsale_domain::{EntryId, Partition};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, RedisError, Value};

use super::{GROUP, RawEntry};
use crate::connect::millis;
use crate::primary::{Primary, Server};
use crate::{Redis, RedisFault};

/// Why a blocking read gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream or its group is gone (NOGROUP, or UNBLOCKED under a waiting reader): it must be
    /// created again, and something has happened to Redis's memory.
    #[error("the stream or its consumer group is gone")]
    GroupMissing,
    /// Anything else; the connection is not to be used again.
    #[error(transparent)]
    Fault(#[from] RedisFault),
}

/// Reads new entries of one partition, blocking for a while when there are none.
pub struct OrderReader {
    connection: MultiplexedConnection,
    /// Where the connection leads, and who knows whether that is still right.
    at: (Primary, Arc<Server>),
    key: String,
    consumer: String,
    block: Duration,
}

impl OrderReader {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        at: (Primary, Arc<Server>),
        key: String,
        consumer: String,
        block: Duration,
    ) -> Self {
        Self { connection, at, key, consumer, block }
    }

    /// Up to `count` entries that no consumer has had yet; empty when none came in time.
    ///
    /// The future must be driven to its end: dropping it leaves the server with a reader that
    /// nobody listens to, and it hands that reader the next entry.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&mut self, count: usize) -> Result<Vec<RawEntry>, ReadError> {
        let (primary, server) = &self.at;
        if !primary.is_still(server).await? {
            let moved = "another server is the primary now";
            return Err(ReadError::Fault(RedisFault::reply("XREADGROUP", moved)));
        }
        let reply: Result<Value, RedisError> = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg(GROUP)
            .arg(&self.consumer)
            .arg("COUNT")
            .arg(count)
            .arg("BLOCK")
            .arg(millis(self.block))
            .arg("STREAMS")
            .arg(&self.key)
            .arg(">")
            .query_async(&mut self.connection)
            .await;
        if let Err(error) = &reply {
            primary.doubt_after(error);
        }
        match reply {
            Ok(Value::Nil) => Ok(Vec::new()),
            Ok(reply) => Ok(parse_streams(reply)?),
            Err(error) if matches!(error.code(), Some("NOGROUP" | "UNBLOCKED")) => {
                Err(ReadError::GroupMissing)
            }
            Err(error) => Err(ReadError::Fault(error.into())),
        }
    }
}

/// `[[key, entries]]`, for the one stream that was asked for.
fn parse_streams(reply: Value) -> Result<Vec<RawEntry>, RedisFault> {
    let Value::Array(streams) = reply else {
        return Err(RedisFault::reply("XREADGROUP", "no list of streams"));
    };
    let mut entries = Vec::new();
    for stream in streams {
        match stream {
            Value::Array(parts) if parts.len() == 2 => {
                let list = parts.into_iter().nth(1).expect("two parts");
                entries.extend(parse_entries("XREADGROUP", list)?);
            }
            _ => return Err(RedisFault::reply("XREADGROUP", "no pair of key and entries")),
        }
    }
    Ok(entries)
}

/// `[[id, [field, value, ...]], ...]`; an entry whose body is gone (deleted under us) is left out.
pub(super) fn parse_entries(
    command: &'static str,
    list: Value,
) -> Result<Vec<RawEntry>, RedisFault> {
    let shape = |detail: &str| RedisFault::reply(command, detail);
    let Value::Array(list) = list else {
        return Err(shape("no list of entries"));
    };
    let mut entries = Vec::with_capacity(list.len());
    for entry in list {
        let Value::Array(parts) = entry else {
            return Err(shape("no entry"));
        };
        let mut parts = parts.into_iter();
        let (Some(id), Some(body), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(shape("no pair of id and fields"));
        };
        let id = parse_id(command, &id)?;
        let Value::Array(body) = body else { continue };
        let mut fields = Vec::with_capacity(body.len() / 2);
        let mut values = body.into_iter();
        while let (Some(name), Some(value)) = (values.next(), values.next()) {
            match (name, value) {
                (Value::BulkString(name), Value::BulkString(value)) => fields.push((name, value)),
                _ => return Err(shape("a field that is no string")),
            }
        }
        entries.push(RawEntry { id, fields });
    }
    Ok(entries)
}

pub(super) fn parse_id(command: &'static str, value: &Value) -> Result<EntryId, RedisFault> {
    let text = String::from_redis_value_ref(value)
        .map_err(|error| RedisFault::reply(command, error.to_string()))?;
    text.parse().map_err(|_| RedisFault::reply(command, format!("{text:?} is no entry id")))
}

impl Redis {
    /// One entry, if it is still on the stream.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn find_entry(
        &self,
        partition: Partition,
        id: EntryId,
    ) -> Result<Option<RawEntry>, RedisFault> {
        let mut connection = self.connection().await?;
        let reply: Value = redis::cmd("XRANGE")
            .arg(self.keys.orders(partition))
            .arg(id.to_string())
            .arg(id.to_string())
            .query_async(&mut connection)
            .await?;
        Ok(parse_entries("XRANGE", reply)?.pop())
    }

    /// Acknowledges entries; returns how many were pending.
    ///
    /// # Errors
    /// When Redis cannot be asked: then they stay pending, and will come again.
    pub async fn ack(&self, partition: Partition, ids: &[EntryId]) -> Result<u64, RedisFault> {
        if ids.is_empty() {
            return Ok(0);
        }
        let mut connection = self.connection().await?;
        let mut command = redis::cmd("XACK");
        command.arg(self.keys.orders(partition)).arg(GROUP);
        for id in ids {
            command.arg(id.to_string());
        }
        Ok(command.query_async(&mut connection).await?)
    }
}
