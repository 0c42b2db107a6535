//! Late payments: an expired order takes a unit again, once, by order id and generation.

use flashsale_domain::{EntryId, SaleState};
use flashsale_storage_redis::{ReacquireRequest, Reacquired, RecordItem, ReleaseRequest, Released};

use crate::support::{Deployment, Outcome, digest, press, press_with_key, sale, user};

const EPOCH: i64 = 7;
const TAKEN: Reacquired = Reacquired::Taken { epoch: EPOCH };

async fn try_reacquire(
    deployment: &Deployment,
    buyer: &str,
    entry: EntryId,
    slot: u16,
    generation: u32,
) -> Result<Reacquired, flashsale_storage_redis::RedisFault> {
    let digest = digest("its-key");
    let request = ReacquireRequest {
        partition: deployment.partition,
        sale_id: sale(1).id,
        user_id: &user(buyer),
        entry,
        slot,
        generation,
        digest: Some(&digest),
    };
    deployment.redis.reacquire(&request).await
}

async fn reacquire(
    deployment: &Deployment,
    buyer: &str,
    entry: EntryId,
    generation: u32,
) -> Reacquired {
    try_reacquire(deployment, buyer, entry, 1, generation).await.expect("answered")
}

async fn release(
    deployment: &Deployment,
    buyer: &str,
    entry: EntryId,
    generation: u32,
) -> Released {
    let request = ReleaseRequest {
        partition: deployment.partition,
        sale_id: sale(1).id,
        user_id: &user(buyer),
        entry,
        generation,
        returns_unit: true,
        instead: None,
    };
    deployment.redis.release(&request).await.expect("answered")
}

/// An order of `buyer` that has expired, and whose unit is back.
async fn expired(deployment: &Deployment, buyer: &str) -> EntryId {
    let entry = deployment.admit_one(press_with_key(buyer, "its-key")).await.admitted();
    assert_eq!(release(deployment, buyer, entry, 1).await, Released::Done);
    entry
}

async fn items(deployment: &Deployment, buyer: &str) -> Vec<RecordItem> {
    let record = deployment.redis.find_record(deployment.partition, sale(1).id, &user(buyer)).await;
    record.expect("answered").map_or(Vec::new(), |record| record.items)
}

#[tokio::test]
async fn an_expired_order_takes_a_unit_again_once() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    assert_eq!(deployment.units().await, [10, 0]);
    for _ in 0..3 {
        assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
        assert_eq!(deployment.units().await, [9, 1]);
    }
    let item =
        RecordItem { entry, slot: 1, generation: 2, open: true, digest: Some(digest("its-key")) };
    assert_eq!(items(&deployment, "buyer").await, [item]);
    // It holds its slot, and its key is answered with it.
    assert_eq!(deployment.admit_one(press("buyer")).await, Outcome::AlreadyOrdered(entry));
    let again = deployment.admit_one(press_with_key("buyer", "its-key")).await;
    assert_eq!(again, Outcome::Replayed(entry));
    let total: i64 = deployment.ask(&["HGET", &deployment.sale_key(), "total"]).await;
    assert_eq!(total, 10);
}

#[tokio::test]
async fn a_hold_that_was_given_back_is_not_taken_again() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
    assert_eq!(release(&deployment, "buyer", entry, 2).await, Released::Done);
    let before = deployment.contents().await;
    for generation in [1, 2] {
        let late = reacquire(&deployment, "buyer", entry, generation).await;
        assert_eq!(late, Reacquired::Refused, "{generation}");
    }
    assert_eq!(deployment.contents().await, before);
    assert_eq!(reacquire(&deployment, "buyer", entry, 3).await, TAKEN);
}

#[tokio::test]
async fn a_unit_that_has_not_been_released_yet_is_kept() {
    let deployment = Deployment::selling(&sale(1)).await;
    let entry = deployment.admit_one(press_with_key("buyer", "its-key")).await.admitted();
    // Expired in the database, and the release on its way: the last unit is still this order's.
    assert_eq!(deployment.units().await, [0, 1]);
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
    assert_eq!(deployment.units().await, [0, 1]);
    assert_eq!(release(&deployment, "buyer", entry, 1).await, Released::Nothing);
    assert_eq!(deployment.units().await, [0, 1]);
    assert_eq!(items(&deployment, "buyer").await[0].generation, 2);
    assert_eq!(release(&deployment, "buyer", entry, 2).await, Released::Done);
    assert_eq!(deployment.units().await, [1, 0]);
}

#[tokio::test]
async fn a_release_of_the_older_hold_gives_nothing_back() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
    let before = deployment.contents().await;
    assert_eq!(release(&deployment, "buyer", entry, 1).await, Released::Nothing);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn an_order_that_redis_does_not_remember_can_take_a_unit_too() {
    let deployment = Deployment::selling(&sale(10)).await;
    let first = expired(&deployment, "buyer").await;
    let other = EntryId { ms: first.ms - 5, seq: 3 };
    assert_eq!(reacquire(&deployment, "buyer", other, 2).await, TAKEN);
    assert_eq!(reacquire(&deployment, "newcomer", other, 2).await, TAKEN);
    assert_eq!(deployment.units().await, [8, 2]);
    let shape = |items: Vec<RecordItem>| {
        items.iter().map(|item| (item.entry, item.generation, item.open)).collect::<Vec<_>>()
    };
    assert_eq!(shape(items(&deployment, "buyer").await), [(first, 1, false), (other, 2, true)]);
    let items = items(&deployment, "newcomer").await;
    assert_eq!(items[0].digest, Some(digest("its-key")));
    assert_eq!(shape(items), [(other, 2, true)]);
}

