//! Lays the sources over one another: defaults, then the file, then the environment.
//!
//! Rule: a key that the defaults do not have is a problem in whichever source it stands, and a value
//! is never guessed at: what the environment says stays text until a setting's type reads it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use config::{Config, ConfigError, File, FileFormat, Value, ValueKind};

use super::{CONFIG_VARIABLE, DEFAULTS, Problem, SettingsError};

const PREFIX: &str = "FLASHSALE__";
const FILE_SUFFIX: &str = "__FILE";

/// The values by `section.key`, each with its origin.
pub(super) type Flat = BTreeMap<String, Value>;

/// The file that `FLASHSALE_CONFIG` names, with its text; empty is not set.
pub(super) fn read_named_file(
    variable: Option<OsString>,
) -> Result<Option<(PathBuf, String)>, SettingsError> {
    let Some(path) = variable.filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let path = PathBuf::from(path);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) => Err(Problem {
            key: CONFIG_VARIABLE.to_owned(),
            source: Some("the environment".to_owned()),
            what: format!("{} cannot be read: {error}", path.display()),
            allowed: "a readable TOML file, or not set".to_owned(),
        }
        .into()),
    }
}

/// Our part of the process's environment.
pub(super) fn read_environment() -> Result<Vec<(String, String)>, SettingsError> {
    // Not `std::env::vars`, which panics on any other program's variable that is not UTF-8.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with(PREFIX))
        .map(|(name, value)| Ok((name.clone(), utf8(name, value)?)))
        .collect()
}

fn utf8(name: String, value: OsString) -> Result<String, SettingsError> {
    value.into_string().map_err(|_| {
        Problem {
            key: name,
            source: Some("the environment".to_owned()),
            what: "is not UTF-8".to_owned(),
            allowed: "UTF-8 text".to_owned(),
        }
        .into()
    })
}

/// The merged values; they hold exactly the keys of the defaults.
pub(super) fn merge(
    file: Option<(PathBuf, String)>,
    env: impl IntoIterator<Item = (String, String)>,
    problems: &mut Vec<Problem>,
) -> Flat {
    let defaults = parse_toml(DEFAULTS).expect("defaults.toml is TOML; the tests load it");
    let known = flatten(&defaults.cache);
    let mut builder = Config::builder().add_source(defaults);
    let file = file.map(|(path, text)| from_file(path, &text, &known, problems));
    let env = from_environment(env, &known, problems);
    for (key, value) in file.into_iter().flatten().chain(env) {
        builder = builder.set_override(&key, value).expect("known keys are plain paths");
    }
    let merged = builder.build().expect("every source is parsed already");
    flatten(&merged.cache)
}

fn from_file(path: PathBuf, text: &str, known: &Flat, problems: &mut Vec<Problem>) -> Flat {
    let origin = path.display().to_string();
    let parsed = match parse_toml(text) {
        Ok(parsed) => parsed,
        Err(what) => {
            problems.push(Problem {
                key: origin,
                source: None,
                what,
                allowed: "TOML, as --print-defaults prints it".to_owned(),
            });
            return Flat::new();
        }
    };
    let mut values = Flat::new();
    for (key, value) in flatten(&parsed.cache) {
        if known.contains_key(&key) {
            values.insert(key, Value::new(Some(&origin), value.kind));
        } else if !is_empty_section(&key, &value, known) {
            problems.push(unknown(&key, &origin, known));
        }
    }
    values
}

