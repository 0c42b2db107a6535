//! The command line, and the one place where it is checked: what leaves here is valid.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;

use crate::client::Target;

/// Sends a crowd of distinct buyers at one sale and counts what each of them was told.
///
/// Tokens are signed here with `auth.jwt_secret` (environment FLASHSALE__AUTH__JWT_SECRET, or the
/// file named by FLASHSALE_CONFIG), which must be the secret of the gateways. A 502, 503 or 504
/// and a broken connection are tried again with the same key.
///
/// Exit code: 0 done; 1 a server error, a contradiction, a transport error after all retries, an
/// unconfirmed order, or interrupted; 2 the rush could not start.
#[derive(Debug, Parser)]
#[command(name = "rush", version = flashsale_bootstrap::version::full(), max_term_width = 100)]
pub(crate) struct Args {
    /// A gateway or its proxy; several share the connections and stand in for each other
    #[arg(long = "url", value_name = "URL", required_unless_present = "print_defaults")]
    urls: Vec<Target>,

    /// The sale's id
    #[arg(long, value_name = "ID", required_unless_present = "print_defaults")]
    sale: Option<u64>,

    /// Distinct buyers
    #[arg(long, value_name = "N", default_value = "1000")]
    buyers: NonZeroU32,

    /// Connections, each with one request at a time
    #[arg(long, value_name = "C", default_value = "64")]
    concurrency: NonZeroUsize,

    /// Requests of each buyer, under one Idempotency-Key
    #[arg(long, value_name = "R", default_value = "1")]
    repeat: NonZeroU32,

    /// Send no Idempotency-Key: a repeat is then answered as already-ordered
    #[arg(long)]
    no_key: bool,

    /// Open orders a buyer may have in this sale; matters with --no-key only
    #[arg(long, value_name = "L", default_value = "1")]
    per_buyer: NonZeroU32,

    /// Open loop: this many requests a second whatever the answers do, latency counted from the
    /// planned time; without it a closed loop, each connection sends when its answer is there
    #[arg(long, value_name = "PER_S")]
    rate: Option<NonZeroU64>,

    /// How often a request is tried again after a 502, 503, 504 or a broken connection
    #[arg(long, value_name = "TRIES", default_value = "5")]
    retries: u32,

    /// How long one try may take, connecting included
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    /// Buyers are called P0, P1, …; the same prefix again means the same buyers and keys again
    /// [default: random]
    #[arg(long, value_name = "P")]
    buyer_prefix: Option<String>,

    /// Order of the presses [default: random]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,

    /// Afterwards ask for every order that was answered, and count those that became real
    #[arg(long)]
    pub(crate) verify: bool,

    /// How long --verify waits for orders to become real: longer than 1.5 times worker.reclaim_idle
    /// (30s by default), which is how long the orders of a killed worker can take
    #[arg(long, value_name = "DURATION", default_value = "90s", requires = "verify", value_parser = humantime::parse_duration)]
    verify_timeout: Duration,

    /// Write `order_id,buyer` of every order that was answered, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) receipts: Option<PathBuf>,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,

    /// No progress on stderr
    #[arg(long)]
    pub(crate) quiet: bool,

    /// Print the built-in settings, and stop
    #[arg(long)]
    pub(crate) print_defaults: bool,
}

/// One rush, checked and complete: nothing in it is left to chance.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) targets: Vec<Target>,
    pub(crate) sale: u64,
    pub(crate) buyers: u32,
    pub(crate) repeat: u32,
    pub(crate) concurrency: usize,
    /// Requests carry an Idempotency-Key.
    pub(crate) keyed: bool,
    /// Distinct order ids that one buyer may be told before it is a contradiction.
    pub(crate) orders_per_buyer_max: usize,
    /// Requests a second, or a closed loop.
    pub(crate) rate: Option<NonZeroU64>,
    pub(crate) retries: u32,
    pub(crate) timeout: Duration,
    /// How long orders may take to become real, from the end of the rush.
    pub(crate) verify_timeout: Duration,
    pub(crate) buyer_prefix: String,
    pub(crate) seed: u64,
}

impl Args {
    /// Checks what clap cannot, and draws what was left open.
    pub(crate) fn run(&self) -> anyhow::Result<Run> {
        // Ids are positive and below 2^63, in JSON and in both stores.
        let sale = self.sale.filter(|id| (1..1 << 63).contains(id));
        let sale = sale.context("--sale: an id is a number from 1 to 2^63 - 1")?;
        ensure!(
            self.buyers.checked_mul(self.repeat).is_some(),
            "--buyers times --repeat must stay below 2^32"
        );
        let buyer_prefix = match &self.buyer_prefix {
            Some(prefix) => prefix.clone(),
            None => format!("rush-{:08x}-", rand::random::<u32>()),
        };
        // A prefix goes as it is into a token, a header and a CSV file.
        ensure!(
            buyer_prefix.len() <= 100
                && buyer_prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b)),
            "--buyer-prefix: at most 100 letters, digits and - _ . :"
        );
        ensure!(!self.timeout.is_zero(), "--timeout must be longer than 0");
        Ok(Run {
            targets: self.urls.iter().map(|target| target.clone().for_sale(sale)).collect(),
            sale,
            buyers: self.buyers.get(),
            repeat: self.repeat.get(),
            concurrency: self.concurrency.get(),
            keyed: !self.no_key,
            orders_per_buyer_max: if self.no_key {
                usize::try_from(self.per_buyer.get())?
            } else {
                1
            },
            rate: self.rate,
            retries: self.retries,
            timeout: self.timeout,
            verify_timeout: self.verify_timeout,
            buyer_prefix,
            // 32 bits, so that every reader of JSON can give it back exactly.
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::Args;

    fn parse(more: &[&str]) -> Result<Args, clap::Error> {
        let given = ["rush", "--url", "http://127.0.0.1:8080", "--sale", "7"];
        Args::try_parse_from(given.iter().chain(more))
    }

    #[test]
    fn two_runs_are_different_buyers_unless_the_prefix_is_given() {
        let prefix =
            |more: &[&str]| parse(more).expect("parses").run().expect("valid").buyer_prefix;
        assert_ne!(prefix(&[]), prefix(&[]));
        assert_eq!(prefix(&["--buyer-prefix", "b"]), "b");
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for wrong in [
            &["--buyers", "0"][..],
            &["--concurrency", "0"],
            &["--repeat", "0"],
            &["--rate", "0"],
            &["--timeout", "soon"],
            &["--verify-timeout", "1m"],
            &["--url", "https://example.org"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        for wrong in [
            &["--buyers", "4000000000", "--repeat", "2"][..],
            &["--timeout", "0s"],
            &["--buyer-prefix", "a,b"],
        ] {
            assert!(parse(wrong).expect("parses").run().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_orders_of_a_killed_worker_are_waited_for_by_default() {
        let defaults = flashsale_bootstrap::Settings::from_sources(None, []).expect("are valid");
        let reclaim_idle = defaults.worker.reclaim_idle;
        let timeout = parse(&["--verify"]).expect("parses").run().expect("valid").verify_timeout;
        assert!(timeout >= reclaim_idle * 2, "{timeout:?}");
    }

    #[test]
    fn only_without_a_key_may_a_buyer_hold_several_orders() {
        let max =
            |more: &[&str]| parse(more).expect("parses").run().expect("valid").orders_per_buyer_max;
        assert_eq!(max(&["--per-buyer", "3"]), 1);
        assert_eq!(max(&["--per-buyer", "3", "--no-key"]), 3);
    }
}
