//! Direct orders: the answers, the limits, the window by the database's clock, and the race.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_domain::{
    IdempotencyDigest, NewSale, Order, OrderId, OrderState, Refusal, Sale, SaleId, SaleMode,
    SaleState, UserId, Window,
};
use flashsale_storage_sql::{Database, DirectAnswer};
use flashsale_test_support::eventually;
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};

use crate::support::{
    CLOSES_MS, OPENS_MS, TestDatabase, digest_of, new_sale, on_both, order_id, user_id,
};

const ORDERS_MAX: u16 = 20;

fn direct(stock: i64) -> NewSale {
    NewSale { mode: SaleMode::Direct, ..new_sale(stock) }
}

async fn place(
    database: &Database,
    id: i64,
    sale: &Sale,
    user: &str,
    key: Option<&str>,
) -> DirectAnswer {
    let (user, digest) = (user_id(user), key.map(digest_of));
    let answer =
        database.place_direct_order(order_id(id), sale.id, &user, digest.as_ref(), ORDERS_MAX);
    answer.await.expect("the database can be asked")
}

fn placed(answer: DirectAnswer) -> Order {
    match answer {
        DirectAnswer::Placed(order) => *order,
        other => panic!("not placed: {other:?}"),
    }
}

fn replayed(answer: DirectAnswer) -> Order {
    match answer {
        DirectAnswer::Replayed(order) => *order,
        other => panic!("not replayed: {other:?}"),
    }
}

fn already(id: i64) -> DirectAnswer {
    DirectAnswer::Refused(Refusal::AlreadyOrdered(order_id(id)))
}

on_both!(a_placed_order_is_the_row_that_can_be_found, async |database: TestDatabase| {
    let sale = database.published(&direct(10)).await;

    let before = database.now_ms().await;
    let order = placed(place(&database, 7, &sale, "buyer", Some("key")).await);
    let after = database.now_ms().await;

    let committed_ms = order.committed_ms.unwrap();
    assert!((before..=after).contains(&committed_ms));
    let expected = Order {
        id: order_id(7),
        sale_id: sale.id,
        user_id: user_id("buyer"),
        state: OrderState::AwaitingPayment,
        reason: None,
        price: Some(sale.price),
        pay_by_ms: Some(committed_ms + sale.payment_window_s * 1000),
        committed_ms: Some(committed_ms),
        settled_ms: None,
    };
    assert_eq!(order, expected);
    let row = database.find_order(order.id).await.unwrap().unwrap();
    assert_eq!(row.order, expected);
    assert_eq!((row.slot, row.generation), (1, 1));
    assert_eq!(row.digest, Some(digest_of("key")));
    assert_eq!(database.stock_left(&sale).await, 9);
});

on_both!(
    the_same_key_gets_the_same_order_whatever_happened_since,
    async |database: TestDatabase| {
        let sale = database.published(&direct(1)).await;
        let order = placed(place(&database, 1, &sale, "buyer", Some("key")).await);
        let again = async || replayed(place(&database, 2, &sale, "buyer", Some("key")).await);

        assert_eq!(again().await, order, "sold out");
        assert_eq!(
            place(&database, 3, &sale, "another", Some("key")).await,
            DirectAnswer::Refused(Refusal::SoldOut),
            "the key is the buyer's own"
        );
        database.set_state(&sale, SaleState::Paused).await;
        assert_eq!(again().await, order, "paused");
        database.set_state(&sale, SaleState::Closed).await;
        assert_eq!(again().await, order, "closed");
        let window = format!("UPDATE sales SET closes_ms = {OPENS_MS} + 1");
        database.execute(&window).await;
        assert_eq!(again().await, order, "after the window");
        for state in OrderState::ALL.into_iter().filter(|s| crate::support::is_row_state(*s)) {
            database.execute(&format!("UPDATE orders SET state = '{state}'")).await;
            assert_eq!(again().await, Order { state, ..order.clone() });
        }
        assert_eq!(database.order_count().await, 1);
    }
);

