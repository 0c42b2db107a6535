//! The worker's batch: what becomes of each order, and that nothing is sold twice.

use flashsale_domain::{NewSale, OrderState, Price, RejectReason, Sale, SaleId};
use flashsale_storage_sql::{BatchFailure, Commit, CommitRefusal};

use crate::support::{
    TestDatabase, digest_of, new_sale, on_both, order_id, order_of, orders_of, user_id, written,
};

fn refused(outcome: &Commit) -> &CommitRefusal {
    match outcome {
        Commit::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// The sale as it is after a rebuild.
async fn rebuilt(database: &TestDatabase, sale: &Sale) -> Sale {
    let epoch = database.begin_epoch(sale.id, sale.epoch).await.expect("the epoch can be raised");
    epoch.expect("the sale is there").sale
}

on_both!(a_batch_of_500_becomes_500_rows_with_its_ids, async |database: TestDatabase| {
    let sale = database.published(&new_sale(1_000)).await;
    let batch = orders_of(&sale, 1..=500);

    let before = database.now_ms().await;
    let committed = database.commit_orders(&batch).await.unwrap();
    let after = database.now_ms().await;

    assert_eq!(committed.outcomes, vec![Commit::Inserted; 500]);
    assert!((before..=after).contains(&committed.committed_ms), "{committed:?}");
    assert_eq!(database.stock_left(&sale).await, 500);
    assert_eq!(database.order_ids().await, (1..=500).collect::<Vec<_>>());
    for order in &batch {
        let row = database.find_order(order.id).await.unwrap();
        assert_eq!(row, Some(written(order, &sale, committed.committed_ms)));
    }
});

on_both!(a_batch_without_orders_is_committed, async |database: TestDatabase| {
    assert_eq!(database.commit_orders(&[]).await.unwrap().outcomes, []);
});

on_both!(the_same_batch_again_is_redelivered_and_takes_no_stock, async |database: TestDatabase| {
    let sale = database.published(&new_sale(1_000)).await;
    let batch = orders_of(&sale, 1..=500);
    let first = database.commit_orders(&batch).await.unwrap();
    for _ in 0..3 {
        let again = database.commit_orders(&batch).await.unwrap();
        assert_eq!(again.outcomes, vec![Commit::Redelivered; 500]);
    }
    assert_eq!(database.stock_left(&sale).await, 500);
    assert_eq!(database.order_count().await, 500);
    let row = database.find_order(batch[0].id).await.unwrap();
    assert_eq!(row, Some(written(&batch[0], &sale, first.committed_ms)));
});

on_both!(a_redelivery_is_one_also_after_the_order_moved_on, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=2);
    database.commit_orders(&batch).await.unwrap();
    database.execute("UPDATE orders SET state = 'cancelled' WHERE id = 1").await;
    database.execute("UPDATE orders SET state = 'paid', generation = 2 WHERE id = 2").await;

    let again = database.commit_orders(&batch).await.unwrap();

    assert_eq!(again.outcomes, vec![Commit::Redelivered; 2]);
    let states: Vec<String> = database.column("SELECT state FROM orders ORDER BY id").await;
    assert_eq!(states, ["cancelled", "paid"]);
    assert_eq!(database.stock_left(&sale).await, 8);
});

on_both!(of_a_batch_half_new_half_old_only_the_new_half_counts, async |database: TestDatabase| {
    let sale = database.published(&new_sale(1_000)).await;
    database.commit_orders(&orders_of(&sale, 1..=250)).await.unwrap();

    // Old and new take turns, so that an outcome in the wrong place shows.
    let batch: Vec<_> =
        (1..=250).flat_map(|id| [order_of(&sale, id), order_of(&sale, id + 250)]).collect();
    let committed = database.commit_orders(&batch).await.unwrap();

    let turns = [Commit::Redelivered, Commit::Inserted];
    assert_eq!(committed.outcomes, turns.into_iter().cycle().take(500).collect::<Vec<_>>());
    assert_eq!(database.stock_left(&sale).await, 500);
    assert_eq!(database.order_count().await, 500);
});

