//! The connections between ranks: writes into a peer's memory, each followed by a notice of its
//! arrival.
//!
//! How a rank learns of an arrival depends on the device ([`Notices`]). Where writes land in order,
//! a second write of a counter follows the data, and the receiver watches its own memory, which
//! costs no call. Everywhere else the write carries immediate data, and the receiver's completion
//! queue reports the arrival, which is the only guarantee that verbs give. iWARP has no immediate
//! data, so a message follows the write. An iWARP sender does not wait for receives, so the
//! receiver also reports how many messages it has taken.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use rdma::cm::blocking::Connection;
use rdma::op;
use rdma::transport::Rc;
use rdma::{
    CompletionQueue, ExposedRegion, ExposedSlice, Placement, Poller, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteSlice, RnrTimer,
};
use serde::{Deserialize, Serialize};

use crate::adapter::Adapter;
use crate::bootstrap::Group;
use crate::cause::Cause;
use crate::connect::{self, Connected, How, Method, Receives, Unconnected};
use crate::tuning::Tuning;
use crate::wait::{Patience, Wait};
use crate::{Error, ErrorKind};

/// Independent streams of notices between two ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Messages of the ring.
    Ring,
    /// Slots of the ring that are free again.
    Credit,
    /// Parts for the direct algorithms.
    Part,
    /// Results of the direct algorithms.
    Result,
    /// The first message of a connection, on iWARP.
    First,
    /// The number of messages received, on iWARP: four bytes follow.
    Report,
    /// Pieces of the messages of schedules.
    Piece,
    /// Slots for such pieces that are free again.
    FreeSlots,
}

const LANES: usize = 8;
/// Distance of two counters in bytes: a cache line.
pub(crate) const LINE: usize = INLINE as usize;
/// Inline capacity of a request in bytes: one line.
const INLINE: u32 = 64;
/// Most outstanding work requests to one peer, and most receives posted for one.
const DEPTH: u32 = 256;
/// At least one request in this many is signaled.
const UNSIGNALED: u64 = 32;
/// The bits of a token that hold the request's number.
const NUMBER: u64 = (1 << 48) - 1;
/// Outstanding requests at which the send queue counts as full; the rest is space for the requests
/// of one message.
const FULL: u64 = DEPTH as u64 - 2 * UNSIGNALED;

/// Bytes of a receive buffer for a notice sent as a message.
const NOTICE: usize = 8;
/// On iWARP, most messages to a peer that it has not yet reported as received. As many reports may
/// be in flight to this rank, and each has a receive.
const UNCONFIRMED: u32 = 64;
/// The failure of a notice that no rank of these programs sends.
const MEANINGLESS: &str = "a notice that makes no sense";

/// How a rank learns that a write has arrived; equal at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notices {
    /// A counter in the receiver's memory, written after the data.
    Memory,
    /// Immediate data, reported by the receiver's completion queue.
    Immediate,
    /// A message after the data.
    Messages,
}

/// A connected rank.
#[derive(Debug)]
struct Peer {
    rank: usize,
    qp: QueuePair<Rc>,
    _connection: Option<Connection>,
    /// The peer's counters of the notices that this rank sent.
    counters: RemoteSlice,
    counts: Counts,
    /// Why the peer sends nothing more, and takes nothing more: its connection has ended, perhaps
    /// because it has done its part. Only who still needs the peer fails.
    silent: Option<Error>,
    deaf: Option<Error>,
}

/// Counts of notices, requests and messages to and from a peer.
#[derive(Debug, Default)]
struct Counts {
    /// Notices sent and received, by lane.
    sent: [u64; LANES],
    received: [u64; LANES],
    /// The numbers of the last request, of the last one known to be complete, and of the last one
    /// that reads local memory.
    posted: u64,
    completed: u64,
    last_data: u64,
    /// The number of the last request that the peer may need: all but notices of free memory and
    /// reports.
    last_needed: u64,
    /// On iWARP: messages sent, messages that the peer has reported as received, messages received,
    /// and messages reported; all modulo 2^32.
    messages: u32,
    confirmed: u32,
    taken: u32,
    reported: u32,
    /// The value of `messages` after the last data and its notice.
    last_message: u32,
}

