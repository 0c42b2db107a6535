//! The rush itself: every connection takes the next press of the plan until none is left.
//!
//! Closed loop: as soon as its last answer is there. Open loop (a rate is given): when the press
//! is due, and the latency counts from then, also where the press had to wait for a connection.
//! Otherwise a slow answer would hold back the very requests that would have met the same delay
//! and hide it: Gil Tene's "coordinated omission" ("How NOT to Measure Latency"), avoided in the
//! way of his wrk2.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Ask, Client, Target};
use crate::outcome::Outcome;
use crate::plan;
use crate::progress::Counters;
use crate::retry::{self, Retries};
use crate::tokens::Buyer;

/// How soon an interrupt is seen while the next press is not due.
const STOP_SEEN_WITHIN: Duration = Duration::from_millis(50);

/// Presses that fall due within this time are given out together: waking somebody for each one costs
/// the rush more than the press, and takes that time from the servers under load. Up to so much does a
/// latency become longer, for it counts from the planned time all the same.
const GIVE_EVERY: Duration = Duration::from_micros(250);

/// What the connections share.
#[derive(Debug)]
pub(crate) struct Rush {
    plan: Vec<u32>,
    buyers: Vec<Buyer>,
    rate: Option<NonZeroU64>,
    pub(crate) retries: u32,
    counters: Arc<Counters>,
    /// Number of the next press that nobody has taken.
    next: AtomicUsize,
    /// Open loop: one permit for each press that is due.
    due: Semaphore,
    stop: AtomicBool,
}

/// One press and its last answer; times are nanoseconds since the start.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) buyer: u32,
    /// From here its latency counts: the planned time, or in a closed loop that of the first try.
    pub(crate) due_ns: u64,
    pub(crate) first_sent_ns: u64,
    /// When the try was sent that got this answer.
    pub(crate) sent_ns: u64,
    pub(crate) answered_ns: u64,
    pub(crate) outcome: Outcome,
}

/// All that one connection has seen. Each keeps its own, and they are counted when the rush is
/// over: no lock on the way.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) answers: Vec<Answer>,
    pub(crate) retries: Retries,
    /// The last reason why there was no answer, for the reader of the report.
    pub(crate) broken: Option<String>,
}

impl Rush {
    pub(crate) fn new(
        plan: Vec<u32>,
        buyers: Vec<Buyer>,
        rate: Option<NonZeroU64>,
        retries: u32,
    ) -> Self {
        let counters = Counters::new(plan.len(), "accepted");
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { plan, buyers, rate, retries, counters, next, due: Semaphore::new(0), stop }
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    pub(crate) fn buyer(&self, buyer: u32) -> &Buyer {
        &self.buyers[usize::try_from(buyer).expect("a buyer was an index")]
    }

    /// No further press is sent; those in flight get their answers.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// The first Ctrl-C stops the rush and reports what is there; the second one ends it.
    pub(crate) fn stop_on_interrupt(self: &Arc<Self>) {
        let rush = Arc::clone(self);
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                rush.stop();
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(1);
            }
        });
    }
}

/// Opens the connections, so that the clock starts with the presses. One that fails is opened by
/// its first press; when all fail, there is nothing to press.
pub(crate) async fn connect(
    targets: &[Target],
    connections: usize,
    timeout: Duration,
) -> anyhow::Result<Vec<Client>> {
    let targets: Arc<[Target]> = targets.into();
    let mut opening = JoinSet::new();
    for number in 0..connections {
        let mut client = Client::new(Arc::clone(&targets), number, timeout);
        opening.spawn(async move {
            let opened = client.connect().await;
            (client, opened)
        });
    }
    let (mut clients, mut failure) = (Vec::with_capacity(connections), None);
    let mut opened_count = 0;
    while let Some(joined) = opening.join_next().await {
        let (client, opened) = joined?;
        clients.push(client);
        match opened {
            Ok(()) => opened_count += 1,
            Err(broken) => failure = Some(broken),
        }
    }
    if let (0, Some(failure)) = (opened_count, failure) {
        let tried: Vec<String> = targets.iter().map(Target::to_string).collect();
        bail!("{}: {failure}", tried.join(", "));
    }
    Ok(clients)
}

/// Runs the plan over the connections and returns what each has seen.
pub(crate) async fn drive(rush: &Arc<Rush>, clients: Vec<Client>) -> anyhow::Result<Vec<Log>> {
    let start = Instant::now();
    let connections = clients.len();
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(press_on(Arc::clone(rush), client, start));
    }
    let pacer = rush.rate.map(|rate| {
        let rush = Arc::clone(rush);
        std::thread::spawn(move || pace(&rush, rate, connections, start))
    });
    let mut logs = Vec::with_capacity(connections);
    while let Some(log) = running.join_next().await {
        logs.push(log?);
    }
    if let Some(pacer) = pacer {
        // It has given every permit by now: the connections could not have ended before.
        pacer.join().expect("the pacer does not panic");
    }
    Ok(logs)
}

