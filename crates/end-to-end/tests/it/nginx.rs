//! The shipped nginx configuration, run by nginx in front of real gateways: what it routes, limits,
//! caches, sends twice, and what it leaves as it is.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

use flashsale_test_support::{Nginx, NginxBuilder, eventually_blocking};
use serde_json::Value;

use crate::after_order::token;
use crate::stack::{Member, SOON, Stack};

/// What a client may send at once, and how many connections it may have: as deploy/nginx has it.
const BURST: usize = 60;
const CONNECTIONS: usize = 50;

/// An nginx before these gateways, which believes what this machine says of its clients.
pub(crate) fn before(gateways: &[&Member]) -> NginxBuilder {
    let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/nginx");
    let nginx = Nginx::builder(shipped).balancer("127.0.0.1");
    gateways.iter().fold(nginx, |nginx, gateway| nginx.gateway(&gateway.http_addr()))
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    /// Requires a problem of this status and slug, as the gateway would say it.
    fn must_be(&self, status: u16, slug: &str) {
        assert_eq!(self.status, status, "{}{}", self.head, self.body);
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        assert_eq!(self.header("cache-control"), Some("no-store"));
        let body = self.json();
        assert_eq!(body["type"], format!("/problems/{slug}"));
        assert_eq!(body["status"], status);
        assert_eq!(self.header("retry-after").is_some(), matches!(status, 429 | 503));
    }
}

/// `request` is method and path, `headers` lines. The answer is read to its end, which may come long
/// before that of the connection.
fn try_ask(port: u16, request: &str, headers: &[&str], body: &str) -> Option<Answer> {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}");
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).ok()?);
    stream.get_ref().set_read_timeout(Some(SOON)).ok()?;
    let request = format!("{head}content-length: {length}\r\n\r\n{body}");
    stream.get_mut().write_all(request.as_bytes()).ok()?;
    let head = read_head(&mut stream)?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let mut answer = Answer { status, head, body: String::new() };
    let length = answer.header("content-length").and_then(|length| length.parse().ok());
    stream.take(length.unwrap_or(u64::MAX)).read_to_string(&mut answer.body).ok()?;
    Some(answer)
}

/// With the empty line at its end.
fn read_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (stream.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    Some(head)
}

fn ask(port: u16, request: &str, headers: &[&str]) -> Answer {
    try_ask(port, request, headers, "").unwrap_or_else(|| panic!("no answer to {request}"))
}

/// So many lines of the access log, of those that are meant.
pub(crate) fn logged(nginx: &Nginx, is_meant: impl Fn(&Value) -> bool, count: usize) -> Vec<Value> {
    eventually_blocking(SOON, "all is in the access log", || {
        let log = nginx.access_log();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("is JSON"));
        let lines: Vec<Value> = lines.filter(&is_meant).collect();
        if lines.len() == count { Ok(lines) } else { Err(log) }
    })
}

fn bearer(buyer: &str) -> String {
    format!("authorization: Bearer {}", token(buyer))
}

/// Of a client's requests, the first that is refused for its number, and how many were not.
fn until_limited(port: u16, client: &str) -> (Answer, usize) {
    let client = format!("x-forwarded-for: {client}");
    let ask = || ask(port, "GET /api/v1/orders", &[&client]);
    let mut passed = 0;
    loop {
        let answer = ask();
        if answer.status != 401 {
            return (answer, passed);
        }
        passed += 1;
        assert!(passed < 100 * BURST, "{client} is not limited");
    }
}

