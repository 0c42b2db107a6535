//! How fast orders become rows: what is on the stream already, or while buyers press.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use flashsale_test_support::Program;
use sea_orm::DatabaseConnection;
use tokio::time::sleep;

use crate::figures::Run;
use crate::load::Load;
use crate::programs;
use crate::stack::{Stack, number};

const WRITTEN_WITHIN: Duration = Duration::from_secs(120);
/// One look costs PostgreSQL some 50 µs.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How many rows there were when.
#[derive(Debug, Clone, Copy)]
struct Look {
    unix_ms: f64,
    rows: i64,
}

/// Ours, on a stream that has `orders` to be written. The clock runs from the first batch that is there,
/// because a start is not what is measured.
pub(crate) async fn drain(stack: &Stack, orders: i64) -> anyhow::Result<Run> {
    let before = stack.rows().await?;
    let worker = stack.worker(&Vec::new()).await?;
    let run = watch(stack, &worker, before, orders).await?;
    worker.terminate();
    worker.wait_exit(WRITTEN_WITHIN).context("the worker does not end")?;
    Ok(run)
}

/// One transaction for each order, on a stream that has `orders`.
pub(crate) async fn drain_row_by_row(stack: &Stack, orders: i64) -> anyhow::Result<Run> {
    let before = stack.rows().await?;
    let worker = Program::builder(programs::path("bench")?)
        .envs(&stack.settings)
        .arg("row-by-row")
        .try_start()?;
    watch(stack, &worker, before, orders).await
}

async fn watch(stack: &Stack, worker: &Program, before: i64, orders: i64) -> anyhow::Result<Run> {
    let pids = stack.pids(None, Some(worker));
    let started = Instant::now();
    let at_start = (Look { rows: before, ..look(&stack.database).await? }, pids.used()?);
    let mut first = None;
    loop {
        let look = look(&stack.database).await?;
        if look.rows > before && first.is_none() {
            first = Some((look, pids.used()?));
        }
        if look.rows >= before + orders {
            // So few that they are one batch, as in a quick run: there the start counts in.
            let timed = first.filter(|(first, _)| first.rows < look.rows);
            let (first, used_before) = timed.unwrap_or(at_start);
            let rows = (look.rows - first.rows) as f64;
            return Ok(Run {
                per_s: rows * 1e3 / (look.unix_ms - first.unix_ms),
                cpu: (pids.used()? - used_before) / rows,
                ..Run::default()
            });
        }
        ensure!(
            started.elapsed() < WRITTEN_WITHIN && worker.exit_status().is_none(),
            "{} of {orders} orders were written\n{}",
            look.rows - before,
            worker.log()
        );
        sleep(LOOK_EVERY).await;
    }
}

/// The whole chain at once: buyers press, and a worker that runs already makes rows of it. Counted are
/// the rows that are there when the last buyer has his answer.
pub(crate) async fn chain(stack: &Stack, load: &Load<'_>) -> anyhow::Result<Run> {
    let worker = stack.worker(&Vec::new()).await?;
    let before = stack.rows().await?;
    let pids = stack.pids(Some(&stack.gateway), Some(&worker));
    let used_before = pids.used()?;
    let over = Arc::new(AtomicBool::new(false));
    let looking = tokio::spawn(look_on(stack.database.clone(), Arc::clone(&over)));
    let rushed = load.rush(&stack.settings).await;
    over.store(true, Ordering::Relaxed);
    let (rushed, looks) = (rushed?, looking.await??);
    let ended = rushed.ended_unix_ms();
    let at_end =
        looks.iter().rev().find(|look| look.unix_ms <= ended).context("no look in time")?;
    let rows = (at_end.rows - before) as f64;

    wait_for_rows(stack, &worker, before + i64::from(load.buyers)).await?;
    let mut run = rushed.run(pids.used()? - used_before);
    run.more.insert("accepted_per_s", run.per_s);
    run.more.insert("committed_when_load_ends", rows / f64::from(rushed.requests));
    run.per_s = rows / rushed.duration_s;
    worker.terminate();
    worker.wait_exit(WRITTEN_WITHIN).context("the worker does not end")?;
    Ok(run)
}

/// Waits until so many rows are there.
pub(crate) async fn wait_for_rows(
    stack: &Stack,
    worker: &Program,
    rows: i64,
) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let there = stack.rows().await?;
        if there >= rows {
            return Ok(());
        }
        ensure!(
            started.elapsed() < WRITTEN_WITHIN && worker.exit_status().is_none(),
            "{there} of {rows} rows are written\n{}",
            worker.log()
        );
        sleep(LOOK_EVERY).await;
    }
}

async fn look_on(database: DatabaseConnection, over: Arc<AtomicBool>) -> anyhow::Result<Vec<Look>> {
    let mut looks = Vec::new();
    while !over.load(Ordering::Relaxed) {
        looks.push(look(&database).await?);
        sleep(LOOK_EVERY).await;
    }
    Ok(looks)
}

/// The time is taken after the look: what was seen was there by then.
async fn look(database: &DatabaseConnection) -> anyhow::Result<Look> {
    let sold = "SELECT sum(stock_total - stock_left)::bigint FROM sales";
    let rows = number(database, sold).await?;
    Ok(Look { unix_ms: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3, rows })
}
