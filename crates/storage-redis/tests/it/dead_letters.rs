//! Dead letters: stored and acknowledged in one go, kept byte for byte, and never lost between the
//! two.

use flashsale_domain::EntryId;
use flashsale_storage_redis::{Backlog, DeadLetter, RawEntry, RedisFault};
use flashsale_test_support::RedisServer;

use crate::support::{Deployment, fields};

/// Bytes that no text format holds as they are, and a name twice.
const ODD_FIELDS: [(&[u8], &[u8]); 4] =
    [(b"v", b"1"), (b"\xff\x00", b"\xfe\n\"\\"), (b"v", b""), (b"", b"\xc3\x28")];

async fn with_group(server: &RedisServer) -> Deployment {
    let deployment = Deployment::on(server).await;
    deployment.redis.ensure_group(deployment.partition).await.expect("answered");
    deployment
}

fn letter(entry: &RawEntry, reason: &str) -> DeadLetter {
    DeadLetter::new(entry.clone(), reason, "field v comes twice", "worker", 1_764_470_400_123)
}

async fn backlog(deployment: &Deployment) -> Backlog {
    deployment.redis.backlog(deployment.partition).await.expect("answered").expect("a group")
}

#[tokio::test]
async fn a_letter_is_stored_and_its_entry_acknowledged_in_one_go() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    deployment.append(&ODD_FIELDS).await;
    deployment.append_many(2).await;
    let entries = deployment.read("worker", 10).await;
    let letter = letter(&entries[0], "undecodable");
    deployment.redis.store_dead_letter(partition, &letter).await.unwrap();

    let found = deployment.redis.find_dead_letter(partition, entries[0].id).await.unwrap();
    assert_eq!(found.as_ref(), Some(&letter));
    assert_eq!(found.expect("found").entry.fields, fields(&ODD_FIELDS), "byte for byte");
    assert_eq!(backlog(&deployment).await.pending, 2, "its neighbours stay pending");
    assert_eq!(deployment.redis.find_dead_letter(partition, entries[1].id).await.unwrap(), None);
}

#[tokio::test]
async fn a_second_store_keeps_the_first_letter_and_acknowledges() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    deployment.append(&ODD_FIELDS).await;
    let entries = deployment.read("worker", 10).await;
    let first = letter(&entries[0], "undecodable");
    deployment.redis.store_dead_letter(partition, &first).await.unwrap();
    deployment.redis.store_dead_letter(partition, &letter(&entries[0], "other")).await.unwrap();
    let letters = deployment.redis.list_dead_letters(partition).await.unwrap();
    assert_eq!(letters, std::slice::from_ref(&first));

    // A letter whose acknowledgement was lost: the entry is pending, the letter is there.
    let other = with_group(RedisServer::shared()).await;
    other.append(&ODD_FIELDS).await;
    let entries = other.read("worker", 10).await;
    let first = letter(&entries[0], "undecodable");
    other.redis.store_dead_letter(partition, &first).await.unwrap();
    let id = entries[0].id.to_string();
    let (key, group) = (other.orders_key(), flashsale_storage_redis::GROUP);
    let force = ["XCLAIM", &key, group, "worker", "0", &id, "FORCE", "JUSTID"];
    other.ask::<Vec<String>>(&force).await;
    assert_eq!(backlog(&other).await.pending, 1);
    other.redis.store_dead_letter(partition, &letter(&entries[0], "other")).await.unwrap();
    assert_eq!(backlog(&other).await.pending, 0);
    assert_eq!(other.redis.list_dead_letters(partition).await.unwrap(), [first]);
}

#[tokio::test]
async fn letters_are_listed_oldest_first_and_counted() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    assert_eq!(deployment.redis.list_dead_letters(partition).await.unwrap(), []);
    assert_eq!(deployment.redis.count_dead_letters(partition).await.unwrap(), 0);
    // As text the second would come first.
    let oldest_first = [
        EntryId { ms: 1_764_470_400_000, seq: 9 },
        EntryId { ms: 1_764_470_400_000, seq: 10 },
        EntryId { ms: 1_764_470_400_001, seq: 0 },
    ];
    for id in [oldest_first[2], oldest_first[0], oldest_first[1]] {
        let entry = RawEntry { id, fields: fields(&ODD_FIELDS) };
        let letter = letter(&entry, "undecodable");
        deployment.redis.store_dead_letter(partition, &letter).await.unwrap();
    }
    let listed = deployment.redis.list_dead_letters(partition).await.unwrap();
    assert_eq!(listed.iter().map(|letter| letter.entry.id).collect::<Vec<_>>(), oldest_first);
    assert_eq!(deployment.redis.count_dead_letters(partition).await.unwrap(), 3);
}

