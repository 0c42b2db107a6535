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

#[test]
fn workers_restarted_one_after_the_other_under_load_lose_nothing() {
    let stack = Stack::postgres();
    let sale = stack.open_sale(2_000, "queued");
    let gateway = stack.gateway();
    let mut workers = vec![stack.worker(), stack.worker()];
    let crowd = ["--buyers", "2000", "--rate", "400", "--verify"];
    let rush = stack.rush(&[&gateway], &sale, &crowd);
    for _ in 0..4 {
        workers[0].wait_for("flashsale_orders_committed_total", 50.0);
        let leaves = workers.remove(0);
        leaves.program.terminate();
        leaves.must_end_well(WORKER_ENDS_WITHIN);
        workers.push(stack.worker());
    }
    let (rush, code) = report(&rush);
    assert_eq!((code, &rush["confirmed"]), (Some(0), &2_000.into()), "{rush}");
    // Nobody had to take anything over: who left had finished.
    assert!(workers.iter().all(|worker| worker.metric("flashsale_reclaimed_total") == 0.0));
    assert_eq!(stack.settled(&sale)["awaiting_payment"], 2_000);
    stack.assert_clean(&sale);
}
