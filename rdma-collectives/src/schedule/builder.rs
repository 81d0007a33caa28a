//! Builds the schedule of one rank: cuts messages, leaves out the empty ones.

use std::ops::Range;

use super::{Collective, Job, Layout};
use crate::blocks::parts;
use crate::schedule::step::{Place, Schedule, Source, Span, Step};

/// Shares of elements begin at multiples of this many elements, so that no two share a cache line.
const ALIGNMENT: usize = 16;

/// A schedule in the making.
pub(super) struct Builder<'a> {
    /// The parameters.
    pub(super) job: &'a Job,
    /// The collective.
    pub(super) op: Collective,
    layout: Layout,
    schedule: Schedule,
}

impl<'a> Builder<'a> {
    pub(super) fn new(op: Collective, job: &'a Job) -> Self {
        Self { job, op, layout: job.layout(op), schedule: Schedule::default() }
    }

    pub(super) fn finish(self) -> Schedule {
        self.schedule
    }

    /// This rank.
    pub(super) fn rank(&self) -> usize {
        self.job.rank
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.job.ranks
    }

    /// The other ranks in rotation, beginning with the right neighbour: ranks that all send in this
    /// order do not crowd one receiver.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.job.rank, self.job.ranks);
        (1..ranks).map(move |distance| (rank + distance) % ranks)
    }

    /// The whole input.
    pub(super) fn input(&self) -> Span {
        input(0..self.layout.input.len())
    }

    /// The whole output.
    pub(super) fn output(&self) -> Span {
        output(0..self.layout.output.len())
    }

    /// Sets the length of the scratch memory.
    pub(super) fn reserve_scratch(&mut self, elements: usize) {
        self.schedule.scratch = self.schedule.scratch.max(elements);
    }

    /// Sends elements in messages of at most a chunk.
    pub(super) fn send(&mut self, to: usize, span: &Span) {
        for part in parts(0..span.elements.len(), self.job.chunk) {
            self.schedule.steps.push(Step::Send { to, span: section(span, &part) });
        }
    }

    /// Reduces the sources into a span.
    pub(super) fn combine(&mut self, sources: &[Source], into: &Span) {
        self.relay(sources, into, &[]);
    }

    /// Receives a span from a rank.
    pub(super) fn receive(&mut self, from: usize, into: &Span) {
        self.combine(&[message(from)], into);
    }

    /// Reduces the sources into a span, and sends each part of it on as soon as it is there.
    pub(super) fn relay(&mut self, sources: &[Source], into: &Span, to: &[usize]) {
        for part in parts(0..into.elements.len(), self.job.chunk) {
            let into = section(into, &part);
            let sources = sources.iter().map(|source| section_of_source(source, &part)).collect();
            self.schedule.steps.push(Step::Combine { sources, into: into.clone() });
            self.schedule.steps.extend(to.iter().map(|&to| Step::Send { to, span: into.clone() }));
        }
    }

    /// Copies elements of this rank, unless they are there already.
    pub(super) fn copy(&mut self, from: Span, into: Span) {
        if !from.elements.is_empty() && !self.same_memory(&from, &into) {
            self.schedule.steps.push(Step::Combine { sources: vec![Source::Local(from)], into });
        }
    }

    /// Copies the whole input to the output.
    pub(super) fn copy_input_to_output(&mut self) {
        self.copy(self.input(), self.output());
    }

    /// The input, or in place a copy of it in scratch memory: for algorithms that would overwrite
    /// elements before their readers have taken them.
    pub(super) fn stable_input(&mut self) -> Span {
        let input = self.input();
        if !self.job.in_place {
            return input;
        }
        let copy = scratch(input.elements.clone());
        self.reserve_scratch(copy.elements.end);
        self.copy(input, copy.clone());
        copy
    }

    /// Sends an empty message.
    pub(super) fn signal(&mut self, to: usize) {
        self.schedule.steps.push(Step::Send { to, span: scratch(0..0) });
    }

    /// Waits for empty messages.
    pub(super) fn await_signals(&mut self, from: impl IntoIterator<Item = usize>) {
        let sources: Vec<_> = from.into_iter().map(message).collect();
        if !sources.is_empty() {
            self.schedule.steps.push(Step::Combine { sources, into: scratch(0..0) });
        }
    }

    /// Whether two spans are the same elements of the same memory.
    fn same_memory(&self, a: &Span, b: &Span) -> bool {
        let start = |span: &Span| match span.place {
            Place::Input => Some(self.layout.input.start + span.elements.start),
            Place::Output => Some(self.layout.output.start + span.elements.start),
            Place::Scratch => None,
        };
        a == b || (self.job.in_place && start(a).is_some() && start(a) == start(b))
    }
}

/// Elements of the input.
pub(super) fn input(elements: Range<usize>) -> Span {
    Span { place: Place::Input, elements }
}

/// Elements of the output.
pub(super) fn output(elements: Range<usize>) -> Span {
    Span { place: Place::Output, elements }
}

/// Elements of the scratch memory.
pub(super) fn scratch(elements: Range<usize>) -> Span {
    Span { place: Place::Scratch, elements }
}

/// Elements of this rank as an operand.
pub(super) fn local(span: Span) -> Source {
    Source::Local(span)
}

/// The next message of a rank as an operand.
pub(super) fn message(from: usize) -> Source {
    Source::Message { from }
}

/// A part of a span, whose range counts from the span's start.
pub(super) fn section(span: &Span, part: &Range<usize>) -> Span {
    let start = span.elements.start;
    Span { place: span.place, elements: start + part.start..start + part.end }
}

fn section_of_source(source: &Source, part: &Range<usize>) -> Source {
    match source {
        Source::Local(span) => Source::Local(section(span, part)),
        Source::Message { from } => Source::Message { from: *from },
    }
}

/// One of several shares of a range: all but the last begin and end at a multiple of
/// [`ALIGNMENT`], counted from the range's start. Shares of few elements may be empty.
pub(super) fn share(range: &Range<usize>, shares: usize, index: usize) -> Range<usize> {
    let lines = range.len().div_ceil(ALIGNMENT);
    let bound = |index: usize| range.end.min(range.start + lines * index / shares * ALIGNMENT);
    bound(index)..bound(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_range_once() {
        for (count, shares) in [(0, 3), (1, 3), (16, 3), (17, 3), (1007, 17), (4096, 4)] {
            let all: Vec<usize> = (0..shares).flat_map(|index| share(&(5..5 + count), shares, index)).collect();
            assert!(all.into_iter().eq(5..5 + count));
        }
        assert_eq!(share(&(0..4096), 4, 1), 1024..2048);
    }
}
