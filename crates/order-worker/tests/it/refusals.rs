//! Redis is there and refuses: a key of the wrong type, a command that the worker may not use any
//! more. What is not concerned goes on, the log stays quiet, nothing is lost, and all of it heals when
//! the cause is taken away.

use std::time::Duration;

use flashsale_domain::{OrderId, Partition, Sale};
use flashsale_order_worker::Processed;
use flashsale_test_support::{RedisServer, eventually};
use tokio::task::{JoinSet, LocalSet};

use crate::permanent_errors::{CPU_MAX, with_default_pauses};
use crate::real_worker::RealWorker;
use crate::support::{Plan, SOON, Stand, blocking, home_of};

/// How long the log is watched, from the moment that the worker meets the refusal.
const WINDOW: Duration = Duration::from_secs(10);
const LINES_A_SECOND_MAX: usize = 2;

/// Orders of one partition, in every stage that an order can be in.
struct Work {
    sale: Sale,
    partition: Partition,
    orders: Vec<OrderId>,
}

const STOCK: i64 = 1_000;
/// Units that Redis had too many.
const REJECTED: usize = 3;
const REJECTED_UNITS: i64 = 3;
const HELD: usize = 10;
const NEW: usize = 10;

async fn set_stock(stand: &Stand, sale: &Sale, units: i64) {
    stand.execute(&format!("UPDATE sales SET stock_left = {units} WHERE id = {}", sale.id)).await;
}

/// Changes what a user of Redis may do.
async fn acl(stand: &Stand, user: &str, rules: &str) {
    let mut command = vec!["ACL", "SETUSER", user];
    command.extend(rules.split(' '));
    stand.ask::<()>(&command).await;
}

impl Work {
    /// Releases in the outbox, orders in the hands of a dead consumer, an entry that nobody can read,
    /// and orders that nobody has had.
    async fn lay_out(stand: &Stand, sale: Sale) -> Self {
        let partition = home_of(&sale);
        set_stock(stand, &sale, 0).await;
        stand.admit(&sale, "rejected", REJECTED).await;
        let rejected = stand.read_of(partition, "gone", REJECTED).await;
        let processed = stand.processor_of(partition).process(rejected).await;
        assert_eq!(processed, Processed { done: REJECTED, dead: 0, left: 0 });
        set_stock(stand, &sale, STOCK - REJECTED_UNITS).await;

        let mut orders = stand.admit(&sale, "held", HELD).await;
        assert_eq!(stand.read_of(partition, "gone", HELD).await.len(), HELD);
        let key = stand.keys.orders(partition);
        stand.ask::<String>(&["XADD", &key, "*", "v", "no order"]).await;
        orders.extend(stand.admit(&sale, "new", NEW).await);
        Self { sale, partition, orders }
    }

    /// What is not yet done of it; `None` when all of it is.
    async fn left(&self, stand: &Stand) -> Option<String> {
        let rows: Vec<i64> = stand
            .column(&format!(
                "SELECT id FROM orders WHERE state = 'awaiting_payment' AND sale_id = {}",
                self.sale.id
            ))
            .await;
        let missing = self.orders.iter().filter(|id| !rows.contains(&id.as_i64())).count();
        let releases = stand.database.count_releases(self.sale.id).await.expect("answered");
        let letters = match stand.redis.list_dead_letters(self.partition).await {
            Ok(letters) => letters.len(),
            Err(fault) => return Some(fault.to_string()),
        };
        let key = stand.keys.orders(self.partition);
        let entries: i64 =
            match redis::cmd("XLEN").arg(&key).query_async(&mut stand.connection().await).await {
                Ok(entries) => entries,
                Err(error) => return Some(error.to_string()),
            };
        let left = (missing, releases, letters, entries);
        (left != (0, 0, 1, 0)).then(|| {
            format!(
                "{missing} rows missing, {releases} releases, {letters} letters, {entries} entries"
            )
        })
    }

