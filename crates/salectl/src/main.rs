//! `salectl`, the operator's command line. It parses, calls one operation, and prints: what an
//! operation does stands in the crate `operations`, where the admin API finds it too.
//!
//! Exit code: 0 done; 1 refused, an invariant is broken, or a store failed; 2 not understood (a
//! wrong argument, file or setting).

mod cli;
mod commands;
mod drills;
mod failure;
mod output;
mod receipts;
mod rehearsal_args;
mod remote;
mod shopfront;
mod token;
mod when;

use std::process::ExitCode;

use clap::Parser as _;
use flashsale_bootstrap::{DEFAULTS, Settings, telemetry};

use crate::cli::{Cli, Command, RemoteArgs};
use crate::commands::{
    audit, audit_log, completions, dead, doctor, drill, ledger, migrate, pay, rebuild, refunds,
    rehearse, report, sale, settle, token as mint, workers,
};
use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Access;

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
    // Before the settings are read: a shell asks at every start, whatever they are.
    if let Command::Completions(args) = command {
        return finish(completions::run(args, Output::new(cli.json)));
    }
    finish(run(command, &cli.remote, Output::new(cli.json)))
}

#[tokio::main(flavor = "current_thread")]
async fn run(command: Command, remote: &RemoteArgs, output: Output) -> Result<Verdict, Failure> {
    let mut settings = Settings::load()?;
    // The steps of a migration are news to a service's log, and noise to a person.
    settings.log.filter.push_str(",sea_orm_migration=warn");
    telemetry::init_logs(&settings.log)?;
    let access = Access::new(&settings, remote)?;
    carry_out(command, &access, output).await.map_err(|failure| failure.without_secrets(&settings))
}

async fn carry_out(
    command: Command,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    match command {
        Command::Migrate => migrate::run(access.settings("migrate")?, output).await,
        Command::Sale { command } => sale::run(command, access, output).await,
        Command::Token(args) => mint::run(&args, access.settings("token")?, output),
        Command::Ledger { sale } => ledger::run(sale, access, output).await,
        Command::Report { sale } => report::run(sale, access, output).await,
        Command::Audit { sale, receipts } => {
            audit::run(sale, receipts.as_deref(), access.settings("audit")?, output).await
        }
        Command::Settle(args) => settle::run(args, access.settings("settle")?, output).await,
        Command::Doctor => doctor::run(access.settings("doctor")?, output).await,
        Command::Dead { command } => dead::run(command, access, output).await,
        Command::Pay(args) => pay::run(&args, access.settings("pay")?, output).await,
        Command::Refunds { command } => {
            refunds::run(command, access.settings("refunds")?, output).await
        }
        Command::Rehearse(args) => rehearse::run(&args, access.settings("rehearse")?, output).await,
        Command::Drill(args) => drill::run(&args, access.settings("drill")?, output).await,
        Command::Workers => workers::run(access, output).await,
        Command::AuditLog(args) => audit_log::run(args, access, output).await,
        Command::Rebuild { sale } => rebuild::run(sale, access, output).await,
        Command::Completions(args) => completions::run(args, output),
    }
}

fn finish(done: Result<Verdict, Failure>) -> ExitCode {
    match done {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Broken) => ExitCode::FAILURE,
        Err(failure) => failure.report(),
    }
}
