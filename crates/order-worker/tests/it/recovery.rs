//! A Redis that lost its memory, or cannot prove that it is complete, is loaded from the database by a
//! worker, without a person.

use std::collections::HashSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use flashsale_domain::{AdmissionRequest, Refusal, SaleId};
use flashsale_operations::{Receipt, SettleAs, Settling};
use flashsale_storage_redis::{AdmissionConnection, GateStatus};
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

/// Presses for each of these buyers until he is told yes or that all is sold; who was told yes, and his
/// order. A few press at once.
async fn press_to_the_end(
    mut connection: AdmissionConnection,
    sale: SaleId,
    buyers: Range<usize>,
) -> Vec<Receipt> {
    const AT_ONCE: usize = 10;
    let gives_up = Instant::now() + SOON;
    let mut told = Vec::new();
    let buyers: Vec<AdmissionRequest> = buyers.map(|i| press(&format!("buyer-{i}"))).collect();
    for some in buyers.chunks(AT_ONCE) {
        let mut unanswered = some.to_vec();
        while !unanswered.is_empty() {
            assert!(Instant::now() < gives_up, "{} buyers are not answered", unanswered.len());
            let answered = connection.admit(only(), sale, &unanswered).await;
            let Ok(batch) = answered else { continue };
            let mut again = Vec::new();
            for (request, outcome) in unanswered.into_iter().zip(batch.outcomes) {
                match outcome {
                    Ok(order) => {
                        told.push(Receipt { order_id: order.order_id, user_id: request.user_id })
                    }
                    Err(Refusal::SoldOut) => {}
                    Err(Refusal::NotLoaded) => again.push(request),
                    other => panic!("{other:?}"),
                }
            }
            unanswered = again;
            // A crowd of some hundred a second.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_flushed_at_half_a_sale_goes_on_by_itself_and_sells_exactly_the_stock() {
    const STOCK: i64 = 600;
    // More than enough to sell again what is forgotten.
    const BUYERS: usize = 1_500;
    let server = blocking(RedisServer::start);
    let stand = Plan::postgres().redis(&server).with("worker.rebuild", "auto").stand().await;
    let sale = stand.publish(STOCK).await;
    let workers = [stand.worker().await, stand.worker().await];
    let connection = stand.redis.admission_connection().expect("a connection");
    let crowd = tokio::spawn(press_to_the_end(connection, sale.id, 0..BUYERS));
    eventually(SOON, "half of it is rows", async || stand.rows().await >= STOCK / 2).await;

    stand.ask::<()>(&["FLUSHALL"]).await;
    let flushed = Instant::now();
    // A rebuild lets every lease of half a second run out before it opens.
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let at_once = connection.admit(only(), sale.id, &[press("late")]).await.expect("answered");
    assert_eq!(at_once.outcomes, [Err(Refusal::NotLoaded)]);
    gate_is_open(&stand, &sale).await;
    eprintln!("flushed under load: open again after {:?}", flushed.elapsed());

    let told = crowd.await.expect("the crowd is served");
    stand.settle().await;
    let open = stand.open_ids().await;
    let receipts = told.iter().filter(|receipt| open.contains(&receipt.order_id)).count();
    assert_eq!((open.len(), stand.stock_left(&sale).await), (receipts, 0), "no unit is left over");
    assert_eq!(i64::try_from(open.len()).expect("few"), STOCK);
    let buyers: Vec<String> =
        stand.column("SELECT user_id FROM orders WHERE state = 'awaiting_payment'").await;
    assert_eq!(buyers.iter().collect::<HashSet<_>>().len(), buyers.len(), "nobody has two");
    assert_eq!(stand.dead().await, []);
    // What Redis forgot before it was a row is named, and settled by one command.
    let lost = told.len() - receipts;
    let settling =
        Settling { orders: Vec::new(), settle_as: SettleAs::Order, receipts: told.clone() };
    let settled = stand.operations.settle_lost(sale.id, &settling, "test", false).await;
    assert!(settled.expect("settled").len() <= lost, "{lost} were lost");
    let audit = stand.operations.audit_sale(sale.id, &told).await.expect("an audit");
    assert_eq!(audit.findings, []);
    for worker in workers {
        worker.stop().await.expect("a clean end");
    }
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
