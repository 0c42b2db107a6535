//! Dead letters: listing them, trying them again, giving them up. Every action is in the audit log.

use flashsale_domain::{EntryId, NewOrder, OrderId, Partition, RejectReason, SaleId};
use flashsale_storage_redis::DeadLetter;
use flashsale_storage_sql::{BatchFailure, Commit, CommitRefusal, SqlFault};
use serde::Serialize;

use crate::{OperationError, Operations, Refused};

/// Which dead letters.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Only of this sale.
    pub sale_id: Option<SaleId>,
    /// Only with this reason.
    pub reason: Option<String>,
    /// Only of this partition.
    pub partition: Option<Partition>,
    /// Only this one, by its entry's id; without a partition, this one of each.
    pub entry: Option<EntryId>,
    /// At most so many, oldest first.
    pub limit: usize,
}

/// A dead letter as an operator sees it.
#[derive(Debug, Clone, Serialize)]
pub struct DeadOrder {
    /// Its partition's number.
    pub partition: u16,
    /// Its entry's id.
    pub entry_id: String,
    /// The order, where the entry can be read.
    pub order_id: Option<OrderId>,
    /// The sale, where the entry can be read.
    pub sale_id: Option<SaleId>,
    /// The buyer, where the entry can be read.
    pub user_id: Option<String>,
    /// Why it is here.
    pub reason: String,
    /// What exactly was wrong.
    pub detail: String,
    /// The database's code for the refusal.
    pub code: Option<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// Who tried.
    pub consumers: Vec<String>,
    /// When it was set aside: milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When it was last tried.
    pub last_ms: i64,
    /// The entry's fields; what is no UTF-8 is shown with replacement characters.
    pub fields: Vec<(String, String)>,
}

/// What became of a dead letter.
#[derive(Debug, Clone, Serialize)]
pub struct DeadOutcome {
    /// Its entry's id.
    pub entry_id: String,
    /// The order, where the entry can be read.
    pub order_id: Option<OrderId>,
    /// Whether it is settled, and gone.
    pub settled: bool,
    /// What was done, or would be; or why nothing could be.
    pub what: String,
}

/// What an operator does with dead letters.
#[derive(Debug, Clone, Copy)]
enum DeadAction {
    Requeue,
    Reject,
}

impl DeadAction {
    /// Its name in the audit log.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Requeue => "dead.requeue",
            Self::Reject => "dead.reject",
        }
    }
}

impl Operations {
    /// Dead letters, oldest first.
    ///
    /// # Errors
    /// When Redis fails.
    pub async fn list_dead(&self, filter: &DeadFilter) -> Result<Vec<DeadOrder>, OperationError> {
        let letters = self.find_dead(filter).await?;
        Ok(letters.iter().map(|(partition, letter)| describe(*partition, letter)).collect())
    }

    /// Tries dead letters again: the same processing, on the stored bytes, under the same order id.
    /// What still cannot be done stays, with the reason of this time.
    ///
    /// # Errors
    /// When a store fails; what was settled before stays settled.
    pub async fn requeue_dead(
        &self,
        filter: &DeadFilter,
        actor: &str,
        dry_run: bool,
    ) -> Result<Vec<DeadOutcome>, OperationError> {
        self.act_on_dead(DeadAction::Requeue, filter, actor, dry_run).await
    }

    /// Gives dead letters up: the order's row says rejected, and its unit and slot go back. A letter
    /// that cannot be read holds nothing that is known of, and is discarded.
    ///
    /// # Errors
    /// When a store fails; what was settled before stays settled.
    pub async fn reject_dead(
        &self,
        filter: &DeadFilter,
        actor: &str,
        dry_run: bool,
    ) -> Result<Vec<DeadOutcome>, OperationError> {
        self.act_on_dead(DeadAction::Reject, filter, actor, dry_run).await
    }

