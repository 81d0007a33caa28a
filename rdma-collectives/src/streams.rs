//! Links by verbs: a message is written piece by piece into slots of its receiver, which hands them
//! back when the pieces are read.
//!
//! Every rank has some slots for each other rank, used in turn. They belong to no collective: the
//! pieces of two ranks are one stream from the first collective to the last, so that one may follow
//! another without a barrier.
//!
//! A stream has one or more *channels*: connections with slots of their own, on the same device or
//! on several. Its pieces take the channels in turn, which both sides count. Two ranks may have
//! other channels than two others.

use std::collections::VecDeque;
use std::ops::Range;

use rdma::{ExposedSlice, Gpu, RemoteSlice};

use crate::Error;
use crate::bootstrap::Group;
use crate::fabric::{Fabric, Lane, exchange, expose_together};
use crate::link::{Links, Slice, Ticket};
use crate::shm::HostSlice;
use crate::wait::Wait;

/// Slots of a rank for the pieces from one other rank on one channel.
const SLOTS: usize = 8;
/// Slots that one notice hands back.
const BATCH: usize = 4;
/// Most bytes of all slots of a rank, with more than some ranks.
const MEMORY: usize = 64 << 20;
/// Pieces are no shorter than a page.
const PAGE: usize = 4096;

/// The streams of pieces between this rank and the others.
#[derive(Debug)]
pub(crate) struct Streams {
    rank: usize,
    piece: usize,
    channels: Vec<Channel>,
    peers: Vec<Stream>,
    /// Messages that are not sent yet, or in part only.
    unsent: usize,
}

/// The slots of all ranks on one channel.
#[derive(Debug)]
struct Channel {
    /// The number of the rail that this rank uses.
    rail: usize,
    /// `None` if the slots are the memory of a GPU, or of its copies.
    slots: Option<ExposedSlice>,
    remotes: Vec<RemoteSlice>,
}

/// Memory that is sent as a message.
#[derive(Clone, Debug)]
pub(crate) enum Message {
    /// Host memory.
    Host(HostSlice),
    /// Memory of a GPU, which is registered with the only rail.
    Gpu(ExposedSlice<Gpu>),
}

impl Message {
    fn len(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            Self::Gpu(slice) => slice.len(),
        }
    }

    fn part(&self, bytes: Range<usize>) -> Result<Self, Error> {
        Ok(match self {
            Self::Host(slice) => Self::Host(slice.part(bytes)?),
            Self::Gpu(slice) => Self::Gpu(slice.slice(bytes)?),
        })
    }
}

impl From<HostSlice> for Message {
    fn from(slice: HostSlice) -> Self {
        Self::Host(slice)
    }
}

impl From<ExposedSlice<Gpu>> for Message {
    fn from(slice: ExposedSlice<Gpu>) -> Self {
        Self::Gpu(slice)
    }
}

/// The size of the slots of a rank on a channel.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only slots on GPUs have another owner"))]
pub(crate) struct Room {
    /// Bytes of the slots for all ranks.
    pub(crate) bytes: usize,
    /// Bytes of a slot.
    pub(crate) piece: usize,
    /// Number of ranks.
    pub(crate) ranks: usize,
}

/// The stream to one rank, and the one from it.
#[derive(Debug, Default)]
struct Stream {
    /// The channels that lead to the rank.
    channels: Range<usize>,
    /// The rest of each message that is not sent yet.
    queue: VecDeque<Message>,
    /// Messages posted.
    posted: u64,
    /// Pieces sent.
    sent: usize,
    /// The pieces sent whose memory may not change yet as far as is known.
    sends: VecDeque<Sent>,
    /// Messages whose memory may change.
    taken: u64,
    /// Pieces received and read.
    read: usize,
    /// Pieces read whose slots were handed back.
    freed: usize,
}

impl Stream {
    /// The channel of a piece, and the number of the piece on that channel.
    fn channel(&self, piece: usize) -> (usize, usize) {
        let channels = self.channels.len().max(1);
        (self.channels.start + piece % channels, piece / channels)
    }
}

