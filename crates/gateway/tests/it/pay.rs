//! Paying: a signed report is decided once, whatever its retries, and no money is dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use flashsale_domain::{LatePayment, NewSale, OrderId, SaleId};
use flashsale_test_support::{RedisServer, eventually};
use flashsale_webhooks::{ID_HEADER, SIGNATURE_HEADER, Secrets, TIMESTAMP_HEADER};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::read::set_aside;
use crate::support::{
    Answer, PAYMENT_SECRET, SOON, TestApp, WEBHOOK, home, new_sale, now_ms, payment, rounds, send,
    webhook,
};

type Headers = Vec<(&'static str, String)>;

fn outcome(answer: &Answer) -> &str {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["outcome"].as_str().expect("has an outcome")
}

async fn state(app: &TestApp, buyer: &str, id: OrderId) -> String {
    let answer = app.order(buyer, id).await;
    answer.body["state"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

/// Reports a payment with this body.
async fn report(app: &TestApp, webhook_id: &str, body: &str) -> Answer {
    send(webhook(app.request(Method::POST, WEBHOOK), webhook_id, body)).await
}

/// A sale that gives late money back, instead of looking for another unit.
fn refunding(stock: i64) -> NewSale {
    NewSale { late_payment: LatePayment::Refund, ..new_sale(stock) }
}

async fn expire(app: &TestApp, buyer: &str, id: OrderId) {
    app.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id = {id}")).await;
    eventually(SOON, "it expires", async || state(app, buyer, id).await == "expired").await;
}

async fn units_left(app: &TestApp, sale: SaleId) -> i64 {
    let account = app.redis.read_sale(home(), sale).await.expect("answers");
    account.sale.expect("is loaded").stock
}

#[tokio::test]
async fn a_report_that_comes_ten_times_at_once_pays_once_and_is_answered_ten_times() {
    let app = TestApp::spawn_on_postgres().await;
    let sale = app.sale(2).await;
    let _worker = app.start_worker().await;
    let id = app.place_committed(sale, "alice").await;
    for _ in 0..2 {
        let answers = join_all((0..10).map(|_| app.pay("msg-1", id))).await;
        for answer in &answers {
            assert_eq!(outcome(answer), "paid");
            assert_eq!(answer.body, json!({ "order_id": id, "outcome": "paid" }));
        }
    }
    let order = app.order("alice", id).await;
    assert_eq!(order.body["state"], "paid");
    assert!(order.body["settled_at"].is_string(), "{order:?}");
    assert_eq!(app.operations.list_refunds_due(10).await.expect("answers"), []);
    // Money that comes once more, in another message, buys nothing.
    assert_eq!(outcome(&app.pay("msg-2", id).await), "refund_due");
    assert_eq!(state(&app, "alice", id).await, "paid");
    assert_eq!(app.operations.list_refunds_due(10).await.expect("answers").len(), 1);
    app.assert_sound(sale, &[(id, "alice".into())]).await;
}

#[tokio::test]
async fn the_id_of_one_payment_pays_no_other_order() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let _worker = app.start_worker().await;
    let paid = app.place_committed(sale, "alice").await;
    let other = app.place_committed(sale, "bob").await;
    assert_eq!(outcome(&app.pay("msg-1", paid).await), "paid");
    assert_eq!(app.pay("msg-1", other).await.problem(), (409, "webhook-id-reused"));
    assert_eq!(state(&app, "bob", other).await, "awaiting_payment");
    assert_eq!(outcome(&app.pay("msg-1", paid).await), "paid");
    assert_eq!(outcome(&app.pay("msg-2", other).await), "paid");
}

#[tokio::test]
async fn ten_reports_at_once_that_differ_pay_once_and_the_rest_is_due_back() {
    let app = TestApp::spawn_on_postgres().await;
    let sale = app.sale(2).await;
    let _worker = app.start_worker().await;
    let id = app.place_committed(sale, "alice").await;
    let pay = async |number: usize| app.pay(&format!("msg-{number}"), id).await;
    let answers = join_all((0..10).map(pay)).await;
    let paid = answers.iter().filter(|answer| outcome(answer) == "paid").count();
    let due = answers.iter().filter(|answer| outcome(answer) == "refund_due").count();
    assert_eq!((paid, due), (1, 9));
    assert_eq!(app.operations.list_refunds_due(20).await.expect("answers").len(), 9);
    app.assert_sound(sale, &[(id, "alice".into())]).await;
}

#[tokio::test]
async fn a_report_that_is_not_signed_as_it_should_be_is_refused() {
    let app = TestApp::spawn().await;
    let sale = app.direct_sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    let body = payment(id, 9_900, "CNY");
    let now_s = now_ms() / 1000;
    let good = Secrets::parse(PAYMENT_SECRET).expect("a secret");
    let other = Secrets::parse("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").expect("a secret");
    let signature = good.sign("msg-1", now_s, body.as_bytes());
    let send_with = async |headers: &[(&str, String)], body: &str| {
        let mut request = app.request(Method::POST, WEBHOOK).body(body.to_owned());
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        send(request).await
    };
    let headers = |id: &str, timestamp_s: i64, signature: &str| {
        vec![
            (ID_HEADER, id.to_owned()),
            (TIMESTAMP_HEADER, timestamp_s.to_string()),
            (SIGNATURE_HEADER, signature.to_owned()),
        ]
    };
    let altered = body.replace("9900", "9901");
    let signed = |secrets: &Secrets, at_s: i64| {
        headers("msg-1", at_s, &secrets.sign("msg-1", at_s, body.as_bytes()))
    };
    let refused: Vec<(&str, Headers, &str)> = vec![
        ("altered body", headers("msg-1", now_s, &signature), &altered),
        ("another id", headers("msg-2", now_s, &signature), &body),
        ("another time", headers("msg-1", now_s + 1, &signature), &body),
        ("another secret", signed(&other, now_s), &body),
        ("too old", signed(&good, now_s - 400), &body),
        ("from the future", signed(&good, now_s + 400), &body),
        ("far too old", signed(&good, i64::MIN), &body),
        ("no signature", headers("msg-1", now_s, ""), &body),
        ("another scheme", headers("msg-1", now_s, &signature.replace("v1,", "v2,")), &body),
        ("no base64", headers("msg-1", now_s, "v1,***"), &body),
        ("cut off", headers("msg-1", now_s, &signature[..20]), &body),
        ("not text", vec![(ID_HEADER, "ä".into())], &body),
        ("nothing", vec![], &body),
    ];
    for (what, headers, body) in &refused {
        let answer = send_with(headers, body).await;
        assert_eq!(answer.problem(), (401, "unauthorized"), "{what}");
        assert!(answer.header("www-authenticate").is_some(), "{what}");
    }
    // Without one of the three; and with one of the three twice.
    for left_out in 0..3 {
        let mut headers = headers("msg-1", now_s, &signature);
        headers.remove(left_out);
        let answer = send_with(&headers, &body).await;
        assert_eq!(answer.problem(), (401, "unauthorized"), "{left_out}");
    }
    for twice in 0..3 {
        let mut headers = headers("msg-1", now_s, &signature);
        headers.push(headers[twice].clone());
        let answer = send_with(&headers, &body).await;
        assert_eq!(answer.problem(), (400, "invalid-request"), "{twice}");
    }
    assert_eq!(state(&app, "alice", id).await, "awaiting_payment");
    // The same once more as it should be.
    assert_eq!(outcome(&send_with(&headers("msg-1", now_s, &signature), &body).await), "paid");
}

#[tokio::test]
async fn while_a_secret_is_replaced_both_are_good_and_without_one_none_is() {
    let old = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let both = format!("{old} {PAYMENT_SECRET}");
    let app = TestApp::spawn_with(&[("payment.webhook_secret", &both)]).await;
    let sale = app.direct_sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    assert_eq!(outcome(&app.pay("msg-1", id).await), "paid");
    let body = payment(id, 9_900, "CNY");
    let now_s = now_ms() / 1000;
    let secrets = Secrets::parse(old).expect("a secret");
    let request = app
        .request(Method::POST, WEBHOOK)
        .header(ID_HEADER, "msg-1")
        .header(TIMESTAMP_HEADER, now_s.to_string())
        .header(SIGNATURE_HEADER, secrets.sign("msg-1", now_s, body.as_bytes()))
        .body(body);
    assert_eq!(outcome(&send(request).await), "paid");

    let app = TestApp::spawn_with(&[("payment.webhook_secret", "")]).await;
    let sale = app.direct_sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    assert_eq!(app.pay("msg-1", id).await.problem(), (401, "unauthorized"));
    assert_eq!(state(&app, "alice", id).await, "awaiting_payment");
}

#[tokio::test]
async fn a_message_that_is_no_payment_is_taken_and_ignored_and_nonsense_is_refused() {
    let app = TestApp::spawn().await;
    let sale = app.direct_sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    for body in ["{\"type\":\"payment.failed\",\"data\":{}}", "{\"type\":\"x\"}"] {
        let answer = report(&app, "msg-1", body).await;
        assert_eq!(answer.body, json!({ "outcome": "ignored" }), "{answer:?}");
    }
    let data = |data: &str| format!("{{\"type\":\"payment.succeeded\",\"data\":{data}}}");
    let nonsense = [
        String::new(),
        "x".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        "[".repeat(10_000),
        data("null"),
        data("{}"),
        data(&format!("{{\"order_id\":{id},\"amount\":9900,\"currency\":\"CNY\"}}")),
        data("{\"order_id\":\"x\",\"amount\":9900,\"currency\":\"CNY\"}"),
        data(&format!("{{\"order_id\":\"{id}\",\"amount\":\"9900\",\"currency\":\"CNY\"}}")),
        data(&format!("{{\"order_id\":\"{id}\",\"amount\":99.5,\"currency\":\"CNY\"}}")),
        data(&format!("{{\"order_id\":\"{id}\",\"amount\":-1,\"currency\":\"CNY\"}}")),
        data(&format!("{{\"order_id\":\"{id}\",\"amount\":1e30,\"currency\":\"CNY\"}}")),
        data(&format!("{{\"order_id\":\"{id}\",\"amount\":9900,\"currency\":\"yuan\"}}")),
        data(&format!("{{\"order_id\":\"{id}\",\"amount\":9900}}")),
    ];
    for body in &nonsense {
        assert_eq!(report(&app, "msg-1", body).await.problem(), (400, "invalid-request"), "{body}");
    }
    let large = data(&format!("\"{}\"", "x".repeat(20_000)));
    assert_eq!(report(&app, "msg-1", &large).await.problem(), (413, "too-large"));
    assert_eq!(state(&app, "alice", id).await, "awaiting_payment");
    // None of them has used up the id.
    assert_eq!(outcome(&app.pay("msg-1", id).await), "paid");
}

#[tokio::test]
async fn what_is_not_the_price_pays_nothing_and_leaves_the_order_payable() {
    let app = TestApp::spawn().await;
    let sale = app.direct_sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    let wrong = [(9_899, "CNY"), (9_901, "CNY"), (0, "CNY"), (9_900, "USD"), (i64::MAX, "CNY")];
    for (number, (amount, currency)) in wrong.into_iter().enumerate() {
        let body = payment(id, amount, currency);
        let answer = report(&app, &format!("wrong-{number}"), &body).await;
        assert_eq!(answer.problem(), (409, "payment-mismatch"), "{amount} {currency}");
        // And so it stays.
        let answer = report(&app, &format!("wrong-{number}"), &body).await;
        assert_eq!(answer.problem(), (409, "payment-mismatch"), "{amount} {currency}");
    }
    assert_eq!(state(&app, "alice", id).await, "awaiting_payment");
    assert_eq!(outcome(&app.pay("right", id).await), "paid");
}

#[tokio::test]
async fn an_order_that_is_not_there_yet_is_paid_by_a_later_try() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    assert_eq!(app.pay("msg-1", id).await.problem(), (404, "order-not-found"));
    let unknown: OrderId = "385646094744289281".parse().expect("an id");
    assert_eq!(app.pay("msg-2", unknown).await.problem(), (404, "order-not-found"));
    let _worker = app.start_worker().await;
    app.wait_until_committed("alice", id).await;
    assert_eq!(outcome(&app.pay("msg-1", id).await), "paid");
}

#[tokio::test]
async fn an_order_that_is_dead_is_paid_once_an_operator_has_let_it_through() {
    let app = TestApp::spawn().await;
    let sale = app.sale(2).await;
    let id = app.place(sale, "alice").await.receipt();
    set_aside(&app, id).await;
    assert_eq!(app.pay("msg-1", id).await.problem(), (404, "order-not-found"));
    let _worker = app.start_worker().await;
    eventually(SOON, "it is a row", async || state(&app, "alice", id).await != "dead").await;
    assert_eq!(outcome(&app.pay("msg-1", id).await), "paid");
}

#[tokio::test]
async fn money_for_an_order_that_is_over_is_due_back_and_changes_nothing_else() {
    let app = TestApp::spawn().await;
    let sale = app.publish(&refunding(10)).await;
    let cancelled = app.place(sale, "cancels").await.receipt();
    let expired = app.place(sale, "forgets").await.receipt();
    let worker = app.start_worker().await;
    app.wait_until_committed("cancels", cancelled).await;
    app.wait_until_committed("forgets", expired).await;
    assert_eq!(app.cancel("cancels", cancelled).await.status, 200);
    expire(&app, "forgets", expired).await;
    let rejected_sale = app.sale(1).await;
    app.execute(&format!("UPDATE sales SET stock_left = 0 WHERE id = {rejected_sale}")).await;
    let rejected = app.place(rejected_sale, "unlucky").await.receipt();
    let waited = app.get_as("unlucky", &format!("/api/v1/orders/{rejected}?wait=20")).await;
    assert_eq!(waited.body["state"], "rejected", "{waited:?}");

    let over = [
        ("cancels", cancelled, "cancelled"),
        ("forgets", expired, "refund_due"),
        ("unlucky", rejected, "rejected"),
    ];
    for (buyer, id, then) in over {
        let webhook_id = format!("msg-{buyer}");
        let answer = app.pay(&webhook_id, id).await;
        assert_eq!(outcome(&answer), "refund_due", "{buyer}");
        assert_eq!(outcome(&app.pay(&webhook_id, id).await), "refund_due", "{buyer}");
        assert_eq!(state(&app, buyer, id).await, then);
    }
    eventually(SOON, "every unit is back", async || units_left(&app, sale).await == 10).await;
    let due = app.operations.list_refunds_due(10).await.expect("answers");
    let due: BTreeMap<OrderId, i64> =
        due.iter().map(|payment| (payment.order_id, payment.price.amount)).collect();
    assert_eq!(due.get(&cancelled), Some(&9_900));
    assert_eq!(due.get(&expired), Some(&9_900));
    assert_eq!(due.get(&rejected), Some(&9_900), "money is never dropped");
    app.assert_sound(sale, &[(cancelled, "cancels".into()), (expired, "forgets".into())]).await;
    worker.stop(SOON).await;
}

#[tokio::test]
async fn late_money_buys_a_unit_that_is_left_and_is_due_back_when_none_is() {
    let app = TestApp::spawn_on_postgres().await;
    let sale = app.sale(1).await;
    let _worker = app.start_worker().await;
    let first = app.place_committed(sale, "alice").await;
    expire(&app, "alice", first).await;
    eventually(SOON, "the unit is back", async || units_left(&app, sale).await == 1).await;
    let answers = join_all((0..5).map(|_| app.pay("late-1", first))).await;
    assert!(answers.iter().all(|answer| outcome(answer) == "paid"), "{answers:?}");
    assert_eq!(state(&app, "alice", first).await, "paid");
    assert_eq!(units_left(&app, sale).await, 0);
    let again = app.place(sale, "alice").await;
    assert_eq!(again.problem(), (409, "already-ordered"));
    assert_eq!(again.body["order_id"], first.to_string());
    app.assert_sound(sale, &[(first, "alice".into())]).await;

    let sale = app.sale(1).await;
    let late = app.place_committed(sale, "bob").await;
    expire(&app, "bob", late).await;
    let next = eventually(SOON, "another buys it", async || {
        let answer = app.place(sale, "carol").await;
        (answer.status == 202).then(|| answer.receipt())
    })
    .await;
    app.wait_until_committed("carol", next).await;
    let answers = join_all((0..5).map(|_| app.pay("late-2", late))).await;
    assert!(answers.iter().all(|answer| outcome(answer) == "refund_due"), "{answers:?}");
    assert_eq!(state(&app, "bob", late).await, "refund_due");
    assert_eq!(state(&app, "carol", next).await, "awaiting_payment");
    app.assert_sound(sale, &[(late, "bob".into()), (next, "carol".into())]).await;
}

#[tokio::test]
async fn late_money_that_comes_while_redis_is_fenced_is_decided_when_it_is_open_again() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[("worker.rebuild", "manual")]).await;
    let sale = app.sale(3).await;
    let worker = app.start_worker().await;
    let retried = app.place_committed(sale, "alice").await;
    let finished = app.place_committed(sale, "bob").await;
    expire(&app, "alice", retried).await;
    expire(&app, "bob", finished).await;
    eventually(SOON, "the units are back", async || units_left(&app, sale).await == 3).await;
    worker.stop(SOON).await;

    app.redis.fence(home()).await.expect("fenced");
    for (webhook_id, id) in [("late-1", retried), ("late-2", finished)] {
        for _ in 0..2 {
            let answer = app.pay(webhook_id, id).await;
            assert_eq!(answer.problem(), (503, "sale-unavailable"));
            assert!(answer.retry_after() >= Some(1));
        }
        // Another message about it meanwhile: one of the two buys, the other is due back.
    }
    assert_eq!(outcome(&app.pay("late-3", retried).await), "refund_due");
    assert_eq!(state(&app, "alice", retried).await, "expired");

    app.operations.rebuild_sale(sale).await.expect("rebuilt");
    // One by the provider's retry, the other by a worker.
    assert_eq!(outcome(&app.pay("late-1", retried).await), "paid");
    let _worker = app.start_worker().await;
    eventually(SOON, "a worker finishes it", async || state(&app, "bob", finished).await == "paid")
        .await;
    assert_eq!(outcome(&app.pay("late-2", finished).await), "paid");
    assert_eq!(units_left(&app, sale).await, 1);
    app.assert_sound(sale, &[(retried, "alice".into()), (finished, "bob".into())]).await;
}

