//! The only file that spells a Redis key.
//!
//! All keys of one partition carry the hash tag `{p}`, so that on a cluster they live together and
//! one script may touch them all.

use flashsale_domain::{DIRECT_PARTITION, Partition, SaleId, UserId};

/// Builds keys under a deployment's prefix.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Keys that begin with `prefix`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// Hash: is the partition's memory open and trusted.
    pub fn gate(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:gate", self.prefix)
    }

    /// Hash: a sale's stock, window, limit and state.
    pub fn sale(&self, partition: Partition, sale: SaleId) -> String {
        format!("{}:{{{partition}}}:sale:{sale}", self.prefix)
    }

    /// Hash: user id → record.
    pub fn buyers(&self, partition: Partition, sale: SaleId) -> String {
        format!("{}:{{{partition}}}:buyers:{sale}", self.prefix)
    }

    /// Stream: the orders of all sales of the partition.
    pub fn orders(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:orders", self.prefix)
    }

    /// Hash: entry id → dead letter.
    pub fn dead(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:dead", self.prefix)
    }

    /// Hash: how often an entry came by reclaim (`r:<id>`), and was tried alone (`a:<id>`).
    pub fn suspects(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:suspects", self.prefix)
    }

    /// Set: ids of entries that were pending and are gone, until they are written down.
    pub fn lost(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:lost", self.prefix)
    }

    /// String: who rebuilds the partition.
    pub fn rebuild_lock(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:rebuild", self.prefix)
    }

    /// String: who watches the partition's ledgers.
    pub fn ledger_lock(&self, partition: Partition) -> String {
        format!("{}:{{{partition}}}:ledger", self.prefix)
    }

    /// Channel: ids of orders that have changed. Channels have no home, and no hash tag.
    pub fn changes(&self) -> String {
        format!("{}:changed-orders", self.prefix)
    }

    /// String: the lock of one buyer in one direct sale.
    pub fn buyer_lock(&self, sale: SaleId, user: &UserId) -> String {
        format!("{}:{{{DIRECT_PARTITION}}}:lock:{sale}:{user}", self.prefix)
    }

    /// Hash: the last id given to an order of a direct sale.
    pub fn direct_ids(&self) -> String {
        format!("{}:{{{DIRECT_PARTITION}}}:direct_ids", self.prefix)
    }

    /// Nothing is ever here: it stands for any key where only a right is asked for.
    pub fn nothing(&self) -> String {
        format!("{}:{{{DIRECT_PARTITION}}}:nothing", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_partition_share_its_hash_tag() {
        let keys = Keys::new("fs");
        let p = Partition::new(7).expect("a partition");
        let sale = SaleId::from_i64(42).expect("a sale id");
        assert_eq!(keys.gate(p), "fs:{7}:gate");
        assert_eq!(keys.sale(p, sale), "fs:{7}:sale:42");
        assert_eq!(keys.buyers(p, sale), "fs:{7}:buyers:42");
        assert_eq!(keys.orders(p), "fs:{7}:orders");
        assert_eq!(keys.dead(p), "fs:{7}:dead");
        assert_eq!(keys.direct_ids(), "fs:{1023}:direct_ids");
        // A buyer's id with braces comes after the tag: Redis takes the first pair only.
        let user = UserId::new("{0}").expect("a user id");
        assert_eq!(keys.buyer_lock(sale, &user), "fs:{1023}:lock:42:{0}");
    }
}
