//! Spans of buyers' requests: which request is traced, its own span, and that of its admission.
//!
//! Where no receiver is set, or the request is not sampled, there is no span, and the way of an order
//! costs one look at a flag more. What a span says of a buyer is his order's id and no more.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use actix_web::HttpRequest;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::HeaderMap;
use flashsale_bootstrap::settings::TracingSettings;
use flashsale_bootstrap::traces::{self, TRACEPARENT, TRACER};
use flashsale_domain::{OrderId, SaleId};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};

/// What nginx calls a request, or the client itself; the access log has it too.
const REQUEST_ID: &str = "x-request-id";

/// Longer ones are no ids: the proxy lets 64 characters through.
const REQUEST_ID_MAX: usize = 128;

/// The name of a request in the logs, if it came with one.
pub(crate) fn request_id(request: &HttpRequest) -> Option<&str> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    (!id.is_empty() && id.len() <= REQUEST_ID_MAX).then_some(id)
}

/// Decides which requests are traced.
pub(crate) struct Sampling {
    /// Of how many a trace is taken, as a share.
    ratio: f64,
    incoming: PerSecond,
}

impl Sampling {
    /// `None` where traces go nowhere.
    pub(crate) fn of(settings: &TracingSettings) -> Option<Self> {
        settings.otlp_endpoint.as_ref()?;
        let incoming = PerSecond::new(settings.incoming_per_second);
        Some(Self { ratio: settings.sample_ratio, incoming })
    }

    /// Begins the span of a request that is to be traced.
    pub(crate) fn begin(&self, request: &ServiceRequest) -> Option<RequestSpan> {
        let parent = self.decide(incoming(request.headers()))?;
        let tracer = global::tracer(TRACER);
        let method = method_name(request.method());
        let span = tracer
            .span_builder(method)
            .with_kind(SpanKind::Server)
            .with_attributes([KeyValue::new("http.request.method", method)])
            .start_with_context(&tracer, &parent);
        let context = parent.with_span(span);
        if let Some(id) = request_id(request.request()) {
            context.span().set_attribute(KeyValue::new("request.id", id.to_owned()));
        }
        Some(RequestSpan { context, method })
    }

    /// In which context the span of a request begins; `None` when there is to be none.
    ///
    /// Somebody else's yes counts only so often, because everybody can say it. His no always does.
    fn decide(&self, parent: Option<SpanContext>) -> Option<Context> {
        let by_chance = || rand::random::<f64>() < self.ratio;
        match parent {
            None => by_chance().then(Context::new),
            Some(parent) if !parent.is_sampled() => None,
            Some(parent) => (self.incoming.allows() || by_chance())
                .then(|| Context::new().with_remote_span_context(parent)),
        }
    }
}

/// The span that the request comes from. Two of them, or a malformed one, are none.
fn incoming(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(TRACEPARENT);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    traces::parse_traceparent(value.to_str().ok()?.trim())
}

/// A name of few, and not whatever a client makes up.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "_OTHER",
    }
}

/// The span of a request. It ends with its answer, or when the client hangs up.
pub(crate) struct RequestSpan {
    context: Context,
    method: &'static str,
}

impl RequestSpan {
    /// For what is done for the request.
    pub(crate) fn context(&self) -> Context {
        self.context.clone()
    }

