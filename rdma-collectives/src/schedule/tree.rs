//! Broadcast, reduce and all-reduce over trees. Chains, stars and binomial trees differ in their
//! shape alone.

use std::ops::Range;

use super::builder::{input, local, message, output, scratch, share};
use super::hierarchical::Hosts;
use super::{Algorithm, Builder, Collective};
use crate::blocks::parts;
use crate::schedule::step::{Place, Source, Span};

/// A rank's place in a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<usize>,
}

/// A tree that serves a range of the elements.
struct Tree {
    node: Node,
    range: Range<usize>,
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective, algorithm: Algorithm) {
    let (count, root) = (b.job.count, if op.has_root() { b.job.root } else { 0 });
    let trees = if algorithm == Algorithm::Tree {
        let [first, second] = double(b.rank(), b.ranks(), root);
        let half = |index| share(&(0..count), 2, index);
        vec![Tree { node: first, range: half(0) }, Tree { node: second, range: half(1) }]
    } else {
        vec![Tree { node: single(b, algorithm, root), range: 0..count }]
    };
    match op {
        Collective::Broadcast => broadcast(b, &trees),
        Collective::Reduce => reduce(b, &trees),
        _ => all_reduce(b, &trees),
    }
}

/// This rank's place in the tree of an algorithm that has one.
fn single(b: &Builder<'_>, algorithm: Algorithm, root: usize) -> Node {
    let (rank, n) = (b.rank(), b.ranks());
    match algorithm {
        Algorithm::Ring => rotated(rank, n, root, chain),
        Algorithm::Binomial => rotated(rank, n, root, binomial),
        Algorithm::Hierarchical => Hosts::new(b.job).tree(rank, root),
        _ => rotated(rank, n, root, star),
    }
}

/// The node of a rank in a tree of `n` ranks that is drawn with rank 0 as its root.
pub(super) fn rotated(rank: usize, n: usize, root: usize, shape: impl Fn(usize, usize) -> Node) -> Node {
    shape((rank + n - root) % n, n).renamed(|drawn| (drawn + root) % n)
}

impl Node {
    /// The node with other numbers of its neighbours.
    pub(super) fn renamed(self, name: impl Fn(usize) -> usize) -> Self {
        let parent = self.parent.map(&name);
        Self { parent, children: self.children.into_iter().map(name).collect() }
    }

    /// Adds children, which come after those that the node has.
    pub(super) fn with_children(mut self, children: impl IntoIterator<Item = usize>) -> Self {
        self.children.extend(children);
        self
    }

    /// A leaf below a rank.
    pub(super) fn leaf(parent: usize) -> Self {
        Self { parent: Some(parent), children: Vec::new() }
    }
}

fn chain(rank: usize, n: usize) -> Node {
    let children = (rank + 1..n).take(1).collect();
    Node { parent: rank.checked_sub(1), children }
}

fn star(rank: usize, n: usize) -> Node {
    if rank == 0 { Node { children: (1..n).collect(), ..Node::default() } } else { Node::leaf(0) }
}

/// The parent of a rank is the rank without its lowest bit. Children with many ranks below them
/// come first.
pub(super) fn binomial(rank: usize, n: usize) -> Node {
    let low = if rank == 0 { n.next_power_of_two() } else { rank & rank.wrapping_neg() };
    let children = std::iter::successors(Some(low / 2), |bit| Some(bit / 2)).take_while(|&bit| bit > 0);
    let children = children.map(|bit| rank + bit).filter(|&child| child < n).collect();
    Node { parent: (rank > 0).then(|| rank - low), children }
}

/// Two binary trees below the root. Every other rank is inner in one tree at most, so that both
/// directions of every rank's link are busy.
fn double(rank: usize, n: usize, root: usize) -> [Node; 2] {
    let others = n - 1;
    // The other ranks are drawn as 1 to `others`. Odd ranks are leaves of the first tree, and even
    // ones of the second, which is the first with its numbers mirrored or moved on by one.
    let mirrored = |drawn: usize| if drawn == 0 { 0 } else { others + 1 - drawn };
    let moved = |drawn: usize| if drawn == 0 { 0 } else { drawn % others + 1 };
    let moved_back = |drawn: usize| if drawn == 0 { 0 } else { (drawn + others - 2) % others + 1 };
    let second = |rank, n| {
        if others % 2 == 0 {
            in_order(mirrored(rank), n).renamed(mirrored)
        } else {
            in_order(moved(rank), n).renamed(moved_back)
        }
    };
    [rotated(rank, n, root, in_order), rotated(rank, n, root, second)]
}

/// A binary tree of the ranks from 1 below rank 0, in which odd ranks are leaves.
fn in_order(rank: usize, n: usize) -> Node {
    let (mut node, mut at, mut below) = (Node::default(), 0, [1..n, n..n]);
    loop {
        node.children = below.iter().filter_map(top).collect();
        if at == rank {
            return node;
        }
        let Some(range) = below.into_iter().find(|range| range.contains(&rank)) else { return node };
        let Some(next) = top(&range) else { return node };
        node = Node::leaf(at);
        at = next;
        below = [range.start..at, at + 1..range.end];
    }
}

/// The root of the subtree of some consecutive ranks, none of which is 0: the one with most
/// trailing zeros.
fn top(ranks: &Range<usize>) -> Option<usize> {
    let (before, last) = (ranks.start - 1, ranks.end - 1);
    let bits = (before ^ last).checked_ilog2().filter(|_| !ranks.is_empty());
    bits.map(|bits| last >> bits << bits)
}

