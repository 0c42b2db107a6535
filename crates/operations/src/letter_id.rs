//! How an operator names a dead letter.

use std::str::FromStr;

use flashsale_domain::{EntryId, OrderId, Partition};

use crate::DeadFilter;

/// A dead letter's name: its entry's id; or its order's, which says the partition as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterId {
    /// Its partition, where the name says it.
    pub partition: Option<Partition>,
    /// Its entry.
    pub entry: EntryId,
}

/// A text that names no dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an order's id (385644540322643969) or an entry's (1764470400000-0)")]
pub struct NoLetterId;

impl FromStr for LetterId {
    type Err = NoLetterId;

    fn from_str(text: &str) -> Result<Self, NoLetterId> {
        if let Ok(entry) = text.parse::<EntryId>() {
            return Ok(Self { partition: None, entry });
        }
        let order: OrderId = text.parse().map_err(|_| NoLetterId)?;
        Ok(Self { partition: Some(order.partition()), entry: order.entry() })
    }
}

impl From<LetterId> for DeadFilter {
    fn from(id: LetterId) -> Self {
        Self { partition: id.partition, entry: Some(id.entry), ..Self::default() }
    }
}
