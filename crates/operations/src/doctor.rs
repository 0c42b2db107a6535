//! Is the deployment set up as it has to be? Questions to settings, Redis and database, each answered
//! in a sentence that says what to do.
//!
//! `salectl doctor` asks them all. Gateway and order-worker ask, at their start, those that bear a
//! [`Risk`]: in production they refuse to start on one that is not allowed by name.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashsale_bootstrap::Settings;
use flashsale_bootstrap::settings::{Profile, ReplicasConfirm, Risk};
use flashsale_domain::{Partition, SaleState};
use flashsale_storage_redis::{GateStatus, Redis, RedisFault, ServerFacts};
use flashsale_storage_sql::{Database, DatabaseFacts, SqlFault};
use serde::Serialize;

use crate::connect;

/// What a rebuild allows two servers' clocks to differ, and so what an order's id may be off.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(2);

/// A replica reports its fsync with its heartbeat, once a second.
const DISK_CONFIRMS_WITHIN: Duration = Duration::from_millis(1500);

/// One question and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub status: Status,
    /// What was found, and what to do.
    pub what: String,
    /// The name by which a production start can be told to bear it; `None` where nothing refuses.
    #[serde(rename = "unsafe", serialize_with = "risk_name")]
    pub risk: Option<Risk>,
}

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it has to be.
    Ok,
    /// It works, and should be looked at.
    Warning,
    /// Orders can be lost, sold twice or not be sold.
    Failure,
}

fn risk_name<S: serde::Serializer>(risk: &Option<Risk>, to: S) -> Result<S::Ok, S::Error> {
    risk.map(Risk::name).serialize(to)
}

impl Check {
    fn ok(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, what: what.into(), risk: None }
    }

    fn warning(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, status: Status::Warning, what: what.into(), risk: None }
    }

    fn failure(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, status: Status::Failure, what: what.into(), risk: None }
    }

    fn refused_for(name: &'static str, risk: Risk, what: impl Into<String>) -> Self {
        Self { name, status: Status::Failure, what: what.into(), risk: Some(risk) }
    }
}

/// Asks everything. A store that is away is a failure like any other.
pub async fn examine(settings: &Settings) -> Vec<Check> {
    let mut checks = of_settings(settings);
    let database = match connect::database(settings).await {
        Ok(database) => Some(database),
        Err(error) => {
            checks.push(Check::failure("database", format!("{error:#}: see that it runs")));
            None
        }
    };
    if let Some(database) = &database {
        checks.extend(of_database(database).await.unwrap_or_else(away_database));
        checks.extend(schema(database).await.unwrap_or_else(away_database));
    }
    match connect::redis(settings) {
        Ok(redis) => match of_redis(settings, &redis).await {
            Ok(found) => {
                checks.extend(found);
                for asked in [replicas(settings, &redis).await, groups(&redis).await] {
                    checks.push(asked.unwrap_or_else(|fault| away_redis(&fault)));
                }
                if let Some(database) = &database {
                    checks.extend(of_both(&redis, database).await);
                }
            }
            Err(fault) => checks.push(away_redis(&fault)),
        },
        Err(error) => checks.push(Check::failure("redis", format!("{error:#}"))),
    }
    checks
}

fn away_redis(fault: &RedisFault) -> Check {
    let todo = if fault.is_refused() {
        "allow it to the user of redis.url"
    } else {
        "see that it runs, and that redis.url is right"
    };
    Check::failure("redis", format!("{fault}: {todo}"))
}

fn away_database(fault: SqlFault) -> Vec<Check> {
    vec![Check::failure("database", format!("{fault}: see that it runs"))]
}

/// What the settings alone tell. What contradicts itself no program takes in the first place.
pub(crate) fn of_settings(settings: &Settings) -> Vec<Check> {
    let auth = &settings.auth;
    let token = "token-secret";
    let secret = if auth.secret_is_weak() {
        let what = "auth.jwt_secret is shorter than 32 bytes, and tokens can be forged by guessing it: \
                    take 32 random bytes";
        Check::refused_for(token, Risk::WeakTokenSecret, what)
    } else if auth.require().is_err() {
        let what = "neither auth.jwt_secret nor auth.jwt_public_key_file is set: no gateway starts \
                    with these settings";
        Check::warning(token, what)
    } else {
        Check::ok(token, "buyers' tokens are checked with a key that cannot be guessed")
    };
    vec![secret, timeouts(settings), drills(settings)]
}

