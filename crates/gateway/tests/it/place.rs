//! Placing an order of a queued sale: each answer that a buyer can get.

use std::collections::HashSet;

use flashsale_domain::{NewSale, SaleMode};
use flashsale_test_support::{PostgresServer, eventually};
use futures_util::future::join_all;

use crate::support::{Answer, SOON, TestApp, new_sale, now_ms, window_from_now};

#[tokio::test]
async fn the_answered_id_is_the_rows_id_under_its_buyer() {
    for app in [TestApp::spawn().await, TestApp::spawn_on_postgres().await] {
        let sale = app.sale(10).await;
        let _worker = app.start_worker().await;
        let answer = app.place_with_key(sale, "alice", "k1").await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(answer.body["sale_id"], sale.to_string());
        assert!(!answer.is_replay());
        let id = answer.receipt();

        let location = answer.header("location").expect("says where");
        let followed = app.get_as("alice", &format!("{location}?wait=20")).await;
        assert_eq!(followed.status, 200, "{followed:?}");
        assert_eq!(followed.body["state"], "awaiting_payment");
        assert_eq!(followed.body["order_id"], answer.body["order_id"]);
        assert_eq!(followed.body["sale_id"], answer.body["sale_id"]);
        let row = app.database.find_order(id).await.expect("answers").expect("is a row");
        assert_eq!(row.order.user_id.as_str(), "alice");
        assert_eq!(row.order.sale_id, sale);
        app.assert_sound(sale, &[(id, "alice".to_owned())]).await;
    }
}

#[tokio::test]
async fn the_first_press_is_admitted_and_the_second_is_told_the_order() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let first = app.place(sale, "alice").await.receipt();
    let second = app.place(sale, "alice").await;
    assert_eq!(second.problem(), (409, "already-ordered"));
    assert_eq!(second.body["order_id"], first.to_string());
    assert_ne!(app.place(sale, "bob").await.receipt(), first);
}

#[tokio::test]
async fn a_buyer_gets_as_many_orders_as_the_sale_allows() {
    let app = TestApp::spawn().await;
    let sale = app.publish(&NewSale { per_buyer: 2, ..new_sale(10) }).await;
    let first = app.place(sale, "alice").await.receipt();
    let second = app.place(sale, "alice").await.receipt();
    assert_ne!(first, second);
    let third = app.place(sale, "alice").await;
    assert_eq!(third.problem(), (409, "already-ordered"));
    assert_eq!(third.body["order_id"], second.to_string());
}

#[tokio::test]
async fn the_same_key_is_answered_with_the_same_order_queued_or_committed() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let first = app.place_with_key(sale, "alice", "k1").await;
    assert!(!first.is_replay());
    assert_replayed(&app.place_with_key(sale, "alice", "k1").await, &first);
    let _worker = app.start_worker().await;
    app.wait_until_committed("alice", first.receipt()).await;
    assert_replayed(&app.place_with_key(sale, "alice", "k1").await, &first);
    let other_key = app.place_with_key(sale, "alice", "k2").await;
    assert_eq!(other_key.problem(), (409, "already-ordered"));
}

#[tokio::test]
async fn a_key_is_answered_with_its_order_whatever_became_of_the_sale() {
    let app = TestApp::spawn().await;
    let sale = app.publish(&NewSale { window: window_from_now(-1000, 6000), ..new_sale(1) }).await;
    let first = app.place_with_key(sale, "alice", "k1").await;
    assert_eq!(app.place(sale, "bob").await.problem(), (409, "sold-out"));
    assert_replayed(&app.place_with_key(sale, "alice", "k1").await, &first);

    app.operations.pause_sale(sale).await.expect("paused");
    // Until the gateway asks Redis again, it refuses from memory.
    eventually(SOON, "it is paused", async || {
        app.place(sale, "bob").await.problem() == (409, "paused")
    })
    .await;
    assert_replayed(&app.place_with_key(sale, "alice", "k1").await, &first);

    app.operations.resume_sale(sale).await.expect("resumed");
    eventually(SOON, "the window is over", async || {
        app.place(sale, "bob").await.problem() == (409, "ended")
    })
    .await;
    assert_replayed(&app.place_with_key(sale, "alice", "k1").await, &first);

    app.operations.close_sale(sale).await.expect("closed");
    assert_eq!(app.place(sale, "bob").await.problem(), (409, "ended"));
    assert_replayed(&app.place_with_key(sale, "alice", "k1").await, &first);
    // Without the key the buyer is still told of the order that he holds.
    let second = app.place(sale, "alice").await;
    assert_eq!(second.problem(), (409, "already-ordered"));
    assert_eq!(second.body["order_id"], first.body["order_id"]);
}

