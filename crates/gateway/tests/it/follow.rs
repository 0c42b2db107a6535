//! Following an order: with `wait`, and by events. Whoever follows is told, also when the message that
//! says so is lost.

use std::time::{Duration, Instant};

use flashsale_domain::{OrderId, SaleId};
use flashsale_test_support::{PostgresServer, RedisServer, eventually};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};

use crate::read::set_aside;
use crate::support::{
    Answer, Event, Events, SECRET, SOON, TestApp, home, now_ms, send, sign, token,
};

/// Several looks at everything that is followed.
const SOME_LOOKS: Duration = Duration::from_secs(5);

async fn wait_for(app: &TestApp, buyer: &str, id: OrderId) -> (Answer, Duration) {
    let started = Instant::now();
    let answer = app.get_as(buyer, &format!("/api/v1/orders/{id}?wait=30")).await;
    (answer, started.elapsed())
}

fn state_of(answer: &Answer) -> &str {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["state"].as_str().expect("has a state")
}

/// Lets `happen` happen once a follower of the order is waiting, and returns what he is told.
async fn told_after(app: &TestApp, id: OrderId, happen: impl AsyncFnOnce()) -> (Answer, Duration) {
    let happens = async {
        // Long enough that the wait has begun; if it has not, the test is only easier.
        sleep_until(tokio::time::Instant::now() + Duration::from_millis(300)).await;
        happen().await;
    };
    tokio::join!(wait_for(app, "alice", id), happens).0
}

/// What a worker does with an order, without a word to anybody.
async fn commit_silently(app: &TestApp, sale: SaleId, id: OrderId) {
    let entry = app.redis.find_entry(home(), id.entry()).await.expect("answers");
    let entry = entry.expect("is on the stream");
    let order = flashsale_storage_redis::decode(home(), &entry).expect("an order");
    assert_eq!((order.id, order.sale_id), (id, sale));
    app.database.commit_orders(&[order]).await.expect("committed");
}

#[tokio::test]
async fn a_dead_letter_ends_the_wait() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    let (answer, waited) = told_after(&app, id, async || set_aside(&app, id).await).await;
    assert_eq!(state_of(&answer), "dead");
    assert!(waited < SOME_LOOKS, "{waited:?}");
}

#[tokio::test]
async fn a_dead_letter_ends_the_wait_however_many_older_orders_wait_as_well() {
    let app = TestApp::spawn().await;
    let sale = app.sale(200).await;
    let place = async |number: usize| app.place(sale, &format!("buyer-{number}")).await;
    let older: Vec<Answer> = stream::iter(0..150).map(place).buffered(10).collect().await;
    let older: Vec<OrderId> = older.iter().map(Answer::receipt).collect();
    let id = app.place(sale, "alice").await.receipt();
    assert!(older.iter().all(|older| *older < id));
    let mut waiting = Vec::new();
    for (number, older) in older.iter().enumerate() {
        waiting.push(app.follow(&format!("buyer-{number}"), *older).await);
    }
    let (answer, _) = told_after(&app, id, async || set_aside(&app, id).await).await;
    assert_eq!(state_of(&answer), "dead");
}

#[tokio::test]
async fn a_rejection_ends_the_wait() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    // The database has given the units away: it refuses what Redis admitted.
    app.execute(&format!("UPDATE sales SET stock_left = 0 WHERE id = {sale}")).await;
    let mut worker = None;
    let (answer, _) = told_after(&app, id, async || worker = Some(app.start_worker().await)).await;
    assert_eq!(state_of(&answer), "rejected");
    assert_eq!(answer.body["reason"], "stock-gone");
}

#[tokio::test]
async fn who_waits_is_told_though_the_message_was_lost() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    let commit = async || commit_silently(&app, sale, id).await;
    let (answer, waited) = told_after(&app, id, commit).await;
    assert_eq!(state_of(&answer), "awaiting_payment");
    assert!(waited < SOME_LOOKS, "{waited:?}");
}

