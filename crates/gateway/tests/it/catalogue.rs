//! Sales as buyers see them, and how soon they see what the operator did.

use std::time::Duration;

use flashsale_domain::{NewSale, SaleId, SaleMode};
use flashsale_test_support::eventually;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{A_SECOND, Answer, SOON, TestApp, new_sale, send, token, window_from_now};

fn listed(list: &Answer) -> Vec<String> {
    assert_eq!(list.status, 200, "{list:?}");
    let sales = list.body["sales"].as_array().expect("has sales");
    sales.iter().map(|sale| sale["sale_id"].as_str().expect("is a string").to_owned()).collect()
}

async fn show(app: &TestApp, sale: SaleId) -> Answer {
    app.get(&format!("/api/v1/sales/{sale}")).await
}

#[tokio::test]
async fn a_sale_is_shown_with_all_that_a_buyer_needs() {
    let app = TestApp::spawn().await;
    let new = NewSale {
        title: "演唱会门票 <b>\"A\"</b>".to_owned(),
        window: window_from_now(60_000, 120_000),
        per_buyer: 2,
        ..new_sale(10)
    };
    let sale = app.publish(&new).await;
    let answer = show(&app, sale).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let time = |ms: i64| {
        let time = chrono::DateTime::from_timestamp_millis(ms).expect("in range");
        time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    };
    let mut body = answer.body.clone();
    let server_time = body.as_object_mut().and_then(|body| body.remove("server_time"));
    assert!(server_time.is_some_and(|time| time.is_string()), "{answer:?}");
    let expected = json!({
        "sale_id": sale.to_string(),
        "title": "演唱会门票 <b>\"A\"</b>",
        "state": "published",
        "mode": "queued",
        "opens_at": time(new.window.opens_ms()),
        "closes_at": time(new.window.closes_ms()),
        "stock_total": 10,
        "stock_left": 10,
        "per_buyer": 2,
        "price": { "amount": 9900, "currency": "CNY" },
        "payment_window_s": 900,
    });
    assert_eq!(body, expected);
    assert_eq!(app.get("/api/v1/sales").await.body["sales"], json!([expected]));
}

#[tokio::test]
async fn the_list_has_published_and_paused_sales_newest_first_and_no_others() {
    let app = TestApp::spawn().await;
    let published = app.sale(10).await;
    let paused = app.sale(10).await;
    let closed = app.sale(10).await;
    let direct = app.direct_sale(10).await;
    let draft = app.operations.create_sale(&new_sale(10)).await.expect("a sound sale").id;
    app.operations.pause_sale(paused).await.expect("paused");
    app.operations.close_sale(closed).await.expect("closed");
    let expected = [direct, paused, published].map(|sale| sale.to_string());
    let list = eventually(A_SECOND, "the list shows it within a second", async || {
        let list = app.get("/api/v1/sales").await;
        (listed(&list) == expected && list.body["sales"][1]["state"] == "paused").then_some(list)
    })
    .await;
    assert_eq!(list.body["sales"][0]["mode"], "direct");
    // Who knows a closed sale's id may see how it ended; a draft is nobody's business.
    let shown = show(&app, closed).await;
    assert_eq!((shown.status, &shown.body["state"]), (200, &json!("closed")));
    assert_eq!(show(&app, draft).await.problem(), (404, "sale-not-found"));
}

#[tokio::test]
async fn what_the_operator_does_is_seen_within_a_second() {
    for app in [TestApp::spawn().await, TestApp::spawn_on_postgres().await] {
        let sale = app.operations.create_sale(&new_sale(10)).await.expect("a sound sale").id;
        app.operations.publish_sale(sale).await.expect("published");
        assert_shown_as(&app, sale, "published").await;
        app.operations.pause_sale(sale).await.expect("paused");
        assert_shown_as(&app, sale, "paused").await;
        app.operations.resume_sale(sale).await.expect("resumed");
        assert_shown_as(&app, sale, "published").await;
        app.operations.close_sale(sale).await.expect("closed");
        assert_shown_as(&app, sale, "closed").await;
        assert_eq!(listed(&app.get("/api/v1/sales").await), [""; 0]);
    }
}

async fn assert_shown_as(app: &TestApp, sale: SaleId, state: &str) {
    eventually(A_SECOND, state, async || show(app, sale).await.body["state"] == state).await;
}

