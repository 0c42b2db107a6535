//! The ledger: where each unit of a sale is, in Redis and in the database, and whether they agree.

use std::time::Duration;

use flashsale_domain::{NewOrder, OrderId, OrderState, Partition, Sale, SaleId, SaleState};
use flashsale_storage_redis::RedisFault;
use serde::Serialize;
use tokio::time::sleep;

use crate::{OperationError, Operations, Refused};

/// How long an imbalance must persist.
const REREAD_AFTER: Duration = Duration::from_secs(1);

/// The account of every unit of a sale.
#[derive(Debug, Clone, Serialize)]
pub struct Ledger {
    /// The sale.
    pub sale_id: SaleId,
    /// Units in all, by the database.
    pub total: i64,
    /// Redis's account; absent for a direct sale, and while Redis does not have the sale.
    pub redis: Option<RedisAccount>,
    /// Units without an open row.
    pub stock_left: i64,
    /// Orders that Redis admitted and the database does not have yet: on the stream.
    pub queued: i64,
    /// Releases that are committed in the database and not yet carried out in Redis.
    pub in_transit: u64,
    /// Late payments for which a unit is being taken again.
    pub late_payments: u64,
    /// Units of an adjustment that one side has and the other not yet.
    pub adjusting: i64,
    /// Rows that wait for payment.
    pub awaiting_payment: i64,
    /// Rows that are paid.
    pub paid: i64,
    /// Rows that their buyers have given up.
    pub cancelled: i64,
    /// Rows that were not paid in time.
    pub expired: i64,
    /// Rows whose money came too late, and is due back.
    pub refund_due: i64,
    /// Rows that were refused after admission.
    pub rejected: i64,
    /// Orders set aside for an operator that hold a unit.
    pub dead: i64,
    /// Units that are where they cannot be: 0, or something is wrong.
    pub imbalance: i64,
    /// What the imbalance consists of, in words.
    pub problems: Vec<String>,
}

/// What Redis says of a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RedisAccount {
    /// Whether buyers are admitted as far as the gate goes.
    pub gate_open: bool,
    /// Units in all.
    pub total: i64,
    /// Units for sale.
    pub available: i64,
    /// Units held by open orders.
    pub held: i64,
    /// The sale's epoch.
    pub epoch: i64,
}

impl Ledger {
    /// Whether every unit is accounted for.
    pub const fn is_balanced(&self) -> bool {
        self.imbalance == 0
    }

    fn note(&mut self, difference: i64, problem: impl FnOnce() -> String) {
        if difference != 0 {
            self.imbalance += difference.abs();
            self.problems.push(problem());
        }
    }
}

impl Operations {
    /// Reads a sale's ledger.
    ///
    /// The database is read between two readings of Redis. What Redis holds at the second one and
    /// is no open row and no dead letter is queued: it cannot be negative, because a row is written
    /// after its unit was taken. And if Redis did not move between its two readings, with nothing on
    /// the stream at either, it must be zero, but for units that are in transit.
    ///
    /// # Errors
    /// When there is no such sale, or a store fails.
    pub async fn read_ledger(&self, id: SaleId) -> Result<Ledger, OperationError> {
        let ledger = self.read_ledger_once(id).await?;
        if ledger.is_balanced() {
            return Ok(ledger);
        }
        // A sale that is running moves between the readings; what is really wrong stays wrong.
        sleep(REREAD_AFTER).await;
        self.read_ledger_once(id).await
    }