fn broadcast(b: &mut Builder<'_>, trees: &[Tree]) {
    if b.rank() == b.job.root {
        for_each_chunk(b, trees, |b, node, part| send_to_all(b, &node.children, &input(part)));
        return b.copy_input_to_output();
    }
    for_each_chunk(b, trees, down);
}

fn reduce(b: &mut Builder<'_>, trees: &[Tree]) {
    if b.rank() != b.job.root && trees.iter().any(|tree| !tree.node.children.is_empty()) {
        b.reserve_scratch(b.job.count);
    }
    let place = if b.rank() == b.job.root { Place::Output } else { Place::Scratch };
    for_each_chunk(b, trees, |b, node, part| up(b, node, part, place));
}

/// Results go down while later chunks go up. All ranks do the same chunk at the same tick, so that
/// two ranks that meet in both trees agree on the order of their messages. The root passes a result
/// on at once, and the others expect it when it has had time to go up and down.
fn all_reduce(b: &mut Builder<'_>, trees: &[Tree]) {
    let chunks: Vec<Vec<_>> = trees.iter().map(|tree| chunks(b, tree)).collect();
    let longest = chunks.iter().map(Vec::len).max().unwrap_or(0);
    let way = 2 * (usize::BITS - b.ranks().leading_zeros()) as usize;
    // Others wait for what a rank passes on: a leaf's elements go up first, and come down last.
    let (leaves, inner): (Vec<_>, Vec<_>) =
        trees.iter().zip(&chunks).partition(|(tree, _)| tree.node.children.is_empty());
    for tick in 0..longest + way {
        for (tree, chunks) in leaves.iter().chain(&inner) {
            let Some(part) = chunks.get(tick) else { continue };
            up(b, &tree.node, part.clone(), Place::Output);
            if tree.node.parent.is_none() {
                send_to_all(b, &tree.node.children, &output(part.clone()));
            }
        }
        for (tree, chunks) in inner.iter().chain(&leaves) {
            if let Some(part) = tick.checked_sub(way).and_then(|index| chunks.get(index)) {
                down(b, &tree.node, part.clone());
            }
        }
    }
}

/// Receives a chunk from the parent and passes it on.
fn down(b: &mut Builder<'_>, node: &Node, part: Range<usize>) {
    if let Some(parent) = node.parent {
        b.relay(&[message(parent)], &output(part), &node.children);
    }
}

/// Reduces this rank's and the children's elements, in the order of ranks, and passes them on.
fn up(b: &mut Builder<'_>, node: &Node, part: Range<usize>, place: Place) {
    let own = input(part.clone());
    if node.children.is_empty() {
        return send_to_all(b, node.parent.as_slice(), &own);
    }
    let mut operands: Vec<(usize, Source)> = node.children.iter().map(|&child| (child, message(child))).collect();
    operands.push((b.rank(), local(own)));
    operands.sort_by_key(|&(rank, _)| rank);
    let sources: Vec<_> = operands.into_iter().map(|(_, source)| source).collect();
    let into = if place == Place::Output { output(part) } else { scratch(part) };
    b.relay(&sources, &into, node.parent.as_slice());
}

fn send_to_all(b: &mut Builder<'_>, to: &[usize], span: &Span) {
    for &to in to {
        b.send(to, span);
    }
}

/// Calls a function for the chunks of all trees in turn.
fn for_each_chunk(b: &mut Builder<'_>, trees: &[Tree], mut emit: impl FnMut(&mut Builder<'_>, &Node, Range<usize>)) {
    let chunks: Vec<Vec<_>> = trees.iter().map(|tree| chunks(b, tree)).collect();
    let longest = chunks.iter().map(Vec::len).max().unwrap_or(0);
    for index in 0..longest {
        for (tree, chunks) in trees.iter().zip(&chunks) {
            if let Some(part) = chunks.get(index) {
                emit(b, &tree.node, part.clone());
            }
        }
    }
}

/// The messages that carry a tree's elements.
fn chunks(b: &Builder<'_>, tree: &Tree) -> Vec<Range<usize>> {
    parts(tree.range.clone(), b.job.chunk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the nodes of all ranks are one tree, and returns its depth.
    fn depth(n: usize, root: usize, node: impl Fn(usize) -> Node) -> usize {
        let mut ranks = vec![root];
        let (mut level, mut depth) = (0..1, 0);
        assert_eq!(node(root).parent, None);
        while !level.is_empty() {
            for index in level.clone() {
                for child in node(ranks[index]).children {
                    assert_eq!(node(child).parent, Some(ranks[index]), "{n} {root}");
                    ranks.push(child);
                }
            }
            level = level.end..ranks.len();
            depth += usize::from(!level.is_empty());
        }
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..n), "{n} {root}");
        depth
    }

    #[test]
    fn shapes_are_trees() {
        for n in 1..40_usize {
            for root in [0, n / 2, n - 1] {
                let log = n.next_power_of_two().ilog2() as usize;
                assert_eq!(depth(n, root, |rank| rotated(rank, n, root, chain)), n - 1);
                assert_eq!(depth(n, root, |rank| rotated(rank, n, root, star)), 1.min(n - 1));
                assert!(depth(n, root, |rank| rotated(rank, n, root, binomial)) <= log);
            }
        }
    }

    #[test]
    fn a_rank_is_inner_in_one_of_two_trees() {
        for n in 2..40_usize {
            for root in [0, n / 2, n - 1] {
                for tree in 0..2 {
                    let depth = depth(n, root, |rank| double(rank, n, root)[tree].clone());
                    assert!(depth <= n.ilog2() as usize + 1, "{n}: {depth}");
                }
                for rank in (0..n).filter(|&rank| rank != root) {
                    assert!(double(rank, n, root).iter().any(|node| node.children.is_empty()), "{n} {root} {rank}");
                }
            }
        }
    }
}
