//! The engine of the software device, reliable connections and unreliable datagrams: no input or
//! output, no threads, no clock.
//!
//! The verbs objects call it to post and poll; a driver moves frames between the engines of two
//! processes. Everything runs under the caller's one lock. After each call that may have caused
//! work, the driver does, in any order: [`poll_active_link`](Engine::poll_active_link) and
//! [`poll_transmit`](Engine::poll_transmit), [`poll_event`](Engine::poll_event),
//! [`poll_lookup`](Engine::poll_lookup), [`poll_grant`](Engine::poll_grant) and
//! [`poll_timeout`](Engine::poll_timeout).
//!
//! Modules import downwards: the tables and queues know nobody, a queue pair's common part (`qp`)
//! knows them, the services (`rc`, `ud`) know `qp`, and this module knows the services. All but
//! `memory` is safe code.

#![deny(unsafe_code)]

mod cq;
mod directory;
mod events;
mod frame;
mod grh;
mod groups;
pub(crate) mod limits;
#[allow(unsafe_code, reason = "the one module that touches memory")]
mod memory;
mod mr;
mod peers;
mod qp;
mod queue;
mod rc;
mod service;
mod table;
mod tables;
#[cfg(test)]
#[allow(unsafe_code, clippy::cast_possible_truncation, reason = "tests own the memory, and their numbers are small")]
mod tests;
mod timer;
mod types;
mod ud;

use std::collections::VecDeque;

use rdma_sys::{ibv_event_type, ibv_sge, ibv_wc};

use cq::CqTable;
use directory::Directory;
use events::Events;
use frame::{Frame, Kind};
use groups::Groups;
use memory::Region;
use mr::{MrTable, PdTable};
use peers::Peers;
use service::{QueuePair, Service};
use table::QpTable;
use tables::Tables;
use timer::{Owner, Timers};

pub(crate) use directory::DIRECTORY_LEN;
pub(crate) use frame::{HEADER_WORDS, Header};
pub(crate) use grh::{GRH_LEN, Gid, Grh, Network, Route};
pub(crate) use memory::{Area, Gather, Source, Target};
pub(crate) use types::{
    Address, CqId, Element, Errno, Event, Grant, Host, LinkId, Lookup, MULTICAST_QPN, ModifyQp, MrKeys, Op, Path, PdId,
    PeerId, QpId, QpInit, QpState, QpStatus, Registration, SendData, SendFlags, SendRequest, ServiceType, Slot, Time,
    Transmit,
};

/// Configuration of an [`Engine`].
#[derive(Debug)]
pub(crate) struct EngineConfig {
    /// The process's slot. More may be added with [`Engine::add_slot`].
    pub(crate) slot: Slot,
    /// Seed of the keys. Take it from the kernel's random source.
    pub(crate) seed: u64,
    /// `DIRECTORY_LEN` zeroed bytes that peers may map; `None`: peers do nothing by themselves.
    pub(crate) directory: Option<Area>,
}

