//! What buyers are told while Redis or the database is away, forgetful, frozen or too slow, and
//! that it works again afterwards: an answer always comes, and a key always finds its order.

use std::time::{Duration, Instant};

use flashsale_test_support::{PostgresServer, RedisServer, eventually};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{Answer, SOON, TestApp, home, send, token};

/// Answers come within the time that Redis is given, and this much for a busy machine.
const MARGIN: Duration = Duration::from_secs(5);

fn assert_unavailable(answer: &Answer) {
    assert_eq!(answer.problem(), (503, "sale-unavailable"));
    assert!(answer.retry_after() >= Some(1), "{answer:?}");
}

#[tokio::test]
async fn a_redis_that_forgot_everything_makes_the_sale_unavailable_until_it_is_rebuilt() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("worker.rebuild", "manual")]).await;
    let sale = app.sale(10).await;
    let worker = app.start_worker().await;
    let first = app.place_with_key(sale, "alice", "k1").await.receipt();
    app.wait_until_committed("alice", first).await;

    let _: () = app.redis_command(&["FLUSHALL"]);
    assert_unavailable(&app.place(sale, "bob").await);
    // Not even who has an order already: that memory is gone too.
    assert_unavailable(&app.place_with_key(sale, "alice", "k1").await);
    app.wait_until_committed("alice", first).await;

    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    let again = app.place_with_key(sale, "alice", "k1").await;
    assert!(again.is_replay());
    assert_eq!(again.receipt(), first);
    let second = app.place(sale, "bob").await.receipt();
    app.wait_until_committed("bob", second).await;
    app.assert_sound(sale, &[(first, "alice".into()), (second, "bob".into())]).await;
    worker.stop(SOON).await;
}

#[tokio::test]
async fn an_order_that_redis_forgot_before_it_was_a_row_is_rejected_and_its_key_is_free() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let sale = app.sale(1).await;
    let lost = app.place_with_key(sale, "alice", "k1").await.receipt();
    let _: () = app.redis_command(&["FLUSHALL"]);
    app.operations.rebuild_sale(sale).await.expect("rebuilt");

    let told = app.order("alice", lost).await;
    assert_eq!((told.status, told.body["state"].as_str()), (200, Some("rejected")), "{told:?}");
    assert_eq!(told.body["reason"], "memory-lost");
    let again = app.place_with_key(sale, "alice", "k1").await;
    assert!(!again.is_replay());
    assert_ne!(again.receipt(), lost);
}

#[tokio::test]
async fn a_fenced_partition_makes_its_sales_unavailable_until_it_is_rebuilt() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    app.redis.fence(home()).await.expect("fenced");
    assert_unavailable(&app.place(sale, "alice").await);
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    app.place(sale, "alice").await.receipt();
}

#[tokio::test]
async fn a_killed_redis_is_answered_for_and_works_again_after_a_rebuild() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "1s")]).await;
    let sale = app.sale(10).await;
    app.place(sale, "alice").await.receipt();

    redis.kill_9();
    for press in 0..5 {
        let started = Instant::now();
        let answer = app.place_with_key(sale, "bob", "k1").await;
        let (status, slug) = answer.problem();
        assert_eq!(status, 503);
        assert!(["sale-unavailable", "outcome-unknown"].contains(&slug), "{slug}");
        assert!(answer.retry_after() >= Some(1), "{answer:?}");
        let limit = Duration::from_secs(1) + MARGIN;
        assert!(started.elapsed() < limit, "press {press} took {:?}", started.elapsed());
    }
    // A connection that is refused has carried nothing: then the outcome is known.
    eventually(SOON, "nothing was done", async || {
        app.place_with_key(sale, "bob", "k1").await.problem() == (503, "sale-unavailable")
    })
    .await;
    eventually(SOON, "not ready", async || {
        let ready = app.admin("/readyz").await;
        ready.status == 503 && ready.body["checks"]["redis"] != "ok"
    })
    .await;

    // It comes back empty: that is noticed, and not taken for a fresh sale.
    redis.start_again();
    eventually(SOON, "Redis is asked again", async || {
        app.place_with_key(sale, "bob", "k1").await.problem() == (503, "sale-unavailable")
    })
    .await;
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    app.place_with_key(sale, "bob", "k1").await.receipt();
    eventually(SOON, "ready", async || app.admin("/readyz").await.status == 200).await;
}

