//! Tells the shop what has become of its orders: takes events, posts them, and deletes what the shop
//! has taken. At least once, in no promised order.
//!
//! A shop that is down, slow or confused harms nobody but itself: this task waits for it alone, and
//! holds no connection of the database meanwhile. While nothing gets through, only one page is tried
//! at a time, with growing pauses, so that a backlog of any size costs no more than a small one.

use std::future::ready;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use flashsale_bootstrap::settings::{WebhookSettings, WorkerSettings};
use flashsale_bootstrap::telemetry::count;
use flashsale_bootstrap::{Quiet, Shutdown};
use flashsale_domain::{OrderId, OrderState, Price, SaleId};
use flashsale_storage_sql::{Database, Event, SqlFault};
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use tokio::time::sleep;
use tracing::warn;

use crate::backoff::{Backoff, jittered};
use crate::shop::Shop;

/// Requests at a time.
const SIDE_BY_SIDE: usize = 8;
/// Events of one page: two rounds.
const PAGE: usize = 2 * SIDE_BY_SIDE;
/// What a page may take besides its two rounds of requests: the database's part.
const LEASE_MARGIN: Duration = Duration::from_secs(5);
/// How often events are looked for.
const INTERVAL: Duration = Duration::from_millis(200);
/// How often they are counted, which reads them all.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Announcer {
    database: Database,
    shop: Shop,
    webhooks: WebhookSettings,
    worker: WorkerSettings,
    log: Quiet,
}

/// What is posted.
#[derive(Serialize)]
struct Message<'a> {
    r#type: &'a str,
    /// When it happened.
    timestamp: String,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    order_id: OrderId,
    sale_id: SaleId,
    user_id: &'a str,
    state: OrderState,
    price: Price,
    reason: Option<&'a str>,
}

impl Announcer {
    pub(crate) fn new(
        database: Database,
        shop: Shop,
        webhooks: WebhookSettings,
        worker: WorkerSettings,
    ) -> Self {
        Self { database, shop, webhooks, worker, log: Quiet::every_ten_seconds() }
    }

