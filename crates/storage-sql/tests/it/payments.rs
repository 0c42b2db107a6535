//! Payments of orders that wait for them, and of orders that want none any more.

use flashsale_domain::{
    LatePayment, NewPayment, NewSale, OrderState, PaymentOutcome, Price, Sale, SaleState,
};
use flashsale_storage_sql::{Database, PaymentAnswer, StoredPayment};
use tokio::task::JoinSet;

use crate::support::{
    PATIENT, TestDatabase, is_row_state, new_sale, on_both, order_id, orders_of, user_id,
};

fn message(webhook_id: &str, sale: &Sale, id: i64) -> NewPayment {
    NewPayment { webhook_id: webhook_id.to_owned(), order_id: order_id(id), price: sale.price }
}

async fn pay(database: &Database, payment: &NewPayment) -> PaymentAnswer {
    database.receive_payment(payment).await.expect("answered")
}

fn settled(outcome: PaymentOutcome) -> PaymentAnswer {
    PaymentAnswer::Settled { outcome, repeated: false }
}

fn repeated(outcome: PaymentOutcome) -> PaymentAnswer {
    PaymentAnswer::Settled { outcome, repeated: true }
}

fn refunding(stock: i64) -> NewSale {
    NewSale { late_payment: LatePayment::Refund, ..new_sale(stock) }
}

/// Message and outcome of every payment, oldest first.
async fn outcomes(database: &TestDatabase) -> Vec<String> {
    database.column("SELECT webhook_id || ' ' || outcome FROM payments ORDER BY id").await
}

on_both!(a_payment_in_time_pays_its_order_and_no_other, async |database: TestDatabase| {
    for (first, new) in [(1, new_sale(10)), (11, refunding(10))] {
        let sale = database.published(&new).await;
        database.commit_orders(&orders_of(&sale, first..=first + 1)).await.unwrap();
        database.set_pay_by(first, 60_000).await;
        let webhook = format!("message-{first}");

        let before = database.now_ms().await;
        let answer = pay(&database, &message(&webhook, &sale, first)).await;
        let after = database.now_ms().await;

        assert_eq!(answer, settled(PaymentOutcome::Paid));
        let row = database.stored(first).await;
        assert_eq!((row.order.state, row.generation), (OrderState::Paid, 1));
        assert!((before..=after).contains(&row.order.settled_ms.expect("it is settled")));
        assert_eq!(database.state(first + 1).await, OrderState::AwaitingPayment);
        assert_eq!((database.stock_left(&sale).await, database.owed().await), (8, Vec::new()));
        database.assert_conserved(&sale).await;
        // Nothing can end it any more.
        database.set_pay_by(first, -1_000).await;
        assert_eq!(database.expire_orders(10).await.unwrap(), []);
    }
});

on_both!(a_second_before_pay_by_both_policies_take_the_money, async |database: TestDatabase| {
    for (id, new) in [(1, new_sale(10)), (2, refunding(10))] {
        let sale = database.published(&new).await;
        database.ordered(&sale, id).await;
        // By the clock of a machine under load a second is short: more is left than is needed.
        database.set_pay_by(id, 20_000).await;
        let answer = pay(&database, &message(&format!("m{id}"), &sale, id)).await;
        assert_eq!(answer, settled(PaymentOutcome::Paid));
    }
});

on_both!(at_pay_by_and_after_it_the_policy_decides, async |database: TestDatabase| {
    for (id, late_ms) in [(1, 0), (2, 1_000), (3, 86_400_000)] {
        // Not swept yet: the unit is the buyer's still, and nobody else has had it.
        let sale = database.published(&new_sale(10)).await;
        database.ordered(&sale, id).await;
        database.set_pay_by(id, -late_ms).await;
        let answer = pay(&database, &message(&format!("kept-{id}"), &sale, id)).await;
        assert_eq!(answer, settled(PaymentOutcome::Paid), "{late_ms}");
        assert_eq!(database.state(id).await, OrderState::Paid);
        assert_eq!((database.stock_left(&sale).await, database.owed().await.len()), (9, 0));
    }
    for (n, (id, late_ms)) in [(11, 0), (12, 1_000), (13, 86_400_000)].into_iter().enumerate() {
        let sale = database.published(&refunding(10)).await;
        database.ordered(&sale, id).await;
        database.set_pay_by(id, -late_ms).await;
        let late = message(&format!("late-{id}"), &sale, id);
        assert_eq!(pay(&database, &late).await, settled(PaymentOutcome::RefundDue), "{late_ms}");
        assert_eq!(pay(&database, &late).await, repeated(PaymentOutcome::RefundDue), "{late_ms}");
        assert_eq!(database.state(id).await, OrderState::RefundDue);
        // It was overdue, so its unit comes back as that of any other.
        assert_eq!(database.stock_left(&sale).await, 10);
        let owed = database.owed().await;
        assert_eq!((owed.len(), owed.last()), (n + 1, Some(&(id, 1, "expired".to_owned()))));
        database.assert_conserved(&sale).await;
    }
});