#[tokio::test]
async fn around_pay_by_the_sales_policy_decides_about_the_money() {
    let app = TestApp::spawn_on_postgres().await;
    // No worker sweeps: only the payment decides.
    let worker = app.start_worker().await;
    let reacquiring = app.sale(10).await;
    let refunding = app.publish(&refunding(10)).await;
    let mut cases = Vec::new();
    for (policy, sale) in [("reacquire", reacquiring), ("refund", refunding)] {
        for offset in [1_000, 0, -1_000] {
            let buyer = format!("{policy}{offset}");
            let id = app.place_committed(sale, &buyer).await;
            cases.push((policy, offset, buyer, id));
        }
    }
    worker.stop(SOON).await;
    for (policy, offset, buyer, id) in &cases {
        // A busy machine may take longer than a second from here to the payment, so the time before
        // is given half a minute.
        let offset_ms = if *offset > 0 { 30_000 } else { *offset };
        app.execute(&format!(
            "UPDATE orders SET pay_by_ms = {DATABASE_NOW} + {offset_ms} WHERE id = {id}"
        ))
        .await;
        let paid = *offset > 0 || *policy == "reacquire";
        let expected = if paid { "paid" } else { "refund_due" };
        let answer = app.pay(&format!("msg-{buyer}"), *id).await;
        assert_eq!(outcome(&answer), expected, "{policy} {offset}");
        assert_eq!(state(&app, buyer, *id).await, expected, "{policy} {offset}");
    }
    let _worker = app.start_worker().await;
    eventually(SOON, "what was not bought is back", async || {
        (units_left(&app, reacquiring).await, units_left(&app, refunding).await) == (7, 9)
    })
    .await;
    app.assert_sound(reacquiring, &[]).await;
    app.assert_sound(refunding, &[]).await;
}

