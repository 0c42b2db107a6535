//! Server-Sent Events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>): one order,
//! or a sale's stock, told as it changes.
//!
//! An event's id is what it says, so that whoever reconnects with it is told only what is new. A
//! stream ends by itself: on a final state, when the token expires, when the gateway leaves.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_bootstrap::Shutdown;
use flashsale_domain::{OrderId, OrderState, SaleId, SaleState, UserId};
use futures_util::stream::unfold;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::app::State;
use crate::auth::Buyer;
use crate::catalogue::Catalogue;
use crate::followers::{Following, News};
use crate::headers::at_most_one;
use crate::problem::{Problem, ProblemBody};
use crate::receipts::Receipts;
use crate::routes::orders::{OrderView, find_view};
use crate::spans::request_id;

/// What a client waits before it connects again.
const RETRY: &str = "retry: 2000\n\n";
/// A comment line, often enough that no proxy takes the stream for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often a sale's stream looks at the catalogue, which is itself read a few times a second.
const SALE_LOOK: Duration = Duration::from_millis(300);
/// Tells nginx not to collect what should arrive at once.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// One of one's own orders, as it changes.
///
/// Events `state`, each with the order as `GET /api/v1/orders/{order}` gives it; the first one comes at
/// once. The stream ends after a final state.
#[utoipa::path(
    get, path = "/api/v1/orders/{order}/events", tag = "orders", security(("bearer" = [])),
    params(
        ("order" = String, Path, description = "The order's id"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last event seen: only what is new is sent"),
    ),
    responses(
        (status = 200, content_type = "text/event-stream", body = String, description = "Events"),
        (status = 204, description = "The last event seen was the final one: do not connect again"),
        (status = 401, body = ProblemBody, description = "unauthorized"),
        (status = 404, body = ProblemBody, description = "order-not-found; also when it is another's"),
        (status = 503, body = ProblemBody, description = "sale-unavailable"),
    ),
)]
pub(crate) async fn order(
    request: HttpRequest,
    path: web::Path<String>,
    buyer: Buyer,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let id: OrderId = path.parse().map_err(|_| Problem::OrderNotFound)?;
    let seen = last_event_id(&request)?;
    let following = state.followers.follow(id);
    let view = find_view(&state.receipts, id, &buyer.user_id, request_id(&request)).await?;
    if view.state.is_final() && seen.as_deref() == Some(view.state.as_str()) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let events = OrderEvents {
        following,
        receipts: state.receipts.clone(),
        request_id: request_id(&request).map(str::to_owned),
        id,
        user_id: buyer.user_id,
        sent: seen.and_then(|seen| seen.parse().ok()),
        ends_at: buyer.expires_at,
        draining: state.draining.clone(),
        first: Some(view),
        ended: false,
    };
    Ok(stream(unfold(events, |mut events| async move {
        let chunk = events.next().await?;
        Some((Ok::<_, actix_web::Error>(Bytes::from(chunk)), events))
    })))
}

/// A sale, as it changes.
///
/// Events `stock` with `stock_left` (a hint), and `state` with `state`; both come at once. The stream ends
/// when the sale is closed.
#[utoipa::path(
    get, path = "/api/v1/sales/{sale}/events", tag = "sales",
    params(
        ("sale" = String, Path, description = "The sale's id"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last event seen: only what is new is sent"),
    ),
    responses(
        (status = 200, content_type = "text/event-stream", body = String, description = "Events"),
        (status = 204, description = "The last event seen was the final one: do not connect again"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
    ),
)]
pub(crate) async fn sale(
    request: HttpRequest,
    path: web::Path<String>,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let id: SaleId = path.parse().map_err(|_| Problem::SaleNotFound)?;
    let entry = state.catalogue.find_public(id).ok_or(Problem::SaleNotFound)?;
    let seen = last_event_id(&request)?.and_then(|seen| SaleWord::parse(&seen));
    let closed = |word: SaleWord| word.state == SaleState::Closed;
    if entry.sale.state == SaleState::Closed && seen.is_some_and(closed) {
        return Ok(HttpResponse::NoContent().finish());
    }
    let events = SaleEvents {
        catalogue: Arc::clone(&state.catalogue),
        id,
        sent: seen,
        draining: state.draining.clone(),
        greeted: false,
    };
    Ok(stream(unfold(events, |mut events| async move {
        let chunk = events.next().await?;
        Some((Ok::<_, actix_web::Error>(Bytes::from(chunk)), events))
    })))
}

