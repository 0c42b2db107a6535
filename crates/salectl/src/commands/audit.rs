//! `salectl audit`.

use std::path::Path;

use flashsale_bootstrap::Settings;
use flashsale_domain::SaleId;
use flashsale_operations::Audit;
use serde::Serialize;

use crate::Verdict;
use crate::failure::Failure;
use crate::output::Output;
use crate::receipts;

/// ```json
/// {"clean":false,"audits":[
///   {"sale_id":"1","rows_checked":1000,"records_checked":1000,"receipts_checked":1000,
///    "findings_total":1,
///    "findings":[{"invariant":"I7","what":"redis: total 10 is not available 9 + held 0"}],
///    "ledger":{…as `salectl ledger` without `balanced`…}}]}
/// ```
/// One audit when a sale was named, else one for every sale.
#[derive(Debug, Serialize)]
struct Audits {
    clean: bool,
    audits: Vec<Audit>,
}

/// Audits one sale, or all.
pub(crate) async fn run(
    sale: Option<SaleId>,
    receipts: Option<&Path>,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let receipts = receipts.map(receipts::read).transpose()?.unwrap_or_default();
    let operations = super::operations(settings).await?;
    let audits = match sale {
        Some(sale) => vec![operations.audit_sale(sale, &receipts).await?],
        None => operations.audit_all().await?,
    };
    let audits = Audits { clean: audits.iter().all(Audit::is_clean), audits };
    output.print(&audits, || text(&audits))?;
    Ok(if audits.clean { Verdict::Good } else { Verdict::Broken })
}

fn text(audits: &Audits) -> String {
    if audits.audits.is_empty() {
        return "there is no sale to audit".to_owned();
    }
    audits.audits.iter().map(text_of_one).collect()
}

fn text_of_one(audit: &Audit) -> String {
    let mut text = format!(
        "sale {}: {} ({} rows, {} buyers' records, {} receipts checked)\n",
        audit.sale_id,
        match audit.findings_total {
            0 => "clean, I1 to I7 hold".to_owned(),
            1 => "1 FINDING".to_owned(),
            findings => format!("{findings} FINDINGS"),
        },
        audit.rows_checked,
        audit.records_checked,
        audit.receipts_checked,
    );
    for finding in &audit.findings {
        text.push_str(&format!("  {}  {}\n", finding.invariant, finding.what));
    }
    if audit.findings_total > audit.findings.len() {
        let more = audit.findings_total - audit.findings.len();
        text.push_str(&format!("  and {more} more\n"));
    }
    text
}
