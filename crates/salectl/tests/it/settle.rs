//! `salectl settle` from outside: what is lost is named by the audit and settled by one command.

use serde_json::json;

use crate::stand::Stand;

#[test]
fn a_lost_order_is_named_settled_and_gone_from_the_audit() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    stand.ok(&["sale", "publish", &sale]);
    assert_eq!(stand.ok(&["settle", &sale]), format!("no order of sale {sale} is lost\n"));
    let lost = [stand.admit_without_entry(&sale, "alice"), stand.admit_without_entry(&sale, "bob")];

    let ran = stand.run(&["audit", &sale]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for (order, buyer) in lost.iter().zip(["alice", "bob"]) {
        let named = format!("order {order} of buyer {buyer:?}");
        assert!(ran.stdout.contains(&named), "{}", ran.stdout);
    }
    assert!(ran.stdout.contains(&format!("run `salectl settle {sale}`")), "{}", ran.stdout);

    let dry = stand.ok(&["settle", &sale, "--dry-run"]);
    assert_eq!(dry.matches("would be written as an order").count(), 2, "{dry}");
    let settled = stand.json(&["settle", &sale, "--order", &lost[0]]);
    assert_eq!(
        settled["outcomes"],
        json!([{
            "order_id": lost[0], "user_id": "alice", "settled": true, "what": "waits for payment now",
        }])
    );
    let settled = stand.ok(&["settle", &sale, "--as", "rejected"]);
    assert_eq!(settled, format!("{}  bob  is rejected: entry-lost\n", lost[1]));
    assert!(stand.ok(&["audit", &sale]).contains("clean"));
}

#[test]
fn a_receipt_that_nobody_knows_is_settled_after_a_rebuild() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    stand.ok(&["sale", "publish", &sale]);
    let order = stand.admit_without_entry(&sale, "alice");
    stand.forget_record(&sale, "alice");
    let file = stand.file("receipts.csv", &format!("order_id,buyer\n{order},alice\n"));
    let ran = stand.run(&["settle", &sale, "--receipts", &file]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("may still be on its way"), "{ran:?}");
    stand.ok(&["rebuild", &sale]);
    let settled = stand.ok(&["settle", &sale, "--receipts", &file]);
    assert_eq!(settled, format!("{order}  alice  is rejected: memory-lost\n"));
    assert!(stand.ok(&["audit", &sale, "--receipts", &file]).contains("clean"));
}

#[test]
fn what_cannot_be_settled_is_refused_in_one_line() {
    let stand = Stand::sqlite();
    assert!(stand.refused(1, &["settle", "7"]).contains("there is no sale 7"));
    let sale = stand.create();
    assert!(stand.refused(1, &["settle", &sale]).contains("never published"));
}
