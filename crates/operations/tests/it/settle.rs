//! Lost orders: found, settled by one command, and right whatever happens at the same time.

use flashsale_domain::{NewOrder, OrderId, OrderState, RejectReason, Sale};
use flashsale_operations::{Receipt, Refused, SettleAs, SettledOrder, Settling};
use flashsale_storage_redis::Released;
use flashsale_storage_sql::Commit;
use flashsale_test_support::{RedisServer, eventually};

use crate::support::{SOON, Stand, neighbour, on_both, only, press, refused, user_id};

const ACTOR: &str = "operator-1";

fn all(settle_as: SettleAs) -> Settling {
    Settling { orders: Vec::new(), settle_as, receipts: Vec::new() }
}

fn told(ids: &[OrderId]) -> Vec<Receipt> {
    let receipt = |(i, id): (usize, &OrderId)| Receipt {
        order_id: *id,
        user_id: user_id(&format!("buyer-{i}")),
    };
    ids.iter().enumerate().map(receipt).collect()
}

impl Stand {
    async fn settle(&self, sale: &Sale, settling: &Settling) -> Vec<SettledOrder> {
        self.operations.settle_lost(sale.id, settling, ACTOR, false).await.expect("settled")
    }

    async fn take_entry(&self, id: OrderId) {
        let key = self.keys.orders(only());
        assert_eq!(self.ask::<i64>(&["XDEL", &key, &id.entry().to_string()]).await, 1);
    }

    /// `buyer-0` to `buyer-2` were admitted; the entry of `buyer-1` is gone, the others are rows.
    async fn one_of_three_lost(&self) -> (Sale, Vec<OrderId>) {
        let sale = self.publish(20).await;
        let ids = self.admit(&sale, "buyer", 3).await;
        self.take_entry(ids[1]).await;
        assert_eq!(self.work().await.done, 2);
        (sale, ids)
    }

    async fn state_of(&self, id: OrderId) -> (OrderState, Option<String>) {
        let row = self.database.find_order(id).await.expect("answered").expect("a row");
        (row.order.state, row.order.reason)
    }

    async fn settlements(&self) -> Vec<(String, String, String)> {
        let log = self.database.list_audit(100).await.expect("answered").into_iter();
        let settled = log.filter(|line| line.action == "order.settle");
        settled.map(|line| (line.actor, line.subject, line.detail)).collect()
    }
}

on_both!(a_lost_order_is_named_and_written_after_all, async |stand: Stand| {
    let (sale, ids) = stand.one_of_three_lost().await;
    let command = format!("run `salectl settle {}`", sale.id);
    stand.assert_found(&sale, "I3", &command).await;
    stand.assert_found(&sale, "I3", &format!("order {} of buyer \"buyer-1\"", ids[1])).await;

    let dry = stand.operations.settle_lost(sale.id, &all(SettleAs::Order), ACTOR, true).await;
    let dry = dry.expect("answered");
    assert_eq!((dry.len(), dry[0].settled), (1, false), "{dry:?}");
    assert_eq!(dry[0].what, "would be written as an order");
    assert_eq!(stand.settlements().await, []);

    let settled = stand.settle(&sale, &all(SettleAs::Order)).await;
    assert_eq!(settled.len(), 1, "{settled:?}");
    assert!(settled[0].settled && settled[0].order_id == ids[1], "{settled:?}");
    assert_eq!(settled[0].user_id.as_deref(), Some("buyer-1"));
    assert_eq!(stand.state_of(ids[1]).await, (OrderState::AwaitingPayment, None));
    let line = (ACTOR, ids[1].to_string(), "its entry was lost: waits for payment now");
    assert_eq!(stand.settlements().await, [(line.0.to_owned(), line.1, line.2.to_owned())]);
    assert_eq!(stand.units(&sale).await, [17, 3, sale.epoch]);
    stand.assert_clean(&sale).await;
    // The row bears slot and key: it is given up and released like any other.
    let again = stand.press(&sale, &[press("buyer-1")]).await;
    assert!(again[0].is_ok_and(|a| a.replayed && a.order_id == ids[1]), "{again:?}");
    stand.operations.cancel_order(ids[1], &user_id("buyer-1")).await.expect("cancelled");
    assert_eq!(stand.relay().await, [Released::Done]);
    stand.assert_clean(&sale).await;
    assert_eq!(stand.settle(&sale, &all(SettleAs::Order)).await.len(), 0, "nothing is left");
});

