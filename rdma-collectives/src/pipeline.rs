//! The order of messages in an all-reduce by a ring, without any communication.
//!
//! The elements are cut into *blocks*, and each block into one *segment* per rank. A block takes `2
//! (N - 1)` steps. In the first `N - 1` steps a rank adds its own part to the segment that its left
//! neighbour sends and passes the sum on; in the other steps the finished segments go round the
//! ring. A rank sends at step `t` the segment that it received at step `t - 1`.
//!
//! Blocks overlap like the stages of a pipeline: block `b` is at step `t` in *tick* `b + t * lead`.
//! Every rank sends its messages in the order of ticks, and within a tick in the order of steps.
//! Both sides of a connection can therefore tell which message comes next from its number alone.

use std::ops::Range;

/// Segment lengths are multiples of this many elements, so that no two segments share a cache line.
const ALIGNMENT: usize = 16;

/// A message of the ring: one segment of one block, at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The block.
    pub(crate) block: usize,
    /// The step of that block.
    pub(crate) step: usize,
}

/// How a rank handles a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Add this rank's part and pass the sum on to the right neighbour's scratch memory.
    Reduce,
    /// Add this rank's part: the sum is complete. Keep the result and pass it on as a result.
    Finish,
    /// The message is a result: pass it on.
    Forward,
    /// The message is a result that the right neighbour has already: keep it only.
    Keep,
}

/// One rank's all-reduce of `count` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    rank: usize,
    world: usize,
    count: usize,
    /// Elements of a segment; the last segments may have fewer.
    segment: usize,
    blocks: usize,
    lead: usize,
}

impl Pipeline {
    /// Creates a schedule whose segments have at most `chunk` elements, with `lead` ticks between
    /// the steps of a block.
    pub(crate) fn new(rank: usize, world: usize, count: usize, chunk: usize, lead: usize) -> Self {
        let even = count.div_ceil(world);
        let blocks = even.div_ceil(chunk.max(ALIGNMENT)).max(1);
        let segment = even.div_ceil(blocks).next_multiple_of(ALIGNMENT);
        // Rounded-up segments may leave no elements for the last blocks.
        let blocks = count.div_ceil(segment * world).max(1);
        Self { rank, world, count, segment, blocks, lead: lead.max(1) }
    }

    /// Number of steps of a block.
    pub(crate) fn steps(&self) -> usize {
        2 * (self.world - 1)
    }

    /// The elements that this rank sends in a message.
    pub(crate) fn sent(&self, message: Message) -> Range<usize> {
        self.segment(message.block, self.rank + 2 * self.world - message.step)
    }

    /// The elements that this rank receives in a message.
    pub(crate) fn received(&self, message: Message) -> Range<usize> {
        self.segment(message.block, self.rank + 2 * self.world - message.step - 1)
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The elements of a block's segment; an empty range past the last element.
    pub(crate) fn segment(&self, block: usize, segment: usize) -> Range<usize> {
        let start = (block * self.world + segment % self.world) * self.segment;
        start.min(self.count)..(start + self.segment).min(self.count)
    }

    /// How the rank handles a message from its left neighbour.
    pub(crate) fn action(&self, step: usize) -> Action {
        match self.world {
            n if step + 2 < n => Action::Reduce,
            n if step + 2 == n => Action::Finish,
            n if step + 3 < 2 * n => Action::Forward,
            _ => Action::Keep,
        }
    }

    /// The number of ticks until the last message is sent.
    pub(crate) fn ticks(&self) -> usize {
        self.blocks + (self.steps() - 1) * self.lead
    }

    /// Ticks between the steps of a block.
    pub(crate) fn lead(&self) -> usize {
        self.lead
    }

    /// The left neighbour's last message of a block, which follows those that this rank passes on
    /// in `tick`; this rank does not pass it on.
    pub(crate) fn last_of_left(&self, tick: usize) -> Option<Message> {
        let block = tick.checked_sub(self.steps() * self.lead)?;
        (block < self.blocks).then_some(Message { block, step: self.steps() - 1 })
    }

    /// The messages that a rank sends in a tick, in sending order.
    pub(crate) fn messages(&self, tick: usize) -> impl Iterator<Item = Message> + use<> {
        let (blocks, lead, steps) = (self.blocks, self.lead, self.steps());
        (0..steps)
            .filter_map(move |step| Some(Message { block: tick.checked_sub(step * lead)?, step }))
            .filter(move |message| message.block < blocks)
    }
}

#[cfg(test)]
mod tests;
