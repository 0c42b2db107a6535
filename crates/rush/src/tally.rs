//! Counting what the buyers were told, and finding where two answers cannot both be true.
//!
//! Pure: it takes the answers of the whole rush and keeps no clock.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cli::Run;
use crate::drive::{Answer, Log};
use crate::outcome::{OrderId, Outcome, Refusal};
use crate::tokens;

/// So many contradictions are told in words; all are counted.
const EXAMPLES_MAX: usize = 10;

/// An order that a buyer was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) order_id: OrderId,
    pub(crate) buyer: u32,
}

/// The whole count.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) figures: Figures,
    /// Every order that was answered, once for each buyer, the first answered first.
    pub(crate) receipts: Vec<Receipt>,
}

/// The figures, under the names of the JSON report.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// Requests that the plan held, and those that got their last word.
    pub(crate) planned: u64,
    pub(crate) requests: u64,
    /// When the clock started: milliseconds since the Unix epoch.
    pub(crate) started_unix_ms: u64,
    /// CPU time of the rush itself while its clock ran, where the system tells it: microseconds, in
    /// steps of 10,000.
    pub(crate) cpu_us: Option<u64>,
    /// Until the last answer.
    pub(crate) duration_s: f64,
    pub(crate) requests_per_s: f64,

    /// 201 and 202 that were not replays, and the distinct buyers who got them.
    pub(crate) accepted: u64,
    pub(crate) accepted_buyers: u64,
    /// Until the last of them: how long the sale took to sell what it sold.
    pub(crate) last_accepted_s: Option<f64>,
    /// Distinct order ids in whatever answer, and the buyers who hold them.
    pub(crate) orders: u64,
    pub(crate) order_holders: u64,
    /// Orders known from a replay or an already-ordered alone: the first answer was lost on the
    /// way, or was given before this rush.
    pub(crate) recovered: u64,

    pub(crate) replayed: u64,
    pub(crate) already_ordered: u64,
    pub(crate) sold_out: u64,
    pub(crate) not_started: u64,
    pub(crate) ended: u64,
    pub(crate) paused: u64,

    /// What was left of each kind after all retries.
    pub(crate) unavailable: u64,
    pub(crate) unavailable_by_slug: BTreeMap<String, u64>,
    pub(crate) client_errors: u64,
    pub(crate) client_errors_by_status: BTreeMap<String, u64>,
    pub(crate) server_errors: u64,
    pub(crate) server_errors_by_status: BTreeMap<String, u64>,
    pub(crate) transport_errors: u64,
    pub(crate) transport_error_example: Option<String>,

    /// Tries beyond the first of a request.
    pub(crate) retries: u64,
    pub(crate) retries_by_cause: BTreeMap<String, u64>,

    pub(crate) contradictions: u64,
    pub(crate) contradictions_by_kind: BTreeMap<String, u64>,
    pub(crate) contradiction_examples: Vec<String>,

    /// From the planned time, or in a closed loop from the first try, to the last word.
    pub(crate) latency_us: Latency,
    pub(crate) accepted_latency_us: Latency,
    /// Open loop: how late the first tries went out. Large values mean that the rate was more
    /// than these connections, or this machine, could send.
    pub(crate) send_delay_us: Option<Latency>,
}

/// Percentiles in microseconds.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// An order as its buyer knows it.
struct Held {
    order_id: OrderId,
    answered_ns: u64,
    /// Its own acceptance was seen, and not only a reference to it.
    accepted: bool,
}

impl Tally {
    /// Counts the rush.
    pub(crate) fn count(logs: Vec<Log>, run: &Run) -> Self {
        let mut figures = Figures {
            planned: u64::from(run.buyers) * u64::from(run.repeat),
            ..Figures::default()
        };
        let mut answers = Vec::new();
        for log in logs {
            for (cause, count) in log.retries {
                figures.retries += count;
                *figures.retries_by_cause.entry(cause.into()).or_default() += count;
            }
            figures.transport_error_example = log.broken.or(figures.transport_error_example);
            answers.extend(log.answers);
        }
        // What a buyer knows when he asks, is what was answered to him before.
        answers.sort_unstable_by_key(|answer| answer.answered_ns);

        figures.count_outcomes(&answers);
        figures.count_times(&answers, run.rate.is_some());
        let receipts = figures.count_orders(&answers, run);
        Self { figures, receipts }
    }
}

