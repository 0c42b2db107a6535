//! Entries that cannot become rows: each is set aside alone, byte for byte, and its neighbours go on.

use flashsale_order_worker::Processed;
use flashsale_storage_redis::{DeadLetter, RawEntry};
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{Plan, SOON, Stand, on_both, only};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// An entry that is an order, but for what is put in its place.
fn good(sale: &str) -> Fields {
    let pairs = [("v", "1"), ("s", sale), ("u", "stranger"), ("b", "1"), ("e", "1")];
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn without(name: &str) -> Fields {
    good("1").into_iter().filter(|(field, _)| field != name.as_bytes()).collect()
}

fn with(name: &str, value: &[u8]) -> Fields {
    let mut fields = without(name);
    fields.push((name.as_bytes().to_vec(), value.to_vec()));
    fields
}

fn twice(name: &str) -> Fields {
    let mut fields = good("1");
    fields.push((name.as_bytes().to_vec(), b"1".to_vec()));
    fields
}

fn packed(order: &[u8]) -> Fields {
    vec![(b"o".to_vec(), order.to_vec())]
}

fn kinds_of_bad_entries() -> Vec<(&'static str, Fields)> {
    vec![
        ("only foreign fields", vec![(b"hello".to_vec(), b"world".to_vec())]),
        ("no version", without("v")),
        ("an unknown version", with("v", b"2")),
        ("no sale", without("s")),
        ("a sale that is no number", with("s", b"nine")),
        ("no buyer", without("u")),
        ("an empty buyer", with("u", b"")),
        ("a buyer that is not UTF-8", with("u", b"\xc3\x28\xff\x00")),
        ("a buyer with a control character", with("u", b"a\nb")),
        ("a buyer of 4 MiB", with("u", &vec![b'x'; 4 << 20])),
        ("no slot", without("b")),
        ("slot 0", with("b", b"0")),
        ("a slot beyond its type", with("b", b"65536")),
        ("no epoch", without("e")),
        ("an epoch beyond its type", with("e", b"9223372036854775808")),
        ("a digest that is none", with("k", b"short")),
        ("a version that comes twice", twice("v")),
        ("a buyer that comes twice", twice("u")),
        ("a packed order of an unknown version", packed(b"0:1:1:1::stranger")),
        ("a packed order of a newer version", packed(b"3:1:1:1::stranger")),
        ("a packed order that is cut off", packed(b"2:1:1:1:")),
        ("a packed order that is not UTF-8", packed(b"2:1:1:1::\xc3\x28\xff\x00")),
        ("a packed order twice", [packed(b"2:1:1:1::a"), packed(b"2:1:1:1::b")].concat()),
    ]
}

async fn append(stand: &Stand, fields: &Fields) -> String {
    let pairs: Vec<_> = fields.iter().map(|(n, v)| (n.as_slice(), v.as_slice())).collect();
    stand.append(&pairs).await
}

fn find<'a>(letters: &'a [DeadLetter], id: &str) -> &'a DeadLetter {
    let found = letters.iter().find(|letter| letter.entry.id.to_string() == id);
    found.unwrap_or_else(|| panic!("no dead letter {id}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_undecodable_entry_among_five_hundred_is_one_dead_letter() {
    let stand = Plan::sqlite().stand().await;
    let sale = stand.publish(100_000).await;
    let processor = stand.processor();
    for (number, (kind, fields)) in kinds_of_bad_entries().into_iter().enumerate() {
        stand.admit(&sale, &format!("before-{number}"), 250).await;
        let id = append(&stand, &fields).await;
        stand.admit(&sale, &format!("after-{number}"), 249).await;
        let entries = stand.read("test", 500).await;
        assert_eq!(entries.len(), 500, "{kind}");

        let processed = processor.process(entries).await;
        assert_eq!(processed, Processed { done: 499, dead: 1, left: 0 }, "{kind}");
        let letters = stand.dead().await;
        assert_eq!(letters.len(), number + 1, "{kind}");
        let letter = find(&letters, &id);
        assert!(letter.entry.fields == fields, "{kind}: byte for byte");
        let is_newer = kind.contains("newer");
        let reason = if is_newer { "newer-version" } else { "undecodable" };
        assert_eq!(letter.reason, reason, "{kind}");
        assert!(letter.detail.contains("field") || letter.detail.contains("version"), "{kind}");
        assert_eq!(stand.pending().await, 0, "{kind}");
        assert_eq!(stand.rows().await, 499 * (i64::try_from(number).expect("few") + 1), "{kind}");
    }
}

on_both!(
    what_the_database_does_not_take_is_set_aside_and_its_neighbours_are_written,
    async |stand: Stand| {
        let sale = stand.publish(1_000).await;
        let (id, epoch) = (sale.id.to_string(), sale.epoch.to_string());
        stand.admit(&sale, "before", 500).await;

        let missing = append(&stand, &good("987654")).await;

        // The buyer holds the slot by a row that Redis knows nothing of.
        stand
            .execute(&format!(
                "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             VALUES (77, {id}, 'taken-0', 1, {epoch}, 'awaiting_payment', 1, 'CNY', 1)"
            ))
            .await;
        let taken = stand.admit(&sale, "taken", 1).await[0];

        let mut ahead = good(&id);
        ahead[4].1 = (sale.epoch + 5).to_string().into_bytes();
        let ahead = append(&stand, &ahead).await;

        // A row with the id of an order that is still on the stream, and another buyer's.
        let conflict = stand.admit(&sale, "conflict", 1).await[0];
        stand
            .execute(&format!(
                "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
             price_currency, committed_ms) \
             VALUES ({conflict}, {id}, 'somebody else', 1, {epoch}, 'cancelled', 1, 'CNY', 1)"
            ))
            .await;
        stand.admit(&sale, "after", 498).await;

        let worker = stand.worker().await;
        stand.wait_for_rows(2 + 500 + 1 + 498).await;
        stand.settle().await;
        let rejected = format!("SELECT reason FROM orders WHERE id = {taken}");
        assert_eq!(stand.try_value::<String>(&rejected).await.as_deref(), Some("slot-taken"));
        let letters = stand.dead().await;
        for (id, reason) in [
            (&missing, "sale-missing"),
            (&ahead, "epoch-ahead"),
            (&conflict.entry().to_string(), "content-conflict"),
        ] {
            let letter = find(&letters, id);
            assert_eq!(letter.reason, reason, "{}", letter.detail);
            assert!(!letter.consumers.is_empty() && letter.first_ms > 0);
        }
        assert_eq!(letters.len(), 3);
        // Only what was written has taken a unit.
        assert_eq!(stand.stock_left(&sale).await, 1_000 - 998);
        worker.stop().await.expect("a clean end");
    }
);

