//! Natural batching: requests of a sale that arrive while a script call is in flight go together in
//! the next one.
//!
//! There is one queue a worker thread, with a connection of its own, so that no lock is shared. There
//! is no timer: a lone request goes out at once, and under load the batches grow by themselves to
//! what Redis takes. The queue is bounded; what does not fit, or has waited too long, is told so
//! before anything was done for it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flashsale_bootstrap::settings::AdmissionSettings;
use flashsale_bootstrap::telemetry::count;
use flashsale_domain::{Admission, AdmissionRequest, Partition, Refusal, SaleId};
use flashsale_storage_redis::{AdmissionConnection, RedisFault};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::{error, info};

use crate::leases::Leases;

/// How often an admission connection is looked after.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// The decision, or why there is none.
pub(crate) type Answer = Result<Result<Admission, Refusal>, NoDecision>;

/// Why a request was not decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoDecision {
    /// The queue is full, or the request waited in it for too long: nothing was done.
    Overloaded,
    /// Redis refused the call: nothing was done.
    Unavailable,
    /// The call was sent, and no answer came: it may have been done.
    OutcomeUnknown,
}

/// One worker thread's queue. Cheap to clone within the thread.
#[derive(Clone)]
pub(crate) struct AdmissionQueue {
    inner: Rc<Inner>,
}

struct Inner {
    connection: AdmissionConnection,
    batch_max: usize,
    capacity: usize,
    deadline: Duration,
    waiting: Cell<usize>,
    /// How many of `waiting` the gauge has been told of.
    shown: Cell<usize>,
    lanes: RefCell<HashMap<SaleId, VecDeque<Waiting>>>,
    failing: Cell<bool>,
    leases: Arc<Leases>,
    metrics: QueueMetrics,
}

/// Looked up once, and not for every request.
struct QueueMetrics {
    batch_size: Histogram,
    unconfirmed: Counter,
    seconds: Histogram,
    /// One for all threads: each adds its changes.
    depth: Gauge,
}

struct Waiting {
    request: AdmissionRequest,
    since: Instant,
    answer: oneshot::Sender<Answer>,
}

impl AdmissionQueue {
    pub(crate) fn new(
        connection: AdmissionConnection,
        settings: &AdmissionSettings,
        leases: Arc<Leases>,
    ) -> Self {
        let inner = Rc::new(Inner {
            connection,
            batch_max: settings.batch_max,
            capacity: settings.queue_capacity,
            deadline: settings.queue_deadline,
            waiting: Cell::new(0),
            shown: Cell::new(0),
            lanes: RefCell::default(),
            failing: Cell::new(false),
            leases,
            metrics: QueueMetrics {
                batch_size: histogram!("flashsale_admission_batch_size"),
                unconfirmed: counter!("flashsale_admission_unconfirmed_batches_total"),
                seconds: histogram!("flashsale_admission_seconds"),
                depth: gauge!("flashsale_admission_queue_depth"),
            },
        });
        actix_web::rt::spawn(keep_connected(Rc::downgrade(&inner)));
        Self { inner }
    }

    /// Queues a request and waits for its decision.
    pub(crate) async fn admit(
        &self,
        partition: Partition,
        sale: SaleId,
        request: AdmissionRequest,
    ) -> Answer {
        let inner = &self.inner;
        if inner.waiting.get() >= inner.capacity {
            return Err(NoDecision::Overloaded);
        }
        let (answer, decided) = oneshot::channel();
        let waiting = Waiting { request, since: Instant::now(), answer };
        inner.waiting.set(inner.waiting.get() + 1);
        // A lane exists for as long as a call is in flight for its sale; who finds none makes it,
        // and sets it going.
        let is_first = {
            let mut lanes = inner.lanes.borrow_mut();
            let is_first = !lanes.contains_key(&sale);
            lanes.entry(sale).or_default().push_back(waiting);
            is_first
        };
        if is_first {
            let inner = Rc::clone(inner);
            actix_web::rt::spawn(async move { inner.drive(partition, sale).await });
        }
        // The sender is dropped unanswered only when the thread is being torn down.
        decided.await.unwrap_or(Err(NoDecision::OutcomeUnknown))
    }
}

