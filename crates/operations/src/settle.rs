//! Settling lost orders: admitted, and then neither row, entry nor dead letter, because somebody took
//! the entry from the stream, or because Redis forgot all of it.
//!
//! The row is written first, and Redis hears of it by the same ways as ever: an order that is written
//! after all holds in Redis what it held, a rejected one gives it back by the outbox. So whatever
//! stops in between, comes twice, or writes the same order at the same time, ends as one row.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use flashsale_domain::{NewOrder, OrderId, Partition, RejectReason, Sale, SaleId, UserId};
use flashsale_storage_redis::{Record, RecordItem};
use flashsale_storage_sql::{BatchFailure, Commit, CommitRefusal, StoredOrder};
use serde::Serialize;
use tokio::time::sleep;

use crate::{OperationError, Operations, Receipt, Refused};

/// How long an order must be nowhere: what moves from one place to the next is seen in neither for a
/// moment.
pub(crate) const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// How often a settlement that meets a rebuild or a vanishing obstacle is tried.
const TRIES: usize = 5;

/// What becomes of an order that a buyer's record still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleAs {
    /// What it would have become: a row that waits for payment, or a rejected one where the database
    /// has no unit or slot for it.
    Order,
    /// A rejected row (`entry-lost`); its unit and slot go back.
    Rejected,
}

/// Which lost orders to settle, and how.
#[derive(Debug, Clone)]
pub struct Settling {
    /// Only these; empty: all.
    pub orders: Vec<OrderId>,
    /// Those that Redis still holds a unit and a slot for.
    pub settle_as: SettleAs,
    /// What buyers were told. Those that Redis forgot with its memory become rejected rows
    /// (`memory-lost`).
    pub receipts: Vec<Receipt>,
}

/// What became of an order.
#[derive(Debug, Clone, Serialize)]
pub struct SettledOrder {
    /// The order.
    pub order_id: OrderId,
    /// The buyer, where he is known.
    pub user_id: Option<String>,
    /// Whether its row says what became of it.
    pub settled: bool,
    /// What was done, or would be; or why nothing could be.
    pub what: String,
}

/// An open order of a buyer's record that is neither row, entry nor dead letter.
pub(crate) struct LostOrder {
    pub(crate) id: OrderId,
    /// Text from Redis.
    pub(crate) user: String,
    pub(crate) item: RecordItem,
}

/// An order that is to be settled.
struct Case {
    order: NewOrder,
    /// None: as a worker would write it.
    rejected: Option<RejectReason>,
    why: &'static str,
}

impl Operations {
    /// Settles the orders of a sale that are lost, and stay so for a second. With `dry_run` it says
    /// what it would do.
    ///
    /// # Errors
    /// When Redis's memory of the sale is not to be trusted now, or a store fails; what was settled
    /// before stays settled, and running it again goes on.
    pub async fn settle_lost(
        &self,
        id: SaleId,
        settling: &Settling,
        actor: &str,
        dry_run: bool,
    ) -> Result<Vec<SettledOrder>, OperationError> {
        let sale = self.get_sale(id).await?;
        let partition = sale.partition.ok_or(Refused::NotQueued(id))?;
        // What the record says counts in the epoch in which it was read: the same before and after.
        let epoch = self.trusted_epoch(partition, id).await?;
        let mut outcomes = Vec::new();
        let mut cases = self.find_cases(&sale, partition, epoch, settling, &mut outcomes).await?;
        if !cases.is_empty() || !outcomes.is_empty() {
            sleep(RECHECK_AFTER).await;
            outcomes.clear();
            let before: HashSet<OrderId> = cases.iter().map(|case| case.order.id).collect();
            cases = self.find_cases(&sale, partition, epoch, settling, &mut outcomes).await?;
            cases.retain(|case| before.contains(&case.order.id));
        }
        if self.trusted_epoch(partition, id).await? != epoch {
            return Err(Refused::RebuiltMeanwhile(id).into());
        }

        for case in cases {
            let (settled, what) =
                if dry_run { (false, case.plan()) } else { self.settle(&case, actor).await? };
            let user_id = Some(case.order.user_id.as_str().to_owned());
            outcomes.push(SettledOrder { order_id: case.order.id, user_id, settled, what });
        }
        let known: HashSet<OrderId> = outcomes.iter().map(|outcome| outcome.order_id).collect();
        for order in settling.orders.iter().filter(|order| !known.contains(order)) {
            outcomes.push(self.explain_not_lost(id, *order).await?);
        }
        Ok(outcomes)
    }

