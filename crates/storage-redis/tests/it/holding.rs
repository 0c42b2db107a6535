//! Holding entries: kept while owned, reported when lost, handed back at once; attempts counted;
//! consumers of dead processes removed, but never with entries in hand.

use std::time::Duration;

use flashsale_storage_redis::GateStatus;

use crate::support::{Deployment, ids, sale};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn entries_are_kept_by_their_owner_and_lost_ones_are_named() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    deployment.append_many(3).await;
    let held = ids(&deployment.read("mine", 3).await);
    assert_eq!(redis.keep_entries(partition, "mine", &held).await.unwrap(), []);
    // One is taken over, one is acknowledged.
    redis.claim(partition, "peer", Duration::ZERO, None, 1).await.unwrap();
    redis.ack(partition, &held[1..2]).await.unwrap();
    assert_eq!(redis.keep_entries(partition, "mine", &held).await.unwrap(), held[..2]);
    // The peer's entry was not taken back.
    assert_eq!(redis.keep_entries(partition, "peer", &held[..1]).await.unwrap(), []);
}

#[tokio::test]
async fn what_is_handed_back_is_claimed_at_once() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    deployment.append_many(2).await;
    let held = ids(&deployment.read("leaving", 2).await);
    let claim = || redis.claim(partition, "peer", HOUR, None, 10);
    assert_eq!(ids(&claim().await.unwrap().entries), []);
    redis.hand_back_entries(partition, "leaving", &held).await.unwrap();
    assert_eq!(ids(&claim().await.unwrap().entries), held);
}

#[tokio::test]
async fn attempts_are_counted_up_to_the_limit_and_can_be_taken_back() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    let id = deployment.append_many(1).await[0];
    for attempt in 1..=3 {
        assert_eq!(redis.count_attempt(partition, id, 3).await.unwrap(), Some(attempt));
    }
    assert_eq!(redis.count_attempt(partition, id, 3).await.unwrap(), None);
    redis.uncount_attempt(partition, id).await.unwrap();
    assert_eq!(redis.count_attempt(partition, id, 3).await.unwrap(), Some(3));
    redis.forget_suspects(partition, &[id]).await.unwrap();
    assert_eq!(redis.count_attempt(partition, id, 3).await.unwrap(), Some(1));
    assert_eq!(redis.count_reclaims(partition, &[id]).await.unwrap(), [1]);
    assert_eq!(redis.count_reclaims(partition, &[id]).await.unwrap(), [2]);
}

#[tokio::test]
async fn only_consumers_that_hold_nothing_are_removed() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    deployment.append_many(2).await;
    deployment.read("holds", 1).await;
    let done = ids(&deployment.read("done", 1).await);
    redis.ack(partition, &done).await.unwrap();
    assert_eq!(redis.prune_consumers(partition, HOUR).await.unwrap(), 0, "seen lately");
    assert_eq!(redis.prune_consumers(partition, Duration::ZERO).await.unwrap(), 1);
    assert!(!redis.leave_group(partition, "holds").await.unwrap());
    let backlog = redis.backlog(partition).await.unwrap().expect("a group");
    assert_eq!(backlog.pending, 1, "nothing was destroyed");
}

#[tokio::test]
async fn a_gate_says_whether_its_memory_may_be_trusted() {
    let deployment = Deployment::empty().await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    assert_eq!(redis.gate_status(partition).await.unwrap(), GateStatus::Missing);
    deployment.open_gate().await;
    assert_eq!(redis.gate_status(partition).await.unwrap(), GateStatus::Open);
    deployment.set_field(&deployment.gate_key(), "replid", "of another server").await;
    assert_eq!(redis.gate_status(partition).await.unwrap(), GateStatus::Stale);
    redis.fence(partition).await.unwrap();
    assert_eq!(redis.gate_status(partition).await.unwrap(), GateStatus::Fenced);
    assert_eq!(redis.eviction_policy().await.unwrap(), "noeviction");
}
