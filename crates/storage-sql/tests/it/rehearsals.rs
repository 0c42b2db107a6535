//! A rehearsal's sale: nobody is told of it, and it is erased with all that was written of it, and
//! nothing else is.

use std::time::Duration;

use flashsale_domain::{NewPayment, Sale, SaleId, SaleState};
use flashsale_storage_sql::{AnswerCount, Erasure};

use crate::support::{PATIENT, TestDatabase, new_sale, on_both, order_id, order_of, orders_of};

async fn rehearsal(database: &TestDatabase) -> Sale {
    let sale = database.insert_rehearsal(&new_sale(10)).await.expect("stored");
    database.set_state(&sale, SaleState::Published).await
}

on_both!(only_what_bears_the_mark_is_erased, async |database: TestDatabase| {
    let real = database.published(&new_sale(10)).await;
    database.ordered(&real, 1).await;
    database.set_state(&real, SaleState::Closed).await;
    assert_eq!(database.erase_rehearsal(real.id).await.unwrap(), Erasure::NotARehearsal);
    assert!(!database.delete_rehearsal(real.id).await.unwrap());
    assert_eq!(database.order_ids().await, [1]);

    let none = SaleId::from_i64(4711).unwrap();
    assert_eq!(database.erase_rehearsal(none).await.unwrap(), Erasure::NotFound);
    let on = rehearsal(&database).await;
    assert!(on.rehearsal);
    let refused = Erasure::State(SaleState::Published);
    assert_eq!(database.erase_rehearsal(on.id).await.unwrap(), refused);
    assert_eq!(database.list_rehearsals().await.unwrap(), [on]);
});

on_both!(a_rehearsal_is_erased_and_its_neighbour_is_not, async |test: TestDatabase| {
    let telling = test.connect(PATIENT).await.with_events();
    let (sale, neighbour) = (rehearsal(&test).await, test.published(&new_sale(10)).await);
    telling.commit_orders(&orders_of(&sale, 1..=3)).await.unwrap();
    telling.commit_orders(&[order_of(&neighbour, 4)]).await.unwrap();
    for (webhook_id, id) in [("ours", 1), ("theirs", 4)] {
        let (webhook_id, price) = (webhook_id.to_owned(), sale.price);
        let payment = NewPayment { webhook_id, order_id: order_id(id), price };
        telling.receive_payment(&payment).await.unwrap();
    }
    let buyer = order_of(&sale, 2).user_id;
    telling.cancel_order(order_id(2), &buyer).await.unwrap();
    for sale_id in [sale.id, neighbour.id] {
        let told = AnswerCount { sale_id, outcome: "admitted", count: 3 };
        telling.add_answers(&[told]).await.unwrap();
    }
    test.set_state(&sale, SaleState::Closed).await;

    // Redis has yet to hear of a release.
    assert_eq!(test.erase_rehearsal(sale.id).await.unwrap(), Erasure::Unfinished(1));
    let releases = test.list_releases(0, 10).await.unwrap();
    test.delete_releases(&releases.iter().map(|release| release.id).collect::<Vec<_>>())
        .await
        .unwrap();
    // Once more does no harm.
    for _ in 0..2 {
        assert_eq!(test.erase_rehearsal(sale.id).await.unwrap(), Erasure::Done);
    }
    assert_eq!(test.order_ids().await, [4]);
    let of = |table: &str| format!("SELECT DISTINCT sale_id FROM {table}");
    for table in ["orders", "events", "answers"] {
        let left: Vec<i64> = test.column(&of(table)).await;
        assert_eq!(left, [neighbour.id.as_i64()], "{table}");
    }
    let paid: Vec<String> = test.column("SELECT webhook_id FROM payments").await;
    assert_eq!(paid, ["theirs"]);
    let erased = test.find_sale(sale.id).await.unwrap().unwrap();
    assert_eq!((erased.partition, erased.stock_left), (None, erased.stock_total));

    // A gateway is late with its counts.
    let late = AnswerCount { sale_id: sale.id, outcome: "sold_out", count: 1 };
    assert!(test.delete_rehearsal(sale.id).await.unwrap());
    telling.add_answers(&[late]).await.unwrap();
    assert_eq!(test.delete_stray_answers().await.unwrap(), 1);
    assert_eq!(test.find_sale(sale.id).await.unwrap(), None);
    assert_eq!(test.list_rehearsals().await.unwrap(), []);
    test.assert_conserved(&neighbour).await;
});

on_both!(the_shop_is_told_nothing_of_a_rehearsal, async |test: TestDatabase| {
    let telling = test.connect(PATIENT).await.with_events();
    let (sale, neighbour) = (rehearsal(&test).await, test.published(&new_sale(10)).await);
    telling.commit_orders(&[order_of(&sale, 1), order_of(&neighbour, 2)]).await.unwrap();
    telling.cancel_order(order_id(1), &order_of(&sale, 1).user_id).await.unwrap();
    assert_eq!(test.value::<i64>("SELECT count(*) FROM events").await, 3);
    assert_eq!(telling.count_events().await.unwrap(), 1);
    let told = telling.take_events(10, Duration::from_secs(600)).await.unwrap();
    assert_eq!(told.iter().map(|event| event.order_id).collect::<Vec<_>>(), [order_id(2)]);
});
