//! Ring all-reduce: every rank communicates with its two neighbours only, and sends the least data
//! that an all-reduce can.
//!
//! The [schedule](super::schedule) decides what is sent when. Partial sums go into slots of the
//! right neighbour's scratch memory, which the neighbour returns by credits. Results go straight to
//! their place in the neighbour's output and need no credit: a result comes only after the
//! neighbour has sent its own part of it, so the neighbour has entered the operation and no longer
//! needs that place.

use std::ops::Range;

use rdma::{ExposedRegion, ExposedSlice, RemoteSlice};

use crate::Error;
use crate::blocks::bytes;
use crate::blocks::parts;
use crate::bootstrap::Group;
use crate::element::Element;
use crate::fabric::{Fabric, Lane, expose_together};
use crate::pipeline::{Action, Message, Pipeline};
use crate::tensor::Operation;

/// Places of the staging memory: enough that a send is usually complete when its place is needed
/// again.
const STAGES: usize = 4;

/// Most bytes of scratch memory; rounding may add up to 4 KiB per slot.
const SCRATCH: usize = 8 << 20;

/// State of the ring between operations.
#[derive(Debug)]
pub(crate) struct Ring {
    rank: usize,
    world: usize,
    chunk: usize,
    lead: usize,
    left: usize,
    right: usize,
    /// Slots of one chunk each, into which the left neighbour writes its partial sums.
    slots: ExposedRegion,
    right_slots: RemoteSlice,
    slot_count: usize,
    /// Partial sums being sent to the right neighbour.
    staging: ExposedRegion,
    staged: usize,
    /// Sequence number of the send from each place of the staging memory.
    staging_sends: Vec<u64>,
    /// Partial sums sent to the right neighbour, and received from the left one, since the start.
    sent: usize,
    taken: usize,
    /// Messages of either kind from the left neighbour that this rank has waited for or counted.
    expected: u64,
    /// Number of slots that one credit returns.
    credit: usize,
    /// Slots read since the last credit.
    uncredited: usize,
}

impl Ring {
    /// Allocates the memory; collective.
    pub(crate) fn new(fabric: &Fabric, group: &mut Group, chunk: usize, lead: usize) -> Result<Self, Error> {
        let (rank, world) = (group.rank(), group.ranks());
        let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
        let hops = world - 1;
        // Slots for the messages of `lead + 1` ticks, and for slots not yet credited. The
        // schedule's tests show that these suffice.
        let lead = lead.max(1);
        let slot_count = lead.saturating_add(2).saturating_mul(hops).saturating_sub(1);
        // Many ranks need many slots, and then have small segments.
        // Whole pages, as segments are rounded up.
        let chunk = chunk.min(SCRATCH / slot_count).max(1).next_multiple_of(4096);
        let (slots, remotes) = expose_together(fabric, group, "the ring's slots", slot_count.saturating_mul(chunk))?;
        let staging = group.agree("the staging memory", fabric.expose(STAGES * chunk))?;
        let right_slots = remotes[right];
        Ok(Self {
            rank,
            world,
            chunk,
            lead,
            left,
            right,
            slots,
            right_slots,
            slot_count,
            staging,
            staged: 0,
            staging_sends: vec![0; STAGES],
            sent: 0,
            taken: 0,
            expected: 0,
            credit: hops,
            uncredited: 0,
        })
    }

    /// Runs one all-reduce.
    pub(crate) fn run<T: Element>(&mut self, operation: Operation<'_, T>) -> Result<(), Error> {
        let Self { rank, world, chunk, lead, left, right, .. } = *self;
        let plan = Pipeline::new(rank, world, operation.count, chunk / size_of::<T>(), lead);
        let mut turn = Turn { ring: self, operation };
        for tick in 0..plan.ticks() + plan.lead() {
            for message in plan.messages(tick) {
                let elements = plan.sent(message);
                if elements.is_empty() {
                    continue;
                }
                if message.step == 0 {
                    turn.send_partial(turn.operation.input.local(elements)?)?;
                    continue;
                }
                let before = Message { step: message.step - 1, ..message };
                turn.expect_next()?;
                match plan.action(before.step) {
                    Action::Reduce => turn.reduce_and_pass(elements)?,
                    Action::Finish => {
                        turn.finish(elements.clone())?;
                        turn.operation.send_result(right, Lane::Ring, elements)?;
                    }
                    Action::Forward | Action::Keep => turn.operation.send_result(right, Lane::Ring, elements)?,
                }
            }
            // The left neighbour's last messages need no answer; they are only counted.
            if plan.last_of_left(tick).is_some_and(|message| !plan.received(message).is_empty()) {
                turn.ring.expected += 1;
            }
        }
        turn.operation.fabric.wait_for(left, Lane::Ring, turn.ring.expected)?;
        turn.operation.fabric.flush()
    }
}