async fn press_on(rush: Arc<Rush>, mut client: Client, start: Instant) -> Log {
    let mut log = Log::default();
    loop {
        if rush.rate.is_some() {
            rush.due.acquire().await.expect("nobody closes it").forget();
        }
        if rush.is_stopped() {
            return log;
        }
        let press = rush.next.fetch_add(1, Relaxed);
        let Some(&buyer) = rush.plan.get(press) else { return log };

        let asking = rush.buyer(buyer);
        let last =
            retry::send(&mut client, Ask::PlaceOrder, asking, rush.retries, &mut log.retries).await;
        let answered_ns = ns(start.elapsed());
        if let Err(broken) = &last.reply {
            log.broken = Some(broken.to_string());
        }
        rush.counters.add(matches!(last.outcome, Outcome::Accepted(_)));

        let first_sent_ns = ns(last.first_sent - start);
        let due_ns = rush.rate.map_or(first_sent_ns, |rate| plan::due_ns(press, rate.get()));
        let sent_ns = ns(last.sent - start);
        let outcome = last.outcome;
        log.answers.push(Answer { buyer, due_ns, first_sent_ns, sent_ns, answered_ns, outcome });
    }
}

/// Gives a permit for each press when it is due. On a thread of its own, because the runtime's
/// timer counts in milliseconds: at 20,000 presses a second that is 20 presses at a time.
fn pace(rush: &Rush, rate: NonZeroU64, connections: usize, start: Instant) {
    let mut given = 0;
    while given < rush.plan.len() && !rush.is_stopped() {
        let due = plan::due_count(ns(start.elapsed()), rate.get()).min(rush.plan.len());
        rush.due.add_permits(due - given);
        given = due;
        let next = start + Duration::from_nanos(plan::due_ns(given, rate.get()));
        let pause = next.saturating_duration_since(Instant::now());
        std::thread::sleep(pause.clamp(GIVE_EVERY, STOP_SEEN_WITHIN));
    }
    // One more for each connection, to find that nothing is left.
    rush.due.add_permits(connections);
}

