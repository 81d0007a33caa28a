//! Parallel aggregated trees: the longest distance comes first in the all-gather, with one block,
//! and the shortest last, with half of all blocks. Messages between far ranks are short.
//!
//! The block of the rank at offset `o` to the left arrives over the distance of `o`'s lowest bit.
//! Blocks lie in scratch memory in the order of arrival, so that one message carries many.

use std::ops::Range;

use super::bruck::distances;
use super::builder::{input, local, message, output, scratch};
use super::{Builder, Collective};

/// The exchange of a rank with the ranks at one distance.
struct PatRound {
    distance: usize,
    /// The positions of the blocks sent, in runs.
    sent: Vec<Range<usize>>,
    /// The first position of the blocks received.
    added: usize,
}

/// The offsets of the ranks whose blocks lie at each position, and the rounds.
fn plan(n: usize) -> (Vec<usize>, Vec<PatRound>) {
    let (mut offsets, mut rounds) = (vec![0], Vec::new());
    for distance in distances(n).rev() {
        let added = offsets.len();
        let positions: Vec<_> = (0..added).filter(|&position| offsets[position] + distance < n).collect();
        offsets.extend(positions.iter().map(|&position| offsets[position] + distance).collect::<Vec<_>>());
        rounds.push(PatRound { distance, sent: runs(&positions), added });
    }
    (offsets, rounds)
}

/// The runs of consecutive numbers.
fn runs(numbers: &[usize]) -> Vec<Range<usize>> {
    numbers.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len()).collect()
}

impl PatRound {
    /// The runs as they lie at the receiver.
    fn received(&self) -> impl Iterator<Item = Range<usize>> {
        self.sent.iter().scan(self.added, |next, run| {
            let start = *next;
            *next += run.len();
            Some(start..*next)
        })
    }
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    let (offsets, rounds) = plan(b.ranks());
    b.reserve_scratch(b.ranks() * b.job.count);
    match op {
        Collective::AllGather => all_gather(b, &offsets, &rounds),
        _ => reduce_scatter(b, &offsets, &rounds),
    }
}

fn all_gather(b: &mut Builder<'_>, offsets: &[usize], rounds: &[PatRound]) {
    let (rank, n, count) = (b.rank(), b.ranks(), b.job.count);
    let place = |run: &Range<usize>| scratch(run.start * count..run.end * count);
    b.copy(b.input(), place(&(0..1)));
    for round in rounds {
        for run in &round.sent {
            b.send((rank + round.distance) % n, &place(run));
        }
        for run in round.received() {
            b.receive((rank + n - round.distance) % n, &place(&run));
        }
    }
    b.copy(b.input(), output(b.job.block(rank)));
    for (position, offset) in offsets.iter().enumerate().skip(1) {
        b.copy(place(&(position..position + 1)), output(b.job.block((rank + n - offset) % n)));
    }
}

/// The all-gather backwards: what was received is sent, and what was sent is added to.
fn reduce_scatter(b: &mut Builder<'_>, offsets: &[usize], rounds: &[PatRound]) {
    let (rank, n, count) = (b.rank(), b.ranks(), b.job.count);
    let place = |run: &Range<usize>| scratch(run.start * count..run.end * count);
    for (position, offset) in offsets.iter().enumerate() {
        b.copy(input(b.job.block((rank + n - offset) % n)), place(&(position..position + 1)));
    }
    for (index, round) in rounds.iter().enumerate().rev() {
        for run in round.received() {
            b.send((rank + n - round.distance) % n, &place(&run));
        }
        for run in &round.sent {
            let sources = [local(place(run)), message((rank + round.distance) % n)];
            let into = if index == 0 { b.output() } else { place(run) };
            b.combine(&sources, &into);
        }
    }
}
