//! Our programs beside this one.

use std::path::PathBuf;
use std::process::{Output, Stdio};

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

/// Runs our program `name` to its end, with these settings and no others.
pub(crate) async fn run(
    name: &str,
    settings: &Settings,
    arguments: &[&str],
) -> anyhow::Result<Output> {
    let mut command = Command::new(path(name)?);
    forget_settings(command.as_std_mut());
    command
        .args(arguments)
        .envs(settings.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {name}"))
}

/// What our program `name` prints, which has to succeed.
pub(crate) async fn output(
    name: &str,
    settings: &Settings,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let output = run(name, settings, arguments).await?;
    ensure!(
        output.status.success(),
        "{name} {arguments:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Where a program of the machine lies.
pub(crate) fn on_path(name: &str) -> anyhow::Result<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|it| it.join(name)).find(|it| it.is_file());
    found.with_context(|| format!("{name} is not installed"))
}
