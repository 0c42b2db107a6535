//! Late payments: an expired order takes a unit again, in Redis first and here afterwards, or its
//! money is due back; and what Redis gave in vain goes back.

use flashsale_domain::{
    LatePayment, NewOrder, NewPayment, NewSale, OrderState, PaymentOutcome, Sale, SaleMode,
    SaleState,
};
use flashsale_storage_sql::{Commit, PaymentAnswer, Reacquiring, TakenUnit};
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{
    PATIENT, TestDatabase, direct_id, new_sale, on_both, order_id, order_of, user_id,
};

fn message(webhook_id: &str, sale: &Sale, id: i64) -> NewPayment {
    NewPayment { webhook_id: webhook_id.to_owned(), order_id: order_id(id), price: sale.price }
}

async fn pay(database: &TestDatabase, sale: &Sale, webhook: &str, id: i64) -> PaymentAnswer {
    database.receive_payment(&message(webhook, sale, id)).await.expect("answered")
}

fn refund_due() -> PaymentAnswer {
    PaymentAnswer::Settled { outcome: PaymentOutcome::RefundDue, repeated: false }
}

/// Order `id` expires, and is paid for afterwards.
async fn paid_late(database: &TestDatabase, sale: &Sale, id: i64) -> Reacquiring {
    database.expired(sale, id).await;
    database.execute("DELETE FROM outbox").await;
    match pay(database, sale, &format!("late-{id}"), id).await {
        PaymentAnswer::Reacquire(reacquiring) => *reacquiring,
        other => panic!("{other:?}"),
    }
}

fn taken(sale: &Sale) -> Option<TakenUnit> {
    Some(TakenUnit { epoch: sale.epoch })
}

async fn finish(
    database: &TestDatabase,
    reacquiring: &Reacquiring,
    taken: Option<TakenUnit>,
) -> Option<PaymentOutcome> {
    database.finish_reacquiring(reacquiring, taken).await.expect("answered")
}

on_both!(an_expired_order_is_to_take_a_unit_again, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    assert_eq!(reacquiring.stored, database.stored(1).await);
    assert_eq!(reacquiring.generation, 2);
    assert_eq!(database.state(1).await, OrderState::Expired);
    assert_eq!((database.stock_left(&sale).await, database.owed().await), (10, Vec::new()));
    // The provider's retry, and the worker, go on where the first try stopped.
    let again = pay(&database, &sale, "late-1", 1).await;
    assert_eq!(again, PaymentAnswer::Reacquire(Box::new(reacquiring.clone())));
    assert_eq!(database.list_reacquiring(10).await.unwrap(), std::slice::from_ref(&reacquiring));
    assert_eq!(database.list_reacquiring(0).await.unwrap(), []);
    let transit = database.orders_in_transit(sale.id).await.unwrap();
    assert_eq!((transit.late_payments, transit.releases), (vec![order_id(1)], Vec::new()));
    let other = database.published(&new_sale(10)).await;
    assert_eq!(database.orders_in_transit(other.id).await.unwrap(), Default::default());

    assert_eq!(finish(&database, &reacquiring, taken(&sale)).await, Some(PaymentOutcome::Paid));

    let row = database.stored(1).await;
    assert_eq!((row.order.state, row.generation, row.slot), (OrderState::Paid, 2, 1));
    assert_eq!((database.stock_left(&sale).await, database.owed().await), (9, Vec::new()));
    assert_eq!(database.list_reacquiring(10).await.unwrap(), []);
    let answer = pay(&database, &sale, "late-1", 1).await;
    let paid = PaymentAnswer::Settled { outcome: PaymentOutcome::Paid, repeated: true };
    assert_eq!(answer, paid);
    database.assert_conserved(&sale).await;
});

on_both!(a_late_payment_is_finished_once, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    let other = database.connect(PATIENT).await;
    let (a, b) = tokio::join!(
        database.finish_reacquiring(&reacquiring, taken(&sale)),
        other.finish_reacquiring(&reacquiring, taken(&sale)),
    );
    assert_eq!([a.unwrap(), b.unwrap()], [Some(PaymentOutcome::Paid); 2]);
    assert_eq!(finish(&database, &reacquiring, None).await, Some(PaymentOutcome::Paid));
    assert_eq!(finish(&database, &reacquiring, taken(&sale)).await, Some(PaymentOutcome::Paid));
    assert_eq!((database.stock_left(&sale).await, database.owed().await), (9, Vec::new()));
    assert_eq!(database.stored(1).await.generation, 2);
});

