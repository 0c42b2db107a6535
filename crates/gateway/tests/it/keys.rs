//! Idempotency keys end to end: one wish, one order, whatever happens between two tries.

use std::collections::HashSet;

use flashsale_domain::NewSale;
use flashsale_test_support::eventually;
use futures_util::future::join_all;

use crate::support::{Answer, SOON, TestApp, new_sale, send, window_from_now};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_tries_with_one_key_over_two_gateways_are_one_order() {
    let app = TestApp::spawn().await;
    let (other, _gateway) = app.start_another_gateway().await;
    let queued = app.sale(100).await;
    let direct = app.direct_sale(100).await;
    for sale in [queued, direct] {
        app.wait_until_known(other, sale).await;
        let gateways = [app.at, other];
        let press = async |number: usize| {
            let press = app.press_at(gateways[number % 2], sale, "alice");
            let answer = send(press.header("Idempotency-Key", "k1")).await;
            // A press that waits for another one of the same buyer is told so, and presses again.
            if answer.status == 503 { None } else { Some((answer.is_replay(), answer.receipt())) }
        };
        let answers = join_all((0..50).map(press)).await;
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        let ids: HashSet<_> = answers.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids.len(), 1, "{answers:?}");
        assert_eq!(answers.iter().filter(|(replay, _)| !replay).count(), 1, "{answers:?}");
    }
    let _worker = app.start_worker().await;
    let id = app.place_with_key(queued, "alice", "k1").await.receipt();
    app.wait_until_committed("alice", id).await;
    app.assert_sound(queued, &[(id, "alice".into())]).await;
}

#[tokio::test]
async fn one_key_in_the_hands_of_two_buyers_or_in_two_sales_never_meets() {
    let app = TestApp::spawn().await;
    let sales = [app.sale(5).await, app.sale(5).await, app.direct_sale(5).await];
    let mut ids = HashSet::new();
    for sale in sales {
        for buyer in ["alice", "bob", "alice:bob", "alic"] {
            let answer = app.place_with_key(sale, buyer, "the-same-key").await;
            assert!(!answer.is_replay(), "{buyer} {sale}: {answer:?}");
            assert!(ids.insert(answer.receipt()), "{buyer} {sale}");
        }
    }
}

#[tokio::test]
async fn a_key_names_its_order_after_it_was_given_up_expired_or_paid_and_after_the_sale() {
    let app = TestApp::spawn().await;
    let window = window_from_now(-1_000, 60_000);
    let sale = app.publish(&NewSale { window, ..new_sale(4) }).await;
    let _worker = app.start_worker().await;
    let mut orders = Vec::new();
    for buyer in ["cancels", "expires", "pays", "waits"] {
        let id = app.place_with_key(sale, buyer, "k").await.receipt();
        app.wait_until_committed(buyer, id).await;
        orders.push((buyer, id));
    }
    let all_replayed = async || {
        for (buyer, id) in &orders {
            let answer: Answer = app.place_with_key(sale, buyer, "k").await;
            assert!(answer.is_replay(), "{buyer}: {answer:?}");
            assert_eq!(answer.receipt(), *id, "{buyer}");
        }
    };
    assert_eq!(app.place(sale, "late").await.problem(), (409, "sold-out"));
    all_replayed().await;
    assert_eq!(app.cancel("cancels", orders[0].1).await.status, 200);
    app.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id = {}", orders[1].1)).await;
    assert_eq!(app.pay("msg-1", orders[2].1).await.status, 200);
    eventually(SOON, "both units are back", async || {
        all_replayed().await;
        app.database.count_releases(sale).await.ok() == Some(0)
            && app.order("expires", orders[1].1).await.body["state"] == "expired"
    })
    .await;
    all_replayed().await;
    // The units go to others, and the keys still name what they named.
    for buyer in ["next-1", "next-2"] {
        let next = eventually(SOON, "a unit", async || {
            let answer = app.place(sale, buyer).await;
            all_replayed().await;
            (answer.status == 202).then(|| answer.receipt())
        })
        .await;
        app.wait_until_committed(buyer, next).await;
    }
    app.operations.close_sale(sale).await.expect("closed");
    eventually(SOON, "it is over", async || {
        app.place(sale, "late").await.problem() == (409, "ended")
    })
    .await;
    all_replayed().await;
    let receipts: Vec<_> = orders.iter().map(|(buyer, id)| (*id, (*buyer).to_owned())).collect();
    app.assert_sound(sale, &receipts).await;
    // Redis forgets, and the database still knows whose the keys were.
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    all_replayed().await;
}
