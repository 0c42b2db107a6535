//! A sale's report says what happened.

use std::collections::HashMap;

use flashsale_domain::{OrderId, SaleId};
use flashsale_operations::DeadFilter;
use flashsale_test_support::eventually;
use serde_json::json;

use crate::operators::get;
use crate::support::{SOON, TestApp, home, new_sale};

async fn count(app: &TestApp, sale: SaleId, condition: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM orders WHERE sale_id = {sale} AND {condition}");
    app.number(&sql).await
}

#[tokio::test]
async fn a_report_says_what_a_count_in_the_stores_says() {
    let app = TestApp::spawn_on_postgres().await;
    let sale = app.sale(8).await;
    let _worker = app.start_worker().await;
    let mut ids = Vec::new();
    for buyer in ["a", "b", "c", "d", "e", "f"] {
        ids.push(app.place_committed(sale, buyer).await);
    }
    // Two that the database does not take.
    let poison = "ADD CONSTRAINT no_poison CHECK (user_id NOT LIKE 'poison%')";
    app.execute(&format!("ALTER TABLE orders {poison}")).await;
    let given_up = app.place(sale, "poison-1").await.receipt();
    let tried_again = app.place(sale, "poison-2").await.receipt();
    for _ in 0..3 {
        assert_eq!(app.place(sale, "late").await.problem(), (409, "sold-out"));
    }
    assert_eq!(app.place(sale, "a").await.problem(), (409, "already-ordered"));
    app.pay("m1", ids[0]).await;
    app.pay("m2", ids[1]).await;
    app.cancel("c", ids[2]).await;
    app.execute(&format!("UPDATE orders SET pay_by_ms = 1 WHERE id IN ({}, {})", ids[3], ids[4]))
        .await;
    let report = async || {
        let path = format!("/admin/v1/sales/{sale}/report");
        get(&app, &path).await.body
    };
    eventually(SOON, "the overdue orders expire", async || {
        (report().await["not_sold"]["expired"] == 2).then_some(())
    })
    .await;
    let of_now = eventually(SOON, "the dead letters", async || {
        let report = report().await;
        (report["not_sold"]["dead"] == 2).then_some(report)
    })
    .await;
    assert_eq!(of_now["is_final"], false, "it is still on sale");
    assert_eq!(
        of_now["proof"],
        json!({ "admitted": 8, "rows": 6, "queued": 0, "dead": 2, "missing": 0 })
    );
    app.execute("ALTER TABLE orders DROP CONSTRAINT no_poison").await;
    let letter = |id: OrderId| DeadFilter { entry: Some(id.entry()), ..DeadFilter::default() };
    app.operations.reject_dead(&letter(given_up), "test", false).await.expect("given up");
    app.operations.requeue_dead(&letter(tried_again), "test", false).await.expect("tried again");
    app.pay("m3", ids[5]).await;
    app.pay("m4", tried_again).await;
    app.operations.close_sale(sale).await.expect("closed");
    let report = eventually(SOON, "the last answers are added up", async || {
        let report = report().await;
        let final_and_counted = report["is_final"] == true && report["answers"]["sold_out"] == 3;
        if final_and_counted { Ok(report) } else { Err(report.to_string()) }
    })
    .await;

    let [paid, cancelled, expired, operator, rows] = [
        count(&app, sale, "state = 'paid'").await,
        count(&app, sale, "state = 'cancelled'").await,
        count(&app, sale, "state = 'expired'").await,
        count(&app, sale, "state = 'rejected' AND reason = 'operator'").await,
        count(&app, sale, "true").await,
    ];
    assert_eq!((paid, cancelled, expired, operator, rows), (4, 1, 2, 1, 8));
    assert_eq!(
        report["sold"],
        json!({ "stock": 8, "paid": paid, "awaiting_payment": 0, "left": 4, "buyers": 4,
                "revenue": paid * new_sale(1).price.amount, "currency": "CNY" })
    );
    assert_eq!(
        report["not_sold"],
        json!({ "cancelled": cancelled, "expired": expired, "lapsed_buyers": 2, "refund_due": 0,
                "rejected": { "operator": operator }, "dead": 0 })
    );
    assert_eq!(report["answers"], json!({ "admitted": 8, "already_ordered": 1, "sold_out": 3 }));
    // Every entry that was ever put on the stream, as Redis counts them.
    let stream: HashMap<String, redis::Value> =
        app.redis_command(&["XINFO", "STREAM", &app.keys.orders(home())]);
    assert_eq!(stream["entries-added"], redis::Value::Int(rows));
    assert_eq!(
        report["proof"],
        json!({ "admitted": rows, "rows": rows, "queued": 0, "dead": 0, "missing": 0 })
    );
    let lag = "committed_ms - (id / 4194304 + 1704067200000)";
    for (figure, sql) in [
        ("p50_ms", format!("percentile_disc(0.5) WITHIN GROUP (ORDER BY {lag})")),
        ("p99_ms", format!("percentile_disc(0.99) WITHIN GROUP (ORDER BY {lag})")),
        ("max_ms", format!("max({lag})")),
    ] {
        let counted = app.number(&format!("SELECT {sql} FROM orders WHERE sale_id = {sale}")).await;
        assert_eq!(report["commit_lag"][figure], counted.max(0), "{figure}");
    }
    let [total, stock, held]: [i64; 3] =
        app.redis_command(&["HMGET", &app.keys.sale(home(), sale), "total", "stock", "held"]);
    assert_eq!([total, stock, held], [8, 4, paid]);
    assert_eq!(report["ledger"]["imbalance"], 0);
    let redis = &report["ledger"]["redis"];
    assert_eq!(
        [&redis["total"], &redis["available"], &redis["held"]],
        [&json!(total), &json!(stock), &json!(held)]
    );

    // An order that is nowhere is one too few, and said so.
    app.execute(&format!("DELETE FROM orders WHERE id = {}", ids[5])).await;
    let path = format!("/admin/v1/sales/{sale}/report");
    assert_eq!(get(&app, &path).await.body["proof"]["missing"], 1);
}
