//! All-reduce of ranks that read each other's memory.
//!
//! The shortest tensors are given to all ranks next to a counter. Otherwise ranks read each other's
//! inputs where they lie. Short tensors take one step: each rank reduces all elements, in place
//! those of copies that the ranks stage. Else each rank reduces its share of the elements, and
//! the others copy the results; the tensor is cut into blocks, so that ranks work on one while
//! they copy another. Tensors of medium length in place of two ranks are reduced the one way or the
//! other, whichever is faster on the machine.
//!
//! Operands are reduced in the order of their ranks, so all ranks get the same bits.

use std::ops::Range;

use rdma_mem::{Operation, SharedSlice, SharedSliceMut, Stores, reduce};

use super::clock::{INLINE, SMALL};
use super::failed;
use super::host::{Host, SharedTensor};
use super::methods::{self, Method};
use super::trials::Kind;
use crate::Error;
use crate::blocks::{BLOCK, parts};
use crate::element::{Element, Reduction};

/// Bytes of a rank's share of a block: two ranks' fit into the second-level cache, with operands.
const SHARE: usize = 256 << 10;
/// Bytes of a line: shares begin on lines of their own.
const LINE: usize = 64;
/// Bytes of all inputs up to which each of more than two ranks reduces all of them: one wait is
/// saved, and more bytes are read.
const WHOLE: usize = 256 << 10;
/// The same of two ranks, which transfer no more bytes so than by shares.
const WHOLE_OF_TWO: usize = 2 * methods::LONGEST;
/// Bytes of all inputs up to which more than two ranks do so in place, which costs copies.
const WHOLE_IN_PLACE: usize = 64 << 10;
/// Ranks whose operands need no allocation.
const FEW: usize = 8;

/// One all-reduce in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllReduce<'a> {
    pub(crate) host: &'a Host,
    pub(crate) input: &'a SharedTensor,
    pub(crate) output: &'a SharedTensor,
    pub(crate) bytes: usize,
    pub(crate) reduction: Reduction,
}

impl AllReduce<'_> {
    /// Up to this size in bytes there is one step.
    pub(crate) const ONE_STEP: usize = SMALL;

    /// Whether other ranks rely on whether this rank's operand of so many bytes is in place. The
    /// shortest are given away, and the longest are reduced by shares, in place or not.
    pub(crate) fn tells_place(bytes: u64, world: usize) -> bool {
        bytes > INLINE as u64 && bytes.saturating_mul(world as u64) <= whole_limit(world, false) as u64
    }

    /// Most bytes of an operand that one of so many ranks stages.
    pub(super) fn most_staged(world: usize) -> usize {
        whole_limit(world, true) / world
    }

    /// Runs this rank's part. Returns when its output is complete.
    pub(crate) fn run<T: Element>(self) -> Result<(), Error> {
        let done = self.run_steps::<T>();
        self.input.used();
        self.output.used();
        done
    }

    fn run_steps<T: Element>(self) -> Result<(), Error> {
        let (trials, methods) = (self.host.clock().trials(), self.host.clock().methods());
        let is_in_place = std::ptr::eq(self.input, self.output);
        let reduces_all = self.bytes * self.host.world() <= whole_limit(self.host.world(), is_in_place);
        if self.bytes <= INLINE || (self.bytes <= SMALL && (is_in_place || !reduces_all)) {
            return self.in_one_step::<T>();
        }
        let whole_in_place = || trials.run(Kind::WholeInPlace, self.bytes, |stores| self.whole_in_place::<T>(stores));
        let shares_in_place = || trials.run(Kind::SharesInPlace, self.bytes, |stores| self.by_shares::<T>(stores));
        if reduces_all && is_in_place && self.host.world() == 2 && self.bytes > methods::STAGED {
            return methods.run(self.host.clock(), self.host.rank(), self.bytes, |method| match method {
                Method::Whole => whole_in_place(),
                Method::Shares => shares_in_place(),
            });
        }
        if reduces_all && is_in_place {
            return whole_in_place();
        }
        if reduces_all {
            return trials.run(Kind::Whole, self.bytes, |stores| self.whole::<T>(stores));
        }
        if is_in_place {
            return shares_in_place();
        }
        trials.run(Kind::Shares, self.bytes, |stores| self.by_shares::<T>(stores))
    }

    /// Reduces the inputs of all ranks where they lie.
    fn whole<T: Element>(self, stores: Stores) -> Result<(), Error> {
        let (clock, all) = (self.host.clock(), 0..self.bytes);
        let ready = clock.now() + 1;
        clock.publish(ready)?;
        clock.wait_for_all(ready)?;
        let own = self.input.own().slice(all.clone()).map_err(failed)?.as_shared();
        let output = self.output.own().slice(all.clone()).map_err(failed)?;
        with_operands(self.host.world(), own, |operands| {
            for (peer, memory) in self.input.others() {
                operands[peer] = memory.slice(all.clone()).map_err(failed)?;
            }
            self.reduce::<T>(output, operands, stores)
        })?;
        clock.end(ready + 1)
    }

    /// Reduces copies of the other ranks' inputs, in the memory of this rank's input.
    fn whole_in_place<T: Element>(self, stores: Stores) -> Result<(), Error> {
        let clock = self.host.clock();
        let output = self.output.own().slice(0..self.bytes).map_err(failed)?;
        let place = self.host.staging().stage(output.as_shared(), stores)?;
        let ready = clock.now() + 1;
        clock.publish(ready)?;
        // All copies are there, and no rank reads this rank's memory any more.
        clock.wait_for_all(ready)?;
        with_operands(self.host.world(), output.as_shared(), |operands| {
            for operand in self.host.staging().others(place) {
                let (peer, memory) = operand?;
                operands[peer] = memory;
            }
            self.reduce::<T>(output, operands, Stores::Cached)
        })
    }

    fn in_one_step<T: Element>(self) -> Result<(), Error> {
        let (clock, all) = (self.host.clock(), 0..self.bytes);
        let own = self.input.own().slice(all.clone()).map_err(failed)?.as_shared();
        let given = clock.give(own)?;
        let output = self.output.own().slice(all).map_err(failed)?;
        // Ranks may still copy the result of an earlier all-reduce.
        clock.settle()?;
        with_operands(self.host.world(), own, |operands| {
            clock.each_given(&given, |rank, message| operands[rank] = message)?;
            self.reduce::<T>(output, operands, Stores::Cached)
        })
    }

    /// Reduces this rank's shares, and copies those of the others.
    fn by_shares<T: Element>(self, stores: Stores) -> Result<(), Error> {
        let (clock, rank, world) = (self.host.clock(), self.host.rank(), self.host.world());
        let shares = Shares::new(self.bytes, world);
        let ready = clock.now() + 1;
        clock.publish(ready)?;
        clock.wait_for_all(ready)?;
        for block in 0..shares.blocks() {
            let share = shares.share(block, rank);
            let own = self.input.own().slice(share.clone()).map_err(failed)?.as_shared();
            let output = self.output.own().slice(share.clone()).map_err(failed)?;
            with_operands(world, own, |operands| {
                for (peer, memory) in self.input.others() {
                    operands[peer] = memory.slice(share.clone()).map_err(failed)?;
                }
                self.reduce::<T>(output, operands, stores)
            })?;
            clock.publish(ready + 1 + block as u64)?;
            if let Some(before) = block.checked_sub(1) {
                self.copy_results(shares, before, ready, stores)?;
            }
        }
        self.copy_results(shares, shares.blocks() - 1, ready, stores)?;
        clock.end(ready + 1 + shares.blocks() as u64)
    }

    /// Copies the other ranks' shares of a block.
    fn copy_results(self, shares: Shares, block: usize, ready: u64, stores: Stores) -> Result<(), Error> {
        for (peer, memory) in self.output.others() {
            self.host.clock().wait_for(peer, ready + 1 + block as u64)?;
            let share = shares.share(block, peer);
            let result = memory.slice(share.clone()).map_err(failed)?;
            let place = self.output.own().slice(share).map_err(failed)?;
            reduce(rdma_mem::Scalar::U8, Operation::Max, place, &[result], stores).map_err(failed)?;
        }
        Ok(())
    }

    fn reduce<T: Element>(
        self,
        into: SharedSliceMut<'_>,
        operands: &[SharedSlice<'_>],
        stores: Stores,
    ) -> Result<(), Error> {
        reduce(T::SCALAR, self.reduction.operation(), into, operands, stores).map_err(failed)?;
        if self.reduction == Reduction::Avg { self.divide::<T>(into) } else { Ok(()) }
    }

    /// Makes averages of sums.
    fn divide<T: Element>(self, sums: SharedSliceMut<'_>) -> Result<(), Error> {
        let mut elements = vec![T::zeroed(); BLOCK / size_of::<T>()];
        for part in parts(0..sums.len(), BLOCK) {
            let elements = &mut elements[..part.len() / size_of::<T>()];
            let place = sums.slice(part).map_err(failed)?;
            place.as_shared().copy_to(bytemuck::cast_slice_mut(elements)).map_err(failed)?;
            self.reduction.finish(elements, self.host.world());
            place.copy_from(bytemuck::cast_slice::<T, u8>(elements).into()).map_err(failed)?;
        }
        Ok(())
    }
}

