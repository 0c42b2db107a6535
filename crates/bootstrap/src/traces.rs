//! Traces: spans that go to an OTLP receiver, where the settings name one.
//!
//! Rule: like logs and metrics they belong to the process, not to an app in it. A receiver that is slow,
//! silent or gone costs spans, which are counted, and nothing else: nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{SpanContext, TraceContextExt as _};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span, SpanData,
    SpanExporter, SpanProcessor,
};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::settings::TracingSettings;
use crate::tls;
use crate::{Quiet, telemetry};

/// The header, and the part of an order's entry, that carries a trace from one program to the next.
pub const TRACEPARENT: &str = "traceparent";
/// The tracer's name, by which a receiver can tell whose spans these are.
pub const TRACER: &str = "flashsale";

/// Spans that may wait to be sent; what comes on top of them is dropped.
const WAITING_MAX: usize = 4096;
const BATCH_MAX: usize = 512;
/// How long spans wait at most for others to go with them.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// How long the receiver may take for a batch, with tries that fail at once.
const SEND_WITHIN: Duration = Duration::from_secs(3);
/// How long the end of the program waits for the last spans.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

const SPANS: &str = "flashsale_trace_spans_total";

static ON: AtomicBool = AtomicBool::new(false);

/// Whether this process sends traces: what the way of an order asks before it does anything for them.
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// What sends the spans of a process.
#[must_use = "the last spans are sent when it is closed"]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

/// Starts sending the spans of `program`, if the settings say where to.
///
/// # Errors
/// The file of authorities cannot be used, or the settings of the library's own in the environment are
/// wrong.
///
/// # Panics
/// Outside a tokio runtime.
pub fn init(settings: &TracingSettings, program: &'static str) -> anyhow::Result<Traces> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(Traces { provider: None }) };
    let trust = tls::client_config("tracing.ca_file", settings.ca_file.as_deref())?;
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(trust).https_or_http().enable_http1().build();
    let client = OnRuntime {
        client: HyperClient::new(connector, SEND_WITHIN, None),
        runtime: Handle::current(),
    };
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(endpoint)
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(SEND_WITHIN)
        .build()
        .context("tracing.otlp_endpoint cannot be used")?;
    telemetry::describe(&[(SPANS, "Spans of traces, by what became of them")]);
    for result in ["sent", "failed", "dropped"] {
        metrics::counter!(SPANS, "result" => result).absolute(0);
    }
    let waiting = Arc::<AtomicUsize>::default();
    let exporter =
        Counted { exporter, waiting: Arc::clone(&waiting), unsent_log: Quiet::every_ten_seconds() };
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(WAITING_MAX)
        .with_max_export_batch_size(BATCH_MAX)
        .with_scheduled_delay(SEND_EVERY)
        .build();
    let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(Bounded { batches, waiting })
        // Who begins a trace has decided before that it is to be one.
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
        .with_resource(resource(program))
        .build();
    global::set_tracer_provider(provider.clone());
    ON.store(true, Ordering::Relaxed);
    Ok(Traces { provider: Some(provider) })
}

impl Traces {
    /// Sends what still waits, for as long as that may take at the end of a program.
    pub async fn close(self) {
        let Some(provider) = self.provider else { return };
        ON.store(false, Ordering::Relaxed);
        // It blocks its thread.
        let closed = spawn_blocking(move || provider.shutdown_with_timeout(CLOSE_WITHIN)).await;
        if !matches!(closed, Ok(Ok(()))) {
            warn!("the last spans could not be sent; leaving them");
        }
    }
}

fn resource(program: &'static str) -> Resource {
    let host = rustix::system::uname();
    let instance = format!("{}-{}", host.nodename().to_string_lossy(), std::process::id());
    // Not the library's usual one, which reads the environment.
    Resource::builder_empty()
        .with_service_name(program)
        .with_attributes([
            KeyValue::new("service.namespace", "flashsale"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance),
        ])
        .build()
}

/// The span that a `traceparent` names (W3C Trace Context); `None` when it is malformed.
pub fn parse_traceparent(text: &str) -> Option<SpanContext> {
    /// Two digits, 32, 16 and two, and three dashes. A later version may say more.
    const LENGTH_MIN: usize = 55;
    struct Only<'a>(&'a str);
    impl Extractor for Only<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            (key == TRACEPARENT).then_some(self.0)
        }
        fn keys(&self) -> Vec<&str> {
            vec![TRACEPARENT]
        }
    }
    if text.len() < LENGTH_MIN || !text.is_ascii() {
        return None;
    }
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Only(text));
    let parent = context.span().span_context().clone();
    parent.is_valid().then_some(parent)
}

/// The `traceparent` that names a span.
pub fn traceparent(span: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8() & 1)
}

/// Sends requests by the program's runtime: the thread that batches spans is none of it.
#[derive(Debug)]
struct OnRuntime {
    client: HyperClient<HttpsConnector<HttpConnector>>,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// Keeps so many spans waiting and no more, and counts those that found no room.
#[derive(Debug)]
struct Bounded {
    batches: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX {
            self.batches.on_end(span);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            metrics::counter!(SPANS, "result" => "dropped").increment(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Counts what was sent and what was not.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    waiting: Arc<AtomicUsize>,
    unsent_log: Quiet,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let result = if exported.is_ok() { "sent" } else { "failed" };
        metrics::counter!(SPANS, "result" => result)
            .increment(u64::try_from(spans).unwrap_or(u64::MAX));
        if let Err(error) = &exported
            && let Some(kept_back) = self.unsent_log.allows()
        {
            warn!(%error, spans, kept_back, "spans could not be sent");
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let span = parse_traceparent(text).expect("it is well-formed");
        assert!(span.is_remote() && span.is_sampled());
        assert_eq!(traceparent(&span), text);
        let unsampled = text.replace("-01", "-00");
        assert!(!parse_traceparent(&unsampled).expect("is one too").is_sampled());
        let later = format!("01{}-more", &text[2..]);
        assert_eq!(traceparent(&parse_traceparent(&later).expect("of a later version")), text);
    }

    #[test]
    fn a_malformed_traceparent_is_none() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
            "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031äö-b7ad6b7169203331-01",
            "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
        ] {
            assert_eq!(parse_traceparent(text), None, "{text}");
        }
    }
}