/// One ring all-reduce in progress.
struct Turn<'a, T> {
    ring: &'a mut Ring,
    operation: Operation<'a, T>,
}

impl<T: Element> Turn<'_, T> {
    /// Waits for the left neighbour's next message.
    fn expect_next(&mut self) -> Result<(), Error> {
        self.ring.expected += 1;
        self.operation.fabric.wait_for(self.ring.left, Lane::Ring, self.ring.expected)
    }

    /// Sends a partial sum into the right neighbour's next slot, once that slot is free.
    fn send_partial(&mut self, part: ExposedSlice) -> Result<u64, Error> {
        let (ring, fabric) = (&mut *self.ring, &mut *self.operation.fabric);
        if let Some(over) = (ring.sent + 1).checked_sub(ring.slot_count) {
            fabric.wait_for(ring.right, Lane::Credit, over.div_ceil(ring.credit) as u64)?;
        }
        let at = (ring.sent % ring.slot_count) * ring.chunk;
        ring.sent += 1;
        let place = ring.right_slots.slice(at..at + part.len())?;
        fabric.send(ring.right, Lane::Ring, part, place)
    }

    /// Adds this rank's part to the received partial sum and passes the sum on.
    fn reduce_and_pass(&mut self, elements: Range<usize>) -> Result<(), Error> {
        let place = self.ring.staged % STAGES;
        self.ring.staged += 1;
        // The previous send from this place must be complete.
        self.operation.fabric.wait_sent(self.ring.right, self.ring.staging_sends[place])?;
        let at = place * self.ring.chunk;
        let length = elements.len() * size_of::<T>();
        self.add(elements, |ring, offset, sums| ring.staging.copy_in(at + offset, bytemuck::cast_slice(sums)))?;
        let part = self.ring.staging.slice(at..at + length)?;
        let sequence = self.send_partial(part)?;
        self.ring.staging_sends[place] = sequence;
        Ok(())
    }

    /// Adds this rank's part to the received partial sum, which completes the result.
    fn finish(&mut self, elements: Range<usize>) -> Result<(), Error> {
        let Operation { output, reduction, .. } = self.operation;
        let base = bytes::<T>(elements.clone()).start;
        let (region, _) = output.exposed()?;
        self.add(elements, |ring, offset, sums| {
            reduction.finish(sums, ring.world);
            region.copy_in(base + offset, bytemuck::cast_slice(sums))
        })
    }

    /// Sums the next slot and this rank's input block by block, stores each block with `keep`, and
    /// returns the slot to its writer.
    fn add(
        &mut self,
        elements: Range<usize>,
        mut keep: impl FnMut(&Ring, usize, &mut [T]) -> Result<(), rdma::Error>,
    ) -> Result<(), Error> {
        let ring = &mut *self.ring;
        let slot = (ring.taken % ring.slot_count) * ring.chunk;
        ring.taken += 1;
        let Operation { fabric, blocks, input, reduction, .. } = &mut self.operation;
        let (sums, more) = blocks.of::<T>();
        let first = elements.start;
        for part in parts(elements, sums.len()) {
            let (sums, more) = (&mut sums[..part.len()], &mut more[..part.len()]);
            let offset = (part.start - first) * size_of::<T>();
            ring.slots.copy_out(slot + offset, bytemuck::cast_slice_mut(sums))?;
            input.read(part.start, more)?;
            T::reduce(*reduction, sums, more);
            keep(ring, offset, sums)?;
        }
        ring.uncredited += 1;
        if ring.uncredited == ring.credit {
            ring.uncredited = 0;
            fabric.notify(ring.left, Lane::Credit)?;
        }
        Ok(())
    }
}
