//! What comes after an order, from outside: a payment reported, money that is due back, and a stock
//! that changes while the sale runs.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use flashsale_domain::{DIRECT_PARTITION, EntryId, NewPayment, OrderId, Price, SaleId, UserId};
use flashsale_storage_sql::{AuditEntry, Database, DatabaseConfig, DirectAnswer};
use flashsale_webhooks::{Message, Secrets};
use serde_json::{Value, json};

use crate::stand::Stand;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const SECRET_VARIABLE: &str = "FLASHSALE__PAYMENT__WEBHOOK_SECRET";

/// A gateway that takes one request and gives one answer; returns its address, and the request's
/// head and body.
fn gateway_that_answers(answer: &str) -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("is bound").to_string();
    let (asked, request) = mpsc::channel();
    let answer = answer.to_owned();
    thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).expect("readable"), 0, "{head}");
        }
        let length = header(&head, "content-length").parse().expect("a length");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        asked.send((head, body)).expect("the test waits for it");
        reader.into_inner().write_all(answer.as_bytes()).expect("writable");
    });
    (address, request)
}

fn http(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
}

/// Whether the request is signed with the secret, byte for byte.
fn is_signed((head, body): &(String, Vec<u8>)) -> bool {
    let timestamp = header(head, "webhook-timestamp");
    let message = Message {
        id: header(head, "webhook-id"),
        timestamp,
        signature: header(head, "webhook-signature"),
        body,
    };
    let now_s = std::time::SystemTime::now();
    let now_s = now_s.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let secrets = Secrets::parse(SECRET).expect("a secret");
    secrets.verify(&message, i64::try_from(now_s).expect("fits")).is_ok()
}

fn on_database<T>(stand: &Stand, work: impl AsyncFnOnce(Database) -> T) -> T {
    let config = DatabaseConfig {
        url: stand.database_url().to_owned(),
        max_connections: 1,
        connect_timeout: Duration::from_secs(10),
        statement_timeout: Duration::from_secs(10),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        work(Database::connect(&config).await.expect("the database can be reached")).await
    })
}

/// The audit log's lines of one action, oldest first.
fn audited(stand: &Stand, action: &str) -> Vec<AuditEntry> {
    let newest_first =
        on_database(stand, async |database| database.list_audit(1_000).await.expect("answered"));
    newest_first.into_iter().rev().filter(|entry| entry.action == action).collect()
}

/// A direct sale with an order that costs 9,900 CNY.
fn ordered(stand: &Stand) -> OrderId {
    let create =
        "sale create --title T --stock 5 --opens now --closes +1h --price 9900 --mode direct";
    let sale = stand.ok(&create.split(' ').collect::<Vec<_>>());
    stand.ok(&["sale", "publish", sale.trim_end()]);
    let sale: SaleId = sale.trim_end().parse().expect("an id");
    let entry = EntryId { ms: 1_764_470_400_000, seq: 0 };
    let id = OrderId::from_entry(DIRECT_PARTITION, entry).expect("an id");
    on_database(stand, async |database| {
        let buyer = UserId::new("buyer").expect("an id");
        match database.place_direct_order(id, sale, &buyer, None, 20).await {
            Ok(DirectAnswer::Placed(order)) => assert_eq!(order.id, id),
            other => panic!("not placed: {other:?}"),
        }
    });
    id
}

