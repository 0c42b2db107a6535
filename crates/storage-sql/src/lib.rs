//! The only crate that knows the SQL database, and sea-orm.
//!
//! The database never trusts Redis: every unit is guarded here once more, by a guarded update, a
//! CHECK and a partial unique index. Answers are domain values; what goes wrong is a [`SqlFault`].

mod account;
mod adjustments;
mod arrays;
mod audit_log;
mod clock;
mod closing;
mod commit;
mod connect;
mod direct;
mod entities;
mod error;
mod events;
mod new_rows;
mod orders;
mod outbox;
mod payments;
mod rebuild;
mod rehearsals;
mod report;
mod sales;
mod server;
mod settle;
mod spans;

pub use account::{DatabaseAccount, SaleTotals, SlotViolation};
pub use adjustments::{Adjustment, AdjustmentAnswer, NewAdjustment};
pub use audit_log::{AuditEntry, AuditFilter};
pub use closing::{Cancellation, NextDue};
pub use commit::{BatchFailure, Commit, CommitRefusal, CommittedBatch};
pub use connect::{Database, DatabaseConfig};
pub use direct::DirectAnswer;
pub use error::SqlFault;
pub use events::Event;
pub use orders::{OrderFilter, StoredOrder};
pub use outbox::{InTransit, Release};
pub use payments::{PaymentAnswer, Reacquiring, StoredPayment, TakenUnit};
pub use rebuild::{HeldOrder, NewEpoch};
pub use rehearsals::Erasure;
pub use report::{AnswerCount, LagFigures, RowFigures};
pub use sales::{ChangedSale, SaleChange, SaleEdit};
pub use server::DatabaseFacts;
