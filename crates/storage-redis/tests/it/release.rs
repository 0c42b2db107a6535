//! Releases: what an order that is over gives back, once, by order id and generation.

use flashsale_domain::{EntryId, Sale};
use flashsale_storage_redis::{RecordItem, ReleaseRequest, Released};
use flashsale_test_support::eventually;

use crate::support::{Deployment, Outcome, SOON, press, press_with_key, sale, user};

async fn release(
    deployment: &Deployment,
    buyer: &str,
    entry: EntryId,
    generation: u32,
) -> Released {
    release_as(deployment, buyer, entry, generation, true, None).await
}

async fn release_as(
    deployment: &Deployment,
    buyer: &str,
    entry: EntryId,
    generation: u32,
    returns_unit: bool,
    instead: Option<RecordItem>,
) -> Released {
    let (partition, sale_id, user_id) = (deployment.partition, sale(1).id, user(buyer));
    let user_id = &user_id;
    let request =
        ReleaseRequest { partition, sale_id, user_id, entry, generation, returns_unit, instead };
    deployment.redis.release(&request).await.expect("answered")
}

/// How many units have come back, which is what a gateway looks at before it believes in "sold out".
async fn returns(deployment: &Deployment) -> i64 {
    deployment.ask(&["HGET", &deployment.sale_key(), "returns"]).await
}

#[tokio::test]
async fn a_release_gives_unit_and_slot_back_once() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = deployment.admit_one(press_with_key("buyer", "key")).await.admitted();
    assert_eq!(deployment.units().await, [9, 1]);
    assert_eq!(release(&deployment, "buyer", entry, 1).await, Released::Done);
    assert_eq!(deployment.units().await, [10, 0]);
    assert_eq!(returns(&deployment).await, 1);
    for _ in 0..3 {
        assert_eq!(release(&deployment, "buyer", entry, 1).await, Released::Nothing);
    }
    assert_eq!((deployment.units().await, returns(&deployment).await), ([10, 0], 1));
    // The key is answered with its order for as long as the sale lives; another buys anew.
    assert_eq!(
        deployment.admit_one(press_with_key("buyer", "key")).await,
        Outcome::Replayed(entry)
    );
    let second = deployment.admit_one(press_with_key("buyer", "other")).await.admitted();
    assert_ne!(second, entry);
    assert_eq!(deployment.slots_of("buyer").await, [1, 1], "the slot was free again");
}

#[tokio::test]
async fn what_is_not_held_in_that_generation_is_not_released() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = deployment.admit_one(press("buyer")).await.admitted();
    let other = EntryId { ms: entry.ms, seq: entry.seq + 1 };
    for (buyer, entry, generation) in
        [("buyer", entry, 2), ("buyer", other, 1), ("other", entry, 1)]
    {
        assert_eq!(release(&deployment, buyer, entry, generation).await, Released::Nothing);
    }
    assert_eq!(deployment.units().await, [9, 1]);
}

#[tokio::test]
async fn a_unit_that_never_existed_is_not_given_back() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = deployment.admit_one(press("buyer")).await.admitted();
    assert_eq!(release_as(&deployment, "buyer", entry, 1, false, None).await, Released::Done);
    assert_eq!(deployment.units().await, [9, 0]);
    let account = deployment.redis.read_sale(deployment.partition, sale(1).id).await.unwrap();
    assert_eq!(account.sale.unwrap().total, 9);
}

#[tokio::test]
async fn an_order_that_redis_did_not_know_takes_the_unit_over() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = deployment.admit_one(press("buyer")).await.admitted();
    let holder = EntryId { ms: entry.ms - 1000, seq: 0 };
    let item = RecordItem { entry: holder, slot: 1, generation: 1, open: true, digest: None };
    let instead = Some(item);
    let released = release_as(&deployment, "buyer", entry, 1, true, instead.clone()).await;
    assert_eq!(released, Released::Done);
    assert_eq!(deployment.units().await, [9, 1]);
    assert_eq!(deployment.admit_one(press("buyer")).await, Outcome::AlreadyOrdered(holder));
    let again = release_as(&deployment, "buyer", entry, 1, true, instead).await;
    assert_eq!((again, deployment.units().await), (Released::Nothing, [9, 1]));
}

