//! One round of each kind of fault, on one deployment, and one that goes on after the orders. A round that harms nothing would prove nothing,
//! so each test also looks for what its fault leaves behind.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use flashsale_torture::{Kind, Outcome, Plan, Torture, logs_of};
use tokio::runtime::Runtime;

/// Another one runs another load and other delays; this one has shown that it holds.
const SEED: u64 = 2026;

/// Connections live as long as the runtime that made them, so the tests share both.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
static TORTURE: LazyLock<Mutex<Torture>> = LazyLock::new(Mutex::default);

/// A round, and how much a metric of the workers rose in it.
#[derive(Debug)]
struct Round {
    outcome: Outcome,
    rise: f64,
}

fn torture() -> MutexGuard<'static, Torture> {
    TORTURE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a round with this one fault; what the round's own checks find is a failure of the test.
fn holds(kind: Kind, metric: &str) -> Round {
    let round = run(&Plan::of(SEED, &[kind]), metric);
    assert!(has_served(&round), "buyers were served: {round:?}");
    round
}

fn has_served(round: &Round) -> bool {
    round.outcome.orders > 100
}

/// The same, until a round has left behind what its fault is about: it may come when nothing is under way.
fn holds_until(kind: Kind, metric: &str, has_harmed: impl Fn(&Round) -> bool) {
    let mut harmless = Vec::new();
    for seed in SEED..SEED + 5 {
        let round = run(&Plan::of(seed, &[kind]), metric);
        if has_served(&round) && has_harmed(&round) {
            return;
        }
        harmless.push(round);
    }
    panic!("buyers were not served, or {kind} harmed nothing: {harmless:?}");
}

/// The same, by the metric alone.
fn holds_and_raises(kind: Kind, metric: &str) {
    holds_until(kind, metric, |round| round.rise > 0.0);
}

fn run(plan: &Plan, metric: &str) -> Round {
    let mut torture = torture();
    let (before, outcome, after) = RUNTIME.block_on(async {
        let deployment = torture.deployment(plan).await.expect("a deployment");
        let before = deployment.metric(metric).await;
        let outcome = torture.run(plan).await.expect("a deployment");
        let after = match torture.present() {
            Some(deployment) => deployment.metric(metric).await,
            None => before.clone(),
        };
        (before, outcome, after)
    });
    let failures = outcome.failures.join("\n");
    assert!(failures.is_empty(), "{failures}\n{plan:?}\n{}", logs_of(plan.seed).display());
    let rise = after.iter().map(|(worker, value)| value - before.get(worker).unwrap_or(&0.0)).sum();
    Round { outcome, rise }
}

#[test]
fn a_worker_killed_with_entries_in_its_hands_costs_no_order() {
    holds_and_raises(Kind::WorkerKill, "flashsale_reclaimed_total");
}

#[test]
fn a_worker_that_slept_past_its_time_writes_nothing_twice() {
    holds_and_raises(Kind::WorkerFreeze, "flashsale_reclaimed_total");
}

#[test]
fn a_worker_that_is_asked_to_leave_leaves_nothing_behind() {
    let round = holds(Kind::WorkerTerminate, "flashsale_reclaimed_total");
    assert!(round.rise <= 0.0, "nobody had to take anything over: {}", round.rise);
}

#[test]
fn a_redis_killed_and_restarted_is_opened_again_by_the_workers() {
    holds_and_raises(Kind::RedisKill, "flashsale_rebuilds_total");
}

#[test]
fn a_redis_that_forgot_everything_is_loaded_again_by_the_workers() {
    holds_and_raises(Kind::RedisFlush, "flashsale_rebuilds_total");
}

#[test]
fn a_redis_that_comes_back_without_its_file_is_loaded_again_by_the_workers() {
    holds_and_raises(Kind::RedisAmnesia, "flashsale_rebuilds_total");
}

#[test]
fn a_promoted_replica_that_misses_orders_sells_nothing_twice_and_each_of_them_is_settled() {
    holds_until(Kind::SentinelFailover, "flashsale_rebuilds_total", |round| {
        round.rise > 0.0 && round.outcome.lost > 0
    });
}

#[test]
fn orders_that_a_database_set_back_has_forgotten_are_written_again_from_what_redis_holds() {
    let metric = "flashsale_worker_retries_total";
    holds_until(Kind::DatabaseRestore, metric, |round| round.outcome.lost > 0);
}

/// Each round checks the times of its rows, and that nobody was told that the sale has not begun.
#[test]
fn clocks_of_gateway_and_workers_that_are_hours_off_change_no_order() {
    let round = holds(Kind::ClockStep, "flashsale_orders_expired_total");
    assert!(round.rise <= 0.0, "orders expired before their time: {round:?}");
}

#[test]
fn a_redis_without_its_scripts_is_given_them_again() {
    // Nothing is refused: what a closed gate or a fault would leave behind is not there.
    let round = holds(Kind::ScriptFlush, "flashsale_rebuilds_total");
    assert!(round.rise <= 0.0);
}

#[test]
fn a_full_redis_loses_nothing_and_drains() {
    // A buyer who is told that it is full presses again.
    holds_until(Kind::RedisFull, "flashsale_rebuilds_total", |round| round.outcome.retries > 0);
}

#[test]
fn a_group_destroyed_under_its_workers_is_made_again() {
    holds_and_raises(Kind::GroupDestroy, "flashsale_group_recreated_total");
}

#[test]
fn deleted_entries_are_the_only_orders_that_are_lost_and_are_settled_as_orders() {
    holds_until(Kind::EntriesDelete, "flashsale_entries_lost_total", |Round { outcome, rise }| {
        outcome.deleted > 0 && *rise > 0.0 && outcome.lost > 0
    });
}

#[test]
fn trimmed_entries_are_the_only_orders_that_are_lost_and_are_settled_as_rejected() {
    holds_until(Kind::StreamTrim, "flashsale_entries_lost_total", |Round { outcome, rise }| {
        outcome.deleted > 0 && *rise > 0.0 && outcome.lost > 0
    });
}

#[test]
fn bad_entries_become_dead_letters_byte_for_byte_and_their_neighbours_rows() {
    let round = holds(Kind::PoisonEntries, "flashsale_entries_lost_total");
    assert!(round.outcome.dead >= 3, "{:?}", round.outcome);
}

#[test]
fn cut_connections_to_the_database_cost_no_order() {
    holds(Kind::PostgresTerminate, "flashsale_worker_retries_total");
}

#[test]
fn a_database_stopped_and_started_again_costs_no_order() {
    holds_and_raises(Kind::PostgresStop, "flashsale_worker_retries_total");
}

/// Paid for, given up and run out of time, with a worker killed meanwhile and the database away.
#[test]
fn orders_end_as_their_buyers_were_told_whatever_fails_meanwhile() {
    let faults = [Kind::WorkerKill, Kind::PostgresStop];
    let plan = Plan::of(SEED, &[Kind::ScriptFlush]).followed_by(&faults);
    let round = run(&plan, "flashsale_releases_total");
    assert!(has_served(&round), "buyers were served: {round:?}");
    assert!(round.outcome.ended > 100 && round.rise > 20.0, "{:?}", round);
}