    /// The epoch of the sale's memory in Redis, which is to be trusted.
    async fn trusted_epoch(&self, partition: Partition, id: SaleId) -> Result<i64, OperationError> {
        let account = self.redis.read_sale(partition, id).await?;
        match account.sale {
            Some(sale) if account.gate_open => Ok(sale.epoch),
            _ => Err(Refused::NotLoaded(id).into()),
        }
    }

    /// One reading: what is lost; and in `outcomes` what is lost and cannot be settled.
    async fn find_cases(
        &self,
        sale: &Sale,
        partition: Partition,
        epoch: i64,
        settling: &Settling,
        outcomes: &mut Vec<SettledOrder>,
    ) -> Result<Vec<Case>, OperationError> {
        let wanted = |id: &OrderId| settling.orders.is_empty() || settling.orders.contains(id);
        let (records, _unreadable) = self.read_records(partition, sale.id).await?;
        let rows = self.read_rows(sale.id).await?;
        let mut lost = self.find_lost(partition, &records, &rows).await?;
        lost.retain(|lost| wanted(&lost.id));
        lost.sort_by_key(|lost| lost.id);

        let mut cases = Vec::new();
        let held: HashSet<OrderId> = lost.iter().map(|lost| lost.id).collect();
        for lost in lost {
            match case_of_record(sale.id, epoch, settling.settle_as, &lost) {
                Ok(case) => cases.push(case),
                Err(what) => outcomes.push(not_settled(lost.id, &lost.user, what)),
            }
        }
        let rebuilt_id = self.redis.rebuilt_id(partition).await?;
        for receipt in &settling.receipts {
            let id = receipt.order_id;
            if !wanted(&id) || held.contains(&id) || rows.contains_key(&id) {
                continue;
            }
            let user = receipt.user_id.as_str();
            if id.partition() != partition {
                let what = "its id is of another partition: it is no order of this sale";
                outcomes.push(not_settled(id, user, what));
            } else if !self.is_nowhere(id).await? {
                // On its way, or set aside; or another sale's, which its own settling looks after.
            } else if rebuilt_id.is_some_and(|last| id.entry() <= last) {
                cases.push(case_of_receipt(sale.id, epoch, receipt));
            } else {
                let what = "is later than the partition's last rebuild, so that it may still be on \
                            its way: rebuild the partition, then settle again";
                outcomes.push(not_settled(id, user, what));
            }
        }
        Ok(cases)
    }

    /// The open orders of these records that are neither row, entry nor dead letter. `rows` are to be
    /// read after the records: a row is written after its record.
    pub(crate) async fn find_lost(
        &self,
        partition: Partition,
        records: &HashMap<String, Record>,
        rows: &HashMap<OrderId, StoredOrder>,
    ) -> Result<Vec<LostOrder>, OperationError> {
        let mut lost = Vec::new();
        for (user, record) in records {
            for item in record.items.iter().filter(|item| item.open) {
                let Ok(id) = OrderId::from_entry(partition, item.entry) else { continue };
                if !rows.contains_key(&id) && self.is_nowhere(id).await? {
                    lost.push(LostOrder { id, user: user.clone(), item: item.clone() });
                }
            }
        }
        Ok(lost)
    }

    /// Whether an order is neither entry, dead letter nor row. The row is looked for last, because
    /// that is where orders go.
    pub(crate) async fn is_nowhere(&self, id: OrderId) -> Result<bool, OperationError> {
        let (partition, entry) = (id.partition(), id.entry());
        if self.redis.find_entry(partition, entry).await?.is_some()
            || self.redis.find_dead_letter(partition, entry).await?.is_some()
        {
            return Ok(false);
        }
        Ok(self.database.find_order(id).await?.is_none())
    }

