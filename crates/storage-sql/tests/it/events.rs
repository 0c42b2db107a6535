//! Events: one for each change of an order, in the transaction that changes it; and taking them on a
//! lease.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use flashsale_domain::{
    LatePayment, NewOrder, NewPayment, NewSale, OrderState, Price, RejectReason, Sale, SaleMode,
};
use flashsale_storage_sql::{Database, Event, PaymentAnswer, TakenUnit};
use flashsale_test_support::eventually;
use tokio::task::JoinSet;

use crate::support::{
    PATIENT, SOON, TestDatabase, direct_id, new_sale, on_both, order_id, order_of, orders_of,
    user_id,
};

const LONG: Duration = Duration::from_secs(600);

fn message(webhook_id: &str, sale: &Sale, id: i64) -> NewPayment {
    NewPayment { webhook_id: webhook_id.to_owned(), order_id: order_id(id), price: sale.price }
}

/// The same database, for a deployment with a shop that wants to know.
struct Telling {
    test: TestDatabase,
    database: Database,
}

impl Deref for Telling {
    type Target = TestDatabase;

    fn deref(&self) -> &TestDatabase {
        &self.test
    }
}

impl Telling {
    async fn of(test: TestDatabase) -> Self {
        let database = test.connect(PATIENT).await.with_events();
        Self { test, database }
    }

    /// Takes everything that was written down since, as `kind order state`.
    async fn told(&self) -> Vec<String> {
        let mut events = self.database.take_events(1_000, LONG).await.expect("answered");
        for event in &events {
            self.database.delete_event(event.id).await.expect("deleted");
        }
        events.sort_by_key(|event| event.id);
        let short = |event: &Event| format!("{} {} {}", event.kind, event.order_id, event.state);
        events.iter().map(short).collect()
    }

    async fn expire(&self, id: i64) {
        self.set_pay_by(id, 0).await;
        assert_eq!(self.database.expire_orders(10).await.expect("answered").len(), 1);
    }

    async fn pay(&self, sale: &Sale, webhook: &str, id: i64) -> PaymentAnswer {
        self.database.receive_payment(&message(webhook, sale, id)).await.expect("answered")
    }
}

on_both!(without_a_shop_nothing_is_written_down, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=3)).await.unwrap();
    database.cancel_order(order_id(1), &user_id("user-1")).await.unwrap();
    database.receive_payment(&message("m", &sale, 2)).await.unwrap();
    database.receive_payment(&message("m2", &sale, 2)).await.unwrap();
    database.set_pay_by(3, 0).await;
    database.expire_orders(10).await.unwrap();
    database.reject_order(&order_of(&sale, 4), RejectReason::Operator).await.unwrap();
    assert_eq!(database.count_events().await.unwrap(), 0);
});

on_both!(every_change_of_an_order_is_told_once, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    let batch = orders_of(&sale, 1..=3);
    shop.database.commit_orders(&batch).await.unwrap();
    let mut told = shop.told().await;
    told.sort_unstable();
    let waiting = |id: i64| format!("order.awaiting_payment {id} awaiting_payment");
    assert_eq!(told, [waiting(1), waiting(2), waiting(3)]);
    // Redelivered is not new.
    shop.database.commit_orders(&batch).await.unwrap();
    assert_eq!(shop.told().await, Vec::<String>::new());

    for _ in 0..2 {
        shop.database.cancel_order(order_id(1), &user_id("user-1")).await.unwrap();
    }
    assert_eq!(shop.told().await, ["order.cancelled 1 cancelled"]);
    for _ in 0..2 {
        shop.pay(&sale, "first", 2).await;
    }
    assert_eq!(shop.told().await, ["order.paid 2 paid"]);
    shop.expire(3).await;
    assert_eq!(shop.told().await, ["order.expired 3 expired"]);
});

on_both!(a_rejection_is_told_with_its_reason, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    shop.ordered(&sale, 1).await;
    let second = NewOrder { user_id: user_id("user-1"), ..order_of(&sale, 2) };
    let lost = NewOrder { epoch: 0, ..order_of(&sale, 3) };
    shop.database.commit_orders(&[second, lost]).await.unwrap();
    for _ in 0..2 {
        shop.database.reject_order(&order_of(&sale, 4), RejectReason::Operator).await.unwrap();
    }
    let mut events = shop.database.take_events(10, LONG).await.unwrap();
    events.sort_by_key(|event| event.order_id);
    let short = |event: &Event| {
        let reason = event.reason.clone().unwrap_or_default();
        format!("{} {} {reason}", event.kind, event.order_id)
    };
    let expected = [
        "order.rejected 2 slot-taken",
        "order.rejected 3 memory-lost",
        "order.rejected 4 operator",
    ];
    assert_eq!(events.iter().map(short).collect::<Vec<_>>(), expected);
});

