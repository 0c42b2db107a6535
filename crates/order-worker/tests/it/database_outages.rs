//! The database away, frozen, killed or locked: no order pays for it, and all of it goes on by itself.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_test_support::{PostgresServer, eventually};
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, SilentLine, Worker, blocking, only, receipts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_costs_no_order() {
    let server = blocking(PostgresServer::start);
    let plan = Plan::postgres_on(&server).with("worker.batch", "100");
    let stand = plan.with("worker.in_flight", "2").stand().await;
    let sale = stand.publish(2_000).await;
    let worker = stand.worker().await;
    let mut ids = stand.admit(&sale, "before", 200).await;
    stand.wait_for_rows(200).await;

    blocking(|| server.stop());
    ids.extend(stand.admit(&sale, "during", 1_500).await);
    worker.wait_for_readiness(false).await;
    assert!(worker.readiness().await.1.contains("database"));
    // Two batches are being tried, one waits for them, one for its place; the rest stays where every
    // worker can get it.
    eventually(SOON, "orders in hand", async || stand.pending().await > 0).await;
    hold(&worker, 10.0).await;
    assert!(stand.pending().await <= 400);
    assert_eq!(stand.stream_length().await, 1_500);
    assert_eq!(stand.dead().await, []);

    blocking(|| server.start_again());
    stand.wait_for_rows(1_700).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!(stand.stock_left(&sale).await, 300);
    assert_eq!(stand.dead().await, []);
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_found_lost_while_the_database_is_away_is_in_the_audit_log_afterwards() {
    let server = blocking(PostgresServer::start);
    let stand = Plan::postgres_on(&server).stand().await;
    let sale = stand.publish(100).await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.read("peer", 10).await.len(), 10);
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;

    blocking(|| server.stop());
    let gone = &ids[..3];
    for id in gone {
        let entry = id.entry().to_string();
        let deleted: i64 = stand.ask(&["XDEL", &stand.keys.orders(only()), &entry]).await;
        assert_eq!(deleted, 1);
    }
    // Redis has named them, and will not do so again.
    eventually(SOON, "the lost entries are nobody's", async || stand.pending().await == 7).await;
    // Two tries that fail one after the other take longer than the worker's, which began before.
    for _ in 0..2 {
        let written = stand.database.insert_audit("test", "test", "-", "while it is away").await;
        written.expect_err("the database is away");
    }

    blocking(|| server.start_again());
    let expected: HashSet<String> = gone.iter().map(ToString::to_string).collect();
    eventually(SOON, "the lost entries in the audit log", async || {
        let log = stand.database.list_audit(100).await.map_err(|fault| fault.to_string())?;
        let lost = log.into_iter().filter(|entry| entry.action == "entry.lost");
        let named: HashSet<String> = lost.map(|entry| entry.subject).collect();
        if named == expected { Ok(()) } else { Err(format!("{named:?}")) }
    })
    .await;
    worker.stop().await.expect("a clean end");
}

/// Waits until workers of this process have tried in vain `times` more.
async fn hold(worker: &Worker, times: f64) {
    let retries = async || worker.metric("flashsale_worker_retries_total", "").await.unwrap_or(0.0);
    let before = retries().await;
    eventually(SOON, "tries in vain", async || retries().await >= before + times).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_killed_again_and_again_under_load_stores_every_order_once() {
    let server = blocking(PostgresServer::start);
    let stand = Plan::postgres_on(&server).with("worker.batch", "50").impatient().stand().await;
    let sale = stand.publish(3_000).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 3_000);
    for round in 1..=3 {
        // In the middle of commits, some of which the worker will not hear the end of.
        eventually(SOON, "some rows", async || stand.rows().await >= round * 300).await;
        blocking(|| {
            server.kill_9();
            server.start_again();
        });
    }
    let ids = crowd.await.expect("the crowd is served");
    stand.wait_for_rows(3_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.iter().copied().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_database_is_waited_for() {
    let server = blocking(PostgresServer::start);
    let stand = Plan::postgres_on(&server).with("worker.batch", "50").stand().await;
    let sale = stand.publish(1_000).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 1_000);
    eventually(SOON, "some rows", async || stand.rows().await >= 100).await;
    server.pause();
    let ids: HashSet<_> = crowd.await.expect("the crowd is served").into_iter().collect();
    worker.wait_for_readiness(false).await;
    server.resume();
    stand.wait_for_rows(1_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids);
    assert_eq!(stand.dead().await, []);
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_sqlite_file_is_waited_for() {
    // A lock is waited for less than half a second, and then tried again.
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.worker().await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let ids = stand.admit(&sale, "buyer", 100).await;
    eventually(SOON, "orders in hand", async || stand.pending().await > 0).await;
    hold(&worker, 4.0).await;
    // Long enough for the entries to be taken over once: that nothing happens cannot be waited for.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((stand.rows().await, stand.dead().await), (0, vec![]));
    assert_eq!(stand.pending().await, 100);
    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(100).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_go_silent_do_not_hold_the_worker_up() {
    let server = blocking(PostgresServer::shared);
    let line = SilentLine::to(server.port()).await;
    let plan = Plan::postgres_through(&line, &blocking(|| server.create_database())).impatient();
    let stand = plan.with("worker.batch", "50").stand().await;
    let sale = stand.publish(2_000).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 2_000);
    for round in 1..=2 {
        eventually(SOON, "some rows", async || {
            let totals = stand.database.sale_totals(sale.id).await.ok()??;
            (totals.open() >= round * 200).then_some(())
        })
        .await;
        line.cut();
    }
    let ids: HashSet<_> = crowd.await.expect("the crowd is served").into_iter().collect();
    stand.settle().await;
    // Our own connections run over the same line, and some of them are silent too.
    let totals = eventually(SOON, "an answer", async || {
        stand.database.sale_totals(sale.id).await.ok().flatten()
    })
    .await;
    assert_eq!((totals.open(), totals.stock_left), (2_000, 0));
    assert_eq!((ids.len(), stand.dead().await), (2_000, vec![]));
    worker.stop().await.expect("a clean end");
}
