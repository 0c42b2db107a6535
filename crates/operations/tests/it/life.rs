//! From draft to closed, in both stores.

use flashsale_domain::{Refusal, Sale, SaleMode, SaleState, Window};
use flashsale_operations::Refused;
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{SOON, Stand, new_sale, on_both, only, press, refused};

async fn states(stand: &Stand, sale: &Sale) -> (SaleState, Option<String>) {
    let in_database = stand.operations.get_sale(sale.id).await.expect("a sale").state;
    let account = stand.redis.read_sale(only(), sale.id).await.expect("answered");
    (in_database, account.sale.map(|loaded| loaded.state))
}

on_both!(publishing_on_a_fresh_redis_opens_the_gate, async |stand: Stand| {
    let draft = stand.create(10).await;
    assert_eq!(states(&stand, &draft).await, (SaleState::Draft, None));
    assert_eq!(stand.press(&draft, &[press("b")]).await, [Err(Refusal::NotLoaded)]);
    let sale = stand.operations.publish_sale(draft.id).await.expect("published");
    assert_eq!((sale.state, sale.partition), (SaleState::Published, Some(only())));
    assert!(stand.gate_is_open(&sale).await);
    assert_eq!(stand.units(&sale).await, [10, 0, sale.epoch]);
    stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.press(&sale, &[press("late")]).await, [Err(Refusal::SoldOut)]);
    // Nothing was there that could have been lost.
    assert_eq!(stand.redis.rebuilt_id(only()).await.expect("answered"), None);
    assert_eq!(stand.work().await.done, 10);
    stand.assert_clean(&sale).await;
});

on_both!(publishing_waits_for_a_worker_that_loads_the_partition_just_now, async |stand: Stand| {
    let draft = stand.create(10).await;
    let lock = stand.redis.try_lock_rebuild(only()).await.expect("answered");
    let lock = lock.expect("nobody else has it");
    let (operations, id) = (stand.operations.clone(), draft.id);
    let publishing = tokio::spawn(async move { operations.publish_sale(id).await });
    // It is in the database, and cannot be loaded yet.
    eventually(SOON, "the sale is published in the database", async || {
        states(&stand, &draft).await.0 == SaleState::Published
    })
    .await;
    assert!(!publishing.is_finished());
    lock.unlock().await.expect("unlocked");
    let sale = publishing.await.expect("no panic").expect("published");
    stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.work().await.done, 10);
    stand.assert_clean(&sale).await;
});

on_both!(publishing_again_changes_nothing, async |stand: Stand| {
    let sale = stand.publish(10).await;
    stand.admit(&sale, "buyer", 4).await;
    let again = stand.operations.publish_sale(sale.id).await.expect("published already");
    assert_eq!((again.epoch, again.state), (sale.epoch, SaleState::Published));
    assert_eq!(stand.units(&sale).await, [6, 4, sale.epoch]);
});

on_both!(publishing_again_completes_what_was_left_half_done, async |stand: Stand| {
    // On an open partition: the database has it, Redis does not.
    let other = stand.publish(10).await;
    let sale = stand.create(10).await;
    stand.database.set_sale_partition(sale.id, only()).await.expect("a home");
    stand.database.set_sale_state(sale.id, SaleState::Published).await.expect("published");
    assert_eq!(states(&stand, &sale).await, (SaleState::Published, None));
    stand.operations.publish_sale(sale.id).await.expect("completed");
    stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.operations.get_sale(other.id).await.expect("a sale").epoch, other.epoch);
    assert_eq!(stand.work().await.done, 10);
    stand.assert_clean(&sale).await;
});

on_both!(publishing_again_completes_it_on_a_fresh_redis_as_well, async |stand: Stand| {
    let sale = stand.create(10).await;
    stand.database.set_sale_partition(sale.id, only()).await.expect("a home");
    stand.database.set_sale_state(sale.id, SaleState::Published).await.expect("published");
    stand.operations.publish_sale(sale.id).await.expect("completed");
    stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.work().await.done, 10);
    stand.assert_clean(&sale).await;
});

