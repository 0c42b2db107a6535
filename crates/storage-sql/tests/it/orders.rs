//! Reading orders: the buyer's own, newest first, page by page; many at once; a sale's in turn.

use flashsale_domain::{NewSale, OrderState, SaleId};
use flashsale_storage_sql::{OrderFilter, StoredOrder};

use crate::support::{TestDatabase, new_sale, on_both, order_id, order_of, orders_of, user_id};

fn ids(orders: &[StoredOrder]) -> Vec<i64> {
    orders.iter().map(|stored| stored.order.id.as_i64()).collect()
}

fn all() -> OrderFilter {
    OrderFilter { limit: 1_000, ..OrderFilter::default() }
}

on_both!(an_order_is_found_by_its_id_only, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&[order_of(&sale, 5)]).await.unwrap();
    assert!(database.find_order(order_id(5)).await.unwrap().is_some());
    for id in [4, 6, i64::MAX] {
        assert_eq!(database.find_order(order_id(id)).await.unwrap(), None);
    }
});

on_both!(a_buyer_sees_his_own_orders_newest_first, async |database: TestDatabase| {
    let sale = database.published(&NewSale { per_buyer: 20, ..new_sale(100) }).await;
    for id in 1..=20 {
        // Every second order is the other buyer's.
        let user = if id % 2 == 0 { "me" } else { "somebody else" };
        let slot = i32::try_from(id).unwrap();
        database.insert_order(id, &sale, user, slot, OrderState::AwaitingPayment).await;
    }
    let mine = database.list_orders(&user_id("me"), &all()).await.unwrap();
    assert_eq!(ids(&mine), (1..=10).rev().map(|n| n * 2).collect::<Vec<_>>());
    assert!(mine.iter().all(|stored| stored.order.user_id == user_id("me")));
    for nobody in ["ME", "m", "me ", "%", "' OR 1=1 --"] {
        let none = database.list_orders(&user_id(nobody), &all()).await.unwrap();
        assert_eq!(ids(&none), Vec::<i64>::new(), "{nobody:?}");
    }
});

on_both!(pages_follow_each_other_without_gap_or_repeat, async |database: TestDatabase| {
    let sale = database.published(&NewSale { per_buyer: 20, ..new_sale(100) }).await;
    for id in 1..=10 {
        let slot = i32::try_from(id).unwrap();
        database.insert_order(id * 7, &sale, "me", slot, OrderState::Paid).await;
    }
    let mut seen = Vec::new();
    let mut before = None;
    for expected in [4, 4, 2, 0] {
        let filter = OrderFilter { before, limit: 4, ..OrderFilter::default() };
        let page = database.list_orders(&user_id("me"), &filter).await.unwrap();
        assert_eq!(page.len(), expected);
        before = page.last().map(|stored| stored.order.id).or(before);
        seen.extend(ids(&page));
    }
    assert_eq!(seen, (1..=10).rev().map(|n| n * 7).collect::<Vec<_>>());
});

on_both!(a_list_can_be_of_one_sale_and_of_one_state, async |database: TestDatabase| {
    let first = database.published(&new_sale(100)).await;
    let second = database.published(&new_sale(100)).await;
    let states = [OrderState::Cancelled, OrderState::Expired, OrderState::Paid];
    let mut id = 0;
    for sale in [&first, &second] {
        for state in states {
            id += 1;
            database.insert_order(id, sale, "me", 1, state).await;
        }
    }
    let list = async |sale: Option<SaleId>, state| {
        let filter = OrderFilter { sale_id: sale, state, ..all() };
        ids(&database.list_orders(&user_id("me"), &filter).await.unwrap())
    };
    assert_eq!(list(None, None).await, [6, 5, 4, 3, 2, 1]);
    assert_eq!(list(Some(first.id), None).await, [3, 2, 1]);
    assert_eq!(list(None, Some(OrderState::Expired)).await, [5, 2]);
    assert_eq!(list(Some(second.id), Some(OrderState::Paid)).await, [6]);
    assert_eq!(list(None, Some(OrderState::Rejected)).await, Vec::<i64>::new());
    assert_eq!(list(SaleId::from_i64(4_711), None).await, Vec::<i64>::new());
});

on_both!(any_number_of_orders_is_found_at_once, async |database: TestDatabase| {
    let sale = database.published(&new_sale(5_000)).await;
    database.commit_orders(&orders_of(&sale, 1..=2_500)).await.unwrap();
    // Every second id is nobody's.
    let wanted: Vec<_> = (1..=2_500).flat_map(|id| [order_id(id), order_id(id + 10_000)]).collect();

    let mut found = ids(&database.find_orders(&wanted).await.unwrap());

    found.sort_unstable();
    assert_eq!(found, (1..=2_500).collect::<Vec<_>>());
    assert_eq!(database.find_orders(&[]).await.unwrap(), []);
});

on_both!(a_sales_orders_are_listed_oldest_first_page_by_page, async |database: TestDatabase| {
    let sale = database.published(&new_sale(100)).await;
    let other = database.published(&new_sale(100)).await;
    database.commit_orders(&orders_of(&sale, 1..=10)).await.unwrap();
    database.commit_orders(&orders_of(&other, 11..=20)).await.unwrap();
    database.commit_orders(&orders_of(&sale, 21..=25)).await.unwrap();

    let mut seen = Vec::new();
    let mut after = None;
    for expected in [6, 6, 3, 0] {
        let page = database.list_sale_orders(sale.id, after, 6).await.unwrap();
        assert_eq!(page.len(), expected);
        after = page.last().map(|stored| stored.order.id).or(after);
        seen.extend(ids(&page));
    }
    assert_eq!(seen, (1..=10).chain(21..=25).collect::<Vec<_>>());
});

on_both!(
    a_row_that_no_code_of_ours_writes_is_a_fault_and_not_a_panic,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(100)).await;
        for (set, column) in [
            ("digest = 'not a digest'", "digest"),
            ("price_currency = 'yuan'", "price_currency"),
            ("slot = 70000", "slot"),
            ("generation = -1", "generation"),
            ("user_id = ''", "user_id"),
            ("sale_id = 0", "sale_id"),
        ] {
            database.insert_order(1, &sale, "me", 1, OrderState::Paid).await;
            database.execute(&format!("UPDATE orders SET {set}")).await;
            let fault = database.find_order(order_id(1)).await.unwrap_err();
            assert!(fault.to_string().contains(column), "{set}: {fault}");
            assert!(!fault.is_data(), "{set}");
            database.execute("DELETE FROM orders").await;
        }
    }
);
