//! `trim_acked.lua`: what every group has done goes, and nothing else.

use flashsale_domain::EntryId;
use flashsale_storage_redis::{Backlog, GROUP};

use crate::support::{Deployment, crowd, ids, sale};

async fn with_entries(count: usize) -> (Deployment, Vec<EntryId>) {
    let deployment = Deployment::empty().await;
    deployment.redis.ensure_group(deployment.partition).await.expect("answered");
    let appended = deployment.append_many(count).await;
    (deployment, appended)
}

async fn trim(deployment: &Deployment) -> u64 {
    deployment.redis.trim_acked(deployment.partition).await.expect("answered")
}

async fn ack(deployment: &Deployment, ids: &[EntryId]) {
    let acked = deployment.redis.ack(deployment.partition, ids).await.expect("answered");
    assert_eq!(usize::try_from(acked).expect("fits"), ids.len());
}

async fn backlog(deployment: &Deployment) -> Backlog {
    deployment.redis.backlog(deployment.partition).await.expect("answered").expect("a group")
}

#[tokio::test]
async fn without_a_stream_or_a_group_nothing_is_removed() {
    let deployment = Deployment::empty().await;
    assert_eq!(trim(&deployment).await, 0);
    let exists: i64 = deployment.ask(&["EXISTS", &deployment.orders_key()]).await;
    assert_eq!(exists, 0, "and no stream is made");
    let appended = deployment.append_many(5).await;
    assert_eq!(trim(&deployment).await, 0);
    assert_eq!(deployment.stream_ids().await, appended);
}

#[tokio::test]
async fn what_was_never_delivered_stays() {
    let (deployment, appended) = with_entries(5).await;
    assert_eq!(trim(&deployment).await, 0);
    let read = ids(&deployment.read("worker", 2).await);
    ack(&deployment, &read).await;
    assert_eq!(trim(&deployment).await, 2);
    assert_eq!(deployment.stream_ids().await, appended[2..]);
    assert_eq!(ids(&deployment.read("worker", 10).await), appended[2..]);
}

#[tokio::test]
async fn what_is_pending_stays_with_all_that_came_after_it() {
    let (deployment, appended) = with_entries(6).await;
    deployment.read("worker", 10).await;
    assert_eq!(trim(&deployment).await, 0);
    ack(&deployment, &[appended[0], appended[1], appended[3], appended[4]]).await;
    assert_eq!(trim(&deployment).await, 2);
    assert_eq!(deployment.stream_ids().await, appended[2..]);
    ack(&deployment, &[appended[2]]).await;
    assert_eq!(trim(&deployment).await, 3);
    assert_eq!(deployment.stream_ids().await, appended[5..]);
}

#[tokio::test]
async fn another_groups_entries_stay_until_it_has_done_them_too() {
    let (deployment, appended) = with_entries(4).await;
    let key = deployment.orders_key();
    deployment.ask::<()>(&["XGROUP", "CREATE", &key, "audit", "0"]).await;
    let read = ids(&deployment.read("worker", 10).await);
    ack(&deployment, &read).await;
    assert_eq!(trim(&deployment).await, 0, "undelivered there");

    let command = ["XREADGROUP", "GROUP", "audit", "a", "COUNT", "3", "STREAMS", &key, ">"];
    deployment.ask::<redis::Value>(&command).await;
    let (first, second) = (appended[0].to_string(), appended[1].to_string());
    deployment.ask::<()>(&["XACK", &key, "audit", &first]).await;
    assert_eq!(trim(&deployment).await, 1, "pending there");
    deployment.ask::<()>(&["XACK", &key, "audit", &second, &appended[2].to_string()]).await;
    assert_eq!(trim(&deployment).await, 2);
    assert_eq!(deployment.stream_ids().await, appended[3..]);
}

#[tokio::test]
async fn within_one_millisecond_the_group_that_is_furthest_behind_counts() {
    for behind in ["a-group", GROUP, "z-group"] {
        let deployment = Deployment::empty().await;
        let key = deployment.orders_key();
        for seq in 0..6 {
            deployment.ask::<()>(&["XADD", &key, &format!("1764470400000-{seq}"), "n", "1"]).await;
        }
        for group in ["a-group", GROUP, "z-group"] {
            let delivered = if group == behind { "1764470400000-1" } else { "1764470400000-3" };
            deployment.ask::<()>(&["XGROUP", "CREATE", &key, group, delivered]).await;
        }
        assert_eq!(trim(&deployment).await, 2, "{behind}");
        let seqs: Vec<_> = deployment.stream_ids().await.iter().map(|id| id.seq).collect();
        assert_eq!(seqs, [2, 3, 4, 5]);
    }
}

/// An operator sets a group back to have entries delivered again, while one is still pending.
#[tokio::test]
async fn a_group_that_was_set_back_keeps_what_it_is_to_read_again() {
    let (deployment, appended) = with_entries(4).await;
    deployment.read("worker", 10).await;
    ack(&deployment, &appended[..3]).await;
    let back_to = appended[0].to_string();
    deployment.ask::<()>(&["XGROUP", "SETID", &deployment.orders_key(), GROUP, &back_to]).await;
    assert_eq!(trim(&deployment).await, 1);
    assert_eq!(deployment.stream_ids().await, appended[1..]);
}

#[tokio::test]
async fn a_stream_of_which_everything_is_done_becomes_empty_and_counts_on() {
    let deployment = Deployment::selling(&sale(100)).await;
    deployment.admit(&crowd(10)).await;
    let read = ids(&deployment.read("worker", 100).await);
    ack(&deployment, &read).await;
    assert_eq!(trim(&deployment).await, 10);
    let length: i64 = deployment.ask(&["XLEN", &deployment.orders_key()]).await;
    assert_eq!(length, 0);
    assert_eq!(backlog(&deployment).await, Backlog { undelivered: Some(0), pending: 0 });
    assert_eq!(trim(&deployment).await, 0, "a second time finds nothing");

    let before = *read.last().expect("ten");
    let outcomes = deployment.admit(&crowd(13)[10..]).await;
    assert!(outcomes.iter().all(|outcome| outcome.admitted() > before), "ids rise over a trim");
    assert_eq!(backlog(&deployment).await, Backlog { undelivered: Some(3), pending: 0 });
    let read = ids(&deployment.read("worker", 2).await);
    assert_eq!(backlog(&deployment).await, Backlog { undelivered: Some(1), pending: 2 });
    ack(&deployment, &read).await;
    assert_eq!(trim(&deployment).await, 2);
    assert_eq!(backlog(&deployment).await, Backlog { undelivered: Some(1), pending: 0 });
}

#[tokio::test]
async fn pending_entries_that_were_deleted_hold_nothing_up_and_are_not_forgotten() {
    let (deployment, appended) = with_entries(4).await;
    deployment.read("worker", 10).await;
    ack(&deployment, &appended[1..]).await;
    deployment.ask::<()>(&["XDEL", &deployment.orders_key(), &appended[0].to_string()]).await;
    assert_eq!(trim(&deployment).await, 0, "below the pending one there is nothing");
    let zero = std::time::Duration::ZERO;
    let page = deployment.redis.claim(deployment.partition, "alive", zero, None, 10).await.unwrap();
    assert_eq!(page.deleted, [appended[0]]);
    assert_eq!(trim(&deployment).await, 3);
}
