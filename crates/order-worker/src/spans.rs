//! Spans of the worker: one for a batch that has traced orders in it, and one for each of these.
//!
//! A batch is many orders' work, and a span has one parent. So the batch goes on with the trace of its
//! first traced order, and names them all by links; and each traced order gets, in its own trace, a span
//! of how it became a row, with a link to the batch. A trace of an order goes from the click to the row,
//! whichever other orders were in its batch.

use std::time::SystemTime;

use flashsale_bootstrap::traces::{self, TRACER};
use flashsale_domain::{EntryId, NewOrder, OrderId, Partition};
use flashsale_storage_redis::RawEntry;
use opentelemetry::context::FutureExt as _;
use opentelemetry::trace::{
    Link, Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};

use crate::process::Verdict;

/// The trace that an entry is part of, for the logs.
pub(crate) fn trace_id(entry: &RawEntry) -> Option<String> {
    Some(traced(entry)?.trace_id().to_string())
}

/// The order of an entry, for the logs; `None` when an order cannot have its id.
pub(crate) fn order_id(partition: Partition, entry: EntryId) -> Option<String> {
    OrderId::from_entry(partition, entry).ok().map(|id| id.to_string())
}

/// Does the work of a batch, under its span if it has one.
pub(crate) async fn under<T>(span: Option<&BatchSpan>, work: impl Future<Output = T>) -> T {
    match span {
        Some(span) => work.with_context(span.context.clone()).await,
        None => work.await,
    }
}

fn traced(entry: &RawEntry) -> Option<SpanContext> {
    traces::parse_traceparent(entry.traceparent()?).filter(SpanContext::is_sampled)
}

/// A batch with traced orders in it.
pub(crate) struct BatchSpan {
    context: Context,
    began: SystemTime,
    /// The traced ones, by their place in the batch.
    orders: Vec<(usize, SpanContext)>,
}

impl BatchSpan {
    /// `None` when none of these entries is traced.
    pub(crate) fn begin(partition: Partition, entries: &[RawEntry]) -> Option<Self> {
        if !traces::is_on() {
            return None;
        }
        let orders: Vec<(usize, SpanContext)> = entries
            .iter()
            .enumerate()
            .filter_map(|(place, entry)| Some((place, traced(entry)?)))
            .collect();
        let (_, first) = orders.first()?;
        let parent = Context::new().with_remote_span_context(first.clone());
        let tracer = global::tracer(TRACER);
        let size = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        let span = tracer
            .span_builder("batch")
            .with_kind(SpanKind::Consumer)
            .with_links(orders.iter().map(|(_, order)| link(order)).collect())
            .with_attributes([
                KeyValue::new("partition", partition.to_string()),
                KeyValue::new("messaging.batch.message_count", size),
            ])
            .start_with_context(&tracer, &parent);
        Some(Self { context: parent.with_span(span), began: SystemTime::now(), orders })
    }

    /// With what became of each order, in the order of the batch.
    pub(crate) fn end(self, orders: &[NewOrder], verdicts: &[Option<Verdict>]) {
        let tracer = global::tracer(TRACER);
        let batch = self.context.span();
        for (place, parent) in &self.orders {
            let (result, is_well) = match &verdicts[*place] {
                Some(Verdict::Done) => ("committed", true),
                Some(Verdict::DeadLetter { reason, .. }) => (*reason, false),
                // It comes again.
                None => ("left", false),
            };
            let mut span = tracer
                .span_builder("order")
                .with_kind(SpanKind::Consumer)
                .with_start_time(self.began)
                .with_links(vec![link(batch.span_context())])
                .with_attributes([
                    KeyValue::new("order.id", orders[*place].id.to_string()),
                    KeyValue::new("sale.id", orders[*place].sale_id.to_string()),
                    KeyValue::new("result", result),
                ])
                .start_with_context(
                    &tracer,
                    &Context::new().with_remote_span_context(parent.clone()),
                );
            if !is_well {
                span.set_status(Status::error(result));
            }
            span.end();
        }
        batch.end();
    }
}

fn link(span: &SpanContext) -> Link {
    Link::with_context(span.clone())
}