    async fn read_ledger_once(&self, id: SaleId) -> Result<Ledger, OperationError> {
        let sale = self.get_sale(id).await?;
        let before = self.read_redis(&sale).await?;
        let totals = self.database.sale_totals(id).await?.ok_or(Refused::SaleNotFound(id))?;
        let adjusting = self.database.pending_adjustment(id).await?;
        let in_transit = self.database.orders_in_transit(id).await?;
        let count = |ids: &[OrderId]| u64::try_from(ids.len()).expect("a count fits");
        let late_payments = count(&in_transit.late_payments);
        let in_transit = count(&in_transit.releases);
        let after = self.read_redis(&sale).await?;

        let open = totals.open();
        let held = after.account.as_ref().map_or(open, |account| account.held);
        // Units that Redis holds for what is no open row and no dead letter.
        let surplus = held - open - after.dead;
        let moving = i64::try_from(in_transit + late_payments).unwrap_or(i64::MAX);
        let mut ledger = Ledger {
            sale_id: id,
            total: totals.stock_total,
            redis: after.account.clone(),
            stock_left: totals.stock_left,
            queued: surplus - surplus.clamp(0, moving),
            in_transit,
            late_payments,
            adjusting,
            awaiting_payment: totals.count(OrderState::AwaitingPayment),
            paid: totals.count(OrderState::Paid),
            cancelled: totals.count(OrderState::Cancelled),
            expired: totals.count(OrderState::Expired),
            refund_due: totals.count(OrderState::RefundDue),
            rejected: totals.count(OrderState::Rejected),
            dead: after.dead,
            imbalance: 0,
            problems: Vec::new(),
        };
        ledger.note(totals.stock_total - totals.stock_left - open, || {
            format!(
                "database: total {} is not left {} + open {open}",
                totals.stock_total, totals.stock_left
            )
        });
        let Some(account) = &after.account else {
            if sale.partition.is_some() && sale.state != SaleState::Draft {
                ledger.note(1, || "redis does not have the sale: rebuild it".to_owned());
            }
            return Ok(ledger);
        };
        ledger.note(account.total - account.available - account.held, || {
            format!(
                "redis: total {} is not available {} + held {}",
                account.total, account.available, account.held
            )
        });
        // Growth is in the database first, and what shrinks is in Redis first: either way Redis may be
        // behind by the units of the adjustment.
        let behind = totals.stock_total - account.total;
        let explained = behind == adjusting.abs();
        ledger.note(if explained { 0 } else { behind }, || {
            format!("redis has {} units in all, the database {}", account.total, totals.stock_total)
        });
        // What is in transit Redis may still hold, or hold already, and nobody can say which: so many
        // units more than rows are no imbalance.
        let quiet = before == after && after.nothing_queued;
        if quiet || ledger.queued < 0 {
            let dead = after.dead;
            ledger.note(ledger.queued, || {
                format!("redis holds {held} units, the database {open} open rows, {dead} are dead")
            });
        }
        Ok(ledger)
    }

    async fn read_redis(&self, sale: &Sale) -> Result<RedisReading, OperationError> {
        let Some(partition) = sale.partition else { return Ok(RedisReading::default()) };
        let account = self.redis.read_sale(partition, sale.id).await?;
        let backlog = self.redis.backlog(partition).await?;
        let letters = self.redis.list_dead_letters(partition).await?;
        let orders = letters.iter().filter_map(|letter| letter.order(partition).ok());
        let mut dead = Vec::new();
        for order in orders.filter(|order| order.sale_id == sale.id) {
            if self.holds_unit(partition, &order).await? {
                dead.push(order.id);
            }
        }
        // What is a row as well is counted there.
        let dead = dead.len() - self.database.find_orders(&dead).await?.len();
        Ok(RedisReading {
            account: account.sale.map(|loaded| RedisAccount {
                gate_open: account.gate_open,
                total: loaded.total,
                available: loaded.stock,
                held: loaded.held,
                epoch: loaded.epoch,
            }),
            nothing_queued: backlog.is_none_or(|backlog| backlog.total() == Some(0)),
            dead: i64::try_from(dead).expect("a count fits"),
        })
    }

    /// Whether the buyer's record says that this order holds a unit. An entry that no admission has
    /// written holds none, nor does one whose slot a rebuild has found taken.
    async fn holds_unit(
        &self,
        partition: Partition,
        order: &NewOrder,
    ) -> Result<bool, OperationError> {
        match self.redis.find_record(partition, order.sale_id, &order.user_id).await {
            Ok(record) => Ok(record.is_some_and(|record| record.holds(order.id.entry()))),
            // A record that cannot be read; the audit names it.
            Err(RedisFault::Reply { .. }) => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }
}

/// One reading of Redis.
#[derive(Debug, Default, PartialEq, Eq)]
struct RedisReading {
    account: Option<RedisAccount>,
    nothing_queued: bool,
    dead: i64,
}
