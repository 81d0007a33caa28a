//! The protocol of [`rdma_net`](super), version 2, without I/O.
//!
//! [`Protocol`] is one side of a connection. It is told of received messages, completed sends and
//! the time, and says what to send. The caller owns the queue pair.
//!
//! # Rules
//!
//! Each side posts W data receives, or fewer at the start, and [`RESERVE`] control receives before
//! the connection exists.
//!
//! * **N1.** DATA, OFFER, DONE and notifications need a credit. Control messages (UPDATE, PING,
//!   PONG, CLOSE) need none.
//! * **N2.** Every message with a header carries the sender's current limit. A receive is posted
//!   before the limit that counts it is sent.
//! * **N3.** A limit never goes back, and is at most W ahead of the data sent.
//! * **N4.** The receive of a control message is posted again before anything is sent in answer.
//! * **N5.** One UPDATE at a time is unanswered; the next message of the peer with ECHO answers it,
//!   or the first notification that needs a credit of it.
//! * **N6.** One PING at a time is unanswered. CLOSE is sent once.
//! * **N7.** The last [`RESERVE`] slots of the send queue are for control messages, and the one
//!   before them for DONE and FIN. Only completions free slots.
//! * **N8.** A data receive is replaced at once from spare buffers, whatever the application still
//!   holds. Without a spare buffer the limit stays.
//! * **N9.** Replacing a receive needs no credit, no slot and no send buffer.
//! * **N10.** The fragments of a message are contiguous: no other DATA and no OFFER lies between.
//! * **N11.** No DATA and no OFFER follows FIN, nothing follows CLOSE. A CLOSE in good order waits
//!   for the DONE of each OFFER.
//! * **N12.** The first failure fails the connection.
//! * **N13.** A notification is a write with immediate data: it takes a data receive and has no
//!   header. It goes only to a side whose HELLO takes notifications. It may lie between fragments
//!   and follow FIN, and does not follow CLOSE.
//!
//! W + [`RESERVE`] receives suffice even while the peer's processor sleeps: at most W data messages
//! are not replaced (N1, N2, N8), and at most one control message of each kind is not processed
//! (N4 to N6). No side waits for a credit to send control messages, so two sides cannot block each
//! other. An UPDATE needs consumed data, so two idle sides fall silent. The tests in `search` check
//! all of this on the states of two sides.
//!
//! Files:
//!
//! ```text
//!   mod.rs, credit.rs, keep_alive.rs
//!                                   one side of a connection; its credits; its PINGs
//!   offer_ids.rs                    the offers that are open
//!   wire.rs, hello.rs               the header of a message; the handshake
//!   violation.rs                    the ways to break the protocol
//!   search.rs, pair.rs, hostile.rs  tests: all states of two sides, with offers and growing
//!                                   windows; hostile peers
//!   corpus/                         messages that a test replays
//! ```

mod credit;
mod hello;
mod keep_alive;
mod offer_ids;
mod violation;
mod wire;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod search;

use std::ops::Range;
use std::time::Instant;

pub use hello::RefuseCode;
pub(crate) use hello::{Agreed, Hello, RESERVE, Refuse};
pub use violation::Violation;
pub(crate) use wire::{HEADER_LEN, receive_size};

use rdma::RemoteSlice;

use self::credit::Credit;
use self::keep_alive::KeepAlive;
use self::offer_ids::OfferIds;
use self::wire::{Flags, Header, Kind};

/// Offers of each side that may be open at a time.
pub(crate) const MAX_OFFERS: usize = 16;
/// Longest offer in bytes: every device can read so much with one request.
pub(crate) const MAX_OFFER_LEN: u64 = 1 << 30;
/// Slots of the send queue for a DONE or FIN beside messages that wait for their credits (N7).
pub(crate) const ANSWERS: u32 = 1;

/// One side of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Protocol {
    agreed: Agreed,
    credit: Credit,
    alive: KeepAlive,
    /// Free slots of the send queue, and all of them.
    slots: u32,
    all_slots: u32,
    /// The rest and the stream of the message that this side is sending.
    outgoing: Option<(u32, u32)>,
    /// The rest and the stream of the message that the peer is sending.
    incoming: Option<(u32, u32)>,
    sent_offers: OfferIds,
    received_offers: OfferIds,
    next_offer: u32,
    end: End,
    /// The code of this side's CLOSE, once it is asked for.
    code: Option<u32>,
    /// Whether CLOSE goes without waiting for the peer's FIN.
    closes_now: bool,
    close_sent: bool,
    peer_end: bool,
    peer_code: Option<u32>,
}

/// The end of the data that this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Wanted,
    Sent,
}

