//! Who works on the orders.

use actix_web::{HttpRequest, HttpResponse, web};

use super::sales::Nothing;
use super::{AnyCall, State, ok, operator, problem_of, query};
use crate::problem::{Problem, ProblemBody};

/// The workers of every partition, and how much waits for them.
///
/// `{"partitions":[{"partition":0,"backlog":{"undelivered":0,"pending":0},"consumers":[{"name":"…",
/// "pending":0,"idle_ms":12}]}]}`. `backlog` is null while there is no stream, `undelivered` while
/// Redis does not know it.
#[utoipa::path(
    get, path = "/admin/v1/workers", tag = "workers", security(("bearer" = [])),
    responses(
        (status = 200, content_type = "application/json", description = "One for each partition"),
        (status = 400, body = ProblemBody, description = "invalid-request: there are no parameters"),
        AnyCall,
    ),
)]
pub(crate) async fn list(
    request: HttpRequest,
    parameters: Result<web::Query<Nothing>, actix_web::Error>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let Nothing {} = query(parameters)?;
    Ok(ok(&state.operations.list_workers().await.map_err(problem_of)?))
}