    async fn must_be_done(&self, stand: &Stand, what: &str) {
        eventually(SOON, &format!("{what}: all of partition {}", self.partition), async || {
            self.left(stand).await.map_or(Ok(()), Err)
        })
        .await;
        let letters = stand.redis.list_dead_letters(self.partition).await.expect("answered");
        assert_eq!(letters[0].reason, "undecodable", "{what}");
        let extra: Vec<i64> = stand
            .column(&format!("SELECT count(*) FROM orders WHERE sale_id = {}", self.sale.id))
            .await;
        let all = i64::try_from(self.orders.len() + REJECTED).expect("few");
        assert_eq!(extra, [all], "{what}: one row each");
        let account = stand.redis.read_sale(self.partition, self.sale.id).await.expect("answers");
        let loaded = account.sale.expect("loaded");
        let held = i64::try_from(self.orders.len()).expect("few");
        let units = (STOCK - REJECTED_UNITS - held, held);
        assert_eq!((loaded.stock, loaded.held), units, "{what}: what was rejected went back once");
    }
}

/// Requires that a number rises for as long as Redis refuses, while the log stays quiet, and that it takes
/// little processor time.
async fn must_be_quiet(what: &str, worker: &RealWorker, is_refused: bool) {
    let lines = worker.lines();
    let faults = async || worker.admin.metric("flashsale_redis_faults_total", "").await;
    let before = faults().await.unwrap_or(0.0);
    // In the first moments it does what can be done.
    let works = WINDOW / 5;
    tokio::time::sleep(works).await;
    let cpu = worker.cpu_seconds();
    tokio::time::sleep(WINDOW - works).await;
    let lines = worker.lines() - lines;
    let now = faults().await.unwrap_or(0.0);
    assert_eq!(now > before, is_refused, "{what}: {now} faults are counted");
    let cpu = (worker.cpu_seconds() - cpu) / (WINDOW - works).as_secs_f64();
    eprintln!("{what}: {lines} lines in {WINDOW:?}, {:.2} % of one core", cpu * 100.0);
    // What is left pending comes again ten times as often as by default.
    assert!(cpu < 2.0 * CPU_MAX, "{what}: {cpu} of one core");
    let most = LINES_A_SECOND_MAX * usize::try_from(WINDOW.as_secs()).expect("few");
    assert!(lines < most, "{what}: {lines} lines in {WINDOW:?}: {}", worker.program.log());
}

/// Runs the cases of a table at the same time; most of their time is waiting.
async fn side_by_side(cases: impl IntoIterator<Item = impl Future<Output = ()> + 'static>) {
    let here = LocalSet::new();
    let mut all = JoinSet::new();
    for case in cases {
        all.spawn_local_on(case, &here);
    }
    here.run_until(async {
        while let Some(ended) = all.join_next().await {
            ended.expect("it does not panic");
        }
    })
    .await;
}

/// Entries that are left pending come back every three seconds.
fn patient(plan: Plan) -> Plan {
    with_default_pauses(plan)
        // A worker that sleeps must not be the one who waits for what the test lays out.
        .with("worker.block", "200ms")
        .with("worker.reclaim_idle", "3s")
        .with("database.statement_timeout", "1400ms")
        .with("redis.partitions", "2")
        // The units that are laid out missing are missed, and that is not what is counted here.
        .with("worker.ledger_interval", "1h")
}

/// A key of the first partition.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Key {
    Orders,
    Dead,
    Suspects,
    Lost,
    Gate,
    Sale,
    Buyers,
    Lock,
}

impl Key {
    const ALL: [Self; 8] = [
        Self::Orders,
        Self::Dead,
        Self::Suspects,
        Self::Lost,
        Self::Gate,
        Self::Sale,
        Self::Buyers,
        Self::Lock,
    ];

    fn name(self, stand: &Stand, work: &Work) -> String {
        let (keys, p) = (&stand.keys, work.partition);
        match self {
            Self::Orders => keys.orders(p),
            Self::Dead => keys.dead(p),
            Self::Suspects => keys.suspects(p),
            Self::Lost => keys.lost(p),
            Self::Gate => keys.gate(p),
            Self::Sale => keys.sale(p, work.sale.id),
            Self::Buyers => keys.buyers(p, work.sale.id),
            Self::Lock => keys.rebuild_lock(p),
        }
    }
}

