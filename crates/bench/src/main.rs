//! Benchmarks of the release programs on private servers: each figure beside a limit that was measured
//! in the same run, because absolute times of a shared machine say little.
//!
//! `rush` sends the load over HTTP, also to the limit: a server of the same kind that only answers. The
//! kinds take turns, round by round, and medians are compared.

mod echo;
mod figures;
mod programs;
mod report;
mod sql_ceiling;
mod stack;
mod worker;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::figures::Figures;
use crate::report::Report;
use crate::stack::Stack;

/// Measure the release programs against limits of the same run
#[derive(Debug, Parser)]
struct Cli {
    /// Requests of each measurement
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    requests: u32,

    /// How often each kind takes its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,

    /// Connections that press at the same time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    concurrency: u32,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The limit: a server that only answers
    #[command(hide = true)]
    Echo {
        /// Where it listens
        listen: std::net::SocketAddr,
        /// Its worker threads
        workers: usize,
    },
    /// The worker's limit alone: its transactions, fed from memory
    #[command(hide = true)]
    SqlCeiling {
        /// Rows in all
        rows: u32,
        /// Rows of one transaction
        batch: usize,
        /// Transactions at once
        in_flight: usize,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Echo { listen, workers }) => echo::serve(listen, workers),
        Some(Command::SqlCeiling { rows, batch, in_flight }) => {
            sql_ceiling::alone(rows, batch, in_flight)
        }
        None => measure(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is measured over HTTP, in the order of their turns.
const KINDS: [&str; 5] = ["echo", "accept", "sold-out", "replay", "already-ordered"];

fn measure(cli: &Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("no async runtime")?;
    runtime.block_on(async {
        let stack = Stack::start(cli.concurrency).await?;
        let mut figures: Vec<Figures> = KINDS.map(Figures::new).into();
        for round in 0..cli.rounds {
            // Nobody takes the orders from the stream meanwhile: the worker has its own turn.
            let sale = stack.open_sale(i64::from(cli.requests)).await?;
            let buyers = format!("r{round}-");
            let runs = [
                stack.press_echo(cli.requests, &buyers).await?,
                stack.press(&sale, cli.requests, &buyers, true).await?,
                stack.press(&sale, cli.requests, &format!("late{round}-"), true).await?,
                stack.press(&sale, cli.requests, &buyers, true).await?,
                stack.press(&sale, cli.requests, &buyers, false).await?,
            ];
            for (figures, run) in figures.iter_mut().zip(runs) {
                eprintln!("round {}: {:<16} {:>9.0}/s", round + 1, figures.kind, run.per_s);
                figures.runs.push(run);
            }
        }
        let durable = worker::measure(&stack, cli.requests * cli.rounds).await?;
        let report = Report::new(cli.requests, cli.concurrency, &figures, durable);
        writeln!(io::stdout(), "{}", report.table())?;
        report.write()
    })
}
