//! The gateway: takes buyers' orders over HTTP.

use std::process::ExitCode;

use flashsale_bootstrap::{Settings, Shutdown, cli, telemetry, traces};
use flashsale_gateway::Gateway;

/// On the way of an order memory is asked for some thirty times.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let about = "Takes buyers' orders over HTTP and admits them in Redis.";
    if let Some(code) = cli::handle_standard_flags("gateway", about) {
        return code;
    }
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => cli::failed("gateway", &error),
    }
}

async fn run() -> anyhow::Result<()> {
    let settings = Settings::load()?;
    let metrics = telemetry::init(&settings.log)?;
    let traces = traces::init(&settings.tracing, "gateway")?;
    let ended = serve(&settings, metrics).await;
    traces.close().await;
    ended
}

async fn serve(settings: &Settings, metrics: telemetry::PrometheusHandle) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals()?;
    Gateway::build(settings, metrics).await?.run(shutdown).await
}
