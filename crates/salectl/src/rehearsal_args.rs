//! The arguments of rehearsals: apart from the other commands', because they are for trials alone.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

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

/// Whole seconds, at most an hour.
pub(crate) fn seconds_to_an_hour(text: &str) -> Result<Duration, String> {
    let duration = crate::cli::whole_seconds(text)?;
    if duration <= Duration::from_secs(3600) {
        Ok(duration)
    } else {
        Err("it is at most 1h".to_owned())
    }
}
