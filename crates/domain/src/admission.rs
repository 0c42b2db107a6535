//! Admission: the atomic decision that a buyer gets a unit now, or why not.

use crate::{IdempotencyDigest, OrderId, UserId};

/// One buyer's wish for one unit of a sale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// Who asks.
    pub user_id: UserId,
    /// Digest of the Idempotency-Key, when the client sent one.
    pub digest: Option<IdempotencyDigest>,
    /// The span that asks (W3C Trace Context), when the request is traced.
    pub traceparent: Option<Box<str>>,
}

/// A yes: the order exists from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The order's id, which will be the row's primary key.
    pub order_id: OrderId,
    /// True when the same key had already been answered with this order.
    pub replayed: bool,
}

/// A no, decided anew at every request and never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The buyer already holds as many orders of the sale as are allowed; this is the latest.
    AlreadyOrdered(OrderId),
    /// No unit is left.
    SoldOut,
    /// The window has not opened yet.
    NotStarted,
    /// The window has closed, or the operator closed the sale.
    Ended,
    /// The operator paused the sale.
    Paused,
    /// The sale or its partition's gate is not in Redis, or Redis's memory is not trusted.
    NotLoaded,
    /// The clock or the last order id is out of range: no id can be given.
    ClockFault,
}

impl Refusal {
    /// The outcome's name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyOrdered(_) => "already_ordered",
            Self::SoldOut => "sold_out",
            Self::NotStarted => "not_started",
            Self::Ended => "ended",
            Self::Paused => "paused",
            Self::NotLoaded => "not_loaded",
            Self::ClockFault => "clock_fault",
        }
    }
}
