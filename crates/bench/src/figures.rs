//! Measured runs, and what is said of several: the median, and how far they spread.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cpu::Cpu;
use crate::kinds::Kind;

/// One run of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    /// Operations a second: answers, or rows.
    pub(crate) per_s: f64,
    /// Latencies, where a load generator took them.
    pub(crate) latency: Option<Latency>,
    /// For one operation, microseconds.
    pub(crate) cpu: Cpu,
    /// What only this kind has.
    pub(crate) more: BTreeMap<&'static str, f64>,
}

/// Microseconds, from when a request was due.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

/// All runs, by kind.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<Kind, Vec<Run>>);

/// The medians of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct Medians {
    pub(crate) kind: &'static str,
    pub(crate) runs: usize,
    pub(crate) per_s: f64,
    /// How far the slowest and the fastest run lie apart, as a share of the median.
    pub(crate) spread: f64,
    pub(crate) latency: Option<Latency>,
    pub(crate) cpu_us: Cpu,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) more: BTreeMap<&'static str, f64>,
}

impl Figures {
    pub(crate) fn add(&mut self, kind: Kind, run: Run) {
        eprintln!("  {:<18} {:>9.0}/s", kind.name(), run.per_s);
        self.0.entry(kind).or_default().push(run);
    }

    /// The medians of every kind that was measured, in the order of the kinds.
    pub(crate) fn all(&self) -> impl Iterator<Item = Medians> {
        self.0.keys().filter_map(|kind| self.of(*kind))
    }

    /// The medians of one kind, if it was measured.
    pub(crate) fn of(&self, kind: Kind) -> Option<Medians> {
        let runs = self.0.get(&kind)?;
        let of = |value: &dyn Fn(&Run) -> f64| median(runs.iter().map(value).collect());
        let late = |value: fn(&Latency) -> f64| {
            median(runs.iter().filter_map(|run| run.latency.as_ref().map(value)).collect())
        };
        let per_s = of(&|run| run.per_s);
        let (low, high) = runs.iter().fold((f64::MAX, f64::MIN), |(low, high), run| {
            (low.min(run.per_s), high.max(run.per_s))
        });
        let more = runs.first()?.more.keys().map(|name| {
            (*name, median(runs.iter().filter_map(|run| run.more.get(name).copied()).collect()))
        });
        Some(Medians {
            kind: kind.name(),
            runs: runs.len(),
            per_s,
            spread: (high - low) / per_s,
            latency: runs.first()?.latency.is_some().then(|| Latency {
                p50_us: late(|it| it.p50_us),
                p99_us: late(|it| it.p99_us),
                p999_us: late(|it| it.p999_us),
            }),
            cpu_us: Cpu {
                server: of(&|run| run.cpu.server),
                redis: of(&|run| run.cpu.redis),
                worker: of(&|run| run.cpu.worker),
                postgres: of(&|run| run.cpu.postgres),
                load: of(&|run| run.cpu.load),
            },
            more: more.collect(),
        })
    }

    /// Operations a second of one kind: the median.
    pub(crate) fn per_s(&self, kind: Kind) -> Option<f64> {
        self.of(kind).map(|medians| medians.per_s)
    }
}

/// The middle one; of an even number the lower of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_value_in_the_middle() {
        assert!(median(Vec::new()).is_nan());
        for (values, expected) in
            [(vec![3.0], 3.0), (vec![9.0, 1.0, 5.0], 5.0), (vec![4.0, 1.0, 2.0, 8.0], 2.0)]
        {
            assert!((median(values.clone()) - expected).abs() < f64::EPSILON, "{values:?}");
        }
    }

    #[test]
    fn each_figure_has_its_own_median() {
        let mut figures = Figures::default();
        for (per_s, redis) in [(100.0, 3.0), (300.0, 1.0), (200.0, 2.0)] {
            let cpu = Cpu { redis, ..Cpu::default() };
            figures.add(Kind::Echo, Run { per_s, cpu, ..Run::default() });
        }
        let echo = figures.of(Kind::Echo).expect("was measured");
        assert!((echo.per_s - 200.0).abs() < 1e-9 && (echo.cpu_us.redis - 2.0).abs() < 1e-9);
        assert!((echo.spread - 1.0).abs() < 1e-9 && echo.latency.is_none());
        assert!(figures.of(Kind::Accept).is_none());
    }
}
