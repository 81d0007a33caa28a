//! All-reduce in one or two steps, where every rank is connected to every other.
//!
//! *One step*, for small tensors: every rank sends its whole tensor to every other, and every rank
//! sums all of them in rank order. *Two steps*: rank `r` receives segment `r` of every rank, sums
//! it, and sends the result to every rank. With more ranks than cores, a step costs a turn of all
//! ranks on their cores, so few steps matter more than few messages.
//!
//! Where memory is watched, a tensor of some bytes travels in one cache line together with the word
//! that announces it: a single write to each peer is enough.
//!
//! Parts go into slots. Each rank has two of them, used in turn by *rounds*. A slot may be written
//! again when its owner has read it, which follows from the owner's later messages:
//!
//! * one step: a part of round `k` implies that its sender has finished every operation before that
//!   of round `k`;
//! * two steps: the result of round `k` implies that its sender has read all parts of round `k`,
//!   and a part of an operation's first round implies that its sender has finished the operations
//!   before.

use std::ops::Range;

use rdma::{ExposedRegion, RemoteSlice};

use crate::Error;
use crate::blocks::parts;
use crate::bootstrap::Group;
use crate::element::Element;
use crate::fabric::{Fabric, LINE, Lane, expose_together};
use crate::pipeline::Pipeline;
use crate::tensor::Operation;

/// Memory for parts: two places for each rank, used in turn by rounds.
#[derive(Debug)]
struct Places {
    region: ExposedRegion,
    remotes: Vec<RemoteSlice>,
    /// Bytes of one place.
    length: usize,
    /// Number of rounds since the start.
    rounds: u64,
}

impl Places {
    fn new(fabric: &Fabric, group: &mut Group, what: &str, length: usize) -> Result<Self, Error> {
        // No rank can allocate the whole address space, so each hears of too large a length.
        let bytes = length.saturating_mul(2 * group.ranks());
        let (region, remotes) = expose_together(fabric, group, what, bytes)?;
        Ok(Self { region, remotes, length, rounds: 0 })
    }

    /// Byte offset of a rank's part of a round.
    fn at(&self, round: u64, from: usize) -> usize {
        ((round % 2) as usize * self.remotes.len() + from) * self.length
    }
}

/// State of the direct algorithms between operations.
#[derive(Debug)]
pub(crate) struct Direct {
    rank: usize,
    world: usize,
    slots: Places,
    /// Number of result rounds since the start.
    results: u64,
    lines: Places,
}

/// Payload bytes of a line, in front of the word that announces its arrival.
const LINE_ROOM: usize = LINE - 8;

impl Direct {
    /// Allocates the memory; collective.
    pub(crate) fn new(fabric: &Fabric, group: &mut Group, capacity: usize) -> Result<Self, Error> {
        let (rank, world) = (group.rank(), group.ranks());
        // Whole pages, as segments are rounded up.
        let capacity = capacity.max(1).checked_next_multiple_of(4096).unwrap_or(usize::MAX);
        let slots = Places::new(fabric, group, "the slots", capacity)?;
        let lines = Places::new(fabric, group, "the lines", LINE)?;
        Ok(Self { rank, world, slots, results: 0, lines })
    }

