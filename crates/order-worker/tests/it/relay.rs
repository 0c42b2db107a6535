//! What a rejected order holds goes back: once, by the outbox.

use flashsale_domain::OrderId;
use flashsale_test_support::eventually;

use crate::support::{Plan, SOON, Stand, on_both, only, press, user_id};

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

on_both!(a_release_waits_for_the_sale_and_is_then_carried_out, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.execute(&format!("UPDATE sales SET stock_left = 0 WHERE id = {}", sale.id)).await;
    stand.admit(&sale, "buyer", 3).await;
    let entries = stand.read("test", 10).await;
    assert_eq!(stand.processor().process(entries).await.done, 3, "three rejected rows");
    assert_eq!(stand.database.count_releases(sale.id).await.expect("answered"), 3);
    stand.redis.fence(only()).await.expect("fenced");
    let worker = stand.worker().await;
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    eventually(SOON, "an empty outbox", async || {
        stand.database.count_releases(sale.id).await.ok() == Some(0)
    })
    .await;
    // The rebuild had loaded them as closed: there was nothing left to give back.
    let loaded =
        stand.redis.read_sale(only(), sale.id).await.expect("answers").sale.expect("loaded");
    assert_eq!((loaded.stock, loaded.held), (0, 0));
    worker.stop().await.expect("a clean end");
});
