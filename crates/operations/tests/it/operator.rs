//! An operator's changes: what may change when, each in the audit log with who made it.

use flashsale_domain::{IdempotencyKey, LatePayment, Price, Sale, SaleId, Window};
use flashsale_operations::{Refused, SaleView};
use flashsale_storage_sql::SaleEdit;

use crate::support::{Stand, new_sale, on_both, only, refused};

/// Actor, action, subject and detail of each line, oldest first.
async fn lines(stand: &Stand) -> Vec<[String; 4]> {
    let mut lines = stand.database.list_audit(100).await.expect("answered");
    lines.reverse();
    lines.into_iter().map(|line| [line.actor, line.action, line.subject, line.detail]).collect()
}

fn line(action: &str, sale: SaleId, detail: &str) -> [String; 4] {
    ["an operator", action, &sale.to_string(), detail].map(str::to_owned)
}

on_both!(each_change_leaves_a_line_with_who_made_it, async |stand: Stand| {
    let operator = stand.operations.by("an operator");
    let id = operator.create_sale(&new_sale(7)).await.expect("created").id;
    let edit = SaleEdit { title: Some(" Ticket ".to_owned()), per_buyer: Some(2), ..no_edit() };
    operator.edit_sale(id, &edit).await.expect("edited");
    operator.publish_sale(id).await.expect("published");
    operator.publish_sale(id).await.expect("published already");
    operator.pause_sale(id).await.expect("paused");
    operator.resume_sale(id).await.expect("resumed");
    operator.rebuild_sale(id).await.expect("rebuilt");
    operator.close_sale(id).await.expect("closed");
    // What is refused changes nothing, and leaves no line.
    refused(operator.pause_sale(id).await);
    refused(operator.edit_sale(id, &edit).await);
    assert_eq!(
        lines(&stand).await,
        [
            line("sale.create", id, "7 units, queued: Voucher"),
            line("sale.edit", id, "changed title, per_buyer: Ticket"),
            line("sale.publish", id, "is published"),
            line("sale.publish", id, "is published"),
            line("sale.pause", id, "is paused"),
            line("sale.resume", id, "is published"),
            line("sale.rebuild", id, "partition 0 is rebuilt"),
            line("sale.close", id, "is closed"),
        ]
    );
});

on_both!(a_change_that_stops_half_way_leaves_a_line_that_says_so, async |stand: Stand| {
    let operator = stand.operations.by("an operator");
    let sale = stand.publish(3).await;
    operator.pause_sale(sale.id).await.expect("paused");
    stand.forget_everything(&[&sale]).await;
    let not_loaded = refused(operator.resume_sale(sale.id).await);
    assert!(matches!(not_loaded, Refused::NotLoaded(_)), "{not_loaded}");
    let what = format!("not finished: {not_loaded}");
    assert_eq!(lines(&stand).await.pop(), Some(line("sale.resume", sale.id, &what)));
});

fn no_edit() -> SaleEdit {
    SaleEdit::default()
}

on_both!(all_of_a_draft_can_be_edited_and_later_only_its_title, async |stand: Stand| {
    let operations = &stand.operations;
    let draft = stand.create(5).await;
    let window = Window::new(1_704_153_600_000, 3_000_000_000_000).expect("a window");
    let price = Price { amount: 1, currency: "EUR".parse().expect("a currency") };
    let all = SaleEdit {
        title: Some("Another".to_owned()),
        window: Some(window),
        per_buyer: Some(3),
        price: Some(price),
        payment_window_s: Some(60),
        late_payment: Some(LatePayment::Refund),
    };
    let edited = operations.edit_sale(draft.id, &all).await.expect("edited");
    let expected = Sale {
        title: "Another".to_owned(),
        window,
        per_buyer: 3,
        price,
        payment_window_s: 60,
        late_payment: LatePayment::Refund,
        ..draft.clone()
    };
    assert_eq!(edited, expected);
    assert!(matches!(
        refused(
            operations.edit_sale(draft.id, &SaleEdit { per_buyer: Some(21), ..no_edit() }).await
        ),
        Refused::NewSale(_)
    ));
    let none = refused(operations.edit_sale(draft.id, &no_edit()).await);
    assert!(matches!(none, Refused::NoChange), "{none}");

    operations.publish_sale(draft.id).await.expect("published");
    let title = SaleEdit { title: Some("Late".to_owned()), ..no_edit() };
    for paused in [false, true] {
        if paused {
            operations.pause_sale(draft.id).await.expect("paused");
        }
        let live = operations.edit_sale(draft.id, &title).await.expect("edited");
        assert_eq!((live.title.as_str(), live.per_buyer), ("Late", 3));
        for fixed in [
            SaleEdit { window: Some(window), ..no_edit() },
            SaleEdit { per_buyer: Some(1), ..title.clone() },
            SaleEdit { price: Some(price), ..no_edit() },
            SaleEdit { payment_window_s: Some(1), ..no_edit() },
            SaleEdit { late_payment: Some(LatePayment::Refund), ..no_edit() },
        ] {
            let why = refused(operations.edit_sale(draft.id, &fixed).await);
            assert!(matches!(why, Refused::OnlyTitle { .. }), "{fixed:?}: {why}");
        }
    }
    operations.close_sale(draft.id).await.expect("closed");
    let closed = refused(operations.edit_sale(draft.id, &title).await);
    assert!(matches!(closed, Refused::Closed(_)), "{closed}");
});

