//! Placing an order: the way that must be short. From here it goes to `admission_queue`, or for a
//! direct sale to `direct`.

use actix_web::http::header::{CACHE_CONTROL, HeaderName, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_bootstrap::error_quietly;
use flashsale_domain::{
    Admission, AdmissionRequest, IdempotencyKey, Order, OrderId, OrderState, REHEARSAL_BUYERS,
    Refusal, SaleId, SaleMode,
};
use flashsale_storage_sql::DirectAnswer;
use serde::Serialize;
use tracing::debug;
use utoipa::ToSchema;

use crate::admission_queue::{AdmissionQueue, Answer, NoDecision};
use crate::app::State;
use crate::auth::{Buyer, BuyerVerifier};
use crate::catalogue::{Catalogue, Route};
use crate::direct::Press;
use crate::headers::at_most_one;
use crate::problem::{Problem, ProblemBody};
use crate::request_body::check_body;
use crate::routes::time_of;
use crate::spans::{AdmissionSpan, request_id};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What a buyer gets at once.
#[derive(Serialize, ToSchema)]
pub(crate) struct OrderReceipt {
    /// The order's id, for good: a string, because it does not fit a JavaScript number.
    #[schema(value_type = String, example = "385724913408081920")]
    order_id: OrderId,
    /// The sale.
    #[schema(value_type = String, example = "1")]
    sale_id: SaleId,
    /// `queued`; `awaiting_payment` in a direct sale.
    #[schema(value_type = String, example = "queued")]
    state: OrderState,
}

/// Place an order of one unit.
///
/// The same Idempotency-Key from the same buyer for the same sale is always answered with the same
/// order. No body is needed; a JSON object is accepted and ignored.
#[utoipa::path(
    post, path = "/api/v1/sales/{sale}/orders", tag = "orders", security(("bearer" = [])),
    params(
        ("sale" = String, Path, description = "The sale's id"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters"),
    ),
    responses(
        (status = 202, body = OrderReceipt, description = "Admitted; it becomes a row at once or soon",
            headers(
                ("Location" = String, description = "Where to follow the order"),
                ("Idempotency-Replayed" = bool, description = "true when the key was answered before"),
            )),
        (status = 201, body = OrderReceipt, description = "Committed (direct sale)"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody,
            description = "sold-out, already-ordered, not-started, ended, paused"),
        (status = 408, body = ProblemBody, description = "request-timeout"),
        (status = 413, body = ProblemBody, description = "too-large"),
        (status = 415, body = ProblemBody, description = "unsupported-media-type"),
        (status = 503, body = ProblemBody,
            description = "overloaded, sale-unavailable, outcome-unknown"),
    ),
)]
pub(crate) async fn place(
    request: HttpRequest,
    path: web::Path<String>,
    verifier: web::ThinData<BuyerVerifier>,
    body: web::Payload,
    queue: web::ThinData<AdmissionQueue>,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let sale: Option<SaleId> = path.parse().ok();
    let asking = identify(&request, &verifier, &state, sale)?;
    let sale = sale.ok_or(Problem::SaleNotFound)?;
    let digest = idempotency_key(&request)?.map(|key| key.digest());
    let buyer = match asking {
        Ok(buyer) => buyer,
        Err(refusal) => {
            check_body(&request, body, &state).await?;
            state.answers.count_from_memory(sale, refusal);
            return Err(problem_of_refusal(refusal, sale, &state.catalogue));
        }
    };
    let Route { mode, partition, .. } = route_for(&state, sale, &buyer).await?;
    check_body(&request, body, &state).await?;

    match (mode, partition) {
        (SaleMode::Queued, Some(partition)) => {
            let span = AdmissionSpan::begin(sale);
            let traceparent = span.as_ref().map(AdmissionSpan::traceparent);
            let wish = AdmissionRequest { user_id: buyer.user_id, digest, traceparent };
            let outcome = queue.admit(partition, sale, wish).await;
            let label = match &outcome {
                Ok(Ok(Admission { replayed: false, .. })) => "admitted",
                Ok(Ok(Admission { replayed: true, .. })) => "replayed",
                Ok(Err(refusal)) => refusal.as_str(),
                Err(no_decision) => no_decision_label(*no_decision),
            };
            state.answers.count(sale, label);
            let order_id = order_of(&outcome);
            if let Some(span) = span {
                span.end(label, order_id);
            }
            if let Some(order_id) = order_id {
                debug!(order.id = %order_id, sale.id = %sale, request.id = request_id(&request),
                    "an order is {label}");
            }
            let admission = outcome
                .map_err(problem_of_no_decision)?
                .map_err(|refusal| problem_of_refusal(refusal, sale, &state.catalogue))?;
            Ok(accepted(sale, admission))
        }
        (SaleMode::Queued, None) => Err(Problem::SaleUnavailable),
        (SaleMode::Direct, _) => {
            let request_id = request_id(&request).map(str::to_owned);
            let press = Press { user: buyer.user_id, digest, request_id };
            let answer = state.direct.place(sale, press).await;
            let label = match &answer {
                Ok(DirectAnswer::Placed(_)) => "admitted",
                Ok(DirectAnswer::Replayed(_)) => "replayed",
                Ok(DirectAnswer::Refused(refusal)) => refusal.as_str(),
                Ok(DirectAnswer::IdTaken) => "unavailable",
                Err(no_decision) => no_decision_label(*no_decision),
            };
            state.answers.count(sale, label);
            match answer.map_err(problem_of_no_decision)? {
                DirectAnswer::Placed(order) => Ok(created(&order, false)),
                DirectAnswer::Replayed(order) => Ok(created(&order, true)),
                DirectAnswer::Refused(refusal) => {
                    Err(problem_of_refusal(refusal, sale, &state.catalogue))
                }
                DirectAnswer::IdTaken => Err(Problem::SaleUnavailable),
            }
        }
    }
}

