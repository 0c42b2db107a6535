//! Each command from outside.

use flashsale_test_support::temp_dir;
use serde_json::{Value, json};

use crate::stand::{SECRET, Stand};

#[test]
fn a_sale_goes_through_its_whole_life() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    assert_eq!(stand.json(&["sale", "show", &sale])["state"], "draft");

    assert_eq!(stand.ok(&["sale", "publish", &sale]), format!("sale {sale} is published\n"));
    assert_eq!(stand.ok(&["sale", "publish", &sale]), format!("sale {sale} is published\n"));
    assert_eq!(stand.ok(&["sale", "pause", &sale]), format!("sale {sale} is paused\n"));
    assert_eq!(stand.ok(&["sale", "resume", &sale]), format!("sale {sale} is published\n"));
    assert_eq!(stand.json(&["sale", "close", &sale])["state"], "closed");
    assert!(stand.ok(&["sale", "list"]).contains("closed"));
}

#[test]
fn a_move_that_the_state_does_not_allow_is_refused_with_what_is_allowed() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    let refused = |command: &str, what: &str| {
        let line = stand.refused(1, &["sale", command, &sale]);
        assert!(line.contains(what), "{command}: {line}");
    };
    refused("pause", "is draft: only a published sale can be paused");
    refused("resume", "is draft: only a paused sale can be resumed");
    refused("close", "is draft: only a published or paused sale can be closed");
    stand.ok(&["sale", "publish", &sale]);
    stand.ok(&["sale", "pause", &sale]);
    refused("publish", &format!("salectl sale resume {sale}"));
    stand.ok(&["sale", "close", &sale]);
    for command in ["publish", "pause", "resume"] {
        refused(command, "is closed, and stays so");
    }
    assert_eq!(stand.refused(1, &["sale", "show", "999"]), "there is no sale 999");
}

#[test]
fn a_report_is_final_once_its_sale_is_closed() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    stand.ok(&["sale", "publish", &sale]);
    let text = stand.ok(&["report", &sale]);
    assert!(text.contains("of this moment, not final"), "{text}");
    let proof = "0 admitted = 0 rows + 0 queued + 0 dead: nothing is missing";
    assert!(text.contains(proof) && text.contains("every unit is accounted for"), "{text}");
    stand.ok(&["sale", "close", &sale]);
    let report = stand.json(&["report", &sale]);
    assert_eq!((&report["is_final"], &report["state"]), (&json!(true), &json!("closed")));
    assert_eq!(report["sold"]["left"], report["ledger"]["total"]);
    assert_eq!((&report["commit_lag"], &report["answers"]), (&Value::Null, &json!({})));
    assert_eq!(stand.refused(1, &["report", "4711"]), "there is no sale 4711");
}

#[test]
fn a_sale_whose_window_is_over_is_not_published() {
    let stand = Stand::sqlite();
    let create = ["sale", "create", "--title", "T", "--stock", "1"];
    let window = ["--opens", "2025-01-01T00:00:00Z", "--closes", "2025-01-01T00:00:00.001Z"];
    let sale = stand.ok(&[&create[..], &window].concat());
    let line = stand.refused(1, &["sale", "publish", sale.trim_end()]);
    assert!(line.contains("has ended already"), "{line}");
}

