//! What is broken on purpose is found and named, and nothing else is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashsale_domain::{OrderId, Sale};
use flashsale_operations::Receipt;

use crate::support::{Stand, neighbour, on_both, only, press, user_id};

/// A sale of twenty units with ten written orders, all well.
async fn sold(stand: &Stand) -> (Sale, Vec<OrderId>) {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 10).await;
    assert_eq!(stand.work().await.done, 10);
    stand.assert_clean(&sale).await;
    (sale, ids)
}

fn receipt(order_id: OrderId, user: &str) -> Receipt {
    Receipt { order_id, user_id: user_id(user) }
}

on_both!(a_clean_audit_says_what_it_looked_at, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    let receipts = [receipt(ids[0], "buyer-0"), receipt(ids[9], "buyer-9")];
    let audit = stand.operations.audit_sale(sale.id, &receipts).await.expect("an audit");
    assert!(audit.is_clean(), "{:?}", audit.findings);
    assert_eq!((audit.rows_checked, audit.records_checked, audit.receipts_checked), (10, 10, 2));
});

on_both!(more_open_rows_than_units_are_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    stand
        .execute(&format!(
            "UPDATE sales SET stock_total = 9, stock_left = 0 WHERE id = {}",
            sale.id
        ))
        .await;
    stand.assert_found(&sale, "I1", "database: 10 open of 9").await;
    assert_eq!(ids.len(), 10);
});

on_both!(more_units_held_in_redis_than_there_are_are_found, async |stand: Stand| {
    let (sale, _) = sold(&stand).await;
    let key = stand.keys.sale(only(), sale.id);
    stand.ask::<i64>(&["HINCRBY", &key, "held", "15"]).await;
    stand.assert_found(&sale, "I1", "redis: 25 held of 20, 10 left").await;
    stand.ask::<i64>(&["HINCRBY", &key, "held", "-15"]).await;
    stand.ask::<i64>(&["HINCRBY", &key, "stock", "-11"]).await;
    stand.assert_found(&sale, "I1", "redis: 10 held of 20, -1 left").await;
});

on_both!(an_entry_that_waits_for_too_long_is_found, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let key = stand.keys.orders(only());
    // Of 2025.
    stand.ask::<String>(&["XADD", &key, "1764470400000-0", "hello", "world"]).await;
    stand.assert_found(&sale, "I5", "an entry of partition 0 has waited too long").await;
    assert_eq!(stand.work().await.dead, 1);
    stand.assert_clean(&sale).await;
});

on_both!(a_missing_row_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    stand.execute(&format!("DELETE FROM orders WHERE id = {}", ids[3])).await;
    stand.assert_found(&sale, "I3", &format!("order {} of buyer \"buyer-3\"", ids[3])).await;
    stand.assert_found(&sale, "I7", "database: total 20").await;
    let told = [receipt(ids[3], "buyer-3")];
    let audit = stand.operations.audit_sale(sale.id, &told).await.expect("an audit");
    assert!(
        audit.findings.iter().any(|f| f.invariant == "I4" && f.what.contains(&ids[3].to_string()))
    );
});

on_both!(an_open_row_that_redis_knows_nothing_of_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    let extra = neighbour(ids[0], -1);
    stand.insert_row(extra, &sale, "smuggler", "awaiting_payment").await;
    stand.assert_found(&sale, "I3", &format!("row {extra} of buyer smuggler")).await;
    stand.assert_found(&sale, "I7", "").await;
});

on_both!(a_row_of_another_buyer_than_the_record_says_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    stand.execute(&format!("UPDATE orders SET user_id = 'thief' WHERE id = {}", ids[5])).await;
    stand.assert_found(&sale, "I3", "another buyer's row").await;
    let told = [receipt(ids[5], "buyer-5"), receipt(ids[6], "buyer-6")];
    let findings = stand.operations.audit_sale(sale.id, &told).await.expect("an audit").findings;
    let of_receipts: Vec<_> = findings.iter().filter(|f| f.invariant == "I4").collect();
    assert_eq!(of_receipts.len(), 1, "{findings:?}");
    assert!(of_receipts[0].what.contains("is another's"), "{of_receipts:?}");
});

on_both!(a_buyer_with_two_open_rows_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    stand.execute("DROP INDEX orders_one_open_per_slot").await;
    let second = neighbour(ids[0], -1);
    stand.insert_row(second, &sale, "buyer-2", "awaiting_payment").await;
    stand.assert_found(&sale, "I2", "buyer \"buyer-2\" has 2 open rows").await;
});

on_both!(a_record_that_holds_a_slot_twice_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    let key = stand.keys.buyers(only(), sale.id);
    let record: String = stand.ask(&["HGET", &key, "buyer-1"]).await;
    let (first, second) = (ids[1].entry(), ids[2].entry());
    let item = record.strip_prefix('2').expect("format 2").to_owned();
    let again = item.replace(&first.to_string(), &second.to_string());
    stand.ask::<i64>(&["HSET", &key, "buyer-1", &format!("2{item};{again}")]).await;
    stand.assert_found(&sale, "I2", "buyer \"buyer-1\" holds slots [1, 1]").await;
});