/// A row that cannot be read is followed as well: it spoils every look at all that is followed, so that
/// only a message, which has nobody look but at what it names, can tell the others.
#[tokio::test]
async fn who_follows_is_told_by_the_message_alone() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let (at, _program) = app.start_gateway_program().await;
    let follow = async |buyer: &str, id: OrderId| {
        let path = format!("/api/v1/orders/{id}/events");
        Events::open(app.request_at(at, Method::GET, &path).bearer_auth(token(buyer))).await
    };
    let worker = app.start_worker().await;
    let spoiled = app.place_committed(sale, "bob").await;
    worker.stop(SOON).await;
    let mut of_bob = follow("bob", spoiled).await;
    assert_eq!(of_bob.next_state().await, "awaiting_payment");
    let spoil = format!("UPDATE orders SET price_currency = '?' WHERE id = {spoiled}");
    assert_eq!(app.execute(&spoil).await, 1);

    let by_events = app.place(sale, "alice").await.receipt();
    let by_wait = app.place(sale, "carol").await.receipt();
    let mut of_alice = follow("alice", by_events).await;
    assert_eq!(of_alice.next_state().await, "queued");
    let wait = async {
        let path = format!("/api/v1/orders/{by_wait}?wait=30");
        send(app.request_at(at, Method::GET, &path).bearer_auth(token("carol"))).await
    };
    let commit = async {
        let all_follow = async || {
            let answer = send(app.client.get(format!("http://{}/metrics", at.admin))).await;
            answer.text.lines().any(|line| line == "flashsale_followed_orders 3")
        };
        eventually(SOON, "three orders are followed", all_follow).await;
        app.start_worker().await
    };
    let (answer, _worker) = tokio::join!(wait, commit);
    assert_eq!(state_of(&answer), "awaiting_payment");
    assert_eq!(of_alice.next_state().await, "awaiting_payment");
    app.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id = {by_events}")).await;
    assert_eq!(of_alice.next_state().await, "expired");

    // No other look can have told them: one at all three fails, and bob has followed to this day.
    assert!(app.database.find_orders(&[spoiled, by_events, by_wait]).await.is_err());
    app.execute(&format!("UPDATE orders SET price_currency = 'CNY' WHERE id = {spoiled}")).await;
    assert_eq!(app.cancel("bob", spoiled).await.status, 200);
    assert_eq!(of_bob.next_state().await, "cancelled");
}

#[tokio::test]
async fn who_waits_is_told_though_the_subscription_was_killed() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let sale = app.sale(2).await;
    let subscribers = || {
        let clients: String = app.redis_command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        clients.lines().count()
    };
    for buyer in ["alice", "alice-2"] {
        eventually(SOON, "the gateway listens", async || subscribers() == 1).await;
        let id = app.place(sale, buyer).await.receipt();
        let killed = async || {
            let killed: i64 = app.redis_command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            assert_eq!(killed, 1);
            commit_silently(&app, sale, id).await;
        };
        let (answer, ()) = tokio::join!(wait_for(&app, buyer, id), killed());
        assert_eq!(state_of(&answer.0), "awaiting_payment");
        assert!(answer.1 < SOME_LOOKS, "{:?}", answer.1);
    }
}

#[tokio::test]
async fn who_waits_while_the_database_is_away_is_told_when_it_is_back() {
    let server = PostgresServer::start();
    let url = server.create_database();
    let settings = [("database.url", url.as_str()), ("database.statement_timeout", "1s")];
    let app = TestApp::spawn_with(&settings).await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    let mut events = app.follow("alice", id).await;
    assert_eq!(events.next_state().await, "queued");
    let outage = async || {
        server.pause();
        // Longer than a statement may take, so that looks fail.
        sleep_until(tokio::time::Instant::now() + Duration::from_secs(3)).await;
        server.resume();
        eventually(SOON, "the database answers", async || app.database.ping().await).await;
        commit_silently(&app, sale, id).await;
    };
    let (answer, _) = told_after(&app, id, outage).await;
    assert_eq!(state_of(&answer), "awaiting_payment");
    assert_eq!(events.next_state().await, "awaiting_payment");
}

#[tokio::test]
async fn who_waits_while_redis_forgets_is_told_what_became_of_the_order() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    let forget = async || {
        let _: () = app.redis_command(&["FLUSHALL"]);
        // Looked at meanwhile: nobody can say what became of it.
        sleep_until(tokio::time::Instant::now() + Duration::from_millis(2_500)).await;
        app.operations.rebuild_sale(sale).await.expect("rebuilt");
    };
    let (answer, _) = told_after(&app, id, forget).await;
    assert_eq!(state_of(&answer), "rejected");
    assert_eq!(answer.body["reason"], "memory-lost");
}

