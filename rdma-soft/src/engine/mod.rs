//! The engine of the software device: reliable and unreliable connections and unreliable datagrams,
//! without input or output, threads or a clock.
//!
//! The verbs objects call the engine to post and poll; a driver moves frames between the engines of
//! two processes. Every call runs under the caller's one lock. After each call that may have caused
//! work, the driver calls, in any order: [`poll_active_link`](Engine::poll_active_link) and
//! [`poll_transmit`](Engine::poll_transmit), [`poll_event`](Engine::poll_event),
//! [`poll_lookup`](Engine::poll_lookup), [`poll_errand`](Engine::poll_errand) and
//! [`poll_timeout`](Engine::poll_timeout).
//!
//! Modules import downwards: the shared tables (`tables`) and the queues import no queue pair; the
//! common part of a queue pair (`qp`) imports the tables and queues, the services (`rc`, `uc`,
//! `ud`) import `qp`, and this module imports the services; `objects` has the calls that create,
//! change and destroy objects. Only `memory` accesses registered memory. Outside of it, two places
//! have `unsafe` code: `Engine::register` passes the promise of its caller on, and
//! `Engine::handle_incoming` relies on it.
//!
//! # Files
//!
//! ```text
//!   mod.rs, objects.rs              the interface; its part that creates and destroys objects
//!   service.rs                      a queue pair with its transport service
//!   rc/, uc.rs, ud.rs               the services
//!   transfer.rs, patience.rs        steps that RC and UC share; the bounded wait of UC and UD for
//!                                   space
//!   qp.rs, table.rs                 the common part of a queue pair; all queue pairs by number
//!   queue.rs, receive.rs, srq.rs    rings of requests; receives, own or shared
//!   cq.rs, mr.rs, groups.rs         completion queues; domains and regions; multicast groups
//!   tables.rs, peers.rs             the state that queue pairs share; links and the processes
//!                                   behind them
//!   directory.rs                    what this process publishes for direct operations
//!   wire.rs, grh.rs                 frames between engines; the header in front of a datagram
//!   foreign.rs, staging.rs          memory that the driver copies for the engine; bytes that wait
//!                                   for it
//!   memory.rs                       access to registered memory
//!   timer.rs, events.rs, errand.rs  timers; events and work for the driver
//!   fault/                          the plan of faults
//!   counters.rs                     counts of what was done
//!   siphash.rs                      the hash that makes memory keys unpredictable
//!   types.rs, limits.rs             values that cross the boundary; limits
//! ```

#![deny(unsafe_code)]

mod counters;
mod cq;
mod directory;
mod errand;
mod events;
pub(crate) mod fault;
mod foreign;
mod grh;
mod groups;
pub(crate) mod limits;
#[allow(unsafe_code, reason = "the one module that touches memory")]
mod memory;
mod mr;
mod objects;
mod patience;
mod peers;
mod qp;
mod queue;
mod rc;
mod receive;
mod service;
mod siphash;
mod srq;
mod staging;
mod table;
mod tables;
#[cfg(test)]
#[allow(unsafe_code, clippy::cast_possible_truncation, reason = "tests own the memory, and their numbers are small")]
mod tests;
mod timer;
mod transfer;
mod types;
mod uc;
mod ud;
mod wire;

use std::collections::VecDeque;

use rdma_sys::{ibv_event_type, ibv_sge, ibv_wc};

use cq::CqTable;
use directory::Directory;
use events::Events;
use fault::{FaultPlan, FaultReport};
use foreign::Copies;
use groups::Groups;
use mr::{MrTable, PdTable};
use peers::Peers;
use qp::Qp;
use rc::Rc;
use service::{QueuePair, Service};
use siphash::SipHash;
use srq::SrqTable;
use table::QpTable;
use tables::Tables;
use timer::{Owner, Timers};
use wire::{Frame, Kind};

pub use counters::Counters;
pub(crate) use directory::DIRECTORY_LEN;
pub(crate) use errand::{Errand, Grant};
pub(crate) use foreign::{CopyEnd, CopyId, CopyJob, CopyQueue, Direction, ForeignRegistration};
pub(crate) use grh::{GRH_LEN, Gid, Grh, Network, Route};
pub(crate) use memory::{Area, Gather, Source, Target};
pub(crate) use types::{
    Address, CqId, Element, Errno, Event, Host, LinkId, Lookup, MULTICAST_QPN, ModifyQp, MrKeys, Op, Path, PdId,
    PeerId, QpId, QpInit, QpState, QpStatus, Registration, SendData, SendFlags, SendRequest, ServiceType, Slot, SrqId,
    SrqInit, SrqStatus, Time, Transmit,
};
pub(crate) use wire::{HEADER_WORDS, Header};

