//! Where every unit of a sale is, and whether Redis and the database agree.

use std::time::Duration;

use flashsale_domain::{SaleMode, SaleState};
use flashsale_storage_sql::DirectAnswer;
use flashsale_test_support::{RedisServer, eventually};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::support::{SOON, Stand, neighbour, new_sale, on_both, only, press, user_id};

on_both!(a_ledger_balances_while_orders_are_queued_written_and_dead, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.refuse_poison().await;
    let fresh = stand.ledger(&sale).await;
    assert_eq!((fresh.total, fresh.stock_left, fresh.queued), (20, 20, 0));
    assert!(fresh.is_balanced(), "{:?}", fresh.problems);

    stand.admit(&sale, "buyer", 6).await;
    stand.admit(&sale, "poison", 2).await;
    let queued = stand.ledger(&sale).await;
    assert_eq!((queued.queued, queued.stock_left, queued.dead), (8, 20, 0));
    assert!(queued.is_balanced(), "{:?}", queued.problems);
    let redis = queued.redis.expect("loaded");
    assert_eq!((redis.total, redis.available, redis.held), (20, 12, 8));

    let some = stand.read(3).await;
    assert_eq!(stand.process(some).await.done, 3);
    let partly = stand.ledger(&sale).await;
    assert_eq!((partly.queued, partly.awaiting_payment, partly.stock_left), (5, 3, 17));
    assert!(partly.is_balanced(), "{:?}", partly.problems);

    stand.work().await;
    let applied = stand.ledger(&sale).await;
    assert_eq!((applied.queued, applied.awaiting_payment, applied.dead), (0, 6, 2));
    assert_eq!(applied.stock_left, 14);
    assert!(applied.is_balanced(), "{:?}", applied.problems);
    stand.assert_clean(&sale).await;
});

on_both!(every_reading_balances_while_orders_come_and_go, async |stand: Stand| {
    let sale = stand.publish(1_000_000).await;
    let (over, still) = (CancellationToken::new(), Mutex::new(()));
    let crowd = async {
        for round in 0.. {
            if over.is_cancelled() {
                return;
            }
            stand.admit(&sale, &format!("round-{round}"), 10).await;
            // A crowd of some hundred a second: the servers are shared with other tests.
            sleep(Duration::from_millis(25)).await;
        }
    };
    let worker = async {
        while !over.is_cancelled() {
            stand.work().await;
        }
    };
    let closing = async {
        let mut seen = None;
        while !over.is_cancelled() {
            let _turn = still.lock().await;
            let rows = stand.database.list_sale_orders(sale.id, seen, 20).await.expect("answered");
            for row in rows.iter().step_by(3) {
                let order = &row.order;
                stand.operations.cancel_order(order.id, &order.user_id).await.expect("cancelled");
            }
            seen = rows.last().map_or(seen, |row| Some(row.order.id));
            stand.relay().await;
        }
    };
    let reading = async {
        // At least so many readings, and so many of them with orders on their way.
        let (mut readings, mut moving) = (0, 0);
        while readings < 20 || moving < 5 {
            let ledger = stand.ledger(&sale).await;
            assert!(ledger.is_balanced(), "{:?} in {ledger:?}", ledger.problems);
            readings += 1;
            moving += i32::from(ledger.queued > 0);
            assert!(readings < 2_000, "orders are on their way at only {moving} readings");
        }
        // While units come back, so many of them may be on one side only.
        let _nothing_closes = still.lock().await;
        let key = stand.keys.sale(only(), sale.id);
        for (units, field) in [(1, "held"), (-1, "stock")] {
            stand.ask::<i64>(&["HINCRBY", &key, field, &units.to_string()]).await;
        }
        let ledger = stand.ledger(&sale).await;
        over.cancel();
        ledger
    };
    let ((), (), (), ledger) = tokio::join!(crowd, worker, closing, reading);
    assert_eq!(ledger.imbalance, 1, "one unit is held by nobody: {ledger:?}");
    assert!(ledger.problems[0].to_string().starts_with("redis holds"), "{:?}", ledger.problems);
});

