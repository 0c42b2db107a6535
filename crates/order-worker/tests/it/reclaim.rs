//! Entries whose worker is gone, and entries that are gone under their worker.

use std::collections::BTreeMap;
use std::time::Duration;

use flashsale_storage_redis::GROUP;
use flashsale_test_support::eventually;
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, on_both, only, run};

on_both!(a_worker_leaves_what_a_peer_has_held_for_a_moment_only, async |stand: Stand| {
    let sale = stand.publish(100).await;
    stand.admit(&sale, "held", 10).await;
    assert_eq!(stand.read("slow-peer", 10).await.len(), 10);
    // Behind them one of a holder that nobody has heard of for an hour: when it is taken over, they have
    // been looked at too.
    let probe = stand.admit(&sale, "probe", 1).await[0].entry().to_string();
    assert_eq!(stand.read("gone", 1).await.len(), 1);
    let (key, hour) = (stand.keys.orders(only()), "3600000");
    let idle = ["XCLAIM", &key, GROUP, "gone", "0", &probe, "IDLE", hour, "JUSTID"];
    assert_eq!(stand.ask::<Vec<String>>(&idle).await, [probe.as_str()]);
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 10).await;
    stand.wait_for_rows(11).await;
    // They are acknowledged a moment after they are rows.
    let held = eventually(SOON, "the rows' entries to be acknowledged", async || {
        let held = stand.held().await;
        (held.len() <= 10).then_some(held)
    })
    .await;
    assert_eq!(held.len(), 10);
    assert!(held.iter().all(|(_, consumer, count)| consumer == "slow-peer" && *count == 1));
    worker.stop().await.expect("a clean end");
});

