//! Gather and scatter over a binomial tree: a rank's messages carry the blocks of all ranks below
//! it.

use std::ops::Range;

use super::builder::{input, message, output, scratch};
use super::tree::binomial;
use super::{Builder, Collective};
use crate::schedule::step::Span;

/// The tree as drawn with the root as rank 0.
struct DrawnTree {
    rank: usize,
    ranks: usize,
    root: usize,
    count: usize,
}

pub(super) fn emit(b: &mut Builder<'_>, op: Collective) {
    let (ranks, root, count) = (b.ranks(), b.job.root, b.job.count);
    let drawing = DrawnTree { rank: (b.rank() + ranks - root) % ranks, ranks, root, count };
    let inner = drawing.below(drawing.rank).len() > 1;
    if drawing.rank > 0 && inner {
        b.reserve_scratch(drawing.below(drawing.rank).len() * count);
    }
    match op {
        Collective::Gather => gather(b, &drawing, inner),
        _ => scatter(b, &drawing, inner),
    }
}

impl DrawnTree {
    /// The ranks of a subtree, as drawn.
    fn below(&self, top: usize) -> Range<usize> {
        let end = if top == 0 { self.ranks } else { top + (top & top.wrapping_neg()) };
        top..end.min(self.ranks)
    }

    /// The runs of a subtree's ranks whose blocks lie side by side at the root.
    fn runs(&self, top: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (below, wrap) = (self.below(top), self.ranks - self.root);
        let runs = [below.start..below.end.min(wrap), below.start.max(wrap)..below.end];
        runs.into_iter().filter(|run| !run.is_empty())
    }

    /// The blocks of ranks at the root.
    fn at_root(&self, run: &Range<usize>) -> Range<usize> {
        let first = (run.start + self.root) % self.ranks;
        first * self.count..(first + run.len()) * self.count
    }

    /// The blocks of ranks in this rank's scratch memory.
    fn in_scratch(&self, run: &Range<usize>) -> Span {
        scratch((run.start - self.rank) * self.count..(run.end - self.rank) * self.count)
    }

    fn actual(&self, drawn: usize) -> usize {
        (drawn + self.root) % self.ranks
    }
}

fn gather(b: &mut Builder<'_>, drawing: &DrawnTree, inner: bool) {
    let node = binomial(drawing.rank, drawing.ranks);
    let own = b.input();
    if drawing.rank == 0 {
        b.copy(own.clone(), output(b.job.block(b.rank())));
    } else if inner {
        b.copy(own.clone(), drawing.in_scratch(&(drawing.rank..drawing.rank + 1)));
    }
    // Subtrees of few ranks are complete first.
    for &child in node.children.iter().rev() {
        for run in drawing.runs(child) {
            let into = if drawing.rank == 0 { output(drawing.at_root(&run)) } else { drawing.in_scratch(&run) };
            b.receive(drawing.actual(child), &into);
        }
    }
    let Some(parent) = node.parent else { return };
    for run in drawing.runs(drawing.rank) {
        let span = if inner { drawing.in_scratch(&run) } else { own.clone() };
        b.send(drawing.actual(parent), &span);
    }
}

fn scatter(b: &mut Builder<'_>, drawing: &DrawnTree, inner: bool) {
    let node = binomial(drawing.rank, drawing.ranks);
    if let Some(parent) = node.parent {
        for run in drawing.runs(drawing.rank) {
            let into = if inner { drawing.in_scratch(&run) } else { b.output() };
            b.combine(&[message(drawing.actual(parent))], &into);
        }
    }
    for &child in &node.children {
        for run in drawing.runs(child) {
            let span = if drawing.rank == 0 { input(drawing.at_root(&run)) } else { drawing.in_scratch(&run) };
            b.send(drawing.actual(child), &span);
        }
    }
    if drawing.rank == 0 {
        b.copy(input(b.job.block(b.rank())), b.output());
    } else if inner {
        b.copy(drawing.in_scratch(&(drawing.rank..drawing.rank + 1)), b.output());
    }
}
