//! Giving an order up: its unit is on sale again within a second on every gateway, its buyer may order
//! again, and nobody who holds an order is ever told that there is none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use flashsale_domain::{NewSale, OrderId, SaleId};
use flashsale_test_support::{RedisServer, eventually};
use futures_util::future::{join, join_all};
use reqwest::Method;

use crate::support::{
    A_SECOND, Addresses, Answer, SOON, TestApp, home, new_sale, rounds, send, token,
    window_from_now,
};

fn assert_cancelled(answer: &Answer, id: OrderId) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.body["order_id"], id.to_string(), "{answer:?}");
    assert_eq!(answer.body["state"], "cancelled", "{answer:?}");
    assert!(answer.body["settled_at"].is_string(), "{answer:?}");
}

async fn press_with_key(
    app: &TestApp,
    at: Addresses,
    sale: SaleId,
    buyer: &str,
    key: &str,
) -> Answer {
    send(app.press_at(at, sale, buyer).header("Idempotency-Key", key)).await
}

#[tokio::test]
async fn a_buyer_gives_his_order_up_and_doing_it_again_is_the_same_as_once() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let _worker = app.start_worker().await;
    let id = app.place_committed(sale, "alice").await;
    let cancelled = app.cancel("alice", id).await;
    assert_cancelled(&cancelled, id);
    let again = app.cancel("alice", id).await;
    assert_cancelled(&again, id);
    assert_eq!(again.body, cancelled.body);
    assert_eq!(app.order("alice", id).await.body, cancelled.body);

    eventually(SOON, "one unit is back", async || {
        let account = app.redis.read_sale(home(), sale).await.expect("answers");
        account.sale.is_some_and(|sale| sale.stock == 2 && sale.held == 0)
    })
    .await;
    app.assert_sound(sale, &[(id, "alice".into())]).await;
}

#[tokio::test]
async fn somebody_elses_order_cannot_be_given_up_and_is_not_there_to_others() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let worker = app.start_worker().await;
    let id = app.place_committed(sale, "alice").await;
    assert_eq!(app.cancel("bob", id).await.problem(), (404, "order-not-found"));
    let unsigned = app.request(Method::POST, &format!("/api/v1/orders/{id}/cancel"));
    assert_eq!(send(unsigned).await.problem(), (401, "unauthorized"));
    assert_eq!(app.order("alice", id).await.body["state"], "awaiting_payment");
    worker.stop(SOON).await;

    let queued = app.place(sale, "carol").await.receipt();
    assert_eq!(app.cancel("bob", queued).await.problem(), (404, "order-not-found"));
    for nonsense in ["0", "-1", "x", "9223372036854775808", "18446744073709551617", "1", "%00"] {
        let answer = app.cancel("alice", nonsense).await;
        assert_eq!(answer.problem(), (404, "order-not-found"), "{nonsense}");
    }
}

#[tokio::test]
async fn what_does_not_wait_for_payment_cannot_be_given_up() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let refuse = async |buyer: &str, id: OrderId, state: &str| {
        let answer = app.cancel(buyer, id).await;
        assert_eq!(answer.problem(), (409, "not-cancellable"));
        let detail = answer.body["detail"].as_str().expect("says why");
        assert!(detail.contains(&format!("the order is {state};")), "{detail}");
        assert_eq!(app.order(buyer, id).await.body["state"], state);
    };
    let queued = app.place(sale, "alice").await.receipt();
    refuse("alice", queued, "queued").await;

    let dead = app.place(sale, "bob").await.receipt();
    crate::read::set_aside(&app, dead).await;
    refuse("bob", dead, "dead").await;

    let _worker = app.start_worker().await;
    app.wait_until_committed("alice", queued).await;
    assert_eq!(app.pay("pay-1", queued).await.body["outcome"], "paid");
    refuse("alice", queued, "paid").await;

    let expired = app.place_committed(sale, "carol").await;
    app.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id = {expired}")).await;
    eventually(SOON, "it expires", async || {
        app.order("carol", expired).await.body["state"] == "expired"
    })
    .await;
    refuse("carol", expired, "expired").await;
}

#[tokio::test]
async fn an_order_of_a_direct_sale_is_given_up_at_once() {
    let app = TestApp::spawn().await;
    let sale = app.direct_sale(1).await;
    let id = app.place_with_key(sale, "alice", "k1").await.receipt();
    assert_eq!(app.place(sale, "bob").await.problem(), (409, "sold-out"));
    assert_cancelled(&app.cancel("alice", id).await, id);
    let next = app.place(sale, "bob").await.receipt();
    assert_ne!(next, id);
    let replay = app.place_with_key(sale, "alice", "k1").await;
    assert!(replay.is_replay(), "{replay:?}");
    assert_eq!(replay.body["order_id"], id.to_string());
    assert_eq!(app.place(sale, "carol").await.problem(), (409, "sold-out"));
}

#[tokio::test]
async fn a_body_is_as_welcome_as_when_an_order_is_placed() {
    let app = TestApp::spawn_with(&[("http.body_limit_bytes", "1024")]).await;
    let sale = app.direct_sale(1).await;
    let id = app.place(sale, "alice").await.receipt();
    let path = format!("/api/v1/orders/{id}/cancel");
    let with = |kind: &str, body: String| {
        let request = app.request(Method::POST, &path).bearer_auth(token("alice"));
        send(request.header("content-type", kind).body(body))
    };
    let json = "application/json";
    assert_eq!(with(json, "[]".into()).await.problem(), (400, "invalid-request"));
    assert_eq!(with(json, "{".into()).await.problem(), (400, "invalid-request"));
    assert_eq!(with("text/plain", "{}".into()).await.problem(), (415, "unsupported-media-type"));
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(2_000));
    assert_eq!(with(json, large).await.problem(), (413, "too-large"));
    assert_eq!(app.order("alice", id).await.body["state"], "awaiting_payment");
    assert_cancelled(&with(json, "{\"why\":\"changed my mind\"}".into()).await, id);
}

