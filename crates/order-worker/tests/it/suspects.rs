//! Entries that keep coming back: tried alone, counted in Redis, and set aside after the last attempt.

use flashsale_order_worker::Processed;
use flashsale_storage_redis::{GROUP, RawEntry};
use flashsale_test_support::{RedisServer, eventually};
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, blocking, on_both, only};

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

/// What is counted of an entry: its attempts (`a`) or its reclaims (`r`).
async fn count_of(stand: &Stand, what: &str, entry: &RawEntry) -> Option<i64> {
    let field = format!("{what}:{}", entry.id);
    stand.ask(&["HGET", &stand.keys.suspects(only()), &field]).await
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
    let stand = Plan::sqlite().impatient().with("worker.max_deliveries", "2").stand().await;
    let entry = suspect(&stand).await;
    set_attempts(&stand, &entry, "1").await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let (processor, tried) = (stand.processor(), entry.clone());
    let running = tokio::spawn(async move { processor.process_suspect(tried).await });
    // Its last attempt, again and again: counted before it begins, and given back.
    for attempts in [2, 1, 2, 1, 2, 1] {
        eventually(SOON, "the attempts", async || {
            let counted = count_of(&stand, "a", &entry).await;
            if counted == Some(attempts) { Ok(()) } else { Err(counted) }
        })
        .await;
    }
    assert_eq!((stand.dead().await, running.is_finished()), (vec![], false));
    lock.commit().await.expect("the lock is given back");
    assert_eq!(running.await.expect("an end"), DONE);
    assert_eq!((stand.rows().await, stand.dead().await), (1, vec![]));
    assert_eq!(count_of(&stand, "a", &entry).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_comes_by_reclaim_a_second_time_runs_alone_and_is_counted() {
    let stand = Plan::sqlite().impatient().stand().await;
    let entry = suspect(&stand).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let worker = stand.worker().await;
    let reclaims = async |wanted| {
        eventually(SOON, &format!("{wanted} reclaims"), async || {
            count_of(&stand, "r", &entry).await == Some(wanted)
        })
        .await;
    };
    reclaims(1).await;
    assert_eq!(count_of(&stand, "a", &entry).await, None, "no suspect yet");
    let (key, id) = (stand.keys.orders(only()), entry.id.to_string());
    let lost = ["XCLAIM", &key, GROUP, "gone-too", "0", &id, "JUSTID"];
    stand.ask::<Vec<String>>(&lost).await;
    reclaims(2).await;
    eventually(SOON, "a counted attempt", async || count_of(&stand, "a", &entry).await == Some(1))
        .await;
    lock.commit().await.expect("the lock is given back");
    stand.wait_for_rows(1).await;
    stand.settle().await;
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
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

/// What is held keeps the stream from being trimmed, and only that makes room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_keeps_neither_held_entries_nor_suspects_from_their_rows() {
    let server = blocking(RedisServer::start);
    let stand = Plan::sqlite().redis(&server).impatient().stand().await;
    let sale = stand.publish(50).await;
    let ids = stand.admit(&sale, "buyer", 50).await;
    let held: Vec<_> = stand.read("gone", 30).await.iter().map(|entry| entry.id).collect();
    for _ in 0..2 {
        stand.redis.count_reclaims(only(), &held[..10]).await.expect("counted");
    }
    stand.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let worker = stand.worker().await;
    stand.wait_for_rows(50).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}
