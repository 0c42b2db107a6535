//! Adjustments through both stores: up, down, refused, and begun while Redis is away.

use flashsale_domain::{NewSale, Refusal, STOCK_MAX, Sale, SaleId, SaleMode, SaleState};
use flashsale_operations::{OperationError, Refused};
use flashsale_test_support::eventually;

use crate::support::{SOON, Stand, new_sale, on_both, only, press, refused};

async fn adjust(stand: &Stand, sale: &Sale, delta: i64) -> Result<Sale, OperationError> {
    stand.operations.adjust_stock("an operator", sale.id, delta, "a reason").await
}

async fn finish(stand: &Stand) {
    stand.operations.finish_adjustments(10).await.expect("answered");
}

/// `[stock_total, stock_left]` in the database, then `[total, stock, held]` in Redis.
async fn units(stand: &Stand, sale: &Sale) -> ([i64; 2], [i64; 3]) {
    let row = stand.operations.get_sale(sale.id).await.expect("a sale");
    let key = stand.keys.sale(only(), sale.id);
    let redis = stand.ask(&["HMGET", &key, "total", "stock", "held"]).await;
    ([row.stock_total, row.stock_left], redis)
}

on_both!(a_stock_grows_and_shrinks_while_the_sale_runs, async |stand: Stand| {
    let sale = stand.publish(3).await;
    stand.admit(&sale, "buyer", 3).await;
    stand.work().await;
    assert_eq!(stand.press(&sale, &[press("late")]).await, [Err(Refusal::SoldOut)]);

    let grown = adjust(&stand, &sale, 5).await.expect("adjusted");
    assert_eq!((grown.stock_total, grown.stock_left), (8, 5));
    assert_eq!(units(&stand, &sale).await, ([8, 5], [8, 5, 3]));
    eventually(SOON, "the new units on sale", async || {
        stand.press(&sale, &[press("late")]).await.remove(0)
    })
    .await;
    stand.work().await;
    let shrunk = adjust(&stand, &sale, -4).await.expect("adjusted");
    assert_eq!((shrunk.stock_total, shrunk.stock_left), (4, 0));
    assert_eq!(units(&stand, &sale).await, ([4, 0], [4, 0, 4]));
    assert_eq!(stand.press(&sale, &[press("later")]).await, [Err(Refusal::SoldOut)]);
    finish(&stand).await;
    assert_eq!(units(&stand, &sale).await, ([4, 0], [4, 0, 4]));
    stand.assert_clean(&sale).await;
});

on_both!(what_buyers_hold_is_not_taken_away, async |stand: Stand| {
    let sale = stand.publish(10).await;
    stand.admit(&sale, "buyer", 4).await;
    // Queued orders hold their units as well, though the database has not heard of them.
    let too_few = refused(adjust(&stand, &sale, -7).await);
    assert!(matches!(too_few, Refused::TooFewLeft { left: 6, .. }), "{too_few}");
    stand.work().await;
    let too_few = refused(adjust(&stand, &sale, -7).await);
    assert!(matches!(too_few, Refused::TooFewLeft { left: 6, .. }), "{too_few}");
    assert_eq!(units(&stand, &sale).await, ([10, 6], [10, 6, 4]));
    // A refusal is over and done with.
    adjust(&stand, &sale, -6).await.expect("adjusted");
    assert_eq!(units(&stand, &sale).await, ([4, 0], [4, 0, 4]));
    stand.assert_clean(&sale).await;
});

