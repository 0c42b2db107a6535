//! The pause after a failure: grows, is jittered, and starts anew after a success.

use std::time::Duration;

use rand::RngExt as _;

/// Pauses between two bounds.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The next pause: doubled each time, of which a random half to whole is taken, so that many
    /// workers do not come back at one moment.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 2).min(self.max);
        jittered(pause)
    }

    pub(crate) const fn reset(&mut self) {
        self.next = self.min;
    }

    /// Whether nothing has failed since the last success.
    pub(crate) fn is_fresh(&self) -> bool {
        self.next == self.min
    }
}

/// Between half of `duration` and all of it.
pub(crate) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_bound_and_start_anew() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(min, max);
        let whole = [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis);
        for expected in whole {
            let pause = backoff.pause();
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?} of {expected:?}");
        }
        backoff.reset();
        assert!(backoff.is_fresh() && backoff.pause() <= min);
    }
}