    async fn settle(&self, case: &Case, actor: &str) -> Result<(bool, String), OperationError> {
        let (order, mut rejected) = (&case.order, case.rejected);
        for _ in 0..TRIES {
            match self.database.settle_order(order, rejected, actor, case.why).await {
                Ok(commit) => {
                    self.announce(&[order.id]).await;
                    return self.say(order.id, &commit).await;
                }
                // Redis had one unit too many, as when a worker finds it out.
                Err(BatchFailure::Refused(CommitRefusal::StockGone(_))) => {
                    rejected = Some(RejectReason::StockGone);
                }
                Err(BatchFailure::Moved) => {}
                Err(BatchFailure::Infrastructure(fault)) => return Err(fault.into()),
                Err(failure @ (BatchFailure::Refused(_) | BatchFailure::Data(_))) => {
                    return Ok((false, failure.to_string()));
                }
            }
        }
        Ok((false, format!("{}; settle again", BatchFailure::Moved)))
    }

    async fn say(&self, id: OrderId, commit: &Commit) -> Result<(bool, String), OperationError> {
        Ok(match commit {
            Commit::Inserted => (true, "waits for payment now".to_owned()),
            Commit::Rejected(reason) => (true, format!("is rejected: {}", reason.as_str())),
            // Somebody was faster: a worker that had it in hand, or another operator.
            Commit::Redelivered => match self.database.find_order(id).await? {
                Some(row) => (true, format!("was a row already: {}", row.order.state)),
                None => (false, "its row is gone again".to_owned()),
            },
            Commit::Refused(refusal) => (false, refusal.to_string()),
        })
    }

    /// An order that was named, and is not lost.
    async fn explain_not_lost(
        &self,
        sale: SaleId,
        id: OrderId,
    ) -> Result<SettledOrder, OperationError> {
        let (settled, what) = if let Some(row) = self.database.find_order(id).await? {
            let of = row.order.sale_id;
            let what = format!("is a row of sale {of}: {}", row.order.state);
            (of == sale, what)
        } else if !self.redis.partitions().any(|known| known == id.partition()) {
            (false, "its id is of a partition that there is not".to_owned())
        } else if self.redis.find_dead_letter(id.partition(), id.entry()).await?.is_some() {
            (false, "is a dead letter: see `salectl dead`".to_owned())
        } else if self.redis.find_entry(id.partition(), id.entry()).await?.is_some() {
            (false, "is on the stream, and becomes a row by itself".to_owned())
        } else {
            (false, format!("no buyer's record of sale {sale} holds it, and no receipt names it"))
        };
        Ok(SettledOrder { order_id: id, user_id: None, settled, what })
    }
}

impl Case {
    /// What settling it would do.
    fn plan(&self) -> String {
        match self.rejected {
            None => "would be written as an order".to_owned(),
            Some(reason) => format!("would be rejected: {}", reason.as_str()),
        }
    }
}

fn case_of_record(
    sale_id: SaleId,
    epoch: i64,
    settle_as: SettleAs,
    lost: &LostOrder,
) -> Result<Case, &'static str> {
    let LostOrder { id, user, item } = lost;
    if item.generation != 1 {
        return Err("was paid for late, and the row that said so is gone: the database is older \
                    than Redis, rebuild the partition");
    }
    let user_id = UserId::new(user.as_str()).map_err(|_| "its buyer has no valid id")?;
    let rejected = match settle_as {
        SettleAs::Order => None,
        SettleAs::Rejected => Some(RejectReason::EntryLost),
    };
    let (slot, digest) = (item.slot, item.digest.clone());
    let order = NewOrder { id: *id, sale_id, user_id, slot, epoch, digest };
    Ok(Case { order, rejected, why: "its entry was lost" })
}

/// Redis does not hold it any more: it is of an epoch before this one. What the receipt does not say,
/// slot and key, nobody needs.
fn case_of_receipt(sale_id: SaleId, epoch: i64, receipt: &Receipt) -> Case {
    let (id, user_id) = (receipt.order_id, receipt.user_id.clone());
    let order = NewOrder { id, sale_id, user_id, slot: 1, epoch: epoch - 1, digest: None };
    let rejected = Some(RejectReason::MemoryLost);
    Case { order, rejected, why: "Redis lost its memory of it" }
}

fn not_settled(order_id: OrderId, user: &str, what: &str) -> SettledOrder {
    let (user_id, what) = (Some(user.to_owned()), what.to_owned());
    SettledOrder { order_id, user_id, settled: false, what }
}
