//! Measured runs, and what is said of several: the median, and how far they spread.

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// Requests answered a second.
    pub(crate) per_s: f64,
    /// Latency, microseconds.
    pub(crate) p50_us: f64,
    /// Latency, microseconds.
    pub(crate) p99_us: f64,
    /// CPU of the server that answers, microseconds a request.
    pub(crate) server_cpu_us: f64,
    /// CPU of Redis, microseconds a request.
    pub(crate) redis_cpu_us: f64,
}

/// All runs of one kind.
pub(crate) struct Figures {
    pub(crate) kind: &'static str,
    pub(crate) runs: Vec<Run>,
}

impl Figures {
    pub(crate) fn new(kind: &'static str) -> Self {
        Self { kind, runs: Vec::new() }
    }

    pub(crate) fn median(&self, of: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(of).collect())
    }

    /// How far the slowest and the fastest run lie apart, as a share of the median.
    pub(crate) fn spread(&self) -> f64 {
        let all: Vec<f64> = self.runs.iter().map(|run| run.per_s).collect();
        let (low, high) =
            all.iter().fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(*it), high.max(*it)));
        (high - low) / median(all)
    }
}

/// The middle one; of an even number the lower of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
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
}