on_both!(an_order_twice_in_a_batch_becomes_one_row, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let batch = [order_of(&sale, 1), order_of(&sale, 2), order_of(&sale, 1), order_of(&sale, 1)];

    let committed = database.commit_orders(&batch).await.unwrap();

    let expected = [Commit::Inserted, Commit::Inserted, Commit::Redelivered, Commit::Redelivered];
    assert_eq!(committed.outcomes, expected);
    assert_eq!(database.order_ids().await, [1, 2]);
    assert_eq!(database.stock_left(&sale).await, 8);
    let again = database.commit_orders(&batch).await.unwrap();
    assert_eq!(again.outcomes, vec![Commit::Redelivered; 4]);
});

on_both!(
    an_id_twice_in_a_batch_with_other_content_is_a_conflict,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(10)).await;
        let mut other = order_of(&sale, 1);
        other.user_id = user_id("somebody else");
        let batch = [order_of(&sale, 1), other, order_of(&sale, 2)];

        let committed = database.commit_orders(&batch).await.unwrap();

        assert_eq!(committed.outcomes[0], Commit::Inserted);
        let conflict = CommitRefusal::ContentConflict(order_id(1));
        assert_eq!(refused(&committed.outcomes[1]), &conflict);
        assert_eq!(committed.outcomes[2], Commit::Inserted);
        assert_eq!(database.order_ids().await, [1, 2]);
        assert_eq!(database.stock_left(&sale).await, 8);
    }
);

on_both!(
    an_order_whose_slot_is_taken_is_rejected_and_the_neighbours_are_written,
    async |database: TestDatabase| {
        let sale = database.published(&NewSale { per_buyer: 2, ..new_sale(10) }).await;
        for (state, holder) in [(OrderState::AwaitingPayment, 101), (OrderState::Paid, 102)] {
            let user = format!("holder-{holder}");
            database.insert_order(holder, &sale, &user, 1, state).await;
            let mut second = order_of(&sale, holder + 100);
            second.user_id = user_id(&user);
            let mut other_slot = order_of(&sale, holder + 200);
            other_slot.user_id = user_id(&user);
            other_slot.slot = 2;
            let batch =
                [order_of(&sale, holder + 300), second, order_of(&sale, holder + 400), other_slot];

            let committed = database.commit_orders(&batch).await.unwrap();

            assert_eq!(committed.outcomes[0], Commit::Inserted);
            assert_eq!(committed.outcomes[1], Commit::Rejected(RejectReason::SlotTaken));
            assert_eq!(committed.outcomes[2], Commit::Inserted);
            assert_eq!(committed.outcomes[3], Commit::Inserted);
            // What it gives back stands in the outbox, with the order that has the slot instead.
            let releases = database.list_releases(0, 10).await.unwrap();
            let release = releases.last().expect("a release");
            assert_eq!(release.order_id, order_id(holder + 100));
            assert!(release.returns_unit);
            assert_eq!(release.instead.as_ref().map(|it| it.order.id), Some(order_id(holder)));
            // Coming again changes nothing, and releases nothing more.
            let again = database.commit_orders(&batch).await.unwrap();
            assert_eq!(again.outcomes, vec![Commit::Redelivered; 4]);
            assert_eq!(database.list_releases(0, 10).await.unwrap().len(), releases.len());
        }
        assert_eq!(database.stock_left(&sale).await, 4);
    }
);

on_both!(of_two_orders_in_one_slot_of_one_batch_one_is_rejected, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let (first, mut second) = (order_of(&sale, 1), order_of(&sale, 2));
    second.user_id = first.user_id.clone();

    let committed = database.commit_orders(&[second, first]).await.unwrap();

    assert_eq!(committed.outcomes[0], Commit::Rejected(RejectReason::SlotTaken));
    assert_eq!(committed.outcomes[1], Commit::Inserted);
    assert_eq!(database.stock_left(&sale).await, 9);
});

