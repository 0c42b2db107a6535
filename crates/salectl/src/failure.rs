//! Why a command was not carried out: one clear line on standard error, and an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use flashsale_bootstrap::{Settings, SettingsError};
use flashsale_operations::OperationError;
use secrecy::ExposeSecret as _;

/// Refused, or a store failed.
const REFUSED: u8 = 1;
/// A wrong argument, file or setting.
const USAGE: u8 = 2;

/// What goes to standard error, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit_code: u8,
    line: String,
}

impl Failure {
    /// What was asked for is not understood. clap says most of it; this is for what it cannot check.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { exit_code: USAGE, line: format!("{}; see salectl --help", what.into()) }
    }

    /// A file that was named cannot be used.
    pub(crate) fn file(what: impl Into<String>) -> Self {
        Self { exit_code: USAGE, line: what.into() }
    }

    /// It was understood, and is not done.
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self { exit_code: REFUSED, line: why.into() }
    }

    /// Without the URLs of the stores, which may carry a password: drivers quote what they cannot
    /// parse.
    pub(crate) fn without_secrets(mut self, settings: &Settings) -> Self {
        self.line = without_urls(self.line, settings);
        self
    }

    /// Says so, and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let _reader_gone = writeln!(std::io::stderr(), "salectl: {}", self.line);
        ExitCode::from(self.exit_code)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self { exit_code: USAGE, line: error.to_string() }
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::refused(chain(&error))
    }
}

/// Text without the URLs of the stores.
pub(crate) fn without_urls(mut text: String, settings: &Settings) -> String {
    for (key, url) in [("database.url", &settings.database.url), ("redis.url", &settings.redis.url)]
    {
        text = text.replace(url.expose_secret(), key);
    }
    text
}

/// The error and its causes, without those that the one before has told already.
fn chain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow!("no such file").context("database: no such file").context("cannot");
        assert_eq!(chain(&error), "cannot: database: no such file");
    }
}