/// The order that a buyer is told of.
const fn order_of(answer: &Answer) -> Option<OrderId> {
    match answer {
        Ok(Ok(Admission { order_id, .. }) | Err(Refusal::AlreadyOrdered(order_id))) => {
            Some(*order_id)
        }
        Ok(Err(_)) | Err(_) => None,
    }
}

/// The sale's [`route`]; a rehearsal's is there for its own buyers alone.
pub(crate) async fn route_for(
    state: &State,
    sale: SaleId,
    buyer: &Buyer,
) -> Result<Route, Problem> {
    let route = route(state, sale).await?;
    if route.rehearsal && !buyer.user_id.as_str().starts_with(REHEARSAL_BUYERS) {
        return Err(Problem::SaleNotFound);
    }
    Ok(route)
}

/// Where a sale lives and how it decides. One that is not known may have been published a moment
/// ago: then the database is asked before anybody is told that there is no such sale.
async fn route(state: &State, sale: SaleId) -> Result<Route, Problem> {
    if let Some(route) = state.catalogue.route(sale) {
        return Ok(route);
    }
    state.newest_sales.look().await.map_err(|_| Problem::SaleUnavailable)?;
    state.catalogue.route(sale).ok_or(Problem::SaleNotFound)
}

/// Who asks; or what he can be told without asking Redis, and without looking at his signature.
///
/// While a refusal stands in memory, everybody is told it but those who may have an order, and of them
/// those who cannot prove who they are. So what a forged token is answered does not say whether the buyer
/// that it names has an order.
fn identify(
    request: &HttpRequest,
    verifier: &BuyerVerifier,
    state: &State,
    sale: Option<SaleId>,
) -> Result<Result<Buyer, Refusal>, Problem> {
    let Some((sale, refusal)) = sale.and_then(|sale| Some((sale, refusal_in_memory(state, sale)?)))
    else {
        return verifier.verify(request).map(Ok);
    };
    let claimed = verifier.read_claimed_user(request)?;
    if refusal != Refusal::NotStarted && state.leases.refuse(sale, &claimed).is_none() {
        return Ok(verifier.verify(request).map_err(|_| refusal));
    }
    Ok(Err(refusal))
}

