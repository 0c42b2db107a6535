//! Everything that a buyer can be told besides yes: the only file that chooses a status.
//!
//! RFC 9457: `application/problem+json` with `type` `/problems/<slug>`; the title follows
//! Accept-Language, the detail is for the engineer who reads it.

use std::fmt;
use std::time::Duration;

use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{
    self, ACCEPT_LANGUAGE, ALLOW, CONTENT_LANGUAGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use chrono::{DateTime, Utc};
use flashsale_domain::{OrderId, OrderState, SaleId};
use serde::Serialize;
use utoipa::ToSchema;

use crate::routes::rfc3339;

/// What a buyer is told besides yes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// No unit is left.
    SoldOut,
    /// The buyer already holds this order.
    AlreadyOrdered(OrderId),
    /// The window has not opened yet.
    NotStarted {
        /// When it opens.
        opens_at: DateTime<Utc>,
        /// How long that is from now, in seconds.
        retry_after_s: u64,
    },
    /// The window is over.
    Ended,
    /// The operator paused the sale.
    Paused,
    /// The request is not understood; what is allowed.
    InvalidRequest(String),
    /// No token, or one that is not valid.
    Unauthorized(&'static str),
    /// A good token without the role that this needs.
    Forbidden,
    /// No such sale for buyers.
    SaleNotFound,
    /// No such order for this buyer.
    OrderNotFound,
    /// An order in this state cannot be cancelled.
    NotCancellable(OrderState),
    /// A payment is not what its order costs.
    PaymentMismatch,
    /// A webhook bears the id of an earlier one, and tells of another payment.
    WebhookIdReused,
    /// A webhook is not signed as it should be; why.
    BadSignature(String),
    /// No such sale, for an operator, who is told which.
    NoSaleOf(SaleId),
    /// An operator asked for what cannot be; why.
    Refused(String),
    /// An operator's key stands for something else; what to do.
    KeyReused(String),
    /// No such dead letter.
    DeadLetterNotFound(String),
    /// No such path.
    NotFound,
    /// The path exists, with other methods.
    MethodNotAllowed(&'static str),
    /// The body did not come within this time.
    RequestTimeout(Duration),
    /// The body is larger than this many bytes.
    TooLarge(usize),
    /// Request line and headers are larger than this many bytes.
    HeadTooLarge(usize),
    /// A body that is not JSON.
    UnsupportedMediaType,
    /// Too much to do; nothing was done.
    Overloaded,
    /// The sale cannot be decided now; nothing was done.
    SaleUnavailable,
    /// It may have been done or not.
    OutcomeUnknown,
}

/// The body of a problem, as RFC 9457 has it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProblemBody {
    /// `/problems/<slug>`: what to switch on.
    #[serde(rename = "type")]
    kind: String,
    /// For a person, in the language asked for (en or zh-CN).
    title: &'static str,
    /// The HTTP status once more.
    status: u16,
    /// What exactly, in English.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// On `already-ordered`: the order that the buyer holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    order_id: Option<OrderId>,
    /// On `not-started`: when the sale opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    opens_at: Option<String>,
}

/// How the title is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    English,
    Chinese,
}

