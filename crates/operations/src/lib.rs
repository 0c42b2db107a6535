//! An operator's operations, each written once: `salectl`, the admin API and the programs call them.
//!
//! They keep the order across the stores: what shrinks a sale (pause, close) goes to Redis first,
//! what grows it (publish, resume) to the database first. So a crash between the two leaves units
//! unsold for a moment, and never sells one too many.

mod adjust;
mod audit;
mod closing;
pub mod connect;
mod dead;
pub mod doctor;
mod drill;
mod ledger;
mod letter_id;
mod listing;
mod operator;
mod payments;
pub mod pools;
mod rebuild;
mod rehearsal;
mod report;
mod sale_view;
mod sales;
mod settle;
pub mod start;
mod workers;

use std::sync::Arc;

use flashsale_domain::{NewSaleError, Partition, SaleId, SaleState};
use flashsale_storage_redis::{Redis, RedisFault};
use flashsale_storage_sql::{Database, SqlFault};

pub use audit::{AllAudits, Audit, Finding, Receipt, Unread};
pub use dead::{DeadFilter, DeadOrder, DeadOutcome};
pub use drill::{DRILL_TITLE, DrillOrder};
pub use ledger::{Ledger, RedisAccount};
pub use letter_id::LetterId;
pub use listing::{AuditLine, OrderLine, OrderQuery};
pub use operator::Operator;
pub use payments::PaymentVerdict;
pub use rebuild::{RebuildStep, RebuildWatch, Rebuilt, RebuiltSale};
pub use report::{CommitLag, NotSold, Proof, Report, Sold};
pub use sale_view::SaleView;
pub use settle::{SettleAs, SettledOrder, Settling};
pub use workers::{ConsumerView, PartitionBacklog, PartitionWorkers, Workers};

/// The two stores, and what an operator may do with them.
#[derive(Clone)]
pub struct Operations {
    redis: Redis,
    database: Database,
    /// Told where a rebuild stands.
    watch: Option<Arc<RebuildWatch>>,
}

/// Why an operation was not done. Nothing is broken; the operator asked for what cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No such sale.
    #[error("there is no sale {0}")]
    SaleNotFound(SaleId),
    /// The description of a new sale.
    #[error(transparent)]
    NewSale(#[from] NewSaleError),
    /// The sale's state does not allow it.
    #[error("{}", why_not(*sale, *state, *wanted))]
    State {
        /// The sale.
        sale: SaleId,
        /// Its state.
        state: SaleState,
        /// What was asked for.
        wanted: SaleState,
    },
    /// Gateways remember a window, a limit and a price of a sale that is on.
    #[error("sale {sale} is {state}: of a published or paused sale only the title can be changed")]
    OnlyTitle {
        /// The sale.
        sale: SaleId,
        /// Its state.
        state: SaleState,
    },
    /// Nothing was to be changed.
    #[error("nothing is to be changed: name at least one field")]
    NoChange,
    /// Its window is over already.
    #[error("the window of sale {0} has ended already: create a new sale")]
    WindowOver(SaleId),
    /// It has no memory in Redis.
    #[error("sale {0} is not loaded in Redis: run `salectl rebuild {0}`")]
    NotLoaded(SaleId),
    /// A direct sale has no partition to rebuild.
    #[error(
        "sale {0} is a direct sale, or was never published: there is nothing in Redis to rebuild"
    )]
    NoPartition(SaleId),
    /// A direct sale has no entries.
    #[error(
        "sale {0} is a direct sale, or was never published: it has no entries that could be lost"
    )]
    NotQueued(SaleId),
    /// What was read of Redis does not count any more.
    #[error("sale {0} was rebuilt meanwhile: nothing was done, run it again")]
    RebuiltMeanwhile(SaleId),
    /// Entries are still waiting for a worker.
    #[error(
        "{waiting} orders of partition {partition} still wait for an order-worker; \
         the partition stays closed: see that a worker runs, then rebuild again"
    )]
    EntriesWaiting {
        /// The partition.
        partition: Partition,
        /// How many.
        waiting: u64,
    },
    /// Another rebuild of the partition is under way.
    #[error(
        "partition {0} is being rebuilt by somebody else: wait for it, or try again in 10 seconds"
    )]
    RebuildRunning(Partition),
    /// No such dead letter.
    #[error("there is no dead letter {0}")]
    DeadLetterNotFound(String),
    /// The adjustment itself.
    #[error(
        "a stock changes by a number other than 0, to 100000000 units at most, \
         for a reason of 1 to 200 characters"
    )]
    Adjustment,
    /// More units would be taken away than are left.
    #[error("sale {sale} has only {left} units left: what buyers hold cannot be taken away")]
    TooFewLeft {
        /// The sale.
        sale: SaleId,
        /// Units for sale.
        left: i64,
    },
    /// The sale is over.
    #[error("sale {0} is closed, and stays as it is")]
    Closed(SaleId),
    /// An adjustment is begun and waits for Redis.
    #[error(
        "the adjustment of sale {0} is written down and will be carried out once: an order-worker \
         finishes it as soon as Redis has the sale; do not ask for it again"
    )]
    AdjustmentWaits(SaleId),
    /// Another adjustment is not finished.
    #[error(
        "another adjustment of sale {0} is not finished yet, so this one was not begun and nothing \
         is changed: ask for it again later"
    )]
    AdjustmentBusy(SaleId),
    /// A key stands for one adjustment.
    #[error(
        "this key stands for another adjustment of sale {0}, and nothing is changed: take a new key \
         for each adjustment, and the same one only to ask again"
    )]
    KeyReused(SaleId),
    /// No such payment, or its money is not due back.
    #[error("there is no payment {0} whose money is due back")]
    NoRefundDue(i64),
    /// Only what bears the mark may be cleaned up, or drilled with.
    #[error(
        "sale {0} is no rehearsal's: only the sales of `salectl rehearse` and `salectl drill` may be \
         used so"
    )]
    NotARehearsal(SaleId),
    /// Orders, releases, adjustments or payments of it are under way.
    #[error(
        "{what} orders or releases of sale {sale} are under way, and nothing is cleaned up before \
         they are done: see that an order-worker runs, then try again"
    )]
    RehearsalBusy {
        /// The sale.
        sale: SaleId,
        /// How many.
        what: u64,
    },
    /// Buyers of a sale that is on would be turned away.
    #[error(
        "partition {partition} is also that of sale {sale}, which is on: its gate is closed for no drill"
    )]
    DrillInTheWay {
        /// The partition.
        partition: Partition,
        /// A sale of everybody.
        sale: SaleId,
    },
    /// Other orders would have been touched.
    #[error(
        "for 30 s there was no moment in which partition {0} had no orders of others to write, or no \
         worker has ever read it: a drill is for a quiet deployment with a worker"
    )]
    DrillFoundNoQuiet(Partition),
    /// Somebody else fenced the partition, or Redis restarted, in the middle.
    #[error(
        "partition {0} was fenced by somebody else, or Redis restarted, meanwhile: rebuild again"
    )]
    FenceLost(Partition),
}

