//! The orders stream: its group, its readers, what they hold, and what is taken over from them.

use std::collections::HashSet;
use std::time::Duration;

use flashsale_domain::EntryId;
use flashsale_storage_redis::{Backlog, GROUP, RawEntry, ReadError};
use flashsale_test_support::{RedisServer, eventually};
use tokio::task::JoinHandle;

use crate::support::{Deployment, SOON, crowd, fields, ids, sale};

const HOUR: Duration = Duration::from_secs(3600);

/// Names and values that only bytes can hold: not UTF-8, empty, the same name twice.
const ODD_FIELDS: [(&[u8], &[u8]); 5] =
    [(b"v", b"1"), (b"\xff\x00", b"\xfe\r\n\xc3\x28"), (b"v", b"2"), (b"", b""), (b"u", b"")];

async fn with_group() -> Deployment {
    let deployment = Deployment::empty().await;
    assert!(deployment.redis.ensure_group(deployment.partition).await.expect("answered"));
    deployment
}

/// `[id, consumer, idle_ms, deliveries]` of every pending entry.
async fn pending(deployment: &Deployment) -> Vec<(String, String, u64, u64)> {
    deployment.ask(&["XPENDING", &deployment.orders_key(), GROUP, "-", "+", "10000"]).await
}

#[tokio::test]
async fn orders_from_before_the_first_reader_are_read() {
    let deployment = Deployment::empty().await;
    let appended = deployment.append_many(10).await;
    assert!(deployment.redis.ensure_group(deployment.partition).await.unwrap());
    assert_eq!(ids(&deployment.read("worker", 100).await), appended);
}

#[tokio::test]
async fn orders_admitted_before_the_first_worker_are_read() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit(&crowd(10)).await;
    assert!(!deployment.redis.ensure_group(deployment.partition).await.unwrap(), "opened with it");
    assert_eq!(deployment.read("worker", 100).await.len(), 10);
}

#[tokio::test]
async fn a_group_is_created_once_and_keeps_its_place() {
    let deployment = with_group().await;
    deployment.append_many(3).await;
    assert_eq!(deployment.read("worker", 2).await.len(), 2);
    assert!(!deployment.redis.ensure_group(deployment.partition).await.unwrap());
    assert_eq!(deployment.read("worker", 100).await.len(), 1, "only what was not read yet");
}

#[tokio::test]
async fn an_entry_goes_to_one_reader_only() {
    let deployment = with_group().await;
    let appended = deployment.append_many(5).await;
    let first = ids(&deployment.read("a", 3).await);
    let second = ids(&deployment.read("b", 100).await);
    assert_eq!([first, second].concat(), appended);
    assert_eq!(deployment.read("a", 100).await, []);
}

#[tokio::test]
async fn a_wait_without_entries_ends_empty_also_when_longer_than_the_response_timeout() {
    let timeout = Duration::from_secs(1);
    let deployment = Deployment::with_response_timeout(RedisServer::shared(), timeout).await;
    deployment.redis.ensure_group(deployment.partition).await.unwrap();
    let block = Duration::from_millis(1200);
    let mut reader = deployment.reader("worker", block).await;
    let started = std::time::Instant::now();
    assert_eq!(reader.read(10).await.unwrap(), []);
    assert!(started.elapsed() >= block, "{:?}", started.elapsed());

    // And the connection is good for the next one, which gets every entry.
    let appended = deployment.append_many(2).await;
    assert_eq!(ids(&reader.read(10).await.unwrap()), appended);
}

/// A reader that waits on a server of its own, and what it gets in the end.
async fn blocked_reader(deployment: &Deployment) -> JoinHandle<Result<Vec<RawEntry>, ReadError>> {
    deployment.redis.ensure_group(deployment.partition).await.expect("answered");
    let mut reader = deployment.reader("worker", SOON * 2).await;
    let task = tokio::spawn(async move { reader.read(10).await });
    eventually(SOON, "a blocked reader", async || {
        let info: String = deployment.ask(&["INFO", "clients"]).await;
        info.contains("blocked_clients:1\r\n")
    })
    .await;
    task
}