/// A received message that was checked.
///
/// The caller posts the receive of a control message again at once. In place of the receive of any
/// other message it posts a spare buffer, and then calls [`Protocol::receive_posted`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Received {
    /// UPDATE, PING or PONG.
    Control,
    /// CLOSE: the peer sends nothing more.
    Close,
    /// DATA.
    Data(Fragment),
    /// OFFER: the peer lets this side read the slice.
    Offer { id: u32, slice: RemoteSlice },
    /// DONE: the peer has read an offer, or refuses it with a status other than 0.
    Done { id: u32, status: u32 },
}

impl Received {
    /// Whether the message used a control receive.
    pub(crate) fn is_control(&self) -> bool {
        matches!(self, Self::Control | Self::Close)
    }
}

/// A fragment of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The payload's range in the received bytes.
    pub(crate) payload: Range<usize>,
    /// Bytes of the message after this fragment, as the peer says.
    pub(crate) rest: u32,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    /// The number that the sender gave to the message.
    pub(crate) stream: u32,
    /// Whether the fragment is no message, but the end of the peer's data.
    pub(crate) is_end: bool,
}

/// The peer has sent nothing for too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Silent;

impl Protocol {
    /// Begins with `slots` free slots of the send queue, more than [`RESERVE`] and [`ANSWERS`].
    pub(crate) fn new(agreed: Agreed, slots: u32, now: Instant) -> Self {
        Self {
            agreed,
            credit: Credit::new(agreed.window, agreed.initial, agreed.peer_initial),
            alive: KeepAlive::new(agreed.keep_alive, now),
            slots,
            all_slots: slots,
            outgoing: None,
            incoming: None,
            sent_offers: OfferIds::default(),
            received_offers: OfferIds::default(),
            next_offer: 0,
            end: End::Open,
            code: None,
            closes_now: false,
            close_sent: false,
            peer_end: false,
            peer_code: None,
        }
    }

    /// The values of the handshake.
    pub(crate) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Takes a received message.
    ///
    /// # Errors
    ///
    /// The rule that the message breaks. The connection has failed.
    pub(crate) fn handle_message(&mut self, message: &[u8], now: Instant) -> Result<Received, Violation> {
        let (header, payload) = Header::decode(message)?;
        if self.peer_code.is_some() {
            return Err(Violation::MessageAfterClose);
        }
        self.credit.accept(&header)?;
        self.alive.hear(now);
        match header.kind {
            Kind::Data => self.accept_data(&header, payload).map(Received::Data),
            Kind::Update => Ok(Received::Control),
            Kind::Ping => self.alive.accept_ping(header.rest).map(|()| Received::Control),
            Kind::Pong => self.alive.accept_pong(header.rest).map(|()| Received::Control),
            Kind::Close => {
                self.peer_code = Some(header.rest);
                Ok(Received::Close)
            }
            Kind::Offer => self.accept_offer(header.rest, &message[payload]),
            Kind::Done => self.accept_done(header.rest, &message[payload]),
        }
    }

    /// Takes a notification of the peer, which has used a data receive.
    ///
    /// # Errors
    ///
    /// The rule that the notification breaks. The connection has failed.
    pub(crate) fn handle_notification(&mut self, now: Instant) -> Result<(), Violation> {
        if self.peer_code.is_some() {
            return Err(Violation::MessageAfterClose);
        }
        if !self.agreed.takes_notifications {
            return Err(Violation::UnexpectedNotification);
        }
        self.credit.accept_notification()?;
        self.alive.hear(now);
        Ok(())
    }

    fn accept_data(&mut self, header: &Header, payload: Range<usize>) -> Result<Fragment, Violation> {
        let flags = header.flags;
        if self.peer_end {
            return Err(Violation::DataAfterEnd);
        }
        let is_first = flags.contains(Flags::FIRST);
        if is_first != self.incoming.is_none() || self.incoming.is_some_and(|(_, stream)| stream != header.stream) {
            return Err(Violation::WrongFragment);
        }
        let is_last = flags.contains(Flags::LAST);
        if is_last != (header.rest == 0) || !is_last && payload.is_empty() {
            return Err(Violation::WrongRest);
        }
        let remaining = payload.len() as u64 + u64::from(header.rest);
        match self.incoming {
            Some((expected, _)) if remaining != u64::from(expected) => return Err(Violation::WrongRest),
            None if remaining > self.agreed.max_message => return Err(Violation::TooLong),
            _ => {}
        }
        let has_end = flags.contains(Flags::FIN);
        if has_end && !is_last {
            return Err(Violation::WrongFlags);
        }
        self.peer_end = has_end;
        self.incoming = (!is_last).then_some((header.rest, header.stream));
        let is_end = has_end && is_first && payload.is_empty();
        Ok(Fragment { payload, rest: header.rest, is_first, is_last, stream: header.stream, is_end })
    }

