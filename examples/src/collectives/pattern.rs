//! Input with a known sum, which verifies every element of every result.

use super::element::Element;

/// Length of the pattern: a prime, so that no cut of the elements into segments repeats the pattern
/// at the same place.
const PERIOD: usize = 251;

/// The values that all ranks contribute to one all-reduce.
#[derive(Clone, Debug)]
pub struct Pattern<T> {
    own: Vec<T>,
    sum: Vec<T>,
}

impl<T: Element> Pattern<T> {
    /// Computes the contribution of `rank` of `world` in round `seed`, and the expected sum. The
    /// values are whole numbers, small enough for exact sums in every element type.
    #[must_use]
    pub fn new(rank: usize, world: usize, seed: usize) -> Self {
        // One period more than needed makes every window of a period contiguous.
        let value = |rank: usize, i: usize| {
            let mixed = (i * 37 + rank * 101 + seed * 17 + (i + rank) * (i + 3)) % PERIOD;
            T::from_small(u16::try_from(mixed).unwrap_or(0))
        };
        let of = |rank: usize| (0..PERIOD).map(|i| value(rank, i)).collect::<Vec<T>>();
        let mut sum = of(0);
        for other in 1..world {
            T::accumulate(&mut sum, &of(other));
        }
        Self { own: of(rank), sum }
    }

    /// Fills `elements` with this rank's contribution; the first of them is element `start` of the
    /// tensor.
    pub fn fill(&self, start: usize, elements: &mut [T]) {
        for (element, value) in elements.iter_mut().zip(self.own.iter().cycle().skip(start % PERIOD)) {
            *element = *value;
        }
    }

    /// Counts the wrong values among `elements`; the first of them is element `start` of the
    /// tensor.
    #[must_use]
    pub fn count_wrong(&self, start: usize, elements: &[T]) -> u64 {
        let expected = self.sum.iter().cycle().skip(start % PERIOD);
        elements.iter().zip(expected).map(|(element, sum)| u64::from(element != sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_sum_is_right_and_others_are_wrong() {
        let (world, n) = (5, 1000);
        let mut sum = vec![0.0f32; n];
        for rank in 0..world {
            let mut part = vec![0.0; n];
            Pattern::new(rank, world, 3).fill(0, &mut part);
            f32::accumulate(&mut sum, &part);
        }
        let pattern = Pattern::<f32>::new(2, world, 3);
        assert_eq!(pattern.count_wrong(0, &sum), 0);
        assert_eq!(pattern.count_wrong(400, &sum[400..]), 0);
        sum[7] += 1.0;
        sum[900] = f32::NAN;
        assert_eq!(pattern.count_wrong(0, &sum), 2);
        assert!(Pattern::<f32>::new(2, world, 4).count_wrong(0, &sum) > 900);
        assert!(pattern.count_wrong(64, &sum[..n - 64]) > 900);
    }
}
