//! The order-worker: stream in, rows out.
//!
//! ```text
//! reader ──┐
//!          ├─ one batch at a time ─► process: one transaction ─► one XACK
//! reclaim ─┘
//! ```
//!
//! One such pipeline a partition, side by side. Only `process` acknowledges, and only what is
//! committed, or stored as a dead letter.

mod announce;
mod app;
mod backoff;
mod expire;
mod hands;
mod help;
mod housekeeping;
mod in_flight;
mod ledger_watch;
mod process;
mod reader;
mod reclaim;
mod recovery;
mod redis_faults;
mod relay;
mod shop;
mod spans;
mod suspect;

pub use app::OrderWorker;
pub use process::{Processed, Processor};