#[tokio::test]
async fn a_key_belongs_to_one_buyer_and_one_sale() {
    let app = TestApp::spawn().await;
    let (sale, other) = (app.sale(10).await, app.sale(10).await);
    let ids: HashSet<_> = [
        app.place_with_key(sale, "alice", "k").await,
        app.place_with_key(sale, "bob", "k").await,
        app.place_with_key(other, "alice", "k").await,
        app.place_with_key(sale, "Alice", "k").await,
    ]
    .iter()
    .map(|answer| {
        assert!(!answer.is_replay());
        answer.receipt()
    })
    .collect();
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn twenty_presses_at_once_with_one_key_are_one_order() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let presses = (0..20).map(|_| app.place_with_key(sale, "alice", "k1"));
    let answers = join_all(presses).await;
    let ids: HashSet<_> = answers.iter().map(Answer::receipt).collect();
    assert_eq!(ids.len(), 1);
    let anew = answers.iter().filter(|answer| !answer.is_replay()).count();
    assert_eq!(anew, 1);
    assert_eq!(app.orders_in_record(sale, "alice").await, 1);
}

#[tokio::test]
async fn twenty_presses_at_once_without_a_key_are_one_order() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let answers = join_all((0..20).map(|_| app.place(sale, "alice"))).await;
    let (yes, no): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 202);
    assert_eq!(yes.len(), 1);
    for answer in no {
        assert_eq!(answer.problem(), (409, "already-ordered"));
        assert_eq!(answer.body["order_id"], yes[0].body["order_id"]);
    }
}

#[tokio::test]
async fn of_a_crowd_exactly_as_many_as_there_are_units_get_one() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let _worker = app.start_worker().await;
    let buyers: Vec<String> = (0..60).map(|i| format!("buyer-{i}")).collect();
    let answers = join_all(buyers.iter().map(|buyer| app.place(sale, buyer))).await;
    let mut receipts = Vec::new();
    for (answer, buyer) in answers.iter().zip(&buyers) {
        if answer.status == 202 {
            receipts.push((answer.receipt(), buyer.clone()));
        } else {
            assert_eq!(answer.problem(), (409, "sold-out"));
            assert_eq!(answer.retry_after(), None);
        }
    }
    assert_eq!(receipts.len(), 10);
    for (id, buyer) in &receipts {
        app.wait_until_committed(buyer, *id).await;
    }
    app.assert_sound(sale, &receipts).await;
}

#[tokio::test]
async fn a_refusal_is_not_kept_under_the_key() {
    let app = TestApp::spawn().await;
    let sale = app.publish(&NewSale { window: window_from_now(4000, 60_000), ..new_sale(1) }).await;
    let press = async || app.place_with_key(sale, "alice", "k1").await;
    assert_eq!(press().await.problem(), (409, "not-started"));
    app.operations.pause_sale(sale).await.expect("paused");
    // Until the gateway has heard of it, it refuses from memory.
    eventually(SOON, "it is paused", async || press().await.problem() == (409, "paused")).await;
    app.operations.resume_sale(sale).await.expect("resumed");

    let answer = eventually(SOON, "the sale opens", async || {
        let answer = press().await;
        if answer.status == 202 {
            return Some(answer);
        }
        assert_eq!(answer.problem(), (409, "not-started"));
        None
    })
    .await;
    assert!(!answer.is_replay());
    answer.receipt();
}

#[tokio::test]
async fn a_sale_that_has_not_started_says_when_it_does() {
    let app = TestApp::spawn().await;
    let window = window_from_now(90_000, 180_000);
    let sale = app.publish(&NewSale { window, ..new_sale(1) }).await;
    let answer = app.place(sale, "alice").await;
    assert_eq!(answer.problem(), (409, "not-started"));
    let opens_at = answer.body["opens_at"].as_str().expect("says when");
    assert!(opens_at.ends_with('Z') && opens_at.len() == "2024-01-01T00:00:00.000Z".len());
    let opens_ms = chrono::DateTime::parse_from_rfc3339(opens_at).expect("RFC 3339");
    assert_eq!(opens_ms.timestamp_millis(), window.opens_ms());
    let wait_s = u64::try_from((window.opens_ms() - now_ms()) / 1000).expect("not yet");
    let retry_after = answer.retry_after().expect("says how long");
    assert!((wait_s..=90).contains(&retry_after), "{retry_after} s, not about {wait_s} s");
}

#[tokio::test]
async fn just_before_the_start_a_buyer_is_asked_to_wait_a_whole_second() {
    let app = TestApp::spawn().await;
    let sale = app.publish(&NewSale { window: window_from_now(2000, 60_000), ..new_sale(1) }).await;
    let mut last = None;
    eventually(SOON, "the sale opens", async || {
        let answer = app.place(sale, "alice").await;
        if answer.status == 202 {
            return true;
        }
        assert_eq!(answer.problem(), (409, "not-started"));
        last = answer.retry_after();
        assert!(last >= Some(1), "{last:?}");
        false
    })
    .await;
    assert_eq!(last, Some(1));
}

