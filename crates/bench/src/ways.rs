//! `make bench-ways`: the same rows into the same table, by each way that a database offers, in batches
//! of several sizes. The worker's own way is chosen by this.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Args;
use flashsale_domain::{IdempotencyDigest, NewOrder};
use flashsale_test_support::{PostgresServer, RedisServer, temp_dir};
use sea_orm::sqlx::postgres::{PgConnection, Postgres};
use sea_orm::sqlx::{AssertSqlSafe, Connection as _, QueryBuilder, Transaction, query};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::figures::median;
use crate::programs::Settings;
use crate::stack::Stack;
use crate::{programs, report, sql_ceiling};

#[derive(Debug, Args)]
pub(crate) struct What {
    /// Rows of a batch; several, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 20, 200, 2_000],
        value_parser = clap::value_parser!(u32).range(1..=5_000))]
    batches: Vec<u32>,

    /// Rows of a measurement, and never more than 200 batches
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    rows: u32,

    /// How often each way takes its turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Where the report goes [default: bench/report.json in the target folder]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// How a batch is written, one transaction each, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// These statements alone, on PostgreSQL
    Alone(Statements),
    /// The worker's whole transaction: guards, rows, the sale's stock
    Worker,
    /// The worker's whole transaction on SQLite
    WorkerSqlite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Statements {
    /// A list of VALUES, with ON CONFLICT DO NOTHING
    Values,
    /// Arrays, with ON CONFLICT DO NOTHING
    ArraysSkip,
    /// Arrays, and a conflict fails: the worker's first try
    Arrays,
    /// COPY into a temporary table, and from there with ON CONFLICT DO NOTHING
    CopyTemporary,
    /// COPY into the table itself: a conflict fails
    Copy,
}

impl Way {
    const ALL: [Self; 7] = [
        Self::Alone(Statements::Values),
        Self::Alone(Statements::ArraysSkip),
        Self::Alone(Statements::Arrays),
        Self::Alone(Statements::CopyTemporary),
        Self::Alone(Statements::Copy),
        Self::Worker,
        Self::WorkerSqlite,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Alone(Statements::Values) => "VALUES, conflicts skipped",
            Self::Alone(Statements::ArraysSkip) => "arrays, conflicts skipped",
            Self::Alone(Statements::Arrays) => "arrays",
            Self::Alone(Statements::CopyTemporary) => {
                "COPY by way of a temporary table, conflicts skipped"
            }
            Self::Alone(Statements::Copy) => "COPY",
            Self::Worker => "the worker's transaction",
            Self::WorkerSqlite => "the worker's transaction, SQLite",
        }
    }
}

#[derive(Debug, Serialize)]
struct Rate {
    way: &'static str,
    batch: u32,
    per_s: f64,
    /// CPU of PostgreSQL for a row, in microseconds.
    postgres_us: f64,
}

/// Measures, says it, and writes it into the report.
pub(crate) async fn measure(what: &What) -> anyhow::Result<bool> {
    let postgres = spawn_blocking(|| PostgresServer::builder().fsync(true).try_start()).await??;
    let stack = Stack::start(&postgres, RedisServer::builder()).await?;
    let mut seen: BTreeMap<(Way, u32), Vec<(f64, f64)>> = BTreeMap::new();
    for round in 1..=what.rounds {
        eprintln!("round {round} of {}", what.rounds);
        for &batch in &what.batches {
            let rows = what.rows.min(batch * 200);
            for way in Way::ALL {
                let pids = stack.pids(None, None);
                let before = pids.used()?;
                let per_s = run(&stack, way, batch, rows).await?;
                let used = pids.used()? - before;
                let of = seen.entry((way, batch)).or_default();
                of.push((per_s, used.postgres / f64::from(rows)));
            }
        }
    }
    stack.end(&postgres).await?;

    let rates: Vec<Rate> = seen
        .into_iter()
        .map(|((way, batch), of)| {
            let (per_s, postgres_us) = of.into_iter().unzip();
            Rate { way: way.name(), batch, per_s: median(per_s), postgres_us: median(postgres_us) }
        })
        .collect();
    let path = what.report.clone().map_or_else(report::default_path, Ok)?;
    report::write(&path, "ways", &BTreeMap::new(), &serde_json::json!(rates))?;
    say(what, &rates)?;
    writeln!(io::stdout(), "written to {}", path.display())?;
    Ok(true)
}