fn from_environment(
    env: impl IntoIterator<Item = (String, String)>,
    known: &Flat,
    problems: &mut Vec<Problem>,
) -> Flat {
    let mut values: Flat = Flat::new();
    for (name, text) in env {
        let Some(path) = name.strip_prefix(PREFIX) else { continue };
        if text.is_empty() {
            continue;
        }
        let (path, in_file) = match path.strip_suffix(FILE_SUFFIX) {
            Some(path) => (path, true),
            None => (path, false),
        };
        let key = path.replace("__", ".").to_ascii_lowercase();
        if !known.contains_key(&key) {
            problems.push(unknown(&key, &name, known));
            continue;
        }
        if let Some(other) = values.get(&key) {
            let other = other.origin().unwrap_or_default().to_owned();
            problems.push(problem(
                &key,
                &name,
                format!("{other} is set too"),
                format!("only one of {name} and {other}"),
            ));
            continue;
        }
        // The key counts as set even where its file is unusable, so that setting it twice shows.
        let text = if in_file {
            read_value_file(&text).unwrap_or_else(|what| {
                let allowed = "a readable UTF-8 file that holds the value".to_owned();
                problems.push(problem(&key, &name, what, allowed));
                String::new()
            })
        } else {
            text
        };
        values.insert(key, Value::new(Some(&name), ValueKind::String(text)));
    }
    // A stand-in of an unusable file would only make a second problem of the same key.
    values.retain(|_, value| !matches!(&value.kind, ValueKind::String(text) if text.is_empty()));
    values
}

/// Says nothing of the path: who confuses the two names puts the secret itself there.
fn read_value_file(path: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the file that it names cannot be read: {error}"))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("the file that it names is empty".to_owned()),
        value => Ok(value.to_owned()),
    }
}

fn parse_toml(text: &str) -> Result<Config, String> {
    Config::builder().add_source(File::from_str(text, FileFormat::Toml)).build().map_err(|error| {
        match error {
            ConfigError::FileParse { cause, .. } => without_excerpt(&cause.to_string()),
            // Nothing else can go wrong with text in memory.
            other => other.to_string(),
        }
    })
}

/// The parser's message shows the line at fault, and that line may hold a secret.
fn without_excerpt(message: &str) -> String {
    let is_excerpt = |line: &&str| {
        let line = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
        !line.trim_start().starts_with('|')
    };
    message.lines().filter(is_excerpt).collect::<Vec<_>>().join(": ")
}

/// Leaves by their dotted path. An empty table is a leaf, so that an unknown one is noticed.
fn flatten(root: &Value) -> Flat {
    fn walk(path: &str, value: &Value, flat: &mut Flat) {
        match &value.kind {
            ValueKind::Table(table) if path.is_empty() || !table.is_empty() => {
                for (key, value) in table {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    walk(&path, value, flat);
                }
            }
            _ => {
                flat.insert(path.to_owned(), value.clone());
            }
        }
    }
    let mut flat = Flat::new();
    walk("", root, &mut flat);
    flat
}

fn is_empty_section(key: &str, value: &Value, known: &Flat) -> bool {
    matches!(value.kind, ValueKind::Table(_)) && sections(known).contains(&key)
}

fn problem(key: &str, source: &str, what: String, allowed: String) -> Problem {
    Problem { key: key.to_owned(), source: Some(source.to_owned()), what, allowed }
}

fn unknown(key: &str, source: &str, known: &Flat) -> Problem {
    let what = match closest(key, known) {
        _ if sections(known).contains(&key) => "it is a section, not a setting".to_owned(),
        Some(near) => format!("there is no such setting (did you mean {near}?)"),
        None => "there is no such setting".to_owned(),
    };
    let section = key.split('.').next().unwrap_or(key);
    let of_section: Vec<_> = known
        .keys()
        .filter_map(|known| known.split_once('.'))
        .filter_map(|(known, name)| (known == section).then_some(name))
        .collect();
    let allowed = if of_section.is_empty() {
        format!("the sections {}", sections(known).join(", "))
    } else {
        format!("in section {section}: {}", of_section.join(", "))
    };
    problem(key, source, what, allowed)
}

fn sections(known: &Flat) -> Vec<&str> {
    let mut sections: Vec<_> =
        known.keys().filter_map(|key| key.split_once('.')).map(|(section, _)| section).collect();
    sections.dedup();
    sections
}

/// The known key that is at most three edits away, if any.
fn closest<'a>(key: &str, known: &'a Flat) -> Option<&'a str> {
    known
        .keys()
        .map(|known| (edits(key, known), known.as_str()))
        .filter(|(edits, _)| *edits <= 3)
        .min()
        .map(|(_, known)| known)
}

/// Levenshtein distance, one row at a time.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