#[tokio::test]
async fn of_two_who_follow_one_order_both_are_told_and_one_who_left_is_forgotten() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let (at, program) = app.start_gateway_program().await;
    let followed = async || {
        let answer = send(app.client.get(format!("http://{}/metrics", at.admin))).await;
        let values =
            answer.text.lines().map(|line| line.strip_prefix("flashsale_followed_orders "));
        values.flatten().next().map(str::to_owned)
    };
    let id = app.place(sale, "alice").await.receipt();
    let follow = async || {
        let path = format!("/api/v1/orders/{id}/events");
        Events::open(app.request_at(at, Method::GET, &path).bearer_auth(token("alice"))).await
    };
    let (mut first, mut second, third) = (follow().await, follow().await, follow().await);
    assert_eq!(first.next_state().await, "queued");
    assert_eq!(second.next_state().await, "queued");
    eventually(SOON, "one order is followed", async || followed().await.as_deref() == Some("1"))
        .await;
    drop(third);
    let worker = app.start_worker().await;
    for events in [&mut first, &mut second] {
        assert_eq!(events.next_state().await, "awaiting_payment");
    }
    // A message that tells of a payment, and the end of both streams with it.
    assert_eq!(app.pay("pay-1", id).await.status, 200);
    for events in [&mut first, &mut second] {
        assert_eq!(events.next_state().await, "paid");
        assert_eq!(events.next().await, None);
    }
    eventually(SOON, "nobody follows", async || followed().await.as_deref() == Some("0")).await;

    // One who hangs up in the middle of it, and one whose question is refused.
    worker.stop(SOON).await;
    let id = app.place(sale, "bob").await.receipt();
    let path = format!("/api/v1/orders/{id}/events");
    let request = app.request_at(at, Method::GET, &path);
    let hung_up = Events::open(request.bearer_auth(token("bob"))).await;
    eventually(SOON, "one order is followed", async || followed().await.as_deref() == Some("1"))
        .await;
    let request = app.request_at(at, Method::GET, &path).bearer_auth(token("carol"));
    assert_eq!(send(request).await.problem(), (404, "order-not-found"));
    drop(hung_up);
    eventually(SOON, "nobody follows", async || followed().await.as_deref() == Some("0")).await;

    let mut waiting = TcpStream::connect(at.http).await.expect("the gateway listens");
    let request = format!(
        "GET /api/v1/orders/{id}?wait=30 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
        token("bob")
    );
    waiting.write_all(request.as_bytes()).await.expect("is sent");
    eventually(SOON, "one order is waited for", async || followed().await.as_deref() == Some("1"))
        .await;
    drop(waiting);
    eventually(SOON, "nobody follows", async || followed().await.as_deref() == Some("0")).await;
    drop(program);
}

#[tokio::test]
async fn events_tell_an_order_from_the_queue_to_its_end() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let mut ids = Vec::new();
    let mut streams = Vec::new();
    for buyer in ["pays", "cancels", "forgets"] {
        let id = app.place(sale, buyer).await.receipt();
        let mut events = app.follow(buyer, id).await;
        let first = events.next().await.expect("the first one comes at once");
        assert_eq!(first.state(), "queued");
        assert_eq!(first.data, app.order(buyer, id).await.body);
        ids.push(id);
        streams.push(events);
    }
    let _worker = app.start_worker().await;
    for (events, (buyer, id)) in
        streams.iter_mut().zip(["pays", "cancels", "forgets"].into_iter().zip(&ids))
    {
        let second = events.next().await.expect("the commit is told");
        assert_eq!(second.state(), "awaiting_payment");
        assert_eq!(second.data, app.order(buyer, *id).await.body);
        assert!(second.data["pay_by"].is_string(), "{second:?}");
    }
    assert_eq!(app.pay("pay-1", ids[0]).await.status, 200);
    assert_eq!(app.cancel("cancels", ids[1]).await.status, 200);
    app.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id = {}", ids[2])).await;
    for (events, state) in streams.iter_mut().zip(["paid", "cancelled", "expired"]) {
        assert_eq!(events.next_state().await, state);
        assert_eq!(events.next().await, None, "it ends after {state}");
    }
}

