//! The kinds of faults: what a round may do to the deployment.

use std::fmt;

use clap::ValueEnum;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// kill -9 of an order-worker with entries in its hands; a new one is started
    WorkerKill,
    /// An order-worker is stopped (SIGSTOP) for longer than worker.reclaim_idle, and wakes up again
    WorkerFreeze,
    /// SIGTERM to an order-worker, which must leave in order; a new one is started
    WorkerTerminate,
    /// kill -9 of Redis and a restart from its append-only file; the workers open the gate again
    RedisKill,
    /// FLUSHALL: Redis forgets everything, and the workers load it from the database
    RedisFlush,
    /// kill -9 of Redis and a restart without its file: it comes back empty
    RedisAmnesia,
    /// Redis behind Sentinel is killed, and a replica is promoted that misses the last writes
    SentinelFailover,
    /// SCRIPT FLUSH: Redis forgets every script
    ScriptFlush,
    /// Redis has no memory left for a while (maxmemory, noeviction); the backlog drains meanwhile
    RedisFull,
    /// XGROUP DESTROY: the consumer group is taken away under its workers
    GroupDestroy,
    /// XDEL of entries under the workers, and their holder is killed: orders are lost, and named
    EntriesDelete,
    /// XTRIM of the oldest entries under the workers, and their holder is killed: likewise
    StreamTrim,
    /// Entries that cannot become rows, of several shapes, among the orders
    PoisonEntries,
    /// pg_terminate_backend of every connection to PostgreSQL
    PostgresTerminate,
    /// PostgreSQL is stopped, and started again
    PostgresStop,
    /// PostgreSQL is set back to a moment ago: what it was given since is gone
    DatabaseRestore,
    /// The clocks of gateway and workers are hours off, each another way, and are set in the middle
    ClockStep,
}

impl Kind {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::WorkerKill,
        Self::WorkerFreeze,
        Self::WorkerTerminate,
        Self::RedisKill,
        Self::RedisFlush,
        Self::RedisAmnesia,
        Self::SentinelFailover,
        Self::ScriptFlush,
        Self::RedisFull,
        Self::GroupDestroy,
        Self::EntriesDelete,
        Self::StreamTrim,
        Self::PoisonEntries,
        Self::PostgresTerminate,
        Self::PostgresStop,
        Self::DatabaseRestore,
        Self::ClockStep,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.possible().get_name().to_owned()
    }

    /// What it does, in one line.
    pub fn description(self) -> String {
        self.possible().get_help().map(ToString::to_string).unwrap_or_default()
    }

    fn possible(self) -> clap::builder::PossibleValue {
        self.to_possible_value().expect("no kind is hidden")
    }

    /// How long it lasts, in milliseconds, from and to; 0 for what happens at once.
    pub(crate) const fn lasts_ms(self) -> (u64, u64) {
        match self {
            Self::WorkerKill | Self::EntriesDelete | Self::StreamTrim => (50, 600),
            // The idle time of the drills' deployment is 1,200 ms: see `deployment.rs`.
            Self::WorkerFreeze => (1_500, 2_200),
            Self::WorkerTerminate => (50, 300),
            Self::RedisKill | Self::RedisAmnesia => (50, 700),
            // What the replica misses. Three times as long and the sentinels hold it for dead.
            Self::SentinelFailover => (150, 350),
            Self::RedisFull => (300, 900),
            Self::PostgresStop => (100, 1_000),
            // What the database forgets.
            Self::DatabaseRestore | Self::ClockStep => (300, 900),
            Self::RedisFlush
            | Self::ScriptFlush
            | Self::GroupDestroy
            | Self::PoisonEntries
            | Self::PostgresTerminate => (0, 0),
        }
    }

    /// Whether it takes orders from the stream; of use only while there are some.
    pub(crate) const fn takes_entries(self) -> bool {
        matches!(self, Self::EntriesDelete | Self::StreamTrim)
    }

    /// Whether its round has no other fault, and ends with the orders: what is wrong afterwards could
    /// not be told apart, or the deployment is one for this kind only.
    pub const fn is_alone(self) -> bool {
        matches!(self, Self::SentinelFailover | Self::DatabaseRestore | Self::ClockStep)
    }

    /// Whether it is done by asking Redis, which must be there to be asked.
    pub(crate) const fn asks_redis(self) -> bool {
        matches!(
            self,
            Self::RedisFlush
                | Self::ScriptFlush
                | Self::RedisFull
                | Self::GroupDestroy
                | Self::EntriesDelete
                | Self::StreamTrim
                | Self::PoisonEntries
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_in_the_list_and_says_what_it_does() {
        assert_eq!(Kind::ALL, Kind::value_variants());
        for kind in Kind::ALL {
            assert!(!kind.description().is_empty(), "{kind}");
        }
    }
}
