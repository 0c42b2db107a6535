//! Redis without its memory: what the database knows is loaded, and what only Redis knew is named.

use flashsale_domain::{OrderState, Refusal};
use flashsale_operations::Refused;
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{SOON, Stand, on_both, only, press, refused};

on_both!(
    after_a_loss_of_memory_stock_and_buyers_are_as_the_database_knows_them,
    async |stand: Stand| {
        let sale = stand.publish(20).await;
        let ids = stand.admit(&sale, "buyer", 8).await;
        assert_eq!(stand.work().await.done, 8);
        stand.forget_everything(&[&sale]).await;
        assert_eq!(stand.press(&sale, &[press("new")]).await, [Err(Refusal::NotLoaded)]);

        let rebuilt = stand.operations.rebuild_partition(only()).await.expect("rebuilt");
        assert_eq!(rebuilt.sales.len(), 1);
        let loaded = &rebuilt.sales[0];
        assert_eq!((loaded.sale_id, loaded.stock, loaded.held), (sale.id, 12, 8));
        assert_eq!(loaded.epoch, sale.epoch + 1);
        assert_eq!(stand.units(&sale).await, [12, 8, sale.epoch + 1]);

        // The same key replays the same id; without it the buyer is told of his order.
        for (i, id) in ids.iter().enumerate() {
            let user = format!("buyer-{i}");
            let mut keyless = press(&user);
            keyless.digest = None;
            let outcomes = stand.press(&sale, &[press(&user), keyless]).await;
            assert!(outcomes[0].is_ok_and(|a| a.replayed && a.order_id == *id), "{outcomes:?}");
            assert_eq!(outcomes[1], Err(Refusal::AlreadyOrdered(*id)));
        }
        // Ids go on above all that were given before.
        let later = stand.admit(&sale, "later", 12).await;
        let last = ids.iter().max().expect("some");
        assert!(later.iter().all(|id| id > last), "{later:?} above {last}");
        assert_eq!(stand.press(&sale, &[press("too-late")]).await, [Err(Refusal::SoldOut)]);
        assert_eq!(stand.work().await.done, 12);
        stand.assert_clean(&sale).await;
    }
);

on_both!(an_order_that_only_redis_knew_frees_its_unit_and_its_key, async |stand: Stand| {
    let sale = stand.publish(5).await;
    let lost = stand.admit(&sale, "buyer", 5).await;
    let entries = stand.read(10).await;
    // Redis forgets everything; a worker still has the entries in its hands.
    stand.forget_everything(&[&sale]).await;
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    let rebuilt_id = stand.redis.rebuilt_id(only()).await.expect("answered").expect("kept");
    assert!(lost.iter().all(|id| id.entry() < rebuilt_id), "not above the last rebuild");

    let again = stand.admit(&sale, "buyer", 5).await;
    assert!(again.iter().all(|id| id.entry() > rebuilt_id));
    let processed = stand.process(entries).await;
    assert_eq!((processed.done, processed.dead), (5, 0));
    for id in &lost {
        let row = stand.database.find_order(*id).await.expect("answered").expect("a row");
        assert_eq!(row.order.state, OrderState::Rejected);
        assert_eq!(row.order.reason.as_deref(), Some("memory-lost"));
    }
    assert_eq!(stand.work().await.done, 5);
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.awaiting_payment, ledger.rejected, ledger.stock_left), (5, 5, 0));
    assert!(ledger.is_balanced(), "{:?}", ledger.problems);
    stand.assert_clean(&sale).await;

    // Another rebuild does not bring the lost orders back.
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    for (i, id) in again.iter().enumerate() {
        let outcomes = stand.press(&sale, &[press(&format!("buyer-{i}"))]).await;
        assert!(outcomes[0].is_ok_and(|a| a.replayed && a.order_id == *id), "{outcomes:?}");
    }
});

on_both!(a_rebuild_waits_for_what_is_queued_and_loses_none_of_it, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 10).await;
    // Some in a worker's hands, some not delivered yet.
    let in_hand = stand.read(4).await;
    let operations = stand.operations.clone();
    let rebuild = tokio::spawn(async move { operations.rebuild_partition(only()).await });
    eventually(SOON, "the fence", async || !stand.gate_is_open(&sale).await).await;
    assert_eq!(stand.press(&sale, &[press("new")]).await, [Err(Refusal::NotLoaded)]);
    assert_eq!(stand.process(in_hand).await.done, 4);
    assert!(!rebuild.is_finished(), "six are still queued");
    assert_eq!(stand.work().await.done, 6);
    let rebuilt = rebuild.await.expect("no panic").expect("rebuilt");
    assert_eq!((rebuilt.sales[0].stock, rebuilt.sales[0].held), (10, 10));
    assert_eq!(stand.ledger(&sale).await.rejected, 0);
    stand.admit(&sale, "late", 10).await;
    assert_eq!(stand.work().await.done, 10);
    stand.assert_clean(&sale).await;
});

on_both!(entries_without_a_group_are_waited_for_too, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 10).await;
    stand.destroy_group().await;
    let operations = stand.operations.clone();
    let rebuild = tokio::spawn(async move { operations.rebuild_partition(only()).await });
    eventually(SOON, "the fence", async || !stand.gate_is_open(&sale).await).await;
    // A worker comes, and makes the group again.
    eventually(SOON, "the orders", async || stand.work().await.done == 10).await;
    rebuild.await.expect("no panic").expect("rebuilt");
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.awaiting_payment, ledger.rejected), (10, 0));
    stand.assert_clean(&sale).await;
});

