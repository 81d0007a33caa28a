//! Reduction and multicast in aggregators: processes without input and output, as switches with
//! SHARP are. Each rank's link carries its input up and the result down, once each.
//!
//! The aggregators are a tree. Those without aggregators below them have ranks below, consecutive
//! ones, so that every element is reduced in the order of ranks.

use std::ops::Range;

use super::builder::{input, message, output, scratch};
use super::{Builder, Collective, Job};
use crate::blocks::parts;
use crate::schedule::step::{Source, Span};

/// Chunks that an aggregator sends to its parent ahead of the result that it awaits, for each step
/// of its distance from the root.
const AHEAD: usize = 2;

/// The tree of a job's aggregators, in the order of a heap: number 0 is the root.
struct Tree {
    ranks: usize,
    aggregators: usize,
    radix: usize,
}

/// A process's place in the tree.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    parent: Option<usize>,
    /// The processes below, in the order of their ranks.
    children: Vec<usize>,
    /// Steps to the root.
    depth: usize,
}

impl Tree {
    fn of(job: &Job) -> Self {
        Self { ranks: job.ranks, aggregators: job.aggregators, radix: job.radix }
    }

    /// The place of a process; an aggregator without ranks below has neither parent nor children.
    fn node(&self, process: usize) -> Node {
        let Some(aggregator) = process.checked_sub(self.ranks) else {
            let leaf = self.leaves(0).into_iter().find(|&leaf| self.below(leaf).contains(&process));
            let leaf = leaf.unwrap_or_default();
            return Node { parent: Some(self.ranks + leaf), children: Vec::new(), depth: self.depth(leaf) + 1 };
        };
        let ranks = self.below(aggregator);
        let inner: Vec<usize> = self.aggregators_below(aggregator).collect();
        let children = if inner.is_empty() {
            ranks.clone().collect()
        } else {
            let used = inner.into_iter().filter(|&child| !self.below(child).is_empty());
            used.map(|child| self.ranks + child).collect()
        };
        let parent = self.parent(aggregator).filter(|_| !ranks.is_empty()).map(|parent| self.ranks + parent);
        Node { parent, children, depth: self.depth(aggregator) }
    }

    fn parent(&self, aggregator: usize) -> Option<usize> {
        aggregator.checked_sub(1).map(|before| before / self.radix)
    }

    fn depth(&self, aggregator: usize) -> usize {
        std::iter::successors(Some(aggregator), |&at| self.parent(at)).count() - 1
    }

    fn aggregators_below(&self, aggregator: usize) -> Range<usize> {
        let first = aggregator.saturating_mul(self.radix).saturating_add(1);
        first.min(self.aggregators)..first.saturating_add(self.radix).min(self.aggregators)
    }

    /// The aggregators with ranks at or below an aggregator, in the order of their ranks.
    fn leaves(&self, aggregator: usize) -> Vec<usize> {
        let below = self.aggregators_below(aggregator);
        if below.is_empty() { vec![aggregator] } else { below.flat_map(|child| self.leaves(child)).collect() }
    }

    /// The ranks below an aggregator, at any distance.
    fn below(&self, aggregator: usize) -> Range<usize> {
        let (all, own) = (self.leaves(0), self.leaves(aggregator));
        let position = |leaf: Option<&usize>| all.iter().position(|other| Some(other) == leaf).unwrap_or_default();
        let bound = |leaf: usize| self.ranks * leaf / all.len();
        bound(position(own.first()))..bound(position(own.last()) + 1)
    }

    /// The child of an aggregator through which a rank is reached, if it is below.
    fn towards(&self, children: &[usize], rank: usize) -> Option<usize> {
        let reaches = |child: usize| match child.checked_sub(self.ranks) {
            Some(aggregator) => self.below(aggregator).contains(&rank),
            None => child == rank,
        };
        children.iter().copied().find(|&child| reaches(child))
    }
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    let tree = Tree::of(b.job);
    let node = tree.node(b.rank());
    if b.job.is_aggregator() {
        let root = tree.towards(&node.children, b.job.root);
        match op {
            Collective::AllReduce => aggregate(b, &node, &node.children),
            Collective::Reduce => aggregate(b, &node, root.as_slice()),
            Collective::Broadcast => multicast(b, &node, root),
            _ => barrier(b, &node),
        }
    } else if let Some(aggregator) = node.parent {
        match op {
            Collective::AllReduce => {
                b.send(aggregator, &b.input());
                b.receive(aggregator, &b.output());
            }
            Collective::Reduce => {
                b.send(aggregator, &input(0..b.job.count));
                b.receive(aggregator, &b.output());
            }
            Collective::Broadcast if b.rank() == b.job.root => {
                b.send(aggregator, &b.input());
                b.copy_input_to_output();
            }
            Collective::Broadcast => b.receive(aggregator, &output(0..b.job.count)),
            _ => {
                b.signal(aggregator);
                b.await_signals([aggregator]);
            }
        }
    }
}

