//! The rebuild under fire: whatever stops, wakes up or happens in the middle of it, at each of its
//! steps, the partition ends with one epoch, and every unit and id where it belongs.

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use flashsale_domain::{OrderState, Refusal, Sale, SaleId, SaleState};
use flashsale_operations::{
    OperationError, Operations, RebuildStep, Rebuilt, Refused, SettleAs, Settling,
};
use flashsale_storage_redis::{GateStatus, Released};
use flashsale_test_support::{RedisServer, eventually};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, block_in_place};

use crate::support::{SOON, Stand, neighbour, on_both, only, press, refused, user_id};

/// A step, whatever sale it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Fenced,
    EpochRaised,
    Loaded,
    Opening,
}

const STEPS: [At; 4] = [At::Fenced, At::EpochRaised, At::Loaded, At::Opening];

/// Where a rebuild stands, as far as this sale goes.
fn at(step: RebuildStep, of: SaleId) -> Option<At> {
    match step {
        RebuildStep::Fenced => Some(At::Fenced),
        RebuildStep::Waiting { .. } => None,
        RebuildStep::EpochRaised(sale) => (sale == of).then_some(At::EpochRaised),
        RebuildStep::Loaded(sale) => (sale == of).then_some(At::Loaded),
        RebuildStep::Opening => Some(At::Opening),
    }
}

/// A rebuilder that stands still at a step until it is woken.
struct Stopped {
    rebuild: JoinHandle<Result<Rebuilt, OperationError>>,
    wake: Arc<Notify>,
}

impl Stopped {
    /// Starts one, and returns when it stands there.
    async fn start(operations: &Operations, stop_at: At, sale: SaleId) -> Self {
        let (reached, wake) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, go) = (Arc::clone(&reached), Arc::clone(&wake));
        let operations = operations.clone().watched_by(Arc::new(move |step| {
            let (tell, go) = (Arc::clone(&tell), Arc::clone(&go));
            Box::pin(async move {
                if at(step, sale) == Some(stop_at) {
                    tell.notify_one();
                    go.notified().await;
                }
            })
        }));
        let rebuild = tokio::spawn(async move { operations.rebuild_partition(only()).await });
        reached.notified().await;
        Self { rebuild, wake }
    }

    async fn wake(self) -> Result<Rebuilt, OperationError> {
        self.wake.notify_one();
        self.rebuild.await.expect("no panic")
    }
}

impl Stand {
    /// What becomes of the lock of a rebuilder that stands still.
    async fn let_the_lock_run_out(&self) {
        self.ask::<i64>(&["DEL", &self.keys.rebuild_lock(only())]).await;
    }

    async fn rebuild(&self) {
        self.operations.rebuild_partition(only()).await.expect("rebuilt");
    }

    /// One epoch in both stores, and everything else right too.
    async fn assert_whole(&self, sale: &Sale) {
        let epoch = self.operations.get_sale(sale.id).await.expect("a sale").epoch;
        assert_eq!(self.units(sale).await[2], epoch);
        assert!(self.gate_is_open(sale).await);
        self.assert_clean(sale).await;
    }
}

on_both!(
    a_rebuilder_that_wakes_up_after_a_newer_one_is_refused_at_every_step,
    async |stand: Stand| {
        // It may find entries to wait for when it wakes up, or nothing in its way.
        let found = [false, true];
        let mut sales = Vec::new();
        for (step, is_queued) in STEPS.into_iter().flat_map(|step| found.map(|it| (step, it))) {
            let sale = stand.publish(20).await;
            sales.push(sale.clone());
            let ids = stand.admit(&sale, "buyer", 5).await;
            stand.refuse_poison().await;
            stand.admit(&sale, "poison", 1).await;
            stand.work().await;
            let old = Stopped::start(&stand.operations, step, sale.id).await;
            stand.let_the_lock_run_out().await;
            stand.rebuild().await;
            // Life goes on before the old one wakes up.
            stand.operations.cancel_order(ids[0], &user_id("buyer-0")).await.expect("cancelled");
            stand.relay().await;
            if is_queued {
                stand.admit(&sale, "later", 5).await;
            }
            let woken = refused(old.wake().await);
            assert!(matches!(woken, Refused::FenceLost(_)), "{step:?}: {woken}");
            // It begins with the oldest sale of the partition, if nothing stops it before.
            for sale in &sales {
                let epoch = stand.operations.get_sale(sale.id).await.expect("a sale").epoch;
                assert_eq!(stand.units(sale).await[2], epoch, "{step:?}");
            }
            if !is_queued {
                stand.admit(&sale, "later", 5).await;
            }
            assert_eq!(stand.work().await.done, 5, "{step:?}");
            assert_eq!(stand.ledger(&sale).await.rejected, 0, "{step:?}");
            assert_eq!(stand.units(&sale).await[..2], [10, 10], "{step:?}");
            stand.assert_whole(&sale).await;
            // The dead letter bears the epoch that counts: requeued, it is an order.
            stand.allow_poison().await;
            let done = stand.operations.requeue_dead(&Default::default(), "test", false).await;
            let done = done.expect("answered");
            assert_eq!(done.len(), 1, "{step:?}");
            assert_eq!(
                (done[0].settled, done[0].what.as_str()),
                (true, "is a row now"),
                "{step:?}"
            );
            stand.assert_whole(&sale).await;
        }
    }
);