on_both!(a_refusal_in_redis_is_not_undone_by_who_asks_again, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    // Begun, and read by the operator and by a worker, before either has asked Redis.
    let begun = stand.database.begin_adjustment(sale.id, -1, STOCK_MAX, "r", "a").await;
    let flashsale_storage_sql::AdjustmentAnswer::Pending(read) = begun.expect("answered") else {
        panic!("the database has units left")
    };
    finish(&stand).await;
    stand.work().await;
    let user = crate::support::user_id("buyer-0");
    stand.operations.cancel_order(ids[0], &user).await.expect("cancelled");
    stand.relay().await;
    // By now there is a unit, but the database was told no.
    let late = stand.redis.adjust_stock(only(), sale.id, read.id, read.delta, read.epoch).await;
    assert_eq!(late.expect("answered"), flashsale_storage_redis::Adjusted::Refused);
    assert_eq!(units(&stand, &sale).await, ([10, 1], [10, 1, 9]));
    stand.assert_clean(&sale).await;
});

on_both!(an_adjustment_without_sense_is_refused, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let long = "x".repeat(201);
    for (delta, reason) in [
        (0, "a reason"),
        (STOCK_MAX + 1, "a reason"),
        (-STOCK_MAX - 1, "a reason"),
        (i64::MIN, "a reason"),
        (1, ""),
        (1, "  "),
        (1, "two\nlines"),
        (1, long.as_str()),
        (STOCK_MAX, "a reason"),
    ] {
        let answer = stand.operations.adjust_stock("o", sale.id, delta, reason).await;
        assert!(matches!(refused(answer), Refused::Adjustment), "{delta} {reason:?}");
    }
    let unknown = SaleId::from_i64(4_711).expect("an id");
    let answer = stand.operations.adjust_stock("o", unknown, 1, "r").await;
    assert!(matches!(refused(answer), Refused::SaleNotFound(_)));
    stand.operations.close_sale(sale.id).await.expect("closed");
    assert!(matches!(refused(adjust(&stand, &sale, 1).await), Refused::Closed(_)));
    assert_eq!(units(&stand, &sale).await, ([10, 10], [10, 10, 0]));
});

on_both!(growth_begun_while_redis_is_away_is_there_after_the_rebuild, async |stand: Stand| {
    let sale = stand.publish(10).await;
    stand.admit(&sale, "buyer", 4).await;
    stand.work().await;
    stand.redis.fence(only()).await.expect("fenced");
    assert!(matches!(refused(adjust(&stand, &sale, 5).await), Refused::AdjustmentWaits(_)));
    assert!(matches!(refused(adjust(&stand, &sale, 5).await), Refused::AdjustmentBusy(_)));
    finish(&stand).await;
    assert_eq!(units(&stand, &sale).await, ([15, 11], [10, 6, 4]));
    assert_eq!(stand.ledger(&sale).await.adjusting, 5);
    stand.assert_clean(&sale).await;
    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    for _ in 0..2 {
        assert_eq!(units(&stand, &sale).await, ([15, 11], [15, 11, 4]));
        stand.assert_clean(&sale).await;
        finish(&stand).await;
    }
    adjust(&stand, &sale, 1).await.expect("the way is free again");
    assert_eq!(units(&stand, &sale).await, ([16, 12], [16, 12, 4]));
});

on_both!(
    shrinking_begun_while_redis_is_away_is_finished_after_the_rebuild,
    async |stand: Stand| {
        let sale = stand.publish(10).await;
        stand.admit(&sale, "buyer", 4).await;
        stand.work().await;
        stand.redis.fence(only()).await.expect("fenced");
        assert!(matches!(refused(adjust(&stand, &sale, -5).await), Refused::AdjustmentWaits(_)));
        stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
        assert_eq!(units(&stand, &sale).await, ([10, 6], [10, 6, 4]));
        assert_eq!(stand.ledger(&sale).await.adjusting, -5);
        stand.assert_clean(&sale).await;
        for _ in 0..2 {
            finish(&stand).await;
            assert_eq!(units(&stand, &sale).await, ([5, 1], [5, 1, 4]));
        }
        assert_eq!(stand.ledger(&sale).await.adjusting, 0);
        stand.assert_clean(&sale).await;
    }
);

