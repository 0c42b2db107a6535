//! Logs that may come a thousand times a second are written once in a while, with a count of the rest.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One kind of message.
#[derive(Debug)]
pub struct Quiet {
    interval: Duration,
    state: Mutex<(Option<Instant>, u64)>,
}

impl Quiet {
    /// For what happens once and is worth its line: one a second.
    pub const fn every_second() -> Self {
        Self::every(Duration::from_secs(1))
    }

    /// For what goes on for as long as its cause: one in ten seconds.
    pub const fn every_ten_seconds() -> Self {
        Self::every(Duration::from_secs(10))
    }

    const fn every(interval: Duration) -> Self {
        Self { interval, state: Mutex::new((None, 0)) }
    }

    /// How many messages were kept back since the last one, if one may be written now.
    pub fn allows(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, kept_back) = *state;
        if last.is_some_and(|last| last.elapsed() < self.interval) {
            state.1 += 1;
            return None;
        }
        *state = (Some(Instant::now()), 0);
        Some(kept_back)
    }
}

/// `tracing::error!` of what may come with every request: at most one line a second of this place, with
/// a count of those kept back.
#[macro_export]
macro_rules! error_quietly {
    ($($argument:tt)+) => {{
        static QUIET: $crate::Quiet = $crate::Quiet::every_second();
        if let Some(kept_back) = QUIET.allows() {
            ::tracing::error!(kept_back, $($argument)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_messages_one_is_written() {
        let quiet = Quiet::every_second();
        assert_eq!(quiet.allows(), Some(0));
        assert!((0..100).all(|_| quiet.allows().is_none()));
    }
}
