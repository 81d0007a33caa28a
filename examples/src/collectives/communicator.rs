//! A communicator: the ranks of a job, connected over RDMA, and the collectives that they do together.

use std::ops::Range;
use std::time::Duration;

use rdma::{ExposedRegion, RemoteSlice};

use super::element::Element;
use super::fabric::{Fabric, Lane, exchange};
use super::schedule::{Action, Message, Schedule};
use super::tensor::{BLOCK, Tensor, bytes};
use super::wait::Patience;
use crate::Failure;
use crate::bootstrap::Group;
use crate::device::Chosen;

/// How the collectives are to be done; the defaults suit one host with the software device.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Most bytes of one message of the ring.
    pub chunk: usize,
    /// Ticks between the steps of a block: more hide more latency, and need more scratch memory.
    pub lead: usize,
    /// Up to this size every rank sends everything to every other, which takes one step.
    pub one_shot: usize,
    /// There are more ranks than cores.
    pub shared_cores: bool,
    /// How long the other ranks may make no progress.
    pub stall: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { chunk: 128 << 10, lead: 1, one_shot: 8 << 10, shared_cores: false, stall: Duration::from_secs(60) }
    }
}

/// With more ranks than this, each is connected to its neighbours only.
const MESH: usize = 16;

/// The ranks of a job, connected over RDMA.
#[derive(Debug)]
pub struct Communicator {
    rank: usize,
    world: usize,
    fabric: Fabric,
    tuning: Tuning,
    ring: Option<Ring>,
    one_shot: Option<OneShot>,
    block: Blocks,
    /// What barriers reduce.
    token: Option<Tensor<u64>>,
}

/// Cache-hot memory for the sums, aligned for every element type.
#[derive(Debug)]
struct Blocks {
    sums: Vec<u64>,
    more: Vec<u64>,
}

/// What the ring needs between operations.
#[derive(Debug)]
struct Ring {
    left: usize,
    right: usize,
    /// Where the left neighbour writes its partial sums: slots of one chunk.
    slots: ExposedRegion,
    right_slots: RemoteSlice,
    slot_count: u64,
    /// Sums on their way to the right neighbour.
    staging: ExposedRegion,
    staged: u64,
    /// Sequence number of the send from each place of the staging memory.
    staging_sends: Vec<u64>,
    /// Messages to the right neighbour's slots, and from the left one, since the beginning.
    sent: u64,
    taken: u64,
    /// Messages of either kind that came from the left neighbour and are accounted for.
    expected: u64,
    /// Slots that one credit stands for.
    credit: u64,
    /// Slots read since the last credit.
    uncredited: u64,
}

/// What the one-step algorithm needs between operations.
#[derive(Debug)]
struct OneShot {
    /// Two slots per rank: a rank that is one operation ahead must not overwrite what is still being read.
    slots: ExposedRegion,
    remotes: Vec<RemoteSlice>,
    operations: u64,
}

/// Places of the staging memory: enough that a send is complete when its place is needed again.
const STAGES: u64 = 4;

impl Communicator {
    /// Connects the ranks of a group; collective.
    ///
    /// # Errors
    /// Where any rank fails; every rank is told.
    pub fn new(chosen: &Chosen, group: &mut Group, tuning: Tuning) -> Result<Self, Failure> {
        let (rank, world) = (group.rank(), group.world());
        let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
        let mesh = world <= MESH;
        let is_peer = |peer: usize| peer != rank && (mesh || peer == left || peer == right);
        let peers: Vec<usize> = (0..world).filter(|&peer| is_peer(peer)).collect();
        let patience = Patience::new(group.watch(), tuning.shared_cores, tuning.stall);
        let fabric = Fabric::connect(chosen, group, &peers, patience)?;
        let chunk = tuning.chunk;
        let mut ring = None;
        if world > 1 {
            let hops = world - 1;
            let slot_count = (tuning.lead + 1) * hops + hops - 1;
            let slots = group.agree(fabric.expose(slot_count * chunk))?;
            let staging = group.agree(fabric.expose(STAGES as usize * chunk))?;
            let all = exchange(group, &slots)?;
            ring = Some(Ring {
                left,
                right,
                slots,
                right_slots: all[right],
                slot_count: slot_count as u64,
                staging,
                staged: 0,
                staging_sends: vec![0; STAGES as usize],
                sent: 0,
                taken: 0,
                expected: 0,
                credit: hops as u64,
                uncredited: 0,
            });
        }
        let mut one_shot = None;
        if mesh && world > 1 && tuning.one_shot > 0 {
            let slots = group.agree(fabric.expose(2 * world * tuning.one_shot))?;
            let remotes = exchange(group, &slots)?;
            one_shot = Some(OneShot { slots, remotes, operations: 0 });
        }
        let block = Blocks { sums: vec![0; BLOCK / 8], more: vec![0; BLOCK / 8] };
        let mut comm = Self { rank, world, fabric, tuning, ring, one_shot, block, token: None };
        comm.token = Some(comm.allocate(group, 1)?);
        Ok(comm)
    }

