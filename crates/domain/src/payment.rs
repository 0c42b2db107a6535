//! Payments: what the payment provider tells, and what became of the money.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::{OrderId, Price};

/// Money that the payment provider has received for an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPayment {
    /// The id of the provider's message: the same one counts once.
    pub webhook_id: String,
    /// The order that was paid for.
    pub order_id: OrderId,
    /// How much was paid.
    pub price: Price,
}

/// What became of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentOutcome {
    /// Its order is paid.
    Paid,
    /// It is not what the order costs. The order is as before; the money is due back.
    Mismatch,
    /// It came after its order had expired, and a unit is being taken for it again.
    Reacquiring,
    /// There was nothing to be had for it: the money is due back.
    RefundDue,
    /// The money went back.
    Refunded,
}

/// A text that names no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a payment's outcome is one of paid, mismatch, reacquiring, refund_due, refunded")]
pub struct UnknownPaymentOutcome;

impl PaymentOutcome {
    /// Every outcome.
    pub const ALL: [Self; 5] =
        [Self::Paid, Self::Mismatch, Self::Reacquiring, Self::RefundDue, Self::Refunded];

    /// The name used in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paid => "paid",
            Self::Mismatch => "mismatch",
            Self::Reacquiring => "reacquiring",
            Self::RefundDue => "refund_due",
            Self::Refunded => "refunded",
        }
    }

    /// Whether an operator still has to give the money back.
    pub const fn is_due_back(self) -> bool {
        match self {
            Self::Mismatch | Self::RefundDue => true,
            Self::Paid | Self::Reacquiring | Self::Refunded => false,
        }
    }
}

impl fmt::Display for PaymentOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PaymentOutcome {
    type Err = UnknownPaymentOutcome;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text).ok_or(UnknownPaymentOutcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_reads_back_from_its_name() {
        for outcome in PaymentOutcome::ALL {
            assert_eq!(outcome.as_str().parse(), Ok(outcome));
        }
        assert_eq!("Paid".parse::<PaymentOutcome>(), Err(UnknownPaymentOutcome));
    }
}