on_both!(a_unit_that_comes_back_in_the_middle_comes_back_once, async |stand: Stand| {
    for step in STEPS {
        let sale = stand.publish(20).await;
        let ids = stand.admit(&sale, "buyer", 6).await;
        stand.work().await;
        // One before the fence; its release is still on its way.
        stand.operations.cancel_order(ids[0], &user_id("buyer-0")).await.expect("cancelled");
        let rebuild = Stopped::start(&stand.operations, step, sale.id).await;
        stand.operations.cancel_order(ids[1], &user_id("buyer-1")).await.expect("cancelled");
        stand.make_overdue(&ids[2..3]).await;
        assert_eq!(stand.operations.expire_orders(100).await.expect("expired"), 1);
        // Redis cannot take them now: they wait.
        assert_eq!(stand.relay().await, [Released::NotLoaded; 3], "{step:?}");
        rebuild.wake().await.expect("rebuilt");
        assert_eq!(stand.relay().await.len(), 3, "{step:?}");
        assert_eq!(stand.units(&sale).await[..2], [17, 3], "{step:?}");
        assert_eq!(stand.operations.get_sale(sale.id).await.expect("a sale").stock_left, 17);
        stand.assert_whole(&sale).await;
        assert_eq!(stand.admit(&sale, "later", 17).await.len(), 17, "{step:?}");
        assert_eq!(stand.press(&sale, &[press("too-late")]).await, [Err(Refusal::SoldOut)]);
        assert_eq!(stand.work().await.done, 17, "{step:?}");
        stand.assert_whole(&sale).await;
    }
});

on_both!(a_worker_that_slept_over_the_whole_rebuild_changes_nothing, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 6).await;
    let in_hand = stand.read(6).await;
    let operations = stand.operations.clone();
    let rebuild = tokio::spawn(async move { operations.rebuild_partition(only()).await });
    eventually(SOON, "the fence", async || !stand.gate_is_open(&sale).await).await;
    // A peer takes over what he holds, and the rebuild goes on.
    assert_eq!(stand.process(in_hand.clone()).await.done, 6);
    rebuild.await.expect("no panic").expect("rebuilt");
    let later = stand.admit(&sale, "later", 4).await;
    assert_eq!(stand.process(in_hand).await.dead, 0, "he wakes up");
    assert_eq!(stand.work().await.done, 4);
    assert_eq!(stand.units(&sale).await, [10, 10, sale.epoch + 1]);
    assert_eq!(stand.ledger(&sale).await.rejected, 0);
    assert_eq!(later.len(), 4);
    stand.assert_whole(&sale).await;
});

