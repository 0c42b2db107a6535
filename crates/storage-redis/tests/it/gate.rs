//! The gate: fence, load, open, and who is refused; and a sale's life behind it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use flashsale_domain::{EntryId, SaleId, SaleState, UserId};
use flashsale_storage_redis::{LoadedSale, Record, RecordItem};
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{Deployment, Outcome, SOON, crowd, ids, outcomes, press, sale, user};

/// When the first order that a test loads was admitted.
const LOADED_MS: u64 = 1_764_470_400_000;

fn record(ms: u64, open: bool) -> Record {
    let entry = EntryId { ms, seq: 0 };
    Record { items: vec![RecordItem { entry, slot: 1, generation: 1, open, digest: None }] }
}

/// `count` buyers with one open order each, as the database would list them.
fn buyers(count: usize) -> Vec<(UserId, Record)> {
    (0..count)
        .map(|i| {
            let ms = LOADED_MS + u64::try_from(i).expect("fits");
            (user(&format!("buyer-{i}")), record(ms, true))
        })
        .collect()
}

async fn last_generated_id(deployment: &Deployment) -> EntryId {
    let info: HashMap<String, redis::Value> =
        deployment.ask(&["XINFO", "STREAM", &deployment.orders_key()]).await;
    match &info["last-generated-id"] {
        redis::Value::BulkString(text) => {
            String::from_utf8_lossy(text).parse().expect("an entry id")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn on_a_fresh_server_nothing_can_be_published() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    assert!(!deployment.redis.publish_sale(partition, &sale(10)).await.unwrap());
    assert!(deployment.contents().await.values().all(Option::is_none));
    assert_eq!(deployment.redis.rebuilt_id(partition).await.unwrap(), None);
}

#[tokio::test]
async fn an_empty_partition_is_fenced_opened_and_then_sells() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert_eq!(fence.last_id, EntryId { ms: 0, seq: 0 });
    let (seconds, _micros): (i64, i64) = deployment.ask(&["TIME"]).await;
    assert!((fence.now_ms / 1000 - seconds).abs() <= 10, "the fence brings the server's clock");
    assert!(!deployment.redis.publish_sale(partition, &sale(10)).await.unwrap(), "still fenced");
    let last_id = EntryId { ms: LOADED_MS, seq: 3 };
    assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());
    assert!(deployment.redis.publish_sale(partition, &sale(10)).await.unwrap());
    deployment.admit_one(press("ann")).await.admitted();
    assert_eq!(deployment.redis.rebuilt_id(partition).await.unwrap(), Some(last_id));
}

#[tokio::test]
async fn a_partition_that_was_never_used_has_lost_no_orders() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    deployment.open_gate().await;
    assert_eq!(deployment.redis.rebuilt_id(partition).await.unwrap(), None);

    // A rebuild says up to where orders may have been lost.
    let last_id = EntryId { ms: LOADED_MS, seq: 3 };
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());
    assert_eq!(deployment.redis.rebuilt_id(partition).await.unwrap(), Some(last_id));
}

#[tokio::test]
async fn opening_makes_the_stream_and_its_group_so_that_no_order_can_be_missed() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit(&crowd(10)).await;
    assert_eq!(deployment.read("worker", 100).await.len(), 10);

    // Also where entries are there already and only the group is missing.
    let deployment = Deployment::empty().await;
    let appended = deployment.append_many(3).await;
    deployment.open_gate().await;
    assert_eq!(ids(&deployment.read("worker", 100).await), appended);
}

#[tokio::test]
async fn what_is_loaded_behind_the_fence_is_sold_after_it_opens() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let fence = deployment.redis.fence(partition).await.unwrap();
    let records = buyers(2);
    assert!(deployment.redis.load_sale(&fence, &sale(10), 1, 2, &records).await.unwrap());
    assert_eq!(deployment.admit_one(press("new")).await, Outcome::NotLoaded);
    let last_id = EntryId { ms: LOADED_MS + 1, seq: 0 };
    assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());

    let outcomes = deployment.admit(&[press("buyer-1"), press("new"), press("newer")]).await;
    assert_eq!(outcomes[0], Outcome::AlreadyOrdered(last_id));
    assert!(outcomes[1].admitted() > last_id);
    assert_eq!(outcomes[2], Outcome::SoldOut);
    let account = deployment.redis.read_sale(partition, sale(1).id).await.unwrap();
    let expected = LoadedSale {
        total: 3,
        stock: 0,
        held: 3,
        epoch: 7,
        returns: 0,
        admitted: 3,
        state: "published".to_owned(),
    };
    assert_eq!((account.gate_open, account.sale), (true, Some(expected)));
}