#[tokio::test]
async fn a_sale_whose_window_is_over_has_ended() {
    let app = TestApp::spawn().await;
    let sale =
        app.publish(&NewSale { window: window_from_now(-1000, 1000), ..new_sale(1_000_000) }).await;
    eventually(SOON, "the window is over", async || {
        app.place(sale, &format!("buyer-{}", now_ms())).await.status == 409
    })
    .await;
    let answer = app.place(sale, "late").await;
    assert_eq!(answer.problem(), (409, "ended"));
    assert_eq!(answer.retry_after(), None);
}

#[tokio::test]
async fn a_paused_sale_admits_nobody_until_it_is_resumed() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    app.operations.pause_sale(sale).await.expect("paused");
    // Redis decides, so not even a moment of grace.
    assert_eq!(app.place(sale, "alice").await.problem(), (409, "paused"));
    app.operations.resume_sale(sale).await.expect("resumed");
    assert_eq!(app.place(sale, "alice").await.status, 202);
}

#[tokio::test]
async fn what_is_no_sale_to_buyers_is_not_found() {
    let app = TestApp::spawn().await;
    app.sale(10).await;
    let draft = app.operations.create_sale(&new_sale(10)).await.expect("a sound sale").id;
    let texts = [
        "999999",
        "0",
        "-1",
        "01",
        "+1",
        "1.0",
        "abc",
        "9223372036854775808",
        "99999999999999999999999999",
        "%31%00",
        "%FF",
        "1%20",
        "%E6%B4%BB",
    ];
    for sale in texts.map(str::to_owned).into_iter().chain([draft.to_string()]) {
        let placed = app.place(&sale, "alice").await;
        assert_eq!(placed.problem(), (404, "sale-not-found"), "{sale}");
        let shown = app.get(&format!("/api/v1/sales/{sale}")).await;
        assert_eq!(shown.problem(), (404, "sale-not-found"), "{sale}");
    }
}

#[tokio::test]
async fn a_sale_can_be_bought_as_soon_as_it_is_published() {
    // Long enough to be caught by the first press, which comes within milliseconds.
    let app = TestApp::spawn_with(&[("catalogue.refresh", "1s")]).await;
    for (round, mode) in [SaleMode::Queued, SaleMode::Direct].repeat(5).into_iter().enumerate() {
        let new = NewSale { mode, ..new_sale(10) };
        let sale = app.operations.create_sale(&new).await.expect("a sound sale").id;
        // Who was too early makes it no later for anybody.
        let early = app.place(sale, "alice").await;
        assert_eq!(early.problem(), (404, "sale-not-found"), "{round} {mode}");
        app.operations.publish_sale(sale).await.expect("published");
        app.place(sale, "alice").await.receipt();
        let mine = app.get_as("alice", &format!("/api/v1/orders?sale={sale}")).await;
        assert_eq!(mine.status, 200, "{mine:?}");
        assert_eq!(app.get(&format!("/api/v1/sales/{sale}")).await.status, 200);
    }
}

#[tokio::test]
async fn while_the_database_is_away_nobody_is_told_that_a_sale_does_not_exist() {
    let server = PostgresServer::start();
    let app = TestApp::spawn_with(&[("database.url", &server.create_database())]).await;
    let known = app.sale(10).await;
    assert_eq!(app.place(999, "alice").await.problem(), (404, "sale-not-found"));
    server.pause();
    app.place(known, "alice").await.receipt();
    assert_eq!(app.place(999, "alice").await.problem(), (503, "sale-unavailable"));
    server.resume();
    eventually(SOON, "it is looked for again", async || {
        app.place(999, "alice").await.problem() == (404, "sale-not-found")
    })
    .await;
    server.stop();
    eventually(SOON, "it cannot be looked for", async || {
        app.place(999, "alice").await.problem() == (503, "sale-unavailable")
    })
    .await;
    app.place(known, "bob").await.receipt();
}

#[tokio::test]
async fn scripts_that_redis_forgot_are_loaded_again_unseen() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    app.place(sale, "alice").await.receipt();
    let _: () = app.redis_command(&["SCRIPT", "FLUSH", "SYNC"]);
    app.place(sale, "bob").await.receipt();
    let _: () = app.redis_command(&["SCRIPT", "FLUSH", "SYNC"]);
    let crowd = (0..20).map(|i| app.place(sale, if i % 2 == 0 { "carol" } else { "dave" }));
    let admitted = join_all(crowd).await.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(admitted, 2);
}

fn assert_replayed(answer: &Answer, first: &Answer) {
    assert_eq!(answer.receipt(), first.receipt());
    assert!(answer.is_replay(), "{answer:?}");
    assert_eq!((answer.status, &answer.body), (first.status, &first.body));
}