/// Why a sale in `state` cannot be moved so, and what can be done.
fn why_not(sale: SaleId, state: SaleState, wanted: SaleState) -> String {
    match (wanted, state) {
        (_, SaleState::Closed) => format!("sale {sale} is closed, and stays so"),
        (SaleState::Published, SaleState::Paused) => {
            format!("sale {sale} is paused: `salectl sale resume {sale}` puts it on sale again")
        }
        (SaleState::Published, _) => {
            format!("sale {sale} is {state}: only a paused sale can be resumed")
        }
        (SaleState::Paused, _) => {
            format!("sale {sale} is {state}: only a published sale can be paused")
        }
        (SaleState::Closed, _) => {
            format!("sale {sale} is {state}: only a published or paused sale can be closed")
        }
        (SaleState::Draft, _) => format!("sale {sale} is {state}, and no draft again"),
    }
}

/// A store failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Redis.
    #[error(transparent)]
    Redis(#[from] RedisFault),
    /// The database.
    #[error(transparent)]
    Sql(#[from] SqlFault),
}

/// Why an operation did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// It was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A store failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl OperationError {
    /// True when it may concern this one sale or order only: others can still be served.
    pub(crate) fn is_of_one(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Fault(Fault::Sql(SqlFault::Row { .. })) => true,
            Self::Fault(Fault::Redis(fault)) => fault.is_refused(),
            Self::Fault(Fault::Sql(_)) => false,
        }
    }
}

impl From<RedisFault> for OperationError {
    fn from(fault: RedisFault) -> Self {
        Self::Fault(fault.into())
    }
}

impl From<SqlFault> for OperationError {
    fn from(fault: SqlFault) -> Self {
        Self::Fault(fault.into())
    }
}

impl Operations {
    /// Operations on these two stores.
    pub const fn new(redis: Redis, database: Database) -> Self {
        Self { redis, database, watch: None }
    }

    /// With somebody who is told where a rebuild stands.
    #[must_use]
    pub fn watched_by(mut self, watch: Arc<RebuildWatch>) -> Self {
        self.watch = Some(watch);
        self
    }
}
