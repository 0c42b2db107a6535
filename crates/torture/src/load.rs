//! The buyers of a round: `rush`, bounded in count and time, with its receipts in a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use flashsale_domain::{OrderId, UserId};
use flashsale_operations::Receipt;
use flashsale_test_support::Program;
use serde::Deserialize;
use tokio::task::block_in_place;

use crate::deployment::{Deployment, SOON};
use crate::plan::Load;

/// Buyers who wait out a closed gate hold a connection each.
const CONNECTIONS: &str = "256";
/// How long buyers go on after the last fault; who has no answer then has none.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1_200);

/// Buyers at work.
pub(crate) struct Rush {
    program: Program,
    receipts: PathBuf,
    prefix: String,
    planned: Duration,
    started: Instant,
}

/// What buyers were told.
pub(crate) struct Told {
    pub(crate) prefix: String,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) figures: Figures,
}

/// What `rush --json` reports, as far as a drill looks at it.
#[derive(Debug, Deserialize)]
pub(crate) struct Figures {
    pub(crate) planned: u64,
    pub(crate) requests: u64,
    pub(crate) not_started: u64,
    pub(crate) ended: u64,
    pub(crate) unavailable: u64,
    pub(crate) transport_errors: u64,
    pub(crate) transport_error_example: Option<String>,
    pub(crate) client_errors: u64,
    pub(crate) server_errors: u64,
    pub(crate) server_errors_by_status: BTreeMap<String, u64>,
    pub(crate) retries: u64,
    pub(crate) contradictions: u64,
    pub(crate) contradiction_examples: Vec<String>,
}

impl Rush {
    pub(crate) fn start(deployment: &Deployment, sale: i64, load: &Load) -> anyhow::Result<Self> {
        let receipts = deployment.path(&format!("receipts-{sale}.csv"));
        let prefix = format!("drill-{sale}-");
        let (sale, url) = (sale.to_string(), deployment.gateway.url());
        let file = receipts.to_str().context("a path that is not UTF-8")?;
        let numbers = [load.buyers, load.repeat, load.rate, load.seed].map(|n| n.to_string());
        let program = deployment.run(
            "rush",
            &[
                ["--url", &url, "--sale", &sale, "--receipts", file, "--buyer-prefix", &prefix],
                [
                    "--buyers",
                    &numbers[0],
                    "--repeat",
                    &numbers[1],
                    "--rate",
                    &numbers[2],
                    "--seed",
                    &numbers[3],
                ],
                [
                    "--concurrency",
                    CONNECTIONS,
                    "--retries",
                    "2",
                    "--timeout",
                    "8s",
                    "--json",
                    "--quiet",
                ],
            ]
            .concat(),
        )?;
        let presses = u64::from(load.buyers) * u64::from(load.repeat);
        let planned = Duration::from_millis(presses * 1_000 / u64::from(load.rate.max(1)));
        Ok(Self { program, receipts, prefix, planned, started: Instant::now() })
    }

    /// Since the first buyer.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn log(&self) -> String {
        self.program.log()
    }

    /// Lets the buyers finish, sends home who still waits after a while, and reads what they were
    /// told.
    pub(crate) fn end(&self, patience: Duration) -> anyhow::Result<Told> {
        let patience = self.planned.saturating_sub(self.elapsed()) + patience;
        block_in_place(|| {
            if self.program.wait_exit(patience).is_none() {
                self.program.interrupt();
                self.program.wait_exit(SOON).context("rush does not end")?;
            }
            self.read()
        })
    }

    fn read(&self) -> anyhow::Result<Told> {
        let log = self.program.log();
        let report = log.lines().rfind(|line| line.starts_with('{'));
        let report = report.with_context(|| format!("rush gave no report: {log}"))?;
        let figures: Figures = serde_json::from_str(report).context("the report of rush")?;
        let text = std::fs::read_to_string(&self.receipts).context("the receipts of rush")?;
        let mut lines = text.lines();
        ensure!(lines.next() == Some("order_id,buyer"), "these are no receipts: {text}");
        let receipts = lines.map(receipt).collect::<anyhow::Result<_>>()?;
        Ok(Told { prefix: self.prefix.clone(), receipts, figures })
    }
}

fn receipt(line: &str) -> anyhow::Result<Receipt> {
    let (id, buyer) = line.split_once(',').context("a receipt without a comma")?;
    let order_id: OrderId = id.parse().context("a receipt's order id")?;
    Ok(Receipt { order_id, user_id: UserId::new(buyer).context("a receipt's buyer")? })
}
