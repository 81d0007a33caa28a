//! Order statistics over the rounds of a comparison.

/// The minimum, median and maximum of some measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The minimum, from a moment in which nothing disturbed the machine.
    pub min: f64,
    /// The median, which is the number to quote.
    pub median: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`, or `None` when there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self { min: *sorted.first()?, median: median_of_sorted(&sorted), max: *sorted.last()? })
    }

    /// Applies `f` to each of the three values; a decreasing `f` (a rate from a time) swaps the
    /// minimum and the maximum.
    #[must_use]
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.min), f(self.max));
        Self { min: a.min(b), median: f(self.median), max: a.max(b) }
    }
}

/// The median of `values`; 0 when there are none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The ratios `a / b` of each round, so that a disturbance of a whole round cancels out.
#[must_use]
pub fn paired_ratio(a: &[f64], b: &[f64]) -> Option<Spread> {
    let ratios: Vec<f64> = a.iter().zip(b).filter(|&(_, &b)| b != 0.0).map(|(a, b)| a / b).collect();
    Spread::of(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_and_even_counts() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Some(Spread { min: 1.0, median: 2.5, max: 4.0 }));
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn a_rate_swaps_the_ends() {
        let time = Spread { min: 1.0, median: 2.0, max: 4.0 };
        assert_eq!(time.map(|t| 8.0 / t), Spread { min: 2.0, median: 4.0, max: 8.0 });
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let spread = paired_ratio(&[2.0, 20.0, 3.0], &[1.0, 10.0, 1.0]);
        assert_eq!(spread, Some(Spread { min: 2.0, median: 2.0, max: 3.0 }));
    }
}