on_both!(
    a_lost_order_that_is_rejected_gives_back_once_whoever_stops_in_between,
    async |stand: Stand| {
        let (sale, ids) = stand.one_of_three_lost().await;
        let settled = stand.settle(&sale, &all(SettleAs::Rejected)).await;
        assert_eq!(settled[0].what, "is rejected: entry-lost");
        // Whoever settled is gone; the release waits in the outbox, and nothing is amiss meanwhile.
        assert_eq!(stand.units(&sale).await, [17, 3, sale.epoch]);
        let ledger = stand.ledger(&sale).await;
        assert_eq!((ledger.in_transit, ledger.rejected), (1, 1), "{ledger:?}");
        stand.assert_clean(&sale).await;
        // Settling once more, either way, finds nothing to do.
        for settle_as in [SettleAs::Rejected, SettleAs::Order] {
            assert_eq!(stand.settle(&sale, &all(settle_as)).await.len(), 0);
        }
        let release = stand.database.list_releases(0, 10).await.expect("answered").remove(0);
        assert_eq!(stand.carry_out(&release).await, Released::Done);
        assert_eq!(stand.relay().await, [Released::Nothing], "a second time");
        assert_eq!(stand.units(&sale).await, [18, 2, sale.epoch]);
        let reason = Some("entry-lost".to_owned());
        assert_eq!(stand.state_of(ids[1]).await, (OrderState::Rejected, reason));
        stand.assert_clean(&sale).await;
        // His slot is free for another order.
        let mut other = press("buyer-1");
        other.digest = None;
        let placed = stand.press(&sale, &[other]).await;
        assert!(placed[0].is_ok_and(|a| !a.replayed), "{placed:?}");
        stand.work().await;
        stand.assert_clean(&sale).await;
    }
);

on_both!(what_the_database_refuses_is_rejected_as_a_worker_would, async |stand: Stand| {
    let (sale, ids) = stand.one_of_three_lost().await;
    // Another open order of the buyer has the slot.
    let holder = neighbour(ids[0], -1);
    stand.insert_row(holder, &sale, "buyer-1", "awaiting_payment").await;
    let take =
        |by| format!("UPDATE sales SET stock_left = stock_left - {by} WHERE id = {}", sale.id);
    stand.execute(&take(1)).await;
    let settled = stand.settle(&sale, &all(SettleAs::Order)).await;
    assert_eq!(settled[0].what, "is rejected: slot-taken");
    let instead = stand.database.list_releases(0, 10).await.expect("answered");
    assert_eq!(instead[0].instead.as_ref().map(|stored| stored.order.id), Some(holder));
    stand.database.delete_releases(&[instead[0].id]).await.expect("deleted");

    // No unit is left: Redis had one too many.
    let late = stand.admit(&sale, "late", 1).await;
    stand.take_entry(late[0]).await;
    stand.execute(&take(17)).await;
    let settled = stand.settle(&sale, &all(SettleAs::Order)).await;
    let of_late = settled.iter().find(|outcome| outcome.order_id == late[0]).expect("settled");
    assert_eq!((of_late.settled, of_late.what.as_str()), (true, "is rejected: stock-gone"));
    assert!(!stand.database.list_releases(0, 10).await.expect("answered")[0].returns_unit);
});

