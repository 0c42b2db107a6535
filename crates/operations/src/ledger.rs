//! The ledger: where each unit of a sale is, in Redis and in the database, and whether they agree.

use flashsale_domain::{OrderState, SaleId, SaleMode};
use flashsale_storage_redis::decode;
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
    /// Rows that wait for payment.
    pub awaiting_payment: i64,
    /// Rows that are paid.
    pub paid: i64,
    /// Rows that were refused after admission.
    pub rejected: i64,
    /// Orders set aside for an operator.
    pub dead: i64,
    /// Units that are where they cannot be: 0, or something is wrong.
    pub imbalance: i64,
    /// What the imbalance consists of, in words.
    pub problems: Vec<String>,
}

/// What Redis says of a sale.
#[derive(Debug, Clone, Serialize)]
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
    /// Redis and the database are read one after the other; an order committed between the two
    /// readings is either still queued or already a row, never both and never neither, because
    /// Redis's `held` counts it in either case.
    ///
    /// # Errors
    /// When there is no such sale, or a store fails.
    pub async fn read_ledger(&self, id: SaleId) -> Result<Ledger, OperationError> {
        let sale = self.get_sale(id).await?;
        let mut dead = 0;
        let mut redis = None;
        let mut undelivered_before = None;
        if let Some(partition) = sale.partition {
            undelivered_before = self.redis.backlog(partition).await?.map(|b| b.total());
            let letters = self.redis.list_dead_letters(partition).await?;
            let orders = letters.iter().filter_map(|letter| decode(partition, &letter.entry).ok());
            dead = i64::try_from(orders.filter(|order| order.sale_id == id).count())
                .expect("a count fits");
            let account = self.redis.read_sale(partition, id).await?;
            redis = account.sale.map(|loaded| RedisAccount {
                gate_open: account.gate_open,
                total: loaded.total,
                available: loaded.stock,
                held: loaded.held,
                epoch: loaded.epoch,
            });
        }
        let totals = self.database.sale_totals(id).await?.ok_or(Refused::SaleNotFound(id))?;
        let open = totals.open();
        let mut ledger = Ledger {
            sale_id: id,
            total: totals.stock_total,
            redis: redis.clone(),
            stock_left: totals.stock_left,
            queued: redis.as_ref().map_or(0, |account| account.held - open - dead),
            awaiting_payment: totals.count(OrderState::AwaitingPayment),
            paid: totals.count(OrderState::Paid),
            rejected: totals.count(OrderState::Rejected),
            dead,
            imbalance: 0,
            problems: Vec::new(),
        };
        let difference = totals.stock_total - totals.stock_left - open;
        ledger.note(difference, || {
            format!(
                "database: total {} is not left {} + open {open}",
                totals.stock_total, totals.stock_left
            )
        });
        match &redis {
            Some(account) => {
                let difference = account.total - account.available - account.held;
                ledger.note(difference, || {
                    format!(
                        "redis: total {} is not available {} + held {}",
                        account.total, account.available, account.held
                    )
                });
                ledger.note(account.total - totals.stock_total, || {
                    format!(
                        "redis has {} units in all, the database {}",
                        account.total, totals.stock_total
                    )
                });
                // With nothing on the stream before the reading, everything that Redis holds is a
                // row or dead; with something on it, the difference is what is queued.
                let nothing_queued = undelivered_before.flatten() == Some(0);
                let admitted_since = match sale.partition {
                    Some(partition) if nothing_queued && ledger.queued > 0 => {
                        self.redis.backlog(partition).await?.and_then(|b| b.total()) != Some(0)
                    }
                    _ => !nothing_queued,
                };
                if ledger.queued < 0 || !admitted_since {
                    let queued = ledger.queued;
                    ledger.note(queued, || {
                        format!(
                            "redis holds {} units, the database has {open} open rows and {dead} \
                             are dead, with nothing on the stream",
                            account.held
                        )
                    });
                }
            }
            None if sale.mode == SaleMode::Queued && sale.partition.is_some() => {
                ledger.note(1, || "redis does not have the sale: rebuild it".to_owned());
            }
            None => {}
        }
        Ok(ledger)
    }
}
