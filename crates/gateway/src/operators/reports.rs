//! What operators read of a sale: its ledger and its report.

use actix_web::{HttpRequest, HttpResponse, web};

use super::{AnyCall, State, ok, operator, problem_of, sale_id};
use crate::problem::{Problem, ProblemBody};

/// Where every unit of a sale is.
///
/// As `salectl ledger --json` without `balanced`: `imbalance` is 0 when every unit is accounted for.
#[utoipa::path(
    get, path = "/admin/v1/sales/{id}/ledger", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The ledger"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        AnyCall,
    ),
)]
pub(crate) async fn ledger(
    request: HttpRequest,
    path: web::Path<String>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let ledger = state.operations.read_ledger(sale_id(&path)?).await;
    Ok(ok(&ledger.map_err(problem_of)?))
}

/// What was sold, what buyers were told, and the proof that nothing was lost.
///
/// As `salectl report --json`. It is final once the sale is closed and every order is decided.
#[utoipa::path(
    get, path = "/admin/v1/sales/{id}/report", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The report"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        AnyCall,
    ),
)]
pub(crate) async fn report(
    request: HttpRequest,
    path: web::Path<String>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let report = state.operations.report(sale_id(&path)?).await;
    Ok(ok(&report.map_err(problem_of)?))
}
