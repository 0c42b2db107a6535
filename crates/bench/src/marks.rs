//! The ratios, and what each of them has to reach.

use std::collections::BTreeMap;

use crate::figures::{Figures, Medians};
use crate::kinds::Kind;

/// A ratio and its mark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub(crate) key: &'static str,
    pub(crate) limit: Limit,
    /// What is divided by what.
    pub(crate) meaning: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

impl Mark {
    pub(crate) fn is_reached(&self, value: f64) -> bool {
        match self.limit {
            Limit::AtLeast(least) => value >= least,
            Limit::AtMost(most) => value <= most,
        }
    }

    /// `at least 0.60`.
    pub(crate) fn words(&self) -> String {
        match self.limit {
            Limit::AtLeast(least) => format!("at least {}", digits(least)),
            Limit::AtMost(most) => format!("at most {}", digits(most)),
        }
    }
}

/// Two digits behind the point for small numbers, none for large ones.
pub(crate) fn digits(value: f64) -> String {
    if value.abs() >= 20.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Every ratio that `target/bench/report.json` holds; null until it was measured.
pub(crate) const MARKS: [Mark; 12] = [
    at_least("accept_vs_echo", 0.60, "accepted orders a second ÷ answers of the echo route"),
    at_most("accept_cpu_vs_echo", 2.4, "CPU of gateway and Redis an order ÷ of the server an echo"),
    at_least(
        "accept_vs_pool",
        3.0,
        "accepted orders a second ÷ with one EVALSHA a request on a pool",
    ),
    at_least("refuse_vs_echo", 0.9, "sold-out refusals a second ÷ answers of the echo route"),
    at_most("redis_cpu_vs_single", 0.33, "CPU of Redis an order ÷ with one EVALSHA a request"),
    at_least(
        "worker_vs_row_by_row",
        33.0,
        "rows a second of one worker ÷ one transaction an order",
    ),
    at_least(
        "worker_vs_sql_ceiling",
        0.8,
        "rows a second of one worker ÷ its statements fed from memory",
    ),
    at_least(
        "durable_vs_echo",
        0.42,
        "rows a second of the whole chain ÷ answers of the echo route",
    ),
    at_least(
        "durable_vs_direct",
        35.0,
        "rows a second of the whole chain ÷ of buyers who wait for the database",
    ),
    at_least("worker_vs_bullmq", 5.0, "rows a second of one worker ÷ of BullMQ"),
    at_least("worker_vs_python", 10.0, "rows a second of one worker ÷ of a Python stream worker"),
    at_most(
        "redis_bytes_per_buyer",
        130.0,
        "bytes of Redis an order before it is a row, at 1,000,000",
    ),
];

const fn at_least(key: &'static str, least: f64, meaning: &'static str) -> Mark {
    Mark { key, limit: Limit::AtLeast(least), meaning }
}

const fn at_most(key: &'static str, most: f64, meaning: &'static str) -> Mark {
    Mark { key, limit: Limit::AtMost(most), meaning }
}

/// Those ratios that these figures give.
pub(crate) fn ratios(figures: &Figures) -> BTreeMap<&'static str, f64> {
    let rate = |kind: Kind| figures.per_s(kind);
    let cpu = |kind: Kind, of: fn(&Medians) -> f64| figures.of(kind).as_ref().map(of);
    let over = |above: Option<f64>, below: Option<f64>| Some(above? / below?);
    let servers = cpu(Kind::Accept, |it| it.cpu_us.server + it.cpu_us.redis);
    let redis = |kind| cpu(kind, |it| it.cpu_us.redis);
    [
        ("accept_vs_echo", over(rate(Kind::Accept), rate(Kind::Echo))),
        ("accept_cpu_vs_echo", over(servers, cpu(Kind::Echo, |it| it.cpu_us.server))),
        ("accept_vs_pool", over(rate(Kind::Accept), rate(Kind::Pool))),
        ("refuse_vs_echo", over(rate(Kind::SoldOut), rate(Kind::Echo))),
        ("redis_cpu_vs_single", over(redis(Kind::Accept), redis(Kind::Pool))),
        ("worker_vs_row_by_row", over(rate(Kind::Worker), rate(Kind::RowByRow))),
        ("worker_vs_sql_ceiling", over(rate(Kind::Worker), rate(Kind::SqlCeiling))),
        ("durable_vs_echo", over(rate(Kind::Chain), rate(Kind::Echo))),
        ("durable_vs_direct", over(rate(Kind::Chain), rate(Kind::Direct))),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value.filter(|value| value.is_finite())?)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Run;

    #[test]
    fn a_mark_is_reached_from_its_side() {
        let mark = |key| *MARKS.iter().find(|mark| mark.key == key).expect("is a mark");
        for (key, value, is_reached) in [
            ("accept_vs_echo", 0.61, true),
            ("accept_vs_echo", 0.59, false),
            ("redis_cpu_vs_single", 0.30, true),
            ("redis_cpu_vs_single", 0.34, false),
        ] {
            assert_eq!(mark(key).is_reached(value), is_reached, "{key} {value}");
        }
        assert_eq!(mark("accept_vs_echo").words(), "at least 0.60");
        assert_eq!(mark("redis_bytes_per_buyer").words(), "at most 130");
    }

    #[test]
    fn only_what_was_measured_on_both_sides_is_a_ratio() {
        let mut figures = Figures::default();
        figures.add(Kind::Accept, Run { per_s: 30.0, ..Run::default() });
        assert!(ratios(&figures).is_empty());
        figures.add(Kind::Echo, Run { per_s: 50.0, ..Run::default() });
        let ratios = ratios(&figures);
        assert_eq!(ratios.keys().copied().collect::<Vec<_>>(), ["accept_vs_echo"]);
        assert!((ratios["accept_vs_echo"] - 0.6).abs() < 1e-9);
        for key in ratios.keys() {
            assert!(MARKS.iter().any(|mark| mark.key == *key), "{key} has no mark");
        }
    }
}
