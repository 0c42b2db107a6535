//! `--remote`: the same commands through a gateway, by somebody who can reach no store.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use flashsale_test_support::{Program, binary, eventually, forget_settings, free_port};
use serde_json::{Value, json};

use crate::dead::{ENTRY, OTHER, letter, order_of_no_sale};
use crate::stand::{Ran, Stand};

/// For whatever should happen at once: only a broken program takes this long.
const SOON: Duration = Duration::from_secs(30);

/// A deployment with a gateway, and an operator far away from the stores.
struct Far {
    stand: Stand,
    url: String,
    token: String,
    _gateway: Program,
}

impl Far {
    fn new(stand: Stand) -> Self {
        let free = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let admin = free();
        let mut gateway = Program::builder(binary("gateway"))
            .env("FLASHSALE__HTTP__LISTEN", free().to_string())
            .env("FLASHSALE__ADMIN__LISTEN", admin.to_string());
        for (name, value) in stand.variables() {
            gateway = gateway.env(name, value);
        }
        let gateway = gateway.start();
        let url = format!("http://{admin}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(eventually(SOON, "the gateway serves", async || {
            reqwest::get(format!("{url}/readyz")).await.is_ok_and(|answer| answer.status() == 200)
        }));
        let token = stand.ok(&["token", "--sub", "far", "--admin"]).trim_end().to_owned();
        Self { stand, url, token, _gateway: gateway }
    }

    /// The program, with nothing of the deployment but the gateway's address.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_salectl"));
        forget_settings(&mut command);
        // Who asked the stores would fail at once.
        command
            .env("FLASHSALE__DATABASE__URL", "postgres://nobody@127.0.0.1:1/nothing")
            .env("FLASHSALE__REDIS__URL", "redis://127.0.0.1:1")
            .args(["--remote", &self.url])
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.env("FLASHSALE_TOKEN", &self.token);
        Ran::of(command)
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}: {ran:?}");
        ran.stdout
    }

    /// What is printed and said is the same from here as from beside the stores, as text and as JSON.
    fn same(&self, arguments: &[&str]) -> Ran {
        self.same_once(&[&["--json"], arguments].concat());
        self.same_once(arguments)
    }

    fn same_once(&self, arguments: &[&str]) -> Ran {
        let (near, far) = (self.stand.run(arguments), self.run(arguments));
        assert_eq!(far.stdout, near.stdout, "{arguments:?}");
        assert_eq!((far.code, &far.stderr), (near.code, &near.stderr), "{arguments:?}");
        far
    }
}

#[test]
fn a_sale_is_run_from_far_away_and_looks_the_same() {
    let far = Far::new(Stand::sqlite());
    far.same(&["sale", "list"]);
    let create = [
        "sale",
        "create",
        "--title",
        "Voucher",
        "--stock",
        "10",
        "--opens",
        "now",
        "--closes",
        "+1h",
        "--price",
        "9900",
        "--currency",
        "EUR",
        "--per-buyer",
        "2",
        "--payment-window",
        "5m",
        "--late-payment",
        "refund",
    ];
    let sale = far.ok(&create).trim_end().to_owned();
    let shown = far.stand.json(&["sale", "show", &sale]);
    assert_eq!(
        [&shown["per_buyer"], &shown["price"], &shown["payment_window_s"], &shown["late_payment"]],
        [&json!(2), &json!({ "amount": 9900, "currency": "EUR" }), &json!(300), &json!("refund")]
    );
    far.same(&["sale", "show", &sale]);
    let edited = far.ok(&[
        "--json",
        "sale",
        "edit",
        &sale,
        "--title",
        "Ticket",
        "--closes",
        "2089-01-01T00:00:00Z",
        "--price",
        "5",
        "--currency",
        "CNY",
        "--payment-window",
        "1m",
        "--late-payment",
        "reacquire",
    ]);
    let edited: Value = serde_json::from_str(&edited).expect("is JSON");
    let expected = json!({ "title": "Ticket", "closes_at": "2089-01-01T00:00:00.000Z",
        "price": { "amount": 5, "currency": "CNY" }, "payment_window_s": 60, "per_buyer": 2,
        "late_payment": "reacquire", "opens_at": shown["opens_at"] });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(edited[field], *value, "{field}");
    }
    for edit in [
        &["--per-buyer", "3"][..],
        &["--title", " "],
        &["--opens", "2090-01-01T00:00:00Z"],
        &["--opens", "2025-01-01T00:00:00Z", "--title", "Voucher"],
        &[],
    ] {
        far.same(&[&["sale", "edit", &sale][..], edit].concat());
    }
    far.same(&["sale", "pause", &sale]);
    far.same(&["sale", "publish", &sale]);
    far.same(&["sale", "edit", &sale, "--per-buyer", "1"]);
    assert!(far.same(&["workers"]).stdout.contains("NO WORKER"));
    assert_eq!(far.ok(&["sale", "pause", &sale]), format!("sale {sale} is paused\n"));
    far.same(&["sale", "publish", &sale]);
    assert_eq!(far.ok(&["sale", "resume", &sale]), format!("sale {sale} is published\n"));

    let stock = ["sale", "stock", &sale, "--delta", "+5", "--reason", "more came"];
    let said = format!("sale {sale} has 15 units, 15 left (in the database)\n");
    let keyed = [&stock[..], &["--key", "k"]].concat();
    assert_eq!(far.ok(&keyed), said);
    assert_eq!(far.ok(&keyed), said, "asked again under its key");
    assert_eq!(far.stand.ok(&keyed), said, "and from beside the stores");
    assert!(far.ok(&stock).contains("has 20 units"), "without a key it is another one");
    far.same(&["sale", "stock", &sale, "--delta", "-21", "--reason", "r"]);
    far.same(&["sale", "stock", &sale, "--delta", "0", "--reason", "r"]);

    far.same(&["ledger", &sale]);
    far.stand.shift_stock(&sale, 3);
    // An imbalance is read twice, a second apart.
    assert_eq!(far.same_once(&["ledger", &sale]).code, Some(1), "the exit code tells it");
    far.stand.shift_stock(&sale, -3);
    far.same(&["report", &sale]);
    let rebuilt = far.ok(&["--json", "rebuild", &sale]);
    let rebuilt: Value = serde_json::from_str(&rebuilt).expect("is JSON");
    assert_eq!(rebuilt["sales"][0]["stock"], 20);
    assert!(far.ok(&["rebuild", &sale]).starts_with("partition 0 is rebuilt and open\n"));
    far.same(&["sale", "close", &sale]);
    far.same(&["report", &sale]);
    far.same(&["sale", "resume", &sale]);
    far.same(&["sale", "list"]);
    let log = far.same(&["audit-log", "--subject", &sale, "--actor", "far", "--limit", "3"]).stdout;
    assert!(log.lines().count() == 3 && log.contains("sale.close"), "{log}");
    far.same(&["audit-log", "--action", "sale.stock"]);
    far.same(&["audit-log", "--actor", "nobody"]);
    for command in [&["sale", "show", "999"][..], &["ledger", "999"], &["rebuild", "999"]] {
        assert!(far.same(command).stderr.contains("there is no sale 999"));
    }
}

