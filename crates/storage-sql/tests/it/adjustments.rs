//! Adjustments of a stock: growth is here first, what shrinks in Redis first, each once and for the
//! memory that it was carried out in.

use flashsale_domain::{NewSale, Partition, STOCK_MAX, Sale, SaleId, SaleMode, SaleState};
use flashsale_storage_sql::{Adjustment, AdjustmentAnswer};

use crate::support::{PATIENT, TestDatabase, new_sale, on_both, orders_of};

/// A published sale that has its home.
async fn homed(database: &TestDatabase, stock: i64) -> Sale {
    let sale = database.published(&new_sale(stock)).await;
    let home = Partition::new(3).expect("a partition");
    database.set_sale_partition(sale.id, home).await.expect("stored");
    database.find_sale(sale.id).await.expect("answered").expect("a sale")
}

async fn begin(database: &TestDatabase, sale: &Sale, delta: i64) -> AdjustmentAnswer {
    let begun = database.begin_adjustment(sale.id, delta, STOCK_MAX, "a reason", "an actor").await;
    begun.expect("answered")
}

async fn pending(database: &TestDatabase, sale: &Sale, delta: i64) -> Adjustment {
    match begin(database, sale, delta).await {
        AdjustmentAnswer::Pending(adjustment) => adjustment,
        other => panic!("{other:?}"),
    }
}

async fn finish(database: &TestDatabase, adjustment: &Adjustment, carried_out: bool) -> bool {
    database.finish_adjustment(adjustment, carried_out).await.expect("answered")
}

/// `(stock_total, stock_left)`.
async fn units(database: &TestDatabase, sale: &Sale) -> (i64, i64) {
    let sale = database.find_sale(sale.id).await.expect("answered").expect("a sale");
    database.assert_conserved(&sale).await;
    (sale.stock_total, sale.stock_left)
}

/// Units that one side has and the other not yet.
async fn adjusting(database: &TestDatabase, sale: &Sale) -> i64 {
    let account = database.read_account(sale.id, None, &[]).await.expect("answered");
    account.expect("a sale").adjusting
}

async fn states(database: &TestDatabase) -> Vec<String> {
    database.column("SELECT state FROM adjustments ORDER BY id").await
}

on_both!(growth_is_in_the_database_first, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    database.commit_orders(&orders_of(&sale, 1..=4)).await.unwrap();
    let changed: i64 = database.value("SELECT changed_ms FROM sales").await;
    let adjustment = pending(&database, &sale, 5).await;
    assert_eq!((adjustment.sale_id, adjustment.epoch, adjustment.delta), (sale.id, 1, 5));
    assert_eq!(Some(adjustment.partition), sale.partition);
    assert_eq!(units(&database, &sale).await, (15, 11));
    assert_eq!(adjusting(&database, &sale).await, 5);
    assert_eq!(
        database.list_pending_adjustments(10).await.unwrap(),
        std::slice::from_ref(&adjustment)
    );
    assert!(database.value::<i64>("SELECT changed_ms FROM sales").await >= changed);
    let row = database.rows("SELECT reason, actor FROM adjustments").await.remove(0);
    let text = [0, 1].map(|i| row.try_get_by_index::<String>(i).unwrap());
    assert_eq!(text, ["a reason", "an actor"]);

    for _ in 0..3 {
        assert!(finish(&database, &adjustment, true).await);
        assert_eq!(units(&database, &sale).await, (15, 11));
    }
    assert_eq!(states(&database).await, ["done"]);
    assert_eq!(adjusting(&database, &sale).await, 0);
    assert_eq!(database.list_pending_adjustments(10).await.unwrap(), []);
});

on_both!(what_shrinks_is_in_the_database_last_and_once, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    database.commit_orders(&orders_of(&sale, 1..=4)).await.unwrap();
    let adjustment = pending(&database, &sale, -6).await;
    assert_eq!(units(&database, &sale).await, (10, 6));
    assert_eq!(adjusting(&database, &sale).await, -6);
    let other = database.connect(PATIENT).await;
    let (a, b) = tokio::join!(
        database.finish_adjustment(&adjustment, true),
        other.finish_adjustment(&adjustment, true),
    );
    assert!(a.unwrap() && b.unwrap());
    for carried_out in [true, false] {
        assert!(finish(&database, &adjustment, carried_out).await);
        assert_eq!(units(&database, &sale).await, (4, 0));
    }
    assert_eq!(states(&database).await, ["done"]);
});

