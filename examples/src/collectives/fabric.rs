//! The connections between ranks: writes into a peer's memory, each followed by a notice that it is
//! there.
//!
//! How a rank notices depends on the device. Where writes land in order, a second write of a
//! counter follows the first, and the receiver watches its own memory, which costs no call.
//! Everywhere else the write carries immediate data, and the receiver's completion queue says that
//! it has come: the only thing that verbs promises. iWARP has no immediate data: there a message
//! follows the write, and since nothing makes a sender wait there until there is a receive for it,
//! the receiver reports.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rdma::cm::blocking::Connection;
use rdma::op::{Send, Write, WriteImm};
use rdma::{
    CompletionQueue, ExposedRegion, ExposedSlice, Poller, ProtectionDomain, QueuePair, Rc, RemoteAccess, RemoteSlice,
    RnrTimer,
};

use super::communicator::Tuning;
use super::wait::{Patience, Wait};
use crate::Failure;
use crate::bootstrap::Group;
use crate::connect::{self, Connected, How, Receives, Unconnected, is_iwarp};
use crate::device::Chosen;

/// Independent streams of notices between two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
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
    /// How many messages were received, on iWARP: four bytes follow.
    Report,
}

const LANES: usize = 6;
/// Counters are a cache line apart.
pub(super) const LINE: usize = INLINE as usize;
/// What a request takes with it: a line.
const INLINE: u32 = 64;
/// Work requests outstanding to one peer, and receives posted for one.
const DEPTH: u32 = 256;
/// Sends without a completion of their own, at most.
const UNSIGNALED: u64 = 32;
/// The part of a token that is the request's number.
const NUMBER: u64 = (1 << 48) - 1;
/// Requests under way when the send queue counts as full: leaves room for what one message takes.
const FULL: u64 = DEPTH as u64 - 2 * UNSIGNALED;

/// The room that a message takes that is a notice by itself.
const NOTICE: usize = 8;
/// iWARP has no receiver that makes its sender wait: at most so many messages to a peer are not
/// known to be received. As many reports may be under way to it, and there is a receive for each.
const UNCONFIRMED: u32 = 64;

/// A connected rank.
#[derive(Debug)]
struct Peer {
    qp: QueuePair<Rc>,
    _connection: Option<Connection>,
    /// Its counters of what this rank sent.
    counters: [RemoteSlice; LANES],
    /// Notices sent to it and received from it.
    sent: [u64; LANES],
    received: [u64; LANES],
    /// The number of the last request to it, and of the last that is known to be complete.
    posted: u64,
    completed: u64,
    /// The number of the last one that read memory of ours.
    last_data: u64,
    /// On iWARP, messages sent to it, which of them it has said to have, messages received from it,
    /// and which of them it was told; all modulo 2^32.
    messages: u32,
    confirmed: u32,
    taken: u32,
    reported: u32,
    /// The message that followed the last data.
    last_message: u32,
}

/// Connections to some of the ranks of a group.
#[derive(Debug)]
pub(super) struct Fabric {
    peers: Vec<Option<Peer>>,
    counters: ExposedRegion,
    in_order: bool,
    /// Notices are messages, because there is no immediate data.
    by_messages: bool,
    send_poller: Poller,
    recv_poller: Poller,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
    patience: Patience,
}

