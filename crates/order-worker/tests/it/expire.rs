//! Orders that are not paid in time expire, each once, and their units can be bought again.

use std::collections::HashSet;

use flashsale_domain::{NewPayment, OrderId, PaymentOutcome, Price, Sale};
use flashsale_operations::PaymentVerdict;
use flashsale_test_support::{PostgresServer, eventually};

use crate::support::{Plan, SOON, Stand, blocking, home_of, on_both, press};

/// Makes every order that waits for payment overdue.
pub(crate) async fn make_all_overdue(stand: &Stand) {
    stand.execute("UPDATE orders SET pay_by_ms = 1 WHERE state = 'awaiting_payment'").await;
}

/// Waits until `count` orders have expired, and the outbox is empty.
pub(crate) async fn wait_for_expired(stand: &Stand, sale: &Sale, count: i64) {
    eventually(SOON, &format!("{count} expired orders"), async || {
        match stand.try_value::<i64>("SELECT count(*) FROM orders WHERE state = 'expired'").await {
            Some(expired) if expired == count => Ok(()),
            other => Err(other),
        }
    })
    .await;
    eventually(SOON, "an empty outbox", async || {
        stand.database.count_releases(sale.id).await.ok() == Some(0)
    })
    .await;
}

/// Every unit is back, in both stores, and everything adds up.
pub(crate) async fn assert_all_back(stand: &Stand, sale: &Sale) {
    let account = stand.redis.read_sale(home_of(sale), sale.id).await.expect("answers");
    let loaded = account.sale.expect("loaded");
    let total = sale.stock_total;
    assert_eq!((loaded.total, loaded.stock, loaded.held), (total, total, 0));
    assert_eq!(stand.stock_left(sale).await, total);
    let ledger = stand.operations.read_ledger(sale.id).await.expect("a ledger");
    assert!(ledger.is_balanced(), "{ledger:?}");
    let audit = stand.operations.audit_sale(sale.id, &[]).await.expect("an audit");
    assert_eq!(audit.findings, []);
}

on_both!(an_overdue_order_expires_and_its_unit_can_be_bought_again, async |stand: Stand| {
    let sale = stand.publish(1).await;
    let worker = stand.worker().await;
    let first = stand.admit(&sale, "first", 1).await[0];
    stand.wait_for_rows(1).await;
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let mut try_to_buy = async |buyer: &str| {
        let presses = [press(buyer)];
        let batch = connection.admit(home_of(&sale), sale.id, &presses).await.expect("answered");
        batch.outcomes[0].ok().map(|admission| admission.order_id)
    };
    assert_eq!(try_to_buy("second-0").await, None, "it is sold out");

    make_all_overdue(&stand).await;
    let second = eventually(SOON, "a unit", async || try_to_buy("second-0").await).await;
    assert_ne!(second, first);
    eventually(SOON, "its row", async || stand.open_ids().await == HashSet::from([second])).await;
    // The first buyer's key still names the first order, and the sale is sold out again.
    assert_eq!(try_to_buy("first-0").await, Some(first));
    assert_eq!(try_to_buy("third-0").await, None);
    wait_for_expired(&stand, &sale, 1).await;
    let audit = stand.operations.audit_sale(sale.id, &[]).await.expect("an audit");
    assert_eq!(audit.findings, []);
    worker.stop().await.expect("a clean end");
});