#[tokio::test]
async fn the_stock_that_is_shown_follows_the_orders() {
    let app = TestApp::spawn().await;
    let sales = [app.sale(10).await, app.direct_sale(10).await];
    for sale in sales {
        for buyer in ["a", "b", "c"] {
            app.place(sale, buyer).await.receipt();
        }
        eventually(A_SECOND, "three fewer are shown", async || {
            let shown = show(&app, sale).await;
            assert_eq!(shown.body["stock_total"], 10);
            shown.body["stock_left"] == 7
        })
        .await;
    }
    // A worker's commit is no second sale.
    let _worker = app.start_worker().await;
    let orders = format!("/api/v1/orders?sale={}", sales[0]);
    eventually(SOON, "the orders are rows", async || {
        app.get_as("a", &orders).await.body["orders"][0]["state"] == "awaiting_payment"
    })
    .await;
    assert_eq!(show(&app, sales[0]).await.body["stock_left"], 7);
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    for path in ["/api/v1/sales".to_owned(), format!("/api/v1/sales/{sale}")] {
        let first = app.get(&path).await;
        let tag = first.header("etag").expect("has a tag").to_owned();
        let cache_control = first.header("cache-control").expect("says how long").to_owned();
        assert!(cache_control.contains("max-age=1"), "{cache_control}");
        let ask = async |known: &str| {
            send(app.request(Method::GET, &path).header("If-None-Match", known)).await
        };
        let strong = tag.trim_start_matches("W/");
        let several = format!("\"other\", {tag}");
        for known in [tag.as_str(), strong, several.as_str(), "*"] {
            let answer = ask(known).await;
            assert_eq!((answer.status, answer.text.as_str()), (304, ""), "{known}");
            assert_eq!(answer.header("etag"), Some(tag.as_str()), "{known}");
            assert_eq!(answer.header("cache-control"), Some(cache_control.as_str()), "{known}");
        }
        for unknown in ["\"other\"", "W/\"\"", "nonsense"] {
            let answer = ask(unknown).await;
            assert_eq!(answer.status, 200, "{unknown}");
            assert_eq!(answer.header("etag"), Some(tag.as_str()), "{unknown}");
        }
        app.place(sale, &path).await.receipt();
        let changed = eventually(A_SECOND, "another tag", async || {
            let answer = ask(&tag).await;
            (answer.status == 200).then_some(answer)
        })
        .await;
        assert_ne!(changed.header("etag"), Some(tag.as_str()));
    }
}

#[tokio::test]
async fn the_servers_time_is_that_of_redis() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    for path in ["/api/v1/sales".to_owned(), format!("/api/v1/sales/{sale}")] {
        let before = app.redis.time_ms().await.expect("answers");
        let answer = app.get(&path).await;
        let after = app.redis.time_ms().await.expect("answers");
        let text = answer.body["server_time"].as_str().expect("has a time");
        let time = chrono::DateTime::parse_from_rfc3339(text).expect("RFC 3339");
        assert!(text.ends_with('Z') && text.len() == "2024-01-01T00:00:00.000Z".len(), "{text}");
        let ms = time.timestamp_millis();
        assert!((before - 500..=after + 500).contains(&ms), "{before} {ms} {after}");
    }
}

#[tokio::test]
async fn a_head_request_has_the_headers_and_no_body() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    for path in ["/api/v1/sales".to_owned(), format!("/api/v1/sales/{sale}")] {
        let head = send(app.request(Method::HEAD, &path)).await;
        assert_eq!((head.status, head.text.as_str()), (200, ""), "{path}");
        let full = app.get(&path).await;
        for name in ["content-type", "content-length", "etag", "cache-control"] {
            assert_eq!(head.header(name), full.header(name), "{path}: {name}");
            assert!(head.header(name).is_some(), "{path}: {name}");
        }
    }
    let missing = send(app.request(Method::HEAD, "/api/v1/sales/999")).await;
    assert_eq!((missing.status, missing.text.as_str()), (404, ""));
}

#[tokio::test]
async fn no_sales_are_an_empty_list() {
    let app = TestApp::spawn().await;
    let list = app.get("/api/v1/sales").await;
    assert_eq!(list.body["sales"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn a_gateway_that_has_just_started_knows_its_sales() {
    let app = TestApp::spawn().await;
    let queued = app.sale(10).await;
    let direct = app.publish(&NewSale { mode: SaleMode::Direct, ..new_sale(10) }).await;
    for round in 0..3 {
        let (at, gateway) = app.start_another_gateway().await;
        let url = |path: String| format!("http://{}{path}", at.http);
        let buyer = token(&format!("buyer-{round}"));
        let press = |sale: SaleId| {
            let request = app.client.post(url(format!("/api/v1/sales/{sale}/orders")));
            send(request.bearer_auth(&buyer))
        };
        press(queued).await.receipt();
        press(direct).await.receipt();
        let list = send(app.client.get(url("/api/v1/sales".to_owned()))).await;
        assert_eq!(listed(&list).len(), 2);
        gateway.stop(Duration::from_secs(20)).await;
    }
}
