//! The worker's limit: its own transactions, fed from memory. No stream, nothing to decode, nothing to
//! acknowledge.

use std::io::{self, Write as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use flashsale_domain::{
    EntryId, IdempotencyKey, LatePayment, NewOrder, NewSale, OrderId, Partition, Price, Sale,
    SaleMode, UserId, Window,
};
use flashsale_storage_sql::{Commit, Database, DatabaseConfig};
use flashsale_test_support::PostgresServer;
use tokio::task::JoinSet;

/// Entries of one millisecond.
const PER_MS: u32 = 50;

/// As [`measure`] on a PostgreSQL of its own, printed.
pub(crate) fn alone(rows: u32, batch: usize, in_flight: usize) -> anyhow::Result<()> {
    let postgres = PostgresServer::builder().fsync(true).try_start()?;
    let runtime = tokio::runtime::Runtime::new().context("no async runtime")?;
    let per_s = runtime.block_on(measure(postgres.create_database(), rows, batch, in_flight))?;
    Ok(writeln!(io::stdout(), "{per_s:.0} rows/s")?)
}

/// Rows a second into a database of its own, which is migrated first: `batch` of them a transaction,
/// `in_flight` transactions at once.
pub(crate) async fn measure(
    database_url: String,
    rows: u32,
    batch: usize,
    in_flight: usize,
) -> anyhow::Result<f64> {
    let config = DatabaseConfig {
        url: database_url,
        max_connections: u32::try_from(in_flight)? + 1,
        connect_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(30),
    };
    let database = Database::connect(&config).await?;
    database.migrate().await?;
    let sale = database.insert_sale(&new_sale(i64::from(rows))?).await?;
    let orders = (0..rows).map(|n| order(&sale, n)).collect::<anyhow::Result<Vec<_>>>()?;

    let started = Instant::now();
    let mut running = JoinSet::new();
    for batch in orders.chunks(batch) {
        if running.len() == in_flight {
            let done: anyhow::Result<()> = running.join_next().await.context("some run")??;
            done?;
        }
        let (database, batch) = (database.clone(), batch.to_vec());
        running.spawn(async move {
            let committed = database.commit_orders(&batch).await?;
            let new = committed.outcomes.iter().all(|outcome| *outcome == Commit::Inserted);
            ensure!(new, "not every order became a row");
            Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    let elapsed = started.elapsed();
    database.close().await?;
    Ok(f64::from(rows) / elapsed.as_secs_f64())
}

fn new_sale(stock: i64) -> anyhow::Result<NewSale> {
    let now_ms = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    Ok(NewSale {
        title: "Ceiling".to_owned(),
        mode: SaleMode::Queued,
        stock,
        window: Window::new(now_ms, now_ms + 3_600_000)?,
        per_buyer: 1,
        price: Price { amount: 9900, currency: "CNY".parse()? },
        payment_window_s: 900,
        late_payment: LatePayment::Refund,
    })
}

/// As one from the stream: ids in their order, buyers and keys without any.
fn order(sale: &Sale, n: u32) -> anyhow::Result<NewOrder> {
    let ms = u64::try_from(sale.window.opens_ms())? + u64::from(n / PER_MS);
    let partition = Partition::new(0).context("partition 0")?;
    let key = IdempotencyKey::new(format!("key-{n}"))?;
    Ok(NewOrder {
        id: OrderId::from_entry(partition, EntryId { ms, seq: u64::from(n % PER_MS) })?,
        sale_id: sale.id,
        user_id: UserId::new(format!("ceiling-{}", n.wrapping_mul(2_654_435_761)))?,
        slot: 1,
        epoch: sale.epoch,
        digest: Some(key.digest()),
    })
}
