//! The bench itself: that every kind runs, that the report holds what it promises, and that a sale which
//! does not add up is no result.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use flashsale_test_support::{TempDir, binary, temp_dir};
use serde_json::Value;

/// Every ratio that the report promises.
const KEYS: [&str; 12] = [
    "accept_vs_echo",
    "accept_cpu_vs_echo",
    "accept_vs_pool",
    "refuse_vs_echo",
    "redis_cpu_vs_single",
    "worker_vs_row_by_row",
    "worker_vs_sql_ceiling",
    "durable_vs_echo",
    "durable_vs_direct",
    "worker_vs_bullmq",
    "worker_vs_python",
    "redis_bytes_per_buyer",
];

/// Those of them that come from runs of their own.
const OF_OTHER_RUNS: [&str; 3] = ["worker_vs_bullmq", "worker_vs_python", "redis_bytes_per_buyer"];

/// Those that divide processor time, which is counted in hundredths of a second: of so few requests a
/// process may have used none.
const OF_PROCESSOR_TIME: [&str; 2] = ["accept_cpu_vs_echo", "redis_cpu_vs_single"];

/// What `make bench` measures, redis-benchmark apart, which may not be there.
const KINDS: [&str; 21] = [
    "echo",
    "accept",
    "pool",
    "sold-out",
    "sold-out-no-key",
    "not-started",
    "ended",
    "replay",
    "already-ordered",
    "echo-open",
    "accept-open",
    "sold-out-open",
    "worker",
    "row-by-row",
    "sql-ceiling",
    "copy",
    "fsync",
    "chain",
    "direct",
    "memory-queue",
    "killed",
];

/// Runs the bench with these arguments; its report goes into the folder.
fn bench(folder: &TempDir, arguments: &[&str]) -> (Output, Option<Value>) {
    let report = folder.path().join("report.json");
    let output = Command::new(binary("bench"))
        .args(arguments)
        .arg("--report")
        .arg(&report)
        .output()
        .expect("the bench can be started");
    let report = std::fs::read_to_string(report).ok();
    let report = report.map(|text| serde_json::from_str(&text).expect("the report is JSON"));
    (output, report)
}

fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn a_quick_run_measures_every_kind_and_reports_every_ratio_that_is_promised() {
    let (output, report) = bench(&temp_dir("bench"), &["--quick", "--concurrency", "16"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    let report = report.expect("there is a report");

    let ratios = report["ratios"].as_object().expect("ratios");
    assert_eq!(ratios.keys().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(KEYS));
    for (key, value) in ratios {
        if !OF_PROCESSOR_TIME.contains(&key.as_str()) {
            assert_eq!(value.is_null(), OF_OTHER_RUNS.contains(&key.as_str()), "{key}: {value}");
        }
        assert!(value.is_null() || said.contains(&format!("| `{key}` |")), "{key}:\n{said}");
    }

    let bench = &report["raw"]["bench"];
    assert_eq!(bench["invariants_hold"], true);
    let kinds = bench["kinds"].as_array().expect("kinds");
    let kind = |name: &str| {
        let found = kinds.iter().find(|kind| kind["kind"] == name);
        found.unwrap_or_else(|| panic!("{name} was not measured:\n{said}"))
    };
    for name in KINDS {
        assert!(kind(name)["per_s"].as_f64().is_some_and(|per_s| per_s > 0.0), "{name}");
    }
    // What each design loses when it is killed is part of what it is.
    assert_eq!(kind("killed")["more"]["lost_at_kill_9"], 0.0);
    assert!(kind("memory-queue")["more"]["lost_at_kill_9"].as_f64() > Some(0.0));
}

#[test]
fn a_run_whose_sale_does_not_add_up_fails_and_says_why() {
    let arguments = ["--quick", "--only", "worker", "--lose-a-row"];
    let (output, report) = bench(&temp_dir("bench"), &arguments);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("AN INVARIANT DOES NOT HOLD"), "{said}");
    let report = report.expect("a report is written all the same");
    assert_eq!(report["raw"]["bench"]["invariants_hold"], false);
    // Only what was asked for, and what it needs.
    let kinds = report["raw"]["bench"]["kinds"].as_array().expect("kinds");
    let kinds: Vec<&Value> = kinds.iter().map(|kind| &kind["kind"]).collect();
    assert_eq!(kinds, ["accept", "worker"]);
}
