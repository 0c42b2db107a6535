//! What operators look through: orders as pages and as a file, dead letters, workers.

use std::collections::BTreeSet;

use flashsale_storage_redis::{DeadLetter, RawEntry};
use reqwest::Method;
use serde_json::{Value, json};

use crate::operators::{ask, get, operator, post};
use crate::support::{Answer, TestApp, home, send};

/// The ids of a page of orders.
fn ids(page: &Value) -> Vec<String> {
    let orders = page["orders"].as_array().expect("orders");
    orders.iter().map(|order| order["order_id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn orders_of_all_buyers_are_read_page_by_page_and_by_what_they_are() {
    let app = TestApp::spawn().await;
    let _worker = app.start_worker().await;
    let (sale, other) = (app.sale(10).await, app.sale(10).await);
    let mut placed = Vec::new();
    for buyer in ["a", "b", "c", "d"] {
        placed.push(app.place_committed(sale, buyer).await.to_string());
    }
    let elsewhere = app.place_committed(other, "a").await;
    app.pay("m", placed[0].parse().expect("an id")).await;
    placed.reverse();

    let list = async |query: &str| get(&app, &format!("/admin/v1/orders?{query}")).await.body;
    assert_eq!(ids(&list("").await)[0], elsewhere.to_string());
    assert_eq!(ids(&list(&format!("sale={sale}")).await), placed);
    assert_eq!(ids(&list("state=paid").await), placed[3..]);
    assert_eq!(ids(&list("buyer=a").await), [elsewhere.to_string(), placed[3].clone()]);
    assert_eq!(ids(&list(&format!("buyer=a&sale={sale}")).await), placed[3..]);
    assert_eq!(list("buyer=nobody").await, json!({ "orders": [] }));

    let mut read = Vec::new();
    let mut query = format!("sale={sale}&limit=3");
    loop {
        let page = list(&query).await;
        read.extend(ids(&page));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        assert_eq!(read.last().map(String::as_str), Some(cursor));
        query = format!("sale={sale}&limit=3&cursor={cursor}");
    }
    assert_eq!(read, placed);
    let paid = &list("state=paid").await["orders"][0];
    assert_eq!(
        (&paid["user_id"], &paid["price"]),
        (&json!("a"), &json!({ "amount": 9900, "currency": "CNY" }))
    );
    assert!(paid["settled_at"].is_string() && paid["committed_at"].is_string(), "{paid}");
}

/// A file as a reader of RFC 4180 sees it.
fn rows(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quoted) {
            ('"', true) if chars.peek() == Some(&'"') => field.extend(chars.next()),
            ('"', _) => quoted = !quoted,
            (',', false) => row.push(std::mem::take(&mut field)),
            ('\r', false) => {
                assert_eq!(chars.next(), Some('\n'), "a line ends with CRLF");
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            (c, _) => field.push(c),
        }
    }
    assert!(row.is_empty() && field.is_empty() && !quoted, "the last line is whole");
    rows
}

#[tokio::test]
async fn a_file_has_every_order_once_and_no_formula() {
    let app = TestApp::spawn().await;
    let _worker = app.start_worker().await;
    let sale = app.sale(10).await;
    let newest = app.place_committed(sale, "=HYPERLINK(\"x\",\"y\")").await;
    // More than two reads of the database.
    let many = 2_345;
    app.execute(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many}) \
         INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
         price_currency, committed_ms) SELECT {newest} - (i << 22), {sale}, 'buyer-' || i, 1, 0, \
         'cancelled', 9900, 'CNY', 1764470400000 FROM n"
    ))
    .await;

    let file = async |query: &str, accept: &str| -> Answer {
        let url = format!("http://{}/admin/v1/orders{query}", app.at.admin);
        send(app.client.get(url).bearer_auth(operator()).header("Accept", accept)).await
    };
    let answer = file(&format!("?sale={sale}"), "text/csv").await;
    assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8; header=present"));
    assert_eq!(answer.header("content-disposition"), Some("attachment; filename=\"orders.csv\""));
    assert_eq!(answer.header("content-length"), None, "it is sent while it is read");
    let table = rows(&answer.text);
    assert_eq!(table[0][..4], ["order_id", "sale_id", "user_id", "state"]);
    assert!(table.iter().all(|row| row.len() == 10));
    assert_eq!(table[1][0], newest.to_string());
    assert_eq!(table[1][2], "'=HYPERLINK(\"x\",\"y\")");
    assert_eq!(
        table[2][1..],
        [
            &sale.to_string(),
            "buyer-1",
            "cancelled",
            "",
            "9900",
            "CNY",
            "",
            "2025-11-30T02:40:00.000Z",
            ""
        ]
    );
    let distinct: BTreeSet<&String> = table.iter().map(|row| &row[0]).collect();
    assert_eq!((table.len(), distinct.len()), (many + 2, many + 2));

    for (query, rows_expected) in [
        ("?format=csv&state=cancelled&limit=1500", 1500),
        ("?format=csv&buyer=buyer-7", 1),
        ("?format=csv&buyer=x", 0),
    ] {
        let answer = file(query, "application/json").await;
        assert_eq!(rows(&answer.text).len(), rows_expected + 1, "{query}");
    }
    let json = file("?format=json&limit=1", "text/csv").await;
    assert_eq!((json.status, ids(&json.body).len()), (200, 1));
}