on_both!(publishing_again_replaces_a_fence_that_nobody_finished, async |stand: Stand| {
    let sale = stand.publish(10).await;
    stand.admit(&sale, "buyer", 3).await;
    assert_eq!(stand.work().await.done, 3);
    // A rebuilder that died.
    stand.redis.fence(only()).await.expect("fenced");
    assert!(!stand.gate_is_open(&sale).await);
    let sale = stand.operations.publish_sale(sale.id).await.expect("published");
    assert!(stand.gate_is_open(&sale).await);
    assert_eq!(stand.units(&sale).await, [7, 3, sale.epoch]);
    stand.assert_clean(&sale).await;
});

on_both!(a_second_sale_leaves_the_first_as_it_is, async |stand: Stand| {
    let first = stand.publish(20).await;
    stand.admit(&first, "early", 5).await;
    let entries = stand.read(3).await;
    let second = stand.publish(20).await;
    // The orders that were queued meanwhile are still of the present epoch.
    let after = stand.operations.get_sale(first.id).await.expect("a sale");
    assert_eq!((after.epoch, after.partition), (first.epoch, second.partition));
    assert_eq!(stand.units(&first).await, [15, 5, first.epoch]);
    stand.admit(&first, "late", 5).await;
    stand.admit(&second, "late", 5).await;
    assert_eq!(stand.process(entries).await.done, 3);
    assert_eq!(stand.work().await.done, 12);
    assert_eq!(stand.ledger(&first).await.awaiting_payment, 10);
    assert_eq!(stand.ledger(&first).await.rejected, 0);
    stand.assert_clean(&first).await;
    stand.assert_clean(&second).await;
});

on_both!(pausing_resuming_and_closing_reach_both_stores, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let both = |state: SaleState| (state, Some(state.as_str().to_owned()));
    for _ in 0..2 {
        stand.operations.pause_sale(sale.id).await.expect("paused");
        assert_eq!(states(&stand, &sale).await, both(SaleState::Paused));
        assert_eq!(stand.press(&sale, &[press("b")]).await, [Err(Refusal::Paused)]);
    }
    for _ in 0..2 {
        stand.operations.resume_sale(sale.id).await.expect("resumed");
        assert_eq!(states(&stand, &sale).await, both(SaleState::Published));
    }
    let ids = stand.admit(&sale, "buyer", 1).await;
    for _ in 0..2 {
        stand.operations.close_sale(sale.id).await.expect("closed");
        assert_eq!(states(&stand, &sale).await, both(SaleState::Closed));
        assert_eq!(stand.press(&sale, &[press("b")]).await, [Err(Refusal::Ended)]);
    }
    // What was admitted goes on, and is still replayed.
    let replay = stand.press(&sale, &[press("buyer-0")]).await;
    assert!(replay[0].is_ok_and(|admission| admission.replayed && admission.order_id == ids[0]));
    assert_eq!(stand.work().await.done, 1);
    stand.assert_clean(&sale).await;
});

on_both!(a_pause_that_redis_did_not_get_is_not_forgotten_by_a_rebuild, async |stand: Stand| {
    let sale = stand.publish(10).await;
    stand.forget_everything(&[&sale]).await;
    stand.operations.pause_sale(sale.id).await.expect("paused");
    stand.operations.rebuild_sale(sale.id).await.expect("rebuilt");
    assert_eq!(stand.press(&sale, &[press("b")]).await, [Err(Refusal::Paused)]);
    stand.operations.resume_sale(sale.id).await.expect("resumed");
    stand.admit(&sale, "buyer", 1).await;
});

