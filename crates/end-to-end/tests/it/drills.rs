//! Drills against the real programs: each fires the alert that it says, in a real Prometheus, and leaves
//! nothing behind.

use std::io::Write as _;

use flashsale_test_support::{Program, RedisServer, eventually_blocking};

use crate::alerts::Prometheus;
use crate::stack::{SOON, Stack, ended};

fn practising(redis: &RedisServer) -> Stack {
    Stack::sqlite()
        .with("FLASHSALE__REDIS__URL", &redis.url())
        .with("FLASHSALE__DRILLS__ALLOWED", "true")
        .with("FLASHSALE__WORKER__LEDGER_INTERVAL", "1s")
        // So that a drill's order would soon be taken over, if it were not kept.
        .with("FLASHSALE__DATABASE__STATEMENT_TIMEOUT", "1s")
        .with("FLASHSALE__WORKER__RECLAIM_IDLE", "3s")
}

fn configure(redis: &RedisServer, key: &str, value: &str) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", redis.port())).expect("connect");
    write!(stream, "CONFIG SET {key} {value}\r\nQUIT\r\n").expect("write");
    let answer = std::io::read_to_string(stream).expect("read");
    assert!(answer.starts_with("+OK"), "{answer}");
}

/// Waits until a program has said something.
fn said(program: &Program, what: &str) {
    eventually_blocking(SOON, what, || {
        let log = program.log();
        if log.contains(what) { Ok(()) } else { Err(log) }
    });
}

fn must_end_well(drill: &Program) {
    let code = ended(drill).code();
    assert_eq!(code, Some(0), "{}", drill.log());
}

#[test]
fn drills_fire_what_they_say_and_leave_nothing() {
    let redis = RedisServer::builder().append_only(true).start();
    let stack = practising(&redis);
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let front = format!("http://{}", gateway.http_addr());
    let real = stack.open_sale(100, "queued");
    assert_eq!(ended(&stack.rush(&[&gateway], &real, &["--buyers", "2"])).code(), Some(0));
    stack.settled(&real);
    let prometheus = Prometheus::watching(&[&gateway, &worker]);

    for (drill, alert) in
        [("dead-letters", "FlashsaleDeadLetters"), ("ledger-imbalance", "FlashsaleLedgerImbalance")]
    {
        stack.salectl(&["drill", drill]);
        prometheus.wait_for(alert);
        stack.salectl(&["drill", drill, "--undo"]);
        prometheus.wait_for_quiet(alert);
    }

    // What the runbook says helps.
    let drill = stack.salectl_json(&["drill", "entries-lost"]);
    let sale = drill["sale_id"].as_str().expect("an id");
    prometheus.wait_for("FlashsaleEntriesLost");
    let (code, audit) = stack.try_salectl(&["audit", sale]);
    assert_eq!(code, Some(1), "{audit}");
    assert!(audit.contains("salectl settle"), "{audit}");
    stack.salectl(&["settle", sale]);
    stack.salectl(&["audit", sale]);
    stack.salectl(&["drill", "entries-lost", "--undo"]);

    let waiting = ["drill", "orders-waiting", "--for", "10s"];
    let drill = stack.start("salectl", &waiting);
    // Much longer than a worker waits before it takes an order over.
    worker.wait_for("flashsale_oldest_unapplied_seconds", 7.0);
    must_end_well(&drill);
    prometheus.wait_for("FlashsaleCommitLag");

    // No gate is closed to the buyers of a sale that is on.
    let closed = ["drill", "gate-closed", "--url", &front, "--for", "8s"];
    let (code, why) = stack.try_salectl(&closed);
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains(&format!("sale {real}, which is on")), "{why}");
    stack.salectl(&["sale", "close", &real]);
    let drill = stack.start("salectl", &closed);
    prometheus.wait_for("FlashsaleGateClosed");
    prometheus.wait_for("FlashsaleAdmissionErrors");
    must_end_well(&drill);
    prometheus.wait_for_quiet("FlashsaleGateClosed");

    let sales = stack.salectl_json(&["sale", "list"]);
    assert_eq!(sales["sales"].as_array().map(Vec::len), Some(1), "{sales}");
    stack.assert_clean(&real);
}

#[test]
fn guided_drills_see_what_somebody_else_does() {
    let redis = RedisServer::builder().append_only(true).start();
    let stack = practising(&redis);
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let front = format!("http://{}", gateway.http_addr());
    let prometheus = Prometheus::watching(&[&gateway, &worker]);
    let guided = |name: &str| stack.start("salectl", &["drill", name, "--url", &front]);

    for (name, key, spoilt, good, alert) in [
        (
            "redis-may-evict",
            "maxmemory-policy",
            "allkeys-lru",
            "noeviction",
            "FlashsaleRedisMayEvict",
        ),
        ("aof-off", "appendonly", "no", "yes", "FlashsaleAofOff"),
    ] {
        let drill = guided(name);
        said(&drill, "CONFIG SET");
        configure(&redis, key, spoilt);
        said(&drill, &format!("it is seen; {alert}"));
        prometheus.wait_for(alert);
        configure(&redis, key, good);
        must_end_well(&drill);
    }

    eventually_blocking(SOON, "the worker watches the ledgers", || {
        let drill = guided("no-worker");
        eventually_blocking(SOON, "it says something", || {
            let log = drill.log();
            if log.is_empty() { Err(log) } else { Ok(()) }
        });
        let log = drill.log();
        if log.contains("it is so already") { Err(log) } else { Ok(()) }
    });
    let drill = guided("no-worker");
    said(&drill, "stop the order-workers");
    worker.program.kill_9();
    said(&drill, "it is seen");
    prometheus.wait_for("FlashsaleNoWorker");
    let _worker = stack.again("order-worker", &worker);
    must_end_well(&drill);

    let drill = guided("no-gateway");
    said(&drill, "stop the gateways");
    gateway.program.kill_9();
    said(&drill, "it is seen");
    prometheus.wait_for("FlashsaleNoGateway");
    let _gateway = stack.again("gateway", &gateway);
    must_end_well(&drill);
}