#[tokio::test]
async fn dead_letters_are_looked_at_tried_again_and_given_up() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let broken = |entry: &str, reason: &str| {
        let fields = vec![(b"v".to_vec(), b"1".to_vec())];
        let entry = RawEntry { id: entry.parse().expect("an id"), fields };
        DeadLetter::new(entry, reason, "as set aside", "worker-1", 1_764_470_400_000)
    };
    for (entry, reason) in [("1764470400000-0", "undecodable"), ("1764470400000-1", "data-refused")]
    {
        let stored = app.redis.store_dead_letter(home(), &broken(entry, reason)).await;
        stored.expect("stored");
    }
    let list = async |query: &str| {
        let body = get(&app, &format!("/admin/v1/dead-letters{query}")).await.body;
        let dead = body["dead"].as_array().expect("letters").clone();
        dead.iter()
            .map(|letter| letter["entry_id"].as_str().expect("an id").to_owned())
            .collect::<Vec<_>>()
    };
    let (first, second) = ("1764470400000-0".to_owned(), "1764470400000-1".to_owned());
    let none: Vec<String> = Vec::new();
    assert_eq!([first.clone(), second.clone()].to_vec(), list("").await);
    assert_eq!([second.clone()].to_vec(), list("?reason=data-refused").await);
    assert_eq!([first.clone()].to_vec(), list("?limit=1").await);
    assert_eq!([second.clone()].to_vec(), list(&format!("?id={second}")).await);
    assert_eq!(none, list(&format!("?sale={sale}")).await);
    assert_eq!(none, list("?partition=7").await);

    let at = format!("/admin/v1/dead-letters/{first}");
    let dry = post(&app, &format!("{at}/reject"), json!({ "dry_run": true })).await.body;
    assert_eq!((&dry["dry_run"], &dry["outcomes"][0]["settled"]), (&json!(true), &json!(false)));
    assert!(dry["outcomes"][0]["what"].as_str().expect("told").contains("would be discarded"));
    let tried = ask(&app, Method::POST, &format!("{at}/requeue"), None).await;
    assert_eq!(tried.status, 200, "{tried:?}");
    assert_eq!(tried.body["outcomes"][0]["settled"], false);
    let letter = get(&app, &format!("/admin/v1/dead-letters?id={first}")).await.body;
    assert_eq!(letter["dead"][0]["consumers"], json!(["worker-1", "an operator"]));
    let given_up = ask(&app, Method::POST, &format!("{at}/reject"), None).await.body;
    assert_eq!(given_up["outcomes"][0]["settled"], true);
    for path in [format!("{at}/reject"), format!("{at}/requeue"), at.replace(&first, "x/reject")] {
        let answer = ask(&app, Method::POST, &path, None).await;
        assert_eq!(answer.problem(), (404, "dead-letter-not-found"), "{path}");
    }
    let gone = get(&app, &format!("/admin/v1/dead-letters?id={first}")).await;
    assert_eq!(gone.problem(), (404, "dead-letter-not-found"));
    let other = format!("/admin/v1/dead-letters/{second}/reject");
    let strict = post(&app, &other, json!({ "dry": 1 })).await;
    assert_eq!(strict.problem(), (400, "invalid-request"));

    let log = get(&app, "/admin/v1/audit-log?actor=an%20operator").await.body;
    let lines = log["lines"].as_array().expect("lines");
    let told: Vec<&str> = lines.iter().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!(told, ["dead.reject", "dead.requeue"], "a dry run is no action");
}

#[tokio::test]
async fn workers_are_listed_with_what_waits_for_them() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let workers = async || get(&app, "/admin/v1/workers").await.body["partitions"].clone();
    assert_eq!(workers().await[0]["consumers"], json!([]));
    app.place(sale, "a").await.receipt();
    let waiting = workers().await;
    assert_eq!(waiting[0]["backlog"], json!({ "undelivered": 1, "pending": 0 }));
    let _worker = app.start_worker().await;
    app.place_committed(sale, "b").await;
    let working = workers().await;
    let consumers = working[0]["consumers"].as_array().expect("consumers");
    assert!(!consumers.is_empty(), "{working}");
    for consumer in consumers {
        assert!(consumer["name"].is_string() && consumer["idle_ms"].is_u64(), "{consumer}");
    }
    assert_eq!(working[0]["partition"], 0);
}
