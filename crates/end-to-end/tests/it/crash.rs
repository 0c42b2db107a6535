//! kill -9 in the middle of a sale.

use flashsale_test_support::eventually_blocking;

use crate::stack::{Member, SOON, Stack, report};

fn entries_held_by(stack: &Stack, worker: &Member) -> u64 {
    let process = format!("-{}-", worker.program.pid());
    let workers = stack.salectl_json(&["workers"]);
    let consumers = workers["partitions"][0]["consumers"].as_array().expect("a list").iter();
    let of_worker =
        consumers.filter(|it| it["name"].as_str().is_some_and(|it| it.contains(&process)));
    of_worker.map(|it| it["pending"].as_u64().expect("a number")).sum()
}

fn a_killed_worker_costs_no_order(stack: Stack) {
    let stack = stack
        .with("FLASHSALE__WORKER__RECLAIM_IDLE", "1s")
        .with("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", "400ms");
    let sale = stack.open_sale(2_000, "queued");
    let (gateway, survivor, victim) = (stack.gateway(), stack.worker(), stack.worker());
    let crowd = ["--buyers", "2000", "--repeat", "2", "--rate", "1000", "--verify"];
    let rush = stack.rush(&[&gateway], &sale, &crowd);
    victim.wait_for("flashsale_orders_committed_total", 100.0);
    // Frozen first, so that it dies with entries in its hands: it is in the middle of a batch, or
    // Redis hands it the next one. Frozen between two reads it holds none, and is let go once more.
    eventually_blocking(SOON, "the victim is frozen with entries in its hands", || {
        let committed = survivor.metric("flashsale_orders_committed_total");
        victim.program.pause();
        let holds =
            eventually_blocking(SOON, "the survivor goes on, or the victim holds some", || {
                let holds = entries_held_by(&stack, &victim) > 0;
                let goes_on =
                    survivor.metric("flashsale_orders_committed_total") >= committed + 50.0;
                (holds || goes_on).then_some(holds).ok_or("neither")
            });
        // Frozen for long, it has lost them to the survivor already.
        let is_done = holds || survivor.metric("flashsale_reclaimed_total") > 0.0;
        if !is_done {
            victim.program.resume();
        }
        is_done
    });
    victim.program.kill_9();

    let (rush, code) = report(&rush);
    assert_eq!((code, &rush["ok"]), (Some(0), &true.into()), "{rush}");
    assert_eq!((&rush["orders"], &rush["confirmed"]), (&2_000.into(), &2_000.into()), "{rush}");
    let ledger = stack.settled(&sale);
    assert_eq!((&ledger["awaiting_payment"], &ledger["dead"]), (&2_000.into(), &0.into()));
    assert!(survivor.metric("flashsale_reclaimed_total") > 0.0, "it took over what was held");
    stack.assert_clean(&sale);
}

#[test]
fn a_worker_killed_in_the_middle_costs_no_order_on_sqlite() {
    a_killed_worker_costs_no_order(Stack::sqlite());
}

#[test]
fn a_worker_killed_in_the_middle_costs_no_order_on_postgres() {
    a_killed_worker_costs_no_order(Stack::postgres());
}

#[test]
fn a_gateway_killed_in_the_middle_makes_no_answer_untrue() {
    let stack = Stack::postgres();
    let sale = stack.open_sale(1_000, "queued");
    let (survivor, victim) = (stack.gateway(), stack.gateway());
    let _worker = stack.worker();
    let crowd = ["--buyers", "2000", "--repeat", "2", "--rate", "1000", "--verify"];
    let rush = stack.rush(&[&survivor, &victim], &sale, &crowd);
    victim.wait_for("flashsale_admission_seconds_count", 100.0);
    victim.program.kill_9();

    let (rush, code) = report(&rush);
    assert_eq!((code, &rush["ok"]), (Some(0), &true.into()), "{rush}");
    assert_eq!((&rush["orders"], &rush["contradictions"]), (&1_000.into(), &0.into()), "{rush}");
    assert_eq!(stack.settled(&sale)["awaiting_payment"], 1_000);
    stack.assert_clean(&sale);
}

#[test]
fn everything_killed_at_once_goes_on_where_it_was() {
    let stack = Stack::postgres()
        .with("FLASHSALE__WORKER__RECLAIM_IDLE", "1s")
        .with("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", "400ms");
    let sale = stack.open_sale(1_000, "queued");
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let crowd = ["--buyers", "3000", "--rate", "500", "--retries", "1", "--timeout", "3s"];
    let rush = stack.rush(&[&gateway], &sale, &crowd);
    worker.wait_for("flashsale_orders_committed_total", 200.0);
    worker.program.kill_9();
    gateway.program.kill_9();
    let (rush, _) = report(&rush);
    assert_eq!(rush["contradictions"], 0, "{rush}");
    assert!(stack.count_receipts() >= 200);

    let _worker = stack.worker();
    let ledger = stack.settled(&sale);
    assert_eq!((&ledger["dead"], &ledger["rejected"]), (&0.into(), &0.into()), "{ledger}");
    stack.assert_clean(&sale);
    // And what is left is still for sale.
    let left = ledger["stock_left"].as_u64().expect("a number");
    let gateway = stack.gateway();
    let crowd = ["--buyers", "1500", "--verify"];
    let (rush, code) = report(&stack.rush(&[&gateway], &sale, &crowd));
    assert_eq!((code, &rush["orders"]), (Some(0), &left.into()), "{rush}");
    eventually_blocking(SOON, "all is sold", || {
        stack.salectl_json(&["ledger", &sale])["awaiting_payment"] == 1_000
    });
    stack.assert_clean(&sale);
}
