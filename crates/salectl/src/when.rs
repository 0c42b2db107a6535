//! WHEN: how an operator names a time. Times are parsed first and resolved afterwards, against one
//! reading of the clock, so that `--opens now --closes +1h` lie exactly an hour apart.

use std::str::FromStr;

use chrono::{DateTime, Utc};
pub(crate) use flashsale_bootstrap::clock::rfc3339;

/// A time as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Milliseconds since the Unix epoch.
    At(i64),
    /// So many milliseconds from now; `now` itself is 0.
    FromNow(i64),
}

/// The text names no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a time is RFC 3339 with its offset (2026-11-11T00:00:00+08:00), `now`, or from now (+10s, \
     +1h30m)"
)]
pub(crate) struct NotATime;

impl FromStr for When {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        if text == "now" {
            return Ok(Self::FromNow(0));
        }
        if let Some(offset) = text.strip_prefix('+') {
            let offset = humantime::parse_duration(offset).map_err(|_| NotATime)?;
            return i64::try_from(offset.as_millis()).map(Self::FromNow).map_err(|_| NotATime);
        }
        let time = DateTime::parse_from_rfc3339(text).map_err(|_| NotATime)?;
        Ok(Self::At(time.timestamp_millis()))
    }
}

impl When {
    /// Milliseconds since the Unix epoch, at `now_ms`.
    pub(crate) const fn resolve(self, now_ms: i64) -> i64 {
        match self {
            Self::At(ms) => ms,
            Self::FromNow(offset_ms) => now_ms.saturating_add(offset_ms),
        }
    }
}

/// This machine's clock: milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> i64 {
    Utc::now().timestamp_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_absolute_or_counted_from_now() {
        const NOW: i64 = 1_800_000_000_000;
        let cases = [
            ("now", NOW),
            ("+10s", NOW + 10_000),
            ("+1h", NOW + 3_600_000),
            ("+1h30m", NOW + 5_400_000),
            ("+1h 30m", NOW + 5_400_000),
            ("+500ms", NOW + 500),
            ("+0s", NOW),
            ("2027-01-15T08:00:00Z", NOW),
            ("2027-01-15T16:00:00+08:00", NOW),
            ("2027-01-15T08:00:00.250Z", NOW + 250),
            ("2027-01-15t08:00:00z", NOW),
        ];
        for (text, expected) in cases {
            let when: When = text.parse().expect(text);
            assert_eq!(when.resolve(NOW), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "Now",
            "tomorrow",
            "+",
            "10s",
            "-10s",
            "+10",
            "+ten seconds",
            "2027-01-15",
            // Whose eight o'clock?
            "2027-01-15T08:00:00",
            "2027-02-30T08:00:00Z",
            "1800000000",
            "+99999999999999999999y",
            "+18446744073709551615s",
        ] {
            assert_eq!(text.parse::<When>(), Err(NotATime), "{text:?}");
        }
    }

    #[test]
    fn times_are_written_in_utc_with_milliseconds() {
        assert_eq!(rfc3339(1_800_000_000_007), "2027-01-15T08:00:00.007Z");
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(i64::MAX), "9223372036854775807 ms");
    }
}
