//! Direct mode: the ids of orders without a stream, and the lock of a buyer.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_domain::{DIRECT_PARTITION, EntryId, SaleId};
use flashsale_storage_redis::BuyerLock;
use flashsale_test_support::eventually;
use tokio::task::JoinSet;

use crate::support::{Deployment, SOON, sale, user};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

async fn try_lock(deployment: &Deployment, buyer: &str, ttl: Duration) -> Option<BuyerLock> {
    deployment.redis.try_lock_buyer(sale(1).id, &user(buyer), ttl).await.expect("answered")
}

#[tokio::test]
async fn direct_ids_rise_and_bear_the_reserved_partition() {
    let deployment = Deployment::empty().await;
    let mut last = 0;
    for _ in 0..100 {
        let id = deployment.redis.next_direct_order_id().await.unwrap().expect("an id");
        assert_eq!(id.partition(), DIRECT_PARTITION);
        assert_eq!(id.partition().number(), 1023);
        assert!(id.as_i64() > last);
        last = id.as_i64();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn direct_ids_given_at_once_are_unique() {
    let deployment = Deployment::empty().await;
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let redis = deployment.redis.clone();
        tasks.spawn(async move { redis.next_direct_order_id().await.unwrap().expect("an id") });
    }
    let ids: HashSet<_> = tasks.join_all().await.into_iter().collect();
    assert_eq!(ids.len(), 200);
}

#[tokio::test]
async fn a_direct_id_is_above_the_last_one_whatever_the_clock_says() {
    let deployment = Deployment::empty().await;
    let key = deployment.direct_ids_key();
    let (seconds, _micros): (u64, u64) = deployment.ask(&["TIME"]).await;
    let ahead = seconds * 1000 + 30_000;
    deployment.set_field(&key, "ms", &ahead.to_string()).await;
    deployment.set_field(&key, "seq", "4094").await;
    let mut given = Vec::new();
    for _ in 0..3 {
        given.push(deployment.redis.next_direct_order_id().await.unwrap().expect("an id").entry());
    }
    let expected = [
        EntryId { ms: ahead, seq: 4095 },
        EntryId { ms: ahead + 1, seq: 0 },
        EntryId { ms: ahead + 1, seq: 1 },
    ];
    assert_eq!(given, expected);

    let too_far = (seconds * 1000 + 120_000).to_string();
    deployment.set_field(&key, "ms", &too_far).await;
    assert_eq!(deployment.redis.next_direct_order_id().await.unwrap(), None, "a clock fault");
    let kept: String = deployment.ask(&["HGET", &key, "ms"]).await;
    assert_eq!(kept, too_far);
}

#[tokio::test]
async fn a_lock_has_one_holder_until_it_is_given_back() {
    let deployment = Deployment::empty().await;
    let lock = try_lock(&deployment, "ann", LONG).await.expect("free");
    assert!(try_lock(&deployment, "ann", LONG).await.is_none());
    assert!(lock.unlock().await.unwrap());
    let again = try_lock(&deployment, "ann", LONG).await.expect("free again");
    assert!(again.unlock().await.unwrap());
}

#[tokio::test]
async fn locks_of_other_buyers_and_sales_are_other_locks() {
    let deployment = Deployment::empty().await;
    let _ann = try_lock(&deployment, "ann", LONG).await.expect("free");
    assert!(try_lock(&deployment, "bob", LONG).await.is_some());
    let other = SaleId::from_i64(43).unwrap();
    let lock = deployment.redis.try_lock_buyer(other, &user("ann"), LONG).await.unwrap();
    assert!(lock.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_fifty_takers_at_once_one_gets_the_lock() {
    let deployment = Deployment::empty().await;
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let redis = deployment.redis.clone();
        tasks.spawn(async move {
            redis.try_lock_buyer(sale(1).id, &user("ann"), LONG).await.unwrap().is_some()
        });
    }
    let got = tasks.join_all().await.into_iter().filter(|got| *got).count();
    assert_eq!(got, 1);
}

#[tokio::test]
async fn a_lock_that_ran_out_cannot_take_the_next_holders_lock_away() {
    let deployment = Deployment::empty().await;
    let first = try_lock(&deployment, "ann", SHORT).await.expect("free");
    let second = eventually(SOON, "the first lock to run out", async || {
        try_lock(&deployment, "ann", LONG).await
    })
    .await;
    assert!(!first.extend().await.unwrap(), "it is somebody else's by now");
    assert!(!first.unlock().await.unwrap());
    assert!(try_lock(&deployment, "ann", LONG).await.is_none(), "the second still holds it");
    assert!(second.extend().await.unwrap());
    assert!(second.unlock().await.unwrap());
}

#[tokio::test]
async fn a_lock_that_ran_out_with_nobody_after_it_is_gone() {
    let deployment = Deployment::empty().await;
    let lock = try_lock(&deployment, "ann", SHORT).await.expect("free");
    let key = deployment.lock_key("ann");
    eventually(SOON, "the lock to run out", async || {
        deployment.ask::<i64>(&["EXISTS", &key]).await == 0
    })
    .await;
    assert!(!lock.extend().await.unwrap());
    assert!(!lock.unlock().await.unwrap());
    assert!(try_lock(&deployment, "ann", LONG).await.is_some());
}

#[tokio::test]
async fn extending_a_lock_gives_it_its_full_time_again() {
    let deployment = Deployment::empty().await;
    let lock = try_lock(&deployment, "ann", LONG).await.expect("free");
    assert_eq!(lock.extend_interval(), LONG / 2);
    let key = deployment.lock_key("ann");
    deployment.ask::<()>(&["PEXPIRE", &key, "20000"]).await;
    assert!(lock.extend().await.unwrap());
    let left_ms: i64 = deployment.ask(&["PTTL", &key]).await;
    assert!((30_000..=60_000).contains(&left_ms), "{left_ms}");
    assert!(lock.unlock().await.unwrap());
}
