//! Orders that were placed: following one, cancelling it, listing one's own.

use std::time::Duration;

use actix_web::http::header::CACHE_CONTROL;
use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_bootstrap::error_quietly;
use flashsale_domain::{Order, OrderId, OrderState, RejectReason, SaleId, UserId};
use flashsale_storage_sql::{Cancellation, OrderFilter};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};
use utoipa::{IntoParams, ToSchema};

use crate::app::State;
use crate::auth::Buyer;
use crate::followers::News;
use crate::problem::{Problem, ProblemBody};
use crate::receipts::{Receipt, Receipts};
use crate::request_body::check_body;
use crate::routes::placing::route_for;
use crate::routes::sales::PriceView;
use crate::routes::{rfc3339, time_of};
use crate::spans::request_id;

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

/// How to read an order.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
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
        (status = 200, body = OrderView, description = "The order"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "order-not-found; also when it is another's"),
        (status = 503, body = ProblemBody, description = "sale-unavailable"),
    ),
)]
pub(crate) async fn show(
    request: HttpRequest,
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
    let mut order = find_view(&state.receipts, id, &buyer.user_id, request_id(&request)).await?;
    // No connection is held while waiting.
    while let Some(following) = &mut following
        && order.state == OrderState::Queued
    {
        order = tokio::select! {
            news = following.news() => match news {
                News::Row(row) if row.user_id == buyer.user_id => OrderView::from((*row).clone()),
                News::Row(_) => return Err(Problem::OrderNotFound),
                News::Look => match find_view(&state.receipts, id, &buyer.user_id, request_id(&request)).await {
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
    request_id: Option<&str>,
) -> Result<OrderView, Problem> {
    let found = receipts.find(id, user).await.map_err(|fault| {
        error_quietly!(error = %fault, order.id = %id, request.id = request_id,
            "an order could not be read");
        Problem::SaleUnavailable
    })?;
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
    let mut cancelled = try_cancel(&request, &state, id, &buyer.user_id).await?;
    if cancelled == Cancellation::NotFound {
        // Perhaps it is only queued, or dead; or it has become a row since.
        let view = find_view(&state.receipts, id, &buyer.user_id, request_id(&request)).await?;
        cancelled = match view.state {
            OrderState::AwaitingPayment => try_cancel(&request, &state, id, &buyer.user_id).await?,
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

async fn try_cancel(
    request: &HttpRequest,
    state: &State,
    id: OrderId,
    user: &UserId,
) -> Result<Cancellation, Problem> {
    state.operations.cancel_order(id, user).await.map_err(|fault| {
        error_quietly!(error = %fault, order.id = %id, request.id = request_id(request),
            "an order could not be cancelled");
        Problem::SaleUnavailable
    })
}

/// Which orders to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
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
        (status = 200, body = OrderPage, description = "A page"),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 503, body = ProblemBody, description = "sale-unavailable"),
    ),
)]
pub(crate) async fn list(
    request: HttpRequest,
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
        Some(sale) => route_for(&state, sale, &buyer).await?.partition,
        None => None,
    };
    let mut orders = state.receipts.list(&buyer.user_id, &filter, home).await.map_err(|fault| {
        error_quietly!(error = %fault, request.id = request_id(&request),
                "a buyer's orders could not be read");
        Problem::SaleUnavailable
    })?;
    let limit = usize::try_from(limit).expect("at most 100");
    let more = orders.len() > limit;
    orders.truncate(limit);
    let next_cursor = orders.last().filter(|_| more).map(|order| order.id);
    let orders = orders.into_iter().map(OrderView::from).collect();
    Ok(HttpResponse::Ok()
        .insert_header((CACHE_CONTROL, "no-store"))
        .json(OrderPage { orders, next_cursor }))
}
