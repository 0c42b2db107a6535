//! The doctor against real servers: each question answered well, and badly.

use flashsale_bootstrap::Settings;
use flashsale_operations::doctor::{Check, Status, examine};
use flashsale_operations::{Operations, connect};
use flashsale_test_support::{PostgresServer, RedisServer, TempDir, temp_dir};
use redis::FromRedisValue;
use sea_orm::ConnectionTrait as _;

use crate::support::{new_sale, only};

/// A deployment with servers of its own settings.
struct Patient {
    redis: RedisServer,
    redis_url: String,
    database_url: String,
    more: Vec<(&'static str, &'static str)>,
    _directory: TempDir,
}

impl Patient {
    /// As it has to be, on PostgreSQL.
    async fn sound() -> Self {
        let url = tokio::task::block_in_place(|| PostgresServer::shared().create_database());
        let patient = Self::on(url);
        connect::database(&patient.settings()).await.expect("there").migrate().await.expect("done");
        let operations = patient.operations().await;
        let sale = operations.create_sale(&new_sale(3)).await.expect("a sale");
        operations.publish_sale(sale.id).await.expect("it can be published");
        connect::redis(&patient.settings())
            .expect("a URL")
            .ensure_group(only())
            .await
            .expect("made");
        patient
    }

    fn on(database_url: String) -> Self {
        let redis = RedisServer::builder().append_only(true).start();
        let redis_url = redis.url();
        Self { redis, redis_url, database_url, more: Vec::new(), _directory: temp_dir("doctor") }
    }

    fn settings(&self) -> Settings {
        let stores = [
            ("FLASHSALE__REDIS__URL", self.redis_url.as_str()),
            ("FLASHSALE__DATABASE__URL", self.database_url.as_str()),
            ("FLASHSALE__DATABASE__CONNECT_TIMEOUT", "1s"),
            ("FLASHSALE__AUTH__JWT_SECRET", "a secret of at least thirty-two bytes"),
        ];
        let is_replaced = |key: &str| self.more.iter().any(|(other, _)| *other == key);
        let env = stores
            .into_iter()
            .filter(|(key, _)| !is_replaced(key))
            .chain(self.more.iter().copied())
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        Settings::from_sources(None, env).expect("they are sound")
    }

    async fn operations(&self) -> Operations {
        let settings = self.settings();
        let database = connect::database(&settings).await.expect("it is there");
        Operations::new(connect::redis(&settings).expect("a URL"), database)
    }

    async fn find(&self, name: &str) -> Check {
        let checks = examine(&self.settings()).await;
        let check = checks.iter().find(|check| check.name == name);
        check.unwrap_or_else(|| panic!("{name} was not looked at: {checks:?}")).clone()
    }