#[test]
fn only_what_buyers_use_is_routed() {
    let stack = Stack::sqlite();
    let gateway = stack.gateway();
    let sale = stack.open_sale(10, "queued");
    let nginx = before(&[&gateway]).unlimited("127.0.0.1").start();
    let port = nginx.port();

    // Every path of the gateway. One that it does not have is 404, by whomever; to one that it has it
    // says which methods.
    let routes = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gateway/src/routes/mod.rs");
    let routes = std::fs::read_to_string(routes).expect("the gateway's paths");
    let resources = routes.split("web::resource(").skip(1);
    let resources = resources.filter_map(|rest| rest.split_once(')'));
    let paths: Vec<&str> =
        resources.flat_map(|(paths, _)| paths.split('"').skip(1).step_by(2)).collect();
    assert!(paths.len() >= 13, "the paths are no longer found: {paths:?}");
    for path in paths {
        let path = path.replace("{sale}", &sale).replace("{order}", "7").replace("{path:.*}", "x");
        let answer = ask(port, &format!("PATCH {path}"), &[]);
        answer.must_be(405, "method-not-allowed");
    }
    let elsewhere = [
        "/admin/v1/sales",
        "/metrics",
        "/livez",
        "/readyz",
        "/api/v1",
        "/api/v1/sales/1/orders/",
        "/api/v1/orders/../../../metrics",
        "/repeatable/api/v1/sales/1/orders",
        "/problems/rate-limited",
        "/index.html",
    ];
    for path in elsewhere {
        ask(port, &format!("GET {path}"), &[]).must_be(404, "not-found");
    }
    // The gateway would say the same; it must not have been asked.
    for line in logged(&nginx, |line| line["status"] == 404, elsewhere.len()) {
        assert_eq!(line["gateway"], "", "{line}");
    }
    let chinese = ask(port, "GET /metrics", &["accept-language: zh-CN,en;q=0.5"]);
    assert_eq!(chinese.json()["title"], "页面不存在");

    let orders = format!("POST /api/v1/sales/{sale}/orders");
    let buyer = bearer("alice");
    let key = "idempotency-key: 0";
    let placed = ask(port, &orders, &[&buyer, key]);
    assert_eq!((placed.status, placed.header("x-content-type-options")), (202, Some("nosniff")));
    let again = ask(port, &orders, &[&buyer, key]);
    assert_eq!((again.status, again.header("idempotency-replayed")), (202, Some("true")));
    assert_eq!(ask(port, "GET /docs/", &[]).status, 200);
    // An order has one spelling, with a key and without.
    for spelling in ["{}%2forders", "{}/orders%0a", "{}/../{}/orders", "{}/orders/../../{}/orders"]
    {
        let spelled = format!("POST /api/v1/sales/{}", spelling.replace("{}", &sale));
        ask(port, &spelled, &[&buyer, key]).must_be(404, "not-found");
        ask(port, &spelled, &[&buyer]).must_be(404, "not-found");
    }
    let doubled = orders.replace("/api", "//api");
    ask(port, &doubled, &[&buyer, key]).must_be(404, "not-found");

    // The gateway's sizes.
    let json = "content-type: application/json";
    let body = |length: usize| format!("{{\"x\":\"{}\"}}", "a".repeat(length - 8));
    let fits = try_ask(port, &orders, &[&buyer, key, json], &body(16_384)).expect("an answer");
    assert_eq!(fits.status, 202, "{}", fits.body);
    let large = try_ask(port, &orders, &[&buyer, key, json], &body(16_385)).expect("an answer");
    large.must_be(413, "too-large");
    let long = "a".repeat(9_000);
    ask(port, &format!("GET /{long}"), &[]).must_be(431, "too-large");
    ask(port, "GET /api/v1/sales", &[&format!("x-long: {long}")]).must_be(431, "too-large");
}

/// A gateway that only tells what it was sent.
fn requests_of(listener: TcpListener) -> thread::JoinHandle<Vec<String>> {
    thread::spawn(move || {
        let mut heads = Vec::new();
        for stream in listener.incoming().take(2) {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let head = read_head(&mut stream).expect("a request");
            let answer = "HTTP/1.1 200 OK\r\nx-request-id: mine\r\nconnection: close\r\n\r\n";
            stream.get_mut().write_all(answer.as_bytes()).expect("is read");
            heads.push(head.to_lowercase());
        }
        heads
    })
}