on_both!(an_order_lost_with_redis_leaves_its_key_free, async |database: TestDatabase| {
    let sale = database.published(&direct(10)).await;
    placed(place(&database, 1, &sale, "buyer", Some("key")).await);
    database.execute("UPDATE orders SET state = 'rejected', reason = 'memory-lost'").await;
    placed(place(&database, 2, &sale, "buyer", Some("key")).await);
});

on_both!(a_buyer_with_an_open_order_is_told_its_id, async |database: TestDatabase| {
    let sale = database.published(&direct(10)).await;
    placed(place(&database, 1, &sale, "buyer", Some("key")).await);

    for key in [Some("another-key"), None] {
        assert_eq!(place(&database, 2, &sale, "buyer", key).await, already(1), "{key:?}");
    }
    database.execute("UPDATE orders SET state = 'paid'").await;
    assert_eq!(place(&database, 2, &sale, "buyer", None).await, already(1));
    assert_eq!(database.order_count().await, 1);
    assert_eq!(database.stock_left(&sale).await, 9);

    database.execute("UPDATE orders SET state = 'cancelled'").await;
    placed(place(&database, 2, &sale, "buyer", None).await);
});

on_both!(orders_without_a_key_are_never_replays_of_each_other, async |database: TestDatabase| {
    let sale = database.published(&NewSale { per_buyer: 2, ..direct(10) }).await;
    placed(place(&database, 1, &sale, "buyer", None).await);
    placed(place(&database, 2, &sale, "buyer", None).await);
});

on_both!(nobody_is_placed_when_nothing_is_left, async |database: TestDatabase| {
    let sale = database.published(&direct(2)).await;
    placed(place(&database, 1, &sale, "first", None).await);
    placed(place(&database, 2, &sale, "second", None).await);
    let sold_out = DirectAnswer::Refused(Refusal::SoldOut);
    assert_eq!(place(&database, 3, &sale, "third", None).await, sold_out);
    assert_eq!(place(&database, 3, &sale, "first", None).await, already(1));
    assert_eq!(database.order_ids().await, [1, 2]);
    assert_eq!(database.stock_left(&sale).await, 0);
});

on_both!(the_sales_state_decides_before_stock_does, async |database: TestDatabase| {
    let sale = database.insert_sale(&direct(1)).await.unwrap();
    let ask = async || place(&database, 1, &sale, "buyer", None).await;
    assert_eq!(ask().await, DirectAnswer::Refused(Refusal::NotLoaded));
    database.set_state(&sale, SaleState::Published).await;
    database.set_state(&sale, SaleState::Paused).await;
    assert_eq!(ask().await, DirectAnswer::Refused(Refusal::Paused));
    database.execute("UPDATE sales SET stock_left = 0").await;
    assert_eq!(ask().await, DirectAnswer::Refused(Refusal::Paused));
    database.set_state(&sale, SaleState::Closed).await;
    assert_eq!(ask().await, DirectAnswer::Refused(Refusal::Ended));
    assert_eq!(database.order_count().await, 0);

    let missing = SaleId::from_i64(4_711).unwrap();
    let answer = database
        .place_direct_order(order_id(1), missing, &user_id("buyer"), None, ORDERS_MAX)
        .await
        .unwrap();
    assert_eq!(answer, DirectAnswer::Refused(Refusal::NotLoaded));
});

on_both!(outside_the_window_nobody_is_placed, async |database: TestDatabase| {
    let now = database.now_ms().await;
    let hour = 3_600_000;
    let cases = [
        (now + hour, CLOSES_MS, Refusal::NotStarted),
        (OPENS_MS, now - hour, Refusal::Ended),
        (OPENS_MS, now, Refusal::Ended),
    ];
    for (opens, closes, refusal) in cases {
        let window = Window::new(opens, closes).unwrap();
        let sale = database.published(&NewSale { window, ..direct(0) }).await;
        let answer = place(&database, 1, &sale, "buyer", None).await;
        assert_eq!(answer, DirectAnswer::Refused(refusal), "{opens}..{closes}");
    }
});

