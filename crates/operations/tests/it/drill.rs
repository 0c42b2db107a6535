//! What drills do to a sale of their own, and that they do it to no other.

use flashsale_domain::{Sale, SaleState};
use flashsale_operations::{DeadFilter, Refused, SettleAs, Settling};
use flashsale_storage_redis::DrillFate;
use flashsale_storage_sql::AuditFilter;

use crate::support::{Stand, new_sale, on_both, only, refused, user_id};

const WHO: &str = "drill-sergeant";

async fn begin(stand: &Stand, name: &str) -> Sale {
    stand.redis.ensure_group(only()).await.expect("a group");
    stand.operations.by(WHO).begin_drill(name, &new_sale(5)).await.expect("begun")
}

async fn clean_up(stand: &Stand, sale: &Sale) {
    stand.operations.by(WHO).clean_up_rehearsal(sale.id).await.expect("cleaned up");
    assert_eq!(stand.operations.list_rehearsals().await.expect("listed"), []);
}

on_both!(a_drills_dead_letter_is_its_sales_and_takes_no_unit, async |stand: Stand| {
    let sale = begin(&stand, "dead-letters").await;
    stand.operations.drill_dead_letter(&sale).await.expect("caused");
    assert_eq!(stand.work().await.dead, 1);
    let filter = DeadFilter { sale_id: Some(sale.id), ..DeadFilter::default() };
    let dead = stand.operations.list_dead(&filter).await.expect("listed");
    assert_eq!(dead.iter().map(|dead| dead.reason.as_str()).collect::<Vec<_>>(), ["epoch-ahead"]);
    // Buyers are admitted behind it.
    stand.admit(&sale, "rehearsal:x", 2).await;
    stand.work().await;
    stand.assert_clean(&sale).await;
    clean_up(&stand, &sale).await;
    assert!(stand.operations.list_dead(&DeadFilter::default()).await.expect("listed").is_empty());
});

on_both!(a_drills_lost_order_is_named_and_settled_like_any_other, async |stand: Stand| {
    let sale = begin(&stand, "entries-lost").await;
    let entry = stand.operations.drill_lost_entry(&sale).await.expect("caused");
    assert_eq!(stand.redis.find_entry(only(), entry).await.expect("answered"), None);
    stand.assert_found(&sale, "I3", "neither row, entry nor dead letter").await;
    let lost = Settling { orders: vec![], settle_as: SettleAs::Order, receipts: vec![] };
    let settled = stand.operations.settle_lost(sale.id, &lost, WHO, false).await.expect("settled");
    assert_eq!(settled.iter().filter(|order| order.settled).count(), 1, "{settled:?}");
    stand.assert_clean(&sale).await;
    clean_up(&stand, &sale).await;
});

on_both!(a_drill_holds_its_own_order_and_nobody_elses, async |stand: Stand| {
    let neighbour = stand.publish(10).await;
    let sale = begin(&stand, "orders-waiting").await;
    let user = user_id("rehearsal:drill");
    let order = |fate| stand.redis.drill_order(only(), sale.id, &user, "drill", fate);
    // A neighbour's order that nobody has had, or that a worker has: it is not for a drill to touch.
    stand.admit(&neighbour, "real", 1).await;
    for fate in [DrillFate::Held, DrillFate::Lost] {
        assert_eq!(order(fate).await.expect("answered"), None, "{fate:?}");
    }
    let theirs = stand.read(10).await;
    assert_eq!(order(DrillFate::Lost).await.expect("answered"), None);
    assert_eq!(stand.units(&sale).await[..2], [5, 0], "nothing was admitted");

    let held = stand.operations.drill_held_order(&sale).await.expect("held");
    assert!(stand.read(10).await.is_empty(), "a worker has got it");
    assert!(stand.operations.keep_drill_order(&held).await.expect("kept"));
    assert_eq!(stand.process(theirs).await.done, 1);
    stand.assert_clean(&neighbour).await;
    let busy = refused(stand.operations.by(WHO).clean_up_rehearsal(sale.id).await);
    assert!(matches!(busy, Refused::RehearsalBusy { what: 1, .. }), "{busy}");

    stand.operations.hand_back_drill_order(&held).await.expect("handed back");
    let idle = std::time::Duration::from_secs(600);
    let page = stand.redis.claim(only(), "test", idle, None, 10).await.expect("claimed");
    assert_eq!(stand.process(page.entries).await.done, 1);
    assert!(!stand.operations.keep_drill_order(&held).await.expect("answered"));
    stand.assert_clean(&sale).await;
    clean_up(&stand, &sale).await;
    stand.assert_clean(&neighbour).await;
});

on_both!(a_drills_imbalance_goes_with_its_sale, async |stand: Stand| {
    let sale = begin(&stand, "ledger-imbalance").await;
    stand.operations.drill_imbalance(&sale).await.expect("caused");
    assert!(!stand.ledger(&sale).await.is_balanced());
    clean_up(&stand, &sale).await;

    let filter = AuditFilter { action: Some("drill".to_owned()), limit: 10, ..Default::default() };
    let lines = stand.operations.list_audit_log(&filter).await.expect("a log");
    let said: Vec<_> = lines
        .iter()
        .map(|line| (line.actor.as_str(), line.subject.clone(), line.detail.as_str()))
        .collect();
    assert_eq!(said, [(WHO, sale.id.to_string(), "ledger-imbalance")]);
});

on_both!(a_drill_closes_no_gate_that_a_sale_of_everybody_needs, async |stand: Stand| {
    let real = stand.publish(10).await;
    let sale = begin(&stand, "gate-closed").await;
    let closed = stand.operations.drill_closed_gate(&sale, async { panic!("it is closed") }).await;
    let why = refused(closed);
    assert!(matches!(why, Refused::DrillInTheWay { sale, .. } if sale == real.id), "{why}");
    assert!(stand.gate_is_open(&real).await);

    stand.operations.close_sale(real.id).await.expect("closed");
    let is_closed = async { assert!(!stand.gate_is_open(&sale).await) };
    stand.operations.drill_closed_gate(&sale, is_closed).await.expect("closed and opened");
    assert!(stand.gate_is_open(&sale).await);
    clean_up(&stand, &sale).await;
});

on_both!(no_drill_touches_a_sale_of_everybody, async |stand: Stand| {
    let real = stand.publish(10).await;
    let never = async { panic!("it is closed") };
    let operations = &stand.operations;
    let refusals = [
        refused(operations.drill_dead_letter(&real).await),
        refused(operations.drill_lost_entry(&real).await),
        refused(operations.drill_imbalance(&real).await),
        refused(operations.drill_held_order(&real).await.map(|_| ())),
        refused(operations.drill_closed_gate(&real, never).await),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Refused::NotARehearsal(_)), "{refusal}");
    }
    // Nor does one that pretends to be a drill's.
    let pretended = Sale { rehearsal: true, state: SaleState::Closed, ..real.clone() };
    let refusal = refused(operations.drill_imbalance(&pretended).await);
    assert!(matches!(refusal, Refused::NotARehearsal(_)), "{refusal}");
    stand.assert_clean(&real).await;
});