#[tokio::test]
async fn the_last_unit_that_comes_back_is_sold_again_when_the_leases_have_run_out() {
    let deployment = Deployment::selling(&sale(1)).await;
    let entry = deployment.admit_one(press("first")).await.admitted();
    assert_eq!(deployment.admit_one(press("second")).await, Outcome::SoldOut);
    assert_eq!(release(&deployment, "first", entry, 1).await, Released::Done);
    assert_eq!(deployment.admit_one(press("second")).await, Outcome::SoldOut, "held back");
    eventually(SOON, "the unit on sale", async || {
        matches!(deployment.admit_one(press("second")).await, Outcome::Admitted(_))
    })
    .await;
}

#[tokio::test]
async fn a_release_waits_while_the_sale_is_not_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = deployment.admit_one(press("buyer")).await.admitted();
    deployment.redis.fence(deployment.partition).await.unwrap();
    assert_eq!(release(&deployment, "buyer", entry, 1).await, Released::NotLoaded);
    assert_eq!(deployment.units().await, [9, 1]);
    let empty = Deployment::empty().await;
    empty.open_gate().await;
    assert_eq!(release(&empty, "buyer", entry, 1).await, Released::NotLoaded);
}

#[tokio::test]
async fn an_order_that_redis_knows_has_its_own_unit_and_takes_none_over() {
    let mut two = sale(10);
    two.per_buyer = 2;
    let deployment = Deployment::selling(&two).await;
    let first = deployment.admit_one(press_with_key("buyer", "first")).await.admitted();
    let second = deployment.admit_one(press_with_key("buyer", "second")).await.admitted();
    let item = RecordItem { entry: first, slot: 1, generation: 1, open: true, digest: None };
    let released = release_as(&deployment, "buyer", second, 1, true, Some(item)).await;
    assert_eq!((released, deployment.units().await), (Released::Done, [9, 1]));
    let record = deployment.redis.find_record(deployment.partition, two.id, &user("buyer")).await;
    let record = record.unwrap().unwrap();
    let items: Vec<_> = record.items.iter().map(|item| (item.entry, item.open)).collect();
    assert_eq!(items, [(first, true), (second, false)]);
    assert!(record.items.iter().all(|item| item.digest.is_some()), "digests stay for replays");
}

#[tokio::test]
async fn stock_that_was_not_gone_is_sold_on_without_a_pause() {
    let deployment = Deployment::selling(&sale(2)).await;
    let entry = deployment.admit_one(press("first")).await.admitted();
    let before: Option<i64> = deployment.ask(&["HGET", &deployment.sale_key(), "reopen_ms"]).await;
    assert_eq!(release(&deployment, "first", entry, 1).await, Released::Done);
    assert_eq!(
        deployment.ask::<Option<i64>>(&["HGET", &deployment.sale_key(), "reopen_ms"]).await,
        before
    );
    for buyer in ["second", "third"] {
        deployment.admit_one(press(buyer)).await.admitted();
    }
}

#[tokio::test]
async fn a_release_waits_for_a_gate_that_can_be_trusted() {
    let deployment = Deployment::selling(&sale(10)).await;
    let entry = deployment.admit_one(press("buyer")).await.admitted();
    deployment.set_field(&deployment.gate_key(), "replid", "of another server").await;
    let before = deployment.contents().await;
    assert_eq!(release(&deployment, "buyer", entry, 1).await, Released::NotLoaded);
    assert_eq!(deployment.contents().await, before);
    // A record of a format that this script does not know is not guessed at.
    let other = Deployment::selling(&sale(10)).await;
    other.set_field(&other.buyers_key(), "buyer", "2|whatever").await;
    let before = other.contents().await;
    assert_eq!(release(&other, "buyer", entry, 1).await, Released::NotLoaded);
    assert_eq!(other.contents().await, before);
}

#[tokio::test]
async fn a_record_of_format_1_is_read_and_becomes_one_of_format_2() {
    let deployment = Deployment::selling(&Sale { per_buyer: 2, ..sale(10) }).await;
    let record = "1|1764470400000-0:1:1:o:;1764470400001-0:2:1:c:";
    deployment.set_field(&deployment.buyers_key(), "ann", record).await;
    let second = deployment.admit_one(press("ann")).await.admitted();
    assert!(matches!(deployment.admit_one(press("ann")).await, Outcome::AlreadyOrdered(_)));
    let first = EntryId { ms: 1_764_470_400_000, seq: 0 };
    assert_eq!(release(&deployment, "ann", first, 1).await, Released::Done);
    let kept: String = deployment.ask(&["HGET", &deployment.buyers_key(), "ann"]).await;
    assert_eq!(kept, format!("21764470400000-0:1:1:c:;1764470400001-0:2:1:c:;{second}:2:1:o:"));
}