on_both!(
    orders_beyond_the_databases_stock_are_rejected_and_the_others_are_written,
    async |stand: Stand| {
        let sale = stand.publish(100).await;
        // Redis had three units too many.
        stand.execute(&format!("UPDATE sales SET stock_left = 97 WHERE id = {}", sale.id)).await;
        stand.admit(&sale, "buyer", 100).await;
        let worker = stand.worker().await;
        stand.wait_for_rows(100).await;
        stand.settle().await;
        assert_eq!(stand.dead().await, []);
        let gone = "SELECT count(*) AS gone FROM orders WHERE reason = 'stock-gone'";
        assert_eq!(stand.try_value::<i64>(gone).await, Some(3));
        assert_eq!(stand.stock_left(&sale).await, 0);
        // The slots go back, and the units do not: Redis had three too many.
        eventually(SOON, "the releases", async || {
            let account = stand.redis.read_sale(only(), sale.id).await.expect("answers");
            let loaded = account.sale.expect("loaded");
            (loaded.total, loaded.stock, loaded.held) == (97, 0, 97)
        })
        .await;
        worker.stop().await.expect("a clean end");
    }
);

on_both!(one_order_that_the_database_refuses_is_found_by_halving, async |stand: Stand| {
    let sale = stand.publish(1_000).await;
    if stand.is_postgres() {
        stand
            .execute("ALTER TABLE orders ADD CONSTRAINT no_poison CHECK (user_id <> 'poison-0')")
            .await;
        // A sequence is not rolled back, so it counts the tries that failed as well.
        stand.execute("CREATE SEQUENCE tries").await;
        stand
            .execute(
                "CREATE FUNCTION count_try() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN PERFORM nextval(''tries''); RETURN NULL; END'",
            )
            .await;
        stand
            .execute(
                "CREATE TRIGGER count_tries BEFORE INSERT ON orders \
                 FOR EACH STATEMENT EXECUTE FUNCTION count_try()",
            )
            .await;
    } else {
        stand
            .execute(
                "CREATE TRIGGER no_poison BEFORE INSERT ON orders WHEN NEW.user_id = 'poison-0' \
                 BEGIN SELECT RAISE(ABORT, 'no_poison'); END",
            )
            .await;
    }
    stand.admit(&sale, "before", 200).await;
    let poison = stand.admit(&sale, "poison", 1).await[0];
    stand.admit(&sale, "after", 299).await;
    let entries = stand.read("test", 500).await;
    let bytes: Vec<RawEntry> =
        entries.iter().filter(|entry| entry.id == poison.entry()).cloned().collect();

    let processed = stand.processor().process(entries).await;
    assert_eq!(processed, Processed { done: 499, dead: 1, left: 0 });
    let letters = stand.dead().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].entry, bytes[0]);
    assert_eq!(letters[0].reason, "data-refused");
    let code = if stand.is_postgres() { "23514" } else { "1811" };
    assert_eq!(letters[0].code.as_deref(), Some(code), "{}", letters[0].detail);
    assert_eq!((stand.rows().await, stand.stock_left(&sale).await), (499, 501));
    assert_eq!(stand.pending().await, 0);
    if stand.is_postgres() {
        let tries: i64 = stand.try_value("SELECT last_value FROM tries").await.expect("a number");
        // The whole batch, then two halves on each of the nine levels from 500 down to 1.
        assert!((10..=19).contains(&tries), "{tries} tries");
    }
});

