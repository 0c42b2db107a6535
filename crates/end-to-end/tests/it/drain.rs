//! SIGTERM under load: whoever was told 202 has his row in the end.

use std::time::Duration;

use crate::stack::{Stack, report};

/// The deadlines of the default settings, and some seconds for a busy machine.
const GATEWAY_ENDS_WITHIN: Duration = Duration::from_secs(15 + 5);
const WORKER_ENDS_WITHIN: Duration = Duration::from_secs(20 + 5);

fn everybody_who_was_told_has_his_row(stack: &Stack) {
    let sale = stack.open_sale(100_000, "queued");
    let (gateway, worker) = (stack.gateway(), stack.worker());
    // An open loop that goes on pressing, whatever happens to the programs.
    let crowd = ["--buyers", "3000", "--rate", "500", "--retries", "1", "--timeout", "3s"];
    let rush = stack.rush(&[&gateway], &sale, &crowd);
    worker.wait_for("flashsale_orders_committed_total", 300.0);
    gateway.program.terminate();
    worker.program.terminate();
    gateway.must_end_well(GATEWAY_ENDS_WITHIN);
    worker.must_end_well(WORKER_ENDS_WITHIN);

    let (rush, _) = report(&rush);
    let answered = stack.count_receipts();
    assert!((300..3_000).contains(&answered), "{answered} of {rush}");
    assert_eq!(rush["contradictions"], 0, "{rush}");

    let _another = stack.worker();
    let ledger = stack.settled(&sale);
    let rows = ledger["awaiting_payment"].as_u64().expect("a number");
    assert!(rows >= u64::try_from(answered).expect("fits"), "{answered} answers, {ledger}");
    assert_eq!((&ledger["dead"], &ledger["rejected"]), (&0.into(), &0.into()), "{ledger}");
    stack.assert_clean(&sale);
}

#[test]
fn everybody_who_was_told_of_an_order_has_his_row_after_a_shutdown_on_sqlite() {
    everybody_who_was_told_has_his_row(&Stack::sqlite());
}

#[test]
fn everybody_who_was_told_of_an_order_has_his_row_after_a_shutdown_on_postgres() {
    everybody_who_was_told_has_his_row(&Stack::postgres());
}

#[test]
fn idle_programs_end_at_once() {
    let stack = Stack::sqlite();
    stack.open_sale(10, "queued");
    for member in [stack.gateway(), stack.worker()] {
        member.program.terminate();
        member.must_end_well(Duration::from_secs(10));
    }
}

/// A full disk under the log, or a reader of it that is gone.
#[test]
fn a_log_that_cannot_be_written_stops_no_program() {
    let stack = Stack::postgres();
    let sale = stack.open_sale(100, "queued");
    let (gateway, worker) = (stack.mute("gateway"), stack.mute("order-worker"));
    let (rush, code) = report(&stack.rush(&[&gateway], &sale, &["--buyers", "50", "--verify"]));
    assert_eq!((code, &rush["confirmed"]), (Some(0), &50.into()), "{rush}");
    for (member, limit) in [(gateway, GATEWAY_ENDS_WITHIN), (worker, WORKER_ENDS_WITHIN)] {
        // The end is logged before it begins.
        member.program.terminate();
        member.must_end_well(limit);
    }
    stack.assert_clean(&sale);
}

/// Three workers, each restarted ten times, at a steady load.
#[test]
fn workers_restarted_one_after_the_other_do_no_work_twice_and_nobody_waits_long() {
    const ROUNDS: usize = 10;
    const BUYERS: u64 = 9_000;
    let stack = Stack::postgres().with("FLASHSALE__WORKER__BLOCK", "200ms");
    let sale = stack.open_sale(u32::try_from(BUYERS).expect("fits"), "queued");
    let gateway = stack.gateway();
    let mut workers = vec![stack.worker(), stack.worker(), stack.worker()];
    let buyers = BUYERS.to_string();
    let crowd = ["--buyers", &buyers, "--rate", "300", "--verify"];
    let rush = stack.rush(&[&gateway], &sale, &crowd);
    let mut redelivered = 0;
    for _ in 0..ROUNDS * workers.len() {
        let leaves = workers.remove(0);
        leaves.program.terminate();
        leaves.must_end_well(WORKER_ENDS_WITHIN);
        redelivered += stopped_with(&leaves.program.log(), "redelivered");
        workers.push(stack.worker());
    }
    let (rush, code) = report(&rush);
    assert_eq!((code, &rush["confirmed"]), (Some(0), &BUYERS.into()), "{rush}");
    // Nobody had to take anything over, and nothing was done twice: who left had finished.
    assert!(workers.iter().all(|worker| worker.metric("flashsale_reclaimed_total") == 0.0));
    assert_eq!(redelivered, 0);
    assert_eq!(stack.settled(&sale)["awaiting_payment"], BUYERS);
    stack.assert_clean(&sale);

    let mut lags = stack.commit_lags_ms(&sale);
    lags.sort_unstable();
    let percentile = |percent: usize| lags[(lags.len() - 1) * percent / 100];
    let (p50, p99) = (percentile(50), percentile(99));
    eprintln!("commit lag over {} restarts: p50 {p50} ms, p99 {p99} ms", ROUNDS * 3);
    // A reclaim period is 30 s: nobody waited for one, even on a very busy machine.
    assert!(p99 < 10_000, "p99 {p99} ms");
}

/// A figure of the line with which a worker ends.
pub(crate) fn stopped_with(log: &str, figure: &str) -> u64 {
    let line = log.lines().rev().find(|line| line.contains("\"stopped\""));
    let line = line.unwrap_or_else(|| panic!("no end: {log}"));
    let line: serde_json::Value = serde_json::from_str(line).expect("is JSON");
    line[figure].as_u64().unwrap_or_else(|| panic!("no {figure}: {line}"))
}
