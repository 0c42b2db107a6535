//! Settings from outside: what is wrong stops every program with its key, the printed defaults are
//! settings, and no secret comes out again.

use std::time::Duration;

use flashsale_test_support::{Program, binary, eventually_blocking, free_port};

use crate::stack::{PASSWORD, SECRET, SOON, Stack, ended, report};

/// Each program, with arguments that let it start to work.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("gateway", &[]),
    ("order-worker", &[]),
    ("salectl", &["sale", "list"]),
    ("rush", &["--url", "http://127.0.0.1:1", "--sale", "1"]),
];

#[test]
fn a_wrong_setting_stops_every_program_with_its_key() {
    let directory = flashsale_test_support::temp_dir("settings");
    let file = directory.path().join("flashsale.toml");
    std::fs::write(&file, "[worker]\nbatsch = 5\n").expect("a file can be written");
    let file = file.to_str().expect("is UTF-8").to_owned();
    let cases = [
        ("FLASHSALE__REDIS__PARTITIONS", "0".to_owned(), "redis.partitions", "1023"),
        ("FLASHSALE__WORKER__BLOCK", "soon".to_owned(), "worker.block", "10ms"),
        ("FLASHSALE__HTTP__LISTEN", "nowhere".to_owned(), "http.listen", "address"),
        ("FLASHSALE__WORKER__BATSCH", "5".to_owned(), "worker.batsch", "batch"),
        ("FLASHSALE_CONFIG", file, "worker.batsch", "batch"),
    ];
    for (program, arguments) in PROGRAMS {
        for (variable, value, key, hint) in &cases {
            let run = Program::start(binary(program), &[(*variable, value.clone())], arguments);
            let code = ended(&run).code().expect("it is not killed");
            let log = run.log();
            assert_ne!(code, 0, "{program} {variable}: {log}");
            assert!(log.contains(key), "{program} {variable}: {log}");
            assert!(log.contains(hint), "{program} {variable} does not say what is allowed: {log}");
        }
    }
}

#[test]
fn every_program_says_its_version_and_commit() {
    for (name, _) in PROGRAMS {
        let run = Program::start(binary(name), &[], &["--version"]);
        assert_eq!(ended(&run).code(), Some(0), "{name}");
        let said = run.log();
        let version = concat!(env!("CARGO_PKG_VERSION"), " (commit ");
        let (program, rest) = said.trim_end().split_once(' ').expect("a name and a version");
        assert_eq!(program, name);
        assert!(rest.starts_with(version) && rest.ends_with(')'), "{said}");
    }
}

#[test]
fn the_printed_defaults_are_settings_that_every_program_takes() {
    let stack = Stack::sqlite();
    let sale = stack.open_sale(10, "queued");
    for (program, _) in PROGRAMS {
        let printed = stack.start(program, &["--print-defaults"]);
        assert_eq!(ended(&printed).code(), Some(0));
        let file = stack.path(&format!("{program}.toml"));
        std::fs::write(&file, printed.log()).expect("a file can be written");
    }
    // The environment wins over the file, so that the programs meet in this test's stores.
    let configured = |stack: Stack, program: &str| {
        let file = stack.path(&format!("{program}.toml"));
        stack.with("FLASHSALE_CONFIG", &file)
    };
    let stack = configured(stack, "gateway");
    let gateway = stack.gateway();
    let stack = configured(stack, "order-worker");
    let _worker = stack.worker();
    let stack = configured(stack, "salectl");
    assert!(stack.salectl(&["sale", "list"]).contains("Voucher"));
    let stack = configured(stack, "rush");
    let (rush, code) = report(&stack.rush(&[&gateway], &sale, &["--buyers", "20", "--verify"]));
    assert_eq!((code, &rush["orders"]), (Some(0), &10.into()), "{rush}");
}

#[test]
fn no_secret_is_logged() {
    let stack = Stack::postgres();
    let sale = stack.open_sale(20, "queued");
    let token = stack.salectl(&["token", "--sub", "buyer"]);
    let stack = stack.with("FLASHSALE__LOG__FILTER", "debug");
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let order = |authorization: &str| {
        let head = format!("POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\n");
        let rest = format!("authorization: {authorization}\r\nidempotency-key: key-of-mine-1\r\n");
        gateway.send(&format!("{head}{rest}content-length: 0\r\nconnection: close\r\n\r\n"))
    };
    let (status, answer) = order(&format!("Bearer {token}"));
    assert_eq!(status, 202, "{answer}");
    let forged = format!("{}x", token.replace('.', ".A"));
    assert_eq!(order(&format!("Bearer {forged}")).0, 401);
    let (rush, _) = report(&stack.rush(&[&gateway], &sale, &["--buyers", "100", "--verify"]));
    assert_eq!((&rush["orders"], &rush["confirmed"]), (&19.into(), &19.into()), "{rush}");
    for member in [&gateway, &worker] {
        member.program.terminate();
        member.must_end_well(Duration::from_secs(30));
        let log = member.program.log();
        assert!(!log.is_empty(), "there is a log");
        for secret in [SECRET, PASSWORD, &token, &forged, "key-of-mine-1"] {
            assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
        }
    }
}

#[test]
fn a_database_out_of_reach_is_told_without_its_password() {
    for program in ["gateway", "order-worker"] {
        let url = format!("postgres://sales:{PASSWORD}@127.0.0.1:{}/sales", free_port());
        let run = Program::builder(binary(program))
            .env("FLASHSALE__DATABASE__URL", url)
            .env("FLASHSALE__DATABASE__CONNECT_TIMEOUT", "300ms")
            .env("FLASHSALE__AUTH__JWT_SECRET", SECRET)
            .env("FLASHSALE__HTTP__LISTEN", format!("127.0.0.1:{}", free_port()))
            .env("FLASHSALE__ADMIN__LISTEN", format!("127.0.0.1:{}", free_port()))
            .start();
        let status = eventually_blocking(SOON, "the end", || run.exit_status());
        let log = run.log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("database.url"), "{log}");
        assert!(!log.contains(PASSWORD) && !log.contains(SECRET), "{log}");
    }
}

#[test]
fn a_container_asks_its_program_for_its_health() {
    let stack = Stack::sqlite();
    for (name, member) in [("gateway", stack.gateway()), ("order-worker", stack.worker())] {
        // Either program asks for either: the image has one health check.
        for asked in ["gateway", "order-worker"] {
            let (code, said) = stack.health(asked, &member);
            assert_eq!(code, Some(0), "{name}: {said}");
            assert!(said.contains(r#""ready":true"#), "{name}: {said}");
        }
        member.program.kill_9();
        let (code, said) = stack.health("gateway", &member);
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains("admin.listen"), "{name}: {said}");
    }
}
