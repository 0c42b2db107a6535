//! Payments by the real programs: `salectl pay` signs as the payment provider does, and the gateway
//! takes it.

use flashsale_test_support::eventually_blocking;

use crate::stack::{SOON, Stack, report};

#[test]
fn an_order_is_paid_by_a_signed_report_and_by_no_other() {
    let stack = Stack::sqlite()
        .with("FLASHSALE__PAYMENT__WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let sale = stack.open_sale(2, "queued");
    let gateway = stack.gateway();
    let _worker = stack.worker();
    let crowd = ["--buyers", "2", "--concurrency", "1"];
    let (rush, code) = report(&stack.rush(&[&gateway], &sale, &crowd));
    assert_eq!(code, Some(0), "{rush}");
    stack.settled(&sale);
    let receipts = std::fs::read_to_string(stack.receipts()).expect("receipts");
    let order = receipts.lines().nth(1).and_then(|line| line.split(',').next()).expect("an order");

    let url = format!("http://{}", gateway.http_addr());
    let pay = ["pay", order, "--url", &url];
    // Neither too much nor of another currency, and the order is as it was.
    for wrong in
        [["--amount", "999999", "--currency", "CNY"], ["--amount", "0", "--currency", "XXX"]]
    {
        let (code, said) = stack.try_salectl(&[&pay[..], &wrong].concat());
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("409"), "{said}");
    }
    let said = stack.salectl_json(&[&pay[..], &["--id", "msg-1"]].concat());
    assert_eq!((&said["status"], &said["answer"]["outcome"]), (&200.into(), &"paid".into()));
    // The same message counts once; another one for the same order has to go back.
    let said = stack.salectl_json(&[&pay[..], &["--id", "msg-1"]].concat());
    assert_eq!(said["answer"]["outcome"], "paid");
    let said = stack.salectl_json(&[&pay[..], &["--id", "msg-2"]].concat());
    assert_eq!(said["answer"]["outcome"], "refund_due");
    let due = stack.salectl_json(&["refunds", "list"]);
    assert_eq!(due["refunds"].as_array().map(Vec::len), Some(3), "two that mismatched, one twice");

    eventually_blocking(SOON, "one paid, one open", || {
        let ledger = stack.salectl_json(&["ledger", &sale]);
        let counts = (ledger["paid"].as_i64(), ledger["awaiting_payment"].as_i64());
        if counts == (Some(1), Some(1)) { Ok(()) } else { Err(ledger) }
    });
    stack.assert_clean(&sale);
}
