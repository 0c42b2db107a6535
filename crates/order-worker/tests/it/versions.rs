//! Two versions side by side: orders of every format on one stream, formats and schemas of a version that
//! is yet to come.

use flashsale_domain::{OrderId, Refusal, Sale};
use flashsale_operations::DeadFilter;
use flashsale_order_worker::Processed;
use flashsale_storage_redis::DeadLetter;

use crate::expire::{assert_all_back, make_all_overdue, wait_for_expired};
use crate::support::{Plan, Stand, home_of, on_both, only, press};

/// An order as a gateway placed it that knew only the first formats of entry and record.
async fn admit_as_before(stand: &Stand, sale: &Sale, buyer: &str) -> OrderId {
    let (id, epoch) = (sale.id.to_string(), sale.epoch.to_string());
    let fields = [("v", "1"), ("s", &id), ("u", buyer), ("b", "1"), ("e", &epoch)];
    let fields = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let entry = stand.append(&fields).await;
    let (buyers, held) = (stand.keys.buyers(only(), sale.id), stand.keys.sale(only(), sale.id));
    let mut together = redis::pipe();
    together.hset(buyers, buyer, format!("1|{entry}:1:1:o:")).ignore();
    for (field, change) in [("stock", -1), ("held", 1), ("admitted", 1)] {
        together.hincr(&held, field, change).ignore();
    }
    let done: redis::RedisResult<()> = together.query_async(&mut stand.connection().await).await;
    done.expect("the sale is loaded");
    OrderId::from_entry(only(), entry.parse().expect("an entry id")).expect("an order id")
}

fn with_reason(reason: &str) -> DeadFilter {
    DeadFilter { reason: Some(reason.to_owned()), ..DeadFilter::default() }
}

on_both!(orders_of_both_formats_become_rows_and_give_their_units_back, async |stand: Stand| {
    let sale = stand.publish(30).await;
    let mut old = Vec::new();
    for i in 0..10 {
        old.push(admit_as_before(&stand, &sale, &format!("old-{i}")).await);
        stand.admit(&sale, &format!("new-{i}"), 1).await;
    }
    // Whoever ordered at the older gateway is known to the newer one.
    let presses: Vec<_> = (0..10).map(|i| press(&format!("old-{i}"))).collect();
    let mut connection = stand.redis.admission_connection().expect("a connection");
    let batch = connection.admit(home_of(&sale), sale.id, &presses).await.expect("answered");
    let known: Vec<_> = old.iter().map(|id| Err(Refusal::AlreadyOrdered(*id))).collect();
    assert_eq!(batch.outcomes, known);

    let worker = stand.worker().await;
    stand.wait_for_rows(20).await;
    stand.settle().await;
    let open = stand.open_ids().await;
    assert!(old.iter().all(|id| open.contains(id)), "{open:?}");
    assert_eq!(stand.dead().await, []);
    make_all_overdue(&stand).await;
    wait_for_expired(&stand, &sale, 20).await;
    assert_all_back(&stand, &sale).await;
    worker.stop().await.expect("a clean end");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_a_newer_format_is_kept_for_a_newer_program() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(10).await;
    let id = stand.append(&[(b"o", b"3:as the next version writes it")]).await;
    stand.admit(&sale, "neighbour", 1).await;
    let processed = stand.processor().process(stand.read("test", 10).await).await;
    assert_eq!(processed, Processed { done: 1, dead: 1, left: 0 });
    let letter = stand.dead().await.remove(0);
    assert_eq!(letter.reason, "newer-version");
    assert!(letter.detail.contains("version 3"), "{}", letter.detail);

    // The older program cannot do more with it, and changes none of its bytes.
    let newer = with_reason("newer-version");
    let tried = stand.operations.requeue_dead(&newer, "tester", false).await.expect("tried");
    assert!(!tried[0].settled, "{tried:?}");
    let kept = stand.dead().await.remove(0);
    assert_eq!((kept.entry, kept.reason.as_str()), (letter.entry, "newer-version"));
    assert_eq!(kept.attempts, 2);

    // To the newer one it is an order like any: this is the newer one of whoever set this aside.
    let order = stand.admit(&sale, "buyer", 1).await[0];
    let entry = stand.read("older", 10).await.remove(0);
    let aside = DeadLetter::new(entry, "newer-version", "format version 2 is newer", "older", 1);
    stand.redis.store_dead_letter(only(), &aside).await.expect("stored");
    let tried = stand.operations.requeue_dead(&newer, "tester", false).await.expect("tried");
    assert_eq!(tried.iter().filter(|it| it.settled).count(), 1, "{tried:?}");
    assert!(stand.open_ids().await.contains(&order));
    let left: Vec<String> =
        stand.dead().await.iter().map(|letter| letter.entry.id.to_string()).collect();
    assert_eq!(left, [id]);
}

on_both!(a_worker_goes_on_with_the_schema_of_a_newer_version, async |stand: Stand| {
    let sale = stand.publish(10).await;
    for newer in [
        "INSERT INTO seaql_migrations VALUES ('m20990101_000001_add_note_to_orders', 1)",
        "ALTER TABLE orders ADD COLUMN note text",
        "ALTER TABLE sales ADD COLUMN shop text NOT NULL DEFAULT 'ours'",
        "CREATE TABLE shops (id bigint)",
    ] {
        stand.execute(newer).await;
    }
    let worker = stand.worker().await;
    stand.admit(&sale, "buyer", 5).await;
    stand.wait_for_rows(5).await;
    make_all_overdue(&stand).await;
    wait_for_expired(&stand, &sale, 5).await;
    assert_all_back(&stand, &sale).await;
    worker.stop().await.expect("a clean end");
});