on_both!(poison_in_front_does_not_stop_a_thousand_behind_it, async |stand: Stand| {
    let sale = stand.publish(2_000).await;
    let check = if stand.is_postgres() {
        "ALTER TABLE orders ADD CONSTRAINT no_poison CHECK (user_id NOT LIKE 'poison%')"
    } else {
        "CREATE TRIGGER no_poison BEFORE INSERT ON orders WHEN NEW.user_id LIKE 'poison%' \
         BEGIN SELECT RAISE(ABORT, 'no_poison'); END"
    };
    stand.execute(check).await;
    stand.admit(&sale, "poison", 5).await;
    append(&stand, &without("u")).await;
    stand.admit(&sale, "good", 1_000).await;
    let worker = stand.worker().await;
    stand.wait_for_rows(1_000).await;
    stand.settle().await;
    assert_eq!(stand.dead().await.len(), 6);
    worker.stop().await.expect("a clean end");
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_a_full_redis_does_not_take_stays_pending_and_is_stored_later() {
    let server = crate::support::blocking(RedisServer::start);
    let stand = Plan::sqlite().redis(&server).impatient().stand().await;
    let sale = stand.publish(100).await;
    stand.admit(&sale, "buyer", 20).await;
    let bad = append(&stand, &without("u")).await;
    let entries = stand.read("test", 100).await;

    stand.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let processed = stand.processor().process(entries).await;
    assert_eq!(processed, Processed { done: 20, dead: 0, left: 1 });
    assert_eq!((stand.rows().await, stand.pending().await), (20, 1));
    assert_eq!(stand.dead().await, []);

    stand.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let worker = stand.worker().await;
    let letters = eventually(SOON, "the dead letter", async || {
        Some(stand.dead().await).filter(|letters| !letters.is_empty())
    })
    .await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].entry.id.to_string(), bad);
    stand.settle().await;
    worker.stop().await.expect("a clean end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_on_a_full_redis_works_off_what_is_there() {
    let server = crate::support::blocking(RedisServer::start);
    let stand = Plan::sqlite().redis(&server).stand().await;
    let sale = stand.publish(100).await;
    stand.admit(&sale, "buyer", 100).await;
    stand.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let worker = stand.worker().await;
    stand.wait_for_rows(100).await;
    stand.settle().await;
    assert_eq!(
        stand.redis.backlog(only()).await.expect("answered").expect("a group").total(),
        Some(0)
    );
    worker.stop().await.expect("a clean end");
}