on_both!(
    paused_and_closed_sales_and_dead_letters_outlive_rebuild_after_rebuild,
    async |stand: Stand| {
        let sales = [stand.publish(10).await, stand.publish(10).await];
        stand.refuse_poison().await;
        let mut dead = Vec::new();
        for sale in &sales {
            stand.admit(sale, "buyer", 2).await;
            dead.push(stand.admit(sale, "poison", 1).await[0]);
        }
        stand.work().await;
        stand.operations.pause_sale(sales[0].id).await.expect("paused");
        stand.operations.close_sale(sales[1].id).await.expect("closed");
        for _ in 0..3 {
            stand.rebuild().await;
            for sale in &sales {
                assert_eq!(stand.units(sale).await[..2], [7, 3]);
                stand.assert_whole(sale).await;
            }
        }
        let states = [Err(Refusal::Paused), Err(Refusal::Ended)];
        for (sale, state) in sales.iter().zip(states) {
            assert_eq!(stand.press(sale, &[press("new")]).await, [state]);
        }
        let paused = stand.operations.get_sale(sales[0].id).await.expect("a sale");
        assert_eq!(paused.state, SaleState::Paused);
        stand.allow_poison().await;
        // Given up after the rebuilds, a dead letter's unit comes back.
        let gone = stand.operations.reject_dead(&Default::default(), "test", false).await;
        assert!(gone.expect("answered").iter().all(|outcome| outcome.settled));
        assert_eq!(stand.relay().await, [Released::Done; 2]);
        for (sale, dead) in sales.iter().zip(dead) {
            assert_eq!(stand.units(sale).await[..2], [8, 2]);
            let row = stand.database.find_order(dead).await.expect("answered").expect("a row");
            assert_eq!(row.order.state, OrderState::Rejected);
            stand.assert_whole(sale).await;
        }
    }
);

/// Redis comes back with a file of before: buyers, entries and acknowledgements are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_from_an_older_file_is_brought_up_to_date() {
    let server = block_in_place(RedisServer::start);
    let stand = Stand::on_redis(&server).await;
    let sale = stand.publish(30).await;
    let early = stand.admit(&sale, "early", 5).await;
    // The file's entries are rows by the time of the crash; their acknowledgements go with it.
    stand.ask::<()>(&["SAVE"]).await;
    assert_eq!(stand.work().await.done, 5);
    let written = stand.admit(&sale, "written", 5).await;
    assert_eq!(stand.work().await.done, 5);
    stand.operations.cancel_order(early[0], &user_id("early-0")).await.expect("cancelled");
    assert_eq!(stand.relay().await, [Released::Done]);
    let lost = stand.admit(&sale, "lost", 5).await;
    block_in_place(|| {
        server.kill_9();
        server.start_again();
    });
    eventually(SOON, "connections", async || stand.redis.ping().await).await;
    assert_eq!(stand.units(&sale).await, [25, 5, sale.epoch], "it is older");
    assert_eq!(stand.redis.gate_status(only()).await.expect("answered"), GateStatus::Stale);
    assert_eq!(stand.press(&sale, &[press("new")]).await, [Err(Refusal::NotLoaded)]);

    let operations = stand.operations.clone();
    let rebuild = tokio::spawn(async move { operations.rebuild_partition(only()).await });
    // What the file still has on the stream comes to the workers once more.
    eventually(SOON, "five redeliveries", async || stand.work().await.done == 5).await;
    rebuild.await.expect("no panic").expect("rebuilt");
    assert_eq!(stand.units(&sale).await, [21, 9, sale.epoch + 1]);
    let last = lost.iter().chain(&written).max().expect("some");
    let later = stand.admit(&sale, "later", 21).await;
    assert!(later.iter().all(|id| id > last), "no id is given twice");
    assert_eq!(stand.press(&sale, &[press("too-late")]).await, [Err(Refusal::SoldOut)]);
    assert_eq!(stand.work().await.done, 21);
    stand.assert_whole(&sale).await;
}

