//! Long messages by offers: an OFFER names exposed memory, the peer reads it and answers DONE.
//!
//! An offer of this side holds its memory, a copy or the application's own, until DONE, CLOSE or
//! the end of the connection, because the peer may read meanwhile. An offer of the peer has its
//! place among the received messages. One offered message is always read. Further ones are read
//! ahead while the messages that wait for the application stay below [`MAX_OFFERS`], because even a
//! short one occupies a buffer, and have no more bytes together than the longest message.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use rdma::op;
use rdma::{Buffer, Error, ExposedSlice, ProtectionDomain, RemoteSlice, Result};

use super::staging::Staging;
use super::wakeups::Retired;
use super::{Flow, Stored, memory_of};
use crate::failure::{Failure, FailureKind};
use crate::link::{MAX_READS, READ_BIT};
use crate::protocol::{MAX_OFFERS, RESERVE};
use crate::read_buffers::{ReadBuffers, ReadShare};
use crate::waiters::Task;

/// Reads have numbers below this one; those above have other meanings.
const READS_IN_NUMBERS: u32 = 1 << 16;

/// Status of a DONE: the receiver has the message.
const RECEIVED: u32 = 0;
/// Status of a DONE: the receiver is gone.
const DISCARDED: u32 = 1;

/// The offers of a connection.
#[derive(Debug)]
pub(in crate::connection) struct Offers {
    pd: ProtectionDomain,
    /// Length of the longest message that an offer carries.
    longest: usize,

    staging: Staging,
    /// The memory of the offers that the peer has not answered, with their numbers: at most
    /// [`MAX_OFFERS`].
    open: Vec<(u32, Open)>,
    /// Statuses of answered offers whose futures have not seen them.
    statuses: HashMap<u32, u32>,

    /// Offers of the peer that are not being read.
    unread: VecDeque<(u32, RemoteSlice)>,
    reading: Vec<Reading>,
    last_read: u32,
    /// Bytes that are being read, or were read and wait for the application.
    waiting: usize,
    /// The number of the messages that have these bytes.
    waiting_messages: usize,
    /// Offers of the peer to answer, with their statuses.
    answers: VecDeque<(u32, u32)>,
    /// Buffers to read into.
    buffers: ReadShare,
}

/// The way of a long message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::connection) enum Way {
    /// As a copy that the peer reads.
    Offer,
    /// In fragments, as a short one.
    Fragments,
}

/// The memory of an open offer.
#[derive(Debug)]
enum Open {
    /// A copy at this offset of the staging region.
    Staged(usize),
    /// The application's memory, and the task that waits for the peer.
    Exposed { slice: ExposedSlice, is_abandoned: bool, waker: Option<Waker> },
}

/// A read in flight.
#[derive(Debug)]
struct Reading {
    operation: u32,
    offer: u32,
    /// The part of the buffer behind the message.
    rest: Buffer,
}

impl Offers {
    pub(in crate::connection) fn new(pd: &ProtectionDomain, buffers: &Arc<ReadBuffers>, longest: u64) -> Self {
        let longest = usize::try_from(longest).unwrap_or(usize::MAX);
        let buffers = buffers.join(longest);
        Self {
            pd: pd.clone(),
            longest,
            staging: Staging::default(),
            open: Vec::new(),
            statuses: HashMap::new(),
            unread: VecDeque::new(),
            reading: Vec::new(),
            last_read: 0,
            waiting: 0,
            waiting_messages: 0,
            answers: VecDeque::new(),
            buffers,
        }
    }

    /// Whether a read of `len` bytes may begin.
    fn may_read(&self, len: usize) -> bool {
        let has_room = self.waiting_messages < MAX_OFFERS && self.waiting + len <= self.longest;
        self.reading.len() < MAX_READS as usize && (self.waiting_messages == 0 || has_room)
    }

    /// Notes that a message of `len` bytes is being read.
    fn begin_wait(&mut self, len: usize) {
        self.waiting += len;
        self.waiting_messages += 1;
    }

    /// Notes that a message of `len` bytes that was read waits no longer.
    pub(super) fn end_wait(&mut self, len: usize) {
        self.waiting -= len;
        self.waiting_messages -= 1;
    }

    /// A buffer of `len` bytes, and the part of its memory behind them.
    fn buffer(&self, len: usize) -> Result<(Buffer, Buffer)> {
        let mut buffer = self.buffers.take(&self.pd, len)?;
        let rest = buffer.split_off(len);
        Ok((buffer, rest))
    }

    /// Keeps a buffer for another read. Returns the buffers that are too many.
    fn keep(&self, mut buffer: Buffer, rest: Buffer) -> Vec<Retired> {
        if buffer.unsplit(rest).is_err() {
            return vec![Retired::Buffer(buffer)];
        }
        self.buffers.keep(buffer).into_iter().map(Retired::Buffer).collect()
    }

    fn open_offer(&mut self, id: u32) -> Option<&mut Open> {
        self.open.iter_mut().find(|(open, _)| *open == id).map(|(_, open)| open)
    }

