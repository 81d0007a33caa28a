//! The state of a connection under its lock: the protocol, the queue pair and the buffers.

mod arrivals;
mod assembly;
mod deadlines;
mod offers;
mod one_sided;
mod staging;
mod wakeups;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

pub(super) use self::arrivals::Arrivals;
pub(super) use self::offers::{Offers, Way};
use rdma::Buffer;
use rdma::op;

use self::assembly::Assembly;
use self::wakeups::{Retired, Wakeups};
use super::operations::Operations;
use crate::failure::{Failure, FailureKind};
use crate::link::Link;
use crate::protocol::{HEADER_LEN, Protocol, Received};
use crate::receives::{ReceivePool, Stake};
use crate::stats::ConnectionStats;
use crate::waiters::Waiters;

/// Memory of reassembled messages that wait for the application, in bytes, before receives are no
/// longer replaced.
const INBOX_LIMIT: usize = 256 << 10;
/// Memory of a reassembled message besides its bytes: a place in the inbox, which may be half
/// empty, and what the allocator adds. A peer may send messages of two bytes in two fragments.
const MESSAGE_OVERHEAD: usize = 2 * size_of::<Stored>() + 32;

/// The state of a connection.
pub(super) struct Flow {
    pub(super) protocol: Protocol,
    /// The token of the connection's requests.
    token: u64,
    linger: Duration,
    /// Present while the connection can send.
    link: Option<Link>,
    /// The reason of the end, once the connection has ended.
    outcome: Option<Failure>,
    /// The deadline that the driver knows.
    noted: Option<Instant>,

    buffers: Buffers,
    /// The part in a pool of shared receives, and the pool.
    stake: Option<Stake>,
    pool: Option<Arc<ReceivePool>>,
    /// Data receives that were consumed and not replaced.
    owed: u32,
    inbox: VecDeque<Stored>,
    /// Memory of the messages in the inbox that occupy neither a receive nor a buffer of a read.
    inbox_bytes: usize,
    assembly: Assembly,
    receiver_is_gone: bool,
    /// Whether messages that arrived were given up, because one before them was lost.
    is_cut: bool,
    offers: Offers,

    outgoing: Option<Outgoing>,
    /// Memory for the next message of several fragments.
    outgoing_spare: Vec<u8>,
    /// Filled permits that are not posted yet.
    filled: VecDeque<(Buffer, usize)>,
    /// Permits that are not posted yet.
    reserved: u32,
    ending: Ending,
    /// The end of the time to close.
    close_by: Option<Instant>,
    /// The end of the time for the peer's next message, and the time for those after it.
    message_by: Option<Instant>,
    idle: Option<Duration>,
    /// Whether the peer has sent a whole message.
    has_spoken: bool,

    /// What the connection has done; of what there is now, only the high-water mark.
    pub(super) counts: ConnectionStats,
    pub(super) operations: Operations,
    arrivals: Arrivals,
    pub(super) senders: Waiters,
    /// Whether the first waiting sender may wait for a credit: not if it has found one, and waits
    /// for something else.
    sender_wants_credit: bool,
    /// Whether a sender need not wait, as far as the last [`pump`](Self::pump) has seen: a hint.
    pub(super) may_send: bool,
    receiver: Option<Waker>,
    /// Tasks that wait for the end.
    closers: Waiters,
    pub(super) wakeups: Wakeups,
}

/// The memory of a new connection.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) buffers: Buffers,
    pub(super) offers: Offers,
    pub(super) operations: Operations,
    pub(super) arrivals: Arrivals,
    /// The part in a pool of shared receives, if the connection takes its receives from one.
    pub(super) stake: Option<Stake>,
}

/// The buffers of a connection that are not posted.
#[derive(Debug)]
pub(super) struct Buffers {
    /// For receives.
    pub(super) spares: Vec<Buffer>,
    pub(super) sends: Vec<Buffer>,
}

/// A message that was received.
#[derive(Debug)]
pub(super) enum Stored {
    /// A message of one fragment, in its receive buffer.
    Whole(Buffer, Range<usize>),
    /// A message of several fragments.
    Assembled(Vec<u8>),
    /// A message that the peer offers and that is not read yet.
    Offered(u32),
    /// A message that was read, and the part of its memory behind it.
    Read(Buffer, Buffer),
}

/// A message of which fragments are still to be sent.
#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

