//! One order-worker brings everything that was accepted into PostgreSQL; beside it, what PostgreSQL's own
//! COPY takes for the same rows into the same table with the same indexes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flashsale_test_support::{Program, free_port};
use sea_orm::{ConnectionTrait as _, Database, DatabaseConnection, Statement};
use tokio::time::sleep;

use crate::programs;
use crate::stack::Stack;

const WRITTEN_WITHIN: Duration = Duration::from_secs(300);
/// Counting all rows costs PostgreSQL, too; so not too often.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Rows a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable {
    pub(crate) rows: f64,
    pub(crate) worker_per_s: f64,
    pub(crate) copy_per_s: f64,
    pub(crate) worker_cpu_us: f64,
}

/// Starts a worker on the stream, and waits until `orders` are rows.
pub(crate) async fn measure(stack: &Stack, orders: u32) -> anyhow::Result<Durable> {
    let database = Database::connect(&stack.database_url).await?;
    let admin = format!("127.0.0.1:{}", free_port());
    let started = Instant::now();
    let worker = Program::builder(programs::path("order-worker")?)
        .envs(&stack.settings)
        .env("FLASHSALE__ADMIN__LISTEN", &admin)
        .try_start()?;
    while number(&database, "SELECT count(*) FROM orders").await? < i64::from(orders) {
        ensure!(started.elapsed() < WRITTEN_WITHIN, "the worker has not written {orders} orders");
        sleep(LOOK_EVERY).await;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = programs::cpu_us(worker.pid())?;
    worker.terminate();

    let rows = f64::from(orders);
    let copy = copy_all(&database).await?;
    Ok(Durable {
        rows,
        worker_per_s: rows / elapsed,
        copy_per_s: rows / copy.as_secs_f64(),
        worker_cpu_us: cpu / rows,
    })
}

/// How long COPY takes for all orders, into a table with the same indexes and checks.
async fn copy_all(database: &DatabaseConnection) -> anyhow::Result<Duration> {
    let backend = database.get_database_backend();
    let folder = Statement::from_string(backend, "SHOW data_directory");
    let folder: String =
        database.query_one_raw(folder).await?.context("no data directory")?.try_get_by_index(0)?;
    let file = format!("'{folder}/bench.copy'");
    database.execute_unprepared(&format!("COPY orders TO {file}")).await?;
    database.execute_unprepared("CREATE TABLE copied (LIKE orders INCLUDING ALL)").await?;
    let started = Instant::now();
    database.execute_unprepared(&format!("COPY copied FROM {file}")).await?;
    Ok(started.elapsed())
}

async fn number(database: &DatabaseConnection, sql: &str) -> anyhow::Result<i64> {
    let statement = Statement::from_string(database.get_database_backend(), sql);
    let row = database.query_one_raw(statement).await?.context("no row")?;
    Ok(row.try_get_by_index(0)?)
}
