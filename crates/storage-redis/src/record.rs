//! A buyer's record in a sale, as `lua/lib/record.lua` stores it (format 1): read here for lists and
//! audits, written here for loading a sale from the database.

use std::fmt;
use std::str::FromStr;

use flashsale_domain::{EntryId, IdempotencyDigest};

/// All orders that a buyer had in a sale, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// One per order.
    pub items: Vec<RecordItem>,
}

impl Record {
    /// Whether the order of this entry is in the record, and open.
    pub fn holds(&self, entry: EntryId) -> bool {
        self.items.iter().any(|item| item.open && item.entry == entry)
    }
}

/// One order of a buyer's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordItem {
    /// The order's entry.
    pub entry: EntryId,
    /// The slot it holds, or held.
    pub slot: u16,
    /// How often it took a unit: 1, and one more for each late payment that took a unit again.
    pub generation: u32,
    /// Whether it holds its unit.
    pub open: bool,
    /// Digest of the key it was ordered with.
    pub digest: Option<IdempotencyDigest>,
}

/// A text that is no record of a known format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a buyer's record of format 1")]
pub struct RecordError;

impl FromStr for Record {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let items = text.strip_prefix("1|").ok_or(RecordError)?;
        let items = items
            .split(';')
            .map(|item| parse_item(item).ok_or(RecordError))
            .collect::<Result<_, _>>()?;
        Ok(Self { items })
    }
}

fn parse_item(text: &str) -> Option<RecordItem> {
    let mut parts = text.split(':');
    let item = RecordItem {
        entry: parts.next()?.parse().ok()?,
        slot: parts.next()?.parse().ok()?,
        generation: parts.next()?.parse().ok()?,
        open: match parts.next()? {
            "o" => true,
            "c" => false,
            _ => return None,
        },
        digest: match parts.next()? {
            "" => None,
            digest => Some(IdempotencyDigest::from_stored(digest)?),
        },
    };
    parts.next().is_none().then_some(item)
}

impl fmt::Display for RecordItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = if self.open { 'o' } else { 'c' };
        write!(f, "{}:{}:{}:{flag}:", self.entry, self.slot, self.generation)?;
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "{digest}"))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("1|")?;
        for (i, item) in self.items.iter().enumerate() {
            let separator = if i == 0 { "" } else { ";" };
            write!(f, "{separator}{item}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let text = "1|1764470400000-0:1:1:c:ungWv48Bz-o;1764470400001-4095:1:2:o:";
        let record: Record = text.parse().expect("a record");
        assert_eq!(record.items.len(), 2);
        assert!(!record.items[0].open && record.items[1].open);
        assert_eq!(record.items[1].generation, 2);
        assert_eq!(record.to_string(), text);
    }

    #[test]
    fn a_text_of_another_format_is_refused() {
        for bad in [
            "",
            "1|",
            "2|1-1:1:1:o:",
            "1|1-1:1:1:x:",
            "1|1-1:1:1:o",
            "1|1-1:1:1:o::",
            "1|1-1:1:1:o:zz",
        ] {
            assert_eq!(bad.parse::<Record>(), Err(RecordError), "{bad:?}");
        }
    }
}