on_both!(a_record_that_nobody_can_read_is_found, async |stand: Stand| {
    let (sale, _) = sold(&stand).await;
    let key = stand.keys.buyers(only(), sale.id);
    stand.ask::<i64>(&["HSET", &key, "buyer-1", "garbage"]).await;
    stand.assert_found(&sale, "I3", "\"buyer-1\" cannot be read").await;
});

on_both!(an_answer_without_an_order_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    let nobodys = neighbour(ids[9], 1);
    let told = [receipt(nobodys, "buyer-0"), receipt(ids[1], "buyer-1")];
    let findings = stand.operations.audit_sale(sale.id, &told).await.expect("an audit").findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].invariant, "I4");
    assert!(findings[0].what.contains(&nobodys.to_string()), "{findings:?}");
});

on_both!(a_queued_order_answered_to_another_buyer_is_found, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 2).await;
    let right = [receipt(ids[0], "buyer-0"), receipt(ids[1], "buyer-1")];
    let audit = stand.operations.audit_sale(sale.id, &right).await.expect("an audit");
    assert_eq!(audit.findings, []);
    let wrong = [receipt(ids[0], "buyer-1")];
    let findings = stand.operations.audit_sale(sale.id, &wrong).await.expect("an audit").findings;
    assert!(findings.iter().any(|f| f.invariant == "I4"), "{findings:?}");
});

on_both!(a_closed_order_that_holds_its_unit_in_redis_is_found, async |stand: Stand| {
    let (sale, ids) = sold(&stand).await;
    stand.execute(&format!("UPDATE orders SET state = 'cancelled' WHERE id = {}", ids[4])).await;
    stand
        .execute(&format!("UPDATE sales SET stock_left = stock_left + 1 WHERE id = {}", sale.id))
        .await;
    stand.assert_found(&sale, "I6", &format!("order {} of \"buyer-4\" is cancelled", ids[4])).await;
});

on_both!(an_order_deleted_from_the_stream_is_found, async |stand: Stand| {
    let sale = stand.publish(20).await;
    let ids = stand.admit(&sale, "buyer", 3).await;
    let entry = ids[1].entry().to_string();
    stand.ask::<i64>(&["XDEL", &stand.keys.orders(only()), &entry]).await;
    stand.work().await;
    stand.assert_found(&sale, "I3", &format!("order {} of buyer \"buyer-1\"", ids[1])).await;
});

on_both!(an_audit_of_a_running_sale_finds_nothing, async |stand: Stand| {
    let sale = stand.publish(100_000).await;
    let over = Arc::new(AtomicBool::new(false));
    let buyers = async {
        let mut number = 0;
        // 500 orders a second.
        let mut pace = tokio::time::interval(Duration::from_millis(40));
        while !over.load(Ordering::Relaxed) {
            let presses: Vec<_> =
                (number..number + 20).map(|i| press(&format!("buyer-{i}"))).collect();
            assert!(stand.press(&sale, &presses).await.iter().all(Result::is_ok));
            number += 20;
            pace.tick().await;
        }
        number
    };
    let worker = async {
        while !over.load(Ordering::Relaxed) {
            stand.work().await;
        }
    };
    let auditor = async {
        for round in 0..10 {
            let audit = stand.audit(&sale).await;
            assert_eq!(audit.findings, [], "round {round}");
        }
        over.store(true, Ordering::Relaxed);
    };
    let (bought, (), ()) = tokio::join!(buyers, worker, auditor);
    stand.work().await;
    let ledger = stand.ledger(&sale).await;
    assert_eq!((ledger.awaiting_payment, ledger.queued), (bought, 0));
    stand.assert_clean(&sale).await;
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sales_are_audited_at_once() {
    let stand = Stand::sqlite().await;
    let (good, _) = sold(&stand).await;
    let (bad, ids) = {
        let sale = stand.publish(20).await;
        let ids = stand.admit(&sale, "other", 5).await;
        assert_eq!(stand.work().await.done, 5);
        (sale, ids)
    };
    stand.execute(&format!("DELETE FROM orders WHERE id = {}", ids[0])).await;
    let broken = stand.publish(20).await;
    stand.ask::<i64>(&["DEL", &stand.keys.sale(only(), broken.id)]).await;
    stand.ask::<()>(&["SET", &stand.keys.sale(only(), broken.id), "a string"]).await;
    let all = stand.operations.audit_all().await.expect("audits");
    let unread: Vec<_> = all.unread.iter().map(|unread| unread.sale_id).collect();
    assert_eq!(unread, [broken.id], "{:?}", all.unread);
    assert_eq!(all.audits.len(), 2);
    for audit in all.audits {
        assert_eq!(audit.is_clean(), audit.sale_id == good.id, "{} of {}", audit.sale_id, bad.id);
    }
}

on_both!(a_sale_of_which_everything_is_broken_is_not_clean, async |stand: Stand| {
    // More than are named, so that two readings which each named some would name different ones.
    let sale = stand.publish(60).await;
    let ids = stand.admit(&sale, "buyer", 40).await;
    stand.work().await;
    stand.ask::<i64>(&["DEL", &stand.keys.buyers(only(), sale.id)]).await;
    let audit = stand.audit(&sale).await;
    assert!(!audit.is_clean());
    assert_eq!(audit.findings_total, ids.len(), "one for each row: {:?}", audit.findings);
});
