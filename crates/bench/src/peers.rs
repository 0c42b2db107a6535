//! `make bench-peers`: other stream workers beside ours, on the same Redis and the same PostgreSQL. Each
//! takes a job, inserts the order with the one-per-buyer rule, and acknowledges.
//!
//! The peers write the same row, and have it easier: ours also takes the unit from the sale's stock, and
//! looks for what was written before.
//! Each is tried with several settings first, and compared with the best of them.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use flashsale_test_support::{PostgresServer, Program, RedisServer};
use sea_orm::ConnectionTrait as _;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::cpu::Cpu;
use crate::figures::median;
use crate::fill::{self, fill};
use crate::stack::{Sale, Stack, number};
use crate::{programs, report, worker};

/// The columns, checks and indexes of our own rows, the one-per-buyer rule among them.
const TABLE: &str = "CREATE TABLE peer_orders (LIKE orders INCLUDING ALL)";
const ROWS: &str = "SELECT count(*) FROM peer_orders";
const LOOK_EVERY: Duration = Duration::from_millis(50);
const WRITTEN_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug, Args)]
pub(crate) struct What {
    /// Where `peers/install.sh` has put the peers
    #[arg(long, value_name = "FOLDER")]
    installed: PathBuf,

    /// Jobs of each run of a peer; ours gets five times as many, to run about as long
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    jobs: u32,

    /// How often each takes its turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,

    /// Where the report goes [default: bench/report.json in the target folder]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// A peer in one way of running it.
struct Peer {
    name: &'static str,
    program: PathBuf,
    script: PathBuf,
    mode: &'static [&'static str],
    /// What its last argument is, and the values to try.
    setting: &'static str,
    values: [u32; 3],
}

fn peers(installed: &Path) -> anyhow::Result<[Peer; 3]> {
    let node = installed.join("bullmq");
    let python = installed.join("python");
    let [script, program] = ["peer.py", "bin/python"].map(|name| python.join(name));
    let (one, batch) = ((script.clone(), program.clone()), (script, program));
    Ok([
        Peer {
            name: "BullMQ",
            program: programs::on_path("node")?,
            script: node.join("peer.mjs"),
            mode: &[],
            setting: "concurrency",
            values: [20, 50, 200],
        },
        Peer {
            name: "FastStream, one message at a time",
            script: one.0,
            program: one.1,
            mode: &["one"],
            setting: "max_workers",
            values: [10, 20, 50],
        },
        Peer {
            name: "FastStream, batches",
            script: batch.0,
            program: batch.1,
            mode: &["batch"],
            setting: "max_records",
            values: [100, 500, 2_000],
        },
    ])
}

/// Rows a second, and CPU for a row.
#[derive(Debug, Clone, Copy)]
struct Rate {
    per_s: f64,
    cpu: Cpu,
}

/// Measures, says it, and writes it into the report.
pub(crate) async fn measure(what: &What) -> anyhow::Result<bool> {
    let installed = std::path::absolute(&what.installed)?;
    let peers = peers(&installed)?;
    let postgres = spawn_blocking(|| PostgresServer::builder().fsync(true).try_start()).await??;
    let mut tried = Vec::new();
    let mut best = Vec::new();
    let stack = start(&postgres).await?;
    for peer in &peers {
        let mut fastest: Option<(f64, u32)> = None;
        for value in peer.values {
            let rate = run(&stack, peer, value, what.jobs / 2).await?;
            eprintln!("  {}, {} {value}: {:.0}/s", peer.name, peer.setting, rate.per_s);
            tried.push(json!({ "peer": peer.name, peer.setting: value, "per_s": rate.per_s }));
            fastest =
                fastest.filter(|(per_s, _)| *per_s >= rate.per_s).or(Some((rate.per_s, value)));
        }
        best.push(fastest.context("nothing was tried")?.1);
    }
    stack.end(&postgres).await?;

    let mut rates: Vec<Vec<Rate>> = vec![Vec::new(); peers.len() + 1];
    let mut findings = Vec::new();
    for round in 1..=what.rounds {
        eprintln!("round {round} of {}", what.rounds);
        let stack = start(&postgres).await?;
        let sale = stack.open(Sale::of(what.jobs * 5)).await?;
        fill(&fill::redis(&stack.settings)?, sale.parse()?, what.jobs * 5).await?;
        let ours = worker::drain(&stack, i64::from(what.jobs) * 5).await?;
        rates[0].push(Rate { per_s: ours.per_s, cpu: ours.cpu });
        findings.extend(stack.audit().await?);
        for (number, (peer, value)) in peers.iter().zip(&best).enumerate() {
            rates[number + 1].push(run(&stack, peer, *value, what.jobs).await?);
        }
        stack.end(&postgres).await?;
    }
    say(what, &peers, &best, &rates, &tried, &findings)?;
    Ok(findings.is_empty())
}