async fn ends(
    task: JoinHandle<Result<Vec<RawEntry>, ReadError>>,
) -> Result<Vec<RawEntry>, ReadError> {
    tokio::time::timeout(SOON, task).await.expect("the reader is woken").expect("no panic")
}

#[tokio::test]
async fn a_blocked_reader_gets_the_entry_that_comes() {
    let server = RedisServer::start();
    let deployment = Deployment::on(&server).await;
    let task = blocked_reader(&deployment).await;
    let id = deployment.append(&ODD_FIELDS).await;
    assert_eq!(ends(task).await.unwrap(), [RawEntry { id, fields: fields(&ODD_FIELDS) }]);
}

#[tokio::test]
async fn whatever_takes_the_stream_or_group_from_a_blocked_reader_is_a_missing_group() {
    let server = RedisServer::start();
    let deployment = Deployment::on(&server).await;
    let key = deployment.orders_key();
    let losses: [&[&str]; 5] = [
        &["XGROUP", "DESTROY", &key, GROUP],
        &["DEL", &key],
        &["UNLINK", &key],
        &["FLUSHALL"],
        &["FLUSHALL", "ASYNC"],
    ];
    for loss in losses {
        let task = blocked_reader(&deployment).await;
        deployment.ask::<()>(loss).await;
        let answer = ends(task).await;
        assert!(matches!(answer, Err(ReadError::GroupMissing)), "{loss:?}: {answer:?}");

        // A reader that comes later is told the same, until the group is made again.
        let mut reader = deployment.reader("worker", Duration::from_millis(1)).await;
        let answer = reader.read(10).await;
        assert!(matches!(answer, Err(ReadError::GroupMissing)), "{loss:?}: {answer:?}");
        assert!(deployment.redis.ensure_group(deployment.partition).await.unwrap());
        let id = deployment.append(&[(b"v", b"1")]).await;
        let read = reader.read(10).await.expect("the same connection goes on");
        assert!(ids(&read).contains(&id), "{loss:?}");
        deployment.ask::<()>(&["DEL", &key]).await;
    }
}

#[tokio::test]
async fn a_key_that_is_no_stream_is_a_fault_and_not_a_missing_group() {
    let deployment = Deployment::empty().await;
    deployment.ask::<()>(&["SET", &deployment.orders_key(), "a string"]).await;
    let mut reader = deployment.reader("worker", Duration::from_millis(1)).await;
    let answer = reader.read(10).await;
    assert!(matches!(answer, Err(ReadError::Fault(_))), "{answer:?}");
    assert!(deployment.redis.ensure_group(deployment.partition).await.is_err());
    assert!(deployment.redis.backlog(deployment.partition).await.is_err());
}

#[tokio::test]
async fn an_acknowledged_entry_is_no_longer_pending_and_counts_once() {
    let deployment = with_group().await;
    let partition = deployment.partition;
    let appended = deployment.append_many(4).await;
    deployment.read("worker", 3).await;
    assert_eq!(deployment.redis.ack(partition, &[]).await.unwrap(), 0);
    assert_eq!(deployment.redis.ack(partition, &appended[..2]).await.unwrap(), 2);
    assert_eq!(
        deployment.redis.ack(partition, &appended).await.unwrap(),
        1,
        "of four, one was pending"
    );
    assert_eq!(pending(&deployment).await, []);
    assert_eq!(ids(&deployment.read("worker", 10).await), appended[3..]);
    assert_eq!(deployment.stream_ids().await, appended, "acknowledging removes nothing");
}

