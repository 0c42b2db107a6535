//! Orders that end unpaid: who may cancel what, what is overdue, and what comes back.

use flashsale_domain::{NewSale, OrderState, SaleMode, SaleState};
use flashsale_storage_sql::{Cancellation, DirectAnswer};
use flashsale_test_support::eventually;

use crate::support::{
    SOON, TestDatabase, direct_id, is_row_state, new_sale, on_both, order_id, order_of, orders_of,
    user_id,
};

async fn cancel(database: &TestDatabase, id: i64, user: &str) -> Cancellation {
    database.cancel_order(order_id(id), &user_id(user)).await.expect("answered")
}

on_both!(a_cancelled_order_gives_its_unit_back_once, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.ordered(&sale, 1).await;
    database.ordered(&sale, 2).await;
    assert_eq!(database.stock_left(&sale).await, 8);

    let before = database.now_ms().await;
    let cancelled = cancel(&database, 1, "user-1").await;
    let after = database.now_ms().await;

    let row = database.stored(1).await;
    assert_eq!(cancelled, Cancellation::Cancelled(Box::new(row.clone())));
    assert_eq!((row.order.state, row.generation), (OrderState::Cancelled, 1));
    assert!((before..=after).contains(&row.order.settled_ms.expect("it is settled")));
    assert!(row.digest.is_some(), "the key is still answered with it");
    let owed = [(1, 1, "cancelled".to_owned())];
    for _ in 0..3 {
        assert_eq!(database.stock_left(&sale).await, 9);
        assert_eq!(database.owed().await, owed);
        database.assert_conserved(&sale).await;
        assert_eq!(cancel(&database, 1, "user-1").await, cancelled);
    }
    let release = &database.list_releases(0, 10).await.unwrap()[0];
    assert_eq!((release.sale_id, &release.user_id), (sale.id, &user_id("user-1")));
    assert_eq!(release.partition, order_id(1).partition());
    assert_eq!(database.state(2).await, OrderState::AwaitingPayment);
});

on_both!(somebody_elses_order_is_not_found_and_stays, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.ordered(&sale, 1).await;
    for (id, user) in [(1, "user-2"), (1, "USER-1"), (1, "user-1 "), (2, "user-1")] {
        assert_eq!(cancel(&database, id, user).await, Cancellation::NotFound, "{id} {user}");
    }
    assert_eq!(database.state(1).await, OrderState::AwaitingPayment);
    assert_eq!((database.stock_left(&sale).await, database.owed().await), (9, Vec::new()));
});

on_both!(only_an_order_that_waits_for_payment_can_be_cancelled, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let states = OrderState::ALL.into_iter().filter(|state| is_row_state(*state));
    for (id, state) in (1..).zip(states) {
        database.insert_order(id, &sale, "buyer", i32::try_from(id).unwrap(), state).await;
        let holds = state == OrderState::AwaitingPayment;
        database.execute(&format!("UPDATE sales SET stock_left = {}", 10 - i64::from(holds))).await;
        let answer = cancel(&database, id, "buyer").await;
        match state {
            OrderState::AwaitingPayment | OrderState::Cancelled => {
                assert!(matches!(answer, Cancellation::Cancelled(_)), "{state}: {answer:?}");
            }
            state => {
                assert_eq!(answer, Cancellation::Refused(state));
                assert_eq!(database.state(id).await, state);
            }
        }
        let owed = if holds { vec![(id, 1, "cancelled".to_owned())] } else { Vec::new() };
        assert_eq!((database.stock_left(&sale).await, database.owed().await), (10, owed));
        database.execute("DELETE FROM outbox").await;
    }
});

on_both!(
    a_unit_that_would_be_one_too_many_is_refused_and_the_order_stays,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(10)).await;
        database.insert_order(1, &sale, "buyer", 1, OrderState::AwaitingPayment).await;
        let fault = database.cancel_order(order_id(1), &user_id("buyer")).await.unwrap_err();
        assert!(fault.to_string().contains("sales_stock_within_total"), "{fault}");
        assert_eq!(database.state(1).await, OrderState::AwaitingPayment);
        assert_eq!(database.owed().await, []);
    }
);

