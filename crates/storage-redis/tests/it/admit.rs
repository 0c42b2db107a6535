//! `admit.lua`: one test for each outcome, the order in which they are checked, the ids it gives,
//! and that it changes nothing where it fails.

use flashsale_domain::{EntryId, PER_BUYER_MAX, SaleId, SaleState, Window};
use flashsale_storage_redis::{ORDERS_PER_BUYER_MAX, Record, RecordItem, RedisFault, decode};
use flashsale_test_support::RedisServer;
use redis::RedisError;

use crate::support::{
    ADMIT_TEXT, Deployment, FAR_AHEAD_MS, LONG_AGO_MS, Outcome, crowd, digest, fields, outcomes,
    press, press_with_key, sale, user,
};

/// When the first order that a test loads was admitted.
const LOADED_MS: u64 = 1_764_470_400_000;
const MINUTE_MS: u64 = 60_000;

fn item(ms: u64, slot: u16, open: bool, key: Option<&str>) -> RecordItem {
    let digest = key.map(digest);
    RecordItem { entry: EntryId { ms, seq: 0 }, slot, generation: 1, open, digest }
}

/// A buyer's record, written as the database would load it.
async fn set_record(deployment: &Deployment, buyer: &str, items: Vec<RecordItem>) {
    let record = Record { items }.to_string();
    deployment.set_field(&deployment.buyers_key(), buyer, &record).await;
}

async fn record_of(deployment: &Deployment, buyer: &str) -> Record {
    let found = deployment.redis.find_record(deployment.partition, sale(1).id, &user(buyer)).await;
    found.expect("readable").expect("the buyer has a record")
}

/// Makes the stream, and the gate that remembers it, end at `last`.
async fn set_last_id(deployment: &Deployment, last: EntryId) {
    deployment.ask::<()>(&["XSETID", &deployment.orders_key(), &last.to_string()]).await;
    remember_last_id(deployment, last).await;
}

async fn remember_last_id(deployment: &Deployment, last: EntryId) {
    let gate = deployment.gate_key();
    deployment.set_field(&gate, "last_ms", &last.ms.to_string()).await;
    deployment.set_field(&gate, "last_seq", &last.seq.to_string()).await;
}

async fn server_now_ms(deployment: &Deployment) -> u64 {
    let (seconds, micros): (u64, u64) = deployment.ask(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

// ---- the outcomes

#[tokio::test]
async fn the_first_and_the_second_buyer_are_admitted() {
    let deployment = Deployment::selling(&sale(10)).await;
    let first = deployment.admit_one(press("ann")).await.admitted();
    let second = deployment.admit_one(press("bob")).await.admitted();
    assert!(first < second, "{first} {second}");
    assert_eq!(deployment.units().await, [8, 2]);
    assert_eq!(deployment.stream_ids().await, [first, second]);
    let record = record_of(&deployment, "ann").await;
    let expected = RecordItem { entry: first, ..item(0, 1, true, None) };
    assert_eq!(record.items, [expected]);
}

#[tokio::test]
async fn a_second_press_gets_the_order_that_the_buyer_already_has() {
    let deployment = Deployment::selling(&sale(10)).await;
    let order = deployment.admit_one(press("ann")).await.admitted();
    let before = deployment.contents().await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::AlreadyOrdered(order));
    let with_key = deployment.admit_one(press_with_key("ann", "k")).await;
    assert_eq!(with_key, Outcome::AlreadyOrdered(order));
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn the_same_key_gets_the_same_order_marked_as_a_replay() {
    let deployment = Deployment::selling(&sale(10)).await;
    let order = deployment.admit_one(press_with_key("ann", "k")).await.admitted();
    let before = deployment.contents().await;
    for _ in 0..2 {
        let again = deployment.admit_one(press_with_key("ann", "k")).await;
        assert_eq!(again, Outcome::Replayed(order));
    }
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn each_key_of_a_buyer_with_two_orders_gets_its_own_order() {
    let mut two_each = sale(10);
    two_each.per_buyer = 2;
    let deployment = Deployment::selling(&two_each).await;
    let first = deployment.admit_one(press_with_key("ann", "k1")).await.admitted();
    let second = deployment.admit_one(press_with_key("ann", "k2")).await.admitted();
    let replay =
        deployment.admit(&[press_with_key("ann", "k1"), press_with_key("ann", "k2")]).await;
    assert_eq!(replay, [Outcome::Replayed(first), Outcome::Replayed(second)]);
    let third = deployment.admit_one(press_with_key("ann", "k3")).await;
    assert_eq!(third, Outcome::AlreadyOrdered(second), "the latest open one");
}

#[tokio::test]
async fn after_the_last_unit_the_next_buyer_is_told_sold_out() {
    let deployment = Deployment::selling(&sale(1)).await;
    deployment.admit_one(press("ann")).await.admitted();
    let before = deployment.contents().await;
    assert_eq!(deployment.admit_one(press("bob")).await, Outcome::SoldOut);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn before_the_window_nobody_gets_a_unit() {
    let mut early = sale(10);
    early.window = Window::new(FAR_AHEAD_MS - 1, FAR_AHEAD_MS).expect("a window");
    let deployment = Deployment::selling(&early).await;
    let before = deployment.contents().await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotStarted);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn after_the_window_the_sale_has_ended() {
    let mut late = sale(10);
    late.window = Window::new(LONG_AGO_MS, LONG_AGO_MS + 1).expect("a window");
    let deployment = Deployment::selling(&late).await;
    let before = deployment.contents().await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::Ended);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn a_closed_sale_has_ended() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.set_field(&deployment.sale_key(), "state", "closed").await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::Ended);
}

#[tokio::test]
async fn a_paused_sale_admits_nobody_until_it_is_resumed() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.set_field(&deployment.sale_key(), "state", "paused").await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::Paused);
    deployment.set_field(&deployment.sale_key(), "state", "published").await;
    deployment.admit_one(press("ann")).await.admitted();
}

