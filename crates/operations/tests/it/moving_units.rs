//! The ledger and the audit while units are on their way between the stores: nothing is amiss, and
//! what is amiss is still found.

use flashsale_domain::{NewPayment, OrderId, STOCK_MAX, Sale};
use flashsale_storage_redis::Released;
use flashsale_storage_sql::{AdjustmentAnswer, PaymentAnswer, Reacquiring};

use crate::support::{Stand, on_both, only, user_id};

/// Nothing is amiss; and one unit too many or too few in Redis, or one held by nobody, is.
async fn assert_sound(stand: &Stand, sale: &Sale) {
    let ledger = stand.ledger(sale).await;
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    assert_eq!(ledger.queued, 0, "{ledger:?}");
    stand.assert_clean(sale).await;
    let key = stand.keys.sale(only(), sale.id);
    for (field, delta) in [("stock", 1), ("held", -1)] {
        stand.ask::<i64>(&["HINCRBY", &key, field, &delta.to_string()]).await;
        assert_off(stand, sale, "redis").await;
        stand.ask::<i64>(&["HINCRBY", &key, field, &(-delta).to_string()]).await;
    }
    let id = sale.id;
    let moved = |by| format!("UPDATE sales SET stock_left = stock_left + {by} WHERE id = {id}");
    stand.execute(&moved(-1)).await;
    assert_off(stand, sale, "database").await;
    stand.execute(&moved(1)).await;
    stand.assert_clean(sale).await;
}

/// The ledger is off, and says where.
async fn assert_off(stand: &Stand, sale: &Sale, what: &str) {
    let ledger = stand.ledger(sale).await;
    let named = ledger.problems.iter().any(|problem| problem.to_string().contains(what));
    assert!(!ledger.is_balanced() && named, "no {what:?} in {:?}", ledger.problems);
}

/// Moves units from stock to held in Redis, so that its own account still adds up.
async fn hold(stand: &Stand, sale: &Sale, units: i64) {
    let key = stand.keys.sale(only(), sale.id);
    stand.ask::<i64>(&["HINCRBY", &key, "stock", &(-units).to_string()]).await;
    stand.ask::<i64>(&["HINCRBY", &key, "held", &units.to_string()]).await;
}

async fn paid_late(stand: &Stand, sale: &Sale, id: OrderId) -> Reacquiring {
    let payment = NewPayment { webhook_id: format!("late-{id}"), order_id: id, price: sale.price };
    match stand.database.receive_payment(&payment).await.expect("answered") {
        PaymentAnswer::Reacquire(reacquiring) => *reacquiring,
        other => panic!("{other:?}"),
    }
}

on_both!(cancelled_and_not_yet_released, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    stand.operations.cancel_order(ids[0], &user_id("buyer-0")).await.expect("cancelled");
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.in_transit, ledger.cancelled, ledger.stock_left), (1, 1, 16));
    assert_sound(&stand, &sale).await;
    // Held by nobody, beyond what is on its way.
    hold(&stand, &sale, 1).await;
    assert_off(&stand, &sale, "redis holds 6 units").await;
    stand.assert_found(&sale, "I7", "redis holds 6 units").await;
    hold(&stand, &sale, -3).await;
    assert_off(&stand, &sale, "redis holds 3 units").await;
    hold(&stand, &sale, 2).await;
    stand.assert_clean(&sale).await;

    // Released, and the outbox not told yet.
    let release = stand.database.list_releases(0, 10).await.expect("answered").remove(0);
    assert_eq!(stand.carry_out(&release).await, Released::Done);
    assert_sound(&stand, &sale).await;
    assert_eq!(stand.relay().await, [Released::Nothing]);
    assert_sound(&stand, &sale).await;
    // Its order is over, so whoever says in Redis that it is not is found.
    hold(&stand, &sale, 1).await;
    assert_off(&stand, &sale, "redis holds 5 units").await;
});

on_both!(a_closed_order_that_nobody_releases_is_found, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 2).await;
    stand.work().await;
    stand.operations.cancel_order(ids[0], &user_id("buyer-0")).await.expect("cancelled");
    stand.assert_clean(&sale).await;
    stand.execute("DELETE FROM outbox").await;
    stand.assert_found(&sale, "I6", &ids[0].to_string()).await;
    assert_off(&stand, &sale, "redis holds 2 units").await;
});

on_both!(growth_on_its_way, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    let begun = stand.database.begin_adjustment(sale.id, 7, STOCK_MAX, "r", "a").await;
    let AdjustmentAnswer::Pending(begun) = begun.expect("answered") else { panic!("in Redis") };
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.adjusting, ledger.total, ledger.stock_left), (7, 27, 22));
    assert_sound(&stand, &sale).await;
    // In Redis, and the database not told.
    let done = stand.redis.adjust_stock(only(), sale.id, begun.id, 7, begun.epoch).await;
    done.expect("answered");
    assert_sound(&stand, &sale).await;
    stand.operations.finish_adjustments(10).await.expect("answered");
    assert_eq!(stand.ledger(&sale).await.adjusting, 0);
    assert_sound(&stand, &sale).await;
});

on_both!(shrinking_on_its_way, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    let begun = stand.database.begin_adjustment(sale.id, -7, STOCK_MAX, "r", "a").await;
    let AdjustmentAnswer::Pending(begun) = begun.expect("answered") else { panic!("in Redis") };
    assert_eq!(stand.ledger(&sale).await.adjusting, -7);
    assert_sound(&stand, &sale).await;
    let done = stand.redis.adjust_stock(only(), sale.id, begun.id, -7, begun.epoch).await;
    done.expect("answered");
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.total, ledger.redis.clone().expect("loaded").total), (20, 13));
    assert_sound(&stand, &sale).await;
    stand.operations.finish_adjustments(10).await.expect("answered");
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.adjusting, ledger.total), (0, 13));
    assert_sound(&stand, &sale).await;
    // Without an adjustment on its way nothing explains the difference.
    stand.ask::<i64>(&["HINCRBY", &stand.keys.sale(only(), sale.id), "stock", "-7"]).await;
    stand.ask::<i64>(&["HINCRBY", &stand.keys.sale(only(), sale.id), "total", "-7"]).await;
    assert_off(&stand, &sale, "redis has 6 units in all").await;
});

on_both!(a_late_payment_on_its_way, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    stand.admit(&sale, "other", 4).await;
    stand.work().await;
    let reacquiring = paid_late(&stand, &sale, ids[0]).await;
    // Neither released nor taken again.
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.in_transit, ledger.late_payments, ledger.expired), (1, 1, 1));
    assert_sound(&stand, &sale).await;
    assert_eq!(stand.relay().await, [Released::Done]);
    assert_sound(&stand, &sale).await;
    // Taken in Redis, and the database not told.
    let taken = stand.reacquire(&reacquiring).await;
    assert_eq!(stand.units(&sale).await, [15, 5, sale.epoch]);
    assert_sound(&stand, &sale).await;
    hold(&stand, &sale, 1).await;
    assert_off(&stand, &sale, "redis holds 6 units").await;
    hold(&stand, &sale, -1).await;
    stand.database.finish_reacquiring(&reacquiring, Some(taken)).await.expect("answered");
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.late_payments, ledger.paid), (0, 1));
    assert_sound(&stand, &sale).await;
});