impl Fabric {
    /// Connects this rank to `peers`; collective.
    pub(super) fn connect(
        chosen: &Chosen,
        group: &mut Group,
        peers: &[usize],
        tuning: &Tuning,
        patience: Patience,
    ) -> Result<Self, Failure> {
        let (rank, world) = (group.rank(), group.world());
        // All ranks have to tell each other in the same way.
        let own = tuning.by_messages || is_iwarp(&chosen.context);
        let by_messages = group.all_gather("the ways to tell of messages", &own)?.contains(&true);
        let prepared = Self::prepare(chosen, world, peers, by_messages, patience);
        let (mut fabric, queue_pairs) = group.agree("the queue pairs", prepared)?;
        let how =
            How { method: tuning.method, access: RemoteAccess::WRITE, mtu: None, min_rnr_timer: RnrTimer::DEFAULT };
        let connected = connect::connect(chosen, group, queue_pairs, &how)?;
        let counters = exchange(group, "the counters", &fabric.counters)?;
        let mut called = Vec::new();
        let added = connected.into_iter().try_for_each(|connected| {
            let (peer, is_active) = (connected.peer, connected.is_active);
            fabric.peers[peer] = Some(Peer::new(connected, &counters[peer], rank)?);
            called.push((peer, is_active));
            Ok(())
        });
        group.agree("the connections", added)?;
        let in_order = tuning.watch_memory
            && !by_messages
            && fabric.peers.iter().flatten().all(|peer| peer.qp.writes_in_order().unwrap_or(false));
        // Both ends of a connection have to do the same.
        fabric.in_order = !group.all_gather("the order of writes", &in_order)?.contains(&false);
        if by_messages {
            fabric.break_the_ice(&called)?;
        }
        Ok(fabric)
    }

