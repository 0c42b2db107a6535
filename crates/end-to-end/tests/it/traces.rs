//! Traces: from the click to the row in one, sent to a receiver of others' making; none where none is
//! wanted; and a receiver that is away harms nobody.

use std::net::TcpListener;
use std::time::Duration;

use flashsale_domain::OrderId;
use flashsale_storage_redis::RawEntry;
use flashsale_test_support::free_port;
use serde_json::Value;

use crate::after_order::token;
use crate::nginx::{before, logged};
use crate::receiver::{ReceivedSpan, Receiver};
use crate::stack::{Member, Stack, exchange, report};

const ENDPOINT: &str = "FLASHSALE__TRACING__OTLP_ENDPOINT";
const RATIO: &str = "FLASHSALE__TRACING__SAMPLE_RATIO";

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Much longer than the end of a program may wait for a receiver, and less than the sum of all it would
/// wait for without a bound.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Places an order with these header lines; its id.
fn place(port: u16, sale: &str, buyer: &str, headers: &[String]) -> OrderId {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let token = token(buyer);
    let request = format!(
        "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {token}\r\n{headers}content-length: 0\r\n\r\n"
    );
    let (status, answer) = exchange(port, &request).expect("an answer");
    assert_eq!(status, 202, "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let receipt: Value = serde_json::from_str(body).expect("is JSON");
    receipt["order_id"].as_str().expect("a text").parse().expect("an id")
}

fn sampled() -> String {
    format!("traceparent: 00-{TRACE}-{CALLER}-01")
}

fn port_of(gateway: &Member) -> u16 {
    gateway.http_addr().rsplit_once(':').expect("host:port").1.parse().expect("a port")
}

/// The trace that an entry on the stream carries.
fn carried(entry: &RawEntry) -> Option<String> {
    entry.traceparent().map(str::to_owned)
}

fn only<'a>(spans: &'a [ReceivedSpan], name: &str) -> &'a ReceivedSpan {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
    assert!(found.next().is_none(), "two of {name} in {spans:#?}");
    span
}

/// The line of a log that says this of the order.
fn line_of(member: &Member, order: OrderId, message: &str) -> Value {
    let log = member.program.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_order =
        |line: &Value| line["order.id"] == order.to_string().as_str() && line["message"] == message;
    lines.into_iter().find(of_order).unwrap_or_else(|| panic!("no such line in {log}"))
}

#[test]
fn one_trace_shows_an_order_from_the_click_to_its_row() {
    let receiver = Receiver::start();
    let stack = Stack::postgres()
        .with(ENDPOINT, &receiver.endpoint())
        .with(RATIO, "0")
        .with("FLASHSALE__LOG__FORMAT", "json")
        .with(
            "FLASHSALE__LOG__FILTER",
            "info,sqlx=warn,flashsale_gateway=debug,flashsale_order_worker=debug",
        );
    let (gateway, worker) = (stack.gateway(), stack.worker());
    let sale = stack.open_sale(10, "queued");
    let nginx = before(&[&gateway]).start();

    let headers = [sampled(), "x-request-id: press-4711".to_owned()];
    let order = place(nginx.port(), &sale, "alice", &headers);
    place(nginx.port(), &sale, "bob", &[]);
    stack.settled(&sale);

    let request_name = "POST /api/v1/sales/{sale}/orders";
    let rows = ["SELECT sales", "INSERT orders", "UPDATE sales", "COMMIT"];
    let expected = [&[request_name, "admission", "batch", "order"][..], &rows].concat();
    let spans = receiver.wait_until(|spans| {
        expected.iter().all(|name| spans.iter().any(|span| span.name == *name))
    });
    let id = order.to_string();

    let request = only(&spans, request_name);
    assert_eq!((request.service.as_str(), request.parent.as_str()), ("gateway", CALLER));
    assert_eq!(request.attributes["request.id"], "press-4711");
    assert_eq!(request.attributes["http.response.status_code"], "202");
    let admission = only(&spans, "admission");
    assert_eq!((admission.service.as_str(), &admission.parent), ("gateway", &request.id));
    assert_eq!(
        (&admission.attributes["order.id"], &admission.attributes["outcome"]),
        (&id, &"admitted".to_owned())
    );
    let batch = only(&spans, "batch");
    assert_eq!((batch.service.as_str(), &batch.parent), ("order-worker", &admission.id));
    assert_eq!(batch.links, [format!("{TRACE}/{}", admission.id)]);
    let row = only(&spans, "order");
    assert_eq!((row.service.as_str(), &row.parent), ("order-worker", &admission.id));
    assert_eq!(
        (&row.attributes["order.id"], &row.attributes["result"]),
        (&id, &"committed".to_owned())
    );
    assert_eq!(row.links, [format!("{TRACE}/{}", batch.id)]);
    for name in rows {
        assert_eq!(only(&spans, name).parent, batch.id, "{name}");
    }
    // And nobody else's order is traced.
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");

    // The logs name the same, and the proxy's too.
    let line = &logged(&nginx, |line| line["request_id"] == "press-4711", 1)[0];
    assert_eq!(line["order_id"], id.as_str());
    assert_eq!(line_of(&gateway, order, "an order is admitted")["request.id"], "press-4711");
    assert_eq!(line_of(&worker, order, "an order is committed")["trace.id"], TRACE);
}