#[tokio::test]
async fn without_a_gate_nothing_is_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.ask::<()>(&["DEL", &deployment.gate_key()]).await;
    let before = deployment.contents().await;
    let batch = deployment.try_admit(&crowd(3)).await.expect("an answer, never an error");
    assert_eq!(outcomes(&batch), [Outcome::NotLoaded; 3]);
    assert_eq!((batch.epoch, batch.returns, batch.stock), (0, 0, 0));
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn behind_a_fenced_gate_nothing_is_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.redis.fence(deployment.partition).await.expect("fenced");
    let before = deployment.contents().await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotLoaded);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn behind_a_gate_that_another_server_opened_nothing_is_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    let mine: String = deployment.ask(&["HGET", &deployment.gate_key(), "replid"]).await;
    deployment.set_field(&deployment.gate_key(), "replid", &"0".repeat(40)).await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotLoaded);
    deployment.set_field(&deployment.gate_key(), "replid", &mine).await;
    deployment.admit_one(press("ann")).await.admitted();
}

#[tokio::test]
async fn a_sale_that_is_not_there_is_not_loaded() {
    let deployment = Deployment::empty().await;
    deployment.open_gate().await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotLoaded);
}

#[tokio::test]
async fn a_stream_that_is_not_there_is_not_made_anew_by_a_buyer() {
    let deployment = Deployment::selling(&sale(10)).await;
    deployment.ask::<()>(&["DEL", &deployment.orders_key()]).await;
    let before = deployment.contents().await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotLoaded);
    deployment.ask::<()>(&["HDEL", &deployment.gate_key(), "last_ms"]).await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotLoaded, "never an error");
    deployment.set_field(&deployment.gate_key(), "last_ms", "0").await;
    assert_eq!(deployment.contents().await[&deployment.sale_key()], before[&deployment.sale_key()]);
    assert_eq!(deployment.contents().await[&deployment.buyers_key()], None);
    assert_eq!(deployment.contents().await[&deployment.orders_key()], None);
}

#[tokio::test]
async fn a_sale_with_a_field_missing_or_no_number_is_not_loaded() {
    let deployment = Deployment::selling(&sale(10)).await;
    let key = deployment.sale_key();
    let numbers =
        ["stock", "held", "opens_ms", "closes_ms", "limit", "epoch", "returns", "reopen_ms"];
    for field in numbers.into_iter().chain(["state"]) {
        let value: String = deployment.ask(&["HGET", &key, field]).await;
        deployment.ask::<()>(&["HDEL", &key, field]).await;
        let outcome = deployment.admit_one(press("ann")).await;
        assert_eq!(outcome, Outcome::NotLoaded, "without {field}");

        let bad_values: &[&str] =
            if field == "state" { &["", "draft", "1"] } else { &["", "many", "-1", "1.5", "1e3"] };
        for bad in bad_values {
            deployment.set_field(&key, field, bad).await;
            let outcome = deployment.admit_one(press("ann")).await;
            assert_eq!(outcome, Outcome::NotLoaded, "{field} = {bad:?}");
        }
        deployment.set_field(&key, field, &value).await;
    }
    assert_eq!(deployment.stream_ids().await, []);
    deployment.admit_one(press("ann")).await.admitted();
}

