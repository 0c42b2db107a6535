//! The only crate that knows Redis.
//!
//! It keeps one rule for everybody else: what Redis answers is turned into domain values here, and
//! what goes wrong in Redis is a [`RedisFault`]. An answer is never a fault, and a fault never an
//! answer.

mod adjust;
mod admission;
mod admission_line;
mod changes;
mod connect;
mod dead_letters;
mod direct;
mod drill;
mod error;
mod gate;
mod holding;
mod keys;
mod order_stream;
mod primary;
mod reacquire;
mod record;
mod release;
mod rights;
mod sales;
mod scripts;
mod sentinels;
mod server;

pub use adjust::Adjusted;
pub use admission::{
    AdmissionBatch, AdmissionConnection, ORDERS_PER_BUYER_MAX, ReplicaProof, Replicas,
};
pub use changes::ChangedOrders;
pub use connect::{PoolUse, Redis, RedisConfig};
pub use dead_letters::DeadLetter;
pub use direct::BuyerLock;
pub use drill::DrillFate;
pub use error::RedisFault;
pub use gate::{GateStatus, Lock};
pub use keys::Keys;
pub use order_stream::{
    Backlog, ClaimedPage, Consumer, GROUP, OrderReader, RawEntry, ReadError, Undecodable, decode,
};
pub use reacquire::{ReacquireRequest, Reacquired};
pub use record::{Record, RecordError, RecordItem};
pub use release::{ReleaseRequest, Released, SOLD_OUT_LEASE};
pub use sales::{BuyersPage, Fence, LoadedSale, RecordsPage, SaleAccount};
pub use sentinels::NotFound;
pub use server::ServerFacts;