on_both!(a_sale_opens_and_ends_by_itself, async |database: TestDatabase| {
    let now = database.now_ms().await;
    let window = Window::new(now + 300, now + 900).unwrap();
    let sale = database.published(&NewSale { window, ..direct(1_000_000) }).await;
    let (mut id, mut started, mut last) = (0, false, None);
    eventually(Duration::from_secs(20), "the end of the sale", async || {
        // Without a pause between two, so that the edges are met closely.
        for _ in 0..20 {
            id += 1;
            match place(&database, id, &sale, &format!("user-{id}"), None).await {
                DirectAnswer::Refused(Refusal::NotStarted) => assert!(!started),
                DirectAnswer::Refused(Refusal::Ended) => return true,
                answer => {
                    let committed_ms = placed(answer).committed_ms.unwrap();
                    assert!(committed_ms >= window.opens_ms());
                    assert!(committed_ms < window.closes_ms());
                    started = true;
                    last = Some(committed_ms);
                }
            }
        }
        false
    })
    .await;
    assert!(last.is_some(), "nobody was placed in 600 ms");
    assert!(database.now_ms().await >= window.closes_ms());
});

/// Its sessions get their time from a table: `clock_timestamp` is found in the schema `fake` first.
async fn with_a_clock_of_our_own(database: &TestDatabase) -> Database {
    database
        .execute(
            "CREATE SCHEMA fake; \
             CREATE TABLE fake.clock (now timestamptz NOT NULL); \
             INSERT INTO fake.clock VALUES ('epoch'); \
             CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE \
               AS 'SELECT now FROM fake.clock'; \
             DO $$ BEGIN EXECUTE format( \
               'ALTER DATABASE %I SET search_path = fake, pg_catalog, public', \
               current_database()); END $$",
        )
        .await;
    database.connect(crate::support::PATIENT).await
}

#[tokio::test]
async fn the_window_and_pay_by_go_by_the_databases_clock_to_the_millisecond() {
    let database = TestDatabase::postgres().await;
    let (opens, closes) = (OPENS_MS, OPENS_MS + 1_000);
    let window = Window::new(opens, closes).unwrap();
    let sale = database.published(&NewSale { window, ..direct(100) }).await;
    let elsewhere = with_a_clock_of_our_own(&database).await;

    let not_started = Some(Refusal::NotStarted);
    let ended = Some(Refusal::Ended);
    // Microseconds after the opening; a millisecond begins when it begins, and is not rounded to.
    let cases: [(i64, Option<Refusal>); 9] = [
        (-1_000, not_started),
        (-400, not_started),
        (-1, not_started),
        (0, None),
        (400, None),
        (999_000, None),
        (999_999, None),
        (1_000_000, ended),
        (1_001_000, ended),
    ];
    for (id, (us, refusal)) in (1..).zip(cases) {
        database
            .execute(&format!(
                "UPDATE fake.clock SET now = timestamptz 'epoch' \
                 + {opens} * interval '1 millisecond' + {us} * interval '1 microsecond'"
            ))
            .await;
        let answer = place(&elsewhere, id, &sale, &format!("user-{id}"), None).await;
        match refusal {
            Some(refusal) => assert_eq!(answer, DirectAnswer::Refused(refusal), "{us} us"),
            None => {
                let order = placed(answer);
                let now = opens + us.div_euclid(1_000);
                assert_eq!(order.committed_ms, Some(now), "{us} us");
                assert_eq!(order.pay_by_ms, Some(now + 900_000), "{us} us");
            }
        }
    }
}

on_both!(an_id_in_use_is_told_and_nothing_is_taken, async |database: TestDatabase| {
    let sale = database.published(&direct(10)).await;
    let other = database.published(&direct(10)).await;
    placed(place(&database, 1, &sale, "first", None).await);
    assert_eq!(place(&database, 1, &sale, "second", None).await, DirectAnswer::IdTaken);
    assert_eq!(place(&database, 1, &other, "first", None).await, DirectAnswer::IdTaken);
    assert_eq!(database.stock_left(&sale).await, 9);
    assert_eq!(database.stock_left(&other).await, 10);
    placed(place(&database, 2, &sale, "second", None).await);
});

