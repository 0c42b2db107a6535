//! Dead letters: entries that are set aside until an operator decides.

use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_domain::Partition;
use flashsale_operations::{DeadFilter, DeadOrder, DeadOutcome, LetterId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    AnyCall, AnyChange, State, invalid, limit_of, ok, operator, parsed, problem_of, query,
    to_its_end,
};
use crate::problem::{Problem, ProblemBody};
use crate::request_body::read_json;

/// Which dead letters.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadQuery {
    /// Only this one: its order's id, or its entry's (1764470400000-0). One that is not there is
    /// answered `dead-letter-not-found`.
    id: Option<String>,
    /// Only of this sale.
    sale: Option<String>,
    /// Only with this reason, such as `undecodable` or `data-refused`.
    reason: Option<String>,
    /// Only of this partition.
    partition: Option<u16>,
    /// 1 to 1000; 100 when it is left out.
    limit: Option<u64>,
}

/// How to act on a dead letter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadActionBody {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Letters {
    dead: Vec<DeadOrder>,
}

#[derive(Serialize)]
struct Outcomes {
    dry_run: bool,
    outcomes: Vec<DeadOutcome>,
}

/// Dead letters, oldest first.
///
/// As `salectl dead list --json`.
#[utoipa::path(
    get, path = "/admin/v1/dead-letters", tag = "dead-letters", security(("bearer" = [])),
    params(DeadQuery),
    responses(
        (status = 200, content_type = "application/json", description = "`{\"dead\":[…]}`"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 404, body = ProblemBody, description = "dead-letter-not-found"),
        AnyCall,
    ),
)]
pub(crate) async fn list(
    request: HttpRequest,
    parameters: Result<web::Query<DeadQuery>, actix_web::Error>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let DeadQuery { id, sale, reason, partition, limit } = query(parameters)?;
    let named: Option<LetterId> = parsed(id.as_deref())?;
    let of_id = named.map(DeadFilter::from).unwrap_or_default();
    let partition = match partition {
        None => of_id.partition,
        Some(number) => {
            Some(Partition::new(number).ok_or_else(|| invalid("there is no such partition"))?)
        }
    };
    let limit = usize::try_from(limit_of(limit)?).expect("at most 1,000");
    let filter =
        DeadFilter { sale_id: parsed(sale.as_deref())?, reason, partition, limit, ..of_id };
    Ok(ok(&Letters { dead: state.operations.list_dead(&filter).await.map_err(problem_of)? }))
}

/// Try a dead letter again under its order's id. What still cannot be done stays.
///
/// As `salectl dead requeue --json`. A letter that is settled is gone: asked for again, it is answered
/// `dead-letter-not-found`.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{id}/requeue", tag = "dead-letters",
    security(("bearer" = [])),
    params(("id" = String, Path, description = "Its order's id, or its entry's")),
    request_body = Option<DeadActionBody>,
    responses(
        (status = 200, content_type = "application/json",
            description = "What came of it; `settled` is false when the letter stays"),
        (status = 404, body = ProblemBody, description = "dead-letter-not-found"),
        AnyChange,
    ),
)]
pub(crate) async fn requeue(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    let (actor, filter, dry_run) = action(&request, &path, body, &state).await?;
    let operations = state.operations.clone();
    let work = async move { operations.requeue_dead(&filter, &actor, dry_run).await };
    Ok(ok(&Outcomes { dry_run, outcomes: to_its_end(work).await? }))
}

/// Give a dead letter up: the order's row says rejected, its unit and slot go back.
///
/// As `salectl dead reject --json`.
#[utoipa::path(
    post, path = "/admin/v1/dead-letters/{id}/reject", tag = "dead-letters",
    security(("bearer" = [])),
    params(("id" = String, Path, description = "Its order's id, or its entry's")),
    request_body = Option<DeadActionBody>,
    responses(
        (status = 200, content_type = "application/json", description = "What came of it"),
        (status = 404, body = ProblemBody, description = "dead-letter-not-found"),
        AnyChange,
    ),
)]
pub(crate) async fn reject(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    let (actor, filter, dry_run) = action(&request, &path, body, &state).await?;
    let operations = state.operations.clone();
    let work = async move { operations.reject_dead(&filter, &actor, dry_run).await };
    Ok(ok(&Outcomes { dry_run, outcomes: to_its_end(work).await? }))
}

async fn action(
    request: &HttpRequest,
    path: &str,
    body: web::Payload,
    state: &State,
) -> Result<(String, DeadFilter, bool), Problem> {
    let actor = operator(request, state)?;
    let id: LetterId =
        path.parse().map_err(|_| Problem::DeadLetterNotFound(format!("no letter is {path:?}")))?;
    let DeadActionBody { dry_run } = read_json(request, body, state.body).await?;
    Ok((actor, id.into(), dry_run))
}
