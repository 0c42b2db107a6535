//! Our programs that run for a moment, with the settings of this demo alone: the settings of the
//! person at the keyboard must not lead one of them to a real Redis.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use anyhow::{Context as _, ensure};
use flashsale_test_support::forget_settings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::stack::PRICE;

/// `FLASHSALE__…` variables.
pub(crate) type Settings = Vec<(&'static str, String)>;

/// Where our program `name` lies: beside this one.
pub(crate) fn path(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not there: `make build` builds it", path.display());
    Ok(path)
}

/// Our program `name` with these settings and no others; it ends when its future is dropped.
pub(crate) fn command(name: &str, settings: &Settings) -> anyhow::Result<Command> {
    let mut command = Command::new(path(name)?);
    forget_settings(command.as_std_mut());
    command
        .envs(settings.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Ok(command)
}

/// The operator's command line.
pub(crate) struct Salectl<'a> {
    pub(crate) settings: &'a Settings,
}

/// A sale's ledger, as far as the demo looks at it.
#[derive(Debug, Deserialize)]
pub(crate) struct Ledger {
    pub(crate) balanced: bool,
    pub(crate) total: u64,
    pub(crate) stock_left: i64,
    pub(crate) queued: i64,
    pub(crate) in_transit: u64,
    pub(crate) redis: Option<RedisAccount>,
    pub(crate) awaiting_payment: u64,
    pub(crate) paid: u64,
    pub(crate) cancelled: u64,
    pub(crate) expired: u64,
    pub(crate) rejected: u64,
    pub(crate) dead: u64,
    pub(crate) problems: Vec<String>,
}

/// What Redis says of a sale.
#[derive(Debug, Deserialize)]
pub(crate) struct RedisAccount {
    pub(crate) available: i64,
    pub(crate) held: u64,
}

/// The audit's word on one sale.
#[derive(Debug, Deserialize)]
pub(crate) struct Audit {
    pub(crate) receipts_checked: u64,
    pub(crate) findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Finding {
    pub(crate) invariant: String,
    pub(crate) what: String,
}

impl Salectl<'_> {
    pub(crate) async fn migrate(&self) -> anyhow::Result<()> {
        self.done(&["migrate"]).await.map(drop)
    }

    /// Creates and publishes a sale that is open for an hour; returns its id.
    pub(crate) async fn open_sale(
        &self,
        title: &str,
        stock: u64,
        payment_window: &str,
    ) -> anyhow::Result<String> {
        let (stock, price) = (stock.to_string(), PRICE.to_string());
        let create = ["sale", "create", "--title", title, "--stock", &stock, "--price", &price];
        let window = ["--opens", "now", "--closes", "+1h", "--payment-window", payment_window];
        let id = self.done(&[&create[..], &window].concat()).await?;
        self.done(&["sale", "publish", &id]).await?;
        Ok(id)
    }

    pub(crate) async fn token(&self, subject: &str, more: &[&str]) -> anyhow::Result<String> {
        self.done(&[&["token", "--sub", subject], more].concat()).await
    }

    pub(crate) async fn ledger(&self, sale: &str) -> anyhow::Result<Ledger> {
        self.judged(&["--json", "ledger", sale]).await
    }

    pub(crate) async fn audit(&self, sale: &str, receipts: &str) -> anyhow::Result<Audit> {
        #[derive(Deserialize)]
        struct Audits {
            audits: Vec<Audit>,
        }
        let audits: Audits =
            self.judged(&["--json", "audit", sale, "--receipts", receipts]).await?;
        audits.audits.into_iter().next().context("salectl audit printed no audit")
    }

    /// What it printed, when it did what it was asked for.
    async fn done(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.run(arguments).await?;
        ensure!(output.status.success(), "{}", complaint(arguments, &output));
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// What it found, good or bad: exit code 1 goes with a result when it judges a sale.
    async fn judged<T: DeserializeOwned>(&self, arguments: &[&str]) -> anyhow::Result<T> {
        let output = self.run(arguments).await?;
        serde_json::from_slice(&output.stdout).with_context(|| complaint(arguments, &output))
    }

    async fn run(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = command("salectl", self.settings)?;
        command.args(arguments).output().await.context("cannot run salectl")
    }
}

fn complaint(arguments: &[&str], output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    format!("salectl {} ended with {}: {}", arguments.join(" "), output.status, said.trim_end())
}
