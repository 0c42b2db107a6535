//! Sales: stored and found as they were made, moved only where they may go, followed by changes.

use std::time::Duration;

use flashsale_domain::{NewSale, Partition, Price, Sale, SaleId, SaleMode, SaleState, Window};
use flashsale_storage_sql::SaleChange;
use flashsale_test_support::eventually;

use crate::support::{CLOSES_MS, OPENS_MS, TestDatabase, new_sale, on_both, orders_of};

fn partition(number: u16) -> Partition {
    Partition::new(number).expect("a partition")
}

on_both!(
    a_new_sale_is_stored_as_a_draft_and_found_as_it_was_made,
    async |database: TestDatabase| {
        let new = NewSale {
            title: "  Café \"Müller\" 优惠券 🎟 o'clock ".to_owned(),
            mode: SaleMode::Direct,
            stock: 100_000_000,
            window: Window::new(OPENS_MS, CLOSES_MS).unwrap(),
            per_buyer: 20,
            price: Price { amount: 1_000_000_000_000, currency: "JPY".parse().unwrap() },
            payment_window_s: 30 * 24 * 3600,
            late_payment: flashsale_domain::LatePayment::Refund,
        };
        let sale = database.insert_sale(&new).await.unwrap();
        let expected = Sale {
            id: sale.id,
            title: new.title.trim().to_owned(),
            mode: new.mode,
            state: SaleState::Draft,
            stock_total: new.stock,
            stock_left: new.stock,
            window: new.window,
            per_buyer: new.per_buyer,
            price: new.price,
            payment_window_s: new.payment_window_s,
            late_payment: new.late_payment,
            partition: None,
            epoch: 1,
            rehearsal: false,
        };
        assert_eq!(sale, expected);
        assert_eq!(database.find_sale(sale.id).await.unwrap(), Some(expected));
    }
);

on_both!(a_sale_that_is_not_there_is_not_found, async |database: TestDatabase| {
    for id in [1, 2_147_483_648, i64::MAX] {
        let id = SaleId::from_i64(id).unwrap();
        assert_eq!(database.find_sale(id).await.unwrap(), None);
    }
    assert_eq!(database.list_sales().await.unwrap(), []);
});

on_both!(sales_are_listed_newest_first, async |database: TestDatabase| {
    let mut sales = Vec::new();
    for stock in 1..=12 {
        sales.push(database.insert_sale(&new_sale(stock)).await.unwrap());
    }
    sales.reverse();
    assert_eq!(database.list_sales().await.unwrap(), sales);
});

on_both!(a_sale_moves_only_where_it_may_go, async |database: TestDatabase| {
    let sale = database.insert_sale(&new_sale(1)).await.unwrap();
    for from in SaleState::ALL {
        for to in SaleState::ALL {
            database.execute(&format!("UPDATE sales SET state = '{from}', changed_ms = 1")).await;
            let change = database.set_sale_state(sale.id, to).await.unwrap();
            let stored = database.find_sale(sale.id).await.unwrap().unwrap();
            let changed_ms: i64 = database.value("SELECT changed_ms FROM sales").await;
            if from.can_become(to) {
                assert_eq!(stored.state, to, "{from} to {to}");
                assert!(changed_ms > OPENS_MS, "{from} to {to}");
                assert_eq!(change, SaleChange::Done(Box::new(stored)));
            } else {
                assert_eq!(stored.state, from, "{from} to {to}");
                assert_eq!(changed_ms, 1, "{from} to {to}");
                let expected = if from == to {
                    SaleChange::Done(Box::new(stored))
                } else {
                    SaleChange::Refused(from)
                };
                assert_eq!(change, expected, "{from} to {to}");
            }
        }
    }
    let missing = SaleId::from_i64(sale.id.as_i64() + 1).unwrap();
    let change = database.set_sale_state(missing, SaleState::Published).await.unwrap();
    assert_eq!(change, SaleChange::NotFound);
});

on_both!(a_sale_keeps_the_home_it_was_given_first, async |database: TestDatabase| {
    let sale = database.insert_sale(&new_sale(1)).await.unwrap();
    let other = database.insert_sale(&new_sale(1)).await.unwrap();
    for number in [3, 0, 3, 1_022] {
        database.set_sale_partition(sale.id, partition(number)).await.unwrap();
        let stored = database.find_sale(sale.id).await.unwrap().unwrap();
        assert_eq!(stored.partition, Some(partition(3)));
    }
    assert_eq!(database.find_sale(other.id).await.unwrap(), Some(other));
});

on_both!(the_sales_of_a_partition_are_all_that_live_there, async |database: TestDatabase| {
    let mut here = Vec::new();
    for state in [SaleState::Published, SaleState::Paused, SaleState::Closed] {
        for number in [0, 1] {
            let sale = database.published(&new_sale(1)).await;
            database.set_sale_partition(sale.id, partition(number)).await.unwrap();
            let sale = database.set_state(&sale, state).await;
            if number == 1 {
                here.push(sale);
            }
        }
    }
    database.published(&new_sale(1)).await;
    assert_eq!(database.list_sales_of(partition(1)).await.unwrap(), here);
    assert_eq!(database.list_sales_of(partition(2)).await.unwrap(), []);
});

on_both!(a_change_is_listed_since_its_moment_and_drafts_are_not, async |database: TestDatabase| {
    let draft = database.insert_sale(&new_sale(1)).await.unwrap();
    let sale = database.insert_sale(&new_sale(10)).await.unwrap();
    assert!(database.list_sales_changed(0).await.unwrap().is_empty());

    let before = database.now_ms().await;
    let published = database.set_state(&sale, SaleState::Published).await;
    let listed = database.list_sales_changed(before).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].sale, published);
    let changed_ms = listed[0].changed_ms;
    assert!((before..=database.now_ms().await).contains(&changed_ms));
    // The moment itself belongs to it: two changes of one millisecond are both seen.
    assert_eq!(database.list_sales_changed(changed_ms).await.unwrap().len(), 1);
    assert!(database.list_sales_changed(changed_ms + 1).await.unwrap().is_empty());

    eventually(Duration::from_secs(5), "the next millisecond", async || {
        database.now_ms().await > changed_ms
    })
    .await;
    for state in [SaleState::Paused, SaleState::Published, SaleState::Closed] {
        database.set_state(&sale, state).await;
        let listed = database.list_sales_changed(changed_ms + 1).await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].sale.state, state);
    }
    database.set_state(&draft, SaleState::Published).await;
    let listed = database.list_sales_changed(changed_ms + 1).await.unwrap();
    let ids: Vec<SaleId> = listed.iter().map(|changed| changed.sale.id).collect();
    assert_eq!(ids, [draft.id, sale.id]);
});

on_both!(selling_is_not_a_change_of_the_sale, async |database: TestDatabase| {
    let sale = database.published(&NewSale { mode: SaleMode::Direct, ..new_sale(10) }).await;
    database.execute("UPDATE sales SET changed_ms = 1").await;
    database.commit_orders(&orders_of(&sale, 1..=4)).await.unwrap();
    let order = flashsale_domain::OrderId::from_i64(5).unwrap();
    let user = crate::support::user_id("buyer");
    database.place_direct_order(order, sale.id, &user, None, 20).await.unwrap();

    assert_eq!(database.stock_left(&sale).await, 5);
    assert!(database.list_sales_changed(2).await.unwrap().is_empty());
    let listed = database.list_sales_changed(1).await.unwrap();
    assert_eq!(listed[0].sale.stock_left, 5);
});