/// The end of this side's data that the application asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    None,
    Data,
    Connection(u32),
}

impl Flow {
    pub(super) fn new(token: u64, protocol: Protocol, memory: Memory, linger: Duration) -> Self {
        let Memory { buffers, offers, operations, arrivals, stake } = memory;
        let pool = stake.as_ref().map(|stake| Arc::clone(stake.pool()));
        Self {
            protocol,
            token,
            linger,
            link: None,
            outcome: None,
            noted: None,
            buffers,
            stake,
            pool,
            owed: 0,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            assembly: Assembly::default(),
            receiver_is_gone: false,
            is_cut: false,
            offers,
            outgoing: None,
            outgoing_spare: Vec::new(),
            filled: VecDeque::new(),
            reserved: 0,
            ending: Ending::None,
            close_by: None,
            message_by: None,
            idle: None,
            has_spoken: false,
            counts: ConnectionStats::default(),
            operations,
            arrivals,
            senders: Waiters::default(),
            sender_wants_credit: true,
            may_send: false,
            receiver: None,
            closers: Waiters::default(),
            wakeups: Wakeups::default(),
        }
    }

    /// Takes a receive of the pool that was flushed.
    pub(super) fn flushed(&mut self, buffer: Buffer) {
        if let Some(stake) = &mut self.stake {
            stake.taken();
        }
        self.give_back(buffer);
    }

    /// Gives up a receive buffer of a connection that has ended.
    fn give_back(&mut self, buffer: Buffer) {
        if let Some(Err(refused)) = self.pool.as_ref().map(|pool| pool.give(buffer)) {
            self.wakeups.retired.push(Retired::Lost(refused));
        }
    }

    pub(super) fn qpn(&self) -> Option<u32> {
        self.link.as_ref().map(|link| link.qp.qpn())
    }

    #[cfg(test)]
    pub(super) fn raw_queue_pair(&self) -> Option<*mut rdma_sys::ibv_qp> {
        self.link.as_ref().map(|link| link.qp.as_raw())
    }

    #[cfg(test)]
    pub(super) fn attributes(&self) -> Option<rdma_sys::ibv_qp_attr> {
        self.link.as_ref().map(|link| *link.qp.query().unwrap().as_raw())
    }

    /// Makes the connection able to send.
    pub(super) fn set_link(&mut self, link: Link, now: Instant) {
        self.link = Some(link);
        self.pump(now);
    }

    /// Fails the connection if the peer does not send its first message in a time, unless it has
    /// sent one already, or a later one in another time.
    pub(super) fn limit_silence(&mut self, first: Option<Duration>, idle: Option<Duration>, now: Instant) {
        self.idle = idle;
        let time = if self.has_spoken { idle } else { first.or(idle) };
        self.message_by = time.filter(|_| !self.protocol.peer_has_ended()).map(|time| now + time);
    }

    /// Begins the time for the peer's next message after a whole one, and after a fragment of a
    /// later one. A fragment of the first message is cheap, so it does not end the time for that
    /// message.
    fn note_data(&mut self, is_whole: bool, now: Instant) {
        if !is_whole && !self.has_spoken {
            return;
        }
        self.has_spoken = true;
        self.message_by = self.idle.filter(|_| !self.protocol.peer_has_ended()).map(|idle| now + idle);
    }

    /// The reason of the end, once the connection has ended.
    pub(super) fn outcome(&self) -> Option<&Failure> {
        self.outcome.as_ref()
    }

    /// What the connection has done, and what there is now.
    pub(super) fn stats(&self) -> ConnectionStats {
        let credits = if self.outcome.is_some() { 0 } else { self.protocol.room() };
        ConnectionStats { credits, unread: self.inbox.len(), ..self.counts }
    }

    /// The link of a connection that has ended, to be disconnected.
    pub(super) fn take_link(&mut self) -> Option<(Link, Option<Stake>)> {
        self.outcome.as_ref()?;
        let stake = self.stake.take();
        self.link.take().map(|link| (link, stake))
    }

    /// Ends the connection, and wakes all tasks that wait for it. Only the first reason counts.
    pub(super) fn fail(&mut self, failure: Failure) {
        if self.outcome.is_some() {
            return;
        }
        self.outcome = Some(self.protocol.peer_code().map_or(failure, Failure::closed));
        self.may_send = false;
        (self.outgoing, self.outgoing_spare) = (None, Vec::new());
        self.assembly.clear();
        self.end_offers();
        self.end_operations();
        self.replace_receives();
        self.wake_all();
    }

