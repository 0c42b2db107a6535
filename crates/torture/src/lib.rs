//! Fault drills: rounds of a sale under load with faults in between, drawn from a seed, against the
//! release programs on private servers; after each round the invariants are checked.
//!
//! The rule that this crate keeps: a drill knows exactly what it broke itself. Whatever else is
//! missing, doubled or unbalanced in the end is a failure of the system.

mod after;
mod check;
mod check_after;
mod clocks;
mod damage;
mod deployment;
mod faults;
mod kind;
mod load;
mod outage;
mod plan;
mod poison;
mod raw_redis;
mod raw_sql;
mod report;
mod round;
mod torture;

pub use deployment::Deployment;
pub use kind::Kind;
pub use outage::LongOutage;
pub use plan::{After, Fault, Load, Plan, round_seed};
pub use report::Report;
pub use round::Outcome;
pub use torture::{Torture, logs_of, replay_command};
