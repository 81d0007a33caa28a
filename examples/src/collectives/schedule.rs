//! The schedule of a ring all-reduce, without any communication.
//!
//! The elements are cut into *blocks*, and each block into one *segment* per rank. A block takes `2
//! (N - 1)` steps. In the first `N - 1` steps a rank adds its own part to the segment that its left
//! neighbour sends and passes the sum on; in the other steps the finished segments go round the
//! ring. A rank sends at step `t` the segment that it received at step `t - 1`.
//!
//! Blocks overlap like the stages of a pipeline: block `b` is at step `t` in *tick* `b + t * lead`.
//! Every rank sends its messages in the order of ticks, and within a tick in the order of steps.
//! Both ends of a connection can therefore tell which message comes next from its number alone.

use std::ops::Range;

/// Segment lengths are multiples of this many elements, so that no two segments share a cache line.
const ALIGNMENT: usize = 16;

/// A message of the schedule: one segment of one block, at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The block.
    pub(super) block: usize,
    /// The step of that block.
    pub(super) step: usize,
}

/// How a rank handles a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
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
pub(super) struct Schedule {
    rank: usize,
    world: usize,
    count: usize,
    /// Elements of a segment; the last segments may have fewer.
    segment: usize,
    blocks: usize,
    lead: usize,
}

impl Schedule {
    /// Creates a schedule whose segments have at most `chunk` elements, with `lead` ticks between
    /// the steps of a block.
    pub(super) fn new(rank: usize, world: usize, count: usize, chunk: usize, lead: usize) -> Self {
        let even = count.div_ceil(world);
        let blocks = even.div_ceil(chunk.max(ALIGNMENT)).max(1);
        let segment = even.div_ceil(blocks).next_multiple_of(ALIGNMENT);
        // Rounded-up segments may leave no elements for the last blocks.
        let blocks = count.div_ceil(segment * world).max(1);
        Self { rank, world, count, segment, blocks, lead: lead.max(1) }
    }

    /// Number of steps of a block.
    pub(super) fn steps(&self) -> usize {
        2 * (self.world - 1)
    }

    /// The elements that this rank sends in a message.
    pub(super) fn sent(&self, message: Message) -> Range<usize> {
        self.segment(message.block, self.rank + 2 * self.world - message.step)
    }

