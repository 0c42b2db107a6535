//! One run of `rush`: the load, what every answer of it has to be, and what it cost whom.

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::cpu::{Cpu, Pids};
use crate::figures::{Latency, Run};
use crate::programs::{self, Settings};

/// A crowd, each buyer with one press.
#[derive(Debug, Clone)]
pub(crate) struct Load<'a> {
    pub(crate) url: &'a str,
    pub(crate) sale: &'a str,
    pub(crate) buyers: u32,
    /// Buyers of the same prefix are the same buyers.
    pub(crate) prefix: &'a str,
    /// Whether they send an Idempotency-Key.
    pub(crate) keys: bool,
    /// Presses a second whatever the answers do; or each connection presses when it was answered.
    pub(crate) rate: Option<u64>,
    pub(crate) concurrency: u32,
    /// What they all have to be told: something else is no measurement.
    pub(crate) told: Told,
}

/// What a buyer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Accepted,
    Replayed,
    AlreadyOrdered,
    SoldOut,
    NotStarted,
    Ended,
}

/// What `rush --json` reports, as far as we look at it.
#[derive(Debug, Deserialize)]
pub(crate) struct Rushed {
    pub(crate) requests: u32,
    requests_per_s: f64,
    pub(crate) duration_s: f64,
    pub(crate) started_unix_ms: f64,
    cpu_us: Option<f64>,
    latency_us: Percentiles,
    accepted: u32,
    replayed: u32,
    already_ordered: u32,
    sold_out: u32,
    not_started: u32,
    ended: u32,
    contradictions: u64,
}

#[derive(Debug, Deserialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    p999: f64,
}

impl Load<'_> {
    /// Sends them all, and counts what it cost the processes of `pids`.
    pub(crate) async fn press(&self, settings: &Settings, pids: Pids) -> anyhow::Result<Run> {
        let before = pids.used()?;
        let rushed = self.rush(settings).await?;
        let used = pids.used()? - before;
        Ok(rushed.run(used))
    }

    /// Sends them all.
    pub(crate) async fn rush(&self, settings: &Settings) -> anyhow::Result<Rushed> {
        let [buyers, concurrency] = [self.buyers, self.concurrency].map(|it| it.to_string());
        let rate = self.rate.map(|rate| rate.to_string());
        let mut arguments = vec!["--json", "--quiet", "--url", self.url, "--sale", self.sale];
        arguments.extend(["--buyers", &buyers, "--concurrency", &concurrency]);
        arguments.extend(["--buyer-prefix", self.prefix]);
        if !self.keys {
            arguments.push("--no-key");
        }
        if let Some(rate) = &rate {
            arguments.extend(["--rate", rate]);
        }
        let output = programs::run("rush", settings, &arguments).await?;
        let text = String::from_utf8_lossy(&output.stdout);
        let rushed: Rushed = serde_json::from_str(&text).with_context(|| {
            format!("rush said {text:?} and {:?}", String::from_utf8_lossy(&output.stderr))
        })?;
        ensure!(rushed.contradictions == 0, "buyers were told what cannot be true: {text}");
        let told = match self.told {
            Told::Accepted => rushed.accepted,
            Told::Replayed => rushed.replayed,
            Told::AlreadyOrdered => rushed.already_ordered,
            Told::SoldOut => rushed.sold_out,
            Told::NotStarted => rushed.not_started,
            Told::Ended => rushed.ended,
        };
        ensure!(
            told == self.buyers,
            "not all were told {:?}, which is no measurement: {text}",
            self.told
        );
        Ok(rushed)
    }
}

impl Rushed {
    /// The run, where the servers used so much.
    pub(crate) fn run(&self, used: Cpu) -> Run {
        let requests = f64::from(self.requests);
        let load = self.cpu_us.unwrap_or(f64::NAN);
        Run {
            per_s: self.requests_per_s,
            latency: Some(Latency {
                p50_us: self.latency_us.p50,
                p99_us: self.latency_us.p99,
                p999_us: self.latency_us.p999,
            }),
            cpu: Cpu { load, ..used } / requests,
            ..Run::default()
        }
    }

    /// When the last answer was there: milliseconds since the Unix epoch.
    pub(crate) fn ended_unix_ms(&self) -> f64 {
        self.started_unix_ms + self.duration_s * 1e3
    }
}