#[tokio::test]
async fn who_gave_up_may_buy_again_and_the_old_key_still_names_the_old_order() {
    let app = TestApp::spawn().await;
    let sale =
        app.publish(&NewSale { window: window_from_now(-1000, 15_000), ..new_sale(1) }).await;
    let _worker = app.start_worker().await;
    let first = app.place_with_key(sale, "alice", "k1").await.receipt();
    app.wait_until_committed("alice", first).await;
    assert_cancelled(&app.cancel("alice", first).await, first);
    let still = async || {
        let replay = app.place_with_key(sale, "alice", "k1").await;
        assert!(replay.is_replay(), "{replay:?}");
        assert_eq!(replay.receipt(), first);
    };
    // At every moment: the unit is still out, held back, and on sale again.
    let second = eventually(SOON, "the unit is back", async || {
        still().await;
        let answer = app.place_with_key(sale, "alice", "k2").await;
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;
    assert_ne!(second, first);
    still().await;
    assert_eq!(app.place(sale, "bob").await.problem(), (409, "sold-out"));
    still().await;
    eventually(SOON, "the window is over", async || {
        still().await;
        app.place(sale, "bob").await.problem() == (409, "ended")
    })
    .await;
    still().await;
    app.operations.close_sale(sale).await.expect("closed");
    still().await;
    let replay = app.place_with_key(sale, "alice", "k2").await;
    assert!(replay.is_replay());
    assert_eq!(replay.receipt(), second);
    app.assert_sound(sale, &[(first, "alice".into()), (second, "alice".into())]).await;
}

#[tokio::test]
async fn a_unit_that_was_given_up_is_had_on_another_gateway_within_a_second() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let sale = app.sale(1).await;
    let (other, _gateway) = app.start_another_gateway().await;
    app.wait_until_known(other, sale).await;
    let worker = app.start_worker().await;
    let id = app.place_committed(sale, "alice").await;
    // Nothing but the gateways calls scripts now.
    worker.stop(SOON).await;
    let before = app.script_calls();
    let presses: u64 = 200;
    for number in 0..presses {
        let at = if number % 2 == 0 { app.at } else { other };
        let answer = send(app.press_at(at, sale, &format!("late-{number}"))).await;
        assert_eq!(answer.problem(), (409, "sold-out"));
    }
    let asked = app.script_calls() - before;
    assert!(asked >= 2, "each gateway has asked once: {asked}");
    assert!(asked < presses / 2, "the others were refused from memory: {asked} of {presses}");

    let _worker = app.start_worker().await;
    assert_cancelled(&app.cancel("alice", id).await, id);
    let cancelled_at = Instant::now();
    let next = eventually(SOON, "the unit is had", async || {
        let answer = send(app.press_at(other, sale, "bob")).await;
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;
    let waited = cancelled_at.elapsed();
    assert!(waited < A_SECOND, "{waited:?} after it was given up");
    app.wait_until_committed("bob", next).await;
    app.assert_sound(sale, &[(id, "alice".into()), (next, "bob".into())]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_who_holds_an_order_is_ever_told_that_it_is_sold_out() {
    let app = TestApp::spawn_on_postgres().await;
    let sale = app.sale(1).await;
    let (other, _gateway) = app.start_another_gateway().await;
    app.wait_until_known(other, sale).await;
    let _worker = app.start_worker().await;
    let gateways = [app.at, other];
    let mut receipts: Vec<(OrderId, String)> = Vec::new();
    for round in 0..rounds(20) {
        let had = AtomicBool::new(false);
        // The holder presses from the first moment on, while the others keep both gateways refusing
        // from memory.
        let hold = async |at: Addresses, buyer: &str, id: OrderId| {
            for _ in 0..15 {
                let bare = send(app.press_at(at, sale, buyer)).await;
                assert_eq!(bare.problem(), (409, "already-ordered"), "round {round}");
                assert_eq!(bare.body["order_id"], id.to_string());
                let replay = press_with_key(&app, at, sale, buyer, "k").await;
                assert!(replay.is_replay(), "round {round}: {replay:?}");
                assert_eq!(replay.receipt(), id);
            }
        };
        let contend = async |number: usize| {
            let buyer = format!("buyer-{round}-{number}");
            while !had.load(Ordering::Relaxed) {
                let answer = press_with_key(&app, gateways[number % 2], sale, &buyer, "k").await;
                if answer.status == 202 {
                    let id = answer.receipt();
                    join(hold(gateways[1], &buyer, id), hold(gateways[0], &buyer, id)).await;
                    had.store(true, Ordering::Relaxed);
                    return Some((id, buyer));
                }
                assert_eq!(answer.problem(), (409, "sold-out"));
            }
            None
        };
        let won = join_all((0..6).map(contend)).await;
        let won: Vec<_> = won.into_iter().flatten().collect();
        let [(id, buyer)] = won.as_slice() else { panic!("one unit, and {won:?}") };
        app.wait_until_committed(buyer, *id).await;
        let cancelled = app.cancel_at(gateways[round % 2], buyer, *id).await;
        assert_cancelled(&cancelled, *id);
        receipts.push((*id, buyer.clone()));
    }
    app.assert_sound(sale, &receipts).await;
}
