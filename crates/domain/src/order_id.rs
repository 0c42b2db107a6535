//! Order ids: 63 bits that say when, where and which, and that are the stream entry's id as well.
//!
//! ```text
//!  bit 62 ........ 22 | 21 ..... 12 | 11 ..... 0
//!  ms since 2024-01-01 | partition   | sequence
//!        41 bits       |  10 bits    |  12 bits
//! ```
//!
//! Because the order's id *is* the id of its entry on the orders stream, the id told to the buyer is
//! known before any row exists, and from an id alone the gateway knows which stream entry to look at.
//! What does not fit is refused, never wrapped: a wrapped id would be somebody else's order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 2024-01-01T00:00:00Z in milliseconds since the Unix epoch: the zero of order ids.
pub const ID_EPOCH_MS: u64 = 1_704_067_200_000;

const MS_BITS: u32 = 41;
const PARTITION_BITS: u32 = 10;
const SEQ_BITS: u32 = 12;

/// Below an id's milliseconds lie so many bits.
pub const ID_MS_SHIFT: u32 = PARTITION_BITS + SEQ_BITS;

/// The last millisecond since [`ID_EPOCH_MS`] that fits: 2^41 − 1, in September 2093.
const MS_MAX: u64 = (1 << MS_BITS) - 1;
/// The largest partition number: 1,023.
pub const PARTITION_MAX: u16 = (1 << PARTITION_BITS) - 1;
/// The largest sequence number within one millisecond: 4,095.
pub const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
/// The partition number reserved for ids of direct-mode orders, which have no stream.
pub const DIRECT_PARTITION: Partition = Partition(PARTITION_MAX);