    /// The elements that this rank receives in a message.
    pub(super) fn received(&self, message: Message) -> Range<usize> {
        self.segment(message.block, self.rank + 2 * self.world - message.step - 1)
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The elements of a block's segment; an empty range past the last element.
    pub(super) fn segment(&self, block: usize, segment: usize) -> Range<usize> {
        let start = (block * self.world + segment % self.world) * self.segment;
        start.min(self.count)..(start + self.segment).min(self.count)
    }

    /// How the rank handles a message from its left neighbour.
    pub(super) fn action(&self, step: usize) -> Action {
        match self.world {
            n if step + 2 < n => Action::Reduce,
            n if step + 2 == n => Action::Finish,
            n if step + 3 < 2 * n => Action::Forward,
            _ => Action::Keep,
        }
    }

    /// The number of ticks until the last message is sent.
    pub(super) fn ticks(&self) -> usize {
        self.blocks + (self.steps() - 1) * self.lead
    }

    /// Ticks between the steps of a block.
    pub(super) fn lead(&self) -> usize {
        self.lead
    }

    /// The left neighbour's last message of a block, which follows those that this rank passes on
    /// in `tick`; this rank does not pass it on.
    pub(super) fn last_of_left(&self, tick: usize) -> Option<Message> {
        let block = tick.checked_sub(self.steps() * self.lead)?;
        (block < self.blocks).then_some(Message { block, step: self.steps() - 1 })
    }

    /// The messages that a rank sends in a tick, in sending order.
    pub(super) fn messages(&self, tick: usize) -> impl Iterator<Item = Message> + use<> {
        let (blocks, lead, steps) = (self.blocks, self.lead, self.steps());
        (0..steps)
            .filter_map(move |step| Some(Message { block: tick.checked_sub(step * lead)?, step }))
            .filter(move |message| message.block < blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether messages of a step go into the right neighbour's scratch memory.
    fn uses_scratch(plan: &Schedule, step: usize) -> bool {
        step < plan.world - 1
    }

    /// Runs the schedules of all ranks with vectors in place of memory, and checks that at most
    /// `slots` scratch messages are unread.
    fn play(world: usize, count: usize, chunk: usize, lead: usize) {
        let plans: Vec<Schedule> = (0..world).map(|r| Schedule::new(r, world, count, chunk, lead)).collect();
        let input = |rank: usize, i: usize| (i * 31 + rank * 7) as u64 % 1000;
        let mut out = vec![vec![u64::MAX; count]; world];
        // The messages in flight from each rank's left neighbour.
        let mut wires: Vec<std::collections::VecDeque<(Message, Vec<u64>)>> = vec![Default::default(); world];
        let order = |plan: &Schedule| (0..plan.ticks()).flat_map(|t| plan.messages(t)).collect::<Vec<_>>();
        let mut orders: Vec<Vec<Message>> = plans.iter().map(|p| order(p).into_iter().rev().collect()).collect();
        let slots = (lead + 1) * (world - 1);
        let mut received = vec![Vec::new(); world];
        loop {
            let mut moved = false;
            for rank in 0..world {
                let plan = &plans[rank];
                let Some(&next) = orders[rank].last() else { continue };
                let right = (rank + 1) % world;
                let unread = wires[right].iter().filter(|(m, _)| uses_scratch(plan, m.step)).count();
                if uses_scratch(plan, next.step) && unread >= slots {
                    continue;
                }
                let data = if next.step == 0 {
                    plan.sent(next).map(|i| input(rank, i)).collect()
                } else {
                    // The next message to send determines the expected message: the one of the step
                    // before.
                    let Some((message, mut data)) = wires[rank].pop_front() else { continue };
                    received[rank].push(message);
                    assert_eq!(message, Message { step: next.step - 1, ..next }, "world {world}");
                    let place = plan.received(message);
                    assert_eq!(place, plan.sent(next));
                    match plan.action(message.step) {
                        Action::Reduce => place.zip(&mut data).for_each(|(i, d)| *d += input(rank, i)),
                        Action::Finish => {
                            place.clone().zip(&mut data).for_each(|(i, d)| *d += input(rank, i));
                            out[rank][place].copy_from_slice(&data);
                        }
                        Action::Forward => out[rank][place].copy_from_slice(&data),
                        Action::Keep => panic!("nothing passes on what is kept"),
                    }
                    data
                };
                orders[rank].pop();
                wires[right].push_back((next, data));
                moved = true;
            }
            // Takes out results that are only kept, whenever one is next.
            for rank in 0..world {
                while let Some((m, _)) = wires[rank].front() {
                    if plans[rank].action(m.step) != Action::Keep {
                        break;
                    }
                    let Some((m, data)) = wires[rank].pop_front() else { break };
                    received[rank].push(m);
                    out[rank][plans[rank].received(m)].copy_from_slice(&data);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        assert!(orders.iter().all(Vec::is_empty), "stuck: world {world} count {count} chunk {chunk} lead {lead}");
        for rank in 0..world {
            let sent = order(&plans[(rank + world - 1) % world]);
            assert_eq!(received[rank], sent, "messages arrive in the order of the left neighbour's schedule");
            for (i, value) in out[rank].iter().enumerate() {
                assert_eq!(*value, (0..world).map(|r| input(r, i)).sum::<u64>(), "rank {rank} element {i}");
            }
        }
    }

    #[test]
    fn every_rank_ends_with_the_sum() {
        for world in 2..=7 {
            for count in [1, 2, 15, 16, 17, 100, 1000, 4099] {
                for chunk in [1, 16, 50, 4096] {
                    for lead in [1, 2, 3] {
                        play(world, count, chunk, lead);
                    }
                }
            }
        }
    }

    #[test]
    fn segments_cover_the_elements_once() {
        for (world, count, chunk) in [(2, 1000, 64), (3, 7, 64), (4, 1 << 20, 4096), (5, 12345, 100)] {
            let plan = Schedule::new(0, world, count, chunk, 1);
            let mut covered: Vec<usize> = (0..plan.blocks)
                .flat_map(|block| (0..world).map(move |segment| (block, segment)))
                .flat_map(|(block, segment)| plan.segment(block, segment))
                .collect();
            covered.sort_unstable();
            assert!(covered.into_iter().eq(0..count));
        }
    }
}
