//! Sales as operators make and change them.

use actix_web::http::header::{CACHE_CONTROL, LOCATION};
use actix_web::{HttpRequest, HttpResponse, web};
use chrono::DateTime;
use flashsale_domain::{LatePayment, NewSale, Price, SaleMode, Window};
use flashsale_operations::SaleView;
use flashsale_storage_sql::SaleEdit;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AnyCall, AnyChange, State, invalid, ok, operator, problem_of, query, sale_id, to_its_end,
};
use crate::problem::{Problem, ProblemBody};
use crate::request_body::read_json;
use crate::routes::placing::idempotency_key;
use crate::routes::sales::PriceView;

/// No parameter and no field: one that is sent all the same is told that there is none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// A new sale.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSaleBody {
    /// What buyers read, 1 to 200 characters.
    title: String,
    /// Units for sale.
    stock: i64,
    /// When buyers are first admitted (RFC 3339).
    opens_at: String,
    /// When they no longer are (RFC 3339).
    closes_at: String,
    /// Open orders that one buyer may have, 1 to 20.
    #[serde(default = "one")]
    #[schema(default = 1)]
    per_buyer: u16,
    /// What a unit costs; nothing when it is left out.
    #[schema(value_type = Option<PriceView>)]
    price: Option<Price>,
    /// How long a buyer has to pay, in seconds.
    #[serde(default = "a_quarter_of_an_hour")]
    #[schema(default = 900)]
    payment_window_s: i64,
    /// `queued` or `direct`: answer before or after the order is written.
    #[serde(default = "queued")]
    #[schema(value_type = String, default = "queued")]
    mode: SaleMode,
    /// Money that comes later: `reacquire` takes a unit again if there is one, `refund` gives it back.
    #[serde(default = "reacquire")]
    #[schema(value_type = String, default = "reacquire")]
    late_payment: LatePayment,
}

const fn one() -> u16 {
    1
}

const fn a_quarter_of_an_hour() -> i64 {
    900
}

const fn queued() -> SaleMode {
    SaleMode::Queued
}

const fn reacquire() -> LatePayment {
    LatePayment::Reacquire
}

/// What is to be another; the rest stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SaleEditBody {
    /// Until the sale is closed.
    title: Option<String>,
    /// While it is a draft, like all that follows (RFC 3339).
    opens_at: Option<String>,
    /// RFC 3339.
    closes_at: Option<String>,
    /// Open orders that one buyer may have, 1 to 20.
    per_buyer: Option<u16>,
    /// What a unit costs.
    #[schema(value_type = Option<PriceView>)]
    price: Option<Price>,
    /// How long a buyer has to pay, in seconds.
    payment_window_s: Option<i64>,
    /// `reacquire` or `refund`.
    #[schema(value_type = Option<String>)]
    late_payment: Option<LatePayment>,
}

/// A change of a sale's stock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StockBody {
    /// How many more units, or below 0 how many fewer.
    #[schema(example = -5)]
    delta: i64,
    /// Why, for the audit log: 1 to 200 characters.
    reason: String,
}

#[derive(Serialize)]
struct Sales {
    sales: Vec<SaleView>,
}

/// Every sale, newest first, drafts and closed ones too.
///
/// As `salectl sale list --json`. `stock_left` is the database's: what is still queued is not off it
/// yet.
#[utoipa::path(
    get, path = "/admin/v1/sales", tag = "sales", security(("bearer" = [])),
    responses(
        (status = 200, content_type = "application/json", description = "`{\"sales\":[…]}`"),
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
    let sales = state.operations.list_sales().await.map_err(problem_of)?;
    Ok(ok(&Sales { sales: sales.into_iter().map(SaleView::from).collect() }))
}

/// Create a sale, as a draft that buyers do not see.
///
/// As `salectl sale create`.
#[utoipa::path(
    post, path = "/admin/v1/sales", tag = "sales", security(("bearer" = [])),
    request_body = NewSaleBody,
    responses(
        (status = 201, content_type = "application/json", description = "The draft",
            headers(("Location" = String, description = "The sale"))),
        AnyChange,
    ),
)]
pub(crate) async fn create(
    request: HttpRequest,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    let actor = operator(&request, &state)?;
    let new: NewSaleBody = read_json(&request, body, state.body).await?;
    let (opens_ms, closes_ms) =
        (time_ms("opens_at", &new.opens_at)?, time_ms("closes_at", &new.closes_at)?);
    let free = || Price { amount: 0, currency: "CNY".parse().expect("a currency") };
    let new = NewSale {
        title: new.title,
        mode: new.mode,
        stock: new.stock,
        window: window(opens_ms, closes_ms)?,
        per_buyer: new.per_buyer,
        price: new.price.unwrap_or_else(free),
        payment_window_s: new.payment_window_s,
        late_payment: new.late_payment,
    };
    let operations = state.operations.clone();
    let sale = to_its_end(async move { operations.by(&actor).create_sale(&new).await }).await?;
    Ok(HttpResponse::Created()
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header((LOCATION, format!("/admin/v1/sales/{}", sale.id)))
        .json(SaleView::from(sale)))
}

