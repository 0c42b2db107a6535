//! Payments through both stores: in time, late, in vain, and while Redis is away.

use flashsale_domain::{
    LatePayment, NewPayment, NewSale, OrderId, OrderState, PaymentOutcome, Price, SaleMode,
};
use flashsale_operations::{PaymentVerdict, Refused};
use flashsale_storage_redis::Released;

use crate::support::{Stand, new_sale, on_both, only, press, refused, user_id};

fn message(webhook_id: &str, order_id: OrderId) -> NewPayment {
    let price = new_sale(1).price;
    NewPayment { webhook_id: webhook_id.to_owned(), order_id, price }
}

fn settled(outcome: PaymentOutcome) -> PaymentVerdict {
    PaymentVerdict::Settled { outcome, repeated: false }
}

fn repeated(outcome: PaymentOutcome) -> PaymentVerdict {
    PaymentVerdict::Settled { outcome, repeated: true }
}

async fn pay(stand: &Stand, webhook_id: &str, order: OrderId) -> PaymentVerdict {
    let payment = message(webhook_id, order);
    stand.operations.receive_payment(&payment).await.expect("answered")
}

async fn state(stand: &Stand, id: OrderId) -> OrderState {
    stand.database.find_order(id).await.expect("answered").expect("a row").order.state
}

on_both!(a_payment_in_time_needs_nothing_of_redis, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.admit(&sale, "buyer", 2).await;
    assert_eq!(pay(&stand, "early", ids[0]).await, PaymentVerdict::OrderNotFound);
    stand.work().await;
    let mut changed = stand.redis.changed_orders().await.expect("subscribed");
    assert_eq!(pay(&stand, "early", ids[0]).await, settled(PaymentOutcome::Paid));
    assert_eq!(changed.next().await, Some(vec![ids[0]]), "whoever waits is told");
    assert_eq!(pay(&stand, "early", ids[0]).await, repeated(PaymentOutcome::Paid));
    stand.redis.fence(only()).await.expect("fenced");
    assert_eq!(pay(&stand, "second", ids[1]).await, settled(PaymentOutcome::Paid));
    assert_eq!(stand.units(&sale).await, [8, 2, sale.epoch]);
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.paid, ledger.awaiting_payment), (2, 0));
    stand.assert_clean(&sale).await;
});

on_both!(a_late_payment_takes_a_unit_in_both_stores, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    assert_eq!(stand.relay().await, [Released::Done]);
    assert_eq!(pay(&stand, "late", ids[0]).await, settled(PaymentOutcome::Paid));
    assert_eq!(pay(&stand, "late", ids[0]).await, repeated(PaymentOutcome::Paid));
    assert_eq!(state(&stand, ids[0]).await, OrderState::Paid);
    assert_eq!(stand.units(&sale).await, [9, 1, sale.epoch]);
    assert_eq!(stand.operations.finish_late_payments(10).await.expect("answered"), 0);
    stand.assert_clean(&sale).await;
    // A rebuild loads the hold that it has now.
    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    stand.assert_clean(&sale).await;
    assert_eq!(stand.units(&sale).await, [9, 1, sale.epoch + 1]);
});

on_both!(a_late_payment_before_the_release_keeps_the_unit, async |stand: Stand| {
    let sale = stand.publish(1).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    // The relay comes afterwards, and finds a newer hold.
    assert_eq!(pay(&stand, "late", ids[0]).await, settled(PaymentOutcome::Paid));
    assert_eq!(stand.relay().await, [Released::Nothing]);
    assert_eq!(stand.units(&sale).await, [0, 1, sale.epoch]);
    stand.assert_clean(&sale).await;
});

on_both!(a_late_payment_without_a_unit_is_due_back, async |stand: Stand| {
    let sale = stand.publish(1).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    stand.relay().await;
    let key = stand.keys.sale(only(), sale.id);
    stand.ask::<i64>(&["HSET", &key, "reopen_ms", "0"]).await;
    stand.admit(&sale, "faster", 1).await;
    // Sold to another, whose order is not even a row yet.
    assert_eq!(pay(&stand, "late", ids[0]).await, settled(PaymentOutcome::RefundDue));
    assert_eq!(state(&stand, ids[0]).await, OrderState::RefundDue);
    stand.work().await;
    assert_eq!(stand.units(&sale).await, [0, 1, sale.epoch]);
    stand.assert_clean(&sale).await;

    let due = stand.operations.list_refunds_due(10).await.expect("answered");
    assert_eq!((due.len(), due[0].order_id), (1, ids[0]));
    let done = stand.operations.mark_refunded("an operator", due[0].id).await;
    done.expect("it is due");
    let again = stand.operations.mark_refunded("an operator", due[0].id).await;
    assert!(matches!(refused(again), Refused::NoRefundDue(id) if id == due[0].id));
    assert_eq!(stand.operations.list_refunds_due(10).await.expect("answered"), []);
});

