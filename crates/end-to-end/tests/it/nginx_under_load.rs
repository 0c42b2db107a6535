//! A sale through nginx while gateways are killed and everything is restarted in turn.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use flashsale_test_support::eventually_blocking;
use serde_json::Value;

use crate::after_order::token;
use crate::drain::stopped_with;
use crate::nginx::before;
use crate::stack::{Member, SOON, Stack, exchange, report};

/// Of a crowd.
const CONNECTIONS: u64 = 64;

/// Whether bytes that were sent to this port have not been read by who listens there.
fn has_unread_request(member: &Member) -> bool {
    let address = member.http_addr();
    let port: u16 = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux says what is connected");
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_there = fields[1].ends_with(&format!(":{port:04X}"));
        // Connected, and its queue of received bytes is not empty.
        is_there && fields[3] == "01" && !fields[4].ends_with(":00000000")
    })
}

/// Sends orders until the paused gateway has one in its hands, and kills it; what that one is answered,
/// and how many were placed.
fn an_order_in_the_hands_of_a_dying_gateway(with_key: bool) -> (u16, String, u64) {
    let stack = Stack::sqlite();
    let (victim, survivor) = (stack.gateway(), stack.gateway());
    let sale = stack.open_sale(100, "queued");
    let nginx = before(&[&victim, &survivor]).start();
    let port = nginx.port();
    victim.program.pause();
    let mut orders = Vec::new();
    for buyer in 0.. {
        // The key that nginx's conditions take for nothing.
        let key = if with_key { "idempotency-key: 0\r\n" } else { "" };
        let request = format!(
            "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             authorization: Bearer {}\r\n{key}content-length: 0\r\n\r\n",
            token(&format!("buyer-{buyer}"))
        );
        let order = thread::spawn(move || exchange(port, &request));
        let hangs = eventually_blocking(SOON, "it is answered, or hangs", || {
            let hangs = has_unread_request(&victim);
            (hangs || order.is_finished()).then_some(hangs)
        });
        orders.push(order);
        if hangs {
            break;
        }
    }
    victim.program.kill_9();
    let mut answers: Vec<(u16, String)> = orders
        .into_iter()
        .map(|order| order.join().expect("it ends").expect("an answer"))
        .collect();
    let (status, answer) = answers.pop().expect("one that hung");
    assert!(answers.iter().all(|(status, _)| *status == 202), "{answers:?}");
    let others = u64::try_from(answers.len()).expect("few");
    let ledger = stack.salectl_json(&["ledger", &sale]);
    (status, answer, ledger["queued"].as_u64().expect("a number") - others)
}

#[test]
fn an_order_with_a_key_goes_to_another_gateway_when_its_own_dies() {
    let (status, answer, placed) = an_order_in_the_hands_of_a_dying_gateway(true);
    assert_eq!((status, placed), (202, 1), "{answer}");
}

#[test]
fn an_order_without_a_key_is_never_sent_twice() {
    let (status, answer, placed) = an_order_in_the_hands_of_a_dying_gateway(false);
    assert_eq!((status, placed), (503, 0), "{answer}");
    assert!(answer.contains("/problems/outcome-unknown"), "{answer}");
}

/// How many requests got no answer to go by.
fn failures(rush: &Value) -> u64 {
    ["unavailable", "server_errors", "transport_errors", "client_errors"]
        .iter()
        .map(|kind| rush[kind].as_u64().expect("a number"))
        .sum()
}

/// A crowd that never tries again, and a gateway killed in the middle of it; the failures.
fn a_gateway_is_killed_behind_nginx(more: &[&str]) -> u64 {
    let stack = Stack::postgres();
    let sale = stack.open_sale(1_500, "queued");
    let (survivor, victim) = (stack.gateway(), stack.gateway());
    let _worker = stack.worker();
    let nginx = before(&[&survivor, &victim]).unlimited("127.0.0.1").start();
    let crowd = ["--buyers", "2000", "--repeat", "2", "--retries", "0", "--verify"];
    let connections = CONNECTIONS.to_string();
    let crowd = [&crowd, &["--concurrency", &connections][..], more].concat();
    let rush = stack.rush_at(&[nginx.port()], &sale, &crowd);
    victim.wait_for("flashsale_admission_seconds_count", 100.0);
    victim.program.kill_9();
    assert_eq!(rush.exit_status(), None, "it was over before");

    let (rush, _) = report(&rush);
    assert_eq!((&rush["requests"], &rush["contradictions"]), (&4_000.into(), &0.into()), "{rush}");
    assert_eq!(rush["unconfirmed"], 0, "{rush}");
    assert_eq!(stack.settled(&sale)["awaiting_payment"], 1_500);
    stack.assert_clean(&sale);
    failures(&rush)
}

#[test]
fn a_gateway_killed_behind_nginx_fails_nobody_who_has_a_key() {
    assert_eq!(a_gateway_is_killed_behind_nginx(&[]), 0);
}

#[test]
fn a_gateway_killed_behind_nginx_fails_only_what_was_in_its_hands() {
    let failed = a_gateway_is_killed_behind_nginx(&["--no-key"]);
    // Two share the crowd, but for a few: nginx's processes choose at the same time.
    assert!(failed <= CONNECTIONS / 2 + CONNECTIONS / 8, "{failed} failed");
}

/// As an orchestrator does it: SIGTERM, wait for the end, another in its place, wait until it has work.
fn restart(stack: &Stack, name: &str, leaves: &Member, works: &str) -> Member {
    leaves.program.terminate();
    leaves.must_end_well(SOON);
    let next = stack.again(name, leaves);
    next.wait_for(works, 1.0);
    next
}

#[test]
fn a_rolling_restart_of_everything_fails_nobody_who_has_a_key() {
    let stack = Stack::postgres();
    let sale = stack.open_sale(100_000, "queued");
    let gateways = [stack.gateway(), stack.gateway()];
    let worker = stack.worker();
    let nginx = before(&[&gateways[0], &gateways[1]]).unlimited("127.0.0.1").start();
    // Somebody who never ends his request, to be looked at in the end.
    let mut slow = TcpStream::connect(("127.0.0.1", nginx.port())).expect("connect");
    slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").expect("is sent");

    // An open loop, and nothing is tried again but by nginx.
    let crowd = ["--buyers", "100000", "--rate", "300", "--retries", "0", "--timeout", "20s"];
    let rush = stack.rush_at(&[nginx.port()], &sale, &crowd);
    worker.wait_for("flashsale_orders_committed_total", 100.0);
    let _gateways = gateways
        .map(|leaves| restart(&stack, "gateway", &leaves, "flashsale_admission_seconds_count"));
    let _worker = restart(&stack, "order-worker", &worker, "flashsale_orders_committed_total");
    assert_eq!(stopped_with(&worker.program.log(), "redelivered"), 0);
    rush.interrupt();

    let (rush, _) = report(&rush);
    assert_eq!(failures(&rush), 0, "{rush}");
    assert_eq!((&rush["accepted"], &rush["replayed"]), (&rush["requests"], &0.into()), "{rush}");
    assert_eq!((&rush["contradictions"], &rush["retries"]), (&0.into(), &0.into()), "{rush}");
    let ledger = stack.settled(&sale);
    assert_eq!((&ledger["awaiting_payment"], &ledger["dead"]), (&rush["requests"], &0.into()));
    stack.assert_clean(&sale);

    slow.set_read_timeout(Some(SOON)).expect("can be set");
    match slow.read(&mut [0; 1024]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("it is served: {other:?}"),
    }
}
