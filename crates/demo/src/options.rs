//! What the demo can be asked for, by the variables of `make demo`.

use std::env;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};

/// How this demo goes.
#[derive(Debug)]
pub(crate) struct Options {
    /// End by itself with the result as exit code, in place of waiting for Ctrl-C.
    pub(crate) exit: bool,
    pub(crate) database: DatabaseKind,
    /// Kill one of the two order-workers in the middle.
    pub(crate) kill_worker: bool,
    pub(crate) buyers: u64,
    pub(crate) stock: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    Sqlite,
    Postgres,
}

impl Options {
    pub(crate) fn from_environment() -> anyhow::Result<Self> {
        ensure!(
            env::args_os().len() == 1,
            "it takes no arguments, but DEMO_EXIT, DEMO_DATABASE, DEMO_KILL_WORKER, DEMO_BUYERS \
             and DEMO_STOCK in the environment"
        );
        Ok(Self {
            exit: flag("DEMO_EXIT")?,
            database: match text("DEMO_DATABASE")?.as_deref() {
                None | Some("sqlite") => DatabaseKind::Sqlite,
                Some("postgres") => DatabaseKind::Postgres,
                Some(other) => bail!("DEMO_DATABASE is {other:?}; allowed: sqlite, postgres"),
            },
            kill_worker: flag("DEMO_KILL_WORKER")?,
            // A request each takes a while: more would be no demonstration.
            buyers: number("DEMO_BUYERS", 20_000, 1..=10_000_000)?,
            stock: number("DEMO_STOCK", 1_000, 1..=1_000_000)?,
        })
    }

    /// How many buyers must end up with a unit.
    pub(crate) fn expected_orders(&self) -> u64 {
        self.stock.min(self.buyers)
    }
}

/// Empty is not set, because `make demo DEMO_EXIT=` means that.
fn text(name: &str) -> anyhow::Result<Option<String>> {
    match env::var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(error).context(name.to_owned()),
    }
}

fn flag(name: &str) -> anyhow::Result<bool> {
    match text(name)?.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => bail!("{name} is {other:?}; allowed: 1, 0"),
    }
}

fn number<T: FromStr + PartialOrd + Display>(
    name: &str,
    default: T,
    allowed: std::ops::RangeInclusive<T>,
) -> anyhow::Result<T> {
    let Some(text) = text(name)? else { return Ok(default) };
    match text.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => bail!(
            "{name} is {text:?}; allowed: a whole number from {} to {}",
            allowed.start(),
            allowed.end()
        ),
    }
}
