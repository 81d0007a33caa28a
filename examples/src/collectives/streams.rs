//! Links over the fabric: a message is written piece by piece into slots of its receiver, which
//! hands them back when the pieces are read.
//!
//! Every rank has some slots for each other rank, used in turn. They belong to no collective: the
//! pieces of two ranks are one stream from the first collective to the last, so that one may follow
//! another without a barrier.

use std::collections::VecDeque;

use rdma::{ExposedSlice, RemoteSlice};

use super::fabric::{Fabric, Lane, exchange, expose_together};
use super::link::{Links, Ticket};
use super::shm::HostSlice;
use super::wait::Wait;
use crate::Failure;
use crate::bootstrap::Group;

/// Slots of a rank for the pieces from one other rank.
const SLOTS: usize = 8;
/// Slots that one notice hands back.
const BATCH: usize = 4;
/// Most bytes of all slots of a rank, with more than some ranks.
const MEMORY: usize = 64 << 20;
/// Pieces are no shorter than a page.
const PAGE: usize = 4096;

/// The streams of pieces between this rank and the others.
#[derive(Debug)]
pub(super) struct Streams {
    rank: usize,
    slots: ExposedSlice,
    remotes: Vec<RemoteSlice>,
    piece: usize,
    peers: Vec<Stream>,
    /// Messages that are not sent yet, or in part only.
    unsent: usize,
}

/// The stream to one rank, and the one from it.
#[derive(Debug, Default)]
struct Stream {
    /// The rest of each message that is not sent yet.
    queue: VecDeque<ExposedSlice>,
    /// Messages posted.
    posted: u64,
    /// Pieces sent.
    sent: usize,
    /// The number of the last send of each message that was sent, but whose memory may not change
    /// yet as far as is known.
    sends: VecDeque<u64>,
    /// Messages whose memory may change.
    taken: u64,
    /// Pieces received and released.
    released: usize,
}

impl Streams {
    /// Allocates the memory for pieces of about `piece` bytes; collective.
    pub(super) fn new(fabric: &Fabric, group: &mut Group, piece: usize) -> Result<Self, Failure> {
        let (rank, world) = (group.rank(), group.world());
        let slots = SLOTS * world;
        let most = (MEMORY / slots / PAGE).max(1) * PAGE;
        let piece = piece.next_multiple_of(PAGE).min(most);
        let (slots, remotes) = expose_together(fabric, group, "the slots for messages", slots * piece)?;
        let slots = slots.slice(..)?;
        let peers = (0..world).map(|_| Stream::default()).collect();
        Ok(Self { rank, slots, remotes, piece, peers, unsent: 0 })
    }

    /// Bytes of the slots of all ranks.
    pub(super) fn memory(&self) -> usize {
        self.slots.len()
    }

    /// Moves the slots to other memory of the same length; collective, between two collectives.
    pub(super) fn move_to(&mut self, group: &mut Group, slots: ExposedSlice) -> Result<(), Failure> {
        self.remotes = exchange(group, "the slots for messages", slots.remote(..)?)?;
        self.slots = slots;
        Ok(())
    }

    /// Most bytes of a piece.
    pub(super) fn piece(&self) -> usize {
        self.piece
    }

    /// Byte offset, in the memory of the receiver, of the slot of a rank's piece.
    fn slot(&self, from: usize, piece: usize) -> usize {
        (from * SLOTS + piece % SLOTS) * self.piece
    }
}

/// The streams, with the fabric that carries them.
#[derive(Debug)]
pub(super) struct StreamLinks<'a> {
    pub(super) fabric: &'a mut Fabric,
    pub(super) streams: &'a mut Streams,
}

impl StreamLinks<'_> {
    /// The number of messages posted to a rank.
    #[cfg(feature = "cuda")]
    pub(super) fn posted(&self, to: usize) -> u64 {
        self.streams.peers[to].posted
    }

    /// Sends what the free slots of a rank have room for.
    fn push(&mut self, to: usize) -> Result<(), Failure> {
        while let Some(message) = self.streams.peers[to].queue.front().cloned() {
            let sent = self.streams.peers[to].sent;
            let notices = self.fabric.received(to, Lane::FreeSlots)?;
            if sent as u64 - notices * BATCH as u64 >= SLOTS as u64 {
                break;
            }
            let (length, at) = (message.len().min(self.streams.piece), self.streams.slot(self.streams.rank, sent));
            let place = self.streams.remotes[to].slice(at..at + length)?;
            let number = self.fabric.send(to, Lane::Piece, message.slice(..length)?, place)?;
            let stream = &mut self.streams.peers[to];
            stream.sent += 1;
            if length < message.len() {
                stream.queue[0] = message.slice(length..)?;
            } else {
                stream.queue.pop_front();
                stream.sends.push_back(number);
                self.streams.unsent -= 1;
            }
        }
        Ok(())
    }
}

impl Links for StreamLinks<'_> {
    type Slice = HostSlice;

    fn piece(&self) -> usize {
        self.streams.piece
    }

    fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Failure> {
        let message = message.registered()?;
        let stream = &mut self.streams.peers[to];
        stream.posted += 1;
        stream.queue.push_back(message);
        let number = stream.posted;
        self.streams.unsent += 1;
        self.push(to)?;
        Ok(Ticket { to, number })
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Failure> {
        let stream = &mut self.streams.peers[ticket.to];
        while stream.taken < ticket.number {
            match stream.sends.front() {
                Some(&number) if self.fabric.is_sent(ticket.to, number)? => stream.sends.pop_front(),
                _ => return Ok(false),
            };
            stream.taken += 1;
        }
        Ok(true)
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Failure> {
        let piece = self.streams.peers[from].released;
        if self.fabric.received(from, Lane::Piece)? <= piece as u64 {
            return Ok(None);
        }
        let at = self.streams.slot(from, piece);
        Ok(Some(self.streams.slots.slice(at..at + length)?.into()))
    }

    fn release(&mut self, from: usize) -> Result<(), Failure> {
        let stream = &mut self.streams.peers[from];
        stream.released += 1;
        if stream.released % BATCH == 0 {
            self.fabric.notify(from, Lane::FreeSlots)?;
        }
        Ok(())
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Failure> {
        if self.streams.unsent > 0 {
            for to in 0..self.streams.peers.len() {
                self.push(to)?;
            }
        }
        self.fabric.pause_for_progress(wait)
    }
}
