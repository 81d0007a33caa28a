//! Several messages at a time, of which none waits for another.
//!
//! The messages from one rank to another are one stream, in the order of the transfers: each is cut
//! into pieces, and a piece is posted once the one before it is. So it makes no difference which
//! messages either side exchanges at a time. A rank looks at all of its streams in turn, takes what
//! has arrived and posts what there is space for, and pauses only if none of them moves.
//!
//! Links do not tell how long a message is, and both sides must mean the same length. So a piece
//! begins with the number of elements of its message that are not received yet.

use std::collections::VecDeque;

use crate::Error;
use crate::element::Element;
use crate::execute::Traffic;
use crate::link::{Links, Slice, Ticket};
use crate::memory::{Source, Target};
use crate::shm::HostSlice;
use crate::wait::Wait;

/// Bytes of the number in front of a piece. Elements of every type fit behind it.
pub(crate) const HEAD: usize = 8;
/// Most bytes of a piece, without its head.
const PIECE: usize = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// Pieces in the scratch memory begin at multiples of so many bytes: no two share a cache line.
const ALIGNMENT: usize = 64;
/// Pieces to one rank that are in flight at a time.
const PLACES: usize = 2;

/// One of several messages that are [exchanged](crate::Communicator::exchange) at a time: NCCL's
/// `ncclSend` or `ncclRecv` in a group, MPI's `MPI_Isend` or `MPI_Irecv`.
#[derive(Debug)]
pub enum Transfer<'a, T> {
    /// A message to a rank.
    Send {
        /// The rank.
        to: usize,
        /// The elements.
        memory: Source<'a, T>,
    },
    /// A message from a rank.
    Recv {
        /// The rank.
        from: usize,
        /// Space for the elements, as many as the message has.
        memory: Target<'a, T>,
    },
}

impl<'a, T> Transfer<'a, T> {
    /// A message to a rank.
    pub fn send(memory: impl Into<Source<'a, T>>, to: usize) -> Self {
        Self::Send { to, memory: memory.into() }
    }

    /// A message from a rank.
    pub fn recv(memory: impl Into<Target<'a, T>>, from: usize) -> Self {
        Self::Recv { from, memory: memory.into() }
    }
}

impl<T: Element> Transfer<'_, T> {
    pub(crate) fn peer(&self) -> usize {
        match self {
            Self::Send { to: peer, .. } | Self::Recv { from: peer, .. } => *peer,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Send { memory, .. } => memory.len(),
            Self::Recv { memory, .. } => memory.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the memory has the elements.
    pub(crate) fn fits(&self) -> bool {
        match self {
            Self::Send { memory: Source::Tensor(tensor, count), .. }
            | Self::Recv { memory: Target::Tensor(tensor, count), .. } => *count <= tensor.count(),
            _ => true,
        }
    }
}

/// Most elements of a piece; the same at all ranks.
pub(crate) fn piece_of<T>() -> usize {
    (PIECE / size_of::<T>()).max(1)
}

/// An exchange in progress, of messages with other ranks.
#[derive(Debug)]
pub(crate) struct Exchange<'a, 'm, T> {
    transfers: &'a mut [Transfer<'m, T>],
    /// Bytes of a place in the scratch memory.
    place: usize,
    sends: Vec<Sends>,
    receives: Vec<Receives>,
    block: Vec<T>,
    traffic: Traffic,
}

/// The messages to one rank.
#[derive(Debug)]
struct Sends {
    to: usize,
    /// The transfers that are not posted yet, or in part only.
    queue: VecDeque<usize>,
    /// Elements of the first of them that are posted.
    posted: usize,
    /// The piece in each of the rank's places, until it is taken.
    places: [Option<Ticket>; PLACES],
}

/// The messages from one rank.
#[derive(Debug)]
struct Receives {
    from: usize,
    /// The transfers that have not arrived yet, or in part only.
    queue: VecDeque<usize>,
    /// Elements of the first of them that have arrived.
    arrived: usize,
}

