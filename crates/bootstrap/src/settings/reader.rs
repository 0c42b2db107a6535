//! Reads one value into its type, checks what it may be, and notes a problem if it is not.
//!
//! Rule: reading never stops at a problem. A value with a problem gets a stand-in that nobody sees,
//! because one problem fails the whole load.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use config::{Value, ValueKind};
use secrecy::{ExposeSecret, SecretString};

use super::layers::Flat;
use super::{Problem, SettingsError};

/// Hands out the merged values, each key once.
pub(super) struct Reader {
    values: Flat,
    sources: std::collections::BTreeMap<&'static str, String>,
    problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn new(values: Flat, problems: Vec<Problem>) -> Self {
        Self { values, sources: Default::default(), problems }
    }

    /// An integer of any width.
    pub(super) fn integer<T>(&mut self, key: &'static str, allowed: RangeInclusive<T>) -> T
    where
        T: TryFrom<i128> + PartialOrd + Display + Copy,
    {
        let (min, max) = allowed.into_inner();
        let words = format!("a whole number from {min} to {max}");
        let number = match self.take(key).kind {
            ValueKind::I64(number) => i128::from(number),
            ValueKind::String(text) => match text.parse() {
                Ok(number) => number,
                Err(_) => {
                    return self.reject(
                        key,
                        format!("{text:?} is not a whole number"),
                        &words,
                        min,
                    );
                }
            },
            other => return self.reject(key, format!("it is {}", kind(&other)), &words, min),
        };
        match T::try_from(number) {
            Ok(value) if min <= value && value <= max => value,
            _ => self.reject(key, format!("{number} is out of range"), &words, min),
        }
    }

    /// A share, from 0 to 1.
    pub(super) fn fraction(&mut self, key: &'static str) -> f64 {
        let words = "a number from 0 to 1, such as 0.01";
        let number = match self.take(key).kind {
            ValueKind::Float(number) => number,
            // Whole numbers are numbers too: all, or none.
            ValueKind::I64(0) => 0.0,
            ValueKind::I64(1) => 1.0,
            ValueKind::I64(number) => {
                return self.reject(key, format!("{number} is out of range"), words, 0.0);
            }
            ValueKind::String(text) => match text.parse() {
                Ok(number) => number,
                Err(_) => {
                    return self.reject(key, format!("{text:?} is not a number"), words, 0.0);
                }
            },
            other => return self.reject(key, format!("it is {}", kind(&other)), words, 0.0),
        };
        // What is not a number is in no range.
        if (0.0..=1.0).contains(&number) {
            number
        } else {
            self.reject(key, format!("{number} is out of range"), words, 0.0)
        }
    }

    /// A duration with its unit.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        allowed: RangeInclusive<Duration>,
    ) -> Duration {
        let (min, max) = (*allowed.start(), *allowed.end());
        let words = format!(
            "a duration such as 300ms or 5s, from {} to {}",
            humantime::format_duration(min),
            humantime::format_duration(max)
        );
        self.parsed(key, &words, min, |text| match humantime::parse_duration(text) {
            Ok(value) if allowed.contains(&value) => Ok(value),
            Ok(_) => Err(format!("{text:?} is out of range")),
            Err(error) => Err(format!("{text:?} is not a duration: {error}")),
        })
    }

    /// An address to listen on.
    pub(super) fn address(&mut self, key: &'static str) -> SocketAddr {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let words = "an IP address with a port, such as 127.0.0.1:8080 or [::1]:8080";
        self.parsed(key, words, nowhere, |text| {
            text.parse().map_err(|_| format!("{text:?} is not an address"))
        })
    }