    pub(crate) fn end<B>(self, response: &ServiceResponse<B>) {
        let span = self.context.span();
        let status = response.status();
        if let Some(route) = response.request().match_pattern() {
            span.update_name(Cow::Owned(format!("{} {route}", self.method)));
            span.set_attribute(KeyValue::new("http.route", route));
        }
        let code = i64::from(status.as_u16());
        span.set_attribute(KeyValue::new("http.response.status_code", code));
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// The span of an admission: from joining the queue to the decision. The order's entry names it.
pub(crate) struct AdmissionSpan {
    context: Context,
}

impl AdmissionSpan {
    /// `None` unless the request is traced.
    pub(crate) fn begin(sale: SaleId) -> Option<Self> {
        if !traces::is_on() {
            return None;
        }
        let parent = Context::current();
        if !parent.span().is_recording() {
            return None;
        }
        let tracer = global::tracer(TRACER);
        let span = tracer
            .span_builder("admission")
            .with_kind(SpanKind::Producer)
            .with_attributes([KeyValue::new("sale.id", sale.to_string())])
            .start_with_context(&tracer, &parent);
        span.is_recording().then(|| Self { context: parent.with_span(span) })
    }

    pub(crate) fn traceparent(&self) -> Box<str> {
        traces::traceparent(self.context.span().span_context()).into_boxed_str()
    }

    /// With the outcome, as the metrics call it, and the order that the buyer is told of.
    pub(crate) fn end(self, outcome: &'static str, order: Option<OrderId>) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("outcome", outcome));
        if let Some(order) = order {
            span.set_attribute(KeyValue::new("order.id", order.to_string()));
        }
        span.end();
    }
}

/// Allows so much in each second and no more. Seconds are counted from its making.
struct PerSecond {
    most: u32,
    origin: Instant,
    /// The second in the upper half, how many there were in the lower.
    used: AtomicU64,
}

impl PerSecond {
    fn new(most: u32) -> Self {
        Self { most, origin: Instant::now(), used: AtomicU64::new(0) }
    }

    fn allows(&self) -> bool {
        self.allows_in(self.origin.elapsed().as_secs())
    }

    fn allows_in(&self, second: u64) -> bool {
        let second = second << 32;
        let count = |used: u64| {
            let used = if used >> 32 == second >> 32 { used } else { second };
            (used - second < u64::from(self.most)).then_some(used + 1)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn sampling(ratio: f64, incoming_per_second: u32) -> Sampling {
        Sampling { ratio, incoming: PerSecond::new(incoming_per_second) }
    }

    fn decided(sampling: &Sampling, traceparents: &[&str]) -> Option<SpanContext> {
        let mut request = actix_web::test::TestRequest::get();
        for value in traceparents {
            request = request.append_header((TRACEPARENT, *value));
        }
        let request = request.to_http_request();
        let context = sampling.decide(incoming(request.headers()))?;
        Some(context.span().span_context().clone())
    }

    #[test]
    fn requests_that_bring_no_trace_are_sampled_by_the_ratio() {
        assert!(decided(&sampling(0.0, 10), &[]).is_none());
        let own = decided(&sampling(1.0, 10), &[]).expect("all are");
        assert!(!own.is_valid(), "a trace of its own");
    }

    #[test]
    fn a_trace_that_comes_in_is_gone_on_with_but_only_so_often() {
        let few = sampling(0.0, 2);
        let parent = decided(&few, &[SAMPLED]).expect("the first");
        assert_eq!(traces::traceparent(&parent), SAMPLED);
        assert!((0..1000).filter(|_| decided(&few, &[SAMPLED]).is_some()).count() < 1000);
        assert!(decided(&sampling(0.0, 0), &[SAMPLED]).is_none());
        let unsampled = SAMPLED.replace("-01", "-00");
        assert!(decided(&sampling(1.0, 10), &[&unsampled]).is_none());
    }

    #[test]
    fn a_malformed_traceparent_is_as_none_at_all() {
        for bad in [&["nonsense"][..], &[SAMPLED, SAMPLED], &[&SAMPLED[1..]], &[""]] {
            assert!(decided(&sampling(0.0, 10), bad).is_none(), "{bad:?}");
            assert!(!decided(&sampling(1.0, 10), bad).expect("by the ratio").is_valid());
        }
    }

    #[test]
    fn each_second_has_its_own_count() {
        let two = PerSecond::new(2);
        let allowed = [0, 0, 0, 7, 7, 7, 8].map(|second| two.allows_in(second));
        assert_eq!(allowed, [true, true, false, true, true, false, true]);
    }
}