impl Problem {
    /// Status, slug, English and Chinese title.
    const fn parts(&self) -> (StatusCode, &'static str, &'static str, &'static str) {
        match self {
            Self::SoldOut => (StatusCode::CONFLICT, "sold-out", "Sold out", "已售罄"),
            Self::AlreadyOrdered(_) => (
                StatusCode::CONFLICT,
                "already-ordered",
                "You already have an order in this sale",
                "您在本场活动中已有订单",
            ),
            Self::NotStarted { .. } => (
                StatusCode::CONFLICT,
                "not-started",
                "The sale has not started yet",
                "活动尚未开始",
            ),
            Self::Ended => (StatusCode::CONFLICT, "ended", "The sale has ended", "活动已结束"),
            Self::Paused => (StatusCode::CONFLICT, "paused", "The sale is paused", "活动已暂停"),
            Self::InvalidRequest(_) => {
                (StatusCode::BAD_REQUEST, "invalid-request", "The request is not valid", "请求无效")
            }
            Self::Forbidden => {
                (StatusCode::FORBIDDEN, "forbidden", "You may not do this", "您没有权限执行此操作")
            }
            Self::Unauthorized(_) => {
                (StatusCode::UNAUTHORIZED, "unauthorized", "Please sign in", "请先登录")
            }
            Self::SaleNotFound | Self::NoSaleOf(_) => {
                (StatusCode::NOT_FOUND, "sale-not-found", "There is no such sale", "活动不存在")
            }
            Self::OrderNotFound => {
                (StatusCode::NOT_FOUND, "order-not-found", "There is no such order", "订单不存在")
            }
            Self::NotCancellable(_) => (
                StatusCode::CONFLICT,
                "not-cancellable",
                "This order cannot be cancelled",
                "该订单无法取消",
            ),
            Self::PaymentMismatch => (
                StatusCode::CONFLICT,
                "payment-mismatch",
                "The payment is not what the order costs",
                "支付金额与订单不符",
            ),
            Self::WebhookIdReused => (
                StatusCode::CONFLICT,
                "webhook-id-reused",
                "This webhook-id belongs to another payment",
                "该 webhook-id 已用于另一笔支付",
            ),
            Self::Refused(_) => {
                (StatusCode::CONFLICT, "refused", "This cannot be done now", "当前无法执行此操作")
            }
            Self::KeyReused(_) => (
                StatusCode::CONFLICT,
                "idempotency-key-reused",
                "This Idempotency-Key belongs to another request",
                "该 Idempotency-Key 已用于另一请求",
            ),
            Self::DeadLetterNotFound(_) => (
                StatusCode::NOT_FOUND,
                "dead-letter-not-found",
                "There is no such dead letter",
                "死信不存在",
            ),
            Self::BadSignature(_) => {
                (StatusCode::UNAUTHORIZED, "unauthorized", "The signature is not good", "签名无效")
            }
            Self::NotFound => {
                (StatusCode::NOT_FOUND, "not-found", "There is nothing here", "页面不存在")
            }
            Self::MethodNotAllowed(_) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method-not-allowed",
                "This cannot be done here",
                "不支持此操作",
            ),
            Self::RequestTimeout(_) => (
                StatusCode::REQUEST_TIMEOUT,
                "request-timeout",
                "The request took too long to arrive",
                "请求超时",
            ),
            Self::TooLarge(_) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The request is too large",
                "请求内容过大",
            ),
            Self::HeadTooLarge(_) => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too-large",
                "The request is too large",
                "请求内容过大",
            ),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported-media-type",
                "The body's format is not supported",
                "不支持的内容格式",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "Too many people at once, please try again",
                "当前人数过多，请稍后重试",
            ),
            Self::SaleUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "sale-unavailable",
                "The sale is not available right now, please try again",
                "活动暂时不可用，请稍后重试",
            ),
            Self::OutcomeUnknown => (
                StatusCode::SERVICE_UNAVAILABLE,
                "outcome-unknown",
                "We do not know yet whether your order was placed, please try again",
                "暂时无法确认下单结果，请重试",
            ),
        }
    }

    /// The problem's name in its `type`.
    pub(crate) const fn slug(&self) -> &'static str {
        self.parts().1
    }

    fn detail(&self) -> Option<String> {
        match self {
            Self::InvalidRequest(detail)
            | Self::Refused(detail)
            | Self::KeyReused(detail)
            | Self::DeadLetterNotFound(detail) => Some(detail.clone()),
            Self::Unauthorized(detail) => Some((*detail).to_owned()),
            Self::Forbidden => Some("the token needs the role admin".to_owned()),
            Self::BadSignature(detail) => Some(detail.clone()),
            Self::NotCancellable(state) => Some(format!(
                "the order is {state}; only one that is awaiting_payment can be cancelled"
            )),
            Self::PaymentMismatch => Some(
                "amount or currency is not the order's; the order is as before, and the money is \
                 due back"
                    .to_owned(),
            ),
            Self::WebhookIdReused => Some(
                "the id was used for another order, amount or currency, and nothing is changed; \
                 send each payment under an id of its own"
                    .to_owned(),
            ),
            Self::NoSaleOf(sale) => Some(format!("there is no sale {sale}")),
            Self::MethodNotAllowed(allowed) => Some(format!("allowed: {allowed}")),
            Self::RequestTimeout(limit) => Some(format!("a body is sent within {limit:?}")),
            Self::TooLarge(limit) => Some(format!("a body has at most {limit} bytes")),
            Self::HeadTooLarge(limit) => {
                Some(format!("the request line and the headers have at most {limit} bytes"))
            }
            Self::UnsupportedMediaType => Some("send application/json, or no body".to_owned()),
            Self::OutcomeUnknown => Some(
                "send the same request with the same Idempotency-Key again: it is answered with \
                 the order that was placed, or places it now"
                    .to_owned(),
            ),
            Self::SoldOut
            | Self::AlreadyOrdered(_)
            | Self::NotStarted { .. }
            | Self::Ended
            | Self::Paused
            | Self::SaleNotFound
            | Self::OrderNotFound
            | Self::NotFound
            | Self::Overloaded
            | Self::SaleUnavailable => None,
        }
    }

    const fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::NotStarted { retry_after_s, .. } => Some(*retry_after_s),
            Self::Overloaded | Self::SaleUnavailable | Self::OutcomeUnknown => Some(1),
            _ => None,
        }
    }

    fn respond(&self, language: Language) -> HttpResponse {
        let (status, slug, english, chinese) = self.parts();
        let (title, tag) = match language {
            Language::English => (english, "en"),
            Language::Chinese => (chinese, "zh-CN"),
        };
        let mut response = HttpResponse::build(status);
        response
            .insert_header((CONTENT_TYPE, "application/problem+json"))
            .insert_header((CONTENT_LANGUAGE, tag))
            .insert_header((header::CACHE_CONTROL, "no-store"));
        if let Some(seconds) = self.retry_after_s() {
            response.insert_header((RETRY_AFTER, seconds.to_string()));
        }
        match self {
            Self::Unauthorized(_) => {
                response.insert_header((WWW_AUTHENTICATE, "Bearer"));
            }
            // A 401 names a scheme; this one has no registered name.
            Self::BadSignature(_) => {
                response.insert_header((WWW_AUTHENTICATE, "StandardWebhooks"));
            }
            Self::MethodNotAllowed(allowed) => {
                response.insert_header((ALLOW, *allowed));
            }
            _ => {}
        }
        let body = ProblemBody {
            kind: format!("/problems/{slug}"),
            title,
            status: status.as_u16(),
            detail: self.detail(),
            order_id: match self {
                Self::AlreadyOrdered(id) => Some(*id),
                _ => None,
            },
            opens_at: match self {
                Self::NotStarted { opens_at, .. } => Some(rfc3339(*opens_at)),
                _ => None,
            },
        };
        response.body(serde_json::to_string(&body).expect("strings and numbers are always JSON"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.slug())
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.parts().0
    }

    /// English: [`localize`] writes it anew where another language is asked for.
    fn error_response(&self) -> HttpResponse {
        self.respond(Language::English)
    }
}