/// One key holds a string while a worker starts and works; then it is put right.
async fn with_a_string_at(key: Key) {
    let what = format!("{key:?}");
    let plan = match key {
        // Somebody else's lock keeps a partition from being rebuilt.
        Key::Lock => patient(Plan::sqlite()).with("worker.rebuild", "auto"),
        _ => patient(Plan::sqlite()),
    };
    let stand = plan.stand().await;
    let [broken, whole] = stand.publish_in_both_partitions(STOCK).await;
    let broken = Work::lay_out(&stand, broken).await;
    let whole = Work::lay_out(&stand, whole).await;
    let name = key.name(&stand, &broken);
    let kept = format!("{name}:kept");
    let was_there = stand.ask::<i64>(&["EXISTS", &name]).await == 1;
    if was_there {
        stand.ask::<()>(&["RENAME", &name, &kept]).await;
    }
    stand.ask::<()>(&["SET", &name, "a string"]).await;
    if key == Key::Lock {
        stand.ask::<i64>(&["DEL", &stand.keys.gate(broken.partition)]).await;
    }

    let worker = stand.real_worker(&[]);
    whole.must_be_done(&stand, &what).await;
    // A string is a lock like any other: nothing is refused, and the gate stays closed.
    must_be_quiet(&what, &worker, key != Key::Lock).await;
    if key == Key::Lock {
        let partition = format!("partition=\"{}\"", broken.partition);
        let open = worker.admin.metric("flashsale_gate_open", &partition).await;
        assert_eq!(open, Some(0.0), "{what}");
    }
    assert!(broken.left(&stand).await.is_some(), "{what}: something waits for the key");

    if was_there {
        stand.ask::<()>(&["RENAME", &kept, &name]).await;
    } else {
        stand.ask::<i64>(&["DEL", &name]).await;
    }
    broken.must_be_done(&stand, &what).await;
    worker.admin.wait_for_readiness(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_the_wrong_type_holds_up_its_own_partition_only_and_heals() {
    blocking(RedisServer::shared);
    side_by_side(Key::ALL.map(|key| Box::pin(with_a_string_at(key)))).await;
}

/// Commands whose loss keeps some of the work from being done.
const COMMANDS: [&str; 8] =
    ["xreadgroup", "xack", "xautoclaim", "evalsha", "xrange", "hincrby", "xinfo|groups", "hlen"];

/// Waits until Redis has answered the reads of a user's workers: one that still waits would be handed
/// what comes next, also for a worker that sleeps.
async fn no_read_waits(stand: &Stand, user: &str) {
    let of_user = format!(" user={user} ");
    eventually(SOON, "the reads of a worker that sleeps run out", async || {
        let clients: String = stand.ask(&["CLIENT", "LIST"]).await;
        let waiting = |client: &&str| {
            let flags = client.split(' ').find_map(|it| it.strip_prefix("flags="));
            client.contains(&of_user) && flags.is_some_and(|flags| flags.contains('b'))
        };
        clients.lines().filter(waiting).count() == 0
    })
    .await;
}

/// A worker may not use one command; then it may again.
async fn without(command: &'static str, server_url: String, plan: Plan) {
    let stand = plan.stand().await;
    let user = format!("worker-{}", command.replace('|', "-"));
    acl(&stand, &user, "on >secret ~* &* +@all").await;
    let url = server_url.replace("redis://", &format!("redis://{user}:secret@"));
    let worker = stand.real_worker(&[("FLASHSALE__REDIS__URL", url)]);
    worker.admin.wait_for_readiness(true).await;

    // Laid out in front of a worker that sleeps, so that it meets all of it without the command.
    worker.program.pause();
    no_read_waits(&stand, &user).await;
    let [first, second] = stand.publish_in_both_partitions(STOCK).await;
    let work = [Work::lay_out(&stand, first).await, Work::lay_out(&stand, second).await];
    acl(&stand, &user, &format!("-{command}")).await;
    worker.program.resume();
    must_be_quiet(command, &worker, true).await;
    assert!(worker.program.exit_status().is_none(), "{command}: {}", worker.program.log());
    if command == "xreadgroup" {
        // It lives and does nothing, and says so.
        worker.admin.wait_for_readiness(false).await;
        let (_, checks) = worker.admin.readiness().await.expect("an answer");
        assert!(checks.contains("the reader of partition"), "{checks}");
    }

    acl(&stand, &user, &format!("+{command}")).await;
    for work in work {
        work.must_be_done(&stand, command).await;
    }
    worker.admin.wait_for_readiness(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_denied_for_a_while_loses_nothing_and_fills_no_log() {
    let server = blocking(RedisServer::start);
    // On SQLite the frozen workers could hold a lock that the test needs.
    let plan = || patient(Plan::postgres()).redis(&server);
    side_by_side(COMMANDS.map(|command| Box::pin(without(command, server.url(), plan())))).await;
}
