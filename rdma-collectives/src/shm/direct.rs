//! Collectives in which each rank reads what its output is made of, where its peers have it.

use std::ops::Range;

use rdma_mem::{Operation, Scalar, SharedSlice, Stores, reduce};

use super::all_reduce::with_operands;
use super::failed;
use super::host::{Host, SharedTensor};
use super::trials::Kind;
use crate::Error;
use crate::blocks::bytes;
use crate::element::{Element, Reduction};
use crate::{Collective, Job};

/// One collective in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectReads<'a> {
    pub(crate) host: &'a Host,
    pub(crate) op: Collective,
    pub(crate) job: &'a Job,
    /// The memory of the input, which is that of the output if the job is in place.
    pub(crate) input: &'a SharedTensor,
    pub(crate) output: &'a SharedTensor,
    /// The reduction, of which an average is left a sum.
    pub(crate) reduction: Reduction,
}

/// Whether no rank writes what another one reads.
#[must_use]
pub(crate) fn reads_directly(op: Collective, in_place: bool) -> bool {
    use Collective::*;
    match op {
        AllGather | ReduceScatter | Broadcast | Reduce | Gather | Scatter => true,
        AllToAll | AllToAllV | SendRecv => !in_place,
        AllReduce | HyperCube | Barrier => false,
    }
}