    /// The other ranks. Each rank begins with its right neighbour, so that not all send to the same
    /// one first.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, world) = (self.rank, self.world);
        (1..world).map(move |turn| (rank + turn) % world)
    }

    /// All-reduce in one step; the tensor must fit a slot.
    pub(crate) fn one_step<T: Element>(&mut self, mut operation: Operation<'_, T>) -> Result<(), Error> {
        let length = operation.count * size_of::<T>();
        if length <= LINE_ROOM && operation.fabric.watches_memory() {
            return self.one_line(operation);
        }
        let Operation { fabric, input, count, .. } = &mut operation;
        let round = self.slots.rounds;
        self.slots.rounds += 1;
        let at = self.slots.at(round, self.rank);
        for peer in self.peers() {
            let place = self.slots.remotes[peer].slice(at..at + length)?;
            fabric.send(peer, Lane::Part, input.local(0..*count)?, place)?;
        }
        for peer in self.peers() {
            fabric.wait_for(peer, Lane::Part, self.slots.rounds)?;
        }
        // The output may be the input, whose memory the sends read until they are complete.
        fabric.flush()?;
        let all = 0..*count;
        self.add_up(&mut operation, round, all)
    }

    /// All-reduce in one step with one line per peer.
    fn one_line<T: Element>(&mut self, operation: Operation<'_, T>) -> Result<(), Error> {
        let Operation { fabric, blocks, input, output, count, reduction } = operation;
        self.lines.rounds += 1;
        let (round, lines) = (self.lines.rounds, &self.lines);
        let (sums, more) = blocks.of::<T>();
        let (sums, more) = (&mut sums[..count], &mut more[..count]);
        let mut bytes = [0; LINE];
        input.read(0, sums)?;
        bytes[..count * size_of::<T>()].copy_from_slice(bytemuck::cast_slice(sums));
        bytes[LINE_ROOM..].copy_from_slice(&round.to_ne_bytes());
        let at = lines.at(round, self.rank);
        for peer in self.peers() {
            fabric.send_line(peer, &bytes, lines.remotes[peer].slice(at..at + LINE)?)?;
        }
        for from in 0..self.world {
            let into: &mut [T] = if from == 0 { sums } else { more };
            if from == self.rank {
                bytemuck::cast_slice_mut(into).copy_from_slice(&bytes[..count * size_of::<T>()]);
            } else {
                let line = lines.at(round, from);
                fabric.wait_for_word(from, &lines.region, line + LINE_ROOM, round)?;
                lines.region.copy_out(line, bytemuck::cast_slice_mut(into))?;
            }
            if from > 0 {
                T::reduce(reduction, sums, more);
            }
        }
        reduction.finish(sums, self.world);
        output.write(0, sums)
    }

    /// All-reduce in two steps, in as many rounds as the tensor needs.
    pub(crate) fn two_steps<T: Element>(&mut self, mut operation: Operation<'_, T>) -> Result<(), Error> {
        let Operation { input, count, .. } = operation;
        let plan = Pipeline::new(self.rank, self.world, count, self.slots.length / size_of::<T>(), 1);
        let (first, first_result) = (self.slots.rounds, self.results);
        for block in 0..=plan.blocks() {
            // A peer's slots are free for this round once it has entered the operation and has read
            // the parts of the round before last, which its result of that round implies.
            for peer in self.peers() {
                operation.fabric.wait_for(peer, Lane::Part, first + block as u64)?;
                operation.fabric.wait_for(peer, Lane::Result, first_result + (block as u64).saturating_sub(1))?;
            }
            if block < plan.blocks() {
                let at = self.slots.at(self.slots.rounds, self.rank);
                for peer in self.peers() {
                    let elements = plan.segment(block, peer);
                    let place = self.slots.remotes[peer].slice(at..at + elements.len() * size_of::<T>())?;
                    operation.fabric.send(peer, Lane::Part, input.local(elements)?, place)?;
                }
                self.slots.rounds += 1;
            }
            let Some(done) = block.checked_sub(1) else { continue };
            let own = plan.segment(done, self.rank);
            self.add_up(&mut operation, first + done as u64, own.clone())?;
            for peer in self.peers() {
                operation.send_result(peer, Lane::Result, own.clone())?;
            }
            self.results += 1;
        }
        for peer in self.peers() {
            operation.fabric.wait_for(peer, Lane::Result, self.results)?;
        }
        operation.fabric.flush()
    }

    /// Sums all ranks' parts of some elements in rank order, so that every rank gets exactly the
    /// same sum.
    fn add_up<T: Element>(
        &self,
        operation: &mut Operation<'_, T>,
        round: u64,
        elements: Range<usize>,
    ) -> Result<(), Error> {
        let Operation { input, output, reduction, .. } = *operation;
        let (sums, more) = operation.blocks.of::<T>();
        let first = elements.start;
        for part in parts(elements, sums.len()) {
            let (sums, more) = (&mut sums[..part.len()], &mut more[..part.len()]);
            for from in 0..self.world {
                let into: &mut [T] = if from == 0 { sums } else { more };
                if from == self.rank {
                    input.read(part.start, into)?;
                } else {
                    let at = self.slots.at(round, from) + (part.start - first) * size_of::<T>();
                    self.slots.region.copy_out(at, bytemuck::cast_slice_mut(into))?;
                }
                if from > 0 {
                    T::reduce(reduction, sums, more);
                }
            }
            reduction.finish(sums, self.world);
            output.write(part.start, sums)?;
        }
        Ok(())
    }
}
