//! The order-worker: turns the orders stream into rows of the database.

use std::process::ExitCode;

use flashsale_bootstrap::{Settings, Shutdown, cli, telemetry, traces};
use flashsale_order_worker::OrderWorker;

/// An entry is many small pieces, made by one thread and dropped by another, which is what the system's
/// allocator is slowest at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let about = "Writes admitted orders from the Redis stream to the database.";
    if let Some(code) = cli::handle_standard_flags("order-worker", about) {
        return code;
    }
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => cli::failed("order-worker", &error),
    }
}

async fn run() -> anyhow::Result<()> {
    let settings = Settings::load()?;
    let metrics = telemetry::init(&settings.log)?;
    let traces = traces::init(&settings.tracing, "order-worker")?;
    let ended = serve(&settings, metrics).await;
    traces.close().await;
    ended
}

async fn serve(settings: &Settings, metrics: telemetry::PrometheusHandle) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals()?;
    OrderWorker::build(settings, metrics).await?.run(shutdown).await
}