    /// Allocates a tensor of `count` elements at every rank; collective.
    ///
    /// # Errors
    /// Where any rank has no memory; every rank is told.
    pub fn allocate<T: Element>(&self, group: &mut Group, count: usize) -> Result<Tensor<T>, Failure> {
        let region = group.agree(self.fabric.expose(count * size_of::<T>()))?;
        let remotes = exchange(group, &region)?;
        Ok(Tensor::new(region, remotes, count))
    }

    /// How messages are noticed: for the report.
    #[must_use]
    pub fn notice(&self) -> &'static str {
        self.fabric.notice()
    }

    /// Sums the first `count` elements of every rank's `input` into every rank's `output`, which may be the same tensor.
    ///
    /// Returns when this rank's output is complete and both tensors may be changed again.
    ///
    /// # Errors
    /// Where the tensors are too short; where a rank fails.
    pub fn all_reduce<T: Element>(
        &mut self,
        input: &Tensor<T>,
        output: &Tensor<T>,
        count: usize,
    ) -> Result<(), Failure> {
        if count > input.count() || count > output.count() {
            return Err(Failure::new(format!("all-reduce of {count} elements in tensors that have fewer")));
        }
        if count == 0 {
            return Ok(());
        }
        if self.world == 1 {
            return self.copy(input, output, count);
        }
        if count * size_of::<T>() <= self.tuning.one_shot && self.one_shot.is_some() {
            self.one_shot(input, output, count)
        } else {
            self.ring(input, output, count)
        }
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// Where a rank fails.
    pub fn barrier(&mut self) -> Result<(), Failure> {
        let Some(tensor) = self.token.take() else { return Ok(()) };
        let result = self.all_reduce(&tensor, &tensor, 1);
        self.token = Some(tensor);
        result
    }

    fn copy<T: Element>(&mut self, input: &Tensor<T>, output: &Tensor<T>, count: usize) -> Result<(), Failure> {
        if input.is(output) {
            return Ok(());
        }
        let block = bytemuck::cast_slice_mut(&mut self.block.sums);
        for part in parts(0..count, block.len()) {
            let block = &mut block[..part.len()];
            input.read(part.start, block)?;
            output.write(part.start, block)?;
        }
        Ok(())
    }

    /// Everybody sends everything to everybody, and everybody sums in the order of ranks: one step.
    fn one_shot<T: Element>(&mut self, input: &Tensor<T>, output: &Tensor<T>, count: usize) -> Result<(), Failure> {
        let Some(state) = &mut self.one_shot else { return Ok(()) };
        let (world, rank, length) = (self.world, self.rank, count * size_of::<T>());
        let half = (state.operations % 2) as usize * world;
        state.operations += 1;
        let slot = |from: usize| (half + from) * self.tuning.one_shot;
        for turn in 1..world {
            let peer = (rank + turn) % world;
            let place = state.remotes[peer].slice(slot(rank)..slot(rank) + length)?;
            self.fabric.send(peer, Lane::OneShot, input.local(0..count)?, place)?;
        }
        for turn in 1..world {
            self.fabric.wait_for((rank + turn) % world, Lane::OneShot, state.operations)?;
        }
        self.fabric.flush()?;
        let sums: &mut [T] = bytemuck::cast_slice_mut(&mut self.block.sums);
        let more: &mut [T] = bytemuck::cast_slice_mut(&mut self.block.more);
        for part in parts(0..count, sums.len()) {
            let (sums, more) = (&mut sums[..part.len()], &mut more[..part.len()]);
            for from in 0..world {
                let into: &mut [T] = if from == 0 { sums } else { more };
                if from == rank {
                    input.read(part.start, into)?;
                } else {
                    let at = slot(from) + part.start * size_of::<T>();
                    state.slots.copy_out(at, bytemuck::cast_slice_mut(into))?;
                }
                if from > 0 {
                    T::accumulate(sums, more);
                }
            }
            output.write(part.start, sums)?;
        }
        Ok(())
    }

    fn ring<T: Element>(&mut self, input: &Tensor<T>, output: &Tensor<T>, count: usize) -> Result<(), Failure> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let elements = self.tuning.chunk / size_of::<T>();
        let plan = Schedule::new(self.rank, self.world, count, elements, self.tuning.lead);
        let mut turn = Turn { ring, fabric: &mut self.fabric, block: &mut self.block, chunk: self.tuning.chunk };
        for tick in 0..plan.ticks() + plan.lead() {
            for message in plan.messages(tick) {
                let elements = plan.sent(message);
                if elements.is_empty() {
                    continue;
                }
                if message.step == 0 {
                    turn.send_partial(input.local(elements)?)?;
                    continue;
                }
                let before = Message { step: message.step - 1, ..message };
                turn.expect_next()?;
                match plan.action(before.step) {
                    Action::Reduce => turn.reduce_and_pass(input, elements)?,
                    Action::Finish => {
                        turn.finish(input, output, elements.clone())?;
                        turn.send_result(output, elements)?;
                    }
                    Action::Forward | Action::Keep => turn.send_result(output, elements)?,
                }
            }
            // The left neighbour's last steps need no answer; they are only counted.
            if plan.last_of_left(tick).is_some_and(|message| !plan.received(message).is_empty()) {
                turn.ring.expected += 1;
            }
        }
        turn.fabric.wait_for(turn.ring.left, Lane::Ring, turn.ring.expected)?;
        self.fabric.flush()
    }
}

