//! Benchmarks of the release programs on private servers: each figure beside a limit that was measured
//! in the same run, because absolute times of a shared machine say little.
//!
//! `rush` sends the load over HTTP, also to the limit and to the designs that are compared. The kinds
//! take turns, round by round, and medians are compared. `docs/performance.md` says what each means.

mod cpu;
mod designs;
mod drills;
mod figures;
mod fill;
mod instructions;
mod kinds;
mod limits;
mod load;
mod marks;
mod memory;
mod peers;
mod programs;
mod report;
mod round;
mod sql_ceiling;
mod stack;
mod ways;
mod worker;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum as _};
use flashsale_test_support::{PostgresServer, RedisServer};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::figures::Figures;
use crate::kinds::Kind;
use crate::round::{Plan, Round};
use crate::stack::Stack;

/// How long a run goes on, where no number of rounds is given.
const LASTS: Duration = Duration::from_secs(8 * 60);
const ROUNDS_MIN: u32 = 3;

/// Measure the release programs against limits of the same run
///
/// A mark that is missed is said and does not fail the run. Exit code: 0 done; 1 an invariant does not
/// hold, or something could not be measured.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(flatten)]
    what: What,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct What {
    /// Requests of each measurement
    #[arg(long, default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(500..=1_000_000))]
    requests: u32,

    /// How often each kind takes its turn [default: as often as in eight minutes, and three times at least]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,

    /// Connections that press at the same time
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    concurrency: u32,

    /// Only these kinds, and what they need
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Kind>,

    /// One short round: shows that everything runs, and measures nothing
    #[arg(long)]
    quick: bool,

    /// Sample gateway and Redis with perf while buyers are accepted; `crates/bench/stages.sh` reads the file
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Take a row away before the audits, to see that the run fails
    #[arg(long, hide = true)]
    lose_a_row: bool,

    /// Where the report goes [default: bench/report.json in the target folder]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bytes of Redis for a buyer, and of a gateway for a connection
    Memory(memory::What),
    /// Instructions of each program for one order, beside what is expected; needs valgrind
    Instructions(instructions::What),
    /// Other stream workers beside ours
    Peers(peers::What),
    /// The ways into the database, by batch size
    Ways(ways::What),
    /// One of the bench's own servers
    #[command(hide = true)]
    Serve {
        server: designs::Server,
        /// Where it listens
        listen: SocketAddr,
        /// Its worker threads
        workers: usize,
    },
    /// The worker with one transaction for each order
    #[command(hide = true)]
    RowByRow,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Serve { server, listen, workers }) => {
            designs::serve(*server, *listen, *workers).map(|()| true)
        }
        Some(Command::RowByRow) => block_on(designs::row_by_row::work()).map(|()| true),
        Some(Command::Memory(what)) => block_on(memory::measure(what)),
        Some(Command::Instructions(what)) => block_on(instructions::measure(what)),
        Some(Command::Peers(what)) => block_on(peers::measure(what)),
        Some(Command::Ways(what)) => block_on(ways::measure(what)),
        None => block_on(measure(&cli.what)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Runtime::new().context("no async runtime")?.block_on(work)
}

impl What {
    fn plan(&self) -> Plan {
        let all = Kind::value_variants().iter().copied();
        let mut kinds: BTreeSet<Kind> = match self.only.as_slice() {
            [] => all.collect(),
            only => only.iter().copied().collect(),
        };
        if !limits::has_redis_benchmark() {
            for kind in [Kind::Script, Kind::ScriptPipelined] {
                if kinds.remove(&kind) {
                    eprintln!(
                        "{}: skipped, redis-benchmark (redis-tools) is not there",
                        kind.name()
                    );
                }
            }
        }
        let requests = if self.quick { 600 } else { self.requests };
        Plan {
            kinds,
            requests,
            concurrency: self.concurrency,
            profile: self.profile.clone(),
            lose_a_row: self.lose_a_row,
        }
    }
}

/// Whether every invariant held.
async fn measure(what: &What) -> anyhow::Result<bool> {
    let mut plan = what.plan();
    let wanted = if what.quick { Some(1) } else { what.rounds };
    let started = Instant::now();
    let fsync = !what.quick;
    let postgres =
        spawn_blocking(move || PostgresServer::builder().fsync(fsync).try_start()).await??;
    let mut figures = Figures::default();
    let mut findings = Vec::new();
    let mut rounds = 0;
    while wanted.map_or(rounds < ROUNDS_MIN || started.elapsed() < LASTS, |wanted| rounds < wanted)
    {
        rounds += 1;
        eprintln!("round {rounds}, after {:.0} s", started.elapsed().as_secs_f64());
        let mut stack = Stack::start(&postgres, RedisServer::builder().append_only(true)).await?;
        let round = Round {
            plan: &plan,
            stack: &mut stack,
            postgres: &postgres,
            figures: &mut figures,
            findings: &mut findings,
            queued: 0,
        };
        round.run().await?;
        if wanted != Some(rounds) {
            stack.end(&postgres).await?;
        }
        // A drill shows what it shows the first time.
        plan.kinds.remove(&Kind::Killed);
    }
    say(what, rounds, &plan, &figures, &findings)?;
    Ok(findings.is_empty())
}

fn say(
    what: &What,
    rounds: u32,
    plan: &Plan,
    figures: &Figures,
    findings: &[String],
) -> anyhow::Result<()> {
    let ratios = marks::ratios(figures);
    let path = what.report.clone().map_or_else(report::default_path, Ok)?;
    let raw = json!({
        "requests": plan.requests,
        "rounds": rounds,
        "concurrency": plan.concurrency,
        "cores": stack::server_workers(),
        "quick": what.quick,
        "invariants_hold": findings.is_empty(),
        "kinds": figures.all().collect::<Vec<_>>(),
    });
    report::write(&path, "bench", &ratios, &raw)?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} cores, {} connections, {rounds} rounds of {} requests; medians\n",
        stack::server_workers(),
        plan.concurrency,
        plan.requests
    )?;
    writeln!(out, "{}", report::kinds_table(figures))?;
    writeln!(out, "{}", report::more_table(figures))?;
    writeln!(out, "{}", report::ratios_table(&ratios))?;
    for found in findings {
        writeln!(out, "AN INVARIANT DOES NOT HOLD\n{found}\n")?;
    }
    Ok(writeln!(out, "written to {}", path.display())?)
}
