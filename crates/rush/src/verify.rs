//! After the rush: every order that was answered must become real.
//!
//! Each is asked for as its buyer would, over HTTP. The service holds the answer back until the
//! order is written, so that one question is usually enough. An order that is still queued then is
//! asked for again until the time is up: a worker may have died with it, and its peers take it over
//! only after a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::cli::Run;
use crate::client::{Ask, Client, Target};
use crate::drive::Rush;
use crate::progress::Counters;
use crate::retry::{self, LastWord, Retries};
use crate::tally::Receipt;

/// Seconds that the service may hold an answer back.
const WAIT_S: u64 = 10;

/// The pause before the same order is asked for again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What became of the orders.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Verified {
    /// A state that a worker gave it, and that it can stay in.
    pub(crate) confirmed: u64,
    pub(crate) unconfirmed: u64,
    /// The unconfirmed ones by state, or by status where there was no order.
    pub(crate) unconfirmed_by_state: BTreeMap<String, u64>,
}

/// The orders to ask for, shared by the connections.
#[derive(Debug)]
pub(crate) struct Verify {
    rush: Arc<Rush>,
    receipts: Vec<Receipt>,
    next: AtomicUsize,
    /// When waiting is over; what has not been asked for by then is asked for once.
    until: Instant,
    counters: Arc<Counters>,
}

impl Verify {
    /// The time for orders to become real begins now.
    pub(crate) fn new(rush: &Arc<Rush>, receipts: Vec<Receipt>, timeout: Duration) -> Self {
        let counters = Counters::new(receipts.len(), "confirmed");
        let (next, until) = (AtomicUsize::new(0), Instant::now() + timeout);
        Self { rush: Arc::clone(rush), receipts, next, until, counters }
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

/// Asks for every order, oldest first, on as many connections as the rush had.
pub(crate) async fn verify(verify: &Arc<Verify>, run: &Run) -> anyhow::Result<Verified> {
    let targets: Arc<[Target]> = run.targets.as_slice().into();
    let mut running = JoinSet::new();
    for number in 0..run.concurrency.min(verify.receipts.len()) {
        let client = Client::new(Arc::clone(&targets), number, run.timeout);
        running.spawn(ask_on(Arc::clone(verify), client));
    }
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    while let Some(seen) = running.join_next().await {
        for (state, count) in seen? {
            *states.entry(state).or_default() += count;
        }
    }
    let asked: u64 = states.values().sum();
    let unasked = u64::try_from(verify.receipts.len())?.saturating_sub(asked);
    if unasked > 0 {
        states.insert("not asked".into(), unasked);
    }
    let confirmed = states.remove(CONFIRMED).unwrap_or(0);
    let unconfirmed = states.values().sum();
    Ok(Verified { confirmed, unconfirmed, unconfirmed_by_state: states })
}

/// Stands for every good state in the count; no state of an order is called so.
const CONFIRMED: &str = "confirmed";

async fn ask_on(verify: Arc<Verify>, mut client: Client) -> BTreeMap<String, u64> {
    let mut states = BTreeMap::new();
    while !verify.rush.is_stopped() {
        let Some(receipt) = verify.receipts.get(verify.next.fetch_add(1, Relaxed)) else { break };
        let state = last_state(&verify, &mut client, receipt).await;
        verify.counters.add(state == CONFIRMED);
        *states.entry(state).or_default() += 1;
    }
    states
}

/// The state that an order has come to, or has not left when the time is up.
async fn last_state(verify: &Verify, client: &mut Client, receipt: &Receipt) -> String {
    let buyer = verify.rush.buyer(receipt.buyer);
    loop {
        let left = verify.until.saturating_duration_since(Instant::now());
        let time_is_up = left.is_zero();
        let ask = Ask::ReadOrder(&receipt.order_id, left.as_secs().min(WAIT_S));
        let retries = if time_is_up { 0 } else { verify.rush.retries };
        let last = retry::send(client, ask, buyer, retries, &mut Retries::new()).await;
        let state = state(&last, &receipt.order_id);
        let may_change = state == QUEUED || last.outcome.retry_cause().is_some();
        if !may_change || time_is_up || verify.rush.is_stopped() {
            return state;
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

/// The state that no worker has given yet.
const QUEUED: &str = "queued";

#[derive(Deserialize)]
struct Order {
    order_id: String,
    state: String,
}

fn state(last: &LastWord, order_id: &str) -> String {
    let Ok(reply) = &last.reply else { return "no answer".into() };
    if reply.status != 200 {
        return reply.status.to_string();
    }
    match serde_json::from_slice::<Order>(&reply.body) {
        Err(_) => "not an order".into(),
        Ok(order) if order.order_id != order_id => "another order".into(),
        Ok(order) => match order.state.as_str() {
            QUEUED | "dead" | "rejected" => order.state,
            _ => CONFIRMED.into(),
        },
    }
}