/// Payments and their orders are read one after the other; what is finished in between holds its unit
/// already, and asking for one more hold would end with its unit being taken back.
#[tokio::test]
async fn a_payment_that_is_finished_while_it_is_listed_is_not_finished_again() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&new_sale(10)).await;
    paid_late(&database, &sale, 1).await;
    let other = database.raw.begin().await.unwrap();
    other.execute_unprepared("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let finish = async {
        database.until_locked_out(1).await;
        other
            .execute_unprepared(
                "UPDATE orders SET state = 'paid', generation = 2; \
                 UPDATE payments SET outcome = 'paid'",
            )
            .await
            .unwrap();
        other.commit().await.unwrap();
    };

    let (listed, ()) = tokio::join!(database.list_reacquiring(10), finish);

    assert_eq!(listed.unwrap(), []);
    assert_eq!(database.state(1).await, OrderState::Paid);
}

on_both!(without_a_unit_the_money_is_due_back, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    for _ in 0..2 {
        let outcome = finish(&database, &reacquiring, None).await;
        assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
    }
    let row = database.stored(1).await;
    assert_eq!((row.order.state, row.generation), (OrderState::RefundDue, 1));
    // Redis gave nothing, and is owed nothing.
    assert_eq!((database.stock_left(&sale).await, database.owed().await), (10, Vec::new()));
    assert_eq!(database.list_refunds_due(10).await.unwrap().len(), 1);
});

on_both!(a_unit_that_came_too_late_for_the_money_goes_back, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    // Two at work: one was refused by Redis, then a unit came back, and the other was given it.
    assert_eq!(finish(&database, &reacquiring, None).await, Some(PaymentOutcome::RefundDue));
    for _ in 0..2 {
        let outcome = finish(&database, &reacquiring, taken(&sale)).await;
        assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
        assert_eq!(database.owed().await, [(1, 2, "late-payment".to_owned())]);
    }
    assert_eq!(database.state(1).await, OrderState::RefundDue);
    assert_eq!(database.stock_left(&sale).await, 10);
});

on_both!(a_slot_that_is_taken_gives_the_unit_back, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    let second = NewOrder { user_id: user_id("user-1"), ..order_of(&sale, 2) };
    assert_eq!(database.commit_orders(&[second]).await.unwrap().outcomes, [Commit::Inserted]);
    let outcome = finish(&database, &reacquiring, taken(&sale)).await;
    assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
    assert_eq!(database.owed().await, [(1, 2, "late-payment".to_owned())]);
    assert_eq!(database.state(1).await, OrderState::RefundDue);
    assert_eq!(database.state(2).await, OrderState::AwaitingPayment);
    assert_eq!(database.stock_left(&sale).await, 9);
    database.assert_conserved(&sale).await;
});

on_both!(stock_that_is_gone_here_gives_the_unit_back, async |database: TestDatabase| {
    let sale = database.published(&new_sale(1)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    database.ordered(&sale, 2).await;
    let outcome = finish(&database, &reacquiring, taken(&sale)).await;
    assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
    assert_eq!(database.owed().await, [(1, 2, "late-payment".to_owned())]);
    assert_eq!(database.stock_left(&sale).await, 0);
    database.assert_conserved(&sale).await;
});

on_both!(a_closed_sale_gives_the_money_back, async |database: TestDatabase| {
    // Closed before the payment.
    let sale = database.published(&new_sale(10)).await;
    database.expired(&sale, 1).await;
    database.set_state(&sale, SaleState::Closed).await;
    assert_eq!(pay(&database, &sale, "late-1", 1).await, refund_due());
    assert_eq!(database.state(1).await, OrderState::RefundDue);
    // Closed between Redis and here.
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 2).await;
    database.set_state(&sale, SaleState::Closed).await;
    let outcome = finish(&database, &reacquiring, taken(&sale)).await;
    assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
    assert_eq!(database.owed().await, [(2, 2, "late-payment".to_owned())]);
    assert_eq!(database.stock_left(&sale).await, 10);
    // A paused one is still to be had.
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 3).await;
    database.set_state(&sale, SaleState::Paused).await;
    assert_eq!(finish(&database, &reacquiring, taken(&sale)).await, Some(PaymentOutcome::Paid));
});

