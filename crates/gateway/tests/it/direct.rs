//! Direct sales: the final word in the response, whatever happens to the lock.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use flashsale_domain::{NewSale, SaleId, SaleMode};
use flashsale_test_support::{PostgresServer, RedisServer, eventually};
use futures_util::future::join_all;

use crate::support::{Answer, SOON, TestApp, new_sale, now_ms, user, window_from_now};

/// A test that must hold on either database. A buyer's lock is waited for as long as it takes.
async fn on_both() -> [TestApp; 2] {
    let postgres = PostgresServer::shared().create_database();
    let lock_wait = ("direct.lock_wait", "20s");
    [
        TestApp::spawn_with(&[lock_wait]).await,
        TestApp::spawn_with(&[lock_wait, ("database.url", &postgres)]).await,
    ]
}

fn direct(stock: i64) -> NewSale {
    NewSale { mode: SaleMode::Direct, ..new_sale(stock) }
}

/// How many rows the sale has, after its books were found in order.
async fn count_rows(app: &TestApp, sale: SaleId) -> usize {
    let ledger = app.operations.read_ledger(sale).await.expect("both stores answer");
    assert!(ledger.is_balanced(), "{ledger:?}");
    assert_eq!(ledger.total, ledger.stock_left + ledger.awaiting_payment + ledger.paid);
    assert!(ledger.redis.is_none(), "a direct sale has no stock in Redis: {ledger:?}");
    app.assert_sound(sale, &[]).await;
    app.database.list_sale_orders(sale, None, 1000).await.expect("answers").len()
}

#[tokio::test]
async fn a_direct_order_is_a_row_when_it_is_answered() {
    for app in on_both().await {
        let sale = app.direct_sale(10).await;
        let answer = app.place_with_key(sale, "alice", "k1").await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(!answer.is_replay());
        let id = answer.receipt();
        assert_eq!(answer.body["sale_id"], sale.to_string());
        let row = app.database.find_order(id).await.expect("answers").expect("is a row");
        assert_eq!(row.order.user_id, user("alice"));

        let order = app.order("alice", id).await;
        assert_eq!(order.body["state"], "awaiting_payment", "{order:?}");
        assert_eq!(app.order("bob", id).await.problem(), (404, "order-not-found"));
        let list = app.get_as("alice", &format!("/api/v1/orders?sale={sale}")).await;
        assert_eq!(list.body["orders"][0]["order_id"], id.to_string());
        app.assert_sound(sale, &[(id, "alice".to_owned())]).await;
        assert_eq!(count_rows(&app, sale).await, 1);
    }
}

#[tokio::test]
async fn the_same_key_is_answered_with_the_same_order() {
    for app in on_both().await {
        let sale = app.direct_sale(1).await;
        let first = app.place_with_key(sale, "alice", "k1").await;
        let assert_replayed = async || {
            let again = app.place_with_key(sale, "alice", "k1").await;
            assert_eq!((again.status, again.is_replay()), (201, true), "{again:?}");
            assert_eq!(again.receipt(), first.receipt());
        };
        assert_replayed().await;
        assert_eq!(app.place(sale, "bob").await.problem(), (409, "sold-out"));
        assert_replayed().await;
        app.operations.pause_sale(sale).await.expect("paused");
        assert_replayed().await;
        app.operations.close_sale(sale).await.expect("closed");
        assert_replayed().await;
        let second = app.place(sale, "alice").await;
        assert_eq!(second.problem(), (409, "already-ordered"));
        assert_eq!(second.body["order_id"], first.body["order_id"]);
        assert_eq!(count_rows(&app, sale).await, 1);
    }
}

