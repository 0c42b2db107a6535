//! Workers that sleep for longer than an entry may be held, and wake up again.

use flashsale_test_support::eventually;
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, only, run};

/// How often each entry came by reclaim (`r:<id>`), and was tried alone (`a:<id>`).
async fn suspects(stand: &Stand) -> Vec<(String, i64)> {
    stand.ask(&["HGETALL", &stand.keys.suspects(only())]).await
}

async fn a_woken_worker_drops_its_entries(stand: Stand) {
    let sale = stand.publish(100).await;
    let sleeper = stand.real_worker(&[]);
    sleeper.admin.wait_for_readiness(true).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let ids = stand.admit(&sale, "buyer", 10).await;
    eventually(SOON, "orders in its hands", async || stand.pending().await == 10).await;
    let sleepers = stand.consumers().await;

    sleeper.program.pause();
    let peer = stand.worker().await;
    let held_by_the_peer = async || {
        let held = stand.held().await;
        held.len() == 10 && held.iter().all(|(_, consumer, _)| !sleepers.contains(consumer))
    };
    eventually(SOON, "the orders in the peer's hands", held_by_the_peer).await;

    // The database is still locked. So the only way to a clean end is to hold nothing any more.
    sleeper.program.resume();
    sleeper.program.terminate();
    let status = eventually(SOON, "its end", async || sleeper.program.exit_status()).await;
    assert_eq!(status.code(), Some(0), "{}", sleeper.program.log());
    assert!(held_by_the_peer().await, "it took nothing back");
    assert_eq!((stand.rows().await, stand.dead().await), (0, vec![]));
    let counted = suspects(&stand).await;
    assert!(
        counted.len() == 10
            && counted.iter().all(|(what, count)| what.starts_with("r:") && *count == 1),
        "taken over once each, and no attempt: {counted:?}"
    );

    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(10).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (90, vec![]));
    peer.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_that_wakes_up_drops_what_was_taken_over_sqlite() {
    run(Plan::sqlite().impatient().stand().await, a_woken_worker_drops_its_entries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_that_wakes_up_drops_what_was_taken_over_postgres() {
    run(Plan::postgres().impatient().stand().await, a_woken_worker_drops_its_entries).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_frozen_worker_writes_when_it_wakes_up_is_there_once() {
    let stand = Plan::postgres().impatient().with("worker.batch", "20").stand().await;
    let sale = stand.publish(1_020).await;
    let sleeper = stand.real_worker(&[]);
    let committed = async |result: &str| {
        let result = format!("result=\"{result}\"");
        sleeper.admin.metric("flashsale_orders_committed_total", &result).await.unwrap_or(0.0)
    };
    let peer = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 1_000);
    eventually(SOON, "some rows of its own", async || committed("inserted").await > 0.0).await;
    // In the middle of a batch, or Redis hands it the next one all the same.
    sleeper.program.pause();
    let mut ids = crowd.await.expect("the crowd is served");
    stand.wait_for_rows(1_000).await;
    stand.settle().await;

    sleeper.program.resume();
    // What it had read, it commits again, or it learns first that it is no longer its own.
    ids.extend(stand.admit(&sale, "later", 20).await);
    stand.wait_for_rows(1_020).await;
    stand.settle().await;
    sleeper.program.terminate();
    let status = eventually(SOON, "its end", async || sleeper.program.exit_status()).await;
    assert_eq!(status.code(), Some(0), "{}", sleeper.program.log());
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (1_020, 0));
    assert_eq!(stand.dead().await, []);
    peer.stop().await.expect("a clean end");
}