fn drills(settings: &Settings) -> Check {
    match (settings.drills.allowed, settings.profile) {
        (false, _) => Check::ok("drills", "drills are not allowed"),
        (true, Profile::Development) => Check::ok("drills", "drills are allowed, to practise"),
        (true, Profile::Production) => Check::refused_for(
            "drills",
            Risk::Drills,
            "drills.allowed is true, and whoever may run salectl may break things on purpose: set it \
             to false where real sales are held",
        ),
    }
}

/// The times that must fit into one another, beyond those that the settings insist on.
fn timeouts(settings: &Settings) -> Check {
    let (worker, http, admission) = (&settings.worker, &settings.http, &settings.admission);
    let mut odd = Vec::new();
    if worker.drain_deadline < settings.database.statement_timeout {
        odd.push(
            "worker.drain_deadline is shorter than database.statement_timeout: a slow transaction is \
             cut off at a stop, and its orders wait for worker.reclaim_idle",
        );
    }
    if http.drain_deadline < admission.queue_deadline + settings.redis.response_timeout {
        odd.push(
            "http.drain_deadline is shorter than admission.queue_deadline and redis.response_timeout \
             together: buyers may be cut off at a stop",
        );
    }
    if worker.reclaim_idle < 2 * worker.block {
        odd.push("worker.reclaim_idle is less than twice worker.block: set it higher");
    }
    if admission.replicas > 0
        && admission.replicas_confirm == ReplicasConfirm::Disk
        && admission.replicas_timeout < DISK_CONFIRMS_WITHIN
    {
        odd.push(
            "admission.replicas_timeout is less than 1500ms, and disks are heard of once a second: \
             most buyers would be answered outcome-unknown",
        );
    }
    match odd.as_slice() {
        [] => Check::ok("timeouts", "the timeouts fit into one another"),
        odd => Check::warning("timeouts", odd.join("; ")),
    }
}

/// How the database is set up, whatever its schema.
pub(crate) async fn of_database(database: &Database) -> Result<Vec<Check>, SqlFault> {
    Ok(of_database_facts(database.facts().await?))
}

fn of_database_facts(facts: DatabaseFacts) -> Vec<Check> {
    match facts {
        DatabaseFacts::Sqlite { journal_mode } => vec![
            Check::refused_for(
                "database",
                Risk::Sqlite,
                "SQLite is a file of one machine: use PostgreSQL for a sale that must outlive it",
            ),
            if journal_mode == "wal" {
                Check::ok("journal-mode", "SQLite writes ahead (wal)")
            } else {
                let what = format!(
                    "SQLite's journal mode is {journal_mode}, and readers and writers block each other: \
                     put the file on a disk of this machine, where wal works"
                );
                Check::refused_for("journal-mode", Risk::NoWal, what)
            },
        ],
        DatabaseFacts::Postgres { version, isolation, timeouts_off } => vec![
            if version >= 140_000 {
                Check::ok("database", format!("PostgreSQL {}", version / 10_000))
            } else {
                let what = format!("PostgreSQL {} is too old: use 14 or newer", version / 10_000);
                Check::refused_for("database", Risk::OldPostgres, what)
            },
            if ["read committed", "repeatable read", "serializable"].contains(&isolation.as_str()) {
                Check::ok("isolation", format!("transactions are {isolation}"))
            } else {
                let what = format!(
                    "transactions are {isolation}: set default_transaction_isolation to read committed"
                );
                Check::refused_for("isolation", Risk::WeakIsolation, what)
            },
            if timeouts_off.is_empty() {
                Check::ok("database-timeouts", "the database ends what takes too long")
            } else {
                let what = format!(
                    "{} of the session is off, though the programs set it: see that a connection \
                     pooler in between passes start-up options on",
                    timeouts_off.join(" and ")
                );
                Check::warning("database-timeouts", what)
            },
        ],
    }
}