impl Figures {
    fn count_outcomes(&mut self, answers: &[Answer]) {
        let by = |map: &mut BTreeMap<String, u64>, key: String| *map.entry(key).or_default() += 1;
        for answer in answers {
            self.requests += 1;
            match &answer.outcome {
                Outcome::Accepted(_) => self.accepted += 1,
                Outcome::Replayed(_) => self.replayed += 1,
                Outcome::AlreadyOrdered(_) => self.already_ordered += 1,
                Outcome::Refused(Refusal::SoldOut) => self.sold_out += 1,
                Outcome::Refused(Refusal::NotStarted) => self.not_started += 1,
                Outcome::Refused(Refusal::Ended) => self.ended += 1,
                Outcome::Refused(Refusal::Paused) => self.paused += 1,
                Outcome::Unavailable(slug) => {
                    self.unavailable += 1;
                    by(&mut self.unavailable_by_slug, (*slug).into());
                }
                Outcome::ClientError(status) => {
                    self.client_errors += 1;
                    by(&mut self.client_errors_by_status, status.to_string());
                }
                Outcome::ServerError(status) => {
                    self.server_errors += 1;
                    by(&mut self.server_errors_by_status, status.to_string());
                }
                Outcome::Transport => self.transport_errors += 1,
            }
        }
    }

    fn count_times(&mut self, answers: &[Answer], open_loop: bool) {
        let latency = |answer: &Answer| answer.answered_ns.saturating_sub(answer.due_ns);
        let accepted = || answers.iter().filter(|a| matches!(a.outcome, Outcome::Accepted(_)));
        self.latency_us = Latency::of(answers.iter().map(latency));
        self.accepted_latency_us = Latency::of(accepted().map(latency));
        self.send_delay_us = open_loop
            .then(|| Latency::of(answers.iter().map(|a| a.first_sent_ns.saturating_sub(a.due_ns))));
        self.last_accepted_s = accepted().next_back().map(|answer| seconds(answer.answered_ns));
        self.duration_s = answers.last().map_or(0.0, |answer| seconds(answer.answered_ns));
        if self.duration_s > 0.0 {
            self.requests_per_s = self.requests as f64 / self.duration_s;
        }
    }

    /// `answers` in the order in which they were answered.
    ///
    /// Without a key, an order that is cancelled or expires within the rush frees its buyer to be
    /// refused or to buy again, which then counts as a contradiction: rush such a sale with keys.
    fn count_orders(&mut self, answers: &[Answer], run: &Run) -> Vec<Receipt> {
        let mut holders: HashMap<u32, Vec<Held>> = HashMap::new();
        let mut owners: HashMap<OrderId, u32> = HashMap::new();
        let mut receipts = Vec::new();
        for &Answer { buyer, sent_ns, answered_ns, ref outcome, .. } in answers {
            let (order_id, accepted) = match outcome {
                Outcome::Accepted(id) => (id, true),
                Outcome::Replayed(id) | Outcome::AlreadyOrdered(Some(id)) => (id, false),
                Outcome::Refused(refusal) => {
                    // Only what he knew before this try was sent: two presses in flight at once
                    // may be answered in either order.
                    let orders = holders.get(&buyer).map_or(&[][..], Vec::as_slice);
                    let mut known = orders.iter().filter(|held| held.answered_ns < sent_ns);
                    if let Some(held) = known.nth(run.orders_per_buyer_max - 1) {
                        let told = format!("was told {}, holds {}", refusal.slug(), held.order_id);
                        self.contradict("refused-holder", run, buyer, &told);
                    }
                    continue;
                }
                Outcome::AlreadyOrdered(None)
                | Outcome::Unavailable(_)
                | Outcome::ClientError(_)
                | Outcome::ServerError(_)
                | Outcome::Transport => continue,
            };
            let orders = holders.entry(buyer).or_default();
            if let Some(held) = orders.iter_mut().find(|held| held.order_id == *order_id) {
                if accepted && held.accepted {
                    let told = format!("was given {order_id} twice, neither marked as a replay");
                    self.contradict("unmarked-replay", run, buyer, &told);
                }
                held.accepted |= accepted;
                continue;
            }
            if let Some(held) = orders.last()
                && orders.len() >= run.orders_per_buyer_max
            {
                let told = format!("was given {}, then {order_id}", held.order_id);
                self.contradict("two-orders", run, buyer, &told);
            }
            orders.push(Held { order_id: order_id.clone(), answered_ns, accepted });
            if let Some(owner) = owners.insert(order_id.clone(), buyer) {
                let owner = tokens::name(&run.buyer_prefix, owner);
                let told = format!("was given {order_id}, the order of {owner}");
                self.contradict("shared-order", run, buyer, &told);
            }
            receipts.push(Receipt { order_id: order_id.clone(), buyer });
        }
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let held = || holders.values().flatten();
        self.orders = count(owners.len());
        self.order_holders = count(holders.len());
        self.recovered = count(held().filter(|held| !held.accepted).count());
        self.accepted_buyers =
            count(holders.values().filter(|held| held.iter().any(|h| h.accepted)).count());
        receipts
    }

