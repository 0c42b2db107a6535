//! Settling an order that is nowhere: its row and the line of the audit log are one transaction, so
//! that no operator's decision is without a trace, and no trace without its row.

use flashsale_domain::{NewOrder, RejectReason};
use sea_orm::DatabaseTransaction;

use crate::new_rows::Conflict;
use crate::{BatchFailure, Commit, Database};

/// The action's name in the audit log.
const ACTION: &str = "order.settle";

impl Database {
    /// Writes the row of an order whose entry is gone: as a worker would have, or rejected when there
    /// is a reason. `actor` and `why` are for the audit log.
    ///
    /// # Errors
    /// When nothing was written: see [`BatchFailure`].
    pub async fn settle_order(
        &self,
        order: &NewOrder,
        rejected: Option<RejectReason>,
        actor: &str,
        why: &str,
    ) -> Result<Commit, BatchFailure> {
        let transaction = self.begin_write().await?;
        let written = self.write_settlement(&transaction, order, rejected, actor, why).await;
        Self::end(transaction, written).await
    }

    async fn write_settlement(
        &self,
        transaction: &DatabaseTransaction,
        order: &NewOrder,
        rejected: Option<RejectReason>,
        actor: &str,
        why: &str,
    ) -> Result<Commit, BatchFailure> {
        let commit = match rejected {
            Some(reason) => self.write_rejection(transaction, order, reason).await?,
            None => {
                let orders = std::slice::from_ref(order);
                let mut batch = self.write_batch(transaction, orders, Conflict::Skips).await?;
                batch.outcomes.remove(0)
            }
        };
        let detail = format!("{why}: {}", result_of(&commit));
        let subject = order.id.to_string();
        self.write_audit(transaction, actor, ACTION, &subject, &detail).await?;
        Ok(commit)
    }
}

/// What the audit log says.
fn result_of(commit: &Commit) -> String {
    match commit {
        Commit::Inserted => "waits for payment now".to_owned(),
        Commit::Redelivered => "was a row already".to_owned(),
        Commit::Rejected(reason) => format!("rejected as {}", reason.as_str()),
        Commit::Refused(refusal) => format!("not settled: {refusal}"),
    }
}
