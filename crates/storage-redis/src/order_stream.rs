//! The orders stream: one entry is one order, and the entry's id is the order's id.
//!
//! Written by `lua/admit.lua` in the format of `lua/lib/order_entry.lua`, read here. Decoding gives a
//! value, never a panic or an early return for a whole batch: an entry that nobody can read is one
//! dead letter, and its neighbours go on.

use std::collections::HashMap;
use std::time::Duration;

use flashsale_domain::{
    EntryId, IdempotencyDigest, NewOrder, OrderId, OrderIdError, Partition, SaleId, UserId,
};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisError, Value};

use crate::connect::millis;
use crate::scripts::{LEAVE_GROUP, OLDEST_UNAPPLIED, TRIM_ACKED};
use crate::{Redis, RedisFault};

/// The consumer group of all order-workers.
pub const GROUP: &str = "order-workers";

/// The entry format that this version writes and reads.
const FORMAT_VERSION: &str = "1";

/// An entry as it stands on the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// Its id.
    pub id: EntryId,
    /// Field names and values in their order, bytes as they are.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why an entry is not an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// A field that must be there is not.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// A field comes more than once.
    #[error("field {0} comes twice")]
    Duplicate(&'static str),
    /// A value is not what the field holds.
    #[error("field {0} has a value that it cannot have")]
    BadValue(&'static str),
    /// A format that this version cannot read.
    #[error("format version is not {FORMAT_VERSION}")]
    UnknownVersion,
    /// The entry's id is not an order's id.
    #[error(transparent)]
    Id(#[from] OrderIdError),
}

/// Reads an entry of partition `partition` as an order. Fields that version 1 does not know are
/// passed over, so that a newer writer may add some.
///
/// # Errors
/// What is wrong with it.
pub fn decode(partition: Partition, entry: &RawEntry) -> Result<NewOrder, Undecodable> {
    let find = |name: &'static str| -> Result<Option<&str>, Undecodable> {
        let mut values = entry.fields.iter().filter(|(field, _)| field == name.as_bytes());
        let first = values.next();
        if values.next().is_some() {
            return Err(Undecodable::Duplicate(name));
        }
        first
            .map(|(_, value)| std::str::from_utf8(value).map_err(|_| Undecodable::BadValue(name)))
            .transpose()
    };
    let get = |name| find(name)?.ok_or(Undecodable::Missing(name));

    if get("v")? != FORMAT_VERSION {
        return Err(Undecodable::UnknownVersion);
    }
    let digest = match find("k")? {
        None => None,
        Some(text) => Some(IdempotencyDigest::from_stored(text).ok_or(Undecodable::BadValue("k"))?),
    };
    Ok(NewOrder {
        id: OrderId::from_entry(partition, entry.id)?,
        sale_id: get("s")?.parse::<SaleId>().map_err(|_| Undecodable::BadValue("s"))?,
        user_id: UserId::new(get("u")?).map_err(|_| Undecodable::BadValue("u"))?,
        slot: get("b")?.parse().ok().filter(|slot| *slot >= 1).ok_or(Undecodable::BadValue("b"))?,
        epoch: get("e")?
            .parse()
            .ok()
            .filter(|epoch| *epoch >= 1)
            .ok_or(Undecodable::BadValue("e"))?,
        digest,
    })
}

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
    key: String,
    consumer: String,
    block: Duration,
}