on_both!(orders_on_a_stream_whose_group_is_gone_are_queued, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 3).await;
    assert_eq!(stand.work().await.done, 3);
    stand.admit(&sale, "later", 5).await;
    stand.destroy_group().await;
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.queued, ledger.awaiting_payment), (5, 3));
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;

    // Only what is on the stream excuses a unit.
    assert_eq!(stand.work().await.done, 5);
    stand.destroy_group().await;
    stand.assert_clean(&sale).await;
    stand.ask::<i64>(&["HINCRBY", &stand.keys.sale(only(), sale.id), "stock", "-1"]).await;
    stand.ask::<i64>(&["HINCRBY", &stand.keys.sale(only(), sale.id), "held", "1"]).await;
    stand.assert_found(&sale, "I7", "redis holds 9 units").await;
});

on_both!(a_dead_letter_that_holds_no_unit_is_no_imbalance, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.refuse_poison().await;
    stand.admit(&sale, "buyer", 2).await;
    let entries = stand.read(10).await;
    assert_eq!(stand.process(entries.clone()).await.done, 2);

    // An entry that no admission has written.
    let (key, id) = (stand.keys.orders(only()), sale.id.to_string());
    let forged = ["v", "1", "s", &id, "u", "poison-forged", "b", "1", "e", "1"];
    stand.ask::<String>(&[&["XADD", &key, "*"][..], &forged].concat()).await;
    // An order that comes again with another key.
    let mut changed = entries;
    let [old, new] = ["buyer-0", "somebody"].map(|user| press(user).digest.expect("a digest"));
    for (_, value) in &mut changed[0].fields {
        let text = String::from_utf8(value.clone()).expect("is text");
        assert!(text.contains(old.as_str()), "{text}");
        *value = text.replace(old.as_str(), new.as_str()).into_bytes();
    }
    assert_eq!(stand.process(changed).await.dead, 1);
    assert_eq!(stand.work().await.dead, 1);

    let ledger = stand.ledger(&sale).await;
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;
});

on_both!(an_order_rejected_for_its_slot_is_no_imbalance_after_a_rebuild, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 1).await;
    // Another row of the buyer, which Redis knows nothing of.
    let other = neighbour(ids[0], -1);
    stand.insert_row(other, &sale, "buyer-0", "awaiting_payment").await;
    stand
        .execute(&format!("UPDATE sales SET stock_left = stock_left - 1 WHERE id = {}", sale.id))
        .await;
    assert_eq!(stand.work().await.done, 1, "it is a rejected row");
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    let ledger = stand.ledger(&sale).await;
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;
});

on_both!(units_that_appear_or_vanish_in_redis_are_an_imbalance, async |stand: Stand| {
    for (field, delta) in [("stock", "3"), ("stock", "-3"), ("held", "2"), ("held", "-2")] {
        let sale = stand.publish(20).await;
        stand.admit(&sale, "buyer", 5).await;
        stand.work().await;
        let key = stand.keys.sale(only(), sale.id);
        stand.ask::<i64>(&["HINCRBY", &key, field, delta]).await;
        let ledger = stand.ledger(&sale).await;
        assert!(!ledger.is_balanced(), "{field} {delta}");
        assert!(
            ledger.problems.iter().any(|p| p.to_string().contains("redis")),
            "{:?}",
            ledger.problems
        );
        stand.assert_found(&sale, "I7", "redis").await;
    }
});

