//! A sale's report says what happened.

use flashsale_domain::SaleId;
use flashsale_test_support::eventually;
use serde_json::json;

use crate::operators::get;
use crate::support::{SOON, TestApp, new_sale};

async fn count(app: &TestApp, sale: SaleId, condition: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM orders WHERE sale_id = {sale} AND {condition}");
    app.number(&sql).await
}

#[tokio::test]
async fn a_report_says_what_a_count_in_the_stores_says() {
    let app = TestApp::spawn_on_postgres().await;
    let sale = app.sale(6).await;
    let _worker = app.start_worker().await;
    let mut ids = Vec::new();
    for buyer in ["a", "b", "c", "d", "e", "f"] {
        ids.push(app.place_committed(sale, buyer).await);
    }
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
    assert_eq!(report().await["is_final"], false, "it is still on sale");
    app.pay("m3", ids[5]).await;
    app.operations.close_sale(sale).await.expect("closed");
    let report = eventually(SOON, "the last answers are added up", async || {
        let report = report().await;
        let final_and_counted = report["is_final"] == true && report["answers"]["sold_out"] == 3;
        if final_and_counted { Ok(report) } else { Err(report.to_string()) }
    })
    .await;

    let [paid, cancelled, expired, rows] = [
        count(&app, sale, "state = 'paid'").await,
        count(&app, sale, "state = 'cancelled'").await,
        count(&app, sale, "state = 'expired'").await,
        count(&app, sale, "true").await,
    ];
    assert_eq!((paid, cancelled, expired, rows), (3, 1, 2, 6));
    assert_eq!(
        report["sold"],
        json!({ "stock": 6, "paid": paid, "awaiting_payment": 0, "left": 3, "buyers": 3,
                "revenue": paid * new_sale(1).price.amount, "currency": "CNY" })
    );
    assert_eq!(
        report["not_sold"],
        json!({ "cancelled": cancelled, "expired": expired, "lapsed_buyers": 2, "refund_due": 0,
                "rejected": {}, "dead": 0 })
    );
    assert_eq!(report["answers"], json!({ "admitted": 6, "already_ordered": 1, "sold_out": 3 }));
    assert_eq!(
        report["proof"],
        json!({ "admitted": rows, "rows": rows, "queued": 0, "dead": 0, "missing": 0 })
    );
    let lags = "SELECT max(committed_ms - (id / 4194304 + 1704067200000)) FROM orders";
    let longest = app.number(&format!("{lags} WHERE sale_id = {sale}")).await.max(0);
    assert_eq!(report["commit_lag"]["max_ms"], longest);
    assert!(report["commit_lag"]["p50_ms"].as_i64() <= report["commit_lag"]["p99_ms"].as_i64());
    assert_eq!(
        (&report["ledger"]["imbalance"], &report["ledger"]["redis"]["held"]),
        (&json!(0), &json!(3))
    );

    // An order that is nowhere is one too few, and said so.
    app.execute(&format!("DELETE FROM orders WHERE id = {}", ids[5])).await;
    let path = format!("/admin/v1/sales/{sale}/report");
    assert_eq!(get(&app, &path).await.body["proof"]["missing"], 1);
}