/// The transmit side of a link.
pub(crate) trait Outbound {
    /// The largest payload of one frame. At least [`limits::SHORTEST_LIMIT`].
    fn max_payload(&self) -> usize;
    /// Takes a frame with its payload, whole; false if there is no room for it now.
    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool;
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Engine {
    qps: QpTable,
    tables: Tables,
    /// A request was posted since acknowledgements were put off.
    release_next: bool,
}

impl Engine {
    /// An engine with nothing in it.
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            qps: QpTable::new(config.seed),
            release_next: false,
            tables: Tables {
                pds: PdTable::default(),
                mrs: MrTable::new(config.seed),
                cqs: CqTable::default(),
                events: Events::default(),
                peers: Peers::default(),
                groups: Groups::default(),
                timers: Timers::default(),
                directory: Directory::new(config.directory),
                slots: vec![config.slot],
                defer_acks: false,
                deferred: Vec::new(),
                grants: VecDeque::new(),
            },
        }
    }

    /// Adds a slot, when `create_qp` said `ENOMEM` because all queue pair numbers are taken.
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

    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there are too many.
    pub(crate) fn alloc_pd(&mut self) -> Result<PdId, Errno> {
        self.tables.pds.alloc()
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    ///
    /// `EBUSY`: something is in it.
    pub(crate) fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        self.tables.pds.dealloc(pd)
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain, or the range wraps around. `ENOMEM`: too many regions.
    ///
    /// # Safety
    ///
    /// Until [`deregister`](Self::deregister) returns, the memory stays mapped: readable, and
    /// writable if `access` has LOCAL_WRITE, REMOTE_WRITE or REMOTE_ATOMIC; nobody in this process
    /// accesses it but by atomic accesses, or while no work request or peer may do so.
    #[allow(unsafe_code, reason = "it takes the caller's promise, and passes it on")]
    pub(crate) unsafe fn register(&mut self, pd: PdId, what: &Registration) -> Result<MrKeys, Errno> {
        let end = what.iova.checked_add(what.len as u64);
        if end.is_none() || what.addr.addr().checked_add(what.len).is_none() || isize::try_from(what.len).is_err() {
            return Err(Errno::INVAL);
        }
        self.tables.pds.enter(pd)?;
        // SAFETY: of `Region::new`: invariant 2 of `memory` holds by this function's own contract
        // until `deregister`, which drops the region; the length was checked above.
        let region = unsafe { Region::new(what.addr, what.len, what.iova, what.access) };
        let tables = &mut self.tables;
        let keys = tables.mrs.insert(pd, region, what.backing.clone(), &tables.directory);
        if keys.is_err() {
            tables.pds.leave(pd);
        }
        keys
    }

    /// Ends a registration; the engine does not touch the memory again.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such key.
    pub(crate) fn deregister(&mut self, lkey: u32) -> Result<(), Errno> {
        self.tables.deregister(lkey)
    }

    /// A new completion queue of exactly `depth` entries. `token` comes back in its events.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a depth of 0 or beyond [`limits::MAX_CQE`]. `ENOMEM`.
    pub(crate) fn create_cq(&mut self, depth: u32, token: u64) -> Result<CqId, Errno> {
        self.tables.cqs.create(depth, token)
    }

    /// Ends a completion queue. Its unpolled events are dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY`: a queue pair uses it.
    pub(crate) fn destroy_cq(&mut self, cq: CqId) -> Result<(), Errno> {
        self.tables.cqs.destroy(cq)?;
        self.tables.events.forget_cq(cq);
        Ok(())
    }

    /// Changes a completion queue's depth.
    ///
    /// # Errors
    ///
    /// `EINVAL`: an impossible depth, or more completions than that wait. `ENOMEM`.
    pub(crate) fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), Errno> {
        self.tables.cqs.resize(cq, depth)
    }

    /// Takes completions: how many.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue overran, and what it held before is taken.
    #[inline]
    pub(crate) fn poll_cq(&mut self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        self.tables.cqs.poll(cq, out)
    }

    /// Asks for one event at the next completion (or the next solicited or failed one).
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue.
    pub(crate) fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Errno> {
        self.tables.cqs.arm(cq, solicited_only)
    }

    /// A new queue pair, in RESET, and its number.
    ///
    /// # Errors
    ///
    /// `EINVAL`: beyond the [`limits`], or no such domain or completion queue. `ENOMEM`: no memory,
    /// or no number is free.
    pub(crate) fn create_qp(&mut self, init: &QpInit) -> Result<(QpId, u32), Errno> {
        let tables = &mut self.tables;
        let max_sge = init.max_send_sge.max(init.max_recv_sge) as usize;
        let max_wr = init.max_send_wr.max(init.max_recv_wr);
        if max_sge > limits::MAX_SGE || max_wr > limits::MAX_QP_WR || init.max_inline_data > limits::MAX_INLINE {
            return Err(Errno::INVAL);
        }
        tables.pds.check(init.pd)?;
        tables.cqs.check(init.send_cq)?;
        tables.cqs.check(init.recv_cq)?;
        let created = self.qps.create(init, &tables.slots)?;
        tables.pds.enter(init.pd)?;
        tables.cqs.enter(init.send_cq);
        tables.cqs.enter(init.recv_cq);
        tables.peers.reserve(self.qps.len());
        tables.deferred.reserve(self.qps.len().saturating_sub(tables.deferred.len()));
        Ok(created)
    }

    /// Ends a queue pair; its completions leave the completion queues, its unpolled events are
    /// dropped.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair. `EBUSY`: it is in a multicast group.
    pub(crate) fn destroy_qp(&mut self, qp: QpId) -> Result<(), Errno> {
        let tables = &mut self.tables;
        let it = self.qps.get_mut(qp)?;
        if tables.groups.group_of(qp.0).is_some() {
            return Err(Errno::BUSY);
        }
        it.reset(tables);
        tables.cqs.leave(it.qp.send_cq);
        tables.cqs.leave(it.qp.recv_cq);
        tables.pds.leave(it.qp.pd);
        tables.events.forget_qp(qp);
        self.qps.remove(qp);
        Ok(())
    }

    /// Applies a change that the caller has checked against the mask table. Drain the links first.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair.
    pub(crate) fn modify_qp(&mut self, qp: QpId, change: &ModifyQp) -> Result<(), Errno> {
        self.qps.get_mut(qp)?.modify(change, &mut self.tables);
        self.fail_overrun();
        Ok(())
    }

    /// The attributes that only the engine knows.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair.
    pub(crate) fn query_qp(&self, qp: QpId) -> Result<QpStatus, Errno> {
        Ok(self.qps.get(qp)?.status())
    }

    /// Posts a send request to a reliable connection.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the queue is full. `EINVAL`: wrong state or service, or a request that the queue
    /// pair cannot hold.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, qp: QpId, request: &SendRequest, data: SendData<'_>) -> Result<(), Errno> {
        let QueuePair { qp, service: Service::Rc(rc) } = self.qps.get_mut(qp)? else { return Err(Errno::INVAL) };
        let posted = rc.post(qp, request, data, &mut self.tables);
        self.release_next = true;
        self.fail_overrun();
        posted
    }

    /// Posts a datagram.
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

    /// How many more send requests the queue has room for.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair, or a state in which it takes none.
    pub(crate) fn send_room(&self, qp: QpId) -> Result<u32, Errno> {
        self.qps.get(qp)?.qp.send_room()
    }

    /// Posts a receive.
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

    /// The next event for the process.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.tables.events.pop()
    }

    /// Whether no link is active and nothing is to be told, looked up, granted or timed.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        let tables = &self.tables;
        tables.peers.is_idle()
            & tables.events.is_empty()
            & tables.grants.is_empty()
            & tables.timers.next().is_none()
            & (tables.deferred.is_empty() | !self.release_next)
    }

    /// A link to a process is up (call it once for each slot of that process). To ourselves: the
    /// loopback, which gives every frame back to [`handle_frame`](Self::handle_frame) under the
    /// same id. `directory`: the peer's, mapped.
    pub(crate) fn handle_link_up(&mut self, peer: PeerId, link: LinkId, directory: Option<Area>) {
        let tables = &mut self.tables;
        tables.peers.up(peer, link, directory, &mut tables.timers);
        if peer.host == Host::LOCAL && tables.slots.contains(&peer.slot) {
            // We are behind it with all our slots, whichever was asked for.
            for own in &tables.slots {
                tables.peers.up(PeerId::local(*own), link, None, &mut tables.timers);
            }
        }
        tables.peers.reserve(self.qps.len());
        for QueuePair { qp, service } in self.qps.iter_mut() {
            match service {
                Service::Rc(rc) if qp.peer() == peer => rc.schedule(qp, tables),
                Service::Ud(ud) if ud.is_waiting() => ud.resume(qp, tables),
                _ => {}
            }
        }
        self.fail_overrun();
    }

    /// The peer at the other end has died, or is no longer to be trusted.
    pub(crate) fn handle_link_down(&mut self, link: LinkId) {
        let tables = &mut self.tables;
        let peers = tables.peers.down(link);
        for qp in self.qps.iter_mut() {
            let is_last = peers.contains(&qp.qp.peer());
            qp.handle_link_down(link, is_last, tables);
        }
        self.fail_overrun();
    }

    /// No process is at that address, or it refuses us.
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
        // Else the peer has connected to us meanwhile, and what is under way there is not sent
        // again.
        self.resume_datagrams();
    }

    /// Looks again at the datagrams that wait.
    fn resume_datagrams(&mut self) {
        for QueuePair { qp, service } in self.qps.iter_mut() {
            match service {
                Service::Ud(ud) if ud.is_waiting() => ud.resume(qp, &mut self.tables),
                _ => {}
            }
        }
        self.fail_overrun();
    }

    /// Whether datagrams wait for a link, or for the members of a group.
    pub(crate) fn has_waiting_datagrams(&self) -> bool {
        let waits = |qp: &QueuePair| matches!(&qp.service, Service::Ud(ud) if ud.is_waiting());
        self.tables.groups.is_waited_for() || self.qps.iter().any(waits)
    }

    /// Whether datagrams had to wait for this link.
    pub(crate) fn was_awaited(&self, link: LinkId) -> bool {
        self.tables.peers.was_awaited(link)
    }

    /// Something that only the driver can find.
    pub(crate) fn poll_lookup(&mut self) -> Option<Lookup> {
        self.tables.peers.pop_lookup()
    }

    /// The processes that are in a multicast group, ours or not. What is sent to the group goes to
    /// them for `nanos`; then the driver is asked again.
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

    /// Puts a queue pair for datagrams into a multicast group, where it may be already; true if it
    /// is this process's first one there: other processes are to be told.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair, not one for datagrams, or no group's address. `ENOMEM`: beyond
    /// the [`limits`].
    pub(crate) fn attach(&mut self, qp: QpId, gid: Gid) -> Result<bool, Errno> {
        if !matches!(self.qps.get(qp)?.service, Service::Ud(_)) || !gid.is_multicast() {
            return Err(Errno::INVAL);
        }
        self.tables.groups.attach(gid, qp.0)
    }

    /// Takes a queue pair out of a multicast group; true if it was this process's last one there.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it was not in it.
    pub(crate) fn detach(&mut self, qp: QpId, gid: Gid) -> Result<bool, Errno> {
        self.tables.groups.detach(gid, qp.0)
    }

    /// A group that the queue pair is in.
    pub(crate) fn group_of(&self, qp: QpId) -> Option<Gid> {
        self.tables.groups.group_of(qp.0)
    }

    /// Keeps a protection domain from being ended, as an address handle does.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain.
    pub(crate) fn hold_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        self.tables.pds.enter(pd)
    }

    /// Ends one [`hold_pd`](Self::hold_pd).
    pub(crate) fn release_pd(&mut self, pd: PdId) {
        self.tables.pds.leave(pd);
    }

    /// A frame has come in. `header` is a private copy; `payload` may lie in the ring.
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

    /// A frame names a sender in a process that the link does not lead to: nobody speaks for
    /// another process. But a process that is known may have got one more slot: a link to that
    /// shows it, and the request comes again (a datagram does not).
    #[cold]
    fn handle_stranger(&mut self, link: LinkId, frame: &Frame) {
        let peers = &mut self.tables.peers;
        let begins = frame.begins_request();
        if let Some(host) = peers.host_of(link).filter(|_| begins || frame.kind == Kind::Datagram) {
            if begins {
                peers.push_control(link, &rc::dropped(frame));
            }
            peers.want(PeerId::of(host, frame.from));
        }
    }

    /// A frame that belongs to no connection.
    #[inline(never)]
    fn handle_unconnected(&mut self, link: LinkId, frame: &Frame, payload: Source<'_>) {
        let tables = &mut self.tables;
        match frame.kind {
            Kind::Want => return tables.grant(link, frame.key),
            Kind::Revoked => return tables.peers.mapping_revoked(link, frame.key),
            _ => {}
        }
        // The peer may change its ring at any time: the header, which decides, is taken out of it
        // once.
        let mut grh = Grh::NONE;
        let Some(data) = payload.part(GRH_LEN, payload.len().saturating_sub(GRH_LEN)) else { return };
        payload.copy_to_slice(&mut grh.0);
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

    /// A link that has got something to send since it was last returned here (acknowledgements
    /// included: so ask after the drain of a link, not after each frame). A link whose transmission
    /// ended `Blocked` or `More` is the driver's to remember.
    pub(crate) fn poll_active_link(&mut self) -> Option<LinkId> {
        let active = self.tables.peers.pop_active();
        if active.is_none() && core::mem::take(&mut self.release_next) && !self.tables.deferred.is_empty() {
            self.release_acks();
            return self.tables.peers.pop_active();
        }
        active
    }

    /// Puts off the acknowledgements that become due from now on, or no longer does. For a drain by
    /// somebody who is about to look at completions, and may answer with requests: these then carry
    /// the acknowledgements.
    ///
    /// An acknowledgement that was put off is sent after the next `post_send`, or by
    /// [`release_acks`](Self::release_acks): the driver must see to it that this is called soon.
    pub(crate) fn defer_acks(&mut self, defer: bool) {
        self.tables.defer_acks = defer;
    }

    /// Whether acknowledgements wait to be sent.
    #[inline]
    pub(crate) fn has_deferred_acks(&self) -> bool {
        !self.tables.deferred.is_empty()
    }

    /// Sends the acknowledgements that were put off.
    #[inline]
    pub(crate) fn release_acks(&mut self) {
        if !self.tables.deferred.is_empty() {
            self.release_all();
        }
    }

    fn release_all(&mut self) {
        while let Some(index) = self.tables.deferred.pop() {
            if let Ok(QueuePair { qp, service: Service::Rc(rc) }) = self.qps.get_mut(QpId(index)) {
                rc.release_ack(qp, &mut self.tables);
            }
        }
    }

    /// Sends what there is for a link; copies at most about `limits::COPY_BUDGET` bytes.
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
                // To the end of the line: a long message does not keep the others from the link.
                state.work.push_back(work);
                return ended;
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). A timer that was just started reads
    /// as `Time(0)`, that is "now": so a driver without timers needs no clock.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.tables.timers.next()
    }

    /// Starts new timers and fires those that are due.
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
                Owner::Qp(id) => {
                    if let Ok(qp) = self.qps.get_mut(id) {
                        qp.handle_timer(generation, tables);
                    }
                }
            }
        }
        if resume {
            self.resume_datagrams();
        }
        self.fail_overrun();
    }

    /// A region for which a peer asked.
    pub(crate) fn poll_grant(&mut self) -> Option<Grant> {
        self.tables.grants.pop_front()
    }

    /// Whether we asked the peer of `link` for its region, and it was not granted yet.
    pub(crate) fn wants_mapping(&mut self, link: LinkId, rkey: u32) -> bool {
        self.tables.peers.is_wanted(link, rkey)
    }

    /// The peer of `link` granted us its region: the file is mapped at `area`, the region's bytes
    /// exactly.
    pub(crate) fn handle_mapping(&mut self, link: LinkId, rkey: u32, area: Area) {
        self.tables.peers.mapping_granted(link, rkey, area);
    }

    /// Whether [`take_unmapped`](Self::take_unmapped) has something.
    pub(crate) fn has_unmapped(&self) -> bool {
        self.tables.peers.has_unmapped()
    }

    /// Mappings of peers' regions that are of no use any more: the driver drops them, which takes
    /// long, outside of its lock.
    #[must_use]
    pub(crate) fn take_unmapped(&mut self) -> Vec<Area> {
        self.tables.peers.take_unmapped()
    }

    /// A completion queue that overran takes its queue pairs with it.
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
                if qp.qp.state != QpState::Reset && qp.qp.state != QpState::Err {
                    qp.qp.event(&mut self.tables, ibv_event_type::IBV_EVENT_QP_FATAL);
                    qp.fail(&mut self.tables);
                }
            }
        }
    }
}