async fn start(postgres: &PostgresServer) -> anyhow::Result<Stack> {
    let stack = Stack::start(postgres, RedisServer::builder().append_only(true)).await?;
    stack.database.execute_unprepared(TABLE).await?;
    Ok(stack)
}

/// Fills the peer's queue, starts one process of it, and waits until every job is a row.
async fn run(stack: &Stack, peer: &Peer, value: u32, jobs: u32) -> anyhow::Result<Rate> {
    let client = redis::Client::open(stack.redis.url())?;
    let mut redis = client.get_multiplexed_async_connection().await?;
    redis::cmd("DEL").arg("peer-orders").exec_async(&mut redis).await?;
    stack.database.execute_unprepared("TRUNCATE peer_orders").await?;
    let start = |arguments: &[&str]| {
        Program::builder(&peer.program)
            .env("REDIS_URL", stack.redis.url())
            .env("DATABASE_URL", &stack.database_url)
            .arg(peer.script.display().to_string())
            .args(arguments)
            .try_start()
    };
    let filling = start(&["fill", &jobs.to_string()])?;
    let filled = filling.wait_exit(WRITTEN_WITHIN).context("the queue is not filled")?;
    ensure!(filled.success(), "{} cannot fill its queue:\n{}", peer.name, filling.log());

    let value = value.to_string();
    let working = start(&[&["work"], peer.mode, &[value.as_str()]].concat())?;
    let pids = stack.pids(None, Some(&working));
    let started = Instant::now();
    let mut first = None;
    loop {
        let rows = number(&stack.database, ROWS).await?;
        let now = Instant::now();
        if rows > 0 && first.is_none() {
            first = Some((rows, now, pids.used()?));
        }
        if rows >= i64::from(jobs) {
            let (first, since, used) = first.context("nothing was written")?;
            let rows = (rows - first) as f64;
            ensure!(rows > 0.0, "all was written before the first look: too few jobs");
            return Ok(Rate {
                per_s: rows / (now - since).as_secs_f64(),
                cpu: (pids.used()? - used) / rows,
            });
        }
        ensure!(
            started.elapsed() < WRITTEN_WITHIN && working.exit_status().is_none(),
            "{} has written {rows} of {jobs} rows\n{}",
            peer.name,
            working.log()
        );
        sleep(LOOK_EVERY).await;
    }
}

fn say(
    what: &What,
    peers: &[Peer],
    best: &[u32],
    rates: &[Vec<Rate>],
    tried: &[serde_json::Value],
    findings: &[String],
) -> anyhow::Result<()> {
    let of = |rates: &[Rate], value: fn(&Rate) -> f64| median(rates.iter().map(value).collect());
    let per_s: Vec<f64> = rates.iter().map(|rates| of(rates, |rate| rate.per_s)).collect();
    let [ours, bullmq, one, batch] = per_s[..] else { anyhow::bail!("not one rate for each") };
    let ratios = BTreeMap::from([
        ("worker_vs_bullmq", ours / bullmq),
        // The faster of its two ways.
        ("worker_vs_python", ours / one.max(batch)),
    ]);
    let mut names = vec![("ours".to_owned(), String::new())];
    names.extend(
        peers
            .iter()
            .zip(best)
            .map(|(it, value)| (it.name.into(), format!("{} {value}", it.setting))),
    );

    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| worker | setting | rows a second | ours ÷ it | worker µs | Redis µs | PostgreSQL µs |"
    )?;
    writeln!(out, "|---|---|---:|---:|---:|---:|---:|")?;
    let mut raw = Vec::new();
    for ((name, setting), rates) in names.iter().zip(rates) {
        let rate = of(rates, |rate| rate.per_s);
        let worker = of(rates, |rate| rate.cpu.worker);
        let redis = of(rates, |rate| rate.cpu.redis);
        let postgres = of(rates, |rate| rate.cpu.postgres);
        writeln!(
            out,
            "| {name} | {setting} | {rate:.0} | {:.1} | {worker:.1} | {redis:.1} | {postgres:.1} |",
            ours / rate
        )?;
        raw.push(json!({
            "worker": name, "setting": setting, "per_s": rate, "runs": rates.len(),
            "cpu_us": { "worker": worker, "redis": redis, "postgres": postgres },
        }));
    }
    let path = what.report.clone().map_or_else(report::default_path, Ok)?;
    let raw = json!({ "jobs": what.jobs, "workers": raw, "tried": tried });
    report::write(&path, "peers", &ratios, &raw)?;
    writeln!(out, "\n{}", report::ratios_table(&ratios))?;
    for found in findings {
        writeln!(out, "AN INVARIANT DOES NOT HOLD\n{found}\n")?;
    }
    Ok(writeln!(out, "written to {}", path.display())?)
}
