//! How busy the connection pools of a process are, as metrics. What they may grow to are settings.

use flashsale_bootstrap::telemetry::{count, describe};
use flashsale_storage_redis::Redis;
use flashsale_storage_sql::Database;

/// Says what the metrics of [`show`] mean.
pub fn describe_them() {
    describe(&[
        ("flashsale_redis_pool_connections", "Pooled connections to Redis, by state"),
        ("flashsale_redis_pool_waiting", "Those who wait for a pooled connection to Redis"),
        ("flashsale_database_pool_connections", "Pooled connections to the database, by state"),
    ]);
}

/// Shows how the pools are used at this moment. Asks no store.
pub fn show(redis: &Redis, database: &Database) {
    // Sentinels that have named no primary yet: unknown is absent.
    if let Some(pool) = redis.pool_use() {
        for (state, connections) in [("busy", pool.busy), ("idle", pool.idle)] {
            metrics::gauge!("flashsale_redis_pool_connections", "state" => state)
                .set(count(connections));
        }
        metrics::gauge!("flashsale_redis_pool_waiting").set(count(pool.waiting));
    }
    let (busy, idle) = database.pool_use();
    for (state, connections) in [("busy", busy), ("idle", idle)] {
        metrics::gauge!("flashsale_database_pool_connections", "state" => state)
            .set(count(connections));
    }
}