#[tokio::test]
async fn who_comes_back_is_told_only_what_is_new() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let _worker = app.start_worker().await;
    let id = app.place_committed(sale, "alice").await;
    let path = format!("/api/v1/orders/{id}/events");
    let come_back = |seen: &str| {
        app.request(Method::GET, &path).bearer_auth(token("alice")).header("Last-Event-ID", seen)
    };
    let mut seen = Events::open(come_back("awaiting_payment")).await;
    // Older, unknown or made up: told what it is now.
    for id in ["queued", "nonsense", "", "paid"] {
        let mut events = Events::open(come_back(id)).await;
        assert_eq!(events.next_state().await, "awaiting_payment", "{id}");
    }
    let twice = come_back("queued").header("Last-Event-ID", "paid");
    assert_eq!(send(twice).await.problem(), (400, "invalid-request"));

    assert_eq!(app.cancel("alice", id).await.status, 200);
    // The state that was seen was not told again.
    assert_eq!(seen.next_state().await, "cancelled");
    assert_eq!(seen.next().await, None);
    let answer = send(come_back("cancelled")).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    let mut events = Events::open(come_back("awaiting_payment")).await;
    assert_eq!(events.next_state().await, "cancelled");
    assert_eq!(events.next().await, None);
}

#[tokio::test]
async fn a_stream_that_has_nothing_to_tell_says_that_it_is_alive() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let id = app.place(sale, "alice").await.receipt();
    let mut of_order = app.follow("alice", id).await;
    assert_eq!(of_order.next_state().await, "queued");
    let mut of_sale =
        Events::open(app.request(Method::GET, &format!("/api/v1/sales/{sale}/events"))).await;
    let heartbeat = async |events: &mut Events| {
        while events.block().await.expect("the stream goes on") != ":" {}
    };
    tokio::join!(heartbeat(&mut of_order), heartbeat(&mut of_sale));
}

#[tokio::test]
async fn somebody_elses_order_cannot_be_followed() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let id = app.place(sale, "alice").await.receipt();
    for id in [id.to_string(), "0".into(), "-1".into(), "x".into(), "9".repeat(40)] {
        let path = format!("/api/v1/orders/{id}/events");
        assert_eq!(app.get_as("bob", &path).await.problem(), (404, "order-not-found"), "{id}");
    }
    let path = format!("/api/v1/orders/{id}/events");
    assert_eq!(app.get(&path).await.problem(), (401, "unauthorized"));
    let _worker = app.start_worker().await;
    app.wait_until_committed("alice", id).await;
    assert_eq!(app.get_as("bob", &path).await.problem(), (404, "order-not-found"));
}

#[tokio::test]
async fn a_stream_ends_when_its_token_does() {
    let app = TestApp::spawn().await;
    let sale = app.sale(5).await;
    let id = app.place(sale, "alice").await.receipt();
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes()).expect("a secret");
    let expires_s = now_ms() / 1000 + 3;
    let claims = json!({ "sub": "alice", "exp": expires_s });
    let short = sign(jsonwebtoken::Algorithm::HS256, &key, &claims);
    let path = format!("/api/v1/orders/{id}/events");
    let mut events = Events::open(app.request(Method::GET, &path).bearer_auth(short)).await;
    assert_eq!(events.next_state().await, "queued");
    assert_eq!(events.next().await, None);
    let past = now_ms() - expires_s * 1000;
    assert!((-100..2_000).contains(&past), "ended {past} ms after the token");
}

