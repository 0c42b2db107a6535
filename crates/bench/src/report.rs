//! Tables for people, in Markdown, and `target/bench/report.json` for whoever compares runs.
//!
//! The report is one document that several runs write into: `make bench`, `make bench-peers` and
//! `make bench-memory` each replace their own part and keep the others'.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::figures::{Figures, Medians};
use crate::kinds::Kind;
use crate::marks::{MARKS, digits};

/// Where the report lies, unless another place is named: beside the programs' folder.
pub(crate) fn default_path() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).context("no target folder")?;
    Ok(target.join("bench").join("report.json"))
}

/// Writes one part and its ratios.
pub(crate) fn write(
    path: &Path,
    part: &str,
    ratios: &BTreeMap<&'static str, f64>,
    raw: &impl Serialize,
) -> anyhow::Result<()> {
    let before = std::fs::read_to_string(path).ok();
    let before: Value =
        before.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let all: Map<String, Value> = MARKS
        .iter()
        .map(|mark| {
            let kept = before["ratios"][mark.key].clone();
            (mark.key.to_owned(), ratios.get(mark.key).map_or(kept, |value| json!(value)))
        })
        .collect();
    let mut parts = before["raw"].as_object().cloned().unwrap_or_default();
    parts.insert(part.to_owned(), serde_json::to_value(raw)?);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let report = serde_json::to_string_pretty(&json!({ "ratios": all, "raw": parts }))?;
    std::fs::write(path, report + "\n").with_context(|| path.display().to_string())
}

/// One line for each kind.
pub(crate) fn kinds_table(figures: &Figures) -> String {
    let mut text = String::from(
        "| kind | per s | ÷ echo | spread | p50 ms | p99 ms | p99.9 ms | server µs | Redis µs | \
         worker µs | PostgreSQL µs | load µs |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let echo = figures.per_s(Kind::Echo);
    for medians in figures.all() {
        let Medians { kind, per_s, spread, latency, cpu_us, .. } = &medians;
        // Only requests are compared with requests.
        let echo = echo.filter(|_| latency.is_some());
        let to_echo = echo.map_or_else(String::new, |echo| format!("{:.3}", per_s / echo));
        let _ = write!(text, "| {kind} | {per_s:.0} | {to_echo} | {:.0} % |", spread * 100.0);
        match latency {
            Some(it) => {
                for us in [it.p50_us, it.p99_us, it.p999_us] {
                    let _ = write!(text, " {:.2} |", us / 1e3);
                }
            }
            None => text.push_str(" | | |"),
        }
        for us in [cpu_us.server, cpu_us.redis, cpu_us.worker, cpu_us.postgres, cpu_us.load] {
            // Less than that is what idle processes do.
            let shown = if us >= 0.05 { format!(" {us:.1} |") } else { " |".to_owned() };
            text.push_str(&shown);
        }
        text.push('\n');
    }
    text
}

/// What only some kinds have, a line each.
pub(crate) fn more_table(figures: &Figures) -> String {
    let mut text = String::from("| kind | what | median |\n|---|---|---:|\n");
    for medians in figures.all() {
        for (name, value) in &medians.more {
            let _ = writeln!(text, "| {} | {} | {} |", medians.kind, name, digits(*value));
        }
    }
    text
}

/// Each ratio of this run beside its mark.
pub(crate) fn ratios_table(ratios: &BTreeMap<&'static str, f64>) -> String {
    let mut text =
        String::from("| ratio | this run | mark | | meaning |\n|---|---:|---|---|---|\n");
    for mark in MARKS {
        let Some(value) = ratios.get(mark.key) else { continue };
        let verdict = if mark.is_reached(*value) { "reached" } else { "**not reached**" };
        let (value, words) = (digits(*value), mark.words());
        let _ =
            writeln!(text, "| `{}` | {value} | {words} | {verdict} | {} |", mark.key, mark.meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use flashsale_test_support::temp_dir;

    use super::*;

    #[test]
    fn a_part_leaves_the_others_and_their_ratios_as_they_are() {
        let folder = temp_dir("report");
        let path = folder.path().join("deep").join("report.json");
        write(&path, "bench", &BTreeMap::from([("accept_vs_echo", 0.5)]), &json!({ "a": 1 }))
            .expect("is written");
        write(&path, "peers", &BTreeMap::from([("worker_vs_bullmq", 6.0)]), &json!({ "b": 2 }))
            .expect("is written");
        let text = std::fs::read_to_string(&path).expect("is there");
        let report: Value = serde_json::from_str(&text).expect("is JSON");
        assert_eq!(report["ratios"]["accept_vs_echo"], 0.5);
        assert_eq!(report["ratios"]["worker_vs_bullmq"], 6.0);
        assert_eq!(report["raw"], json!({ "bench": { "a": 1 }, "peers": { "b": 2 } }));
        let keys = report["ratios"].as_object().expect("is an object");
        assert_eq!(keys.len(), MARKS.len());
        assert!(keys["worker_vs_python"].is_null());
    }

    #[test]
    fn a_ratio_stands_beside_its_mark() {
        let table = ratios_table(&BTreeMap::from([("accept_vs_echo", 0.55)]));
        assert!(table.contains("| `accept_vs_echo` | 0.55 | at least 0.60 | **not reached** |"));
        assert!(!table.contains("worker_vs_bullmq"));
    }
}
