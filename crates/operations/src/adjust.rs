//! Adjustments: an operator changes a sale's stock while it runs.

use std::time::Duration;

use flashsale_domain::{IdempotencyKey, STOCK_MAX, Sale, SaleId};
use flashsale_storage_redis::Adjusted;
use flashsale_storage_sql::{Adjustment, AdjustmentAnswer, NewAdjustment};
use tokio::time::{Instant, sleep};

use crate::{OperationError, Operations, Refused};

/// How long an adjustment waits for another one of the same sale, and how often it looks.
const BUSY_MAX: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The longest reason, in characters.
const REASON_CHARS_MAX: usize = 200;

impl Operations {
    /// Changes a sale's stock by `delta` units, for a reason. Units that buyers hold are not to be
    /// had: a change below them is refused.
    ///
    /// # Errors
    /// When it is refused, or a store fails; begun and not finished, the worker finishes it.
    pub async fn adjust_stock(
        &self,
        actor: &str,
        id: SaleId,
        delta: i64,
        reason: &str,
    ) -> Result<Sale, OperationError> {
        self.adjust_stock_once(actor, id, delta, reason, None).await
    }

    /// The same under a key: asked for again with it, the stock is not changed again. A refusal does
    /// not keep its key.
    ///
    /// # Errors
    /// See [`Operations::adjust_stock`]; also when the key stands for another adjustment.
    pub async fn adjust_stock_once(
        &self,
        actor: &str,
        sale_id: SaleId,
        delta: i64,
        reason: &str,
        key: Option<&IdempotencyKey>,
    ) -> Result<Sale, OperationError> {
        let reason = reason.trim();
        let readable = !reason.is_empty()
            && reason.chars().count() <= REASON_CHARS_MAX
            && !reason.chars().any(char::is_control);
        if delta == 0 || !(-STOCK_MAX..=STOCK_MAX).contains(&delta) || !readable {
            return Err(Refused::Adjustment.into());
        }
        let key = key.map(IdempotencyKey::as_str);
        let total_max = STOCK_MAX;
        let new = NewAdjustment { sale_id, delta, total_max, reason, actor, key };
        match self.begin_adjustment(&new).await? {
            AdjustmentAnswer::Done => {}
            AdjustmentAnswer::Pending(adjustment) => match self.carry_out(&adjustment).await {
                Ok(CarriedOut::Done) => {}
                Ok(CarriedOut::Refused) => {
                    let left = self.available(&adjustment).await?;
                    return Err(Refused::TooFewLeft { sale: sale_id, left }.into());
                }
                // It is written down, so it will be carried out, whatever Redis or the database say now.
                Ok(CarriedOut::Waits) | Err(OperationError::Fault(_)) => {
                    return Err(Refused::AdjustmentWaits(sale_id).into());
                }
                Err(refused) => return Err(refused),
            },
            AdjustmentAnswer::SaleNotFound => return Err(Refused::SaleNotFound(sale_id).into()),
            AdjustmentAnswer::Closed => return Err(Refused::Closed(sale_id).into()),
            AdjustmentAnswer::TooFew { left } => {
                return Err(Refused::TooFewLeft { sale: sale_id, left }.into());
            }
            AdjustmentAnswer::TooMany => return Err(Refused::Adjustment.into()),
            AdjustmentAnswer::KeyReused => return Err(Refused::KeyReused(sale_id).into()),
            AdjustmentAnswer::Busy => return Err(Refused::AdjustmentBusy(sale_id).into()),
        }
        self.get_sale(sale_id).await
    }

    /// Begins an adjustment. One that comes while another is being carried out waits its turn.
    async fn begin_adjustment(
        &self,
        new: &NewAdjustment<'_>,
    ) -> Result<AdjustmentAnswer, OperationError> {
        let busy_until = Instant::now() + BUSY_MAX;
        loop {
            let begun = self.database.begin_adjustment_once(new).await?;
            if begun != AdjustmentAnswer::Busy || Instant::now() > busy_until {
                return Ok(begun);
            }
            sleep(BUSY_PAUSE).await;
        }
    }

    /// Finishes adjustments that were begun, oldest first, at most `limit`. What cannot be finished
    /// yet stays, and keeps no other from its turn.
    ///
    /// # Errors
    /// When a store fails, be it for one sale only.
    pub async fn finish_adjustments(&self, limit: u64) -> Result<(), OperationError> {
        let mut failed = Ok(());
        for adjustment in self.database.list_pending_adjustments(limit).await? {
            match self.carry_out(&adjustment).await {
                Err(error) if error.is_of_one() => failed = Err(error),
                carried_out => {
                    carried_out?;
                }
            }
        }
        failed
    }

    async fn carry_out(&self, adjustment: &Adjustment) -> Result<CarriedOut, OperationError> {
        let Adjustment { id, sale_id, partition, epoch, delta } = *adjustment;
        let adjusted = self.redis.adjust_stock(partition, sale_id, id, delta, epoch).await?;
        let carried_out = match adjusted {
            Adjusted::NotLoaded => return Ok(CarriedOut::Waits),
            Adjusted::Done => true,
            Adjusted::Refused => false,
        };
        Ok(match (self.database.finish_adjustment(adjustment, carried_out).await?, carried_out) {
            (true, true) => CarriedOut::Done,
            (true, false) => CarriedOut::Refused,
            (false, _) => CarriedOut::Waits,
        })
    }

    async fn available(&self, adjustment: &Adjustment) -> Result<i64, OperationError> {
        let account = self.redis.read_sale(adjustment.partition, adjustment.sale_id).await?;
        Ok(account.sale.map_or(0, |sale| sale.stock))
    }
}

enum CarriedOut {
    Done,
    Refused,
    Waits,
}
