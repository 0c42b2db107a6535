//! `salectl audit`.

use std::path::Path;

use flashsale_bootstrap::Settings;
use flashsale_domain::SaleId;
use flashsale_operations::{AllAudits, Audit, Unread};
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
///    "ledger":{…as `salectl ledger` without `balanced`…}}],
///  "unread":[{"sale_id":"2","why":"…"}]}
/// ```
/// One audit when a sale was named, else one for every sale; those that cannot be read are `unread`.
#[derive(Debug, Serialize)]
struct Audits {
    clean: bool,
    #[serde(flatten)]
    all: AllAudits,
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
    let all = match sale {
        Some(sale) => AllAudits {
            audits: vec![operations.audit_sale(sale, &receipts).await?],
            unread: Vec::new(),
        },
        None => operations.audit_all().await?,
    };
    let clean = all.unread.is_empty() && all.audits.iter().all(Audit::is_clean);
    let audits = Audits { clean, all };
    output.print(&audits, || text(&audits))?;
    Ok(if audits.clean { Verdict::Good } else { Verdict::Broken })
}

fn text(audits: &Audits) -> String {
    let AllAudits { audits, unread } = &audits.all;
    if audits.is_empty() && unread.is_empty() {
        return "there is no sale to audit".to_owned();
    }
    let mut text: String = audits.iter().map(text_of_one).collect();
    for Unread { sale_id, why } in unread {
        text.push_str(&format!("sale {sale_id}: CANNOT BE AUDITED: {why}\n"));
    }
    text
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
