//! Runs the schedules of all ranks under the strictest reading of the rules of
//! [`Step`]: a message is read only when its receiver combines it, and a
//! combination waits until nobody will read what it overwrites.

mod flaw;
mod memory;
mod symbol;
#[cfg(test)]
mod tests;
mod verify;

use std::ops::Range;

pub use self::flaw::{Flaw, Mistake};
use self::memory::{SymbolRun, SymbolicMemory};
use self::symbol::{RankSet, Symbol, Symbols};
pub use self::verify::verify;
use super::{Algorithm, Unsupported, build};
use crate::step::{Place, Schedule, Source, Span, Step};
use crate::{Collective, Job, Layout};

/// The schedules of all ranks and aggregators of a job, whose own rank does not matter.
///
/// # Errors
/// As [`Algorithm::supports`].
pub fn build_all(op: Collective, algorithm: Algorithm, job: &Job) -> Result<Vec<Schedule>, Unsupported> {
    (0..job.processes()).map(|rank| build(op, algorithm, &job.at(rank))).collect()
}

/// The cost of a collective's schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The cost at each rank.
    pub ranks: Vec<RankTrace>,
    /// Most messages of which each one was sent after the one before was received.
    pub rounds: usize,
}

/// The cost of one rank's schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTrace {
    /// Number of steps.
    pub steps: usize,
    /// Messages sent.
    pub messages_sent: usize,
    /// Messages received.
    pub messages_received: usize,
    /// Elements sent.
    pub sent: usize,
    /// Elements received.
    pub received: usize,
    /// Elements added to another: one less than the number of operands for each element of a
    /// result.
    pub reduced: usize,
    /// Elements copied inside the rank.
    pub copied: usize,
}

impl Trace {
    /// Most elements that a rank sends.
    #[must_use]
    pub fn most_sent(&self) -> usize {
        self.ranks.iter().map(|rank| rank.sent).max().unwrap_or(0)
    }

    /// Most messages that a rank sends.
    #[must_use]
    pub fn most_messages(&self) -> usize {
        self.ranks.iter().map(|rank| rank.messages_sent).max().unwrap_or(0)
    }
}

/// A rank's memories; those of input and output are one in place.
const INPUT: usize = 0;
const OUTPUT: usize = 1;
const SCRATCH: usize = 2;

/// A range of one memory.
#[derive(Clone, Debug)]
struct Region {
    memory: usize,
    elements: Range<usize>,
}

/// A message that its receiver has not taken.
struct Offer {
    to: usize,
    region: Region,
    heard: RankSet,
    /// Messages of the longest chain that ends with this one.
    chain: usize,
}

/// A rank between two steps.
struct SimulatedRank<'a> {
    schedule: &'a Schedule,
    layout: Layout,
    in_place: bool,
    next: usize,
    memories: [SymbolicMemory; 3],
    offers: Vec<Offer>,
    /// The ranks of whose beginning this rank knows.
    heard: RankSet,
    chain: usize,
    trace: RankTrace,
}

/// All ranks and aggregators of a collective.
struct Machine<'a> {
    ranks: Vec<SimulatedRank<'a>>,
    /// Number of ranks that have an input.
    inputs: usize,
    symbols: Symbols,
}

impl SimulatedRank<'_> {
    /// Where a span lies, if it lies inside its memory.
    fn region(&self, span: &Span) -> Result<Region, Mistake> {
        let (memory, start, length) = match span.place {
            Place::Input => (INPUT, self.layout.input.start, self.layout.input.len()),
            Place::Output => (OUTPUT, self.layout.output.start, self.layout.output.len()),
            Place::Scratch => (SCRATCH, 0, self.schedule.scratch),
        };
        let Range { start: from, end: to } = span.elements;
        if to > length || from > to {
            return Err(Mistake::Bounds { length });
        }
        let aliased = self.in_place && span.place != Place::Scratch;
        let (memory, start) = if aliased { (OUTPUT, start) } else { (memory, 0) };
        Ok(Region { memory, elements: start + from..start + to })
    }

    /// Whether a message that nobody has taken lies in a region.
    fn is_offered(&self, region: &Region) -> bool {
        self.offers.iter().any(|offer| offer.region.overlaps(region))
    }

    fn read(&self, region: &Region) -> Result<Vec<SymbolRun>, Mistake> {
        self.memories[region.memory].read(&region.elements).map_err(Mistake::Unwritten)
    }
}

impl Region {
    fn overlaps(&self, other: &Self) -> bool {
        self.memory == other.memory
            && self.elements.start.max(other.elements.start) < self.elements.end.min(other.elements.end)
    }

    fn overlaps_in_part(&self, other: &Self) -> bool {
        self.overlaps(other) && self.elements != other.elements
    }
}