/// The database's clock, in milliseconds.
const DATABASE_NOW: &str = "(extract(epoch from clock_timestamp()) * 1000)::bigint";
/// How long after a round's beginning its order is due.
const DUE_AFTER: Duration = Duration::from_millis(40);
/// From so many rounds on, each of the three must have won some.
const ENOUGH_ROUNDS: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Winner {
    Cancel,
    Payment,
    Expiry,
}

/// How long after a round's beginning the buyer cancels, and the payment is reported. How long either
/// takes from there to the database depends on the machine, so the aim is corrected by who won:
/// before long, the three meet.
struct Aim {
    cancel_after: Duration,
    pay_after: Duration,
}

impl Aim {
    fn correct(&mut self, winner: Winner) {
        const BY: Duration = Duration::from_millis(1);
        match winner {
            Winner::Cancel => self.cancel_after += BY,
            Winner::Payment => self.pay_after += BY,
            Winner::Expiry => {
                self.cancel_after = self.cancel_after.saturating_sub(BY);
                self.pay_after = self.pay_after.saturating_sub(BY);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_cancelling_paying_and_expiring_at_one_instant_exactly_one_wins() {
    let app = TestApp::spawn_on_postgres().await;
    let (other, _gateway) = app.start_another_gateway().await;
    let reacquiring = app.sale(1_000).await;
    let refunding = app.publish(&refunding(1_000)).await;
    let _worker = app.start_worker().await;
    let mut receipts: BTreeMap<SaleId, Vec<(OrderId, String)>> = BTreeMap::new();
    let mut aim = Aim { cancel_after: DUE_AFTER, pay_after: DUE_AFTER };
    let mut wins: BTreeMap<Winner, usize> = BTreeMap::new();
    let rounds = rounds(25);
    for round in 0..rounds {
        let sale = if round % 2 == 0 { reacquiring } else { refunding };
        let buyer = format!("buyer-{round}");
        let id = app.place_committed(sale, &buyer).await;
        let message = format!("msg-{round}");
        let due_in = DUE_AFTER.as_millis();
        app.execute(&format!(
            "UPDATE orders SET pay_by_ms = {DATABASE_NOW} + {due_in} WHERE id = {id}"
        ))
        .await;
        let begin = Instant::now();
        let (cancelled, paid, _) = tokio::join!(
            async {
                sleep_until(begin + aim.cancel_after).await;
                app.cancel_at(app.at, &buyer, id).await
            },
            async {
                sleep_until(begin + aim.pay_after).await;
                app.pay_at(other, &message, id).await
            },
            // The worker sweeps as well.
            async {
                sleep_until(begin + DUE_AFTER).await;
                app.operations.expire_orders(10).await.expect("answers")
            },
        );
        let state = state(&app, &buyer, id).await;
        let told = (cancelled.status, outcome(&paid), state.as_str());
        let consistent = match told {
            (200, "refund_due", "cancelled") | (409, "paid", "paid") => true,
            // Expired first; then the money bought nothing.
            (409, "refund_due", "refund_due") => sale == refunding,
            _ => false,
        };
        assert!(consistent, "round {round}: {told:?}");
        let stored = app.database.find_order(id).await.expect("answers").expect("is a row");
        let winner = match state.as_str() {
            "cancelled" => Winner::Cancel,
            // With the unit that it held from the beginning.
            "paid" if stored.generation == 1 => Winner::Payment,
            _ => Winner::Expiry,
        };
        aim.correct(winner);
        *wins.entry(winner).or_default() += 1;
        // The slot is free again unless the order is paid.
        if state != "paid" {
            let again = app.place(sale, &buyer).await;
            assert!(
                again.status == 202 || again.problem() == (409, "already-ordered"),
                "round {round}: {again:?}"
            );
            if again.status == 202 {
                receipts.entry(sale).or_default().push((again.receipt(), buyer.clone()));
            }
        }
        receipts.entry(sale).or_default().push((id, buyer));
    }
    eprintln!("who won: {wins:?}");
    // Each often enough that the race is one; in a short run, chance decides.
    if rounds >= ENOUGH_ROUNDS {
        let often = |winner| wins.get(&winner).is_some_and(|wins| *wins >= rounds / 10);
        let all = [Winner::Cancel, Winner::Payment, Winner::Expiry];
        assert!(all.into_iter().all(often), "{wins:?}");
    }
    for (sale, receipts) in receipts {
        eventually(SOON, "nothing is owed", async || {
            app.database.count_releases(sale).await.ok() == Some(0)
        })
        .await;
        for (id, buyer) in &receipts {
            app.get_as(buyer, &format!("/api/v1/orders/{id}?wait=20")).await;
        }
        app.assert_sound(sale, &receipts).await;
    }
}
