//! `salectl rehearse` through nginx and the real programs: a whole sale, of which nothing is left.

use std::io::Write as _;
use std::net::TcpListener;

use flashsale_test_support::{RedisServer, eventually_blocking, free_port};
use serde_json::Value;

use crate::nginx::before;
use crate::stack::{Member, SOON, Stack, ended, exchange};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Every key of a Redis.
fn keys(redis: &RedisServer) -> Vec<String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", redis.port())).expect("connect");
    stream.write_all(b"KEYS *\r\nQUIT\r\n").expect("write");
    let answer = std::io::read_to_string(stream).expect("read");
    answer.lines().filter(|line| line.starts_with("fs:")).map(str::to_owned).collect()
}

fn port_of(gateway: &Member) -> u16 {
    let address = gateway.http_addr();
    address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

fn get(port: u16, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    exchange(port, &request).expect("an answer")
}

fn rehearsals_leave_nothing(stack: Stack) {
    let redis = RedisServer::builder().append_only(true).start();
    // The shop: nobody may tell it anything.
    let shop = TcpListener::bind("127.0.0.1:0").expect("a port");
    shop.set_nonblocking(true).expect("a listener");
    let url = format!("http://{}/hooks", shop.local_addr().expect("an address"));
    let stack = stack
        .with("FLASHSALE__REDIS__URL", &redis.url())
        .with("FLASHSALE__REDIS__PREFIX", "fs")
        .with("FLASHSALE__PAYMENT__WEBHOOK_SECRET", SECRET)
        .with("FLASHSALE__WEBHOOKS__URL", &url)
        .with("FLASHSALE__WEBHOOKS__SECRET", SECRET);
    let (first, second, worker) = (stack.gateway(), stack.gateway(), stack.worker());
    // With the limits for one client, which the rehearsal's buyers are to the proxy.
    let nginx = before(&[&first, &second]).start();
    let front = format!("http://127.0.0.1:{}", nginx.port());
    let real = stack.open_sale(5, "queued");
    let keys_before = keys(&redis);

    let play = ["rehearse", "--url", &front, "--buyers", "45", "--payment-window", "15s"];
    let rehearsal = stack.start("salectl", &[&["--json"], &play[..]].concat());
    // While it is played nobody sees it, and nobody else is admitted.
    let listed = |what: &str| {
        let sales = stack.salectl_json(&["sale", "list"]);
        let sales = sales["sales"].as_array().expect("a list").clone();
        sales.into_iter().find(|sale| sale["title"] == what)
    };
    let shadow = eventually_blocking(SOON, "the rehearsal's sale is published", || {
        match listed("Rehearsal") {
            Some(sale) if sale["state"] == "published" => Ok(sale),
            other => Err((other, rehearsal.log())),
        }
    });
    let shadow = shadow["sale_id"].as_str().expect("an id").to_owned();
    let stranger = stack.salectl(&["token", "--sub", "alice"]);
    let order = format!(
        "POST /api/v1/sales/{shadow}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-length: 0\r\nauthorization: Bearer {stranger}\r\n\r\n"
    );
    let (status, told) = exchange(port_of(&first), &order).expect("an answer");
    assert_eq!(status, 404, "{told}");
    // Neither by what is told from memory, before anybody looks who asks, nor by a list of orders.
    let forged = order.replace(&stranger, "e30.e30.e30");
    let orders = format!(
        "GET /api/v1/orders?sale={shadow} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {stranger}\r\n\r\n"
    );
    for (request, expected) in [(&forged, 401), (&orders, 404)] {
        let (status, told) = exchange(port_of(&first), request).expect("an answer");
        assert_eq!(status, expected, "{told}");
    }
    assert_eq!(get(port_of(&first), &format!("/api/v1/sales/{shadow}")).0, 404);
    let (_, public) = get(port_of(&first), "/api/v1/sales");
    assert!(public.contains(&format!("\"sale_id\":\"{real}\"")), "{public}");
    assert!(!public.contains(&format!("\"sale_id\":\"{shadow}\"")), "{public}");

    let code = ended(&rehearsal).code();
    let log = rehearsal.log();
    let played = log.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{log}"));
    let played: Value = serde_json::from_str(played).expect("is JSON");
    assert_eq!(code, Some(0), "{played}\n{log}");
    assert_eq!(played["good"], true, "{played}");
    assert_eq!(played["answers"], serde_json::json!({"admitted": 27, "sold-out": 18}));
    let decided = [&played["paid"], &played["cancelled"], &played["expired"]];
    assert_eq!(decided, [&Value::from(9), &Value::from(9), &Value::from(9)], "{played}");

    // Nothing is left.
    assert!(listed("Rehearsal").is_none());
    let (code, said) = stack.try_salectl(&["report", &shadow]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("there is no sale"), "{said}");
    eventually_blocking(SOON, "Redis has the keys of before", || {
        let now = keys(&redis);
        let new: Vec<_> = now.iter().filter(|key| !keys_before.contains(key)).collect();
        // Who watches, and for how long; they run out by themselves.
        let is_lock = |key: &str| key.ends_with(":ledger") || key.ends_with(":suspects");
        if new.iter().all(|key| is_lock(key)) { Ok(()) } else { Err(format!("{new:?}")) }
    });
    assert!(shop.accept().is_err(), "the shop was told of a rehearsal");
    assert!(worker.metrics().contains("flashsale_events_waiting 0"), "{}", worker.metrics());
    for gateway in [&first, &second] {
        let shown = format!("flashsale_stock_left{{sale=\"{shadow}\"}}");
        assert!(!gateway.metrics().contains(&shown));
    }
    let audit = stack.salectl_json(&["audit"]);
    assert_eq!(audit["clean"], true, "{audit}");
    let log = stack.salectl_json(&["audit-log", "--subject", &shadow]);
    let actions: Vec<&str> = log["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .filter_map(|line| line["action"].as_str())
        .collect();
    assert_eq!(actions, ["rehearsal.clean-up", "sale.close", "rehearsal.begin"], "{log}");
}

#[test]
fn a_rehearsal_through_nginx_leaves_nothing_behind_on_sqlite() {
    rehearsals_leave_nothing(Stack::sqlite());
}

#[test]
fn a_rehearsal_through_nginx_leaves_nothing_behind_on_postgres() {
    rehearsals_leave_nothing(Stack::postgres());
}

#[test]
fn a_rehearsal_that_was_killed_is_cleaned_up_by_the_next_one() {
    let stack = Stack::sqlite();
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let front = format!("http://{}", gateway.http_addr());
    // Orders wait for a worker that is gone, and the rehearsal for them.
    worker.program.kill_9();
    let play = ["rehearse", "--url", &front, "--buyers", "10"];
    let killed = stack.start("salectl", &play);
    eventually_blocking(SOON, "orders are admitted", || {
        let log = killed.log();
        if log.contains("6 orders are admitted") { Ok(()) } else { Err(log) }
    });
    killed.kill_9();
    let left = stack.salectl_json(&["sale", "list"]);
    let left = left["sales"][0]["sale_id"].as_str().expect("an id").to_owned();

    let _worker = stack.again("order-worker", &worker);
    let done = stack.salectl_json(&["rehearse", "--clean-up"]);
    assert_eq!(done["cleaned_up"], serde_json::json!([left]), "{done}");
    let sales = stack.salectl_json(&["sale", "list"]);
    assert_eq!(sales["sales"], serde_json::json!([]));
    // Nobody listens: nothing is begun that could not be ended.
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let (code, said) =
        stack.try_salectl(&["rehearse", "--url", &nowhere, "--buyers", "2", "--timeout", "2s"]);
    assert_eq!(code, Some(1), "{said}");
    let sales = stack.salectl_json(&["sale", "list"]);
    assert_eq!(sales["sales"], serde_json::json!([]), "{said}");
}

#[test]
fn somebody_else_may_sign_the_tokens_of_a_rehearsals_buyers() {
    let stack = Stack::sqlite();
    let (gateway, _worker) = (stack.gateway(), stack.worker());
    let front = format!("http://{}", gateway.http_addr());
    let rehearse = |subs: [&str; 3]| {
        let tokens = subs.map(|sub| stack.salectl(&["token", "--sub", sub]));
        let file = stack.path("tokens");
        std::fs::write(&file, tokens.join("\n")).expect("a file can be written");
        let play = ["rehearse", "--url", &front, "--tokens", &file, "--payment-window", "2s"];
        stack.try_salectl(&[&["--json"], &play[..]].concat())
    };
    let (code, said) = rehearse(["rehearsal:1", "rehearsal:2", "rehearsal:3"]);
    assert_eq!(code, Some(0), "{said}");
    // Who is no rehearsal's buyer gets nothing, and the rehearsal says so.
    let (code, said) = rehearse(["rehearsal:1", "alice", "bob"]);
    assert!(said.contains("sale-not-found") && !said.contains("sold-out"), "{said}");
    assert!(said.contains("\"cleaned_up\":true"), "{code:?} {said}");
}