on_both!(an_entry_that_was_only_late_is_one_row, async |stand: Stand| {
    for (settle_as, ends) in [
        (SettleAs::Order, (OrderState::AwaitingPayment, None)),
        (SettleAs::Rejected, (OrderState::Rejected, Some("entry-lost".to_owned()))),
    ] {
        let sale = stand.publish(20).await;
        let ids = stand.admit(&sale, "buyer", 2).await;
        // A worker has both in its hands when one is taken from the stream.
        let in_hand = stand.read(10).await;
        stand.take_entry(ids[0]).await;
        assert_eq!(stand.settle(&sale, &all(settle_as)).await.len(), 1);
        let processed = stand.process(in_hand).await;
        assert_eq!((processed.done, processed.dead), (2, 0), "{settle_as:?}");
        assert_eq!(stand.state_of(ids[0]).await, ends);
        stand.relay().await;
        let ledger = stand.ledger(&sale).await;
        assert_eq!(ledger.awaiting_payment + ledger.rejected, 2, "{ledger:?}");
        stand.assert_clean(&sale).await;
    }
});

/// The worker comes back between the operator's two readings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_faster_leaves_the_operator_nothing_to_do() {
    // A server of its own, because its commands are counted.
    let server = tokio::task::block_in_place(RedisServer::start);
    let stand = Stand::on_redis(&server).await;
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 1).await;
    let in_hand = stand.read(10).await;
    stand.take_entry(ids[0]).await;
    let gets = async || {
        let stats: String = stand.ask(&["INFO", "commandstats"]).await;
        let of_hget =
            stats.split("cmdstat_hget:calls=").nth(1).and_then(|rest| rest.split(',').next());
        of_hget.map_or(0, |calls| calls.parse::<u64>().expect("a number"))
    };
    let before = gets().await;
    let settling = all(SettleAs::Rejected);
    let work = async {
        // The dead letter, and at the end of the reading the id of the last rebuild.
        eventually(SOON, "the first reading", async || gets().await >= before + 2).await;
        stand.process(in_hand).await
    };
    let (settled, processed) = tokio::join!(stand.settle(&sale, &settling), work);
    assert_eq!(processed.done, 1);
    assert_eq!(settled.len(), 0, "{settled:?}");
    assert_eq!(stand.state_of(ids[0]).await, (OrderState::AwaitingPayment, None));
    stand.assert_clean(&sale).await;
}

on_both!(
    a_worker_that_is_faster_than_the_last_look_stays_the_one_who_wrote_it,
    async |stand: Stand| {
        let sale = stand.publish(20).await;
        let id = stand.admit(&sale, "buyer", 1).await[0];
        assert_eq!(stand.work().await.done, 1);
        let order = NewOrder {
            id,
            sale_id: sale.id,
            user_id: user_id("buyer-0"),
            slot: 1,
            epoch: sale.epoch,
            digest: press("buyer-0").digest,
        };
        for rejected in [None, Some(RejectReason::EntryLost)] {
            let commit = stand.database.settle_order(&order, rejected, ACTOR, "late").await;
            assert_eq!(commit.expect("answered"), Commit::Redelivered);
        }
        assert_eq!(stand.state_of(id).await, (OrderState::AwaitingPayment, None));
        assert_eq!(stand.relay().await, []);
        stand.assert_clean(&sale).await;
    }
);

on_both!(two_operators_at_once_come_to_one_end, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    for id in &ids {
        stand.take_entry(*id).await;
    }
    let (as_order, as_rejected) = (all(SettleAs::Order), all(SettleAs::Rejected));
    let (a, b) = tokio::join!(stand.settle(&sale, &as_order), stand.settle(&sale, &as_rejected));
    // Who is slower may find some of them settled at his second reading.
    assert!(a.len() == 10 || b.len() == 10, "{a:?} {b:?}");
    let both = a.iter().filter_map(|a| Some((a, b.iter().find(|b| b.order_id == a.order_id)?)));
    for (a, b) in both {
        assert!(a.settled && b.settled, "{a:?} {b:?}");
        let faster = usize::from(a.what == "waits for payment now")
            + usize::from(b.what == "is rejected: entry-lost");
        assert_eq!(faster, 1, "{a:?} {b:?}");
        let (state, _) = stand.state_of(a.order_id).await;
        let slower = if a.what.starts_with("was") { &a.what } else { &b.what };
        assert_eq!(*slower, format!("was a row already: {state}"));
    }
    stand.relay().await;
    let ledger = stand.ledger(&sale).await;
    assert_eq!(ledger.awaiting_payment + ledger.rejected, 10);
    stand.assert_clean(&sale).await;
});

