//! Runs schedules: the steps of one rank, on memory and over links.

use std::ops::{AddAssign, Range};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::blocks::bytes;
use crate::blocks::{Blocks, parts};
use crate::element::{Element, Reduction};
use crate::link::{Links, Slice, Ticket};
use crate::schedule::step::{Place, Schedule, Source, Span, Step};
use crate::wait::Wait;

/// The memory that a schedule works on. Input and output may overlap.
#[derive(Clone, Debug)]
pub(crate) struct Memory<S> {
    pub(crate) input: S,
    pub(crate) output: S,
    pub(crate) scratch: S,
}

impl<S: Slice> Memory<S> {
    /// The memory of some elements of a place.
    fn of<T>(&self, place: Place, elements: Range<usize>) -> Result<S, Error> {
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
        let each = |after: u64, before: u64| after.saturating_sub(before) / operations.max(1) as u64;
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
pub(crate) struct Execution<'a, L: Links> {
    links: &'a mut L,
    blocks: &'a mut Blocks,
    memory: &'a Memory<L::Slice>,
    reduction: Reduction,
    /// Messages that may not be taken yet, and the addresses of their memory.
    offered: Vec<(Ticket, Range<u64>)>,
    traffic: Traffic,
}

impl<'a, L: Links> Execution<'a, L> {
    pub(crate) fn new(
        links: &'a mut L,
        blocks: &'a mut Blocks,
        memory: &'a Memory<L::Slice>,
        reduction: Reduction,
    ) -> Self {
        Self { links, blocks, memory, reduction, offered: Vec::new(), traffic: Traffic::default() }
    }

    /// Runs the steps, and returns the bytes of their messages. Afterwards the output is complete
    /// and all memory may be changed.
    pub(crate) fn run<T: Element>(mut self, schedule: &Schedule) -> Result<Traffic, Error> {
        self.reduction.check(T::TYPE)?;
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

    fn send<T>(&mut self, to: usize, span: &Span) -> Result<(), Error> {
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
    fn forget_taken(&mut self) -> Result<(), Error> {
        let mut kept = Vec::with_capacity(self.offered.len());
        for (ticket, addresses) in self.offered.drain(..) {
            if !self.links.is_taken(ticket)? {
                kept.push((ticket, addresses));
            }
        }
        self.offered = kept;
        Ok(())
    }

    fn combine<T: Element>(&mut self, sources: &[Source], into: &Span) -> Result<(), Error> {
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
    fn operand<T>(&mut self, source: &Source, start: usize, count: usize) -> Result<L::Slice, Error> {
        match source {
            Source::Local(Span { place, elements }) => {
                let first = elements.start.saturating_add(start);
                self.memory.of::<T>(*place, first..first.saturating_add(count))
            }
            Source::Message { from } => self.wait_for_piece(*from, count * size_of::<T>()),
        }
    }

    /// Waits until no message is being sent from memory that is about to change.
    fn wait_for_senders(&mut self, memory: &L::Slice) -> Result<(), Error> {
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

    fn wait_until_taken(&mut self, ticket: Ticket) -> Result<(), Error> {
        let mut wait = Wait::default();
        while !self.links.is_taken(ticket)? {
            self.pause(&mut wait, ticket.to, "to take a message")?;
        }
        Ok(())
    }

    fn wait_for_piece(&mut self, from: usize, length: usize) -> Result<L::Slice, Error> {
        let mut wait = Wait::default();
        loop {
            if let Some(piece) = self.links.arrived(from, length)? {
                return Ok(piece);
            }
            self.pause(&mut wait, from, "to send a message")?;
        }
    }

    fn pause(&mut self, wait: &mut Wait, rank: usize, what: &str) -> Result<(), Error> {
        let waiting = |error: Error| error.context(format!("waiting for rank {rank} {what}")).waits_for(rank);
        self.links.pause(wait).map_err(waiting)
    }
}

#[cfg(test)]
mod tests;
