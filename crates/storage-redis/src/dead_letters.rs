//! Dead letters: entries set aside for an operator, byte for byte as they were.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flashsale_domain::{EntryId, Partition};
use serde::{Deserialize, Serialize};

use crate::order_stream::GROUP;
use crate::scripts::DEAD_LETTER;
use crate::{RawEntry, Redis, RedisFault};

/// An entry that cannot become a row until somebody looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The entry, byte for byte.
    pub entry: RawEntry,
    /// Why it is here: a slug such as `undecodable`.
    pub reason: String,
    /// What exactly was wrong.
    pub detail: String,
    /// Who set it aside.
    pub consumer: String,
    /// When: milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// The stored form. Field names and values are bytes, which JSON cannot hold: base64.
#[derive(Serialize, Deserialize)]
struct StoredLetter {
    v: u8,
    fields: Vec<(String, String)>,
    reason: String,
    detail: String,
    consumer: String,
    at_ms: i64,
}

impl DeadLetter {
    fn to_stored(&self) -> String {
        let encode = |bytes: &Vec<u8>| STANDARD.encode(bytes);
        let fields = self.entry.fields.iter().map(|(k, v)| (encode(k), encode(v))).collect();
        let stored = StoredLetter {
            v: 1,
            fields,
            reason: self.reason.clone(),
            detail: self.detail.clone(),
            consumer: self.consumer.clone(),
            at_ms: self.at_ms,
        };
        serde_json::to_string(&stored).expect("strings and numbers are always JSON")
    }

    fn from_stored(id: EntryId, text: &str) -> Result<Self, RedisFault> {
        let bad = |detail: String| RedisFault::reply("dead letter", detail);
        let stored: StoredLetter = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        let decode = |text: &str| STANDARD.decode(text).map_err(|e| bad(e.to_string()));
        let fields = stored
            .fields
            .iter()
            .map(|(k, v)| Ok((decode(k)?, decode(v)?)))
            .collect::<Result<_, RedisFault>>()?;
        Ok(Self {
            entry: RawEntry { id, fields },
            reason: stored.reason,
            detail: stored.detail,
            consumer: stored.consumer,
            at_ms: stored.at_ms,
        })
    }
}

impl Redis {
    /// Stores the letter, then acknowledges its entry, in one script. A letter that is there already
    /// is kept as it is.
    ///
    /// # Errors
    /// When the script failed: then the entry is still pending.
    pub async fn store_dead_letter(
        &self,
        partition: Partition,
        letter: &DeadLetter,
    ) -> Result<(), RedisFault> {
        let mut connection = self.connection().await?;
        let (_stored, _acked): (i64, i64) = DEAD_LETTER
            .key(self.keys.orders(partition))
            .key(self.keys.dead(partition))
            .arg(GROUP)
            .arg(letter.entry.id.to_string())
            .arg(letter.to_stored())
            .invoke_async(&mut connection)
            .await?;
        Ok(())
    }

    /// The dead letter of one entry.
    ///
    /// # Errors
    /// When Redis cannot be asked, or the letter is of an unknown format.
    pub async fn find_dead_letter(
        &self,
        partition: Partition,
        id: EntryId,
    ) -> Result<Option<DeadLetter>, RedisFault> {
        let mut connection = self.connection().await?;
        let stored: Option<String> = redis::cmd("HGET")
            .arg(self.keys.dead(partition))
            .arg(id.to_string())
            .query_async(&mut connection)
            .await?;
        stored.map(|text| DeadLetter::from_stored(id, &text)).transpose()
    }

    /// Every dead letter of a partition, oldest first.
    ///
    /// # Errors
    /// When Redis cannot be asked, or a letter is of an unknown format.
    pub async fn list_dead_letters(
        &self,
        partition: Partition,
    ) -> Result<Vec<DeadLetter>, RedisFault> {
        let mut connection = self.connection().await?;
        let stored: Vec<(String, String)> = redis::cmd("HGETALL")
            .arg(self.keys.dead(partition))
            .query_async(&mut connection)
            .await?;
        let mut letters = stored
            .iter()
            .map(|(id, text)| {
                let id = id.parse().map_err(|_| RedisFault::reply("dead letter", id.as_str()))?;
                DeadLetter::from_stored(id, text)
            })
            .collect::<Result<Vec<_>, _>>()?;
        letters.sort_by_key(|letter| letter.entry.id);
        Ok(letters)
    }

    /// How many dead letters a partition has.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn count_dead_letters(&self, partition: Partition) -> Result<u64, RedisFault> {
        let mut connection = self.connection().await?;
        Ok(redis::cmd("HLEN").arg(self.keys.dead(partition)).query_async(&mut connection).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_keeps_its_entry_byte_for_byte() {
        let id: EntryId = "1764470400000-7".parse().expect("an entry id");
        let letter = DeadLetter {
            entry: RawEntry {
                id,
                fields: vec![
                    (b"v".to_vec(), b"1".to_vec()),
                    (vec![0xff, 0x00], vec![0xfe, b'\n']),
                    (b"v".to_vec(), Vec::new()),
                ],
            },
            reason: "undecodable".into(),
            detail: "field v comes twice".into(),
            consumer: "c1".into(),
            at_ms: 5,
        };
        assert_eq!(DeadLetter::from_stored(id, &letter.to_stored()).expect("readable"), letter);
    }
}
