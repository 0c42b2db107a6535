//! Entries that keep coming back: tried alone, counted in Redis, and set aside after the last attempt.

use std::time::Duration;

use flashsale_order_worker::Processed;
use flashsale_storage_redis::RawEntry;
use flashsale_test_support::eventually;
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, on_both, only};

const DONE: Processed = Processed { done: 1, dead: 0, left: 0 };

/// An order in the hands of a worker that is gone.
async fn suspect(stand: &Stand) -> RawEntry {
    let sale = stand.publish(10).await;
    stand.admit(&sale, "buyer", 1).await;
    stand.read("gone", 1).await.remove(0)
}

async fn set_attempts(stand: &Stand, entry: &RawEntry, attempts: &str) {
    let (key, field) = (stand.keys.suspects(only()), format!("a:{}", entry.id));
    stand.ask::<i64>(&["HSET", &key, &field, attempts]).await;
}

on_both!(a_good_suspect_becomes_a_row_and_is_forgotten, async |stand: Stand| {
    let entry = suspect(&stand).await;
    stand.redis.count_reclaims(only(), &[entry.id]).await.expect("counted");
    assert_eq!(stand.processor().process_suspect(entry).await, DONE);
    assert_eq!((stand.rows().await, stand.dead().await), (1, vec![]));
    let left: i64 = stand.ask(&["EXISTS", &stand.keys.suspects(only())]).await;
    assert_eq!((left, stand.pending().await), (0, 0));
});

on_both!(after_the_last_attempt_an_entry_without_a_row_is_set_aside, async |stand: Stand| {
    let entry = suspect(&stand).await;
    let last = stand.settings.worker.max_deliveries;
    set_attempts(&stand, &entry, &last.to_string()).await;
    let processed = stand.processor().process_suspect(entry.clone()).await;
    assert_eq!(processed, Processed { done: 0, dead: 1, left: 0 });
    let letters = stand.dead().await;
    assert_eq!((letters[0].reason.as_str(), &letters[0].entry), ("crash-suspect", &entry));
    assert_eq!((stand.rows().await, stand.pending().await), (0, 0));
});

on_both!(the_last_attempt_but_none_is_still_made, async |stand: Stand| {
    let entry = suspect(&stand).await;
    let last = stand.settings.worker.max_deliveries;
    set_attempts(&stand, &entry, &(last - 1).to_string()).await;
    assert_eq!(stand.processor().process_suspect(entry).await, DONE);
});

on_both!(a_suspect_whose_row_is_there_is_only_acknowledged, async |stand: Stand| {
    let entry = suspect(&stand).await;
    let order = flashsale_storage_redis::decode(only(), &entry).expect("an order");
    stand.database.commit_orders(&[order]).await.expect("committed");
    set_attempts(&stand, &entry, "99").await;
    assert_eq!(stand.processor().process_suspect(entry).await, DONE);
    assert_eq!((stand.rows().await, stand.dead().await, stand.pending().await), (1, vec![], 0));
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_not_the_suspects_fault() {
    let stand = Plan::sqlite().impatient().with("worker.max_deliveries", "1").stand().await;
    let entry = suspect(&stand).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let processor = stand.processor();
    let running = tokio::spawn(async move { processor.process_suspect(entry).await });
    // Several tries, each of which waits for the lock for a quarter of a second and fails: that the
    // entry is not set aside cannot be waited for.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((stand.dead().await, running.is_finished()), (vec![], false));
    lock.commit().await.expect("the lock is given back");
    assert_eq!(running.await.expect("an end"), DONE);
    assert_eq!((stand.rows().await, stand.dead().await), (1, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_came_by_reclaim_before_are_done_by_a_worker_all_the_same() {
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(50).await;
    stand.admit(&sale, "buyer", 50).await;
    let ids: Vec<_> = stand.read("gone", 50).await.iter().map(|entry| entry.id).collect();
    for _ in 0..2 {
        stand.redis.count_reclaims(only(), &ids).await.expect("counted");
    }
    let worker = stand.worker().await;
    stand.wait_for_rows(50).await;
    stand.settle().await;
    eventually(SOON, "nobody under suspicion", async || {
        stand.ask::<i64>(&["EXISTS", &stand.keys.suspects(only())]).await == 0
    })
    .await;
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}
