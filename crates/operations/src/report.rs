//! A sale's report: its certificate once it is closed. What was sold and to how many, what the crowd was
//! told, how long orders took, what became of the units that were not sold, and the figures that prove
//! that nothing was lost.

use std::collections::BTreeMap;

use flashsale_domain::{RejectReason, SaleId, SaleMode, SaleState};
use serde::{Deserialize, Serialize};

use crate::{Ledger, OperationError, Operations};

/// The report of a sale.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The sale.
    pub sale_id: SaleId,
    /// What is sold.
    pub title: String,
    /// Where the sale stands.
    pub state: SaleState,
    /// Whether these are the last figures: the sale is closed, and no order of it can change any more.
    pub is_final: bool,
    /// What was sold.
    pub sold: Sold,
    /// What buyers were told, and how often, as in the metric `flashsale_admissions_total`. Counted by
    /// the gateways: one that is killed takes those of its last two seconds with it.
    pub answers: BTreeMap<String, i64>,
    /// From admission to COMMIT; absent without rows, and of a direct sale.
    pub commit_lag: Option<CommitLag>,
    /// Orders that came to nothing, by cause.
    pub not_sold: NotSold,
    /// That nothing was lost; absent for a direct sale, and while Redis does not have the sale.
    pub proof: Option<Proof>,
    /// Where every unit is now.
    pub ledger: Ledger,
}

/// What was sold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sold {
    /// Units in all.
    pub stock: i64,
    /// Units that were paid for.
    pub paid: i64,
    /// Units held by orders that can still be paid.
    pub awaiting_payment: i64,
    /// Units left.
    pub left: i64,
    /// Buyers who hold a unit.
    pub buyers: i64,
    /// Money for the paid units, in minor units of `currency`.
    pub revenue: i64,
    /// ISO 4217.
    pub currency: String,
}

/// How long orders took from admission (by Redis's clock) to COMMIT (by the database's): milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitLag {
    /// Half of them took at most so long.
    pub p50_ms: i64,
    /// 99 of 100 took at most so long.
    pub p99_ms: i64,
    /// The longest.
    pub max_ms: i64,
}

/// Orders that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotSold {
    /// Given up by their buyers.
    pub cancelled: i64,
    /// Not paid in time.
    pub expired: i64,
    /// Buyers who let one lapse.
    pub lapsed_buyers: i64,
    /// Paid too late: the money is due back.
    pub refund_due: i64,
    /// Refused after admission, by reason.
    pub rejected: BTreeMap<String, i64>,
    /// Set aside, and not settled.
    pub dead: i64,
}

/// Every order that was admitted is accounted for:
/// `admitted = rows + queued + dead`, and `missing` is what is left over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Entries that admission has written; after a rebuild, the orders that were loaded and the entries
    /// written since.
    pub admitted: i64,
    /// Rows, rejected ones too, but for those that Redis had lost with its memory.
    pub rows: i64,
    /// Still on the stream.
    pub queued: i64,
    /// Dead letters that hold a unit.
    pub dead: i64,
    /// Neither: 0, or an order was lost. `salectl audit` names it.
    pub missing: i64,
}

impl Operations {
    /// Reports on a sale. Its figures are those of a moment; they are final once it is closed and all
    /// that was admitted is decided.
    ///
    /// # Errors
    /// When there is no such sale, or a store fails.
    pub async fn report(&self, id: SaleId) -> Result<Report, OperationError> {
        let sale = self.get_sale(id).await?;
        let is_queued = sale.mode == SaleMode::Queued;
        // Admitted before the rows are counted: what comes between is a row too many, never one missing.
        let admitted = match sale.partition.filter(|_| is_queued) {
            Some(partition) => {
                self.redis.read_sale(partition, id).await?.sale.map(|loaded| loaded.admitted)
            }
            None => None,
        };
        let ledger = self.read_ledger(id).await?;
        let figures = self.database.row_figures(id, is_queued).await?;
        let memory_lost = figures.rejected.get(RejectReason::MemoryLost.as_str()).copied();
        let rows = figures.rows - memory_lost.unwrap_or(0);
        let proof = admitted.map(|admitted| Proof {
            admitted,
            rows,
            queued: ledger.queued,
            dead: ledger.dead,
            missing: (admitted - rows - ledger.queued - ledger.dead).max(0),
        });
        let undecided = ledger.queued + ledger.dead + ledger.awaiting_payment;
        let moving = ledger.in_transit + ledger.late_payments;
        Ok(Report {
            sale_id: id,
            is_final: sale.state == SaleState::Closed && undecided == 0 && moving == 0,
            state: sale.state,
            sold: Sold {
                stock: ledger.total,
                paid: ledger.paid,
                awaiting_payment: ledger.awaiting_payment,
                left: ledger.stock_left,
                buyers: figures.buyers,
                revenue: ledger.paid.saturating_mul(sale.price.amount),
                currency: sale.price.currency.to_string(),
            },
            answers: self.database.list_answers(id).await?,
            commit_lag: figures.lag.map(|lag| CommitLag {
                p50_ms: lag.p50_ms,
                p99_ms: lag.p99_ms,
                max_ms: lag.max_ms,
            }),
            not_sold: NotSold {
                cancelled: ledger.cancelled,
                expired: ledger.expired,
                lapsed_buyers: figures.lapsed_buyers,
                refund_due: ledger.refund_due,
                rejected: figures.rejected,
                dead: ledger.dead,
            },
            proof,
            title: sale.title,
            ledger,
        })
    }
}