/// Nanoseconds in 64 bits last for 584 years.
fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::SocketAddr;

    use clap::Parser as _;
    use secrecy::SecretString;

    use super::*;
    use crate::cli::{Args, Run};
    use crate::tally::Tally;
    use crate::tiny_server::{Act, order, problem, serve};
    use crate::verify::{Verified, Verify, verify};
    use crate::{plan, tokens};

    fn run(servers: &[SocketAddr], more: &[&str]) -> Run {
        let mut line = vec!["rush".to_owned(), "--sale=7".into()];
        line.extend(servers.iter().map(|server| format!("--url=http://{server}")));
        line.extend(more.iter().map(|&word| word.to_owned()));
        Args::try_parse_from(line).expect("parses").run().expect("is valid")
    }

    async fn rush(run: &Run) -> (Arc<Rush>, Tally) {
        let secret = SecretString::from("a secret of at least thirty-two bytes");
        let buyers =
            tokens::mint(&run.buyer_prefix, run.buyers, run.keyed, &secret).expect("mints");
        let plan = plan::presses(run.buyers, run.repeat, run.seed);
        let clients =
            connect(&run.targets, run.concurrency, run.timeout).await.expect("a server listens");
        let rush = Arc::new(Rush::new(plan, buyers, run.rate, run.retries));
        let logs = drive(&rush, clients).await.expect("no task panics");
        (rush, Tally::count(logs, run))
    }

    /// A sale as it should be: `stock` units, replays, one order a buyer.
    fn sale(stock: usize) -> impl FnMut(&str) -> Act + Send {
        let mut orders: HashMap<String, u64> = HashMap::new();
        move |buyer| {
            if let Some(&id) = orders.get(buyer) {
                return if buyer.starts_with("key-") {
                    Act::Answer(202, "Idempotency-Replayed: true\r\n", order(id))
                } else {
                    let body =
                        format!(r#"{{"type":"/problems/already-ordered","order_id":"{id}"}}"#);
                    Act::Answer(409, "", body)
                };
            }
            if orders.len() == stock {
                return Act::Answer(409, "", problem("sold-out"));
            }
            let id = 1_000 + u64::try_from(orders.len()).expect("fits");
            orders.insert(buyer.to_owned(), id);
            Act::Answer(202, "", order(id))
        }
    }

    #[tokio::test]
    async fn every_press_is_sent_and_counted() {
        let mut sale = sale(30);
        let server = serve(move |asked| {
            assert_eq!(asked.line, "POST /api/v1/sales/7/orders");
            sale(&asked.buyer)
        })
        .await;
        for (more, replayed, already_ordered) in [
            (&["--buyers=100", "--repeat=3"][..], 60, 0),
            (&["--buyers=100", "--repeat=3", "--no-key"], 0, 0),
        ] {
            let (_, tally) = rush(&run(&[server], more)).await;
            let figures = tally.figures;
            assert_eq!((figures.requests, figures.contradictions), (300, 0), "{figures:?}");
            assert_eq!((figures.replayed, figures.already_ordered), (replayed, already_ordered));
            // The second crowd comes to a sale that has sold out.
            assert_eq!(figures.sold_out, if replayed == 0 { 300 } else { 210 });
        }
    }

    #[tokio::test]
    async fn without_a_key_a_repeat_is_already_ordered() {
        let mut sale = sale(30);
        let server = serve(move |asked| sale(&asked.buyer)).await;
        let (_, tally) = rush(&run(&[server], &["--buyers=20", "--repeat=2", "--no-key"])).await;
        assert_eq!((tally.figures.accepted, tally.figures.already_ordered), (20, 20));
    }

    #[tokio::test]
    async fn a_lost_answer_is_asked_for_again_with_the_same_key() {
        let mut sale = sale(100);
        let mut seen = HashMap::new();
        let server = serve(move |asked| {
            let tries = seen.entry(asked.buyer.clone()).or_insert(0);
            *tries += 1;
            let act = sale(&asked.buyer);
            if *tries == 1 && asked.buyer.ends_with('3') { Act::Close } else { act }
        })
        .await;
        let more = ["--buyers=20", "--buyer-prefix=b-"];
        // The same server under two URLs: failing over costs no pause.
        let (_, tally) = rush(&run(&[server, server], &more)).await;
        let figures = tally.figures;
        assert_eq!((figures.accepted, figures.replayed, figures.recovered), (18, 2, 2));
        assert_eq!((figures.orders, figures.transport_errors), (20, 0));
        assert_eq!(figures.retries_by_cause["transport"], 2);
    }

    #[tokio::test]
    async fn a_503_is_tried_again_until_there_is_an_answer() {
        let mut sale = sale(100);
        let mut refused = 0;
        let server = serve(move |asked| {
            if asked.buyer == "key-b-1" {
                return Act::Answer(503, "Retry-After: 0\r\n", problem("sale-unavailable"));
            }
            refused += 1;
            match refused {
                1..=5 => Act::Answer(503, "Retry-After: 0\r\n", problem("overloaded")),
                _ => sale(&asked.buyer),
            }
        })
        .await;
        let more = ["--buyers=10", "--retries=5", "--buyer-prefix=b-"];
        let (_, tally) = rush(&run(&[server], &more)).await;
        let figures = tally.figures;
        assert_eq!((figures.accepted, figures.unavailable), (9, 1));
        assert_eq!(figures.unavailable_by_slug["sale-unavailable"], 1);
        assert_eq!(figures.retries_by_cause["overloaded"], 5);
        assert_eq!(figures.retries_by_cause["sale-unavailable"], 5);
    }

    #[tokio::test]
    async fn a_connection_that_the_server_closes_between_requests_is_no_error() {
        let mut sale = sale(100);
        let server = serve(move |asked| match sale(&asked.buyer) {
            Act::Answer(status, headers, body) => Act::AnswerThenClose(status, headers, body),
            other => other,
        })
        .await;
        // Slow enough that the close is there before the next press of the same connection.
        let more = ["--buyers=40", "--rate=400"];
        let (_, tally) = rush(&run(&[server], &more)).await;
        assert_eq!((tally.figures.accepted, tally.figures.retries), (40, 0));
    }

    #[tokio::test]
    async fn a_target_that_is_away_is_stood_in_for() {
        let gone = serve(|_| Act::Close).await;
        let mut sale = sale(100);
        let here = serve(move |asked| sale(&asked.buyer)).await;
        let (_, tally) = rush(&run(&[gone, here], &["--buyers=40"])).await;
        assert_eq!((tally.figures.accepted, tally.figures.transport_errors), (40, 0));
    }

    #[tokio::test]
    async fn nobody_listening_is_said_at_the_start() {
        let server = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            listener.local_addr().expect("is bound")
        };
        let run = run(&[server], &[]);
        let problem = connect(&run.targets, 2, run.timeout).await.expect_err("nobody listens");
        assert!(problem.to_string().contains(&server.to_string()), "{problem}");
    }

    #[tokio::test]
    async fn an_open_loop_keeps_its_rate_and_counts_the_wait() {
        // The first answer blocks the only connection for 200 ms while 20 presses fall due.
        let mut sale = sale(100);
        let mut first = true;
        let server = serve(move |asked| {
            if std::mem::take(&mut first) {
                std::thread::sleep(Duration::from_millis(200));
            }
            sale(&asked.buyer)
        })
        .await;
        let more = ["--buyers=40", "--rate=100", "--concurrency=1"];
        let (_, tally) = rush(&run(&[server], &more[..])).await;
        let figures = tally.figures;
        assert!(figures.duration_s >= 0.39, "{}", figures.duration_s);
        assert!(figures.latency_us.p50 < 190_000 && figures.latency_us.max >= 200_000);
        assert!(figures.send_delay_us.expect("is an open loop").max >= 100_000);
    }

    #[tokio::test]
    async fn verifying_tells_the_orders_that_did_not_become_real() {
        let mut sale = sale(3);
        let server = serve(move |asked| match asked.line.split(' ').nth(1) {
            Some("/api/v1/orders/1000?wait=10") => {
                Act::Answer(200, "", r#"{"order_id":"1000","state":"awaiting_payment"}"#.into())
            }
            Some("/api/v1/orders/1001?wait=10") => {
                Act::Answer(200, "", r#"{"order_id":"1001","state":"rejected"}"#.into())
            }
            Some("/api/v1/orders/1002?wait=10") => Act::Answer(404, "", problem("order-not-found")),
            _ => sale(&asked.buyer),
        })
        .await;
        let run = run(&[server], &["--buyers=5"]);
        let (rush, tally) = rush(&run).await;
        let orders = Arc::new(Verify::new(&rush, tally.receipts, run.verify_timeout));
        let states = [("404".to_owned(), 1), ("rejected".to_owned(), 1)];
        assert_eq!(
            verify(&orders, &run).await.expect("no task panics"),
            Verified { confirmed: 1, unconfirmed: 2, unconfirmed_by_state: states.into() }
        );
    }
    #[tokio::test]
    async fn verifying_waits_for_an_order_that_becomes_real_late() {
        let mut sale = sale(2);
        let mut asked_for = 0;
        let server = serve(move |asked| {
            if !asked.line.starts_with("GET") {
                return sale(&asked.buyer);
            }
            let id = asked.line.split(['/', '?']).nth(4).expect("an order's path").to_owned();
            asked_for += 1;
            // Not answered, away, queued, and at last a row.
            let state = match asked_for {
                1 => return Act::Close,
                2..=3 => {
                    return Act::Answer(503, "Retry-After: 0\r\n", problem("sale-unavailable"));
                }
                4..=8 => "queued",
                _ => "awaiting_payment",
            };
            Act::Answer(200, "", format!(r#"{{"order_id":"{id}","state":"{state}"}}"#))
        })
        .await;
        let run = run(&[server, server], &["--buyers=2", "--retries=0", "--verify"]);
        let (rush, tally) = rush(&run).await;
        let orders = Arc::new(Verify::new(&rush, tally.receipts, run.verify_timeout));
        let verified = verify(&orders, &run).await.expect("no task panics");
        assert_eq!(verified, Verified { confirmed: 2, ..Verified::default() });
    }

    #[tokio::test]
    async fn an_order_that_never_becomes_real_is_unconfirmed_when_the_time_is_up() {
        let mut sale = sale(3);
        let server = serve(move |asked| match asked.line.split(['/', '?']).nth(4) {
            Some("1000") => {
                Act::Answer(200, "", r#"{"order_id":"1000","state":"awaiting_payment"}"#.into())
            }
            Some(id) if asked.line.starts_with("GET") => {
                Act::Answer(200, "", order(id.parse().expect("an id")))
            }
            _ => sale(&asked.buyer),
        })
        .await;
        // One connection: what it has not asked for when the time is up is still asked for.
        let more = ["--buyers=3", "--concurrency=1", "--verify", "--verify-timeout=300ms"];
        let run = run(&[server], &more);
        let (rush, tally) = rush(&run).await;
        let orders = Arc::new(Verify::new(&rush, tally.receipts, run.verify_timeout));
        let states = [("queued".to_owned(), 2)];
        assert_eq!(
            verify(&orders, &run).await.expect("no task panics"),
            Verified { confirmed: 1, unconfirmed: 2, unconfirmed_by_state: states.into() }
        );
    }
}