    fn prepare(
        chosen: &Chosen,
        world: usize,
        peers: &[usize],
        by_messages: bool,
        patience: Patience,
    ) -> Result<(Self, Vec<Unconnected>), Failure> {
        let context = &chosen.context;
        let pd = context.alloc_pd()?;
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
            let mut notices = if by_messages { Some(pd.allocate(DEPTH as usize * NOTICE)?) } else { None };
            let rooms = (0..DEPTH).map(|_| notices.as_mut().map(|room| room.split_to(NOTICE))).collect();
            queue_pairs.push(Unconnected { peer, qp, receives: Receives { rooms, token: peer as u64 } });
        }
        let peers = (0..world).map(|_| None).collect();
        let (send_poller, recv_poller) = (send_cq.poller(), recv_cq.poller());
        let fabric =
            Self { peers, counters, in_order: false, by_messages, send_poller, recv_poller, recv_cq, pd, patience };
        Ok((fabric, queue_pairs))
    }

    /// On iWARP, the end that has called has to send first.
    fn break_the_ice(&mut self, called: &[(usize, bool)]) -> Result<(), Failure> {
        for &(to, _) in called.iter().filter(|(_, is_active)| *is_active) {
            self.notify(to, Lane::First)?;
        }
        for &(from, _) in called.iter().filter(|(_, is_active)| !*is_active) {
            self.wait_for(from, Lane::First, 1)?;
        }
        Ok(())
    }

    /// Allocates memory that the other ranks may write to.
    pub(super) fn expose(&self, length: usize) -> Result<ExposedRegion, Failure> {
        self.pd.allocate_exposed(length.max(1), RemoteAccess::WRITE).map_err(Failure::from)
    }

    /// How messages are noticed.
    pub(super) fn notice(&self) -> &'static str {
        match (self.in_order, self.by_messages) {
            (true, _) => "watched in memory",
            (false, true) => "told by messages",
            (false, false) => "told by completions",
        }
    }

    /// Writes `source` to a place at a peer, and tells it on `lane`. Returns the number to [wait
    /// for](Self::wait_sent) before `source` may change.
    pub(super) fn send(
        &mut self,
        to: usize,
        lane: Lane,
        source: ExposedSlice,
        place: RemoteSlice,
    ) -> Result<u64, Failure> {
        if source.is_empty() {
            // Nothing to wait for, either: earlier sends are not less complete for it.
            return self.notify(to, lane).map(|()| 0);
        }
        self.make_room(to)?;
        let peer = peer(&mut self.peers, to)?;
        if self.in_order {
            peer.posted += 1;
            peer.qp.post_send(Write::new(source, place).unsignaled())?;
            peer.tell(to, lane, true)?;
        } else if self.by_messages {
            peer.posted += 1;
            peer.qp.post_send(Write::new(source, place).unsignaled())?;
            peer.messages = peer.messages.wrapping_add(1);
            peer.last_message = peer.messages;
            peer.message(to, &[lane as u8], true)?;
        } else {
            peer.posted += 1;
            let request = WriteImm::new(source, place, lane as u32).token(token(to, peer.posted));
            peer.qp.post_send(request)?;
        }
        peer.last_data = peer.posted;
        Ok(peer.posted)
    }

    /// Whether arrivals can be watched in memory.
    pub(super) fn watches_memory(&self) -> bool {
        self.in_order
    }

    /// Writes one line, whose last word tells that it is there. Only where memory is watched.
    pub(super) fn send_line(&mut self, to: usize, line: &[u8; LINE], place: RemoteSlice) -> Result<(), Failure> {
        self.make_room(to)?;
        let peer = peer(&mut self.peers, to)?;
        peer.posted += 1;
        let request = Write::inline(line, place).token(token(to, peer.posted));
        Ok(peer.qp.post_send(request.signaled(peer.posted % UNSIGNALED == 0))?)
    }

    /// Waits until a word of a region of ours has a value that only a peer gives it.
    #[inline]
    pub(super) fn wait_for_word(&mut self, region: &ExposedRegion, at: usize, value: u64) -> Result<(), Failure> {
        let mut wait = Wait::default();
        while region.load_u64(at, Ordering::Acquire)? != value {
            self.pause(&mut wait)?;
        }
        Ok(())
    }

    /// Lets time pass in a wait for something that a peer writes.
    #[inline]
    fn pause(&mut self, wait: &mut Wait) -> Result<(), Failure> {
        let nap = self.patience.pause(wait)?;
        // A write of ours that failed may be why nothing comes; and a software device works faster
        // if asked.
        if nap.is_some() || wait.is_time_to_look() {
            self.collect_sent()?;
        }
        if let Some(nap) = nap {
            std::thread::sleep(nap);
        }
        Ok(())
    }

    /// Tells a peer something on `lane` that needs no more words.
    pub(super) fn notify(&mut self, to: usize, lane: Lane) -> Result<(), Failure> {
        self.make_room(to)?;
        let (in_order, by_messages) = (self.in_order, self.by_messages);
        let peer = peer(&mut self.peers, to)?;
        if in_order {
            return peer.tell(to, lane, false);
        }
        if by_messages {
            peer.messages = peer.messages.wrapping_add(1);
            return peer.message(to, &[lane as u8], false);
        }
        peer.posted += 1;
        let nowhere = peer.counters[lane as usize].slice(0..0)?;
        let request = WriteImm::new((), nowhere, lane as u32).token(token(to, peer.posted));
        let request = request.signaled(peer.posted % UNSIGNALED == 0);
        peer.qp.post_send(request).map_err(Failure::from)
    }

    /// Waits until `count` notices have come from a peer on `lane`, since the beginning.
    #[inline]
    pub(super) fn wait_for(&mut self, from: usize, lane: Lane, count: u64) -> Result<(), Failure> {
        if self.in_order {
            let mut wait = Wait::default();
            let at = counter(from, lane);
            while self.counters.load_u64(at, Ordering::Acquire)? < count {
                self.pause(&mut wait)?;
            }
            return Ok(());
        }
        self.wait_told(from, |peer| peer.received[lane as usize] >= count)
    }

    /// Waits until what a send, and all sends to the same peer before it, were sent from may
    /// change.
    pub(super) fn wait_sent(&mut self, to: usize, number: u64) -> Result<(), Failure> {
        self.wait_complete(to, number)?;
        if self.by_messages && number > 0 {
            // The kernel's siw completes requests whose data TCP has yet to look at, so that only
            // the peer knows better.
            let last = peer(&mut self.peers, to)?.last_message;
            self.wait_told(to, |peer| peer.confirmed.wrapping_sub(last) <= u32::MAX / 2)?;
        }
        Ok(())
    }

    /// Waits until a send, and all sends to the same peer before it, are complete.
    fn wait_complete(&mut self, to: usize, number: u64) -> Result<(), Failure> {
        let mut wait = Wait::default();
        while peer(&mut self.peers, to)?.completed < number {
            if self.collect_sent()? {
                continue;
            }
            if let Some(nap) = self.patience.pause(&mut wait)? {
                std::thread::sleep(nap);
            }
        }
        Ok(())
    }

    /// Waits until a peer's messages have told enough.
    fn wait_told(&mut self, from: usize, enough: impl Fn(&Peer) -> bool) -> Result<(), Failure> {
        let mut wait = Wait::default();
        while !enough(peer(&mut self.peers, from)?) {
            if self.collect_received(None)? {
                continue;
            }
            if let Some(nap) = self.patience.pause(&mut wait)? {
                self.collect_sent()?;
                self.collect_received(Some(nap))?;
            }
        }
        Ok(())
    }

    /// Waits until everything that was sent is complete, and what it was sent from may change.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        for to in 0..self.peers.len() {
            if let Some(peer) = &self.peers[to] {
                self.wait_sent(to, peer.last_data)?;
            }
        }
        Ok(())
    }

    /// Waits while the send queue of a peer is full, or its receives may be used up.
    fn make_room(&mut self, to: usize) -> Result<(), Failure> {
        if self.by_messages {
            self.wait_told(to, |peer| peer.messages.wrapping_sub(peer.confirmed) < UNCONFIRMED)?;
        }
        let peer = peer(&mut self.peers, to)?;
        if peer.posted - peer.completed < FULL {
            return Ok(());
        }
        let enough = peer.posted - FULL + UNSIGNALED;
        self.wait_complete(to, enough)
    }
}