on_both!(a_closed_order_does_not_hold_its_slot, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let closed =
        [OrderState::Cancelled, OrderState::Expired, OrderState::RefundDue, OrderState::Rejected];
    let mut batch = Vec::new();
    for (id, state) in (1..).zip(closed) {
        let order = order_of(&sale, id + 100);
        database.insert_order(id, &sale, order.user_id.as_str(), 1, state).await;
        batch.push(order);
    }
    let committed = database.commit_orders(&batch).await.unwrap();
    assert_eq!(committed.outcomes, vec![Commit::Inserted; 4]);
    assert_eq!(database.stock_left(&sale).await, 6);
});

on_both!(
    an_id_with_other_content_is_a_conflict_and_its_neighbours_are_written,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(10)).await;
        let other_sale = database.published(&new_sale(10)).await;
        let original = order_of(&sale, 1);
        let first = database.commit_orders(std::slice::from_ref(&original)).await.unwrap();

        let mut changed = vec![original.clone(); 5];
        changed[0].sale_id = other_sale.id;
        changed[1].user_id = user_id("somebody else");
        changed[2].slot = 2;
        changed[3].digest = Some(digest_of("another-key"));
        changed[4].digest = None;
        for (neighbour, changed) in (2..).zip(changed) {
            let batch = [changed, order_of(&sale, neighbour)];
            let committed = database.commit_orders(&batch).await.unwrap();
            let conflict = CommitRefusal::ContentConflict(order_id(1));
            assert_eq!(refused(&committed.outcomes[0]), &conflict, "{:?}", batch[0]);
            assert_eq!(committed.outcomes[1], Commit::Inserted);
        }

        let row = database.find_order(original.id).await.unwrap();
        assert_eq!(row, Some(written(&original, &sale, first.committed_ms)));
        assert_eq!(database.stock_left(&sale).await, 4);
        assert_eq!(database.stock_left(&other_sale).await, 10);
    }
);

on_both!(
    a_batch_that_would_oversell_is_refused_and_nothing_is_written,
    async |database: TestDatabase| {
        let plenty = database.published(&new_sale(100)).await;
        let short = database.published(&new_sale(4)).await;
        let mut batch = orders_of(&plenty, 1..=5);
        batch.extend(orders_of(&short, 6..=10));

        let failure = database.commit_orders(&batch).await.unwrap_err();

        let gone = CommitRefusal::StockGone(short.id);
        assert!(matches!(&failure, BatchFailure::Refused(refusal) if *refusal == gone));
        assert_eq!(database.order_count().await, 0);
        assert_eq!(database.stock_left(&plenty).await, 100);
        assert_eq!(database.stock_left(&short).await, 4);

        // One order fewer is exactly the stock.
        batch.pop();
        let committed = database.commit_orders(&batch).await.unwrap();
        assert_eq!(committed.outcomes, vec![Commit::Inserted; 9]);
        assert_eq!(database.stock_left(&short).await, 0);

        // What is written already needs no stock.
        let again = database.commit_orders(&batch).await.unwrap();
        assert_eq!(again.outcomes, vec![Commit::Redelivered; 9]);
    }
);

on_both!(
    an_order_of_a_missing_sale_is_refused_and_the_neighbours_are_written,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(10)).await;
        let missing = SaleId::from_i64(i64::MAX).unwrap();
        let mut lost = order_of(&sale, 2);
        lost.sale_id = missing;
        let batch = [order_of(&sale, 1), lost.clone(), order_of(&sale, 3)];

        let committed = database.commit_orders(&batch).await.unwrap();

        assert_eq!(committed.outcomes[0], Commit::Inserted);
        assert_eq!(refused(&committed.outcomes[1]), &CommitRefusal::SaleMissing(missing));
        assert_eq!(committed.outcomes[2], Commit::Inserted);
        assert_eq!(database.order_ids().await, [1, 3]);
        assert_eq!(database.stock_left(&sale).await, 8);

        let before = database.now_ms().await;
        let alone = database.commit_orders(&[lost]).await.unwrap();
        assert_eq!(refused(&alone.outcomes[0]), &CommitRefusal::SaleMissing(missing));
        // The clock is the database's, whether or not a sale was found.
        assert!((before..=database.now_ms().await).contains(&alone.committed_ms), "{alone:?}");
    }
);

