//! Requests as no well-meaning client sends them: bodies, keys and headers; and problems as answers:
//! their form, their language, their methods.

use reqwest::Method;
use serde_json::Value;

use flashsale_domain::NewSale;
use flashsale_test_support::RedisServer;

use crate::support::{
    Answer, TestApp, WEBHOOK, home, new_sale, payment, send, token, webhook, window_from_now,
};

const BODY_LIMIT: usize = 2048;

async fn with_body_limit() -> TestApp {
    TestApp::spawn_with(&[("http.body_limit_bytes", "2048")]).await
}

/// The status line's number of an answer as it came over the wire.
fn status_of(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1).and_then(|number| number.parse().ok());
    status.unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// A problem's slug as it came over the wire.
fn slug_of(answer: &str) -> String {
    assert!(answer.to_ascii_lowercase().contains("content-type: application/problem+json"));
    let (_, body) = answer.split_once("\r\n\r\n").expect("has a body");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
    let kind = body["type"].as_str().expect("has a type");
    kind.trim_start_matches("/problems/").to_owned()
}

fn head(sale: &str, buyer: &str, headers: &str) -> String {
    format!(
        "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {}\r\n{headers}\r\n",
        token(buyer)
    )
}

#[tokio::test]
async fn no_body_and_any_json_object_are_accepted() {
    let app = with_body_limit().await;
    let sale = app.sale(100).await;
    app.place(sale, "nobody").await.receipt();
    let padded = format!("{}{{}}", " ".repeat(BODY_LIMIT - 2));
    let bodies = [
        ("application/json", "{}"),
        ("application/json", " \r\n\t{\"note\": [1, {\"a\": null}]}\n"),
        ("application/json; charset=utf-8", "{\"数量\": 1}"),
        ("Application/JSON", "{}"),
        ("application/json", padded.as_str()),
        // Nothing is no text, whatever it is called.
        ("text/plain", ""),
        ("application/json", ""),
    ];
    for (number, (kind, body)) in bodies.into_iter().enumerate() {
        let press = app.press(sale, &format!("buyer-{number}"));
        let answer = send(press.header("Content-Type", kind).body(body.to_owned())).await;
        assert_eq!(answer.status, 202, "{kind} {body:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused_and_orders_nothing() {
    let app = with_body_limit().await;
    let sale = app.sale(10).await;
    let json = Some("application/json");
    let invalid = (400, "invalid-request");
    let unsupported = (415, "unsupported-media-type");
    let bodies: [(Option<&str>, &[u8], _); 16] = [
        (json, b"nonsense", invalid),
        (json, b"{", invalid),
        (json, b"{}}", invalid),
        (json, b"{} {}", invalid),
        (json, b"[]", invalid),
        (json, b"[{}]", invalid),
        (json, b"null", invalid),
        (json, b"1", invalid),
        (json, b"\"{}\"", invalid),
        (json, b" ", invalid),
        (json, b"{\"a\": \xff}", invalid),
        (Some("text/plain"), b"{}", unsupported),
        (Some("application/x-www-form-urlencoded"), b"a=1", unsupported),
        (Some("application/json-patch+json"), b"{}", unsupported),
        (Some(""), b"{}", unsupported),
        (None, b"{}", unsupported),
    ];
    for (kind, body, problem) in bodies {
        let mut press = app.press(sale, "alice").body(body.to_vec());
        if let Some(kind) = kind {
            press = press.header("Content-Type", kind);
        }
        let answer = send(press).await;
        assert_eq!(answer.problem(), problem, "{kind:?} {}", String::from_utf8_lossy(body));
    }
    assert_eq!(app.orders_in_record(sale, "alice").await, 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_however_it_comes() {
    let app = with_body_limit().await;
    let sale = app.sale(10).await.to_string();
    let json = "content-type: application/json\r\n";
    let too_large = format!("{{\"a\":\"{}\"}}", "x".repeat(BODY_LIMIT));

    let announced = format!(
        "{}{too_large}",
        head(&sale, "a", &format!("{json}content-length: {}\r\n", too_large.len()))
    );
    // Announced, and never sent: nobody waits for it.
    let never_sent = head(&sale, "a", &format!("{json}content-length: 1000000000000\r\n"));
    let mut chunked = head(&sale, "a", &format!("{json}transfer-encoding: chunked\r\n"));
    for chunk in too_large.as_bytes().chunks(100) {
        let text = std::str::from_utf8(chunk).expect("is ASCII");
        chunked.push_str(&format!("{:x}\r\n{text}\r\n", chunk.len()));
    }
    chunked.push_str("0\r\n\r\n");
    let megabytes = "x".repeat(10 * 1024 * 1024);
    let huge_announced = format!(
        "{}{megabytes}",
        head(&sale, "a", &format!("{json}content-length: {}\r\n", megabytes.len()))
    );
    let huge_chunked = format!(
        "{}{:x}\r\n{megabytes}\r\n0\r\n\r\n",
        head(&sale, "a", &format!("{json}transfer-encoding: chunked\r\n")),
        megabytes.len()
    );
    for (what, request) in [
        ("announced", announced),
        ("announced and never sent", never_sent),
        ("chunked", chunked),
        ("10 MB", huge_announced),
        ("10 MB chunked", huge_chunked),
    ] {
        let answer = app.raw(request.as_bytes()).await;
        assert_eq!(status_of(&answer), 413, "{what}: {answer}");
        assert_eq!(slug_of(&answer), "too-large", "{what}");
    }
    assert_eq!(app.orders_in_record(sale.parse().expect("an id"), "a").await, 0);
    app.place(&sale, "a").await.receipt();
}

#[tokio::test]
async fn a_body_that_breaks_off_orders_nothing() {
    let app = with_body_limit().await;
    let sale = app.sale(10).await;
    let json = "content-type: application/json\r\n";
    for framing in
        ["transfer-encoding: chunked\r\n", "content-length: -1\r\n", "content-length: x\r\n"]
    {
        let request =
            format!("{}zz\r\n{{}}\r\n", head(&sale.to_string(), "a", &format!("{json}{framing}")));
        let answer = app.raw(request.as_bytes()).await;
        assert!((400..500).contains(&status_of(&answer)), "{framing}: {answer}");
    }
    assert_eq!(app.orders_in_record(sale, "a").await, 0);
}

#[tokio::test]
async fn a_key_that_is_no_key_is_refused_and_orders_nothing() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let keys: [&[u8]; 9] = [
        b"",
        b"a b",
        b"a\tb",
        &[b'x'; 256],
        &[b'x'; 300],
        "schl\u{fc}ssel".as_bytes(),
        "钥匙".as_bytes(),
        b"\xff",
        b"a\x7f",
    ];
    for key in keys {
        let answer = match reqwest::header::HeaderValue::from_bytes(key) {
            Ok(value) => send(app.press(sale, "alice").header("Idempotency-Key", value)).await,
            // What a well-behaved client cannot even send.
            Err(_) => {
                let mut request = head(&sale.to_string(), "alice", "").into_bytes();
                request.truncate(request.len() - 2);
                request.extend_from_slice(b"idempotency-key: ");
                request.extend_from_slice(key);
                request.extend_from_slice(b"\r\n\r\n");
                let answer = app.raw(&request).await;
                assert_eq!(status_of(&answer), 400, "{answer}");
                continue;
            }
        };
        assert_eq!(answer.problem(), (400, "invalid-request"), "{key:?}");
        assert!(answer.body["detail"].as_str().is_some_and(|it| it.contains("Idempotency-Key")));
    }
    let two =
        app.press(sale, "alice").header("Idempotency-Key", "a").header("Idempotency-Key", "b");
    assert_eq!(send(two).await.problem(), (400, "invalid-request"));
    assert_eq!(app.orders_in_record(sale, "alice").await, 0);

    let longest = "~".repeat(255);
    let first = app.place_with_key(sale, "alice", &longest).await;
    assert_eq!(app.place_with_key(sale, "alice", &longest).await.receipt(), first.receipt());
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let press =
        |buyer: &str, bytes: usize| app.press(sale, buyer).header("X-Padding", "x".repeat(bytes));
    send(press("alice", 8 * 1024)).await.receipt();
    let answer = send(press("bob", 20 * 1024)).await;
    assert_eq!(answer.problem(), (431, "too-large"));
    let long_path = format!("/api/v1/sales/{}", "1".repeat(20 * 1024));
    assert_eq!(app.get(&long_path).await.problem(), (431, "too-large"));

    // Above what the server itself reads, it may close the connection in the face of the rest.
    let huge =
        head(&sale.to_string(), "bob", &format!("x-padding: {}\r\n", "x".repeat(200 * 1024)));
    let answer = app.raw(huge.as_bytes()).await;
    assert!(answer.is_empty() || status_of(&answer) == 431, "{answer}");
    let many = head(&sale.to_string(), "bob", &"x-many: 1\r\n".repeat(5000));
    let answer = app.raw(many.as_bytes()).await;
    assert!(answer.is_empty() || (400..500).contains(&status_of(&answer)), "{answer}");
    assert_eq!(app.orders_in_record(sale, "bob").await, 0);
}

#[tokio::test]
async fn what_is_no_http_is_answered_with_an_error_or_closed() {
    let app = TestApp::spawn().await;
    for nonsense in ["nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\0\0\0\0", "GET\r\n\r\n"] {
        // The end of what is sent is the end of the connection, so that nothing waits for more.
        let answer = app.raw(format!("{nonsense}\r\n\r\n").as_bytes()).await;
        assert!(answer.is_empty() || status_of(&answer) >= 400, "{nonsense:?}: {answer}");
    }
    assert_eq!(app.get("/api/v1/sales").await.status, 200);
}

#[tokio::test]
async fn a_method_that_a_path_does_not_have_is_told_which_it_has() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let paths = [
        (format!("/api/v1/sales/{sale}/orders"), "POST"),
        ("/api/v1/sales".to_owned(), "GET, HEAD"),
        (format!("/api/v1/sales/{sale}"), "GET, HEAD"),
        ("/api/v1/orders".to_owned(), "GET"),
        ("/api/v1/orders/1".to_owned(), "GET"),
        ("/".to_owned(), "GET, HEAD"),
        ("/docs".to_owned(), "GET, HEAD"),
        ("/docs/".to_owned(), "GET, HEAD"),
        ("/docs/nothing".to_owned(), "GET, HEAD"),
        ("/openapi.json".to_owned(), "GET, HEAD"),
    ];
    let methods = [
        Method::GET,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
    ];
    for (path, allowed) in paths {
        for method in methods.clone() {
            if allowed.contains(method.as_str()) {
                continue;
            }
            let answer = send(app.request(method.clone(), &path).bearer_auth(token("a"))).await;
            assert_eq!(answer.problem(), (405, "method-not-allowed"), "{method} {path}");
            assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_path_that_is_none_is_not_found() {
    let app = TestApp::spawn().await;
    for path in [
        "/nothing",
        "/api",
        "/api/v1",
        "/api/v2/sales",
        "/api/v1/sales/1/orders/2",
        "/.env",
        "/docs/nothing",
        "/docs/%2e%2e/x",
    ] {
        assert_eq!(app.get(path).await.problem(), (404, "not-found"), "{path}");
    }
    // The operators' side is on another port, and nothing of it is here.
    for path in ["/metrics", "/readyz", "/livez", "/admin/v1/sales"] {
        assert_eq!(app.get(path).await.problem(), (404, "not-found"), "{path}");
    }
}

#[tokio::test]
async fn every_problem_has_its_form_and_a_title_in_both_languages() {
    let redis = RedisServer::start();
    let settings = [
        ("http.workers", "1"),
        ("admission.queue_capacity", "1"),
        ("redis.response_timeout", "1s"),
        ("http.body_limit_bytes", "2048"),
    ];
    let app = TestApp::spawn_on(&redis, &settings).await;
    let sold_out = app.sale(1).await;
    app.place(sold_out, "holder").await.receipt();
    let not_started =
        app.publish(&NewSale { window: window_from_now(60_000, 90_000), ..new_sale(1) }).await;
    let (paused, closed) = (app.sale(1).await, app.sale(1).await);
    app.operations.pause_sale(paused).await.expect("paused");
    app.operations.close_sale(closed).await.expect("closed");
    let open = app.sale(5).await;
    let direct = app.direct_sale(2).await;
    let paid = app.place(direct, "alice").await.receipt();
    assert_eq!(app.pay("msg-1", paid).await.body["outcome"], "paid");
    let waiting = app.place(direct, "bob").await.receipt();
    let cancel = format!("/api/v1/orders/{paid}/cancel");
    let wrong_amount = payment(waiting, 1, "CNY");
    let json = "application/json";
    let large = "x".repeat(4096);

    let requests = [
        ("sold-out", app.press(sold_out, "alice")),
        ("already-ordered", app.press(sold_out, "holder")),
        ("not-started", app.press(not_started, "alice")),
        ("paused", app.press(paused, "alice")),
        ("ended", app.press(closed, "alice")),
        ("sale-not-found", app.press(999, "alice")),
        ("invalid-request", app.press(sold_out, "alice").header("Idempotency-Key", "a b")),
        ("unauthorized", app.request(Method::GET, "/api/v1/orders")),
        (
            "order-not-found",
            app.request(Method::GET, "/api/v1/orders/1").bearer_auth(token("alice")),
        ),
        ("not-cancellable", app.request(Method::POST, &cancel).bearer_auth(token("alice"))),
        ("payment-mismatch", webhook(app.request(Method::POST, WEBHOOK), "msg-2", &wrong_amount)),
        ("unauthorized", app.request(Method::POST, WEBHOOK)),
        ("not-found", app.request(Method::GET, "/nothing")),
        ("method-not-allowed", app.request(Method::PUT, "/api/v1/sales")),
        (
            "too-large",
            app.press(sold_out, "alice").header("Content-Type", json).body(large.clone()),
        ),
        ("too-large", app.press(sold_out, "alice").header("X-Padding", large.repeat(5))),
        (
            "unsupported-media-type",
            app.press(sold_out, "alice").header("Content-Type", "text/plain").body("x"),
        ),
    ];
    for (slug, request) in requests {
        assert_speaks_both(slug, request).await;
    }
    app.redis.fence(home()).await.expect("fenced");
    assert_speaks_both("sale-unavailable", app.press(open, "alice")).await;

    redis.pause();
    assert_speaks_both("outcome-unknown", app.press(open, "alice")).await;
    let crowd = (0..4).map(|_| send(app.press(open, "a").header("Accept-Language", "zh")));
    let answers = futures_util::future::join_all(crowd).await;
    let overloaded = answers.iter().find(|answer| answer.problem().1 == "overloaded");
    assert_language(overloaded.expect("one found no room"), "zh-CN");
    redis.resume();
}

async fn assert_speaks_both(slug: &str, request: reqwest::RequestBuilder) {
    for (wanted, language) in [("en-GB, zh;q=0.1", "en"), ("zh-CN", "zh-CN"), ("fr", "en")] {
        let request = request.try_clone().expect("has no stream");
        let answer = send(request.header("Accept-Language", wanted)).await;
        assert_eq!(answer.problem().1, slug, "{answer:?}");
        assert_language(&answer, language);
    }
}

fn assert_language(answer: &Answer, language: &str) {
    assert_eq!(answer.header("content-language"), Some(language), "{answer:?}");
    let title = answer.body["title"].as_str().expect("has a title");
    assert_eq!(title.is_ascii(), language == "en", "{title}");
}