#[tokio::test]
async fn a_direct_sale_refuses_as_a_queued_one_does() {
    for app in on_both().await {
        let window = window_from_now(90_000, 180_000);
        let later = app.publish(&NewSale { window, ..direct(1) }).await;
        let answer = app.place_with_key(later, "alice", "k").await;
        assert_eq!(answer.problem(), (409, "not-started"));
        assert!(answer.retry_after().is_some_and(|s| (1..=90).contains(&s)), "{answer:?}");
        let opens_at = answer.body["opens_at"].as_str().expect("says when");
        let opens_at = chrono::DateTime::parse_from_rfc3339(opens_at).expect("RFC 3339");
        assert_eq!(opens_at.timestamp_millis(), window.opens_ms());

        let short = app
            .publish(&NewSale { window: window_from_now(-1000, 1500), ..direct(1_000_000) })
            .await;
        eventually(SOON, "the window is over", async || {
            let answer = app.place(short, &format!("buyer-{}", now_ms())).await;
            answer.status == 409 && answer.problem() == (409, "ended")
        })
        .await;

        let sale = app.direct_sale(1).await;
        app.operations.pause_sale(sale).await.expect("paused");
        assert_eq!(app.place_with_key(sale, "alice", "k").await.problem(), (409, "paused"));
        app.operations.resume_sale(sale).await.expect("resumed");
        // A refusal was not kept under the key.
        let answer = app.place_with_key(sale, "alice", "k").await;
        assert_eq!((answer.status, answer.is_replay()), (201, false), "{answer:?}");
        assert_eq!(app.place(sale, "bob").await.problem(), (409, "sold-out"));
        assert_eq!(count_rows(&app, later).await, 0);
    }
}

#[tokio::test]
async fn of_thirty_buyers_five_get_the_five_units() {
    for app in on_both().await {
        let sale = app.direct_sale(5).await;
        let buyers: Vec<String> = (0..30).map(|i| format!("buyer-{i}")).collect();
        let answers = join_all(buyers.iter().map(|buyer| app.place(sale, buyer))).await;
        let mut receipts = Vec::new();
        for (answer, buyer) in answers.iter().zip(&buyers) {
            if answer.status == 201 {
                receipts.push((answer.receipt(), buyer.clone()));
            } else {
                assert_eq!(answer.problem(), (409, "sold-out"));
            }
        }
        assert_eq!(receipts.len(), 5);
        app.assert_sound(sale, &receipts).await;
        assert_eq!(count_rows(&app, sale).await, 5);
    }
}

#[tokio::test]
async fn twenty_presses_at_once_of_one_buyer_are_one_row() {
    for app in on_both().await {
        let sale = app.direct_sale(10).await;
        let without_key = join_all((0..20).map(|_| app.place(sale, "alice"))).await;
        assert_one_order(&without_key);
        let with_key = join_all((0..20).map(|_| app.place_with_key(sale, "bob", "k"))).await;
        assert_one_order(&with_key);
        let anew = |answer: &&Answer| answer.status == 201 && !answer.is_replay();
        assert_eq!(with_key.iter().filter(anew).count(), 1);
        assert!(with_key.iter().all(|answer| answer.status == 201), "{with_key:?}");
        assert_eq!(count_rows(&app, sale).await, 2);
    }
}

/// Whatever else they were told, all who were told of an order were told of the same.
fn assert_one_order(answers: &[Answer]) {
    let ids: HashSet<&str> =
        answers.iter().filter_map(|answer| answer.body["order_id"].as_str()).collect();
    assert_eq!(ids.len(), 1, "{answers:?}");
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!(answer.problem(), (409, "already-ordered"));
    }
    assert!(answers.iter().any(|answer| answer.status == 201 && !answer.is_replay()));
}

#[tokio::test]
async fn a_lock_that_is_lost_costs_nobody_a_second_order() {
    for app in on_both().await {
        let sale = app.publish(&NewSale { per_buyer: 2, ..direct(50) }).await;
        let lock = app.keys.buyer_lock(sale, &user("alice"));
        // Taken away again and again while the buyer presses.
        let mut presses = Box::pin(join_all((0..20).map(|_| app.place(sale, "alice"))));
        let answers = loop {
            tokio::select! {
                answers = &mut presses => break answers,
                () = tokio::task::yield_now() => {
                    let _: i64 = app.redis_command(&["DEL", &lock]);
                }
            }
        };
        let placed = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(placed, 2, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            assert_eq!(answer.problem(), (409, "already-ordered"));
        }
        assert_eq!(count_rows(&app, sale).await, 2);
    }
}

