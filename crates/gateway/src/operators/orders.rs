//! Orders of every buyer: a page of JSON, or all of them as CSV.

use actix_web::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_DISPOSITION, HeaderValue, VARY};
use actix_web::web::Bytes;
use actix_web::{HttpRequest, HttpResponse, web};
use flashsale_bootstrap::error_quietly;
use flashsale_operations::{Operations, OrderLine, OrderQuery};
use flashsale_storage_sql::OrderFilter;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::{AnyCall, State, invalid, limit_of, ok, operator, page, parsed, problem_of, query};
use crate::problem::{Problem, ProblemBody};

/// Rows that a CSV file is read and sent by: what is in memory of it at a time.
const CSV_PAGE: u64 = 1000;

/// Which orders, and in which format.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OrdersQuery {
    /// Only of this sale.
    sale: Option<String>,
    /// Only in this state.
    state: Option<String>,
    /// Only of this buyer.
    buyer: Option<String>,
    /// Only older than the order of this id: `next_cursor` of the page before.
    cursor: Option<String>,
    /// JSON: 1 to 1000, 100 when it is left out. CSV: 1 or more, all when it is left out.
    limit: Option<u64>,
    /// `json` or `csv`; when it is left out, what `Accept` asks for.
    format: Option<String>,
}

#[derive(Serialize)]
struct Orders {
    orders: Vec<OrderLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Orders of all buyers, newest first: those that are rows.
///
/// JSON is a page: `{"orders":[{"order_id":"…","sale_id":"1","user_id":"…","state":"paid",
/// "reason":null,"price":{"amount":9900,"currency":"CNY"},"pay_by":"…","committed_at":"…",
/// "settled_at":"…"}],"next_cursor":"…"}`. CSV (`Accept: text/csv` or `format=csv`) is all of them, as
/// RFC 4180 has it, with a head; a text that a spreadsheet would take for a formula begins with an
/// apostrophe. A file that breaks off, without the end of the answer, is not complete.
#[utoipa::path(
    get, path = "/admin/v1/orders", tag = "orders", security(("bearer" = [])), params(OrdersQuery),
    responses(
        (status = 200, description = "A page, or a file", content(
            (String = "application/json"), (String = "text/csv"),
        )),
        (status = 400, body = ProblemBody, description = "invalid-request"),
        AnyCall,
    ),
)]
pub(crate) async fn list(
    request: HttpRequest,
    parameters: Result<web::Query<OrdersQuery>, actix_web::Error>,
    state: State,
) -> Result<HttpResponse, Problem> {
    operator(&request, &state)?;
    let asked = query(parameters)?;
    let csv = match asked.format.as_deref() {
        Some("csv") => true,
        Some("json") => false,
        Some(_) => return Err(invalid("format is json or csv")),
        None => wants_csv(&request),
    };
    let buyer = asked.buyer.map(flashsale_domain::UserId::new).transpose();
    let wanted = OrderQuery {
        buyer: buyer.map_err(|error| invalid(error.to_string()))?,
        filter: OrderFilter {
            sale_id: parsed(asked.sale.as_deref())?,
            state: parsed(asked.state.as_deref())?,
            before: parsed(asked.cursor.as_deref())?,
            limit: 0,
        },
    };
    if csv {
        if asked.limit == Some(0) {
            return Err(invalid("limit is 1 or more"));
        }
        return file(state.operations.clone(), wanted, asked.limit).await;
    }
    let limit = limit_of(asked.limit)?;
    // One more than asked for tells whether there is a next page.
    let filter = OrderFilter { limit: limit + 1, ..wanted.filter };
    let found = state.operations.list_orders(&OrderQuery { filter, ..wanted }).await;
    let (orders, more) = page(found.map_err(problem_of)?, limit);
    let next_cursor = orders.last().filter(|_| more).map(|order| order.order_id.to_string());
    let mut answer = ok(&Orders { orders, next_cursor });
    answer.headers_mut().insert(VARY, ACCEPT.into());
    Ok(answer)
}

/// Whether `Accept` names CSV, and not JSON before it.
fn wants_csv(request: &HttpRequest) -> bool {
    let accept = request.headers().get_all(ACCEPT).filter_map(|value| value.to_str().ok());
    let kinds = accept.flat_map(|value| value.split(','));
    let mut essences = kinds.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let is_named = |kind: &&str| matches!(*kind, "text/csv" | "application/json");
    essences.find(is_named) == Some("text/csv")
}

/// Where a file that is being sent goes on.
struct Progress {
    operations: Operations,
    wanted: OrderQuery,
    /// How many are still to be sent; `None` is all.
    left: Option<u64>,
    /// What was read and not sent.
    text: Option<String>,
}