/// A → B → A: each promotion changes the replication id, and the way back does not bring the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promotion_there_and_back_again_is_not_trusted_until_it_is_rebuilt() {
    let quick = || RedisServer::builder().option("repl-diskless-sync-delay", "0").start();
    let (a, b) = block_in_place(|| (quick(), quick()));
    let stand = Stand::on_redis(&a).await;
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    stand.operations.cancel_order(ids[0], &user_id("buyer-0")).await.expect("cancelled");

    let follow = async |replica: &RedisServer, of: &RedisServer| {
        ask(replica, &["REPLICAOF", "127.0.0.1", &of.port().to_string()]).await;
        eventually(SOON, "replicated", async || {
            let info: String = ask_for(replica, &["INFO", "replication"]).await;
            info.contains("master_link_status:up") && info.contains("master_sync_in_progress:0")
        })
        .await;
    };
    follow(&b, &a).await;
    ask(&b, &["REPLICAOF", "NO", "ONE"]).await;
    follow(&a, &b).await;
    ask(&a, &["REPLICAOF", "NO", "ONE"]).await;
    eventually(SOON, "a master", async || stand.redis.ping().await).await;

    // The memory is the same to the byte, and every script refuses it.
    assert_eq!(stand.units(&sale).await, [15, 5, sale.epoch]);
    assert_eq!(stand.redis.gate_status(only()).await.expect("answered"), GateStatus::Stale);
    assert_eq!(stand.press(&sale, &[press("new")]).await, [Err(Refusal::NotLoaded)]);
    assert_eq!(stand.relay().await, [Released::NotLoaded]);
    assert!(!stand.gate_is_open(&sale).await);
    let publish = stand.redis.publish_sale(only(), &sale).await;
    assert!(!publish.expect("answered"), "publish");
    let draft = stand.create(5).await;
    assert!(!stand.redis.publish_sale(only(), &draft).await.expect("answered"), "publish anew");
    let paused = stand.redis.set_sale_state(only(), sale.id, SaleState::Paused).await;
    assert!(!paused.expect("answered"), "pause");
    let settling =
        Settling { orders: Vec::new(), settle_as: SettleAs::Order, receipts: Vec::new() };
    let settled = stand.operations.settle_lost(sale.id, &settling, "test", false).await;
    assert!(matches!(refused(settled), Refused::NotLoaded(_)), "settle");
    let adjusted = stand.operations.adjust_stock("test", sale.id, 1, "one more").await;
    assert!(matches!(refused(adjusted), Refused::AdjustmentWaits(_)));

    stand.rebuild().await;
    stand.operations.finish_adjustments(10).await.expect("finished");
    stand.relay().await;
    assert_eq!(stand.units(&sale).await, [17, 4, sale.epoch + 1]);
    let later = stand.admit(&sale, "later", 17).await;
    assert!(later.iter().all(|id| ids.iter().all(|old| id > old)));
    assert_eq!(stand.work().await.done, 17);
    stand.assert_whole(&sale).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_before_the_gate_opens_leaves_it_closed() {
    let server = block_in_place(RedisServer::start);
    let stand = Stand::on_redis(&server).await;
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 5).await;
    stand.work().await;
    for step in STEPS {
        let rebuild = Stopped::start(&stand.operations, step, sale.id).await;
        // What a promotion does to the replication id.
        ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
        ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
        let refusal = refused(rebuild.wake().await);
        assert!(matches!(refusal, Refused::FenceLost(_)), "{step:?}: {refusal}");
        assert!(!stand.gate_is_open(&sale).await, "{step:?}");
        assert_eq!(stand.press(&sale, &[press("new")]).await, [Err(Refusal::NotLoaded)]);
    }
    stand.rebuild().await;
    stand.admit(&sale, "later", 15).await;
    assert_eq!(stand.work().await.done, 15);
    stand.assert_whole(&sale).await;
}

