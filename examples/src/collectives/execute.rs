//! Runs schedules: the steps of one rank, on memory and over links.

use std::ops::{AddAssign, Range};

use serde::{Deserialize, Serialize};

use super::blocks::{Blocks, parts};
use super::element::{Element, Reduction};
use super::link::{Links, Slice, Ticket};
use super::step::{Place, Schedule, Source, Span, Step};
use super::tensor::bytes;
use super::wait::Wait;
use crate::Failure;

/// The memory that a schedule works on. Input and output may overlap.
#[derive(Clone, Debug)]
pub(super) struct Memory<S> {
    pub(super) input: S,
    pub(super) output: S,
    pub(super) scratch: S,
}

impl<S: Slice> Memory<S> {
    /// The memory of some elements of a place.
    fn of<T>(&self, place: Place, elements: Range<usize>) -> Result<S, Failure> {
        let memory = match place {
            Place::Input => &self.input,
            Place::Output => &self.output,
            Place::Scratch => &self.scratch,
        };
        memory.part(bytes::<T>(elements))
    }
}

/// Bytes of a rank's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
}

impl Traffic {
    /// The bytes of one operation, of several that have led from `before` to this traffic.
    #[must_use]
    pub fn of_each(self, before: Self, operations: usize) -> Self {
        let each = |after: u64, before: u64| (after - before) / operations.max(1) as u64;
        Self { sent: each(self.sent, before.sent), received: each(self.received, before.received) }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.sent += more.sent;
        self.received += more.received;
    }
}

/// Unfinished messages beyond which the finished ones among them are forgotten.
const MANY: usize = 64;

/// A schedule in execution.
#[derive(Debug)]
pub(super) struct Execution<'a, L: Links> {
    links: &'a mut L,
    blocks: &'a mut Blocks,
    memory: &'a Memory<L::Slice>,
    reduction: Reduction,
    /// Messages that may not be taken yet, and the addresses of their memory.
    offered: Vec<(Ticket, Range<u64>)>,
    traffic: Traffic,
}

impl<'a, L: Links> Execution<'a, L> {
    pub(super) fn new(
        links: &'a mut L,
        blocks: &'a mut Blocks,
        memory: &'a Memory<L::Slice>,
        reduction: Reduction,
    ) -> Self {
        Self { links, blocks, memory, reduction, offered: Vec::new(), traffic: Traffic::default() }
    }

    /// Runs the steps, and returns the bytes of their messages. Afterwards the output is complete
    /// and all memory may be changed.
    pub(super) fn run<T: Element>(mut self, schedule: &Schedule) -> Result<Traffic, Failure> {
        for step in &schedule.steps {
            match step {
                Step::Send { to, span } => self.send::<T>(*to, span)?,
                Step::Combine { sources, into } => self.combine::<T>(sources, into)?,
            }
        }
        let offered = std::mem::take(&mut self.offered);
        offered.into_iter().try_for_each(|(ticket, _)| self.wait_until_taken(ticket))?;
        Ok(self.traffic)
    }

    fn send<T>(&mut self, to: usize, span: &Span) -> Result<(), Failure> {
        let message = self.memory.of::<T>(span.place, span.elements.clone())?;
        let addresses = message.addresses()?;
        self.traffic.sent += message.len() as u64;
        let ticket = self.links.post(to, message)?;
        if self.offered.len() >= MANY {
            self.forget_taken()?;
        }
        self.offered.push((ticket, addresses));
        Ok(())
    }

    /// Forgets the messages that are known to be taken.
    fn forget_taken(&mut self) -> Result<(), Failure> {
        let mut kept = Vec::with_capacity(self.offered.len());
        for (ticket, addresses) in self.offered.drain(..) {
            if !self.links.is_taken(ticket)? {
                kept.push((ticket, addresses));
            }
        }
        self.offered = kept;
        Ok(())
    }

    fn combine<T: Element>(&mut self, sources: &[Source], into: &Span) -> Result<(), Failure> {
        let Span { place, elements } = into;
        self.wait_for_senders(&self.memory.of::<T>(*place, elements.clone())?)?;
        let piece = self.links.piece() / size_of::<T>();
        let mut operands = Vec::with_capacity(sources.len());
        // A message without elements is one piece too.
        let empty = elements.is_empty().then(|| elements.clone());
        for part in empty.into_iter().chain(parts(elements.clone(), piece)) {
            operands.clear();
            for source in sources {
                operands.push(self.operand::<T>(source, part.start - elements.start, part.len())?);
            }
            let result = self.memory.of::<T>(*place, part)?;
            result.reduce::<T>(self.reduction, &operands, self.blocks)?;
            for source in sources {
                if let Source::Message { from } = source {
                    self.traffic.received += result.len() as u64;
                    self.links.release(*from)?;
                }
            }
        }
        Ok(())
    }