#[tokio::test]
async fn without_a_unit_it_is_refused() {
    let deployment = Deployment::selling(&sale(1)).await;
    let entry = expired(&deployment, "buyer").await;
    deployment.set_field(&deployment.sale_key(), "reopen_ms", "0").await;
    deployment.admit_one(press("faster")).await.admitted();
    let before = deployment.contents().await;
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, Reacquired::Refused);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn without_a_slot_it_is_refused() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    let second = deployment.admit_one(press_with_key("buyer", "another")).await.admitted();
    let before = deployment.contents().await;
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, Reacquired::Refused);
    // Nor in another slot than its own: one open order is the limit.
    let elsewhere = try_reacquire(&deployment, "buyer", entry, 2, 2).await.unwrap();
    assert_eq!(elsewhere, Reacquired::Refused);
    assert_eq!(deployment.contents().await, before);
    assert_eq!(release(&deployment, "buyer", second, 1).await, Released::Done);
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
}

#[tokio::test]
async fn a_slot_below_the_limit_must_be_its_own() {
    let mut two = sale(10);
    two.per_buyer = 2;
    let deployment = Deployment::selling(&two).await;
    let entry = expired(&deployment, "buyer").await;
    deployment.admit_one(press_with_key("buyer", "another")).await.admitted();
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, Reacquired::Refused, "slot 1");
    let second = try_reacquire(&deployment, "buyer", entry, 2, 2).await.unwrap();
    assert_eq!((second, deployment.units().await), (TAKEN, [8, 2]));
}

#[tokio::test]
async fn only_a_closed_sale_gives_nothing_more() {
    for (state, expected) in [
        (SaleState::Published, TAKEN),
        (SaleState::Paused, TAKEN),
        (SaleState::Closed, Reacquired::Refused),
    ] {
        let deployment = Deployment::selling(&sale(10)).await;
        let entry = expired(&deployment, "buyer").await;
        let (partition, id) = (deployment.partition, sale(1).id);
        assert!(deployment.redis.set_sale_state(partition, id, state).await.unwrap());
        assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, expected, "{state}");
    }
    // What was taken before the sale was closed stays taken.
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
    let (partition, id) = (deployment.partition, sale(1).id);
    deployment.redis.set_sale_state(partition, id, SaleState::Closed).await.unwrap();
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
}

#[tokio::test]
async fn it_waits_while_the_sale_is_not_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    deployment.set_field(&deployment.gate_key(), "replid", "of another server").await;
    let before = deployment.contents().await;
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, Reacquired::NotLoaded);
    assert_eq!(deployment.contents().await, before);
    deployment.redis.fence(deployment.partition).await.unwrap();
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, Reacquired::NotLoaded);

    let empty = Deployment::empty().await;
    assert_eq!(reacquire(&empty, "buyer", entry, 2).await, Reacquired::NotLoaded);
    empty.open_gate().await;
    assert_eq!(reacquire(&empty, "buyer", entry, 2).await, Reacquired::NotLoaded);
    let strange = Deployment::selling(&sale(10)).await;
    strange.set_field(&strange.buyers_key(), "buyer", "2|whatever").await;
    let before = strange.contents().await;
    assert_eq!(reacquire(&strange, "buyer", entry, 2).await, Reacquired::NotLoaded);
    assert_eq!(strange.contents().await, before);
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_before_anything_is_written() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    for key in [deployment.gate_key(), deployment.sale_key(), deployment.buyers_key()] {
        let dump: Vec<u8> = deployment.ask(&["DUMP", &key]).await;
        assert!(!dump.is_empty());
        let aside = format!("{key}-aside");
        deployment.ask::<()>(&["RENAME", &key, &aside]).await;
        deployment.ask::<()>(&["SET", &key, "a string"]).await;
        let before = deployment.contents().await;
        let fault = try_reacquire(&deployment, "buyer", entry, 1, 2).await.unwrap_err();
        assert!(fault.to_string().contains("WRONGTYPE"), "{key}: {fault}");
        assert_eq!(deployment.contents().await, before, "{key}");
        deployment.ask::<()>(&["RENAME", &aside, &key]).await;
    }
    assert_eq!(reacquire(&deployment, "buyer", entry, 2).await, TAKEN);
}

#[tokio::test]
async fn fifty_calls_at_once_take_one_unit() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = expired(&deployment, "buyer").await;
    let calls = (0..50).map(|_| reacquire(&deployment, "buyer", entry, 2));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer, TAKEN);
    }
    assert_eq!(deployment.units().await, [9, 1]);
}