/// What a rank wants of the connections by a device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Vote {
    /// Whether the rank is connected to any other. The votes of the others do not count.
    has_peers: bool,
    /// Whether notices have to be messages.
    by_messages: bool,
    /// Whether the connection manager connects.
    by_manager: bool,
}

/// A device that a rank uses, and the domain of its memory there.
#[derive(Clone, Debug)]
pub struct Rail {
    /// The device.
    pub(crate) adapter: Adapter,
    /// How the ranks connect by this device.
    pub(crate) method: Method,
    pub(crate) pd: ProtectionDomain,
}

impl Rail {
    /// Makes a rail of a device whose connections are made by `method`.
    ///
    /// # Errors
    /// If the device gives no domain.
    pub fn new(adapter: &Adapter, method: Method) -> Result<Self, Error> {
        let pd = adapter.context.alloc_pd()?;
        Ok(Self { adapter: adapter.clone(), method, pd })
    }
}

/// A device for memory of GPUs.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "there is no memory of GPUs"))]
pub(crate) struct Nic<'a> {
    /// The domain of the memory that this rank sends and receives.
    pub(crate) pd: &'a ProtectionDomain,
    pub(crate) port: u8,
}

/// Connections to some of the ranks of a group, by one queue pair each.
#[derive(Debug)]
pub(crate) struct Fabric {
    peers: Vec<Option<Peer>>,
    counters: ExposedRegion,
    notices: Notices,
    send_poller: Poller,
    recv_poller: Poller,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
    /// The port of the device.
    port: u8,
    patience: Patience,
    /// Bytes of data sent.
    sent: u64,
}

impl Fabric {
    /// Connects this rank to `peers` by a device; collective. A rank may have no peers, and has no
    /// part then in how the others connect and learn of arrivals.
    pub(crate) fn connect(
        rail: &Rail,
        group: &mut Group,
        peers: &[usize],
        tuning: &Tuning,
        patience: Patience,
    ) -> Result<Self, Error> {
        let (rank, world) = (group.rank(), group.ranks());
        let adapter = &rail.adapter;
        let own = Vote {
            has_peers: !peers.is_empty(),
            by_messages: tuning.by_messages || !adapter.context.capabilities().write_with_immediate,
            by_manager: matches!(rail.method, Method::Manager(_)),
        };
        let votes = group.all_gather("the kinds of notices", &own)?;
        let is_used = votes.iter().any(|vote| vote.has_peers);
        let counts = |vote: &&Vote| vote.has_peers || !is_used;
        let by_messages = votes.iter().filter(counts).any(|vote| vote.by_messages);
        let notices = if by_messages { Notices::Messages } else { Notices::Immediate };
        let prepared = Self::prepare(rail, world, peers, notices, patience);
        let (mut fabric, queue_pairs) = group.agree("the queue pairs", prepared)?;
        let method = match votes.iter().find(counts) {
            // Only who has no peers differs from the others.
            Some(vote) if vote.by_manager != own.by_manager && !own.has_peers => match vote.by_manager {
                true => Method::Manager(Ipv4Addr::LOCALHOST.into()),
                false => Method::Endpoints,
            },
            _ => rail.method,
        };
        let how = How { method, access: RemoteAccess::WRITE, mtu: None, min_rnr_timer: RnrTimer::DEFAULT };
        let connected = if is_used { connect::connect(adapter, group, queue_pairs, &how)? } else { Vec::new() };
        let counters = exchange(group, "the counters", fabric.counters.remote(..)?)?;
        let mut first_messages = Vec::new();
        for Connected { peer, qp, connection, is_active, .. } in connected {
            let counters = counters[peer].slice(counter(rank, Lane::Ring)..counter(rank + 1, Lane::Ring))?;
            let (counts, silent, deaf) = (Counts::default(), None, None);
            fabric.peers[peer] = Some(Peer { rank: peer, qp, _connection: connection, counters, counts, silent, deaf });
            first_messages.push((peer, is_active));
        }
        let in_order = tuning.watch_memory
            && !by_messages
            && fabric.peers.iter().flatten().all(|peer| peer.qp.writes_in_order().unwrap_or(false));
        if !group.all_gather("the order of writes", &in_order)?.contains(&false) {
            fabric.notices = Notices::Memory;
        }
        if by_messages {
            // On iWARP, the active side of a connection must send first.
            for &(to, _) in first_messages.iter().filter(|(_, is_active)| *is_active) {
                fabric.notify(to, Lane::First)?;
            }
            for &(from, _) in first_messages.iter().filter(|(_, is_active)| !*is_active) {
                fabric.wait_for(from, Lane::First, 1)?;
            }
        }
        Ok(fabric)
    }