/// Rows a second of one way.
async fn run(stack: &Stack, way: Way, batch: u32, rows: u32) -> anyhow::Result<f64> {
    match way {
        Way::Alone(statements) => run_alone(stack, statements, batch, rows).await,
        Way::Worker => run_worker(&stack.database_url, &stack.settings, batch, rows).await,
        Way::WorkerSqlite => {
            let folder = temp_dir("ways");
            let url = format!("sqlite://{}", folder.path().join("flashsale.db").display());
            let mut settings = stack.settings.clone();
            settings.retain(|(key, _)| *key != "FLASHSALE__DATABASE__URL");
            settings.push(("FLASHSALE__DATABASE__URL", url.clone()));
            programs::output("salectl", &settings, &["migrate"]).await?;
            run_worker(&url, &settings, batch, rows).await
        }
    }
}

/// Into a table that is empty at first, on one connection.
async fn run_alone(
    stack: &Stack,
    statements: Statements,
    batch: u32,
    rows: u32,
) -> anyhow::Result<f64> {
    let orders = sql_ceiling::orders("1".parse()?, rows, 0)?;
    let mut connection = PgConnection::connect(&stack.database_url).await?;
    for table in [
        "DROP TABLE IF EXISTS ways",
        "CREATE TABLE ways (LIKE orders INCLUDING ALL)",
        "CREATE TEMPORARY TABLE batch (LIKE orders INCLUDING DEFAULTS) ON COMMIT DELETE ROWS",
    ] {
        query(table).execute(&mut connection).await?;
    }
    let started = Instant::now();
    for orders in orders.chunks(usize::try_from(batch)?) {
        let mut transaction = connection.begin().await?;
        let written = match statements {
            Statements::Values => values(&mut transaction, orders).await?,
            Statements::ArraysSkip => arrays(&mut transaction, orders, SKIPPING).await?,
            Statements::Arrays => arrays(&mut transaction, orders, "").await?,
            Statements::CopyTemporary => {
                copy(&mut transaction, "batch", orders).await?;
                query("INSERT INTO ways SELECT * FROM batch ON CONFLICT DO NOTHING")
                    .execute(&mut *transaction)
                    .await?
                    .rows_affected()
            }
            Statements::Copy => copy(&mut transaction, "ways", orders).await?,
        };
        transaction.commit().await?;
        ensure!(written == u64::try_from(orders.len())?, "{statements:?} wrote {written} rows");
    }
    let elapsed = started.elapsed().as_secs_f64();
    connection.close().await?;
    Ok(f64::from(rows) / elapsed)
}