    /// Text that `parse` turns into a value, or into what is wrong with it.
    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        stand_in: T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        match self.take(key).kind {
            ValueKind::String(text) => match parse(&text) {
                Ok(value) => value,
                Err(what) => self.reject(key, what, allowed, stand_in),
            },
            other => self.reject(key, format!("it is {}", kind(&other)), allowed, stand_in),
        }
    }

    /// True or false; in the environment as a text.
    pub(super) fn boolean(&mut self, key: &'static str) -> bool {
        let what = match self.take(key).kind {
            ValueKind::Boolean(value) => return value,
            ValueKind::String(text) => match text.as_str() {
                "true" => return true,
                "false" => return false,
                _ => format!("{text:?} is neither"),
            },
            other => format!("it is {}", kind(&other)),
        };
        self.reject(key, what, "true or false", false)
    }

    /// A list of words, or one text with spaces or commas between them.
    pub(super) fn words<T>(
        &mut self,
        key: &'static str,
        allowed: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let words: Vec<String> = match self.take(key).kind {
            ValueKind::String(text) => {
                text.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
            }
            ValueKind::Array(values) => {
                let text = |value: Value| match value.kind {
                    ValueKind::String(text) => Ok(text),
                    other => Err(format!("one of them is {}", kind(&other))),
                };
                match values.into_iter().map(text).collect() {
                    Ok(words) => words,
                    Err(what) => return self.reject(key, what, allowed, Vec::new()),
                }
            }
            other => {
                let what = format!("it is {}", kind(&other));
                return self.reject(key, what, allowed, Vec::new());
            }
        };
        match words.iter().map(|word| parse(word)).collect() {
            Ok(values) => values,
            Err(what) => self.reject(key, what, allowed, Vec::new()),
        }
    }

    /// Text that must not be shown; what `check` says of it must not quote it.
    pub(super) fn secret(
        &mut self,
        key: &'static str,
        allowed: &str,
        check: impl FnOnce(&str) -> Result<(), String>,
    ) -> SecretString {
        self.parsed(key, allowed, SecretString::default(), |text| {
            check(text).map(|()| SecretString::from(text))
        })
    }

    /// A secret that may be left out; empty is left out.
    pub(super) fn optional_secret(&mut self, key: &'static str) -> Option<SecretString> {
        let secret = self.secret(key, "text", |_| Ok(()));
        (!secret.expose_secret().is_empty()).then_some(secret)
    }

    /// A rule over several keys, checked where none of them has a problem of its own. The first key
    /// is the one that the message names.
    pub(super) fn require(
        &mut self,
        keys: &[&'static str],
        holds: bool,
        what: &str,
        allowed: &str,
    ) {
        let known_bad = |key: &&str| self.problems.iter().any(|problem| problem.key == *key);
        if !holds && !keys.iter().any(known_bad) {
            self.reject(keys[0], what.to_owned(), allowed, ());
        }
    }

    /// `settings`, unless there were problems.
    pub(super) fn finish<T>(self, settings: T) -> Result<T, SettingsError> {
        debug_assert!(self.values.is_empty(), "defaults nobody reads: {:?}", self.values.keys());
        if self.problems.is_empty() {
            Ok(settings)
        } else {
            Err(SettingsError { problems: self.problems })
        }
    }

    fn take(&mut self, key: &'static str) -> Value {
        let value = self.values.remove(key).expect("defaults.toml has every key that is read");
        if let Some(origin) = value.origin() {
            self.sources.insert(key, origin.to_owned());
        }
        value
    }

    fn reject<T>(&mut self, key: &'static str, what: String, allowed: &str, stand_in: T) -> T {
        let source = self.sources.get(key).cloned();
        let (key, allowed) = (key.to_owned(), allowed.to_owned());
        self.problems.push(Problem { key, source, what, allowed });
        stand_in
    }
}

/// The TOML name of what stands where something else belongs.
fn kind(value: &ValueKind) -> &'static str {
    match value {
        ValueKind::Nil => "nothing",
        ValueKind::Boolean(_) => "a boolean",
        ValueKind::I64(_) | ValueKind::I128(_) | ValueKind::U64(_) | ValueKind::U128(_) => {
            "a number without quotes"
        }
        ValueKind::Float(_) => "a number with a fraction",
        ValueKind::String(_) => "text",
        ValueKind::Table(_) => "a table",
        ValueKind::Array(_) => "an array",
    }
}