    fn prepare(
        rail: &Rail,
        world: usize,
        peers: &[usize],
        notices: Notices,
        patience: Patience,
    ) -> Result<(Self, Vec<Unconnected>), Error> {
        let (context, pd) = (&rail.adapter.context, rail.pd.clone());
        let depth = DEPTH * u32::try_from(peers.len()).unwrap_or(u32::MAX).max(1);
        let channel = context.create_completion_channel()?;
        let send_cq = context.create_cq(depth)?;
        let recv_cq = context.cq_builder(depth).channel(&channel).build()?;
        let counters = pd.allocate_exposed(world * LANES * LINE, RemoteAccess::WRITE)?;
        let mut queue_pairs = Vec::new();
        for &peer in peers {
            let qp = QueuePair::<Rc>::builder(&pd)
                .send_cq(&send_cq)
                .recv_cq(&recv_cq)
                .max_send_wr(DEPTH)
                .max_recv_wr(DEPTH)
                .max_inline_data(INLINE)
                .build()?;
            let mut memory = match notices {
                Notices::Messages => Some(pd.allocate(DEPTH as usize * NOTICE)?),
                _ => None,
            };
            let rooms = (0..DEPTH).map(|_| memory.as_mut().map(|room| room.split_to(NOTICE))).collect();
            queue_pairs.push(Unconnected { peer, qp, receives: Receives { rooms, token: peer as u64 } });
        }
        let peers = (0..world).map(|_| None).collect();
        let (send_poller, recv_poller) = (send_cq.poller(), recv_cq.poller());
        let port = rail.adapter.port;
        let fabric = Self { peers, counters, notices, send_poller, recv_poller, recv_cq, pd, port, patience, sent: 0 };
        Ok((fabric, queue_pairs))
    }

    /// Allocates memory that the other ranks may write to.
    pub(crate) fn expose(&self, length: usize) -> Result<ExposedRegion, Error> {
        self.pd.allocate_exposed(length.max(1), RemoteAccess::WRITE).map_err(Error::from)
    }

