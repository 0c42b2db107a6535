//! The database's account of a sale: what was stored is what is counted.

use flashsale_domain::{OrderState, SaleId};
use flashsale_storage_sql::{SaleTotals, SlotViolation};

use crate::support::{TestDatabase, is_row_state, new_sale, on_both, orders_of};

on_both!(a_sales_totals_are_its_stock_and_its_orders_by_state, async |database: TestDatabase| {
    let sale = database.published(&new_sale(100)).await;
    let other = database.published(&new_sale(50)).await;
    let mut id = 0;
    let mut expected = Vec::new();
    // One order in the first state, two in the second, and so on.
    for (count, state) in (1..).zip(OrderState::ALL.into_iter().filter(|s| is_row_state(*s))) {
        for _ in 0..count {
            id += 1;
            database.insert_order(id, &sale, &format!("user-{id}"), 1, state).await;
        }
        expected.push((state, count));
    }
    database.insert_order(1_000, &other, "user-1", 1, OrderState::Paid).await;
    database.execute(&format!("UPDATE sales SET stock_left = 40 WHERE id = {}", sale.id)).await;

    let totals = database.sale_totals(sale.id).await.unwrap().unwrap();

    assert_eq!((totals.stock_total, totals.stock_left), (100, 40));
    assert_eq!(totals.orders.len(), expected.len());
    for (state, count) in expected {
        assert_eq!(totals.count(state), count, "{state}");
    }
    assert_eq!(totals.count(OrderState::Queued), 0);
    let open = totals.count(OrderState::AwaitingPayment) + totals.count(OrderState::Paid);
    assert_eq!(totals.open(), open);
    assert_eq!(open, 1 + 2);
});

on_both!(what_was_committed_adds_up, async |database: TestDatabase| {
    let sale = database.published(&new_sale(100)).await;
    for batch in [1..=30, 20..=45, 45..=45] {
        database.commit_orders(&orders_of(&sale, batch)).await.unwrap();
    }
    let totals = database.sale_totals(sale.id).await.unwrap().unwrap();
    assert_eq!(totals.stock_total, totals.stock_left + totals.open());
    assert_eq!(totals.open(), 45);
});

on_both!(
    a_sale_without_orders_has_totals_and_a_missing_one_has_none,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(7)).await;
        let expected = SaleTotals { stock_total: 7, stock_left: 7, orders: Vec::new() };
        assert_eq!(database.sale_totals(sale.id).await.unwrap(), Some(expected));
        let missing = SaleId::from_i64(4_711).unwrap();
        assert_eq!(database.sale_totals(missing).await.unwrap(), None);
    }
);

on_both!(a_buyer_with_more_open_orders_than_allowed_is_named, async |database: TestDatabase| {
    let sale = database.published(&new_sale(100)).await;
    let other = database.published(&new_sale(100)).await;
    assert_eq!(database.find_slot_violations(sale.id, 1).await.unwrap(), []);
    database.execute("DROP INDEX orders_one_open_per_slot").await;

    let open = OrderState::AwaitingPayment;
    database.insert_order(1, &sale, "two", 1, open).await;
    database.insert_order(2, &sale, "two", 1, OrderState::Paid).await;
    // One open order, and what is closed or of another sale, is no offence.
    database.insert_order(3, &sale, "one", 1, open).await;
    database.insert_order(4, &sale, "one", 1, OrderState::Cancelled).await;
    database.insert_order(5, &sale, "one", 2, OrderState::Rejected).await;
    database.insert_order(6, &other, "one", 1, open).await;

    let violation = SlotViolation { user_id: "two".to_owned(), open: 2 };
    assert_eq!(database.find_slot_violations(sale.id, 1).await.unwrap(), [violation]);
    assert_eq!(database.find_slot_violations(sale.id, 2).await.unwrap(), []);
    assert_eq!(database.find_slot_violations(other.id, 1).await.unwrap(), []);

    for id in 100..140 {
        database.insert_order(id, &sale, &format!("user-{}", id / 2), 1, open).await;
    }
    assert_eq!(database.find_slot_violations(sale.id, 1).await.unwrap().len(), 10);
});