    /// The memory of `count` elements of a source, from its element `start` on.
    fn operand<T>(&mut self, source: &Source, start: usize, count: usize) -> Result<L::Slice, Failure> {
        match source {
            Source::Local(Span { place, elements }) => {
                let first = elements.start + start;
                self.memory.of::<T>(*place, first..first + count)
            }
            Source::Message { from } => self.wait_for_piece(*from, count * size_of::<T>()),
        }
    }

    /// Waits until no message is being sent from memory that is about to change.
    fn wait_for_senders(&mut self, memory: &L::Slice) -> Result<(), Failure> {
        let changed = memory.addresses()?;
        for index in (0..self.offered.len()).rev() {
            let (ticket, sent) = &self.offered[index];
            if sent.start < changed.end && changed.start < sent.end {
                self.wait_until_taken(*ticket)?;
                self.offered.swap_remove(index);
            }
        }
        Ok(())
    }

    fn wait_until_taken(&mut self, ticket: Ticket) -> Result<(), Failure> {
        let mut wait = Wait::default();
        while !self.links.is_taken(ticket)? {
            self.pause(&mut wait, ticket.to, "to take a message")?;
        }
        Ok(())
    }

    fn wait_for_piece(&mut self, from: usize, length: usize) -> Result<L::Slice, Failure> {
        let mut wait = Wait::default();
        loop {
            if let Some(piece) = self.links.arrived(from, length)? {
                return Ok(piece);
            }
            self.pause(&mut wait, from, "to send a message")?;
        }
    }