    /// Bytes of data that this rank has sent, besides those that travel in the line of a notice.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.sent
    }

    /// Whether this rank is connected to any other.
    pub(crate) fn is_used(&self) -> bool {
        self.peers.iter().any(Option::is_some)
    }

    /// The device.
    pub(crate) fn nic(&self) -> Nic<'_> {
        Nic { pd: &self.pd, port: self.port }
    }

    /// How this rank notices arrivals, as text for the report.
    pub(crate) fn notice(&self) -> &'static str {
        match self.notices {
            Notices::Memory => "watched in memory",
            Notices::Messages => "told by messages",
            Notices::Immediate => "told by completions",
        }
    }

    /// Writes `source` to a place at a peer, then sends a notice on `lane`. Returns the number to
    /// [wait for](Self::wait_sent) before `source` may change.
    pub(crate) fn send<M: Placement>(
        &mut self,
        to: usize,
        lane: Lane,
        source: ExposedSlice<M>,
        place: RemoteSlice,
    ) -> Result<u64, Error> {
        if source.is_empty() {
            // 0 waits for no request: there is no source memory to protect.
            return self.notify(to, lane).map(|()| 0);
        }
        let notices = self.notices;
        self.sent += source.len() as u64;
        let peer = self.peer_with_room(to)?;
        match notices {
            Notices::Immediate => {
                let request = op::write_imm(source, place, lane as u32).token(peer.token());
                peer.qp.post_send(request)?;
            }
            Notices::Memory | Notices::Messages => {
                let write = op::write(source, place).token(peer.token());
                peer.qp.post_send(write.unsignaled())?;
                peer.notify(notices, lane, true)?;
                peer.counts.last_message = peer.counts.messages;
            }
        }
        peer.counts.last_data = peer.counts.posted;
        peer.counts.last_needed = peer.counts.posted;
        Ok(peer.counts.posted)
    }

    /// Whether arrivals can be watched in memory.
    pub(crate) fn watches_memory(&self) -> bool {
        self.notices == Notices::Memory
    }

    /// Writes one line, whose last word is its notice. Valid only where memory is watched.
    pub(crate) fn send_line(&mut self, to: usize, line: &[u8; LINE], place: RemoteSlice) -> Result<(), Error> {
        let peer = self.peer_with_room(to)?;
        let request = op::write_inline(line, place).token(peer.token());
        Ok(peer.qp.post_send(request.signaled(peer.is_signal_due()))?)
    }

    /// Waits until a word of a local region has a value that only this peer writes.
    #[inline]
    pub(crate) fn wait_for_word(
        &mut self,
        from: usize,
        region: &ExposedRegion,
        at: usize,
        value: u64,
    ) -> Result<(), Error> {
        let mut wait = Wait::default();
        while region.load_u64(at, Ordering::Acquire)? != value {
            self.pause_for(from, &mut wait)?;
        }
        Ok(())
    }

    /// Pauses once in a wait for the write of one peer, after a look that found none. Fails if the
    /// connection has ended before that look.
    #[inline]
    fn pause_for(&mut self, from: usize, wait: &mut Wait) -> Result<(), Error> {
        fails(&peer(&mut self.peers, from)?.deaf)?;
        self.pause(wait).map_err(|error| waiting(error, from))
    }

    /// Pauses once in a wait for a peer's write.
    #[inline]
    fn pause(&mut self, wait: &mut Wait) -> Result<(), Error> {
        let nap = self.patience.pause(wait)?;
        // A failed write of this rank may be the reason why the peer sends nothing; besides,
        // polling drives a software device.
        if nap.is_some() || wait.is_time_to_look() {
            self.collect_sent()?;
        }
        if let Some(nap) = nap {
            std::thread::sleep(nap);
        }
        Ok(())
    }

    /// Sends a notice on `lane` without data. A peer that has gone needs none of free memory.
    pub(crate) fn notify(&mut self, to: usize, lane: Lane) -> Result<(), Error> {
        let notices = self.notices;
        let sent = self.peer_with_room(to).and_then(|peer| peer.notify(notices, lane, false));
        let peer = peer(&mut self.peers, to)?;
        match lane {
            Lane::Credit | Lane::FreeSlots => peer.unless_gone(sent),
            _ => {
                peer.counts.last_needed = peer.counts.posted;
                sent
            }
        }
    }

    /// Whether a peer has sent so many notices on `lane` since the start, as far as this rank has
    /// looked. A peer that has gone without is an error.
    pub(crate) fn has_sent(&mut self, from: usize, lane: Lane, count: u64) -> Result<bool, Error> {
        let watches = self.watches_memory();
        let peer = peer(&mut self.peers, from)?;
        let (received, end) = if watches {
            (self.counters.load_u64(counter(from, lane), Ordering::Acquire)?, &peer.deaf)
        } else {
            (peer.counts.received[lane as usize], &peer.silent)
        };
        if received < count {
            fails(end)?;
        }
        Ok(received >= count)
    }

    /// Whether the source memory of a send, and of all earlier sends to the same peer, may change.
    pub(crate) fn is_sent(&mut self, to: usize, number: u64) -> Result<bool, Error> {
        if peer(&mut self.peers, to)?.counts.completed < number {
            self.collect_sent()?;
        }
        let by_messages = self.notices == Notices::Messages;
        let Peer { counts: Counts { completed, confirmed, last_message, .. }, silent, deaf, .. } =
            peer(&mut self.peers, to)?;
        let is_complete = *completed >= number;
        let is_read = !by_messages || number == 0 || is_confirmed(*confirmed, *last_message);
        if !is_complete {
            fails(deaf)?;
        }
        if !(is_complete && is_read) {
            // The kernel's siw never completes a request that is posted after the end.
            fails(silent)?;
        }
        Ok(is_complete && is_read)
    }

    /// Pauses once in a wait for any progress: of a peer, or of a send.
    pub(crate) fn pause_for_progress(&mut self, wait: &mut Wait) -> Result<(), Error> {
        if self.watches_memory() {
            return self.pause(wait);
        }
        if self.collect_received(None)? {
            return Ok(());
        }
        if let Some(nap) = self.patience.pause(wait)? {
            self.collect_sent()?;
            self.collect_received(Some(nap))?;
        }
        Ok(())
    }

    /// Takes note of what has arrived and of what was sent, without a pause.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        if !self.watches_memory() {
            self.collect_received(None)?;
        }
        self.collect_sent().map(drop)
    }

    /// Waits until a peer has sent `count` notices on `lane`, counted since the start.
    #[inline]
    pub(crate) fn wait_for(&mut self, from: usize, lane: Lane, count: u64) -> Result<(), Error> {
        if self.watches_memory() {
            let mut wait = Wait::default();
            let at = counter(from, lane);
            while self.counters.load_u64(at, Ordering::Acquire)? < count {
                self.pause_for(from, &mut wait)?;
            }
            return Ok(());
        }
        self.wait_told(from, |peer| peer.counts.received[lane as usize] >= count)
    }

    /// Waits until the source memory of a send, and of all earlier sends to the same peer, may
    /// change.
    pub(crate) fn wait_sent(&mut self, to: usize, number: u64) -> Result<(), Error> {
        self.wait_complete(to, number)?;
        if self.notices == Notices::Messages && number > 0 {
            // The kernel's siw completes requests before TCP has read their data, so only the
            // peer's report is proof.
            let last = peer(&mut self.peers, to)?.counts.last_message;
            self.wait_told(to, |peer| is_confirmed(peer.counts.confirmed, last))?;
        }
        Ok(())
    }

    /// Waits until a send, and all sends to the same peer before it, are complete.
    fn wait_complete(&mut self, to: usize, number: u64) -> Result<(), Error> {
        let mut wait = Wait::default();
        while peer(&mut self.peers, to)?.counts.completed < number {
            if self.collect_sent()? {
                continue;
            }
            let Peer { silent, deaf, .. } = peer(&mut self.peers, to)?;
            fails(deaf).and_then(|()| fails(silent))?;
            if let Some(nap) = self.patience.pause(&mut wait).map_err(|error| waiting(error, to))? {
                std::thread::sleep(nap);
            }
        }
        Ok(())
    }

    /// Waits until a peer's messages satisfy `enough`.
    fn wait_told(&mut self, from: usize, enough: impl Fn(&Peer) -> bool) -> Result<(), Error> {
        let mut wait = Wait::default();
        while !enough(peer(&mut self.peers, from)?) {
            if self.collect_received(None)? {
                continue;
            }
            fails(&peer(&mut self.peers, from)?.silent)?;
            if let Some(nap) = self.patience.pause(&mut wait).map_err(|error| waiting(error, from))? {
                self.collect_sent()?;
                self.collect_received(Some(nap))?;
            }
        }
        Ok(())
    }

    /// Waits until every send is complete and the source memory of all of them may change.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        for to in 0..self.peers.len() {
            if let Some(peer) = &self.peers[to] {
                self.wait_sent(to, peer.counts.last_data)?;
            }
        }
        Ok(())
    }

    /// Returns a peer once its send queue has space and it has a receive for another message.
    fn peer_with_room(&mut self, to: usize) -> Result<&mut Peer, Error> {
        if self.notices == Notices::Messages {
            self.wait_told(to, |peer| peer.counts.messages.wrapping_sub(peer.counts.confirmed) < UNCONFIRMED)?;
        }
        let Counts { posted, completed, .. } = peer(&mut self.peers, to)?.counts;
        if posted - completed >= FULL {
            self.wait_complete(to, posted - FULL + UNSIGNALED)?;
        }
        let peer = peer(&mut self.peers, to)?;
        fails(&peer.deaf).and_then(|()| fails(&peer.silent))?;
        Ok(peer)
    }

    /// Handles the completions of sends; returns whether there was one.
    fn collect_sent(&mut self) -> Result<bool, Error> {
        let mut any = false;
        while let Some(completion) = self.send_poller.poll()? {
            any = true;
            let (to, number) = ((completion.token() >> 48) as usize, completion.token() & NUMBER);
            let peer = peer(&mut self.peers, to)?;
            if let Err(error) = completion.status() {
                let failure = Error::of_request(format_args!("a write to rank {to}"), error);
                // A peer that needs none of the requests that fail may have gone.
                let is_needed = number <= peer.counts.last_needed;
                let is_reason = peer.deaf.is_none() && !failure.is_effect();
                peer.deaf.get_or_insert_with(|| failure.clone());
                if is_reason && is_needed {
                    return Err(failure);
                }
                continue;
            }
            peer.counts.completed = peer.counts.completed.max(number);
        }
        Ok(any)
    }

    /// Handles the notices that have come as receive completions; returns whether there was one.
    /// With a duration, sleeps at most that long if there was none.
    fn collect_received(&mut self, sleep: Option<Duration>) -> Result<bool, Error> {
        if let (Some(nap), Some(channel)) = (sleep, self.recv_cq.channel()) {
            let channel = channel.clone();
            self.recv_cq.request_notify(false)?;
            if self.collect_received(None)? {
                return Ok(true);
            }
            channel.next_event(Some(nap))?;
        }
        let mut any = false;
        while let Some(mut completion) = self.recv_poller.poll()? {
            any = true;
            let from = usize::try_from(completion.token()).unwrap_or(usize::MAX);
            if let Err(error) = completion.status() {
                // A send that failed before the receive was flushed waits in the other queue.
                self.collect_sent()?;
                let failure = Error::of_request(format_args!("a message from rank {from}"), error);
                peer(&mut self.peers, from)?.silent.get_or_insert_with(|| failure.clone());
                if !failure.is_effect() {
                    return Err(failure);
                }
                continue;
            }
            let (buffer, length) = (completion.take_buffer(), completion.byte_len());
            let imm = completion.imm();
            let peer = peer(&mut self.peers, from)?;
            let Some(buffer) = buffer else {
                peer.count(imm.map_or(LANES, |imm| imm as usize))?;
                peer.qp.post_recv((), from as u64)?;
                continue;
            };
            // A write with immediate data completes the receive, too, with a length of its own.
            let bytes = buffer.get(..length).ok_or_else(|| Error::new(MEANINGLESS).with_cause(Cause::Protocol))?;
            peer.take_message(bytes)?;
            peer.qp.post_recv(buffer, from as u64)?;
        }
        if any && self.notices == Notices::Messages {
            self.report()?;
        }
        Ok(any)
    }

    /// Reports to each peer how many of its messages were received; the receives for as many more
    /// are posted.
    fn report(&mut self) -> Result<(), Error> {
        for to in 0..self.peers.len() {
            let Some(connected) = &mut self.peers[to] else { continue };
            let has_gone = connected.has_gone();
            let Counts { taken, reported, posted, .. } = &mut connected.counts;
            if *taken == *reported || has_gone {
                continue;
            }
            *reported = *taken;
            let [a, b, c, d] = taken.to_be_bytes();
            // A report may take the last two places of the send queue.
            let most = (*posted + 2).saturating_sub(u64::from(DEPTH));
            let mut sent = self.wait_complete(to, most);
            let peer = peer(&mut self.peers, to)?;
            if sent.is_ok() {
                sent = peer.message(&[Lane::Report as u8, a, b, c, d], true);
            }
            peer.unless_gone(sent)?;
        }
        Ok(())
    }
}