    /// Delivers until the shutdown is requested. What is in flight then is finished, if it takes no
    /// longer than the drain may; what is cut off is due again when its lease ends.
    pub(crate) async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = self.deliver_all(&shutdown) => {}
            () = self.watch() => {}
            () = async {
                shutdown.requested().await;
                sleep(self.worker.drain_deadline).await;
            } => {}
        }
    }

    async fn deliver_all(&self, shutdown: &Shutdown) {
        let lease = 2 * self.webhooks.timeout + LEASE_MARGIN;
        let page = u64::try_from(PAGE).expect("a small number");
        let mut backoff = Backoff::new(self.worker.retry_min, self.worker.retry_max);
        loop {
            // A database that does not answer must not hold up the end.
            let taken = tokio::select! {
                taken = self.database.take_events(page, lease) => taken,
                () = shutdown.requested() => return,
            };
            let pause = match taken {
                Ok(events) if events.is_empty() => INTERVAL,
                Ok(events) => {
                    let whole_page = events.len() >= PAGE;
                    if self.deliver_page(events, shutdown).await > 0 {
                        backoff.reset();
                        if whole_page { Duration::ZERO } else { INTERVAL }
                    } else {
                        backoff.pause()
                    }
                }
                Err(fault) => {
                    self.complain(&fault);
                    backoff.pause()
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    /// How many of them the shop has taken.
    async fn deliver_page(&self, events: Vec<Event>, shutdown: &Shutdown) -> usize {
        stream::iter(events)
            .map(|event| self.deliver(event, shutdown))
            .buffer_unordered(SIDE_BY_SIDE)
            .filter(|taken| ready(*taken))
            .count()
            .await
    }

    async fn deliver(&self, event: Event, shutdown: &Shutdown) -> bool {
        if shutdown.is_requested() {
            // Not begun: another worker need not wait for the lease's end.
            self.note(self.database.postpone_event(event.id, Duration::ZERO).await);
            return false;
        }
        let posted = self.shop.post(&format!("evt_{}", event.id), body_of(&event)).await;
        let result = posted.as_ref().err().map_or("delivered", |untaken| untaken.as_str());
        metrics::counter!("flashsale_webhook_deliveries_total", "result" => result).increment(1);
        match posted {
            Ok(()) => self.note(self.database.delete_event(event.id).await),
            Err(ref untaken) => {
                if let Some(more) = self.log.allows() {
                    warn!(event.id = event.id, event.attempts = event.attempts, order.id = %event.order_id,
                        error = %untaken, more, "the shop has not taken an event; trying again later");
                }
                let WebhookSettings { retry_min, retry_max, .. } = self.webhooks;
                let pause = pause_after(event.attempts, retry_min, retry_max);
                self.note(self.database.postpone_event(event.id, pause).await);
            }
        }
        posted.is_ok()
    }

    /// What could not be noted is due again when its lease ends.
    fn note(&self, noted: Result<(), SqlFault>) {
        if let Err(fault) = noted {
            self.complain(&fault);
        }
    }

    fn complain(&self, fault: &SqlFault) {
        if let Some(more) = self.log.allows() {
            warn!(error = %fault, more, "events cannot be read or settled; waiting");
        }
    }

    /// Measures what waits. While that is not known the last value stays.
    async fn watch(&self) {
        loop {
            if let Ok(waiting) = self.database.count_events().await {
                metrics::gauge!("flashsale_events_waiting").set(count(waiting));
            }
            sleep(COUNT_INTERVAL).await;
        }
    }
}

fn body_of(event: &Event) -> Vec<u8> {
    let happened = DateTime::<Utc>::from_timestamp_millis(event.created_ms).unwrap_or_default();
    let message = Message {
        r#type: &event.kind,
        timestamp: happened.to_rfc3339_opts(SecondsFormat::Millis, true),
        data: Data {
            order_id: event.order_id,
            sale_id: event.sale_id,
            user_id: &event.user_id,
            state: event.state,
            price: event.price,
            reason: event.reason.as_deref(),
        },
    };
    serde_json::to_vec(&message).expect("texts and numbers, which JSON can hold")
}

/// Doubled with every try from `min` to `max`, of which a random half to whole is taken.
fn pause_after(attempts: u32, min: Duration, max: Duration) -> Duration {
    // Past 2^30 times 100 ms everything is more than the longest that a setting allows.
    let doublings = attempts.saturating_sub(1).min(30);
    jittered(min.saturating_mul(1 << doublings).min(max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_with_the_tries_up_to_the_bound() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(3600));
        for (attempts, whole_s) in
            [(0, 1), (1, 1), (2, 2), (3, 4), (12, 2048), (13, 3600), (u32::MAX, 3600)]
        {
            let (pause, whole) = (pause_after(attempts, min, max), Duration::from_secs(whole_s));
            assert!(pause >= whole / 2 && pause <= whole, "{attempts}: {pause:?} of {whole:?}");
        }
    }

    #[test]
    fn a_message_is_what_the_documents_say() {
        let event = Event {
            id: 7,
            kind: "order.rejected".to_owned(),
            order_id: OrderId::from_i64(385_644_540_322_643_969).expect("an id"),
            sale_id: SaleId::from_i64(12).expect("an id"),
            user_id: "buyer-\"1\"".to_owned(),
            state: OrderState::Rejected,
            reason: Some("slot-taken".to_owned()),
            price: Price { amount: 9900, currency: "CNY".parse().expect("a currency") },
            created_ms: 1_794_268_800_007,
            attempts: 1,
        };
        let expected = r#"{"type":"order.rejected","timestamp":"2026-11-10T00:00:00.007Z","data":{"order_id":"385644540322643969","sale_id":"12","user_id":"buyer-\"1\"","state":"rejected","price":{"amount":9900,"currency":"CNY"},"reason":"slot-taken"}}"#;
        assert_eq!(String::from_utf8(body_of(&event)).expect("is UTF-8"), expected);
        let paid = Event { reason: None, ..event };
        assert!(body_of(&paid).ends_with(br#""reason":null}}"#));
    }
}
