//! The database's clock, which decides `pay_by` and the window of direct sales.

use sea_orm::DbBackend;
use sea_orm::sea_query::{Expr, SimpleExpr};

/// Now, in milliseconds since the Unix epoch, as an expression.
pub(crate) fn now_ms(backend: DbBackend) -> SimpleExpr {
    Expr::cust(match backend {
        // clock_timestamp, not now(): a transaction that waited for a lock must not use the time at
        // which it began.
        // Down to the millisecond, as Redis does: a cast alone would round, and open a sale early.
        DbBackend::Postgres => "floor(extract(epoch from clock_timestamp()) * 1000)::bigint",
        _ => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    })
}
