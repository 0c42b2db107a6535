//! What can be measured, each by its name.

use clap::ValueEnum;

/// One kind of run, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// The limit: a server of the same library that only answers
    Echo,
    /// New buyers, each with a token and a key of his own; nobody takes their orders meanwhile
    Accept,
    /// The same through a pool of connections with one EVALSHA a request
    Pool,
    /// New buyers at a sale that is sold out
    SoldOut,
    /// The same without keys
    SoldOutNoKey,
    /// New buyers at a sale that has not begun
    NotStarted,
    /// New buyers at a sale that is over
    Ended,
    /// Buyers who have an order, with the same keys again
    Replay,
    /// Buyers who have an order, without keys
    AlreadyOrdered,
    /// The limit at a fixed rate
    EchoOpen,
    /// New buyers at a fixed rate
    AcceptOpen,
    /// New buyers at a fixed rate, at a sale that is sold out
    SoldOutOpen,
    /// The script alone: redis-benchmark, one request at a time on each connection
    Script,
    /// The same, 16 requests in flight on each connection
    ScriptPipelined,
    /// One worker brings what was accepted into PostgreSQL
    Worker,
    /// One transaction for each order
    RowByRow,
    /// The worker's own statements, fed from memory
    SqlCeiling,
    /// PostgreSQL's COPY of the same rows
    Copy,
    /// Writing and syncing one page where PostgreSQL keeps its files
    Fsync,
    /// All at once: HTTP, Redis with its file, the worker, PostgreSQL
    Chain,
    /// Buyers who wait for the database: our sales of mode `direct`
    Direct,
    /// A queue in the server's memory, one row a transaction behind it
    MemoryQueue,
    /// What is lost when everything of ours is killed in the middle, and started again
    Killed,
}

impl Kind {
    /// The name used on the command line, in the table and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Accept => "accept",
            Self::Pool => "pool",
            Self::SoldOut => "sold-out",
            Self::SoldOutNoKey => "sold-out-no-key",
            Self::NotStarted => "not-started",
            Self::Ended => "ended",
            Self::Replay => "replay",
            Self::AlreadyOrdered => "already-ordered",
            Self::EchoOpen => "echo-open",
            Self::AcceptOpen => "accept-open",
            Self::SoldOutOpen => "sold-out-open",
            Self::Script => "script",
            Self::ScriptPipelined => "script-pipelined",
            Self::Worker => "worker",
            Self::RowByRow => "row-by-row",
            Self::SqlCeiling => "sql-ceiling",
            Self::Copy => "copy",
            Self::Fsync => "fsync",
            Self::Chain => "chain",
            Self::Direct => "direct",
            Self::MemoryQueue => "memory-queue",
            Self::Killed => "killed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name_everywhere() {
        for kind in Kind::value_variants() {
            let value = kind.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), kind.name());
        }
    }
}