/// An operand that can be read.
struct Operand {
    rank: usize,
    region: Region,
    /// The position of the message among its sender's offers.
    offer: Option<usize>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(op: Collective, job: &Job, schedules: &'a [Schedule]) -> Self {
        let rank = |(rank, schedule): (usize, &'a Schedule)| {
            let layout = job.at(rank).layout(op);
            let mut memories = <[SymbolicMemory; 3]>::default();
            let memory = if job.in_place { OUTPUT } else { INPUT };
            let start = if job.in_place { layout.input.start } else { 0 };
            let elements = start..start + layout.input.len();
            let run = SymbolRun { elements: elements.clone(), symbol: Symbols::input(rank), first: 0 };
            if !elements.is_empty() {
                memories[memory].write(&elements, vec![run]);
            }
            let (in_place, heard) = (job.in_place, RankSet::of(rank, job.ranks));
            let trace = RankTrace { steps: schedule.steps.len(), ..RankTrace::default() };
            SimulatedRank { schedule, layout, in_place, next: 0, memories, offers: Vec::new(), heard, chain: 0, trace }
        };
        let ranks = schedules.iter().enumerate().map(rank).collect();
        Self { ranks, inputs: job.ranks, symbols: Symbols::new(job.ranks) }
    }

    /// Runs all steps, in an order that depends on the seed.
    pub(super) fn run(&mut self, seed: u64) -> Result<(), Flaw> {
        let mut random = seed | 1;
        loop {
            let mut moved = false;
            for _ in 0..self.ranks.len() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let rank = (random >> 33) as usize % self.ranks.len();
                moved |= self.advance(rank, (random >> 60) as usize + 1)?;
            }
            // The random choice may have left out the only rank that can go on.
            for rank in 0..self.ranks.len() {
                moved |= self.advance(rank, 1)?;
            }
            if !moved {
                return self.finish();
            }
        }
    }

    /// The trace of a finished run.
    pub(super) fn trace(&self) -> Trace {
        let rounds = self.ranks.iter().map(|rank| rank.chain).max().unwrap_or(0);
        Trace { ranks: self.ranks.iter().map(|rank| rank.trace).collect(), rounds }
    }

    /// The runs of a rank's output, or the first element that was never written.
    pub(super) fn output(&self, rank: usize) -> Result<Vec<SymbolRun>, usize> {
        let rank = &self.ranks[rank];
        let whole = if rank.in_place { rank.layout.output.clone() } else { 0..rank.layout.output.len() };
        let runs = rank.memories[OUTPUT].read(&whole).map_err(|element| element - whole.start)?;
        Ok(runs.into_iter().map(|run| run.moved(whole.start, 0)).collect())
    }

    /// Number of ranks of whose beginning a rank knows.
    pub(super) fn heard(&self, rank: usize) -> usize {
        self.ranks[rank].heard.len()
    }

    /// The rank whose input a symbol is, or nothing if it is a reduction.
    pub(super) fn is_input_of(symbol: Symbol, rank: usize) -> bool {
        symbol == Symbols::input(rank)
    }

    /// Whether a symbol is the reduction of all inputs.
    pub(super) fn is_complete(&self, symbol: Symbol) -> bool {
        self.symbols.operands(symbol) == self.inputs
    }

    fn finish(&self) -> Result<(), Flaw> {
        for (index, rank) in self.ranks.iter().enumerate() {
            if rank.next < rank.schedule.steps.len() {
                return Err(Flaw::Deadlock { rank: index, step: rank.next });
            }
        }
        for (from, rank) in self.ranks.iter().enumerate() {
            if let Some(offer) = rank.offers.first() {
                return Err(Flaw::LeftOver { from, to: offer.to });
            }
        }
        Ok(())
    }

    /// Executes steps of a rank while it can go on.
    fn advance(&mut self, rank: usize, most: usize) -> Result<bool, Flaw> {
        for done in 0..most {
            let step = self.ranks[rank].next;
            let schedule = self.ranks[rank].schedule;
            let moved = match schedule.steps.get(step) {
                None => Ok(false),
                Some(Step::Send { to, span }) => self.send(rank, *to, span),
                Some(Step::Combine { sources, into }) => self.combine(rank, sources, into),
            };
            if !moved.map_err(|mistake| Flaw::Step { rank, step, mistake })? {
                return Ok(done > 0);
            }
            self.ranks[rank].next += 1;
        }
        Ok(true)
    }

    fn peer(&self, rank: usize, peer: usize) -> Result<usize, Mistake> {
        if peer == rank || peer >= self.ranks.len() { Err(Mistake::Peer(peer)) } else { Ok(peer) }
    }

    fn send(&mut self, rank: usize, to: usize, span: &Span) -> Result<bool, Mistake> {
        let to = self.peer(rank, to)?;
        let sender = &mut self.ranks[rank];
        let region = sender.region(span)?;
        sender.read(&region)?;
        sender.trace.messages_sent += 1;
        sender.trace.sent += region.elements.len();
        sender.offers.push(Offer { to, region, heard: sender.heard.clone(), chain: sender.chain + 1 });
        Ok(true)
    }

    fn combine(&mut self, rank: usize, sources: &[Source], into: &Span) -> Result<bool, Mistake> {
        if into.place == Place::Input {
            return Err(Mistake::WritesInput);
        }
        let result = self.ranks[rank].region(into)?;
        let Some(operands) = self.operands(rank, sources, &result)? else { return Ok(false) };
        if self.ranks[rank].is_offered(&result) {
            return Ok(false);
        }
        let runs = self.reduce(&operands, &result)?;
        self.take(rank, &operands);
        let receiver = &mut self.ranks[rank];
        receiver.memories[result.memory].write(&result.elements, runs);
        let trace = &mut receiver.trace;
        trace.reduced += (operands.len() - 1) * result.elements.len();
        if operands.len() == 1 && operands[0].offer.is_none() {
            trace.copied += result.elements.len();
        }
        Ok(true)
    }

    /// The operands of a combination, or nothing while a message is missing.
    fn operands(&self, rank: usize, sources: &[Source], result: &Region) -> Result<Option<Vec<Operand>>, Mistake> {
        let mut operands: Vec<Operand> = Vec::with_capacity(sources.len());
        for source in sources {
            let operand = match source {
                Source::Local(span) => {
                    let region = self.ranks[rank].region(span)?;
                    if region.overlaps_in_part(result) {
                        return Err(Mistake::PartialOverlap);
                    }
                    Operand { rank, region, offer: None }
                }
                Source::Message { from } => {
                    let from = self.peer(rank, *from)?;
                    let taken = operands.iter().filter(|operand| operand.rank == from).count();
                    let offers = self.ranks[from].offers.iter().enumerate();
                    let Some((position, offer)) = offers.filter(|(_, offer)| offer.to == rank).nth(taken) else {
                        return Ok(None);
                    };
                    Operand { rank: from, region: offer.region.clone(), offer: Some(position) }
                }
            };
            let (operand_length, result) = (operand.region.elements.len(), result.elements.len());
            if operand_length != result {
                return Err(Mistake::Length { operand: operand_length, result });
            }
            operands.push(operand);
        }
        if operands.is_empty() { Err(Mistake::NoOperands) } else { Ok(Some(operands)) }
    }

    /// The runs of the reduction of all operands, from the first to the last.
    fn reduce(&mut self, operands: &[Operand], result: &Region) -> Result<Vec<SymbolRun>, Mistake> {
        let mut sum: Option<Vec<SymbolRun>> = None;
        for operand in operands {
            let runs = self.ranks[operand.rank].read(&operand.region)?;
            let start = operand.region.elements.start;
            let runs = runs.into_iter().map(|run| run.moved(start, result.elements.start)).collect();
            sum = Some(match sum {
                None => runs,
                Some(sum) => reduce_runs(&mut self.symbols, &sum, &runs)?,
            });
        }
        Ok(sum.unwrap_or_default())
    }

    /// Removes the messages among the operands from their senders' offers.
    fn take(&mut self, rank: usize, operands: &[Operand]) {
        // From the last to the first, so that the positions of those that remain stay right.
        let mut taken: Vec<_> = operands.iter().filter_map(|operand| Some((operand.rank, operand.offer?))).collect();
        taken.sort_unstable_by(|a, b| b.cmp(a));
        for (from, position) in taken {
            let offer = self.ranks[from].offers.remove(position);
            let receiver = &mut self.ranks[rank];
            receiver.heard.add(&offer.heard);
            receiver.chain = receiver.chain.max(offer.chain);
            receiver.trace.messages_received += 1;
            receiver.trace.received += offer.region.elements.len();
        }
    }
}

/// Reduces two lists of runs that cover the same elements.
fn reduce_runs(symbols: &mut Symbols, first: &[SymbolRun], second: &[SymbolRun]) -> Result<Vec<SymbolRun>, Mistake> {
    let (mut a, mut b) = (first.iter(), second.iter());
    let (mut x, mut y) = (a.next(), b.next());
    let mut runs: Vec<SymbolRun> = Vec::new();
    while let (Some(p), Some(q)) = (x, y) {
        let elements = p.elements.start.max(q.elements.start)..p.elements.end.min(q.elements.end);
        let (i, j) = (p.first + elements.start - p.elements.start, q.first + elements.start - q.elements.start);
        if i != j {
            return Err(Mistake::Mixed { first: i, second: j });
        }
        let symbol = symbols.reduce(p.symbol, q.symbol).map_err(Mistake::Twice)?;
        if p.elements.end == elements.end {
            x = a.next();
        }
        if q.elements.end == elements.end {
            y = b.next();
        }
        runs.push(SymbolRun { elements, symbol, first: i });
    }
    Ok(runs)
}
