//! What a worker holds stays its own while it lives; what was taken from it all the same it drops.

use std::collections::BTreeMap;

use flashsale_storage_redis::GROUP;
use flashsale_test_support::{PostgresServer, eventually};
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{Plan, SOON, Stand, blocking, only};

/// Makes `consumer` the owner of these entries, held since now.
async fn claim(stand: &Stand, consumer: &str, entries: &[String]) {
    let key = stand.keys.orders(only());
    let mut command = vec!["XCLAIM", &key, GROUP, consumer, "0"];
    command.extend(entries.iter().map(String::as_str));
    command.push("JUSTID");
    assert_eq!(stand.ask::<Vec<String>>(&command).await, entries);
}

/// The owner of each held entry.
async fn owners(stand: &Stand) -> BTreeMap<String, String> {
    stand.held().await.into_iter().map(|(id, consumer, _)| (id, consumer)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_the_idle_time_leaves_entries_with_their_worker() {
    let server = blocking(PostgresServer::start);
    let stand = Plan::postgres_on(&server).impatient().stand().await;
    let sale = stand.publish(100).await;
    let workers = [stand.worker().await, stand.worker().await];
    for worker in &workers {
        worker.wait_for_readiness(true).await;
    }
    blocking(|| server.stop());
    let ids = stand.admit(&sale, "buyer", 21).await;
    eventually(SOON, "all orders in hand", async || stand.pending().await == 21).await;
    let mut before = owners(&stand).await;

    // One entry is given to a consumer that does nothing for it. When a worker has taken it over, the
    // idle time has passed for the others too.
    let probe = before.pop_first().expect("held").0;
    for _ in 0..2 {
        claim(&stand, "gone", std::slice::from_ref(&probe)).await;
        eventually(SOON, "the probe in a worker's hands", async || {
            owners(&stand).await[&probe] != "gone"
        })
        .await;
        let mut now = owners(&stand).await;
        now.remove(&probe);
        assert_eq!(now, before);
    }

    blocking(|| server.start_again());
    stand.wait_for_rows(21).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (79, vec![]));
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_taken_over_by_another_worker_are_dropped() {
    let plan = Plan::sqlite().with("worker.reclaim_idle", "3s");
    let stand = plan.with("database.statement_timeout", "450ms").stand().await;
    let sale = stand.publish(100).await;
    let lock = stand.sql.begin().await.expect("a transaction");
    lock.execute_unprepared("UPDATE sales SET title = title").await.expect("the write lock");
    let worker = stand.worker().await;
    stand.admit(&sale, "taken", 10).await;
    eventually(SOON, "orders in hand", async || stand.pending().await == 10).await;
    let taken: Vec<String> = owners(&stand).await.into_keys().collect();
    claim(&stand, "peer", &taken).await;

    // With the database locked only a worker that has dropped them gets as far as the next entry,
    // which needs no database.
    stand.append(&[(b"v", b"no order")]).await;
    eventually(SOON, "the entry behind them", async || {
        // The peer is alive.
        claim(&stand, "peer", &taken).await;
        stand.dead().await.len() == 1
    })
    .await;
    lock.commit().await.expect("the lock can be given back");
    stand.admit(&sale, "later", 10).await;
    eventually(SOON, "the rows of later orders", async || {
        claim(&stand, "peer", &taken).await;
        stand.rows().await == 10
    })
    .await;
    let buyers: Vec<String> = stand.column("SELECT user_id FROM orders").await;
    assert!(buyers.iter().all(|buyer| buyer.starts_with("later-")), "{buyers:?}");
    assert!(owners(&stand).await.values().all(|owner| owner == "peer"));
    worker.stop().await.expect("nothing of it is in hand");
    assert_eq!(stand.pending().await, 10, "the peer still has its entries");
}
