//! A replica promoted in its primary's place, without what the primary did last: what it gives again
//! changes nothing, and what it never heard of is named.

use std::collections::{HashMap, HashSet};

use flashsale_domain::{OrderId, OrderState, Refusal};
use flashsale_storage_redis::GROUP;
use flashsale_test_support::{RedisServer, eventually};
use redis::FromRedisValue;

use crate::support::{Plan, SOON, SilentLine, Stand, blocking, only, press, receipts, user_id};

/// A primary and its replica.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    /// By which the replica hears of its primary.
    link: SilentLine,
    /// By which all others reach the one of the two that is in charge.
    way: SilentLine,
}

impl Pair {
    async fn start() -> Self {
        let (primary, replica) = blocking(|| {
            // It waits for no other replica that might come as well.
            let primary = RedisServer::builder().option("repl-diskless-sync-delay", "0").start();
            (primary, RedisServer::start())
        });
        let link = SilentLine::to(primary.port()).await;
        let way = SilentLine::to(primary.port()).await;
        let port = link.address.port().to_string();
        ask::<()>(&replica, &["REPLICAOF", "127.0.0.1", &port]).await;
        Self { primary, replica, link, way }
    }

    /// Waits until the replica has all that the primary has.
    async fn catch_up(&self) {
        eventually(SOON, "a replica that has everything", async || {
            let here = replication(&self.primary).await;
            let there = replication(&self.replica).await;
            let is_up = there.get("master_link_status").is_some_and(|status| status == "up");
            let (wanted, heard) = (&here["master_repl_offset"], there.get("slave_repl_offset"));
            if is_up && heard == Some(wanted) { Ok(()) } else { Err((wanted.clone(), there)) }
        })
        .await;
    }

    /// The primary dies, and the replica takes its place with what it has.
    async fn promote(&self) {
        blocking(|| self.primary.kill_9());
        ask::<()>(&self.replica, &["REPLICAOF", "NO", "ONE"]).await;
        self.way.lead_to(self.replica.port());
    }
}

