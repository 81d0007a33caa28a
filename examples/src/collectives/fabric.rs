//! The connections between ranks: writes into a peer's memory, each followed by a notice that it is there.
//!
//! How a rank notices depends on the device. Where writes land in order, a second write of a counter follows the first,
//! and the receiver watches its own memory, which costs no call. Everywhere else the write carries immediate data, and
//! the receiver's completion queue says that it has come: the only thing that verbs promises.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rdma::op::{Write, WriteImm};
use rdma::{
    CompletionQueue, ConnectOptions, Endpoint, ExposedRegion, ExposedSlice, InitializedQueuePair, Poller,
    ProtectionDomain, QueuePair, Rc, RemoteAccess, RemoteSlice,
};

use super::wait::{Patience, Wait};
use crate::Failure;
use crate::bootstrap::Group;
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
}

const LANES: usize = 4;
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

/// A connected rank.
#[derive(Debug)]
struct Peer {
    qp: QueuePair<Rc>,
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
}

/// Connections to some of the ranks of a group.
#[derive(Debug)]
pub(super) struct Fabric {
    peers: Vec<Option<Peer>>,
    counters: ExposedRegion,
    in_order: bool,
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
        watch_memory: bool,
        patience: Patience,
    ) -> Result<Self, Failure> {
        let (rank, world) = (group.rank(), group.world());
        let prepared = Self::prepare(chosen, world, peers, patience);
        let (mut fabric, queue_pairs) = group.agree(prepared)?;

        // Everybody hears where everybody's queue pairs are, and takes out those that are meant for it.
        let mut endpoints = vec![0; world * Endpoint::LEN];
        for (peer, qp) in peers.iter().zip(&queue_pairs) {
            endpoints[peer * Endpoint::LEN..][..Endpoint::LEN].copy_from_slice(&qp.endpoint().to_bytes());
        }
        let all = group.all_gather(&endpoints)?;
        let counters = exchange(group, &fabric.counters)?;
        let mut connected = Ok(());
        for (&peer, qp) in peers.iter().zip(queue_pairs) {
            let bytes = all[peer].get(rank * Endpoint::LEN..(rank + 1) * Endpoint::LEN).unwrap_or_default();
            match Peer::connect(qp, bytes, &counters[peer], rank) {
                Ok(connected) => fabric.peers[peer] = Some(connected),
                Err(failure) => connected = Err(failure.context(format_args!("cannot connect to rank {peer}"))),
            }
        }
        group.agree(connected)?;
        let in_order =
            watch_memory && fabric.peers.iter().flatten().all(|peer| peer.qp.writes_in_order().unwrap_or(false));
        // Both ends of a connection have to do the same.
        fabric.in_order = group.all_gather(&[u8::from(in_order)])?.iter().all(|vote| vote == &[1]);
        Ok(fabric)
    }

    fn prepare(
        chosen: &Chosen,
        world: usize,
        peers: &[usize],
        patience: Patience,
    ) -> Result<(Self, Vec<InitializedQueuePair<Rc>>), Failure> {
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
            let mut qp = qp.init(&chosen.init_options(RemoteAccess::WRITE))?;
            for _ in 0..DEPTH {
                qp.post_recv((), peer as u64)?;
            }
            queue_pairs.push(qp);
        }
        let peers = (0..world).map(|_| None).collect();
        let (send_poller, recv_poller) = (send_cq.poller(), recv_cq.poller());
        let fabric = Self { peers, counters, in_order: false, send_poller, recv_poller, recv_cq, pd, patience };
        Ok((fabric, queue_pairs))
    }

    /// Allocates memory that the other ranks may write to.
    pub(super) fn expose(&self, length: usize) -> Result<ExposedRegion, Failure> {
        self.pd.allocate_exposed(length.max(1), RemoteAccess::WRITE).map_err(Failure::from)
    }

    /// How messages are noticed.
    pub(super) fn notice(&self) -> &'static str {
        if self.in_order { "watched in memory" } else { "told by completions" }
    }

    /// Writes `source` to a place at a peer, and tells it on `lane`. Returns the number to [wait for](Self::wait_sent)
    /// before `source` may change.
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
        // A write of ours that failed may be why nothing comes; and a software device works faster if asked.
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
        let in_order = self.in_order;
        let peer = peer(&mut self.peers, to)?;
        if in_order {
            return peer.tell(to, lane, false);
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
        let mut wait = Wait::default();
        if self.in_order {
            let at = counter(from, lane);
            while self.counters.load_u64(at, Ordering::Acquire)? < count {
                self.pause(&mut wait)?;
            }
            return Ok(());
        }
        while peer(&mut self.peers, from)?.received[lane as usize] < count {
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

    /// Waits until a send, and all sends to the same peer before it, are complete.
    pub(super) fn wait_sent(&mut self, to: usize, number: u64) -> Result<(), Failure> {
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

    /// Waits until everything that was sent is complete, and what it was sent from may change.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        for to in 0..self.peers.len() {
            if let Some(peer) = &self.peers[to] {
                self.wait_sent(to, peer.last_data)?;
            }
        }
        Ok(())
    }

    /// Waits while the send queue of a peer is full.
    fn make_room(&mut self, to: usize) -> Result<(), Failure> {
        let peer = peer(&mut self.peers, to)?;
        if peer.posted - peer.completed < FULL {
            return Ok(());
        }
        let enough = peer.posted - FULL + UNSIGNALED;
        self.wait_sent(to, enough)
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

    /// Takes note of the notices that have come as immediate data; tells whether there was one. With a time, sleeps that
    /// long if there was none.
    fn collect_received(&mut self, sleep: Option<Duration>) -> Result<bool, Failure> {
        if let (Some(nap), Some(channel)) = (sleep, self.recv_cq.channel()) {
            let channel = channel.clone();
            self.recv_cq.request_notify(false)?;
            if self.collect_received(None)? {
                return Ok(true);
            }
            channel.wait(Some(nap))?;
        }
        let mut any = false;
        while let Some(completion) = self.recv_poller.poll()? {
            any = true;
            let from = usize::try_from(completion.token()).unwrap_or(usize::MAX);
            completion.status().map_err(|e| Failure::new(format!("a message from rank {from} failed: {e}")))?;
            let lane = completion.imm().map_or(LANES, |imm| imm as usize);
            let peer = peer(&mut self.peers, from)?;
            let count = peer.received.get_mut(lane).ok_or_else(|| Failure::new("a notice that makes no sense"))?;
            *count += 1;
            peer.qp.post_recv((), from as u64)?;
        }
        Ok(any)
    }
}

impl Peer {
    fn connect(
        qp: InitializedQueuePair<Rc>,
        endpoint: &[u8],
        counters: &RemoteSlice,
        rank: usize,
    ) -> Result<Self, Failure> {
        let remote = Endpoint::from_bytes(endpoint)?;
        let qp = qp.connect(&remote, &ConnectOptions::new().rnr_retry(7))?;
        let place = |lane| {
            let at = counter(rank, lane);
            counters.slice(at..at + 8).map_err(Failure::from)
        };
        let counters = [place(Lane::Ring)?, place(Lane::Credit)?, place(Lane::Part)?, place(Lane::Result)?];
        Ok(Self { qp, counters, sent: [0; LANES], received: [0; LANES], posted: 0, completed: 0, last_data: 0 })
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

/// The connection to a rank; asking for one that this rank has none to is a mistake of this package.
#[inline]
fn peer(peers: &mut [Option<Peer>], rank: usize) -> Result<&mut Peer, Failure> {
    peers
        .get_mut(rank)
        .and_then(Option::as_mut)
        .ok_or_else(|| Failure::new(format!("this rank is not connected to rank {rank}")))
}

/// Tells every rank where a region of each other rank is; collective.
pub(super) fn exchange(group: &mut Group, region: &ExposedRegion) -> Result<Vec<RemoteSlice>, Failure> {
    let own = region.remote(..)?.to_bytes();
    let all = group.all_gather(&own)?;
    all.iter()
        .map(|bytes| bytes.as_slice().try_into().map(RemoteSlice::from_bytes))
        .collect::<Result<_, _>>()
        .map_err(|_| Failure::new("a rank sent something else than an address; are all ranks the same build?"))
}