impl Fabric {
    /// Takes note of the sends that are complete; tells whether there was one.
    fn collect_sent(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(completion) = self.send_poller.poll()? {
            any = true;
            let (to, number) = ((completion.token() >> 48) as usize, completion.token() & NUMBER);
            completion.status().map_err(|e| Failure::new(format!("a write to rank {to} failed: {e}")))?;
            let peer = peer(&mut self.peers, to)?;
            peer.completed = peer.completed.max(number);
        }
        Ok(any)
    }

    /// Takes note of the notices that have come as immediate data; tells whether there was one.
    /// With a time, sleeps that long if there was none.
    fn collect_received(&mut self, sleep: Option<Duration>) -> Result<bool, Failure> {
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
            completion.status().map_err(|e| Failure::new(format!("a message from rank {from} failed: {e}")))?;
            let (buffer, length) = (completion.take_buffer(), completion.byte_len());
            let imm = completion.imm();
            let peer = peer(&mut self.peers, from)?;
            let Some(buffer) = buffer else {
                peer.count(imm.map_or(LANES, |imm| imm as usize))?;
                peer.qp.post_recv((), from as u64)?;
                continue;
            };
            peer.take_message(&buffer[..length])?;
            peer.qp.post_recv(buffer, from as u64)?;
        }
        if any && self.by_messages {
            self.report()?;
        }
        Ok(any)
    }

    /// Tells peers which of their messages have come, and that there are receives for as many more.
    fn report(&mut self) -> Result<(), Failure> {
        for to in 0..self.peers.len() {
            let Some(peer) = &mut self.peers[to] else { continue };
            if peer.taken == peer.reported {
                continue;
            }
            peer.reported = peer.taken;
            let [a, b, c, d] = peer.taken.to_be_bytes();
            // Reports go where there is room for them: the last two places.
            let most = (peer.posted + 2).saturating_sub(u64::from(DEPTH));
            self.wait_complete(to, most)?;
            if let Some(peer) = &mut self.peers[to] {
                peer.message(to, &[Lane::Report as u8, a, b, c, d], true)?;
            }
        }
        Ok(())
    }
}

