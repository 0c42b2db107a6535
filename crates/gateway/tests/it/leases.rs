//! Refusals from memory are exact: they are said while Redis is not asked, only to who has no order,
//! and no longer than they are true.

use std::time::{Duration, Instant};

use flashsale_domain::{NewSale, OrderId, Window};
use flashsale_storage_redis::SOLD_OUT_LEASE;
use flashsale_test_support::{RedisServer, eventually};
use futures_util::future::join_all;
use jsonwebtoken::{Algorithm, EncodingKey};
use reqwest::Method;
use serde_json::json;
use tokio::time::timeout;

use crate::support::{
    A_SECOND, Answer, FAR_AHEAD_MS, SOON, TestApp, claims, home, new_sale, now_ms, send, sign,
    window_from_now,
};

/// Far longer than an answer from memory takes.
const AT_ONCE: Duration = Duration::from_millis(300);

/// Presses once while every script is held: what is answered all the same comes from memory.
async fn from_memory(app: &TestApp, press: reqwest::RequestBuilder) -> Option<Answer> {
    app.hold_scripts();
    let answer = timeout(AT_ONCE, send(press)).await.ok();
    app.resume_scripts();
    answer
}

/// Waits until a buyer without an order is refused from memory.
async fn wait_for_memory(app: &TestApp, sale: flashsale_domain::SaleId) -> Answer {
    let mut number = 0;
    eventually(SOON, "a refusal from memory", async || {
        number += 1;
        let buyer = format!("nobody-{number}");
        app.place(sale, &buyer).await;
        from_memory(app, app.press(sale, &buyer)).await
    })
    .await
}

#[tokio::test]
async fn a_sold_out_sale_is_refused_from_memory_but_never_to_who_has_an_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let sale = app.sale(2).await;
    let first = app.place_with_key(sale, "alice", "k1").await.receipt();
    let second = app.place(sale, "bob").await.receipt();
    let refused = wait_for_memory(&app, sale).await;
    assert_eq!(refused.problem(), (409, "sold-out"));

    // In the same moment, whoever has an order is asked for in Redis.
    let mut looked = 0;
    while looked < 5 {
        app.place(sale, "nobody").await;
        if from_memory(&app, app.press(sale, "nobody")).await.is_none() {
            continue;
        }
        looked += 1;
        let press = app.press(sale, "alice").header("Idempotency-Key", "k1");
        assert!(from_memory(&app, press).await.is_none(), "Redis decides");
        assert!(from_memory(&app, app.press(sale, "bob")).await.is_none(), "Redis decides");
        let replay = app.place_with_key(sale, "alice", "k1").await;
        assert!(replay.is_replay());
        assert_eq!(replay.receipt(), first);
        for (buyer, id) in [("alice", first), ("bob", second)] {
            let answer = app.place(sale, buyer).await;
            assert_eq!(answer.problem(), (409, "already-ordered"));
            assert_eq!(answer.body["order_id"], id.to_string());
        }
        // Another key does not make a second order of it.
        let other_key = app.place_with_key(sale, "alice", "k2").await;
        assert_eq!(other_key.problem(), (409, "already-ordered"));
    }
}

#[tokio::test]
async fn what_a_forged_token_is_answered_does_not_say_whether_its_buyer_has_an_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let sale = app.sale(1).await;
    app.place(sale, "alice").await.receipt();
    wait_for_memory(&app, sale).await;
    let key =
        EncodingKey::from_secret(b"a secret that is not the gateway's own").expect("a secret");
    let press = |buyer: &str, claims: serde_json::Value| {
        let path = format!("/api/v1/sales/{sale}/orders");
        let forged = sign(Algorithm::HS256, &key, &claims);
        let request = app.request(Method::POST, &path).bearer_auth(forged);
        request.header("Idempotency-Key", format!("key-of-{buyer}"))
    };
    let mut looked = 0;
    while looked < 5 {
        app.place(sale, "nobody").await;
        let mut answers = Vec::new();
        for buyer in ["alice", "nobody"] {
            answers.push(from_memory(&app, press(buyer, claims(buyer))).await);
        }
        let [Some(holder), Some(stranger)] = &answers[..] else { continue };
        looked += 1;
        assert_eq!(holder.problem(), (409, "sold-out"));
        assert_eq!((&holder.text, holder.status), (&stranger.text, stranger.status));
        let expired = json!({ "sub": "alice", "exp": now_ms() / 1000 - 60 });
        assert_eq!(send(press("alice", expired)).await.problem(), (401, "unauthorized"));
    }
}