    /// What it is called to allow it in production.
    async fn is_refused_for(&self, name: &str) -> &'static str {
        let check = self.find(name).await;
        assert_eq!(check.status, Status::Failure, "{check:?}");
        check.risk.unwrap_or_else(|| panic!("it is allowed everywhere: {check:?}")).name()
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.redis.url()).expect("a URL of Redis");
        let mut connection = client.get_multiplexed_async_connection().await.expect("it answers");
        let (name, arguments) = words.split_first().expect("a command has a name");
        let asked = redis::cmd(name).arg(arguments).query_async(&mut connection).await;
        asked.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    async fn execute(&self, sql: &str) {
        let connection = sea_orm::Database::connect(&self.database_url).await.expect("there");
        connection.execute_unprepared(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_deployment_is_sound_in_every_answer() {
    let patient = Patient::sound().await;
    let _replica = patient.redis.start_replica(RedisServer::builder());
    // With its first replica Redis takes a new replication id, and its memory has to be loaded anew.
    assert_eq!(patient.find("gates").await.status, Status::Failure);
    patient.operations().await.rebuild_partition(only()).await.expect("rebuilt");
    let checks = examine(&patient.settings()).await;
    let bad: Vec<_> = checks.iter().filter(|check| check.status != Status::Ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
    let names: Vec<_> = checks.iter().map(|check| check.name).collect();
    let all = [
        "token-secret",
        "timeouts",
        "drills",
        "database",
        "isolation",
        "database-timeouts",
        "migrations",
        "indexes",
        "redis",
        "role",
        "aof",
        "appendfsync",
        "eviction",
        "acl",
        "replicas",
        "groups",
        "clocks",
        "gates",
    ];
    assert_eq!(names, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_is_set_to_is_found_as_it_changes() {
    let mut patient = Patient::sound().await;
    let set = async |name: &str, value: &str| {
        patient.ask::<()>(&["CONFIG", "SET", name, value]).await;
    };
    set("appendfsync", "no").await;
    assert_eq!(patient.find("appendfsync").await.status, Status::Warning);
    set("appendonly", "no").await;
    assert_eq!(patient.is_refused_for("aof").await, "aof-off");
    set("maxmemory-policy", "allkeys-lru").await;
    assert_eq!(patient.is_refused_for("eviction").await, "eviction");
    let alone = patient.find("replicas").await;
    assert_eq!((alone.status, alone.risk), (Status::Warning, None));
    patient.more.push(("FLASHSALE__ADMISSION__REPLICAS", "1"));
    assert_eq!(patient.find("replicas").await.status, Status::Failure);
    let replica = patient.redis.start_replica(RedisServer::builder());
    // All that are there are waited for.
    assert_eq!(patient.find("replicas").await.status, Status::Warning);
    patient.redis_url = replica.url();
    assert_eq!(patient.find("role").await.status, Status::Failure);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_right_that_is_missing_is_named_and_asking_changes_nothing() {
    let mut patient = Patient::sound().await;
    let keys = patient.ask::<Vec<String>>(&["KEYS", "*"]).await.len();
    patient.redis_url = patient.redis.url().replace("redis://", "redis://limited:pw@");
    for (rules, missing) in [
        (&["~fs:*", "&fs:*", "+@all"][..], None),
        (&["~fs:*", "&fs:*", "+@all", "-xclaim"], Some("may not run xclaim on")),
        (&["~fs:*", "&fs:*", "+@all", "-xgroup|delconsumer"], Some("run xgroup|delconsumer on")),
        (&["~fs:*", "&other:*", "+@all"], Some("run publish, subscribe on")),
        (&["~other:*", "&fs:*", "+@all"], Some("xadd")),
        (&["~fs:*", "&fs:*", "+@all", "-multi"], Some("run multi on")),
        // None of these is needed: no right over ACLs, over CONFIG, or over the server.
        (&["~fs:*", "&fs:*", "+@all", "-@admin"], None),
    ] {
        let user = [&["ACL", "SETUSER", "limited", "reset", "on", ">pw"], rules].concat();
        patient.ask::<()>(&user).await;
        let check = patient.find("acl").await;
        match missing {
            None => assert_eq!(check.status, Status::Ok, "{rules:?}: {check:?}"),
            Some(words) => {
                assert_eq!(check.risk.map(|risk| risk.name()), Some("acl-missing"), "{rules:?}");
                assert!(check.what.contains(words), "{rules:?}: {check:?}");
            }
        }
        assert_eq!(patient.ask::<Vec<String>>(&["KEYS", "*"]).await.len(), keys, "{rules:?}");
    }
    // Waiting for replicas takes one more.
    patient.more.push(("FLASHSALE__ADMISSION__REPLICAS", "1"));
    let rules = ["ACL", "SETUSER", "limited", "+@all", "-wait"];
    patient.ask::<()>(&rules).await;
    assert!(patient.find("acl").await.what.contains("may not run wait on"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_does_not_sell_is_named_with_the_reason() {
    let patient = Patient::sound().await;
    let redis = connect::redis(&patient.settings()).expect("a URL");
    let gates = async |words: &str| {
        let check = patient.find("gates").await;
        assert_eq!(check.status, Status::Failure, "{check:?}");
        assert!(check.what.contains(words), "{check:?}");
    };
    redis.fence(only()).await.expect("fenced");
    gates("0 (fenced)").await;
    patient.operations().await.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!(patient.find("gates").await.status, Status::Ok);
    patient.redis.stop();
    patient.redis.start_again();
    gates("0 (of another server, or of before a restart)").await;
    patient.ask::<()>(&["FLUSHALL"]).await;
    gates("0 (missing)").await;
    let groups = patient.find("groups").await;
    assert_eq!(groups.status, Status::Warning, "{groups:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_lacks_is_found() {
    let mut patient = Patient::sound().await;
    patient.execute("DROP INDEX orders_one_open_per_slot").await;
    assert_eq!(patient.is_refused_for("indexes").await, "missing-index");
    assert!(patient.find("indexes").await.what.starts_with("orders_one_open_per_slot missing"));
    let name = patient.database_url.rsplit('/').next().expect("a name").split('?').next();
    let database = name.expect("a name");
    patient
        .execute(&format!(
            "ALTER DATABASE \"{database}\" SET default_transaction_isolation = 'read uncommitted'"
        ))
        .await;
    assert_eq!(patient.is_refused_for("isolation").await, "weak-isolation");

    patient.execute("INSERT INTO seaql_migrations VALUES ('m20990101_000001_add_it', 1)").await;
    let migrations = patient.find("migrations").await;
    assert_eq!(migrations.status, Status::Warning, "{migrations:?}");
    assert!(migrations.what.contains("m20990101_000001_add_it"), "{migrations:?}");

    let directory = temp_dir("doctor");
    patient.database_url = format!("sqlite://{}", directory.path().join("new.db").display());
    assert_eq!(patient.is_refused_for("database").await, "sqlite");
    assert_eq!(patient.find("journal-mode").await.status, Status::Ok);
    let migrations = patient.find("migrations").await;
    assert_eq!(migrations.status, Status::Failure, "{migrations:?}");
    assert!(migrations.what.contains("salectl migrate"), "{migrations:?}");
    // Where there is no file there is no log beside it.
    patient.database_url = "sqlite://nowhere.db?mode=memory".to_owned();
    patient.more.push(("FLASHSALE__DATABASE__MAX_CONNECTIONS", "1"));
    assert_eq!(patient.is_refused_for("journal-mode").await, "no-wal");
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_are_away_and_a_guessable_secret_are_failures() {
    let mut patient = Patient::on("postgres://sales@127.0.0.1:1/sales".to_owned());
    patient.redis_url = "redis://127.0.0.1:1".to_owned();
    patient.more.push(("FLASHSALE__AUTH__JWT_SECRET", "short"));
    for name in ["database", "redis"] {
        let check = patient.find(name).await;
        assert_eq!((check.status, check.risk), (Status::Failure, None), "{check:?}");
    }
    assert_eq!(patient.is_refused_for("token-secret").await, "weak-token-secret");
}
