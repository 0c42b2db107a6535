//! The entry's format, that of `lua/lib/order_entry.lua`.
//!
//! Decoding gives a value, never a panic or an early return for a whole batch: an entry that nobody
//! can read is one dead letter, and its neighbours go on.

use flashsale_domain::{
    EntryId, IdempotencyDigest, NewOrder, OrderId, OrderIdError, Partition, SaleId, UserId,
};

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

impl Undecodable {
    /// The reason of a dead letter whose entry is not an order.
    pub const REASON: &str = "undecodable";
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