/// Whether the schema is this version's, and whole.
async fn schema(database: &Database) -> Result<Vec<Check>, SqlFault> {
    let pending = database.pending_migrations().await?;
    if pending > 0 {
        let what = format!("{pending} migrations are to be applied: run `salectl migrate`");
        return Ok(vec![Check::failure("migrations", what)]);
    }
    let unknown = database.unknown_migrations().await?;
    let migrations = if unknown.is_empty() {
        Check::ok("migrations", "the schema is up to date")
    } else {
        let what = format!(
            "the schema is a newer version's ({}): this one can work with it, but upgrade soon",
            unknown.join(", ")
        );
        Check::warning("migrations", what)
    };
    Ok(vec![migrations, indexes(database).await?])
}

/// Whether a migrated schema has its indexes.
pub(crate) async fn indexes(database: &Database) -> Result<Check, SqlFault> {
    let missing = database.missing_indexes().await?;
    Ok(if missing.is_empty() {
        Check::ok("indexes", "every index is there")
    } else {
        let what = format!(
            "{} missing: create it again as its migration does, or restore the schema",
            missing.join(", ")
        );
        Check::refused_for("indexes", Risk::MissingIndex, what)
    })
}

/// How Redis is set up.
pub(crate) async fn of_redis(settings: &Settings, redis: &Redis) -> Result<Vec<Check>, RedisFault> {
    let proof = connect::replicas(settings).map(|replicas| replicas.proof);
    let missing = redis.missing_rights(proof).await?;
    let rights = if missing.is_empty() {
        Check::ok("acl", "the connection may run every command that is needed")
    } else {
        let what = format!(
            "the user of redis.url may not run {} on the keys and the channel that begin with {:?}: \
             allow it with ACL SETUSER",
            missing.join(", "),
            settings.redis.prefix
        );
        Check::refused_for("acl", Risk::AclMissing, what)
    };
    if missing.iter().any(|command| command == "info") {
        // Nothing more can be asked.
        return Ok(vec![rights]);
    }
    let mut checks = of_server_facts(&redis.server_facts().await?);
    checks.push(rights);
    Ok(checks)
}

fn of_server_facts(facts: &ServerFacts) -> Vec<Check> {
    let version = match &facts.valkey {
        Some(valkey) => Check::ok("redis", format!("Valkey {valkey}")),
        None if facts.version_pair() >= Some((7, 0)) => {
            Check::ok("redis", format!("Redis {}", facts.version))
        }
        None => {
            let what = format!("Redis {} is too old: use 7.0 or newer, or Valkey", facts.version);
            Check::refused_for("redis", Risk::OldRedis, what)
        }
    };
    let role = if facts.is_primary {
        Check::ok("role", "redis.url is a primary")
    } else {
        Check::failure("role", "redis.url is a replica, which takes no orders: name the primary")
    };
    let aof = if facts.append_only {
        Check::ok("aof", "Redis keeps an append-only file")
    } else {
        Check::refused_for(
            "aof",
            Risk::AofOff,
            "Redis keeps no append-only file, and a restart forgets orders that buyers were told of: \
             set appendonly yes",
        )
    };
    let fsync = match facts.append_fsync.as_deref() {
        _ if !facts.append_only => None,
        Some("no") => Some(Check::warning(
            "appendfsync",
            "appendfsync is no, and a crash of the machine may lose half a minute of orders: set it \
             to everysec or always",
        )),
        Some(policy) => Some(Check::ok("appendfsync", format!("the file is synced: {policy}"))),
        None => Some(Check::warning(
            "appendfsync",
            "CONFIG GET is not allowed: see for yourself that appendfsync is everysec or always",
        )),
    };
    let eviction = if facts.eviction_policy == "noeviction" {
        Check::ok("eviction", "a full Redis refuses orders and forgets none")
    } else {
        let what = format!(
            "maxmemory-policy is {}, and a full Redis forgets who bought: set it to noeviction",
            facts.eviction_policy
        );
        Check::refused_for("eviction", Risk::Eviction, what)
    };
    [version, role, aof].into_iter().chain(fsync).chain([eviction]).collect()
}

