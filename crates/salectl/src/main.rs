//! `salectl`, the operator's command line. It parses, calls one operation, and prints: what an
//! operation does stands in the crate `operations`, where the admin API finds it too.
//!
//! Exit code: 0 done; 1 refused, an invariant is broken, or a store failed; 2 not understood (a
//! wrong argument, file or setting).

mod cli;
mod commands;
mod failure;
mod output;
mod receipts;
mod token;
mod when;

use std::process::ExitCode;

use clap::Parser as _;
use flashsale_bootstrap::{DEFAULTS, Settings, telemetry};

use crate::cli::{Cli, Command};
use crate::commands::{
    audit, dead, doctor, ledger, migrate, pay, rebuild, refunds, report, sale, settle,
    token as mint,
};
use crate::failure::Failure;
use crate::output::Output;

/// What a command that ran to its end has to say by the exit code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is done.
    Good,
    /// It is done, and what it printed names something that is broken.
    Broken,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.print_defaults {
        return finish(Output::new(cli.json).text(DEFAULTS).map(|()| Verdict::Good));
    }
    let Some(command) = cli.command else {
        return finish(Err(Failure::usage("a command is missing")));
    };
    finish(run(command, Output::new(cli.json)))
}

#[tokio::main(flavor = "current_thread")]
async fn run(command: Command, output: Output) -> Result<Verdict, Failure> {
    let mut settings = Settings::load()?;
    // The steps of a migration are news to a service's log, and noise to a person.
    settings.log.filter.push_str(",sea_orm_migration=warn");
    telemetry::init_logs(&settings.log)?;
    let done = match command {
        Command::Migrate => migrate::run(&settings, output).await,
        Command::Sale { command } => sale::run(command, &settings, output).await,
        Command::Token(args) => mint::run(&args, &settings, output),
        Command::Ledger { sale } => ledger::run(sale, &settings, output).await,
        Command::Report { sale } => report::run(sale, &settings, output).await,
        Command::Audit { sale, receipts } => {
            audit::run(sale, receipts.as_deref(), &settings, output).await
        }
        Command::Settle(args) => settle::run(args, &settings, output).await,
        Command::Doctor => doctor::run(&settings, output).await,
        Command::Dead { command } => dead::run(command, &settings, output).await,
        Command::Pay(args) => pay::run(&args, &settings, output).await,
        Command::Refunds { command } => refunds::run(command, &settings, output).await,
        Command::Rebuild { sale } => rebuild::run(sale, &settings, output).await,
    };
    done.map_err(|failure| failure.without_secrets(&settings))
}

fn finish(done: Result<Verdict, Failure>) -> ExitCode {
    match done {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Broken) => ExitCode::FAILURE,
        Err(failure) => failure.report(),
    }
}