/// Configuration of an [`Engine`].
#[derive(Debug)]
pub(crate) struct EngineConfig {
    /// The slot of this process. [`Engine::add_slot`] adds further ones.
    pub(crate) slot: Slot,
    /// Seed of the memory keys, queue pair numbers and incarnations. Take it from the kernel's
    /// random source: a peer that knows the seed knows the keys.
    pub(crate) seed: [u64; 2],
    /// `DIRECTORY_LEN` zeroed bytes that peers may map. With `None`, peers cannot execute one-sided
    /// operations themselves.
    pub(crate) directory: Option<Area>,
    /// Whether peers may be processes that the kernel would not let trace this one, so that keys
    /// are secrets: they have random indices, and are not tried out on an unreliable connection.
    pub(crate) keys_are_secret: bool,
}

/// The transmit side of a link.
pub(crate) trait Outbound {
    /// The largest payload of one frame, in bytes: at least [`limits::SHORTEST_LIMIT`].
    fn max_payload(&self) -> usize;
    /// The payload in bytes of the next frame of a message, of which `rest` bytes are left.
    #[inline]
    fn piece(&mut self, rest: u32) -> u32 {
        rest.min(u32::try_from(self.max_payload()).unwrap_or(u32::MAX))
    }
    /// Pushes a frame and its whole payload; false if there is no space for them now.
    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool;
}

/// The protocol engine of one process.
#[derive(Debug)]
pub(crate) struct Engine {
    qps: QpTable,
    tables: Tables,
    /// `post_send` was called since `poll_active_link` last found no active link. The next time it
    /// finds none, the deferred acknowledgements are released.
    release_next: bool,
}

impl Engine {
    /// Creates an engine without objects.
    pub(crate) fn new(config: EngineConfig) -> Self {
        let hash = SipHash::new(config.seed);
        Self {
            // A hash of the seed, because peers see the numbers that begin with it.
            qps: QpTable::new(hash.of(0)),
            release_next: false,
            tables: Tables {
                pds: PdTable::default(),
                ahs: 0,
                mrs: MrTable::new(hash, config.keys_are_secret),
                cqs: CqTable::default(),
                srqs: SrqTable::default(),
                events: Events::default(),
                peers: Peers::default(),
                groups: Groups::default(),
                timers: Timers::default(),
                directory: Directory::new(config.directory),
                slots: vec![config.slot],
                defer_acks: false,
                deferred: Vec::new(),
                copies: Copies::default(),
                errands: VecDeque::new(),
                faults: None,
                counters: Counters::default(),
                keys_are_secret: config.keys_are_secret,
            },
        }
    }

    /// Changes whether a peer may try out keys.
    #[cfg(test)]
    pub(crate) fn keep_keys_secret(&mut self, are_secret: bool) {
        self.tables.keys_are_secret = are_secret;
    }

    /// Replaces the plan of faults; `None` ends all faults.
    pub(crate) fn set_faults(&mut self, plan: Option<&FaultPlan>) {
        self.tables.set_faults(plan);
        for QueuePair { qp, service } in self.qps.iter_mut() {
            if let Service::Rc(_) = service {
                Rc::publish(qp, &mut self.tables);
            }
        }
    }

    /// Returns how often the plan of faults has picked requests.
    pub(crate) fn fault_report(&self) -> FaultReport {
        self.tables.fault_report()
    }

    /// Returns what the queue pairs did so far.
    pub(crate) fn counters(&self) -> Counters {
        self.tables.counters
    }

    /// Whether a fault has taken the port down.
    pub(crate) fn port_is_down(&self) -> bool {
        self.tables.port_is_down()
    }

    /// Adds a slot: needed when `create_qp` returned `ENOMEM` because all queue pair numbers are
    /// taken.
    pub(crate) fn add_slot(&mut self, slot: Slot) {
        if !self.tables.slots.contains(&slot) {
            let loopback = self.tables.peers.link_of(PeerId::local(self.tables.slots[0]));
            self.tables.slots.push(slot);
            self.qps.add_slot();
            self.qps.iter_mut().for_each(|qp| qp.qp.find_peer(&self.tables));
            if let Some(link) = loopback {
                self.tables.peers.up(PeerId::local(slot), link, None, &mut self.tables.timers);
            }
        }
    }

