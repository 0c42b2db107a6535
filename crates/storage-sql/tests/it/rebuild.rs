//! What a rebuild reads: a new epoch, everything that Redis should know again, and nothing else.

use flashsale_domain::{NewSale, OrderState, Partition, RejectReason, SaleId};
use flashsale_storage_sql::{Commit, HeldOrder};

use crate::support::{
    TestDatabase, digest_of, is_row_state, new_sale, on_both, order_id, order_of, orders_of,
    user_id,
};

on_both!(a_new_epoch_is_one_higher_and_only_this_sales, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let other = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=3)).await.unwrap();

    for epoch in [2, 3, 4] {
        let begun = database.begin_epoch(sale.id, epoch - 1).await.unwrap().unwrap();
        assert_eq!(begun.sale.epoch, epoch);
        assert_eq!(begun.sale.stock_left, 7);
        assert_eq!(database.find_sale(sale.id).await.unwrap(), Some(begun.sale));
        // Somebody who has not heard of it.
        assert!(database.begin_epoch(sale.id, epoch - 1).await.unwrap().is_none());
    }
    assert_eq!(database.find_sale(other.id).await.unwrap(), Some(other));
    let missing = SaleId::from_i64(4_711).unwrap();
    assert!(database.begin_epoch(missing, 1).await.unwrap().is_none());
});

on_both!(of_two_rebuilds_at_once_one_raises_the_epoch, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let (first, second) =
        tokio::join!(database.begin_epoch(sale.id, 1), database.begin_epoch(sale.id, 1));
    let begun: Vec<_> = [first, second].into_iter().filter_map(|begun| begun.unwrap()).collect();
    assert_eq!(begun.len(), 1);
    assert_eq!(begun[0].sale.epoch, 2);
});

on_both!(every_order_is_read_with_what_redis_should_know_of_it, async |database: TestDatabase| {
    let sale = database.published(&NewSale { per_buyer: 9, ..new_sale(100) }).await;
    let other = database.published(&new_sale(100)).await;
    let mut expected = Vec::new();
    for (id, state) in (1..).zip(OrderState::ALL.into_iter().filter(|s| is_row_state(*s))) {
        let user = format!("user-{}", id % 2);
        let (slot, generation) = (i32::try_from(id).unwrap(), u32::try_from(id + 3).unwrap());
        database.insert_order(id, &sale, &user, slot, state).await;
        let digest = digest_of(&format!("key-{id}"));
        database
            .execute(&format!(
                "UPDATE orders SET generation = {generation}, digest = '{digest}' WHERE id = {id}"
            ))
            .await;
        expected.push(HeldOrder {
            id: order_id(id),
            user_id: user_id(&user),
            slot: u16::try_from(slot).unwrap(),
            generation,
            open: state.is_open(),
            digest: Some(digest),
        });
    }
    database.insert_order(100, &other, "user-1", 1, OrderState::Paid).await;
    let mut last = order_of(&sale, 200);
    last.digest = None;
    database.commit_orders(std::slice::from_ref(&last)).await.unwrap();
    expected.push(HeldOrder {
        id: last.id,
        user_id: last.user_id,
        slot: 1,
        generation: 1,
        open: true,
        digest: None,
    });

    let begun = database.begin_epoch(sale.id, sale.epoch).await.unwrap().unwrap();

    assert_eq!(begun.orders, expected);
});

on_both!(
    an_order_lost_with_redis_is_left_out_and_other_rejected_ones_are_not,
    async |database: TestDatabase| {
        let old = database.published(&new_sale(10)).await;
        let begun = database.begin_epoch(old.id, old.epoch).await.unwrap().unwrap();
        database.commit_orders(&[order_of(&old, 1), order_of(&begun.sale, 2)]).await.unwrap();
        for (id, reason) in [(3, "NULL"), (4, "'stock-gone'")] {
            database.insert_order(id, &old, &format!("user-{id}"), 1, OrderState::Rejected).await;
            database.execute(&format!("UPDATE orders SET reason = {reason} WHERE id = {id}")).await;
        }

        let begun = database.begin_epoch(old.id, begun.sale.epoch).await.unwrap().unwrap();

        let held: Vec<(i64, bool)> =
            begun.orders.iter().map(|held| (held.id.as_i64(), held.open)).collect();
        assert_eq!(held, [(2, true), (3, false), (4, false)]);
    }
);

on_both!(
    what_the_old_memory_still_sends_is_rejected_after_a_rebuild,
    async |database: TestDatabase| {
        let old = database.published(&new_sale(10)).await;
        database.commit_orders(&orders_of(&old, 1..=3)).await.unwrap();
        let begun = database.begin_epoch(old.id, old.epoch).await.unwrap().unwrap();
        assert_eq!(begun.orders.len(), 3);

        let late = database.commit_orders(&orders_of(&old, 3..=6)).await.unwrap();

        let rejected = Commit::Rejected(RejectReason::MemoryLost);
        assert_eq!(late.outcomes[0], Commit::Redelivered);
        assert_eq!(late.outcomes[1..], vec![rejected; 3]);
        let totals = database.sale_totals(old.id).await.unwrap().unwrap();
        assert_eq!((totals.stock_left, totals.open()), (7, 3));
        assert_eq!(totals.count(OrderState::Rejected), 3);
    }
);

on_both!(the_epoch_and_the_orders_are_of_one_moment, async |database: TestDatabase| {
    for round in 0..10 {
        let sale = database.published(&new_sale(100)).await;
        let batch = orders_of(&sale, round * 50 + 1..=round * 50 + 50);
        let (committed, begun) =
            tokio::join!(database.commit_orders(&batch), database.begin_epoch(sale.id, sale.epoch));
        let begun = begun.unwrap().unwrap();
        // Committed before the new epoch: all are read. After it, or at once with it: none counts.
        let held = i64::try_from(begun.orders.len()).unwrap();
        assert!(held == 0 || held == 50, "{held}");
        assert_eq!(begun.sale.stock_left, 100 - held);
        match committed {
            Ok(committed) => {
                let rejected = Commit::Rejected(RejectReason::MemoryLost);
                let all = if held == 50 { Commit::Inserted } else { rejected };
                assert_eq!(committed.outcomes, vec![all; 50]);
            }
            Err(flashsale_storage_sql::BatchFailure::Moved) => assert_eq!(held, 0),
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!(database.stock_left(&sale).await, 100 - held);
    }
});

on_both!(the_last_order_id_is_of_the_partitions_sales_only, async |database: TestDatabase| {
    let partition = |number| Partition::new(number).unwrap();
    let mut sales = Vec::new();
    for number in [0, 0, 1] {
        let sale = database.published(&new_sale(100)).await;
        database.set_sale_partition(sale.id, partition(number)).await.unwrap();
        sales.push(sale);
    }
    let direct = database.published(&new_sale(100)).await;
    assert_eq!(database.last_order_id(partition(0)).await.unwrap(), None);

    database.insert_order(10, &sales[0], "me", 1, OrderState::Rejected).await;
    database.insert_order(20, &sales[1], "me", 1, OrderState::Cancelled).await;
    database.insert_order(15, &sales[0], "me", 1, OrderState::Paid).await;
    database.insert_order(i64::MAX, &sales[2], "me", 1, OrderState::Paid).await;
    database.insert_order(40, &direct, "me", 1, OrderState::Paid).await;

    assert_eq!(database.last_order_id(partition(0)).await.unwrap(), Some(order_id(20)));
    assert_eq!(database.last_order_id(partition(1)).await.unwrap(), Some(order_id(i64::MAX)));
    assert_eq!(database.last_order_id(partition(2)).await.unwrap(), None);
});