on_both!(what_redis_gave_in_vain_goes_back, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    stand.relay().await;
    // In the database every unit is gone, though Redis thinks otherwise.
    let none = format!("UPDATE sales SET stock_left = 0 WHERE id = {}", sale.id);
    stand.execute(&none).await;
    assert_eq!(pay(&stand, "late", ids[0]).await, settled(PaymentOutcome::RefundDue));
    assert_eq!(stand.units(&sale).await, [9, 1, sale.epoch]);
    let back = format!("UPDATE sales SET stock_left = 10 WHERE id = {}", sale.id);
    stand.execute(&back).await;
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.in_transit, ledger.refund_due), (1, 1));
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    assert_eq!(stand.relay().await, [Released::Done]);
    assert_eq!(stand.units(&sale).await, [10, 0, sale.epoch]);
    stand.assert_clean(&sale).await;
});

on_both!(money_for_another_amount_moves_nothing, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    stand.relay().await;
    let mut payment = message("wrong", ids[0]);
    payment.price = Price { amount: 1, ..payment.price };
    let verdict = stand.operations.receive_payment(&payment).await.expect("answered");
    assert_eq!(verdict, settled(PaymentOutcome::Mismatch));
    assert_eq!(state(&stand, ids[0]).await, OrderState::Expired);
    assert_eq!(stand.units(&sale).await, [10, 0, sale.epoch]);
});

on_both!(a_late_payment_waits_for_redis_and_is_then_finished, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.expired(&sale, "buyer", 3).await;
    stand.relay().await;
    stand.redis.fence(only()).await.expect("fenced");
    for id in &ids {
        let webhook = format!("late-{id}");
        for _ in 0..2 {
            assert_eq!(pay(&stand, &webhook, *id).await, PaymentVerdict::Pending);
        }
    }
    assert_eq!(stand.operations.finish_late_payments(10).await.expect("answered"), 0);
    assert_eq!(state(&stand, ids[0]).await, OrderState::Expired);
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.late_payments, ledger.expired), (3, 3));
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;

    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    let mut changed = stand.redis.changed_orders().await.expect("subscribed");
    assert_eq!(stand.operations.finish_late_payments(2).await.expect("answered"), 2);
    assert_eq!(changed.next().await, Some(vec![ids[0]]));
    assert_eq!(stand.operations.finish_late_payments(2).await.expect("answered"), 1);
    assert_eq!(stand.operations.finish_late_payments(2).await.expect("answered"), 0);
    for id in &ids {
        assert_eq!(state(&stand, *id).await, OrderState::Paid);
        let again = pay(&stand, &format!("late-{id}"), *id).await;
        assert_eq!(again, repeated(PaymentOutcome::Paid));
    }
    assert_eq!(stand.units(&sale).await, [7, 3, sale.epoch + 1]);
    stand.assert_clean(&sale).await;
});

on_both!(a_message_that_comes_many_times_at_once_takes_one_unit, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let ids = stand.expired(&sale, "buyer", 4).await;
    stand.relay().await;
    for id in &ids {
        let webhook = format!("late-{id}");
        let try_it = || pay(&stand, &webhook, *id);
        let worker = stand.operations.finish_late_payments(10);
        let (a, b, c, finished) = tokio::join!(try_it(), try_it(), try_it(), worker);
        finished.expect("answered");
        let answers = [a, b, c];
        let paid = |verdict: &PaymentVerdict| {
            matches!(verdict, PaymentVerdict::Settled { outcome: PaymentOutcome::Paid, .. })
        };
        assert!(answers.iter().all(paid), "{answers:?}");
    }
    assert_eq!(stand.units(&sale).await, [6, 4, sale.epoch]);
    assert_eq!(stand.relay().await, []);
    stand.assert_clean(&sale).await;
});

on_both!(
    late_payments_that_several_workers_finish_at_once_take_a_unit_each,
    async |stand: Stand| {
        let sale = stand.publish(100).await;
        let ids = stand.expired(&sale, "buyer", 60).await;
        while !stand.relay().await.is_empty() {}
        for id in &ids {
            stand
                .database
                .receive_payment(&message(&format!("late-{id}"), *id))
                .await
                .expect("noted");
        }
        // Some look at the oldest again and again, while another is just finishing it.
        let worker = async |limit| {
            while stand.operations.finish_late_payments(limit).await.expect("answered") > 0 {}
        };
        tokio::join!(worker(100), worker(1), worker(2), worker(3));
        assert_eq!(stand.relay().await, [], "nothing is given back");
        assert_eq!(stand.units(&sale).await, [40, 60, sale.epoch]);
        stand.assert_clean(&sale).await;
    }
);

