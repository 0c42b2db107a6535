//! Reading orders: one's own in every state, nobody else's in any.

use std::time::{Duration, Instant};

use flashsale_domain::{NewSale, OrderId, SaleId};
use flashsale_operations::{Operations, SettleAs, Settling};
use flashsale_storage_redis::DeadLetter;
use flashsale_test_support::eventually;
use serde_json::Value;

use crate::support::{Answer, SOON, TestApp, home, new_sale, now_ms};

fn assert_state(answer: &Answer, state: &str) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.body["state"], state, "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

async fn assert_nobodys(app: &TestApp, buyer: &str, id: OrderId) {
    assert_eq!(app.order(buyer, id).await.problem(), (404, "order-not-found"));
    let started = Instant::now();
    let waited = app.get_as(buyer, &format!("/api/v1/orders/{id}?wait=30")).await;
    assert_eq!(waited.problem(), (404, "order-not-found"));
    // Not even by the time it takes.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// The ids of a list, in its order.
fn ids(list: &Answer) -> Vec<OrderId> {
    assert_eq!(list.status, 200, "{list:?}");
    assert_eq!(list.header("cache-control"), Some("no-store"));
    let orders = list.body["orders"].as_array().expect("has orders");
    let id = |order: &Value| order["order_id"].as_str().expect("is a string").parse();
    orders.iter().map(|order| id(order).expect("is an order's id")).collect()
}

#[tokio::test]
async fn an_order_is_queued_until_a_worker_has_written_it() {
    for app in [TestApp::spawn().await, TestApp::spawn_on_postgres().await] {
        let sale = app.sale(10).await;
        let id = app.place(sale, "alice").await.receipt();
        let queued = app.order("alice", id).await;
        assert_state(&queued, "queued");
        assert_eq!(queued.body["order_id"], id.to_string());
        assert_eq!(queued.body["sale_id"], sale.to_string());
        for absent in ["price", "pay_by", "committed_at", "reason"] {
            assert_eq!(queued.body[absent], Value::Null, "{absent}");
        }
        assert_nobodys(&app, "bob", id).await;

        let _worker = app.start_worker().await;
        app.wait_until_committed("alice", id).await;
        let committed = app.order("alice", id).await;
        assert_state(&committed, "awaiting_payment");
        assert_eq!(committed.body["order_id"], id.to_string());
        assert_eq!(committed.body["sale_id"], sale.to_string());
        assert_eq!(committed.body["price"], serde_json::json!({"amount": 9900, "currency": "CNY"}));
        let time = |name: &str| {
            let text = committed.body[name].as_str().expect("has a time");
            assert!(text.ends_with('Z'), "{text}");
            chrono::DateTime::parse_from_rfc3339(text).expect("RFC 3339").timestamp_millis()
        };
        assert_eq!(time("pay_by") - time("committed_at"), 900_000);
        assert!((time("committed_at") - now_ms()).abs() < 60_000);
        assert_nobodys(&app, "bob", id).await;
    }
}

#[tokio::test]
async fn who_waits_is_answered_soon_after_the_commit() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let id = app.place(sale, "alice").await.receipt();
    let path = format!("/api/v1/orders/{id}?wait=30");
    let waiting = app.get_as("alice", &path);
    let committed = async {
        let _worker = app.start_worker().await;
        eventually(SOON, "the row is there", async || {
            app.database.find_order(id).await.expect("answers")
        })
        .await;
        (Instant::now(), _worker)
    };
    let answered = async {
        let answer = waiting.await;
        (answer, Instant::now())
    };
    let ((answer, answered_at), (committed_at, _worker)) = tokio::join!(answered, committed);
    assert_state(&answer, "awaiting_payment");
    let late = answered_at.saturating_duration_since(committed_at);
    assert!(late < Duration::from_secs(2), "answered {late:?} after the commit");
}

#[tokio::test]
async fn who_waits_in_vain_is_told_queued_when_the_time_is_over() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let id = app.place(sale, "alice").await.receipt();
    let started = Instant::now();
    assert_state(&app.get_as("alice", &format!("/api/v1/orders/{id}?wait=1")).await, "queued");
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    let started = Instant::now();
    assert_state(&app.get_as("alice", &format!("/api/v1/orders/{id}?wait=0")).await, "queued");
    assert!(started.elapsed() < Duration::from_millis(900), "{:?}", started.elapsed());
}