/// Between two readings things move: only what is still amiss a second later is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_right_again_at_the_second_reading_is_no_imbalance() {
    // A server of its own, because its commands are counted.
    let server = tokio::task::block_in_place(RedisServer::start);
    let stand = Stand::on_redis(&server).await;
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    let key = stand.keys.sale(only(), sale.id);
    let scripts = async || -> u64 {
        let stats: String = stand.ask(&["INFO", "commandstats"]).await;
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).expect("some");
        calls.split(',').next().expect("a number").parse().expect("a number")
    };
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "1"]).await;
    let before = scripts().await;
    let put_right = async {
        // A reading asks Redis twice.
        eventually(SOON, "the first reading", async || scripts().await >= before + 2).await;
        stand.ask::<i64>(&["HINCRBY", &key, "stock", "-1"]).await;
    };
    let (ledger, ()) = tokio::join!(stand.ledger(&sale), put_right);
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    assert!(scripts().await >= before + 4, "it was read a second time");
}

on_both!(units_that_move_wrongly_within_a_store_are_an_imbalance, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    // Redis's own account still adds up; only the comparison tells.
    let key = stand.keys.sale(only(), sale.id);
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "-1"]).await;
    stand.ask::<i64>(&["HINCRBY", &key, "held", "1"]).await;
    stand.assert_found(&sale, "I7", "redis holds 6 units").await;
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "2"]).await;
    stand.ask::<i64>(&["HINCRBY", &key, "held", "-2"]).await;
    stand.assert_found(&sale, "I7", "redis holds 4 units").await;
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "-1"]).await;
    stand.ask::<i64>(&["HINCRBY", &key, "held", "1"]).await;
    stand.assert_clean(&sale).await;

    stand.execute(&format!("UPDATE sales SET stock_left = 16 WHERE id = {}", sale.id)).await;
    stand.assert_found(&sale, "I7", "database: total 20").await;
});

on_both!(a_sale_that_redis_has_lost_is_an_imbalance_until_the_rebuild, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.forget_everything(&[&sale]).await;
    let ledger = stand.ledger(&sale).await;
    assert!(ledger.redis.is_none() && !ledger.is_balanced());
    assert!(ledger.problems[0].to_string().contains("rebuild"), "{:?}", ledger.problems);
    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    assert!(stand.ledger(&sale).await.is_balanced());
});

on_both!(a_direct_sale_has_its_ledger_in_the_database_alone, async |stand: Stand| {
    let mut new = new_sale(3);
    new.mode = SaleMode::Direct;
    let sale = stand.operations.create_sale(&new).await.expect("a sale");
    let sale = stand.operations.publish_sale(sale.id).await.expect("published");
    assert_eq!(sale.state, SaleState::Published);
    let mut receipts = Vec::new();
    for user in ["a", "b"] {
        let id = stand.redis.next_direct_order_id().await.expect("answered").expect("an id");
        let user_id = user_id(user);
        let placed = stand.database.place_direct_order(id, sale.id, &user_id, None, 20).await;
        assert!(matches!(placed.expect("answered"), DirectAnswer::Placed(_)));
        receipts.push(flashsale_operations::Receipt { order_id: id, user_id });
    }
    let ledger = stand.ledger(&sale).await;
    assert!(ledger.redis.is_none() && ledger.is_balanced(), "{:?}", ledger.problems);
    assert_eq!((ledger.total, ledger.stock_left, ledger.awaiting_payment), (3, 1, 2));
    assert_eq!((ledger.queued, ledger.dead), (0, 0));
    let audit = stand.operations.audit_sale(sale.id, &receipts).await.expect("an audit");
    assert_eq!(audit.findings, []);
    assert_eq!((audit.rows_checked, audit.receipts_checked), (2, 2));

    stand.execute(&format!("UPDATE sales SET stock_left = 2 WHERE id = {}", sale.id)).await;
    stand.assert_found(&sale, "I7", "database: total 3").await;
});

on_both!(an_unpublished_sale_balances, async |stand: Stand| {
    let sale = stand.create(20).await;
    let ledger = stand.ledger(&sale).await;
    assert!(ledger.redis.is_none() && ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;
});
