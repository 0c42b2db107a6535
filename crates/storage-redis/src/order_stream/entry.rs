//! The entry's format, that of `lua/lib/order_entry.lua`; and the one before it.
//!
//! Decoding gives a value, never a panic or an early return for a whole batch: an entry that nobody
//! can read is one dead letter, and its neighbours go on.

use flashsale_domain::{
    EntryId, IdempotencyDigest, NewOrder, OrderId, OrderIdError, Partition, SaleId, UserId,
};

/// The entry format that this version writes: all of an order in field [`ORDER`].
const PACKED_VERSION: &str = "2";
/// The one before, which is still read: a field for each part.
const FIELDS_VERSION: &str = "1";
/// Above it a version is a newer program's.
const NEWEST_VERSION: u32 = 2;

const ORDER: &str = "o";
const TRACEPARENT: &[u8] = b"t";

/// An entry as it stands on the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEntry {
    /// Its id.
    pub id: EntryId,
    /// Field names and values in their order, bytes as they are.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl RawEntry {
    /// The span that asked for the order, when it is traced. It is no part of the order: whether it can
    /// be understood is of no account to it.
    pub fn traceparent(&self) -> Option<&str> {
        // Most orders are one field and no more.
        if self.fields.len() < 2 {
            return None;
        }
        let (_, value) = self.fields.iter().find(|(field, _)| field == TRACEPARENT)?;
        std::str::from_utf8(value).ok()
    }
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
    /// A format that there never was.
    #[error("format version is neither {FIELDS_VERSION} nor {PACKED_VERSION}")]
    UnknownVersion,
    /// A good order, as far as one can tell, in a format that came after this program.
    #[error("format version {0} is newer than this program, which reads up to {NEWEST_VERSION}")]
    NewerVersion(u32),
    /// The entry's id is not an order's id.
    #[error(transparent)]
    Id(#[from] OrderIdError),
}

impl Undecodable {
    /// The reason of a dead letter whose entry cannot be read. What a newer program can read is told
    /// apart from what nobody can: the one is tried again by that program, all at once.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NewerVersion(_) => "newer-version",
            _ => "undecodable",
        }
    }

    fn of_version(version: &str) -> Self {
        match version.parse() {
            Ok(number) if number > NEWEST_VERSION => Self::NewerVersion(number),
            _ => Self::UnknownVersion,
        }
    }
}

/// Reads an entry of partition `partition` as an order. Fields that this version does not know are
/// passed over, so that a newer writer may add some.
///
/// # Errors
/// What is wrong with it. A part of the packed field bears the name that its own field had.
pub fn decode(partition: Partition, entry: &RawEntry) -> Result<NewOrder, Undecodable> {
    let parts = match find(entry, ORDER)? {
        Some(order) => Parts::of_packed(order)?,
        None => Parts::of_fields(entry)?,
    };
    let digest = match parts.digest {
        None => None,
        Some(text) => Some(IdempotencyDigest::from_stored(text).ok_or(Undecodable::BadValue("k"))?),
    };
    Ok(NewOrder {
        id: OrderId::from_entry(partition, entry.id)?,
        sale_id: parts.sale.parse::<SaleId>().map_err(|_| Undecodable::BadValue("s"))?,
        user_id: UserId::new(parts.user).map_err(|_| Undecodable::BadValue("u"))?,
        slot: parts.slot.parse().ok().filter(|it| *it >= 1).ok_or(Undecodable::BadValue("b"))?,
        epoch: parts.epoch.parse().ok().filter(|it| *it >= 1).ok_or(Undecodable::BadValue("e"))?,
        digest,
    })
}

/// An entry's parts as they stand.
struct Parts<'a> {
    sale: &'a str,
    user: &'a str,
    slot: &'a str,
    epoch: &'a str,
    digest: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of_packed(order: &'a str) -> Result<Self, Undecodable> {
        let mut parts = order.splitn(6, ':');
        let version = parts.next().unwrap_or_default();
        if version != PACKED_VERSION {
            return Err(Undecodable::of_version(version));
        }
        let mut next = |name| parts.next().ok_or(Undecodable::Missing(name));
        let (sale, slot, epoch, digest) = (next("s")?, next("b")?, next("e")?, next("k")?);
        let user = next("u")?;
        Ok(Self { sale, user, slot, epoch, digest: Some(digest).filter(|it| !it.is_empty()) })
    }

    fn of_fields(entry: &'a RawEntry) -> Result<Self, Undecodable> {
        let get = |name| find(entry, name)?.ok_or(Undecodable::Missing(name));
        let version = get("v")?;
        if version != FIELDS_VERSION {
            return Err(Undecodable::of_version(version));
        }
        let digest = find(entry, "k")?;
        Ok(Self { sale: get("s")?, user: get("u")?, slot: get("b")?, epoch: get("e")?, digest })
    }
}