on_both!(a_memory_that_is_not_to_be_trusted_settles_nothing, async |stand: Stand| {
    let (sale, ids) = stand.one_of_three_lost().await;
    let settle =
        async || stand.operations.settle_lost(sale.id, &all(SettleAs::Order), ACTOR, false).await;
    // Opened on another server.
    let gate = stand.keys.gate(only());
    let replid: String = stand.ask(&["HGET", &gate, "replid"]).await;
    stand.ask::<i64>(&["HSET", &gate, "replid", "0000"]).await;
    let stale = refused(settle().await);
    assert!(matches!(stale, Refused::NotLoaded(_)), "{stale}");
    assert!(stale.to_string().contains("salectl rebuild"), "{stale}");
    stand.ask::<i64>(&["HSET", &gate, "replid", &replid]).await;
    // Rebuilt between the two readings, or closed at one of them.
    let (settled, rebuilt) = tokio::join!(settle(), stand.operations.rebuild_partition(only()));
    rebuilt.expect("rebuilt");
    let moved = refused(settled);
    assert!(matches!(moved, Refused::RebuiltMeanwhile(_) | Refused::NotLoaded(_)), "{moved}");
    let fence = stand.redis.fence(only()).await.expect("fenced");
    let closed = refused(settle().await);
    assert!(matches!(closed, Refused::NotLoaded(_)), "{closed}");
    drop(fence);
    assert!(stand.database.find_order(ids[1]).await.expect("answered").is_none());
    // Rebuilt after the second reading: the unit that the record held is somebody else's by now.
    let order = NewOrder {
        id: ids[1],
        sale_id: sale.id,
        user_id: user_id("buyer-1"),
        slot: 1,
        epoch: sale.epoch,
        digest: press("buyer-1").digest,
    };
    let rejected = Some(RejectReason::EntryLost);
    let commit = stand.database.settle_order(&order, rejected, ACTOR, "late").await;
    assert_eq!(commit.expect("answered"), Commit::Rejected(RejectReason::MemoryLost));
    assert_eq!(stand.database.count_releases(sale.id).await.expect("answered"), 0);
});

on_both!(what_redis_forgot_is_settled_from_the_receipts, async |stand: Stand| {
    let sale = stand.publish(5).await;
    let lost = stand.admit(&sale, "buyer", 3).await;
    let in_hand = stand.read(10).await;
    stand.forget_everything(&[&sale]).await;
    let receipts = told(&lost);
    let settling = Settling { receipts: receipts.clone(), ..all(SettleAs::Order) };
    let closed = stand.operations.settle_lost(sale.id, &settling, ACTOR, false).await;
    assert!(matches!(refused(closed), Refused::NotLoaded(_)));
    stand.operations.rebuild_partition(only()).await.expect("rebuilt");
    let audit = stand.operations.audit_sale(sale.id, &receipts).await.expect("an audit");
    assert_eq!(audit.findings_total, 3, "{:?}", audit.findings);
    assert!(audit.findings.iter().all(|f| f.what.contains("salectl settle")), "{audit:?}");

    let settled = stand.settle(&sale, &settling).await;
    assert_eq!(settled.len(), 3);
    for (outcome, id) in settled.iter().zip(&lost) {
        assert_eq!((outcome.settled, outcome.what.as_str()), (true, "is rejected: memory-lost"));
        let reason = Some("memory-lost".to_owned());
        assert_eq!(stand.state_of(*id).await, (OrderState::Rejected, reason));
    }
    assert_eq!(stand.relay().await, [], "Redis holds nothing for them");
    assert_eq!(stand.units(&sale).await, [5, 0, sale.epoch + 1]);
    let audit = stand.operations.audit_sale(sale.id, &receipts).await.expect("an audit");
    assert_eq!(audit.findings, []);
    assert_eq!(stand.settlements().await.len(), 3);
    assert_eq!(stand.settle(&sale, &settling).await.len(), 0, "a second time");
    // A worker that had them in its hands all the time finds them settled: no dead letter.
    let processed = stand.process(in_hand).await;
    assert_eq!((processed.done, processed.dead), (3, 0));
    // Their keys are free again.
    let again = stand.admit(&sale, "buyer", 3).await;
    assert_eq!(stand.work().await.done, 3);
    assert!(again.iter().all(|id| !lost.contains(id)));
    stand.assert_clean(&sale).await;
});

