//! The database at hand: without a schema, out of reach, and both kinds of it.

use crate::stand::Stand;

#[test]
fn without_a_schema_the_way_to_it_is_named() {
    let stand = Stand::bare();
    let create = ["sale", "create", "--title", "T", "--stock", "1", "--opens", "now"];
    for arguments in [
        &[&create[..], &["--closes", "+1h"]].concat()[..],
        &["sale", "list"],
        &["sale", "publish", "1"],
        &["ledger", "1"],
        &["audit"],
    ] {
        let line = stand.refused(1, arguments);
        assert!(line.contains("run `salectl migrate`"), "{arguments:?}: {line}");
    }
}

#[test]
fn migrating_twice_changes_nothing() {
    let stand = Stand::bare();
    let first = stand.json(&["migrate"]);
    assert!(first["applied"].as_u64().expect("a number") > 0, "{first}");
    assert_eq!(stand.json(&["migrate"])["applied"], 0);
    assert_eq!(stand.ok(&["migrate"]), "the schema is up to date\n");
}

#[test]
fn a_store_out_of_reach_is_one_clear_line() {
    let stand = Stand::bare().with("FLASHSALE__DATABASE__URL", "sqlite:///nowhere/at/all.db");
    let line = stand.refused(1, &["sale", "list"]);
    assert!(line.contains("database.url"), "{line}");

    let url = "postgres://sales:hush@127.0.0.1:port/sales";
    let line = Stand::bare().with("FLASHSALE__DATABASE__URL", url).refused(1, &["sale", "list"]);
    assert!(line.contains("database.url") && !line.contains("hush"), "{line}");

    // The port of TCP's multiplexer, where nobody listens.
    let stand = Stand::sqlite().with("FLASHSALE__REDIS__URL", "redis://:hush@127.0.0.1:1");
    let sale = stand.create();
    let line = stand.refused(1, &["sale", "publish", &sale]);
    assert!(line.starts_with("redis"), "{line}");
    assert!(!line.contains("hush"), "{line}");
}

#[test]
fn a_sale_lives_on_postgres_as_on_sqlite() {
    let stand = Stand::postgres();
    let sale = stand.create();
    for (command, state) in [
        ("publish", "published"),
        ("pause", "paused"),
        ("resume", "published"),
        ("close", "closed"),
    ] {
        assert_eq!(stand.json(&["sale", command, &sale])["state"], state);
    }
    assert_eq!(stand.json(&["ledger", &sale])["balanced"], true);
    assert_eq!(stand.json(&["audit", &sale])["clean"], true);
}