/// A field that must not come twice.
fn find<'a>(entry: &'a RawEntry, name: &'static str) -> Result<Option<&'a str>, Undecodable> {
    let mut values = entry.fields.iter().filter(|(field, _)| field == name.as_bytes());
    let first = values.next();
    if values.next().is_some() {
        return Err(Undecodable::Duplicate(name));
    }
    first
        .map(|(_, value)| std::str::from_utf8(value).map_err(|_| Undecodable::BadValue(name)))
        .transpose()
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

    /// What `lua/lib/order_entry.lua` writes.
    const PACKED: &[u8] = b"2:42:2:5:ungWv48Bz-o:shop:buyer";

    #[test]
    fn an_entry_of_version_2_is_read() {
        let order = decode(partition(), &entry(&[("o", PACKED)])).expect("an order");
        assert_eq!(order.id.entry(), EntryId { ms: 1_764_470_400_000, seq: 7 });
        assert_eq!(order.sale_id.as_i64(), 42);
        assert_eq!(order.user_id.as_str(), "shop:buyer");
        assert_eq!((order.slot, order.epoch), (2, 5));
        assert_eq!(order.digest.expect("a digest").as_str(), "ungWv48Bz-o");
        let no_key = entry(&[("o", b"2:42:2:5::shop:buyer"), ("t", b"00-1-2-01")]);
        let no_key = decode(partition(), &no_key).expect("an order");
        assert_eq!((no_key.user_id.as_str(), no_key.digest), ("shop:buyer", None));
    }

    #[test]
    fn a_traceparent_is_read_beside_the_order_and_spoils_none() {
        let traced = |value| entry(&[("o", PACKED), ("t", value)]);
        assert_eq!(traced(b"00-1-2-01").traceparent(), Some("00-1-2-01"));
        assert_eq!(entry(&[("o", PACKED)]).traceparent(), None);
        let spoilt = traced(b"\xff");
        assert_eq!(spoilt.traceparent(), None);
        assert!(decode(partition(), &spoilt).is_ok());
    }

    #[test]
    fn every_kind_of_bad_packed_entry_is_named() {
        let cases: [(&[u8], Undecodable); 20] = [
            (b"", Undecodable::UnknownVersion),
            (b"1:42:2:5:ungWv48Bz-o:buyer", Undecodable::UnknownVersion),
            (b"0:42:2:5:ungWv48Bz-o:buyer", Undecodable::UnknownVersion),
            (b"two:42:2:5:ungWv48Bz-o:buyer", Undecodable::UnknownVersion),
            (b"3:whatever", Undecodable::NewerVersion(3)),
            (b"22:42:2:5:ungWv48Bz-o:buyer", Undecodable::NewerVersion(22)),
            (b"\xff:42:2:5:ungWv48Bz-o:buyer", Undecodable::BadValue("o")),
            (b"2", Undecodable::Missing("s")),
            (b"2:42", Undecodable::Missing("b")),
            (b"2:42:2", Undecodable::Missing("e")),
            (b"2:42:2:5", Undecodable::Missing("k")),
            (b"2:42:2:5:ungWv48Bz-o", Undecodable::Missing("u")),
            (b"2:0:2:5:ungWv48Bz-o:buyer", Undecodable::BadValue("s")),
            (b"2:nine:2:5:ungWv48Bz-o:buyer", Undecodable::BadValue("s")),
            (b"2:42:0:5:ungWv48Bz-o:buyer", Undecodable::BadValue("b")),
            (b"2:42:2:0:ungWv48Bz-o:buyer", Undecodable::BadValue("e")),
            (b"2:42:2:9223372036854775808::buyer", Undecodable::BadValue("e")),
            (b"2:42:2:5:short:buyer", Undecodable::BadValue("k")),
            (b"2:42:2:5:ungWv48Bz-o:", Undecodable::BadValue("u")),
            (b"2:42:2:5:ungWv48Bz-o:a\0b", Undecodable::BadValue("u")),
        ];
        for (order, expected) in cases {
            assert_eq!(decode(partition(), &entry(&[("o", order)])), Err(expected));
        }
        let twice = entry(&[("o", PACKED), ("o", PACKED)]);
        assert_eq!(decode(partition(), &twice), Err(Undecodable::Duplicate("o")));
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
            (with("v", b"3"), Undecodable::NewerVersion(3)),
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
