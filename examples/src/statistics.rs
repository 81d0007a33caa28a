//! Summaries of repeated measurements.

use serde::Serialize;

/// Statistics of a set of samples, in the samples' unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The smallest sample.
    pub(crate) min: f64,
    /// The largest sample.
    pub(crate) max: f64,
    /// Half of the samples are at or below this value.
    pub(crate) median: f64,
    /// The average of the samples.
    pub(crate) mean: f64,
    /// Standard deviation of the samples around the mean.
    pub(crate) stdev: f64,
    /// 99 % of the samples are at or below this value.
    pub(crate) p99: f64,
    /// 99.9 % of the samples are at or below this value.
    pub(crate) p999: f64,
}

impl Summary {
    /// Summarises samples, and sorts them; all fields are zero if there are none.
    pub(crate) fn of(samples: &mut [f64]) -> Self {
        let n = samples.len();
        if n == 0 {
            return Self::default();
        }
        samples.sort_unstable_by(f64::total_cmp);
        let count = n as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count;
        Self {
            min: samples[0],
            max: samples[n - 1],
            median: percentile(samples, 500),
            mean,
            stdev: variance.sqrt(),
            p99: percentile(samples, 990),
            p999: percentile(samples, 999),
        }
    }
}

/// The nearest-rank percentile of sorted samples: the `ceil(p n)`-th, with `p` in thousandths.
fn percentile(sorted: &[f64], thousandths: usize) -> f64 {
    let rank = (sorted.len() * thousandths).div_ceil(1000);
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let summary = Summary::of(&mut samples);
        assert_eq!((summary.min, summary.max, summary.median), (1.0, 1000.0, 500.0));
        assert_eq!((summary.p99, summary.p999), (990.0, 999.0));
        assert!((summary.mean - 500.5).abs() < 1e-9);
    }

    #[test]
    fn few_samples_have_every_percentile() {
        assert_eq!(Summary::of(&mut []), Summary::default());
        let one = Summary::of(&mut [7.0]);
        assert_eq!((one.min, one.median, one.p999, one.stdev), (7.0, 7.0, 7.0, 0.0));
    }
}