/// A piece that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    channel: usize,
    /// The number of the send on its channel.
    number: u64,
    /// Whether it is the last piece of its message.
    is_last: bool,
}

impl Streams {
    /// Allocates the memory for pieces of about `piece` bytes, on a channel for each fabric, of
    /// which `rails` gives the rail; collective. `used` says which channels lead to a rank, the
    /// same at both sides.
    pub(crate) fn new(
        fabrics: &[Fabric],
        rails: &[usize],
        group: &mut Group,
        (piece, used): (usize, &dyn Fn(usize) -> Range<usize>),
    ) -> Result<Self, Error> {
        let (rank, world) = (group.rank(), group.ranks());
        let slots = SLOTS * world;
        let most = (MEMORY / (slots * fabrics.len().max(1)) / PAGE).max(1) * PAGE;
        let piece = piece.clamp(1, most).next_multiple_of(PAGE);
        let mut channels = Vec::new();
        for (fabric, &rail) in fabrics.iter().zip(rails) {
            let (slots, remotes) = expose_together(fabric, group, "the slots for messages", slots * piece)?;
            channels.push(Channel { rail, slots: Some(slots.slice(..)?), remotes });
        }
        let peers = (0..world).map(|rank| Stream { channels: used(rank), ..Stream::default() }).collect();
        Ok(Self { rank, piece, channels, peers, unsent: 0 })
    }

    /// The size of the slots of a channel.
    pub(crate) fn room(&self) -> Room {
        let ranks = self.peers.len();
        Room { bytes: SLOTS * ranks * self.piece, piece: self.piece, ranks }
    }

    /// Moves the slots of the only channel to other memory of the same length, which only its owner
    /// reads; collective, between two collectives.
    pub(crate) fn move_to(&mut self, group: &mut Group, slots: RemoteSlice) -> Result<(), Error> {
        let [channel] = &mut self.channels[..] else { return Err(Error::new("the slots of one channel can move")) };
        channel.remotes = exchange(group, "the slots for messages", slots)?;
        channel.slots = None;
        Ok(())
    }

    /// Byte offset, in the memory of the receiver, of the slot of a rank's piece on a channel.
    fn slot(&self, from: usize, piece: usize) -> usize {
        (from * SLOTS + piece % SLOTS) * self.piece
    }
}

/// The streams, with the fabrics that carry them, one for each channel.
#[derive(Debug)]
pub(crate) struct StreamLinks<'a> {
    pub(crate) fabrics: &'a mut [Fabric],
    pub(crate) streams: &'a mut Streams,
}