on_both!(a_millisecond_decides_by_the_databases_clock, async |database: TestDatabase| {
    let sale = database.published(&refunding(200)).await;
    let mut seen = [0, 0];
    for id in 1..=60 {
        database.ordered(&sale, id).await;
        database.set_pay_by(id, id % 10).await;
        let due = database.stored(id).await.order.pay_by_ms.expect("it must be paid some day");
        let before = database.now_ms().await;
        let answer = pay(&database, &message(&format!("m{id}"), &sale, id)).await;
        let after = database.now_ms().await;
        if answer == settled(PaymentOutcome::Paid) {
            assert!(before < due, "paid between {before} and {after}, due at {due}");
            seen[0] += 1;
        } else {
            assert_eq!(answer, settled(PaymentOutcome::RefundDue));
            assert!(after >= due, "refused between {before} and {after}, due at {due}");
            seen[1] += 1;
        }
    }
    assert!(seen[1] > 0, "{seen:?}");
    database.assert_conserved(&sale).await;
});

on_both!(money_of_another_amount_or_currency_pays_nothing, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.ordered(&sale, 1).await;
    let currency = sale.price.currency;
    let wrong = [
        Price { amount: 9_899, currency },
        Price { amount: 9_901, currency },
        Price { amount: 0, currency },
        Price { amount: -9_900, currency },
        Price { amount: 9_900, currency: "USD".parse().unwrap() },
    ];
    for (n, price) in wrong.into_iter().enumerate() {
        let payment = NewPayment { price, ..message(&format!("wrong-{n}"), &sale, 1) };
        assert_eq!(pay(&database, &payment).await, settled(PaymentOutcome::Mismatch));
        assert_eq!(pay(&database, &payment).await, repeated(PaymentOutcome::Mismatch));
        // The right amount is another payment, and needs an id of its own.
        let other = message(&format!("wrong-{n}"), &sale, 1);
        assert_eq!(pay(&database, &other).await, PaymentAnswer::IdReused);
    }
    assert_eq!(database.state(1).await, OrderState::AwaitingPayment);
    assert_eq!(database.list_refunds_due(10).await.unwrap().len(), wrong.len());
    assert_eq!(pay(&database, &message("right", &sale, 1)).await, settled(PaymentOutcome::Paid));
    assert_eq!(database.stock_left(&sale).await, 9);

    // Late and wrong is wrong: no unit is taken for it.
    database.expired(&sale, 2).await;
    let payment = NewPayment { price: wrong[0], ..message("late-and-wrong", &sale, 2) };
    assert_eq!(pay(&database, &payment).await, settled(PaymentOutcome::Mismatch));
    assert_eq!(database.state(2).await, OrderState::Expired);
});

on_both!(the_price_of_the_order_counts_and_not_the_sales, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.ordered(&sale, 1).await;
    database.execute("UPDATE sales SET price_amount = 1").await;
    let answer = pay(&database, &message("message", &sale, 1)).await;
    assert_eq!(answer, settled(PaymentOutcome::Paid));
});

on_both!(one_message_ten_times_at_once_is_one_payment, async |database: TestDatabase| {
    let sale = database.published(&new_sale(100)).await;
    let other = database.connect(PATIENT).await;
    for id in 1..=20 {
        let wrong = id % 2 == 0;
        database.ordered(&sale, id).await;
        let mut payment = message(&format!("message-{id}"), &sale, id);
        payment.price.amount += i64::from(wrong);
        let mut tasks = JoinSet::new();
        for turn in 0..10 {
            let database = if turn % 2 == 0 { (*database).clone() } else { other.clone() };
            let payment = payment.clone();
            tasks.spawn(async move { pay(&database, &payment).await });
        }
        let answers = tasks.join_all().await;
        let expected = if wrong { PaymentOutcome::Mismatch } else { PaymentOutcome::Paid };
        let first = answers.iter().filter(|answer| **answer == settled(expected)).count();
        let again = answers.iter().filter(|answer| **answer == repeated(expected)).count();
        assert_eq!((first, again), (1, 9), "{answers:?}");
    }
    let rows: i64 = database.value("SELECT count(*) FROM payments").await;
    assert_eq!(rows, 20);
    assert_eq!(database.stock_left(&sale).await, 80);
});

on_both!(a_second_payment_is_due_back_and_the_order_stays_paid, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.ordered(&sale, 1).await;
    assert_eq!(pay(&database, &message("first", &sale, 1)).await, settled(PaymentOutcome::Paid));
    let paid = database.stored(1).await;
    let second = message("second", &sale, 1);
    assert_eq!(pay(&database, &second).await, settled(PaymentOutcome::RefundDue));
    assert_eq!(pay(&database, &second).await, repeated(PaymentOutcome::RefundDue));
    assert_eq!(database.stored(1).await, paid);
    assert_eq!(outcomes(&database).await, ["first paid", "second refund_due"]);
    assert_eq!(pay(&database, &message("first", &sale, 1)).await, repeated(PaymentOutcome::Paid));
});

