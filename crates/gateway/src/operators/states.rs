//! A sale's states, and its memory, in an operator's hands. Asking again for what is so already changes
//! nothing.

use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_domain::{Sale, SaleId};
use flashsale_operations::{OperationError, Operator, SaleView};

use super::sales::Nothing;
use super::{AnyChange, State, ok, operator, sale_id, to_its_end};
use crate::problem::{Problem, ProblemBody};
use crate::request_body::read_json;

/// Changes a sale for the operator who asks, and shows what it is then.
async fn change(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
    change: impl AsyncFnOnce(Operator<'_>, SaleId) -> Result<Sale, OperationError> + 'static,
) -> Result<HttpResponse, Problem> {
    let actor = operator(&request, &state)?;
    let id = sale_id(&path)?;
    let Nothing {} = read_json(&request, body, state.body).await?;
    let operations = state.operations.clone();
    let sale = to_its_end(async move { change(operations.by(&actor), id).await }).await?;
    Ok(ok(&SaleView::from(sale)))
}

/// Put a draft on sale; on a published sale, complete what an earlier try left undone.
///
/// As `salectl sale publish`. No body is needed.
#[utoipa::path(
    post, path = "/admin/v1/sales/{id}/publish", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The published sale"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: it is no draft, or its window is over"),
        AnyChange,
    ),
)]
pub(crate) async fn publish(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    change(request, path, body, state, async |operator, id| operator.publish_sale(id).await).await
}

/// Admit nobody until the sale is resumed; what was admitted goes on.
///
/// As `salectl sale pause`. No body is needed.
#[utoipa::path(
    post, path = "/admin/v1/sales/{id}/pause", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The paused sale"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: it is not published"),
        AnyChange,
    ),
)]
pub(crate) async fn pause(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    change(request, path, body, state, async |operator, id| operator.pause_sale(id).await).await
}

/// Admit again after a pause.
///
/// As `salectl sale resume`. No body is needed.
#[utoipa::path(
    post, path = "/admin/v1/sales/{id}/resume", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The published sale"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: it was not paused, or Redis does not have it: rebuild"),
        AnyChange,
    ),
)]
pub(crate) async fn resume(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    change(request, path, body, state, async |operator, id| operator.resume_sale(id).await).await
}

/// End a sale for good; what was admitted goes on.
///
/// As `salectl sale close`. No body is needed.
#[utoipa::path(
    post, path = "/admin/v1/sales/{id}/close", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The closed sale"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: it was never published"),
        AnyChange,
    ),
)]
pub(crate) async fn close(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    change(request, path, body, state, async |operator, id| operator.close_sale(id).await).await
}

/// Load what Redis holds of the sale's whole partition from the database again.
///
/// As `salectl rebuild`: nobody is admitted to the partition's sales meanwhile, and order-workers must be
/// running, because what is on the stream is applied first. The answer comes when it is done, which
/// may take a minute.
#[utoipa::path(
    post, path = "/admin/v1/sales/{id}/rebuild", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "What was loaded"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: orders still wait for a worker, \
            somebody else rebuilds, or the sale has no partition"),
        AnyChange,
    ),
)]
pub(crate) async fn rebuild(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    let actor = operator(&request, &state)?;
    let id = sale_id(&path)?;
    let Nothing {} = read_json(&request, body, state.body).await?;
    let operations = state.operations.clone();
    Ok(ok(&to_its_end(async move { operations.by(&actor).rebuild_sale(id).await }).await?))
}