impl Peer {
    fn new(connected: Connected, counters: &RemoteSlice, rank: usize) -> Result<Self, Failure> {
        let Connected { qp, connection, .. } = connected;
        let place = |lane| {
            let at = counter(rank, lane);
            counters.slice(at..at + 8).map_err(Failure::from)
        };
        let [ring, credit, part, result] = [Lane::Ring, Lane::Credit, Lane::Part, Lane::Result].map(place);
        let [first, report] = [Lane::First, Lane::Report].map(place);
        Ok(Self {
            qp,
            _connection: connection,
            counters: [ring?, credit?, part?, result?, first?, report?],
            sent: [0; LANES],
            received: [0; LANES],
            posted: 0,
            completed: 0,
            last_data: 0,
            messages: 0,
            confirmed: 0,
            taken: 0,
            reported: 0,
            last_message: 0,
        })
    }

    /// Sends a notice as a message.
    fn message(&mut self, to: usize, notice: &[u8], signaled: bool) -> Result<(), Failure> {
        self.posted += 1;
        let request = Send::inline(notice).token(token(to, self.posted));
        Ok(self.qp.post_send(request.signaled(signaled || self.posted % UNSIGNALED == 0))?)
    }

    /// Takes note of a notice that has come as a message.
    fn take_message(&mut self, notice: &[u8]) -> Result<(), Failure> {
        if let &[lane, a, b, c, d] = notice {
            if lane == Lane::Report as u8 {
                self.confirmed = u32::from_be_bytes([a, b, c, d]);
                return Ok(());
            }
        }
        self.taken = self.taken.wrapping_add(1);
        self.count(notice.first().map_or(LANES, |&lane| lane.into()))
    }

    /// Counts a notice.
    fn count(&mut self, lane: usize) -> Result<(), Failure> {
        let count = self.received.get_mut(lane).ok_or_else(|| Failure::new("a notice that makes no sense"))?;
        *count += 1;
        Ok(())
    }

    /// Writes the number of notices to the peer's counter.
    fn tell(&mut self, to: usize, lane: Lane, signaled: bool) -> Result<(), Failure> {
        self.posted += 1;
        self.sent[lane as usize] += 1;
        let count = self.sent[lane as usize].to_ne_bytes();
        let request = Write::inline(&count, self.counters[lane as usize]).token(token(to, self.posted));
        let request = request.signaled(signaled || self.posted % UNSIGNALED == 0);
        self.qp.post_send(request).map_err(Failure::from)
    }
}

/// The place of a rank's counter of one lane.
fn counter(rank: usize, lane: Lane) -> usize {
    (rank * LANES + lane as usize) * LINE
}

/// Tells from a completion which send to whom it was.
fn token(to: usize, number: u64) -> u64 {
    (to as u64) << 48 | number & NUMBER
}

/// The connection to a rank; asking for one that this rank has none to is a mistake of this
/// package.
#[inline]
fn peer(peers: &mut [Option<Peer>], rank: usize) -> Result<&mut Peer, Failure> {
    peers
        .get_mut(rank)
        .and_then(Option::as_mut)
        .ok_or_else(|| Failure::new(format!("this rank is not connected to rank {rank}")))
}

/// Tells every rank where a region of each other rank is; collective.
pub(super) fn exchange(group: &mut Group, what: &str, region: &ExposedRegion) -> Result<Vec<RemoteSlice>, Failure> {
    let all = group.all_gather(what, &region.remote(..)?.to_bytes())?;
    Ok(all.iter().map(RemoteSlice::from_bytes).collect())
}

/// Allocates memory at every rank that the others may write to, and tells where it is; collective.
pub(super) fn expose_together(
    fabric: &Fabric,
    group: &mut Group,
    what: &str,
    length: usize,
) -> Result<(ExposedRegion, Vec<RemoteSlice>), Failure> {
    let region = group.agree(what, fabric.expose(length))?;
    let remotes = exchange(group, what, &region)?;
    Ok((region, remotes))
}
