//! Every second: remove finished entries from the stream and consumers of dead processes from the
//! group, measure what is left, say how many workers are wanted and whether this one is ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_bootstrap::telemetry::count;
use flashsale_bootstrap::{Readiness, Shutdown};
use flashsale_domain::Partition;
use flashsale_operations::pools;
use flashsale_storage_redis::{Backlog, Redis, RedisFault};
use flashsale_storage_sql::Database;
use tokio::time::{sleep, timeout};

use crate::reader::LastPoll;
use crate::redis_faults::count_redis_fault;

/// How much longer than one read a reader may be silent before the worker is not ready.
const SILENCE_MARGIN: Duration = Duration::from_secs(5);
/// How long the database may take to say that it is there.
const PING_WITHIN: Duration = Duration::from_secs(5);
/// How long a backlog may stand still before the worker is not ready.
const STANDSTILL_MAX: Duration = Duration::from_secs(30);
/// A consumer that holds nothing and was not seen for so many reclaim periods belongs to a process
/// that is gone; a living one is seen at every poll.
const PRUNE_AFTER_PERIODS: u32 = 4;

pub(crate) const CHECK_DATABASE: &str = "database";
pub(crate) const CHECK_REDIS: &str = "redis";
pub(crate) const CHECK_READER: &str = "reader";
pub(crate) const CHECK_PROGRESS: &str = "progress";
pub(crate) const CHECK_EVICTION: &str = "eviction";
pub(crate) const CHECKS: [&str; 5] =
    [CHECK_DATABASE, CHECK_REDIS, CHECK_READER, CHECK_PROGRESS, CHECK_EVICTION];

/// Orders that this worker has committed since its start. Cheap to clone; all clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    committed: Arc<AtomicU64>,
    redelivered: Arc<AtomicU64>,
}

impl Progress {
    /// `committed` orders are done, `redelivered` of which had been done before.
    pub(crate) fn mark(&self, committed: usize, redelivered: usize) {
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        };
        add(&self.committed, committed);
        add(&self.redelivered, redelivered);
    }

    /// Orders done.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Those of them that had been done before: work done twice.
    pub(crate) fn redelivered(&self) -> u64 {
        self.redelivered.load(Ordering::Relaxed)
    }
}

pub(crate) struct Housekeeping {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) readers: Vec<(Partition, LastPoll)>,
    pub(crate) settings: WorkerSettings,
    pub(crate) readiness: Readiness,
    pub(crate) progress: Progress,
}

/// What one tick remembers for the next.
struct Memory {
    at: Instant,
    committed: u64,
    moved_at: Instant,
    /// Orders a second that this worker has shown it can commit: its best, slowly forgotten.
    rate: f64,
}

