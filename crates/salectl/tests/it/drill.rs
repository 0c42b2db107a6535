//! Drills: where they are allowed, what they say, and that they can be undone.

use crate::stand::Stand;

#[test]
fn drills_are_refused_where_nobody_has_allowed_them() {
    let stand = Stand::sqlite();
    for drill in ["dead-letters", "gate-closed", "no-worker", "aof-off"] {
        let said = stand.refused(1, &["drill", drill]);
        assert!(said.contains("drills.allowed"), "{said}");
    }
    // What they would do can be read, and what one has left can be put right.
    let listed = stand.json(&["drill", "list"]);
    assert!(listed["drills"].as_array().expect("a list").len() >= 9, "{listed}");
    assert_eq!(stand.json(&["drill", "dead-letters", "--undo"])["removed"], serde_json::json!([]));
    let said = stand.run(&["drill", "nonsense"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("ledger-imbalance"), "{said:?}");
}

#[test]
fn in_production_drills_have_to_be_named_as_unsafe_too() {
    let stand = Stand::sqlite()
        .with("FLASHSALE__PROFILE", "production")
        .with("FLASHSALE__DRILLS__ALLOWED", "true");
    let said = stand.refused(1, &["drill", "ledger-imbalance"]);
    assert!(said.contains("allow_unsafe") && said.contains("`drills`"), "{said}");
    let doctor = stand.run(&["--json", "doctor"]);
    assert_eq!(doctor.code, Some(1), "{doctor:?}");
    assert!(doctor.stdout.contains("\"unsafe\":\"drills\""), "{doctor:?}");

    let stand = stand.with("FLASHSALE__ALLOW_UNSAFE", "sqlite,drills");
    stand.json(&["drill", "ledger-imbalance"]);
    stand.json(&["drill", "ledger-imbalance", "--undo"]);
}

#[test]
fn a_drill_says_what_fires_and_is_undone() {
    let stand = Stand::sqlite().with("FLASHSALE__DRILLS__ALLOWED", "true");
    let real = stand.create();
    stand.ok(&["sale", "publish", &real]);
    let drill = stand.json(&["drill", "ledger-imbalance"]);
    assert_eq!(drill["alerts"], serde_json::json!(["FlashsaleLedgerImbalance"]), "{drill}");
    assert_eq!(drill["runbook"], "docs/runbooks/ledger-imbalance.md");
    let sale = drill["sale_id"].as_str().expect("an id");
    assert_eq!(stand.run(&["ledger", sale]).code, Some(1));
    assert_eq!(stand.run(&["ledger", &real]).code, Some(0));
    let log = stand.json(&["audit-log", "--action", "drill"]);
    let line = (&log["lines"][0]["actor"], &log["lines"][0]["detail"]);
    assert_eq!(line, (&"salectl".into(), &"ledger-imbalance".into()), "{log}");

    let undone = stand.json(&["drill", "ledger-imbalance", "--undo"]);
    assert_eq!(undone["removed"], serde_json::json!([sale]));
    let sales = stand.json(&["sale", "list"]);
    assert_eq!(sales["sales"].as_array().map(Vec::len), Some(1), "{sales}");
    stand.ok(&["audit"]);
}

#[test]
fn a_rehearsal_says_what_it_needs() {
    let keyed = Stand::sqlite()
        .with("FLASHSALE__AUTH__JWT_SECRET", "")
        .with("FLASHSALE__AUTH__JWT_PUBLIC_KEY_FILE", "/dev/null");
    let said = keyed.refused(1, &["rehearse"]);
    assert!(said.contains("--tokens") && said.contains("rehearsal:1"), "{said}");
    let https = keyed.refused(2, &["rehearse", "--url", "https://shop.test"]);
    assert!(https.contains("http://"), "{https}");
    let sales = keyed.json(&["sale", "list"]);
    assert_eq!(sales["sales"], serde_json::json!([]), "nothing is begun");
    let ran = keyed.run(&["rehearse", "--buyers", "10001"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}