impl Peer {
    /// Whether the connection to the peer has ended.
    fn has_gone(&self) -> bool {
        self.silent.is_some() || self.deaf.is_some()
    }

    /// Takes the failure to send what only a peer that goes on needs for the end of the connection.
    /// iWARP refuses a request while the connection ends.
    fn unless_gone(&mut self, sent: Result<(), Error>) -> Result<(), Error> {
        let Err(error) = sent else { return Ok(()) };
        if self.has_gone() {
            return Ok(());
        }
        if !matches!(error.cause(), Cause::Verbs { errno } if *errno == Some(Errno::ENOTCONN as i32)) {
            return Err(error);
        }
        self.deaf = Some(error);
        Ok(())
    }

    /// The token of the next request: the peer's rank and the request's number.
    fn token(&mut self) -> u64 {
        self.counts.posted += 1;
        (self.rank as u64) << 48 | self.counts.posted & NUMBER
    }

    /// Whether the request just numbered must be signaled, so that the unsignaled ones before it
    /// are known to be complete.
    fn is_signal_due(&self) -> bool {
        self.counts.posted % UNSIGNALED == 0
    }

    /// Sends a notice.
    fn notify(&mut self, notices: Notices, lane: Lane, signaled: bool) -> Result<(), Error> {
        let at = counter(0, lane);
        match notices {
            Notices::Memory => {
                self.counts.sent[lane as usize] += 1;
                let count = self.counts.sent[lane as usize].to_ne_bytes();
                let request = op::write_inline(&count, self.counters.slice(at..at + 8)?).token(self.token());
                Ok(self.qp.post_send(request.signaled(signaled || self.is_signal_due()))?)
            }
            Notices::Messages => {
                self.counts.messages = self.counts.messages.wrapping_add(1);
                self.message(&[lane as u8], signaled)
            }
            Notices::Immediate => {
                let nowhere = self.counters.slice(at..at)?;
                let request = op::write_imm((), nowhere, lane as u32).token(self.token());
                Ok(self.qp.post_send(request.signaled(signaled || self.is_signal_due()))?)
            }
        }
    }