on_both!(no_id_is_given_twice_whatever_the_old_servers_clock_said, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 2).await;
    stand.work().await;
    // Given by a server whose clock was ahead by almost what is allowed, and forgotten with it.
    let forgotten = neighbour(ids[1], 1_900);
    stand.forget_everything(&[&sale]).await;
    stand.rebuild().await;
    let next = stand.admit(&sale, "next", 1).await[0];
    assert!(next > forgotten, "{next} above {forgotten}");
    stand.work().await;
    // Further ahead, and in the database.
    let ahead = neighbour(next, 30_000);
    stand.insert_row(ahead, &sale, "ahead", "awaiting_payment").await;
    stand
        .execute(&format!("UPDATE sales SET stock_left = stock_left - 1 WHERE id = {}", sale.id))
        .await;
    stand.forget_everything(&[&sale]).await;
    stand.rebuild().await;
    let last = stand.admit(&sale, "last", 1).await[0];
    assert!(last > ahead, "{last} above {ahead}");
    stand.work().await;
    stand.assert_whole(&sale).await;
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_that_takes_long_keeps_its_lock() {
    let stand = Stand::sqlite().await;
    let sale = stand.publish(20).await;
    let rebuild = Stopped::start(&stand.operations, At::EpochRaised, sale.id).await;
    let lock = stand.keys.rebuild_lock(only());
    // As if most of its time were over already.
    assert_eq!(stand.ask::<i64>(&["PEXPIRE", &lock, "4000"]).await, 1);
    eventually(SOON, "the lock has its full time again", async || {
        stand.ask::<i64>(&["PTTL", &lock]).await > 5_000
    })
    .await;
    rebuild.wake().await.expect("rebuilt");
    assert_eq!(stand.ask::<i64>(&["EXISTS", &lock]).await, 0, "it is given back at the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_that_waits_says_for_how_many_entries() {
    let stand = Stand::sqlite().await;
    let sale = stand.publish(20).await;
    stand.admit(&sale, "buyer", 7).await;
    let said: Arc<Mutex<Vec<RebuildStep>>> = Arc::default();
    let log = Arc::clone(&said);
    let operations = stand.operations.clone().watched_by(Arc::new(move |step| {
        log.lock().expect("no panic").push(step);
        Box::pin(async {})
    }));
    let watched = operations.clone();
    let rebuild = tokio::spawn(async move { watched.rebuild_partition(only()).await });
    let waiting = RebuildStep::Waiting { partition: only(), entries: 7 };
    eventually(SOON, "it says so", async || said.lock().expect("no panic").contains(&waiting))
        .await;
    assert_eq!(stand.work().await.done, 7);
    rebuild.await.expect("no panic").expect("rebuilt");
    // Quiet when there is nothing to wait for.
    said.lock().expect("no panic").clear();
    operations.rebuild_partition(only()).await.expect("rebuilt");
    let (fenced, opening) = (RebuildStep::Fenced, RebuildStep::Opening);
    let steps = [fenced, RebuildStep::EpochRaised(sale.id), RebuildStep::Loaded(sale.id), opening];
    assert_eq!(*said.lock().expect("no panic"), steps);
}

/// How many: `FLASHSALE_TEST_ORDERS` where it is set, for a measurement.
fn many() -> i64 {
    let chosen = std::env::var("FLASHSALE_TEST_ORDERS");
    chosen.map_or(20_000, |text| text.parse().expect("FLASHSALE_TEST_ORDERS is a number"))
}

on_both!(a_great_many_open_orders_are_loaded, async |stand: Stand| {
    let orders = many();
    let sale = stand.publish(orders + 10).await;
    let first = stand.admit(&sale, "first", 1).await[0];
    stand.work().await;
    // Sixteen to a millisecond, before the first.
    let from = neighbour(first, -orders / 16 - 1).as_i64();
    let (id, epoch) = (sale.id, sale.epoch);
    stand.insert_orders(id, epoch, from, orders).await;
    let taken = format!("UPDATE sales SET stock_left = stock_left - {orders} WHERE id = {id}");
    stand.execute(&taken).await;
    let started = Instant::now();
    let steps: Arc<Mutex<Vec<_>>> = Arc::default();
    let log = Arc::clone(&steps);
    let operations = stand.operations.clone().watched_by(Arc::new(move |step| {
        log.lock().expect("no panic").push((step, started.elapsed()));
        Box::pin(async {})
    }));
    operations.rebuild_partition(only()).await.expect("rebuilt");
    let took = started.elapsed();
    if orders > 100_000 {
        let steps = steps.lock().expect("no panic");
        let figures = format!("{orders} orders in {took:?}: {steps:?}; {}", peak_memory());
        writeln!(std::io::stderr(), "{figures}").expect("somebody measures");
    }
    assert_eq!(stand.units(&sale).await, [9, orders + 1, sale.epoch + 1]);
    let records: i64 = stand.ask(&["HLEN", &stand.keys.buyers(only(), sale.id)]).await;
    assert_eq!(records, orders + 1);
    // The first and last of a page, of a chunk, and of all.
    for number in [1, 2_000, 2_001, 10_000, 10_001, orders] {
        let again = stand.press(&sale, &[press(&format!("many-{number}"))]).await;
        assert!(matches!(again[0], Err(Refusal::AlreadyOrdered(_))), "{number}: {again:?}");
    }
    assert!(stand.ledger(&sale).await.is_balanced());
});

/// The most memory that this process ever had.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says so");
    status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("unknown").to_owned()
}

async fn ask(server: &RedisServer, words: &[&str]) {
    let _ok: String = ask_for(server, words).await;
}

async fn ask_for(server: &RedisServer, words: &[&str]) -> String {
    let client = redis::Client::open(server.url()).expect("a URL of Redis");
    let connection = client.get_multiplexed_async_connection().await;
    let mut connection = connection.expect("Redis answers");
    let answer = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await;
    answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}
