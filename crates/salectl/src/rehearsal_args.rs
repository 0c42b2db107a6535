//! The arguments of rehearsals and drills: apart from the other commands', because they are for trials alone.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum as _};

use crate::drills::DrillName;

/// How a rehearsal is played.
#[derive(Debug, Args)]
pub(crate) struct RehearseArgs {
    /// Where buyers come in: the proxy, or a gateway [default: http.listen]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Distinct buyers, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) buyers: u32,

    /// Units for them [default: six for ten buyers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) stock: Option<u32>,

    /// Requests at a time, 1 to 200
    #[arg(long, value_name = "C", default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=200))]
    pub(crate) concurrency: u16,

    /// How long an order can be paid before it expires: long enough for the others to be paid and
    /// cancelled
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = seconds_to_an_hour)]
    pub(crate) payment_window: Duration,

    /// How long all of it may take, but for the clean-up
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = seconds_to_an_hour)]
    pub(crate) timeout: Duration,

    /// A file of tokens for the buyers, one a line, where only auth.jwt_public_key_file is set and this
    /// program cannot sign any: each for a `sub` of its own that begins with `rehearsal:`
    #[arg(long, value_name = "FILE", conflicts_with = "buyers")]
    pub(crate) tokens: Option<PathBuf>,

    /// Only end and remove what rehearsals and drills have left, also those that are still on
    #[arg(long, conflicts_with_all = ["url", "buyers", "stock", "tokens"])]
    pub(crate) clean_up: bool,
}

/// Which drill, and for how long.
#[derive(Debug, Args)]
#[command(
    after_help = "Only where drills.allowed is true, and in production only where allow_unsafe \
    names `drills` as well."
)]
pub(crate) struct DrillArgs {
    /// The drill, or `list`: what each of them does, and which alerts it rehearses
    #[arg(value_name = "NAME|list")]
    pub(crate) drill: DrillWord,

    /// Put right what the drill has left, and remove its sale
    #[arg(long, conflicts_with = "lasts")]
    pub(crate) undo: bool,

    /// How long a drill lasts that ends itself, and how long a guided one watches for each change
    #[arg(long = "for", value_name = "DURATION", default_value = "4m", value_parser = seconds_to_an_hour)]
    pub(crate) lasts: Duration,

    /// Where buyers come in who are turned away: the proxy, or a gateway [default: http.listen]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
}

/// A drill, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrillWord {
    List,
    Named(DrillName),
}

impl FromStr for DrillWord {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == "list" {
            return Ok(Self::List);
        }
        DrillName::from_str(word, false).map(Self::Named).map_err(|_| {
            let names: Vec<&str> = DrillName::all().map(|drill| drill.name).collect();
            format!("there is no such drill: it is list, {}", names.join(", "))
        })
    }
}

/// Whole seconds, at most an hour.
pub(crate) fn seconds_to_an_hour(text: &str) -> Result<Duration, String> {
    let duration = crate::cli::whole_seconds(text)?;
    if duration <= Duration::from_secs(3600) {
        Ok(duration)
    } else {
        Err("it is at most 1h".to_owned())
    }
}
