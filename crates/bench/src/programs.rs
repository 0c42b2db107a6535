//! Our programs beside this one, and what they cost.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use flashsale_test_support::forget_settings;
use tokio::process::Command;

/// `FLASHSALE__…` variables.
pub(crate) type Settings = Vec<(&'static str, String)>;

/// Where our program `name` lies.
pub(crate) fn path(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not there: `make build` builds it", path.display());
    Ok(path)
}

/// What our program `name` prints, run with these settings and no others.
pub(crate) async fn output(
    name: &str,
    settings: &Settings,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let mut command = Command::new(path(name)?);
    forget_settings(command.as_std_mut());
    let output = command
        .args(arguments)
        .envs(settings.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(!output.stdout.is_empty(), "{name} {arguments:?} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// CPU that a process has used so far, by the operating system's accounting: microseconds.
pub(crate) fn cpu_us(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    // The name, in brackets, may hold anything; the fields after it are counted from 3.
    let (_, fields) = text.rsplit_once(')').with_context(|| path.clone())?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    let ticks: f64 = ticks.sum::<Result<_, _>>().with_context(|| path.clone())?;
    Ok(ticks * TICK_US)
}

/// Linux counts in hundredths of a second wherever we run.
const TICK_US: f64 = 10_000.0;