/// What is certain, without asking Redis, of a buyer who has no order.
fn refusal_in_memory(state: &State, sale: SaleId) -> Option<Refusal> {
    let refusal = match state.catalogue.is_long_before_start(sale) {
        true => Refusal::NotStarted,
        false => state.leases.refusal(sale)?,
    };
    // To everybody but its own buyers a rehearsal's sale is none, so it has to be known who asks.
    (!state.catalogue.is_rehearsal(sale)).then_some(refusal)
}

fn accepted(sale_id: SaleId, admission: Admission) -> HttpResponse {
    let receipt = OrderReceipt { order_id: admission.order_id, sale_id, state: OrderState::Queued };
    answer(HttpResponse::Accepted(), &receipt, admission.replayed)
}

fn created(order: &Order, replayed: bool) -> HttpResponse {
    let receipt = OrderReceipt { order_id: order.id, sale_id: order.sale_id, state: order.state };
    answer(HttpResponse::Created(), &receipt, replayed)
}

fn answer(
    mut response: actix_web::HttpResponseBuilder,
    receipt: &OrderReceipt,
    replayed: bool,
) -> HttpResponse {
    response
        .insert_header((LOCATION, format!("/api/v1/orders/{}", receipt.order_id)))
        .insert_header((CACHE_CONTROL, "no-store"));
    if replayed {
        response.insert_header((IDEMPOTENCY_REPLAYED, "true"));
    }
    response.json(receipt)
}

const fn no_decision_label(no_decision: NoDecision) -> &'static str {
    match no_decision {
        NoDecision::Overloaded => "overloaded",
        NoDecision::Unavailable => "unavailable",
        NoDecision::OutcomeUnknown => "outcome_unknown",
    }
}

const fn problem_of_no_decision(no_decision: NoDecision) -> Problem {
    match no_decision {
        NoDecision::Overloaded => Problem::Overloaded,
        NoDecision::Unavailable => Problem::SaleUnavailable,
        NoDecision::OutcomeUnknown => Problem::OutcomeUnknown,
    }
}

fn problem_of_refusal(refusal: Refusal, sale: SaleId, catalogue: &Catalogue) -> Problem {
    match refusal {
        Refusal::AlreadyOrdered(id) => Problem::AlreadyOrdered(id),
        Refusal::SoldOut => Problem::SoldOut,
        Refusal::NotStarted => match catalogue.find(sale) {
            Some(entry) => {
                let opens_ms = entry.sale.window.opens_ms();
                let wait_ms = u64::try_from(opens_ms - catalogue.now_ms()).unwrap_or(0);
                let retry_after_s = wait_ms.div_ceil(1000).max(1);
                Problem::NotStarted { opens_at: time_of(opens_ms), retry_after_s }
            }
            None => Problem::SaleUnavailable,
        },
        Refusal::Ended => Problem::Ended,
        Refusal::Paused => Problem::Paused,
        Refusal::NotLoaded => Problem::SaleUnavailable,
        Refusal::ClockFault => {
            error_quietly!(sale.id = %sale, "clock fault: no order id can be given for sale {sale}");
            Problem::SaleUnavailable
        }
    }
}

/// The key that makes the request safe to repeat, if it has one.
pub(crate) fn idempotency_key(request: &HttpRequest) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(value) = at_most_one(request, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = value.to_str().ok().and_then(|text| IdempotencyKey::new(text).ok());
    key.map(Some).ok_or_else(|| {
        let allowed = "an Idempotency-Key has 1 to 255 visible ASCII characters";
        Problem::InvalidRequest(allowed.to_owned())
    })
}
