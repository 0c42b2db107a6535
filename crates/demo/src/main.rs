//! `demo`, what `make demo` runs: a whole sale on private servers, from an empty database to the
//! audit; then everything stays up until Ctrl-C.
//!
//! It drives the real programs from outside, as an operator and a crowd would: `salectl`, `rush`,
//! and HTTP. It touches nothing that it did not start, and whatever it started ends with it.
//!
//! Exit code: 0 the sale came out exactly right; 1 it did not, or something failed; 2 wrong usage;
//! 130 stopped by Ctrl-C before the result.

mod aftermath;
mod ledger_watch;
mod options;
mod programs;
mod report;
mod rush;
mod stack;
mod story;

use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::options::Options;
use crate::report::{complain, say};

const USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::from_environment() {
        Ok(options) => options,
        Err(problem) => {
            complain(&problem);
            return ExitCode::from(USAGE);
        }
    };
    match demo(&options).await {
        Ok(code) => code,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

async fn demo(options: &Options) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::listen()?;
    let told = tokio::select! {
        told = story::tell(options) => told?,
        () = stop.requested() => {
            say("\nstopped before the end")?;
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    if !options.exit {
        story::tell_how_to_go_on(&told).await?;
        stop.requested().await;
        say("\nstopping")?;
    } else if !told.is_good() {
        told.stack.show_logs();
    }
    let code = if told.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    told.stack.stop().await;
    Ok(code)
}

/// Ctrl-C, or an orchestrator's request to end.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