on_both!(
    a_buyer_of_three_gets_slots_one_to_three_and_a_free_one_again,
    async |database: TestDatabase| {
        let sale = database.published(&NewSale { per_buyer: 3, ..direct(10) }).await;
        let slot = async |id| database.find_order(order_id(id)).await.unwrap().unwrap().slot;
        for id in 1..=3 {
            placed(place(&database, id, &sale, "buyer", None).await);
            assert_eq!(i64::from(slot(id).await), id);
        }
        assert_eq!(place(&database, 4, &sale, "buyer", None).await, already(3));
        database.execute("UPDATE orders SET state = 'expired' WHERE id = 2").await;
        placed(place(&database, 4, &sale, "buyer", None).await);
        assert_eq!(slot(4).await, 2);
        assert_eq!(place(&database, 5, &sale, "buyer", None).await, already(4));
        assert_eq!(database.stock_left(&sale).await, 6);
    }
);

on_both!(buying_and_cancelling_ends_after_twenty_orders, async |database: TestDatabase| {
    let sale = database.published(&direct(100)).await;
    for id in 1..=i64::from(ORDERS_MAX) {
        let order = placed(place(&database, id, &sale, "buyer", None).await);
        assert_eq!(order.id, order_id(id));
        database.execute("UPDATE orders SET state = 'cancelled'").await;
    }
    assert_eq!(place(&database, 21, &sale, "buyer", None).await, already(20));
    placed(place(&database, 21, &sale, "another", None).await);
});

