//! The ledger: where each unit of a sale is, in Redis and in the database, and whether they agree.
//!
//! It is right while the sale runs. Redis says, at one moment, how many units are held and which order
//! id was the last: so each of those units belongs to an order up to that id. Then the orders up to it
//! are looked for: on the stream, among the dead letters, and, in one snapshot that is later than
//! these, in the database. What was admitted meanwhile has a higher id and is left out. What was given
//! back meanwhile is bounded by the releases in the outbox and by how often Redis's stock has grown by
//! a second reading.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use flashsale_domain::{NewOrder, OrderId, OrderState, Partition, Sale, SaleId, SaleState};
use flashsale_storage_redis::{RedisFault, SaleAccount, decode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::time::sleep;

use crate::{OperationError, Operations, Refused};

/// How long an imbalance must persist.
const REREAD_AFTER: Duration = Duration::from_secs(1);

/// The account of every unit of a sale.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ledger {
    /// The sale.
    pub sale_id: SaleId,
    /// Units in all, by the database.
    pub total: i64,
    /// Units by which adjustments have changed the total since the sale was created.
    pub adjusted: i64,
    /// Redis's account; absent for a direct sale, and while Redis does not have the sale.
    pub redis: Option<RedisAccount>,
    /// Units without an open row.
    pub stock_left: i64,
    /// Orders that Redis admitted and the database does not have yet: on the stream.
    pub queued: i64,
    /// Releases that are committed in the database and not yet carried out in Redis.
    pub in_transit: usize,
    /// Late payments for which a unit is being taken again.
    pub late_payments: usize,
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
    pub problems: Vec<Problem>,
}

/// A part of an imbalance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What does not add up: the same in another reading, whatever the figures are by then.
    pub account: &'static str,
    /// By how many units.
    pub units: i64,
    what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.what)
    }
}

impl<'de> Deserialize<'de> for Problem {
    /// As another program told it: the words are left, and stand for the account.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let what = String::deserialize(deserializer)?;
        Ok(Self { account: "told", units: 0, what })
    }
}

/// What Redis says of a sale.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

    fn note(&mut self, account: &'static str, difference: i64, what: impl FnOnce() -> String) {
        if difference != 0 {
            let units = difference.saturating_abs();
            self.imbalance = self.imbalance.saturating_add(units);
            self.problems.push(Problem { account, units, what: what() });
        }
    }

    /// Drops what an earlier reading did not find.
    fn keep_what_persists(&mut self, earlier: &Self) {
        self.problems
            .retain(|problem| earlier.problems.iter().any(|p| p.account == problem.account));
        self.imbalance = self.problems.iter().map(|problem| problem.units).sum();
    }
}

impl Operations {
    /// Reads a sale's ledger. What does not balance is read again a second later, and counts if it
    /// still does not.
    ///
    /// # Errors
    /// When there is no such sale, or a store fails.
    pub async fn read_ledger(&self, id: SaleId) -> Result<Ledger, OperationError> {
        let earlier = self.read_ledger_once(id).await?;
        if earlier.is_balanced() {
            return Ok(earlier);
        }
        sleep(REREAD_AFTER).await;
        let mut ledger = self.read_ledger_once(id).await?;
        ledger.keep_what_persists(&earlier);
        Ok(ledger)
    }