#[tokio::test]
async fn a_sale_is_loaded_in_the_state_that_the_database_has() {
    for (state, outcome) in
        [(SaleState::Paused, Outcome::Paused), (SaleState::Closed, Outcome::Ended)]
    {
        let deployment = Deployment::empty().await;
        let mut loaded = sale(10);
        loaded.state = state;
        let fence = deployment.redis.fence(deployment.partition).await.unwrap();
        assert!(deployment.redis.load_sale(&fence, &loaded, 10, 0, &[]).await.unwrap());
        let last_id = fence.last_id;
        assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());
        assert_eq!(deployment.admit_one(press("ann")).await, outcome);
    }
}

#[tokio::test]
async fn a_later_fence_takes_the_right_to_load_and_open() {
    let deployment = Deployment::selling(&sale(10)).await;
    let partition = deployment.partition;
    let first = deployment.redis.fence(partition).await.unwrap();
    let second = deployment.redis.fence(partition).await.unwrap();
    let before = deployment.contents().await;
    assert!(!deployment.redis.load_sale(&first, &sale(99), 99, 0, &buyers(1)).await.unwrap());
    let last_id = EntryId { ms: LOADED_MS, seq: 0 };
    assert!(!deployment.redis.open_gate(first, last_id).await.unwrap());
    assert_eq!(deployment.contents().await, before);

    assert!(deployment.redis.load_sale(&second, &sale(5), 5, 0, &[]).await.unwrap());
    assert!(deployment.redis.open_gate(second, last_id).await.unwrap());
    deployment.admit_one(press("ann")).await.admitted();
    assert_eq!(deployment.units().await, [4, 1]);
}

#[tokio::test]
async fn an_open_gate_cannot_be_loaded_behind() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let fence = deployment.redis.fence(partition).await.unwrap();
    let token: String = deployment.ask(&["HGET", &deployment.gate_key(), "token"]).await;
    deployment.open_gate().await; // By a fence of its own.
    deployment.set_field(&deployment.gate_key(), "token", &token).await;
    assert!(!deployment.redis.load_sale(&fence, &sale(10), 10, 0, &[]).await.unwrap());
    let last_id = fence.last_id;
    assert!(!deployment.redis.open_gate(fence, last_id).await.unwrap());
}

#[tokio::test]
async fn after_a_restart_the_memory_is_there_and_not_trusted() {
    let server = RedisServer::builder().append_only(true).option("appendfsync", "always").start();
    let deployment = Deployment::selling_on(&server, &sale(10)).await;
    let partition = deployment.partition;
    let mut admission = deployment.admission();
    let requests = [press("ann")];
    let batch = admission.admit(partition, sale(1).id, &requests).await.unwrap();
    let order = outcomes(&batch)[0].admitted();

    server.kill_9();
    server.start_again();
    let deployment = deployment.reconnected(&server).await;
    assert_eq!(deployment.units().await, [9, 1], "the data came back");
    assert_eq!(deployment.stream_ids().await, [order]);

    // The connection of before goes on by itself.
    let batch = eventually(SOON, "an answer after the restart", async || {
        admission.admit(partition, sale(1).id, &[press("ann"), press("bob")]).await
    })
    .await;
    assert_eq!(outcomes(&batch), [Outcome::NotLoaded; 2]);
    let mut other = sale(1);
    other.id = SaleId::from_i64(43).unwrap();
    assert!(!deployment.redis.publish_sale(partition, &other).await.unwrap());
    let paused = deployment.redis.set_sale_state(partition, sale(1).id, SaleState::Paused).await;
    assert!(!paused.unwrap());
    let account = deployment.redis.read_sale(partition, sale(1).id).await.unwrap();
    assert!(!account.gate_open);
    assert_eq!(account.sale.expect("still there").stock, 9);

    // A rebuild under this server's own name is believed.
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert_eq!(fence.last_id, order);
    let records = [(user("ann"), record(order.ms, true))];
    assert!(deployment.redis.load_sale(&fence, &sale(10), 9, 1, &records).await.unwrap());
    assert!(deployment.redis.open_gate(fence, order).await.unwrap());
    let outcomes = deployment.admit(&[press("ann"), press("bob")]).await;
    assert_eq!(outcomes[0], Outcome::AlreadyOrdered(EntryId { seq: 0, ..order }));
    assert!(outcomes[1].admitted() > order);
}

