//! The ledger: where each unit of a sale is, in Redis and in the database, and whether they agree.

use flashsale_domain::{NewOrder, OrderState, Partition, Sale, SaleId, SaleState};
use flashsale_storage_redis::RedisFault;
use serde::Serialize;

use crate::{OperationError, Operations, Refused};

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
    /// Rows that wait for payment.
    pub awaiting_payment: i64,
    /// Rows that are paid.
    pub paid: i64,
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
    /// the stream at either, it must be zero.
    ///
    /// # Errors
    /// When there is no such sale, or a store fails.
    pub async fn read_ledger(&self, id: SaleId) -> Result<Ledger, OperationError> {
        let sale = self.get_sale(id).await?;
        let before = self.read_redis(&sale).await?;
        let totals = self.database.sale_totals(id).await?.ok_or(Refused::SaleNotFound(id))?;
        let in_transit = self.database.count_releases(id).await?;
        let after = self.read_redis(&sale).await?;

        let open = totals.open();
        let held = after.account.as_ref().map_or(open, |account| account.held);
        let mut ledger = Ledger {
            sale_id: id,
            total: totals.stock_total,
            redis: after.account.clone(),
            stock_left: totals.stock_left,
            queued: held - open - after.dead - i64::try_from(in_transit).unwrap_or(i64::MAX),
            in_transit,
            awaiting_payment: totals.count(OrderState::AwaitingPayment),
            paid: totals.count(OrderState::Paid),
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
        ledger.note(account.total - totals.stock_total, || {
            format!("redis has {} units in all, the database {}", account.total, totals.stock_total)
        });
        let quiet = before == after && after.nothing_queued && in_transit == 0;
        // While a release is in transit its unit may be counted on both sides, or on none.
        if quiet || (ledger.queued < 0 && in_transit == 0) {
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