#[tokio::test]
async fn a_gateway_that_leaves_ends_its_streams_and_leaves_in_time() {
    let app = TestApp::spawn().await;
    let sale = app.sale(100).await;
    let (at, program) = app.start_gateway_program().await;
    let follow = async |number: usize| {
        let buyer = format!("buyer-{number}");
        let id = app.place(sale, &buyer).await.receipt();
        let path = format!("/api/v1/orders/{id}/events");
        let request = app.request_at(at, Method::GET, &path).bearer_auth(token(&buyer));
        let mut events = Events::open(request).await;
        assert_eq!(events.next_state().await, "queued");
        events
    };
    let mut streams = join_all((0..50).map(follow)).await;
    let sale_path = format!("/api/v1/sales/{sale}/events");
    let mut of_sale = Events::open(app.request_at(at, Method::GET, &sale_path)).await;
    of_sale.next().await.expect("the stock");
    of_sale.next().await.expect("the state");
    let asked = Instant::now();
    program.terminate();
    for events in &mut streams {
        assert_eq!(events.next().await, None);
    }
    while of_sale.next().await.is_some() {}
    let status = eventually(SOON, "the end", async || program.exit_status()).await;
    assert_eq!(status.code(), Some(0), "{}", program.log());
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn readers_who_never_read_hold_nobody_up() {
    let app = TestApp::spawn().await;
    let sale = app.sale(1_000).await;
    let (at, program) = app.start_gateway_program().await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(at.http).await.expect("the gateway listens");
        let request = format!("GET /api/v1/sales/{sale}/events HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("is sent");
        silent.push(stream);
    }
    for number in 0..50 {
        let answer = send(app.press_at(at, sale, &format!("buyer-{number}"))).await;
        answer.receipt();
    }
    program.terminate();
    let status = eventually(SOON, "the end", async || program.exit_status()).await;
    assert_eq!(status.code(), Some(0), "{}", program.log());
    // What was written for them is there, and ends in order.
    let mut received = String::new();
    let read = silent[0].read_to_string(&mut received);
    timeout(SOON, read).await.expect("it is closed").expect("it is text");
    assert!(received.ends_with("\r\n0\r\n\r\n"), "{received}");
}

/// The next event, which is of this name.
async fn named(events: &mut Events, name: &str) -> Event {
    let event = events.next().await.expect("the stream goes on");
    assert_eq!(event.name, name, "{event:?}");
    event
}

#[tokio::test]
async fn a_sales_events_tell_its_stock_and_state_until_it_is_closed() {
    let app = TestApp::spawn().await;
    let sale = app.sale(3).await;
    let path = format!("/api/v1/sales/{sale}/events");
    let open = |seen: Option<&str>| {
        let request = app.request(Method::GET, &path);
        seen.map_or_else(
            || app.request(Method::GET, &path),
            |id| request.header("Last-Event-ID", id),
        )
    };
    // The catalogue reads the stock in its own time.
    eventually(SOON, "the stock is known", async || {
        app.get(&format!("/api/v1/sales/{sale}")).await.body["stock_left"] == 3
    })
    .await;
    let mut events = Events::open(open(None)).await;
    let event = named(&mut events, "stock").await;
    assert_eq!((event.data, event.id.as_str()), (json!({ "stock_left": 3 }), "published-3"));
    assert_eq!(named(&mut events, "state").await.data, json!({ "state": "published" }));
    app.place(sale, "alice").await.receipt();
    let event = named(&mut events, "stock").await;
    assert_eq!((event.data, event.id.as_str()), (json!({ "stock_left": 2 }), "published-2"));
    app.operations.pause_sale(sale).await.expect("paused");
    assert_eq!(named(&mut events, "state").await.data, json!({ "state": "paused" }));

    let mut seen = Events::open(open(Some("paused-2"))).await;
    app.operations.close_sale(sale).await.expect("closed");
    let last = named(&mut events, "state").await;
    assert_eq!((last.data, last.id.as_str()), (json!({ "state": "closed" }), "closed-2"));
    assert_eq!(events.next().await, None);
    // The one who had seen it all was told only of the end.
    assert_eq!(seen.next().await.expect("the end is told").data, json!({ "state": "closed" }));
    assert_eq!(seen.next().await, None);
    let answer = send(open(Some("closed-2"))).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    let mut late = Events::open(open(Some("published-2"))).await;
    assert_eq!(late.next().await.expect("the state").data, json!({ "state": "closed" }));
    assert_eq!(late.next().await, None);

    for id in ["0", "-1", "x", "99999999999999999999", "123456"] {
        let answer = app.get(&format!("/api/v1/sales/{id}/events")).await;
        assert_eq!(answer.problem(), (404, "sale-not-found"), "{id}");
    }
}
