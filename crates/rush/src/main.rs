//! `rush` plays the crowd: many distinct buyers press at once, and every answer is counted.
//!
//! It judges the service only by what the service said: all that it concludes comes from answers
//! over HTTP, so it may run on another machine. The order of the work is the order below; nothing
//! is counted, minted or shuffled while the clock runs.

mod cli;
mod client;
mod cpu;
mod drive;
mod outcome;
mod plan;
mod progress;
mod report;
mod retry;
mod settings;
mod tally;
mod tokens;
mod verify;

#[cfg(test)]
mod tiny_server;

use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;

use crate::cli::{Args, Run};
use crate::client::Client;
use crate::drive::Rush;
use crate::progress::Progress;
use crate::report::Report;
use crate::tally::Tally;
use crate::verify::Verify;

/// The rush could not start: a wrong argument, a missing setting, or nobody listening.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.print_defaults {
        return exit(report::print(settings::DEFAULTS).map(|()| true), 1);
    }
    rush(&args)
}

#[tokio::main]
async fn rush(args: &Args) -> ExitCode {
    match prepare(args).await {
        Ok(ready) => exit(carry_out(args, ready).await, 1),
        Err(problem) => exit(Err(problem), USAGE),
    }
}

fn exit(done: anyhow::Result<bool>, failure: u8) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("rush: {problem:#}");
            ExitCode::from(failure)
        }
    }
}

/// All that a rush needs before its clock starts.
struct Ready {
    run: Run,
    rush: Arc<Rush>,
    clients: Vec<Client>,
    receipts: Option<File>,
}

async fn prepare(args: &Args) -> anyhow::Result<Ready> {
    let run = args.run()?;
    let secret = settings::jwt_secret()?;
    let receipts = args.receipts.as_deref().map(report::create_receipts).transpose()?;
    let buyers = tokens::mint(&run.buyer_prefix, run.buyers, run.keyed, &secret)?;
    let plan = plan::presses(run.buyers, run.repeat, run.seed);
    let clients = drive::connect(&run.targets, run.concurrency, run.timeout).await?;
    let rush = Arc::new(Rush::new(plan, buyers, run.rate, run.retries));
    Ok(Ready { run, rush, clients, receipts })
}

/// Whether all was well, after the report has said what was.
async fn carry_out(args: &Args, ready: Ready) -> anyhow::Result<bool> {
    let Ready { run, rush, clients, receipts } = ready;
    rush.stop_on_interrupt();
    let shown = Progress::show("rushing", rush.counters(), args.quiet);
    let (started_unix_ms, used_before_us) = (cpu::now_unix_ms(), cpu::used_us());
    let logs = drive::drive(&rush, clients).await?;
    let used_us = cpu::used_us().zip(used_before_us).map(|(after, before)| after - before);
    shown.finish().await;
    let mut tally = Tally::count(logs, &run);
    tally.figures.started_unix_ms = started_unix_ms;
    tally.figures.cpu_us = used_us;

    if let Some(file) = receipts {
        report::write_receipts(file, &tally.receipts, &run.buyer_prefix)
            .context("cannot write the receipts")?;
    }
    let mut verified = None;
    if args.verify {
        let orders = Arc::new(Verify::new(&rush, tally.receipts.clone(), run.verify_timeout));
        let shown = Progress::show("verifying", orders.counters(), args.quiet);
        verified = Some(verify::verify(&orders, &run).await?);
        shown.finish().await;
    }

    let report = Report::new(&run, &tally, verified.as_ref());
    report::print(&if args.json { report.json()? } else { report.table() })?;
    Ok(report.ok)
}