/// Whether the replicas that admission waits for are there.
async fn replicas(settings: &Settings, redis: &Redis) -> Result<Check, RedisFault> {
    let there = redis.server_facts().await?.replicas;
    let wanted = u64::from(settings.admission.replicas);
    Ok(match (there, wanted) {
        (there, wanted) if there < wanted => Check::failure(
            "replicas",
            format!(
                "{there} replicas are in step and admission.replicas is {wanted}: nobody is told yes \
                 until they are"
            ),
        ),
        (there, wanted) if wanted > 0 && there == wanted => Check::warning(
            "replicas",
            format!(
                "{there} replicas are in step, and admission waits for all of them: with one more the \
                 sale goes on when one is away"
            ),
        ),
        (0, _) => Check::warning(
            "replicas",
            "Redis has no replica: when its machine is lost, so are orders that are not yet rows",
        ),
        (there, 0) => Check::ok(
            "replicas",
            format!("{there} replicas are in step; admission.replicas is 0, so none is waited for"),
        ),
        (there, wanted) => {
            Check::ok("replicas", format!("{there} replicas are in step, {wanted} are waited for"))
        }
    })
}

/// Whether each stream has its group.
async fn groups(redis: &Redis) -> Result<Check, RedisFault> {
    let mut missing = Vec::new();
    for partition in redis.partitions() {
        if !redis.has_group(partition).await? {
            missing.push(partition);
        }
    }
    Ok(if missing.is_empty() {
        Check::ok("groups", "every partition has its consumer group")
    } else {
        let what = format!(
            "the consumer group is missing in {}: start an order-worker, which makes it",
            named(&missing)
        );
        Check::warning("groups", what)
    })
}

/// What takes both stores: their clocks, and the gates of partitions that sell.
async fn of_both(redis: &Redis, database: &Database) -> Vec<Check> {
    let clocks = clocks(redis, database).await;
    let gates = gates(redis, database).await;
    [clocks, gates].into_iter().flat_map(|done| done.unwrap_or_else(|check| vec![check])).collect()
}

async fn clocks(redis: &Redis, database: &Database) -> Result<Vec<Check>, Check> {
    let asked = now_ms();
    let redis_ms = redis.time_ms().await.map_err(|fault| away_redis(&fault))?;
    let between = now_ms();
    let sql_ms = database.time_ms().await.map_err(|fault| {
        Check::failure("clocks", format!("the database's clock cannot be read: {fault}"))
    })?;
    let answered = now_ms();
    // Each was read somewhere between two looks at this machine's clock: the least that it can be off.
    let redis_off = offset_ms(redis_ms, asked, between);
    let sql_off = offset_ms(sql_ms, between, answered);
    Ok(vec![of_clock_offsets(redis_off, sql_off)])
}

/// Both in milliseconds off this machine's clock.
fn of_clock_offsets(redis_off: i64, sql_off: i64) -> Check {
    let apart = (redis_off - sql_off).abs();
    let allowed = i64::try_from(CLOCK_OFFSET_MAX.as_millis()).unwrap_or(i64::MAX);
    let what = format!(
        "Redis's clock is {redis_off} ms and the database's {sql_off} ms off this machine's"
    );
    if apart > allowed {
        Check::failure(
            "clocks",
            format!(
                "{what}: the two may not differ by more than {allowed} ms; set the clocks (NTP)"
            ),
        )
    } else if redis_off.abs() > allowed {
        Check::warning("clocks", format!("{what}: set this machine's clock (NTP)"))
    } else {
        Check::ok("clocks", what)
    }
}