    fn take_open(&mut self, id: u32) -> Option<Open> {
        let at = self.open.iter().position(|(open, _)| *open == id)?;
        Some(self.open.swap_remove(at).1)
    }

    /// Takes the memory of all offers of this side, and the tasks that wait for the peer.
    fn release(&mut self) -> (Vec<Retired>, Vec<Waker>) {
        let mut retired: Vec<_> = self.staging.take().into_iter().map(Retired::Region).collect();
        let mut wakers = Vec::new();
        for (_, open) in self.open.drain(..) {
            if let Open::Exposed { slice, waker, .. } = open {
                retired.push(Retired::Slice(slice));
                wakers.extend(waker);
            }
        }
        (retired, wakers)
    }
}

/// The offers of this side.
impl Flow {
    /// The way of a message of `len` bytes that is longer than the eager limit; none while it must
    /// wait.
    ///
    /// Memory for a further offer comes free with a DONE, which needs a credit. A peer without one
    /// gets it when this side's application takes a message; but the application may do that only
    /// once this message is sent. So to such a peer the message goes in fragments.
    pub(in crate::connection) fn way_of_long(&self, len: usize) -> Option<Way> {
        if !self.has_room() {
            return None;
        }
        if self.protocol.can_offer() && self.offers.staging.has_room(len) {
            return Some(Way::Offer);
        }
        self.protocol.is_used_up().then_some(Way::Fragments)
    }

    /// Whether memory of the application may be offered.
    pub(in crate::connection) fn has_room_to_expose(&self) -> bool {
        self.has_room() && self.protocol.can_offer()
    }

    /// Offers a copy of the first `len` bytes of the slices, which have as many;
    /// [`way_of_long`](Self::way_of_long) is an offer.
    pub(in crate::connection) fn offer_copy(
        &mut self,
        slices: &[IoSlice<'_>],
        len: usize,
        now: Instant,
    ) -> Result<(), Failure> {
        let Offers { staging, pd, longest, .. } = &mut self.offers;
        let (offset, slice, replaced) = staging.put(pd, slices, len, *longest)?;
        self.wakeups.retired.extend(replaced.map(Retired::Region));
        self.offer(&slice, || Open::Staged(offset), now).map(drop)
    }

    /// Offers memory of the application; [`has_room_to_expose`](Self::has_room_to_expose) is true.
    /// Returns the number of the offer.
    pub(in crate::connection) fn offer_exposed(&mut self, slice: &ExposedSlice, now: Instant) -> Result<u32, Failure> {
        let open = || Open::Exposed { slice: slice.clone(), is_abandoned: false, waker: None };
        self.offer(&slice.remote(..)?, open, now)
    }

    /// Offers the slice. `open` holds its memory, and is called once the offer has a number: so an
    /// error drops no memory of the application here, under the lock.
    fn offer(&mut self, slice: &RemoteSlice, open: impl FnOnce() -> Open, now: Instant) -> Result<u32, Failure> {
        let Some((header, id)) = self.protocol.offer() else { return Err(Failure::new(FailureKind::Local)) };
        self.offers.open.push((id, open()));
        self.counts.count_sent(usize::try_from(slice.len()).unwrap_or(usize::MAX));
        self.post_copy(header, &slice.to_bytes());
        self.pump(now);
        Ok(id)
    }

    /// Whether an answer to an offer of the peer waits.
    pub(super) fn has_answers(&self) -> bool {
        !self.offers.answers.is_empty()
    }

    /// Takes the peer's answer to an offer.
    pub(super) fn offer_done(&mut self, id: u32, status: u32) {
        match self.offers.take_open(id) {
            Some(Open::Staged(offset)) => self.offers.staging.free(offset),
            Some(Open::Exposed { slice, is_abandoned, waker }) => {
                self.wakeups.retired.push(Retired::Slice(slice));
                self.wakeups.all.extend(waker);
                if !is_abandoned {
                    self.offers.statuses.insert(id, status);
                }
            }
            None => {}
        }
    }

    /// The peer's answer to an offer, once it is there.
    pub(in crate::connection) fn poll_offer(&mut self, id: u32, task: &mut Task<'_>) -> Poll<Result<(), Failure>> {
        if let Some(status) = self.offers.statuses.remove(&id) {
            let discarded = || Failure::new(FailureKind::Closed);
            return Poll::Ready(if status == RECEIVED { Ok(()) } else { Err(discarded()) });
        }
        if let Some(failure) = self.operation_failure() {
            return Poll::Ready(Err(failure));
        }
        if let Some(Open::Exposed { waker: place, .. }) = self.offers.open_offer(id) {
            task.leave(place);
        }
        Poll::Pending
    }

    /// Notes that the future of an offer was dropped. The memory stays held.
    pub(in crate::connection) fn abandon_offer(&mut self, id: u32) {
        self.offers.statuses.remove(&id);
        if let Some(Open::Exposed { is_abandoned, waker, .. }) = self.offers.open_offer(id) {
            *is_abandoned = true;
            self.wakeups.stale.extend(waker.take());
        }
    }

    /// Releases the memory of this side's offers, and gives up the peer's: no DONE comes or goes
    /// any more. Messages after an offer that was not read are given up too.
    pub(super) fn end_offers(&mut self) {
        let (retired, wakers) = self.offers.release();
        self.wakeups.retired.extend(retired);
        self.wakeups.all.extend(wakers);
        self.offers.unread.clear();
        self.offers.answers.clear();
        if let Some(at) = self.inbox.iter().position(|stored| matches!(stored, Stored::Offered(_))) {
            self.is_cut = true;
            for stored in self.inbox.split_off(at) {
                self.discard(stored);
            }
        }
    }
}

/// The offers of the peer.
impl Flow {
    /// Takes an offer of the peer.
    pub(super) fn offered(&mut self, id: u32, slice: RemoteSlice) {
        if self.receiver_is_gone {
            return self.offers.answers.push_back((id, DISCARDED));
        }
        self.inbox.push_back(Stored::Offered(id));
        self.offers.unread.push_back((id, slice));
    }

