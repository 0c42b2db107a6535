//! The end of a worker: what it holds is finished or stays for a peer, and nothing is done twice.

use std::time::{Duration, Instant};

use flashsale_test_support::{PostgresServer, eventually};
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, blocking, on_both, receipts};

on_both!(a_worker_asked_to_end_finishes_leaves_the_group_and_says_so, async |stand: Stand| {
    let sale = stand.publish(5_000).await;
    stand.admit(&sale, "buyer", 5_000).await;
    let worker = stand.worker().await;
    eventually(SOON, "some rows", async || stand.rows().await > 0).await;
    worker.stop().await.expect("a clean end");
    assert_eq!(stand.pending().await, 0, "nothing is left in its hands");
    assert_eq!(stand.consumers().await, [""; 0]);
    // What is not a row has been left undelivered, for everybody.
    let backlog = stand.redis.backlog(crate::support::only()).await.expect("answered");
    let waiting = backlog.expect("a group").total().expect("known");
    assert_eq!(u64::try_from(stand.rows().await).expect("positive") + waiting, 5_000);
    assert_eq!(stand.dead().await, []);
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_hand_is_written_before_the_end() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(100).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 100).await;
    eventually(SOON, "orders in hand", async || stand.pending().await == 100).await;
    worker.ask_to_stop();
    assert_eq!(stand.rows().await, 0);
    lock.commit().await.expect("the lock can be given back");
    worker.stop().await.expect("a clean end");
    assert_eq!((stand.rows().await, stand.pending().await), (100, 0));
    assert_eq!(stand.consumers().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_database_away_the_deadline_ends_it_and_a_peer_takes_over() {
    let server = blocking(PostgresServer::start);
    let plan = Plan::postgres_on(&server).impatient().with("worker.drain_deadline", "1s");
    let stand = plan.stand().await;
    let sale = stand.publish(1_000).await;
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;
    blocking(|| server.stop());
    let ids = stand.admit(&sale, "buyer", 1_000).await;
    eventually(SOON, "orders in hand", async || stand.pending().await > 0).await;
    let asked = Instant::now();
    worker.stop().await.expect_err("work was in hand");
    assert!(asked.elapsed() < Duration::from_secs(6), "{:?}", asked.elapsed());
    assert!(stand.pending().await > 0, "it stays pending");
    assert_eq!(stand.consumers().await.len(), 1, "who holds entries stays in the group");
    assert_eq!(stand.dead().await, []);

    blocking(|| server.start_again());
    let peer = stand.worker().await;
    stand.wait_for_rows(1_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    peer.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_database_frozen_the_deadline_ends_it_too() {
    let server = blocking(PostgresServer::start);
    let plan = Plan::postgres_on(&server).with("worker.drain_deadline", "1s");
    let stand = plan.with("worker.batch", "100").stand().await;
    let sale = stand.publish(2_100).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 2_000);
    eventually(SOON, "some rows", async || stand.rows().await > 0).await;
    server.pause();
    crowd.await.expect("the crowd is served");
    // Of the crowd's all may have been written by then.
    stand.admit(&sale, "late", 100).await;
    eventually(SOON, "orders in hand", async || stand.pending().await > 0).await;
    let asked = Instant::now();
    worker.stop().await.expect_err("work was in hand");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert!(stand.pending().await > 0, "it stays pending");
    server.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leaving_worker_hands_back_is_taken_at_once() {
    let idle = Duration::from_secs(30);
    let plan = Plan::sqlite().with("worker.drain_deadline", "100ms");
    let stand = plan.with("worker.reclaim_idle", "30s").stand().await;
    let sale = stand.publish(100).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let leaving = stand.worker().await;
    let ids = stand.admit(&sale, "buyer", 100).await;
    eventually(SOON, "orders in hand", async || stand.pending().await == 100).await;
    let names = stand.consumers().await;
    let peer = stand.worker().await;
    leaving.stop().await.expect_err("work was in hand");

    let left = Instant::now();
    eventually(SOON, "the orders in the peer's hands", async || {
        let held = stand.held().await;
        held.len() == 100 && held.iter().all(|(_, consumer, _)| !names.contains(consumer))
    })
    .await;
    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(100).await;
    stand.settle().await;
    assert!(left.elapsed() < idle / 2, "{:?}", left.elapsed());
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!(stand.dead().await, []);
    peer.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_of_dead_processes_are_removed_and_none_of_their_entries_with_them() {
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(100).await;
    let ids = stand.admit(&sale, "buyer", 30).await;
    for name in ["idle-1", "idle-2"] {
        for entry in stand.read(name, 5).await {
            assert_eq!(stand.processor().process(vec![entry]).await.done, 1);
        }
    }
    assert_eq!(stand.read("holder", 20).await.len(), 20);
    let worker = stand.worker().await;
    eventually(SOON, "the worker alone in the group", async || {
        let names = stand.consumers().await;
        let fake = ["idle-1", "idle-2", "holder"];
        names.len() == 1 && !fake.contains(&names[0].as_str())
    })
    .await;
    stand.wait_for_rows(30).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    worker.stop().await.expect("a clean end");
}

on_both!(ten_restarts_under_load_lose_nothing_and_repeat_nothing, async |stand: Stand| {
    let sale = stand.publish(3_000).await;
    let mut workers = vec![stand.worker().await, stand.worker().await];
    let crowd = stand.crowd(&sale, "buyer", 3_000);
    for round in 0..10 {
        eventually(SOON, "some more rows", async || stand.rows().await > round * 100).await;
        workers.remove(0).stop().await.expect("a clean end");
        // It has left, which it can only with nothing in its hands: nothing is to be done again.
        assert!(stand.consumers().await.len() <= 1);
        workers.push(stand.worker().await);
    }
    let ids = crowd.await.expect("the crowd is served");
    stand.wait_for_rows(3_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.iter().copied().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
    assert_eq!(stand.consumers().await, [""; 0]);
});