impl Housekeeping {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        start_counters();
        metrics::gauge!("flashsale_desired_workers").set(1.0);
        let now = Instant::now();
        let mut memory = Memory { at: now, committed: 0, moved_at: now, rate: 0.0 };
        let work = async {
            loop {
                self.tick(&mut memory).await;
                sleep(self.settings.trim_interval).await;
            }
        };
        // A store that does not answer must not hold up the end.
        tokio::select! {
            () = work => {}
            () = shutdown.requested() => {}
        }
    }

    async fn tick(&self, memory: &mut Memory) {
        // The pool tries a connection before it gives it away; one that goes silent right then would
        // never answer, and with it everything here would stand still, readiness at its last word.
        let ping = timeout(PING_WITHIN, self.database.ping());
        let (database, backlog) = tokio::join!(ping, self.tidy_all());
        self.report(
            CHECK_DATABASE,
            match database {
                Ok(answered) => answered.map_err(|fault| fault.to_string()),
                Err(_) => Err(format!("the database has not answered for {PING_WITHIN:?}")),
            },
        );
        let limit = self.settings.block + SILENCE_MARGIN;
        let silent = self.readers.iter().find(|(_, last_poll)| last_poll.age() > limit);
        self.report(
            CHECK_READER,
            silent.map_or(Ok(()), |(partition, _)| {
                Err(format!("the reader of partition {partition} is silent"))
            }),
        );
        match backlog {
            Ok(backlog) => {
                self.report(CHECK_REDIS, Ok(()));
                self.follow_progress(memory, backlog);
            }
            Err(fault) => {
                count_redis_fault("housekeeping");
                self.report(CHECK_REDIS, Err(fault.to_string()));
            }
        }
        pools::show(&self.redis, &self.database);
        if let Ok(keeps) = self.redis.keeps_append_only_file().await {
            metrics::gauge!("flashsale_aof_enabled").set(if keeps { 1.0 } else { 0.0 });
        }
        if let Ok(policy) = self.redis.eviction_policy().await {
            let safe = policy == "noeviction";
            metrics::gauge!("flashsale_eviction_policy_safe").set(if safe { 1.0 } else { 0.0 });
            let reason = format!("maxmemory-policy is {policy}, and must be noeviction");
            self.report(CHECK_EVICTION, if safe { Ok(()) } else { Err(reason) });
        }
    }

    /// Undelivered and pending of all partitions; `None` where one is not known.
    async fn tidy_all(&self) -> Result<Option<u64>, RedisFault> {
        let (mut sum, mut refusal) = (Some(0), None);
        for (partition, _) in &self.readers {
            let tidied = self.tidy(*partition).await;
            if tidied.is_err() {
                show_backlog(*partition, None);
            }
            match tidied {
                Ok(backlog) => sum = sum.zip(backlog).map(|(sum, backlog)| sum + backlog),
                // One partition's broken key must not keep the others from being tidied.
                Err(fault) if fault.is_refused() => refusal = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        refusal.map_or(Ok(sum), Err)
    }

    async fn tidy(&self, partition: Partition) -> Result<Option<u64>, RedisFault> {
        self.redis.trim_acked(partition).await?;
        let prune_after = self.settings.reclaim_idle * PRUNE_AFTER_PERIODS;
        let label = partition.to_string();
        let backlog = self.redis.backlog(partition).await?;
        if backlog.is_some() {
            self.redis.prune_consumers(partition, prune_after).await?;
        }
        let total = backlog.and_then(Backlog::total);
        show_backlog(partition, total);
        if total == Some(0) {
            // Nobody is under suspicion where nothing waits.
            self.redis.forget_all_suspects(partition).await?;
        }
        let age_ms = self.redis.oldest_unapplied_age(partition).await?.unwrap_or(0);
        metrics::gauge!("flashsale_oldest_unapplied_seconds", "partition" => label.clone())
            .set(Duration::from_millis(age_ms).as_secs_f64());
        gauge("flashsale_dead_letters", &label, self.redis.count_dead_letters(partition).await?);
        // No stream is no backlog; a stream whose lag Redis does not give is unknown.
        Ok(if backlog.is_none() { Some(0) } else { total })
    }

    fn follow_progress(&self, memory: &mut Memory, backlog: Option<u64>) {
        let (now, committed) = (Instant::now(), self.progress.committed());
        let rate =
            count(committed - memory.committed) / now.duration_since(memory.at).as_secs_f64();
        memory.rate = rate.max(memory.rate * 0.99);
        if committed > memory.committed || backlog == Some(0) {
            memory.moved_at = now;
        }
        memory.at = now;
        memory.committed = committed;
        let still = memory.moved_at.elapsed() > STANDSTILL_MAX;
        let reason = "a backlog has stood still for too long".to_owned();
        self.report(CHECK_PROGRESS, if still { Err(reason) } else { Ok(()) });
        // While nobody knows the backlog, as many as were wanted when it was last known.
        if let Some(backlog) = backlog {
            let wanted = desired_workers(backlog, memory.rate, self.settings.target_lag);
            metrics::gauge!("flashsale_desired_workers").set(wanted);
        }
    }

    fn report(&self, check: &'static str, result: Result<(), String>) {
        match result {
            Ok(()) => self.readiness.set_ok(check),
            Err(reason) => self.readiness.set_failed(check, reason),
        }
    }
}

/// How many workers bring a backlog down within the target lag, when each commits `rate` orders a
/// second. At least one, because somebody has to listen; at most 100, because a rate that was
/// measured on a nearly idle worker says little.
fn desired_workers(backlog: u64, rate: f64, target_lag: Duration) -> f64 {
    const RATE_MIN: f64 = 100.0;
    let within = rate.max(RATE_MIN) * target_lag.as_secs_f64();
    (count(backlog) / within).ceil().clamp(1.0, 100.0)
}

/// What counts rare events is there from the start: an alert on an increase misses the first event of
/// a counter that appears with it.
fn start_counters() {
    for counter in [
        metrics::counter!("flashsale_entries_lost_total"),
        metrics::counter!("flashsale_group_recreated_total"),
        metrics::counter!("flashsale_rebuilds_total"),
        metrics::counter!("flashsale_reclaimed_total"),
        metrics::counter!("flashsale_worker_retries_total"),
        metrics::counter!("flashsale_orders_expired_total"),
    ] {
        counter.increment(0);
    }
}

/// Unknown is no number: a gauge that says 0 says that all is done, and one that stays as it was says
/// so of a moment that is over.
fn show_backlog(partition: Partition, total: Option<u64>) {
    metrics::gauge!("flashsale_stream_backlog", "partition" => partition.to_string())
        .set(total.map_or(f64::NAN, count));
}

fn gauge(name: &'static str, partition: &str, value: u64) {
    metrics::gauge!(name, "partition" => partition.to_owned()).set(count(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_wanted_by_backlog_rate_and_target_and_never_none() {
        let lag = Duration::from_secs(5);
        let cases = [
            (0, 0.0, 1.0),
            (1, 0.0, 1.0),
            (25_000, 5000.0, 1.0),
            (25_001, 5000.0, 2.0),
            (100_000, 5000.0, 4.0),
            // Nothing measured yet: a cautious guess.
            (2_000, 0.0, 4.0),
            (u64::MAX, 1.0, 100.0),
        ];
        for (backlog, rate, expected) in cases {
            let wanted = desired_workers(backlog, rate, lag);
            assert!((wanted - expected).abs() < f64::EPSILON, "{backlog} at {rate}: {wanted}");
        }
    }
}
