//! A Redis that lost its memory, or cannot prove that it is complete, is loaded from the database by a
//! worker, without a person.

use flashsale_domain::Refusal;
use flashsale_storage_redis::GateStatus;
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{Plan, SOON, Stand, blocking, only, press, receipts};

async fn gate_is_open(stand: &Stand, sale: &flashsale_domain::Sale) {
    eventually(SOON, "an open gate with the sale behind it", async || {
        let account = stand.redis.read_sale(only(), sale.id).await.ok()?;
        (account.gate_open && account.sale.is_some()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_redis_heals_by_itself() {
    let server = blocking(RedisServer::start);
    let stand = Plan::sqlite().redis(&server).with("worker.rebuild", "auto").stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.worker().await;
    let mut ids = stand.admit(&sale, "buyer", 10).await;
    stand.wait_for_rows(10).await;

    stand.ask::<()>(&["FLUSHALL"]).await;
    gate_is_open(&stand, &sale).await;
    // Who has an order is answered with it, and the rest of the stock is sold.
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let again = connection.admit(only(), sale.id, &[press("buyer-3")]).await.expect("answered");
    let again = again.outcomes[0].expect("a replay");
    assert!(again.replayed && again.order_id == ids[3]);
    ids.extend(stand.admit(&sale, "late", 90).await);
    stand.wait_for_rows(100).await;
    assert_eq!(stand.open_ids().await, ids.iter().copied().collect());
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids[..10])).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_gone_behind_an_open_gate_comes_back_by_itself() {
    let stand = Plan::sqlite().with("worker.rebuild", "auto").stand().await;
    let (sale, other) = (stand.publish(100).await, stand.publish(100).await);
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 10).await;
    stand.wait_for_rows(10).await;
    assert_eq!(stand.ask::<i64>(&["DEL", &stand.keys.sale(only(), sale.id)]).await, 1);
    gate_is_open(&stand, &sale).await;
    stand.admit(&sale, "late", 90).await;
    stand.admit(&other, "other", 5).await;
    stand.wait_for_rows(105).await;
    let audit = stand.operations.audit_sale(sale.id, &[]).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_with_an_id_of_the_future_stops_nobody_for_long() {
    let stand = Plan::sqlite().with("worker.rebuild", "auto").stand().await;
    let sale = stand.publish(100).await;
    let worker = stand.worker().await;
    let mut ids = stand.admit(&sale, "buyer", 10).await;
    let key = stand.keys.orders(only());
    stand.ask::<String>(&["XADD", &key, "99999999999999-0", "v", "1", "s", "junk"]).await;
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let refused = connection.admit(only(), sale.id, &[press("late-0")]).await.expect("answered");
    assert_eq!(refused.outcomes, [Err(Refusal::ClockFault)]);
    eventually(SOON, "somebody is admitted again", async || {
        let answer = connection.admit(only(), sale.id, &[press("late-0")]).await;
        answer.map_err(|fault| fault.to_string())?.outcomes[0].map_err(|it| format!("{it:?}"))
    })
    .await;
    ids.extend(stand.admit(&sale, "later", 89).await);
    stand.wait_for_rows(100).await;
    let receipts = receipts("buyer", &ids[..10]);
    let audit = stand.operations.audit_sale(sale.id, &receipts).await;
    assert_eq!(audit.expect("an audit").findings, []);
    assert_eq!(stand.dead().await.len(), 1, "the entry itself waits for an operator");
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_restarted_from_its_file_heals_by_itself() {
    let server = blocking(|| RedisServer::builder().append_only(true).start());
    let stand = Plan::sqlite().redis(&server).with("worker.rebuild", "auto").stand().await;
    let sale = stand.publish(500).await;
    let worker = stand.worker().await;
    let crowd = stand.crowd(&sale, "buyer", 500);
    eventually(SOON, "some rows", async || stand.rows().await >= 100).await;
    blocking(|| {
        server.kill_9();
        server.start_again();
    });
    let ids = crowd.await.expect("the crowd is served");
    stand.wait_for_rows(500).await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    gate_is_open(&stand, &sale).await;
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_to_be_rebuilt_by_hand_stays_closed() {
    let server = blocking(RedisServer::start);
    let by_hand = Plan::sqlite().redis(&server).stand().await;
    let by_itself = Plan::sqlite().redis(&server).with("worker.rebuild", "auto").stand().await;
    let sales = [by_hand.publish(10).await, by_itself.publish(10).await];
    let ids = by_hand.admit(&sales[0], "buyer", 3).await;
    let workers = [by_hand.worker().await, by_itself.worker().await];
    by_hand.wait_for_rows(3).await;
    by_hand.settle().await;

    // Two rounds: by the end of the second, the one that stays closed has been looked at for certain.
    for _ in 0..2 {
        by_hand.ask::<()>(&["FLUSHALL"]).await;
        gate_is_open(&by_itself, &sales[1]).await;
    }
    let status = by_hand.redis.gate_status(only()).await.expect("answered");
    assert_eq!(status, GateStatus::Missing);
    let mut connection = by_hand.redis.admission_connection().expect("a connection");
    let refused = connection.admit(only(), sales[0].id, &[press("late")]).await.expect("answered");
    assert_eq!(refused.outcomes, [Err(Refusal::NotLoaded)]);

    by_hand.operations.rebuild_sale(sales[0].id).await.expect("rebuilt");
    let again = connection.admit(only(), sales[0].id, &[press("buyer-0")]).await.expect("answered");
    assert!(again.outcomes[0].is_ok_and(|order| order.replayed && order.order_id == ids[0]));
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_rebuilder_waits_for_the_first() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(10).await;
    let lock =
        stand.redis.try_lock_rebuild(only()).await.expect("answered").expect("nobody has it");
    assert!(stand.redis.try_lock_rebuild(only()).await.expect("answered").is_none());
    let refused = stand.operations.rebuild_partition(only()).await.expect_err("it is taken");
    assert!(refused.to_string().contains("is being rebuilt"), "{refused}");
    gate_is_open(&stand, &sale).await;
    lock.unlock().await.expect("answered");
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_rebuilder_that_died_runs_out_by_itself() {
    let stand = Plan::sqlite().stand().await;
    stand.publish(10).await;
    let lock = stand.redis.try_lock_rebuild(only()).await.expect("answered");
    // Dying gives nothing back.
    std::mem::forget(lock.expect("nobody has it"));
    assert!(stand.redis.try_lock_rebuild(only()).await.expect("answered").is_none());
    eventually(SOON, "the lock", async || {
        stand.redis.try_lock_rebuild(only()).await.expect("answered").is_some()
    })
    .await;
}