#[test]
fn dead_letters_are_settled_from_far_away() {
    let far = Far::new(Stand::sqlite());
    far.same(&["dead", "list"]);
    order_of_no_sale(&far.stand, ENTRY);
    far.stand.set_dead_letter(OTHER, &letter(json!([["dg==", "MQ=="]]), "undecodable"));
    for command in [
        &["dead", "list"][..],
        &["dead", "list", "--limit", "1"],
        &["dead", "list", "--reason", "undecodable"],
        &["dead", "list", "--sale", "999"],
        &["dead", "show", ENTRY],
        &["dead", "show", "1764470400000-9"],
        &["dead", "requeue", "--all", "--dry-run"],
        &["dead", "reject", OTHER, "--dry-run"],
        &["dead", "reject", "--all", "--sale", "998"],
    ] {
        far.same(command);
    }
    let ran = far.run(&["dead", "requeue", ENTRY]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
    let shown = far.stand.json(&["dead", "show", ENTRY]);
    assert_eq!(shown["dead"][0]["consumers"], json!(["worker-1", "far"]), "the operator is named");
    let outcomes = far.ok(&["dead", "reject", "--all"]);
    assert_eq!(outcomes.lines().count(), 2, "{outcomes}");
    assert_eq!(far.ok(&["dead", "list"]), "no dead letters\n");
}

#[test]
fn what_needs_the_stores_says_so_and_a_token_is_no_argument() {
    let far = Far::new(Stand::sqlite());
    for command in [
        &["migrate"][..],
        &["doctor"],
        &["audit"],
        &["settle", "1"],
        &["refunds", "list"],
        &["pay", "385644540322643969"],
        &["token", "--sub", "me"],
    ] {
        let ran = far.run(command);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{command:?}: {ran:?}");
        let said = format!("`salectl {}` is not to be had with --remote", command[0]);
        assert!(ran.stderr.contains(&said), "{ran:?}");
    }

    let refused = |command: Command, code: i32, what: &str| {
        let ran = Ran::of(command);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), ""), "{ran:?}");
        assert!(ran.stderr.contains(what), "{what}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    };
    let list = ["sale", "list"];
    refused(far.command(&list), 2, "FLASHSALE_TOKEN");
    let mut two_words = far.command(&list);
    two_words.env("FLASHSALE_TOKEN", "two words");
    refused(two_words, 2, "one word");
    let mut wrong = far.command(&list);
    wrong.env("FLASHSALE_TOKEN", "no.token.atall");
    refused(wrong, 1, "the token is not valid");
    let mut buyer = far.command(&list);
    buyer.env("FLASHSALE_TOKEN", far.stand.ok(&["token", "--sub", "alice"]).trim_end());
    refused(buyer, 1, "the token needs the role admin");
    refused(far.command(&["sale", "list", "--token-file", "/nowhere"]), 2, "--token-file /nowhere");
    let idle = far.stand.refused(2, &["sale", "list", "--token-file", "/nowhere"]);
    assert!(idle.contains("--token-file is for --remote alone"), "{idle}");
    let file = far.stand.file("token", &format!("{}\n", far.token));
    let from_file = Ran::of(far.command(&["sale", "list", "--token-file", &file]));
    assert_eq!(from_file.code, Some(0), "{from_file:?}");

    for (url, code, what) in [
        ("https://127.0.0.1:1", 2, "only http:// is built in"),
        ("http://me:secret@127.0.0.1:1", 2, "the token comes from elsewhere"),
        ("no url", 2, "--remote"),
        ("http://127.0.0.1:1", 1, "the gateway has not answered"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_salectl"));
        forget_settings(&mut command);
        command.env("FLASHSALE_TOKEN", &far.token).args(["sale", "list", "--remote", url]);
        refused(command, code, what);
    }
    let mut stock = Command::new(env!("CARGO_BIN_EXE_salectl"));
    forget_settings(&mut stock);
    stock.env("FLASHSALE_TOKEN", &far.token).args(["--remote", "http://127.0.0.1:1", "sale"]);
    stock.args(["stock", "1", "--delta", "1", "--reason", "r"]);
    refused(stock, 1, "ask again with --key salectl-");
}