/// Bytes of all inputs up to which each of so many ranks reduces all of them.
fn whole_limit(world: usize, is_in_place: bool) -> usize {
    match (world, is_in_place) {
        (2, _) => WHOLE_OF_TWO,
        (_, false) => WHOLE,
        (_, true) => WHOLE_IN_PLACE,
    }
}

/// Calls `body` with space for an operand of each rank, of which this rank's is filled in.
pub(super) fn with_operands<'a>(
    world: usize,
    own: SharedSlice<'a>,
    body: impl FnOnce(&mut [SharedSlice<'a>]) -> Result<(), Error>,
) -> Result<(), Error> {
    if world <= FEW { body(&mut [own; FEW][..world]) } else { body(&mut vec![own; world]) }
}

/// The shares of the ranks: some bytes of each block.
#[derive(Clone, Copy, Debug)]
struct Shares {
    bytes: usize,
    world: usize,
    /// Bytes of a share; the last ones of a tensor may have fewer.
    share: usize,
}

impl Shares {
    fn new(bytes: usize, world: usize) -> Self {
        let share = bytes.div_ceil(world).next_multiple_of(LINE).min(SHARE);
        Self { bytes, world, share }
    }

    fn blocks(self) -> usize {
        self.bytes.div_ceil(self.share * self.world).max(1)
    }

    fn share(self, block: usize, rank: usize) -> Range<usize> {
        let start = (block * self.world + rank) * self.share;
        start.min(self.bytes)..(start + self.share).min(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_bytes_once_and_hold_whole_elements() {
        for bytes in [8, 64, 4104, 100_000, 1 << 20, (3 << 20) + 8] {
            for world in 1..=9 {
                let shares = Shares::new(bytes, world);
                let mut end = 0;
                for block in 0..shares.blocks() {
                    for rank in 0..world {
                        let share = shares.share(block, rank);
                        assert_eq!((share.start, share.start % 8), (end, 0), "{bytes} bytes, {world} ranks");
                        end = share.end;
                    }
                }
                assert_eq!(end, bytes, "{world} ranks");
            }
        }
    }
}