on_both!(moves_that_the_state_does_not_allow_are_refused, async |stand: Stand| {
    let operations = &stand.operations;
    let sale = stand.create(10).await;
    let id = sale.id;
    let is = |refused: Refused, is: SaleState, to: SaleState| match refused {
        Refused::State { sale, state, wanted } => {
            assert_eq!((sale, state, wanted), (id, is, to));
        }
        other => panic!("{other:?}"),
    };
    use SaleState::{Closed, Draft, Paused, Published};
    is(refused(operations.pause_sale(id).await), Draft, Paused);
    is(refused(operations.resume_sale(id).await), Draft, Published);
    is(refused(operations.close_sale(id).await), Draft, Closed);
    operations.publish_sale(id).await.expect("published");
    operations.pause_sale(id).await.expect("paused");
    is(refused(operations.publish_sale(id).await), Paused, Published);
    operations.close_sale(id).await.expect("closed");
    is(refused(operations.publish_sale(id).await), Closed, Published);
    is(refused(operations.pause_sale(id).await), Closed, Paused);
    is(refused(operations.resume_sale(id).await), Closed, Published);
    assert_eq!(states(&stand, &sale).await, (Closed, Some("closed".to_owned())));
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_not_there_is_refused_everywhere() {
    let stand = Stand::sqlite().await;
    let id = "999".parse().expect("a sale's id");
    let operations = &stand.operations;
    for refusal in [
        refused(operations.get_sale(id).await),
        refused(operations.publish_sale(id).await),
        refused(operations.pause_sale(id).await),
        refused(operations.resume_sale(id).await),
        refused(operations.close_sale(id).await),
        refused(operations.read_ledger(id).await),
        refused(operations.rebuild_sale(id).await),
        refused(operations.audit_sale(id, &[]).await),
    ] {
        assert!(matches!(refusal, Refused::SaleNotFound(missing) if missing == id), "{refusal:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_whose_window_is_over_is_not_published() {
    let stand = Stand::sqlite().await;
    let mut new = new_sale(10);
    new.window = Window::new(1_704_153_600_000, 1_704_153_600_001).expect("a window");
    let sale = stand.operations.create_sale(&new).await.expect("a sale");
    let refusal = refused(stand.operations.publish_sale(sale.id).await);
    assert!(matches!(refusal, Refused::WindowOver(id) if id == sale.id), "{refusal:?}");
    assert_eq!(states(&stand, &sale).await, (SaleState::Draft, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absurd_sale_is_not_created() {
    let stand = Stand::sqlite().await;
    let mut new = new_sale(10);
    new.stock = 0;
    let refusal = refused(stand.operations.create_sale(&new).await);
    assert!(matches!(refusal, Refused::NewSale(_)), "{refusal:?}");
    assert_eq!(stand.operations.list_sales().await.expect("a list"), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_redis_has_lost_is_not_resumed_in_silence() {
    let stand = Stand::sqlite().await;
    let sale = stand.publish(10).await;
    stand.operations.pause_sale(sale.id).await.expect("paused");
    stand.forget_everything(&[&sale]).await;
    let refusal = refused(stand.operations.resume_sale(sale.id).await);
    assert!(matches!(refusal, Refused::NotLoaded(id) if id == sale.id), "{refusal:?}");
}

on_both!(a_direct_sale_lives_in_the_database_alone, async |stand: Stand| {
    let mut new = new_sale(10);
    new.mode = SaleMode::Direct;
    let sale = stand.operations.create_sale(&new).await.expect("a sale");
    let sale = stand.operations.publish_sale(sale.id).await.expect("published");
    assert_eq!((sale.state, sale.partition), (SaleState::Published, None));
    stand.operations.publish_sale(sale.id).await.expect("published already");
    for (state, done) in [
        (SaleState::Paused, stand.operations.pause_sale(sale.id).await),
        (SaleState::Published, stand.operations.resume_sale(sale.id).await),
        (SaleState::Closed, stand.operations.close_sale(sale.id).await),
    ] {
        assert_eq!(done.expect("done").state, state);
    }
    let refusal = refused(stand.operations.rebuild_sale(sale.id).await);
    assert!(matches!(refusal, Refused::NoPartition(_)), "{refusal:?}");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_shrinks_a_sale_is_not_done_in_the_database_while_redis_is_away() {
    let server = tokio::task::block_in_place(RedisServer::start);
    let stand = Stand::on_redis(&server).await;
    let sale = stand.publish(10).await;
    server.kill_9();
    stand.operations.pause_sale(sale.id).await.expect_err("Redis is away");
    stand.operations.close_sale(sale.id).await.expect_err("Redis is away");
    let state = stand.operations.get_sale(sale.id).await.expect("a sale").state;
    assert_eq!(state, SaleState::Published);
}
