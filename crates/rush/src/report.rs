//! What the rush leaves behind: a table or a JSON object on stdout, and the receipts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::cli::Run;
use crate::client::Target;
use crate::tally::{Figures, Latency, Receipt, Tally};
use crate::tokens;
use crate::verify::Verified;

/// The whole result; its field names are relied on by scripts.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    /// What the exit code says.
    pub(crate) ok: bool,
    /// Ctrl-C came before the last request was sent.
    interrupted: bool,
    sale_id: String,
    urls: Vec<String>,
    buyers: u32,
    repeat: u32,
    concurrency: usize,
    keyed: bool,
    rate: Option<u64>,
    buyer_prefix: &'a str,
    seed: u64,
    #[serde(flatten)]
    figures: &'a Figures,
    confirmed: Option<u64>,
    unconfirmed: Option<u64>,
    unconfirmed_by_state: Option<&'a BTreeMap<String, u64>>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(run: &'a Run, tally: &'a Tally, verified: Option<&'a Verified>) -> Self {
        let figures = &tally.figures;
        let interrupted = figures.requests < figures.planned;
        Self {
            ok: !interrupted
                && figures.server_errors == 0
                && figures.transport_errors == 0
                && figures.contradictions == 0
                && verified.is_none_or(|verified| verified.unconfirmed == 0),
            interrupted,
            sale_id: run.sale.to_string(),
            urls: run.targets.iter().map(Target::to_string).collect(),
            buyers: run.buyers,
            repeat: run.repeat,
            concurrency: run.concurrency,
            keyed: run.keyed,
            rate: run.rate.map(std::num::NonZero::get),
            buyer_prefix: &run.buyer_prefix,
            seed: run.seed,
            figures,
            confirmed: verified.map(|verified| verified.confirmed),
            unconfirmed: verified.map(|verified| verified.unconfirmed),
            unconfirmed_by_state: verified.map(|verified| &verified.unconfirmed_by_state),
        }
    }

    /// One JSON object on one line.
    pub(crate) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// The same for people: what cannot happen in a good rush is shown only when it did.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        self.write_table(&mut text).expect("writing to a string does not fail");
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        let figures = self.figures;
        writeln!(
            out,
            "sale {} at {}\n{} buyers ({}…), {} requests over {} connections, {}, seed {}\n",
            self.sale_id,
            self.urls.join(", "),
            grouped(self.buyers.into()),
            self.buyer_prefix,
            grouped(figures.planned),
            self.concurrency,
            match self.rate {
                Some(rate) => format!("open loop at {}/s", grouped(rate)),
                None => "closed loop".into(),
            },
            self.seed,
        )?;
        let none = String::new;
        let speed = format!("in {:.2} s = {:.0}/s", figures.duration_s, figures.requests_per_s);
        let sold = figures.last_accepted_s.map_or_else(none, |s| {
            format!("{} buyers, the last after {s:.3} s", grouped(figures.accepted_buyers))
        });
        let broken = figures.transport_error_example.clone().unwrap_or_default();
        let unconfirmed = self.unconfirmed_by_state.map_or_else(none, parts);
        for (name, count, always, note) in [
            ("requests", figures.requests, true, speed),
            ("accepted", figures.accepted, true, sold),
            ("recovered", figures.recovered, false, "known from a later answer alone".into()),
            ("replayed", figures.replayed, true, none()),
            ("already ordered", figures.already_ordered, true, none()),
            ("sold out", figures.sold_out, true, none()),
            ("not started", figures.not_started, false, none()),
            ("ended", figures.ended, false, none()),
            ("paused", figures.paused, false, none()),
            ("unavailable", figures.unavailable, false, parts(&figures.unavailable_by_slug)),
            (
                "client errors",
                figures.client_errors,
                false,
                parts(&figures.client_errors_by_status),
            ),
            (
                "server errors",
                figures.server_errors,
                false,
                parts(&figures.server_errors_by_status),
            ),
            ("transport errors", figures.transport_errors, false, broken),
            ("retries", figures.retries, false, parts(&figures.retries_by_cause)),
            (
                "contradictions",
                figures.contradictions,
                true,
                parts(&figures.contradictions_by_kind),
            ),
            ("confirmed", self.confirmed.unwrap_or(0), self.confirmed.is_some(), none()),
            ("unconfirmed", self.unconfirmed.unwrap_or(0), self.unconfirmed.is_some(), unconfirmed),
        ] {
            if count > 0 || always {
                let line = format!("  {name:<18}{:>12}  {note}", grouped(count));
                writeln!(out, "{}", line.trim_end())?;
            }
        }

        writeln!(
            out,
            "\n  {:<18}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "ms", "p50", "p90", "p99", "p99.9", "max"
        )?;
        let mut times = |name: &str, latency: &Latency| {
            let Latency { p50, p90, p99, p999, max, .. } = *latency;
            write!(out, "  {name:<18}")?;
            for us in [p50, p90, p99, p999, max] {
                write!(out, "{:>9.2}", us as f64 / 1e3)?;
            }
            writeln!(out)
        };
        times("latency", &figures.latency_us)?;
        if figures.accepted > 0 {
            times("of the accepted", &figures.accepted_latency_us)?;
        }
        if let Some(delay) = &figures.send_delay_us {
            times("sent late by", delay)?;
        }

        for example in &figures.contradiction_examples {
            writeln!(out, "\n  {example}")?;
        }
        if self.interrupted {
            writeln!(out, "\ninterrupted: not every request was sent")?;
        }
        Ok(())
    }
}

/// Writes to stdout; a reader that has gone away is an error like any other.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("cannot write to stdout")
}

/// Creates the file before the rush, so that a wrong path costs no sale.
pub(crate) fn create_receipts(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("--receipts: cannot create {}", path.display()))
}

/// Writes `order_id,buyer`, a line for every order. Nothing needs quoting: ids are digits, and
/// the command line lets no comma into a buyer's name.
pub(crate) fn write_receipts(file: File, receipts: &[Receipt], prefix: &str) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    writeln!(out, "order_id,buyer")?;
    for Receipt { order_id, buyer } in receipts {
        writeln!(out, "{order_id},{}", tokens::name(prefix, *buyer))?;
    }
    out.flush()
}

fn parts(counts: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> =
        counts.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
    parts.join(", ")
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
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
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
