//! Columns as arrays: how PostgreSQL gets many rows in one statement, the same one for every number of
//! rows. Read there by `unnest`.

use sea_orm::Value;

/// One column of many rows. There is no NULL in an array of this driver: a text that cannot be empty is
/// sent empty instead, and `nullif` makes it NULL again.
pub(crate) fn array<R, T>(rows: &[R], column: impl Fn(&R) -> T) -> Value
where
    Vec<T>: Into<Value>,
{
    rows.iter().map(column).collect::<Vec<T>>().into()
}
