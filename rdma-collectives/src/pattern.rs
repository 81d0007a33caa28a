//! Input with known results, which verifies every element.

use crate::element::{Element, Reduction};

/// Length of the pattern: a prime, so that no cut of the elements into segments repeats the pattern
/// at the same place.
const PERIOD: usize = 251;

/// The values that each rank contributes to one collective, and their reduction.
///
/// The values are whole numbers, small enough for exact results in every element type that [has the
/// reduction](Reduction::supports), whatever the order of the reduction.
#[derive(Clone, Debug)]
pub struct Pattern<T> {
    ranks: Vec<Vec<T>>,
    reduced: Vec<T>,
}

impl<T: Element> Pattern<T> {
    /// Computes the contributions of `world` ranks in round `seed`, and their reduction.
    #[must_use]
    pub fn new(world: usize, seed: usize, reduction: Reduction) -> Self {
        let ranks: Vec<Vec<T>> = (0..world).map(|rank| contribution(rank, world, seed, reduction)).collect();
        let mut reduced = ranks.first().cloned().unwrap_or_default();
        for other in ranks.iter().skip(1) {
            T::reduce(reduction, &mut reduced, other);
        }
        if reduction == Reduction::Avg {
            T::divide(&mut reduced, world);
        }
        Self { ranks, reduced }
    }

    /// Fills `elements` with a rank's contribution; the first of them is element `start` of its
    /// input.
    pub fn fill(&self, rank: usize, start: usize, elements: &mut [T]) {
        for (element, value) in elements.iter_mut().zip(repeated(&self.ranks[rank], start)) {
            *element = *value;
        }
    }

    /// Counts the wrong values among `elements`, which should equal the reduction of every rank's
    /// input from element `start`.
    #[must_use]
    pub fn count_wrong(&self, start: usize, elements: &[T]) -> u64 {
        differences(elements, &self.reduced, start)
    }

    /// Counts the wrong values among `elements`, which should equal a rank's input from element
    /// `start`.
    #[must_use]
    pub fn count_wrong_from(&self, rank: usize, start: usize, elements: &[T]) -> u64 {
        differences(elements, &self.ranks[rank], start)
    }
}

/// One period of a rank's contribution.
fn contribution<T: Element>(rank: usize, world: usize, seed: usize, reduction: Reduction) -> Vec<T> {
    let values = match reduction {
        Reduction::Min | Reduction::Max | Reduction::And | Reduction::Or | Reduction::Xor => PERIOD,
        // Products of powers of two are exact in every type, or infinite in every order.
        Reduction::Prod => 2,
        Reduction::Sum | Reduction::Avg => (T::EXACT as usize / world + 1).clamp(2, PERIOD),
    };
    // With values of 0 and 1, as many ranks as the type has exact sums contribute the ones.
    let is_silent = reduction != Reduction::Prod && rank >= T::EXACT as usize;
    let value = |i: usize| {
        let mixed = (i * 37 + rank * 101 + seed * 17 + (i + rank) * (i + 3)) % PERIOD % values;
        // One rank of all decides about a bit of most elements: the results of many ranks are no
        // more uniform than those of a few.
        let bit = if mixed / 8 % world == 0 { 1 << (mixed % 8) } else { 0 };
        match reduction {
            Reduction::Prod => mixed + 1,
            Reduction::And => 0xff - bit,
            Reduction::Or => bit,
            _ if is_silent => 0,
            _ => mixed,
        }
    };
    (0..PERIOD).map(|i| T::from_small(u16::try_from(value(i)).unwrap_or(0))).collect()
}

/// The values from element `start` on.
fn repeated<T>(period: &[T], start: usize) -> impl Iterator<Item = &T> {
    period.iter().cycle().skip(start % PERIOD)
}

fn differences<T: Element>(elements: &[T], expected: &[T], start: usize) -> u64 {
    elements.iter().zip(repeated(expected, start)).map(|(element, value)| u64::from(element != value)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use half::{bf16, f16};

    use super::*;

    #[test]
    fn the_right_sum_is_right_and_others_are_wrong() {
        let (world, n) = (5, 1000);
        let pattern = Pattern::<f32>::new(world, 3, Reduction::Sum);
        let mut sum = vec![0.0f32; n];
        for rank in 0..world {
            let mut part = vec![0.0; n];
            pattern.fill(rank, 0, &mut part);
            f32::reduce(Reduction::Sum, &mut sum, &part);
            assert_eq!(pattern.count_wrong_from(rank, 0, &part), 0);
            assert!(pattern.count_wrong_from((rank + 1) % world, 0, &part) > 900);
        }
        assert_eq!(pattern.count_wrong(0, &sum), 0);
        assert_eq!(pattern.count_wrong(400, &sum[400..]), 0);
        sum[7] += 1.0;
        sum[900] = f32::NAN;
        assert_eq!(pattern.count_wrong(0, &sum), 2);
        assert!(Pattern::<f32>::new(world, 4, Reduction::Sum).count_wrong(0, &sum) > 900);
        assert!(pattern.count_wrong(64, &sum[..n - 64]) > 900);
    }

    /// No rank's part may be missing, or another's come twice.
    #[test]
    fn every_rank_has_a_part_in_bitwise_results() {
        for (reduction, world) in [(Reduction::And, 7), (Reduction::Or, 7), (Reduction::Xor, 7), (Reduction::And, 31)] {
            let pattern = Pattern::<u64>::new(world, 3, reduction);
            let values: HashSet<u64> = pattern.reduced.iter().copied().collect();
            assert!(values.len() > 8, "{reduction} of {world}: {values:?}");
            for absent in 0..world {
                let mut others = (0..world).filter(|rank| *rank != absent).map(|rank| &pattern.ranks[rank]);
                let mut reduced = others.next().unwrap().clone();
                others.for_each(|other| u64::reduce(reduction, &mut reduced, other));
                assert!(pattern.count_wrong(0, &reduced) > 0, "{reduction} of {world} without rank {absent}");
            }
        }
    }

    fn is_exact<T: Element>(world: usize) {
        for &reduction in Reduction::ALL.iter().filter(|reduction| reduction.supports(T::TYPE)) {
            let pattern = Pattern::<T>::new(world, 7, reduction);
            // The opposite order of ranks gives the same values.
            let mut reduced = pattern.ranks[world - 1].clone();
            for rank in (0..world - 1).rev() {
                T::reduce(reduction, &mut reduced, &pattern.ranks[rank]);
            }
            if reduction == Reduction::Avg {
                T::divide(&mut reduced, world);
            }
            assert_eq!(pattern.count_wrong(0, &reduced), 0, "{} {reduction:?} of {world}", T::NAME);
        }
    }

    #[test]
    fn results_do_not_depend_on_the_order() {
        for world in [1, 2, 5, 17, 300] {
            is_exact::<f32>(world);
            is_exact::<f16>(world);
            is_exact::<bf16>(world);
            is_exact::<i8>(world);
            is_exact::<u64>(world);
        }
    }
}