/// A sale.
///
/// As `salectl sale show --json`.
#[utoipa::path(
    get, path = "/admin/v1/sales/{id}", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, content_type = "application/json", description = "The sale"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        AnyCall,
    ),
)]
pub(crate) async fn show(
    request: HttpRequest,
    path: web::Path<String>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let sale = state.operations.get_sale(sale_id(&path)?).await.map_err(problem_of)?;
    Ok(ok(&SaleView::from(sale)))
}

/// Change a sale's description: all of it while it is a draft, its title until it is closed.
///
/// The window, the limit and the price of a published sale are fixed: gateways remember that a window
/// is over, and orders were taken under the limit and at the price. Units change by `stock`.
#[utoipa::path(
    patch, path = "/admin/v1/sales/{id}", tag = "sales", security(("bearer" = [])),
    params(("id" = String, Path, description = "The sale's id")),
    request_body = SaleEditBody,
    responses(
        (status = 200, content_type = "application/json", description = "The sale as it is now"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: its state does not allow it"),
        AnyChange,
    ),
)]
pub(crate) async fn edit(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    let actor = operator(&request, &state)?;
    let id = sale_id(&path)?;
    let body: SaleEditBody = read_json(&request, body, state.body).await?;
    let edit = SaleEdit {
        window: match (&body.opens_at, &body.closes_at) {
            (None, None) => None,
            (opens_at, closes_at) => {
                let now = state.operations.get_sale(id).await.map_err(problem_of)?.window;
                let time = |name, text: &Option<String>, now| match text {
                    Some(text) => time_ms(name, text),
                    None => Ok(now),
                };
                let opens_ms = time("opens_at", opens_at, now.opens_ms())?;
                Some(window(opens_ms, time("closes_at", closes_at, now.closes_ms())?)?)
            }
        },
        title: body.title,
        per_buyer: body.per_buyer,
        price: body.price,
        payment_window_s: body.payment_window_s,
        late_payment: body.late_payment,
    };
    let operations = state.operations.clone();
    let sale = to_its_end(async move { operations.by(&actor).edit_sale(id, &edit).await }).await?;
    Ok(ok(&SaleView::from(sale)))
}

/// Put more units on sale, or take some away that nobody holds.
///
/// As `salectl sale stock`. The Idempotency-Key stands for this adjustment of this sale: sent again, it
/// is not made twice. A refusal does not keep its key.
#[utoipa::path(
    post, path = "/admin/v1/sales/{id}/stock", tag = "sales", security(("bearer" = [])),
    params(
        ("id" = String, Path, description = "The sale's id"),
        ("Idempotency-Key" = String, Header, description = "1 to 255 visible ASCII characters"),
    ),
    request_body = StockBody,
    responses(
        (status = 200, content_type = "application/json", description = "The sale as it is now"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
        (status = 409, body = ProblemBody, description = "refused: fewer units are left, the sale is \
            closed, another adjustment is not finished, or this one is written down and waits for \
            Redis; idempotency-key-reused"),
        AnyChange,
    ),
)]
pub(crate) async fn stock(
    request: HttpRequest,
    path: web::Path<String>,
    body: web::Payload,
    state: State,
) -> Result<HttpResponse, Problem> {
    let actor = operator(&request, &state)?;
    let id = sale_id(&path)?;
    let key = idempotency_key(&request)?.ok_or_else(|| {
        invalid("send an Idempotency-Key, so that asking again does not adjust the stock twice")
    })?;
    let StockBody { delta, reason } = read_json(&request, body, state.body).await?;
    let operations = state.operations.clone();
    let sale = to_its_end(async move {
        operations.adjust_stock_once(&actor, id, delta, &reason, Some(&key)).await
    });
    Ok(ok(&SaleView::from(sale.await?)))
}

fn time_ms(name: &str, text: &str) -> Result<i64, Problem> {
    let time = DateTime::parse_from_rfc3339(text);
    time.map(|time| time.timestamp_millis()).map_err(|_| {
        invalid(format!("{name} is a time of RFC 3339, such as 2026-11-11T00:00:00+08:00"))
    })
}

fn window(opens_ms: i64, closes_ms: i64) -> Result<Window, Problem> {
    Window::new(opens_ms, closes_ms).map_err(|error| invalid(error.to_string()))
}