async fn two_workers_expire(plan: Plan) {
    // Nobody takes the events, so that they can be counted: one for each order that expires.
    let plan = plan
        .with("webhooks.url", "http://127.0.0.1:1/")
        .with("webhooks.secret", "a-secret-of-more-than-sixteen-bytes");
    let stand = plan.stand().await;
    let sale = stand.publish(2_000).await;
    let workers = [stand.worker().await, stand.worker().await];
    stand.admit(&sale, "buyer", 2_000).await;
    stand.wait_for_rows(2_000).await;
    make_all_overdue(&stand).await;
    wait_for_expired(&stand, &sale, 2_000).await;
    let told: Vec<i64> =
        stand.column("SELECT order_id FROM events WHERE kind = 'order.expired'").await;
    assert_eq!(told.len(), 2_000, "each expires once");
    assert_eq!(told.into_iter().collect::<HashSet<_>>().len(), 2_000);
    assert_all_back(&stand, &sale).await;
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_side_by_side_expire_each_order_once_sqlite() {
    two_workers_expire(Plan::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_side_by_side_expire_each_order_once_postgres() {
    two_workers_expire(Plan::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_goes_on_when_the_database_is_back() {
    let server = PostgresServer::start();
    let stand = Plan::postgres_on(&server).stand().await;
    let sale = stand.publish(1_500).await;
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 1_500).await;
    stand.wait_for_rows(1_500).await;
    // Killed while it expires them, or before, or after: all of it must be right.
    make_all_overdue(&stand).await;
    blocking(|| server.kill_9());
    worker.wait_for_readiness(false).await;
    blocking(|| server.start_again());
    wait_for_expired(&stand, &sale, 1_500).await;
    assert_all_back(&stand, &sale).await;
    // And what falls due from now on.
    stand.admit(&sale, "later", 10).await;
    stand.wait_for_rows(1_510).await;
    make_all_overdue(&stand).await;
    wait_for_expired(&stand, &sale, 1_510).await;
    assert_all_back(&stand, &sale).await;
    worker.stop().await.expect("a clean end");
}

on_both!(an_order_that_was_paid_in_time_never_expires, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let worker = stand.worker().await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    stand.wait_for_rows(10).await;
    let (paid, unpaid) = ids.split_at(5);
    for order_id in paid {
        let price = Price { amount: 9_900, currency: "CNY".parse().expect("a currency") };
        let payment =
            NewPayment { webhook_id: format!("msg-{order_id}"), order_id: *order_id, price };
        let verdict = stand.operations.receive_payment(&payment).await.expect("decided");
        let settled = PaymentVerdict::Settled { outcome: PaymentOutcome::Paid, repeated: false };
        assert_eq!(verdict, settled);
    }
    // All of them, the paid ones first: when the last has expired, the sweep has passed them all.
    stand.execute("UPDATE orders SET pay_by_ms = 1 WHERE state = 'paid'").await;
    make_all_overdue(&stand).await;
    wait_for_expired(&stand, &sale, 5).await;
    let still_paid: Vec<i64> =
        stand.column("SELECT id FROM orders WHERE state = 'paid' ORDER BY id").await;
    let mut expected: Vec<i64> = paid.iter().map(|id: &OrderId| id.as_i64()).collect();
    expected.sort_unstable();
    assert_eq!(still_paid, expected);
    let account = stand.redis.read_sale(home_of(&sale), sale.id).await.expect("answers");
    let loaded = account.sale.expect("loaded");
    assert_eq!((loaded.stock, loaded.held), (15, 5), "{} came back", unpaid.len());
    let audit = stand.operations.audit_sale(sale.id, &[]).await.expect("an audit");
    assert_eq!(audit.findings, []);
    worker.stop().await.expect("a clean end");
});

/// How late ten thousand orders expire that are due at one moment, and how long their units take to
/// be for sale again: printed, because how fast this machine is is no property of the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_orders_due_at_once_expire_soon() {
    const COUNT: usize = 10_000;
    const NOW: &str = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)";
    let stand = Plan::postgres().stand().await;
    let sale = stand.publish(10_000).await;
    let worker = stand.real_worker(&[]);
    stand.admit(&sale, "buyer", COUNT).await;
    stand.wait_for_rows(10_000).await;
    stand.settle().await;
    // Ahead, so that the sweep sleeps towards it as it does in a sale.
    stand.execute(&format!("UPDATE orders SET pay_by_ms = {NOW} + 2000")).await;
    wait_for_expired(&stand, &sale, 10_000).await;
    let back_ms: i64 = stand
        .try_value(&format!("SELECT {NOW} - min(pay_by_ms) FROM orders"))
        .await
        .expect("answered");
    let late_ms: i64 =
        stand.try_value("SELECT max(settled_ms - pay_by_ms) FROM orders").await.expect("answered");
    eprintln!("{COUNT} orders: the last expired {late_ms} ms late; all were back by {back_ms} ms");
    let early: Option<i64> =
        stand.try_value("SELECT min(settled_ms - pay_by_ms) FROM orders").await;
    assert!(early.is_some_and(|early| early >= 0), "nothing expires before it is due: {early:?}");
    assert!(late_ms < 60_000, "{late_ms} ms");
    assert_all_back(&stand, &sale).await;
    drop(worker);
}
