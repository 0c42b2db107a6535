//! Clients that mean no good: bodies that stall, requests that are none, ids that are made up. They
//! get their "no", and they cost neither connections nor log nor database.

use std::time::{Duration, Instant};

use flashsale_test_support::{PostgresServer, eventually};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{SOON, TestApp, token};

const JSON: &str = "content-type: application/json\r\n";
/// Half a body, announced or in chunks.
const HALVES: [(&str, &str); 2] = [
    ("content-length: 100\r\n", "{\"a\": "),
    ("transfer-encoding: chunked\r\n", "6\r\n{\"a\": \r\n"),
];

/// A request whose body does not end, on a connection that would be kept.
fn half(path: &str, headers: &str, (framing, body): (&str, &str)) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\n{headers}{JSON}{framing}\r\n{body}")
}

fn authorization(buyer: &str) -> String {
    format!("authorization: Bearer {}\r\n", token(buyer))
}

/// The one answer that a connection got before it was closed: its status, and its body if it is JSON.
fn only_answer(received: &str) -> (u16, Option<Value>) {
    assert_eq!(received.matches("HTTP/1.1 ").count(), 1, "{received}");
    let status = received.split(' ').nth(1).and_then(|number| number.parse().ok());
    let (_, body) = received.split_once("\r\n\r\n").expect("a whole head");
    (status.expect("a status"), serde_json::from_str(body).ok())
}

#[tokio::test]
async fn a_body_that_stalls_is_answered_in_time_and_its_connection_closed() {
    let app = TestApp::spawn_with(&[("http.body_timeout", "200ms")]).await;
    for (mode, sale) in [("queued", app.sale(10).await), ("direct", app.direct_sale(10).await)] {
        let path = format!("/api/v1/sales/{sale}/orders");
        for framing in HALVES {
            let headers = format!("{}accept-language: zh-CN\r\n", authorization("alice"));
            // Returns only when the connection is closed.
            let received = app.raw(half(&path, &headers, framing).as_bytes()).await;
            let (status, body) = only_answer(&received);
            let body = body.unwrap_or_else(|| panic!("{mode} {framing:?}: {received}"));
            assert_eq!(status, 408, "{mode} {framing:?}");
            assert_eq!(body["type"], "/problems/request-timeout", "{mode} {framing:?}");
            assert_eq!(body["title"], "请求超时", "{mode} {framing:?}");
            assert!(received.contains("application/problem+json"), "{received}");
        }
        // Nothing was ordered.
        app.place(sale, "alice").await.receipt();
    }
}

#[tokio::test]
async fn a_body_that_trickles_has_no_more_time_than_one_that_stalls() {
    let app = TestApp::spawn_with(&[("http.body_timeout", "300ms")]).await;
    let sale = app.sale(10).await;
    let path = format!("/api/v1/sales/{sale}/orders");
    let mut stream = TcpStream::connect(app.at.http).await.expect("the gateway listens");
    let start = half(&path, &authorization("alice"), HALVES[0]);
    stream.write_all(start.as_bytes()).await.expect("is sent");
    let (mut reading, mut writing) = stream.into_split();
    let trickle = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        // Until the gateway does not listen to it any more.
        loop {
            ticks.tick().await;
            if writing.write_all(b" ").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut received = [0; 12];
    let answered = async {
        reading.read_exact(&mut received).await.expect("an answer");
    };
    tokio::select! {
        answered = timeout(SOON, answered) => answered.expect("answered in time"),
        () = trickle => unreachable!("it has no end"),
    }
    assert_eq!(&received, b"HTTP/1.1 408");
}

#[tokio::test]
async fn a_body_that_nobody_reads_holds_no_connection_whatever_the_answer() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let signed = authorization("alice");
    let orders = format!("/api/v1/sales/{sale}/orders");
    let refused: [(&str, &str, u16); 5] = [
        (&orders, "", 401),
        (&orders, "authorization: Bearer x\r\n", 401),
        ("/api/v1/sales/999/orders", &signed, 404),
        ("/nothing", "", 404),
        ("/api/v1/sales", "", 405),
    ];
    for (path, headers, expected) in refused {
        for framing in HALVES {
            let received = app.raw(half(path, headers, framing).as_bytes()).await;
            let (status, body) = only_answer(&received);
            assert_eq!(status, expected, "{path} {framing:?}");
            assert!(body.is_some_and(|body| body["type"].is_string()), "{path} {framing:?}");
        }
    }
}

