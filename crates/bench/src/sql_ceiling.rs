//! The worker's own write fed from memory: the same function, batches of the same size, and no stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use flashsale_bootstrap::Settings;
use flashsale_domain::{EntryId, IdempotencyKey, NewOrder, OrderId, Partition, SaleId, UserId};
use flashsale_storage_sql::{Commit, Database, DatabaseConfig};
use tokio::task::JoinSet;

/// Batches in flight: the ceiling is the faster of them.
pub(crate) const IN_FLIGHT: [usize; 2] = [1, 2];

/// Writes `count` orders of a sale in batches of the worker's default, so many of them in flight;
/// returns rows a second.
pub(crate) async fn measure(
    database_url: &str,
    sale: SaleId,
    count: u32,
    in_flight: usize,
) -> anyhow::Result<f64> {
    let database = connect(database_url).await?;
    let orders: Arc<Vec<NewOrder>> = Arc::new(orders(sale, count, in_flight)?);
    let batch = Settings::from_sources(None, [])?.worker.batch;
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut lanes = JoinSet::new();
    for _ in 0..in_flight {
        let (database, orders, next) = (database.clone(), Arc::clone(&orders), Arc::clone(&next));
        lanes.spawn(async move {
            loop {
                let from = next.fetch_add(batch, Ordering::Relaxed);
                let Some(rest) = orders.get(from..).filter(|rest| !rest.is_empty()) else {
                    return anyhow::Ok(());
                };
                let committed = database.commit_orders(&rest[..rest.len().min(batch)]).await?;
                let all_new = committed.outcomes.iter().all(|it| *it == Commit::Inserted);
                ensure!(all_new, "orders from memory are not all new");
            }
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    let elapsed = started.elapsed().as_secs_f64();
    database.close().await?;
    Ok(f64::from(count) / elapsed)
}

/// Connects as a worker with the default settings does.
pub(crate) async fn connect(database_url: &str) -> anyhow::Result<Database> {
    let defaults = Settings::from_sources(None, [])?.database;
    let config = DatabaseConfig {
        url: database_url.to_owned(),
        max_connections: defaults.max_connections,
        connect_timeout: defaults.connect_timeout,
        statement_timeout: defaults.statement_timeout,
    };
    Ok(Database::connect(&config).await?)
}

/// Orders as a stream would give them: ids that rise, a buyer and a key each.
pub(crate) fn orders(sale: SaleId, count: u32, run: usize) -> anyhow::Result<Vec<NewOrder>> {
    let partition = Partition::new(0).context("the first partition")?;
    // Each run has a time of its own, so that no two give the same id; 40 orders a millisecond.
    let from_ms = 1_764_000_000_000 + u64::try_from(run)? * 100_000_000;
    (0..count)
        .map(|number| {
            let (ms, seq) = (from_ms + u64::from(number / 40), u64::from(number % 40));
            let user = format!("memory{run}-{number}");
            Ok(NewOrder {
                id: OrderId::from_entry(partition, EntryId { ms, seq })?,
                sale_id: sale,
                digest: Some(IdempotencyKey::new(format!("key-{user}"))?.digest()),
                user_id: UserId::new(user)?,
                slot: 1,
                epoch: 1,
            })
        })
        .collect()
}