    /// Sends a message.
    fn message(&mut self, bytes: &[u8], signaled: bool) -> Result<(), Error> {
        let request = op::send_inline(bytes).token(self.token());
        Ok(self.qp.post_send(request.signaled(signaled || self.is_signal_due()))?)
    }

    /// Counts a notice that came as a message, or takes the peer's report.
    fn take_message(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if let &[lane, a, b, c, d] = bytes {
            if lane == Lane::Report as u8 {
                self.counts.confirmed = u32::from_be_bytes([a, b, c, d]);
                return Ok(());
            }
        }
        self.counts.taken = self.counts.taken.wrapping_add(1);
        self.count(bytes.first().map_or(LANES, |&lane| lane.into()))
    }

    /// Counts a notice.
    fn count(&mut self, lane: usize) -> Result<(), Error> {
        let count = self.counts.received.get_mut(lane);
        *count.ok_or_else(|| Error::new(MEANINGLESS).with_cause(Cause::Protocol))? += 1;
        Ok(())
    }
}

/// Whether a peer that has reported `confirmed` messages has received the one of a number.
fn is_confirmed(confirmed: u32, message: u32) -> bool {
    confirmed.wrapping_sub(message) <= u32::MAX / 2
}

/// Fails if the connection to a peer that is needed has ended.
#[inline]
fn fails(end: &Option<Error>) -> Result<(), Error> {
    end.as_ref().map_or(Ok(()), |error| Err(error.clone()))
}