    fn contradict(&mut self, kind: &str, run: &Run, buyer: u32, told: &str) {
        self.contradictions += 1;
        *self.contradictions_by_kind.entry(kind.into()).or_default() += 1;
        if self.contradiction_examples.len() < EXAMPLES_MAX {
            let name = tokens::name(&run.buyer_prefix, buyer);
            self.contradiction_examples.push(format!("{name} {told}"));
        }
    }
}

impl Latency {
    fn of(durations_ns: impl Iterator<Item = u64>) -> Self {
        // An hour at most, three digits: more than any rush can take or tell.
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3)
            .expect("the bounds are constants");
        for ns in durations_ns {
            histogram.saturating_record((ns / 1_000).max(1));
        }
        let max = histogram.max();
        // A percentile is the end of its bucket, which may lie above what was ever seen.
        let at = |quantile| histogram.value_at_quantile(quantile).min(max);
        Self {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max,
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Args;

    fn run(more: &[&str]) -> Run {
        let given = ["rush", "--url", "http://a.test", "--sale", "7", "--buyer-prefix", "b"];
        Args::try_parse_from(given.iter().chain(more)).expect("parses").run().expect("is valid")
    }

    /// A press of `buyer`, sent and answered at these milliseconds.
    fn answer(buyer: u32, sent_ms: u64, answered_ms: u64, outcome: Outcome) -> Answer {
        let sent_ns = sent_ms * 1_000_000;
        let answered_ns = answered_ms * 1_000_000;
        Answer { buyer, due_ns: sent_ns, first_sent_ns: sent_ns, sent_ns, answered_ns, outcome }
    }

    fn tally(answers: Vec<Answer>, run: &Run) -> Tally {
        Tally::count(vec![Log { answers, ..Log::default() }], run)
    }

    const SOLD_OUT: Outcome = Outcome::Refused(Refusal::SoldOut);

    fn accepted(id: &str) -> Outcome {
        Outcome::Accepted(id.into())
    }

    fn replayed(id: &str) -> Outcome {
        Outcome::Replayed(id.into())
    }

    #[test]
    fn each_outcome_is_counted_once() {
        let outcomes = vec![
            accepted("1"),
            replayed("1"),
            Outcome::AlreadyOrdered(Some("1".into())),
            Outcome::Unavailable("overloaded"),
            Outcome::ClientError(401),
            Outcome::ServerError(500),
            Outcome::Transport,
        ];
        let mut answers: Vec<Answer> =
            outcomes.into_iter().map(|outcome| answer(0, 1, 2, outcome)).collect();
        for (buyer, refusal) in
            (1..).zip([Refusal::SoldOut, Refusal::NotStarted, Refusal::Ended, Refusal::Paused])
        {
            answers.push(answer(buyer, 1, 2, Outcome::Refused(refusal)));
        }
        let figures = tally(answers, &run(&[])).figures;
        assert_eq!(figures.requests, 11);
        for (count, name) in [
            (figures.accepted, "accepted"),
            (figures.replayed, "replayed"),
            (figures.already_ordered, "already_ordered"),
            (figures.sold_out, "sold_out"),
            (figures.not_started, "not_started"),
            (figures.ended, "ended"),
            (figures.paused, "paused"),
            (figures.unavailable_by_slug["overloaded"], "unavailable"),
            (figures.client_errors_by_status["401"], "client_errors"),
            (figures.server_errors_by_status["500"], "server_errors"),
            (figures.transport_errors, "transport_errors"),
            (figures.orders, "orders"),
        ] {
            assert_eq!(count, 1, "{name}");
        }
        assert_eq!(figures.contradictions, 0);
    }

    #[test]
    fn two_ids_for_one_buyer_are_a_contradiction() {
        let found =
            tally(vec![answer(3, 0, 1, accepted("1")), answer(3, 2, 3, accepted("2"))], &run(&[]));
        assert_eq!(found.figures.contradictions_by_kind["two-orders"], 1);
        assert_eq!(found.figures.contradiction_examples, ["b3 was given 1, then 2"]);
        assert_eq!(found.receipts.len(), 2, "the audit must see both");
    }

    #[test]
    fn one_id_for_two_buyers_is_a_contradiction() {
        let answers = vec![answer(3, 0, 1, accepted("1")), answer(4, 0, 2, accepted("1"))];
        let Tally { figures, receipts } = tally(answers, &run(&[]));
        assert_eq!(figures.contradiction_examples, ["b4 was given 1, the order of b3"]);
        assert_eq!((figures.orders, figures.order_holders, receipts.len()), (1, 2, 2));
    }

    #[test]
    fn several_orders_are_fine_where_the_sale_allows_them() {
        let two = || vec![answer(3, 0, 1, accepted("1")), answer(3, 2, 3, accepted("2"))];
        let run = run(&["--no-key", "--per-buyer", "2"]);
        assert_eq!(tally(two(), &run).figures.contradictions, 0);
        let mut three = two();
        three.push(answer(3, 4, 5, accepted("3")));
        assert_eq!(tally(three, &run).figures.contradictions, 1);
    }

    #[test]
    fn a_holder_who_is_refused_later_is_a_contradiction() {
        let refused_when_sent_at = |sent_ms| {
            let answers = vec![answer(0, 0, 5, accepted("1")), answer(0, sent_ms, 9, SOLD_OUT)];
            tally(answers, &run(&[])).figures.contradictions
        };
        assert_eq!(refused_when_sent_at(6), 1);
        assert_eq!(refused_when_sent_at(4), 0, "both were in flight");
    }

    #[test]
    fn an_acceptance_that_repeats_without_its_mark_is_a_contradiction() {
        let twice = vec![answer(0, 0, 1, accepted("1")), answer(0, 0, 2, accepted("1"))];
        assert_eq!(tally(twice, &run(&[])).figures.contradictions_by_kind["unmarked-replay"], 1);
        // A replay may overtake the acceptance that it repeats.
        let overtaken = vec![answer(0, 0, 1, replayed("1")), answer(0, 0, 2, accepted("1"))];
        let figures = tally(overtaken, &run(&[])).figures;
        assert_eq!((figures.contradictions, figures.recovered), (0, 0));
    }

    #[test]
    fn an_order_whose_acceptance_was_lost_is_still_known() {
        let lost = vec![answer(0, 0, 1, replayed("1")), answer(1, 0, 1, accepted("2"))];
        let Tally { figures, receipts } = tally(lost, &run(&[]));
        assert_eq!((figures.accepted, figures.orders, figures.recovered), (1, 2, 1));
        assert_eq!((figures.accepted_buyers, figures.order_holders), (1, 2));
        assert_eq!(receipts.len(), 2);
    }

    #[test]
    fn an_open_loop_counts_from_the_planned_time() {
        let late = Answer { due_ns: 0, ..answer(0, 30, 40, accepted("1")) };
        let figures = tally(vec![late], &run(&["--rate", "10"])).figures;
        assert_eq!(figures.latency_us.max / 100, 400);
        assert_eq!(figures.send_delay_us.expect("is an open loop").max / 100, 300);
        let none = tally(Vec::new(), &run(&[])).figures;
        assert_eq!(none.latency_us, Latency::default());
    }
}
