//! Orders: placing one, following it, listing one's own.

use std::time::Duration;

use actix_web::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_bootstrap::error_quietly;
use flashsale_domain::{
    Admission, AdmissionRequest, IdempotencyKey, Order, OrderId, OrderState, Partition, Refusal,
    RejectReason, SaleId, SaleMode, UserId,
};
use flashsale_storage_sql::{Cancellation, DirectAnswer, OrderFilter};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until, timeout};
use utoipa::{IntoParams, ToSchema};

use crate::admission_queue::{AdmissionQueue, NoDecision};
use crate::app::State;
use crate::auth::Buyer;
use crate::catalogue::Catalogue;
use crate::followers::News;
use crate::headers::at_most_one;
use crate::problem::{Problem, ProblemBody};
use crate::receipts::{Receipt, ReceiptFault, Receipts};
use crate::routes::sales::PriceView;
use crate::routes::{rfc3339, time_of};

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const IDEMPOTENCY_REPLAYED: &str = "Idempotency-Replayed";

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

/// An order as its buyer sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct OrderView {
    /// Its id.
    #[schema(value_type = String)]
    order_id: OrderId,
    /// Of which sale; not told for an order that was lost with Redis's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    sale_id: Option<SaleId>,
    /// `queued`, `awaiting_payment`, `paid`, `cancelled`, `expired`, `refund_due`, `rejected`, `dead`.
    #[schema(value_type = String)]
    pub(crate) state: OrderState,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What it costs; known once it is no longer queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<PriceView>,
    /// Until when it can be paid (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pay_by: Option<String>,
    /// When it was committed (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    committed_at: Option<String>,
    /// When it was paid or ended (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_at: Option<String>,
}

/// Some of a buyer's orders.
#[derive(Serialize, ToSchema)]
pub(crate) struct OrderPage {
    /// Newest first.
    orders: Vec<OrderView>,
    /// Pass it as `cursor` for older ones; absent when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    next_cursor: Option<OrderId>,
}

impl From<Receipt> for OrderView {
    fn from(receipt: Receipt) -> Self {
        match receipt {
            Receipt::Order(order) => order.into(),
            Receipt::MemoryLost(order_id) => Self {
                order_id,
                sale_id: None,
                state: OrderState::Rejected,
                reason: Some(RejectReason::MemoryLost.as_str().to_owned()),
                price: None,
                pay_by: None,
                committed_at: None,
                settled_at: None,
            },
        }
    }
}

impl From<Order> for OrderView {
    fn from(order: Order) -> Self {
        let time = |ms: Option<i64>| ms.map(|ms| rfc3339(time_of(ms)));
        Self {
            order_id: order.id,
            sale_id: Some(order.sale_id),
            state: order.state,
            reason: order.reason,
            price: order.price.map(|price| PriceView {
                amount: price.amount,
                currency: price.currency.to_string(),
            }),
            pay_by: time(order.pay_by_ms),
            committed_at: time(order.committed_ms),
            settled_at: time(order.settled_ms),
        }
    }
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
    buyer: Buyer,
    body: web::Payload,
    queue: web::ThinData<AdmissionQueue>,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let sale: SaleId = path.parse().map_err(|_| Problem::SaleNotFound)?;
    let digest = idempotency_key(&request)?.map(|key| key.digest());
    let (mode, partition) = route(&state, sale).await?;
    check_body(&request, body, &state).await?;