on_both!(a_stock_that_is_asked_for_again_under_its_key_changes_once, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let key = |text: &str| IdempotencyKey::new(text).expect("a key");
    let adjust = async |delta: i64, reason: &str, under: &str| {
        let under = key(under);
        let asked = stand.operations.adjust_stock_once("o", sale.id, delta, reason, Some(&under));
        asked.await
    };
    assert_eq!(adjust(5, "r", "k1").await.expect("adjusted").stock_total, 15);
    for _ in 0..2 {
        assert_eq!(adjust(-2, "r", "k2").await.expect("adjusted").stock_total, 13);
        assert_eq!(adjust(5, "r", "k1").await.expect("was adjusted").stock_total, 13);
    }
    assert_eq!(stand.units(&sale).await[0], 13);
    for (delta, reason) in [(4, "r"), (5, "another")] {
        let reused = refused(adjust(delta, reason, "k1").await);
        assert!(matches!(reused, Refused::KeyReused(_)), "{reused}");
    }
    // Another sale's keys are its own.
    let other = stand.publish(1).await;
    let asked = stand.operations.adjust_stock_once("o", other.id, 4, "r", Some(&key("k1"))).await;
    assert_eq!(asked.expect("adjusted").stock_total, 5);

    // A refusal in Redis does not keep its key: asked for again, it is decided anew.
    let ids = stand.admit(&sale, "buyer", 12).await;
    let too_few = refused(adjust(-3, "r", "k3").await);
    assert!(matches!(too_few, Refused::TooFewLeft { left: 1, .. }), "{too_few}");
    assert_eq!(ids.len(), 12);
    adjust(5, "r", "k4").await.expect("adjusted");
    assert_eq!(adjust(-3, "r", "k3").await.map(|sale| sale.stock_total).ok(), Some(15));
    assert_eq!(stand.units(&sale).await[0], 3);
    // One that was carried out is answered also when the sale is over.
    stand.operations.close_sale(sale.id).await.expect("closed");
    assert_eq!(adjust(5, "r", "k4").await.expect("was adjusted").stock_total, 15);
});

on_both!(an_adjustment_that_waits_is_taken_up_again_under_its_key, async |stand: Stand| {
    let sale = stand.publish(10).await;
    let key = IdempotencyKey::new("k").expect("a key");
    let adjust =
        async || stand.operations.adjust_stock_once("o", sale.id, 5, "r", Some(&key)).await;
    let fence = stand.redis.fence(only()).await.expect("fenced");
    for _ in 0..2 {
        let waits = refused(adjust().await);
        assert!(matches!(waits, Refused::AdjustmentWaits(_)), "{waits}");
    }
    let last = fence.last_id;
    assert!(stand.redis.open_gate(fence, last).await.expect("opened"));
    assert_eq!(adjust().await.expect("adjusted").stock_total, 15);
    assert_eq!(adjust().await.expect("adjusted").stock_total, 15);
    assert_eq!(stand.units(&sale).await[0], 15);
    assert_eq!(lines(&stand).await.len(), 1, "one adjustment is one line");
});

on_both!(who_works_is_listed_with_what_is_held, async |stand: Stand| {
    assert_eq!(
        stand.operations.list_workers().await.expect("answered").partitions[0].backlog,
        None
    );
    let sale = stand.publish(3).await;
    stand.admit(&sale, "buyer", 3).await;
    let workers = stand.operations.list_workers().await.expect("answered");
    let partition = &workers.partitions[0];
    assert_eq!((workers.partitions.len(), partition.partition), (1, 0));
    assert_eq!(partition.backlog.expect("known").undelivered, Some(3));
    stand.work().await;
    let workers = stand.operations.list_workers().await.expect("answered");
    let partition = &workers.partitions[0];
    let backlog = partition.backlog.expect("known");
    assert_eq!((backlog.undelivered, backlog.pending), (Some(0), 0));
    assert_eq!(partition.consumers.len(), 1, "{partition:?}");
    assert_eq!(partition.consumers[0].pending, 0);
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_shown_as_it_can_be_read_again() {
    let stand = Stand::sqlite().await;
    let shown = SaleView::from(stand.publish(3).await);
    let text = serde_json::to_string(&shown).expect("is JSON");
    assert_eq!(serde_json::from_str::<SaleView>(&text).expect("is read"), shown);
    assert!(text.contains("\"late_payment\":\"reacquire\",\"partition\":0"), "{text}");
}
