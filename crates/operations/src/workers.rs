//! Who works on the orders, and how much waits for them.

use flashsale_storage_redis::Consumer;
use serde::{Deserialize, Serialize};

use crate::{OperationError, Operations};

/// The consumers of every partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// One for each partition, in their order.
    pub partitions: Vec<PartitionWorkers>,
}

/// The consumers of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionWorkers {
    /// Its number.
    pub partition: u16,
    /// What is not a row yet; null while there is no stream.
    pub backlog: Option<PartitionBacklog>,
    /// In the order of their names.
    pub consumers: Vec<ConsumerView>,
}

/// How many orders are not rows yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionBacklog {
    /// No worker has had them yet; null while Redis does not know.
    pub undelivered: Option<u64>,
    /// A worker holds them.
    pub pending: u64,
}

/// A consumer: an order-worker's reader or reclaimer in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerView {
    /// Its name, as in the logs.
    pub name: String,
    /// Entries that it holds.
    pub pending: u64,
    /// Milliseconds since Redis last heard of it. One that reads is heard of every `worker.block`.
    pub idle_ms: u64,
}

impl From<Consumer> for ConsumerView {
    fn from(consumer: Consumer) -> Self {
        Self { name: consumer.name, pending: consumer.pending, idle_ms: consumer.idle_ms }
    }
}

impl Operations {
    /// The workers of every partition, and what waits for them.
    ///
    /// # Errors
    /// When Redis fails.
    pub async fn list_workers(&self) -> Result<Workers, OperationError> {
        let mut partitions = Vec::new();
        for partition in self.redis.partitions() {
            let backlog = self.redis.backlog(partition).await?;
            let found = self.redis.list_consumers(partition).await?;
            let mut consumers: Vec<_> = found.into_iter().map(ConsumerView::from).collect();
            consumers.sort_by(|one, other| one.name.cmp(&other.name));
            partitions.push(PartitionWorkers {
                partition: partition.number(),
                backlog: backlog.map(|backlog| PartitionBacklog {
                    undelivered: backlog.undelivered,
                    pending: backlog.pending,
                }),
                consumers,
            });
        }
        Ok(Workers { partitions })
    }
}
