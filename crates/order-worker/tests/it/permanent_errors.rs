//! What does not go away by itself costs a worker next to nothing: few lines in the log, little
//! processor time.

use std::time::Duration;

use flashsale_test_support::{PostgresServer, RedisServer, eventually};

use crate::real_worker::RealWorker;
use crate::support::{Plan, SOON, Stand, blocking, only};

/// How long is measured.
const WINDOW: Duration = Duration::from_secs(10);
const LINES_A_SECOND_MAX: f64 = 2.0;
/// Of one core.
pub(crate) const CPU_MAX: f64 = 0.05;

/// As an operator has it: the test's short pauses would cost more.
pub(crate) fn with_default_pauses(plan: Plan) -> Plan {
    plan.with("worker.retry_min", "100ms")
        .with("worker.retry_max", "5s")
        .with("worker.trim_interval", "1s")
        .with("worker.block", "2s")
}

/// Measures a worker that has met the error.
async fn assert_cheap(what: &str, worker: &RealWorker) {
    worker.admin.wait_for_readiness(false).await;
    let (lines, cpu) = (worker.lines(), worker.cpu_seconds());
    tokio::time::sleep(WINDOW).await;
    let seconds = WINDOW.as_secs_f64();
    let lines = f64::from(u32::try_from(worker.lines() - lines).expect("few")) / seconds;
    let cpu = (worker.cpu_seconds() - cpu) / seconds;
    eprintln!("{what}: {lines:.1} lines a second, {:.2} % of one core", cpu * 100.0);
    assert!(lines < LINES_A_SECOND_MAX, "{what}: {lines} a second: {}", worker.program.log());
    assert!(cpu < CPU_MAX, "{what}: {cpu} of one core");
}

/// A worker that is ready, on a sale of 1,000.
async fn ready_worker(stand: &Stand) -> (flashsale_domain::Sale, RealWorker) {
    let sale = stand.publish(1_000).await;
    let worker = stand.real_worker(&[]);
    worker.admin.wait_for_readiness(true).await;
    (sale, worker)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_stays_away_costs_few_lines_and_little_processor_time() {
    let server = blocking(PostgresServer::start);
    let stand = with_default_pauses(Plan::postgres_on(&server)).stand().await;
    let (sale, worker) = ready_worker(&stand).await;
    blocking(|| server.stop());
    let ids = stand.admit(&sale, "buyer", 1_000).await;
    assert_cheap("database away", &worker).await;
    assert_eq!(stand.dead().await, []);
    blocking(|| server.start_again());
    stand.wait_for_rows(1_000).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stays_away_costs_few_lines_and_little_processor_time() {
    let server = blocking(|| {
        RedisServer::builder().append_only(true).option("appendfsync", "always").start()
    });
    let stand = with_default_pauses(Plan::sqlite().redis(&server)).stand().await;
    let (sale, worker) = ready_worker(&stand).await;
    worker.program.pause();
    let ids = stand.admit(&sale, "buyer", 100).await;
    server.kill_9();
    worker.program.resume();
    assert_cheap("Redis away", &worker).await;
    blocking(|| server.start_again());
    stand.wait_for_rows(100).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_key_of_the_wrong_type_costs_few_lines_and_little_processor_time() {
    let stand = with_default_pauses(Plan::sqlite()).stand().await;
    let (sale, worker) = ready_worker(&stand).await;
    worker.program.pause();
    let ids = stand.admit(&sale, "buyer", 100).await;
    let (key, kept) = (stand.keys.orders(only()), format!("{}:kept", stand.keys.orders(only())));
    let mut swap = redis::pipe();
    swap.atomic().cmd("RENAME").arg(&key).arg(&kept).cmd("SET").arg(&key).arg("no stream");
    swap.query_async::<()>(&mut stand.connection().await).await.expect("swapped");
    worker.program.resume();
    assert_cheap("wrong type", &worker).await;
    stand.ask::<()>(&["RENAME", &kept, &key]).await;
    stand.wait_for_rows(100).await;
    eventually(SOON, "an empty stream", async || stand.stream_length().await == 0).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    worker.admin.wait_for_readiness(true).await;
}