on_both!(what_redis_refuses_changes_nothing, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    let adjustment = pending(&database, &sale, -6).await;
    for carried_out in [false, false, true] {
        assert!(finish(&database, &adjustment, carried_out).await);
        assert_eq!(units(&database, &sale).await, (10, 10));
    }
    assert_eq!(states(&database).await, ["refused"]);
    pending(&database, &sale, -6).await;
});

on_both!(what_buyers_hold_cannot_be_taken_away, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    database.commit_orders(&orders_of(&sale, 1..=4)).await.unwrap();
    for delta in [-7, -10, -STOCK_MAX, i64::MIN] {
        assert_eq!(begin(&database, &sale, delta).await, AdjustmentAnswer::TooFew { left: 6 });
    }
    for delta in [STOCK_MAX - 9, STOCK_MAX, i64::MAX] {
        assert_eq!(begin(&database, &sale, delta).await, AdjustmentAnswer::TooMany);
    }
    assert_eq!(states(&database).await, Vec::<String>::new());
    assert_eq!(units(&database, &sale).await, (10, 6));
    let most = pending(&database, &sale, STOCK_MAX - 10).await;
    assert!(finish(&database, &most, true).await);
    assert_eq!(units(&database, &sale).await, (STOCK_MAX, STOCK_MAX - 4));
});

on_both!(
    units_sold_after_redis_gave_them_up_are_not_taken_twice,
    async |database: TestDatabase| {
        let sale = homed(&database, 10).await;
        let adjustment = pending(&database, &sale, -6).await;
        // More are sold here than Redis had left: one of the two stores is wrong, and says so.
        database.commit_orders(&orders_of(&sale, 1..=5)).await.unwrap();
        database.finish_adjustment(&adjustment, true).await.unwrap_err();
        assert_eq!(units(&database, &sale).await, (10, 5));
        assert_eq!(states(&database).await, ["pending"]);
    }
);

on_both!(a_closed_or_unknown_sale_is_not_adjusted, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    let paused = database.set_state(&sale, SaleState::Paused).await;
    let adjustment = pending(&database, &paused, 1).await;
    assert!(finish(&database, &adjustment, true).await);
    database.set_state(&sale, SaleState::Closed).await;
    for delta in [1, -1] {
        assert_eq!(begin(&database, &sale, delta).await, AdjustmentAnswer::Closed);
    }
    assert_eq!(units(&database, &sale).await, (11, 11));
    let unknown = SaleId::from_i64(4_711).unwrap();
    let answer = database.begin_adjustment(unknown, 1, STOCK_MAX, "r", "a").await.unwrap();
    assert_eq!(answer, AdjustmentAnswer::SaleNotFound);
});

on_both!(a_draft_and_a_direct_sale_are_adjusted_at_once, async |database: TestDatabase| {
    let draft = database.insert_sale(&new_sale(10)).await.unwrap();
    // A draft whose home is chosen is still one that Redis knows nothing of.
    database.set_sale_partition(draft.id, Partition::new(3).unwrap()).await.unwrap();
    let direct = database.published(&NewSale { mode: SaleMode::Direct, ..new_sale(10) }).await;
    for sale in [draft, direct] {
        assert_eq!(begin(&database, &sale, 5).await, AdjustmentAnswer::Done);
        assert_eq!(units(&database, &sale).await, (15, 15));
        assert_eq!(begin(&database, &sale, -15).await, AdjustmentAnswer::Done);
        assert_eq!(units(&database, &sale).await, (0, 0));
        assert_eq!(begin(&database, &sale, -1).await, AdjustmentAnswer::TooFew { left: 0 });
    }
    assert_eq!(states(&database).await, ["done"; 4]);
    assert_eq!(database.list_pending_adjustments(10).await.unwrap(), []);
});

