//! A sale as operators are shown it: by `salectl --json` and by the operators' API.

use flashsale_bootstrap::clock::rfc3339;
use flashsale_domain::{LatePayment, Price, Sale, SaleId, SaleMode, SaleState};
use serde::{Deserialize, Serialize};

/// ```json
/// {"sale_id":"1","title":"Voucher","mode":"queued","state":"published",
///  "stock_total":1000,"stock_left":1000,
///  "opens_at":"2026-11-11T00:00:00.000Z","closes_at":"2026-11-11T01:00:00.000Z",
///  "per_buyer":1,"price":{"amount":9900,"currency":"CNY"},"payment_window_s":900,
///  "late_payment":"reacquire","partition":0,"epoch":0}
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaleView {
    /// Its id.
    pub sale_id: SaleId,
    /// What buyers read.
    pub title: String,
    /// How orders are decided.
    pub mode: SaleMode,
    /// Where it stands.
    pub state: SaleState,
    /// Units for sale in all.
    pub stock_total: i64,
    /// Units left in the database: what is still queued is not off it yet.
    pub stock_left: i64,
    /// RFC 3339.
    pub opens_at: String,
    /// RFC 3339.
    pub closes_at: String,
    /// How many open orders of one unit a buyer may hold.
    pub per_buyer: u16,
    /// What a unit costs.
    pub price: Price,
    /// How long a buyer has to pay, in seconds.
    pub payment_window_s: i64,
    /// What happens to money that comes later.
    pub late_payment: LatePayment,
    /// Null until a queued sale is published.
    pub partition: Option<u16>,
    /// Counts the sale's rebuilds.
    pub epoch: i64,
}

impl From<Sale> for SaleView {
    fn from(sale: Sale) -> Self {
        Self {
            sale_id: sale.id,
            title: sale.title,
            mode: sale.mode,
            state: sale.state,
            stock_total: sale.stock_total,
            stock_left: sale.stock_left,
            opens_at: rfc3339(sale.window.opens_ms()),
            closes_at: rfc3339(sale.window.closes_ms()),
            per_buyer: sale.per_buyer,
            price: sale.price,
            payment_window_s: sale.payment_window_s,
            late_payment: sale.late_payment,
            partition: sale.partition.map(|partition| partition.number()),
            epoch: sale.epoch,
        }
    }
}
