//! Dead letters: listing them, trying them again, giving them up. Every action is in the audit log.

use flashsale_domain::{EntryId, NewOrder, OrderId, Partition, RejectReason, SaleId};
use flashsale_storage_redis::DeadLetter;
use flashsale_storage_sql::{BatchFailure, Commit, CommitRefusal};
use serde::{Deserialize, Serialize};

use crate::{OperationError, Operations, Refused};

/// Which dead letters.
#[derive(Debug, Clone)]
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

impl Default for DeadFilter {
    /// The oldest 100 of all.
    fn default() -> Self {
        Self { sale_id: None, reason: None, partition: None, entry: None, limit: 100 }
    }
}

/// A dead letter as an operator sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
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

/// What an action came to.
enum Ending {
    /// The letter is done with, and goes.
    Settled(String),
    /// The order is to blame: its letter stays, and says why this time.
    Stays { reason: &'static str, code: Option<String>, detail: String },
    /// Nothing was tried, or nothing of it counts: the letter stays as it is.
    Untouched(String),
}

impl Ending {
    fn what(&self) -> &str {
        match self {
            Self::Settled(what) | Self::Untouched(what) => what,
            Self::Stays { detail, .. } => detail,
        }
    }

    /// What a failed transaction comes to for the one order in it.
    fn of_failure(failure: BatchFailure) -> Result<Self, OperationError> {
        match (failure.reason(), failure) {
            (Some(reason), failure) => {
                Ok(Self::Stays { reason, code: failure.code(), detail: failure.to_string() })
            }
            (None, BatchFailure::Infrastructure(fault)) => Err(fault.into()),
            (None, failure) => Ok(Self::Untouched(format!("{failure}; try again"))),
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
    /// What still cannot be done stays, with the reason, the detail and the code of this time, and
    /// with `actor` among those who tried.
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
            let would = |what: &str| Ending::Untouched(what.to_owned());
            let ending = match (action, letter.order(partition)) {
                (DeadAction::Requeue, Err(undecodable)) => Ending::Stays {
                    reason: undecodable.reason(),
                    code: None,
                    detail: format!("cannot be read: {undecodable}"),
                },
                (DeadAction::Requeue, Ok(_)) if dry_run => would("would be tried again"),
                (DeadAction::Requeue, Ok(order)) => self.try_again(&order).await?,
                (DeadAction::Reject, Err(_)) if dry_run => {
                    would("cannot be read: would be discarded")
                }
                (DeadAction::Reject, Err(_)) => {
                    Ending::Settled("could not be read, and is discarded".to_owned())
                }
                (DeadAction::Reject, Ok(_)) if dry_run => would("would be rejected"),
                (DeadAction::Reject, Ok(order)) => {
                    self.reject(&order, RejectReason::Operator).await?
                }
            };
            let outcome = outcome_of(partition, &letter, &ending);
            if !dry_run {
                self.conclude(partition, letter, actor, action, ending).await?;
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// The processing that a worker does.
    async fn try_again(&self, order: &NewOrder) -> Result<Ending, OperationError> {
        match self.database.commit_orders(std::slice::from_ref(order)).await {
            Ok(batch) => Ok(match &batch.outcomes[0] {
                Commit::Inserted => Ending::Settled("is a row now".to_owned()),
                Commit::Redelivered => Ending::Settled("was a row already".to_owned()),
                Commit::Rejected(reason) => {
                    Ending::Settled(format!("is rejected: {}", reason.as_str()))
                }
                Commit::Refused(refusal) => Ending::Stays {
                    reason: refusal.as_str(),
                    code: None,
                    detail: refusal.to_string(),
                },
            }),
            // Redis had one unit too many, as when a worker finds it out.
            Err(BatchFailure::Refused(CommitRefusal::StockGone(_))) => {
                self.reject(order, RejectReason::StockGone).await
            }
            Err(failure) => Ending::of_failure(failure),
        }
    }

    async fn reject(
        &self,
        order: &NewOrder,
        reason: RejectReason,
    ) -> Result<Ending, OperationError> {
        match self.database.reject_order(order, reason).await {
            Ok(Commit::Rejected(reason)) => {
                Ok(Ending::Settled(format!("is rejected: {}", reason.as_str())))
            }
            Ok(_) => Ok(Ending::Settled("was a row already, and stays as it is".to_owned())),
            // Nobody holds a unit of a sale that does not exist, and there is no row to write.
            Err(BatchFailure::Refused(CommitRefusal::SaleMissing(sale))) => {
                Ok(Ending::Settled(format!("is of sale {sale}, which does not exist: discarded")))
            }
            Err(failure) => Ending::of_failure(failure),
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
        action: DeadAction,
        ending: Ending,
    ) -> Result<(), OperationError> {
        let id = letter.entry.id;
        let subject = OrderId::from_entry(partition, id)
            .map_or_else(|_| id.to_string(), |order_id| order_id.to_string());
        let what = ending.what().to_owned();
        match ending {
            Ending::Settled(_) => {
                self.redis.delete_dead_letter(partition, id).await?;
            }
            Ending::Stays { reason, code, detail } => {
                let mut tried = DeadLetter {
                    reason: reason.to_owned(),
                    detail,
                    code,
                    attempts: letter.attempts.saturating_add(1),
                    last_ms: self.redis.time_ms().await?,
                    ..letter
                };
                if !tried.consumers.iter().any(|known| known == actor) {
                    tried.consumers.push(actor.to_owned());
                }
                self.redis.update_dead_letter(partition, &tried).await?;
            }
            Ending::Untouched(_) => {}
        }
        Ok(self.database.insert_audit(actor, action.as_str(), &subject, &what).await?)
    }
}

fn outcome_of(partition: Partition, letter: &DeadLetter, ending: &Ending) -> DeadOutcome {
    DeadOutcome {
        entry_id: letter.entry.id.to_string(),
        order_id: OrderId::from_entry(partition, letter.entry.id).ok(),
        settled: matches!(ending, Ending::Settled(_)),
        what: ending.what().to_owned(),
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