#[test]
fn orders_of_one_batch_have_a_trace_each_and_the_batch_names_them() {
    let receiver = Receiver::start();
    let stack = Stack::sqlite().with(ENDPOINT, &receiver.endpoint()).with(RATIO, "1");
    let gateway = stack.gateway();
    let sale = stack.open_sale(10, "queued");
    for buyer in ["alice", "bob", "carol"] {
        place(port_of(&gateway), &sale, buyer, &[]);
    }
    let _worker = stack.worker();
    stack.settled(&sale);

    let spans = receiver.wait_until(|spans| {
        spans.iter().filter(|span| span.name == "order").count() == 3
            && spans.iter().any(|span| span.name == "batch")
    });
    let batch = only(&spans, "batch");
    let mut admissions: Vec<String> = spans
        .iter()
        .filter(|span| span.name == "admission")
        .map(|span| format!("{}/{}", span.trace, span.id))
        .collect();
    let mut links = batch.links.clone();
    admissions.sort();
    links.sort();
    assert_eq!(links, admissions);
    for row in spans.iter().filter(|span| span.name == "order") {
        assert!(links.contains(&format!("{}/{}", row.trace, row.parent)), "{row:?}");
        assert_eq!(row.links, [format!("{}/{}", batch.trace, batch.id)]);
    }
}

#[test]
fn no_entry_carries_a_trace_while_traces_go_nowhere() {
    let stack = Stack::sqlite();
    let gateway = stack.gateway();
    let sale = stack.open_sale(10, "queued");
    let order = place(port_of(&gateway), &sale, "alice", &[sampled()]);
    let entry = stack.entry(order);
    assert_eq!(entry.fields.len(), 1, "{entry:?}");
}

#[test]
fn an_entry_carries_a_trace_only_when_the_request_is_sampled() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let stack = Stack::sqlite().with(ENDPOINT, &nobody).with(RATIO, "0");
    let gateway = stack.gateway();
    let sale = stack.open_sale(10, "queued");
    let port = port_of(&gateway);
    let carried =
        |buyer: &str, headers: &[String]| carried(&stack.entry(place(port, &sale, buyer, headers)));

    let traceparent = carried("alice", &[sampled()]).expect("it is sampled");
    assert!(traceparent.starts_with(&format!("00-{TRACE}-")), "{traceparent}");
    assert!(!traceparent.contains(CALLER), "the span of the admission, and not the caller's");
    assert_eq!(carried("bob", &[]), None);
    assert_eq!(carried("carol", &[sampled().replace("-01", "-00")]), None);
    // A malformed one is as none at all, and so are two.
    assert_eq!(carried("dave", &[format!("traceparent: 00-{TRACE}-01")]), None);
    assert_eq!(carried("erin", &[sampled(), sampled()]), None);
}

#[test]
fn a_receiver_that_is_away_or_silent_harms_nobody() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_address = silent.local_addr().expect("it is bound");
    for receiver in [format!("127.0.0.1:{}", free_port()), silent_address.to_string()] {
        let stack = Stack::sqlite().with(ENDPOINT, &format!("http://{receiver}")).with(RATIO, "1");
        let (gateway, worker) = (stack.gateway(), stack.worker());
        let sale = stack.open_sale(3000, "queued");
        // Two spans each in the gateway: more than may wait to be sent.
        let rush = stack.rush(&[&gateway], &sale, &["--buyers", "3000", "--concurrency", "32"]);
        let (report, code) = report(&rush);
        assert_eq!((code, &report["accepted"]), (Some(0), &3000.into()), "{report}");
        stack.settled(&sale);
        stack.assert_clean(&sale);
        gateway.wait_for("flashsale_trace_spans_total", 1.0);
        let sent = "flashsale_trace_spans_total{result=\"sent\"} 0\n";
        assert!(gateway.metrics().contains(sent), "{}", gateway.metrics());
        for member in [gateway, worker] {
            member.program.terminate();
            member.must_end_well(ENDS_WITHIN);
        }
    }
}
