//! This machine's clock, for logs, hints and letters. It decides nothing: buyers are judged by Redis's
//! clock or the database's.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};

/// Milliseconds since the Unix epoch; 0 on a clock that is set before it.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |elapsed| i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX))
}

/// A moment as the outside reads it: RFC 3339 in UTC with milliseconds.
pub fn rfc3339(ms: i64) -> String {
    DateTime::<Utc>::from_timestamp_millis(ms).map_or_else(
        // Windows lie between 2024 and 2093; a time outside the calendar is shown as it is.
        || format!("{ms} ms"),
        |time| time.to_rfc3339_opts(SecondsFormat::Millis, true),
    )
}