impl StreamLinks<'_> {
    /// The number of messages posted to a rank.
    #[cfg(feature = "cuda")]
    pub(crate) fn posted(&self, to: usize) -> u64 {
        self.streams.peers[to].posted
    }

    /// Sends what the free slots of a rank have space for.
    fn push(&mut self, to: usize) -> Result<(), Error> {
        while let Some(message) = self.streams.peers[to].queue.front().cloned() {
            let stream = &self.streams.peers[to];
            let (at, piece) = stream.channel(stream.sent);
            let (channel, fabric) = (&self.streams.channels[at], &mut self.fabrics[at]);
            // Slots of pieces become free by the batch.
            let freed = (piece + 1).saturating_sub(SLOTS).div_ceil(BATCH);
            if !fabric.has_sent(to, Lane::FreeSlots, freed as u64)? {
                break;
            }
            let (length, slot) = (message.len().min(self.streams.piece), self.streams.slot(self.streams.rank, piece));
            let place = channel.remotes[to].slice(slot..slot + length)?;
            let number = match message.part(0..length)? {
                Message::Host(bytes) => fabric.send(to, Lane::Piece, bytes.registered(channel.rail)?, place)?,
                Message::Gpu(bytes) => fabric.send(to, Lane::Piece, bytes, place)?,
            };
            let (stream, is_last) = (&mut self.streams.peers[to], length == message.len());
            stream.sent += 1;
            stream.sends.push_back(Sent { channel: at, number, is_last });
            if is_last {
                stream.queue.pop_front();
                self.streams.unsent -= 1;
            } else {
                stream.queue[0] = message.part(length..message.len())?;
            }
        }
        Ok(())
    }

    /// Offers memory to a rank as its next message, as [`Links::post`].
    pub(crate) fn send(&mut self, to: usize, message: impl Into<Message>) -> Result<Ticket, Error> {
        let stream = self.streams.peers.get_mut(to).ok_or_else(|| no_rank(to))?;
        stream.posted += 1;
        stream.queue.push_back(message.into());
        let number = stream.posted;
        self.streams.unsent += 1;
        self.push(to)?;
        Ok(Ticket { to, number })
    }

    /// The channel of the next piece from a rank and the byte offset of its slot, if the piece has
    /// arrived.
    fn next(&mut self, from: usize) -> Result<Option<(usize, usize)>, Error> {
        let stream = self.streams.peers.get(from).ok_or_else(|| no_rank(from))?;
        let (at, piece) = stream.channel(stream.read);
        let has_arrived = self.fabrics[at].has_sent(from, Lane::Piece, piece as u64 + 1)?;
        Ok(has_arrived.then(|| (at, self.streams.slot(from, piece))))
    }

    /// The byte offset of the slot of the next piece from a rank, if the piece has arrived by the
    /// only channel.
    #[cfg(feature = "cuda")]
    pub(crate) fn next_slot(&mut self, from: usize) -> Result<Option<usize>, Error> {
        Ok(self.next(from)?.map(|(_, slot)| slot))
    }

    /// Passes to the next piece from a rank. The slot of this one is in use until
    /// [`free`](Self::free).
    pub(crate) fn pass(&mut self, from: usize) {
        self.streams.peers[from].read += 1;
    }

    /// Hands back the slot of the earliest passed piece from a rank whose slot is in use.
    pub(crate) fn free(&mut self, from: usize) -> Result<(), Error> {
        let stream = &mut self.streams.peers[from];
        let (at, piece) = stream.channel(stream.freed);
        stream.freed += 1;
        if (piece + 1) % BATCH == 0 {
            self.fabrics[at].notify(from, Lane::FreeSlots)?;
        }
        Ok(())
    }
}

fn no_rank(rank: usize) -> Error {
    Error::invalid(format!("there is no rank {rank}"))
}

impl Links for StreamLinks<'_> {
    type Slice = HostSlice;

    fn piece(&self) -> usize {
        self.streams.piece
    }

    fn post(&mut self, to: usize, message: HostSlice) -> Result<Ticket, Error> {
        self.send(to, message)
    }

    fn is_taken(&mut self, ticket: Ticket) -> Result<bool, Error> {
        let stream = &mut self.streams.peers[ticket.to];
        while stream.taken < ticket.number {
            let Some(&Sent { channel, number, is_last }) = stream.sends.front() else { return Ok(false) };
            if !self.fabrics[channel].is_sent(ticket.to, number)? {
                return Ok(false);
            }
            stream.sends.pop_front();
            stream.taken += u64::from(is_last);
        }
        Ok(true)
    }

    fn arrived(&mut self, from: usize, length: usize) -> Result<Option<HostSlice>, Error> {
        let Some((at, slot)) = self.next(from)? else { return Ok(None) };
        let slots = self.streams.channels[at].slots.as_ref();
        let slots = slots.ok_or_else(|| Error::new("the slots for messages are not in host memory"))?;
        Ok(Some(slots.slice(slot..slot + length)?.into()))
    }

    fn release(&mut self, from: usize) -> Result<(), Error> {
        self.pass(from);
        self.free(from)
    }

    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error> {
        if self.streams.unsent > 0 {
            for to in 0..self.streams.peers.len() {
                self.push(to)?;
            }
        }
        match &mut *self.fabrics {
            [] => Ok(()),
            [first, others @ ..] => {
                others.iter_mut().try_for_each(Fabric::look)?;
                first.pause_for_progress(wait)
            }
        }
    }
}