    /// Takes a received message of `len` bytes.
    pub(super) fn received(&mut self, buffer: Buffer, len: usize, now: Instant) {
        if let Some(stake) = &mut self.stake {
            stake.taken();
        }
        if self.outcome.is_some() {
            return self.give_back(buffer);
        }
        let len = len.min(buffer.len());
        match self.protocol.handle_message(&buffer[..len], now) {
            Ok(received) => self.deliver(received, buffer, now),
            Err(violation) => {
                self.fail(Failure::violation(violation));
                self.give_back(buffer);
            }
        }
        self.pump(now);
    }

    /// Delivers a message, and posts a receive in place of the one that it used.
    fn deliver(&mut self, received: Received, buffer: Buffer, now: Instant) {
        if received.is_control() {
            self.post_receive(buffer);
            if received == Received::Close {
                self.end_offers();
                self.wake_all();
            }
            return;
        }
        self.owed += 1;
        // With an answer, or with other credits of the peer, a long message may have a way.
        self.sender_wants_credit = true;
        match received {
            Received::Data(fragment) => {
                self.note_data(fragment.is_last, now);
                if fragment.is_end || self.receiver_is_gone {
                    self.buffers.spares.push(buffer);
                } else if fragment.is_first && fragment.is_last {
                    self.counts.count_received(fragment.payload.len());
                    self.inbox.push_back(Stored::Whole(buffer, fragment.payload));
                } else {
                    if fragment.is_first {
                        let agreed = self.protocol.agreed();
                        let window = agreed.window as usize * agreed.max_payload();
                        let len = fragment.payload.len().saturating_add(fragment.rest as usize);
                        self.assembly.begin(len, window);
                    }
                    self.assembly.add(&buffer[fragment.payload]);
                    self.buffers.spares.push(buffer);
                    if fragment.is_last {
                        self.finish_assembly();
                    }
                }
                self.wake_receiver();
            }
            Received::Offer { id, slice } => {
                self.note_data(true, now);
                self.buffers.spares.push(buffer);
                self.offered(id, slice);
            }
            Received::Done { id, status } => {
                self.buffers.spares.push(buffer);
                self.offer_done(id, status);
            }
            Received::Control | Received::Close => {}
        }
        self.counts.note_unread(self.inbox.len());
        self.replace_receives();
    }

    fn finish_assembly(&mut self) {
        let message = self.assembly.finish();
        self.inbox_bytes += memory_of(&message);
        self.counts.count_received(message.len());
        self.inbox.push_back(Stored::Assembled(message));
    }

    /// Posts spare buffers in place of consumed receives, unless too much waits for the
    /// application.
    fn replace_receives(&mut self) {
        if self.outcome.is_some() {
            for buffer in std::mem::take(&mut self.buffers.spares) {
                self.give_back(buffer);
            }
            return;
        }
        // A close needs the peer's FIN, which takes a receive: notifications do not hold it up.
        let is_held_up = self.arrivals.is_full() && !self.is_closing();
        while self.owed > 0 && self.inbox_bytes <= INBOX_LIMIT && !is_held_up && self.link.is_some() {
            let Some(buffer) = self.buffers.spares.pop() else { break };
            self.owed -= 1;
            let kept = if let Some(stake) = &mut self.stake { stake.shrink(buffer) } else { Ok(Some(buffer)) };
            match kept {
                Ok(None) => {}
                Ok(Some(buffer)) => {
                    self.post_receive(buffer);
                    self.protocol.receive_posted();
                }
                Err(refused) => self.wakeups.retired.push(Retired::Lost(refused)),
            }
        }
        self.grow();
    }

    /// Takes further receives of the pool, if the peer has used all that it knows of.
    fn grow(&mut self) {
        let window = self.protocol.agreed().window;
        if let Some(stake) = self.stake.as_mut().filter(|_| self.protocol.is_used_up()) {
            for _ in 0..stake.grow(window) {
                self.protocol.receive_posted();
            }
        }
    }

