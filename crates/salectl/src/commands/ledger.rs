//! `salectl ledger`.

use flashsale_domain::SaleId;
use flashsale_operations::Ledger;
use serde::Serialize;

use crate::Verdict;
use crate::failure::Failure;
use crate::output::{Output, fields};
use crate::remote::Access;

/// ```json
/// {"sale_id":"1","balanced":true,"total":1000,"adjusted":0,
///  "redis":{"gate_open":true,"total":1000,"available":0,"held":1000,"epoch":0},
///  "stock_left":0,"queued":0,"in_transit":0,"late_payments":0,"adjusting":0,
///  "awaiting_payment":1000,"paid":0,"cancelled":0,"expired":0,"refund_due":0,"rejected":0,"dead":0,
///  "imbalance":0,"problems":[]}
/// ```
/// `redis` is null for a direct sale, and while Redis does not have the sale.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    balanced: bool,
    #[serde(flatten)]
    ledger: &'a Ledger,
}

/// Shows a sale's ledger.
pub(crate) async fn run(
    sale: SaleId,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    let ledger: Ledger = match access {
        Access::Stores(settings) => super::operations(settings).await?.read_ledger(sale).await?,
        Access::Gateway(remote) => remote.get(format!("sales/{sale}/ledger"), &[]).await?,
    };
    let balanced = ledger.is_balanced();
    output.print(&Shown { balanced, ledger: &ledger }, || text(&ledger))?;
    Ok(if balanced { Verdict::Good } else { Verdict::Broken })
}

/// The ledger for people; an imbalance is followed by what it consists of.
pub(crate) fn text(ledger: &Ledger) -> String {
    let redis = ledger.redis.as_ref().map_or_else(
        || "does not have the sale".to_owned(),
        |account| {
            format!(
                "{} available + {} held of {}, epoch {}, gate {}",
                account.available,
                account.held,
                account.total,
                account.epoch,
                if account.gate_open { "open" } else { "closed" }
            )
        },
    );
    let mut text = fields([
        ("sale", ledger.sale_id.to_string()),
        ("total", format!("{}, of which {:+} by adjustments", ledger.total, ledger.adjusted)),
        ("redis", redis),
        ("queued", ledger.queued.to_string()),
        ("dead", ledger.dead.to_string()),
        (
            "in transit",
            format!(
                "{} releases, {} late payments, {:+} units of an adjustment",
                ledger.in_transit, ledger.late_payments, ledger.adjusting
            ),
        ),
        (
            "database",
            format!(
                "{} left, {} awaiting payment, {} paid",
                ledger.stock_left, ledger.awaiting_payment, ledger.paid
            ),
        ),
        (
            "over",
            format!(
                "{} cancelled, {} expired, {} refund due, {} rejected",
                ledger.cancelled, ledger.expired, ledger.refund_due, ledger.rejected
            ),
        ),
        (
            "balance",
            match ledger.imbalance {
                0 => "every unit is accounted for".to_owned(),
                units => format!("IMBALANCE of {units}"),
            },
        ),
    ]);
    for problem in &ledger.problems {
        text.push_str(&format!("  {problem}\n"));
    }
    text
}