    /// Polls completions into `out` and returns their number.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue. `EIO`: the queue overran, and the completions from before the
    /// overrun were all polled.
    #[inline]
    pub(crate) fn poll_cq(&mut self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        self.tables.cqs.poll(cq, out)
    }

    /// The time of the completion that was polled last; the origin for a queue without times.
    pub(crate) fn polled_time(&mut self, cq: CqId) -> Time {
        self.tables.cqs.polled_time(cq)
    }

    /// Requests one event for the next completion (or the next solicited or failed one). If any
    /// completion will do and the queue holds one that no event has announced, the event is raised
    /// at once.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue.
    pub(crate) fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Errno> {
        let Tables { cqs, events, .. } = &mut self.tables;
        cqs.arm(cq, solicited_only, events)
    }

    /// Posts a receive request to a shared receive queue; errors as [`post_recv`](Self::post_recv).
    #[inline]
    pub(crate) fn post_srq_recv(&mut self, srq: SrqId, wr_id: u64, list: &[ibv_sge]) -> Result<(), Errno> {
        self.tables.srqs.post(srq, wr_id, list)
    }

    /// Posts a send request to a connection.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the queue is full. `EINVAL`: wrong state or service, or a request that the queue
    /// pair cannot hold.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, qp: QpId, request: &SendRequest, data: SendData<'_>) -> Result<(), Errno> {
        let QueuePair { qp, service } = self.qps.get_mut(qp)?;
        let posted = match service {
            Service::Rc(rc) => rc.post(qp, request, data, &mut self.tables),
            Service::Uc(uc) => uc.post(qp, request, data, &mut self.tables),
            Service::Ud(_) => return Err(Errno::INVAL),
        };
        self.release_next = true;
        self.fail_overrun();
        posted
    }

    /// Posts a send request to a datagram queue pair.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    pub(crate) fn post_datagram(
        &mut self,
        qp: QpId,
        request: &SendRequest,
        data: SendData<'_>,
        address: &Address,
    ) -> Result<(), Errno> {
        let QueuePair { qp, service: Service::Ud(ud) } = self.qps.get_mut(qp)? else { return Err(Errno::INVAL) };
        let posted = ud.post(qp, request, data, address, &mut self.tables);
        self.fail_overrun();
        posted
    }

    /// Returns how many more send requests the queue has space for.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair, or its state takes no send requests.
    pub(crate) fn send_room(&self, qp: QpId) -> Result<u32, Errno> {
        self.qps.get(qp)?.qp.send_room()
    }

    /// Posts a receive request.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    #[inline]
    pub(crate) fn post_recv(&mut self, qp: QpId, wr_id: u64, list: &[ibv_sge]) -> Result<(), Errno> {
        let posted = self.qps.get_mut(qp)?.qp.post_recv(wr_id, list, &mut self.tables);
        self.fail_overrun();
        posted
    }

    /// Takes the next event for the process.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.tables.events.pop()
    }

    /// Whether an event, lookup, errand, timer or mapping of no use waits for the driver.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        let tables = &self.tables;
        !tables.events.is_empty()
            | tables.peers.has_lookup()
            | tables.peers.has_unmapped()
            | !tables.errands.is_empty()
            | tables.timers.next().is_some()
    }

    /// Whether the driver has nothing to do: no active link, no event, lookup, errand or timer, and
    /// no deferred acknowledgement that is to be released.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        let tables = &self.tables;
        tables.peers.is_idle()
            & tables.events.is_empty()
            & tables.errands.is_empty()
            & tables.timers.next().is_none()
            & (tables.deferred.is_empty() | !self.release_next)
    }

    /// A link to a process is up. Call this once for each slot of that process. A link to this
    /// process is the loopback, which gives every frame back to
    /// [`handle_frame`](Self::handle_frame) under the same id. `directory` is the peer's directory,
    /// mapped.
    pub(crate) fn handle_link_up(&mut self, peer: PeerId, link: LinkId, directory: Option<Area>) {
        let tables = &mut self.tables;
        tables.peers.up(peer, link, directory, &mut tables.timers);
        if peer.host == Host::LOCAL && tables.slots.contains(&peer.slot) {
            // The loopback leads to all slots of this process, whichever of them was looked up.
            for own in &tables.slots {
                tables.peers.up(PeerId::local(*own), link, None, &mut tables.timers);
            }
        }
        tables.peers.reserve(self.qps.len());
        for qp in self.qps.iter_mut() {
            if qp.is_waiting() || qp.qp.peer() == peer {
                qp.resume(tables);
            }
        }
        self.fail_overrun();
    }

    /// Tells the addresses between which a link to another host carries datagrams: the peer's and
    /// this host's. Without them, the link carries none.
    pub(crate) fn handle_link_route(&mut self, link: LinkId, from: Gid, to: Gid) {
        self.tables.peers.set_route(link, [from, to]);
    }

    /// The link is down: its peer has died, or is no longer trusted.
    pub(crate) fn handle_link_down(&mut self, link: LinkId) {
        let tables = &mut self.tables;
        let peers = tables.peers.down(link);
        for qp in self.qps.iter_mut() {
            let is_last = peers.contains(&qp.qp.peer());
            qp.handle_link_down(link, is_last, tables);
        }
        self.fail_overrun();
    }

    /// No process has that address, or the process refuses a link.
    pub(crate) fn handle_unreachable(&mut self, peer: PeerId) {
        let tables = &mut self.tables;
        tables.peers.unreachable(peer, &mut tables.timers);
        if tables.peers.link_of(peer).is_none() {
            for QueuePair { qp, service } in self.qps.iter_mut() {
                match service {
                    Service::Rc(rc) if qp.peer() == peer => rc.handle_unreachable(qp, tables),
                    _ => {}
                }
            }
        }
        // If there is a link, the peer connected to us meanwhile: requests that are under way on
        // that link are not sent again.
        self.resume_waiting();
    }

    /// Tries again to send the messages that wait for a link.
    fn resume_waiting(&mut self) {
        for qp in self.qps.iter_mut().filter(|qp| qp.is_waiting()) {
            qp.resume(&mut self.tables);
        }
        self.fail_overrun();
    }

    /// Whether unreliable messages wait for a link or for the member list of a group.
    pub(crate) fn has_waiting_messages(&self) -> bool {
        self.tables.groups.is_waited_for() || self.qps.iter().any(QueuePair::is_waiting)
    }

    /// Whether unreliable messages had to wait for this link.
    pub(crate) fn was_awaited(&self, link: LinkId) -> bool {
        self.tables.peers.was_awaited(link)
    }

    /// Takes the next question that only the driver can answer.
    pub(crate) fn poll_lookup(&mut self) -> Option<Lookup> {
        self.tables.peers.pop_lookup()
    }

    /// Gives the processes that are in a multicast group; this process may be one of them.
    /// Datagrams to the group go to these processes for `nanos` nanoseconds; the next datagram
    /// after that asks the driver again.
    pub(crate) fn handle_members(&mut self, gid: Gid, members: &[Slot], nanos: u64) {
        let tables = &mut self.tables;
        let others = members.iter().copied().filter(|slot| slot.is_real() && !tables.slots.contains(slot)).collect();
        let Some((waiting, serial)) = tables.groups.found(gid, others) else { return };
        tables.timers.start(Owner::Group(serial), 0, nanos);
        for qp in waiting {
            if let Ok(QueuePair { qp, service: Service::Ud(ud) }) = self.qps.get_mut(QpId(qp)) {
                ud.resume(qp, tables);
            }
        }
        self.fail_overrun();
    }

    /// Handles a frame from a link. `header` is a private copy; `payload` may lie in the ring.
    #[inline]
    pub(crate) fn handle_frame(&mut self, link: LinkId, header: &Header, payload: Source<'_>) {
        let Some(frame) = Frame::decode(header, payload.len()) else { return };
        let tables = &mut self.tables;
        if !tables.peers.leads_to(link, Slot::of_qpn(frame.from)) {
            return self.handle_stranger(link, &frame);
        }
        if !frame.kind.is_of_connection() {
            return self.handle_unconnected(link, &frame, payload);
        }
        match tables.own_index(Host::LOCAL, frame.to).and_then(|index| self.qps.get_mut(QpId(index)).ok()) {
            Some(QueuePair { qp, service: Service::Rc(rc) }) => rc.handle_frame(qp, link, &frame, payload, tables),
            _ if frame.begins_request() => tables.peers.push_control(link, &rc::dropped(&frame)),
            _ => {}
        }
        self.fail_overrun();
    }

    /// Whether a frame with `len` bytes of payload may be handled in parts, each under the header
    /// [`behind`](Header::behind) the last: the payload is likely to have a place that
    /// [`handle_incoming`](Self::handle_incoming) can name once the first bytes are handled.
    pub(crate) fn may_cut(&self, link: LinkId, header: &Header, len: usize) -> bool {
        self.connection_of(link, header, len).is_some_and(|(qp, rc, frame)| rc.may_cut(qp, &frame, &self.tables))
    }

    /// Has `read` put the next bytes of a frame's payload where they belong, at most `len`, and
    /// handles those whose number it returns. Returns that number; `None`, without a call of
    /// `read`, if the bytes are to be handled from elsewhere: the frame does not continue a
    /// message, or the engine has no place for it now.
    ///
    /// The bytes may become visible in any order.
    #[allow(unsafe_code, reason = "the payload and its place are the same bytes")]
    pub(crate) fn handle_incoming(
        &mut self,
        link: LinkId,
        header: &Header,
        len: usize,
        read: impl FnOnce(Target<'_>) -> usize,
    ) -> Option<usize> {
        let (qp, rc, frame) = self.connection_of(link, header, len)?;
        let target = rc.place(qp, link, &frame, len, &self.tables)?;
        let count = read(target).min(target.len());
        // SAFETY: `first` requires that the owner keeps the bytes while the source is in use, which
        // is during the call of `handle_frame`. They lie in a region, whose memory stays until
        // `deregister` returns (`register`); that call needs the engine, which this one has.
        let payload = unsafe { target.first(count) };
        if count > 0 {
            self.handle_frame(link, header, payload);
        }
        Some(count)
    }

    /// The reliable connection that a frame of a link is for, with the frame.
    fn connection_of(&self, link: LinkId, header: &Header, len: usize) -> Option<(&Qp, &Rc, Frame)> {
        let frame = Frame::decode(header, len)?;
        if !frame.kind.is_of_connection() || !self.tables.peers.leads_to(link, Slot::of_qpn(frame.from)) {
            return None;
        }
        let index = self.tables.own_index(Host::LOCAL, frame.to)?;
        match self.qps.get(QpId(index)).ok()? {
            QueuePair { qp, service: Service::Rc(rc) } => Some((qp, rc, frame)),
            _ => None,
        }
    }

    /// Handles a frame whose sender names a process that the link does not lead to. Such a frame is
    /// not delivered: no process may send in the name of another one. But the peer may have taken
    /// one more slot. The engine asks for a link to that slot, which proves that the slot is the
    /// peer's. The requester is told to send its request again; an unreliable message is lost.
    #[cold]
    fn handle_stranger(&mut self, link: LinkId, frame: &Frame) {
        let peers = &mut self.tables.peers;
        let begins = frame.begins_request();
        if let Some(host) = peers.host_of(link).filter(|_| begins || frame.kind.is_unreliable()) {
            if begins {
                peers.push_control(link, &rc::dropped(frame));
            }
            peers.want_named(PeerId::of(host, frame.from), link);
        }
    }

    /// Handles a frame that belongs to no reliable connection.
    #[inline(never)]
    fn handle_unconnected(&mut self, link: LinkId, frame: &Frame, payload: Source<'_>) {
        let tables = &mut self.tables;
        match frame.kind {
            Kind::Want => return tables.grant(link, frame.key),
            Kind::Revoked => return tables.peers.mapping_revoked(link, frame.key),
            Kind::UcSend | Kind::UcWrite => return self.handle_message(link, frame, payload),
            _ => {}
        }
        // Copy the GRH out of the ring once and decide by the copy: the peer may change its ring at
        // any time.
        let mut grh = Grh::NONE;
        let Some(data) = payload.part(GRH_LEN, payload.len().saturating_sub(GRH_LEN)) else { return };
        payload.copy_to_slice(&mut grh.0);
        if !tables.peers.may_carry(link, frame, &grh) {
            return;
        }
        let mut deliver = |index: u32, tables: &mut Tables| {
            if let Ok(QueuePair { qp, service: Service::Ud(ud) }) = self.qps.get_mut(QpId(index)) {
                ud.handle_datagram(qp, frame, &grh, data, tables);
            }
        };
        if frame.to == MULTICAST_QPN {
            let mut place = 0;
            while let Some((member, next)) = tables.groups.member_here(grh.destination(), place) {
                deliver(member, tables);
                place = next;
            }
        } else if let Some(index) = tables.own_index(Host::LOCAL, frame.to) {
            deliver(index, tables);
        }
        self.fail_overrun();
    }

    /// Handles a piece of a message of an unreliable connection.
    fn handle_message(&mut self, link: LinkId, frame: &Frame, payload: Source<'_>) {
        let tables = &mut self.tables;
        let index = tables.own_index(Host::LOCAL, frame.to);
        if let Some(Ok(QueuePair { qp, service: Service::Uc(uc) })) = index.map(|index| self.qps.get_mut(QpId(index))) {
            uc.handle_message(qp, link, frame, payload, tables);
        }
        self.fail_overrun();
    }

    /// Takes a link that has had something to send since its last return from here.
    /// Acknowledgements count: call this after the drain of a link, not after each frame. The
    /// driver must remember a link whose transmission ended `Blocked` or `More`.
    #[inline]
    pub(crate) fn poll_active_link(&mut self) -> Option<LinkId> {
        if !self.tables.peers.has_active() {
            if !core::mem::take(&mut self.release_next) {
                return None;
            }
            self.release_acks();
        }
        self.tables.peers.pop_active()
    }

    /// Starts (`true`) or stops (`false`) deferring the acknowledgements that become due. For a
    /// caller who drains a link just before it polls completions and may post requests in response:
    /// these requests then carry the acknowledgements.
    ///
    /// A deferred acknowledgement is sent after the next `post_send`, or by
    /// [`release_acks`](Self::release_acks), which the driver must call soon.
    pub(crate) fn defer_acks(&mut self, defer: bool) {
        self.tables.defer_acks = defer;
    }

    /// Whether acknowledgements are deferred.
    #[inline]
    pub(crate) fn has_deferred_acks(&self) -> bool {
        !self.tables.deferred.is_empty()
    }

    /// Sends the deferred acknowledgements.
    #[inline]
    pub(crate) fn release_acks(&mut self) {
        if !self.tables.deferred.is_empty() {
            self.release_all();
        }
    }

    /// Sends those deferred acknowledgements for which peers wait, as for a signaled request.
    pub(crate) fn release_requested_acks(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.tables.deferred.get(at) {
            match self.qps.get_mut(QpId(index)) {
                Ok(QueuePair { service: Service::Rc(rc), .. }) if !rc.is_ack_requested() => at += 1,
                Ok(QueuePair { qp, service: Service::Rc(rc) }) => {
                    self.tables.deferred.swap_remove(at);
                    rc.release_ack(qp, &mut self.tables);
                }
                _ => drop(self.tables.deferred.swap_remove(at)),
            }
        }
    }

    fn release_all(&mut self) {
        while let Some(index) = self.tables.deferred.pop() {
            if let Ok(QueuePair { qp, service: Service::Rc(rc) }) = self.qps.get_mut(QpId(index)) {
                rc.release_ack(qp, &mut self.tables);
            }
        }
    }

    /// Sends frames over a link; copies at most about `limits::COPY_BUDGET` bytes.
    pub(crate) fn poll_transmit(&mut self, link: LinkId, out: &mut impl Outbound) -> Transmit {
        let mut budget = limits::COPY_BUDGET;
        let ended = self.transmit(link, out, &mut budget);
        self.fail_overrun();
        ended
    }

    fn transmit(&mut self, link: LinkId, out: &mut impl Outbound, budget: &mut usize) -> Transmit {
        let tables = &mut self.tables;
        loop {
            let Some(state) = tables.peers.get(link) else { return Transmit::Idle };
            while let Some(header) = state.control.front() {
                if !out.try_push(header, &Gather::EMPTY) {
                    return Transmit::Blocked;
                }
                state.control.pop_front();
            }
            let Some(work) = state.work.pop_front() else { return Transmit::Idle };
            let Ok(qp) = self.qps.get_mut(QpId(work.qp())) else { continue };
            let ended = qp.transmit(work, link, tables, out, budget);
            let Some(state) = tables.peers.get(link) else { return Transmit::Idle };
            if ended != Transmit::Idle {
                // Requeue at the end: a long message must not keep other queue pairs from the link.
                state.work.push_back(work);
                return ended;
            }
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout). A timer that was just started
    /// reads as `Time(0)`, that is "now", so that a driver without timers needs no clock.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.tables.timers.next()
    }

    /// Starts new timers and fires the timers that are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        let tables = &mut self.tables;
        tables.timers.advance(now);
        let mut resume = false;
        while let Some((owner, generation)) = tables.timers.pop_due(now) {
            match owner {
                Owner::Peer(peer) => {
                    tables.peers.handle_timer(peer, &mut tables.timers);
                    resume = true;
                }
                Owner::Group(serial) => tables.groups.expire(serial),
                Owner::Fault(rule) => tables.handle_fault_timer(rule),
                Owner::PortUp => tables.handle_port_up(),
                Owner::Fatal => self.qps.iter_mut().filter(|qp| qp.is_used()).for_each(|qp| qp.fail(tables)),
                Owner::Delay(id) => {
                    if let Ok(qp) = self.qps.get_mut(id) {
                        qp.end_delay(tables);
                    }
                }
                Owner::Late(id) => {
                    if let Ok(QueuePair { qp, service: Service::Rc(rc) }) = self.qps.get_mut(id) {
                        rc.end_late(qp, tables);
                    }
                }
                Owner::Qp(id) => {
                    if let Ok(qp) = self.qps.get_mut(id) {
                        qp.handle_timer(generation, tables);
                    }
                }
            }
        }
        if resume {
            self.resume_waiting();
        }
        self.fail_overrun();
    }

    /// Takes the next work that only the driver can do.
    pub(crate) fn poll_errand(&mut self) -> Option<Errand> {
        self.tables.errands.pop_front()
    }

    /// Handles the end of a copy of foreign memory.
    pub(crate) fn handle_copied(&mut self, copy: CopyId, end: CopyEnd) {
        let tables = &mut self.tables;
        let Some(running) = tables.copies.end(copy) else { return };
        if matches!(end, CopyEnd::Unknown) {
            tables.mrs.lose(running.key);
        }
        if let Ok(QueuePair { qp, service: Service::Rc(rc) }) = self.qps.get_mut(running.qp) {
            rc.handle_copied(qp, running.waiter, end, tables);
        }
        self.fail_overrun();
    }

    /// Whether the engine asked the peer of `link` for its region and has no mapping yet.
    pub(crate) fn wants_mapping(&mut self, link: LinkId, rkey: u32) -> bool {
        self.tables.peers.is_wanted(link, rkey)
    }

    /// Stores the mapping of a region that the peer of `link` granted: `area` is exactly the bytes
    /// of the region.
    pub(crate) fn handle_mapping(&mut self, link: LinkId, rkey: u32, area: Area) {
        self.tables.peers.mapping_granted(link, rkey, area);
    }

    /// Whether [`take_unmapped`](Self::take_unmapped) would return any mapping.
    pub(crate) fn has_unmapped(&self) -> bool {
        self.tables.peers.has_unmapped()
    }

    /// Takes the mappings of peers' regions that are of no use any more. The driver drops them
    /// outside of its lock, because unmapping takes long.
    #[must_use]
    pub(crate) fn take_unmapped(&mut self) -> Vec<Area> {
        self.tables.peers.take_unmapped()
    }

    /// Returns the bytes of the frames that wait until a payload is stored in foreign memory.
    #[cfg(test)]
    pub(crate) fn waiting_bytes(&self, qp: QpId) -> usize {
        let qp = self.qps.get(qp).unwrap();
        qp.qp.staging.as_ref().map_or(0, |staging| staging.inbox.waiting_bytes())
    }

    /// Moves the queue pairs of every completion queue that overran to ERR.
    #[inline]
    fn fail_overrun(&mut self) {
        if self.tables.cqs.has_overrun() {
            self.fail_all_overrun();
        }
    }

    #[cold]
    fn fail_all_overrun(&mut self) {
        while let Some(cq) = self.tables.cqs.take_overrun() {
            for qp in self.qps.iter_mut().filter(|qp| qp.qp.send_cq == cq || qp.qp.recv_cq == cq) {
                if qp.is_used() {
                    qp.qp.event(&mut self.tables, ibv_event_type::IBV_EVENT_QP_FATAL);
                    qp.fail(&mut self.tables);
                }
            }
        }
    }
}