on_both!(a_direct_order_is_told, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&NewSale { mode: SaleMode::Direct, ..new_sale(1) }).await;
    for n in [1, 2] {
        let id = order_id(direct_id(n));
        let user = user_id(&format!("user-{n}"));
        shop.database.place_direct_order(id, sale.id, &user, None, 20).await.unwrap();
    }
    let id = direct_id(1);
    assert_eq!(shop.told().await, [format!("order.awaiting_payment {id} awaiting_payment")]);
});

on_both!(money_that_buys_nothing_is_told_with_what_was_paid, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    shop.ordered(&sale, 1).await;
    let wrong = Price { amount: 5, ..sale.price };
    let payment = NewPayment { price: wrong, ..message("wrong", &sale, 1) };
    shop.database.receive_payment(&payment).await.unwrap();
    let event = shop.database.take_events(10, LONG).await.unwrap().remove(0);
    shop.database.delete_event(event.id).await.unwrap();
    assert_eq!((event.kind.as_str(), event.price), ("payment.mismatch", wrong));
    assert_eq!(event.state, OrderState::AwaitingPayment);
    shop.pay(&sale, "right", 1).await;
    shop.pay(&sale, "second", 1).await;
    assert_eq!(shop.told().await, ["order.paid 1 paid", "payment.refund_due 1 paid"]);
});

on_both!(a_late_payment_is_told_however_it_ends, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    for (id, taken) in [(1, Some(TakenUnit { epoch: sale.epoch })), (2, None)] {
        shop.ordered(&sale, id).await;
        shop.expire(id).await;
        let PaymentAnswer::Reacquire(reacquiring) = shop.pay(&sale, &format!("m{id}"), id).await
        else {
            panic!("it is late")
        };
        assert_eq!(shop.told().await, [format!("order.expired {id} expired")]);
        for _ in 0..2 {
            shop.database.finish_reacquiring(&reacquiring, taken).await.unwrap();
        }
        let told = shop.told().await;
        if taken.is_some() {
            assert_eq!(told, ["order.paid 1 paid"]);
        } else {
            assert_eq!(told, ["order.refund_due 2 refund_due", "payment.refund_due 2 refund_due"]);
        }
    }
    // The same where nothing has to be asked of Redis.
    let new = NewSale { late_payment: LatePayment::Refund, ..new_sale(10) };
    let sale = shop.published(&new).await;
    shop.ordered(&sale, 3).await;
    shop.set_pay_by(3, 0).await;
    shop.pay(&sale, "m3", 3).await;
    let expected = [
        "order.expired 3 expired",
        "order.refund_due 3 refund_due",
        "payment.refund_due 3 refund_due",
    ];
    assert_eq!(shop.told().await, expected);
});

on_both!(what_is_rolled_back_is_not_told, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(2)).await;
    // More than there are: refused at the very end of the transaction.
    shop.database.commit_orders(&orders_of(&sale, 1..=3)).await.unwrap_err();
    shop.insert_order(9, &sale, "buyer", 1, OrderState::AwaitingPayment).await;
    // A unit that would be one too many.
    shop.database.cancel_order(order_id(9), &user_id("buyer")).await.unwrap_err();
    assert_eq!(shop.count_events().await.unwrap(), 0);
    // And an event that cannot be written keeps the order from changing.
    shop.execute("ALTER TABLE events RENAME TO elsewhere").await;
    shop.database.receive_payment(&message("m", &sale, 9)).await.unwrap_err();
    shop.database.commit_orders(&orders_of(&sale, 1..=1)).await.unwrap_err();
    shop.execute("ALTER TABLE elsewhere RENAME TO events").await;
    assert_eq!(shop.state(9).await, OrderState::AwaitingPayment);
    assert_eq!((shop.order_count().await, shop.stock_left(&sale).await), (1, 2));
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM payments").await, 0);
});

on_both!(a_batch_of_thousands_is_told_in_full, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10_000)).await;
    for first in [1, 2_001, 4_001] {
        shop.database.commit_orders(&orders_of(&sale, first..=first + 1_999)).await.unwrap();
    }
    shop.execute("UPDATE orders SET pay_by_ms = id").await;
    assert_eq!(shop.database.expire_orders(5_000).await.unwrap().len(), 5_000);
    assert_eq!(shop.count_events().await.unwrap(), 11_000);
});