on_both!(
    an_order_of_an_older_epoch_becomes_a_rejected_row_and_takes_no_stock,
    async |database: TestDatabase| {
        let old = database.published(&new_sale(10)).await;
        let sale = rebuilt(&database, &old).await;
        let lost = order_of(&old, 1);
        // The same buyer ordered again after the rebuild; the slot must be free.
        let mut kept = order_of(&sale, 2);
        kept.user_id = lost.user_id.clone();

        let committed = database.commit_orders(&[kept.clone(), lost.clone()]).await.unwrap();

        let rejected = Commit::Rejected(RejectReason::MemoryLost);
        assert_eq!(committed.outcomes, [Commit::Inserted, rejected]);
        assert_eq!(database.stock_left(&sale).await, 9);
        let mut expected = written(&lost, &sale, committed.committed_ms);
        expected.order.state = OrderState::Rejected;
        expected.order.reason = Some("memory-lost".to_owned());
        expected.order.pay_by_ms = None;
        assert_eq!(database.find_order(lost.id).await.unwrap(), Some(expected));
        let epochs: Vec<i64> = database.column("SELECT epoch FROM orders ORDER BY id").await;
        assert_eq!(epochs, [old.epoch, sale.epoch]);

        let again = database.commit_orders(&[kept, lost]).await.unwrap();
        assert_eq!(again.outcomes, vec![Commit::Redelivered; 2]);
        assert_eq!(database.stock_left(&sale).await, 9);
    }
);

on_both!(
    an_order_written_before_the_rebuild_is_redelivered_after_it,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(10)).await;
        let order = order_of(&sale, 1);
        database.commit_orders(std::slice::from_ref(&order)).await.unwrap();
        rebuilt(&database, &sale).await;

        let again = database.commit_orders(std::slice::from_ref(&order)).await.unwrap();

        assert_eq!(again.outcomes, [Commit::Redelivered]);
        let row = database.find_order(order.id).await.unwrap().unwrap();
        assert_eq!(row.order.state, OrderState::AwaitingPayment);
        assert_eq!(database.stock_left(&sale).await, 9);
    }
);

on_both!(
    orders_of_an_older_epoch_are_rejected_also_when_nothing_is_left,
    async |database: TestDatabase| {
        let old = database.published(&new_sale(1)).await;
        let sale = rebuilt(&database, &old).await;
        database.commit_orders(&[order_of(&sale, 1)]).await.unwrap();

        let committed = database.commit_orders(&orders_of(&old, 2..=9)).await.unwrap();

        let rejected = Commit::Rejected(RejectReason::MemoryLost);
        assert_eq!(committed.outcomes, vec![rejected; 8]);
        assert_eq!(database.stock_left(&sale).await, 0);
    }
);

on_both!(an_order_of_a_later_epoch_is_refused, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let mut ahead = order_of(&sale, 2);
    ahead.epoch = sale.epoch + 1;
    let batch = [order_of(&sale, 1), ahead];

    let committed = database.commit_orders(&batch).await.unwrap();

    assert_eq!(committed.outcomes[0], Commit::Inserted);
    let refusal = CommitRefusal::EpochAhead { entry: sale.epoch + 1, database: sale.epoch };
    assert_eq!(refused(&committed.outcomes[1]), &refusal);
    assert_eq!(database.order_ids().await, [1]);
    assert_eq!(database.stock_left(&sale).await, 9);
});

on_both!(a_batch_of_several_sales_takes_from_each_its_own, async |database: TestDatabase| {
    let mut sales = Vec::new();
    for n in 1..=4_i64 {
        let currency = if n % 2 == 0 { "EUR" } else { "CNY" }.parse().unwrap();
        let new = NewSale {
            price: Price { amount: n * 100, currency },
            payment_window_s: n * 60,
            ..new_sale(n * 100)
        };
        sales.push(database.published(&new).await);
    }
    let paused = database.published(&new_sale(9)).await;
    sales.push(database.set_state(&paused, flashsale_domain::SaleState::Paused).await);

    // 1 order of the first sale, 2 of the second, and so on, in turns.
    let mut batch = Vec::new();
    let mut id = 0;
    for round in 0..5 {
        for sale in &sales[round..] {
            id += 1;
            batch.push(order_of(sale, id));
        }
    }
    let committed = database.commit_orders(&batch).await.unwrap();

    assert_eq!(committed.outcomes, vec![Commit::Inserted; 15]);
    for (units, sale) in (1..).zip(&sales) {
        assert_eq!(database.stock_left(sale).await, sale.stock_left - units);
    }
    for order in &batch {
        let sale = sales.iter().find(|sale| sale.id == order.sale_id).unwrap();
        let row = database.find_order(order.id).await.unwrap();
        assert_eq!(row, Some(written(order, sale, committed.committed_ms)));
    }
});