impl Progress {
    /// Reads the next rows; without any the file is complete.
    async fn read(&mut self) -> Result<(), Problem> {
        let limit = self.left.unwrap_or(CSV_PAGE).min(CSV_PAGE);
        if limit == 0 {
            return Ok(());
        }
        self.wanted.filter.limit = limit;
        let orders = self.operations.list_orders(&self.wanted).await.map_err(problem_of)?;
        let count = u64::try_from(orders.len()).expect("a count fits");
        if let Some(last) = orders.last() {
            self.wanted.filter.before = Some(last.order_id);
            let text = self.text.get_or_insert_default();
            orders.iter().for_each(|order| write_row(text, order));
        }
        self.left = if count < limit { Some(0) } else { self.left.map(|left| left - count) };
        Ok(())
    }
}

/// The first rows are read before the answer begins, so that a database that is away is a problem and
/// no broken file.
async fn file(
    operations: Operations,
    wanted: OrderQuery,
    left: Option<u64>,
) -> Result<HttpResponse, Problem> {
    let mut progress = Progress { operations, wanted, left, text: Some(head()) };
    progress.read().await?;
    let rows = stream::try_unfold(progress, async |mut progress: Progress| {
        if progress.text.is_none() {
            progress.read().await.map_err(|problem| {
                error_quietly!(error = %problem, "a file of orders broke off");
                std::io::Error::other("the orders could not be read to their end")
            })?;
        }
        Ok::<_, std::io::Error>(progress.text.take().map(|text| (Bytes::from(text), progress)))
    });
    Ok(HttpResponse::Ok()
        .content_type("text/csv; charset=utf-8; header=present")
        .insert_header((CACHE_CONTROL, "no-store"))
        .insert_header((VARY, HeaderValue::from(ACCEPT)))
        .insert_header((CONTENT_DISPOSITION, "attachment; filename=\"orders.csv\""))
        .streaming(rows))
}

const COLUMNS: [&str; 10] = [
    "order_id",
    "sale_id",
    "user_id",
    "state",
    "reason",
    "price_amount",
    "price_currency",
    "pay_by",
    "committed_at",
    "settled_at",
];

fn head() -> String {
    format!("{}\r\n", COLUMNS.join(","))
}

fn write_row(text: &mut String, order: &OrderLine) {
    let known = |value: &Option<String>| value.clone().unwrap_or_default();
    let price = |part: fn(&flashsale_domain::Price) -> String| order.price.as_ref().map(part);
    let fields: [String; COLUMNS.len()] = [
        order.order_id.to_string(),
        order.sale_id.to_string(),
        order.user_id.clone(),
        order.state.to_string(),
        known(&order.reason),
        price(|price| price.amount.to_string()).unwrap_or_default(),
        price(|price| price.currency.to_string()).unwrap_or_default(),
        known(&order.pay_by),
        known(&order.committed_at),
        known(&order.settled_at),
    ];
    let fields = fields.map(|field| field_of(&field));
    text.push_str(&fields.join(","));
    text.push_str("\r\n");
}

/// A field as RFC 4180 has it. What a spreadsheet would carry out as a formula (a buyer chooses his own
/// id) becomes text by an apostrophe in front, also behind what cannot be seen. Where the list separator is
/// a semicolon, one that is not quoted would begin a new field.
fn field_of(text: &str) -> String {
    let formula = ['=', '+', '-', '@', '\u{2212}', '＝', '＋', '－', '＠', '\u{fe62}', '\u{fe63}'];
    let is_seen = |c: &char| {
        let is_format = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}');
        !(c.is_whitespace() || c.is_control() || is_format)
    };
    let first = text.chars().find(is_seen);
    let blank = text.starts_with(['\t', '\r', '\n']);
    let guard = if blank || first.is_some_and(|c| formula.contains(&c)) { "'" } else { "" };
    if text.contains([',', ';', '"', '\r', '\n', '\t']) {
        format!("\"{guard}{}\"", text.replace('"', "\"\""))
    } else {
        format!("{guard}{text}")
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn a_field_is_quoted_and_no_formula() {
        for (text, field) in [
            ("", ""),
            ("alice", "alice"),
            ("a b", "a b"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("two\r\nlines", "\"two\r\nlines\""),
            ("=1+1", "'=1+1"),
            ("x;=1+1", "\"x;=1+1\""),
            ("\u{feff} =1+1", "'\u{feff} =1+1"),
            ("\u{202e}\u{2212}1", "'\u{202e}\u{2212}1"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "\"'\t=1\""),
            ("＝1", "'＝1"),
            ("=HYPERLINK(\"x\",\"y\")", "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\""),
            ("a=1", "a=1"),
        ] {
            assert_eq!(field_of(text), field, "{text:?}");
        }
    }

    #[test]
    fn csv_is_for_who_asks_for_it_first() {
        for (accept, csv) in [
            ("text/csv", true),
            ("text/csv; charset=utf-8", true),
            ("text/html, text/csv, */*", true),
            ("application/json, text/csv", false),
            ("*/*", false),
            ("", false),
        ] {
            let request = TestRequest::default().insert_header((ACCEPT, accept));
            assert_eq!(wants_csv(&request.to_http_request()), csv, "{accept:?}");
        }
        assert!(!wants_csv(&TestRequest::default().to_http_request()));
    }
}
