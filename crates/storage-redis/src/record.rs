//! A buyer's record in a sale, as `lua/lib/record.lua` stores it: read here for lists and
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
#[error("not a buyer's record of format 1 or 2")]
pub struct RecordError;

impl FromStr for Record {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let items = text.strip_prefix('2').or_else(|| text.strip_prefix("1|"));
        let items = items.ok_or(RecordError)?;
        let items = items
            .split(';')
            .map(|item| parse_item(item).ok_or(RecordError))
            .collect::<Result<_, _>>()?;
        Ok(Self { items })
    }
}

fn parse_item(text: &str) -> Option<RecordItem> {
    let digest_of = |text: &str| IdempotencyDigest::from_stored(text);
    let parts: Vec<&str> = text.split(':').collect();
    let first_of_its_buyer = |entry: &str, digest| {
        Some(RecordItem { entry: entry.parse().ok()?, slot: 1, generation: 1, open: true, digest })
    };
    match parts[..] {
        [entry] => first_of_its_buyer(entry, None),
        [entry, digest] => first_of_its_buyer(entry, Some(digest_of(digest)?)),
        [entry, slot, generation, flag, digest] => Some(RecordItem {
            entry: entry.parse().ok()?,
            slot: slot.parse().ok()?,
            generation: generation.parse().ok()?,
            open: match flag {
                "o" => true,
                "c" => false,
                _ => return None,
            },
            digest: if digest.is_empty() { None } else { Some(digest_of(digest)?) },
        }),
        _ => None,
    }
}

impl fmt::Display for RecordItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.as_ref().map_or("", |digest| digest.as_str());
        match (self.open, self.slot, self.generation) {
            (true, 1, 1) if digest.is_empty() => write!(f, "{}", self.entry),
            (true, 1, 1) => write!(f, "{}:{digest}", self.entry),
            (open, slot, generation) => {
                let flag = if open { 'o' } else { 'c' };
                write!(f, "{}:{slot}:{generation}:{flag}:{digest}", self.entry)
            }
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("2")?;
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
        let text = "21764470400000-0:1:1:c:ungWv48Bz-o;1764470400001-4095:1:2:o:;\
                    1764470400002-0:ungWv48Bz-o;1764470400003-0";
        let record: Record = text.parse().expect("a record");
        let seen =
            |item: &RecordItem| (item.slot, item.generation, item.open, item.digest.is_some());
        let items: Vec<_> = record.items.iter().map(seen).collect();
        let expected =
            [(1, 1, false, true), (1, 2, true, false), (1, 1, true, true), (1, 1, true, false)];
        assert_eq!(items, expected);
        assert_eq!(record.to_string(), text);
    }

    #[test]
    fn a_record_of_format_1_is_read_and_becomes_one_of_format_2() {
        let text = "1|1764470400000-0:1:1:c:;1764470400001-4095:1:1:o:ungWv48Bz-o";
        let record: Record = text.parse().expect("a record");
        let now = "21764470400000-0:1:1:c:;1764470400001-4095:ungWv48Bz-o";
        assert_eq!(record.to_string(), now);
    }

    #[test]
    fn a_text_of_another_format_is_refused() {
        for bad in [
            "",
            "1|",
            "2",
            "2|1-1:1:1:o:",
            "3|1-1:1:1:o:",
            "1-1",
            "21-1;",
            "21-1:",
            "21-1:zz",
            "21-1:1:1",
            "1|1-1:1:1:x:",
            "1|1-1:1:1:o",
            "1|1-1:1:1:o::",
            "1|1-1:1:1:o:zz",
        ] {
            assert_eq!(bad.parse::<Record>(), Err(RecordError), "{bad:?}");
        }
    }
}
