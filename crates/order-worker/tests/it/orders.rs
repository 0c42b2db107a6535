//! The usual way: from the stream to rows, once each, in few transactions.

use std::collections::HashSet;

use flashsale_domain::{OrderId, OrderState};
use flashsale_order_worker::Processed;
use flashsale_test_support::eventually;

use crate::support::{Plan, SOON, Stand, new_sale, on_both, receipts};

on_both!(orders_from_before_the_first_worker_become_rows, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.admit(&sale, "early", 10).await;
    assert_eq!(stand.rows().await, 0);
    let worker = stand.worker().await;
    stand.wait_for_rows(10).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    worker.stop().await.expect("a clean end");
});

on_both!(an_admitted_order_becomes_a_row_with_the_same_id, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let worker = stand.worker().await;
    worker.wait_for_readiness(true).await;
    let ids = stand.admit(&sale, "buyer", 1).await;
    let row = eventually(SOON, "the row", async || {
        stand.database.find_order(ids[0]).await.expect("answered")
    })
    .await;
    assert_eq!(row.order.id, ids[0]);
    assert_eq!(row.order.user_id.as_str(), "buyer-0");
    assert_eq!(row.order.sale_id, sale.id);
    assert_eq!(row.order.state, OrderState::AwaitingPayment);
    assert_eq!(row.slot, 1);
    let digest = crate::support::press("buyer-0").digest;
    assert_eq!(row.digest, digest);
    stand.settle().await;
    assert_eq!(stand.stock_left(&sale).await, 9);
    worker.stop().await.expect("a clean end");
});

on_both!(five_hundred_orders_are_one_transaction, async |stand: Stand| {
    let sale = stand.publish(500).await;
    stand.admit(&sale, "buyer", 500).await;
    let entries = stand.read("test", 500).await;
    assert_eq!(entries.len(), 500);
    let processed = stand.processor().process(entries).await;
    assert_eq!(processed, Processed { done: 500, dead: 0, left: 0 });
    // All rows of one batch carry the time of its one transaction.
    let moments: Vec<i64> = stand.column("SELECT DISTINCT committed_ms FROM orders").await;
    assert_eq!(moments.len(), 1);
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (500, 0));
    assert_eq!(stand.pending().await, 0);
});

on_both!(a_worker_takes_a_backlog_in_few_transactions, async |stand: Stand| {
    let sale = stand.publish(2_000).await;
    stand.admit(&sale, "buyer", 2_000).await;
    let worker = stand.worker().await;
    stand.wait_for_rows(2_000).await;
    let moments: Vec<i64> = stand.column("SELECT DISTINCT committed_ms FROM orders").await;
    assert!(moments.len() <= 4, "{} transactions", moments.len());
    worker.stop().await.expect("a clean end");
});

on_both!(a_redelivered_order_is_stored_once, async |stand: Stand| {
    let sale = stand.publish(100).await;
    let ids = stand.admit(&sale, "buyer", 50).await;
    let entries = stand.read("test", 100).await;
    let processor = stand.processor();
    let expected = Processed { done: 50, dead: 0, left: 0 };
    assert_eq!(processor.process(entries.clone()).await, expected);
    for _ in 0..100 {
        assert_eq!(processor.process(entries.clone()).await, expected);
    }
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (50, 50));
    assert_eq!(stand.dead().await, []);
});

on_both!(an_entry_that_comes_twice_in_a_batch_is_one_row, async |stand: Stand| {
    let sale = stand.publish(100).await;
    stand.admit(&sale, "buyer", 20).await;
    let mut entries = stand.read("test", 100).await;
    entries.extend(entries.clone());
    let processed = stand.processor().process(entries).await;
    assert_eq!(processed, Processed { done: 40, dead: 0, left: 0 });
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (20, 80));
    assert_eq!((stand.pending().await, stand.dead().await), (0, vec![]));
});

on_both!(acknowledged_entries_are_trimmed_and_held_ones_are_not, async |stand: Stand| {
    let sale = stand.publish(100).await;
    stand.admit(&sale, "held", 5).await;
    let held = stand.read("slow-peer", 5).await;
    assert_eq!(held.len(), 5);
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 45).await;
    stand.wait_for_rows(45).await;
    // Nothing above the oldest held entry goes, not even what is acknowledged.
    eventually(SOON, "the acks", async || stand.pending().await == 5).await;
    assert_eq!(stand.stream_length().await, 50);
    stand.processor().process(held).await;
    stand.settle().await;
    assert_eq!(stand.rows().await, 50);
    worker.stop().await.expect("a clean end");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_partition_is_served() {
    let stand = Plan::sqlite().with("redis.partitions", "4").stand().await;
    let worker = stand.worker().await;
    let mut homes = HashSet::new();
    let mut all = HashSet::new();
    for number in 0..6 {
        let sale = stand.publish(20).await;
        homes.insert(sale.partition.expect("a home"));
        all.extend(stand.admit(&sale, &format!("buyer-{number}"), 20).await);
    }
    assert_eq!(homes.len(), 4, "six sales live in all four partitions");
    assert_eq!(all.len(), 120);
    stand.wait_for_rows(120).await;
    assert_eq!(stand.open_ids().await, all);
    for partition in homes {
        eventually(SOON, "an empty stream", async || {
            stand.ask::<i64>(&["XLEN", &stand.keys.orders(partition)]).await == 0
        })
        .await;
    }
    worker.stop().await.expect("a clean end");
}

on_both!(two_workers_share_the_work_and_store_every_order_once, async |stand: Stand| {
    let sale = stand.publish(3_000).await;
    let workers = [stand.worker().await, stand.worker().await];
    let crowd = stand.crowd(&sale, "buyer", 3_000);
    // Both have had some, while neither is asked to leave.
    eventually(SOON, "two consumers", async || stand.consumers().await.len() == 2).await;
    let ids = crowd.await.expect("the crowd is served");
    stand.settle().await;
    let rows: HashSet<OrderId> = stand.open_ids().await;
    assert_eq!(rows, ids.iter().copied().collect());
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (3_000, 0));
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_of_several_units_gets_a_row_for_each() {
    let stand = Plan::sqlite().stand().await;
    let mut new = new_sale(10);
    new.per_buyer = 3;
    let sale = stand.operations.create_sale(&new).await.expect("a sale");
    let sale = stand.operations.publish_sale(sale.id).await.expect("published");
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let press = flashsale_domain::AdmissionRequest {
        user_id: crate::support::user_id("greedy"),
        digest: None,
        traceparent: None,
    };
    let partition = sale.partition.expect("a home");
    let batch = connection.admit(partition, sale.id, &[press.clone(), press.clone(), press]).await;
    assert!(batch.expect("answered").outcomes.iter().all(Result::is_ok));
    let worker = stand.worker().await;
    stand.wait_for_rows(3).await;
    let slots: Vec<i32> = stand.column("SELECT slot FROM orders ORDER BY slot").await;
    assert_eq!(slots, [1, 2, 3]);
    worker.stop().await.expect("a clean end");
}