#[tokio::test]
async fn an_unreadable_record_refuses_its_buyer_and_nobody_else() {
    let deployment = Deployment::selling(&sale(10)).await;
    let bad_records = [
        "",
        "1|",
        "1|;",
        "2",
        "2;",
        "21764470400000-0;",
        "21764470400000-0:",
        "21764470400000-0:1:1:o",
        "3|1764470400000-0:1:1:o:",
        "2|1764470400000-0:1:1:o:",
        "1|1764470400000-0:1:1:o",
        "1|1764470400000-0:1:1:x:",
        "1|1764470400000-0:1:1:c:;",
        "1|1764470400000-0:1:1:c:;;1764470400001-0:1:1:c:",
        "1|1764470400000-0:1:1:c:;nonsense",
    ];
    for (i, bad) in bad_records.into_iter().enumerate() {
        deployment.set_field(&deployment.buyers_key(), "bad", bad).await;
        let (left, right) = (format!("left-{i}"), format!("right-{i}"));
        let outcomes = deployment.admit(&[press(&left), press("bad"), press(&right)]).await;
        outcomes[0].admitted();
        assert_eq!(outcomes[1], Outcome::NotLoaded, "{bad:?}");
        outcomes[2].admitted();
        let kept: String = deployment.ask(&["HGET", &deployment.buyers_key(), "bad"]).await;
        assert_eq!(kept, bad);
        deployment.set_field(&deployment.sale_key(), "stock", "10").await;
    }
}