/// Names the rank that a wait was for, if time is over. Other failures tell what has failed.
#[cold]
fn waiting(error: Error, rank: usize) -> Error {
    if error.kind() != ErrorKind::TimedOut {
        return error;
    }
    error.context(format_args!("waiting for rank {rank}")).waits_for(rank)
}

/// Byte offset of a rank's counter of one lane.
fn counter(rank: usize, lane: Lane) -> usize {
    (rank * LANES + lane as usize) * LINE
}

/// The connection to a rank; the lack of one is a bug of this package.
#[inline]
fn peer(peers: &mut [Option<Peer>], rank: usize) -> Result<&mut Peer, Error> {
    peers
        .get_mut(rank)
        .and_then(Option::as_mut)
        .ok_or_else(|| Error::new(format!("this rank is not connected to rank {rank}")))
}

/// Tells every rank the address of memory of each other rank; collective.
pub(crate) fn exchange(group: &mut Group, what: &str, own: RemoteSlice) -> Result<Vec<RemoteSlice>, Error> {
    let all = group.all_gather(what, &own.to_bytes())?;
    Ok(all.iter().map(|bytes| RemoteSlice::from_bytes(bytes)).collect::<Result<_, _>>()?)
}

/// Allocates memory at every rank that the others may write to, and exchanges the addresses;
/// collective.
pub(crate) fn expose_together(
    fabric: &Fabric,
    group: &mut Group,
    what: &str,
    length: usize,
) -> Result<(ExposedRegion, Vec<RemoteSlice>), Error> {
    let region = group.agree(what, fabric.expose(length))?;
    let remotes: Vec<RemoteSlice> = exchange(group, what, region.remote(..)?)?;
    match remotes.iter().position(|remote| remote.len() != remotes[0].len()) {
        None => Ok((region, remotes)),
        Some(other) => Err(Error::invalid(format!(
            "{what}: {} bytes at rank 0, and {} at rank {other}; give all ranks the same sizes",
            remotes[0].len(),
            remotes[other].len()
        ))),
    }
}

#[cfg(test)]
mod tests;
