//! Rings: a rank sends to its right neighbour only, and passes each part on as soon as it arrives.

use std::ops::Range;

use super::builder::{input, local, message, output, scratch, section, share};
use super::{Builder, Collective};
use crate::schedule::step::Place;
use crate::schedule::step::Span;

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    match op {
        Collective::AllGather => all_gather(b),
        Collective::ReduceScatter => reduce_scatter(b),
        _ => {
            let ring = RingGroup { members: (0..b.ranks()).collect(), index: b.rank() };
            all_reduce(b, &ring, &(0..b.job.count), Place::Input);
        }
    }
}

/// Ranks in a ring, and this rank's position among them.
pub(super) struct RingGroup {
    pub(super) members: Vec<usize>,
    pub(super) index: usize,
}

impl RingGroup {
    fn left(&self) -> usize {
        self.members[self.back(1)]
    }

    fn right(&self) -> usize {
        self.members[(self.index + 1) % self.members.len()]
    }

    /// The index of the member so many places to the left.
    fn back(&self, distance: usize) -> usize {
        (self.index + 2 * self.members.len() - distance) % self.members.len()
    }
}

/// Reduces a range of all members' elements in `from`; the results lie in the output.
///
/// Segment `i` begins at member `i`, is complete when it has gone round to member `i - 1`, and goes
/// round once more as a result.
pub(super) fn all_reduce(b: &mut Builder<'_>, ring: &RingGroup, range: &Range<usize>, from: Place) {
    let n = ring.members.len();
    let own = |elements: Range<usize>| Span { place: from, elements };
    if n == 1 {
        return b.copy(own(range.clone()), output(range.clone()));
    }
    let segment = |distance: usize| share(range, n, ring.back(distance));
    b.send(ring.right(), &own(segment(0)));
    for step in 1..n {
        let sources = [message(ring.left()), local(own(segment(step)))];
        b.relay(&sources, &output(segment(step)), &[ring.right()]);
    }
    for step in n..2 * n - 1 {
        let last = step == 2 * n - 2;
        let to: &[usize] = if last { &[] } else { &[ring.right()] };
        b.relay(&[message(ring.left())], &output(segment(step)), to);
    }
}

fn all_gather(b: &mut Builder<'_>) {
    let (rank, n) = (b.rank(), b.ranks());
    let (left, right) = ((rank + n - 1) % n, (rank + 1) % n);
    let own = b.input();
    b.send(right, &own);
    b.copy(own, output(b.job.block(rank)));
    for distance in 1..n {
        let block = output(b.job.block((rank + n - distance) % n));
        let to: &[usize] = if distance == n - 1 { &[] } else { &[right] };
        b.relay(&[message(left)], &block, to);
    }
}

/// A rank's block begins at its right neighbour and is complete when it has gone round.
fn reduce_scatter(b: &mut Builder<'_>) {
    let (rank, n, longest) = (b.rank(), b.ranks(), b.job.longest_block());
    let (left, right) = ((rank + n - 1) % n, (rank + 1) % n);
    let own = |distance: usize| input(b.job.block((rank + n - distance) % n));
    let sums = scratch(0..2 * longest);
    let first = own(1);
    let operands: Vec<_> = (2..=n).map(|distance| own(distance % n)).collect();
    b.send(right, &first);
    if n > 2 {
        b.reserve_scratch(sums.elements.end);
    }
    for (step, operand) in operands.into_iter().enumerate() {
        let (start, length) = (step % 2 * longest, operand.elements.len());
        let sources = [message(left), local(operand)];
        if step == n - 2 {
            b.combine(&sources, &b.output());
        } else {
            // The right neighbour takes a sum while it makes the next one: two places alternate.
            let place = section(&sums, &(start..start + length));
            b.relay(&sources, &place, &[right]);
        }
    }
}