    fn post_receive(&mut self, buffer: Buffer) {
        let Some(link) = &mut self.link else { return self.give_back(buffer) };
        let posted = match &mut self.stake {
            Some(stake) => stake.post(buffer),
            None => link.qp.post_recv_unlogged(buffer, self.token),
        };
        if let Err(refused) = posted {
            let error = self.wakeups.refused(refused);
            self.fail(error.into());
        }
    }

    /// Takes the buffer of a completed send.
    pub(super) fn sent(&mut self, buffer: Buffer, now: Instant) {
        self.protocol.send_completed();
        self.buffers.sends.push(buffer);
        self.pump(now);
    }

    /// Sends all that can be sent now, and wakes the first sender if it can send.
    pub(super) fn pump(&mut self, now: Instant) {
        if self.link.is_some() {
            self.start_reads();
            self.post_operations();
        }
        while self.outcome.is_none() && self.link.is_some() && self.send_next(now) {}
        if self.outcome.is_some() {
            return;
        }
        let has_room = self.has_room();
        self.may_send = has_room && self.ending == Ending::None && self.senders.is_empty();
        if self.protocol.is_closed() && self.protocol.is_drained() {
            self.fail(Failure::new(FailureKind::Closed));
        } else if has_room {
            self.wake_sender();
        }
    }

    /// Sends the next message; returns whether there was one.
    fn send_next(&mut self, now: Instant) -> bool {
        self.end_data();
        if let Some(header) = self.protocol.poll_transmit(now) {
            self.post_copy(header, &[]);
            return true;
        }
        self.answer_offer() || if self.outgoing.is_some() { self.send_fragment() } else { self.send_filled() }
    }

    /// Tells the protocol of the end of the data, once all data is sent.
    fn end_data(&mut self) {
        if self.outgoing.is_none() && self.filled.is_empty() {
            match self.ending {
                Ending::None => {}
                Ending::Data => self.protocol.finish(),
                Ending::Connection(code) => self.protocol.close(code),
            }
        }
    }

    /// Sends the next fragment of the outgoing message, if the protocol allows one beside the
    /// permits.
    fn send_fragment(&mut self) -> bool {
        if self.protocol.room() <= self.reserved {
            return false;
        }
        let Some(mut outgoing) = self.outgoing.take() else { return false };
        let max = self.protocol.agreed().max_payload();
        let end = outgoing.bytes.len().min(outgoing.sent + max);
        let rest = outgoing.bytes.len() - end;
        let Some(header) = self.protocol.data(end - outgoing.sent, length(rest), 0) else { return false };
        self.post_copy(header, &outgoing.bytes[outgoing.sent..end]);
        outgoing.sent = end;
        if rest > 0 {
            self.outgoing = Some(outgoing);
        } else {
            self.outgoing_spare = outgoing.bytes;
        }
        true
    }

    fn send_filled(&mut self) -> bool {
        let Some(&(_, len)) = self.filled.front() else { return false };
        let Some(header) = self.protocol.data(len, 0, 0) else { return false };
        self.reserved -= 1;
        if let Some((buffer, len)) = self.filled.pop_front() {
            self.post(header, buffer, len);
        }
        true
    }