#[test]
fn a_request_keeps_its_id_on_its_way_and_a_client_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let gateway = requests_of(listener);
    let nginx = before(&[]).gateway(&address).start();
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let invented = "x-forwarded-for: 192.0.2.9, 203.0.113.7";
    let given = ask(nginx.port(), "GET /docs", &["x-request-id: press-4711.a", trace, invented]);
    let made = ask(nginx.port(), "GET /docs", &["x-request-id: a\" b"]);
    let heads = gateway.join().expect("two requests");

    assert_eq!(given.header("x-request-id"), Some("press-4711.a"));
    assert_eq!(given.head.to_lowercase().matches("x-request-id").count(), 1, "{}", given.head);
    let made = made.header("x-request-id").expect("it has an id").to_owned();
    assert!(made.len() == 32 && made.bytes().all(|b| b.is_ascii_hexdigit()), "{made}");
    assert!(heads[0].contains("\r\nx-request-id: press-4711.a\r\n"), "{}", heads[0]);
    assert!(heads[0].contains(trace), "{}", heads[0]);
    assert!(heads[0].contains("\r\nx-forwarded-for: 203.0.113.7\r\n"), "{}", heads[0]);
    assert!(heads[1].contains(&format!("\r\nx-request-id: {made}\r\n")), "{}", heads[1]);

    let lines = logged(&nginx, |_| true, 2);
    assert_eq!(
        (&lines[0]["request_id"], &lines[0]["status"]),
        (&"press-4711.a".into(), &200.into())
    );
    assert_eq!(lines[0]["client"], "203.0.113.7");
    assert_eq!(lines[1]["request_id"], made);
}

#[test]
fn a_client_at_its_limits_is_told_so_and_others_are_not_harmed() {
    let stack = Stack::sqlite();
    let gateway = stack.gateway();
    let sale = stack.open_sale(10, "queued");
    let nginx = before(&[&gateway]).unlimited("198.51.100.0/24").start();
    let port = nginx.port();

    let (limited, passed) = until_limited(port, "203.0.113.7");
    limited.must_be(429, "rate-limited");
    assert!(passed > BURST, "{passed} passed");
    // Whatever a client writes before its own address.
    let (_, passed) = until_limited(port, "192.0.2.1, 203.0.113.7");
    assert!(passed < BURST, "{passed} passed");
    let other = ask(port, "GET /api/v1/orders", &["x-forwarded-for: 203.0.113.8"]);
    assert_eq!(other.status, 401);

    // A network of IPv6 is one client.
    until_limited(port, "2001:db8:1:2::1");
    let (_, passed) = until_limited(port, "2001:db8:1:2:ffff::2");
    assert!(passed < BURST, "{passed} passed");
    let other = ask(port, "GET /api/v1/orders", &["x-forwarded-for: 2001:db8:1:3::1"]);
    assert_eq!(other.status, 401);

    // Who is known may send what he likes.
    for _ in 0..4 * BURST {
        let known = ask(port, "GET /api/v1/orders", &["x-forwarded-for: 198.51.100.3"]);
        assert_eq!(known.status, 401);
    }

    let path = format!("/api/v1/sales/{sale}/events");
    let follow = |client: &str| {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).expect("connect"));
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).expect("is sent");
        let mut line = String::new();
        stream.read_line(&mut line).expect("a status");
        (line.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()), stream)
    };
    let followers: Vec<_> = (0..CONNECTIONS).map(|_| follow("203.0.113.9")).collect();
    assert!(followers.iter().all(|(status, _)| *status == Some(200)));
    let line = "x-forwarded-for: 203.0.113.9";
    ask(port, "GET /api/v1/orders", &[line]).must_be(429, "rate-limited");
    assert_eq!(follow("203.0.113.10").0, Some(200));
    drop(followers);
    eventually_blocking(SOON, "connections that ended do not count", || {
        ask(port, "GET /api/v1/orders", &[line]).status == 401
    });
}

#[test]
fn events_come_one_by_one_as_they_happen() {
    let stack = Stack::sqlite();
    let gateway = stack.gateway();
    let sale = stack.open_sale(10, "queued");
    let nginx = before(&[&gateway]).start();
    let stream = TcpStream::connect(("127.0.0.1", nginx.port())).expect("connect");
    stream.set_read_timeout(Some(SOON)).expect("can be set");
    let mut stream = BufReader::new(stream);
    let request = format!("GET /api/v1/sales/{sale}/events HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).expect("is sent");
    let mut next_stock = || loop {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).expect("an event"), 0, "the stream ended");
        let data = line.strip_prefix("data: ").map(serde_json::from_str::<Value>);
        if let Some(stock) = data.and_then(|data| data.expect("is JSON")["stock_left"].as_i64()) {
            break stock;
        }
    };
    assert_eq!(next_stock(), 10);
    // The stream goes on, so nothing but the event itself brings it here.
    for (buyer, left) in [("alice", 9), ("bob", 8)] {
        ask(nginx.port(), &format!("POST /api/v1/sales/{sale}/orders"), &[&bearer(buyer)]);
        assert_eq!(next_stock(), left);
    }
}

