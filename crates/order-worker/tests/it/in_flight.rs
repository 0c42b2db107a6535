//! Several batches of one partition in flight: one that waits keeps no other from its rows, what is not
//! committed is not acknowledged, and a suspect has the worker for itself.

use std::time::Duration;

use flashsale_domain::Sale;
use flashsale_storage_redis::GROUP;
use flashsale_test_support::eventually;
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, TransactionTrait as _};
use tokio::time::sleep;

use crate::support::{Plan, SOON, Stand, only};

/// Whoever wants to take units of the sale waits until this transaction is over.
async fn lock(stand: &Stand, sale: &Sale) -> DatabaseTransaction {
    let lock = stand.sql.begin().await.expect("a transaction");
    let sql = format!("SELECT id FROM sales WHERE id = {} FOR UPDATE", sale.id);
    lock.execute_unprepared(&sql).await.expect("locked");
    lock
}

/// Puts the orders of 10 buyers on the stream, and waits until a worker stands before the lock.
async fn admit_and_wait(stand: &Stand, locked: &Sale) {
    stand.admit(locked, "waiting", 10).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock'";
    eventually(SOON, "a batch that waits", async || {
        stand.try_value::<i64>(waiting).await == Some(1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_waits_keeps_no_other_from_its_rows_and_is_not_acknowledged() {
    let stand = Plan::postgres().with("worker.in_flight", "2").stand().await;
    let (locked, free) = (stand.publish(100).await, stand.publish(100).await);
    let worker = stand.worker().await;
    let lock = lock(&stand, &locked).await;
    admit_and_wait(&stand, &locked).await;

    for round in 1..=3 {
        stand.admit(&free, &format!("round{round}"), 10).await;
        stand.wait_for_rows(round * 10).await;
    }
    // Of all that was read only what is a row is acknowledged.
    eventually(SOON, "the rows' entries to be acknowledged", async || stand.pending().await == 10)
        .await;
    assert_eq!((stand.stock_left(&free).await, stand.stock_left(&locked).await), (70, 100));

    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(40).await;
    stand.settle().await;
    assert_eq!((stand.stock_left(&locked).await, stand.dead().await), (90, vec![]));
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_a_crowd_is_gathered_into_one_transaction() {
    let stand = Plan::postgres().with("worker.linger", "1s").stand().await;
    let sale = stand.publish(1_000).await;
    let worker = stand.worker().await;
    let mut transactions = Vec::new();
    // A machine that stands still for a second is given another try.
    for attempt in 1..=3 {
        stand.admit(&sale, &format!("crowd{attempt}"), 100).await;
        stand.wait_for_rows(attempt * 120 - 20).await;
        for wave in 1..=4 {
            stand.admit(&sale, &format!("behind{attempt}-{wave}"), 5).await;
        }
        stand.wait_for_rows(attempt * 120).await;
        let count = format!(
            "SELECT count(DISTINCT committed_ms) FROM orders WHERE user_id LIKE 'behind{attempt}-%'"
        );
        transactions.push(stand.try_value::<i64>(&count).await.expect("a number"));
        if transactions.last() == Some(&1) {
            break;
        }
    }
    assert_eq!(transactions.last(), Some(&1), "{transactions:?}");
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspect_waits_until_nothing_else_is_in_flight() {
    let stand = Plan::postgres().impatient().with("worker.in_flight", "4").stand().await;
    let (locked, free) = (stand.publish(100).await, stand.publish(100).await);
    stand.admit(&free, "suspect", 1).await;
    let suspect = stand.read("gone", 1).await.remove(0);
    for _ in 0..2 {
        stand.redis.count_reclaims(only(), &[suspect.id]).await.expect("counted");
    }
    let (key, suspect) = (stand.keys.orders(only()), suspect.id.to_string());
    let give_to_gone = async |entry: &str| {
        stand.ask::<Vec<String>>(&["XCLAIM", &key, GROUP, "gone", "0", entry, "JUSTID"]).await;
    };
    let taken_over = async |entry: &str| {
        eventually(SOON, "the entry in the worker's hands", async || {
            let held = stand.held().await.into_iter().find(|(id, ..)| id == entry);
            held.is_some_and(|(_, consumer, _)| consumer != "gone")
        })
        .await;
    };
    let lock = lock(&stand, &locked).await;
    let begin = async {
        let worker = stand.worker().await;
        admit_and_wait(&stand, &locked).await;
        worker
    };
    // Until a batch is in flight, the suspect's holder gives signs of life.
    let signs_of_life = async {
        loop {
            give_to_gone(&suspect).await;
            sleep(Duration::from_millis(50)).await;
        }
    };
    let worker = tokio::select! {
        worker = begin => worker,
        () = signs_of_life => unreachable!("it has no end"),
    };

    taken_over(&suspect).await;
    // One that is taken over a second later: by then the suspect would have been tried.
    let probe = stand.admit(&free, "probe", 1).await[0].entry().to_string();
    taken_over(&probe).await;
    give_to_gone(&probe).await;
    taken_over(&probe).await;
    let attempts = format!("a:{suspect}");
    let tried: Option<i64> = stand.ask(&["HGET", &stand.keys.suspects(only()), &attempts]).await;
    assert_eq!((tried, stand.rows().await), (None, 0));

    lock.commit().await.expect("the lock can be given back");
    stand.wait_for_rows(12).await;
    stand.settle().await;
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}