#[tokio::test]
async fn a_lock_whose_holder_died_is_waited_for_and_then_refused_as_overload() {
    let settings = [("direct.lock_wait", "300ms"), ("direct.lock_ttl", "5s")];
    let app = TestApp::spawn_with(&settings).await;
    let sale = app.direct_sale(10).await;
    let lock = app.keys.buyer_lock(sale, &user("alice"));
    let _: () = app.redis_command(&["SET", &lock, "somebody", "PX", "60000"]);
    let started = Instant::now();
    let answer = app.place_with_key(sale, "alice", "k").await;
    assert_eq!(answer.problem(), (503, "overloaded"));
    assert!(answer.retry_after() >= Some(1));
    assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
    // It is the buyer's own lock: others are not held up.
    app.place(sale, "bob").await.receipt();
    // Not taken away from whoever holds it.
    assert_eq!(app.redis_command::<Option<String>>(&["GET", &lock]).as_deref(), Some("somebody"));

    let _: () = app.redis_command(&["SET", &lock, "somebody", "PX", "100"]);
    let answer = eventually(SOON, "the lock runs out", async || {
        let answer = app.place_with_key(sale, "alice", "k").await;
        (answer.status == 201).then_some(answer)
    })
    .await;
    assert!(!answer.is_replay());
    assert_eq!(app.redis_command::<Option<String>>(&["GET", &lock]), None, "given back");
    assert_eq!(count_rows(&app, sale).await, 2);
}

#[tokio::test]
async fn a_lock_that_is_given_back_in_time_is_waited_for() {
    let app = TestApp::spawn_with(&[("direct.lock_wait", "20s")]).await;
    let sale = app.direct_sale(10).await;
    let lock = app.keys.buyer_lock(sale, &user("alice"));
    let _: () = app.redis_command(&["SET", &lock, "somebody", "PX", "300"]);
    let started = Instant::now();
    app.place(sale, "alice").await.receipt();
    assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_database_that_is_away_is_answered_for_and_the_key_finds_the_one_order() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let settings = [("database.url", url.as_str()), ("database.connect_timeout", "500ms")];
    let app = TestApp::spawn_with(&settings).await;
    let sale = app.direct_sale(10).await;
    let before = app.place_with_key(sale, "alice", "k1").await.receipt();
    postgres.stop();
    for _ in 0..3 {
        let started = Instant::now();
        let answer = app.place_with_key(sale, "bob", "k2").await;
        let (status, slug) = answer.problem();
        assert_eq!(status, 503);
        assert!(["sale-unavailable", "outcome-unknown"].contains(&slug), "{slug}");
        assert!(answer.retry_after() >= Some(1));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    postgres.start_again();
    let order = eventually(SOON, "the database is used again", async || {
        let answer = app.place_with_key(sale, "bob", "k2").await;
        (answer.status == 201).then(|| answer.receipt())
    })
    .await;
    assert_eq!(app.place_with_key(sale, "bob", "k2").await.receipt(), order);
    assert_eq!(app.place_with_key(sale, "alice", "k1").await.receipt(), before);
    assert_eq!(count_rows(&app, sale).await, 2);
    app.assert_sound(sale, &[(before, "alice".into()), (order, "bob".into())]).await;
}

#[tokio::test]
async fn a_redis_that_is_away_or_forgot_costs_a_direct_sale_no_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "500ms")]).await;
    let sale = app.direct_sale(10).await;
    let before = app.place_with_key(sale, "alice", "k1").await.receipt();
    redis.kill_9();
    let answer = app.place_with_key(sale, "bob", "k2").await;
    assert_eq!(answer.problem(), (503, "sale-unavailable"));
    // Empty again: the counter of ids has lost its place, and the database still has the last word.
    redis.start_again();
    let order = eventually(SOON, "Redis is used again", async || {
        let answer = app.place_with_key(sale, "bob", "k2").await;
        (answer.status == 201).then(|| answer.receipt())
    })
    .await;
    assert_ne!(order, before);
    assert_eq!(app.place_with_key(sale, "alice", "k1").await.receipt(), before);
    assert_eq!(count_rows(&app, sale).await, 2);
}