#[tokio::test]
async fn a_rebuilder_from_before_a_restart_is_refused_after_it() {
    let server = RedisServer::builder().append_only(true).option("appendfsync", "always").start();
    let deployment = Deployment::selling_on(&server, &sale(10)).await;
    let partition = deployment.partition;
    let fence = deployment.redis.fence(partition).await.unwrap();
    server.kill_9();
    server.start_again();
    let deployment = deployment.reconnected(&server).await;
    let state: [String; 1] = deployment.ask(&["HMGET", &deployment.gate_key(), "state"]).await;
    assert_eq!(state, ["fenced"], "the fence itself came back");
    let before = deployment.contents().await;
    assert!(!deployment.redis.load_sale(&fence, &sale(99), 99, 0, &[]).await.unwrap());
    let last_id = fence.last_id;
    assert!(!deployment.redis.open_gate(fence, last_id).await.unwrap());
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn a_load_replaces_and_never_merges() {
    let deployment = Deployment::selling(&sale(10)).await;
    let partition = deployment.partition;
    deployment.admit(&[press("old-1"), press("old-2")]).await;
    deployment.set_field(&deployment.sale_key(), "returns", "5").await;
    deployment.set_field(&deployment.sale_key(), "left-over", "1").await;
    let fence = deployment.redis.fence(partition).await.unwrap();
    let last_id = fence.last_id;
    let mut rebuilt = sale(10);
    rebuilt.epoch = 8;
    assert!(deployment.redis.load_sale(&fence, &rebuilt, 9, 1, &buyers(1)).await.unwrap());
    let known: Vec<String> = deployment.ask(&["HKEYS", &deployment.buyers_key()]).await;
    assert_eq!(known, ["buyer-0"]);
    let left_over: Option<String> =
        deployment.ask(&["HGET", &deployment.sale_key(), "left-over"]).await;
    assert_eq!(left_over, None);
    assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());
    let batch = deployment.try_admit(&[press("old-1")]).await.unwrap();
    outcomes(&batch)[0].admitted();
    assert_eq!((batch.epoch, batch.returns, batch.stock), (8, 0, 8));

    // A load without buyers leaves none.
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert!(deployment.redis.load_sale(&fence, &rebuilt, 10, 0, &[]).await.unwrap());
    let buyers: i64 = deployment.ask(&["EXISTS", &deployment.buyers_key()]).await;
    assert_eq!(buyers, 0);
}

#[tokio::test]
async fn thousands_of_records_are_loaded_and_listed_again() {
    for count in [1999, 2000, 2001, 4500] {
        let deployment = Deployment::empty().await;
        let partition = deployment.partition;
        let fence = deployment.redis.fence(partition).await.unwrap();
        let records = buyers(count);
        let held = i64::try_from(count).unwrap();
        assert!(deployment.redis.load_sale(&fence, &sale(9999), 1, held, &records).await.unwrap());
        let last_id = EntryId { ms: LOADED_MS + 10_000, seq: 0 };
        assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());

        let mut listed = HashMap::new();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let page = deployment.redis.list_records(partition, sale(1).id, from).await.unwrap();
            listed.extend(page.records.into_iter().map(|(user, record)| (user, record.unwrap())));
            cursor = page.next;
        }
        let expected =
            records.iter().map(|(user, record)| (user.as_str().to_owned(), record.clone()));
        assert_eq!(listed, expected.collect(), "{count}");

        let last = format!("buyer-{}", count - 1);
        let outcomes = deployment.admit(&[press("buyer-0"), press(&last), press("new")]).await;
        assert_eq!(outcomes[0], Outcome::AlreadyOrdered(records[0].1.items[0].entry));
        assert_eq!(outcomes[1], Outcome::AlreadyOrdered(records[count - 1].1.items[0].entry));
        outcomes[2].admitted();
    }
}

#[tokio::test]
async fn a_buyer_without_any_order_is_loaded_without_a_record() {
    let deployment = Deployment::empty().await;
    let fence = deployment.redis.fence(deployment.partition).await.unwrap();
    let records = [(user("none"), Record::default()), (user("one"), record(LOADED_MS, true))];
    let loaded = deployment.redis.load_sale(&fence, &sale(10), 9, 1, &records).await;
    assert!(loaded.unwrap());
    assert!(deployment.redis.open_gate(fence, EntryId { ms: LOADED_MS, seq: 0 }).await.unwrap());
    let known: Vec<String> = deployment.ask(&["HKEYS", &deployment.buyers_key()]).await;
    assert_eq!(known, ["one"]);
    deployment.admit_one(press("none")).await.admitted();
}