#[tokio::test]
async fn a_body_that_has_come_whole_lets_the_connection_go_on_whatever_the_answer() {
    let app = TestApp::spawn().await;
    let mut stream = TcpStream::connect(app.at.http).await.expect("the gateway listens");
    let whole = "POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}";
    let last = "GET /api/v1/sales HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{whole}{whole}{last}").as_bytes()).await.expect("is sent");
    let mut received = String::new();
    let read = timeout(SOON, stream.read_to_string(&mut received)).await;
    read.expect("it is closed in time").expect("is text");
    let statuses: Vec<&str> =
        received.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["404", "404", "200"], "{received}");
}

#[tokio::test]
async fn two_hundred_stalled_bodies_stop_nobody() {
    let app = TestApp::spawn_with(&[("http.body_timeout", "2s")]).await;
    let sale = app.sale(1_000).await;
    let path = format!("/api/v1/sales/{sale}/orders");
    let stall = async |number: usize| {
        let headers = authorization(&format!("slow-{number}"));
        app.raw(half(&path, &headers, HALVES[number % 2]).as_bytes()).await
    };
    let served = async {
        for number in 0..50 {
            app.place(sale, &format!("good-{number}")).await.receipt();
        }
    };
    let (stalled, ()) = tokio::join!(join_all((0..200).map(stall)), served);
    for received in stalled {
        assert_eq!(only_answer(&received).0, 408, "{received}");
    }
}

#[tokio::test]
async fn what_the_server_refuses_before_the_application_is_a_bare_status() {
    let app = TestApp::spawn_with(&[("http.client_request_timeout", "1s")]).await;
    let get = "GET /api/v1/sales HTTP/1.1\r\n";
    let many = "x-many: 1\r\n".repeat(96);
    let cases = [
        ("a head that does not end", format!("{get}host: x\r\n"), 408),
        ("97 headers", format!("{get}host: x\r\n{many}\r\n"), 431),
        ("no host", format!("{get}\r\n"), 400),
        ("no HTTP", "nonsense\r\n\r\n".to_owned(), 400),
        (
            "two lengths",
            format!("{get}host: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"),
            400,
        ),
        ("a length that is none", format!("{get}host: x\r\ncontent-length: x\r\n\r\n"), 400),
    ];
    for (what, request, expected) in cases {
        let received = app.raw(request.as_bytes()).await;
        let (status, body) = only_answer(&received);
        assert_eq!((status, body), (expected, None), "{what}: {received}");
    }
}

#[tokio::test]
async fn malformed_requests_do_not_fill_the_log() {
    let app = TestApp::spawn().await;
    let (at, program) = app.start_gateway_program().await;
    let before = program.log().lines().count();
    let nonsense = [
        "nonsense\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ];
    for number in 0..100 {
        let mut stream = TcpStream::connect(at.http).await.expect("the gateway listens");
        let request = nonsense[number % nonsense.len()];
        stream.write_all(request.as_bytes()).await.expect("is sent");
        let mut received = Vec::new();
        // A reset is a way to close, too.
        let _ = timeout(SOON, stream.read_to_end(&mut received)).await.expect("it is closed");
        assert!(received.starts_with(b"HTTP/1.1 4"), "{request}");
    }
    // In order: what was to be logged is in the file once the program has ended.
    program.terminate();
    eventually(SOON, "the end", async || program.exit_status()).await;
    let log = program.log();
    assert!(log.contains("stopped"), "the log is there: {log}");
    assert!(!log.contains("ERROR"), "{log}");
    assert!(log.lines().count() < before + 20, "{log}");
}

#[tokio::test]
async fn made_up_ids_cost_the_database_a_few_looks_a_second() {
    let server = PostgresServer::start();
    let url = format!("{}?options[log_statement]=all", server.create_database());
    let refresh = Duration::from_secs(1);
    let app = TestApp::spawn_with(&[("database.url", &url), ("catalogue.refresh", "1s")]).await;
    let looks = || server.log().lines().filter(|line| line.contains("\"changed_ms\" >=")).count();
    eventually(SOON, "looks are logged", async || looks() > 0).await;

    let started = Instant::now();
    let before = looks();
    let ask = async |number: u32| {
        let answer = app.place(1_000_000 + number, "alice").await;
        assert_eq!(answer.problem(), (404, "sale-not-found"), "{number}");
    };
    stream::iter(0..1_000).for_each_concurrent(50, ask).await;
    let looked = looks() - before;
    // Fifty ask at once, and a look answers only who asked before it.
    assert!(looked >= 20, "they are looked for: {looked}");
    // Ten for each time that the catalogue is read, that itself, and the first and last of each.
    let rounds = started.elapsed().as_secs_f64() / refresh.as_secs_f64();
    let most = 11.0 * rounds + 3.0;
    assert!(f64::from(u32::try_from(looked).expect("few")) <= most, "{looked} in {rounds} rounds");
    assert!(looked < 500, "{looked} looks for 1,000 ids");
}