    fn pause(&mut self, wait: &mut Wait, rank: usize, what: &str) -> Result<(), Failure> {
        self.links.pause(wait).map_err(|failure| failure.context(format!("waiting for rank {rank} {what}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::time::Duration;

    use rdma::{DeviceSelector, ExposedRegion, RemoteAccess};

    use super::super::shm::HostSlice;
    use super::super::wait::Patience;
    use super::*;
    use crate::bootstrap::Watch;

    /// Links to ranks whose messages are given, and which take messages only while this rank waits.
    struct Script {
        incoming: Vec<VecDeque<HostSlice>>,
        posted: Vec<(usize, Vec<u32>, HostSlice)>,
        taken: HashSet<u64>,
        pauses: usize,
    }

    impl Links for Script {
        type Slice = HostSlice;

        fn piece(&self) -> usize {
            16
        }

        fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Failure> {
            self.posted.push((to, Vec::new(), message));
            Ok(Ticket { to, number: self.posted.len() as u64 })
        }

        fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Failure> {
            Ok(self.taken.contains(&ticket.number))
        }

        fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Failure> {
            let piece = self.incoming[from].front().cloned();
            assert!(piece.as_ref().is_none_or(|piece| piece.len() == length));
            Ok(piece)
        }

        fn release(&mut self, from: usize) -> Result<(), Failure> {
            self.incoming[from].pop_front().map(drop).ok_or_else(|| Failure::new("released too much"))
        }

        fn pause(&mut self, wait: &mut Wait) -> Result<(), Failure> {
            self.pauses += 1;
            let number = self.taken.len();
            let Some((_, elements, message)) = self.posted.get_mut(number) else {
                return Patience::new(Watch::new(), true, Duration::ZERO).pause(wait).map(drop);
            };
            elements.resize(message.len() / 4, 0);
            message.registered(0)?.copy_out(0, bytemuck::cast_slice_mut(elements))?;
            self.taken.insert(number as u64 + 1);
            Ok(())
        }
    }

    struct Bed {
        region: ExposedRegion,
        memory: Memory<HostSlice>,
        script: Script,
    }

    impl Bed {
        /// Input, output and scratch of 8 elements each, which count up from 0.
        fn new() -> Self {
            let selector: DeviceSelector = "soft0".parse().unwrap();
            let pd = rdma::open(&selector).unwrap().context.alloc_pd().unwrap();
            let region = pd.allocate_exposed(4096, RemoteAccess::WRITE).unwrap();
            let values: Vec<u32> = (0..24).collect();
            region.copy_in(0, bytemuck::cast_slice(&values)).unwrap();
            let place = |place: usize| HostSlice::from(region.slice(place * 32..(place + 1) * 32).unwrap());
            let memory = Memory { input: place(0), output: place(1), scratch: place(2) };
            let incoming = vec![VecDeque::new(); 3];
            let script = Script { incoming, posted: Vec::new(), taken: HashSet::new(), pauses: 0 };
            Self { region, memory, script }
        }

        /// Gives a message from a rank, as its pieces.
        fn message(&mut self, from: usize, at: usize, elements: &[u32]) {
            for (index, piece) in elements.chunks(4).enumerate() {
                let at = 1024 + 64 * at + 16 * index;
                self.region.copy_in(at, bytemuck::cast_slice(piece)).unwrap();
                self.script.incoming[from].push_back(self.region.slice(at..at + 4 * piece.len()).unwrap().into());
            }
        }

        fn run(&mut self, steps: Vec<Step>) -> Result<Traffic, Failure> {
            let schedule = Schedule { scratch: 8, steps };
            let mut blocks = Blocks::new();
            Execution::new(&mut self.script, &mut blocks, &self.memory, Reduction::Sum).run::<u32>(&schedule)
        }

        fn output(&self) -> Vec<u32> {
            let mut elements = vec![0; 8];
            self.memory.output.registered(0).unwrap().copy_out(0, bytemuck::cast_slice_mut(&mut elements)).unwrap();
            elements
        }
    }

    fn span(place: Place, elements: Range<usize>) -> Span {
        Span { place, elements }
    }

    fn local(place: Place, elements: Range<usize>) -> Source {
        Source::Local(span(place, elements))
    }

    #[test]
    fn messages_of_several_pieces_are_reduced_with_local_elements() {
        let mut bed = Bed::new();
        bed.message(1, 0, &[10, 20, 30, 40, 50, 60]);
        bed.message(2, 1, &[100, 200, 300, 400, 500, 600]);
        let sources = vec![Source::Message { from: 1 }, local(Place::Input, 1..7), Source::Message { from: 2 }];
        let traffic = bed.run(vec![Step::Combine { sources, into: span(Place::Output, 2..8) }]).unwrap();
        assert_eq!(traffic, Traffic { sent: 0, received: 48 });
        assert_eq!(bed.output(), [8, 9, 111, 222, 333, 444, 555, 666]);
        assert!(bed.script.incoming.iter().all(VecDeque::is_empty));
    }

    #[test]
    fn elements_are_not_overwritten_before_they_are_taken() {
        let mut bed = Bed::new();
        // Input and output in the same memory.
        bed.memory.input = bed.memory.output.clone();
        bed.message(1, 0, &[70, 71]);
        let steps = vec![
            Step::Send { to: 2, span: span(Place::Input, 0..4) },
            Step::Send { to: 1, span: span(Place::Scratch, 0..1) },
            Step::Combine { sources: vec![Source::Message { from: 1 }], into: span(Place::Output, 3..5) },
        ];
        assert_eq!(bed.run(steps).unwrap(), Traffic { sent: 20, received: 8 });
        assert_eq!(bed.output(), [8, 9, 10, 70, 71, 13, 14, 15]);
        let (to, sent, _) = &bed.script.posted[0];
        assert_eq!((*to, &sent[..]), (2, &[8, 9, 10, 11][..]));
        // The end waits for the other message.
        assert_eq!((bed.script.taken.len(), bed.script.pauses), (2, 2));
    }

    #[test]
    fn empty_messages_are_sent_and_awaited() {
        let mut bed = Bed::new();
        let (nothing, awaited) = (span(Place::Scratch, 0..0), bed.memory.scratch.part(0..0).unwrap());
        bed.script.incoming[2].push_back(awaited);
        let sources = vec![Source::Message { from: 2 }];
        bed.run(vec![Step::Send { to: 1, span: nothing.clone() }, Step::Combine { sources, into: nothing }]).unwrap();
        assert_eq!(bed.script.posted.len(), 1);
        assert!(bed.script.incoming[2].is_empty());
    }

    #[test]
    fn a_rank_that_sends_nothing_is_named() {
        let mut bed = Bed::new();
        let sources = vec![Source::Message { from: 2 }];
        let failure = bed.run(vec![Step::Combine { sources, into: span(Place::Output, 0..1) }]).unwrap_err();
        assert!(failure.to_string().contains("waiting for rank 2 to send a message"), "{failure}");
    }

    #[test]
    fn elements_beyond_the_memory_are_refused() {
        let step = Step::Combine { sources: vec![local(Place::Input, 0..9)], into: span(Place::Output, 0..9) };
        assert!(Bed::new().run(vec![step]).is_err());
    }
}