fn stream(
    events: impl futures_util::Stream<Item = Result<Bytes, actix_web::Error>> + 'static,
) -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header((NO_BUFFERING, HeaderValue::from_static("no")))
        .streaming(events)
}

fn last_event_id(request: &HttpRequest) -> Result<Option<String>, Problem> {
    let value = at_most_one(request, "Last-Event-ID")?;
    Ok(value.and_then(|value| value.to_str().ok()).map(str::to_owned))
}

fn event(name: &str, id: &str, data: &impl Serialize) -> String {
    let data = serde_json::to_string(data).expect("names, numbers and strings");
    format!("id: {id}\nevent: {name}\ndata: {data}\n\n")
}

/// One who watches an order.
struct OrderEvents {
    following: Following,
    receipts: Receipts,
    id: OrderId,
    user_id: UserId,
    /// What the logs call the request.
    request_id: Option<String>,
    /// The state that was told last.
    sent: Option<OrderState>,
    ends_at: Instant,
    draining: Shutdown,
    /// What was found before the stream began.
    first: Option<OrderView>,
    ended: bool,
}

impl OrderEvents {
    async fn next(&mut self) -> Option<String> {
        if let Some(view) = self.first.take() {
            return Some(format!("{RETRY}{}", self.tell(&view).unwrap_or_default()));
        }
        if self.ended {
            return None;
        }
        let heartbeat = Instant::now() + HEARTBEAT;
        loop {
            let view = tokio::select! {
                news = self.following.news() => match news {
                    News::Row(order) if order.user_id == self.user_id => {
                        Some(OrderView::from((*order).clone()))
                    }
                    News::Row(_) => return None,
                    // Not readable now: it is asked again soon.
                    News::Look => {
                        let request_id = self.request_id.as_deref();
                        let found = find_view(&self.receipts, self.id, &self.user_id, request_id);
                        found.await.ok()
                    }
                },
                () = sleep_until(heartbeat) => return Some(":\n\n".to_owned()),
                () = sleep_until(self.ends_at) => return None,
                () = self.draining.requested() => return None,
            };
            if let Some(told) = view.and_then(|view| self.tell(&view)) {
                return Some(told);
            }
        }
    }

    /// The event, unless it was told before.
    fn tell(&mut self, view: &OrderView) -> Option<String> {
        self.ended = view.state.is_final();
        if self.sent.replace(view.state) == Some(view.state) {
            return None;
        }
        Some(event("state", view.state.as_str(), view))
    }
}

/// What a sale's stream has told: in an event's id, `<state>-<stock>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SaleWord {
    state: SaleState,
    stock_left: i64,
}

impl SaleWord {
    fn parse(id: &str) -> Option<Self> {
        let (state, stock_left) = id.split_once('-')?;
        Some(Self { state: state.parse().ok()?, stock_left: stock_left.parse().ok()? })
    }

    fn id(self) -> String {
        format!("{}-{}", self.state, self.stock_left)
    }
}

/// One who watches a sale.
struct SaleEvents {
    catalogue: Arc<Catalogue>,
    id: SaleId,
    sent: Option<SaleWord>,
    draining: Shutdown,
    greeted: bool,
}

impl SaleEvents {
    async fn next(&mut self) -> Option<String> {
        if !self.greeted {
            self.greeted = true;
            return Some(format!("{RETRY}{}", self.tell().unwrap_or_default()));
        }
        let heartbeat = Instant::now() + HEARTBEAT;
        loop {
            if self.sent.is_some_and(|word| word.state == SaleState::Closed) {
                return None;
            }
            tokio::select! {
                () = sleep(SALE_LOOK) => {}
                () = sleep_until(heartbeat) => return Some(":\n\n".to_owned()),
                () = self.draining.requested() => return None,
            }
            if let Some(told) = self.tell() {
                return Some(told);
            }
        }
    }

    /// What has changed since the last time.
    fn tell(&mut self) -> Option<String> {
        let entry = self.catalogue.find(self.id)?;
        let word = SaleWord { state: entry.sale.state, stock_left: entry.stock_left };
        let before = self.sent.replace(word);
        let mut told = String::new();
        if before.map(|before| before.stock_left) != Some(word.stock_left) {
            let data = json!({ "stock_left": word.stock_left });
            told.push_str(&event("stock", &word.id(), &data));
        }
        if before.map(|before| before.state) != Some(word.state) {
            told.push_str(&event("state", &word.id(), &json!({ "state": word.state })));
        }
        (!told.is_empty()).then_some(told)
    }
}