/// How far a clock that was read between two moments of ours is from the nearer of them.
fn offset_ms(clock: i64, from: i64, to: i64) -> i64 {
    clock - clock.clamp(from, to.max(from))
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

async fn gates(redis: &Redis, database: &Database) -> Result<Vec<Check>, Check> {
    let (mut shut, mut unused, mut open) = (Vec::new(), 0, 0);
    for partition in redis.partitions() {
        let status = redis.gate_status(partition).await.map_err(|fault| away_redis(&fault))?;
        let what = match status {
            GateStatus::Open => {
                open += 1;
                continue;
            }
            GateStatus::Fenced => "fenced",
            GateStatus::Stale => "of another server, or of before a restart",
            GateStatus::Missing => "missing",
            GateStatus::ClockAhead => "with a last id of the future",
        };
        let homed = database.list_sales_of(partition).await.map_err(|fault| {
            Check::failure("gates", format!("the sales cannot be read: {fault}"))
        })?;
        if homed.iter().all(|sale| sale.state == SaleState::Draft) {
            unused += 1;
        } else {
            shut.push(format!("{partition} ({what})"));
        }
    }
    Ok(vec![if shut.is_empty() {
        let unused = if unused > 0 { format!(", {unused} not used yet") } else { String::new() };
        Check::ok("gates", format!("{open} partitions open{unused}"))
    } else {
        let what = format!(
            "nobody is admitted to partition {}: see that an order-worker runs, or run \
             `salectl rebuild` for one of its sales",
            shut.join(", ")
        );
        Check::failure("gates", what)
    }])
}

fn named(partitions: &[Partition]) -> String {
    let names: Vec<_> = partitions.iter().map(ToString::to_string).collect();
    format!("partition {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(checks: &[Check], name: &str) -> (Status, Option<Risk>) {
        let check = checks.iter().find(|check| check.name == name).expect("it was looked at");
        (check.status, check.risk)
    }

    const REFUSED: fn(Risk) -> (Status, Option<Risk>) = |risk| (Status::Failure, Some(risk));

    #[test]
    fn versions_that_are_too_old_are_told_from_those_that_are_not() {
        let server = |version: &str, valkey: Option<&str>| {
            let facts = ServerFacts {
                version: version.to_owned(),
                valkey: valkey.map(str::to_owned),
                is_primary: true,
                replicas: 0,
                append_only: true,
                append_fsync: None,
                eviction_policy: "noeviction".to_owned(),
            };
            found(&of_server_facts(&facts), "redis")
        };
        for (version, valkey) in [("7.0.0", None), ("10.1.2", None), ("7.2.4", Some("9.1.2"))] {
            assert_eq!(server(version, valkey), (Status::Ok, None), "{version}");
        }
        for version in ["6.2.14", "5.0.3", "what?"] {
            assert_eq!(server(version, None), REFUSED(Risk::OldRedis), "{version}");
        }
        let postgres = |version: u32, isolation: &str, timeouts_off: &[&'static str]| {
            let (isolation, timeouts_off) = (isolation.to_owned(), timeouts_off.to_vec());
            of_database_facts(DatabaseFacts::Postgres { version, isolation, timeouts_off })
        };
        let sound = postgres(140_000, "read committed", &[]);
        assert!(sound.iter().all(|check| check.status == Status::Ok), "{sound:?}");
        let old = postgres(130_011, "read committed", &["lock_timeout"]);
        assert_eq!(found(&old, "database"), REFUSED(Risk::OldPostgres));
        // What a pooler that drops start-up options leaves.
        assert_eq!(found(&old, "database-timeouts"), (Status::Warning, None));
    }

    #[test]
    fn clocks_of_stores_may_differ_by_two_seconds_and_ours_warns() {
        for (redis, sql, status) in [
            (0, 0, Status::Ok),
            (-900, 900, Status::Ok),
            (1_500, -600, Status::Failure),
            (-2_001, 0, Status::Failure),
            (90_000, 90_000, Status::Warning),
        ] {
            assert_eq!(of_clock_offsets(redis, sql).status, status, "{redis} {sql}");
        }
        assert_eq!([offset_ms(5, 1, 9), offset_ms(12, 1, 9), offset_ms(-3, 1, 9)], [0, 3, -4]);
    }

    #[test]
    fn times_that_do_not_fit_are_named_by_their_keys() {
        let settings = |file: &str| {
            let file = Some(("settings.toml".into(), file.to_owned()));
            timeouts(&Settings::from_sources(file, []).expect("each is sound"))
        };
        assert_eq!(settings("").status, Status::Ok);
        for (file, named) in [
            ("[worker]\ndrain_deadline = \"1s\"", "worker.drain_deadline"),
            ("[http]\ndrain_deadline = \"2s\"", "http.drain_deadline"),
            ("[worker]\nblock = \"20s\"", "worker.reclaim_idle"),
            (
                "[admission]\nreplicas = 1\nreplicas_confirm = \"disk\"",
                "admission.replicas_timeout",
            ),
        ] {
            let check = settings(file);
            assert_eq!(check.status, Status::Warning, "{file}");
            assert!(check.what.starts_with(named), "{}", check.what);
        }
    }
}