    /// Copies a payload into a send buffer and posts it.
    fn post_copy(&mut self, header: [u8; HEADER_LEN], payload: &[u8]) {
        // Each free slot of the send queue has a free buffer.
        let Some(mut buffer) = self.buffers.sends.pop() else {
            return self.fail(Failure::new(FailureKind::Local));
        };
        buffer[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(payload);
        self.post(header, buffer, payload.len());
    }

    fn post(&mut self, header: [u8; HEADER_LEN], mut buffer: Buffer, payload: usize) {
        let Some(link) = &mut self.link else { return };
        buffer[..HEADER_LEN].copy_from_slice(&header);
        let send = op::send(buffer.part(..HEADER_LEN + payload)).token(self.token);
        if let Err(refused) = link.qp.post_send_unlogged(send) {
            let error = self.wakeups.refused(refused);
            self.fail(error.into());
        }
    }

    /// Whether a new message may begin: no other one is incomplete, and the protocol allows one
    /// beside the permits.
    pub(super) fn has_room(&self) -> bool {
        self.outgoing.is_none() && self.link.is_some() && self.protocol.room() > self.reserved
    }

    /// The reason why nothing can be sent any more.
    pub(super) fn send_failure(&self) -> Option<Failure> {
        let closed = || self.protocol.peer_code().map(Failure::closed);
        let ended = || (self.ending != Ending::None).then(|| Failure::new(FailureKind::Closed));
        self.outcome.clone().or_else(closed).or_else(ended)
    }

    /// Begins a message; [`has_room`](Self::has_room) is true.
    pub(super) fn start(&mut self, message: &[u8], now: Instant) {
        let len = message.len().min(self.protocol.agreed().max_payload());
        let (first, rest) = message.split_at(len);
        let Some(header) = self.protocol.data(len, length(rest.len()), 0) else { return };
        self.counts.count_sent(message.len());
        if !rest.is_empty() {
            let mut bytes = std::mem::take(&mut self.outgoing_spare);
            bytes.clear();
            bytes.extend_from_slice(rest);
            self.outgoing = Some(Outgoing { bytes, sent: 0 });
        }
        self.post_copy(header, first);
        self.pump(now);
    }

    /// Sends bytes of the slices as one fragment; [`has_room`](Self::has_room) is true. Returns how
    /// many.
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>], now: Instant) -> usize {
        let Some(mut buffer) = self.buffers.sends.pop() else {
            self.fail(Failure::new(FailureKind::Local));
            return 0;
        };
        let max = self.protocol.agreed().max_payload();
        let mut len = 0;
        for slice in slices {
            let part = slice.len().min(max - len);
            buffer[HEADER_LEN + len..][..part].copy_from_slice(&slice[..part]);
            len += part;
        }
        let Some(header) = self.protocol.data(len, 0, 0) else {
            self.buffers.sends.push(buffer);
            self.fail(Failure::new(FailureKind::Local));
            return 0;
        };
        self.counts.count_sent(len);
        self.post(header, buffer, len);
        self.pump(now);
        len
    }

    /// Reserves a fragment; [`has_room`](Self::has_room) is true.
    pub(super) fn reserve(&mut self, now: Instant) -> Option<Buffer> {
        let buffer = self.buffers.sends.pop()?;
        self.reserved += 1;
        self.pump(now);
        Some(buffer)
    }

    /// Sends a permit's fragment with a payload of `len` bytes.
    pub(super) fn send_permit(&mut self, buffer: Buffer, len: usize, now: Instant) -> Result<(), Failure> {
        if let Some(failure) = self.send_failure() {
            self.cancel_permit(buffer, now);
            return Err(failure);
        }
        self.counts.count_sent(len);
        self.filled.push_back((buffer, len));
        self.pump(now);
        Ok(())
    }

    /// Gives a permit's fragment back.
    pub(super) fn cancel_permit(&mut self, buffer: Buffer, now: Instant) {
        self.reserved -= 1;
        self.buffers.sends.push(buffer);
        self.pump(now);
    }

    /// Whether messages wait for the application.
    pub(super) fn has_messages(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Takes the next received message. An offer that is not read yet must be waited for.
    pub(super) fn take(&mut self, now: Instant) -> Option<Stored> {
        if matches!(self.inbox.front(), Some(Stored::Offered(_))) {
            return None;
        }
        let stored = self.inbox.pop_front()?;
        match &stored {
            Stored::Assembled(bytes) => {
                self.inbox_bytes -= memory_of(bytes);
                self.replace_receives();
                self.pump(now);
            }
            Stored::Read(buffer, _) => {
                self.offers.end_wait(buffer.len());
                self.pump(now);
            }
            Stored::Whole(..) | Stored::Offered(_) => {}
        }
        Some(stored)
    }

    /// The result of a receive when no message is left; none if more may come.
    pub(super) fn receive_end(&self) -> Option<Result<(), Failure>> {
        if !self.inbox.is_empty() {
            return None;
        }
        // A receiver that is gone and asks nevertheless is one of a node that shuts down.
        if self.receiver_is_gone || self.protocol.peer_has_ended() && !self.is_cut {
            return Some(Ok(()));
        }
        let closed = || self.protocol.peer_code().map(Failure::closed);
        self.outcome.clone().or_else(closed).map(Err)
    }

    /// Takes the memory of a message back from the application.
    pub(super) fn release(&mut self, stored: Stored, now: Instant) {
        match stored {
            Stored::Whole(buffer, _) => {
                self.buffers.spares.push(buffer);
                self.replace_receives();
                self.pump(now);
            }
            Stored::Read(buffer, rest) => self.keep_read(buffer, rest),
            Stored::Assembled(bytes) if self.outcome.is_none() && !self.receiver_is_gone => self.assembly.keep(bytes),
            Stored::Assembled(_) | Stored::Offered(_) => {}
        }
    }

    /// Ends this side's data after the last message.
    pub(super) fn finish(&mut self, now: Instant) {
        match self.ending {
            // A close that is under way keeps its code and its time.
            Ending::Connection(_) => {}
            _ if self.receiver_is_gone => return self.close(0, now, self.linger),
            Ending::None | Ending::Data => self.ending = Ending::Data,
        }
        self.pump(now);
    }

    /// Discards received messages from now on, and closes the connection if this side's data has
    /// ended: then no handle is left to close it.
    pub(super) fn stop_receiving(&mut self, now: Instant) {
        self.discard_received();
        if self.ending == Ending::Data {
            return self.close(0, now, self.linger);
        }
        self.pump(now);
    }

    /// Discards received messages from now on. The caller pumps.
    pub(super) fn discard_received(&mut self) {
        self.receiver_is_gone = true;
        self.assembly.clear();
        for stored in std::mem::take(&mut self.inbox) {
            self.discard(stored);
        }
        self.wake_receiver();
        self.replace_receives();
    }

    /// Ends the data of the peer for the application, after the messages that have come, and cuts
    /// the connection off at a time.
    pub(super) fn shut_down(&mut self, by: Instant, now: Instant) {
        self.receiver_is_gone = true;
        self.assembly.clear();
        self.close_by = Some(self.close_by.map_or(by, |known| known.min(by)));
        if self.ending == Ending::Data {
            self.close(0, now, self.linger);
        }
        self.wake_receiver();
        self.pump(now);
    }

    /// Whether the connection was closed without waiting for the peer.
    pub(super) fn is_cut_off(&self) -> bool {
        self.protocol.has_aborted()
    }

    /// Whether this side has begun to close the connection.
    fn is_closing(&self) -> bool {
        matches!(self.ending, Ending::Connection(_))
    }

    /// Closes the connection after the last message, in this time. A close that is under way keeps
    /// its code.
    pub(super) fn close(&mut self, code: u32, now: Instant, time: Duration) {
        if !self.is_closing() {
            self.ending = Ending::Connection(code);
            self.wake_all_senders();
            self.replace_receives();
        }
        let by = now + time;
        self.close_by = Some(self.close_by.map_or(by, |known| known.min(by)));
        self.pump(now);
    }
}