    async fn read_ledger_once(&self, id: SaleId) -> Result<Ledger, OperationError> {
        let sale = self.get_sale(id).await?;
        let redis = self.read_redis(&sale).await?;
        let candidates: Vec<OrderId> =
            redis.waiting.iter().chain(&redis.dead).map(|order| order.id).collect();
        let database = self.database.read_account(id, redis.last, &candidates).await?;
        let database = database.ok_or(Refused::SaleNotFound(id))?;
        let totals = &database.totals;
        let open = totals.open();

        let mut unwritten: HashSet<OrderId> = database.unwritten.iter().copied().collect();
        let dead = redis.dead.iter().filter(|order| unwritten.remove(&order.id)).count();
        let count = |count: usize| i64::try_from(count).expect("a count fits");
        let (releases, late_payments) = (
            count(database.in_transit.releases.len()),
            count(database.in_transit.late_payments.len()),
        );
        let mut ledger = Ledger {
            sale_id: id,
            total: totals.stock_total,
            adjusted: database.adjusted,
            redis: redis.account.clone(),
            stock_left: totals.stock_left,
            queued: count(unwritten.len()),
            in_transit: database.in_transit.releases.len(),
            late_payments: database.in_transit.late_payments.len(),
            adjusting: database.adjusting,
            awaiting_payment: totals.count(OrderState::AwaitingPayment),
            paid: totals.count(OrderState::Paid),
            cancelled: totals.count(OrderState::Cancelled),
            expired: totals.count(OrderState::Expired),
            refund_due: totals.count(OrderState::RefundDue),
            rejected: totals.count(OrderState::Rejected),
            dead: count(dead),
            imbalance: 0,
            problems: Vec::new(),
        };
        ledger.note("database", totals.stock_total - totals.stock_left - open, || {
            format!(
                "database: total {} is not left {} + open {open}",
                totals.stock_total, totals.stock_left
            )
        });
        let Some(account) = &redis.account else {
            if sale.partition.is_some() && sale.state != SaleState::Draft {
                ledger.note("missing", 1, || "redis does not have the sale: rebuild it".to_owned());
            }
            return Ok(ledger);
        };
        ledger.note("redis", account.total - account.available - account.held, || {
            format!(
                "redis: total {} is not available {} + held {}",
                account.total, account.available, account.held
            )
        });
        // Growth is in the database first, and what shrinks is in Redis first: either way Redis may be
        // behind by the units of the adjustment.
        let behind = totals.stock_total - account.total;
        let explained = behind == database.adjusting.abs();
        ledger.note("totals", if explained { 0 } else { behind }, || {
            format!("redis has {} units in all, the database {}", account.total, totals.stock_total)
        });

        // What Redis held and is no order that holds a unit: given back since, or being given back. What
        // is being paid late may hold a unit on one side only.
        let rows = database.open_up_to_last;
        let returned = redis.returned_since(self.read_account(&sale).await?);
        let surplus = account.held - rows - ledger.dead;
        let extra = (-late_payments, releases + late_payments + returned);
        if surplus - ledger.queued < extra.0 {
            // An entry that no admission has written holds no unit.
            let partition = sale.partition.expect("it has an account in Redis");
            for order in redis.waiting.iter().filter(|order| unwritten.contains(&order.id)) {
                ledger.queued -= i64::from(!self.holds_unit(partition, order).await?);
            }
        }
        let (queued, dead) = (ledger.queued, ledger.dead);
        let unexplained = surplus - queued;
        ledger.note("orders", unexplained - unexplained.clamp(extra.0, extra.1), || {
            format!(
                "redis holds {} units, the database {rows} open rows, {queued} are queued, {dead} dead",
                account.held
            )
        });
        Ok(ledger)
    }

    async fn read_account(&self, sale: &Sale) -> Result<Option<SaleAccount>, OperationError> {
        let Some(partition) = sale.partition else { return Ok(None) };
        Ok(Some(self.redis.read_sale(partition, sale.id).await?))
    }

    async fn read_redis(&self, sale: &Sale) -> Result<RedisReading, OperationError> {
        let (Some(partition), Some(account)) = (sale.partition, self.read_account(sale).await?)
        else {
            return Ok(RedisReading::default());
        };
        // The stream before the dead letters: what is set aside stays on the stream for a while.
        let entries = self.redis.list_unapplied(partition, account.last_id).await?;
        let letters = self.redis.list_dead_letters(partition).await?;
        let Some(loaded) = account.sale else { return Ok(RedisReading::default()) };
        // An order of an older epoch holds nothing: it will be rejected.
        let is_held = |order: &NewOrder| order.sale_id == sale.id && order.epoch == loaded.epoch;
        let waiting =
            entries.iter().filter_map(|entry| decode(partition, entry).ok()).filter(is_held);
        let mut dead = Vec::new();
        let orders = letters.iter().filter_map(|letter| letter.order(partition).ok());
        for order in orders.filter(|order| order.sale_id == sale.id) {
            if self.holds_unit(partition, &order).await? {
                dead.push(order);
            }
        }
        Ok(RedisReading {
            last: OrderId::from_entry(partition, account.last_id).ok(),
            waiting: waiting.collect(),
            dead,
            returns: loaded.returns,
            account: Some(RedisAccount {
                gate_open: account.gate_open,
                total: loaded.total,
                available: loaded.stock,
                held: loaded.held,
                epoch: loaded.epoch,
            }),
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
#[derive(Default)]
struct RedisReading {
    account: Option<RedisAccount>,
    /// The last order that it had given out.
    last: Option<OrderId>,
    /// How often its stock had grown.
    returns: i64,
    /// Orders that may not be rows yet.
    waiting: Vec<NewOrder>,
    /// Orders set aside that hold a unit.
    dead: Vec<NewOrder>,
}

impl RedisReading {
    /// Units that came back since.
    fn returned_since(&self, later: Option<SaleAccount>) -> i64 {
        let later = later.and_then(|account| account.sale);
        later.map_or(0, |sale| sale.returns - self.returns).max(0)
    }
}
