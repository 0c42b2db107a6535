//! `salectl dead` from outside: letters are listed, shown, tried again and given up.

use flashsale_domain::{EntryId, OrderId, Partition};
use serde_json::{Value, json};

use crate::stand::Stand;

pub(crate) const ENTRY: &str = "1764470400000-0";
pub(crate) const OTHER: &str = "1764470400000-1";

/// Puts an order of sale 999, which is not there, among the dead letters.
pub(crate) fn order_of_no_sale(stand: &Stand, entry: &str) {
    // Stored in base64: v=1, s=999, u=buyer, b=1, e=1.
    let fields = [
        ("dg==", "MQ=="),
        ("cw==", "OTk5"),
        ("dQ==", "YnV5ZXI="),
        ("Yg==", "MQ=="),
        ("ZQ==", "MQ=="),
    ];
    stand.set_dead_letter(entry, &letter(json!(fields), "sale-missing"));
}

pub(crate) fn letter(fields: Value, reason: &str) -> String {
    let letter = json!({
        "v": 1, "fields": fields, "reason": reason, "detail": "as set aside", "attempts": 1,
        "consumers": ["worker-1"], "first_ms": 1_764_470_400_000_i64,
        "last_ms": 1_764_470_400_000_i64,
    });
    letter.to_string()
}

fn entries(listed: &Value) -> Vec<&str> {
    let dead = listed["dead"].as_array().expect("a list");
    dead.iter().map(|letter| letter["entry_id"].as_str().expect("an id")).collect()
}

#[test]
fn letters_are_listed_shown_and_tried_again() {
    let stand = Stand::sqlite();
    assert_eq!(stand.ok(&["dead", "list"]), "no dead letters\n");
    order_of_no_sale(&stand, ENTRY);
    order_of_no_sale(&stand, OTHER);

    assert_eq!(entries(&stand.json(&["dead", "list"])), [ENTRY, OTHER]);
    assert_eq!(entries(&stand.json(&["dead", "list", "--limit", "1"])), [ENTRY]);
    assert_eq!(entries(&stand.json(&["dead", "list", "--reason", "undecodable"])), [""; 0]);
    assert_eq!(entries(&stand.json(&["dead", "list", "--sale", "998"])), [""; 0]);

    // By its entry's id, or by its order's, which says the partition as well.
    let (entry, partition): (EntryId, _) = (ENTRY.parse().expect("an id"), Partition::new(0));
    let order = OrderId::from_entry(partition.expect("a partition"), entry).expect("an id");
    let order = order.to_string();
    for id in [ENTRY, &order] {
        let shown = stand.json(&["dead", "show", id]);
        assert_eq!(entries(&shown), [ENTRY]);
        let letter = &shown["dead"][0];
        assert_eq!((&letter["order_id"], &letter["user_id"]), (&json!(order), &json!("buyer")));
        assert_eq!(letter["fields"][2], json!(["u", "buyer"]));
    }
    let elsewhere = OrderId::from_entry(Partition::new(1).expect("a partition"), entry);
    let elsewhere = elsewhere.expect("an id").to_string();
    for id in ["1764470400000-9", &elsewhere] {
        assert!(stand.refused(1, &["dead", "show", id]).contains("there is no dead letter"));
    }

    let dry = stand.json(&["dead", "requeue", "--all", "--dry-run"]);
    assert_eq!((&dry["dry_run"], &dry["outcomes"][1]["settled"]), (&json!(true), &json!(false)));
    assert_eq!(stand.json(&["dead", "show", ENTRY])["dead"][0]["attempts"], 1);

    // What is still not settled is said by the exit code.
    let ran = stand.run(&["--json", "dead", "requeue", ENTRY]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let said: Value = serde_json::from_str(&ran.stdout).expect("is JSON");
    assert_eq!(said["outcomes"][0]["settled"], false);
    assert_eq!(stand.json(&["dead", "show", ENTRY])["dead"][0]["attempts"], 2);
    assert_eq!(stand.json(&["dead", "show", OTHER])["dead"][0]["attempts"], 1);
}

#[test]
fn a_letter_that_cannot_be_read_is_discarded_when_it_is_given_up() {
    let stand = Stand::sqlite();
    stand.set_dead_letter(ENTRY, &letter(json!([["dg==", "MQ=="]]), "undecodable"));
    assert!(stand.ok(&["dead", "reject", ENTRY, "--dry-run"]).contains("would be discarded"));
    assert!(stand.ok(&["dead", "reject", ENTRY]).contains("is discarded"));
    assert_eq!(stand.json(&["dead", "list"]), json!({ "dead": [] }));
    assert!(stand.refused(1, &["dead", "reject", ENTRY]).contains("there is no dead letter"));
}

#[test]
fn an_action_names_its_letters() {
    let stand = Stand::bare();
    for arguments in [
        &["dead", "requeue"][..],
        &["dead", "reject"],
        &["dead", "reject", ENTRY, "--all"],
        &["dead", "show", "no-id"],
    ] {
        assert_eq!(stand.run(arguments).code, Some(2), "{arguments:?}");
    }
}