    fn accept_offer(&mut self, id: u32, payload: &[u8]) -> Result<Received, Violation> {
        if self.peer_end {
            return Err(Violation::DataAfterEnd);
        }
        if self.incoming.is_some() {
            return Err(Violation::WrongFragment);
        }
        let slice = RemoteSlice::from_bytes(payload).map_err(|_| Violation::WrongPayload)?;
        if slice.len() > self.agreed.max_message.min(MAX_OFFER_LEN) {
            return Err(Violation::TooLong);
        }
        if slice.is_empty() || slice.address().checked_add(slice.len()).is_none() {
            return Err(Violation::WrongOffer);
        }
        if !self.agreed.offers || !self.received_offers.insert(id) {
            return Err(Violation::WrongOffer);
        }
        Ok(Received::Offer { id, slice })
    }

    fn accept_done(&mut self, id: u32, payload: &[u8]) -> Result<Received, Violation> {
        let status = u32::from_be_bytes(*payload.first_chunk().ok_or(Violation::WrongPayload)?);
        if !self.sent_offers.remove(id) {
            return Err(Violation::UnexpectedDone);
        }
        Ok(Received::Done { id, status })
    }

    /// Whether the peer has used all data receives that it knows of.
    pub(crate) fn is_used_up(&self) -> bool {
        self.credit.is_used_up()
    }

    /// Notes that a spare buffer was posted in place of a data receive, or a further one, so that
    /// at most the window is posted.
    pub(crate) fn receive_posted(&mut self) {
        self.credit.add_posted();
    }

    /// Notes that a send has completed: its slot is free.
    pub(crate) fn send_completed(&mut self) {
        self.slots += 1;
    }

    /// Whether a DATA, an OFFER or a DONE may be sent now.
    pub(crate) fn can_send_counted(&self) -> bool {
        self.credit.available() > 0 && self.slots > RESERVE && !self.close_sent && self.peer_code.is_none()
    }

    /// The number of fragments that may be sent now.
    pub(crate) fn room(&self) -> u32 {
        if !self.can_send_data() {
            return 0;
        }
        self.credit.available().min(self.slots.saturating_sub(RESERVE + ANSWERS))
    }

    /// The number of notifications that may be sent now. They take slots of their own.
    pub(crate) fn notification_room(&self) -> u32 {
        let is_open = self.agreed.peer_takes_notifications && !self.close_sent && self.peer_code.is_none();
        if is_open { self.credit.available() } else { 0 }
    }

    /// The part of `credits` for notifications while messages wait for credits, too: a half, of an
    /// odd number the larger one by turns.
    pub(crate) fn notification_share(&self, credits: u32) -> u32 {
        if self.credit.is_notified_last() { credits / 2 } else { credits.div_ceil(2) }
    }

    /// Counts a notification that was posted; [`notification_room`](Self::notification_room) is not
    /// 0.
    pub(crate) fn notify(&mut self) {
        let has_credit = self.credit.notify();
        debug_assert!(has_credit, "a notification without a credit");
    }

    /// Whether the FIN of this side waits.
    pub(crate) fn wants_end(&self) -> bool {
        self.end == End::Wanted
    }

    /// Whether no send is in flight.
    pub(crate) fn is_drained(&self) -> bool {
        self.slots == self.all_slots
    }

    /// Whether [`data`](Self::data) returns a header now.
    pub(crate) fn can_send_data(&self) -> bool {
        (self.end == End::Open || self.outgoing.is_some()) && self.can_send_counted()
    }

    /// The header of the next fragment, which must be posted: `payload` bytes, and `rest` bytes of
    /// the message after it. None if the fragment must wait.
    pub(crate) fn data(&mut self, payload: usize, rest: u32, stream: u32) -> Option<[u8; HEADER_LEN]> {
        if !self.can_send_data() {
            return None;
        }
        let mut flags = Flags::empty();
        flags.set(Flags::FIRST, self.outgoing.is_none());
        flags.set(Flags::LAST, rest == 0);
        self.outgoing = (rest > 0).then_some((rest, stream));
        Some(self.header(Kind::Data, flags, payload > 0, rest, stream))
    }

    /// Whether [`offer`](Self::offer) returns a header now.
    pub(crate) fn can_offer(&self) -> bool {
        let is_between_messages = self.end == End::Open && self.outgoing.is_none();
        is_between_messages && self.can_send_counted() && self.sent_offers.len() < MAX_OFFERS
    }

    /// The header of an OFFER, which must be posted with a slice as its payload, and its id. None
    /// if the offer must wait.
    pub(crate) fn offer(&mut self) -> Option<([u8; HEADER_LEN], u32)> {
        if !self.can_offer() {
            return None;
        }
        // Numbers come again after 2^32 offers, which a peer may leave unanswered for so long.
        let mut id = self.next_offer;
        while self.sent_offers.contains(id) {
            id = id.wrapping_add(1);
        }
        self.next_offer = id.wrapping_add(1);
        self.sent_offers.insert(id);
        Some((self.header(Kind::Offer, Flags::empty(), true, id, 0), id))
    }

