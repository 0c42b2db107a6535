//! From settings to stores: the one place where the programs' settings become connections.

use anyhow::{Context as _, ensure};
use flashsale_bootstrap::Settings;
use flashsale_bootstrap::settings::ReplicasConfirm;
use flashsale_storage_redis::{Redis, RedisConfig, ReplicaProof, Replicas};
use flashsale_storage_sql::{Database, DatabaseConfig};
use secrecy::ExposeSecret as _;
use tracing::warn;

/// Access to Redis; connects only when something is asked.
///
/// # Errors
/// When `redis.url` is not a URL of Redis.
pub fn redis(settings: &Settings) -> anyhow::Result<Redis> {
    let redis = &settings.redis;
    Redis::new(RedisConfig {
        url: redis.url.expose_secret().to_owned(),
        prefix: redis.prefix.clone(),
        partitions: redis.partitions,
        response_timeout: redis.response_timeout,
        connect_timeout: redis.connect_timeout,
        pool_max: redis.pool_max,
    })
    .context("redis.url cannot be used")
}

/// The replicas that an admission waits for, if it waits for any.
pub fn replicas(settings: &Settings) -> Option<Replicas> {
    let admission = &settings.admission;
    (admission.replicas > 0).then_some(Replicas {
        count: admission.replicas,
        timeout: admission.replicas_timeout,
        proof: match admission.replicas_confirm {
            ReplicasConfirm::Memory => ReplicaProof::Memory,
            ReplicasConfirm::Disk => ReplicaProof::Disk,
        },
    })
}

/// A connected database, whatever the state of its schema.
///
/// # Errors
/// When it cannot be reached.
pub async fn database(settings: &Settings) -> anyhow::Result<Database> {
    let database = &settings.database;
    let config = DatabaseConfig {
        url: database.url.expose_secret().to_owned(),
        max_connections: database.max_connections,
        connect_timeout: database.connect_timeout,
        statement_timeout: database.statement_timeout,
    };
    let database = Database::connect(&config)
        .await
        .context("the database of database.url cannot be reached")?;
    let traced = settings.tracing.otlp_endpoint.is_some();
    let database = if traced { database.with_spans() } else { database };
    Ok(if settings.webhooks.endpoint.is_some() { database.with_events() } else { database })
}

/// A connected database with the schema that this version needs. One that a newer version has added to
/// will do: while programs are replaced one by one, and after a roll-back, the older ones meet it.
///
/// # Errors
/// When it cannot be reached, or `salectl migrate` has not been run.
pub async fn migrated_database(settings: &Settings) -> anyhow::Result<Database> {
    let database = database(settings).await?;
    let pending = database.pending_migrations().await.context("the schema cannot be read")?;
    ensure!(pending == 0, "{pending} migrations are to be applied: run `salectl migrate`");
    let unknown = database.unknown_migrations().await.context("the schema cannot be read")?;
    if !unknown.is_empty() {
        let migrations = unknown.join(", ");
        warn!(migrations, "a newer version has migrated the database: {migrations}; going on");
    }
    Ok(database)
}
