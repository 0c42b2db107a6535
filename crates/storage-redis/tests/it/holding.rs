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
async fn a_deleted_entry_that_is_held_stays_pending_until_its_loss_is_named() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    deployment.append_many(2).await;
    let held = ids(&deployment.read("mine", 2).await);
    let (key, gone) = (deployment.orders_key(), held[0].to_string());
    assert_eq!(deployment.ask::<i64>(&["XDEL", &key, &gone]).await, 1);
    // Its holder has the bytes in memory, and may still write the row: one beat, and another.
    for _ in 0..2 {
        assert_eq!(redis.keep_entries(partition, "mine", &held).await.unwrap(), []);
    }
    let claimed = redis.claim(partition, "peer", HOUR, None, 10).await.unwrap();
    assert_eq!(claimed.deleted, held[..1]);
    // Now it is nobody's.
    assert_eq!(redis.keep_entries(partition, "mine", &held).await.unwrap(), held[..1]);
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
    assert!(!redis.keeps_append_only_file().await.unwrap(), "the tests' servers keep none");
}

#[tokio::test]
async fn what_a_peer_owns_is_not_handed_back_for_it() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    deployment.append_many(2).await;
    let mut held = ids(&deployment.read("leaving", 1).await);
    held.extend(ids(&deployment.read("peer", 1).await));
    redis.hand_back_entries(partition, "leaving", &held).await.unwrap();
    let claimed = redis.claim(partition, "third", HOUR, None, 10).await.unwrap();
    assert_eq!(ids(&claimed.entries), held[..1]);
}

#[tokio::test]
async fn without_a_stream_there_is_nobody_to_remove() {
    let deployment = Deployment::empty().await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    assert_eq!(redis.prune_consumers(partition, Duration::ZERO).await.unwrap(), 0);
    assert!(!redis.leave_group(partition, "gone").await.unwrap());
    assert_eq!(redis.oldest_unapplied_age(partition).await.unwrap(), None);
    let streams: i64 = deployment.ask(&["EXISTS", &deployment.orders_key()]).await;
    assert_eq!(streams, 0, "asking creates nothing");
}

#[tokio::test]
async fn without_a_group_there_is_nobody_to_remove_and_every_entry_waits() {
    let deployment = Deployment::empty().await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    let key = deployment.orders_key();
    deployment.ask::<String>(&["XADD", &key, "1764470400000-0", "n", "1"]).await;
    assert_eq!(redis.prune_consumers(partition, Duration::ZERO).await.unwrap(), 0);
    assert!(redis.oldest_unapplied_age(partition).await.unwrap() > Some(1));
    assert_eq!(redis.trim_acked(partition).await.unwrap(), 0);
    assert!(!redis.has_group(partition).await.unwrap(), "asking creates nothing");
}

#[tokio::test]
async fn the_oldest_entry_counts_until_it_is_acknowledged() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    let age = async || redis.oldest_unapplied_age(partition).await.unwrap();
    redis.ensure_group(partition).await.unwrap();
    assert_eq!(age().await, None);
    // One of 2025, and one whose id runs ahead of the clock, as after a rebuild.
    let (old, ahead) = ("1764470400000-0", "4102444800000-0");
    for id in [old, ahead] {
        deployment.ask::<String>(&["XADD", &deployment.orders_key(), id, "n", "1"]).await;
    }
    assert!(age().await > Some(1), "undelivered");
    let first = ids(&deployment.read("worker", 1).await);
    assert!(age().await > Some(1), "in a worker's hands");
    redis.ack(partition, &first).await.unwrap();
    assert_eq!(age().await, Some(0), "never below 0");
    let second = ids(&deployment.read("worker", 1).await);
    assert_eq!(age().await, Some(0));
    redis.ack(partition, &second).await.unwrap();
    assert_eq!(age().await, None);
}