impl OrderReader {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        key: String,
        consumer: String,
        block: Duration,
    ) -> Self {
        Self { connection, key, consumer, block }
    }

    /// Up to `count` entries that no consumer has had yet; empty when none came in time.
    ///
    /// The future must be driven to its end: dropping it leaves the server with a reader that
    /// nobody listens to, and it hands that reader the next entry.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&mut self, count: usize) -> Result<Vec<RawEntry>, ReadError> {
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
fn parse_entries(command: &'static str, list: Value) -> Result<Vec<RawEntry>, RedisFault> {
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

fn parse_id(command: &'static str, value: &Value) -> Result<EntryId, RedisFault> {
    let text = String::from_redis_value_ref(value)
        .map_err(|error| RedisFault::reply(command, error.to_string()))?;
    text.parse().map_err(|_| RedisFault::reply(command, format!("{text:?} is no entry id")))
}

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
    /// Creates the group, at the stream's beginning and with the stream, unless it is there. True
    /// when it was created now.
    ///
    /// # Errors
    /// When Redis refuses or cannot be asked.
    pub async fn ensure_group(&self, partition: Partition) -> Result<bool, RedisFault> {
        // A Redis without memory refuses XGROUP CREATE even where the group is there, and only
        // workers that go on reading can make room.
        if self.backlog(partition).await?.is_some() {
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

    /// Removes the entries that every group has acknowledged; returns how many.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn trim_acked(&self, partition: Partition) -> Result<u64, RedisFault> {
        let mut connection = self.connection().await?;
        Ok(TRIM_ACKED.key(self.keys.orders(partition)).invoke_async(&mut connection).await?)
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

    /// How much is not yet committed; `None` when there is no stream or group.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn backlog(&self, partition: Partition) -> Result<Option<Backlog>, RedisFault> {
        let mut connection = self.connection().await?;
        let groups: Result<Vec<HashMap<String, Value>>, RedisError> = redis::cmd("XINFO")
            .arg("GROUPS")
            .arg(self.keys.orders(partition))
            .query_async(&mut connection)
            .await;
        let groups = match groups {
            Ok(groups) => groups,
            Err(error) if error.detail().is_some_and(|text| text.contains("no such key")) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let is_ours = |group: &HashMap<String, Value>| {
            group.get("name").is_some_and(|name| *name == Value::BulkString(GROUP.into()))
        };
        let number = |value: Option<&Value>| match value {
            Some(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        };
        let Some(group) = groups.into_iter().find(is_ours) else { return Ok(None) };
        let mut undelivered = number(group.get("lag"));
        if undelivered.is_none() {
            // Redis gives no lag where ids were skipped (XSETID) or entries deleted. Whether there
            // is anything at all can still be seen.
            let last: String = FromRedisValue::from_redis_value(
                group.get("last-delivered-id").cloned().unwrap_or(Value::Nil),
            )
            .map_err(RedisError::from)?;
            let next: Vec<Value> = redis::cmd("XRANGE")
                .arg(self.keys.orders(partition))
                .arg(format!("({last}"))
                .arg("+")
                .arg("COUNT")
                .arg(1)
                .query_async(&mut connection)
                .await?;
            undelivered = next.is_empty().then_some(0);
        }
        Ok(Some(Backlog { undelivered, pending: number(group.get("pending")).unwrap_or(0) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(fields: &[(&str, &[u8])]) -> RawEntry {
        RawEntry {
            id: EntryId { ms: 1_764_470_400_000, seq: 7 },
            fields: fields.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.to_vec())).collect(),
        }
    }

    fn partition() -> Partition {
        Partition::new(3).expect("a partition")
    }

    const GOLDEN: [(&str, &[u8]); 6] = [
        ("v", b"1"),
        ("s", b"42"),
        ("u", b"buyer"),
        ("b", b"2"),
        ("e", b"5"),
        ("k", b"ungWv48Bz-o"),
    ];

    #[test]
    fn an_entry_of_version_1_is_read() {
        let order = decode(partition(), &entry(&GOLDEN)).expect("an order");
        assert_eq!(order.id.entry(), EntryId { ms: 1_764_470_400_000, seq: 7 });
        assert_eq!(order.id.partition(), partition());
        assert_eq!(order.sale_id.as_i64(), 42);
        assert_eq!(order.user_id.as_str(), "buyer");
        assert_eq!((order.slot, order.epoch), (2, 5));
        assert_eq!(order.digest.expect("a digest").as_str(), "ungWv48Bz-o");
        assert_eq!(decode(partition(), &entry(&GOLDEN[..5])).expect("no key").digest, None);
    }

    #[test]
    fn a_field_from_a_newer_writer_is_passed_over() {
        let mut fields = GOLDEN.to_vec();
        fields.push(("zz", b"\xff"));
        assert!(decode(partition(), &entry(&fields)).is_ok());
    }

    #[test]
    fn every_kind_of_bad_entry_is_named() {
        let without =
            |name: &str| GOLDEN.iter().copied().filter(|(k, _)| *k != name).collect::<Vec<_>>();
        let with = |name: &'static str, value: &'static [u8]| {
            let mut fields = without(name);
            fields.push((name, value));
            fields
        };
        let twice = |name: &'static str| {
            let mut fields = GOLDEN.to_vec();
            fields.push((name, b"1"));
            fields
        };
        let huge: &'static [u8] = Box::leak(vec![b'x'; 4 << 20].into_boxed_slice());
        let cases = [
            (Vec::new(), Undecodable::Missing("v")),
            (without("v"), Undecodable::Missing("v")),
            (without("s"), Undecodable::Missing("s")),
            (without("u"), Undecodable::Missing("u")),
            (without("b"), Undecodable::Missing("b")),
            (without("e"), Undecodable::Missing("e")),
            (twice("s"), Undecodable::Duplicate("s")),
            (twice("u"), Undecodable::Duplicate("u")),
            (twice("v"), Undecodable::Duplicate("v")),
            (twice("k"), Undecodable::Duplicate("k")),
            (with("v", b"2"), Undecodable::UnknownVersion),
            (with("v", b"\xff"), Undecodable::BadValue("v")),
            (with("s", b"0"), Undecodable::BadValue("s")),
            (with("s", b"nine"), Undecodable::BadValue("s")),
            (with("u", b""), Undecodable::BadValue("u")),
            (with("u", b"\xc3\x28"), Undecodable::BadValue("u")),
            (with("u", b"a\0b"), Undecodable::BadValue("u")),
            (with("u", huge), Undecodable::BadValue("u")),
            (with("b", b"0"), Undecodable::BadValue("b")),
            (with("b", b"-1"), Undecodable::BadValue("b")),
            (with("e", b"0"), Undecodable::BadValue("e")),
            (with("e", b"9223372036854775808"), Undecodable::BadValue("e")),
            (with("k", b"short"), Undecodable::BadValue("k")),
        ];
        for (fields, expected) in cases {
            assert_eq!(decode(partition(), &entry(&fields)), Err(expected));
        }
        let mut old = entry(&GOLDEN);
        old.id = EntryId { ms: 5, seq: 0 };
        assert!(matches!(decode(partition(), &old), Err(Undecodable::Id(_))));
    }
}
