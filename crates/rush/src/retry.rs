//! Sending one request until there is a last word: which answers are tried again, and how soon.
//!
//! A retry is the same request with the same key, so it cannot buy twice. The service asks for
//! this where it does not know an outcome, and a buyer's client does the same when a connection
//! breaks: a gateway that is killed costs the buyer time, not the order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::client::{Ask, Broken, Client, Reply};
use crate::outcome::Outcome;
use crate::tokens::Buyer;

/// The longest pause, and the pause where the service names none.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The last word, and when it was asked for.
#[derive(Debug)]
pub(crate) struct LastWord {
    pub(crate) reply: Result<Reply, Broken>,
    pub(crate) outcome: Outcome,
    /// When the first try was sent.
    pub(crate) first_sent: Instant,
    /// When the try was sent that this answers.
    pub(crate) sent: Instant,
}

/// How often tries were repeated, by cause.
pub(crate) type Retries = BTreeMap<&'static str, u64>;

/// Sends `ask` up to `retries` times more than once.
pub(crate) async fn send(
    client: &mut Client,
    ask: Ask<'_>,
    buyer: &Buyer,
    retries: u32,
    counted: &mut Retries,
) -> LastWord {
    let first_sent = Instant::now();
    let (mut sent, mut left, mut broken) = (first_sent, retries, 0);
    loop {
        let reply = client.send(ask, buyer).await;
        let outcome = Outcome::read(&reply);
        let Some(cause) = outcome.retry_cause().filter(|_| left > 0) else {
            return LastWord { reply, outcome, first_sent, sent };
        };
        left -= 1;
        *counted.entry(cause).or_default() += 1;
        broken += usize::from(reply.is_err());
        tokio::time::sleep(pause(&reply, broken, client.targets())).await;
        sent = Instant::now();
    }
}

/// `broken` counts the broken tries so far, this one included.
fn pause(reply: &Result<Reply, Broken>, broken: usize, targets: usize) -> Duration {
    match reply {
        Ok(reply) => reply.retry_after.unwrap_or(PAUSE_MAX).min(PAUSE_MAX),
        // The next target may well be there: no reason to wait until each was tried once.
        Err(_) if !broken.is_multiple_of(targets) => Duration::ZERO,
        Err(_) => PAUSE_MAX,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_pause_is_what_the_service_asks_for_up_to_a_second() {
        let after = |retry_after: Option<u64>| {
            let retry_after = retry_after.map(Duration::from_secs);
            let body = Bytes::new();
            pause(&Ok(Reply { status: 503, replayed: false, retry_after, body }), 0, 1)
        };
        assert_eq!(after(Some(0)), Duration::ZERO);
        assert_eq!(after(Some(30)), PAUSE_MAX);
        assert_eq!(after(None), PAUSE_MAX);
    }

    #[test]
    fn every_other_target_is_tried_before_waiting() {
        let pauses = |targets| -> Vec<u64> {
            (1..=4)
                .map(|broken| pause(&Err(Broken::TimedOut(PAUSE_MAX)), broken, targets).as_secs())
                .collect()
        };
        assert_eq!(pauses(1), [1, 1, 1, 1]);
        assert_eq!(pauses(3), [0, 0, 1, 0]);
    }
}