/// A problem's title in the language that the request asks for.
pub(crate) fn localize(response: ServiceResponse) -> ServiceResponse {
    let problem = response.response().error().and_then(|error| error.as_error::<Problem>());
    let Some(problem) = problem else { return response };
    match preferred_language(response.request()) {
        Language::English => response,
        language @ Language::Chinese => {
            let localized = problem.respond(language);
            response.into_response(localized)
        }
    }
}

/// Whether a request line and headers together are larger than `limit`, in bytes.
pub(crate) fn is_head_larger(request: &ServiceRequest, limit: usize) -> bool {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    target + headers.sum::<usize>() > limit
}

/// zh-CN when Chinese in some form is wanted more than English in some form.
fn preferred_language(request: &HttpRequest) -> Language {
    let Some(wanted) = request.headers().get(ACCEPT_LANGUAGE).and_then(|v| v.to_str().ok()) else {
        return Language::English;
    };
    let quality_of = |language: &str| {
        let matching = wanted.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let tag = parts.next()?;
            let primary = tag.split('-').next()?;
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(Some(1.0), |quality| quality.parse::<f32>().ok())?;
            primary.eq_ignore_ascii_case(language).then_some(quality)
        });
        matching.fold(0.0, f32::max)
    };
    let (chinese, english) = (quality_of("zh"), quality_of("en"));
    // Equal wishes: the one named first.
    let zh_first = wanted.to_ascii_lowercase().find("zh") < wanted.to_ascii_lowercase().find("en");
    if chinese > english || (chinese > 0.0 && chinese >= english && zh_first) {
        Language::Chinese
    } else {
        Language::English
    }
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn the_title_follows_accept_language() {
        let cases = [
            (None, Language::English),
            (Some(""), Language::English),
            (Some("zh-CN"), Language::Chinese),
            (Some("zh"), Language::Chinese),
            (Some("ZH-Hans-CN, en;q=0.5"), Language::Chinese),
            (Some("en, zh;q=0.9"), Language::English),
            (Some("en;q=0.3, zh-CN;q=0.8"), Language::Chinese),
            (Some("zh,en"), Language::Chinese),
            (Some("en,zh"), Language::English),
            (Some("fr, de;q=0.5"), Language::English),
            (Some("zh;q=0"), Language::English),
            (Some("zh;q=nonsense"), Language::English),
        ];
        for (header, expected) in cases {
            let mut request = TestRequest::default();
            if let Some(header) = header {
                request = request.insert_header((ACCEPT_LANGUAGE, header));
            }
            assert_eq!(preferred_language(&request.to_http_request()), expected, "{header:?}");
        }
    }
}
