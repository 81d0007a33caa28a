//! The sending half.

use std::fmt;
use std::future::poll_fn;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use rdma::{Buffer, Error, ErrorKind, ExposedSlice, ProtectionDomain, RemoteAccess, Verb};

use super::core::Core;
use super::flow::{Flow, Way};
use super::remote::Remote;
use super::sink::Polled;
use crate::failure::{Failure, FailureKind};
use crate::protocol::{HEADER_LEN, MAX_OFFER_LEN};
use crate::stats::ConnectionStats;
use crate::waiters::Place;

/// Most bytes of one write to a stream: the copies of both sides stay in the processors' caches.
const LONGEST_WRITE: usize = 128 << 10;

/// The half of a connection that sends.
///
/// Clones send on the same connection; the order of messages of several clones is undefined, but
/// each message stays whole. Waiting senders are served in the order in which they came; one whose
/// task is woken and does not poll it for 50 ms is passed by, until it is polled.
pub struct Sender {
    pub(super) core: Arc<Core>,
    pub(super) polled: Polled,
}

impl Sender {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), polled: Polled::default() }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Longest message that the peer accepts, in bytes.
    #[must_use]
    pub fn max_message(&self) -> u64 {
        self.core.max_message
    }

    /// Longest message that fits a [`Permit`], in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.core.max_payload
    }

    /// The protection domain of the connection: the peer reaches what is exposed in it, and
    /// operations of [`Remote`] take buffers of it. That of the node, unless each connection has
    /// [its own](crate::NodeOptions::separate_domains).
    #[must_use]
    pub fn domain(&self) -> &ProtectionDomain {
        &self.core.pd
    }

    /// Access to memory that the peer exposes. It does not keep the connection open.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote::new(&self.core)
    }

    /// What the connection has done since it was made, in both directions. All is 0 in a forked
    /// child.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, mut server) = connected()?;
    /// block_on(async {
    ///     client.send("hello").await?;
    ///     server.next().await?;
    ///     let (sent, received) = (client.stats(), server.stats());
    ///     assert_eq!((sent.sent, sent.sent_bytes), (1, 5));
    ///     assert_eq!((received.received, received.received_bytes, received.unread), (1, 5, 0));
    ///     if sent.send_waits > 0 {
    ///         println!("the receiver is slower than the sender");
    ///     }
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        self.core.stats()
    }

    /// Sends a message, which is copied, and returns once it is on its way: posted, or, if it has
    /// several fragments, begun. A message longer than the node's
    /// [limit](crate::NodeOptions::eager_limit) is copied into memory that the peer reads.
    ///
    /// Waits while the peer can take no message. Dropping the future sends all of the message or
    /// nothing.
    ///
    /// # Errors
    ///
    /// `TooLong`; `Closed`; the reason why the connection failed. Success does not mean that the
    /// peer has received the message: [`close`](super::Connection::close) confirms that.
    pub async fn send(&self, message: impl AsRef<[u8]>) -> Result<(), Failure> {
        self.check_open()?;
        let message = message.as_ref();
        check_len(&self.core, message)?;
        let mut turn = Turn { core: &self.core, place: None };
        poll_fn(|cx| poll_message(turn.core, &mut turn.place, cx, message)).await
    }

    /// Sends the contents of exposed memory of the connection's [domain](Self::domain) as a
    /// message, without a copy: the peer's device reads the memory into the peer's message. Returns
    /// once it has, and the memory may change again.
    ///
    /// The slice needs [`RemoteAccess::READ`](rdma::RemoteAccess::READ). The connection holds it
    /// until the peer has read it, or until the connection ends: its region cannot be revoked
    /// meanwhile. The peer learns the region's key. On iWARP, which has no such reads, the contents
    /// are copied and sent as by [`send`](Self::send).
    ///
    /// The peer confirms with one of its credits. It has none while it waits for this side to take
    /// its messages, so another task must take them: a task that does both by turns may wait here
    /// for ever. ([`send`](Self::send) needs no confirmation.)
    ///
    /// Dropping the future sends all of the message or nothing, and keeps the slice held.
    ///
    /// # Errors
    ///
    /// `TooLong`; `Closed`, also if the peer has dropped its [`Receiver`](super::Receiver); `Local`
    /// for a slice of another domain or without the right; the reason why the connection failed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_net::{Connection, Failure};
    /// # async fn f(connection: Connection) -> Result<(), Failure> {
    /// let table = connection.domain().allocate_exposed(1 << 20, rdma::RemoteAccess::READ)?;
    /// let (to, _from) = connection.split();
    /// loop {
    ///     table.fill(0, 1 << 20, 7)?;
    ///     to.send_exposed(table.slice(..)?).await?;
    /// }
    /// # }
    /// ```
    pub async fn send_exposed(&self, slice: ExposedSlice) -> Result<(), Failure> {
        self.check_open()?;
        let len = slice.len() as u64;
        if len > self.core.max_message {
            return Err(Failure::new(FailureKind::TooLong));
        }
        let is_own = slice.is_of_domain(&self.core.pd);
        if !is_own || !slice.access().contains(RemoteAccess::READ) {
            return Err(Error::new(Verb::Access, ErrorKind::InvalidInput).into());
        }
        if !self.core.offers || len == 0 || len > MAX_OFFER_LEN {
            let mut message = vec![0; slice.len()];
            slice.copy_out(0, &mut message)?;
            return self.send(message).await;
        }
        let mut turn = Turn { core: &self.core, place: None };
        let offer = |flow: &mut Flow, now| flow.offer_exposed(&slice, now);
        let offered = poll_fn(|cx| turn.poll_with(cx, Flow::has_room_to_expose, offer)).await?;
        // The connection holds the memory from now on.
        let waiting = Offered { core: &self.core, id: offered? };
        drop(slice);
        poll_fn(|cx| self.core.poll(cx, true, |flow, _, task| flow.poll_offer(waiting.id, task))).await
    }

    /// Waits until the peer can take one message of at most [`max_payload`](Self::max_payload)
    /// bytes.
    ///
    /// Sending with the permit never waits, and its buffer can be filled without another copy.
    ///
    /// A permit keeps its part of the window until it is used or dropped. An answer to a long
    /// message of the peer may borrow that part: then the permit's message goes once the peer has
    /// taken the answer, for which its device needs no application.
    ///
    /// # Errors
    ///
    /// `Closed`; the reason why the connection failed.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/net.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, mut server) = connected()?;
    /// block_on(async {
    ///     let (to, _from) = client.split();
    ///     let mut permit = to.reserve().await?;
    ///     // Fills the memory from which the device sends: no copy.
    ///     permit.payload_mut()[..5].copy_from_slice(b"hello");
    ///     permit.send_filled(5)?;
    ///     assert_eq!(server.next().await?.as_deref(), Some(&b"hello"[..]));
    ///     Ok::<(), Failure>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    pub async fn reserve(&self) -> Result<Permit<'_>, Failure> {
        self.check_open()?;
        poll_fn({
            let mut turn = Turn { core: &self.core, place: None };
            move |cx| self.poll_reserve(&mut turn, cx)
        })
        .await
    }

    fn poll_reserve(&self, turn: &mut Turn<'_>, cx: &Context<'_>) -> Poll<Result<Permit<'_>, Failure>> {
        turn.poll(cx, |flow, now| flow.reserve(now)).map(|reserved| {
            let buffer = reserved?.ok_or_else(|| Failure::new(FailureKind::Local))?;
            Ok(Permit { core: &self.core, buffer: Some(buffer) })
        })
    }

    /// Sends bytes of the slices, as one fragment or, if they are more than the eager limit, as one
    /// offer; returns how many.
    pub(crate) fn poll_write(&mut self, cx: &Context<'_>, slices: &[IoSlice<'_>]) -> Poll<Result<usize, Failure>> {
        let (core, place) = (&self.core, &mut self.polled.place);
        let max_message = usize::try_from(core.max_message).unwrap_or(usize::MAX);
        let all = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        let len = all.min(LONGEST_WRITE).min(max_message);
        if len <= core.eager_limit {
            return poll_turn(core, place, cx, Flow::has_room, |flow, now| flow.write(slices, now));
        }
        let way = |flow: &Flow| flow.way_of_long(len);
        let write = |flow: &mut Flow, now| match way(flow) {
            Some(Way::Fragments) => Ok(flow.write(slices, now)),
            _ => flow.offer_copy(slices, len, now).map(|()| len),
        };
        poll_turn(core, place, cx, |flow| way(flow).is_some(), write).map(|written| written?)
    }

    /// Ends the data of this side, also for other clones.
    pub(crate) fn finish(&self) {
        self.core.tell(Flow::finish);
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.core.local_addr
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.core.peer_addr
    }
}