on_both!(a_direct_sale_owes_redis_nothing, async |database: TestDatabase| {
    let sale = database.published(&NewSale { mode: SaleMode::Direct, ..new_sale(10) }).await;
    for n in [1, 2] {
        let user = user_id("buyer");
        let id = order_id(direct_id(n));
        let placed = database.place_direct_order(id, sale.id, &user, None, 20).await.unwrap();
        assert!(matches!(placed, DirectAnswer::Placed(_)), "{placed:?}");
        assert_eq!(database.stock_left(&sale).await, 9);
        if n == 1 {
            let answer = cancel(&database, direct_id(n), "buyer").await;
            assert!(matches!(answer, Cancellation::Cancelled(_)), "{answer:?}");
        } else {
            database.set_pay_by(direct_id(n), 0).await;
            assert_eq!(database.expire_orders(10).await.unwrap().len(), 1);
        }
        assert_eq!((database.stock_left(&sale).await, database.owed().await), (10, Vec::new()));
        database.assert_conserved(&sale).await;
    }
});

on_both!(a_closed_slot_is_free_for_the_same_buyer, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let mut again = order_of(&sale, 2);
    again.user_id = user_id("user-1");
    database.expired(&sale, 1).await;
    let batch = database.commit_orders(&[again]).await.unwrap();
    assert_eq!(batch.outcomes, [flashsale_storage_sql::Commit::Inserted]);
    assert_eq!(database.stock_left(&sale).await, 9);
    cancel(&database, 2, "user-1").await;
    database.ordered(&sale, 3).await;
    database.assert_conserved(&sale).await;
});

on_both!(an_order_can_be_cancelled_whatever_its_sale_is, async |database: TestDatabase| {
    for (id, state) in [(1, SaleState::Paused), (2, SaleState::Closed)] {
        let sale = database.published(&new_sale(10)).await;
        database.ordered(&sale, id).await;
        database.set_state(&sale, state).await;
        // A new epoch does not take the unit away either.
        database.begin_epoch(sale.id, sale.epoch).await.unwrap().unwrap();
        let answer = cancel(&database, id, &format!("user-{id}")).await;
        assert!(matches!(answer, Cancellation::Cancelled(_)), "{state}: {answer:?}");
        assert_eq!(database.stock_left(&sale).await, 10);
    }
});

on_both!(only_what_is_overdue_expires, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=6)).await.unwrap();
    database.set_pay_by(1, -1).await;
    database.set_pay_by(2, 60_000).await;
    for (id, state) in [(3, "paid"), (4, "cancelled"), (5, "rejected")] {
        database.set_pay_by(id, -60_000).await;
        database.execute(&format!("UPDATE orders SET state = '{state}' WHERE id = {id}")).await;
    }
    database.execute("UPDATE orders SET pay_by_ms = NULL WHERE id = 6").await;

    let before = database.now_ms().await;
    let expired = database.expire_orders(100).await.unwrap();
    let after = database.now_ms().await;

    let row = database.stored(1).await;
    assert_eq!(expired, std::slice::from_ref(&row));
    assert_eq!(row.order.state, OrderState::Expired);
    assert!((before..=after).contains(&row.order.settled_ms.expect("it is settled")));
    assert_eq!(database.owed().await, [(1, 1, "expired".to_owned())]);
    assert_eq!(database.stock_left(&sale).await, 5);
    assert_eq!(database.expire_orders(100).await.unwrap(), []);
    assert_eq!(database.stock_left(&sale).await, 5);
});