/// All presses at once, each with an id and a connection of its own.
async fn press(
    database: &TestDatabase,
    sale: &Sale,
    presses: impl Iterator<Item = (i64, UserId, Option<IdempotencyDigest>)>,
) -> Vec<(OrderId, DirectAnswer)> {
    let tasks: Vec<_> = presses
        .map(|(id, user, digest)| {
            let (database, sale) = (Database::clone(database), sale.id);
            let id = order_id(id);
            tokio::spawn(async move {
                let answer = database
                    .place_direct_order(id, sale, &user, digest.as_ref(), ORDERS_MAX)
                    .await
                    .expect("every press gets an answer");
                (id, answer)
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("a press ends"));
    }
    answers
}

on_both!(of_fifty_buyers_on_ten_units_exactly_ten_are_placed, async |database: TestDatabase| {
    let sale = database.published(&direct(10)).await;
    let buyers = (1..=50).map(|n| (n, user_id(&format!("user-{n}")), None));

    let answers = press(&database, &sale, buyers).await;

    let mut winners = HashSet::new();
    for (id, answer) in answers {
        match answer {
            DirectAnswer::Placed(order) => {
                assert_eq!(order.id, id);
                winners.insert(id.as_i64());
            }
            answer => assert_eq!(answer, DirectAnswer::Refused(Refusal::SoldOut)),
        }
    }
    assert_eq!(winners.len(), 10);
    assert_eq!(database.order_ids().await.into_iter().collect::<HashSet<_>>(), winners);
    assert_eq!(database.stock_left(&sale).await, 0);
});

on_both!(of_twenty_presses_with_one_key_one_becomes_a_row, async |database: TestDatabase| {
    let sale = database.published(&direct(10)).await;
    let presses = (1..=20).map(|id| (id, user_id("buyer"), Some(digest_of("key"))));

    let answers = press(&database, &sale, presses).await;

    let ids = database.order_ids().await;
    assert_eq!(ids.len(), 1);
    let mut placed = 0;
    for (_, answer) in answers {
        let told = match answer {
            DirectAnswer::Placed(order) => {
                placed += 1;
                order.id
            }
            DirectAnswer::Replayed(order) => order.id,
            DirectAnswer::Refused(Refusal::AlreadyOrdered(id)) => id,
            other => panic!("{other:?}"),
        };
        assert_eq!(told.as_i64(), ids[0]);
    }
    assert_eq!(placed, 1);
    assert_eq!(database.stock_left(&sale).await, 9);
});

on_both!(
    of_forty_presses_of_a_buyer_with_twelve_slots_twelve_are_placed,
    async |database: TestDatabase| {
        let sale = database.published(&NewSale { per_buyer: 12, ..direct(100) }).await;
        let presses =
            (1..=40).map(|id| (id, user_id("buyer"), Some(digest_of(&format!("key-{id}")))));

        let answers = press(&database, &sale, presses).await;

        let mut placed = 0;
        for (_, answer) in answers {
            match answer {
                DirectAnswer::Placed(_) => placed += 1,
                DirectAnswer::Refused(Refusal::AlreadyOrdered(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(placed, 12);
        let slots: Vec<i32> = database.column("SELECT slot FROM orders ORDER BY slot").await;
        assert_eq!(slots, (1..=12).collect::<Vec<_>>());
        assert_eq!(database.stock_left(&sale).await, 88);
    }
);

/// The worst case of the race: all of them have seen the same free slot.
#[tokio::test]
async fn presses_that_meet_at_one_slot_take_one_after_the_other() {
    let database = TestDatabase::postgres().await;
    let sale = database.published(&NewSale { per_buyer: 8, ..direct(100) }).await;
    let holder = database.raw.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM sales FOR UPDATE").await.unwrap();
    let presses = (1..=8).map(|id| (id, user_id("buyer"), None));
    let release = async {
        database.until_locked_out(8).await;
        holder.rollback().await.unwrap();
    };

    let (answers, ()) = tokio::join!(press(&database, &sale, presses), release);

    for (id, answer) in answers {
        assert_eq!(placed(answer).id, id);
    }
    let slots: Vec<i32> = database.column("SELECT slot FROM orders ORDER BY slot").await;
    assert_eq!(slots, (1..=8).collect::<Vec<_>>());
    assert_eq!(database.stock_left(&sale).await, 92);
}

#[tokio::test]
async fn a_sale_that_is_paused_or_closed_while_a_press_waits_does_not_take_it() {
    let database = TestDatabase::postgres().await;
    for (state, refusal) in [("paused", Refusal::Paused), ("closed", Refusal::Ended)] {
        let sale = database.published(&direct(10)).await;
        let holder = database.raw.begin().await.unwrap();
        let change = format!("UPDATE sales SET state = '{state}' WHERE id = {}", sale.id);
        holder.execute_unprepared(&change).await.unwrap();
        let release = async {
            database.until_locked_out(1).await;
            holder.commit().await.unwrap();
        };

        let (answer, ()) = tokio::join!(place(&database, 1, &sale, "buyer", None), release);

        assert_eq!(answer, DirectAnswer::Refused(refusal));
        assert_eq!(database.stock_left(&sale).await, 10);
    }
    assert_eq!(database.order_count().await, 0);
}

on_both!(a_closing_sale_takes_no_order_after_its_close, async |database: TestDatabase| {
    for round in 0..5 {
        let sale = database.published(&direct(1_000)).await;
        let buyers = (1..=20).map(|n| (round * 20 + n, user_id(&format!("user-{n}")), None));
        let (answers, closed) = tokio::join!(
            press(&database, &sale, buyers),
            database.set_sale_state(sale.id, SaleState::Closed),
        );
        closed.unwrap();
        let mut placed = 0;
        for (_, answer) in answers {
            match answer {
                DirectAnswer::Placed(_) => placed += 1,
                answer => assert_eq!(answer, DirectAnswer::Refused(Refusal::Ended)),
            }
        }
        assert_eq!(database.stock_left(&sale).await, 1_000 - placed);
        let late = place(&database, 1_000 + round, &sale, "late", None).await;
        assert_eq!(late, DirectAnswer::Refused(Refusal::Ended));
    }
});
