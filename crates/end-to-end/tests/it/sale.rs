//! A whole sale by the real programs: exactly what was for sale is sold, and every answer was true.

use crate::stack::{Stack, report};

fn two_thousand_buyers_press_twice(stack: &Stack, mode: &str) {
    let sale = stack.open_sale(200, mode);
    let gateway = stack.gateway();
    let _worker = stack.worker();
    let crowd = ["--buyers", "2000", "--repeat", "2", "--concurrency", "64", "--verify"];
    let (rush, code) = report(&stack.rush(&[&gateway], &sale, &crowd));
    assert_eq!((code, &rush["ok"]), (Some(0), &true.into()), "{rush}");
    assert_eq!(rush["requests"], 4_000, "{rush}");
    assert_eq!((&rush["orders"], &rush["order_holders"]), (&200.into(), &200.into()), "{rush}");
    assert_eq!((&rush["confirmed"], &rush["unconfirmed"]), (&200.into(), &0.into()), "{rush}");
    assert_eq!((&rush["contradictions"], &rush["server_errors"]), (&0.into(), &0.into()), "{rush}");
    assert_eq!(stack.count_receipts(), 200);

    let ledger = stack.settled(&sale);
    assert_eq!((&ledger["stock_left"], &ledger["awaiting_payment"]), (&0.into(), &200.into()));
    assert_eq!(ledger["balanced"], true, "{ledger}");
    stack.assert_clean(&sale);
}

#[test]
fn two_hundred_units_are_sold_to_two_thousand_impatient_buyers_on_sqlite() {
    two_thousand_buyers_press_twice(&Stack::sqlite(), "queued");
}

#[test]
fn two_hundred_units_are_sold_to_two_thousand_impatient_buyers_on_postgres() {
    two_thousand_buyers_press_twice(&Stack::postgres(), "queued");
}

#[test]
fn a_direct_sale_sells_two_hundred_units_too() {
    two_thousand_buyers_press_twice(&Stack::postgres(), "direct");
}