#[tokio::test]
async fn connections_that_were_lost_while_nobody_pressed_cost_no_buyer_his_answer() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("http.workers", "2")]).await;
    let sale = app.sale(100).await;
    // Each worker thread has its connection by now.
    let press = async |number: u32| app.place(sale, &format!("buyer-{number}")).await;
    join_all((0..20).map(&press)).await;
    app.redis_command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    eventually(SOON, "both threads' connections", async || {
        let clients: String = app.redis_command(&["CLIENT", "LIST"]);
        clients.matches("cmd=ping").count() >= 2
    })
    .await;
    for answer in join_all((20..40).map(&press)).await {
        answer.receipt();
    }
}

#[tokio::test]
async fn a_redis_that_restarted_from_its_file_is_not_trusted_until_it_is_rebuilt() {
    let redis = RedisServer::builder().append_only(true).start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let sale = app.sale(10).await;
    let first = app.place_with_key(sale, "alice", "k1").await.receipt();
    redis.stop();
    redis.start_again();
    eventually(SOON, "Redis is asked again", async || {
        let answer = app.place_with_key(sale, "bob", "k2").await;
        assert_eq!(answer.status, 503, "{answer:?}");
        answer.problem() == (503, "sale-unavailable")
    })
    .await;
    // What its file kept is applied by a worker before it is rebuilt.
    let _worker = app.start_worker().await;
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    assert_eq!(app.place_with_key(sale, "alice", "k1").await.receipt(), first);
    let second = app.place_with_key(sale, "bob", "k2").await.receipt();
    app.wait_until_committed("bob", second).await;
    app.assert_sound(sale, &[(first, "alice".into()), (second, "bob".into())]).await;
}

#[tokio::test]
async fn a_frozen_redis_leaves_the_outcome_unknown_and_the_key_finds_the_one_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "1s")]).await;
    let sale = app.sale(10).await;
    // Each worker thread has its connection by now.
    join_all(["w", "x", "y", "z"].map(|buyer| app.place(sale, buyer))).await;

    redis.pause();
    let started = Instant::now();
    let answer = app.place_with_key(sale, "alice", "k1").await;
    assert_eq!(answer.problem(), (503, "outcome-unknown"));
    assert!(started.elapsed() < Duration::from_secs(1) + MARGIN, "{:?}", started.elapsed());
    assert!(answer.retry_after() >= Some(1));
    assert!(answer.body["detail"].as_str().is_some_and(|it| it.contains("Idempotency-Key")));

    redis.resume();
    let order = eventually(SOON, "Redis answers again", async || {
        let answer = app.place_with_key(sale, "alice", "k1").await;
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;
    assert_eq!(app.orders_in_record(sale, "alice").await, 1);
    assert_eq!(app.place_with_key(sale, "alice", "k1").await.receipt(), order);
    let other = app.place(sale, "alice").await;
    assert_eq!(other.problem(), (409, "already-ordered"));
    assert_eq!(other.body["order_id"], order.to_string());
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_those_who_wait_are_served() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &patient("2")).await;
    let sale = app.sale(10).await;
    app.hold_scripts();
    let in_flight = app.place(sale, "in-flight");
    let buyers = ["a", "b", "c", "d", "e"];
    let crowd = async {
        app.wait_until_held(1).await;
        // Room for two; three are refused at once.
        let mut presses: FuturesUnordered<_> =
            buyers.iter().map(async |buyer| (*buyer, app.place(sale, buyer).await)).collect();
        let mut refused = Vec::new();
        for _ in 0..3 {
            let (buyer, answer) = presses.next().await.expect("an answer");
            assert_eq!(answer.problem(), (503, "overloaded"));
            assert!(answer.retry_after() >= Some(1));
            refused.push(buyer);
        }
        app.resume_scripts();
        (refused, presses.collect::<Vec<_>>().await)
    };
    let (in_flight, (refused, served)) = tokio::join!(in_flight, crowd);
    in_flight.receipt();
    assert_eq!(served.len(), 2);
    for (buyer, answer) in &served {
        answer.receipt();
        assert_eq!(app.orders_in_record(sale, buyer).await, 1);
    }
    // Who was refused has nothing, and gets it now.
    for buyer in refused {
        assert_eq!(app.orders_in_record(sale, buyer).await, 0, "{buyer}");
        app.place(sale, buyer).await.receipt();
    }
}

