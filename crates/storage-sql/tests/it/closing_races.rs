//! Cancel, expiry and payment of one order at the same moment: exactly one wins, and one unit comes
//! back at most.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashsale_domain::{NewPayment, OrderState, PaymentOutcome, Sale};
use flashsale_storage_sql::{Cancellation, PaymentAnswer};
use sea_orm::TransactionTrait as _;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{PATIENT, TestDatabase, new_sale, on_both, order_id, orders_of, user_id};

const ROUNDS: i64 = 120;

fn payment_of(sale: &Sale, id: i64) -> NewPayment {
    NewPayment { webhook_id: format!("message-{id}"), order_id: order_id(id), price: sale.price }
}

on_both!(two_cancels_at_once_give_one_unit_back, async |database: TestDatabase| {
    let sale = database.published(&new_sale(200)).await;
    database.commit_orders(&orders_of(&sale, 1..=ROUNDS)).await.unwrap();
    let other = database.connect(PATIENT).await;
    for id in 1..=ROUNDS {
        let (user, order) = (user_id(&format!("user-{id}")), order_id(id));
        let (a, b, c) = tokio::join!(
            database.cancel_order(order, &user),
            other.cancel_order(order, &user),
            other.cancel_order(order, &user),
        );
        for answer in [a, b, c] {
            let answer = answer.expect("answered");
            assert!(matches!(answer, Cancellation::Cancelled(_)), "{answer:?}");
        }
        assert_eq!(database.stock_left(&sale).await, 200 - ROUNDS + id);
    }
    assert_eq!(database.owed().await.len(), usize::try_from(ROUNDS).unwrap());
    database.assert_conserved(&sale).await;
});

on_both!(of_cancel_expiry_and_payment_at_once_exactly_one_wins, async |database: TestDatabase| {
    let sale = database.published(&new_sale(200)).await;
    let other = database.connect(PATIENT).await;
    let mut wins: BTreeMap<&str, u32> = BTreeMap::new();
    for id in 1..=ROUNDS {
        database.ordered(&sale, id).await;
        database.set_pay_by(id, 0).await;
        let owed = database.owed().await.len();
        let left = database.stock_left(&sale).await;

        // Who starts first takes turns, so that everybody gets his chance.
        let start = Arc::new(Barrier::new(3));
        let mut tasks = JoinSet::new();
        for turn in 0..3 {
            let (database, start, sale) = (other.clone(), Arc::clone(&start), sale.clone());
            let who = (turn + id) % 3;
            tasks.spawn(async move {
                start.wait().await;
                match who {
                    0 => match database
                        .cancel_order(order_id(id), &user_id(&format!("user-{id}")))
                        .await
                        .expect("answered")
                    {
                        Cancellation::Cancelled(_) => Some("cancelled"),
                        Cancellation::Refused(OrderState::Paid | OrderState::Expired) => None,
                        answer => panic!("{answer:?}"),
                    },
                    1 => {
                        let expired = database.expire_orders(10).await.expect("answered");
                        (!expired.is_empty()).then_some("expired")
                    }
                    _ => match database
                        .receive_payment(&payment_of(&sale, id))
                        .await
                        .expect("answered")
                    {
                        PaymentAnswer::Settled { outcome: PaymentOutcome::Paid, .. } => {
                            Some("paid")
                        }
                        PaymentAnswer::Settled { outcome: PaymentOutcome::RefundDue, .. }
                        | PaymentAnswer::Reacquire(_) => None,
                        answer => panic!("{answer:?}"),
                    },
                }
            });
        }
        let winners: Vec<&str> = tasks.join_all().await.into_iter().flatten().collect();

        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(database.state(id).await.as_str(), winners[0]);
        let back = i64::from(winners[0] != "paid");
        assert_eq!(database.stock_left(&sale).await, left + back);
        assert_eq!(database.owed().await.len(), owed + usize::try_from(back).unwrap());
        database.assert_conserved(&sale).await;
        *wins.entry(winners[0]).or_default() += 1;
    }
    assert!(wins.len() > 1, "one always wins, so this is no race: {wins:?}");
});

on_both!(sweeps_side_by_side_never_expire_an_order_twice, async |database: TestDatabase| {
    const ORDERS: i64 = 600;
    let sale = database.published(&new_sale(ORDERS)).await;
    database.commit_orders(&orders_of(&sale, 1..=ORDERS)).await.unwrap();
    database.execute("UPDATE orders SET pay_by_ms = id").await;
    let start = Arc::new(Barrier::new(3));
    let mut sweeps = JoinSet::new();
    for _ in 0..3 {
        let (database, start) = (database.connect(PATIENT).await, Arc::clone(&start));
        sweeps.spawn(async move {
            start.wait().await;
            let first = database.expire_orders(10).await.expect("answered");
            let mut ids: Vec<_> = first.iter().map(|stored| stored.order.id.as_i64()).collect();
            // SQLite's lock is not fair: without this, one sweep may do all of it.
            start.wait().await;
            loop {
                let expired = database.expire_orders(10).await.expect("answered");
                if expired.is_empty() && database.next_due().await.unwrap().due_ms.is_none() {
                    return ids;
                }
                ids.extend(expired.into_iter().map(|stored| stored.order.id.as_i64()));
            }
        });
    }
    let shares = sweeps.join_all().await;
    let mut all = shares.concat();
    all.sort_unstable();
    assert_eq!(all, (1..=ORDERS).collect::<Vec<_>>());
    assert!(shares.iter().all(|share| !share.is_empty()), "only some sweeps got anywhere");
    assert_eq!(database.stock_left(&sale).await, ORDERS);
    assert_eq!(database.owed().await.len(), all.len());
});

/// SQLite has one writer at a time anyway.
#[tokio::test]
async fn a_sweep_passes_over_what_another_has_locked() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&new_sale(10)).await;
    database.commit_orders(&orders_of(&sale, 1..=3)).await.unwrap();
    database.execute("UPDATE orders SET pay_by_ms = id").await;
    let holder = database.raw.begin().await.unwrap();
    let lock = "SELECT id FROM orders WHERE id = 1 FOR UPDATE";
    sea_orm::ConnectionTrait::execute_unprepared(&holder, lock).await.unwrap();

    // Were it to wait for the lock, it would wait in vain.
    let expired = database.expire_orders(10).await.unwrap();
    let mut ids: Vec<_> = expired.iter().map(|stored| stored.order.id.as_i64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
    holder.rollback().await.unwrap();
    assert_eq!(database.expire_orders(10).await.unwrap().len(), 1);
    database.assert_conserved(&sale).await;
}
