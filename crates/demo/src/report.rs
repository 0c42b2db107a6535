//! What the person at the keyboard reads: the result, whether it is good, and why not.

use std::io::{self, Write as _};

use crate::options::Options;
use crate::programs::{Audit, Ledger};
use crate::rush::{REPEAT, Rushed};

/// Prints to standard output. A reader that went away ends the demo.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{text}")?)
}

/// Prints an error to standard error.
pub(crate) fn complain(error: &anyhow::Error) {
    complain_text(&format!("demo: {error:#}"));
}

/// Prints to standard error.
pub(crate) fn complain_text(text: &str) {
    let _reader_gone = writeln!(io::stderr(), "{text}");
}

/// All that is known at the end.
pub(crate) struct Outcome<'a> {
    pub(crate) options: &'a Options,
    pub(crate) rushed: Rushed,
    pub(crate) ledger: Ledger,
    pub(crate) audit: Audit,
    pub(crate) worker_killed: bool,
    /// Orders that came to a worker from a dead one, if the workers tell.
    pub(crate) reclaimed: Option<u64>,
}

impl Outcome<'_> {
    /// What is not as it must be; empty when the sale came out exactly right.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Self { rushed, ledger, audit, .. } = self;
        let mut problems = Vec::new();
        let mut require = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        let expected = self.options.expected_orders();
        require(
            rushed.order_holders == expected && rushed.orders == expected,
            format!(
                "{} buyers hold {} orders, and it must be {expected}",
                rushed.order_holders, rushed.orders
            ),
        );
        for (count, what) in [
            (rushed.server_errors, "server errors"),
            (rushed.transport_errors, "requests without an answer"),
            (rushed.unavailable, "requests refused as unavailable to the last try"),
            (rushed.contradictions, "contradictions"),
            (rushed.unconfirmed.unwrap_or(expected), "accepted orders not confirmed"),
        ] {
            require(count == 0, format!("{count} {what}"));
        }
        for (status, count) in &rushed.client_errors_by_status {
            require(false, format!("{count} answers of status {status}"));
        }
        for example in &rushed.contradiction_examples {
            require(false, example.clone());
        }
        require(rushed.ok, "rush is not content".to_owned());
        require(
            ledger.balanced,
            format!("the ledger is not balanced: {}", ledger.problems.join("; ")),
        );
        require(
            ledger.awaiting_payment == expected,
            format!("{} rows are open, and it must be {expected}", ledger.awaiting_payment),
        );
        require(
            audit.receipts_checked == expected,
            format!("{} receipts were checked, not {expected}", audit.receipts_checked),
        );
        for finding in &audit.findings {
            require(false, format!("audit: {} {}", finding.invariant, finding.what));
        }
        if self.options.kill_worker {
            require(self.worker_killed, "no worker was killed during the rush".to_owned());
        }
        problems
    }

    /// What a sale without problems has come to.
    pub(crate) fn verdict(&self) -> String {
        let Options { buyers, stock, .. } = *self.options;
        match stock.checked_sub(buyers) {
            None | Some(0) => "every unit was sold exactly once".to_owned(),
            Some(left) => format!(
                "every buyer got exactly one unit, and {} of {} units are left",
                grouped(left),
                grouped(stock)
            ),
        }
    }

    /// The result in figures.
    pub(crate) fn table(&self) -> String {
        let Self { options, rushed, ledger, audit, .. } = self;
        let mut lines = Vec::new();
        let mut line = |name: &str, figure: String, note: String| {
            lines.push(format!("  {name:<16}{figure:>10}  {note}").trim_end().to_owned());
        };
        let number = |name: &str, count: u64, note: &str| (name.to_owned(), count, note.to_owned());
        let of_the_sale = |seconds: Option<f64>| {
            seconds.map_or_else(String::new, |s| format!(", the last after {s:.3} s"))
        };
        for (name, count, note) in [
            number("units", options.stock, ""),
            number("buyers", options.buyers, ""),
            number(
                "requests",
                rushed.requests,
                &format!("{REPEAT} a buyer, {}/s", grouped(whole(rushed.requests_per_s))),
            ),
            number(
                "accepted",
                rushed.order_holders,
                &format!("distinct buyers{}", of_the_sale(rushed.last_accepted_s)),
            ),
            number("sold out", rushed.sold_out, "refusals"),
            number(
                "duplicates",
                rushed.replayed + rushed.already_ordered,
                "pressed again, and were given the same order",
            ),
            number("server errors", rushed.server_errors, ""),
            number("contradictions", rushed.contradictions, ""),
        ] {
            line(&name, grouped(count), note);
        }
        if rushed.retries > 0 {
            line(
                "retries",
                grouped(rushed.retries),
                "after a 502, 503, 504 or a broken connection".to_owned(),
            );
        }
        let rows = match audit.findings.iter().any(|finding| finding.invariant == "I4") {
            false => "every accepted order is a row under its buyer",
            true => "NOT every accepted order is a row under its buyer",
        };
        line("receipts", grouped(audit.receipts_checked), rows.to_owned());
        if self.worker_killed {
            let note = match self.reclaimed {
                Some(orders) => format!("{} of its orders went to its peer", grouped(orders)),
                None => String::new(),
            };
            line("workers killed", "1".to_owned(), note);
        }
        for (name, latency) in
            [("latency", &rushed.latency_us), ("of the accepted", &rushed.accepted_latency_us)]
        {
            lines.push(format!(
                "  {name:<16}p50 {}, p99 {}, max {}",
                milliseconds(latency.p50),
                milliseconds(latency.p99),
                milliseconds(latency.max)
            ));
        }
        lines.push(format!(
            "  ledger          {}: {} units = {} left + {} awaiting payment; {} queued, {} rejected, \
             {} dead",
            if ledger.balanced { "balanced" } else { "NOT BALANCED" },
            grouped(ledger.total),
            ledger.stock_left,
            grouped(ledger.awaiting_payment),
            ledger.queued,
            ledger.rejected,
            ledger.dead
        ));
        lines.push(format!(
            "  audit           {}",
            match audit.findings.len() {
                0 => "clean: the invariants I1 to I7 hold".to_owned(),
                findings => format!("{findings} FINDINGS"),
            }
        ));
        format!("\n{}\n", lines.join("\n"))
    }
}

fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

/// A rate without its fraction.
fn whole(rate: f64) -> u64 {
    format!("{rate:.0}").parse().unwrap_or(0)
}

/// Digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::options::DatabaseKind;
    use crate::programs::Finding;
    use crate::rush::Latency;

    const OPTIONS: Options = Options {
        exit: true,
        database: DatabaseKind::Sqlite,
        kill_worker: true,
        buyers: 20,
        stock: 10,
    };

    fn latency() -> Latency {
        Latency { p50: 1_250, p99: 20_000, max: 99 }
    }

    fn good() -> Outcome<'static> {
        Outcome {
            options: &OPTIONS,
            rushed: Rushed {
                ok: true,
                requests: 40,
                requests_per_s: 1234.5,
                order_holders: 10,
                orders: 10,
                last_accepted_s: Some(0.25),
                replayed: 10,
                already_ordered: 0,
                sold_out: 20,
                unavailable: 0,
                client_errors_by_status: BTreeMap::new(),
                server_errors: 0,
                transport_errors: 0,
                retries: 0,
                contradictions: 0,
                contradiction_examples: Vec::new(),
                unconfirmed: Some(0),
                latency_us: latency(),
                accepted_latency_us: latency(),
            },
            ledger: Ledger {
                balanced: true,
                total: 10,
                stock_left: 0,
                queued: 0,
                in_transit: 0,
                redis: None,
                awaiting_payment: 10,
                paid: 0,
                cancelled: 0,
                expired: 0,
                rejected: 0,
                dead: 0,
                problems: Vec::new(),
            },
            audit: Audit { receipts_checked: 10, findings: Vec::new() },
            worker_killed: true,
            reclaimed: Some(3),
        }
    }

    #[test]
    fn a_sale_that_came_out_right_has_no_problem() {
        assert_eq!(good().problems(), Vec::<String>::new());
        let table = good().table();
        for part in ["1.2 ms", "1,23", "balanced: 10 units", "3 of its orders", "clean"] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }

    #[test]
    fn units_that_nobody_wanted_are_not_called_sold() {
        let verdict = |buyers, stock| {
            let options = Options { buyers, stock, ..OPTIONS };
            Outcome { options: &options, ..good() }.verdict()
        };
        for (buyers, stock) in [(20, 10), (10, 10)] {
            assert_eq!(verdict(buyers, stock), "every unit was sold exactly once");
        }
        assert_eq!(verdict(5, 10), "every buyer got exactly one unit, and 5 of 10 units are left");
    }

    #[test]
    fn each_thing_that_is_not_right_is_a_problem() {
        type Break = fn(&mut Outcome<'_>);
        let breaks: [(Break, &str); 13] = [
            (|o| o.rushed.order_holders = 9, "9 buyers hold 10 orders"),
            (|o| o.rushed.orders = 11, "10 buyers hold 11 orders"),
            (|o| o.rushed.server_errors = 1, "1 server errors"),
            (
                |o| {
                    o.rushed.client_errors_by_status.insert("404".to_owned(), 1);
                },
                "1 answers of status 404",
            ),
            (|o| o.rushed.unavailable = 1, "1 requests refused as unavailable"),
            (|o| o.rushed.contradictions = 1, "1 contradictions"),
            (|o| o.rushed.unconfirmed = None, "10 accepted orders not confirmed"),
            (|o| o.rushed.ok = false, "not content"),
            (|o| o.ledger.balanced = false, "not balanced"),
            (|o| o.ledger.awaiting_payment = 9, "9 rows are open"),
            (|o| o.audit.receipts_checked = 9, "9 receipts"),
            (
                |o| {
                    let what = "a unit is gone".to_owned();
                    o.audit.findings.push(Finding { invariant: "I7".to_owned(), what });
                },
                "I7 a unit is gone",
            ),
            (|o| o.worker_killed = false, "no worker was killed"),
        ];
        for (spoil, problem) in breaks {
            let mut outcome = good();
            spoil(&mut outcome);
            let problems = outcome.problems();
            assert_eq!(problems.len(), 1, "{problem}: {problems:?}");
            assert!(problems[0].contains(problem), "{problem}: {problems:?}");
        }
    }
}