#[tokio::test]
async fn an_answer_that_took_as_long_as_a_lease_lasts_gives_none() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let sale = app.sale(1).await;
    app.place(sale, "alice").await.receipt();
    wait_for_memory(&app, sale).await;
    app.hold_scripts();
    // The first press after the present lease waits in Redis, and longer than the next would last.
    let mut waiting = eventually(SOON, "a press that is not answered from memory", async || {
        let mut press = Box::pin(send(app.press(sale, "nobody")));
        timeout(SOLD_OUT_LEASE, &mut press).await.is_err().then_some(press)
    })
    .await;
    app.resume_scripts();
    assert_eq!(waiting.as_mut().await.problem(), (409, "sold-out"));
    assert!(from_memory(&app, app.press(sale, "nobody")).await.is_none(), "Redis decides");
}

#[tokio::test]
async fn a_refusal_from_memory_runs_out_while_redis_is_away() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "200ms")]).await;
    let sale = app.sale(1).await;
    app.place(sale, "alice").await.receipt();
    wait_for_memory(&app, sale).await;
    app.place(sale, "nobody").await;
    let learned = Instant::now();
    redis.pause();
    let mut last_from_memory = None;
    eventually(SOON, "the sale is unavailable", async || {
        let answer = app.place(sale, "nobody").await;
        match answer.problem() {
            (409, "sold-out") => {
                last_from_memory = Some(learned.elapsed());
                false
            }
            (503, "outcome-unknown" | "sale-unavailable") => true,
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert!(last_from_memory < Some(Duration::from_secs(1)), "{last_from_memory:?}");
    redis.resume();
    eventually(SOON, "it is decided again", async || {
        app.place(sale, "nobody").await.problem() == (409, "sold-out")
    })
    .await;
}

#[tokio::test]
async fn before_the_start_everybody_is_refused_from_memory_and_at_the_start_it_is_exact() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let later = Window::new(now_ms() + 3_600_000, FAR_AHEAD_MS).expect("a window");
    let far = app.publish(&NewSale { window: later, ..new_sale(1) }).await;
    let refused = eventually(SOON, "Redis's clock is known", async || {
        from_memory(&app, app.press(far, "alice")).await
    })
    .await;
    assert_eq!(refused.problem(), (409, "not-started"));
    let retry_after = refused.retry_after().expect("says when");
    assert!((3_500..=3_600).contains(&retry_after), "{retry_after}");

    let opens_ms = now_ms() + 2_500;
    let soon = Window::new(opens_ms, FAR_AHEAD_MS).expect("a window");
    let sale = app.publish(&NewSale { window: soon, ..new_sale(50) }).await;
    // Three lanes press without a pause: nobody is let in early, nobody is refused late.
    let lane = async |lane: usize| {
        for number in 0.. {
            let sent_ms = now_ms();
            let answer = app.place(sale, &format!("buyer-{lane}-{number}")).await;
            if answer.status == 202 {
                assert!(now_ms() >= opens_ms, "let in before the start");
                return;
            }
            assert_eq!(answer.problem(), (409, "not-started"));
            assert!(sent_ms < opens_ms, "refused {} ms after the start", sent_ms - opens_ms);
        }
    };
    join_all((0..3).map(lane)).await;
}

#[tokio::test]
async fn a_sale_that_is_paused_or_closed_before_its_start_is_said_to_be_so() {
    let app = TestApp::spawn().await;
    let later = Window::new(now_ms() + 3_600_000, FAR_AHEAD_MS).expect("a window");
    let sale = app.publish(&NewSale { window: later, ..new_sale(1) }).await;
    let told = async |slug: &'static str| {
        eventually(A_SECOND, slug, async || {
            app.place(sale, "alice").await.problem() == (409, slug)
        })
        .await;
    };
    told("not-started").await;
    app.operations.pause_sale(sale).await.expect("paused");
    told("paused").await;
    app.operations.resume_sale(sale).await.expect("resumed");
    told("not-started").await;
    app.operations.close_sale(sale).await.expect("closed");
    told("ended").await;
}

#[tokio::test]
async fn a_sale_that_is_over_is_refused_from_memory_and_a_holder_still_gets_his_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let by_window =
        app.publish(&NewSale { window: window_from_now(-1_000, 2_500), ..new_sale(1) }).await;
    let closed = app.publish(&new_sale(1)).await;
    for sale in [by_window, closed] {
        let id = app.place_with_key(sale, "alice", "k1").await.receipt();
        if sale == closed {
            app.operations.close_sale(sale).await.expect("closed");
        }
        eventually(SOON, "it is over", async || {
            let answer = app.place(sale, "nobody").await;
            answer.status == 409 && answer.problem() == (409, "ended")
        })
        .await;
        assert_eq!(wait_for_memory(&app, sale).await.problem(), (409, "ended"));
        // It stays so: this is no lease.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let answer = from_memory(&app, app.press(sale, "late")).await.expect("from memory");
        assert_eq!(answer.problem(), (409, "ended"));
        let replay = app.place_with_key(sale, "alice", "k1").await;
        assert!(replay.is_replay());
        assert_eq!(replay.receipt(), id);
        assert_eq!(app.place(sale, "alice").await.problem(), (409, "already-ordered"));
    }
}