async fn entries_of_a_dead_consumer_are_taken_over(stand: Stand) {
    let sale = stand.publish(1_000).await;
    let ids = stand.admit(&sale, "buyer", 800).await;
    assert_eq!(stand.read("dead-peer", 800).await.len(), 800);
    let worker = stand.worker().await;
    let before = worker.metric("flashsale_reclaimed_total", "").await.unwrap_or(0.0);
    stand.wait_for_rows(800).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    let after = worker.metric("flashsale_reclaimed_total", "").await.expect("counted");
    assert!(after >= before + 800.0, "{before} and {after}");
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_consumer_held_is_taken_over_sqlite() {
    run(Plan::sqlite().impatient().stand().await, entries_of_a_dead_consumer_are_taken_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_consumer_held_is_taken_over_postgres() {
    let plan = Plan::postgres().impatient();
    run(plan.stand().await, entries_of_a_dead_consumer_are_taken_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_behind_many_busy_entries_is_taken_over_too() {
    // One call of XAUTOCLAIM looks at ten times its batch, that is at 100 entries.
    let stand = Plan::sqlite().impatient().with("worker.batch", "10").stand().await;
    let sale = stand.publish(1_000).await;
    stand.admit(&sale, "busy", 350).await;
    let busy = stand.read("busy-peer", 350).await;
    stand.admit(&sale, "left", 320).await;
    assert_eq!(stand.read("dead-peer", 320).await.len(), 320);

    let mut keep = vec!["XCLAIM".to_owned(), stand.keys.orders(only()), GROUP.to_owned()];
    keep.extend(["busy-peer".to_owned(), "0".to_owned()]);
    keep.extend(busy.iter().map(|entry| entry.id.to_string()));
    keep.push("JUSTID".to_owned());
    let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
    let worker = stand.worker().await;
    eventually(SOON, "the rows of the dead consumer", async || {
        // Tells Redis that the busy one still works on them.
        stand.ask::<redis::Value>(&keep).await;
        stand.rows().await >= 320
    })
    .await;
    let buyers: Vec<String> = stand.column("SELECT user_id FROM orders").await;
    assert!(buyers.iter().all(|buyer| buyer.starts_with("left-")), "no busy entry was taken");
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taking_over_counts_as_no_delivery() {
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(100).await;
    stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.read("dead-peer", 10).await.len(), 10);
    // With the database locked, whoever takes the entries over goes on holding them.
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let worker = stand.worker().await;
    eventually(SOON, "entries in other hands", async || {
        stand.held().await.iter().all(|(_, consumer, _)| consumer != "dead-peer")
    })
    .await;
    // Several rounds of taking over, by the worker from itself.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let held = stand.held().await;
    assert_eq!(held.len(), 10);
    assert!(held.iter().all(|(_, _, count)| *count == 1), "{held:?}");
    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(10).await;
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_worker_found_lost_and_died_of_is_written_down_by_its_peers() {
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(100).await;
    let ids = stand.admit(&sale, "buyer", 3).await;
    assert_eq!(stand.read("dead-peer", 3).await.len(), 3);
    for id in &ids[..2] {
        let entry = id.entry().to_string();
        stand.ask::<()>(&["XDEL", &stand.keys.orders(only()), &entry]).await;
    }
    // It hears of the loss, and nobody ever hears of it again.
    let page = stand.redis.claim(only(), "dead-too", Duration::ZERO, None, 10).await.unwrap();
    assert_eq!(page.deleted.len(), 2);
    let (one, other) = (stand.worker().await, stand.worker().await);
    eventually(SOON, "the lost entries to be written down", async || {
        stand.redis.list_lost(only(), 10).await.is_ok_and(|lost| lost.is_empty())
    })
    .await;
    one.stop().await.expect("a clean end");
    other.stop().await.expect("a clean end");
    let log = stand.database.list_audit(100).await.unwrap();
    let mut named: Vec<String> = log
        .into_iter()
        .filter(|line| line.action == "entry.lost")
        .map(|line| line.subject)
        .collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, [ids[0].to_string(), ids[1].to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_deleted_while_pending_are_counted_and_the_others_go_on() {
    let stand = Plan::sqlite().impatient().stand().await;
    let sale = stand.publish(100).await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.read("dead-peer", 10).await.len(), 10);
    let (gone, kept) = ids.split_at(3);
    for id in gone {
        let entry = id.entry().to_string();
        let deleted: i64 = stand.ask(&["XDEL", &stand.keys.orders(only()), &entry]).await;
        assert_eq!(deleted, 1);
    }
    let worker = stand.worker().await;
    let lost = async || worker.metric("flashsale_entries_lost_total", "").await.unwrap_or(0.0);
    let before = lost().await;
    stand.wait_for_rows(7).await;
    eventually(SOON, "the lost entries", async || lost().await >= before + 3.0).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, kept.iter().copied().collect());
    stand.admit(&sale, "later", 10).await;
    stand.wait_for_rows(17).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_side_by_side_take_over_each_entry_once_and_no_more_than_they_work_on() {
    const ORDERS: usize = 600;
    const BATCH: u64 = 20;
    let plan = Plan::postgres().with("worker.batch", &BATCH.to_string());
    let stand = plan.with("worker.in_flight", "1").stand().await;
    let sale = stand.publish(1_000).await;
    let ids = stand.admit(&sale, "buyer", ORDERS).await;
    let entries = stand.read("dead-peer", ORDERS).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("SELECT id FROM sales FOR UPDATE").await.expect("locked");
    // For an hour nobody has heard of their holder.
    let key = stand.keys.orders(only());
    let mut idle: Vec<String> =
        ["XCLAIM", &key, GROUP, "dead-peer", "0"].map(ToOwned::to_owned).into();
    idle.extend(entries.iter().map(|entry| entry.id.to_string()));
    idle.extend(["IDLE", "3600000", "JUSTID"].map(ToOwned::to_owned));
    let idle: Vec<&str> = idle.iter().map(String::as_str).collect();
    assert_eq!(stand.ask::<Vec<String>>(&idle).await.len(), ORDERS);

    let workers: Vec<_> = (0..3).map(|_| stand.real_worker(&[])).collect();
    let owners = async || {
        let mut owners: BTreeMap<String, u64> = BTreeMap::new();
        for (_, consumer, _) in stand.held().await {
            *owners.entry(consumer).or_default() += 1;
        }
        owners
    };
    let held = eventually(SOON, "each has as many as it works on", async || {
        let owners = owners().await;
        // One batch is tried, one waits for it, and one for its place.
        let full = owners.iter().filter(|(name, held)| **held == 3 * BATCH && *name != "dead-peer");
        if full.count() == 3 { Ok(owners) } else { Err(owners) }
    })
    .await;
    // All of them look again and again, and nobody takes more.
    for worker in &workers {
        let tries = async || worker.admin.metric("flashsale_worker_retries_total", "").await;
        let before = tries().await.unwrap_or(0.0);
        eventually(SOON, "a try in vain", async || tries().await.is_some_and(|now| now > before))
            .await;
    }
    assert_eq!(owners().await, held);

    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(i64::try_from(ORDERS).expect("few")).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    let (mut reclaimed, mut again) = (0.0, 0.0);
    for worker in &workers {
        let metric = async |name, labels| worker.admin.metric(name, labels).await.unwrap_or(0.0);
        reclaimed += metric("flashsale_reclaimed_total", "").await;
        again += metric("flashsale_orders_committed_total", "result=\"redelivered\"").await;
    }
    let all = f64::from(u32::try_from(ORDERS).expect("few"));
    assert_eq!((reclaimed, again), (all, 0.0), "each entry once");
    assert_eq!(stand.dead().await, []);
}
