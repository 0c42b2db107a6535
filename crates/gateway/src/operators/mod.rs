//! The operators' API on the admin port: for a token with the role `admin`, by the same operations as
//! `salectl`. What changes something names the token's `sub` in the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use flashsale_bootstrap::error_quietly;
use flashsale_domain::SaleId;
use flashsale_operations::{OperationError, Operations, Refused};
use serde::Serialize;
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use crate::auth::TokenVerifier;
use crate::edge;
use crate::openapi::operators_document;
use crate::problem::Problem;
use crate::request_body::BodyLimits;
use crate::routes::only;

pub(crate) mod audit_log;
pub(crate) mod dead_letters;
pub(crate) mod orders;
pub(crate) mod reports;
pub(crate) mod sales;
pub(crate) mod states;
pub(crate) mod workers;

/// What the operators' API needs.
pub(crate) struct OperatorsState {
    pub(crate) verifier: Arc<TokenVerifier>,
    pub(crate) operations: Operations,
    pub(crate) body: BodyLimits,
}

type State = web::Data<OperatorsState>;

/// Every path; a method that a path does not have is told which it has.
pub(crate) fn configure(config: &mut ServiceConfig, state: &State) {
    let get = |path: &str| web::resource(path).default_service(web::to(|| only("GET")));
    let post = |path: &str| web::resource(path).default_service(web::to(|| only("POST")));
    let scope = web::scope("/admin/v1")
        .wrap(from_fn(edge::pass_operators))
        .service(
            web::resource("/sales")
                .route(web::get().to(sales::list))
                .route(web::post().to(sales::create))
                .default_service(web::to(|| only("GET, POST"))),
        )
        .service(
            web::resource("/sales/{id}")
                .route(web::get().to(sales::show))
                .route(web::patch().to(sales::edit))
                .default_service(web::to(|| only("GET, PATCH"))),
        )
        .service(post("/sales/{id}/publish").route(web::post().to(states::publish)))
        .service(post("/sales/{id}/pause").route(web::post().to(states::pause)))
        .service(post("/sales/{id}/resume").route(web::post().to(states::resume)))
        .service(post("/sales/{id}/close").route(web::post().to(states::close)))
        .service(post("/sales/{id}/rebuild").route(web::post().to(states::rebuild)))
        .service(post("/sales/{id}/stock").route(web::post().to(sales::stock)))
        .service(get("/sales/{id}/ledger").route(web::get().to(reports::ledger)))
        .service(get("/sales/{id}/report").route(web::get().to(reports::report)))
        .service(get("/orders").route(web::get().to(orders::list)))
        .service(get("/dead-letters").route(web::get().to(dead_letters::list)))
        .service(post("/dead-letters/{id}/requeue").route(web::post().to(dead_letters::requeue)))
        .service(post("/dead-letters/{id}/reject").route(web::post().to(dead_letters::reject)))
        .service(get("/workers").route(web::get().to(workers::list)))
        .service(get("/audit-log").route(web::get().to(audit_log::list)))
        .default_service(web::to(|| async { Err::<&str, _>(Problem::NotFound) }));
    config
        .app_data(state.clone())
        .route("/openapi.json", web::get().to(async || web::Json(operators_document())))
        .service(scope);
}

/// Who asks, by the token's `sub`: the actor of the audit log.
fn operator(request: &HttpRequest, state: &State) -> Result<String, Problem> {
    Ok(state.verifier.verify_operator(request)?.as_str().to_owned())
}

fn sale_id(path: &str) -> Result<SaleId, Problem> {
    path.parse().map_err(|_| Problem::SaleNotFound)
}

/// The parameters of a path, each known and given at most once.
fn query<T>(query: Result<web::Query<T>, actix_web::Error>) -> Result<T, Problem> {
    query.map(web::Query::into_inner).map_err(|error| invalid(error.to_string()))
}

fn invalid(what: impl Into<String>) -> Problem {
    Problem::InvalidRequest(what.into())
}

/// A parameter that is text of some form.
fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: Option<&str>,
) -> Result<Option<T>, Problem> {
    text.map(|text| text.parse().map_err(|error: T::Err| invalid(error.to_string()))).transpose()
}

/// How many are asked for.
fn limit_of(limit: Option<u64>) -> Result<u64, Problem> {
    match limit.unwrap_or(LIMIT_DEFAULT) {
        limit @ 1..=LIMIT_MAX => Ok(limit),
        _ => Err(invalid(format!("limit is a number from 1 to {LIMIT_MAX}"))),
    }
}

const LIMIT_DEFAULT: u64 = 100;
const LIMIT_MAX: u64 = 1000;

/// A page, when one more than asked for was read; and its last, when others follow.
fn page<T>(mut found: Vec<T>, limit: u64) -> (Vec<T>, bool) {
    let limit = usize::try_from(limit).expect("at most 1,000");
    let more = found.len() > limit;
    found.truncate(limit);
    (found, more)
}

/// Does something to its end, also when the operator hangs up: half a change is worse than one that
/// nobody waits for.
async fn to_its_end<T: 'static>(
    work: impl Future<Output = Result<T, OperationError>> + 'static,
) -> Result<T, Problem> {
    match actix_web::rt::spawn(work).await {
        Ok(done) => done.map_err(problem_of),
        Err(error) => {
            error_quietly!(error = %error, "an operator's change ended badly");
            Err(Problem::OutcomeUnknown)
        }
    }
}

fn ok(value: &impl Serialize) -> HttpResponse {
    HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(value)
}

fn problem_of(error: OperationError) -> Problem {
    match error {
        OperationError::Refused(Refused::SaleNotFound(sale)) => Problem::NoSaleOf(sale),
        OperationError::Refused(
            refused @ (Refused::NewSale(_) | Refused::Adjustment | Refused::NoChange),
        ) => invalid(refused.to_string()),
        OperationError::Refused(refused @ Refused::DeadLetterNotFound(_)) => {
            Problem::DeadLetterNotFound(refused.to_string())
        }
        OperationError::Refused(refused @ Refused::KeyReused(_)) => {
            Problem::KeyReused(refused.to_string())
        }
        OperationError::Refused(refused) => Problem::Refused(refused.to_string()),
        OperationError::Fault(fault) => {
            error_quietly!(error = %fault, "what an operator asked for could not be done");
            Problem::SaleUnavailable
        }
    }
}

/// The problems of every call.
pub(crate) struct AnyCall;

/// The problems of every call that changes something.
pub(crate) struct AnyChange;

impl IntoResponses for AnyCall {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[
            ("401", "unauthorized"),
            ("403", "forbidden: the token needs the role admin"),
            ("503", "sale-unavailable: a store is away"),
        ])
    }
}

impl IntoResponses for AnyChange {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[
            ("400", "invalid-request: a field or header is missing, unknown or out of range"),
            ("401", "unauthorized"),
            ("403", "forbidden: the token needs the role admin"),
            ("408", "request-timeout"),
            ("413", "too-large"),
            ("415", "unsupported-media-type"),
            (
                "503",
                "sale-unavailable: a store is away; outcome-unknown. Ask again: what was done \
                 already is not done twice",
            ),
        ])
    }
}

fn problems(problems: &[(&str, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let body = Ref::from_schema_name("ProblemBody");
    let content = ContentBuilder::new().schema(Some(body)).build();
    let response = |text: &str| {
        ResponseBuilder::new()
            .description(text)
            .content("application/problem+json", content.clone())
            .build()
    };
    problems.iter().map(|(status, text)| ((*status).to_owned(), RefOr::T(response(text)))).collect()
}