on_both!(money_for_an_order_that_is_over_is_due_back, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let states = OrderState::ALL.into_iter().filter(|state| is_row_state(*state));
    let over = states.filter(|s| *s != OrderState::AwaitingPayment && *s != OrderState::Expired);
    for (id, state) in (1..).zip(over) {
        database.insert_order(id, &sale, "buyer", i32::try_from(id).unwrap(), state).await;
        let before = database.stored(id).await;
        let answer = pay(&database, &message(&format!("m{id}"), &sale, id)).await;
        assert_eq!(answer, settled(PaymentOutcome::RefundDue), "{state}");
        assert_eq!(database.stored(id).await, before, "{state}");
    }
    assert_eq!((database.stock_left(&sale).await, database.owed().await), (10, Vec::new()));
    // A buyer who gives up and pays all the same.
    database.ordered(&sale, 50).await;
    database.cancel_order(order_id(50), &user_id("user-50")).await.unwrap();
    let answer = pay(&database, &message("m50", &sale, 50)).await;
    assert_eq!(answer, settled(PaymentOutcome::RefundDue));
    assert_eq!(database.state(50).await, OrderState::Cancelled);
});

on_both!(money_for_an_unknown_order_is_not_written_down, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let early = message("early", &sale, 7);
    assert_eq!(pay(&database, &early).await, PaymentAnswer::OrderNotFound);
    assert_eq!(outcomes(&database).await, Vec::<String>::new());
    // The order was queued still; the provider's retry finds it.
    database.ordered(&sale, 7).await;
    assert_eq!(pay(&database, &early).await, settled(PaymentOutcome::Paid));
});

on_both!(one_message_pays_no_second_order, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=2)).await.unwrap();
    assert_eq!(pay(&database, &message("one", &sale, 1)).await, settled(PaymentOutcome::Paid));
    assert_eq!(pay(&database, &message("one", &sale, 2)).await, PaymentAnswer::IdReused);
    assert_eq!(database.state(2).await, OrderState::AwaitingPayment);

    // Also not while the first one takes its unit.
    database.expired(&sale, 3).await;
    database.expired(&sale, 4).await;
    let PaymentAnswer::Reacquire(first) = pay(&database, &message("late", &sale, 3)).await else {
        panic!("it is late")
    };
    assert_eq!(first.stored.order.id, order_id(3));
    let again = pay(&database, &message("late", &sale, 4)).await;
    assert_eq!(again, PaymentAnswer::IdReused);
    let again = pay(&database, &message("late", &sale, 3)).await;
    assert_eq!(again, PaymentAnswer::Reacquire(first));
});

on_both!(an_order_is_paid_whatever_its_sale_is_by_then, async |database: TestDatabase| {
    for (id, state) in [(1, SaleState::Paused), (2, SaleState::Closed)] {
        let sale = database.published(&new_sale(10)).await;
        database.ordered(&sale, id).await;
        database.set_state(&sale, state).await;
        let answer = pay(&database, &message(&format!("m{id}"), &sale, id)).await;
        assert_eq!(answer, settled(PaymentOutcome::Paid), "{state}");
    }
});

on_both!(refunds_are_listed_until_they_are_done, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=2)).await.unwrap();
    pay(&database, &message("paid", &sale, 1)).await;
    let before = database.now_ms().await;
    pay(&database, &message("twice", &sale, 1)).await;
    let after = database.now_ms().await;
    let mut wrong = message("wrong", &sale, 2);
    wrong.price.amount += 5;
    pay(&database, &wrong).await;
    database.expired(&sale, 3).await;
    pay(&database, &message("being-reacquired", &sale, 3)).await;

    let due = database.list_refunds_due(10).await.unwrap();
    let ids: Vec<i64> = due.iter().map(|payment| payment.id).collect();
    let received_ms = due[0].received_ms;
    assert!((before..=after).contains(&received_ms));
    let twice = StoredPayment {
        id: ids[0],
        webhook_id: "twice".to_owned(),
        order_id: order_id(1),
        price: sale.price,
        outcome: PaymentOutcome::RefundDue,
        received_ms,
    };
    assert_eq!(due[0], twice);
    assert_eq!((due[1].outcome, due[1].price), (PaymentOutcome::Mismatch, wrong.price));
    assert_eq!(due.len(), 2);
    assert_eq!(database.list_refunds_due(1).await.unwrap(), due[..1]);

    let all: Vec<i64> = database.column("SELECT id FROM payments ORDER BY id").await;
    for id in all {
        assert_eq!(database.mark_refunded(id).await.unwrap(), ids.contains(&id), "{id}");
        assert!(!database.mark_refunded(id).await.unwrap(), "{id} was given back before");
    }
    assert!(!database.mark_refunded(4_711).await.unwrap());
    assert_eq!(database.list_refunds_due(10).await.unwrap(), []);
    let outcomes = outcomes(&database).await;
    let expected =
        ["paid paid", "twice refunded", "wrong refunded", "being-reacquired reacquiring"];
    assert_eq!(outcomes, expected);
    let again = pay(&database, &message("twice", &sale, 1)).await;
    assert_eq!(again, repeated(PaymentOutcome::Refunded));
});