#[tokio::test]
async fn many_who_wait_hold_nobody_up() {
    let settings =
        [("http.workers", "1"), ("redis.pool_max", "2"), ("database.max_connections", "2")];
    let app = TestApp::spawn_with(&settings).await;
    let sale = app.sale(100).await;
    let id = app.place(sale, "alice").await.receipt();
    let path = format!("/api/v1/orders/{id}?wait=3");
    let waiting = futures_util::future::join_all((0..50).map(|_| app.get_as("alice", &path)));
    let others = async {
        for press in 0..20 {
            let started = Instant::now();
            app.place(sale, &format!("buyer-{press}")).await.receipt();
            assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        }
    };
    let (waited, ()) = tokio::join!(waiting, others);
    for answer in waited {
        assert_state(&answer, "queued");
    }
}

#[tokio::test]
async fn an_order_that_the_database_refuses_is_rejected_to_its_buyer_and_nobodys_to_others() {
    // Nothing clears the stream, so that the entry is still there.
    let app = TestApp::spawn_with(&[("worker.trim_interval", "1h")]).await;
    let sale = app.sale(10).await;
    let _worker = app.start_worker().await;
    // Another order of the buyer holds the slot, and Redis knows nothing of it any more.
    let other = app.place(sale, "alice").await.receipt();
    app.wait_until_committed("alice", other).await;
    let removed: i64 = app.redis_command(&["HDEL", &app.keys.buyers(home(), sale), "alice"]);
    assert_eq!(removed, 1);

    let id = app.place(sale, "alice").await.receipt();
    // Rejected is not queued: nobody waits for it any longer.
    let started = Instant::now();
    let seen = app.get_as("alice", &format!("/api/v1/orders/{id}?wait=30")).await;
    assert_state(&seen, "rejected");
    assert_eq!(seen.body["reason"], "slot-taken", "{seen:?}");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_nobodys(&app, "bob", id).await;
    let list = app.get_as("alice", &format!("/api/v1/orders?sale={sale}")).await;
    assert_eq!(ids(&list), [id, other]);
    assert_eq!(list.body["orders"][0]["state"], "rejected", "{list:?}");
    assert_eq!(list.body["orders"][1]["state"], "awaiting_payment", "{list:?}");
}

#[tokio::test]
async fn a_dead_letter_whose_entry_left_the_stream_is_still_its_buyers() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let id = app.place(sale, "alice").await.receipt();
    set_aside(&app, id).await;
    let orders = app.keys.orders(home());
    let removed: i64 = app.redis_command(&["XDEL", &orders, &id.entry().to_string()]);
    assert_eq!(removed, 1);
    assert_state(&app.order("alice", id).await, "dead");
    assert_nobodys(&app, "bob", id).await;
    let path = |state: &str| format!("/api/v1/orders?sale={sale}&state={state}");
    assert_eq!(ids(&app.get_as("alice", &path("dead")).await), [id]);
    assert_eq!(ids(&app.get_as("alice", &path("queued")).await), []);
}

/// Its entry is gone and nobody has settled it: the buyer was told yes, and is told nothing else.
#[tokio::test]
async fn an_order_whose_entry_is_lost_is_queued_until_it_is_settled() {
    let app = TestApp::spawn().await;
    let (sale, other) = (app.sale(10).await, app.sale(10).await);
    let ids = [app.place(sale, "alice").await.receipt(), app.place(sale, "carol").await.receipt()];
    let elsewhere = app.place(other, "alice").await.receipt();
    let orders = app.keys.orders(home());
    for id in ids {
        let removed: i64 = app.redis_command(&["XDEL", &orders, &id.entry().to_string()]);
        assert_eq!(removed, 1);
    }
    let queued = app.order("alice", ids[0]).await;
    assert_state(&queued, "queued");
    assert_eq!(queued.body["sale_id"], sale.to_string());
    assert_nobodys(&app, "bob", ids[0]).await;
    assert_nobodys(&app, "alice", ids[1]).await;
    let list = app.get_as("alice", &format!("/api/v1/orders?sale={sale}&state=queued")).await;
    assert_eq!(self::ids(&list), [ids[0]]);
    assert_eq!(app.cancel("alice", ids[0]).await.problem(), (409, "not-cancellable"));
    assert_state(&app.order("alice", elsewhere).await, "queued");

    let operations = Operations::new(app.redis.clone(), app.database.clone());
    let waiting = format!("/api/v1/orders/{}?wait=30", ids[0]);
    let settle = async |id, settle_as| {
        let settling = Settling { orders: vec![id], settle_as, receipts: Vec::new() };
        let done = operations.settle_lost(sale, &settling, "test", false).await.expect("settled");
        assert!(done.len() == 1 && done[0].settled, "{done:?}");
    };
    // Whoever waits is told when it is settled.
    let (waited, ()) = tokio::join!(app.get_as("alice", &waiting), settle(ids[0], SettleAs::Order));
    assert_state(&waited, "awaiting_payment");
    settle(ids[1], SettleAs::Rejected).await;
    let rejected = app.order("carol", ids[1]).await;
    assert_state(&rejected, "rejected");
    assert_eq!(rejected.body["reason"], "entry-lost");
}

