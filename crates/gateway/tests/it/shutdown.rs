//! Leaving: who was heard is answered, what was answered is kept, and nobody holds it up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flashsale_domain::OrderId;
use flashsale_test_support::{PostgresServer, RedisServer, eventually};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{SOON, TestApp, client, home, token, try_send};

/// Well below the drain deadline of 15 s.
const WITHOUT_DELAY: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_gateway_that_leaves_under_load_breaks_no_promise() {
    let app = TestApp::spawn().await;
    let sale = app.sale(1_000_000).await;
    let answered = AtomicUsize::new(0);
    // Buyer after buyer on a connection that is kept, until an answer says that it is the last.
    let press = async |lane: usize| {
        let client = client();
        let url = format!("http://{}/api/v1/sales/{sale}/orders", app.at.http);
        let mut receipts: Vec<(OrderId, String)> = Vec::new();
        for number in 0.. {
            let buyer = format!("buyer-{lane}-{number}");
            let request = client.post(&url).bearer_auth(token(&buyer));
            let answer = try_send(request).await.expect("what was sent is answered");
            receipts.push((answer.receipt(), buyer));
            answered.fetch_add(1, Ordering::Relaxed);
            if answer.header("connection") == Some("close") {
                break;
            }
        }
        receipts
    };
    let leave = async {
        eventually(SOON, "the load is there", async || answered.load(Ordering::Relaxed) > 200)
            .await;
        app.gateway.request_stop();
    };
    let (receipts, ()) = tokio::join!(join_all((0..20).map(press)), leave);
    let receipts = receipts.concat();
    assert!(receipts.len() > 200);
    for (id, _) in &receipts {
        let entry = app.redis.find_entry(home(), id.entry()).await.expect("answers");
        assert!(entry.is_some(), "order {id} was answered and is nowhere");
    }
    let _worker = app.start_worker().await;
    let rows = eventually(SOON, "every receipt is a row", async || {
        let ids: Vec<OrderId> = receipts.iter().map(|(id, _)| *id).collect();
        let rows = app.database.find_orders(&ids).await.expect("answers");
        (rows.len() == ids.len()).then_some(rows)
    })
    .await;
    assert_eq!(rows.len(), receipts.len());
    app.assert_sound(sale, &receipts).await;
    app.gateway.stop(WITHOUT_DELAY).await;
}

#[tokio::test]
async fn a_request_that_is_being_decided_is_answered_before_the_gateway_leaves() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let sale = app.sale(10).await;
    app.hold_scripts();
    let waiting = app.place(sale, "alice");
    let leave = async {
        app.wait_until_held(1).await;
        app.gateway.request_stop();
        // Nobody new is let in.
        eventually(SOON, "new connections are refused", async || {
            TcpStream::connect(app.at.http).await.is_err()
        })
        .await;
        app.resume_scripts();
    };
    let (answer, ()) = tokio::join!(waiting, leave);
    answer.receipt();
    assert_eq!(answer.header("connection"), Some("close"));
    app.gateway.stop(WITHOUT_DELAY).await;
}

#[tokio::test]
async fn who_waits_for_an_order_is_answered_when_the_gateway_leaves() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let id = app.place(sale, "alice").await.receipt();
    let mut stream = TcpStream::connect(app.at.http).await.expect("the gateway listens");
    let request = format!(
        "GET /api/v1/orders/{id}?wait=30 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        token("alice")
    );
    stream.write_all(request.as_bytes()).await.expect("is sent");
    let started = Instant::now();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    let stop = app.gateway.stop(WITHOUT_DELAY);
    let (read, ()) = tokio::join!(read, stop);
    read.expect("a whole answer");
    assert!(started.elapsed() < WITHOUT_DELAY, "{:?}", started.elapsed());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("\"queued\""), "{answer}");
}

#[tokio::test]
async fn an_idle_connection_holds_nobody_up() {
    let app = TestApp::spawn().await;
    // One that has asked before, one that never did, and one in the middle of a request's head.
    assert_eq!(app.get("/api/v1/sales").await.status, 200);
    let _silent = TcpStream::connect(app.at.http).await.expect("the gateway listens");
    let mut slow = TcpStream::connect(app.at.http).await.expect("the gateway listens");
    slow.write_all(b"GET /api/v1/sales HTTP/1.1\r\nhost: ").await.expect("is sent");
    app.gateway.stop(WITHOUT_DELAY).await;
    TcpStream::connect(app.at.http).await.expect_err("nobody listens any more");
    TcpStream::connect(app.at.admin).await.expect_err("nobody listens any more");
}

#[tokio::test]
async fn a_gateway_that_leaves_says_that_it_is_not_ready_and_still_answers_probes() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let sale = app.sale(10).await;
    eventually(SOON, "ready", async || app.admin("/readyz").await.status == 200).await;
    app.hold_scripts();
    let waiting = app.place(sale, "alice");
    let leave = async {
        app.wait_until_held(1).await;
        app.gateway.request_stop();
        eventually(SOON, "not ready", async || {
            let answer = app.admin("/readyz").await;
            answer.status == 503 && answer.body["checks"]["serving"] == "draining"
        })
        .await;
        assert_eq!(app.admin("/livez").await.status, 200);
        app.resume_scripts();
    };
    let (answer, ()) = tokio::join!(waiting, leave);
    answer.receipt();
    app.gateway.stop(WITHOUT_DELAY).await;
}

#[tokio::test]
async fn a_frozen_database_holds_nobody_up() {
    let server = PostgresServer::start();
    let url = server.create_database();
    let settings = [
        ("database.url", url.as_str()),
        ("http.drain_deadline", "1s"),
        // Read so often that it is being read when the database freezes, with patience enough.
        ("catalogue.refresh", "10ms"),
        ("database.connect_timeout", "60s"),
    ];
    let app = TestApp::spawn_with(&settings).await;
    let sale = app.direct_sale(10).await;
    let (at, program) = app.start_gateway_program().await;
    server.pause();
    // One who reads and one who orders, each in the middle of it.
    let mut waiting = Vec::new();
    for line in ["GET /api/v1/orders/1".to_owned(), format!("POST /api/v1/sales/{sale}/orders")] {
        let mut stream = TcpStream::connect(at.http).await.expect("the gateway listens");
        let token = token("alice");
        let request =
            format!("{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("is sent");
        waiting.push(stream);
    }
    program.terminate();
    let status = eventually(WITHOUT_DELAY, "the end", async || program.exit_status()).await;
    assert_eq!(status.code(), Some(0), "{}", program.log());
    assert!(program.log().contains("\"stopped\""), "{}", program.log());
    server.resume();
    app.gateway.stop(WITHOUT_DELAY).await;
}
