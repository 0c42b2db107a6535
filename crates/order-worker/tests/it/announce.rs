//! The shop is told of every change, at least once, and whatever it does harms nobody but itself.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use flashsale_domain::{LatePayment, NewPayment, NewSale, OrderId, Price, Sale};
use flashsale_operations::PaymentVerdict;
use flashsale_test_support::eventually;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Plan, SOON, Stand, new_sale, user_id};
use crate::tiny_shop::{Answer, Asked, SECRET, TinyShop, head, status};

/// Runs a test with either database, as `name::sqlite` and `name::postgres`.
macro_rules! on_both_plans {
    ($name:ident, $test:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                run(Plan::sqlite(), $test).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                run(Plan::postgres(), $test).await;
            }
        }
    };
}

async fn run(plan: Plan, test: impl AsyncFnOnce(Plan)) {
    test(plan).await;
}

/// A plan whose shop is at `url`, with short pauses.
fn told(plan: Plan, url: &str) -> Plan {
    plan.with("webhooks.url", url)
        .with("webhooks.secret", SECRET)
        .with("webhooks.timeout", "5s")
        .with("webhooks.retry_min", "100ms")
        .with("webhooks.retry_max", "400ms")
}

/// Waits until nothing is left to be told.
async fn all_told(stand: &Stand) {
    eventually(SOON, "no events", async || match stand.database.count_events().await {
        Ok(0) => Ok(()),
        left => Err(left),
    })
    .await;
}

/// Makes orders overdue.
async fn make_overdue(stand: &Stand, ids: &[OrderId]) {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let ids = ids.join(", ");
    stand.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id IN ({ids})")).await;
}

async fn pay(stand: &Stand, order_id: OrderId, amount: i64) -> PaymentVerdict {
    let price = Price { amount, currency: "CNY".parse().expect("a currency") };
    let payment = NewPayment { webhook_id: format!("msg-{order_id}-{amount}"), order_id, price };
    stand.operations.receive_payment(&payment).await.expect("decided")
}

