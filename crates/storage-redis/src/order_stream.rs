//! The orders stream: one entry is one order, and the entry's id is the order's id.
//!
//! Written by `lua/admit.lua`, read by the consumer group of all order-workers. An entry leaves the
//! stream only after it was acknowledged.

mod backlog;
mod entry;
mod group;
mod reading;
mod reclaiming;

pub use backlog::Backlog;
pub use entry::{RawEntry, Undecodable, decode};
pub use group::Consumer;
pub use reading::{OrderReader, ReadError};
pub use reclaiming::ClaimedPage;

/// The consumer group of all order-workers.
pub const GROUP: &str = "order-workers";
