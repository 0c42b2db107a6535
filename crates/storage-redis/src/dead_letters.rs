//! Dead letters: entries set aside for an operator, byte for byte as they were.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flashsale_domain::{EntryId, NewOrder, Partition};
use serde::{Deserialize, Serialize};

use crate::order_stream::GROUP;
use crate::scripts::{DEAD_LETTER, STAMP_DEAD_LETTER, UPDATE_DEAD_LETTER};
use crate::{Fence, RawEntry, Redis, RedisFault, Undecodable, decode};

/// An entry that cannot become a row until somebody looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The entry, byte for byte.
    pub entry: RawEntry,
    /// Why it is here: a slug such as `undecodable`.
    pub reason: String,
    /// What exactly was wrong.
    pub detail: String,
    /// The database's code for the refusal: SQLSTATE, or SQLite's result code.
    pub code: Option<String>,
    /// How often it was tried, operators' tries included.
    pub attempts: u32,
    /// Who tried.
    pub consumers: Vec<String>,
    /// The epoch that a rebuild stamped on it: then the one in its bytes counts no longer.
    pub epoch: Option<i64>,
    /// When it was set aside: milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When it was last tried.
    pub last_ms: i64,
}

/// The stored form. Field names and values are bytes, which JSON cannot hold: base64.
#[derive(Serialize, Deserialize)]
struct StoredLetter {
    v: u8,
    fields: Vec<(String, String)>,
    reason: String,
    detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    attempts: u32,
    consumers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<i64>,
    first_ms: i64,
    last_ms: i64,
}

impl DeadLetter {
    /// A letter for an entry that `consumer` sets aside at `at_ms`, after its first try.
    pub fn new(
        entry: RawEntry,
        reason: impl Into<String>,
        detail: impl Into<String>,
        consumer: impl Into<String>,
        at_ms: i64,
    ) -> Self {
        Self {
            entry,
            reason: reason.into(),
            detail: detail.into(),
            code: None,
            attempts: 1,
            consumers: vec![consumer.into()],
            epoch: None,
            first_ms: at_ms,
            last_ms: at_ms,
        }
    }

    /// The order that the entry carries, in the epoch that counts.
    ///
    /// # Errors
    /// When the entry cannot be read as one.
    pub fn order(&self, partition: Partition) -> Result<NewOrder, Undecodable> {
        let order = decode(partition, &self.entry)?;
        Ok(NewOrder { epoch: self.epoch.unwrap_or(order.epoch), ..order })
    }

    fn to_stored(&self) -> String {
        let encode = |bytes: &Vec<u8>| STANDARD.encode(bytes);
        let fields = self.entry.fields.iter().map(|(k, v)| (encode(k), encode(v))).collect();
        let stored = StoredLetter {
            v: 1,
            fields,
            reason: self.reason.clone(),
            detail: self.detail.clone(),
            code: self.code.clone(),
            attempts: self.attempts,
            consumers: self.consumers.clone(),
            epoch: self.epoch,
            first_ms: self.first_ms,
            last_ms: self.last_ms,
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
            code: stored.code,
            attempts: stored.attempts,
            consumers: stored.consumers,
            epoch: stored.epoch,
            first_ms: stored.first_ms,
            last_ms: stored.last_ms,
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

    /// Replaces a dead letter by what is known of it now. False when it is no longer there: somebody
    /// else has dealt with it.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn update_dead_letter(
        &self,
        partition: Partition,
        letter: &DeadLetter,
    ) -> Result<bool, RedisFault> {
        let mut connection = self.connection().await?;
        let updated: i64 = UPDATE_DEAD_LETTER
            .key(self.keys.dead(partition))
            .arg(letter.entry.id.to_string())
            .arg(letter.to_stored())
            .invoke_async(&mut connection)
            .await?;
        Ok(updated == 1)
    }

    /// Gives a dead letter the epoch that a rebuild begins. `None` when the fence is no longer ours or
    /// the server is another one, false when the letter is gone.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn stamp_dead_letter(
        &self,
        fence: &Fence,
        letter: &DeadLetter,
        epoch: i64,
    ) -> Result<Option<bool>, RedisFault> {
        let stamped = DeadLetter { epoch: Some(epoch), ..letter.clone() };
        let code: i64 = STAMP_DEAD_LETTER
            .key(self.keys.gate(fence.partition))
            .key(self.keys.dead(fence.partition))
            .arg(&fence.token)
            .arg(&fence.replid)
            .arg(letter.entry.id.to_string())
            .arg(stamped.to_stored())
            .invoke_async(&mut self.connection().await?)
            .await?;
        Ok((code != 0).then_some(code == 1))
    }

    /// Removes a dead letter that is settled; false when it was gone already.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn delete_dead_letter(
        &self,
        partition: Partition,
        id: EntryId,
    ) -> Result<bool, RedisFault> {
        let mut connection = self.connection().await?;
        let deleted: i64 = redis::cmd("HDEL")
            .arg(self.keys.dead(partition))
            .arg(id.to_string())
            .query_async(&mut connection)
            .await?;
        Ok(deleted == 1)
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
            code: Some("23505".into()),
            attempts: 2,
            consumers: vec!["c1".into(), "c2".into()],
            epoch: Some(3),
            first_ms: 5,
            last_ms: 6,
        };
        assert_eq!(DeadLetter::from_stored(id, &letter.to_stored()).expect("readable"), letter);
    }
}