    /// Begins the reads for which there is space.
    pub(super) fn start_reads(&mut self) {
        while self.outcome.is_none() {
            let Some(&(offer, slice)) = self.offers.unread.front() else { return };
            // The protocol accepts no longer offer.
            let len = usize::try_from(slice.len()).unwrap_or(usize::MAX);
            if !self.offers.may_read(len) {
                return;
            }
            self.offers.unread.pop_front();
            if let Err(error) = self.start_read(offer, slice, len) {
                self.fail(error.into());
            }
        }
    }

    fn start_read(&mut self, offer: u32, slice: RemoteSlice, len: usize) -> Result<(), Error> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let (buffer, rest) = self.offers.buffer(len)?;
        self.offers.last_read = (self.offers.last_read + 1) % READS_IN_NUMBERS;
        let operation = READ_BIT | self.offers.last_read;
        let read = op::read(buffer, slice).token(u64::from(operation) << 32 | self.token);
        if let Err(refused) = link.qp.post_send_unlogged(read) {
            return Err(self.wakeups.refused(refused));
        }
        self.offers.begin_wait(len);
        self.offers.reading.push(Reading { operation, offer, rest });
        Ok(())
    }

    /// Takes the memory of a read that has completed.
    pub(super) fn offer_read(&mut self, operation: u32, buffer: Buffer, now: Instant) {
        let of_operation = |reading: &Reading| reading.operation == operation;
        let Some(at) = self.offers.reading.iter().position(of_operation) else { return };
        let Reading { offer, rest, .. } = self.offers.reading.swap_remove(at);
        let is_offer = |stored: &&mut Stored| matches!(stored, Stored::Offered(id) if *id == offer);
        let place = self.inbox.iter_mut().find(is_offer);
        let status = if place.is_some() { RECEIVED } else { DISCARDED };
        match place {
            Some(place) => {
                self.counts.count_received(buffer.len());
                *place = Stored::Read(buffer, rest);
            }
            None => self.discard(Stored::Read(buffer, rest)),
        }
        if self.operation_failure().is_none() {
            self.offers.answers.push_back((offer, status));
        }
        self.wake_receiver();
        self.pump(now);
    }

    /// Answers an offer that was read or discarded; returns whether there was one.
    pub(super) fn answer_offer(&mut self) -> bool {
        // Permits wait for the answer, and not the answer for them: the peer takes it without its
        // application, and so the credit comes back. Buffers for control messages stay.
        if !self.protocol.can_send_counted() || self.buffers.sends.len() <= RESERVE as usize {
            return false;
        }
        let Some((offer, status)) = self.offers.answers.pop_front() else { return false };
        if let Some(header) = self.protocol.done(offer) {
            self.post_copy(header, &status.to_be_bytes());
        }
        true
    }

    /// Gives up a received message that the application has not taken.
    pub(super) fn discard(&mut self, stored: Stored) {
        match stored {
            Stored::Whole(buffer, _) => self.buffers.spares.push(buffer),
            Stored::Assembled(bytes) => self.inbox_bytes -= memory_of(&bytes),
            Stored::Offered(id) => {
                // A read in flight is answered when it completes.
                let unread = self.offers.unread.len();
                self.offers.unread.retain(|(offer, _)| *offer != id);
                if self.offers.unread.len() < unread {
                    self.offers.answers.push_back((id, DISCARDED));
                }
            }
            Stored::Read(buffer, rest) => {
                self.offers.end_wait(buffer.len());
                self.keep_read(buffer, rest);
            }
        }
    }

    /// Keeps the memory of a read for another one.
    pub(super) fn keep_read(&mut self, buffer: Buffer, rest: Buffer) {
        let retired = self.offers.keep(buffer, rest);
        self.wakeups.retired.extend(retired);
    }
}
