//! The operations of the limit.

use std::ops::Range;
use std::sync::atomic::Ordering;

use rdma_collectives::Collective;

use super::Writes;
use super::kernel::{self, Stores};
use super::rank::{Rank, SMALL, number};
use crate::point::{Place, Point};

/// A way to do an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// All-reduce: each rank gives all its numbers next to a counter.
    Message,
    /// Each rank reads what its output is made of.
    Pull(Stores),
    /// All-reduce: each rank sums its share, and writes the result to all outputs.
    Push(Stores),
    /// All-reduce: each rank sums its share in its own output, and copies those of the others.
    Shares(Stores),
    /// All-reduce in place: each rank copies its numbers, and sums those copies of the others.
    Staged(Stores),
}

impl Method {
    /// The methods for a point.
    pub(super) fn of(point: Point, writes: Writes) -> Vec<Self> {
        let stores = [Stores::Cached, Stores::Streaming];
        let pull = stores.map(Self::Pull);
        let parts = match writes {
            Writes::All => stores.map(Self::Push),
            Writes::Own => stores.map(Self::Shares),
        };
        let staged = stores.map(Self::Staged);
        match (point.operation, point.place) {
            (Collective::AllReduce, _) if point.size <= SMALL => vec![Self::Message],
            (Collective::AllReduce, Place::In) if writes == Writes::Own => [parts, staged].concat(),
            (Collective::AllReduce, Place::In) => parts.to_vec(),
            (Collective::AllReduce, Place::Out) => [pull, parts].concat(),
            _ => pull.to_vec(),
        }
    }
}

/// Does the rank's operation once. Returns when its output is complete.
pub(super) fn run(rank: &mut Rank, method: Method) {
    match method {
        Method::Message => message(rank),
        Method::Pull(stores) => pull(rank, stores),
        Method::Push(stores) => push(rank, stores),
        Method::Shares(stores) => shares(rank, stores),
        Method::Staged(stores) => staged(rank, stores),
    }
}

fn message(rank: &mut Rank) {
    let step = rank.next_step();
    let (count, ranks) = (rank.count(), rank.point.ranks);
    let (number, place) = rank.slot(rank.rank);
    // SAFETY: sum requires inputs and outputs of `count` numbers that no other rank writes or
    // reads: the input is this rank's, and every other rank has given the message after the last
    // one that was in this slot, so it has read that one.
    unsafe { kernel::sum(&[place], &[rank.input(rank.rank)], count, Stores::Cached) };
    number.store(step, Ordering::Release);
    let mut inputs = [std::ptr::null::<f32>(); MOST];
    for (peer, input) in inputs[..ranks].iter_mut().enumerate() {
        let (number, place) = rank.slot(peer);
        rank.wait(number, step);
        *input = place;
    }
    // SAFETY: sum requires inputs and outputs of `count` numbers that no other rank writes or
    // reads: the messages stay until this rank gives its next one but one, and the output is this
    // rank's.
    unsafe { kernel::sum(&[rank.output(rank.rank)], &inputs[..ranks], count, Stores::Cached) };
}

fn pull(rank: &mut Rank, stores: Stores) {
    rank.barrier();
    let (own, ranks) = (rank.rank, rank.point.ranks);
    let block = rank.count() / ranks;
    let output = |block_of: usize| rank.output(own).wrapping_add(block_of * block);
    let input = |peer: usize, block_of: usize| rank.input(peer).cast_const().wrapping_add(block_of * block);
    match rank.point.operation {
        // Each rank begins with its own block, so that ranks do not read from one at the same time.
        Collective::AllGather => {
            from_own(own, ranks).for_each(|peer| copy(output(peer), input(peer, 0), block, stores))
        }
        Collective::AllToAll => {
            from_own(own, ranks).for_each(|peer| copy(output(peer), input(peer, own), block, stores))
        }
        Collective::Broadcast if own == 0 => {}
        Collective::Broadcast => copy(output(0), rank.output(0), rank.count(), stores),
        Collective::ReduceScatter => sum(&[output(0)], (0..ranks).map(|peer| input(peer, own)), block, stores),
        Collective::Gather | Collective::Reduce if own != 0 => {}
        Collective::Gather => (0..ranks).for_each(|peer| copy(output(peer), input(peer, 0), block, stores)),
        Collective::Scatter => copy(output(0), input(0, own), block, stores),
        Collective::SendRecv => copy(output(0), input((own + ranks - 1) % ranks, 0), rank.count(), stores),
        // A reduction of all elements: no other collective is compared.
        _ => sum(&[output(0)], (0..ranks).map(|peer| input(peer, 0)), rank.count(), stores),
    }
}

