//! Suspects: entries that came by reclaim before, and may be what their workers crashed of.
//!
//! A suspect runs alone. The attempt is counted in Redis just before it is made, because a worker
//! that crashes takes its own count with it; an outage takes the count back, because it is not the
//! entry's fault. After the last attempt the entry is set aside, unless its row turns out to be there.

use flashsale_domain::NewOrder;
use flashsale_storage_redis::{RawEntry, RedisFault, decode};
use flashsale_storage_sql::BatchFailure;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::backoff::Backoff;
use crate::process::{Processed, Processor};
use crate::redis_faults::count_redis_fault;
use crate::spans::trace_id;

impl Processor {
    /// Processes a suspect to its end, waiting out outages.
    pub async fn process_suspect(&self, entry: RawEntry) -> Processed {
        let left = Processed { left: 1, ..Processed::default() };
        let Ok(order) = decode(self.partition, &entry) else {
            return self.process(vec![entry]).await;
        };
        let mut backoff = Backoff::new(self.retry.0, self.retry.1);
        while self.is_ours(entry.id) {
            match self.try_suspect(&entry, &order).await {
                Ok(processed) => {
                    if processed.left == 0 {
                        self.forget(&[entry.id]).await;
                    }
                    return processed;
                }
                Err(outage) => {
                    if outage.is::<RedisFault>() {
                        count_redis_fault("suspect");
                    }
                    if backoff.is_fresh() {
                        warn!(partition = %self.partition, entry.id = %entry.id, order.id = %order.id,
                            trace.id = trace_id(&entry), error = %outage,
                            "a suspect has to wait for an outage to end");
                    }
                    tokio::select! {
                        () = sleep(backoff.pause()) => {}
                        () = self.give_up.cancelled() => return left,
                    }
                }
            }
        }
        left
    }

    /// One attempt; an error is an outage, and the attempt does not count.
    async fn try_suspect(&self, entry: &RawEntry, order: &NewOrder) -> anyhow::Result<Processed> {
        let attempt = self.redis.count_attempt(self.partition, entry.id, self.attempts_max).await?;
        if attempt.is_none() && self.database.find_order(order.id).await?.is_none() {
            let detail = format!("{} attempts ended without a result", self.attempts_max);
            let stored = self.set_aside(entry.clone(), "crash-suspect", detail, None).await;
            let (dead, left) = if stored { (1, 0) } else { (0, 1) };
            return Ok(Processed { dead, left, ..Processed::default() });
        }
        let commit = self.database.commit_orders(std::slice::from_ref(order));
        let outage = match timeout(self.commit_timeout, commit).await {
            Ok(Err(failure @ (BatchFailure::Infrastructure(_) | BatchFailure::Moved))) => {
                Some(anyhow::Error::from(failure))
            }
            Ok(Ok(_) | Err(BatchFailure::Refused(_) | BatchFailure::Data(_))) => None,
            Err(elapsed) => Some(elapsed.into()),
        };
        if let Some(outage) = outage {
            if attempt.is_some() {
                self.redis.uncount_attempt(self.partition, entry.id).await?;
            }
            return Err(outage);
        }
        // What it comes to is known now; the usual way brings it there, and acknowledges it.
        Ok(self.process(vec![entry.clone()]).await)
    }
}