/// The memory of a reassembled message in bytes.
fn memory_of(message: &Vec<u8>) -> usize {
    message.capacity() + MESSAGE_OVERHEAD
}

/// The length of a part of a message as the header has it; longer messages are never begun.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Poll, Wake};

    use super::*;
    use crate::panics::Panics;
    use crate::protocol::Agreed;
    use crate::waiters::Task;

    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_close_that_ends_the_connection_at_once_wakes_its_task() {
        let agreed = Agreed {
            window: 4,
            initial: 4,
            peer_initial: 4,
            receive_size: 256,
            max_message: 1 << 20,
            keep_alive: None,
            offers: false,
            takes_notifications: false,
            peer_takes_notifications: false,
        };
        let now = Instant::now();
        let protocol = Protocol::new(agreed, 16, now);
        let buffers = Buffers { spares: Vec::new(), sends: Vec::new() };
        let pd = rdma::open(&"soft0".parse().unwrap()).unwrap().context.alloc_pd().unwrap();
        let memory = Memory {
            buffers,
            offers: Offers::new(&pd, &Arc::default(), 0),
            operations: Operations::new(Vec::new(), 0),
            arrivals: Arrivals::new(0),
            stake: None,
        };
        let mut flow = Flow::new(1, protocol, memory, Duration::from_secs(1));
        let count = Arc::new(Count(AtomicU32::new(0)));
        let waker = Arc::clone(&count).into();
        let waiting = Task::poll(&waker, true, |task| {
            flow.wait_for_end(&mut None, task);
            Poll::<()>::Pending
        });
        assert!(waiting.is_pending());
        // CLOSE wakes all tasks, and then the end of the connection does.
        flow.wake_all();
        flow.fail(Failure::new(FailureKind::Closed));
        std::mem::take(&mut flow.wakeups).wake(&mut Panics::default());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