    match (mode, partition) {
        (SaleMode::Queued, Some(partition)) => {
            if let Some(refusal) = refuse_from_memory(&state, sale, &buyer.user_id) {
                count_admission(&state, sale, refusal.as_str());
                metrics::counter!("flashsale_local_refusals_total", "outcome" => refusal.as_str())
                    .increment(1);
                return Err(problem_of_refusal(refusal, sale, &state.catalogue));
            }
            let wish = AdmissionRequest { user_id: buyer.user_id, digest };
            let outcome = queue.admit(partition, sale, wish).await;
            let label = match &outcome {
                Ok(Ok(Admission { replayed: false, .. })) => "admitted",
                Ok(Ok(Admission { replayed: true, .. })) => "replayed",
                Ok(Err(refusal)) => refusal.as_str(),
                Err(no_decision) => no_decision_label(*no_decision),
            };
            count_admission(&state, sale, label);
            let admission = outcome
                .map_err(problem_of_no_decision)?
                .map_err(|refusal| problem_of_refusal(refusal, sale, &state.catalogue))?;
            Ok(accepted(sale, admission))
        }
        (SaleMode::Queued, None) => Err(Problem::SaleUnavailable),
        (SaleMode::Direct, _) => {
            let answer = state.direct.place(sale, buyer.user_id, digest).await;
            let label = match &answer {
                Ok(DirectAnswer::Placed(_)) => "admitted",
                Ok(DirectAnswer::Replayed(_)) => "replayed",
                Ok(DirectAnswer::Refused(refusal)) => refusal.as_str(),
                Ok(DirectAnswer::IdTaken) => "unavailable",
                Err(no_decision) => no_decision_label(*no_decision),
            };
            count_admission(&state, sale, label);
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

/// Where a sale lives and how it decides. One that is not known may have been published a moment
/// ago: then the database is asked before anybody is told that there is no such sale.
async fn route(state: &State, sale: SaleId) -> Result<(SaleMode, Option<Partition>), Problem> {
    if let Some(route) = state.catalogue.route(sale) {
        return Ok(route);
    }
    state.newest_sales.look().await.map_err(|_| Problem::SaleUnavailable)?;
    state.catalogue.route(sale).ok_or(Problem::SaleNotFound)
}

/// What is certain without asking Redis.
fn refuse_from_memory(state: &State, sale: SaleId, user: &UserId) -> Option<Refusal> {
    if state.catalogue.is_long_before_start(sale) {
        return Some(Refusal::NotStarted);
    }
    state.leases.refuse(sale, user)
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

fn count_admission(state: &State, sale: SaleId, outcome: &'static str) {
    state.answers.count(sale, outcome);
    metrics::counter!("flashsale_admissions_total", "sale" => sale.to_string(), "outcome" => outcome)
        .increment(1);
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

fn idempotency_key(request: &HttpRequest) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(value) = at_most_one(request, IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = value.to_str().ok().and_then(|text| IdempotencyKey::new(text).ok());
    key.map(Some).ok_or_else(|| {
        let allowed = "an Idempotency-Key has 1 to 255 visible ASCII characters";
        Problem::InvalidRequest(allowed.to_owned())
    })
}

/// Reads a body of a modest size, within its time.
pub(crate) async fn read_body(
    request: &HttpRequest,
    mut body: web::Payload,
    state: &State,
) -> Result<Vec<u8>, Problem> {
    let limit = state.body_limit_bytes;
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if declared.and_then(|v| v.parse::<usize>().ok()).is_some_and(|length| length > limit) {
        return Err(Problem::TooLarge(limit));
    }
    let read = async {
        let mut bytes = Vec::new();
        while let Some(chunk) = body.next().await {
            let chunk = chunk
                .map_err(|_| Problem::InvalidRequest("the body ended before its end".to_owned()))?;
            if bytes.len() + chunk.len() > limit {
                return Err(Problem::TooLarge(limit));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    timeout(state.body_timeout, read)
        .await
        .map_err(|_| Problem::RequestTimeout(state.body_timeout))?
}

/// An order needs no body. One that is sent all the same must be a JSON object of a modest size, so
/// that a client which means something else by it is told.
async fn check_body(
    request: &HttpRequest,
    body: web::Payload,
    state: &State,
) -> Result<(), Problem> {
    let bytes = read_body(request, body, state).await?;
    if bytes.is_empty() {
        return Ok(());
    }
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Err(Problem::UnsupportedMediaType);
    }
    serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
        .ok()
        .filter(|_| bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'))
        .map(|_| ())
        .ok_or_else(|| Problem::InvalidRequest("the body is not a JSON object".to_owned()))
}

/// How to read an order.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowQuery {
    /// Wait so many seconds, 0 to 30, for the order to leave `queued`.
    wait: Option<u64>,
}

/// The longest wait for an order to leave `queued`, in seconds.
const WAIT_MAX_S: u64 = 30;

/// One of one's own orders.
#[utoipa::path(
    get, path = "/api/v1/orders/{order}", tag = "orders", security(("bearer" = [])),
    params(("order" = String, Path, description = "The order's id"), ShowQuery),
    responses(
        (status = 200, body = OrderView),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "order-not-found; also when it is another's"),
        (status = 503, body = ProblemBody, description = "sale-unavailable"),
    ),
)]
pub(crate) async fn show(
    path: web::Path<String>,
    query: Result<web::Query<ShowQuery>, actix_web::Error>,
    buyer: Buyer,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let wait_s = query
        .ok()
        .map(|query| query.wait.unwrap_or(0))
        .filter(|seconds| *seconds <= WAIT_MAX_S)
        .ok_or_else(|| {
            Problem::InvalidRequest(format!(
                "the one parameter is wait, a number of seconds from 0 to {WAIT_MAX_S}, given at most once"
            ))
        })?;
    let id: OrderId = path.parse().map_err(|_| Problem::OrderNotFound)?;
    let deadline = (Instant::now() + Duration::from_secs(wait_s)).min(buyer.expires_at);
    let mut following = (wait_s > 0).then(|| state.followers.follow(id));
    let mut order = find_view(&state.receipts, id, &buyer.user_id).await?;
    // No connection is held while waiting.
    while let Some(following) = &mut following
        && order.state == OrderState::Queued
    {
        order = tokio::select! {
            news = following.news() => match news {
                News::Row(row) if row.user_id == buyer.user_id => OrderView::from((*row).clone()),
                News::Row(_) => return Err(Problem::OrderNotFound),
                News::Look => match find_view(&state.receipts, id, &buyer.user_id).await {
                    Ok(order) => order,
                    // Not readable now: it is asked again soon.
                    Err(Problem::SaleUnavailable) => continue,
                    Err(problem) => return Err(problem),
                },
            },
            () = sleep_until(deadline) => break,
            () = state.draining.requested() => break,
        };
    }
    Ok(HttpResponse::Ok().insert_header((CACHE_CONTROL, "no-store")).json(order))
}

/// A buyer's order, as it is now.
pub(crate) async fn find_view(
    receipts: &Receipts,
    id: OrderId,
    user: &UserId,
) -> Result<OrderView, Problem> {
    let found = receipts.find(id, user).await.map_err(unavailable)?;
    found.map(OrderView::from).ok_or(Problem::OrderNotFound)
}

/// Cancel an order that waits for payment. Cancelling it again is the same as once.
///
/// Its unit goes back on sale, and the buyer may order again.
#[utoipa::path(
    post, path = "/api/v1/orders/{order}/cancel", tag = "orders", security(("bearer" = [])),
    params(("order" = String, Path, description = "The order's id")),
    responses(
        (status = 200, body = OrderView, description = "Cancelled, now or before"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "order-not-found; also when it is another's"),
        (status = 408, body = ProblemBody, description = "request-timeout"),
        (status = 409, body = ProblemBody,
            description = "not-cancellable: only an order that waits for payment can be cancelled"),
        (status = 413, body = ProblemBody, description = "too-large"),
        (status = 415, body = ProblemBody, description = "unsupported-media-type"),
        (status = 503, body = ProblemBody, description = "sale-unavailable"),
    ),
)]
pub(crate) async fn cancel(
    request: HttpRequest,
    path: web::Path<String>,
    buyer: Buyer,
    body: web::Payload,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let id: OrderId = path.parse().map_err(|_| Problem::OrderNotFound)?;
    check_body(&request, body, &state).await?;
    let mut cancelled = try_cancel(&state, id, &buyer.user_id).await?;
    if cancelled == Cancellation::NotFound {
        // Perhaps it is only queued, or dead; or it has become a row since.
        let view = find_view(&state.receipts, id, &buyer.user_id).await?;
        cancelled = match view.state {
            OrderState::AwaitingPayment => try_cancel(&state, id, &buyer.user_id).await?,
            order_state => Cancellation::Refused(order_state),
        };
    }
    match cancelled {
        Cancellation::Cancelled(stored) => Ok(HttpResponse::Ok()
            .insert_header((CACHE_CONTROL, "no-store"))
            .json(OrderView::from(stored.order))),
        Cancellation::Refused(order_state) => Err(Problem::NotCancellable(order_state)),
        Cancellation::NotFound => Err(Problem::OrderNotFound),
    }
}

async fn try_cancel(state: &State, id: OrderId, user: &UserId) -> Result<Cancellation, Problem> {
    state.operations.cancel_order(id, user).await.map_err(|fault| {
        error_quietly!(error = %fault, order.id = %id, "an order could not be cancelled");
        Problem::SaleUnavailable
    })
}

/// Which orders to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// Only of this sale; then the queued ones too.
    sale: Option<String>,
    /// Only in this state.
    state: Option<String>,
    /// Only older than the order of this id: `next_cursor` of the page before.
    cursor: Option<String>,
    /// 1 to 100; 20 when it is left out.
    limit: Option<u64>,
}

const LIMIT_DEFAULT: u64 = 20;
const LIMIT_MAX: u64 = 100;

/// One's own orders, newest first.
#[utoipa::path(
    get, path = "/api/v1/orders", tag = "orders", security(("bearer" = [])), params(ListQuery),
    responses(
        (status = 200, body = OrderPage),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 503, body = ProblemBody, description = "sale-unavailable"),
    ),
)]
pub(crate) async fn list(
    query: Result<web::Query<ListQuery>, actix_web::Error>,
    buyer: Buyer,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let invalid = |what: String| Problem::InvalidRequest(what);
    let query = query.map_err(|_| {
        invalid(format!(
            "the parameters are sale, state, cursor and limit (a number from 1 to {LIMIT_MAX}), each \
             given at most once"
        ))
    })?;
    let query = query.into_inner();
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(invalid(format!("limit is a number from 1 to {LIMIT_MAX}")));
    }
    let sale_id = query
        .sale
        .map(|text| text.parse::<SaleId>().map_err(|error| invalid(error.to_string())))
        .transpose()?;
    let filter = OrderFilter {
        sale_id,
        state: query
            .state
            .map(|text| text.parse::<OrderState>().map_err(|error| invalid(error.to_string())))
            .transpose()?,
        before: query
            .cursor
            .map(|text| text.parse::<OrderId>().map_err(|error| invalid(error.to_string())))
            .transpose()?,
        // One more than asked for tells whether there is a next page.
        limit: limit + 1,
    };
    let home = match sale_id {
        Some(sale) => route(&state, sale).await?.1,
        None => None,
    };
    let mut orders =
        state.receipts.list(&buyer.user_id, &filter, home).await.map_err(unavailable)?;
    let limit = usize::try_from(limit).expect("at most 100");
    let more = orders.len() > limit;
    orders.truncate(limit);
    let next_cursor = orders.last().filter(|_| more).map(|order| order.id);
    let orders = orders.into_iter().map(OrderView::from).collect();
    Ok(HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .json(OrderPage { orders, next_cursor }))
}

fn unavailable(fault: ReceiptFault) -> Problem {
    error_quietly!(error = %fault, "an order could not be read");
    Problem::SaleUnavailable
}