#[tokio::test]
async fn who_waited_too_long_in_the_queue_is_refused_and_has_no_order() {
    let redis = RedisServer::start();
    let mut settings = patient("1").to_vec();
    settings.retain(|(key, _)| *key != "admission.queue_deadline");
    settings.push(("admission.queue_deadline", "1ms"));
    let app = TestApp::spawn_on(&redis, &settings).await;
    let sale = app.sale(10).await;
    app.hold_scripts();
    let in_flight = app.place(sale, "in-flight");
    let buyers = ["a", "b"];
    let late = async {
        app.wait_until_held(1).await;
        let mut presses: FuturesUnordered<_> =
            buyers.iter().map(|buyer| app.place(sale, buyer)).collect();
        // One finds no room: then the other waits.
        let no_room = presses.next().await.expect("an answer");
        assert_eq!(no_room.problem(), (503, "overloaded"));
        tokio::time::sleep(Duration::from_millis(2)).await;
        app.resume_scripts();
        presses.next().await.expect("an answer")
    };
    let (in_flight, late) = tokio::join!(in_flight, late);
    in_flight.receipt();
    assert_eq!(late.problem(), (503, "overloaded"));
    for buyer in buyers {
        assert_eq!(app.orders_in_record(sale, buyer).await, 0, "{buyer}");
    }
}

#[tokio::test]
async fn presses_that_wait_for_redis_go_together_in_few_calls() {
    let redis = RedisServer::start();
    let settings = [&patient("100")[..], &[("admission.batch_max", "50")]].concat();
    let app = TestApp::spawn_on(&redis, &settings).await;
    let sale = app.sale(200).await;
    app.place(sale, "first").await.receipt();
    let calls_before = app.script_calls();
    app.hold_scripts();
    let in_flight = app.place(sale, "in-flight");
    let buyers: Vec<String> = (0..120).map(|i| format!("buyer-{i}")).collect();
    let crowd = async {
        app.wait_until_held(1).await;
        let mut presses: FuturesUnordered<_> =
            buyers.iter().map(|buyer| app.place(sale, buyer)).collect();
        // 20 find no room: then 100 wait.
        for _ in 0..20 {
            let answer = presses.next().await.expect("an answer");
            assert_eq!(answer.problem(), (503, "overloaded"));
        }
        app.resume_scripts();
        presses.collect::<Vec<Answer>>().await
    };
    let (in_flight, answers) = tokio::join!(in_flight, crowd);
    in_flight.receipt();
    assert_eq!(answers.len(), 100);
    for answer in &answers {
        answer.receipt();
    }
    // The one that was in flight alone, and twice 50.
    assert_eq!(app.script_calls() - calls_before, 3);
}

