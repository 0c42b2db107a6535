//! Logs that may come a thousand times a second are written once a second, with a count of the rest.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// One kind of message.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Quiet {
    /// How many messages were kept back since the last one, if one may be written now.
    pub(crate) fn allows(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, kept_back) = *state;
        if last.is_some_and(|last| last.elapsed() < INTERVAL) {
            state.1 += 1;
            return None;
        }
        *state = (Some(Instant::now()), 0);
        Some(kept_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_messages_one_a_second_is_written() {
        let quiet = Quiet::default();
        assert_eq!(quiet.allows(), Some(0));
        assert!((0..100).all(|_| quiet.allows().is_none()));
    }
}