on_both!(all_sales_of_the_partition_are_loaded_in_the_state_they_are_in, async |stand: Stand| {
    let sales = [stand.publish(10).await, stand.publish(10).await, stand.publish(10).await];
    let draft = stand.create(10).await;
    for sale in &sales {
        stand.admit(sale, "buyer", 2).await;
    }
    assert_eq!(stand.work().await.done, 6);
    stand.operations.pause_sale(sales[1].id).await.expect("paused");
    stand.operations.close_sale(sales[2].id).await.expect("closed");
    stand.forget_everything(&[&sales[0], &sales[1], &sales[2]]).await;
    let rebuilt = stand.operations.rebuild_sale(sales[2].id).await.expect("rebuilt");
    assert_eq!(rebuilt.sales.len(), 3, "not the draft {}", draft.id);
    let expected = [Err(Refusal::Paused), Err(Refusal::Ended)];
    for (sale, expected) in sales[1..].iter().zip(expected) {
        assert_eq!(stand.press(sale, &[press("new")]).await, [expected]);
    }
    stand.admit(&sales[0], "new", 1).await;
    for sale in &sales {
        let again = stand.press(sale, &[press("buyer-0")]).await;
        assert!(again[0].is_ok_and(|admission| admission.replayed), "{again:?}");
    }
});

on_both!(more_records_than_one_call_takes_are_loaded, async |stand: Stand| {
    let sale = stand.publish(5_000).await;
    stand.admit(&sale, "buyer", 4_500).await;
    assert_eq!(stand.work().await.done, 4_500);
    stand.forget_everything(&[&sale]).await;
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!(stand.units(&sale).await, [500, 4_500, sale.epoch + 1]);
    let records: i64 = stand.ask(&["HLEN", &stand.keys.buyers(only(), sale.id)]).await;
    assert_eq!(records, 4_500);
    stand.assert_clean(&sale).await;
});

on_both!(dead_letters_keep_their_units_over_a_rebuild, async |stand: Stand| {
    let sale = stand.publish(10).await;
    stand.refuse_poison().await;
    stand.admit(&sale, "buyer", 3).await;
    let dead = stand.admit(&sale, "poison", 2).await;
    let processed = stand.work().await;
    assert_eq!((processed.done, processed.dead), (3, 2));
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!(stand.units(&sale).await, [5, 5, sale.epoch + 1]);
    let again = stand.press(&sale, &[press("poison-0")]).await;
    assert!(again[0].is_ok_and(|a| a.replayed && a.order_id == dead[0]), "{again:?}");
    stand.assert_clean(&sale).await;
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_rebuilds_at_once_leave_one_open_gate_and_right_figures() {
    let stand = Stand::sqlite().await;
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    assert_eq!(stand.work().await.done, 5);
    let rebuild = || stand.operations.rebuild_partition(only());
    let (a, b, c) = tokio::join!(rebuild(), rebuild(), rebuild());
    let mut done = 0;
    for result in [a, b, c] {
        if result.is_ok() {
            done += 1;
        } else {
            let refused = refused(result);
            let by_the_other =
                matches!(refused, Refused::RebuildRunning(_) | Refused::FenceLost(_));
            assert!(by_the_other, "{refused}");
        }
    }
    assert!(done >= 1, "the last fence wins");
    assert!(stand.gate_is_open(&sale).await);
    let epoch = stand.operations.get_sale(sale.id).await.expect("a sale").epoch;
    let [stock, held, loaded] = stand.units(&sale).await;
    assert_eq!([stock, held], [15, 5]);
    // A rebuild that lost its fence may have raised the epoch after the winner loaded; then a worker
    // would reject what is admitted now.
    assert_eq!(loaded, epoch);
    stand.admit(&sale, "late", 5).await;
    assert_eq!(stand.work().await.done, 5);
    assert_eq!(stand.ledger(&sale).await.rejected, 0);
    stand.assert_clean(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_that_somebody_else_has_loaded_meanwhile_is_left_open() {
    let stand = Stand::sqlite().await;
    let sale = stand.publish(20).await;
    stand.redis.fence(only()).await.expect("fenced");
    // Both saw it closed; one is later than the other.
    let recover = || stand.operations.recover_partition(only());
    assert!(recover().await.expect("answered").is_some());
    let epoch = stand.operations.get_sale(sale.id).await.expect("a sale").epoch;
    assert!(recover().await.expect("answered").is_none());
    assert!(stand.gate_is_open(&sale).await);
    assert_eq!(stand.operations.get_sale(sale.id).await.expect("a sale").epoch, epoch);
    // And its lock is not left behind.
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_redis_is_not_trusted_until_it_is_rebuilt() {
    let server = tokio::task::block_in_place(|| {
        RedisServer::builder().append_only(true).option("appendfsync", "always").start()
    });
    let stand = Stand::on_redis(&server).await;
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    assert_eq!(stand.work().await.done, 5);
    tokio::task::block_in_place(|| {
        server.kill_9();
        server.start_again();
    });
    eventually(SOON, "connections", async || stand.redis.ping().await).await;
    assert!(!stand.gate_is_open(&sale).await);
    assert_eq!(stand.units(&sale).await, [15, 5, sale.epoch], "the file has kept it");
    // Publishing is the way back as well.
    stand.operations.publish_sale(sale.id).await.expect("published");
    assert!(stand.gate_is_open(&sale).await);
    stand.admit(&sale, "late", 15).await;
    assert_eq!(stand.work().await.done, 15);
    stand.assert_clean(&sale).await;
}
