//! What a round itself has broken: exactly this may be missing, or set aside, in the end.

use std::collections::{BTreeMap, BTreeSet};

use flashsale_domain::OrderId;

/// The fields of an entry, in their order.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A bad entry that a drill appended.
#[derive(Debug, Clone)]
pub(crate) struct Poison {
    pub(crate) fields: Fields,
    /// It must be there as a dead letter; false once a drill took it from Redis by force.
    pub(crate) must_be_there: bool,
}

/// What one round did.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Entries that were deleted from the stream, with a row by then or not.
    pub(crate) deleted: BTreeSet<OrderId>,
    /// Those of them that a worker held when they were deleted, with the consumer: their loss must be
    /// named.
    pub(crate) deleted_while_pending: BTreeMap<OrderId, String>,
    /// The pending list went with its group, and with it all trace of what was deleted before.
    pub(crate) trace_is_gone: bool,
    /// Orders that were lost by this, and settled.
    pub(crate) settled: usize,
    /// Redis lost everything, or what it was given last.
    pub(crate) flushed: bool,
    /// The database was set back.
    pub(crate) set_back: bool,
    /// What went wrong while a fault was carried out.
    pub(crate) failures: Vec<String>,
}

impl Damage {
    /// Whether orders may be missing at all.
    pub(crate) fn may_have_lost(&self) -> bool {
        self.redis_lost() || self.set_back
    }

    /// Whether it was Redis that lost them.
    pub(crate) fn redis_lost(&self) -> bool {
        self.flushed || !self.deleted.is_empty()
    }

    /// Whether this order may have been lost, and settled as rejected. What the database lost is not:
    /// Redis has it.
    pub(crate) fn may_have_lost_order(&self, id: OrderId) -> bool {
        self.flushed || self.deleted.contains(&id)
    }
}
