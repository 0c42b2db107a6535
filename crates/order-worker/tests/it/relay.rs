//! What a rejected order holds goes back: once, by the outbox.

use flashsale_domain::{AdmissionRequest, EntryId, IdempotencyKey, OrderId, Sale};
use flashsale_test_support::eventually;

use crate::support::{Plan, SOON, Stand, home_of, on_both, only, press, run, user_id};

on_both!(an_order_rejected_for_its_slot_gives_way_to_the_one_that_has_it, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let (id, epoch) = (sale.id, sale.epoch);
    stand
        .execute(&format!(
            "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             VALUES (77, {id}, 'buyer-0', 1, {epoch}, 'awaiting_payment', 1, 'CNY', 1)"
        ))
        .await;
    stand.execute(&format!("UPDATE sales SET stock_left = stock_left - 1 WHERE id = {id}")).await;
    let rejected = stand.admit(&sale, "buyer", 1).await[0];
    let worker = stand.worker().await;

    // The record holds the order that has the slot, and no longer the rejected one.
    let holder = OrderId::from_i64(77).expect("an id");
    eventually(SOON, "the release", async || {
        let record = stand.redis.find_record(only(), id, &user_id("buyer-0")).await.ok()??;
        (record.holds(holder.entry()) && !record.holds(rejected.entry())).then_some(())
    })
    .await;
    eventually(SOON, "an empty outbox", async || {
        stand.database.count_releases(id).await.ok() == Some(0)
    })
    .await;
    // The unit that the rejected order took is the holder's now.
    let loaded = stand.redis.read_sale(only(), id).await.expect("answers").sale.expect("loaded");
    assert_eq!((loaded.total, loaded.stock, loaded.held), (20, 19, 1));
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let again = connection.admit(only(), id, &[press("buyer-0")]).await.expect("answered");
    assert_eq!(again.outcomes[0].map(|yes| yes.order_id), Ok(rejected), "its key stays its own");
    let audit = stand.operations.audit_sale(id, &[]).await.expect("an audit");
    assert_eq!(audit.findings, []);
    worker.stop().await.expect("a clean end");
});

/// Sales in two partitions, each with three orders that were rejected for want of stock; the first
/// partition's releases come first in the outbox.
async fn rejected_in_two_partitions(stand: &Stand) -> [Sale; 2] {
    let sales = stand.publish_in_both_partitions(20).await;
    stand.execute("UPDATE sales SET stock_left = 0").await;
    for sale in &sales {
        let home = home_of(sale);
        stand.admit(sale, "buyer", 3).await;
        let entries = stand.read_of(home, "test", 10).await;
        let processed = stand.processor_of(home).process(entries).await;
        assert_eq!(processed.done, 3, "three rejected rows");
        assert_eq!(stand.database.count_releases(sale.id).await.expect("answered"), 3);
    }
    sales
}

async fn wait_for_releases(stand: &Stand, sale: &Sale, count: u64) {
    eventually(SOON, &format!("{count} releases in the outbox"), async || {
        stand.database.count_releases(sale.id).await.ok() == Some(count)
    })
    .await;
}

/// Total, stock and held units of a sale, as Redis has them.
async fn units(stand: &Stand, sale: &Sale) -> (i64, i64, i64) {
    let account = stand.redis.read_sale(home_of(sale), sale.id).await.expect("answers");
    let loaded = account.sale.expect("loaded");
    (loaded.total, loaded.stock, loaded.held)
}