/// One ring all-reduce under way.
struct Turn<'a> {
    ring: &'a mut Ring,
    fabric: &'a mut Fabric,
    block: &'a mut Blocks,
    chunk: usize,
}

impl Turn<'_> {
    /// Waits for the left neighbour's next message.
    fn expect_next(&mut self) -> Result<(), Failure> {
        self.ring.expected += 1;
        self.fabric.wait_for(self.ring.left, Lane::Ring, self.ring.expected)
    }

    /// Sends a partial sum into the right neighbour's next slot, when that is free.
    fn send_partial(&mut self, part: rdma::ExposedSlice) -> Result<u64, Failure> {
        let ring = &mut *self.ring;
        if let Some(over) = (ring.sent + 1).checked_sub(ring.slot_count) {
            self.fabric.wait_for(ring.right, Lane::Credit, over.div_ceil(ring.credit))?;
        }
        let at = (ring.sent % ring.slot_count) as usize * self.chunk;
        ring.sent += 1;
        let place = ring.right_slots.slice(at..at + part.len())?;
        self.fabric.send(ring.right, Lane::Ring, part, place)
    }

    /// Sends a finished segment to its place in the right neighbour's output.
    fn send_result<T: Element>(&mut self, output: &Tensor<T>, elements: Range<usize>) -> Result<(), Failure> {
        let place = output.remote(self.ring.right, elements.clone())?;
        self.fabric.send(self.ring.right, Lane::Ring, output.local(elements)?, place).map(drop)
    }

    /// Adds the own part to the partial sum that came in, and passes it on.
    fn reduce_and_pass<T: Element>(&mut self, input: &Tensor<T>, elements: Range<usize>) -> Result<(), Failure> {
        let place = (self.ring.staged % STAGES) as usize;
        self.ring.staged += 1;
        // What was sent from here last has to have left.
        self.fabric.wait_sent(self.ring.right, self.ring.staging_sends[place])?;
        let at = place * self.chunk;
        let length = elements.len() * size_of::<T>();
        self.add(input, elements, |ring, offset, sums| ring.staging.copy_in(at + offset, sums))?;
        let part = self.ring.staging.slice(at..at + length)?;
        let sequence = self.send_partial(part)?;
        self.ring.staging_sends[place] = sequence;
        Ok(())
    }

    /// Adds the own part to the partial sum that came in: the result.
    fn finish<T: Element>(
        &mut self,
        input: &Tensor<T>,
        output: &Tensor<T>,
        elements: Range<usize>,
    ) -> Result<(), Failure> {
        let base = bytes::<T>(elements.clone()).start;
        self.add(input, elements, |_, offset, sums| output.region().copy_in(base + offset, sums))
    }

    /// Sums the next slot and the own input, block by block, into where `keep` puts it; gives the slot back.
    fn add<T: Element>(
        &mut self,
        input: &Tensor<T>,
        elements: Range<usize>,
        mut keep: impl FnMut(&Ring, usize, &[u8]) -> Result<(), rdma::Error>,
    ) -> Result<(), Failure> {
        let ring = &mut *self.ring;
        let slot = (ring.taken % ring.slot_count) as usize * self.chunk;
        ring.taken += 1;
        let sums: &mut [T] = bytemuck::cast_slice_mut(&mut self.block.sums);
        let more: &mut [T] = bytemuck::cast_slice_mut(&mut self.block.more);
        let first = elements.start;
        for part in parts(elements, sums.len()) {
            let (sums, more) = (&mut sums[..part.len()], &mut more[..part.len()]);
            let offset = (part.start - first) * size_of::<T>();
            ring.slots.copy_out(slot + offset, bytemuck::cast_slice_mut(sums))?;
            input.read(part.start, more)?;
            T::accumulate(sums, more);
            keep(ring, offset, bytemuck::cast_slice(sums))?;
        }
        ring.uncredited += 1;
        if ring.uncredited == ring.credit {
            ring.uncredited = 0;
            self.fabric.notify(ring.left, Lane::Credit)?;
        }
        Ok(())
    }
}

/// A range in parts of at most `length`.
fn parts(range: Range<usize>, length: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(length.max(1)).map(move |start| start..(start + length).min(end))
}