#[tokio::test]
async fn a_buyer_who_hung_up_before_being_sent_gets_no_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &patient("10")).await;
    let sale = app.sale(10).await;
    app.hold_scripts();
    let in_flight = app.place(sale, "in-flight");
    let gone = async {
        app.wait_until_held(1).await;
        let mut stream = TcpStream::connect(app.at.http).await.expect("the gateway listens");
        let head = format!(
            "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\n\
             authorization: Bearer {}\r\n\r\n",
            token("gone")
        );
        stream.write_all(head.as_bytes()).await.expect("is sent");
        // The one thread has heard the press when it answers this, and the hanging up when it
        // answers the next.
        assert_eq!(app.get("/api/v1/sales").await.status, 200);
        drop(stream);
        assert_eq!(app.get("/api/v1/sales").await.status, 200);
        app.resume_scripts();
        app.place(sale, "after").await
    };
    let (in_flight, after) = tokio::join!(in_flight, gone);
    in_flight.receipt();
    after.receipt();
    assert_eq!(app.orders_in_record(sale, "gone").await, 0);
}

/// One thread that waits for Redis for as long as it takes, with this much room in its queue.
fn patient(queue_capacity: &str) -> [(&'static str, &str); 4] {
    [
        ("http.workers", "1"),
        ("admission.queue_capacity", queue_capacity),
        ("admission.queue_deadline", "60s"),
        ("redis.response_timeout", "60s"),
    ]
}

#[tokio::test]
async fn orders_are_taken_while_the_database_is_away_and_become_rows_when_it_is_back() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let settings = [("database.url", url.as_str()), ("database.connect_timeout", "500ms")];
    let app = TestApp::spawn_with(&settings).await;
    let sale = app.sale(10).await;
    let _worker = app.start_worker().await;
    let before = app.place(sale, "alice").await.receipt();
    app.wait_until_committed("alice", before).await;

    postgres.stop();
    let during = app.place_with_key(sale, "bob", "k1").await.receipt();
    let again = app.place(sale, "alice").await;
    assert_eq!(again.problem(), (409, "already-ordered"));
    assert_eq!(app.get(&format!("/api/v1/sales/{sale}")).await.status, 200);
    // What became of an order only the database can tell, so nothing is made up.
    assert_unavailable(&app.order("alice", before).await);
    assert_unavailable(&app.order("bob", during).await);

    postgres.start_again();
    let state = eventually(SOON, "the order is a row", async || {
        let answer = app.order("bob", during).await;
        let state = answer.body["state"].as_str().map(str::to_owned);
        state.filter(|state| state != "queued")
    })
    .await;
    assert_eq!(state, "awaiting_payment");
    app.assert_sound(sale, &[(before, "alice".into()), (during, "bob".into())]).await;
}

#[tokio::test]
async fn a_committed_order_can_be_read_while_redis_is_away() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "500ms")]).await;
    let sale = app.sale(10).await;
    let worker = app.start_worker().await;
    let committed = app.place(sale, "alice").await.receipt();
    app.wait_until_committed("alice", committed).await;
    worker.stop(SOON).await;
    let queued = app.place(sale, "bob").await.receipt();

    redis.kill_9();
    app.wait_until_committed("alice", committed).await;
    // Whether there is such an order only Redis knows: never "there is none".
    assert_unavailable(&app.order("bob", queued).await);
    let list = app.get_as("alice", "/api/v1/orders").await;
    assert_eq!(list.body["orders"].as_array().map(Vec::len), Some(1), "{list:?}");
    assert_eq!(app.get("/api/v1/sales").await.body["sales"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_redis_that_is_away_at_the_start_is_waited_for() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("redis.response_timeout", "500ms")]).await;
    let sale = app.sale(10).await;
    redis.kill_9();
    let (at, _gateway) = app.start_another_gateway().await;
    let url = format!("http://{}/api/v1/sales/{sale}/orders", at.http);
    let press = async || send(app.client.post(&url).bearer_auth(token("alice"))).await;
    assert_eq!(press().await.status, 503);
    redis.start_again();
    eventually(SOON, "Redis is found", async || {
        press().await.problem() == (503, "sale-unavailable")
    })
    .await;
    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    press().await.receipt();
}