#[test]
fn a_payment_is_reported_with_the_orders_price_and_a_good_signature() {
    let stand = Stand::sqlite().with(SECRET_VARIABLE, SECRET);
    let order = ordered(&stand).to_string();
    let answer = format!(r#"{{"order_id":"{order}","outcome":"paid"}}"#);
    let (address, request) = gateway_that_answers(&http(200, &answer));
    // Its slash at the end does no harm.
    let printed = stand.ok(&["pay", &order, "--url", &format!("http://{address}/")]);
    assert_eq!(printed, format!("order {order}: paid\n"));
    let request = request.recv().expect("a request");
    let (head, body) = &request;
    assert!(head.starts_with("POST /api/v1/payments/webhook HTTP/1.1\r\n"), "{head}");
    assert_eq!(header(head, "content-type"), "application/json");
    assert!(is_signed(&request), "{head}");
    let body: Value = serde_json::from_slice(body).expect("is JSON");
    assert_eq!(body["type"], "payment.succeeded");
    assert!(body["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{body}");
    let data = json!({"order_id": order, "amount": 9900, "currency": "CNY"});
    assert_eq!(body["data"], data);
}

#[test]
fn a_payment_is_reported_as_it_is_said_and_needs_no_database_then() {
    let answer = http(200, r#"{"order_id":"5","outcome":"refund_due"}"#);
    let (address, request) = gateway_that_answers(&answer);
    // Where the gateway of these settings listens.
    let stand = Stand::bare()
        .with(SECRET_VARIABLE, &format!("{SECRET} an-old-secret-0123456789"))
        .with("FLASHSALE__HTTP__LISTEN", &address);
    let said = stand.json(&["pay", "5", "--amount", "1", "--currency", "EUR", "--id", "msg_1"]);
    let answer = json!({"order_id": "5", "outcome": "refund_due"});
    assert_eq!(said, json!({"webhook_id": "msg_1", "status": 200, "answer": answer}));
    let request = request.recv().expect("a request");
    assert_eq!(header(&request.0, "webhook-id"), "msg_1");
    assert!(is_signed(&request));
    let body: Value = serde_json::from_slice(&request.1).expect("is JSON");
    assert_eq!(body["data"], json!({"order_id": "5", "amount": 1, "currency": "EUR"}));
}

#[test]
fn a_payment_that_is_refused_is_exit_code_1_with_the_answer() {
    let stand = Stand::bare().with(SECRET_VARIABLE, SECRET);
    let pay = |answer: &str, more: &[&str]| {
        let (address, _request) = gateway_that_answers(answer);
        let url = format!("http://{address}");
        let arguments = ["pay", "5", "--amount", "1", "--currency", "CNY", "--url", &url];
        let ran = stand.run(&[&arguments[..], more].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{ran:?}");
        ran.stdout
    };
    let problem = r#"{"type":"/problems/payment-mismatch","title":"Not its price","status":409}"#;
    let said = pay(&http(409, problem), &[]);
    assert_eq!(said, "refused (409): Not its price\n");
    let said: Value = serde_json::from_str(&pay(&http(409, problem), &["--json"])).expect("JSON");
    assert_eq!((&said["status"], &said["answer"]["status"]), (&json!(409), &json!(409)));
    assert_eq!(pay(&http(502, "no upstream"), &[]), "refused (502): no upstream\n");
    let elsewhere = "HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    assert!(pay(elsewhere, &[]).contains("307"), "a redirect is not followed");
}

#[test]
fn what_cannot_be_paid_is_said_in_one_line() {
    let stand = Stand::sqlite().with(SECRET_VARIABLE, SECRET);
    let line = stand.refused(1, &["pay", "5"]);
    assert!(line.contains("there is no order 5"), "{line}");
    let said = ["--amount", "1", "--currency", "CNY"];
    // The port of TCP's multiplexer, where nobody listens.
    let nobody = ["pay", "5", "--url", "http://127.0.0.1:1"];
    let line = stand.refused(1, &[&nobody[..], &said].concat());
    assert!(line.contains("the gateway has not answered"), "{line}");
    for url in ["https://shop.example", "shop.example", "ftp://shop.example"] {
        let line = stand.refused(2, &[&["pay", "5", "--url", url][..], &said].concat());
        assert!(line.contains("--url"), "{line}");
    }
    let line = Stand::bare().refused(2, &[&["pay", "5"][..], &said].concat());
    assert!(line.contains("payment.webhook_secret is not set"), "{line}");
}

#[test]
fn money_that_is_due_back_is_listed_until_it_went_back() {
    let stand = Stand::sqlite();
    assert_eq!(stand.ok(&["refunds", "list"]), "no money is due back\n");
    let order = ordered(&stand);
    on_database(&stand, async |database| {
        for amount in [1, 2] {
            let price = Price { amount, currency: "CNY".parse().expect("a currency") };
            let webhook_id = format!("msg_{amount}");
            let payment = NewPayment { webhook_id, order_id: order, price };
            database.receive_payment(&payment).await.expect("decided");
        }
    });
    let due = stand.json(&["refunds", "list"]);
    let due = due["refunds"].as_array().expect("a list").clone();
    assert_eq!(due.len(), 2);
    assert_eq!(due[0]["order_id"], order.to_string());
    assert_eq!(due[0]["price"], json!({"amount": 1, "currency": "CNY"}));
    assert_eq!((&due[0]["outcome"], &due[0]["webhook_id"]), (&json!("mismatch"), &json!("msg_1")));
    let first = due[0]["payment_id"].as_str().expect("ids are strings");
    let listed = stand.json(&["refunds", "list", "--limit", "1"]);
    assert_eq!(listed, json!({"refunds": [due[0]]}));
    assert!(stand.ok(&["refunds", "list"]).contains("2 CNY"));

    assert_eq!(stand.ok(&["refunds", "done", first]), format!("payment {first} went back\n"));
    assert_eq!(stand.json(&["refunds", "list"]), json!({"refunds": [due[1]]}));
    for payment in [first, "999"] {
        let line = stand.refused(1, &["refunds", "done", payment]);
        assert!(line.contains("no payment"), "{line}");
    }
    let second = due[1]["payment_id"].as_str().expect("ids are strings");
    let done = stand.json(&["refunds", "done", second]);
    assert_eq!(done, json!({"payment_id": second, "refunded": true}));
    let audited = audited(&stand, "refund.done");
    let audited: Vec<_> = audited.iter().map(|entry| entry.subject.as_str()).collect();
    assert_eq!(audited, [first, second], "each once, and no refused try");
}

#[test]
fn a_stock_changes_in_both_stores_while_the_sale_runs() {
    let stand = Stand::sqlite();
    let sale = stand.create();
    stand.ok(&["sale", "publish", &sale]);
    let change =
        |delta: &str| stand.json(&["sale", "stock", &sale, "--delta", delta, "--reason", "R"]);
    let shown = change("+5");
    assert_eq!((&shown["stock_total"], &shown["stock_left"]), (&json!(15), &json!(15)));
    let shown = change("-8");
    assert_eq!((&shown["stock_total"], &shown["stock_left"]), (&json!(7), &json!(7)));
    let text =
        stand.ok(&["sale", "stock", &sale, "--delta", "-1", "--reason", "broken in transit"]);
    assert_eq!(text, format!("sale {sale} has 6 units, 6 left (in the database)\n"));
    let ledger = stand.json(&["ledger", &sale]);
    assert_eq!(ledger["redis"]["available"], 6);
    assert_eq!(ledger["balanced"], true);

    let refused = |delta: &str, reason: &str| {
        stand.refused(1, &["sale", "stock", &sale, "--delta", delta, "--reason", reason])
    };
    assert!(refused("-7", "R").contains("only 6 units left"));
    assert!(refused("0", "R").contains("other than 0"));
    assert!(refused("1", " ").contains("1 to 200 characters"));
    stand.ok(&["sale", "close", &sale]);
    assert!(refused("1", "R").contains("is closed"));
    assert_eq!(stand.json(&["ledger", &sale])["redis"]["available"], 6);
    let audited = audited(&stand, "sale.stock");
    let audited: Vec<_> = audited.iter().map(|entry| entry.detail.as_str()).collect();
    assert_eq!(audited, ["+5 units: R", "-8 units: R", "-1 units: broken in transit"]);
}
