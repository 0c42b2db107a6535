//! What is wrong with the settings, in words for the person who has to put it right.
//!
//! Rule: all problems come at once, and no message holds the value of a secret.

use std::fmt;

/// The settings cannot be used; holds every problem that was found.
#[derive(Debug, thiserror::Error)]
pub struct SettingsError {
    /// At least one problem, in the order of the sources and then of the keys.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong with one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, as `section.key`, or the whole source where no key is at fault.
    pub key: String,
    /// Where its value came from: a file, an environment variable; `None` for the defaults.
    pub source: Option<String>,
    /// What is wrong with the value.
    pub what: String,
    /// What would be right.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if let Some(source) = &self.source {
            write!(f, " (from {source})")?;
        }
        write!(f, ": {}; allowed: {}", self.what, self.allowed)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => write!(f, "wrong setting: {problem}"),
            problems => {
                write!(f, "{} wrong settings:", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl From<Problem> for SettingsError {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }
}