on_both!(a_batch_larger_than_one_statement_is_written_whole, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10_000)).await;
    // 3,000 rows of 12 values are above SQLite's 32,766 values a statement.
    let first = database.commit_orders(&orders_of(&sale, 1..=3_000)).await.unwrap();
    assert_eq!(first.outcomes, vec![Commit::Inserted; 3_000]);
    assert_eq!(database.stock_left(&sale).await, 7_000);

    let second = database.commit_orders(&orders_of(&sale, 1_501..=4_500)).await.unwrap();
    assert_eq!(second.outcomes[..1_500], vec![Commit::Redelivered; 1_500]);
    assert_eq!(second.outcomes[1_500..], vec![Commit::Inserted; 1_500]);
    assert_eq!(database.stock_left(&sale).await, 5_500);
    assert_eq!(database.order_ids().await, (1..=4_500).collect::<Vec<_>>());
});

on_both!(
    two_workers_with_overlapping_batches_write_each_order_once,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(5_000)).await;
        for round in 0..20 {
            let base = round * 150;
            let left = orders_of(&sale, base + 1..=base + 100);
            // Backwards: only the order within the transaction keeps the two from waiting in a circle.
            let mut right = orders_of(&sale, base + 51..=base + 150);
            right.reverse();

            let (left_done, right_done) =
                tokio::join!(database.commit_orders(&left), database.commit_orders(&right));

            let (left_done, right_done) = (left_done.unwrap(), right_done.unwrap());
            let mut inserted: Vec<i64> = left
                .iter()
                .zip(&left_done.outcomes)
                .chain(right.iter().zip(&right_done.outcomes))
                .filter(|(_, outcome)| match outcome {
                    Commit::Inserted => true,
                    Commit::Redelivered => false,
                    other => panic!("round {round}: {other:?}"),
                })
                .map(|(order, _)| order.id.as_i64())
                .collect();
            inserted.sort_unstable();
            assert_eq!(inserted, (base + 1..=base + 150).collect::<Vec<_>>(), "round {round}");
            assert_eq!(database.stock_left(&sale).await, 5_000 - base - 150);
        }
        assert_eq!(database.order_ids().await, (1..=3_000).collect::<Vec<_>>());
    }
);

/// Rows that take their time, so that the two are certain to meet in the middle.
#[tokio::test]
async fn two_slow_batches_in_opposite_order_do_not_wait_in_a_circle() {
    let database = TestDatabase::postgres().await;
    let sales =
        [database.published(&new_sale(100)).await, database.published(&new_sale(100)).await];
    database
        .execute(
            "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS \
               $$ BEGIN PERFORM pg_sleep(0.003); RETURN NEW; END $$; \
             CREATE TRIGGER slowly BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slowly()",
        )
        .await;
    let left: Vec<_> =
        (1..=60).zip(sales.iter().cycle()).map(|(id, sale)| order_of(sale, id)).collect();
    let right: Vec<_> = left.iter().rev().cloned().collect();

    let (left, right) = tokio::join!(database.commit_orders(&left), database.commit_orders(&right));

    let both = [left.unwrap().outcomes, right.unwrap().outcomes];
    let count = |outcome: Commit| both.iter().flatten().filter(|other| **other == outcome).count();
    assert_eq!((count(Commit::Inserted), count(Commit::Redelivered)), (60, 60));
    for sale in &sales {
        assert_eq!(database.stock_left(sale).await, 70);
    }
}