/// Reduces the children's elements, passes the sums up, and sends the result to some of the
/// children. Sums go up while earlier results come down.
fn aggregate(b: &mut Builder<'_>, node: &Node, to: &[usize]) {
    if node.children.is_empty() {
        return;
    }
    let sources: Vec<Source> = node.children.iter().map(|&child| message(child)).collect();
    let chunks: Vec<Range<usize>> = parts(0..b.job.count, b.job.chunk).collect();
    let ahead = AHEAD * node.depth;
    let slots = Slots::new(b, &chunks, ahead + AHEAD);
    for tick in 0..chunks.len() + ahead {
        if let Some(chunk) = chunks.get(tick) {
            let up = node.parent.as_ref().map_or(to, std::slice::from_ref);
            b.relay(&sources, &slots.sum(tick, chunk), up);
        }
        let result = tick.checked_sub(ahead).and_then(|index| Some((index, chunks.get(index)?)));
        if let (Some(parent), Some((index, chunk)), false) = (node.parent, result, to.is_empty()) {
            b.relay(&[message(parent)], &slots.result(index, chunk), to);
        }
    }
}

/// Scratch memory for some chunks of sums and as many of results, used in turn.
struct Slots {
    number: usize,
    length: usize,
}

impl Slots {
    fn new(b: &mut Builder<'_>, chunks: &[Range<usize>], most: usize) -> Self {
        let (number, length) = (most.min(chunks.len()), chunks.first().map_or(0, Range::len));
        b.reserve_scratch(2 * number * length);
        Self { number, length }
    }

    fn sum(&self, index: usize, chunk: &Range<usize>) -> Span {
        self.slot(index % self.number, chunk)
    }

    fn result(&self, index: usize, chunk: &Range<usize>) -> Span {
        self.slot(self.number + index % self.number, chunk)
    }

    fn slot(&self, slot: usize, chunk: &Range<usize>) -> Span {
        scratch(slot * self.length..slot * self.length + chunk.len())
    }
}

/// Passes on what comes from the root's side: to the parent, if the root is below, and to all
/// other children.
fn multicast(b: &mut Builder<'_>, node: &Node, root: Option<usize>) {
    let Some(from) = root.or(node.parent) else { return };
    let up = node.parent.filter(|_| root.is_some());
    let down = node.children.iter().copied().filter(|&child| Some(child) != root);
    let to: Vec<usize> = up.into_iter().chain(down).collect();
    let chunks: Vec<Range<usize>> = parts(0..b.job.count, b.job.chunk).collect();
    let slots = Slots::new(b, &chunks, AHEAD);
    for (index, chunk) in chunks.iter().enumerate() {
        b.relay(&[message(from)], &slots.sum(index, chunk), &to);
    }
}

fn barrier(b: &mut Builder<'_>, node: &Node) {
    b.await_signals(node.children.iter().copied());
    if let Some(parent) = node.parent {
        b.signal(parent);
        b.await_signals([parent]);
    }
    node.children.iter().for_each(|&child| b.signal(child));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(ranks: usize, aggregators: usize, radix: usize) -> Vec<Vec<usize>> {
        let tree = Tree { ranks, aggregators, radix };
        (ranks..ranks + aggregators).map(|process| tree.node(process).children).collect()
    }

    #[test]
    fn aggregators_share_the_ranks() {
        assert_eq!(children(4, 1, 8), [vec![0, 1, 2, 3]]);
        assert_eq!(children(5, 3, 2), [vec![6, 7], vec![0, 1], vec![2, 3, 4]]);
        // Aggregator 1 has two more below it, and its ranks come before those of aggregator 2.
        assert_eq!(children(6, 5, 2), [vec![7, 8], vec![9, 10], vec![4, 5], vec![0, 1], vec![2, 3]]);
        // A chain.
        assert_eq!(children(2, 3, 1), [vec![3], vec![4], vec![0, 1]]);
    }

    #[test]
    fn aggregators_without_ranks_are_left_out() {
        let tree = Tree { ranks: 2, aggregators: 5, radix: 4 };
        let used: Vec<_> = (2..7).map(|process| tree.node(process)).filter(|node| !node.children.is_empty()).collect();
        assert_eq!(used.len(), 3);
        for process in 2..7 {
            let node = tree.node(process);
            assert!(node.children.iter().all(|&child| tree.node(child).parent == Some(process)));
        }
    }
}
