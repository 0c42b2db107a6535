//! What must not be so in production, each by the name by which it can be allowed.
//!
//! Rule: a name is never given another meaning. Who looks for them is `operations::doctor`.

/// What a deployment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Everything starts; what is unsafe is a warning.
    Development,
    /// What is unsafe does not start, unless it is allowed by name.
    Production,
}

/// A way in which orders can be lost, sold twice or forged although no program is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Risk {
    /// Redis keeps no append-only file.
    AofOff,
    /// Redis drops keys when its memory is full.
    Eviction,
    /// The connection may not run every command that is needed.
    AclMissing,
    /// Redis is older than what this version is tested with.
    OldRedis,
    /// The database is a file of one machine.
    Sqlite,
    /// That file has no write-ahead log.
    NoWal,
    /// PostgreSQL is older than what this version is tested with.
    OldPostgres,
    /// Transactions read what others have not committed.
    WeakIsolation,
    /// An index is not there that rules or queries rely on.
    MissingIndex,
    /// The secret of buyers' tokens can be guessed.
    WeakTokenSecret,
    /// Whoever may run `salectl` may break things on purpose.
    Drills,
}

impl Risk {
    /// Every risk.
    pub const ALL: [Self; 11] = [
        Self::AofOff,
        Self::Eviction,
        Self::AclMissing,
        Self::OldRedis,
        Self::Sqlite,
        Self::NoWal,
        Self::OldPostgres,
        Self::WeakIsolation,
        Self::MissingIndex,
        Self::WeakTokenSecret,
        Self::Drills,
    ];

    /// Its name in `allow_unsafe`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AofOff => "aof-off",
            Self::Eviction => "eviction",
            Self::AclMissing => "acl-missing",
            Self::OldRedis => "old-redis",
            Self::Sqlite => "sqlite",
            Self::NoWal => "no-wal",
            Self::OldPostgres => "old-postgres",
            Self::WeakIsolation => "weak-isolation",
            Self::MissingIndex => "missing-index",
            Self::WeakTokenSecret => "weak-token-secret",
            Self::Drills => "drills",
        }
    }
}

/// All names, as a message lists them.
pub(super) fn names() -> String {
    format!("of {}", Risk::ALL.map(Risk::name).join(", "))
}

pub(super) fn parse(name: &str) -> Result<Risk, String> {
    let found = Risk::ALL.into_iter().find(|risk| risk.name() == name);
    found.ok_or_else(|| format!("there is no {name:?} to allow"))
}

pub(super) fn parse_profile(text: &str) -> Result<Profile, String> {
    match text {
        "development" => Ok(Profile::Development),
        "production" => Ok(Profile::Production),
        other => Err(format!("{other:?} is neither")),
    }
}