/// A load that was broken off after its first chunk, and a gate that was opened all the same: the
/// sale has buyers and no figures, and is not loaded.
#[tokio::test]
async fn a_sale_is_not_loaded_before_its_last_chunk() {
    let deployment = Deployment::selling(&sale(10)).await;
    let fence = deployment.redis.fence(deployment.partition).await.unwrap();
    let token: String = deployment.ask(&["HGET", &deployment.gate_key(), "token"]).await;
    let info: String = deployment.ask(&["INFO", "replication"]).await;
    let replid = info.lines().find_map(|line| line.strip_prefix("master_replid:"));
    let replid = replid.expect("Redis names its replication id").trim();
    let script = concat!(
        include_str!("../../../../lua/lib/gate.lua"),
        include_str!("../../../../lua/load.lua")
    );
    let record = record(LOADED_MS, true).to_string();
    let loaded: i64 = deployment
        .ask(&[
            "EVAL",
            script,
            "3",
            &deployment.gate_key(),
            &deployment.sale_key(),
            &deployment.buyers_key(),
            &token,
            replid,
            "1",
            "0",
            "buyer-0",
            &record,
        ])
        .await;
    assert_eq!(loaded, 1);
    let account = deployment.redis.read_sale(deployment.partition, sale(1).id).await.unwrap();
    assert_eq!((account.gate_open, account.sale), (false, None));

    let last_id = fence.last_id;
    assert!(deployment.redis.open_gate(fence, last_id).await.unwrap());
    let outcomes = deployment.admit(&[press("buyer-0"), press("new")]).await;
    assert_eq!(outcomes, [Outcome::NotLoaded; 2]);
    let published = deployment.redis.publish_sale(deployment.partition, &sale(10)).await.unwrap();
    assert!(!published, "half a sale is not published over");
}

#[tokio::test]
async fn a_load_that_was_overtaken_half_way_leaves_the_sale_unloaded() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let records = Arc::new(buyers(40_000));
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < SOON, "every load was done before the later fence came");
        let fence = deployment.redis.fence(partition).await.unwrap();
        deployment.ask::<()>(&["DEL", &deployment.buyers_key()]).await;
        let (redis, all) = (deployment.redis.clone(), Arc::clone(&records));
        let load = tokio::spawn(async move {
            redis.load_sale(&fence, &sale(50_000), 10_000, 40_000, &all).await
        });
        eventually(SOON, "the first chunk", async || {
            deployment.ask::<i64>(&["EXISTS", &deployment.buyers_key()]).await == 1
        })
        .await;
        let later = deployment.redis.fence(partition).await.unwrap();
        if load.await.expect("no panic").unwrap() {
            continue;
        }
        let last_id = later.last_id;
        assert!(deployment.redis.open_gate(later, last_id).await.unwrap());
        let outcomes = deployment.admit(&[press("buyer-0"), press("new")]).await;
        assert_eq!(outcomes, [Outcome::NotLoaded; 2]);
        break;
    }
}

#[tokio::test]
async fn opening_raises_the_streams_last_id_and_never_lowers_it() {
    let deployment = Deployment::selling(&sale(10)).await;
    let partition = deployment.partition;
    let order = deployment.admit_one(press("ann")).await.admitted();

    let lower = EntryId { ms: order.ms - 5000, seq: 7 };
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert_eq!(fence.last_id, order);
    assert!(deployment.redis.open_gate(fence, lower).await.unwrap());
    assert_eq!(last_generated_id(&deployment).await, order);
    let remembered: [u64; 2] =
        deployment.ask(&["HMGET", &deployment.gate_key(), "last_ms", "last_seq"]).await;
    assert_eq!(remembered, [order.ms, order.seq]);
    assert_eq!(deployment.redis.rebuilt_id(partition).await.unwrap(), Some(lower));
    let next = deployment.admit_one(press("bob")).await.admitted();
    assert!(next > order);

    let higher = EntryId { ms: next.ms + 20_000, seq: 4095 };
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert!(deployment.redis.open_gate(fence, higher).await.unwrap());
    assert_eq!(last_generated_id(&deployment).await, higher);
    let next = deployment.admit_one(press("eve")).await.admitted();
    assert_eq!(next, EntryId { ms: higher.ms + 1, seq: 0 });

    // In the same millisecond only the sequence tells.
    let same_ms = EntryId { ms: next.ms, seq: 9 };
    let fence = deployment.redis.fence(partition).await.unwrap();
    assert!(deployment.redis.open_gate(fence, same_ms).await.unwrap());
    let next = deployment.admit_one(press("joe")).await.admitted();
    assert_eq!(next, EntryId { ms: same_ms.ms, seq: 10 });
}

#[tokio::test]
async fn a_sale_is_published_once() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit_one(press("ann")).await.admitted();
    let before = deployment.contents().await;
    let again = deployment.redis.publish_sale(deployment.partition, &sale(10)).await;
    assert!(!again.unwrap());
    assert_eq!(deployment.contents().await, before, "what is sold stays sold");
}