pub(crate) async fn set_aside(app: &TestApp, id: OrderId) {
    let entry = app.redis.find_entry(home(), id.entry()).await.expect("answers");
    let entry = entry.expect("is on the stream");
    let letter = DeadLetter::new(entry, "test", "", "test", now_ms());
    app.redis.store_dead_letter(home(), &letter).await.expect("stored");
}

#[tokio::test]
async fn an_id_that_is_no_order_is_not_found() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let id = app.place(sale, "alice").await.receipt().as_i64();
    let texts = [
        // Neighbours of a real one; other partitions; another kind of text.
        (id + 1).to_string(),
        (id - 1).to_string(),
        (id + (1 << 12)).to_string(),
        "1".to_owned(),
        "0".to_owned(),
        "-1".to_owned(),
        i64::MAX.to_string(),
        "9223372036854775808".to_owned(),
        format!("0{id}"),
        format!("{id}.0"),
        format!("{id}%20"),
        "abc".to_owned(),
        "%FF".to_owned(),
        "1-1".to_owned(),
    ];
    for text in texts {
        let answer = app.get_as("alice", &format!("/api/v1/orders/{text}")).await;
        assert_eq!(answer.problem(), (404, "order-not-found"), "{text}");
    }
}

#[tokio::test]
async fn a_question_that_is_not_understood_is_refused() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let id = app.place(sale, "alice").await.receipt();
    let one = format!("/api/v1/orders/{id}");
    for query in [
        "wait=31",
        "wait=-1",
        "wait=1.5",
        "wait=x",
        "wait=",
        "wait=99999999999999999999",
        "wait=1&wait=2",
        "unknown=1",
        "wait=1&unknown=1",
    ] {
        let answer = app.get_as("alice", &format!("{one}?{query}")).await;
        assert_eq!(answer.problem(), (400, "invalid-request"), "{query}");
        let detail = answer.body["detail"].as_str().expect("says what is allowed");
        assert!(detail.contains("wait, a number of seconds from 0 to 30"), "{query}: {detail}");
    }
    for query in [
        "limit=0",
        "limit=101",
        "limit=-1",
        "limit=x",
        "limit=",
        "cursor=x",
        "cursor=0",
        "cursor=",
        "sale=x",
        "sale=0",
        "sale=",
        "state=lost",
        "state=",
        "state=Queued",
        "unknown=1",
        "buyer=bob",
        "limit=1&limit=2",
    ] {
        let answer = app.get_as("alice", &format!("/api/v1/orders?{query}")).await;
        assert_eq!(answer.problem(), (400, "invalid-request"), "{query}");
        let detail = answer.body["detail"].as_str().expect("says what is allowed");
        let name = query.split('=').next().expect("has a name");
        let allowed = match name {
            "limit" => "from 1 to 100",
            "sale" => "a sale's id is",
            "cursor" => "an order id is",
            "state" => "queued",
            _ => "sale, state, cursor and limit",
        };
        assert!(detail.contains(allowed), "{query}: {detail}");
        // Nothing of the framework's wording, and nothing of what was sent.
        for foreign in ["deserialize", "field", "buyer", "unknown"] {
            assert!(!detail.contains(foreign), "{query}: {detail}");
        }
    }
    let draft = app.operations.create_sale(&new_sale(1)).await.expect("a sound sale").id;
    for unknown in ["999999".to_owned(), draft.to_string()] {
        let answer = app.get_as("alice", &format!("/api/v1/orders?sale={unknown}")).await;
        assert_eq!(answer.problem(), (404, "sale-not-found"), "{unknown}");
    }
    for query in ["limit=1", "limit=100", "", "state=queued", "state=refund_due", "cursor=1"] {
        let answer = app.get_as("alice", &format!("/api/v1/orders?{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
    }
}

#[tokio::test]
async fn with_a_sale_the_list_has_queued_orders_and_without_only_committed_ones() {
    let app = TestApp::spawn().await;
    let sale = app.publish(&NewSale { per_buyer: 3, ..new_sale(10) }).await;
    let other = app.sale(10).await;
    let worker = app.start_worker().await;
    let committed = app.place(sale, "alice").await.receipt();
    let elsewhere = app.place(other, "alice").await.receipt();
    app.wait_until_committed("alice", committed).await;
    app.wait_until_committed("alice", elsewhere).await;
    worker.stop(SOON).await;
    let queued =
        [app.place(sale, "alice").await.receipt(), app.place(sale, "alice").await.receipt()];

    let list =
        async |query: String| ids(&app.get_as("alice", &format!("/api/v1/orders{query}")).await);
    assert_eq!(list(String::new()).await, [elsewhere, committed]);
    assert_eq!(list(format!("?sale={sale}")).await, [queued[1], queued[0], committed]);
    assert_eq!(list(format!("?sale={other}")).await, [elsewhere]);
    assert_eq!(list(format!("?sale={sale}&state=queued")).await, [queued[1], queued[0]]);
    assert_eq!(list(format!("?sale={sale}&state=awaiting_payment")).await, [committed]);
    assert_eq!(list("?state=awaiting_payment".to_owned()).await, [elsewhere, committed]);
    assert_eq!(list("?state=queued".to_owned()).await, []);
    assert_eq!(list("?state=paid".to_owned()).await, []);
    assert_eq!(list(format!("?sale={sale}&cursor={}", queued[1])).await, [queued[0], committed]);
    assert_eq!(list(format!("?sale={sale}&cursor={}", queued[0])).await, [committed]);

    for query in [String::new(), format!("?sale={sale}"), format!("?sale={sale}&state=queued")] {
        let answer = app.get_as("bob", &format!("/api/v1/orders{query}")).await;
        assert_eq!(ids(&answer), [], "{query}");
        assert_eq!(answer.body.get("next_cursor"), None, "{query}");
    }
}

#[tokio::test]
async fn pages_have_every_order_once_newest_first() {
    let app = TestApp::spawn().await;
    let many = NewSale { per_buyer: 20, ..new_sale(100) };
    let sales = [app.publish(&many).await, app.publish(&many).await];
    let mut placed = Vec::new();
    for press in 0..25 {
        placed.push(app.place(sales[usize::from(press >= 15)], "alice").await.receipt());
        app.place(sales[0], &format!("other-{press}")).await.receipt();
    }
    placed.reverse();
    // First from the buyer's records alone, then from rows alone.
    let queued =
        [pages(&app, "", 10, Some(sales[0])).await, pages(&app, "", 1, Some(sales[1])).await];
    assert_eq!(queued[0], [&placed[10..20], &placed[20..]].map(<[OrderId]>::to_vec));
    assert_eq!(queued[1].concat(), placed[..10]);
    assert_eq!(queued[1].len(), 10);

    let _worker = app.start_worker().await;
    eventually(SOON, "all are rows", async || {
        ids(&app.get_as("alice", "/api/v1/orders?limit=100").await).len() == 25
    })
    .await;
    let committed = pages(&app, "&state=awaiting_payment", 10, None).await;
    assert_eq!(committed.concat(), placed);
    assert_eq!(committed.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 5]);
    assert_eq!(pages(&app, "", 25, None).await, [placed.clone()]);
    assert_eq!(pages(&app, "", 15, Some(sales[0])).await, [placed[10..].to_vec()]);
    let default = ids(&app.get_as("alice", "/api/v1/orders").await);
    assert_eq!(default, placed[..20]);
}

/// Every page of alice's orders, by following the cursors.
async fn pages(app: &TestApp, more: &str, limit: usize, sale: Option<SaleId>) -> Vec<Vec<OrderId>> {
    let mut path = format!("/api/v1/orders?limit={limit}{more}");
    if let Some(sale) = sale {
        path.push_str(&format!("&sale={sale}"));
    }
    let mut pages = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let cursor_query = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = app.get_as("alice", &format!("{path}{cursor_query}")).await;
        pages.push(ids(&page));
        assert!(pages.len() <= 30, "pages without end");
        match page.body.get("next_cursor") {
            Some(next) => cursor = Some(next.as_str().expect("is a string").to_owned()),
            None => return pages,
        }
    }
}