#[tokio::test]
async fn a_last_id_more_than_a_minute_ahead_is_a_clock_fault() {
    let deployment = Deployment::selling(&sale(10)).await;
    // Half a minute is left for the time between the two commands.
    let ms = server_now_ms(&deployment).await + MINUTE_MS + 30_000;
    set_last_id(&deployment, EntryId { ms, seq: 0 }).await;
    let before = deployment.contents().await;
    assert_eq!(deployment.admit(&crowd(2)).await, [Outcome::ClockFault; 2]);
    assert_eq!(deployment.contents().await, before);

    // The same where only the stream knows.
    remember_last_id(&deployment, EntryId { ms: 0, seq: 0 }).await;
    let before = deployment.contents().await;
    assert_eq!(deployment.admit(&crowd(2)).await, [Outcome::ClockFault; 2]);
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn a_clock_fault_ends_to_the_millisecond_a_minute_before_the_last_id() {
    let deployment = Deployment::selling(&sale(1000)).await;
    let (mut faults, mut round) = (0, 0);
    // A machine that is busy may miss the few milliseconds: then another round.
    while faults == 0 {
        round += 1;
        let ms = server_now_ms(&deployment).await + MINUTE_MS + 20;
        set_last_id(&deployment, EntryId { ms, seq: 0 }).await;
        loop {
            let request = [press(&format!("buyer-{round}"))];
            let batch = deployment.try_admit(&request).await.expect("answered");
            let ahead_ms = ms - u64::try_from(batch.now_ms).expect("after 1970");
            if outcomes(&batch)[0] == Outcome::ClockFault {
                assert!(ahead_ms > MINUTE_MS, "{ahead_ms}");
                faults += 1;
            } else {
                assert_eq!(outcomes(&batch)[0].admitted(), EntryId { ms, seq: 1 });
                assert!(ahead_ms <= MINUTE_MS, "{ahead_ms}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_last_id_out_of_range_is_a_clock_fault_and_never_wraps() {
    let deployment = Deployment::selling(&sale(10)).await;
    set_last_id(&deployment, EntryId { ms: u64::MAX, seq: u64::MAX }).await;
    assert_eq!(deployment.admit(&crowd(2)).await, [Outcome::ClockFault; 2]);
    assert_eq!(deployment.units().await, [10, 0]);
}

#[tokio::test]
async fn a_last_id_half_a_minute_ahead_still_admits_in_that_millisecond() {
    let deployment = Deployment::selling(&sale(10)).await;
    let ms = server_now_ms(&deployment).await + 30_000;
    set_last_id(&deployment, EntryId { ms, seq: 5 }).await;
    let ids: Vec<_> = deployment.admit(&crowd(2)).await.iter().map(|o| o.admitted()).collect();
    assert_eq!(ids, [EntryId { ms, seq: 6 }, EntryId { ms, seq: 7 }]);
}

// ---- the order of the checks

#[tokio::test]
async fn whoever_has_an_order_is_answered_with_it_whatever_became_of_the_sale() {
    let deployment = Deployment::selling(&sale(1)).await;
    let order = deployment.admit_one(press_with_key("ann", "k")).await.admitted();
    let key = deployment.sale_key();
    let (past, future) = ((LONG_AGO_MS + 1).to_string(), (FAR_AHEAD_MS - 1).to_string());
    let (opens, closes) = (LONG_AGO_MS.to_string(), FAR_AHEAD_MS.to_string());
    let cases = [
        ("stock", "0", "0", Outcome::SoldOut),
        ("reopen_ms", future.as_str(), "0", Outcome::SoldOut),
        ("opens_ms", &future, &opens, Outcome::NotStarted),
        ("closes_ms", &past, &closes, Outcome::Ended),
        ("state", "paused", "published", Outcome::Paused),
        ("state", "closed", "published", Outcome::Ended),
        ("state", "unknown", "published", Outcome::NotLoaded),
    ];
    for (field, value, value_before, for_others) in cases {
        deployment.set_field(&key, field, value).await;
        let requests = [press_with_key("ann", "k"), press("ann"), press("bob")];
        assert_eq!(
            deployment.admit(&requests).await,
            [Outcome::Replayed(order), Outcome::AlreadyOrdered(order), for_others],
            "{field} = {value}"
        );
        deployment.set_field(&key, field, value_before).await;
    }
}

#[tokio::test]
async fn the_state_is_checked_before_the_window_and_the_window_before_the_stock() {
    let deployment = Deployment::selling(&sale(1)).await;
    let key = deployment.sale_key();
    deployment.set_field(&key, "stock", "0").await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::SoldOut);
    deployment.set_field(&key, "opens_ms", &(FAR_AHEAD_MS - 1).to_string()).await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotStarted);
    deployment.set_field(&key, "state", "paused").await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::Paused);
    deployment.set_field(&key, "state", "closed").await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::Ended);
}

#[tokio::test]
async fn a_replay_is_found_before_the_limit_is_looked_at() {
    let deployment = Deployment::selling(&sale(10)).await;
    let items = vec![item(LOADED_MS, 1, false, Some("old")), item(LOADED_MS + 1, 1, true, None)];
    let (closed, open) = (items[0].entry, items[1].entry);
    set_record(&deployment, "ann", items).await;
    let outcomes = deployment.admit(&[press_with_key("ann", "old"), press("ann")]).await;
    assert_eq!(outcomes, [Outcome::Replayed(closed), Outcome::AlreadyOrdered(open)]);
}

#[tokio::test]
async fn a_refusal_is_decided_anew_when_the_key_comes_again() {
    let deployment = Deployment::selling(&sale(1)).await;
    deployment.admit_one(press("ann")).await.admitted();
    assert_eq!(deployment.admit_one(press_with_key("bob", "k")).await, Outcome::SoldOut);
    deployment.set_field(&deployment.sale_key(), "stock", "1").await;
    let order = deployment.admit_one(press_with_key("bob", "k")).await.admitted();
    assert_eq!(deployment.admit_one(press_with_key("bob", "k")).await, Outcome::Replayed(order));
}

#[tokio::test]
async fn a_unit_that_came_back_is_for_sale_once_the_leases_have_run_out() {
    let deployment = Deployment::selling(&sale(1000)).await;
    let key = deployment.sale_key();
    let (mut refused, mut round) = (0, 0);
    // A machine that is busy may miss the few milliseconds: then another round.
    while refused == 0 {
        round += 1;
        let reopens = server_now_ms(&deployment).await + 20;
        deployment.set_field(&key, "reopen_ms", &reopens.to_string()).await;
        loop {
            let request = [press(&format!("buyer-{round}"))];
            let batch = deployment.try_admit(&request).await.expect("answered");
            let now = u64::try_from(batch.now_ms).expect("after 1970");
            if outcomes(&batch)[0] == Outcome::SoldOut {
                assert!(now < reopens, "{now} {reopens}");
                refused += 1;
            } else {
                outcomes(&batch)[0].admitted();
                assert!(now >= reopens, "{now} {reopens}");
                break;
            }
        }
    }
}

// ---- stock, limits, slots

#[tokio::test]
async fn one_batch_with_more_buyers_than_units_sells_exactly_the_units() {
    let deployment = Deployment::selling(&sale(7)).await;
    let batch = deployment.try_admit(&crowd(12)).await.expect("answered");
    let outcomes = outcomes(&batch);
    assert!(outcomes[..7].iter().all(|outcome| matches!(outcome, Outcome::Admitted(_))));
    assert_eq!(outcomes[7..], [Outcome::SoldOut; 5]);
    assert_eq!((batch.stock, batch.epoch, batch.returns), (0, 7, 0));
    assert_eq!(deployment.units().await, [0, 7]);
    assert_eq!(deployment.stream_ids().await.len(), 7);
}

#[tokio::test]
async fn many_batches_with_more_buyers_than_units_sell_exactly_the_units() {
    let deployment = Deployment::selling(&sale(10)).await;
    let (mut admitted, mut sold_out) = (0, 0);
    for requests in crowd(23).chunks(3) {
        for outcome in deployment.admit(requests).await {
            match outcome {
                Outcome::Admitted(_) => admitted += 1,
                Outcome::SoldOut => sold_out += 1,
                other => panic!("{other:?}"),
            }
        }
        let [stock, held] = deployment.units().await;
        assert!(stock >= 0);
        assert_eq!((stock, held), (10 - admitted, admitted));
    }
    assert_eq!((admitted, sold_out), (10, 13));
    assert_eq!(deployment.stream_ids().await.len(), 10);
}

#[tokio::test]
async fn a_stock_below_zero_sells_nothing_and_is_not_reset() {
    let deployment = Deployment::selling(&sale(5)).await;
    deployment.set_field(&deployment.sale_key(), "stock", "-3").await;
    assert_eq!(deployment.admit_one(press("ann")).await, Outcome::NotLoaded);
    assert_eq!(deployment.units().await, [-3, 0]);
}

#[tokio::test]
async fn requests_of_one_batch_see_each_other() {
    let deployment = Deployment::selling(&sale(10)).await;
    let requests = [
        press_with_key("ann", "k"),
        press_with_key("ann", "k"),
        press("ann"),
        press_with_key("bob", "k"),
        press_with_key("ann", "k2"),
    ];
    let outcomes = deployment.admit(&requests).await;
    let (ann, bob) = (outcomes[0].admitted(), outcomes[3].admitted());
    let already = Outcome::AlreadyOrdered(ann);
    let expected =
        [Outcome::Admitted(ann), Outcome::Replayed(ann), already, Outcome::Admitted(bob), already];
    assert_eq!(outcomes, expected);
    assert_eq!(deployment.units().await, [8, 2]);
}

#[tokio::test]
async fn two_buyers_with_the_same_key_never_meet() {
    let deployment = Deployment::selling(&sale(10)).await;
    let ann = deployment.admit_one(press_with_key("ann", "k")).await.admitted();
    let bob = deployment.admit_one(press_with_key("bob", "k")).await.admitted();
    assert_ne!(ann, bob);
    let again = deployment.admit(&[press_with_key("bob", "k"), press_with_key("ann", "k")]).await;
    assert_eq!(again, [Outcome::Replayed(bob), Outcome::Replayed(ann)]);
}

#[tokio::test]
async fn two_sales_of_one_buyer_never_meet() {
    let deployment = Deployment::selling(&sale(1)).await;
    let mut other = sale(1);
    other.id = SaleId::from_i64(43).expect("positive");
    deployment.publish(&other).await;
    let first = deployment.admit_one(press_with_key("ann", "k")).await.admitted();
    let request = [press_with_key("ann", "k")];
    let mut admission = deployment.admission();
    let batch = admission.admit(deployment.partition, other.id, &request).await.expect("answered");
    let second = outcomes(&batch)[0].admitted();
    assert!(first < second, "both orders are on the partition's one stream");
    assert_eq!(deployment.units().await, [0, 1]);
    let entry = deployment.redis.find_entry(deployment.partition, second).await.expect("answered");
    let order = decode(deployment.partition, &entry.expect("on the stream")).expect("an order");
    assert_eq!(order.sale_id, other.id);
}

#[tokio::test]
async fn buying_and_cancelling_in_a_loop_ends_at_the_order_cap() {
    let deployment = Deployment::empty().await;
    let fence = deployment.redis.fence(deployment.partition).await.expect("fenced");
    let record = |count: u64| Record {
        items: (0..count).map(|i| item(LOADED_MS + i, 1, false, None)).collect(),
    };
    let cap = u64::from(ORDERS_PER_BUYER_MAX);
    assert_eq!(cap, 20);
    let records = [(user("at-cap"), record(cap)), (user("below-cap"), record(cap - 1))];
    let loaded = deployment.redis.load_sale(&fence, &sale(10), 10, 0, &records).await;
    assert!(loaded.expect("answered"));
    let last_id = EntryId { ms: LOADED_MS + cap, seq: 0 };
    assert!(deployment.redis.open_gate(fence, last_id).await.expect("answered"));

    let before = deployment.contents().await;
    let latest = EntryId { ms: LOADED_MS + cap - 1, seq: 0 };
    let outcome = deployment.admit_one(press_with_key("at-cap", "k")).await;
    assert_eq!(outcome, Outcome::AlreadyOrdered(latest));
    assert_eq!(deployment.contents().await, before);
    deployment.admit_one(press("below-cap")).await.admitted();
}

#[tokio::test]
async fn a_buyer_may_hold_as_many_orders_as_the_sale_allows() {
    let mut many_each = sale(100);
    many_each.per_buyer = PER_BUYER_MAX;
    let deployment = Deployment::selling(&many_each).await;
    let requests = vec![press("ann"); usize::from(PER_BUYER_MAX) + 2];
    let outcomes = deployment.admit(&requests).await;
    let (admitted, refused) = outcomes.split_at(usize::from(PER_BUYER_MAX));
    let latest = admitted.last().expect("twenty").admitted();
    assert_eq!(refused, [Outcome::AlreadyOrdered(latest); 2]);
    let slots: Vec<u16> = (1..=PER_BUYER_MAX).collect();
    assert_eq!(deployment.slots_of("ann").await, slots);
}

#[tokio::test]
async fn a_new_order_takes_the_lowest_slot_that_is_free() {
    let mut three_each = sale(10);
    three_each.per_buyer = 3;
    let deployment = Deployment::selling(&three_each).await;
    let items = vec![item(LOADED_MS, 1, false, None), item(LOADED_MS + 1, 2, true, None)];
    set_record(&deployment, "ann", items).await;
    let first = deployment.admit_one(press("ann")).await.admitted();
    let second = deployment.admit_one(press("ann")).await.admitted();
    let latest = deployment.admit_one(press("ann")).await;
    assert_eq!(latest, Outcome::AlreadyOrdered(second));
    assert_eq!(deployment.slots_of("ann").await, [1, 3]);
    let items = record_of(&deployment, "ann").await.items;
    let taken: Vec<_> = items.iter().map(|i| (i.entry, i.slot, i.open)).collect();
    assert_eq!(taken[2..], [(first, 1, true), (second, 3, true)]);
    assert_eq!(taken.len(), 4, "what was there stays");
}

// ---- ids and entries

#[tokio::test]
async fn ids_rise_by_the_sequence_within_a_millisecond() {
    let deployment = Deployment::selling(&sale(100)).await;
    let batch = deployment.try_admit(&crowd(50)).await.expect("answered");
    let ms = u64::try_from(batch.now_ms).expect("after 1970");
    let ids: Vec<_> = outcomes(&batch).iter().map(|outcome| outcome.admitted()).collect();
    let expected: Vec<_> = (0..50).map(|seq| EntryId { ms, seq }).collect();
    assert_eq!(ids, expected);
    assert_eq!(deployment.stream_ids().await, expected);
}

#[tokio::test]
async fn after_sequence_4095_comes_the_next_millisecond() {
    let deployment = Deployment::selling(&sale(10)).await;
    let ms = server_now_ms(&deployment).await + 30_000;
    set_last_id(&deployment, EntryId { ms, seq: 4094 }).await;
    let ids: Vec<_> = deployment.admit(&crowd(3)).await.iter().map(|o| o.admitted()).collect();
    let expected =
        [EntryId { ms, seq: 4095 }, EntryId { ms: ms + 1, seq: 0 }, EntryId { ms: ms + 1, seq: 1 }];
    assert_eq!(ids, expected);
    let last: [u64; 2] =
        deployment.ask(&["HMGET", &deployment.gate_key(), "last_ms", "last_seq"]).await;
    assert_eq!(last, [ms + 1, 1], "the gate remembers the last id");
}

#[tokio::test]
async fn a_sequence_that_no_order_id_can_carry_is_left_behind() {
    let deployment = Deployment::selling(&sale(10)).await;
    let ms = server_now_ms(&deployment).await + 30_000;
    set_last_id(&deployment, EntryId { ms, seq: u64::MAX }).await;
    assert_eq!(deployment.admit_one(press("ann")).await.admitted(), EntryId { ms: ms + 1, seq: 0 });
}

#[tokio::test]
async fn a_gate_that_remembers_too_low_an_id_is_corrected_by_the_stream() {
    let deployment = Deployment::selling(&sale(10)).await;
    let ms = server_now_ms(&deployment).await + 30_000;
    let by_hand = format!("{ms}-9");
    deployment.ask::<()>(&["XADD", &deployment.orders_key(), &by_hand, "v", "1"]).await;
    let ids: Vec<_> = deployment.admit(&crowd(2)).await.iter().map(|o| o.admitted()).collect();
    assert_eq!(ids, [EntryId { ms, seq: 10 }, EntryId { ms, seq: 11 }]);

    let raised = EntryId { ms: ms + 5, seq: 0 };
    deployment.ask::<()>(&["XSETID", &deployment.orders_key(), &raised.to_string()]).await;
    let next = deployment.admit_one(press("next")).await.admitted();
    assert_eq!(next, EntryId { ms: raised.ms, seq: 1 });
}

#[tokio::test]
async fn a_gate_that_remembers_no_id_asks_the_stream() {
    let deployment = Deployment::selling(&sale(10)).await;
    let ms = server_now_ms(&deployment).await + 30_000;
    deployment.ask::<()>(&["XSETID", &deployment.orders_key(), &format!("{ms}-1")]).await;
    deployment.ask::<()>(&["HDEL", &deployment.gate_key(), "last_ms", "last_seq"]).await;
    assert_eq!(deployment.admit_one(press("ann")).await.admitted(), EntryId { ms, seq: 2 });
}

#[tokio::test]
async fn an_entry_holds_what_was_asked_for_in_a_form_that_is_golden() {
    let mut two_each = sale(10);
    two_each.per_buyer = 2;
    let deployment = Deployment::selling(&two_each).await;
    let odd_user = "用户 {0}:1;2|\"x\"";
    let with_key = press_with_key(odd_user, "k");
    let outcomes = deployment.admit(&[with_key.clone(), press(odd_user)]).await;
    let digest = with_key.digest.clone().expect("a key was given");
    let entries = deployment.read("worker", 10).await;
    assert_eq!(entries.len(), 2);

    let first = format!("2:42:1:7:{}:{odd_user}", digest.as_str());
    let second = format!("2:42:2:7::{odd_user}");
    assert_eq!(entries[0].fields, fields(&[(b"o", first.as_bytes())]));
    assert_eq!(entries[1].fields, fields(&[(b"o", second.as_bytes())]));

    for (i, entry) in entries.iter().enumerate() {
        let order = decode(deployment.partition, entry).expect("an order");
        assert_eq!(order.id.entry(), outcomes[i].admitted());
        assert_eq!(order.id.partition(), deployment.partition);
        assert_eq!(order.sale_id, two_each.id);
        assert_eq!(order.user_id, with_key.user_id);
        assert_eq!(usize::from(order.slot), i + 1);
        assert_eq!(order.epoch, two_each.epoch);
        assert_eq!(order.digest, if i == 0 { with_key.digest.clone() } else { None });
    }
}

#[tokio::test]
async fn the_largest_sale_id_comes_through_unrounded() {
    let deployment = Deployment::empty().await;
    deployment.open_gate().await;
    let mut largest = sale(1);
    largest.id = SaleId::from_i64(i64::MAX).expect("positive");
    largest.epoch = 9_007_199_254_740_993;
    deployment.publish(&largest).await;
    let mut admission = deployment.admission();
    let request = [press("ann")];
    admission.admit(deployment.partition, largest.id, &request).await.expect("answered");
    let entries = deployment.read("worker", 10).await;
    let order = decode(deployment.partition, &entries[0]).expect("an order");
    assert_eq!(order.sale_id, largest.id);
    assert_eq!(order.epoch, largest.epoch, "an epoch above 2^53 is carried as text");
}

// ---- what fails changes nothing

#[tokio::test]
async fn a_key_of_the_wrong_type_fails_the_batch_and_changes_nothing() {
    for wrong in 0..4 {
        let deployment = Deployment::selling(&sale(10)).await;
        deployment.admit_one(press("early")).await.admitted();
        let key = &deployment.admit_keys()[wrong];
        deployment.ask::<()>(&["DEL", key]).await;
        deployment.ask::<()>(&["SET", key, "a string"]).await;
        let before = deployment.contents().await;
        let answer = deployment.try_admit(&crowd(3)).await;
        assert!(is_error_of_redis(&answer, "WRONGTYPE"), "{key}: {answer:?}");
        assert_eq!(deployment.contents().await, before, "{key}");
    }
}

fn is_error_of_redis<T>(answer: &Result<T, RedisFault>, code: &str) -> bool {
    match answer {
        Err(fault @ RedisFault::Command(error)) => {
            error.to_string().contains(code) && !fault.is_outcome_unknown()
        }
        _ => false,
    }
}

#[tokio::test]
async fn malformed_arguments_are_an_error_and_change_nothing() {
    let deployment = Deployment::selling(&sale(10)).await;
    let before = deployment.contents().await;
    let keys = deployment.admit_keys();
    let cases: [&[&str]; 9] = [
        &[],
        &["42"],
        &["42", "20"],
        &["42", "20", ""],
        &["42", "20", "", "ann"],
        &["42", "20", "", "ann", ""],
        &["42", "20", "", "ann", "", "", "bob"],
        &["42", "20", "", "ann", "", "", "bob", ""],
        &["42", "many", "", "ann", "", ""],
    ];
    for arguments in cases {
        let mut command = vec!["EVAL", ADMIT_TEXT, "4"];
        command.extend(keys.iter().map(String::as_str));
        command.extend(arguments);
        let answer: Result<redis::Value, RedisError> = deployment.try_ask(&command).await;
        let error = answer.expect_err("malformed");
        assert!(error.code().is_some(), "Redis itself refuses {arguments:?}: {error:?}");
        assert_eq!(deployment.contents().await, before, "{arguments:?}");
    }
    // The same call in its right form is understood.
    let mut command = vec!["EVAL", ADMIT_TEXT, "4"];
    command.extend(keys.iter().map(String::as_str));
    command.extend(["42", "20", "", "ann", "", ""]);
    deployment.ask::<redis::Value>(&command).await;
    assert_eq!(deployment.units().await, [9, 1]);
}

#[tokio::test]
async fn a_batch_without_requests_is_an_error_and_changes_nothing() {
    let deployment = Deployment::selling(&sale(10)).await;
    let before = deployment.contents().await;
    assert!(deployment.try_admit(&[]).await.is_err());
    assert_eq!(deployment.contents().await, before);
}

#[tokio::test]
async fn without_memory_admission_fails_and_changes_nothing() {
    let server = RedisServer::start();
    let deployment = Deployment::selling_on(&server, &sale(10)).await;
    let order = deployment.admit_one(press_with_key("early", "k")).await.admitted();
    let before = deployment.contents().await;
    deployment.ask::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let answer = deployment.try_admit(&crowd(3)).await;
    assert!(is_error_of_redis(&answer, "OOM"), "{answer:?}");
    assert_eq!(deployment.contents().await, before);
    // Whoever has an order is still told so: that needs no memory.
    let replay = deployment.admit_one(press_with_key("early", "k")).await;
    assert_eq!(replay, Outcome::Replayed(order));

    deployment.ask::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(deployment.admit(&crowd(3)).await.iter().all(|o| matches!(o, Outcome::Admitted(_))));
    assert_eq!(deployment.units().await, [6, 4]);
}

#[tokio::test]
async fn a_flushed_script_cache_is_not_seen_by_the_buyer() {
    let server = RedisServer::start();
    let deployment = Deployment::selling_on(&server, &sale(10)).await;
    let mut admission = deployment.admission();
    for i in 1..=3 {
        deployment.ask::<()>(&["SCRIPT", "FLUSH"]).await;
        let request = [press(&format!("buyer-{i}"))];
        let batch = admission.admit(deployment.partition, sale(1).id, &request).await;
        outcomes(&batch.expect("loaded and tried again"))[0].admitted();
        assert_eq!(deployment.units().await, [10 - i, i], "once");
    }
}

#[tokio::test]
async fn the_state_of_a_sale_is_what_set_sale_state_made_it() {
    let deployment = Deployment::selling(&sale(10)).await;
    let cases = [(SaleState::Paused, Outcome::Paused), (SaleState::Closed, Outcome::Ended)];
    for (state, outcome) in cases {
        let done = deployment.redis.set_sale_state(deployment.partition, sale(1).id, state).await;
        assert!(done.expect("answered"));
        assert_eq!(deployment.admit_one(press("ann")).await, outcome);
    }
}