on_both!(the_policy_refund_takes_no_unit_again, async |database: TestDatabase| {
    let new = NewSale { late_payment: LatePayment::Refund, ..new_sale(10) };
    let sale = database.published(&new).await;
    database.expired(&sale, 1).await;
    assert_eq!(pay(&database, &sale, "late-1", 1).await, refund_due());
    assert_eq!(database.state(1).await, OrderState::RefundDue);
    assert_eq!(database.owed().await, [(1, 1, "expired".to_owned())]);
    assert_eq!(database.stock_left(&sale).await, 10);
    assert_eq!(database.list_reacquiring(10).await.unwrap(), []);
});

on_both!(money_that_comes_late_twice_buys_one_unit, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    assert_eq!(pay(&database, &sale, "again", 1).await, refund_due());
    assert_eq!(database.state(1).await, OrderState::Expired, "the first one decides");
    // Also when the sale is closed in between.
    database.set_state(&sale, SaleState::Closed).await;
    assert_eq!(pay(&database, &sale, "and-again", 1).await, refund_due());
    assert_eq!(database.state(1).await, OrderState::Expired, "the first one decides");
    let outcome = finish(&database, &reacquiring, None).await;
    assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
    assert_eq!(database.state(1).await, OrderState::RefundDue);
    assert_eq!(pay(&database, &sale, "once-more", 1).await, refund_due());
    assert_eq!(database.list_refunds_due(10).await.unwrap().len(), 4);
});

on_both!(
    a_unit_taken_in_a_memory_that_was_rebuilt_does_not_count,
    async |database: TestDatabase| {
        let sale = database.published(&new_sale(10)).await;
        let reacquiring = paid_late(&database, &sale, 1).await;
        let rebuilt = database.begin_epoch(sale.id, sale.epoch).await.unwrap().unwrap();
        assert_eq!(finish(&database, &reacquiring, taken(&sale)).await, None);
        assert_eq!(database.state(1).await, OrderState::Expired);
        assert_eq!((database.stock_left(&sale).await, database.owed().await), (10, Vec::new()));
        assert_eq!(database.list_reacquiring(10).await.unwrap().len(), 1);
        // What was taken in the new memory does.
        let outcome = finish(&database, &reacquiring, taken(&rebuilt.sale)).await;
        assert_eq!(outcome, Some(PaymentOutcome::Paid));
        let held = database.begin_epoch(sale.id, rebuilt.sale.epoch).await.unwrap().unwrap().orders;
        assert_eq!((held[0].generation, held[0].open), (2, true));
    }
);

on_both!(
    a_direct_sales_late_payment_takes_its_unit_in_the_database,
    async |database: TestDatabase| {
        let sale = database.published(&NewSale { mode: SaleMode::Direct, ..new_sale(1) }).await;
        let place = async |n: i64, user: &str| {
            let id = order_id(direct_id(n));
            database.place_direct_order(id, sale.id, &user_id(user), None, 20).await.unwrap();
            database.set_pay_by(direct_id(n), 0).await;
            assert_eq!(database.expire_orders(10).await.unwrap().len(), 1);
            match pay(&database, &sale, &format!("late-{n}"), direct_id(n)).await {
                PaymentAnswer::Reacquire(reacquiring) => *reacquiring,
                other => panic!("{other:?}"),
            }
        };
        let first = place(1, "first").await;
        let second = place(2, "second").await;
        assert_eq!(finish(&database, &second, None).await, Some(PaymentOutcome::Paid));
        // There was but one.
        assert_eq!(finish(&database, &first, None).await, Some(PaymentOutcome::RefundDue));
        assert_eq!(database.stored(direct_id(2)).await.generation, 2);
        assert_eq!(database.state(direct_id(1)).await, OrderState::RefundDue);
        assert_eq!((database.stock_left(&sale).await, database.owed().await), (0, Vec::new()));
        database.assert_conserved(&sale).await;
    }
);

on_both!(an_order_that_was_paid_late_can_end_no_more, async |database: TestDatabase| {
    let sale = database.published(&new_sale(10)).await;
    let reacquiring = paid_late(&database, &sale, 1).await;
    finish(&database, &reacquiring, taken(&sale)).await;
    assert_eq!(database.expire_orders(10).await.unwrap(), []);
    let answer = database.cancel_order(order_id(1), &user_id("user-1")).await.unwrap();
    assert_eq!(answer, flashsale_storage_sql::Cancellation::Refused(OrderState::Paid));
    assert_eq!(pay(&database, &sale, "second", 1).await, refund_due());
    assert_eq!(database.stock_left(&sale).await, 9);
});
