//! `salectl report`.

use flashsale_domain::SaleId;
use flashsale_operations::Report;

use crate::Verdict;
use crate::commands::ledger;
use crate::failure::Failure;
use crate::output::{Output, fields};
use crate::remote::Access;

/// Prints a sale's report, its certificate once the sale is closed. As JSON:
///
/// ```json
/// {"sale_id":"1","title":"Voucher","state":"closed","is_final":true,
///  "sold":{"stock":1000,"paid":990,"awaiting_payment":0,"left":10,"buyers":990,
///          "revenue":9801000,"currency":"CNY"},
///  "answers":{"admitted":1010,"already_ordered":12,"sold_out":18990},
///  "commit_lag":{"p50_ms":9,"p99_ms":31,"max_ms":54},
///  "not_sold":{"cancelled":5,"expired":15,"lapsed_buyers":15,"refund_due":0,"rejected":{},"dead":0},
///  "proof":{"admitted":1010,"rows":1010,"queued":0,"dead":0,"missing":0},
///  "ledger":{}}
/// ```
pub(crate) async fn run(
    sale: SaleId,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    let report: Report = match access {
        Access::Stores(settings) => super::operations(settings).await?.report(sale).await?,
        Access::Gateway(remote) => remote.get(format!("sales/{sale}/report"), &[]).await?,
    };
    let is_sound =
        report.ledger.is_balanced() && report.proof.is_none_or(|proof| proof.missing == 0);
    output.print(&report, || text(&report))?;
    Ok(if is_sound { Verdict::Good } else { Verdict::Broken })
}

fn text(report: &Report) -> String {
    let (sold, not_sold) = (&report.sold, &report.not_sold);
    let list = |counts: &std::collections::BTreeMap<String, i64>| {
        let counts: Vec<String> =
            counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    };
    let lag = report.commit_lag.map_or_else(
        || "none".to_owned(),
        |lag| format!("p50 {} ms, p99 {} ms, max {} ms", lag.p50_ms, lag.p99_ms, lag.max_ms),
    );
    let proof = report.proof.map_or_else(
        || "in the database alone".to_owned(),
        |proof| {
            let verdict = match proof.missing {
                0 => "nothing is missing".to_owned(),
                missing => format!("{missing} MISSING: `salectl audit` names them"),
            };
            format!(
                "{} admitted = {} rows + {} queued + {} dead: {verdict}",
                proof.admitted, proof.rows, proof.queued, proof.dead
            )
        },
    );
    let summary = fields([
        ("report", if report.is_final { "final" } else { "of this moment, not final" }.to_owned()),
        ("sale", format!("{} {:?}, {}", report.sale_id, report.title, report.state)),
        (
            "sold",
            format!(
                "{} of {} units paid, {} await payment, {} left",
                sold.paid, sold.stock, sold.awaiting_payment, sold.left
            ),
        ),
        (
            "buyers",
            format!("{} hold a unit, {} let one lapse", sold.buyers, not_sold.lapsed_buyers),
        ),
        ("revenue", format!("{} minor units of {}", sold.revenue, sold.currency)),
        ("answers", list(&report.answers)),
        ("commit lag", lag),
        (
            "not sold",
            format!(
                "{} cancelled, {} expired, {} refund due, {} dead",
                not_sold.cancelled, not_sold.expired, not_sold.refund_due, not_sold.dead
            ),
        ),
        ("rejected", list(&not_sold.rejected)),
        ("proof", proof),
    ]);
    format!("{summary}\nledger\n{}", ledger::text(&report.ledger))
}