#[tokio::test]
async fn a_sale_whose_buyers_are_still_there_is_not_published_over_them() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.admit_one(press("ann")).await.admitted();
    deployment.ask::<()>(&["DEL", &deployment.sale_key()]).await;
    let published = deployment.redis.publish_sale(deployment.partition, &sale(10)).await;
    assert!(!published.unwrap());
}

#[tokio::test]
async fn a_sale_is_paused_resumed_and_closed_for_good() {
    use SaleState::{Closed, Paused, Published};
    let deployment = Deployment::selling(&sale(10)).await;
    let steps = [
        (Paused, true, "paused"),
        (Paused, true, "paused"),
        (Published, true, "published"),
        (Published, true, "published"),
        (Paused, true, "paused"),
        (Closed, true, "closed"),
        (Closed, true, "closed"),
        (Published, false, "closed"),
        (Paused, false, "closed"),
    ];
    for (i, (state, done, now)) in steps.into_iter().enumerate() {
        let answer = deployment.redis.set_sale_state(deployment.partition, sale(1).id, state).await;
        assert_eq!(answer.unwrap(), done, "step {i}");
        let stored: String = deployment.ask(&["HGET", &deployment.sale_key(), "state"]).await;
        assert_eq!(stored, now, "step {i}");
    }
}

#[tokio::test]
async fn what_is_not_loaded_has_no_state_to_set() {
    let deployment = Deployment::empty().await;
    let partition = deployment.partition;
    let pause =
        async || deployment.redis.set_sale_state(partition, sale(1).id, SaleState::Paused).await;
    assert!(!pause().await.unwrap(), "no gate");
    deployment.open_gate().await;
    assert!(!pause().await.unwrap(), "no sale");
    assert!(deployment.contents().await[&deployment.sale_key()].is_none(), "and none is made");
    deployment.publish(&sale(10)).await;
    deployment.redis.fence(partition).await.unwrap();
    assert!(!pause().await.unwrap(), "fenced");
    let state: String = deployment.ask(&["HGET", &deployment.sale_key(), "state"]).await;
    assert_eq!(state, "published");
}

#[tokio::test]
async fn a_sales_account_is_read_at_every_stage() {
    let deployment = Deployment::empty().await;
    let read = async || {
        let account = deployment.redis.read_sale(deployment.partition, sale(1).id).await.unwrap();
        (account.gate_open, account.sale)
    };
    assert_eq!(read().await, (false, None));
    deployment.open_gate().await;
    assert_eq!(read().await, (true, None));
    deployment.publish(&sale(10)).await;
    deployment.admit(&crowd(3)).await;
    let figures = LoadedSale {
        total: 10,
        stock: 7,
        held: 3,
        epoch: 7,
        returns: 0,
        admitted: 3,
        state: "published".to_owned(),
    };
    assert_eq!(read().await, (true, Some(figures.clone())));
    deployment.redis.fence(deployment.partition).await.unwrap();
    assert_eq!(read().await, (false, Some(figures)));
}

#[tokio::test]
async fn stock_is_listed_in_the_order_that_was_asked_for() {
    let deployment = Deployment::selling(&sale(10)).await;
    let mut other = sale(4);
    other.id = SaleId::from_i64(43).unwrap();
    deployment.publish(&other).await;
    deployment.admit(&crowd(3)).await;
    let [unknown, broken] = [44, 45].map(|id| SaleId::from_i64(id).unwrap());
    let key = deployment.sale_key().replace("sale:42", "sale:45");
    deployment.ask::<()>(&["SET", &key, "a string"]).await;
    let asked = [other.id, unknown, broken, sale(1).id];
    let stock = deployment.redis.list_stock(deployment.partition, &asked).await.unwrap();
    assert_eq!(stock, [Some(4), None, None, Some(7)]);
    let unloaded = deployment.redis.list_unloaded(deployment.partition, &asked).await.unwrap();
    assert_eq!(unloaded, [unknown]);
    assert_eq!(deployment.redis.list_unloaded(deployment.partition, &[]).await.unwrap(), []);
    assert_eq!(deployment.redis.list_stock(deployment.partition, &[]).await.unwrap(), []);
}

#[tokio::test]
async fn partitions_are_fenced_one_by_one() {
    let deployment = Deployment::selling(&sale(10)).await;
    for partition in deployment.redis.partitions() {
        if partition != deployment.partition {
            deployment.redis.fence(partition).await.unwrap();
        }
    }
    deployment.admit_one(press("ann")).await.admitted();
}
