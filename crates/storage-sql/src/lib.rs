//! The only crate that knows the SQL database, and sea-orm.
//!
//! The database never trusts Redis: every unit is guarded here once more, by a guarded update, a
//! CHECK and a partial unique index. Answers are domain values; what goes wrong is a [`SqlFault`].

mod account;
mod audit_log;
mod clock;
mod commit;
mod connect;
mod direct;
mod entities;
mod error;
mod orders;
mod outbox;
mod rebuild;
mod sales;

pub use account::{SaleTotals, SlotViolation};
pub use audit_log::AuditEntry;
pub use commit::{BatchFailure, Commit, CommitRefusal, CommittedBatch};
pub use connect::{Database, DatabaseConfig};
pub use direct::DirectAnswer;
pub use error::SqlFault;
pub use orders::{OrderFilter, StoredOrder};
pub use outbox::Release;
pub use rebuild::{HeldOrder, NewEpoch};
pub use sales::{ChangedSale, SaleChange};