#[tokio::test]
async fn bodies_survive_byte_for_byte_however_they_are_read() {
    let deployment = with_group().await;
    let id = deployment.append(&ODD_FIELDS).await;
    let large = vec![0xa5; 4 << 20];
    let large_id = deployment.append(&[(b"u", &large)]).await;
    let expected = [
        RawEntry { id, fields: fields(&ODD_FIELDS) },
        RawEntry { id: large_id, fields: fields(&[(b"u", &large)]) },
    ];
    assert_eq!(deployment.read("dead", 10).await, expected);
    let page =
        deployment.redis.claim(deployment.partition, "alive", Duration::ZERO, None, 10).await;
    assert_eq!(page.unwrap().entries, expected);
    for entry in expected {
        let found = deployment.redis.find_entry(deployment.partition, entry.id).await.unwrap();
        assert_eq!(found, Some(entry));
    }
}

#[tokio::test]
async fn an_entry_that_is_not_there_is_not_found() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let nowhere = EntryId { ms: 1_764_470_400_000, seq: 0 };
    assert_eq!(deployment.redis.find_entry(partition, nowhere).await.unwrap(), None, "no stream");
    let appended = deployment.append_many(1).await;
    assert_eq!(deployment.redis.find_entry(partition, nowhere).await.unwrap(), None);
    let next = EntryId { seq: appended[0].seq + 1, ..appended[0] };
    assert_eq!(deployment.redis.find_entry(partition, next).await.unwrap(), None);
}

