//! Orders that end unpaid, through both stores.

use flashsale_domain::{Admission, OrderState, Refusal};
use flashsale_storage_redis::Released;
use flashsale_storage_sql::Cancellation;
use flashsale_test_support::eventually;

use crate::support::{SOON, Stand, on_both, press, user_id};

on_both!(a_cancelled_unit_is_sold_again_once_redis_has_heard, async |stand: Stand| {
    let sale = stand.publish(2).await;
    let ids = stand.admit(&sale, "buyer", 2).await;
    stand.work().await;
    let mut changed = stand.redis.changed_orders().await.expect("subscribed");
    for _ in 0..2 {
        let user = user_id("buyer-0");
        let cancelled = stand.operations.cancel_order(ids[0], &user).await.expect("answered");
        let Cancellation::Cancelled(stored) = cancelled else { panic!("{cancelled:?}") };
        assert_eq!(stored.order.state, OrderState::Cancelled);
        assert_eq!(changed.next().await, Some(vec![ids[0]]), "whoever waits is told");
    }
    // In the database the unit is back; in Redis the buyer holds it still, and his slot.
    assert_eq!(stand.units(&sale).await, [0, 2, sale.epoch]);
    assert_eq!(stand.press(&sale, &[press("late")]).await, [Err(Refusal::SoldOut)]);
    assert_eq!(stand.relay().await, [Released::Done]);
    assert_eq!(stand.relay().await, []);
    assert_eq!(stand.units(&sale).await, [1, 1, sale.epoch]);
    let again = eventually(SOON, "the unit on sale", async || {
        stand.press(&sale, &[press("late")]).await.remove(0)
    })
    .await;
    assert!(!again.replayed);
    // His key is answered with the order it was; his slot is free, but the units are gone.
    let old = stand.press(&sale, &[press("buyer-0")]).await;
    assert_eq!(old, [Ok(Admission { order_id: ids[0], replayed: true })]);
    stand.work().await;
    stand.assert_clean(&sale).await;
});

on_both!(what_is_not_cancelled_is_not_announced, async |stand: Stand| {
    let sale = stand.publish(2).await;
    let ids = stand.admit(&sale, "buyer", 1).await;
    let mut changed = stand.redis.changed_orders().await.expect("subscribed");
    let cancel = async |user: &str| {
        stand.operations.cancel_order(ids[0], &user_id(user)).await.expect("answered")
    };
    // Still queued: there is no row to cancel.
    assert_eq!(cancel("buyer-0").await, Cancellation::NotFound);
    stand.work().await;
    assert_eq!(cancel("buyer-1").await, Cancellation::NotFound);
    assert!(matches!(cancel("buyer-0").await, Cancellation::Cancelled(_)));
    // The only word is of the one that was.
    stand.redis.announce_changes(&[]).await.expect("announced");
    assert_eq!(changed.next().await, Some(vec![ids[0]]));
    assert_eq!(stand.units(&sale).await, [1, 1, sale.epoch]);
});

on_both!(overdue_orders_expire_and_their_units_come_back, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    assert_eq!(stand.operations.expire_orders(100).await.expect("answered"), 0);
    stand.make_overdue(&ids[..3]).await;
    let next = stand.operations.next_due().await.expect("answered");
    assert!(next.due_ms.is_some_and(|due| due <= next.now_ms), "{next:?}");
    let mut changed = stand.redis.changed_orders().await.expect("subscribed");
    assert_eq!(stand.operations.expire_orders(2).await.expect("answered"), 2);
    assert_eq!(changed.next().await.map(|ids| ids.len()), Some(2));
    assert_eq!(stand.operations.expire_orders(100).await.expect("answered"), 1);
    assert_eq!(stand.operations.expire_orders(100).await.expect("answered"), 0);
    assert_eq!(stand.relay().await, [Released::Done; 3]);
    assert_eq!(stand.units(&sale).await, [8, 2, sale.epoch]);
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.expired, ledger.awaiting_payment, ledger.stock_left), (3, 2, 8));
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;
});

on_both!(a_release_that_a_rebuild_overtakes_gives_nothing_back_twice, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.admit(&sale, "buyer", 3).await;
    stand.work().await;
    stand.operations.cancel_order(ids[0], &user_id("buyer-0")).await.expect("answered");
    stand.redis.fence(crate::support::only()).await.expect("fenced");
    assert_eq!(stand.relay().await, [Released::NotLoaded]);
    // The rebuild loads the order as it is by now: over.
    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    assert_eq!(stand.units(&sale).await, [8, 2, sale.epoch + 1]);
    assert_eq!(stand.relay().await, [Released::Nothing]);
    assert_eq!(stand.units(&sale).await, [8, 2, sale.epoch + 1]);
    stand.assert_clean(&sale).await;
});