on_both!(
    an_order_expires_at_the_very_millisecond_and_not_before,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(100)).await;
        for id in 1..=20 {
            database.ordered(&sale, id).await;
            database.set_pay_by(id, 7).await;
            let due = database.stored(id).await.order.pay_by_ms.expect("it must be paid some day");
            // Without a pause: some try falls into the last millisecond before, or into the first.
            let expired = loop {
                let before = database.now_ms().await;
                let expired = database.expire_orders(1).await.unwrap();
                let after = database.now_ms().await;
                if expired.is_empty() {
                    assert!(before < due, "overdue since {due}, and passed over at {before}");
                } else {
                    assert!(after >= due, "due at {due}, and expired by {after}");
                    break expired;
                }
            };
            assert!(expired[0].order.settled_ms >= Some(due), "{expired:?}");
        }
        // The edge itself, which no test can be sure to meet: what is due now is overdue.
        database.ordered(&sale, 21).await;
        database.set_pay_by(21, 0).await;
        assert_eq!(database.expire_orders(1).await.unwrap().len(), 1);
    }
);

on_both!(the_longest_overdue_expire_first, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=5)).await.unwrap();
    for (id, ago) in [(1, 20), (2, 40), (3, 10), (4, 50), (5, 30)] {
        database.set_pay_by(id, -ago * 1_000).await;
    }
    let mut order = Vec::new();
    for _ in 0..3 {
        let expired = database.expire_orders(2).await.unwrap();
        assert!(expired.len() <= 2);
        let mut ids: Vec<_> = expired.iter().map(|stored| stored.order.id.as_i64()).collect();
        ids.sort_unstable();
        order.push(ids);
        database.assert_conserved(&sale).await;
    }
    assert_eq!(order, [vec![2, 4], vec![1, 5], vec![3]]);
    assert_eq!(database.expire_orders(0).await.unwrap(), []);
});

on_both!(several_sales_expire_in_one_sweep, async |database: TestDatabase| {
    let mut sales = Vec::new();
    for first in [1, 11, 21] {
        let sale = database.published(&new_sale(10)).await;
        database.commit_orders(&orders_of(&sale, first..=first + 4)).await.unwrap();
        sales.push(sale);
    }
    database.execute("UPDATE orders SET pay_by_ms = 1 WHERE id % 10 < 4").await;
    assert_eq!(database.expire_orders(100).await.unwrap().len(), 9);
    for sale in &sales {
        assert_eq!(database.stock_left(sale).await, 8);
        database.assert_conserved(sale).await;
    }
});

on_both!(the_next_due_order_is_the_earliest_that_waits, async |database: TestDatabase| {
    let due = async || {
        let before = database.now_ms().await;
        let next = database.next_due().await.unwrap();
        assert!((before..=database.now_ms().await).contains(&next.now_ms), "{next:?}");
        next.due_ms
    };
    assert_eq!(due().await, None);
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=3)).await.unwrap();
    database.set_pay_by(2, 5_000).await;
    database.set_pay_by(3, -5_000).await;
    assert_eq!(due().await, database.stored(3).await.order.pay_by_ms);
    database.expire_orders(1).await.unwrap();
    assert_eq!(due().await, database.stored(2).await.order.pay_by_ms);
    cancel(&database, 2, "user-2").await;
    assert_eq!(due().await, database.stored(1).await.order.pay_by_ms);
    database.execute("UPDATE orders SET state = 'paid' WHERE id = 1").await;
    assert_eq!(due().await, None);
});

#[tokio::test]
async fn a_sweep_looks_only_at_what_is_due() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&new_sale(20_000)).await;
    for first in (1..=10_000).step_by(2_000) {
        database.commit_orders(&orders_of(&sale, first..=first + 1_999)).await.unwrap();
    }
    database.execute("ANALYZE orders").await;
    let read = async || {
        let sql = "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes \
                   WHERE indexrelname = 'orders_due'";
        let row = database.rows(sql).await.remove(0);
        let [scans, rows] = [0, 1].map(|i| row.try_get_by_index::<i64>(i).unwrap());
        (scans, rows)
    };
    let (scans, rows) = read().await;
    assert_eq!(database.expire_orders(500).await.unwrap(), []);
    // The server publishes what it counts some time later.
    eventually(SOON, "the index in use", async || read().await.0 > scans).await;
    let looked_at = read().await.1 - rows;
    assert!(looked_at < 100, "{looked_at} rows were looked at, and none is due");
}