#[test]
fn sales_are_told_from_memory_and_what_is_a_buyers_is_not() {
    let stack = Stack::sqlite();
    let (first, second) = (stack.gateway(), stack.gateway());
    let sale = stack.open_sale(10, "queued");
    let nginx = before(&[&first, &second]).unlimited("127.0.0.1").start();
    let port = nginx.port();
    let look = format!("GET /api/v1/sales/{sale}");
    let cache = |answer: &Answer| answer.header("x-cache-status").map(str::to_owned);

    // Who comes at once waits for the one who asks.
    let crowd: Vec<_> = (0..20)
        .map(|_| {
            let look = look.clone();
            thread::spawn(move || ask(port, &look, &[]))
        })
        .collect();
    let crowd: Vec<Answer> = crowd.into_iter().map(|one| one.join().expect("an answer")).collect();
    assert!(crowd.iter().all(|answer| answer.status == 200));
    let missed = crowd.iter().filter(|it| cache(it).as_deref() == Some("MISS")).count();
    assert_eq!(missed, 1);
    // Whatever is written behind it.
    eventually_blocking(SOON, "a copy", || {
        cache(&ask(port, &format!("{look}?x=1"), &[])).as_deref() == Some("HIT")
    });

    let (alice, bob) = (bearer("alice"), bearer("bob"));
    let placed = ask(port, &format!("POST /api/v1/sales/{sale}/orders"), &[&alice]);
    let order = placed.json()["order_id"].as_str().expect("an id").to_owned();
    let show = format!("GET /api/v1/orders/{order}");
    let shown = ask(port, &show, &[&alice]);
    assert_eq!((shown.json()["state"].as_str(), cache(&shown)), (Some("queued"), None));
    ask(port, &show, &[&bob]).must_be(404, "order-not-found");
    for request in ["GET /api/v1/orders", "GET /openapi.json"] {
        assert_eq!(cache(&ask(port, request, &[&alice])), None, "{request}");
    }

    // While it is renewed the copy is given, however long that takes.
    eventually_blocking(SOON, "an old copy", || {
        ask(port, &look, &[]);
        let gateways = [&first, &second].map(|gateway| &gateway.program);
        gateways.iter().for_each(|it| it.pause());
        let answered = loop {
            match try_ask(port, &look, &[], "").as_ref().and_then(cache) {
                Some(answered) if answered == "HIT" => {}
                answered => break answered,
            }
        };
        gateways.iter().for_each(|it| it.resume());
        match answered.as_deref() {
            Some("STALE" | "UPDATING") => Ok(()),
            _ => Err(answered),
        }
    });

    eventually_blocking(SOON, "one of them waited for no gateway", || {
        let log = nginx.access_log();
        let mut old = log.lines().filter(|line| line.contains("\"cache\":\"STALE\""));
        old.any(|line| line.contains("\"gateway\":\"\"")).then_some(()).ok_or(log)
    });

    // And when there is no gateway at all.
    eventually_blocking(SOON, "a new copy", || {
        cache(&ask(port, &look, &[])).as_deref() == Some("HIT")
    });
    first.program.kill_9();
    second.program.kill_9();
    eventually_blocking(SOON, "an old copy", || {
        let answer = ask(port, &look, &[]);
        assert_eq!((answer.status, &answer.json()["sale_id"]), (200, &sale.as_str().into()));
        cache(&answer).as_deref() == Some("STALE")
    });
    ask(port, &show, &[&alice]).must_be(503, "sale-unavailable");
    let orders = format!("POST /api/v1/sales/{sale}/orders");
    ask(port, &orders, &[&bob]).must_be(503, "outcome-unknown");
}
