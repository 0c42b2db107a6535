//! The operators' API on the admin port: for a token with the role `admin`, by the same operations as
//! `salectl`.

use std::sync::Arc;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use flashsale_bootstrap::error_quietly;
use flashsale_domain::SaleId;
use flashsale_operations::{OperationError, Operations, Refused};
use serde::Serialize;

use crate::auth::TokenVerifier;
use crate::openapi::operators_document;
use crate::problem::{Problem, ProblemBody};

/// What the operators' API needs.
pub(crate) struct OperatorsState {
    pub(crate) verifier: Arc<TokenVerifier>,
    pub(crate) operations: Operations,
}

type State = web::Data<OperatorsState>;

/// Every path.
pub(crate) fn configure(config: &mut ServiceConfig, state: &State) {
    config
        .app_data(state.clone())
        .route("/openapi.json", web::get().to(async || web::Json(operators_document())))
        .route("/admin/v1/sales/{id}/ledger", web::get().to(ledger))
        .route("/admin/v1/sales/{id}/report", web::get().to(report));
}

/// Where every unit of a sale is.
///
/// As `salectl ledger --json` without `balanced`: `imbalance` is 0 when every unit is accounted for.
#[utoipa::path(
    get, path = "/admin/v1/sales/{id}/ledger", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The ledger"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 403, body = ProblemBody, description = "forbidden: the token needs the role admin"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 503, body = ProblemBody, description = "sale-unavailable: a store is away"),
    ),
)]
pub(crate) async fn ledger(
    request: HttpRequest,
    path: web::Path<String>,
    state: State,
) -> Result<HttpResponse, Problem> {
    let sale = authorized(&request, &path, &state)?;
    answer(state.operations.read_ledger(sale).await)
}

/// What was sold, what buyers were told, and the proof that nothing was lost.
///
/// As `salectl report --json`. It is final once the sale is closed and every order is decided.
#[utoipa::path(
    get, path = "/admin/v1/sales/{id}/report", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The report"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 403, body = ProblemBody, description = "forbidden: the token needs the role admin"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 503, body = ProblemBody, description = "sale-unavailable: a store is away"),
    ),
)]
pub(crate) async fn report(
    request: HttpRequest,
    path: web::Path<String>,
    state: State,
) -> Result<HttpResponse, Problem> {
    let sale = authorized(&request, &path, &state)?;
    answer(state.operations.report(sale).await)
}

fn authorized(request: &HttpRequest, path: &str, state: &State) -> Result<SaleId, Problem> {
    state.verifier.verify_operator(request)?;
    path.parse().map_err(|_| Problem::SaleNotFound)
}

fn answer<T: Serialize>(result: Result<T, OperationError>) -> Result<HttpResponse, Problem> {
    match result {
        Ok(value) => Ok(HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(value)),
        Err(OperationError::Refused(Refused::SaleNotFound(_))) => Err(Problem::SaleNotFound),
        Err(error) => {
            error_quietly!(error = %error, "an operator's question could not be answered");
            Err(Problem::SaleUnavailable)
        }
    }
}
