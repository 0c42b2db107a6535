//! What the rush itself costs, so that a bench can say whose time a request takes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Linux counts in hundredths of a second wherever we run.
const TICK_US: u64 = 10_000;

/// CPU time of this process so far in microseconds, where the system tells it.
pub(crate) fn used_us() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn parse(stat: &str) -> Option<u64> {
    // The name, in brackets, may hold anything; the fields after it are counted from 3.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map_while(|it| it.parse::<u64>().ok());
    Some((times.next()? + times.next()?) * TICK_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_stand_behind_the_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4 1 2 3 4 150 50 30 20 20 0 4 0 99";
        assert_eq!(parse(stat), Some(2_000_000));
        assert_eq!(parse("7 (a) S 1"), None);
    }
}