fn push(rank: &mut Rank, stores: Stores) {
    rank.barrier();
    let mut outputs = [std::ptr::null_mut::<f32>(); MOST];
    for (peer, output) in outputs[..rank.point.ranks].iter_mut().enumerate() {
        *output = rank.output(peer);
    }
    sum_share(rank, &mut outputs[..rank.point.ranks], stores);
    rank.barrier();
}

fn shares(rank: &mut Rank, stores: Stores) {
    rank.barrier();
    sum_share(rank, &mut [rank.output(rank.rank)], stores);
    rank.barrier();
    for peer in from_own(rank.rank, rank.point.ranks).skip(1) {
        let share = share(rank.count(), rank.point.ranks, peer);
        let at = |rank_of: usize| rank.output(rank_of).wrapping_add(share.start);
        copy(at(rank.rank), at(peer), share.len(), stores);
    }
    rank.barrier();
}

fn staged(rank: &mut Rank, stores: Stores) {
    let (own, ranks) = (rank.rank, rank.point.ranks);
    copy(rank.spare(own), rank.output(own), rank.count(), stores);
    rank.barrier();
    let input = |peer: usize| if peer == own { rank.output(own) } else { rank.spare(peer) };
    sum(&[rank.output(own)], (0..ranks).map(|peer| input(peer).cast_const()), rank.count(), Stores::Cached);
    rank.barrier();
}

/// Sums this rank's share of all inputs to that share of some outputs.
fn sum_share(rank: &Rank, outputs: &mut [*mut f32], stores: Stores) {
    let share = share(rank.count(), rank.point.ranks, rank.rank);
    for output in &mut *outputs {
        *output = output.wrapping_add(share.start);
    }
    let inputs = (0..rank.point.ranks).map(|peer| rank.input(peer).cast_const().wrapping_add(share.start));
    sum(outputs, inputs, share.len(), stores);
}

/// Most ranks.
const MOST: usize = 64;

/// The ranks, from this one on.
fn from_own(own: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (own..ranks).chain(0..own)
}

/// A rank's part of the numbers, which begins on a line of its own.
fn share(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let share = count.div_ceil(ranks).next_multiple_of(16);
    (rank * share).min(count)..((rank + 1) * share).min(count)
}

fn sum(outputs: &[*mut f32], of: impl Iterator<Item = *const f32>, count: usize, stores: Stores) {
    let (mut inputs, mut ranks) = ([std::ptr::null::<f32>(); MOST], 0);
    for input in of {
        inputs[ranks] = input;
        ranks += 1;
    }
    // SAFETY: sum requires inputs that no other rank writes and outputs that no other rank
    // accesses, of `count` numbers: `pull` and `staged` write this rank's output, `push` this
    // rank's share of all, and `shares` that of its own, between barriers after which all inputs
    // are there; `staged` also its spare tensor, which the others read between barriers only.
    unsafe { kernel::sum(outputs, &inputs[..ranks], count, stores) };
}

fn copy(to: *mut f32, from: *const f32, count: usize, stores: Stores) {
    match stores {
        // SAFETY: copy_nonoverlapping requires ranges of `count` numbers, disjoint, which no other
        // rank writes: the output, or the spare tensor, is this rank's, and nothing writes what is
        // copied until the next barrier.
        Stores::Cached => unsafe { std::ptr::copy_nonoverlapping(from, to, count) },
        Stores::Streaming => sum(&[to], std::iter::once(from), count, stores),
    }
}

/// The indices of this rank's results.
pub(super) fn results(rank: &Rank) -> Range<usize> {
    match rank.point.operation {
        Collective::ReduceScatter | Collective::Scatter => 0..rank.count() / rank.point.ranks,
        Collective::Reduce | Collective::Gather if rank.rank != 0 => 0..0,
        _ => 0..rank.count(),
    }
}

/// The result at an index of this rank's output.
pub(super) fn expected(rank: &Rank, index: usize) -> f32 {
    let (own, ranks) = (rank.rank, rank.point.ranks);
    let block = (rank.count() / ranks).max(1);
    let total = |index: usize| (0..ranks).map(|peer| number(peer, index)).sum();
    match rank.point.operation {
        Collective::ReduceScatter => total(own * block + index),
        Collective::AllGather | Collective::Gather => number(index / block, index % block),
        Collective::AllToAll => number(index / block, own * block + index % block),
        Collective::Broadcast => number(0, index),
        Collective::Scatter => number(0, own * block + index),
        Collective::SendRecv => number((own + ranks - 1) % ranks, index),
        // A reduction of all elements: no other collective is compared.
        _ => total(index),
    }
}
