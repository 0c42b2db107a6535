//! Whether this process can do its work, as a set of named checks.
//!
//! Rule: nobody probes on behalf of `/readyz`. Those who use a thing say how it went, and the report
//! reads the last word of each, so a probe costs nothing and cannot hang.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde::Serialize;

const NOT_CHECKED_YET: &str = "not checked yet";

/// The checks of one process; all clones share them.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    /// Check → why it fails, or `None` while it is fine.
    checks: Arc<RwLock<BTreeMap<&'static str, Option<String>>>>,
}

/// What `/readyz` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether every check is fine.
    pub ready: bool,
    /// Check → `ok`, or why it fails.
    pub checks: BTreeMap<&'static str, String>,
}

impl Readiness {
    /// Without checks, which is ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check that fails until its first [`Readiness::set_ok`].
    pub fn register(&self, name: &'static str) {
        self.set(name, Some(NOT_CHECKED_YET.to_owned()));
    }

    /// The check is fine. Says so in the log when it was not.
    pub fn set_ok(&self, name: &'static str) {
        if self.set(name, None).flatten().is_some() {
            tracing::info!(check = name, "{name} is ready");
        }
    }

    /// The check fails. Says so in the log when it was fine; who sees the failure logs its details.
    /// The reason is shown on the admin port, so it holds no secret.
    pub fn set_failed(&self, name: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        if self.set(name, Some(reason.clone())) == Some(None) {
            tracing::warn!(check = name, reason, "{name} is not ready");
        }
    }

    /// Whether every check is fine.
    pub fn is_ready(&self) -> bool {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        checks.values().all(Option::is_none)
    }

    /// All checks as they are now.
    pub fn report(&self) -> Report {
        let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
        Report {
            ready: checks.values().all(Option::is_none),
            checks: checks
                .iter()
                .map(|(name, failure)| (*name, failure.clone().unwrap_or_else(|| "ok".to_owned())))
                .collect(),
        }
    }

    /// Returns what the check said before.
    fn set(&self, name: &'static str, failure: Option<String>) -> Option<Option<String>> {
        self.checks.write().unwrap_or_else(PoisonError::into_inner).insert(name, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_when_every_check_is() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());

        readiness.register("redis");
        readiness.clone().register("database");
        readiness.set_ok("redis");
        assert!(!readiness.is_ready(), "database was not checked yet");

        readiness.set_ok("database");
        assert!(readiness.is_ready());

        readiness.set_failed("redis", "connection refused");
        let report = readiness.report();
        assert!(!report.ready);
        assert_eq!(report.checks["redis"], "connection refused");
        assert_eq!(report.checks["database"], "ok");
    }
}