async fn wait_for_state(stand: &Stand, id: OrderId, state: &str) {
    let sql = format!("SELECT state FROM orders WHERE id = {id}");
    eventually(SOON, &format!("{id} is {state}"), async || {
        match stand.try_value::<String>(&sql).await {
            Some(found) if found == state => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

on_both_plans!(every_change_is_told_with_a_good_signature, async |plan: Plan| {
    let shop = TinyShop::that_says(status(200)).await;
    let stand = told(plan, &shop.url()).stand().await;
    let late = NewSale { late_payment: LatePayment::Refund, ..new_sale(20) };
    let late = stand.operations.create_sale(&late).await.expect("a sale");
    let sale = stand.operations.publish_sale(late.id).await.expect("published");
    let worker = stand.worker().await;
    let ids = stand.admit(&sale, "buyer", 4).await;
    stand.wait_for_rows(4).await;

    pay(&stand, ids[0], 9_900).await;
    stand.operations.cancel_order(ids[1], &user_id("buyer-1")).await.expect("cancelled");
    pay(&stand, ids[2], 1).await;
    make_overdue(&stand, &ids[3..]).await;
    wait_for_state(&stand, ids[3], "expired").await;
    pay(&stand, ids[3], 9_900).await;
    // Redis has more than the database: the next order is rejected.
    stand.execute(&format!("UPDATE sales SET stock_left = 0 WHERE id = {}", sale.id)).await;
    let rejected = stand.admit(&sale, "late", 1).await[0];
    wait_for_state(&stand, rejected, "rejected").await;
    all_told(&stand).await;
    worker.stop().await.expect("a clean end");

    let asked = shop.asked();
    let mut kinds: HashMap<String, Vec<String>> = HashMap::new();
    let mut message_ids = HashSet::new();
    for asked in &asked {
        assert_eq!(asked.line, "POST /hook?shop=1");
        assert_eq!(asked.header("host"), shop.address.to_string());
        assert_eq!(asked.header("content-type"), "application/json");
        assert!(asked.header("user-agent").starts_with("flashsale/"), "{asked:?}");
        assert!(asked.id().starts_with("evt_"), "{asked:?}");
        assert!(message_ids.insert(asked.id().to_owned()), "one id, one message: {asked:?}");
        assert!(asked.is_signed_with(SECRET), "{asked:?}");
        assert!(!asked.is_signed_with("another-secret-0123456789"));

        let body: Value = serde_json::from_slice(&asked.body).expect("is JSON");
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        assert_eq!(text(&body["data"]["sale_id"]), sale.id.to_string());
        assert!(text(&body["timestamp"]).ends_with('Z'));
        let (kind, order) = (text(&body["type"]), text(&body["data"]["order_id"]));
        let (user, state) = (text(&body["data"]["user_id"]), text(&body["data"]["state"]));
        let (price, reason) = (&body["data"]["price"], &body["data"]["reason"]);
        assert_eq!(price["currency"], "CNY");
        let paid = if kind == "payment.mismatch" { 1 } else { 9_900 };
        assert_eq!(price["amount"], paid, "{body}");
        assert_eq!(reason.as_str(), (kind == "order.rejected").then_some("stock-gone"), "{body}");
        if let Some(of) = kind.strip_prefix("order.") {
            assert_eq!(state, of, "{body}");
        }
        kinds.entry(kind).or_default().push(format!("{user} {order}"));
    }
    let of = |wanted: &[(&str, OrderId)]| -> Vec<String> {
        wanted.iter().map(|(user, id)| format!("{user} {id}")).collect()
    };
    let mut found = |kind: &str| {
        let mut orders = kinds.remove(kind).unwrap_or_default();
        orders.sort();
        orders
    };
    let buyers = ["buyer-0", "buyer-1", "buyer-2", "buyer-3"];
    let placed: Vec<_> = buyers.into_iter().zip(ids.iter().copied()).collect();
    assert_eq!(found("order.awaiting_payment"), of(&placed));
    assert_eq!(found("order.paid"), of(&placed[..1]));
    assert_eq!(found("order.cancelled"), of(&placed[1..2]));
    assert_eq!(found("payment.mismatch"), of(&placed[2..3]));
    assert_eq!(found("order.expired"), of(&placed[3..]));
    assert_eq!(found("order.refund_due"), of(&placed[3..]));
    assert_eq!(found("payment.refund_due"), of(&placed[3..]));
    assert_eq!(found("order.rejected"), of(&[("late-0", rejected)]));
    assert_eq!(kinds, HashMap::new(), "and nothing else");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_had_in_hand_is_told_by_another() {
    let never = CancellationToken::new();
    let shop = TinyShop::that_says(Answer::SayWhen(never, head(204, ""))).await;
    // Its lease ends after twice this and some seconds.
    let plan = told(Plan::sqlite().impatient(), &shop.url()).with("webhooks.timeout", "1s");
    let stand = plan.stand().await;
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 3).await;
    let doomed = stand.real_worker(&[]);
    eventually(SOON, "three requests in hand", async || shop.in_hand() == 3).await;
    doomed.program.kill_9();
    shop.says(status(200));
    let told_before = shop.asked();

    let worker = stand.worker().await;
    all_told(&stand).await;
    worker.stop().await.expect("a clean end");
    // Under the same ids, and with the same bytes: so the shop can tell a repeat.
    let asked = shop.asked();
    let (before, after) = asked.split_at(told_before.len());
    let as_told = |asked: &[Asked]| -> HashSet<(String, Vec<u8>)> {
        asked.iter().map(|asked| (asked.id().to_owned(), asked.body.clone())).collect()
    };
    assert_eq!(as_told(before), as_told(after));
    assert_eq!(as_told(after).len(), ids.len());
}

on_both_plans!(a_shop_that_fails_for_a_while_is_told_all_in_the_end, async |plan: Plan| {
    let shop = TinyShop::that_says(status(500)).await;
    let stand = told(plan, &shop.url()).stand().await;
    let sale = stand.publish(50).await;
    let worker = stand.real_worker(&[]);
    stand.admit(&sale, "buyer", 40).await;
    eventually(SOON, "every event refused, some twice", async || {
        let times = shop.times();
        times.len() == 40 && times.values().any(|times| *times > 1)
    })
    .await;
    assert_eq!(stand.database.count_events().await.ok(), Some(40), "none is given up");
    shop.says(status(200));
    all_told(&stand).await;
    // Each is over with its first 200.
    let counted = async |result: &str| {
        worker.admin.metric("flashsale_webhook_deliveries_total", result).await.expect("a counter")
    };
    assert_eq!(counted("delivered").await, 40.0);
    let tries = u32::try_from(shop.asked().len()).expect("a small number");
    assert_eq!(counted("refused").await, f64::from(tries - 40));
});

/// Admits three, makes the first overdue, and sees that rows, expiry and releases go on.
async fn business_as_usual(stand: &Stand, sale: &Sale, prefix: &str) {
    let rows = stand.rows().await;
    let ids = stand.admit(sale, prefix, 3).await;
    stand.wait_for_rows(rows + 3).await;
    make_overdue(stand, &ids[..1]).await;
    wait_for_state(stand, ids[0], "expired").await;
    eventually(SOON, "an empty outbox", async || {
        stand.database.count_releases(sale.id).await.ok() == Some(0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_hangs_is_not_waited_for_by_anybody_else() {
    let never = CancellationToken::new();
    let shop = TinyShop::that_says(Answer::SayWhen(never, head(200, ""))).await;
    // For as long as this test runs, so that whatever goes on does so while it hangs.
    let plan = told(Plan::sqlite(), &shop.url()).with("webhooks.timeout", "60s");
    let stand = plan.with("worker.drain_deadline", "1s").stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.real_worker(&[]);
    stand.admit(&sale, "first", 30).await;
    eventually(SOON, "as many requests as may be", async || shop.in_hand() == 8).await;

    business_as_usual(&stand, &sale, "second").await;
    assert_eq!(shop.in_hand(), 8, "it still hangs, and no more are sent");
    assert_eq!(shop.asked().len(), 8);
    let waiting = stand.database.count_events().await.expect("counted");
    assert_eq!(waiting, 34, "33 orders placed, one expired");
    eventually(SOON, "the same by the gauge", async || {
        let gauge = worker.admin.metric("flashsale_events_waiting", "").await;
        if gauge == Some(34.0) { Ok(()) } else { Err(gauge) }
    })
    .await;
    worker.program.terminate();
    eventually(SOON, "the end, which is not held up", async || {
        worker.program.exit_status().filter(std::process::ExitStatus::success)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_takes_too_long_is_asked_again() {
    let never = CancellationToken::new();
    let shop = TinyShop::that_says(Answer::SayWhen(never, head(200, ""))).await;
    let plan = told(Plan::sqlite(), &shop.url()).with("webhooks.timeout", "300ms");
    let stand = plan.stand().await;
    let sale = stand.publish(5).await;
    let worker = stand.real_worker(&[]);
    stand.admit(&sale, "buyer", 1).await;
    eventually(SOON, "three tries", async || shop.asked().len() >= 3).await;
    let in_vain = worker.admin.metric("flashsale_webhook_deliveries_total", "timeout").await;
    assert!(in_vain.is_some_and(|count| count >= 2.0), "{in_vain:?}");
    assert_eq!(shop.times().len(), 1, "the same id every time");
    shop.says(status(200));
    all_told(&stand).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_no_answer_and_nothing_of_the_shop_is_in_the_log() {
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(1_000_000));
    let shop = TinyShop::that_says(Answer::Say("\0\0\u{7f}what?\r\n\r\n".repeat(50))).await;
    let url = format!("http://user:hush@{}/hook?token=quiet", shop.address);
    let stand = told(Plan::sqlite(), &url).stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.real_worker(&[("FLASHSALE__LOG__FILTER", "debug".to_owned())]);
    let tries = async |more: usize| {
        let before = shop.asked().len();
        eventually(SOON, "more tries", async || shop.asked().len() >= before + more).await;
    };
    stand.admit(&sale, "buyer", 5).await;
    tries(10).await;
    shop.says(Answer::Say(endless));
    tries(10).await;
    business_as_usual(&stand, &sale, "second").await;
    assert_eq!(stand.database.count_events().await.ok(), Some(9));

    // Taken, whatever else is said: the rest of the body never comes.
    shop.says(Answer::Say(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{}",
        "z".repeat(100_000)
    )));
    all_told(&stand).await;
    let basic = "Basic dXNlcjpodXNo";
    assert!(shop.asked().iter().all(|asked| asked.header("authorization") == basic));
    let log = worker.program.log();
    assert!(log.contains("the shop has not taken an event"), "{log}");
    for secret in ["hush", "quiet", "dXNlcjpodXNo", SECRET, "MfKQ9r8GKYqr"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_not_there_costs_few_lines_and_few_tries() {
    // The port of TCP's multiplexer, where nobody listens. A message that failed is not tried again
    // in this test, and a page that failed is followed by a pause of at least half a minute.
    let plan = told(Plan::sqlite(), "http://127.0.0.1:1/")
        .with("webhooks.retry_min", "1h")
        .with("webhooks.retry_max", "1h")
        .with("worker.retry_min", "60s")
        .with("worker.retry_max", "60s");
    let stand = plan.stand().await;
    let sale = stand.publish(2_000).await;
    let worker = stand.real_worker(&[]);
    let started = Instant::now();
    stand.admit(&sale, "buyer", 1_000).await;
    stand.wait_for_rows(1_000).await;
    eventually(SOON, "failures", async || {
        let failed = worker.admin.metric("flashsale_webhook_deliveries_total", "failed").await;
        failed.filter(|failed| *failed >= 1.0)
    })
    .await;
    business_as_usual(&stand, &sale, "second").await;
    let lines = worker.program.log().matches("the shop has not taken an event").count();
    let allowed = 1 + usize::try_from(started.elapsed().as_secs() / 10).expect("a short test");
    assert!((1..=allowed).contains(&lines), "{lines} lines, {allowed} allowed");
    // A page or two, however many wait: not all of them as fast as they are refused.
    let tried: Option<i64> =
        stand.try_value("SELECT count(*) FROM events WHERE attempts > 0").await;
    assert!(tried.is_some_and(|tried| (1..=32).contains(&tried)), "{tried:?} were tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed() {
    let elsewhere = TinyShop::that_says(status(200)).await;
    let location = format!("location: {}\r\n", elsewhere.url());
    let shop = TinyShop::that_says(Answer::Say(head(302, &location))).await;
    let stand = told(Plan::sqlite(), &shop.url()).stand().await;
    let sale = stand.publish(5).await;
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 1).await;
    for code in [301, 302, 303, 307, 308] {
        shop.says(Answer::Say(head(code, &location)));
        let before = shop.asked().len();
        eventually(SOON, "two more tries", async || shop.asked().len() >= before + 2).await;
    }
    assert_eq!(stand.database.count_events().await.ok(), Some(1), "a redirect takes nothing");
    assert_eq!(elsewhere.asked().len(), 0);
    shop.says(status(200));
    all_told(&stand).await;
    worker.stop().await.expect("a clean end");
}

on_both_plans!(two_workers_do_not_tell_the_same_at_once, async |plan: Plan| {
    let open = CancellationToken::new();
    let shop = TinyShop::that_says(Answer::SayWhen(open.clone(), head(200, ""))).await;
    let stand = told(plan, &shop.url()).with("webhooks.timeout", "60s").stand().await;
    let sale = stand.publish(200).await;
    let workers = [stand.worker().await, stand.worker().await];
    stand.admit(&sale, "buyer", 200).await;
    stand.wait_for_rows(200).await;
    // All that two workers can have in hand, and none of it twice.
    eventually(SOON, "both at work", async || shop.in_hand() == 16).await;
    assert_eq!(shop.times().len(), 16);
    // Nor does a third one get what they have: their two pages.
    let lease = Duration::from_secs(60);
    let third = stand.database.take_events(1_000, lease).await.expect("taken");
    assert_eq!(third.len(), 200 - 32);
    for event in &third {
        stand.database.postpone_event(event.id, Duration::ZERO).await.expect("given back");
    }
    open.cancel();
    all_told(&stand).await;
    assert_eq!(shop.times().len(), 200);
    assert!(shop.times().values().all(|times| *times == 1), "{:?}", shop.times());
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_finishes_what_is_in_flight_and_hands_back_the_rest() {
    let open = CancellationToken::new();
    let shop = TinyShop::that_says(Answer::SayWhen(open.clone(), head(200, ""))).await;
    let stand = told(Plan::sqlite(), &shop.url()).with("webhooks.timeout", "60s").stand().await;
    let sale = stand.publish(50).await;
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 20).await;
    eventually(SOON, "as many requests as may be", async || shop.in_hand() == 8).await;
    worker.ask_to_stop();
    open.cancel();
    worker.stop().await.expect("a clean end");
    assert_eq!(shop.times().len(), 8, "what was in flight, and no more");
    assert_eq!(stand.database.count_events().await.ok(), Some(12), "which is over");
    // Nobody has to wait for a lease: all the rest can be had now.
    let due = stand.database.take_events(100, Duration::ZERO).await.expect("taken");
    assert_eq!(due.len(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_with_a_certificate_is_told_over_tls_and_one_that_is_not_trusted_is_not() {
    let shop = TinyShop::over_tls(status(200)).await;
    let url = format!("https://{}/hook", shop.address);
    let stand = told(Plan::sqlite(), &url).stand().await;
    let sale = stand.publish(5).await;
    let distrustful = stand.real_worker(&[]);
    stand.admit(&sale, "buyer", 1).await;
    eventually(SOON, "two failures", async || {
        let failed = distrustful.admin.metric("flashsale_webhook_deliveries_total", "failed").await;
        failed.filter(|failed| *failed >= 2.0)
    })
    .await;
    let log = distrustful.program.log();
    assert!(log.contains("invalid peer certificate"), "{log}");
    assert_eq!(shop.asked().len(), 0);
    drop(distrustful);

    let authority = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/certificates/authority.pem");
    let _worker = stand.real_worker(&[("FLASHSALE__WEBHOOKS__CA_FILE", authority.to_owned())]);
    all_told(&stand).await;
    let asked = shop.asked();
    assert_eq!(asked.len(), 1);
    assert!(asked[0].is_signed_with(SECRET));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_shop_nothing_is_written_down() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(5).await;
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 3).await;
    stand.wait_for_rows(3).await;
    assert_eq!(stand.database.count_events().await.ok(), Some(0));
    worker.stop().await.expect("a clean end");
}
