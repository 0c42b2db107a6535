//! After the rush: every order that was answered must become real.
//!
//! Each is asked for as its buyer would, over HTTP. The service holds the answer back until the
//! order is written, so that one question is enough.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
    counters: Arc<Counters>,
}

impl Verify {
    pub(crate) fn new(rush: &Arc<Rush>, receipts: Vec<Receipt>) -> Self {
        let counters = Counters::new(receipts.len(), "confirmed");
        Self { rush: Arc::clone(rush), receipts, next: AtomicUsize::new(0), counters }
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
        let ask = Ask::ReadOrder(&receipt.order_id, WAIT_S);
        let buyer = verify.rush.buyer(receipt.buyer);
        let retries = verify.rush.retries;
        let last = retry::send(&mut client, ask, buyer, retries, &mut Retries::new()).await;
        let state = state(&last, &receipt.order_id);
        verify.counters.add(state == CONFIRMED);
        *states.entry(state).or_default() += 1;
    }
    states
}

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
            "queued" | "dead" | "rejected" => order.state,
            _ => CONFIRMED.into(),
        },
    }
}