/// A message that the sender keeps ([`Sender::start_send`]) is not cloned.
impl Clone for Sender {
    fn clone(&self) -> Self {
        let mut clone = Self::new(&self.core);
        clone.polled.is_ended = self.polled.is_ended;
        if !clone.polled.is_ended {
            self.core.senders.fetch_add(1, Ordering::Relaxed);
        }
        clone
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("core", &self.core).finish_non_exhaustive()
    }
}

/// A task's turn to send. Dropping it passes the turn on.
struct Turn<'a> {
    core: &'a Core,
    place: Option<Place>,
}

impl Turn<'_> {
    /// Does `work` once this task is first and may send.
    fn poll<R>(&mut self, cx: &Context<'_>, work: impl FnMut(&mut Flow, Instant) -> R) -> Poll<Result<R, Failure>> {
        self.poll_with(cx, Flow::has_room, work)
    }

    /// Does `work` once this task is first and has the capacity that it needs.
    fn poll_with<R>(
        &mut self,
        cx: &Context<'_>,
        has_room: impl Fn(&Flow) -> bool,
        work: impl FnMut(&mut Flow, Instant) -> R,
    ) -> Poll<Result<R, Failure>> {
        poll_turn(self.core, &mut self.place, cx, has_room, work)
    }
}

/// An offer of the application's memory, abandoned when dropped.
struct Offered<'a> {
    core: &'a Core,
    id: u32,
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        self.core.tell(|flow, _| flow.abandon_offer(self.id));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        leave(self.core, &mut self.place);
    }
}

