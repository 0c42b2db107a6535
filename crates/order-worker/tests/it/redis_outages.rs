//! Redis emptied, restarted, frozen, or its stream taken away: the worker comes back by itself, and
//! what Redis did not forget becomes rows.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_domain::Refusal;
use flashsale_storage_redis::GROUP;
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{Plan, SOON, SilentLine, Stand, blocking, only, press, receipts};

async fn group_is_there(stand: &Stand) {
    eventually(SOON, "the group", async || stand.redis.has_group(only()).await.expect("answered"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_sells_again_after_a_rebuild() {
    let server = blocking(RedisServer::start);
    // A read that waits for longer than the test lasts, unless Redis ends it.
    let stand = Plan::sqlite().redis(&server).with("worker.block", "60s").stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.worker().await;
    let mut ids = stand.admit(&sale, "early", 10).await;
    stand.wait_for_rows(10).await;
    stand.settle().await;
    let before = worker.metric("flashsale_group_recreated_total", "").await.unwrap_or(0.0);

    stand.ask::<()>(&["FLUSHALL"]).await;
    group_is_there(&stand).await;
    assert!(worker.metric("flashsale_group_recreated_total", "").await.unwrap_or(0.0) > before);
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let refused = connection.admit(only(), sale.id, &[press("late-0")]).await.expect("answered");
    assert_eq!(refused.outcomes, [Err(Refusal::NotLoaded)]);

    let rebuilt = stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!((rebuilt.sales[0].stock, rebuilt.sales[0].held), (90, 10));
    ids.extend(stand.admit(&sale, "late", 90).await);
    stand.wait_for_rows(100).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    // The worker waits in a read of a minute; a stop ends it no sooner.
    worker.running.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_destroyed_under_the_reader_is_made_again_and_nothing_is_lost() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(1_000).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 1_000);
    for round in 1..=3 {
        eventually(SOON, "some rows", async || stand.rows().await >= round * 100).await;
        let key = stand.keys.orders(only());
        let destroyed: i64 = stand.ask(&["XGROUP", "DESTROY", &key, GROUP]).await;
        assert_eq!(destroyed, 1);
        group_is_there(&stand).await;
    }
    let ids = crowd.await.expect("the crowd is served");
    stand.wait_for_rows(1_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.iter().copied().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_stream_is_made_again_and_new_orders_flow() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.worker().await;
    stand.admit(&sale, "early", 10).await;
    stand.wait_for_rows(10).await;
    stand.settle().await;
    let deleted: i64 = stand.ask(&["DEL", &stand.keys.orders(only())]).await;
    assert_eq!(deleted, 1);
    let crowd = stand.crowd(&sale, "late", 90);
    crowd.await.expect("the crowd is served");
    stand.wait_for_rows(100).await;
    stand.settle().await;
    assert_eq!(stand.dead().await, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_killed_under_load_goes_on_after_a_rebuild() {
    let server = blocking(|| {
        RedisServer::builder().append_only(true).option("appendfsync", "always").start()
    });
    let stand = Plan::sqlite().redis(&server).impatient().stand().await;
    let sale = stand.publish(1_000).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 1_000);
    for round in 1..=2 {
        eventually(SOON, "some rows", async || stand.rows().await >= round * 200).await;
        blocking(|| {
            server.kill_9();
            server.start_again();
        });
        // The gate is of another server's memory now; the rebuild waits for the worker to apply
        // what the file has kept.
        stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    }
    let ids = crowd.await.expect("the crowd is served");
    stand.wait_for_rows(1_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.iter().copied().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_is_waited_for() {
    let server = blocking(RedisServer::start);
    let plan = Plan::sqlite().redis(&server).impatient();
    let stand = plan.with("redis.response_timeout", "500ms").stand().await;
    let sale = stand.publish(1_000).await;
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;
    let crowd = stand.crowd(&sale, "buyer", 1_000);
    eventually(SOON, "some rows", async || stand.rows().await >= 100).await;
    server.pause();
    // Longer than any command waits, so that every connection is given up and made anew; entries
    // that Redis hands to a connection that is gone are taken over later.
    worker.wait_for_readiness(false).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.resume();
    let ids: HashSet<_> = crowd.await.expect("the crowd is served").into_iter().collect();
    assert_eq!(ids.len(), 1_000);
    stand.wait_for_rows(1_000).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids);
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_connection_went_silent_is_given_up_and_reads_on_over_a_new_one() {
    let line = SilentLine::to(blocking(RedisServer::shared).port()).await;
    let plan = Plan::sqlite().redis_through(&line).impatient();
    let stand = plan.with("redis.response_timeout", "500ms").stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.worker().await;
    let mut ids = stand.admit(&sale, "before", 10).await;
    stand.wait_for_rows(10).await;
    for round in 0..2 {
        line.cut();
        // Redis still sees a reader that waits, and hands it the first; the next has to wait for a
        // reader that is alive.
        ids.extend(stand.admit(&sale, &format!("first-{round}"), 1).await);
        ids.extend(stand.admit(&sale, &format!("next-{round}"), 9).await);
        stand.wait_for_rows(10 * (round + 2)).await;
    }
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_before_redis_waits_for_it() {
    let server = blocking(|| {
        RedisServer::builder().append_only(true).option("appendfsync", "always").start()
    });
    let stand = Plan::sqlite().redis(&server).stand().await;
    let sale = stand.publish(10).await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    server.kill_9();
    let worker = stand.worker().await;
    worker.wait_for_readiness(false).await;
    blocking(|| server.start_again());
    stand.wait_for_rows(10).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    worker.wait_for_readiness(true).await;
    worker.stop().await.expect("a clean end");
}
