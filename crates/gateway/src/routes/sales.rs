//! Sales as buyers see them: from memory, never from a store.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use actix_web::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_domain::{SaleId, SaleMode, SaleState};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::State;
use crate::catalogue::CatalogueSale;
use crate::problem::{Problem, ProblemBody};
use crate::routes::{rfc3339, time_of};

/// How long a copy of these answers may be given: a second, and one more while a proxy renews it, because
/// `server_time` is counted down from; half a minute when no gateway answers, and nothing is sold anyway.
const FRESH: &str = "public, max-age=1, stale-while-revalidate=1, stale-if-error=30";

/// A sale.
#[derive(Serialize, ToSchema)]
pub(crate) struct SaleView {
    /// Its id.
    #[schema(value_type = String, example = "1")]
    sale_id: SaleId,
    /// What is sold.
    title: String,
    /// `published`, `paused` or `closed`.
    #[schema(value_type = String, example = "published")]
    state: SaleState,
    /// `queued` or `direct`.
    #[schema(value_type = String, example = "queued")]
    mode: SaleMode,
    /// From when orders are taken (RFC 3339).
    opens_at: String,
    /// Until when.
    closes_at: String,
    /// Units in all.
    stock_total: i64,
    /// Units left, a moment ago: a hint.
    stock_left: i64,
    /// How many open orders of one unit a buyer may hold.
    per_buyer: u16,
    /// What a unit costs.
    price: PriceView,
    /// How long a buyer has to pay, in seconds.
    payment_window_s: i64,
}

/// An amount of money.
#[derive(Serialize, ToSchema)]
pub(crate) struct PriceView {
    /// In minor units of the currency.
    pub(crate) amount: i64,
    /// ISO 4217.
    #[schema(example = "CNY")]
    pub(crate) currency: String,
}

/// One sale, and the time by which it is decided.
#[derive(Serialize, ToSchema)]
pub(crate) struct SaleAnswer {
    /// The clock that decides the window (RFC 3339).
    server_time: String,
    #[serde(flatten)]
    sale: SaleView,
}

/// The sales.
#[derive(Serialize, ToSchema)]
pub(crate) struct SaleList {
    /// The clock that decides the windows (RFC 3339).
    server_time: String,
    /// Newest first; closed sales are left out.
    sales: Vec<SaleView>,
}

impl From<CatalogueSale> for SaleView {
    fn from(entry: CatalogueSale) -> Self {
        let sale = entry.sale;
        Self {
            sale_id: sale.id,
            title: sale.title,
            state: sale.state,
            mode: sale.mode,
            opens_at: rfc3339(time_of(sale.window.opens_ms())),
            closes_at: rfc3339(time_of(sale.window.closes_ms())),
            stock_total: sale.stock_total,
            stock_left: entry.stock_left,
            per_buyer: sale.per_buyer,
            price: PriceView {
                amount: sale.price.amount,
                currency: sale.price.currency.to_string(),
            },
            payment_window_s: sale.payment_window_s,
        }
    }
}

/// Sales that are published or paused.
#[utoipa::path(
    get, path = "/api/v1/sales", tag = "sales",
    responses(
        (status = 200, body = SaleList, description = "The sales"),
        (status = 304, description = "Nothing has changed but the time"),
    ),
)]
pub(crate) async fn list(request: HttpRequest, state: web::Data<State>) -> HttpResponse {
    let sales: Vec<SaleView> = state.catalogue.list().into_iter().map(SaleView::from).collect();
    let tag = tag_of(&sales);
    let server_time = rfc3339(time_of(state.catalogue.now_ms()));
    cached(&request, &tag, &SaleList { server_time, sales })
}

/// One sale, closed ones too.
#[utoipa::path(
    get, path = "/api/v1/sales/{sale}", tag = "sales",
    params(("sale" = String, Path, description = "The sale's id")),
    responses(
        (status = 200, body = SaleAnswer, description = "The sale"),
        (status = 304, description = "Nothing has changed but the time"),
        (status = 404, body = ProblemBody, description = "sale-not-found"),
    ),
)]
pub(crate) async fn show(
    request: HttpRequest,
    path: web::Path<String>,
    state: web::Data<State>,
) -> Result<HttpResponse, Problem> {
    let id: SaleId = path.parse().map_err(|_| Problem::SaleNotFound)?;
    let sale = SaleView::from(state.catalogue.find_public(id).ok_or(Problem::SaleNotFound)?);
    let tag = tag_of(&sale);
    let server_time = rfc3339(time_of(state.catalogue.now_ms()));
    Ok(cached(&request, &tag, &SaleAnswer { server_time, sale }))
}

/// Weak, because the time in the body moves on while the tag stays.
fn tag_of(body: &impl Serialize) -> String {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(body).expect("strings and numbers are always JSON").hash(&mut hasher);
    format!("W/\"{:016x}\"", hasher.finish())
}

fn cached(request: &HttpRequest, tag: &str, body: &impl Serialize) -> HttpResponse {
    let known = request.headers().get_all(IF_NONE_MATCH).filter_map(|value| value.to_str().ok());
    let matches = known.flat_map(|value| value.split(',')).map(str::trim).any(|known| {
        known == "*" || known.trim_start_matches("W/") == tag.trim_start_matches("W/")
    });
    let mut response = if matches { HttpResponse::NotModified() } else { HttpResponse::Ok() };
    response.insert_header((ETAG, tag)).insert_header((CACHE_CONTROL, FRESH));
    if matches { response.finish() } else { response.json(body) }
}