/// Looks after a connection that nobody needs at the moment, for as long as its queue is there.
async fn keep_connected(queue: Weak<Inner>) {
    loop {
        sleep(PING_INTERVAL).await;
        let Some(inner) = queue.upgrade() else { return };
        inner.show_depth();
        let mut connection = inner.connection.clone();
        drop(inner);
        // What is wrong is said by whoever needs it.
        let _ = connection.ping().await;
    }
}

impl Inner {
    /// Sends batch after batch until nobody waits in the sale's lane.
    async fn drive(&self, partition: Partition, sale: SaleId) {
        let mut connection = self.connection.clone();
        while let Some(batch) = self.next_batch(sale) {
            if batch.is_empty() {
                continue;
            }
            self.metrics.batch_size.record(count(batch.len()));
            let requests = batch.iter().map(|waiting| &waiting.request);
            let sent = Instant::now();
            match connection.admit(partition, sale, requests).await {
                Ok(decided) => {
                    self.note_success();
                    if decided.confirmed {
                        self.leases.learn(partition, sale, sent, &decided);
                    } else {
                        // A server whose replicas are away may be one that was replaced: what it
                        // says of itself is nothing to learn from.
                        self.metrics.unconfirmed.increment(1);
                    }
                    for (waiting, outcome) in batch.into_iter().zip(decided.outcomes) {
                        self.answer(waiting, told(outcome, decided.confirmed));
                    }
                }
                Err(fault) => {
                    self.note_failure(sale, &fault);
                    let no_decision = if fault.is_outcome_unknown() {
                        NoDecision::OutcomeUnknown
                    } else {
                        NoDecision::Unavailable
                    };
                    for waiting in batch {
                        self.answer(waiting, Err(no_decision));
                    }
                }
            }
        }
    }

    /// Those who go in the next call; `None` when nobody waits, and then the lane is gone. Empty
    /// when all who waited had left or waited for too long.
    fn next_batch(&self, sale: SaleId) -> Option<Vec<Waiting>> {
        let mut lanes = self.lanes.borrow_mut();
        let lane = lanes.get_mut(&sale)?;
        if lane.is_empty() {
            lanes.remove(&sale);
            self.show_depth();
            return None;
        }
        self.show_depth();
        let take = lane.len().min(self.batch_max);
        let taken: Vec<Waiting> = lane.drain(..take).collect();
        self.waiting.set(self.waiting.get() - take);
        let mut batch = Vec::with_capacity(taken.len());
        for waiting in taken {
            if waiting.answer.is_closed() {
                // The buyer hung up while nothing was done yet: no order that nobody knows of.
                continue;
            }
            if waiting.since.elapsed() > self.deadline {
                self.answer(waiting, Err(NoDecision::Overloaded));
            } else {
                batch.push(waiting);
            }
        }
        Some(batch)
    }

    /// Tells the gauge, once a batch and not for every request.
    fn show_depth(&self) {
        let waiting = self.waiting.get();
        self.metrics.depth.increment(count(waiting) - count(self.shown.replace(waiting)));
    }

    fn answer(&self, waiting: Waiting, answer: Answer) {
        self.metrics.seconds.record(waiting.since.elapsed());
        // A buyer who hung up after the call was sent has an order all the same; the same key, or the
        // list of his orders, tells him.
        let _hung_up = waiting.answer.send(answer);
    }

    /// Failures are said when they begin and when they end, not for every batch between.
    fn note_failure(&self, sale: SaleId, fault: &RedisFault) {
        if !self.failing.replace(true) {
            error!(sale.id = %sale, error = %fault, "admission fails for sale {sale}");
        }
    }

    fn note_success(&self) {
        if self.failing.replace(false) {
            info!("admission works again");
        }
    }
}

/// What may be said of an outcome: a yes only once the replicas have it.
fn told(outcome: Result<Admission, Refusal>, confirmed: bool) -> Answer {
    match outcome {
        Ok(_) | Err(Refusal::AlreadyOrdered(_)) if !confirmed => Err(NoDecision::OutcomeUnknown),
        outcome => Ok(outcome),
    }
}
