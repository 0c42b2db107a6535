//! Orders: their states, and which state may follow which.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{IdempotencyDigest, OrderId, Price, SaleId, UserId};

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderState {
    /// On the stream, not yet a row.
    Queued,
    /// A row; the buyer has until `pay_by`.
    AwaitingPayment,
    /// Paid for.
    Paid,
    /// Given up by the buyer.
    Cancelled,
    /// Not paid in time.
    Expired,
    /// Paid too late, and no unit was left: the money goes back.
    RefundDue,
    /// Admitted, but refused afterwards, with a reason.
    Rejected,
    /// Set aside until an operator decides.
    Dead,
}

/// A text that names no order state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an order's state is one of {}", OrderState::names().join(", "))]
pub struct UnknownOrderState;

impl OrderState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::AwaitingPayment,
        Self::Paid,
        Self::Cancelled,
        Self::Expired,
        Self::RefundDue,
        Self::Rejected,
        Self::Dead,
    ];

    /// The name used in JSON, SQL and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::AwaitingPayment => "awaiting_payment",
            Self::Paid => "paid",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::RefundDue => "refund_due",
            Self::Rejected => "rejected",
            Self::Dead => "dead",
        }
    }

    fn names() -> [&'static str; 8] {
        Self::ALL.map(Self::as_str)
    }

    /// Whether an order in this state may go to `next`.
    pub const fn can_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Queued, Self::AwaitingPayment | Self::Rejected | Self::Dead)
                | (Self::Dead, Self::AwaitingPayment | Self::Rejected)
                | (Self::AwaitingPayment, Self::Paid | Self::Cancelled | Self::Expired)
                | (Self::Expired, Self::Paid | Self::RefundDue)
        )
    }

    /// Whether an order in this state holds a unit and a slot.
    pub const fn is_open(self) -> bool {
        match self {
            Self::Queued | Self::AwaitingPayment | Self::Paid => true,
            Self::Cancelled | Self::Expired | Self::RefundDue | Self::Rejected | Self::Dead => {
                false
            }
        }
    }

    /// Whether nothing follows this state in the ordinary course (a late payment may still revive
    /// an expired order).
    pub const fn is_final(self) -> bool {
        match self {
            Self::Paid | Self::Cancelled | Self::Expired | Self::RefundDue | Self::Rejected => true,
            Self::Queued | Self::AwaitingPayment | Self::Dead => false,
        }
    }
}

impl fmt::Display for OrderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for OrderState {
    type Err = UnknownOrderState;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or(UnknownOrderState)
    }
}

/// Why an admitted order was refused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RejectReason {
    /// Redis forgot the order before it became a row.
    MemoryLost,
    /// Another open order of the buyer has the slot.
    SlotTaken,
    /// The database had no unit left.
    StockGone,
    /// An operator decided so.
    Operator,
    /// Its entry vanished from the stream, and an operator settled it so.
    EntryLost,
}

impl RejectReason {
    /// The reason as it is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryLost => "memory-lost",
            Self::SlotTaken => "slot-taken",
            Self::StockGone => "stock-gone",
            Self::Operator => "operator",
            Self::EntryLost => "entry-lost",
        }
    }
}

/// What a stream entry says: an order that was admitted and waits to become a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    /// Fixed at admission.
    pub id: OrderId,
    /// The sale.
    pub sale_id: SaleId,
    /// The buyer.
    pub user_id: UserId,
    /// Which of the buyer's slots it holds, from 1.
    pub slot: u16,
    /// The sale's epoch at admission.
    pub epoch: i64,
    /// Digest of the buyer's key, when one was sent.
    pub digest: Option<IdempotencyDigest>,
}

/// An order as its buyer may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its id.
    pub id: OrderId,
    /// Of which sale.
    pub sale_id: SaleId,
    /// Whose.
    pub user_id: UserId,
    /// Where it stands.
    pub state: OrderState,
    /// Why it was rejected, when it was.
    pub reason: Option<String>,
    /// What it costs; unknown while it is only queued.
    pub price: Option<Price>,
    /// Until when it can be paid: milliseconds since the Unix epoch, by the database's clock.
    pub pay_by_ms: Option<i64>,
    /// When it was committed: milliseconds since the Unix epoch, by the database's clock.
    pub committed_ms: Option<i64>,
    /// When it was paid or ended: milliseconds since the Unix epoch, by the database's clock.
    pub settled_ms: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_legal_transitions_are_allowed() {
        use OrderState::{
            AwaitingPayment, Cancelled, Dead, Expired, Paid, Queued, RefundDue, Rejected,
        };
        let legal = [
            (Queued, AwaitingPayment),
            (Queued, Rejected),
            (Queued, Dead),
            (Dead, AwaitingPayment),
            (Dead, Rejected),
            (AwaitingPayment, Paid),
            (AwaitingPayment, Cancelled),
            (AwaitingPayment, Expired),
            (Expired, Paid),
            (Expired, RefundDue),
        ];
        for from in OrderState::ALL {
            for to in OrderState::ALL {
                assert_eq!(from.can_become(to), legal.contains(&(from, to)), "{from} -> {to}");
            }
        }
    }

    #[test]
    fn a_final_state_leads_nowhere_but_by_a_late_payment() {
        for state in OrderState::ALL.into_iter().filter(|s| s.is_final()) {
            for next in OrderState::ALL {
                assert!(
                    !state.can_become(next) || state == OrderState::Expired,
                    "{state} -> {next}"
                );
            }
        }
    }

    #[test]
    fn every_state_reads_back_from_its_name() {
        for state in OrderState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert_eq!("Paid".parse::<OrderState>(), Err(UnknownOrderState));
        assert!(UnknownOrderState.to_string().contains("awaiting_payment"));
    }
}
