//! What the demo can be asked for, by the variables of `make demo`.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{bail, ensure};

const PREFIX: &str = "DEMO_";
const KNOWN: [&str; 5] =
    ["DEMO_EXIT", "DEMO_DATABASE", "DEMO_KILL_WORKER", "DEMO_BUYERS", "DEMO_STOCK"];

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
            "it takes no arguments, but {} in the environment",
            KNOWN.join(", ")
        );
        Self::from_variables(env::vars_os())
    }

    fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> anyhow::Result<Self> {
        let variables = Variables::pick(variables)?;
        Ok(Self {
            exit: variables.flag("DEMO_EXIT")?,
            database: match variables.text("DEMO_DATABASE") {
                None | Some("sqlite") => DatabaseKind::Sqlite,
                Some("postgres") => DatabaseKind::Postgres,
                Some(other) => bail!("DEMO_DATABASE is {other:?}; allowed: sqlite, postgres"),
            },
            kill_worker: variables.flag("DEMO_KILL_WORKER")?,
            // A request each takes a while: more would be no demonstration.
            buyers: variables.number("DEMO_BUYERS", 20_000, 1..=10_000_000)?,
            stock: variables.number("DEMO_STOCK", 1_000, 1..=1_000_000)?,
        })
    }

    /// How many buyers must end up with a unit.
    pub(crate) fn expected_orders(&self) -> u64 {
        self.stock.min(self.buyers)
    }
}

/// The demo's own variables.
struct Variables(BTreeMap<String, String>);

impl Variables {
    /// An unknown one is a typing error, which would otherwise run another demo than was asked for.
    fn pick(all: impl IntoIterator<Item = (OsString, OsString)>) -> anyhow::Result<Self> {
        let mut ours = BTreeMap::new();
        for (name, value) in all {
            let name = name.to_string_lossy().into_owned();
            if !name.starts_with(PREFIX) {
                continue;
            }
            ensure!(KNOWN.contains(&&*name), "{name} is unknown; known: {}", KNOWN.join(", "));
            match value.into_string() {
                Ok(value) => ours.insert(name, value),
                Err(value) => bail!("{name} is {value:?}, which is no text"),
            };
        }
        Ok(Self(ours))
    }

    /// Empty is not set, because `make demo DEMO_EXIT=` means that.
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn flag(&self, name: &str) -> anyhow::Result<bool> {
        match self.text(name) {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => bail!("{name} is {other:?}; allowed: 1, 0"),
        }
    }

    fn number<T: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        default: T,
        allowed: std::ops::RangeInclusive<T>,
    ) -> anyhow::Result<T> {
        let Some(text) = self.text(name) else { return Ok(default) };
        match text.parse() {
            Ok(number) if allowed.contains(&number) => Ok(number),
            _ => bail!(
                "{name} is {text:?}; allowed: a whole number from {} to {}",
                allowed.start(),
                allowed.end()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> anyhow::Result<Options> {
        Options::from_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn what_is_not_said_is_the_default_demo() {
        let options = read(&[("PATH", "/bin"), ("DEMO_EXIT", ""), ("MY_DEMO_FOO", "1")]);
        let options = options.expect("valid");
        assert_eq!((options.exit, options.kill_worker), (false, false));
        assert_eq!((options.buyers, options.stock), (20_000, 1_000));
        assert_eq!(options.database, DatabaseKind::Sqlite);
    }

    #[test]
    fn every_variable_that_is_known_is_read() {
        let options =
            read(&KNOWN.map(|name| (name, if name == "DEMO_DATABASE" { "postgres" } else { "1" })))
                .expect("valid");
        assert!(options.exit && options.kill_worker);
        assert_eq!((options.buyers, options.stock), (1, 1));
        assert_eq!(options.database, DatabaseKind::Postgres);
    }

    #[test]
    fn a_wrong_variable_is_an_error_that_says_what_is_allowed() {
        for (name, value, allowed) in [
            ("DEMO_FOO", "1", "DEMO_BUYERS"),
            ("DEMO_FOO", "", "DEMO_STOCK"),
            ("DEMO_", "1", "DEMO_EXIT"),
            ("DEMO_EXIT", "yes", "1, 0"),
            ("DEMO_DATABASE", "mysql", "sqlite, postgres"),
            ("DEMO_STOCK", "0", "from 1 to 1000000"),
        ] {
            let error = read(&[(name, value)]).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(allowed), "{error}");
        }
    }
}
