//! Links of memory of GPUs.
//!
//! A message is sent when the work of the GPU that writes it is done, and a slot is handed back
//! when the work that reads it is done. Staged messages are copied to host memory, travel as those
//! of host memory do, and are copied to the GPU.

use std::collections::VecDeque;
use std::sync::Arc;

use rdma_cuda::Event;

use super::outgoing::Outgoing;
use super::slots::Slots;
use super::tensor::GpuPart;
use super::{Engine, failed};
use crate::Error;
use crate::link::{Links, Ticket};
use crate::streams::StreamLinks;
use crate::wait::Wait;

/// The links of a rank, for one collective.
#[derive(Debug)]
pub(super) struct GpuLinks<'a> {
    engine: Arc<Engine>,
    slots: &'a mut Slots,
    streams: StreamLinks<'a>,
    /// Messages and pieces that wait for work of the GPU, in order, and their receivers.
    outgoing: VecDeque<(usize, Outgoing)>,
    /// The senders of pieces whose slots work of the GPU may still read, and the end of that work.
    reading: VecDeque<(usize, Event)>,
}

impl<'a> GpuLinks<'a> {
    pub(super) fn new(engine: &Arc<Engine>, slots: &'a mut Slots, streams: StreamLinks<'a>) -> Self {
        let (outgoing, reading) = (VecDeque::new(), VecDeque::new());
        Self { engine: Arc::clone(engine), slots, streams, outgoing, reading }
    }

    /// Waits until the GPU's work is done, and hands the last slots back.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.engine.stream.synchronize().map_err(failed)?;
        self.push()
    }

    /// Sends what the GPU has written, and hands back the slots that it has read.
    fn push(&mut self) -> Result<(), Error> {
        while let Some((to, first)) = self.outgoing.front_mut() {
            let Some(message) = first.poll()? else { break };
            self.streams.send(*to, message)?;
            self.outgoing.pop_front();
        }
        while let Some((from, read)) = self.reading.front() {
            if !read.is_done().map_err(failed)? {
                break;
            }
            self.streams.free(*from)?;
            self.reading.pop_front();
        }
        Ok(())
    }
}

/// Each piece of a staged message is a message of its own for the streams, which makes no
/// difference to the receiver.
impl Links for GpuLinks<'_> {
    type Slice = GpuPart;

    fn piece(&self) -> usize {
        self.streams.piece()
    }

    fn post(&mut self, to: usize, message: GpuPart) -> Result<Ticket, Error> {
        self.outgoing.extend(message.send(self.piece())?.into_iter().map(|outgoing| (to, outgoing)));
        let waiting = self.outgoing.iter().filter(|(receiver, _)| *receiver == to).count();
        Ok(Ticket { to, number: self.streams.posted(to) + waiting as u64 })
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Error> {
        self.push()?;
        if self.streams.posted(ticket.to) < ticket.number { Ok(false) } else { self.streams.is_taken(ticket) }
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<GpuPart>, Error> {
        self.push()?;
        let Some(slot) = self.streams.next_slot(from)? else { return Ok(None) };
        let piece = self.slots.piece(&self.engine, from, slot, length)?;
        Ok(Some(GpuPart::received(&self.engine, piece)))
    }

    fn release(&mut self, from: usize) -> Result<(), Error> {
        self.reading.push_back((from, self.slots.read(&self.engine, from)?));
        self.streams.pass(from);
        Ok(())
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error> {
        if let Some((to, first)) = self.outgoing.pop_front() {
            self.streams.send(to, first.wait()?)?;
        } else if let Some((_, read)) = self.reading.front() {
            read.wait().map_err(failed)?;
        } else {
            return self.streams.pause(wait);
        }
        self.push()
    }
}