/// Any command to one of the two, whichever is in charge.
async fn ask<T: FromRedisValue>(server: &RedisServer, words: &[&str]) -> T {
    let client = redis::Client::open(server.url()).expect("a URL of Redis");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let answer = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await;
    answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// What a server says of its part in the replication.
async fn replication(server: &RedisServer) -> HashMap<String, String> {
    let text: String = ask(server, &["INFO", "replication"]).await;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

async fn is_replayed(
    stand: &Stand,
    sale: &flashsale_domain::Sale,
    user: &str,
    id: OrderId,
) -> bool {
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let again = connection.admit(only(), sale.id, &[press(user)]).await.expect("answered");
    again.outcomes[0].is_ok_and(|order| order.replayed && order.order_id == id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_promoted_replica_gives_again_changes_nothing() {
    let pair = Pair::start().await;
    let stand = Plan::sqlite().redis_through(&pair.way).impatient().stand().await;
    let sale = stand.publish(150).await;
    let ids = stand.admit(&sale, "buyer", 100).await;
    // Half of them in the hands of a worker that died.
    assert_eq!(stand.read("dead", 50).await.len(), 50);
    pair.catch_up().await;
    pair.link.cut();

    // What the replica does not hear of: all of it is written and acknowledged, some of it is given
    // up, and the units are back.
    let worker = stand.worker().await;
    stand.wait_for_rows(100).await;
    stand.settle().await;
    for (i, id) in ids[..10].iter().enumerate() {
        let buyer = user_id(&format!("buyer-{i}"));
        stand.operations.cancel_order(*id, &buyer).await.expect("cancelled");
    }
    eventually(SOON, "units that are back in Redis", async || {
        let account = stand.redis.read_sale(only(), sale.id).await.expect("answered");
        account.sale.is_some_and(|sale| sale.stock == 60)
    })
    .await;
    let key = stand.keys.orders(only());
    assert_eq!(ask::<i64>(&pair.replica, &["XLEN", &key]).await, 100);
    let held: Vec<redis::Value> =
        ask(&pair.replica, &["XPENDING", &key, GROUP, "-", "+", "1000"]).await;
    assert_eq!(held.len(), 50);

    pair.promote().await;
    // Nobody is admitted from memory that is older than what buyers were told.
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let refused = connection.admit(only(), sale.id, &[press("late-0")]).await.expect("answered");
    assert_eq!(refused.outcomes, [Err(Refusal::NotLoaded)]);
    // The worker gets all hundred again, and acknowledges them.
    stand.settle().await;
    let open: HashSet<OrderId> = ids[10..].iter().copied().collect();
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (100, 60));
    assert_eq!((stand.open_ids().await, stand.dead().await), (open, vec![]));

    let rebuilt = stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!((rebuilt.sales[0].stock, rebuilt.sales[0].held), (60, 90));
    assert!(is_replayed(&stand, &sale, "buyer-0", ids[0]).await, "given up, and still the same");
    stand.admit(&sale, "late", 60).await;
    stand.wait_for_rows(160).await;
    stand.settle().await;
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    let audit = stand.operations.audit_sale(sale.id, &receipts("buyer", &ids)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_promoted_replica_never_heard_of_is_named_and_its_units_are_sold_again() {
    let pair = Pair::start().await;
    let stand = Plan::sqlite().redis_through(&pair.way).impatient().stand().await;
    let sale = stand.publish(100).await;
    let kept = stand.admit(&sale, "kept", 20).await;
    pair.catch_up().await;
    pair.link.cut();
    // Orders that the replica does not hear of: some are rows, some in a worker's hands, and some
    // have been read by nobody.
    let written = stand.admit(&sale, "written", 20).await;
    let entries = stand.read("writer", 100).await;
    assert_eq!(stand.processor().process(entries).await.done, 40);
    let in_hand = stand.admit(&sale, "in-hand", 5).await;
    let entries_in_hand = stand.read("sleeper", 100).await;
    let unread = stand.admit(&sale, "unread", 15).await;

    pair.promote().await;
    let worker = stand.worker().await;
    let rebuilt = stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    assert_eq!((rebuilt.sales[0].stock, rebuilt.sales[0].held), (60, 40));
    // By this a gateway knows of an id that it finds nowhere: it was lost, and is not to come.
    let rebuilt_id = stand.redis.rebuilt_id(only()).await.expect("answered").expect("kept");
    assert!(in_hand.iter().chain(&unread).all(|id| id.entry() <= rebuilt_id));
    let told = [receipts("in-hand", &in_hand), receipts("unread", &unread)].concat();
    let audit = stand.operations.audit_sale(sale.id, &told).await.expect("an audit");
    assert_eq!(audit.findings_total, 20, "{:?}", audit.findings);
    assert!(audit.findings.iter().all(|finding| finding.invariant == "I4"), "{:?}", audit.findings);

    // The worker that had some in its hands writes them now: they take no unit.
    assert_eq!(stand.processor().process(entries_in_hand).await.done, 5);
    for id in &in_hand {
        let row = stand.database.find_order(*id).await.expect("answered").expect("a row");
        assert_eq!(row.order.state, OrderState::Rejected);
        assert_eq!(row.order.reason.as_deref(), Some("memory-lost"));
    }
    assert_eq!(stand.stock_left(&sale).await, 60);

    // Who was written is told of his order; who was lost gets a new one with the same key.
    assert!(is_replayed(&stand, &sale, "kept-7", kept[7]).await);
    assert!(is_replayed(&stand, &sale, "written-7", written[7]).await);
    let mut ids = [kept, written].concat();
    for (prefix, count) in [("in-hand", 5), ("unread", 15), ("late", 40)] {
        let new = stand.admit(&sale, prefix, count).await;
        assert!(new.iter().all(|id| id.entry() > rebuilt_id), "{new:?} above {rebuilt_id}");
        ids.extend(new);
    }
    stand.wait_for_rows(105).await;
    stand.settle().await;
    assert_eq!(stand.open_ids().await, ids.into_iter().collect());
    assert_eq!((stand.stock_left(&sale).await, stand.dead().await), (0, vec![]));
    let audit = stand.operations.audit_sale(sale.id, &receipts("in-hand", &in_hand)).await;
    assert_eq!(audit.expect("an audit").findings, []);
    worker.stop().await.expect("a clean end");
}