on_both!(one_adjustment_of_a_sale_waits_for_the_other, async |database: TestDatabase| {
    let (sale, other) = (homed(&database, 10).await, homed(&database, 10).await);
    let first = pending(&database, &sale, 1).await;
    for delta in [1, -1] {
        assert_eq!(begin(&database, &sale, delta).await, AdjustmentAnswer::Busy);
    }
    assert_eq!(units(&database, &sale).await, (11, 11));
    let elsewhere = pending(&database, &other, -1).await;
    let listed = database.list_pending_adjustments(10).await.unwrap();
    assert_eq!(listed, [first.clone(), elsewhere.clone()]);
    assert_eq!(database.list_pending_adjustments(1).await.unwrap(), std::slice::from_ref(&first));
    assert!(finish(&database, &first, true).await);
    let second = pending(&database, &sale, 1).await;
    assert!(second.id > first.id, "Redis tells them by their number");
    // The first one again is not the second.
    assert!(finish(&database, &first, true).await);
    assert_eq!(states(&database).await, ["done", "pending", "pending"]);
});

on_both!(of_two_adjustments_at_once_one_is_begun, async |database: TestDatabase| {
    let other = database.connect(PATIENT).await;
    for _ in 0..20 {
        let sale = homed(&database, 10).await;
        let (a, b) = tokio::join!(
            database.begin_adjustment(sale.id, 5, STOCK_MAX, "r", "a"),
            other.begin_adjustment(sale.id, 7, STOCK_MAX, "r", "a"),
        );
        let begun: Vec<i64> = [a.unwrap(), b.unwrap()]
            .into_iter()
            .filter_map(|answer| match answer {
                AdjustmentAnswer::Pending(adjustment) => Some(adjustment.delta),
                AdjustmentAnswer::Busy => None,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(begun.len(), 1);
        assert_eq!(units(&database, &sale).await, (10 + begun[0], 10 + begun[0]));
    }
});

on_both!(a_rebuild_loads_growth_with_the_rest, async |database: TestDatabase| {
    let (sale, other) = (homed(&database, 10).await, homed(&database, 10).await);
    let adjustment = pending(&database, &sale, 5).await;
    let elsewhere = pending(&database, &other, 5).await;
    let begun = database.begin_epoch(sale.id, sale.epoch).await.unwrap().unwrap();
    assert_eq!((begun.sale.stock_total, begun.sale.stock_left), (15, 15));
    assert_eq!(states(&database).await, ["done", "pending"]);
    // Who carried it out in the old memory finds it done, and nothing is added twice.
    assert!(finish(&database, &adjustment, true).await);
    assert_eq!(units(&database, &sale).await, (15, 15));
    assert_eq!(database.list_pending_adjustments(10).await.unwrap(), [elsewhere]);
    // A rebuild that does not come about absorbs nothing.
    assert!(database.begin_epoch(other.id, 4_711).await.unwrap().is_none());
    assert_eq!(states(&database).await, ["done", "pending"]);
});

on_both!(what_shrinks_is_carried_out_again_after_a_rebuild, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    let adjustment = pending(&database, &sale, -4).await;
    let begun = database.begin_epoch(sale.id, sale.epoch).await.unwrap().unwrap();
    assert_eq!((begun.sale.stock_total, begun.sale.stock_left), (10, 10));
    // The memory that it was carried out, or refused, in is gone.
    for carried_out in [true, false] {
        assert!(!finish(&database, &adjustment, carried_out).await);
        assert_eq!(
            (states(&database).await, units(&database, &sale).await),
            (vec!["pending".to_owned()], (10, 10))
        );
    }
    let anew = database.list_pending_adjustments(10).await.unwrap().remove(0);
    assert_eq!(anew, Adjustment { epoch: begun.sale.epoch, ..adjustment });
    assert!(finish(&database, &anew, true).await);
    assert_eq!(units(&database, &sale).await, (6, 6));
});

on_both!(a_sale_is_published_without_growth_that_is_to_follow, async |database: TestDatabase| {
    let sale = homed(&database, 10).await;
    let before = async || {
        let found = database.find_sale_before_growth(sale.id).await.unwrap().unwrap();
        (found.stock_total, found.stock_left)
    };
    assert_eq!(before().await, (10, 10));
    let growth = pending(&database, &sale, 5).await;
    assert_eq!(before().await, (10, 10));
    assert!(finish(&database, &growth, true).await);
    assert_eq!(before().await, (15, 15));
    // What shrinks is taken away in Redis first, from what it has.
    pending(&database, &sale, -5).await;
    assert_eq!(before().await, (15, 15));
    let unknown = SaleId::from_i64(4_711).unwrap();
    assert_eq!(database.find_sale_before_growth(unknown).await.unwrap(), None);
});