impl<'a, 'm, T: Element> Exchange<'a, 'm, T> {
    /// An exchange of those messages that have elements and are not this rank's to itself.
    pub(crate) fn new(transfers: &'a mut [Transfer<'m, T>], rank: usize) -> Self {
        let (mut sends, mut receives) = (Vec::<Sends>::new(), Vec::<Receives>::new());
        let mut longest = 0;
        for (index, transfer) in transfers.iter().enumerate() {
            match transfer {
                _ if transfer.is_empty() || transfer.peer() == rank => {}
                Transfer::Send { to, .. } => {
                    longest = longest.max(transfer.len());
                    match sends.iter_mut().find(|sends| sends.to == *to) {
                        Some(known) => known.queue.push_back(index),
                        None => sends.push(Sends { to: *to, queue: [index].into(), posted: 0, places: [None; PLACES] }),
                    }
                }
                Transfer::Recv { from, .. } => match receives.iter_mut().find(|receives| receives.from == *from) {
                    Some(known) => known.queue.push_back(index),
                    None => receives.push(Receives { from: *from, queue: [index].into(), arrived: 0 }),
                },
            }
        }
        let place = (HEAD + longest.min(piece_of::<T>()) * size_of::<T>()).next_multiple_of(ALIGNMENT);
        Self { transfers, place, sends, receives, block: Vec::new(), traffic: Traffic::default() }
    }

    /// Bytes of scratch memory that the exchange needs.
    pub(crate) fn scratch(&self) -> usize {
        self.sends.len() * PLACES * self.place
    }

    /// Runs the exchange, and returns the bytes of its messages.
    pub(crate) fn run(
        mut self,
        links: &mut impl Links<Slice = HostSlice>,
        scratch: &HostSlice,
    ) -> Result<Traffic, Error> {
        let mut wait = Wait::default();
        loop {
            let mut moves = false;
            for at in 0..self.sends.len() {
                moves |= self.send(at, links, scratch)?;
            }
            for at in 0..self.receives.len() {
                moves |= self.receive(at, links)?;
            }
            let receives = self.receives.iter().find(|receives| !receives.queue.is_empty());
            let sends = self.sends.iter().find(|sends| !sends.are_taken());
            let (rank, what) = match (receives, sends) {
                (Some(receives), _) => (receives.from, "to send a message"),
                (None, Some(sends)) => (sends.to, "to take a message"),
                (None, None) => return Ok(self.traffic),
            };
            if moves {
                wait = Wait::default();
                continue;
            }
            let waiting = |error: Error| error.context(format!("waiting for rank {rank} {what}")).waits_for(rank);
            links.pause(&mut wait).map_err(waiting)?;
        }
    }

    /// Posts pieces to a rank where places are free; returns whether anything has moved.
    fn send(
        &mut self,
        at: usize,
        links: &mut impl Links<Slice = HostSlice>,
        scratch: &HostSlice,
    ) -> Result<bool, Error> {
        let (sends, mut moves) = (&mut self.sends[at], false);
        for (number, place) in sends.places.iter_mut().enumerate() {
            if let Some(ticket) = *place {
                if !links.is_taken(ticket)? {
                    continue;
                }
                (*place, moves) = (None, true);
            }
            let Some(&index) = sends.queue.front() else { continue };
            let Transfer::Send { memory, .. } = &self.transfers[index] else { continue };
            let end = (sends.posted + piece_of::<T>()).min(memory.len());
            memory.read(sends.posted..end, &mut self.block)?;
            let bytes: &[u8] = bytemuck::cast_slice(&self.block);
            let start = (at * PLACES + number) * self.place;
            let piece = scratch.part(start..start + HEAD + bytes.len())?;
            let left = (memory.len() - sends.posted) as u64;
            piece.copy_in(0, &left.to_ne_bytes())?;
            piece.copy_in(HEAD, bytes)?;
            *place = Some(links.post(sends.to, piece)?);
            self.traffic.sent += bytes.len() as u64;
            (sends.posted, moves) = (end, true);
            if end == memory.len() {
                sends.queue.pop_front();
                sends.posted = 0;
            }
        }
        Ok(moves)
    }

    /// Takes what has arrived from a rank; returns whether anything has.
    fn receive(&mut self, at: usize, links: &mut impl Links<Slice = HostSlice>) -> Result<bool, Error> {
        let (receives, mut moves) = (&mut self.receives[at], false);
        while let Some(&index) = receives.queue.front() {
            let Transfer::Recv { memory, .. } = &mut self.transfers[index] else { break };
            let (start, piece) = (receives.arrived, piece_of::<T>());
            // The links cut each piece on their part, of which the first has the head.
            let head = if start % piece == 0 { HEAD } else { 0 };
            let end = (start - start % piece + piece).min(memory.len());
            let end = end.min(start + (links.piece() - head) / size_of::<T>());
            let Some(arrived) = links.arrived(receives.from, head + (end - start) * size_of::<T>())? else { break };
            if head > 0 {
                let mut left = [0; HEAD];
                arrived.copy_out(0, &mut left)?;
                let (sent, wanted) = (u64::from_ne_bytes(left), (memory.len() - start) as u64);
                if sent != wanted {
                    let from = receives.from;
                    return Err(Error::new(format!(
                        "rank {from} sent {sent} elements, and {wanted} are to be received"
                    )));
                }
            }
            match memory {
                Target::Slice(all) => arrived.copy_out(head, bytemuck::cast_slice_mut(&mut all[start..end]))?,
                Target::Tensor(..) | Target::Shared(_) => {
                    self.block.resize(end - start, T::zeroed());
                    arrived.copy_out(head, bytemuck::cast_slice_mut(&mut self.block))?;
                    memory.write(start, &self.block)?;
                }
            }
            links.release(receives.from)?;
            self.traffic.received += ((end - start) * size_of::<T>()) as u64;
            (receives.arrived, moves) = (end, true);
            if end == memory.len() {
                receives.queue.pop_front();
                receives.arrived = 0;
            }
        }
        Ok(moves)
    }
}

impl Sends {
    /// Whether all messages are posted, and their pieces taken.
    fn are_taken(&self) -> bool {
        self.queue.is_empty() && self.places.iter().all(Option::is_none)
    }
}
