//! Logs to standard error, and the recorder behind `/metrics`.
//!
//! Rule: both belong to the process, not to an app in it, so setting them up again changes nothing.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
pub use metrics_exporter_prometheus::PrometheusHandle;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::settings::{LogFormat, LogSettings};
use crate::version::{COMMIT, VERSION};

/// From the time of one Redis call (100 µs) to longer than any client waits (60 s).
const SECONDS_BUCKETS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// Powers of two, up to the first above the largest batches that the settings allow (1000 requests,
/// 5000 orders).
const BATCH_SIZE_BUCKETS: [f64; 14] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);

/// Logs and metrics, for a program with an admin listener. Later calls in the same process keep the
/// first call's logs and return its handle.
///
/// # Errors
/// The filter does not parse, or another recorder is installed.
pub fn init(log: &LogSettings) -> anyhow::Result<PrometheusHandle> {
    init_logs(log)?;
    init_metrics()
}

/// A count as the metrics want it; exact up to 2^32, which is as far as it goes.
pub fn count(number: impl TryInto<u32>) -> f64 {
    f64::from(number.try_into().unwrap_or(u32::MAX))
}

/// Logs alone, for a command-line tool. Later calls in the same process change nothing.
///
/// # Errors
/// The filter does not parse.
pub fn init_logs(log: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.filter).context("log.filter does not parse")?;
    let terminal = std::io::stderr().is_terminal();
    let human = match log.format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A line that cannot be written (a full disk, a reader that is gone) is lost. To say so there as
        // well would panic, in the middle of whatever is logged.
        .log_internal_errors(false)
        .with_ansi(human && terminal);
    // The only way to fail is that a subscriber is there already, and then it stays.
    let _already_set = if human {
        builder.finish().try_init()
    } else {
        builder.json().flatten_event(true).with_span_list(false).finish().try_init()
    };
    Ok(())
}

/// Metrics alone.
///
/// # Errors
/// Another recorder is installed.
pub fn init_metrics() -> anyhow::Result<PrometheusHandle> {
    // Held while installing, so that two apps starting at once do not both try.
    let mut recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*recorder {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_batch_size".to_owned()), &BATCH_SIZE_BUCKETS)?
        .install_recorder()
        .context("the metrics recorder cannot be installed")?;
    describe(&[("flashsale_build_info", "Always 1; the labels are the version and its commit")]);
    metrics::gauge!("flashsale_build_info", "version" => VERSION, "commit" => COMMIT).set(1.0);
    *recorder = Some(handle.clone());
    Ok(handle)
}

/// Says what metrics mean, as `/metrics` shows it.
pub fn describe(help: &[(&'static str, &'static str)]) {
    for (name, text) in help {
        // Of which kind it is says who counts or measures; the exporter keeps only the text.
        metrics::describe_gauge!(*name, *text);
    }
}

/// Sorts what histograms recorded into their buckets, for ever. Without it, samples pile up in
/// memory whenever nobody scrapes.
pub(crate) async fn keep_up(metrics: PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_init_returns_the_first_handle() {
        let log = LogSettings { format: LogFormat::Auto, filter: "info".to_owned() };
        let first = init(&log).expect("first init");
        let second = init(&log).expect("second init");
        metrics::histogram!("telemetry_test_seconds").record(0.00009);
        metrics::histogram!("flashsale_admission_batch_size").record(3.0);

        for text in [first.render(), second.render()] {
            for expected in [
                &format!("flashsale_build_info{{version=\"{VERSION}\",commit=\"{COMMIT}\"}} 1"),
                "telemetry_test_seconds_bucket{le=\"0.0001\"} 1",
                "flashsale_admission_batch_size_bucket{le=\"2\"} 0",
                "flashsale_admission_batch_size_bucket{le=\"4\"} 1",
            ] {
                assert!(text.contains(expected), "no {expected} in\n{text}");
            }
        }
    }

    #[test]
    fn a_bad_filter_is_an_error() {
        let log = LogSettings { format: LogFormat::Json, filter: "info,=".to_owned() };
        init_logs(&log).expect_err("a directive without a level");
    }
}
