//! Every second: remove finished entries from the stream, measure what is left, say whether this
//! worker is ready.

use std::time::Duration;

use flashsale_bootstrap::settings::WorkerSettings;
use flashsale_bootstrap::{Readiness, Shutdown};
use flashsale_domain::Partition;
use flashsale_storage_redis::{Redis, RedisFault};
use flashsale_storage_sql::Database;
use tokio::time::sleep;

use crate::reader::LastPoll;

/// How much longer than one read a reader may be silent before the worker is not ready.
const SILENCE_MARGIN: Duration = Duration::from_secs(5);

pub(crate) const CHECK_DATABASE: &str = "database";
pub(crate) const CHECK_REDIS: &str = "redis";
pub(crate) const CHECK_READER: &str = "reader";

pub(crate) struct Housekeeping {
    pub(crate) redis: Redis,
    pub(crate) database: Database,
    pub(crate) readers: Vec<(Partition, LastPoll)>,
    pub(crate) settings: WorkerSettings,
    pub(crate) readiness: Readiness,
}

impl Housekeeping {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        let work = async {
            loop {
                self.tick().await;
                sleep(self.settings.trim_interval).await;
            }
        };
        // A store that does not answer must not hold up the end.
        tokio::select! {
            () = work => {}
            () = shutdown.requested() => {}
        }
    }

    async fn tick(&self) {
        let (database, redis) = tokio::join!(self.database.ping(), self.tidy_all());
        self.report(CHECK_DATABASE, database.map_err(|fault| fault.to_string()));
        self.report(CHECK_REDIS, redis.map_err(|fault| fault.to_string()));
        let limit = self.settings.block + SILENCE_MARGIN;
        let silent = self.readers.iter().find(|(_, last_poll)| last_poll.age() > limit);
        self.report(
            CHECK_READER,
            silent.map_or(Ok(()), |(partition, _)| {
                Err(format!("the reader of partition {partition} is silent"))
            }),
        );
    }

    async fn tidy_all(&self) -> Result<(), RedisFault> {
        for (partition, _) in &self.readers {
            self.tidy(*partition).await?;
        }
        Ok(())
    }

    async fn tidy(&self, partition: Partition) -> Result<(), RedisFault> {
        self.redis.trim_acked(partition).await?;
        let label = partition.to_string();
        // Unknown is absent, never 0: a gauge that says 0 says that all is done.
        if let Some(total) = self.redis.backlog(partition).await?.and_then(|b| b.total()) {
            gauge("flashsale_stream_backlog", &label, total);
        }
        let age_ms = self.redis.oldest_unapplied_age(partition).await?.unwrap_or(0);
        metrics::gauge!("flashsale_oldest_unapplied_seconds", "partition" => label.clone())
            .set(Duration::from_millis(age_ms).as_secs_f64());
        gauge("flashsale_dead_letters", &label, self.redis.count_dead_letters(partition).await?);
        Ok(())
    }

    fn report(&self, check: &'static str, result: Result<(), String>) {
        match result {
            Ok(()) => self.readiness.set_ok(check),
            Err(reason) => self.readiness.set_failed(check, reason),
        }
    }
}

fn gauge(name: &'static str, partition: &str, value: u64) {
    let value = f64::from(u32::try_from(value).unwrap_or(u32::MAX));
    metrics::gauge!(name, "partition" => partition.to_owned()).set(value);
}