on_both!(a_receipt_that_may_still_be_on_its_way_is_refused, async |stand: Stand| {
    let sale = stand.publish(5).await;
    let ids = stand.admit(&sale, "buyer", 1).await;
    stand.work().await;
    let nobodys = neighbour(ids[0], 1);
    let receipts = vec![Receipt { order_id: nobodys, user_id: user_id("buyer-0") }];
    let settling = Settling { receipts, ..all(SettleAs::Order) };
    let settled = stand.settle(&sale, &settling).await;
    assert_eq!((settled.len(), settled[0].settled), (1, false), "{settled:?}");
    assert!(settled[0].what.contains("may still be on its way"), "{settled:?}");
    assert!(stand.database.find_order(nobodys).await.expect("answered").is_none());
});

on_both!(only_what_is_named_is_settled_and_what_is_not_lost_is_explained, async |stand: Stand| {
    let sale = stand.publish(20).await;
    stand.refuse_poison().await;
    let row = stand.admit(&sale, "buyer", 1).await[0];
    let dead = stand.admit(&sale, "poison", 1).await[0];
    stand.work().await;
    let lost = stand.admit(&sale, "lost", 2).await;
    stand.take_entry(lost[0]).await;
    stand.take_entry(lost[1]).await;
    let queued = stand.admit(&sale, "queued", 1).await[0];
    let nobodys = neighbour(row, -1);
    let orders = vec![lost[1], row, dead, queued, nobodys];
    let settled = stand.settle(&sale, &Settling { orders, ..all(SettleAs::Order) }).await;
    let said: Vec<_> = settled.iter().map(|o| (o.order_id, o.settled, o.what.as_str())).collect();
    let of = sale.id;
    let nowhere = format!("no buyer's record of sale {of} holds it, and no receipt names it");
    assert_eq!(
        said,
        [
            (lost[1], true, "waits for payment now"),
            (row, true, format!("is a row of sale {of}: awaiting_payment").as_str()),
            (dead, false, "is a dead letter: see `salectl dead`"),
            (queued, false, "is on the stream, and becomes a row by itself"),
            (nobodys, false, nowhere.as_str()),
        ]
    );
    assert!(stand.database.find_order(lost[0]).await.expect("answered").is_none());
    // A hold that was taken again belongs to a row that the database has forgotten.
    let key = stand.keys.buyers(only(), sale.id);
    let record: String = stand.ask(&["HGET", &key, "lost-0"]).await;
    let second = record.replacen(':', ":1:2:o:", 1);
    stand.ask::<i64>(&["HSET", &key, "lost-0", &second]).await;
    let settled = stand.settle(&sale, &all(SettleAs::Order)).await;
    assert_eq!((settled.len(), settled[0].settled), (1, false), "{settled:?}");
    assert!(settled[0].what.contains("rebuild the partition"), "{settled:?}");
});