on_both!(two_workers_with_orders_of_one_slot_write_one_of_them, async |database: TestDatabase| {
    let sale = database.published(&new_sale(1_000)).await;
    for round in 0..20 {
        // Ten buyers, each with one order in either batch.
        let base = round * 20;
        let left = orders_of(&sale, base + 1..=base + 10);
        let mut right = orders_of(&sale, base + 11..=base + 20);
        for (right, left) in right.iter_mut().zip(&left) {
            right.user_id = left.user_id.clone();
        }
        let (left_done, right_done) =
            tokio::join!(database.commit_orders(&left), database.commit_orders(&right));
        let (left_done, right_done) = (left_done.unwrap(), right_done.unwrap());
        for i in 0..10 {
            match (&left_done.outcomes[i], &right_done.outcomes[i]) {
                (Commit::Inserted, Commit::Rejected(RejectReason::SlotTaken))
                | (Commit::Rejected(RejectReason::SlotTaken), Commit::Inserted) => {}
                other => panic!("round {round}: {other:?}"),
            }
        }
    }
    assert_eq!(database.order_count().await, 400, "half of them rejected");
    assert_eq!(database.stock_left(&sale).await, 800);
});

on_both!(workers_with_more_orders_than_stock_do_not_oversell, async |database: TestDatabase| {
    // Ten batches of 20 for 110 units: five fit, and ten units are left.
    let sale = database.published(&new_sale(110)).await;
    let tasks: Vec<_> = (0..10)
        .map(|task| {
            let (database, sale) = ((*database).clone(), sale.clone());
            tokio::spawn(async move {
                let batch = orders_of(&sale, task * 20 + 1..=task * 20 + 20);
                database.commit_orders(&batch).await
            })
        })
        .collect();
    let mut committed = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(batch) => {
                assert_eq!(batch.outcomes, vec![Commit::Inserted; 20]);
                committed += 1;
            }
            Err(BatchFailure::Refused(CommitRefusal::StockGone(gone))) => assert_eq!(gone, sale.id),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(committed, 5);
    assert_eq!(database.order_count().await, 100);
    assert_eq!(database.stock_left(&sale).await, 10);
});

on_both!(
    any_buyers_id_and_the_largest_order_id_are_stored_as_they_are,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(100)).await;
        let users = [
            "o'brien\"; DROP TABLE orders; --",
            "用户一 🛒",
            &"x".repeat(128),
            &"🛒".repeat(32),
            "%_\\",
            "$1 ? :id",
            "a",
            "A",
            "a ",
            "\u{e9}",
            "e\u{301}",
            "1",
            "01",
        ];
        let mut batch: Vec<_> = (1..)
            .zip(users)
            .map(|(id, user)| {
                let mut order = order_of(&sale, id);
                order.user_id = user_id(user);
                order
            })
            .collect();
        batch.push(order_of(&sale, i64::MAX));

        let committed = database.commit_orders(&batch).await.unwrap();

        assert_eq!(committed.outcomes, vec![Commit::Inserted; batch.len()]);
        for order in &batch {
            let row = database.find_order(order.id).await.unwrap();
            assert_eq!(row, Some(written(order, &sale, committed.committed_ms)));
            let filter = flashsale_storage_sql::OrderFilter { limit: 10, ..Default::default() };
            let own = database.list_orders(&order.user_id, &filter).await.unwrap();
            assert_eq!(own, [written(order, &sale, committed.committed_ms)]);
        }
        let again = database.commit_orders(&batch).await.unwrap();
        assert_eq!(again.outcomes, vec![Commit::Redelivered; batch.len()]);
    }
);

on_both!(an_order_without_a_key_is_stored_and_recognised, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let mut order = order_of(&sale, 1);
    order.digest = None;
    let first = database.commit_orders(std::slice::from_ref(&order)).await.unwrap();
    assert_eq!(first.outcomes, [Commit::Inserted]);
    let row = database.find_order(order.id).await.unwrap();
    assert_eq!(row, Some(written(&order, &sale, first.committed_ms)));
    let again = database.commit_orders(&[order]).await.unwrap();
    assert_eq!(again.outcomes, [Commit::Redelivered]);
});
