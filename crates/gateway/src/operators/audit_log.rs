//! The audit log.

use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_operations::AuditLine;
use flashsale_storage_sql::AuditFilter;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::{AnyCall, State, invalid, limit_of, ok, operator, page, parsed, problem_of, query};
use crate::problem::{Problem, ProblemBody};

/// Which lines.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// Only by this operator or program.
    actor: Option<String>,
    /// Only of this action, such as `sale.publish` or `dead.requeue`.
    action: Option<String>,
    /// Only of this subject: a sale's, an order's or an entry's id.
    subject: Option<String>,
    /// Only older than the line of this number: `next_cursor` of the page before.
    cursor: Option<String>,
    /// 1 to 1000; 100 when it is left out.
    limit: Option<u64>,
}

#[derive(Serialize)]
struct Lines {
    lines: Vec<AuditLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Who did what to whom, newest first.
///
/// `{"lines":[{"id":"7","at":"…","actor":"…","action":"sale.publish","subject":"1","detail":"is
/// published"}],"next_cursor":"7"}`
#[utoipa::path(
    get, path = "/admin/v1/audit-log", tag = "audit-log", security(("bearer" = [])),
    params(AuditQuery),
    responses(
        (status = 200, content_type = "application/json",
            description = "A page; `next_cursor` is there when older lines follow"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        AnyCall,
    ),
)]
pub(crate) async fn list(
    request: HttpRequest,
    parameters: Result<web::Query<AuditQuery>, actix_web::Error>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let AuditQuery { actor, action, subject, cursor, limit } = query(parameters)?;
    let limit = limit_of(limit)?;
    for text in [&actor, &action, &subject].into_iter().flatten() {
        if text.contains(char::is_control) {
            return Err(invalid("actor, action and subject are texts without control characters"));
        }
    }
    // One more than asked for tells whether there is a next page.
    let before = parsed(cursor.as_deref())?;
    let filter = AuditFilter { actor, action, subject, before, limit: limit + 1 };
    let found = state.operations.list_audit_log(&filter).await.map_err(problem_of)?;
    let (lines, more) = page(found, limit);
    let next_cursor = lines.last().filter(|_| more).map(|line| line.id.clone());
    Ok(ok(&Lines { lines, next_cursor }))
}