async fn a_release_waits_for_its_sale(stand: Stand) {
    let [closed, open] = rejected_in_two_partitions(&stand).await;
    let fence = stand.redis.fence(home_of(&closed)).await.expect("fenced");
    let worker = stand.worker().await;
    // The other partition's releases come behind these in the outbox: when they are carried out, the
    // ones that wait have been looked at for certain.
    wait_for_releases(&stand, &open, 0).await;
    assert_eq!(stand.database.count_releases(closed.id).await.expect("answered"), 3, "they wait");
    assert_eq!(
        (units(&stand, &closed).await, units(&stand, &open).await),
        ((20, 17, 3), (17, 17, 0))
    );

    // Opened as it stands, without a load that would do the releases' work.
    let last_id = EntryId { ms: 0, seq: 0 };
    assert!(stand.redis.open_gate(fence, last_id).await.expect("answered"), "it is open");
    wait_for_releases(&stand, &closed, 0).await;
    assert_eq!(units(&stand, &closed).await, (17, 17, 0));
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_waits_for_the_sale_and_is_then_carried_out_sqlite() {
    let plan = Plan::sqlite().with("redis.partitions", "2");
    run(plan.stand().await, a_release_waits_for_its_sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_waits_for_the_sale_and_is_then_carried_out_postgres() {
    let plan = Plan::postgres().with("redis.partitions", "2");
    run(plan.stand().await, a_release_waits_for_its_sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_rebuild_has_made_needless_leaves_the_outbox() {
    let stand = Plan::sqlite().with("redis.partitions", "2").stand().await;
    let [closed, _open] = rejected_in_two_partitions(&stand).await;
    let home = home_of(&closed);
    stand.redis.fence(home).await.expect("fenced");
    let worker = stand.worker().await;
    stand.operations.rebuild_partition(home).await.expect("rebuilt");
    wait_for_releases(&stand, &closed, 0).await;
    // The rebuild had loaded them as closed: there was nothing left to give back.
    let (_, stock, held) = units(&stand, &closed).await;
    assert_eq!((stock, held), (0, 0));
    worker.stop().await.expect("a clean end");
}

on_both!(a_unit_that_nobody_has_instead_goes_back_on_sale_once, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let id = sale.id;
    stand
        .execute(&format!(
            "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             VALUES (77, {id}, 'buyer-0', 1, {}, 'awaiting_payment', 1, 'CNY', 1)",
            sale.epoch
        ))
        .await;
    let rejected = stand.admit(&sale, "buyer", 1).await[0];
    assert_eq!(stand.processor().process(stand.read("test", 10).await).await.done, 1);
    // The order that had the slot is over before the release is carried out.
    stand.execute("UPDATE orders SET state = 'cancelled', reason = NULL WHERE id = 77").await;
    let release = stand.database.list_releases(0, 10).await.expect("answered").remove(0);
    assert_eq!((release.order_id, release.returns_unit), (rejected, true));
    let worker = stand.worker().await;
    let empty_outbox = async || {
        eventually(SOON, "an empty outbox", async || {
            stand.database.count_releases(id).await.ok() == Some(0)
        })
        .await;
    };
    empty_outbox().await;
    let units = async || {
        let loaded = stand.redis.read_sale(only(), id).await.expect("answers").sale;
        let loaded = loaded.expect("loaded");
        (loaded.total, loaded.stock, loaded.held)
    };
    assert_eq!(units().await, (20, 20, 0));

    // Carried out, and the outbox row not deleted: it comes again.
    stand
        .execute(&format!(
            "INSERT INTO outbox (sale_id, partition, order_id, user_id, generation, cause, \
             returns_unit, created_ms) \
             VALUES ({id}, 0, {rejected}, 'buyer-0', 1, 'slot-taken', TRUE, 1)"
        ))
        .await;
    empty_outbox().await;
    assert_eq!(units().await, (20, 20, 0));
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let key = IdempotencyKey::new("another-key").expect("a key");
    let request = AdmissionRequest {
        user_id: user_id("buyer-0"),
        digest: Some(key.digest()),
        traceparent: None,
    };
    let again = connection.admit(only(), id, &[request]).await.expect("answered");
    let again = again.outcomes[0].expect("a new order");
    assert!(!again.replayed && again.order_id != rejected);
    eventually(SOON, "its row", async || stand.open_ids().await.contains(&again.order_id)).await;
    assert_eq!(units().await, (20, 19, 1));
    worker.stop().await.expect("a clean end");
});