/// A partition: the home of some sales, with one orders stream. 0 to 1,023.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// The partition with this number; `None` above [`PARTITION_MAX`].
    pub const fn new(number: u16) -> Option<Self> {
        if number <= PARTITION_MAX { Some(Self(number)) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The partitions that a deployment of `count` partitions has: 0 to `count − 1`, without the
    /// one reserved for direct sales.
    pub fn all(count: u16) -> impl Iterator<Item = Self> + Clone {
        (0..count.min(PARTITION_MAX)).map(Self)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of an entry on a Redis stream: `<ms since the Unix epoch>-<sequence>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since the Unix epoch.
    pub ms: u64,
    /// Sequence within the millisecond.
    pub seq: u64,
}

/// A text that is not a stream entry's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a stream entry id: expected <milliseconds>-<sequence>")]
pub struct EntryIdError;

impl FromStr for EntryId {
    type Err = EntryIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ms, seq) = text.split_once('-').ok_or(EntryIdError)?;
        Ok(Self {
            ms: parse_digits(ms).ok_or(EntryIdError)?,
            seq: parse_digits(seq).ok_or(EntryIdError)?,
        })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// An order's id. Positive and below 2^63, so that it fits a signed 64-bit column; written as a
/// string in JSON, because JavaScript rounds numbers above 2^53.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(i64);

/// Why something is not an order id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderIdError {
    /// The entry's time lies before 2024 or after 2093.
    #[error("milliseconds {0} do not fit 41 bits counted from 2024-01-01")]
    TimeOutOfRange(u64),
    /// The entry's sequence number is above 4,095.
    #[error("sequence {0} does not fit 12 bits")]
    SequenceOutOfRange(u64),
    /// The text is not a decimal number from 1 to 2^63 − 1.
    #[error("an order id is a decimal number from 1 to 9223372036854775807")]
    NotAnId,
}

impl OrderId {
    /// The id of the order that stands in `entry` of partition `partition`.
    ///
    /// # Errors
    /// When the entry's time or sequence does not fit its bits.
    pub fn from_entry(partition: Partition, entry: EntryId) -> Result<Self, OrderIdError> {
        let ms = entry
            .ms
            .checked_sub(ID_EPOCH_MS)
            .filter(|ms| *ms <= MS_MAX)
            .ok_or(OrderIdError::TimeOutOfRange(entry.ms))?;
        if entry.seq > SEQ_MAX {
            return Err(OrderIdError::SequenceOutOfRange(entry.seq));
        }
        let bits = (ms << ID_MS_SHIFT) | (u64::from(partition.0) << SEQ_BITS) | entry.seq;
        let id = i64::try_from(bits).expect("41 + 10 + 12 = 63 bits fit a signed 64-bit number");
        if id == 0 { Err(OrderIdError::NotAnId) } else { Ok(Self(id)) }
    }

    /// An id from a number as the database stores it; `None` when it is not positive.
    pub const fn from_i64(id: i64) -> Option<Self> {
        if id > 0 { Some(Self(id)) } else { None }
    }

    /// The number as the database stores it.
    pub const fn as_i64(self) -> i64 {
        self.0
    }

    /// The partition whose stream the order was put on ([`DIRECT_PARTITION`] for a direct order).
    pub fn partition(self) -> Partition {
        let number = (self.bits() >> SEQ_BITS) & u64::from(PARTITION_MAX);
        Partition(u16::try_from(number).expect("masked to 10 bits"))
    }

    /// The stream entry that carries, or carried, the order.
    pub fn entry(self) -> EntryId {
        EntryId {
            ms: (self.bits() >> (PARTITION_BITS + SEQ_BITS)) + ID_EPOCH_MS,
            seq: self.bits() & SEQ_MAX,
        }
    }

    fn bits(self) -> u64 {
        u64::try_from(self.0).expect("an order id is positive")
    }
}

impl FromStr for OrderId {
    type Err = OrderIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_digits(text)
            .and_then(|bits| i64::try_from(bits).ok())
            .and_then(Self::from_i64)
            .ok_or(OrderIdError::NotAnId)
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderId({})", self.0)
    }
}

impl Serialize for OrderId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OrderId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Digits only, no sign, no leading zero (but `0` itself): one spelling per number, because ids are
/// compared as text elsewhere.
pub(crate) fn parse_digits(text: &str) -> Option<u64> {
    let canonical = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn partition(number: u16) -> Partition {
        Partition::new(number).expect("a partition of the test")
    }

    #[test]
    fn an_id_packs_time_partition_and_sequence() {
        let entry = EntryId { ms: ID_EPOCH_MS + 1, seq: 2 };
        let id = OrderId::from_entry(partition(3), entry).expect("fits");
        assert_eq!(id.as_i64(), (1 << 22) | (3 << 12) | 2);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_never_wraps() {
        let p = partition(0);
        let cases = [
            (
                EntryId { ms: ID_EPOCH_MS - 1, seq: 0 },
                OrderIdError::TimeOutOfRange(ID_EPOCH_MS - 1),
            ),
            (EntryId { ms: 0, seq: 1 }, OrderIdError::TimeOutOfRange(0)),
            (
                EntryId { ms: ID_EPOCH_MS + MS_MAX + 1, seq: 0 },
                OrderIdError::TimeOutOfRange(ID_EPOCH_MS + MS_MAX + 1),
            ),
            (EntryId { ms: u64::MAX, seq: 0 }, OrderIdError::TimeOutOfRange(u64::MAX)),
            (EntryId { ms: ID_EPOCH_MS, seq: 4096 }, OrderIdError::SequenceOutOfRange(4096)),
            (EntryId { ms: ID_EPOCH_MS, seq: 0 }, OrderIdError::NotAnId),
        ];
        for (entry, expected) in cases {
            assert_eq!(OrderId::from_entry(p, entry), Err(expected), "{entry}");
        }
        assert!(Partition::new(1024).is_none());
    }

    #[test]
    fn the_largest_id_fits_a_signed_column() {
        let entry = EntryId { ms: ID_EPOCH_MS + MS_MAX, seq: SEQ_MAX };
        let id = OrderId::from_entry(DIRECT_PARTITION, entry).expect("fits");
        assert_eq!(id.as_i64(), i64::MAX);
    }

    #[test]
    fn texts_that_are_not_ids_are_refused() {
        for text in ["", "0", "-1", "+1", "01", "1.0", " 1", "9223372036854775808", "1e3", "１"] {
            assert_eq!(text.parse::<OrderId>(), Err(OrderIdError::NotAnId), "{text:?}");
        }
        for text in ["", "1", "1-", "-1", "1-1-1", "01-1", "a-b", "1--1", "18446744073709551616-0"]
        {
            assert_eq!(text.parse::<EntryId>(), Err(EntryIdError), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_entry_that_fits_comes_back_from_its_id(
            ms in 1..=MS_MAX, number in 0..=PARTITION_MAX, seq in 0..=SEQ_MAX,
        ) {
            let entry = EntryId { ms: ID_EPOCH_MS + ms, seq };
            let id = OrderId::from_entry(partition(number), entry).expect("fits");
            prop_assert!(id.as_i64() > 0);
            prop_assert_eq!(id.entry(), entry);
            prop_assert_eq!(id.partition().number(), number);
            prop_assert_eq!(id.to_string().parse::<OrderId>(), Ok(id));
            prop_assert_eq!(entry.to_string().parse::<EntryId>(), Ok(entry));
        }

        #[test]
        fn ids_of_one_partition_grow_with_their_entries(
            a in (1..=MS_MAX, 0..=SEQ_MAX), b in (1..=MS_MAX, 0..=SEQ_MAX), number in 0..=PARTITION_MAX,
        ) {
            let id = |(ms, seq): (u64, u64)| {
                OrderId::from_entry(partition(number), EntryId { ms: ID_EPOCH_MS + ms, seq }).expect("fits")
            };
            prop_assert_eq!(a.cmp(&b), id(a).cmp(&id(b)));
        }

        #[test]
        fn any_entry_at_all_gives_an_id_or_a_refusal(ms: u64, seq: u64, number in 0..=PARTITION_MAX) {
            if let Ok(id) = OrderId::from_entry(partition(number), EntryId { ms, seq }) {
                prop_assert_eq!(id.entry(), EntryId { ms, seq });
            }
        }
    }
}
