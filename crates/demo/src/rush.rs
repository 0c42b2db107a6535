//! The crowd: `rush` presses the gateway while we watch, and kills a worker in the middle if asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::time::sleep;

use crate::options::Options;
use crate::programs::command;
use crate::report::{grouped, say};
use crate::stack::Stack;

/// Requests of each buyer: impatient people press again.
pub(crate) const REPEAT: u64 = 2;
const CONNECTIONS: u64 = 128;
const WATCH_EVERY: Duration = Duration::from_millis(5);

/// What `rush --json` reports, as far as the demo looks at it.
#[derive(Debug, Deserialize)]
pub(crate) struct Rushed {
    /// Nothing was answered wrongly, and every accepted order became real.
    pub(crate) ok: bool,
    pub(crate) requests: u64,
    pub(crate) requests_per_s: f64,
    /// Distinct buyers who hold an order.
    pub(crate) order_holders: u64,
    /// Distinct orders.
    pub(crate) orders: u64,
    pub(crate) last_accepted_s: Option<f64>,
    pub(crate) replayed: u64,
    pub(crate) already_ordered: u64,
    pub(crate) sold_out: u64,
    pub(crate) unavailable: u64,
    pub(crate) client_errors_by_status: BTreeMap<String, u64>,
    pub(crate) server_errors: u64,
    pub(crate) transport_errors: u64,
    pub(crate) retries: u64,
    pub(crate) contradictions: u64,
    pub(crate) contradiction_examples: Vec<String>,
    pub(crate) unconfirmed: Option<u64>,
    pub(crate) latency_us: Latency,
    pub(crate) accepted_latency_us: Latency,
}

/// Microseconds.
#[derive(Debug, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// Sends the crowd; its progress goes to our standard error. `receipts` is the file that gets every
/// accepted order.
pub(crate) async fn rush(
    stack: &Stack,
    sale: &str,
    options: &Options,
    receipts: &Path,
) -> anyhow::Result<Rushed> {
    let number = |flag: &str, value: u64| [flag.to_owned(), value.to_string()];
    let child = command("rush", &stack.settings)?
        .args(["--json", "--verify", "--url", &stack.gateway.url, "--sale", sale])
        .args(number("--buyers", options.buyers))
        .args(number("--repeat", REPEAT))
        .args(number("--concurrency", CONNECTIONS))
        .arg("--receipts")
        .arg(receipts)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run rush")?;
    let mut ended = std::pin::pin!(child.wait_with_output());
    let output = if options.kill_worker {
        tokio::select! {
            // A rush that is over has nothing left to be killed in.
            biased;
            output = &mut ended => {
                say("the rush was over before a worker could be killed")?;
                output?
            }
            killed = kill_a_worker(stack, sale, options) => {
                killed?;
                ended.await?
            }
        }
    } else {
        ended.await?
    };
    ensure!(!output.stdout.is_empty(), "rush reported nothing and ended with {}", output.status);
    serde_json::from_slice(&output.stdout).context("the report of rush cannot be read")
}

/// Kills the second worker when half of the units that will be sold are gone.
async fn kill_a_worker(stack: &Stack, sale: &str, options: &Options) -> anyhow::Result<()> {
    let killed_at = options.stock - options.expected_orders().div_ceil(2);
    let worker = &stack.workers[1];
    loop {
        // The gateway may be too busy to answer; it is asked again.
        if let Ok(left) = stack.stock_left(sale).await
            && left <= killed_at
        {
            let pid = worker.program.pid();
            worker.program.kill_9();
            return say(&format!(
                "{} (pid {pid}) was killed with -9 while {} of {} units were left",
                worker.name,
                grouped(left),
                grouped(options.stock),
            ));
        }
        sleep(WATCH_EVERY).await;
    }
}