    async fn act_on_dead(
        &self,
        action: DeadAction,
        filter: &DeadFilter,
        actor: &str,
        dry_run: bool,
    ) -> Result<Vec<DeadOutcome>, OperationError> {
        let mut outcomes = Vec::new();
        for (partition, letter) in self.find_dead(filter).await? {
            let (settled, what) = match (action, letter.order(partition)) {
                (DeadAction::Requeue, Err(undecodable)) => {
                    (false, format!("cannot be read: {undecodable}"))
                }
                (DeadAction::Requeue, Ok(_)) if dry_run => (false, "would be tried again".into()),
                (DeadAction::Requeue, Ok(order)) => self.try_again(&order).await?,
                (DeadAction::Reject, Err(_)) if dry_run => {
                    (false, "cannot be read: would be discarded".into())
                }
                (DeadAction::Reject, Err(_)) => {
                    (true, "could not be read, and is discarded".into())
                }
                (DeadAction::Reject, Ok(_)) if dry_run => (false, "would be rejected".into()),
                (DeadAction::Reject, Ok(order)) => {
                    self.reject(&order, RejectReason::Operator).await?
                }
            };
            let outcome = DeadOutcome { settled, what, ..outcome_of(partition, &letter) };
            if !dry_run {
                self.conclude(partition, letter, actor, action.as_str(), &outcome).await?;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// The processing that a worker does. Whether the order is settled, and what became of it.
    async fn try_again(&self, order: &NewOrder) -> Result<(bool, String), OperationError> {
        Ok(match self.database.commit_orders(std::slice::from_ref(order)).await {
            Ok(batch) => match &batch.outcomes[0] {
                Commit::Inserted => (true, "is a row now".to_owned()),
                Commit::Redelivered => (true, "was a row already".to_owned()),
                Commit::Rejected(reason) => (true, format!("is rejected: {}", reason.as_str())),
                Commit::Refused(refusal) => (false, refusal.to_string()),
            },
            // Redis had one unit too many, as when a worker finds it out.
            Err(BatchFailure::Refused(CommitRefusal::StockGone(_))) => {
                self.reject(order, RejectReason::StockGone).await?
            }
            Err(BatchFailure::Refused(refusal)) => (false, refusal.to_string()),
            Err(BatchFailure::Data(fault)) => (false, fault.to_string()),
            Err(BatchFailure::Moved) => (false, "met a concurrent change".to_owned()),
            Err(BatchFailure::Infrastructure(fault)) => return Err(fault.into()),
        })
    }

    /// Whether the order is settled, and what became of it.
    async fn reject(
        &self,
        order: &NewOrder,
        reason: RejectReason,
    ) -> Result<(bool, String), OperationError> {
        match self.database.reject_order(order, reason).await {
            Ok(true) => Ok((true, format!("is rejected: {}", reason.as_str()))),
            Ok(false) => Ok((true, "was a row already, and stays as it is".to_owned())),
            Err(BatchFailure::Infrastructure(fault)) => Err(fault.into()),
            Err(failure) => Ok((false, failure.to_string())),
        }
    }

    async fn find_dead(
        &self,
        filter: &DeadFilter,
    ) -> Result<Vec<(Partition, DeadLetter)>, OperationError> {
        let mut found = Vec::new();
        let wanted = |partition: &Partition| filter.partition.is_none_or(|it| it == *partition);
        for partition in self.redis.partitions().filter(wanted) {
            for letter in self.redis.list_dead_letters(partition).await? {
                let sale = letter.order(partition).ok().map(|order| order.sale_id);
                let wanted = filter.sale_id.is_none_or(|wanted| sale == Some(wanted))
                    && filter.reason.as_ref().is_none_or(|wanted| *wanted == letter.reason)
                    && filter.entry.is_none_or(|wanted| wanted == letter.entry.id);
                if wanted {
                    found.push((partition, letter));
                }
            }
        }
        if let (Some(entry), true) = (filter.entry, found.is_empty()) {
            return Err(Refused::DeadLetterNotFound(entry.to_string()).into());
        }
        found.sort_by_key(|(_, letter)| letter.entry.id);
        found.truncate(filter.limit);
        Ok(found)
    }

    /// Row first, then Redis, then the log: a crash between them leaves a letter whose row is there,
    /// and the next try, or a rebuild, settles it.
    async fn conclude(
        &self,
        partition: Partition,
        letter: DeadLetter,
        actor: &str,
        action: &str,
        outcome: &DeadOutcome,
    ) -> Result<(), OperationError> {
        if outcome.settled {
            self.redis.delete_dead_letter(partition, letter.entry.id).await?;
        } else {
            let mut tried = DeadLetter { attempts: letter.attempts + 1, ..letter };
            tried.detail.clone_from(&outcome.what);
            tried.last_ms = self.redis.time_ms().await?;
            self.redis.update_dead_letter(partition, &tried).await?;
        }
        let subject =
            outcome.order_id.map_or_else(|| outcome.entry_id.clone(), |id| id.to_string());
        self.log(actor, action, &subject, &outcome.what).await?;
        Ok(())
    }

    async fn log(
        &self,
        actor: &str,
        action: &str,
        subject: &str,
        detail: &str,
    ) -> Result<(), SqlFault> {
        self.database.insert_audit(actor, action, subject, detail).await
    }
}

fn outcome_of(partition: Partition, letter: &DeadLetter) -> DeadOutcome {
    DeadOutcome {
        entry_id: letter.entry.id.to_string(),
        order_id: OrderId::from_entry(partition, letter.entry.id).ok(),
        settled: false,
        what: String::new(),
    }
}

fn describe(partition: Partition, letter: &DeadLetter) -> DeadOrder {
    let order = letter.order(partition).ok();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    DeadOrder {
        partition: partition.number(),
        entry_id: letter.entry.id.to_string(),
        order_id: OrderId::from_entry(partition, letter.entry.id).ok(),
        sale_id: order.as_ref().map(|order| order.sale_id),
        user_id: order.map(|order| order.user_id.as_str().to_owned()),
        reason: letter.reason.clone(),
        detail: letter.detail.clone(),
        code: letter.code.clone(),
        attempts: letter.attempts,
        consumers: letter.consumers.clone(),
        first_ms: letter.first_ms,
        last_ms: letter.last_ms,
        fields: letter.entry.fields.iter().map(|(k, v)| (text(k), text(v))).collect(),
    }
}