#[tokio::test]
async fn hundreds_of_entries_of_a_dead_reader_are_claimed_page_by_page() {
    let deployment = with_group().await;
    let partition = deployment.partition;
    let appended = deployment.append_many(330).await;
    deployment.read("dead", 1000).await;

    let (mut claimed, mut pages, mut from) = (Vec::new(), 0, None);
    loop {
        let page =
            deployment.redis.claim(partition, "alive", Duration::ZERO, from, 100).await.unwrap();
        assert_eq!(page.deleted, []);
        assert!(page.entries.len() <= 100);
        claimed.extend(ids(&page.entries));
        pages += 1;
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(claimed, appended);
    assert_eq!(pages, 4);
    for (id, consumer, _idle, deliveries) in pending(&deployment).await {
        assert_eq!((consumer.as_str(), deliveries), ("alive", 1), "{id}: a claim is no delivery");
    }
}

#[tokio::test]
async fn the_tail_behind_busy_entries_is_reached_and_an_empty_page_is_not_the_end() {
    let deployment = with_group().await;
    let partition = deployment.partition;
    let appended = deployment.append_many(330).await;
    deployment.read("worker", 1000).await;
    // The last ten have been idle for two hours.
    let (busy, idle) = appended.split_at(320);
    for id in idle {
        let (key, id) = (deployment.orders_key(), id.to_string());
        let claim = ["XCLAIM", &key, GROUP, "dead", "0", &id, "IDLE", "7200000", "JUSTID"];
        deployment.ask::<Vec<String>>(&claim).await;
    }
    let (mut claimed, mut empty_pages, mut from) = (Vec::new(), 0, None);
    loop {
        let page = deployment.redis.claim(partition, "alive", HOUR, from, 10).await.unwrap();
        empty_pages += u32::from(page.entries.is_empty() && page.next.is_some());
        claimed.extend(ids(&page.entries));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(claimed, idle);
    assert!(empty_pages > 0, "the busy ones fill pages of their own");
    let still_busy = pending(&deployment).await.iter().filter(|p| p.1 == "worker").count();
    assert_eq!(still_busy, busy.len());
}

#[tokio::test]
async fn an_entry_is_left_to_its_reader_until_it_has_been_idle_for_long_enough() {
    let deployment = with_group().await;
    let partition = deployment.partition;
    let appended = deployment.append_many(1).await;
    deployment.read("slow", 10).await;
    let page = deployment.redis.claim(partition, "eager", HOUR, None, 10).await.unwrap();
    assert_eq!((ids(&page.entries), page.next), (Vec::new(), None));
    let min_idle = Duration::from_millis(100);
    eventually(SOON, "the entry to be idle", async || {
        let page = deployment.redis.claim(partition, "eager", min_idle, None, 10).await.unwrap();
        let idle = pending(&deployment).await;
        (ids(&page.entries) == appended).then(|| assert_eq!(idle[0].1, "eager"))
    })
    .await;
}

#[tokio::test]
async fn entries_deleted_under_their_reader_are_reported_once() {
    let deployment = with_group().await;
    let partition = deployment.partition;
    let appended = deployment.append_many(6).await;
    deployment.read("dead", 100).await;
    let lost = [appended[0], appended[3], appended[5]];
    for id in lost {
        deployment.ask::<()>(&["XDEL", &deployment.orders_key(), &id.to_string()]).await;
    }
    let (mut claimed, mut deleted, mut from) = (Vec::new(), Vec::new(), None);
    loop {
        let page =
            deployment.redis.claim(partition, "alive", Duration::ZERO, from, 2).await.unwrap();
        claimed.extend(ids(&page.entries));
        deleted.extend(page.deleted);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(deleted, lost);
    assert_eq!(claimed, [appended[1], appended[2], appended[4]]);
    let again =
        deployment.redis.claim(partition, "alive", Duration::ZERO, None, 100).await.unwrap();
    assert_eq!(again.deleted, []);
    assert_eq!(ids(&again.entries), claimed);
}

#[tokio::test]
async fn lost_entries_are_listed_until_they_are_forgotten_also_where_no_memory_is_left() {
    let server = RedisServer::start();
    let deployment = Deployment::on(&server).await;
    let (redis, partition) = (&deployment.redis, deployment.partition);
    redis.ensure_group(partition).await.unwrap();
    let appended = deployment.append_many(3).await;
    deployment.read("dead", 100).await;
    for id in &appended[..2] {
        deployment.ask::<()>(&["XDEL", &deployment.orders_key(), &id.to_string()]).await;
    }
    assert_eq!(redis.list_lost(partition, 10).await.unwrap(), []);
    deployment.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let page = redis.claim(partition, "about-to-die", Duration::ZERO, None, 100).await.unwrap();
    assert_eq!(page.deleted, appended[..2]);

    let mut listed = redis.list_lost(partition, 10).await.unwrap();
    listed.sort_unstable();
    assert_eq!(listed, appended[..2]);
    assert_eq!(redis.list_lost(partition, 1).await.unwrap().len(), 1);
    redis.forget_lost(partition, appended[0]).await.unwrap();
    assert_eq!(redis.list_lost(partition, 10).await.unwrap(), appended[1..2]);
    redis.forget_lost(partition, appended[1]).await.unwrap();
    assert_eq!(redis.list_lost(partition, 10).await.unwrap(), []);
}

#[tokio::test]
async fn claiming_without_a_group_is_a_fault() {
    let deployment = Deployment::empty().await;
    let claim = deployment.redis.claim(deployment.partition, "alive", HOUR, None, 10).await;
    assert!(claim.is_err());
}

#[tokio::test]
async fn the_backlog_counts_what_is_undelivered_and_what_is_held() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let backlog = async || deployment.redis.backlog(partition).await.unwrap();
    assert_eq!(backlog().await, None, "no stream");
    deployment.append_many(5).await;
    let numbers = |undelivered, pending| Some(Backlog { undelivered: Some(undelivered), pending });
    assert_eq!(backlog().await, numbers(5, 0), "no group");
    let other = ["XGROUP", "CREATE", &deployment.orders_key(), "others", "$"];
    deployment.ask::<()>(&other).await;
    assert_eq!(backlog().await, numbers(5, 0), "another group");
    assert!(!deployment.redis.has_group(partition).await.unwrap());
    deployment.redis.ensure_group(partition).await.unwrap();
    assert!(deployment.redis.has_group(partition).await.unwrap());
    assert_eq!(backlog().await, numbers(5, 0));
    let entries = deployment.read("worker", 3).await;
    assert_eq!(backlog().await, numbers(2, 3));
    assert_eq!(backlog().await.expect("both numbers").total(), Some(5));
    deployment.redis.ack(partition, &ids(&entries)).await.unwrap();
    assert_eq!(backlog().await, numbers(2, 0));
    deployment.read("worker", 3).await;
    assert_eq!(backlog().await, numbers(0, 2));
}

#[tokio::test]
async fn the_backlog_of_admitted_orders_is_exact_after_the_last_id_was_raised() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let fence = deployment.redis.fence(partition).await.unwrap();
    let ms = u64::try_from(fence.now_ms).unwrap() + 2000;
    assert!(deployment.redis.open_gate(fence, EntryId { ms, seq: 0 }).await.unwrap());
    deployment.publish(&sale(10)).await;
    let total =
        async || deployment.redis.backlog(partition).await.unwrap().expect("a group").total();
    assert_eq!(total().await, Some(0));
    deployment.admit(&crowd(4)).await;
    assert_eq!(total().await, Some(4));
    let entries = deployment.read("worker", 3).await;
    assert_eq!(total().await, Some(4));
    deployment.redis.ack(partition, &ids(&entries)).await.unwrap();
    assert_eq!(total().await, Some(1));
}

#[tokio::test]
async fn what_was_trimmed_before_anybody_read_it_is_no_backlog() {
    let deployment = with_group().await;
    let appended = deployment.append_many(5).await;
    deployment.read("worker", 1).await;
    let first_kept = appended[3].to_string();
    let trim = ["XTRIM", &deployment.orders_key(), "MINID", "=", &first_kept];
    assert_eq!(deployment.ask::<i64>(&trim).await, 3);
    let held = ids(&deployment.read("worker", 10).await);
    assert_eq!(held, appended[3..]);
    // Redis's own lag would stay at 2 for good.
    let backlog = deployment.redis.backlog(deployment.partition).await.unwrap().unwrap();
    assert_eq!(backlog, Backlog { undelivered: Some(0), pending: 3 });
    deployment.redis.ack(deployment.partition, &[&appended[..1], &held].concat()).await.unwrap();
    let backlog = deployment.redis.backlog(deployment.partition).await.unwrap().unwrap();
    assert_eq!(backlog.total(), Some(0));
    deployment.append_many(1).await;
    let backlog = deployment.redis.backlog(deployment.partition).await.unwrap().unwrap();
    assert!(backlog.undelivered > Some(0), "what comes later is one: {backlog:?}");
}

#[tokio::test]
async fn an_unknown_undelivered_count_makes_the_total_unknown() {
    let deployment = with_group().await;
    let partition = deployment.partition;
    let appended = deployment.append_many(5).await;
    deployment.read("worker", 1).await;
    // A hole among the undelivered: Redis no longer knows how many there are.
    let hole = appended[3].to_string();
    deployment.ask::<()>(&["XDEL", &deployment.orders_key(), &hole]).await;
    let backlog = deployment.redis.backlog(partition).await.unwrap().expect("a group");
    assert_eq!(backlog, Backlog { undelivered: None, pending: 1 });
    assert_eq!(backlog.total(), None);

    // Once everything is delivered there is nothing to count.
    deployment.read("worker", 10).await;
    let backlog = deployment.redis.backlog(partition).await.unwrap().expect("a group");
    assert_eq!(backlog, Backlog { undelivered: Some(0), pending: 4 });
}

#[tokio::test]
async fn readers_of_two_partitions_never_meet() {
    let deployment = with_group().await;
    let other = deployment.redis.partitions().next().expect("partition 0");
    assert_ne!(other, deployment.partition);
    deployment.redis.ensure_group(other).await.unwrap();
    deployment.append_many(2).await;
    let block = Duration::from_millis(1);
    let mut reader = deployment.redis.order_reader(other, "worker", block).await.unwrap();
    assert_eq!(reader.read(10).await.unwrap(), []);
    let seen: HashSet<_> = ids(&deployment.read("worker", 10).await).into_iter().collect();
    assert_eq!(seen.len(), 2);
}
