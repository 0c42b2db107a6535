//! `salectl audit-log`.

use flashsale_operations::AuditLine;
use flashsale_storage_sql::AuditFilter;
use serde::{Deserialize, Serialize};

use crate::Verdict;
use crate::cli::AuditLogArgs;
use crate::failure::Failure;
use crate::output::{Output, columns};
use crate::remote::Access;

/// ```json
/// {"lines":[{"id":"7","at":"2026-11-11T00:00:00.000Z","actor":"alice","action":"sale.publish",
///   "subject":"1","detail":"is published"}]}
/// ```
#[derive(Serialize, Deserialize)]
struct Lines {
    lines: Vec<AuditLine>,
}

/// Shows who did what.
pub(crate) async fn run(
    args: AuditLogArgs,
    access: &Access<'_>,
    output: Output,
) -> Result<Verdict, Failure> {
    let AuditLogArgs { actor, action, subject, limit } = args;
    let shown: Lines = match access {
        Access::Stores(settings) => {
            let filter = AuditFilter { actor, action, subject, before: None, limit };
            Lines { lines: super::operations(settings).await?.list_audit_log(&filter).await? }
        }
        Access::Gateway(remote) => {
            let limit = Some(limit.to_string());
            let wanted =
                [("actor", actor), ("action", action), ("subject", subject), ("limit", limit)];
            remote.get("audit-log", &wanted).await?
        }
    };
    output.print(&shown, || {
        if shown.lines.is_empty() {
            return "no such line".to_owned();
        }
        let row = |line: &AuditLine| {
            let AuditLine { at, actor, action, subject, detail, .. } = line;
            [at, actor, action, subject, detail].map(Clone::clone).to_vec()
        };
        columns(&shown.lines.iter().map(row).collect::<Vec<_>>())
    })?;
    Ok(Verdict::Good)
}