    /// The header of the DONE that answers an offer, which must be posted with a status as its
    /// payload. None if the message must wait, or if no such offer is open.
    pub(crate) fn done(&mut self, id: u32) -> Option<[u8; HEADER_LEN]> {
        if !self.can_send_counted() || !self.received_offers.remove(id) {
            return None;
        }
        Some(self.header(Kind::Done, Flags::empty(), true, id, 0))
    }

    /// The next message that the protocol sends by itself, which must be posted. It has no payload.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<[u8; HEADER_LEN]> {
        if self.slots == 0 || self.close_sent {
            return None;
        }
        if self.peer_code.is_none() {
            if let Some(cookie) = self.alive.take_pong(now) {
                return Some(self.header(Kind::Pong, Flags::empty(), false, cookie, 0));
            }
            if self.credit.wants_update() {
                return Some(self.header(Kind::Update, Flags::empty(), false, 0, 0));
            }
            if let Some(cookie) = self.alive.take_ping() {
                return Some(self.header(Kind::Ping, Flags::empty(), false, cookie, 0));
            }
            if self.end == End::Wanted && self.outgoing.is_none() && self.can_send_counted() {
                self.end = End::Sent;
                return Some(self.header(Kind::Data, Flags::FIRST | Flags::LAST | Flags::FIN, false, 0, 0));
            }
        }
        if self.must_close() {
            self.close_sent = true;
            let code = self.code.unwrap_or(0);
            return Some(self.header(Kind::Close, Flags::empty(), false, code, 0));
        }
        None
    }

    /// Whether CLOSE is due: both sides have sent all data and read all offers, or one of them
    /// gives up.
    fn must_close(&self) -> bool {
        let is_read = self.sent_offers.is_empty() && self.received_offers.is_empty();
        let both_ended = self.end == End::Sent && self.peer_end && is_read;
        self.peer_code.is_some() || self.code.is_some() && (both_ended || self.closes_now)
    }

    /// Completes the header of a message that is posted now.
    fn header(&mut self, kind: Kind, flags: Flags, has_payload: bool, rest: u32, stream: u32) -> [u8; HEADER_LEN] {
        debug_assert!(self.slots > 0, "a message without a slot");
        self.slots -= 1;
        let mut header = Header { kind, flags, has_payload, limit: 0, rest, stream };
        self.credit.stamp(&mut header);
        header.to_bytes()
    }

    /// Ends the data of this side: FIN follows the last message.
    pub(crate) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Wanted;
        }
    }

    /// Ends the data of this side, and closes once the peer has ended its data too.
    pub(crate) fn close(&mut self, code: u32) {
        self.finish();
        self.code.get_or_insert(code);
    }

    /// Closes without waiting for the peer's data.
    pub(crate) fn abort(&mut self, code: u32) {
        self.close(code);
        self.closes_now = true;
    }

    /// Whether [`abort`](Self::abort) was called.
    pub(crate) fn has_aborted(&self) -> bool {
        self.closes_now
    }

    /// Whether both sides have sent CLOSE.
    pub(crate) fn is_closed(&self) -> bool {
        self.close_sent && self.peer_code.is_some()
    }

    /// Whether the peer has ended its data with FIN.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.peer_end
    }

    /// The code of the peer's CLOSE.
    pub(crate) fn peer_code(&self) -> Option<u32> {
        self.peer_code
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) and
    /// [`poll_transmit`](Self::poll_transmit) must be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.close_sent { None } else { self.alive.deadline() }
    }

    /// Asks for a PING if the peer was idle too long.
    ///
    /// # Errors
    ///
    /// [`Silent`] if nothing has answered the PING. The connection has failed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), Silent> {
        if !self.close_sent && self.alive.handle_timeout(now) { Err(Silent) } else { Ok(()) }
    }
}

#[cfg(test)]
impl Protocol {
    /// All that decides about the future of a side without fragments whose offers are answered in
    /// order, with counters relative to each other.
    fn key(&self) -> Vec<u32> {
        let mut key = Vec::with_capacity(16);
        key.extend(self.credit.key());
        key.extend(self.alive.key());
        key.extend([self.end as u32, u32::from(self.close_sent), u32::from(self.peer_end)]);
        key.extend([self.code.is_some().into(), self.peer_code.is_some().into(), self.slots]);
        key.extend([&self.sent_offers, &self.received_offers].map(|offers| u32::try_from(offers.len()).unwrap()));
        key
    }
}