on_both!(a_unit_given_after_the_money_was_refused_goes_back, async |stand: Stand| {
    let sale = stand.publish(1).await;
    let ids = stand.expired(&sale, "buyer", 1).await;
    stand.relay().await;
    let key = stand.keys.sale(only(), sale.id);
    stand.ask::<i64>(&["HSET", &key, "reopen_ms", "0"]).await;
    let faster = stand.admit(&sale, "faster", 1).await;
    stand.work().await;
    // Two read the payment; the first is refused a unit, and the money is due back.
    stand.database.receive_payment(&message("late", ids[0])).await.expect("answered");
    let read = stand.database.list_reacquiring(1).await.expect("answered").remove(0);
    assert_eq!(pay(&stand, "late", ids[0]).await, settled(PaymentOutcome::RefundDue));
    // Then a unit comes back, and the other, who is slow, is given it.
    stand.operations.cancel_order(faster[0], &user_id("faster-0")).await.expect("cancelled");
    assert_eq!(stand.relay().await, [Released::Done]);
    let taken = stand.reacquire(&read).await;
    assert_eq!(stand.units(&sale).await, [0, 1, sale.epoch]);
    let outcome = stand.database.finish_reacquiring(&read, Some(taken)).await.expect("answered");
    assert_eq!(outcome, Some(PaymentOutcome::RefundDue));
    assert_eq!(stand.relay().await, [Released::Done]);
    assert_eq!(stand.units(&sale).await, [1, 0, sale.epoch]);
    stand.assert_clean(&sale).await;
});

on_both!(the_policy_refund_never_asks_redis, async |stand: Stand| {
    let new = NewSale { late_payment: LatePayment::Refund, ..new_sale(10) };
    let sale = stand.operations.create_sale(&new).await.expect("a sale");
    let sale = stand.operations.publish_sale(sale.id).await.expect("published");
    let ids = stand.admit(&sale, "buyer", 1).await;
    stand.work().await;
    stand.make_overdue(&ids).await;
    // Overdue and not swept: the payment itself ends the order.
    assert_eq!(pay(&stand, "late", ids[0]).await, settled(PaymentOutcome::RefundDue));
    assert_eq!(stand.operations.expire_orders(10).await.expect("answered"), 0);
    stand.assert_clean(&sale).await;
    assert_eq!(stand.relay().await, [Released::Done]);
    assert_eq!(stand.units(&sale).await, [10, 0, sale.epoch]);
    stand.assert_clean(&sale).await;
});

on_both!(a_direct_sales_late_payment_is_the_databases_alone, async |stand: Stand| {
    let new = NewSale { mode: SaleMode::Direct, ..new_sale(1) };
    let sale = stand.operations.create_sale(&new).await.expect("a sale");
    let sale = stand.operations.publish_sale(sale.id).await.expect("published");
    let mut ids = Vec::new();
    for user in ["first", "second"] {
        let id = stand.redis.next_direct_order_id().await.expect("answered").expect("an id");
        let digest = press(user).digest;
        let placed = stand
            .database
            .place_direct_order(id, sale.id, &user_id(user), digest.as_ref(), 20)
            .await;
        placed.expect("answered");
        stand.make_overdue(&[id]).await;
        assert_eq!(stand.operations.expire_orders(10).await.expect("answered"), 1);
        ids.push(id);
    }
    assert_eq!(stand.relay().await, []);
    assert_eq!(pay(&stand, "a", ids[1]).await, settled(PaymentOutcome::Paid));
    assert_eq!(pay(&stand, "b", ids[0]).await, settled(PaymentOutcome::RefundDue));
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.paid, ledger.refund_due, ledger.stock_left), (1, 1, 0));
    stand.assert_clean(&sale).await;
});

on_both!(a_sale_whose_keys_are_broken_keeps_no_other_from_its_turn, async |stand: Stand| {
    let (broken, sound) = (stand.publish(10).await, stand.publish(10).await);
    let mut ids = Vec::new();
    for (sale, buyer) in [(&broken, "a"), (&sound, "b")] {
        ids.extend(stand.expired(sale, buyer, 1).await);
    }
    stand.relay().await;
    for (n, id) in ids.iter().enumerate() {
        let late = message(&format!("late-{n}"), *id);
        stand.database.receive_payment(&late).await.expect("answered");
    }
    let key = stand.keys.buyers(only(), broken.id);
    let aside = format!("{key}-aside");
    stand.ask::<()>(&["RENAME", &key, &aside]).await;
    stand.ask::<()>(&["SET", &key, "a string"]).await;
    let fault = stand.operations.finish_late_payments(10).await.expect_err("one is broken");
    assert!(fault.to_string().contains("WRONGTYPE"), "{fault}");
    assert_eq!(state(&stand, ids[0]).await, OrderState::Expired);
    assert_eq!(state(&stand, ids[1]).await, OrderState::Paid);
    stand.ask::<()>(&["RENAME", &aside, &key]).await;
    assert_eq!(stand.operations.finish_late_payments(10).await.expect("answered"), 1);
    assert_eq!(state(&stand, ids[0]).await, OrderState::Paid);
});
