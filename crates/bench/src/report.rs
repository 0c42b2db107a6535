//! One table for people, and `target/bench/report.json` for whoever compares runs.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;

use crate::figures::Figures;
use crate::worker::Durable;

/// Everything that was measured.
#[derive(Serialize)]
pub(crate) struct Report {
    /// Each figure as a share of its limit in this run: what can be compared between machines.
    ratios: Ratios,
    /// What the ratios are made of; on a shared machine mostly noise.
    raw: Raw,
}

#[derive(Serialize)]
struct Ratios {
    /// Accepted orders a second, to the answers a second of a server that only answers.
    accept_to_echo: f64,
    /// Refusals of a sale that is sold out.
    sold_out_to_echo: f64,
    /// The same keys again.
    replay_to_echo: f64,
    /// The same buyers again, without keys.
    already_ordered_to_echo: f64,
    /// Rows that one worker commits a second, to PostgreSQL's COPY of the same rows.
    worker_to_copy: f64,
}

#[derive(Serialize)]
struct Raw {
    requests: u32,
    concurrency: u32,
    kinds: Vec<Kind>,
    rows: f64,
    worker_rows_per_s: f64,
    worker_cpu_us_per_row: f64,
    copy_rows_per_s: f64,
}

#[derive(Serialize)]
struct Kind {
    name: &'static str,
    runs: usize,
    per_s: f64,
    /// Between the slowest and the fastest run, as a share of the median.
    spread: f64,
    p50_us: f64,
    p99_us: f64,
    server_cpu_us: f64,
    redis_cpu_us: f64,
}

impl Report {
    /// `figures` begin with the limit, and stand in the order of the ratios.
    pub(crate) fn new(
        requests: u32,
        concurrency: u32,
        figures: &[Figures],
        durable: Durable,
    ) -> Self {
        let kinds: Vec<Kind> = figures
            .iter()
            .map(|figures| Kind {
                name: figures.kind,
                runs: figures.runs.len(),
                per_s: figures.median(|run| run.per_s),
                spread: figures.spread(),
                p50_us: figures.median(|run| run.p50_us),
                p99_us: figures.median(|run| run.p99_us),
                server_cpu_us: figures.median(|run| run.server_cpu_us),
                redis_cpu_us: figures.median(|run| run.redis_cpu_us),
            })
            .collect();
        let to_echo = |kind: usize| kinds[kind].per_s / kinds[0].per_s;
        let ratios = Ratios {
            accept_to_echo: to_echo(1),
            sold_out_to_echo: to_echo(2),
            replay_to_echo: to_echo(3),
            already_ordered_to_echo: to_echo(4),
            worker_to_copy: durable.worker_per_s / durable.copy_per_s,
        };
        let raw = Raw {
            requests,
            concurrency,
            kinds,
            rows: durable.rows,
            worker_rows_per_s: durable.worker_per_s,
            worker_cpu_us_per_row: durable.worker_cpu_us,
            copy_rows_per_s: durable.copy_per_s,
        };
        Self { ratios, raw }
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let mut lines = vec![
            "kind              ratio      per s  spread   p50 us   p99 us  server us  redis us"
                .to_owned(),
        ];
        let limit = self.raw.kinds[0].per_s;
        for kind in &self.raw.kinds {
            lines.push(format!(
                "{:<16} {:>6.2} {:>10.0} {:>6.0}% {:>8.0} {:>8.0} {:>10.1} {:>9.1}",
                kind.name,
                kind.per_s / limit,
                kind.per_s,
                kind.spread * 100.0,
                kind.p50_us,
                kind.p99_us,
                kind.server_cpu_us,
                kind.redis_cpu_us,
            ));
        }
        lines.push(format!(
            "\none worker: {:.0} rows, {:.0} a second, {:.1} us of its CPU a row; COPY: {:.0} a second; \
             ratio {:.2}",
            self.raw.rows,
            self.raw.worker_rows_per_s,
            self.raw.worker_cpu_us_per_row,
            self.raw.copy_rows_per_s,
            self.ratios.worker_to_copy,
        ));
        lines.join("\n")
    }

    /// Writes the JSON beside the programs' folder.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let program = std::env::current_exe()?;
        let target = program.parent().and_then(|profile| profile.parent());
        let folder: PathBuf = target.context("no target folder")?.join("bench");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("report.json");
        let json = serde_json::to_string_pretty(self).context("the report")?;
        std::fs::write(&file, json).with_context(|| file.display().to_string())?;
        Ok(writeln!(io::stdout(), "\nwritten to {}", file.display())?)
    }
}