#[tokio::test]
async fn while_stock_is_held_back_nothing_is_learned_and_then_it_is_sold() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "60s")]).await;
    let sale = app.sale(1).await;
    let id = app.place(sale, "alice").await.receipt();
    wait_for_memory(&app, sale).await;
    app.operations.adjust_stock("op", sale, 1, "one more").await.expect("adjusted");
    let risen = Instant::now();
    // A refusal now is the script's: it holds the unit back, and leases last no longer than that.
    let next = eventually(SOON, "the unit is had", async || {
        let answer = app.place(sale, "bob").await;
        assert!(answer.status == 202 || answer.problem() == (409, "sold-out"), "{answer:?}");
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;
    let waited = risen.elapsed();
    assert!(waited < A_SECOND, "{waited:?}");
    // Held back until every lease from before has run out.
    assert!(waited > Duration::from_millis(300), "{waited:?}");
    for (buyer, id) in [("alice", id), ("bob", next)] {
        let answer = app.place(sale, buyer).await;
        assert_eq!(answer.problem(), (409, "already-ordered"), "{buyer}");
        assert_eq!(answer.body["order_id"], id.to_string());
    }
}

#[tokio::test]
async fn units_that_a_rebuild_gives_back_are_held_back_as_well() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let (other, _gateway) = app.start_another_gateway().await;
    let (unaware, _third) = app.start_another_gateway().await;
    let sale = app.sale(1).await;
    for at in [other, unaware] {
        app.wait_until_known(at, sale).await;
    }
    // Sold out in Redis only: the order is not yet a row, and Redis forgets it.
    app.place(sale, "alice").await.receipt();
    for at in [app.at, other] {
        for _ in 0..5 {
            let answer = send(app.press_at(at, sale, "nobody")).await;
            assert_eq!(answer.problem(), (409, "sold-out"));
        }
    }
    let _: () = app.redis_command(&["FLUSHALL"]);
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    // Had at once where nobody was refused, and known from the first moment on where somebody was.
    let id = eventually(SOON, "the unit is had", async || {
        let answer = send(app.press_at(unaware, sale, "bob")).await;
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;
    for _ in 0..20 {
        for at in [other, app.at] {
            let answer = send(app.press_at(at, sale, "bob")).await;
            assert_eq!(answer.problem(), (409, "already-ordered"));
            assert_eq!(answer.body["order_id"], id.to_string());
        }
    }
}

#[tokio::test]
async fn a_paused_or_closed_sale_is_noticed_within_a_second_though_it_is_sold_out() {
    let app = TestApp::spawn().await;
    let sale = app.sale(1).await;
    app.place(sale, "alice").await.receipt();
    let noticed = async |slug: &'static str| {
        let changed = Instant::now();
        eventually(SOON, slug, async || app.place(sale, "nobody").await.problem() == (409, slug))
            .await;
        assert!(changed.elapsed() < A_SECOND, "{slug}: {:?}", changed.elapsed());
    };
    for _ in 0..3 {
        noticed("sold-out").await;
        app.operations.pause_sale(sale).await.expect("paused");
        noticed("paused").await;
        app.operations.resume_sale(sale).await.expect("resumed");
    }
    noticed("sold-out").await;
    app.operations.close_sale(sale).await.expect("closed");
    noticed("ended").await;
}

#[tokio::test]
async fn buyers_who_are_read_from_memory_that_is_being_lost_are_not_believed() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let sale = app.sale(1_000).await;
    let holders: Vec<String> = (0..40).map(|number| format!("holder-{number}")).collect();
    let place = async |buyer: &String| (app.place(sale, buyer).await.receipt(), buyer.clone());
    let receipts: Vec<(OrderId, String)> = join_all(holders.iter().map(place)).await;
    let worker = app.start_worker().await;
    for (id, buyer) in &receipts {
        app.wait_until_committed(buyer, *id).await;
    }
    worker.stop(SOON).await;
    // So many more buyers that reading them takes a while.
    let many = "for i = 1, 400000 do \
                redis.call('HSET', KEYS[1], 'filler-' .. i, '1|1-' .. i .. ':1:1:o:') end";
    let buyers = app.keys.buyers(home(), sale);
    let _: () = app.redis_command(&["EVAL", many, "1", &buyers]);
    app.operations.close_sale(sale).await.expect("closed");
    assert_eq!(app.place(sale, "nobody").await.problem(), (409, "ended"));
    // The buyers are being read now.
    let _: () = app.redis_command(&["FLUSHALL"]);
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    for _ in 0..3 {
        for (id, buyer) in &receipts {
            let answer = app.place(sale, buyer).await;
            assert_eq!(answer.problem(), (409, "already-ordered"), "{buyer}");
            assert_eq!(answer.body["order_id"], id.to_string());
        }
        assert_eq!(app.place(sale, "nobody").await.problem(), (409, "ended"));
    }
}