#[test]
fn a_sale_is_shown_as_it_was_created() {
    let stand = Stand::sqlite();
    let created = stand.json(&[
        "sale",
        "create",
        "--title",
        "限量",
        "--stock",
        "7",
        "--opens",
        "2030-11-11T00:00:00+08:00",
        "--closes",
        "2030-11-11T01:00:00.5+08:00",
        "--per-buyer",
        "2",
        "--price",
        "9900",
        "--currency",
        "EUR",
        "--payment-window",
        "1h 30m",
        "--late-payment",
        "refund",
        "--mode",
        "direct",
    ]);
    let id = created["sale_id"].as_str().expect("ids are strings").to_owned();
    let expected = json!({
        "sale_id": id,
        "title": "限量",
        "mode": "direct",
        "state": "draft",
        "stock_total": 7,
        "stock_left": 7,
        "opens_at": "2030-11-10T16:00:00.000Z",
        "closes_at": "2030-11-10T17:00:00.500Z",
        "per_buyer": 2,
        "price": {"amount": 9900, "currency": "EUR"},
        "payment_window_s": 5400,
        "late_payment": "refund",
        "partition": null,
        "epoch": created["epoch"],
    });
    assert_eq!(created, expected);
    assert_eq!(stand.json(&["sale", "show", &id]), expected);
    assert_eq!(stand.json(&["sale", "list"]), json!({"sales": [expected]}));

    let shown = stand.ok(&["sale", "show", &id]);
    for part in ["限量", "2030-11-10T17:00:00.500Z", "9900 EUR", "1h 30m", "direct"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn what_is_not_understood_is_exit_code_2_with_what_is_allowed() {
    let stand = Stand::bare();
    let create = |field: &str, value: &str| {
        let mut arguments = vec!["sale", "create"];
        for (name, good) in
            [("--title", "T"), ("--stock", "5"), ("--opens", "now"), ("--closes", "+1h")]
        {
            arguments.extend([name, if name == field { value } else { good }]);
        }
        if !arguments.contains(&field) {
            arguments.extend([field, value]);
        }
        stand.run(&arguments)
    };
    for (field, value, allowed) in [
        ("--title", " ", "1 to 200 characters"),
        ("--stock", "0", "1 to 100000000"),
        ("--stock", "-5", "1 to 100000000"),
        ("--opens", "tomorrow", "RFC 3339"),
        ("--closes", "now", "closes after it opens"),
        ("--per-buyer", "21", "1..=20"),
        ("--price", "-1", "from 0"),
        ("--currency", "yuan", "three capital letters"),
        ("--payment-window", "0s", "at least one"),
        ("--payment-window", "31days", "30 days"),
        ("--mode", "later", "queued"),
    ] {
        let ran = create(field, value);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{field} {value}: {ran:?}");
        assert!(ran.stderr.contains(allowed), "{field} {value}: {}", ran.stderr);
    }
    for arguments in [&[][..], &["sale"], &["sale", "show", "x"], &["frobnicate"]] {
        assert_eq!(stand.run(arguments).code, Some(2), "{arguments:?}");
    }

    let stand = Stand::bare().with("FLASHSALE__REDIS__PARTITIONS", "0");
    let line = stand.refused(2, &["sale", "list"]);
    assert!(line.contains("redis.partitions") && line.contains("from 1 to 1023"), "{line}");
}

#[test]
fn a_token_is_good_for_its_holder_until_it_expires() {
    let stand = Stand::bare();
    let claims = |arguments: &[&str]| -> Value {
        let printed = stand.ok(&[&["token", "--sub", "用户-1"], arguments].concat());
        let key = jsonwebtoken::DecodingKey::from_secret(SECRET.as_bytes()).expect("a key");
        // The default checks the signature, HS256, and that `exp` is there and ahead.
        let validation = jsonwebtoken::Validation::default();
        jsonwebtoken::decode::<Value>(printed.trim_end(), &key, &validation)
            .expect("is valid")
            .claims
    };
    let buyer = claims(&[]);
    assert_eq!(buyer["sub"], "用户-1");
    assert_eq!(buyer.get("role"), None);
    let seconds = |claims: &Value, name: &str| claims[name].as_i64().expect("whole seconds");
    assert_eq!(seconds(&buyer, "exp") - seconds(&buyer, "iat"), 3600);

    let admin = claims(&["--admin", "--ttl", "5m"]);
    assert_eq!(admin["role"], "admin");
    assert_eq!(seconds(&admin, "exp") - seconds(&admin, "iat"), 300);

    let minted = stand.json(&["token", "--sub", "b", "--ttl", "100000000years"]);
    assert_eq!(minted["expires_at"], "9999-12-31T23:59:59.000Z");
    assert_eq!(stand.run(&["token", "--sub", ""]).code, Some(2));
}

#[test]
fn without_the_secret_no_token_is_made() {
    let stand = Stand::bare()
        .with("FLASHSALE__AUTH__JWT_SECRET", "")
        .with("FLASHSALE__AUTH__JWT_PUBLIC_KEY_FILE", "/etc/flashsale/key.pem");
    let line = stand.refused(1, &["token", "--sub", "b"]);
    assert!(line.contains("a public key cannot sign"), "{line}");

    let stand = Stand::bare().with("FLASHSALE__AUTH__JWT_SECRET", "");
    let line = stand.refused(2, &["token", "--sub", "b"]);
    assert!(line.contains("auth.jwt_secret"), "{line}");
}

#[test]
fn units_that_went_missing_are_named() {
    let stand = Stand::sqlite();
    let (sale, other) = (stand.create(), stand.create());
    stand.ok(&["sale", "publish", &sale]);
    stand.ok(&["sale", "publish", &other]);
    let ledger = stand.json(&["ledger", &sale]);
    assert_eq!((&ledger["balanced"], &ledger["imbalance"]), (&json!(true), &json!(0)));
    assert_eq!(ledger["sale_id"], sale.as_str());
    assert_eq!(ledger["redis"]["available"], 10);
    assert_eq!(stand.json(&["audit"])["audits"].as_array().map(Vec::len), Some(2));

    stand.shift_stock(&sale, -3);

    let ran = stand.run(&["ledger", &sale]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("IMBALANCE of 3"), "{}", ran.stdout);
    assert!(ran.stdout.contains("total 10 is not available 7 + held 0"), "{}", ran.stdout);
    assert_eq!(ran.stderr, "");

    let ran = stand.run(&["audit", &sale]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains(&format!("sale {sale}: 1 FINDING")), "{}", ran.stdout);
    assert!(ran.stdout.contains("I7  redis: total 10 is not available 7"), "{}", ran.stdout);

    let ran = stand.run(&["audit", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let audits: Value = serde_json::from_str(&ran.stdout).expect("is JSON");
    assert_eq!(audits["clean"], false);
    let of = |id: &str| {
        let audits = audits["audits"].as_array().expect("a list");
        audits.iter().find(|audit| audit["sale_id"] == id).expect("is audited")["findings"].clone()
    };
    assert_eq!(of(&sale)[0]["invariant"], "I7");
    assert_eq!(of(&other), json!([]));
}

#[test]
fn a_rebuild_loads_what_the_database_knows() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    let line = stand.refused(1, &["rebuild", &sale]);
    assert!(line.contains("never published"), "{line}");

    stand.ok(&["sale", "publish", &sale]);
    stand.shift_stock(&sale, 5);
    assert_eq!(stand.run(&["ledger", &sale]).code, Some(1));
    let rebuilt = stand.json(&["rebuild", &sale]);
    assert_eq!(rebuilt["partition"], 0);
    assert_eq!(rebuilt["sales"][0]["sale_id"], sale.as_str());
    assert_eq!(rebuilt["sales"][0]["stock"], 10);
    assert_eq!(stand.json(&["ledger", &sale])["redis"]["gate_open"], true);
    assert_eq!(stand.json(&["audit", &sale])["clean"], true);
}

#[test]
fn a_receipt_without_its_order_is_found() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    stand.ok(&["sale", "publish", &sale]);

    let none = stand.file("none.csv", "order_id,buyer\n");
    let audited = stand.json(&["audit", &sale, "--receipts", &none]);
    assert_eq!(audited["clean"], true);

    let lost = stand.file("lost.csv", "order_id,buyer\n123456789,b-1\n");
    let ran = stand.run(&["audit", &sale, "--receipts", &lost]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("I4  order 123456789 was answered to b-1"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 receipts checked"), "{}", ran.stdout);

    let other = stand.file("other.csv", "id;name\n");
    let line = stand.refused(2, &["audit", &sale, "--receipts", &other]);
    assert!(line.contains("order_id,buyer"), "{line}");
    let line = stand.refused(2, &["audit", &sale, "--receipts", "missing.csv"]);
    assert!(line.contains("missing.csv cannot be read"), "{line}");
    let line = stand.refused(2, &["audit", &sale, "--receipts", "/dev/zero"]);
    assert!(line.contains("its first line"), "a file without an end: {line}");
    assert_eq!(stand.run(&["audit", "--receipts", &none]).code, Some(2), "whose receipts?");
}

#[test]
fn what_needs_no_store_asks_none() {
    let directory = temp_dir("salectl-flags");
    let run = |arguments: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_salectl"));
        command.args(arguments.split(' ')).current_dir(directory.path());
        let output = command.env("FLASHSALE_CONFIG", "/nowhere").output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).expect("is UTF-8")
    };
    assert!(run("--print-defaults").contains("[database]"));
    let version = run("--version");
    let number = concat!("salectl ", env!("CARGO_PKG_VERSION"), " (commit ");
    assert!(version.starts_with(number) && version.ends_with(")\n"), "{version}");
    assert!(run("--help").contains("ledger"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&format!("completions {shell}"));
        assert_eq!(run(&format!("--json completions {shell}")), script);
        // Commands, those below them, and a flag of one of those.
        for word in ["migrate", "audit-log", "requeue", "per-buyer", "completions"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    // The shell itself takes it, where it is there.
    let script = directory.path().join("salectl.bash");
    std::fs::write(&script, run("completions bash")).expect("a file can be written");
    let asked = "source \"$0\"; complete -p salectl";
    let bash = std::process::Command::new("bash").args(["-c", asked]).arg(&script).output();
    let bash = bash.expect("bash is there, as every script of ours needs it");
    assert!(bash.status.success(), "{bash:?}");
    assert!(String::from_utf8_lossy(&bash.stdout).contains("salectl"), "{bash:?}");
}
