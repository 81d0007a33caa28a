//! Memory whose elements are symbols. Elements that were computed in the same way are one run, so
//! that the work does not depend on the number of elements.

use std::ops::Range;

use super::symbol::Symbol;

/// The symbols of consecutive elements: element `elements.start + i` is element `first + i` of the
/// inputs, reduced as `symbol` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SymbolRun {
    pub(super) elements: Range<usize>,
    pub(super) symbol: Symbol,
    pub(super) first: usize,
}

impl SymbolRun {
    /// The part of the run inside a range.
    fn clipped(&self, range: &Range<usize>) -> Option<Self> {
        let elements = self.elements.start.max(range.start)..self.elements.end.min(range.end);
        let first = self.first + elements.start.saturating_sub(self.elements.start);
        (!elements.is_empty()).then_some(Self { elements, first, ..*self })
    }

    /// The same symbols at another address.
    pub(super) fn moved(self, from: usize, to: usize) -> Self {
        let elements = self.elements.start - from + to..self.elements.end - from + to;
        Self { elements, ..self }
    }

    fn continues(&self, previous: &Self) -> bool {
        previous.elements.end == self.elements.start
            && previous.symbol == self.symbol
            && previous.first + previous.elements.len() == self.first
    }
}

/// The written elements of one memory, as runs in order of address.
#[derive(Clone, Debug, Default)]
pub(super) struct SymbolicMemory {
    runs: Vec<SymbolRun>,
}

impl SymbolicMemory {
    /// The runs of a range, or the first element that was never written.
    pub(super) fn read(&self, range: &Range<usize>) -> Result<Vec<SymbolRun>, usize> {
        let mut next = range.start;
        let mut found = Vec::new();
        let first = self.runs.partition_point(|run| run.elements.end <= range.start);
        for run in self.runs[first..].iter().map_while(|run| run.clipped(range)) {
            if run.elements.start != next {
                return Err(next);
            }
            next = run.elements.end;
            found.push(run);
        }
        if next < range.end { Err(next) } else { Ok(found) }
    }

    /// Overwrites a range with runs that cover it.
    pub(super) fn write(&mut self, range: &Range<usize>, runs: Vec<SymbolRun>) {
        let first = self.runs.partition_point(|run| run.elements.end < range.start);
        let last = self.runs.partition_point(|run| run.elements.start <= range.end);
        let mut joined: Vec<SymbolRun> = Vec::with_capacity(runs.len() + 2);
        let (before, after) = (0..range.start, range.end..usize::MAX);
        let kept_before = self.runs[first..last].iter().filter_map(|run| run.clipped(&before));
        let kept_after = self.runs[first..last].iter().filter_map(|run| run.clipped(&after));
        for run in kept_before.chain(runs).chain(kept_after) {
            match joined.last_mut() {
                Some(previous) if run.continues(previous) => previous.elements.end = run.elements.end,
                _ => joined.push(run),
            }
        }
        self.runs.splice(first..last, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(elements: Range<usize>, symbol: u32, first: usize) -> SymbolRun {
        SymbolRun { elements, symbol: Symbol(symbol), first }
    }

    #[test]
    fn runs_are_cut_and_joined() {
        let mut memory = SymbolicMemory::default();
        memory.write(&(0..10), vec![run(0..10, 0, 100)]);
        memory.write(&(3..5), vec![run(3..5, 1, 3)]);
        assert_eq!(memory.read(&(2..6)), Ok(vec![run(2..3, 0, 102), run(3..5, 1, 3), run(5..6, 0, 105)]));
        memory.write(&(3..5), vec![run(3..5, 0, 103)]);
        assert_eq!(memory.runs, [run(0..10, 0, 100)]);
        memory.write(&(12..14), vec![run(12..14, 0, 112)]);
        assert_eq!(memory.read(&(8..13)), Err(10));
        assert_eq!(memory.read(&(12..15)), Err(14));
        assert_eq!(memory.read(&(20..20)), Ok(vec![]));
    }
}