fn check_len(core: &Core, message: &[u8]) -> Result<(), Failure> {
    if message.len() as u64 > core.max_message { Err(Failure::new(FailureKind::TooLong)) } else { Ok(()) }
}

/// Sends a message, once the task with this place is first and the peer can take the message.
pub(super) fn poll_message(
    core: &Core,
    place: &mut Option<Place>,
    cx: &Context<'_>,
    message: &[u8],
) -> Poll<Result<(), Failure>> {
    if message.len() <= core.eager_limit {
        return poll_turn(core, place, cx, Flow::has_room, |flow, now| flow.start(message, now));
    }
    let has_room = |flow: &Flow| flow.way_of_long(message.len()).is_some();
    poll_turn(core, place, cx, has_room, |flow, now| send_long(flow, message, now)).map(|sent| sent?)
}

/// Sends a message for which there is a way.
fn send_long(flow: &mut Flow, message: &[u8], now: Instant) -> Result<(), Failure> {
    if flow.way_of_long(message.len()) == Some(Way::Fragments) {
        flow.start(message, now);
        return Ok(());
    }
    flow.offer_copy(&[IoSlice::new(message)], message.len(), now)
}

/// Sends a message, or returns false if it would have to wait.
pub(super) fn try_message(core: &Core, place: &mut Option<Place>, message: &[u8]) -> Result<bool, Failure> {
    check_len(core, message)?;
    core.check_process()?;
    let is_eager = message.len() <= core.eager_limit;
    core.with(|flow, now| {
        if let Some(failure) = flow.send_failure() {
            return Err(failure);
        }
        let has_room = if is_eager { flow.has_room() } else { flow.way_of_long(message.len()).is_some() };
        if !flow.senders.is_turn(*place) || !has_room {
            return Ok(false);
        }
        flow.leave_senders(place);
        if is_eager {
            flow.start(message, now);
        } else {
            send_long(flow, message, now)?;
        }
        Ok(true)
    })
}

/// Does `work` once the task with this place is first and may send.
fn poll_turn<R>(
    core: &Core,
    place: &mut Option<Place>,
    cx: &Context<'_>,
    has_room: impl Fn(&Flow) -> bool,
    mut work: impl FnMut(&mut Flow, Instant) -> R,
) -> Poll<Result<R, Failure>> {
    core.poll(cx, false, |flow, now, task| {
        if let Some(failure) = flow.send_failure() {
            flow.leave_senders(place);
            return Poll::Ready(Err(failure));
        }
        if !flow.senders.is_turn(*place) || !has_room(flow) {
            flow.wait_to_send(place, task);
            return Poll::Pending;
        }
        flow.leave_senders(place);
        Poll::Ready(Ok(work(flow, now)))
    })
}

/// Passes the turn on, if the task waits.
pub(super) fn leave(core: &Core, place: &mut Option<Place>) {
    if place.is_some() {
        core.tell(|flow, now| {
            flow.leave_senders(place);
            flow.pump(now);
        });
    }
}

/// The right to send one message on a connection.
///
/// Dropping the permit gives the right back.
#[must_use = "dropping it gives the right to send back"]
pub struct Permit<'a> {
    core: &'a Core,
    /// Present until the permit is used.
    buffer: Option<Buffer>,
}

impl Permit<'_> {
    /// Sends a message, which is copied.
    ///
    /// # Errors
    ///
    /// `TooLong` for more than [`Sender::max_payload`] bytes; `Closed`; the reason why the
    /// connection failed meanwhile.
    pub fn send(mut self, message: &[u8]) -> Result<(), Failure> {
        let Some(place) = self.payload_mut().get_mut(..message.len()) else {
            return Err(Failure::new(FailureKind::TooLong));
        };
        place.copy_from_slice(message);
        self.send_filled(message.len())
    }

    /// The place of the payload, to be filled without another copy. It may hold bytes of earlier
    /// messages.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let max = self.core.max_payload;
        match &mut self.buffer {
            Some(buffer) => &mut buffer[HEADER_LEN..][..max],
            None => &mut [],
        }
    }

    /// Sends the first `len` bytes of [`payload_mut`](Self::payload_mut).
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    pub fn send_filled(mut self, len: usize) -> Result<(), Failure> {
        if len > self.core.max_payload {
            return Err(Failure::new(FailureKind::TooLong));
        }
        self.core.check_process()?;
        match self.buffer.take() {
            Some(buffer) => self.core.with(|flow, now| flow.send_permit(buffer, len, now)),
            None => Ok(()),
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.core.tell(|flow, now| flow.cancel_permit(buffer, now));
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("core", &self.core).finish_non_exhaustive()
    }
}
