//! A queue pair for datagrams from and to one local address.

use std::net::SocketAddr;
use std::sync::Arc;

use nix::errno::Errno;
use rdma_sys::rdma_port_space;

use super::wire::{self, HEADER_MOST};
use crate::buffers::{Sink, Source};
use crate::settings::Settings;
use crate::verbs::{Access, Completion, Handle, Id, Libraries, Limits, Queues, Region, Transport, datagram_limit};

/// Bytes of a buffer for one datagram with its header, as in librdmacm.
pub(super) const BUFFER: usize = 2048;
/// Bytes in front of a received datagram: its global route header.
const ROUTE_HEADER: usize = 40;
/// Bytes of a receive slot: any datagram fits, since one that does not would end the queue.
const SLOT: usize = ROUTE_HEADER + LARGEST;
/// Bytes of the largest packet of any device.
const LARGEST: usize = 4096;
/// The least requests of a queue.
const LEAST_DEPTH: u16 = 16;

/// A datagram in a receive slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    slot: u64,
    pub(super) source: SocketAddr,
    /// Where its data is.
    offset: usize,
    pub(super) len: usize,
}

#[derive(Debug)]
pub(super) struct LocalQueue {
    /// Ended before the handles of its requests.
    queues: Queues,
    inbox: Region,
    outbox: Region,
    /// Send slots, with the handle of the request that uses them.
    sends: Vec<Option<Arc<Handle>>>,
    free: Vec<usize>,
    pub(super) id: Id,
    pub(super) address: SocketAddr,
    /// The header of its datagrams.
    header: Vec<u8>,
    /// The most bytes of a datagram with its header.
    most: usize,
}

impl LocalQueue {
    /// Makes a queue pair on the device that has a local address.
    pub(super) fn new(libraries: Libraries, address: SocketAddr, settings: &Settings) -> Result<Self, Errno> {
        let mut id = Id::new(libraries, rdma_port_space::RDMA_PS_UDP)?;
        id.bind(address)?;
        let depth =
            |depth: u16, bytes: usize| depth.min(u16::try_from(bytes / BUFFER).unwrap_or(u16::MAX)).max(LEAST_DEPTH);
        let limits = Limits {
            send: depth(settings.send_depth, settings.send_size()),
            receive: depth(settings.receive_depth, settings.receive_size()),
            inline: settings.inline,
        };
        let mut queues = Queues::new(&id, Transport::Datagrams, limits)?;
        let Limits { send, receive, .. } = queues.limits();
        let inbox = queues.region(&id, usize::from(receive) * SLOT, Access::Local)?;
        let outbox = queues.region(&id, usize::from(send) * BUFFER, Access::Local)?;
        for slot in 0..u64::from(receive) {
            queues.receive_datagram(slot, &inbox, (place(slot), SLOT))?;
        }
        let most = datagram_limit(&id)?.min(BUFFER);
        let (sends, free) = (vec![None; send.into()], (0..usize::from(send)).collect());
        let header = wire::encode_source(address);
        Ok(Self { queues, inbox, outbox, sends, free, id, address, header, most })
    }

    pub(super) fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    pub(super) fn pair_number(&self) -> u32 {
        self.queues.pair_number()
    }

    /// The most bytes of data in a datagram.
    pub(super) fn largest(&self) -> usize {
        self.most - self.header.len()
    }

    /// Whether a send would find a slot.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether the device has sent everything.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.sends.len()
    }

    /// How many completions there can be at once.
    pub(super) fn depth(&self) -> usize {
        let Limits { send, receive, .. } = self.queues.limits();
        usize::from(send) + usize::from(receive)
    }

    /// Sends what is left of the source, if there is a slot.
    pub(super) fn send(
        &mut self,
        source: &mut Source<'_, '_>,
        handle: &Arc<Handle>,
        pair: u32,
    ) -> Result<Option<()>, Errno> {
        let Some(slot) = self.free.pop() else { return Ok(None) };
        let posted = self
            .fill(source, slot * BUFFER)
            .and_then(|piece| self.queues.send_datagram(slot as u64, &self.outbox, piece, (handle, pair)));
        match posted {
            Ok(()) => self.sends[slot] = Some(Arc::clone(handle)),
            Err(_) => self.free.push(slot),
        }
        posted.map(Some)
    }

    /// Writes header and data to a send slot, and returns the piece.
    fn fill(&self, source: &mut Source<'_, '_>, start: usize) -> Result<(usize, usize), Errno> {
        self.outbox.write(start, &self.header)?;
        let mut offset = start + self.header.len();
        source.take(source.left(), |bytes| {
            self.outbox.write(offset, bytes)?;
            offset += bytes.len();
            Ok(())
        })?;
        Ok((start, offset - start))
    }

    /// Processes a completion: the datagram that it has brought. A datagram without a valid header
    /// is dropped. An error ends the queue's work.
    pub(super) fn complete(&mut self, completion: Completion) -> Result<Option<Received>, Errno> {
        if !completion.is_receive {
            // The number is our own, so it fits.
            let slot = usize::try_from(completion.request).unwrap_or_default();
            if self.sends[slot].take().is_some() {
                self.free.push(slot);
            }
            return if completion.is_success { Ok(None) } else { Err(Errno::EIO) };
        }
        if !completion.is_success {
            return Err(Errno::EIO);
        }
        let received = self.parse(completion.request, completion.len);
        if received.is_none() {
            self.release(completion.request)?;
        }
        Ok(received)
    }

    fn parse(&self, slot: u64, len: usize) -> Option<Received> {
        let len = len.min(SLOT).checked_sub(ROUTE_HEADER)?;
        let start = place(slot) + ROUTE_HEADER;
        let mut header = [0; HEADER_MOST];
        let header = &mut header[..len.min(HEADER_MOST)];
        self.inbox.read(start, header).ok()?;
        let (source, skipped) = wire::decode_source(header)?;
        let source = wire::in_scope_of(source, self.address);
        Some(Received { slot, source, offset: start + skipped, len: len - skipped })
    }

    /// Copies a datagram, as much of it as fits.
    pub(super) fn read(&self, received: &Received, sink: &mut Sink<'_, '_>) -> Result<(), Errno> {
        let mut offset = received.offset;
        sink.fill(received.len, |bytes| {
            self.inbox.read(offset, bytes)?;
            offset += bytes.len();
            Ok(())
        })
    }

    /// Gives the slot of a datagram back to the device.
    pub(super) fn give_back(&mut self, received: &Received) -> Result<(), Errno> {
        self.release(received.slot)
    }

    fn release(&mut self, slot: u64) -> Result<(), Errno> {
        self.queues.receive_datagram(slot, &self.inbox, (place(slot), SLOT))
    }
}

/// Where a receive slot begins.
fn place(slot: u64) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX).saturating_mul(SLOT)
}
