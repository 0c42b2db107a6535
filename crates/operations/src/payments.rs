//! Payments: the database decides, and where an expired order is to have a unit again, Redis gives
//! it first.

use flashsale_domain::{DIRECT_PARTITION, NewPayment, OrderId, PaymentOutcome};
use flashsale_storage_redis::{ReacquireRequest, Reacquired};
use flashsale_storage_sql::{PaymentAnswer, Reacquiring, StoredPayment, TakenUnit};

use crate::{OperationError, Operations, Refused};

/// How often a unit is asked for again when the sale is rebuilt in between.
const TRIES: usize = 3;

/// What the payment provider is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaymentVerdict {
    /// It is decided.
    Settled {
        /// What became of it.
        outcome: PaymentOutcome,
        /// The same message was decided before.
        repeated: bool,
    },
    /// There is no such order, or it is not written yet.
    OrderNotFound,
    /// The message's id was used before, for another order or another amount: nothing is changed.
    IdReused,
    /// It is written down, and will be decided when Redis has the sale again.
    Pending,
}

impl Operations {
    /// Decides about a payment. The same message twice is decided once.
    ///
    /// # Errors
    /// When a store fails: the provider's retry, or the worker, finishes what was begun.
    pub async fn receive_payment(
        &self,
        new: &NewPayment,
    ) -> Result<PaymentVerdict, OperationError> {
        let verdict = match self.database.receive_payment(new).await? {
            PaymentAnswer::OrderNotFound => return Ok(PaymentVerdict::OrderNotFound),
            PaymentAnswer::IdReused => return Ok(PaymentVerdict::IdReused),
            PaymentAnswer::Settled { outcome, repeated } => {
                PaymentVerdict::Settled { outcome, repeated }
            }
            PaymentAnswer::Reacquire(reacquiring) => {
                match self.finish_reacquiring(&reacquiring).await? {
                    Some(outcome) => PaymentVerdict::Settled { outcome, repeated: false },
                    None => PaymentVerdict::Pending,
                }
            }
        };
        if matches!(verdict, PaymentVerdict::Settled { repeated: false, .. }) {
            self.announce(&[new.order_id]).await;
        }
        Ok(verdict)
    }

    /// Finishes late payments that were begun, oldest first, at most `limit`, and returns how many
    /// were. What cannot be finished yet stays, and keeps no other from its turn.
    ///
    /// # Errors
    /// When a store fails, be it for one order only.
    pub async fn finish_late_payments(&self, limit: u64) -> Result<u64, OperationError> {
        let (mut finished, mut failed) = (0, None);
        for reacquiring in self.database.list_reacquiring(limit).await? {
            match self.finish_reacquiring(&reacquiring).await {
                Err(error) if error.is_of_one() => failed = Some(error),
                outcome => {
                    if outcome?.is_some() {
                        finished += 1;
                        self.announce(&[reacquiring.stored.order.id]).await;
                    }
                }
            }
        }
        failed.map_or(Ok(finished), Err)
    }

    /// Payments whose money has to go back, oldest first, at most `limit`.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list_refunds_due(&self, limit: u64) -> Result<Vec<StoredPayment>, OperationError> {
        Ok(self.database.list_refunds_due(limit).await?)
    }

    /// Notes that a payment's money went back.
    ///
    /// # Errors
    /// When no such payment is due back, or the database fails.
    pub async fn mark_refunded(&self, actor: &str, payment: i64) -> Result<(), OperationError> {
        if !self.database.mark_refunded(payment).await? {
            return Err(Refused::NoRefundDue(payment).into());
        }
        let subject = payment.to_string();
        self.database.insert_audit(actor, "refund.done", &subject, "the money went back").await?;
        Ok(())
    }

    /// `None` when Redis does not have the sale now.
    async fn finish_reacquiring(
        &self,
        reacquiring: &Reacquiring,
    ) -> Result<Option<PaymentOutcome>, OperationError> {
        let order = &reacquiring.stored.order;
        let partition = order.id.partition();
        if partition == DIRECT_PARTITION {
            return Ok(self.database.finish_reacquiring(reacquiring, None).await?);
        }
        let request = ReacquireRequest {
            partition,
            sale_id: order.sale_id,
            user_id: &order.user_id,
            entry: order.id.entry(),
            slot: reacquiring.stored.slot,
            generation: reacquiring.generation,
            digest: reacquiring.stored.digest.as_ref(),
        };
        for _ in 0..TRIES {
            let taken = match self.redis.reacquire(&request).await? {
                Reacquired::NotLoaded => return Ok(None),
                Reacquired::Refused => None,
                Reacquired::Taken { epoch } => Some(TakenUnit { epoch }),
            };
            if let Some(outcome) = self.database.finish_reacquiring(reacquiring, taken).await? {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    /// Tells the gateways that orders have changed. A message that does not get through is no harm:
    /// who waits looks again by himself.
    pub(crate) async fn announce(&self, ids: &[OrderId]) {
        let _unimportant = self.redis.announce_changes(ids).await;
    }
}