on_both!(what_shrank_in_a_memory_that_was_lost_shrinks_again, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let begun = stand.database.begin_adjustment(sale.id, -5, STOCK_MAX, "r", "a").await;
    let flashsale_storage_sql::AdjustmentAnswer::Pending(read) = begun.expect("answered") else {
        panic!("the sale is in Redis")
    };
    // Carried out in Redis, and whoever did it died before telling the database.
    let done = stand.redis.adjust_stock(only(), sale.id, read.id, read.delta, read.epoch).await;
    done.expect("answered");
    assert_eq!(units(&stand, &sale).await, ([10, 10], [5, 5, 0]));
    stand.assert_clean(&sale).await;
    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    assert_eq!(units(&stand, &sale).await, ([10, 10], [10, 10, 0]));
    // He wakes up, and his word does not count any more.
    assert!(!stand.database.finish_adjustment(&read, true).await.expect("answered"));
    finish(&stand).await;
    assert_eq!(units(&stand, &sale).await, ([5, 5], [5, 5, 0]));
    stand.assert_clean(&sale).await;
});

on_both!(growth_of_a_sale_that_redis_does_not_have_yet_counts_once, async |stand: Stand| {
    // The partition is open; publishing stopped half way, before Redis had the sale.
    stand.publish(1).await;
    let sale = stand.create(10).await;
    stand.database.set_sale_partition(sale.id, only()).await.expect("a home");
    stand.database.set_sale_state(sale.id, SaleState::Published).await.expect("published");
    assert!(matches!(refused(adjust(&stand, &sale, 5).await), Refused::AdjustmentWaits(_)));
    stand.operations.publish_sale(sale.id).await.expect("published");
    assert_eq!(units(&stand, &sale).await, ([15, 15], [10, 10, 0]));
    stand.assert_clean(&sale).await;
    finish(&stand).await;
    assert_eq!(units(&stand, &sale).await, ([15, 15], [15, 15, 0]));
    stand.assert_clean(&sale).await;
});

on_both!(a_draft_and_a_direct_sale_need_no_redis, async |stand: Stand| {
    let draft = stand.create(10).await;
    let new = NewSale { mode: SaleMode::Direct, ..new_sale(10) };
    let direct = stand.operations.create_sale(&new).await.expect("a sale");
    let direct = stand.operations.publish_sale(direct.id).await.expect("published");
    for sale in [&draft, &direct] {
        assert_eq!(adjust(&stand, sale, 5).await.expect("adjusted").stock_left, 15);
        assert_eq!(adjust(&stand, sale, -12).await.expect("adjusted").stock_total, 3);
        let too_few = refused(adjust(&stand, sale, -4).await);
        assert!(matches!(too_few, Refused::TooFewLeft { left: 3, .. }), "{too_few}");
        stand.assert_clean(sale).await;
    }
    stand.operations.publish_sale(draft.id).await.expect("published");
    assert_eq!(units(&stand, &draft).await, ([3, 3], [3, 3, 0]));
    stand.assert_clean(&draft).await;
});

on_both!(a_sale_whose_keys_are_broken_keeps_no_other_from_its_turn, async |stand: Stand| {
    let (broken, sound) = (stand.publish(10).await, stand.publish(10).await);
    for sale in [&broken, &sound] {
        let begun = stand.database.begin_adjustment(sale.id, 5, STOCK_MAX, "r", "a").await;
        begun.expect("begun");
    }
    let key = stand.keys.sale(only(), broken.id);
    let aside = format!("{key}-aside");
    stand.ask::<()>(&["RENAME", &key, &aside]).await;
    stand.ask::<()>(&["SET", &key, "a string"]).await;
    let fault = stand.operations.finish_adjustments(10).await.expect_err("one is broken");
    assert!(fault.to_string().contains("WRONGTYPE"), "{fault}");
    assert_eq!(units(&stand, &sound).await, ([15, 15], [15, 15, 0]));
    stand.ask::<()>(&["RENAME", &aside, &key]).await;
    finish(&stand).await;
    assert_eq!(units(&stand, &broken).await, ([15, 15], [15, 15, 0]));
});