on_both!(an_event_says_what_happened_to_whose_order, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    let before = shop.now_ms().await;
    shop.database.commit_orders(&[order_of(&sale, 1)]).await.unwrap();
    let after = shop.now_ms().await;
    let event = shop.database.take_events(10, LONG).await.unwrap().remove(0);
    assert!((before..=after).contains(&event.created_ms));
    let expected = Event {
        id: event.id,
        kind: "order.awaiting_payment".to_owned(),
        order_id: order_id(1),
        sale_id: sale.id,
        user_id: "user-1".to_owned(),
        state: OrderState::AwaitingPayment,
        reason: None,
        price: sale.price,
        created_ms: event.created_ms,
        attempts: 1,
    };
    assert_eq!(event, expected);
});

on_both!(an_event_on_lease_is_nobody_elses, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(1_000)).await;
    shop.database.commit_orders(&orders_of(&sale, 1..=400)).await.unwrap();
    let mut takers = JoinSet::new();
    for _ in 0..4 {
        let database = shop.connect(PATIENT).await;
        takers.spawn(async move {
            let mut ids = Vec::new();
            loop {
                let events = database.take_events(7, LONG).await.expect("answered");
                if events.is_empty() && ids.len() > 30 {
                    return ids;
                }
                if events.is_empty() && database.take_events(400, LONG).await.unwrap().is_empty() {
                    return ids;
                }
                ids.extend(events.iter().map(|event| event.id));
            }
        });
    }
    let taken = takers.join_all().await.concat();
    let distinct: BTreeSet<i64> = taken.iter().copied().collect();
    assert_eq!(distinct.len(), taken.len(), "an event was taken twice");
    assert_eq!(shop.count_events().await.unwrap(), 400, "taken is not delivered");
});

on_both!(an_event_comes_again_when_its_lease_has_run_out, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    shop.database.commit_orders(&orders_of(&sale, 1..=1)).await.unwrap();
    let lease = Duration::from_millis(300);
    let first = shop.database.take_events(10, lease).await.unwrap().remove(0);
    let until: i64 = shop.value("SELECT next_ms FROM events").await;
    let mut tries = 1;
    let again = eventually(SOON, "the event again", async || {
        let mut events = shop.database.take_events(10, LONG).await.expect("answered");
        tries += 1;
        events.pop()
    })
    .await;
    assert!(shop.now_ms().await >= until, "it came before its lease had run out");
    assert_eq!(again, Event { attempts: 2, ..first });
    assert!(tries > 1);
    // A lease without end is one, not an overflow.
    shop.execute("UPDATE events SET next_ms = 0").await;
    assert_eq!(shop.database.take_events(10, Duration::MAX).await.unwrap()[0].attempts, 3);
    assert_eq!(shop.database.take_events(10, LONG).await.unwrap(), []);
});

on_both!(a_postponed_event_rests_and_a_deleted_one_is_gone, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    shop.database.commit_orders(&orders_of(&sale, 1..=2)).await.unwrap();
    let events = shop.database.take_events(10, LONG).await.unwrap();
    let (first, second) = (events[0].id, events[1].id);
    shop.database.postpone_event(first, Duration::ZERO).await.unwrap();
    shop.database.postpone_event(second, LONG).await.unwrap();
    let taken = shop.database.take_events(10, Duration::ZERO).await.unwrap();
    assert_eq!(
        taken.iter().map(|event| (event.id, event.attempts)).collect::<Vec<_>>(),
        [(first, 2)]
    );
    shop.database.delete_event(first).await.unwrap();
    shop.database.delete_event(first).await.unwrap();
    shop.database.postpone_event(first, Duration::ZERO).await.unwrap();
    assert_eq!(shop.count_events().await.unwrap(), 1);
    assert_eq!(shop.database.take_events(10, LONG).await.unwrap(), []);
});

on_both!(the_longest_due_are_taken_first, async |test: TestDatabase| {
    let shop = Telling::of(test).await;
    let sale = shop.published(&new_sale(10)).await;
    shop.database.commit_orders(&orders_of(&sale, 1..=5)).await.unwrap();
    shop.execute("UPDATE events SET next_ms = 100 - order_id").await;
    let mut seen = Vec::new();
    for limit in [2, 2, 2] {
        let events = shop.database.take_events(limit, LONG).await.unwrap();
        let mut ids: Vec<_> = events.iter().map(|event| event.order_id.as_i64()).collect();
        ids.sort_unstable();
        seen.push(ids);
    }
    assert_eq!(seen, [vec![4, 5], vec![2, 3], vec![1]]);
});