impl DirectReads<'_> {
    /// Runs this rank's part of a collective that [`reads_directly`]. Returns when its output is
    /// complete.
    pub(crate) fn run<T: Element>(self) -> Result<(), Error> {
        let clock = self.host.clock();
        let ready = clock.now() + 1;
        clock.publish(ready)?;
        // All inputs are there, and no rank reads the outputs of earlier collectives any more.
        clock.wait_for_all(ready)?;
        let len = bytes::<T>(0..self.job.layout(self.op).output.len()).len();
        clock.trials().run(Kind::blocks(self.job.in_place), len, |stores| match self.op {
            Collective::ReduceScatter => self.reduce_block::<T>(stores),
            Collective::Reduce => self.reduce_at_root::<T>(stores),
            _ => self.copy_blocks::<T>(stores),
        })?;
        clock.end(ready + 1)?;
        self.input.used();
        self.output.used();
        Ok(())
    }

    /// Reduces this rank's block of all inputs.
    fn reduce_block<T: Element>(self, stores: Stores) -> Result<(), Error> {
        let Job { rank, in_place, .. } = *self.job;
        let block = self.block::<T>(rank);
        let place = if in_place { block.clone() } else { 0..block.len() };
        self.reduce::<T>(&block, place, stores)
    }

    /// Reduces all inputs, if this rank is the root.
    fn reduce_at_root<T: Element>(self, stores: Stores) -> Result<(), Error> {
        let Job { rank, count, root, .. } = *self.job;
        let whole = bytes::<T>(0..count);
        if rank == root { self.reduce::<T>(&whole, whole.clone(), stores) } else { Ok(()) }
    }

    /// Reduces the same bytes of all inputs, in the order of ranks.
    fn reduce<T: Element>(self, block: &Range<usize>, place: Range<usize>, stores: Stores) -> Result<(), Error> {
        let into = self.output.own().slice(place).map_err(failed)?;
        let own = self.input.own().slice(block.clone()).map_err(failed)?.as_shared();
        with_operands(self.host.world(), own, |operands| {
            for (peer, memory) in self.input.others() {
                operands[peer] = memory.slice(block.clone()).map_err(failed)?;
            }
            reduce(T::SCALAR, self.reduction.operation(), into, operands, stores).map_err(failed)
        })
    }

    /// Copies the blocks that make this rank's output.
    fn copy_blocks<T: Element>(self, stores: Stores) -> Result<(), Error> {
        let Job { rank, ranks, count, root, in_place, .. } = *self.job;
        let whole = bytes::<T>(0..count);
        let own = self.block::<T>(rank);
        let input_of = |peer: usize| {
            let block = self.block::<T>(peer);
            if in_place { block } else { 0..block.len() }
        };
        // Each rank begins with another peer, so that not all read from one at the same time.
        let mut peers = (rank..ranks).chain(0..rank);
        let copy = |from, bytes, place| self.copy(from, bytes, place, stores);
        match self.op {
            Collective::Broadcast => copy(root, whole.clone(), whole),
            Collective::Scatter => copy(root, own, input_of(rank)),
            Collective::SendRecv => copy((rank + ranks - 1) % ranks, whole.clone(), whole),
            Collective::Gather if rank != root => Ok(()),
            Collective::AllToAll | Collective::AllToAllV => peers.try_for_each(|peer| {
                let block = bytes::<T>(self.job.sent_by(self.op, peer, rank));
                copy(peer, block, bytes::<T>(self.job.received(self.op, peer)))
            }),
            _ => peers.try_for_each(|peer| copy(peer, input_of(peer), self.block::<T>(peer))),
        }
    }

    /// The bytes of a rank's block among those of all ranks.
    fn block<T>(self, rank: usize) -> Range<usize> {
        bytes::<T>(self.job.block(rank))
    }

    /// Copies bytes of a rank's input to this rank's output.
    fn copy(self, from: usize, bytes: Range<usize>, place: Range<usize>, stores: Stores) -> Result<(), Error> {
        let into = self.output.own().slice(place).map_err(failed)?;
        let from = self.memory_of(from)?.slice(bytes).map_err(failed)?;
        reduce(Scalar::U8, Operation::Max, into, &[from], stores).map_err(failed)
    }

    /// The input of a rank.
    fn memory_of(&self, rank: usize) -> Result<SharedSlice<'_>, Error> {
        if rank == self.host.rank() {
            return Ok(self.input.own().as_shared());
        }
        let memory = self.input.others().find(|(peer, _)| *peer == rank);
        memory.map(|(_, memory)| memory).ok_or_else(|| failed(format!("no rank {rank} on this host")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Group;
    use crate::shm::tests::ranks;

    const COUNT: usize = 1003;

    /// The element of a rank's input at an index.
    fn element(rank: usize, index: usize) -> u32 {
        u32::try_from(rank * 100_000 + index).unwrap()
    }

    /// The element of a rank's output at an index.
    fn expected(op: Collective, job: &Job, index: usize) -> u32 {
        let Job { rank, ranks, count, root, .. } = *job;
        let of_block = || (0..ranks).find(|&from| job.block(from).contains(&index)).unwrap();
        match op {
            Collective::ReduceScatter => (0..ranks).map(|peer| element(peer, job.block(rank).start + index)).sum(),
            Collective::Reduce => (0..ranks).map(|peer| element(peer, index)).sum(),
            Collective::AllToAllV => {
                let holds = |from: &usize| job.received(op, *from).contains(&index);
                let from = (0..ranks).find(holds).unwrap();
                element(from, job.sent_by(op, from, rank).start + index - job.received(op, from).start)
            }
            Collective::AllToAll => element(index / count, rank * count + index % count),
            Collective::Broadcast => element(root, index),
            Collective::Scatter => element(root, job.block(rank).start + index),
            Collective::SendRecv => element((rank + ranks - 1) % ranks, index),
            _ => element(of_block(), index - job.block(of_block()).start),
        }
    }

    /// Runs an operation three times, with other elements each time.
    fn check(host: &mut Host, group: &mut Group, op: Collective, job: &Job) {
        let most = 4 * COUNT * group.ranks();
        let output = host.allocate(group, most).unwrap();
        let other = host.allocate(group, most).unwrap();
        let input = if job.in_place { &output } else { &other };
        let mut layout = job.layout(op);
        if !job.in_place {
            (layout.input, layout.output) = (0..layout.input.len(), 0..layout.output.len());
        }
        for round in 0..3 {
            let elements: Vec<u32> =
                (0..layout.input.len()).map(|index| element(group.rank(), index) + round).collect();
            input.copy_in(4 * layout.input.start, bytemuck::cast_slice(&elements)).unwrap();
            DirectReads { host, op, job, input, output: &output, reduction: Reduction::Sum }.run::<u32>().unwrap();
            let mut found = vec![0_u32; layout.output.len()];
            output.copy_out(4 * layout.output.start, bytemuck::cast_slice_mut(&mut found)).unwrap();
            let rounds = if op.reduces() { round * u32::try_from(job.ranks).unwrap() } else { round };
            let wanted: Vec<u32> = (0..found.len()).map(|index| expected(op, job, index) + rounds).collect();
            assert!(found == wanted, "{op}, in place: {}, {} ranks", job.in_place, job.ranks);
        }
    }

    #[test]
    fn every_rank_reads_its_output() {
        use Collective::*;
        for world in [2, 3, 5, 10] {
            ranks(world, 6, move |host, group| {
                for op in [AllGather, ReduceScatter, AllToAll, AllToAllV, Broadcast, Reduce, Gather, Scatter, SendRecv]
                {
                    for in_place in [false, true] {
                        let mut job = Job::new(group.rank(), world, COUNT);
                        (job.root, job.in_place) = (world - 1, in_place);
                        // The blocks have up to COUNT elements; some have none.
                        let uneven = |blocks: usize| (0..blocks).map(|block| block * 5 % 7 * COUNT / 6).collect();
                        if op == AllToAllV {
                            job.counts = uneven(world * world);
                        }
                        if reads_directly(op, in_place) {
                            check(host, group, op, &job);
                        }
                        if op.has_blocks() {
                            job.counts = uneven(world);
                            check(host, group, op, &job);
                        }
                    }
                }
            });
        }
    }
}
