//! Bruck's algorithms: a logarithmic number of steps for any number of ranks.
//!
//! In the all-gather a rank sends all blocks that it has to the rank at distance 1, 2, 4... to its
//! left. The reduce-scatter is the same backwards: sums take the place of blocks.

use std::ops::Range;

use super::builder::{input, local, message, output, scratch};
use super::{Builder, Collective};
use crate::schedule::step::Span;

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    match op {
        Collective::AllGather => all_gather(b),
        Collective::ReduceScatter => reduce_scatter(b),
        _ => {
            let ranks: Vec<_> = (0..b.ranks()).collect();
            barrier(b, &ranks, b.rank());
        }
    }
}

/// The distances 1, 2, 4... below a number of ranks.
pub(super) fn distances(n: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..usize::BITS).map(|bit| 1 << bit).take(n.next_power_of_two().trailing_zeros() as usize)
}

/// A barrier of some ranks, of which this is the one at `index`: after the step of distance `d` a
/// rank has heard of the `2 d - 1` ranks to its left.
pub(super) fn barrier(b: &mut Builder<'_>, members: &[usize], index: usize) {
    let n = members.len();
    for distance in distances(n) {
        b.signal(members[(index + distance) % n]);
        b.await_signals([members[(index + n - distance) % n]]);
    }
}

fn all_gather(b: &mut Builder<'_>) {
    let (rank, n, count) = (b.rank(), b.ranks(), b.job.count);
    b.copy(b.input(), output(b.job.block(rank)));
    for distance in distances(n) {
        let blocks = distance.min(n - distance);
        let (left, right) = ((rank + n - distance) % n, (rank + distance) % n);
        for run in runs(rank, 0..blocks, &[], n) {
            b.send(left, &output(elements(rank, &run, n, count)));
        }
        for run in runs(right, 0..blocks, &[], n) {
            b.receive(right, &output(elements(right, &run, n, count)));
        }
    }
}

/// A rank's sum for the rank at offset `j` to its right lies at `j` in scratch memory once there is
/// another operand than its own input.
fn reduce_scatter(b: &mut Builder<'_>) {
    let (rank, n, count) = (b.rank(), b.ranks(), b.job.count);
    let mut sums = 0;
    for distance in distances(n).rev() {
        let blocks = distance.min(n - distance);
        let (left, right) = ((rank + n - distance) % n, (rank + distance) % n);
        let present = |offset: usize, run: &Range<usize>| -> Span {
            if offset + run.start < sums {
                scratch((offset + run.start) * count..(offset + run.end) * count)
            } else {
                input(elements(rank + offset, run, n, count))
            }
        };
        // Both sides cut a message where the place of either side's operand changes.
        let cuts = [sums, sums.saturating_sub(distance)];
        for run in runs(right, 0..blocks, &cuts, n) {
            b.send(right, &present(distance, &run));
        }
        let received: Vec<_> = runs(rank, 0..blocks, &cuts, n).collect();
        if distance > 1 {
            b.reserve_scratch(blocks * count);
        }
        for run in received {
            let sources = [local(present(0, &run)), message(left)];
            let elements = run.start * count..run.end * count;
            // The last sum is that of this rank's own block.
            let sum = if distance > 1 { scratch(elements) } else { output(elements) };
            b.combine(&sources, &sum);
        }
        sums = sums.max(blocks);
    }
}

/// Cuts offsets from a first rank where the rank's number wraps to 0, and at the given offsets.
fn runs(first: usize, offsets: Range<usize>, cuts: &[usize], n: usize) -> impl Iterator<Item = Range<usize>> {
    let mut bounds = vec![offsets.start, offsets.end, n - first % n];
    bounds.extend(cuts);
    bounds.retain(|bound| (offsets.start..=offsets.end).contains(bound));
    bounds.sort_unstable();
    bounds.dedup();
    (1..bounds.len()).map(move |index| bounds[index - 1]..bounds[index])
}

/// The elements of the blocks of ranks at some offsets from a first one.
fn elements(first: usize, offsets: &Range<usize>, n: usize, count: usize) -> Range<usize> {
    let start = (first + offsets.start) % n;
    start * count..(start + offsets.len()) * count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_powers_of_two_below_n() {
        assert_eq!(distances(1).count(), 0);
        assert_eq!(distances(2).collect::<Vec<_>>(), [1]);
        assert_eq!(distances(5).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(distances(8).collect::<Vec<_>>(), [1, 2, 4]);
    }

    #[test]
    fn runs_end_at_the_wrap_and_at_cuts() {
        assert_eq!(runs(3, 0..4, &[], 5).collect::<Vec<_>>(), [0..2, 2..4]);
        assert_eq!(runs(0, 0..4, &[3, 9], 5).collect::<Vec<_>>(), [0..3, 3..4]);
    }
}
