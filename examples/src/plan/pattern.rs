//! Communication patterns, and the number of messages that leave a group of consecutive ranks.

use std::ops::Range;

use super::tree;

/// A communication pattern among `n` units, which are ranks, or hosts with one message per rank.
///
/// The direction does not matter: a pattern and its reverse load the same links, those of the
/// other direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every unit sends to the unit so many places to the right, around the ring.
    Shift(usize),
    /// The first `count` units, a power of two, exchange with the unit whose number differs in the
    /// bit `distance`.
    Exchange {
        /// A power of two less than `count`.
        distance: usize,
        /// Number of units that take part.
        count: usize,
    },
    /// The units from `count` on, at most as many again, send to the unit `count` places before.
    Fold(usize),
    /// A level of a binomial tree: each multiple `i` of `2 d` sends to `i + d`, if there is one.
    Binomial(usize),
    /// Every unit sends to every other.
    AllPairs,
    /// Every unit sends to every other of its block of so many units.
    BlockPairs(usize),
    /// Unit 0 sends to each other of the first so many units.
    Star(usize),
    /// Each unit sends to its parents in two binary trees, in one of which it is a leaf.
    DoubleTree,
    /// As [`DoubleTree`](Self::DoubleTree), and each parent sends to its children too.
    DoubleTreeBoth,
    /// Switches reduce and multicast: one message enters and one leaves every group.
    Aggregate,
}

impl Pattern {
    /// The largest number of messages that leave, or that enter, a group of consecutive units,
    /// whichever is larger.
    #[must_use]
    pub fn crossing(self, units: usize, group: Range<usize>) -> usize {
        if group.len() >= units {
            return 0;
        }
        let inside = self.inside(units, group.clone());
        let (sent, received) = match self {
            Self::Shift(_) => (group.len(), group.len()),
            Self::Exchange { count, .. } => {
                let taking_part = overlap(&group, &(0..count));
                (taking_part, taking_part)
            }
            Self::Fold(count) => (overlap(&group, &(count..units)), overlap(&group, &(0..units - count))),
            Self::Binomial(distance) => {
                let senders = group.start..group.end.min(units.saturating_sub(distance));
                let receivers = group.start.max(distance) - distance..group.end.saturating_sub(distance);
                (multiples(&senders, 2 * distance), multiples(&receivers, 2 * distance))
            }
            Self::AllPairs => (group.len() * (units - 1), group.len() * (units - 1)),
            // Groups consist of whole blocks.
            Self::BlockPairs(_) => (inside, inside),
            Self::Star(span) => {
                let from_root = if group.start == 0 { span - 1 } else { 0 };
                (from_root, overlap(&group, &(1..span)))
            }
            Self::DoubleTree | Self::DoubleTreeBoth => return tree::crossing(units, &group, self.is_both_ways()),
            Self::Aggregate => (1, 1),
        };
        sent.max(received) - inside
    }

    /// The number of messages from units of a group to units of the same group.
    #[must_use]
    pub fn inside(self, units: usize, group: Range<usize>) -> usize {
        let length = group.len();
        match self {
            // The units whose right neighbour is in the group, directly or around the ring.
            Self::Shift(by) => length.saturating_sub(by) + length.saturating_sub(units - by),
            Self::Exchange { distance, count } => {
                exchanges_inside(&(group.start.min(count)..group.end.min(count)), distance)
            }
            Self::Fold(count) => overlap(&(group.start + count..group.end), &(count..units)),
            Self::Binomial(distance) => multiples(&(group.start..group.end.saturating_sub(distance)), 2 * distance),
            Self::AllPairs => length * length.saturating_sub(1),
            Self::BlockPairs(block) => length * (block.min(length) - 1),
            Self::Star(span) if group.start == 0 => span.min(length).saturating_sub(1),
            Self::Star(_) | Self::Aggregate => 0,
            Self::DoubleTree | Self::DoubleTreeBoth => tree::inside(units, &group, self.is_both_ways()),
        }
    }

    /// The most messages that one unit of a host sends to, or receives from, others of the host.
    #[must_use]
    pub fn port(self, units: usize, host: Range<usize>) -> usize {
        match self {
            Self::AllPairs => host.len() - 1,
            Self::BlockPairs(block) => block.min(host.len()) - 1,
            Self::DoubleTree | Self::DoubleTreeBoth => tree::port(units, &host, self.is_both_ways()),
            Self::Star(_) => self.inside(units, host),
            _ => self.inside(units, host).min(1),
        }
    }

    /// The number of messages that the busiest unit sends.
    #[must_use]
    pub fn messages(self, units: usize) -> usize {
        match self {
            Self::AllPairs => units - 1,
            Self::BlockPairs(size) | Self::Star(size) => size - 1,
            Self::DoubleTree => 2,
            Self::DoubleTreeBoth => 4,
            _ => 1,
        }
    }

    /// Whether groups of the same length have the same load, wherever they begin.
    #[must_use]
    pub fn is_uniform(self) -> bool {
        matches!(self, Self::Shift(_) | Self::AllPairs | Self::BlockPairs(_) | Self::Aggregate)
    }

    fn is_both_ways(self) -> bool {
        self == Self::DoubleTreeBoth
    }
}

/// The number of elements that two ranges share.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> usize {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

/// The number of multiples of `of` in a range.
fn multiples(range: &Range<usize>, of: usize) -> usize {
    range.end.div_ceil(of).saturating_sub(range.start.div_ceil(of))
}

/// The number of elements of a range whose partner at `distance`, a power of two, is in the range.
fn exchanges_inside(range: &Range<usize>, distance: usize) -> usize {
    let block = 2 * distance;
    let first_whole = range.start.next_multiple_of(block);
    let last_whole = range.end - range.end % block;
    if first_whole > last_whole {
        return pairs_of_block(range, range.start - range.start % block, distance);
    }
    let before = pairs_of_block(&(range.start..first_whole), first_whole.saturating_sub(block), distance);
    let after = pairs_of_block(&(last_whole..range.end), last_whole, distance);
    before + (last_whole - first_whole) + after
}

/// [`exchanges_inside`] for a range that lies in the block that begins at `start`.
fn pairs_of_block(range: &Range<usize>, start: usize, distance: usize) -> usize {
    let middle = start + distance;
    let lower = range.start.min(middle) + distance..range.end.min(middle) + distance;
    2 * overlap(&lower, &(range.start.max(middle)..range.end.max(middle)))
}