#[tokio::test]
async fn a_letter_outlives_its_entry_on_the_stream() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    deployment.append(&ODD_FIELDS).await;
    let entries = deployment.read("worker", 10).await;
    let letter = letter(&entries[0], "undecodable");
    deployment.redis.store_dead_letter(partition, &letter).await.unwrap();
    assert_eq!(deployment.redis.trim_acked(partition).await.unwrap(), 1);
    let found = deployment.redis.find_dead_letter(partition, entries[0].id).await.unwrap();
    assert_eq!(found, Some(letter));
}

#[tokio::test]
async fn an_entry_whose_letter_cannot_be_stored_stays_pending() {
    // Room for the server and its connections, and not for many letters of 4 MiB.
    let server = RedisServer::builder().max_memory(48 << 20).start();
    let deployment = with_group(&server).await;
    let partition = deployment.partition;
    let large = vec![0xff; 4 << 20];
    deployment.append(&[(b"u", &large)]).await;
    let entries = deployment.read("worker", 10).await;
    let letter = letter(&entries[0], "undecodable");

    deployment.ask::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    let before = deployment.contents().await;
    let fault = deployment.redis.store_dead_letter(partition, &letter).await.unwrap_err();
    assert!(matches!(&fault, RedisFault::Command(error) if error.to_string().contains("OOM")));
    assert!(!fault.is_outcome_unknown(), "Redis itself said no");
    assert_eq!(deployment.contents().await, before);
    assert_eq!(backlog(&deployment).await.pending, 1);
    assert_eq!(deployment.redis.count_dead_letters(partition).await.unwrap(), 0);

    deployment.ask::<()>(&["CONFIG", "SET", "maxmemory", "48mb"]).await;
    deployment.redis.store_dead_letter(partition, &letter).await.unwrap();
    assert_eq!(backlog(&deployment).await.pending, 0);
    let found = deployment.redis.find_dead_letter(partition, entries[0].id).await.unwrap();
    assert_eq!(found, Some(letter));
}

#[tokio::test]
async fn a_place_of_the_wrong_type_leaves_the_entry_pending() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    deployment.append(&ODD_FIELDS).await;
    let entries = deployment.read("worker", 10).await;
    let letter = letter(&entries[0], "undecodable");
    deployment.ask::<()>(&["SET", &deployment.dead_key(), "a string"]).await;
    assert!(deployment.redis.store_dead_letter(partition, &letter).await.is_err());
    assert_eq!(backlog(&deployment).await.pending, 1);

    // The other way round: an orders key that is no stream, and a letter that must not be stored.
    deployment.ask::<()>(&["DEL", &deployment.dead_key()]).await;
    deployment.ask::<()>(&["DEL", &deployment.orders_key()]).await;
    deployment.ask::<()>(&["SET", &deployment.orders_key(), "a string"]).await;
    let before = deployment.contents().await;
    assert!(deployment.redis.store_dead_letter(partition, &letter).await.is_err());
    assert_eq!(deployment.contents().await, before, "no half of it happens");
}

#[tokio::test]
async fn a_stored_text_of_another_format_is_a_fault() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    let id = EntryId { ms: 1_764_470_400_000, seq: 0 };
    for text in [
        "",
        "{}",
        "not json",
        r#"{"v":1,"fields":[["!","!"]],"reason":"r","detail":"d","consumer":"c","at_ms":1}"#,
    ] {
        deployment.set_field(&deployment.dead_key(), &id.to_string(), text).await;
        assert!(deployment.redis.find_dead_letter(partition, id).await.is_err(), "{text:?}");
        assert!(deployment.redis.list_dead_letters(partition).await.is_err(), "{text:?}");
    }
    assert_eq!(deployment.redis.count_dead_letters(partition).await.unwrap(), 1);
}

#[tokio::test]
async fn a_letter_is_replaced_only_while_it_is_there() {
    let deployment = with_group(RedisServer::shared()).await;
    let partition = deployment.partition;
    deployment.append(&ODD_FIELDS).await;
    let entries = deployment.read("worker", 10).await;
    let (id, first) = (entries[0].id, letter(&entries[0], "undecodable"));
    let tried = DeadLetter { attempts: 2, epoch: Some(8), ..first.clone() };
    assert!(!deployment.redis.update_dead_letter(partition, &tried).await.unwrap());
    deployment.redis.store_dead_letter(partition, &first).await.unwrap();
    assert!(deployment.redis.update_dead_letter(partition, &tried).await.unwrap());
    let found = deployment.redis.find_dead_letter(partition, id).await.unwrap();
    assert_eq!(found.as_ref(), Some(&tried));
    assert!(deployment.redis.delete_dead_letter(partition, id).await.unwrap());
    // Somebody has dealt with it: it does not come back.
    assert!(!deployment.redis.update_dead_letter(partition, &tried).await.unwrap());
    assert!(!deployment.redis.delete_dead_letter(partition, id).await.unwrap());
    assert_eq!(deployment.redis.count_dead_letters(partition).await.unwrap(), 0);
}
