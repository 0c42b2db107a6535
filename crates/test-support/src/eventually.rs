//! Waiting for something that happens soon, in place of sleeping for a guessed time.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The first pause between two probes; it grows by half each time up to [`PAUSE_MAX`], so that quick
/// things are noticed quickly and slow ones do not keep a core busy.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// What a probe may answer: `bool`, `Option<T>` or `Result<T, E>`; `false`, `None` and `Err` mean
/// "not yet".
pub trait Probe {
    /// What the wait returns in the end.
    type Value;

    /// The value, or why it is not there yet (may be empty).
    fn settle(self) -> Result<Self::Value, String>;
}

impl Probe for bool {
    type Value = ();

    fn settle(self) -> Result<(), String> {
        if self { Ok(()) } else { Err(String::new()) }
    }
}

impl<T> Probe for Option<T> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Debug> Probe for Result<T, E> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

/// Asks `probe` every 10 to 50 ms until it answers with a value, and panics with `what` when
/// `deadline` has passed. A probe that hangs is given up at the deadline as well.
///
/// ```no_run
/// # async fn example() {
/// use std::time::Duration;
/// let answer: u32 = flashsale_test_support::eventually(Duration::from_secs(5), "an answer", async || Some(42)).await;
/// # }
/// ```
pub async fn eventually<P: Probe>(
    deadline: Duration,
    what: &str,
    probe: impl AsyncFnMut() -> P,
) -> P::Value {
    try_eventually(deadline, what, probe).await.unwrap_or_else(|in_vain| panic!("{in_vain}"))
}

/// [`eventually`] for whoever goes on after a wait in vain: the error says what was waited for.
///
/// # Errors
/// When `deadline` has passed.
pub async fn try_eventually<P: Probe>(
    deadline: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> P,
) -> Result<P::Value, String> {
    let ends = tokio::time::Instant::now() + deadline;
    let mut pause = PAUSE_MIN;
    let mut last = String::new();
    loop {
        match tokio::time::timeout_at(ends, probe()).await {
            Ok(answer) => match answer.settle() {
                Ok(value) => return Ok(value),
                Err(reason) => last = reason,
            },
            Err(_elapsed) if last.is_empty() => last = "the probe did not return".to_owned(),
            Err(_elapsed) => {}
        }
        if tokio::time::Instant::now() + pause >= ends {
            return Err(in_vain(deadline, what, &last));
        }
        tokio::time::sleep(pause).await;
        pause = longer(pause);
    }
}

/// [`eventually`] for code that is not async; it blocks its thread.
pub fn eventually_blocking<P: Probe>(
    deadline: Duration,
    what: &str,
    mut probe: impl FnMut() -> P,
) -> P::Value {
    let ends = Instant::now() + deadline;
    let mut pause = PAUSE_MIN;
    loop {
        let last = match probe().settle() {
            Ok(value) => return value,
            Err(reason) => reason,
        };
        if Instant::now() + pause >= ends {
            panic!("{}", in_vain(deadline, what, &last));
        }
        std::thread::sleep(pause);
        pause = longer(pause);
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(PAUSE_MAX)
}

fn in_vain(deadline: Duration, what: &str, last: &str) -> String {
    if last.is_empty() {
        return format!("waited {deadline:?} in vain for: {what}");
    }
    format!("waited {deadline:?} in vain for: {what} (last: {last})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_is_repeated_until_it_answers() {
        let mut calls = 0;
        let value = eventually(Duration::from_secs(5), "the third call", async || {
            calls += 1;
            (calls == 3).then_some("third")
        })
        .await;
        assert_eq!(value, "third");
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for: a hanging probe (last: the probe did not return)")]
    async fn a_hanging_probe_is_given_up_at_the_deadline() {
        eventually(Duration::from_millis(50), "a hanging probe", async || {
            std::future::pending::<bool>().await
        })
        .await;
    }

    #[test]
    #[should_panic(expected = "in vain for: the impossible (last: \"no\")")]
    fn the_last_error_is_named_when_the_deadline_passes() {
        eventually_blocking(Duration::from_millis(50), "the impossible", || Err::<(), _>("no"));
    }
}