/// What the worker does with a batch, fed from memory, one batch after the other.
async fn run_worker(url: &str, settings: &Settings, batch: u32, rows: u32) -> anyhow::Result<f64> {
    let sale = ["sale", "create", "--title", "Ways", "--opens", "now", "--closes", "+1h"];
    let stock = rows.to_string();
    let sale = [&sale[..], &["--stock", &stock]].concat();
    let sale = programs::output("salectl", settings, &sale).await?;
    let database = sql_ceiling::connect(url).await?;
    // Sales of one database share its orders, so no two runs may give the same ids.
    let run = usize::try_from(sale.parse::<u32>()?)?;
    let orders = sql_ceiling::orders(sale.parse()?, rows, run)?;
    let started = Instant::now();
    for orders in orders.chunks(usize::try_from(batch)?) {
        database.commit_orders(orders).await?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    database.close().await?;
    Ok(f64::from(rows) / elapsed)
}

const COLUMNS: &str = "id, user_id, slot, digest, sale_id, epoch, state, price_amount, \
                       price_currency, pay_by_ms, committed_ms";
/// What all rows of a batch have in common, from `sale_id` on.
const COMMON: &str = "1, 1, 'awaiting_payment', 9900, 'CNY', 1800000000000, 1764000000000";
const SKIPPING: &str = " ON CONFLICT DO NOTHING RETURNING id";

fn digest(order: &NewOrder) -> &str {
    order.digest.as_ref().map_or("", IdempotencyDigest::as_str)
}

async fn values(
    transaction: &mut Transaction<'_, Postgres>,
    orders: &[NewOrder],
) -> anyhow::Result<u64> {
    let mut insert = QueryBuilder::new(format!("INSERT INTO ways ({COLUMNS}) "));
    insert.push_values(orders, |mut row, order| {
        row.push_bind(order.id.as_i64())
            .push_bind(order.user_id.as_str().to_owned())
            .push_bind(i32::from(order.slot))
            .push_bind(digest(order).to_owned())
            .push_bind(1_i64)
            .push_bind(1_i64)
            .push_bind("awaiting_payment")
            .push_bind(9_900_i64)
            .push_bind("CNY")
            .push_bind(1_800_000_000_000_i64)
            .push_bind(1_764_000_000_000_i64);
    });
    insert.push(SKIPPING);
    Ok(u64::try_from(insert.build().fetch_all(&mut **transaction).await?.len())?)
}

async fn arrays(
    transaction: &mut Transaction<'_, Postgres>,
    orders: &[NewOrder],
    conflict: &str,
) -> anyhow::Result<u64> {
    let sql = format!(
        "INSERT INTO ways ({COLUMNS}) SELECT id, user_id, slot, digest, {COMMON} \
         FROM unnest($1::bigint[], $2::text[], $3::int[], $4::text[]) \
         AS batch (id, user_id, slot, digest){conflict}"
    );
    let insert = query(AssertSqlSafe(sql))
        .bind(orders.iter().map(|it| it.id.as_i64()).collect::<Vec<_>>())
        .bind(orders.iter().map(|it| it.user_id.as_str().to_owned()).collect::<Vec<_>>())
        .bind(orders.iter().map(|it| i32::from(it.slot)).collect::<Vec<_>>())
        .bind(orders.iter().map(|it| digest(it).to_owned()).collect::<Vec<_>>());
    if conflict.is_empty() {
        return Ok(insert.execute(&mut **transaction).await?.rows_affected());
    }
    Ok(u64::try_from(insert.fetch_all(&mut **transaction).await?.len())?)
}

async fn copy(
    transaction: &mut Transaction<'_, Postgres>,
    table: &str,
    orders: &[NewOrder],
) -> anyhow::Result<u64> {
    // Nothing of these rows needs escaping.
    let common = COMMON.replace('\'', "").replace(", ", "\t");
    let mut text = String::with_capacity(orders.len() * 128);
    for order in orders {
        let (id, user, digest) = (order.id, order.user_id.as_str(), digest(order));
        writeln!(text, "{id}\t{user}\t{}\t{digest}\t{common}", order.slot)?;
    }
    let statement = format!("COPY {table} ({COLUMNS}) FROM STDIN");
    let mut copying = transaction.copy_in_raw(&statement).await?;
    copying.send(text.as_bytes()).await?;
    Ok(copying.finish().await?)
}

fn say(what: &What, rates: &[Rate]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let sizes = what.batches.iter().map(|batch| format!(" {batch} |")).collect::<String>();
    writeln!(out, "| rows a second, and µs of PostgreSQL a row, in batches of |{sizes}")?;
    writeln!(out, "|---|{}", "---:|".repeat(what.batches.len()))?;
    for way in Way::ALL {
        write!(out, "| {} |", way.name())?;
        for batch in &what.batches {
            let rate = rates.iter().find(|it| it.way == way.name() && it.batch == *batch);
            let Rate { per_s, postgres_us, .. } = rate.context("not measured")?;
            match way {
                Way::WorkerSqlite => write!(out, " {per_s:.0} |")?,
                _ => write!(out, " {per_s:.0}, {postgres_us:.1} |")?,
            }
        }
        writeln!(out)?;
    }
    Ok(writeln!(out)?)
}
