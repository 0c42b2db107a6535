//! What the parts could do by themselves: the script without HTTP, COPY without a worker, the disk
//! without a database.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flashsale_domain::{Partition, SaleId};
use flashsale_storage_redis::Keys;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};

use crate::cpu::Cpu;
use crate::designs::script;
use crate::figures::Run;
use crate::stack::Stack;

/// A page of PostgreSQL.
const PAGE: [u8; 8_192] = [7; 8_192];
const SYNC_FOR: Duration = Duration::from_millis(700);

/// Connections of redis-benchmark: its own default.
const CONNECTIONS: &str = "50";

/// Whether redis-benchmark is there.
pub(crate) fn has_redis_benchmark() -> bool {
    let asked = std::process::Command::new("redis-benchmark")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

/// Sends the admission script with redis-benchmark, one order a call, `pipeline` calls in flight on each
/// connection. The buyers are drawn, so a few of them come twice and are told so.
pub(crate) async fn script(
    stack: &Stack,
    sale: &str,
    calls: u32,
    pipeline: u32,
) -> anyhow::Result<Run> {
    script::is_the_gateways(&stack.redis.url()).await?;
    let partition = Partition::new(0).context("the only partition")?;
    let head = script::head(&Keys::new("fs"), partition, sale.parse::<SaleId>()?);
    let user = format!("script{pipeline}-__rand_int__");
    let pids = stack.pids(None, None);
    let before = pids.used()?;
    let output = tokio::process::Command::new("redis-benchmark")
        .args(["-p", &stack.redis.port().to_string(), "--csv", "-c", CONNECTIONS])
        .args(["-n", &calls.to_string(), "-P", &pipeline.to_string(), "-r", "1000000000"])
        .arg("EVALSHA")
        .args(head)
        .args(script::request(&user, "AAAAAAAAAAA"))
        .stdin(Stdio::null())
        .output()
        .await?;
    let used = pids.used()? - before;
    ensure!(output.status.success(), "redis-benchmark ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(Run {
        per_s: calls_per_s(&text).with_context(|| format!("redis-benchmark said {text:?}"))?,
        cpu: Cpu { redis: used.redis, ..Cpu::default() } / f64::from(calls),
        ..Run::default()
    })
}

/// The second value of the last line; the first, the command, may hold anything but a quote.
fn calls_per_s(csv: &str) -> Option<f64> {
    let values = csv.trim_end().lines().next_back()?.strip_prefix('"')?.split_once("\",\"")?.1;
    values.split('"').next()?.parse().ok()
}

/// Rows a second of COPY, for the orders that are there, into a table with the same indexes and checks.
pub(crate) async fn copy(database: &DatabaseConnection) -> anyhow::Result<Run> {
    let file = data_directory(database).await?.join("bench.copy");
    let file = format!("'{}'", file.display());
    let rows = format!("COPY orders TO {file}");
    let rows = database.execute_unprepared(&rows).await?.rows_affected();
    let table = "DROP TABLE IF EXISTS copied; CREATE TABLE copied (LIKE orders INCLUDING ALL)";
    database.execute_unprepared(table).await?;
    let started = Instant::now();
    database.execute_unprepared(&format!("COPY copied FROM {file}")).await?;
    Ok(Run { per_s: rows as f64 / started.elapsed().as_secs_f64(), ..Run::default() })
}

/// How often a page is written and synced in a second, where PostgreSQL keeps its files.
pub(crate) async fn fsync(database: &DatabaseConnection) -> anyhow::Result<Run> {
    let path = data_directory(database).await?.join("bench.fsync");
    let mut file = File::create(&path).with_context(|| path.display().to_string())?;
    let (started, mut count) = (Instant::now(), 0_u32);
    while started.elapsed() < SYNC_FOR {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&PAGE)?;
        file.sync_data()?;
        count += 1;
    }
    let per_s = f64::from(count) / started.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(Run { per_s, ..Run::default() })
}

async fn data_directory(database: &DatabaseConnection) -> anyhow::Result<PathBuf> {
    let show = Statement::from_string(database.get_database_backend(), "SHOW data_directory");
    let row = database.query_one_raw(show).await?.context("no data directory")?;
    Ok(PathBuf::from(row.try_get_by_index::<String>(0)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_redis_benchmark_is_found_behind_a_command_with_commas() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"EVALSHA a,b 4\",\"12345.60\",\"0.1\"\n";
        assert!((calls_per_s(csv).expect("is found") - 12_345.6).abs() < 1e-6);
        assert!(calls_per_s("ERR wrong").is_none());
    }
}
