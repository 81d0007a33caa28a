//! The engine of the software device, reliable connections and unreliable datagrams: no input or output, no threads, no clock.
//!
//! The verbs objects call it to post and poll; a driver moves frames between the engines of two processes. Everything
//! runs under the caller's one lock. After each call that may have caused work, the driver does, in any order:
//! [`poll_active_link`](Engine::poll_active_link) and [`poll_transmit`](Engine::poll_transmit),
//! [`poll_event`](Engine::poll_event), [`poll_wish`](Engine::poll_wish), [`poll_grant`](Engine::poll_grant) and
//! [`poll_timeout`](Engine::poll_timeout).
//!
//! All but `memory` is safe code.

#![deny(unsafe_code)]

mod cq;
mod datagram;
mod direct;
mod directory;
mod events;
mod frame;
mod grh;
mod groups;
pub mod limits;
#[allow(unsafe_code, reason = "the one module that touches memory")]
mod memory;
mod mr;
mod parcels;
mod peers;
mod qp;
mod queue;
mod requester;
mod responder;
mod shared;
mod table;
#[cfg(test)]
#[allow(unsafe_code, clippy::cast_possible_truncation, reason = "tests own the memory, and their numbers are small")]
mod tests;
mod timer;
mod types;

use std::collections::VecDeque;

use rdma_sys::{ibv_event_type, ibv_sge, ibv_wc};

use cq::CqTable;
use directory::Directory;
use events::Events;
use frame::{Frame, Kind};
use groups::Groups;
use memory::Region;
use mr::{MrTable, PdTable};
use peers::{Peers, Work};
use shared::Shared;
use table::QpTable;
use timer::Timers;

pub use directory::DIRECTORY_LEN;
pub use frame::{HEADER_WORDS, Header};
pub use grh::{GRH_LEN, Gid, Grh, Network, Route};
pub use memory::{Area, Gather, Source, Target};
pub use types::{
    Address, CqId, Element, Errno, Event, Grant, LinkId, MULTICAST_QPN, ModifyQp, MrKeys, Path, PdId, QpId, QpInit,
    QpState, QpStatus, Registration, SendData, SendRequest, Service, Slot, Time, Transmit, Wish,
};

/// Timers that no queue pair owns: of a slot, and of what is known of a multicast group.
const SLOT_TIMER: u32 = 1 << 31;
const GROUP_TIMER: u32 = 1 << 30;
const OWNER_MASK: u32 = GROUP_TIMER - 1;

/// What an engine is made with.
#[derive(Debug)]
pub struct EngineConfig {
    /// The process's slot. More may be added with [`Engine::add_slot`].
    pub slot: Slot,
    /// Seed of the keys. Take it from the kernel's random source.
    pub seed: u64,
    /// `DIRECTORY_LEN` zeroed bytes that peers may map; `None`: peers do nothing by themselves.
    pub directory: Option<Area>,
}

/// Where frames go: the producing end of a link's ring.
pub trait Outbound {
    /// The largest payload of one frame. At least 256.
    fn max_payload(&self) -> usize;
    /// Takes a frame with its payload, whole; false if there is no room for it now.
    fn try_push(&mut self, header: &Header, payload: &Gather<'_>) -> bool;
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    qps: QpTable,
    shared: Shared,
    /// A request was posted since acknowledgements were put off.
    release_next: bool,
}

impl Engine {
    /// An engine with nothing in it.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            qps: QpTable::new(config.seed),
            release_next: false,
            shared: Shared {
                pds: PdTable::default(),
                mrs: MrTable::new(config.seed),
                cqs: CqTable::default(),
                events: Events::default(),
                peers: Peers::new(),
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
    pub fn add_slot(&mut self, slot: Slot) {
        if !self.shared.slots.contains(&slot) {
            let loopback = self.shared.slots.first().and_then(|first| self.shared.peers.link_of(*first));
            self.shared.slots.push(slot);
            self.qps.add_slot();
            if let Some(link) = loopback {
                self.shared.peers.up(slot, link, None);
            }
        }
    }

    /// A new protection domain.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there are too many.
    pub fn alloc_pd(&mut self) -> Result<PdId, Errno> {
        self.shared.pds.alloc()
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    ///
    /// `EBUSY`: something is in it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        self.shared.pds.dealloc(pd)
    }

    /// Registers memory.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain, or the range wraps around. `ENOMEM`: too many regions.
    ///
    /// # Safety
    ///
    /// Until [`deregister`](Self::deregister) returns, the memory stays mapped: readable, and writable if `access` has
    /// LOCAL_WRITE, REMOTE_WRITE or REMOTE_ATOMIC; nobody in this process accesses it but by atomic accesses, or while no
    /// work request or peer may do so.
    #[allow(unsafe_code, reason = "it takes the caller's promise, and passes it on")]
    pub unsafe fn register(&mut self, pd: PdId, what: &Registration) -> Result<MrKeys, Errno> {
        let end = what.iova.checked_add(what.len as u64);
        if end.is_none() || what.addr.addr().checked_add(what.len).is_none() || isize::try_from(what.len).is_err() {
            return Err(Errno::INVAL);
        }
        self.shared.pds.enter(pd)?;
        // SAFETY: the caller promises what a region needs until `deregister`, which drops it.
        let region = unsafe { Region::new(what.addr, what.len, what.iova, what.access) };
        let shared = &mut self.shared;
        let keys = shared.mrs.insert(pd, region, what.backing.clone(), &shared.directory);
        if keys.is_err() {
            shared.pds.leave(pd);
        }
        keys
    }

    /// Ends a registration; the engine does not touch the memory again.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such key.
    pub fn deregister(&mut self, lkey: u32) -> Result<(), Errno> {
        let pd = self.shared.mrs.remove(lkey, &self.shared.directory)?;
        self.shared.pds.leave(pd);
        Ok(())
    }

    /// A new completion queue of exactly `depth` entries. `token` comes back in its events.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a depth of 0 or beyond [`limits::MAX_CQE`]. `ENOMEM`.
    pub fn create_cq(&mut self, depth: u32, token: u64) -> Result<CqId, Errno> {
        self.shared.cqs.create(depth, token)
    }

    /// Ends a completion queue. Its unpolled events are dropped.
    ///
    /// # Errors
    ///
    /// `EBUSY`: a queue pair uses it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Errno> {
        self.shared.cqs.destroy(cq)?;
        self.shared.events.forget_cq(cq);
        Ok(())
    }

    /// Changes a completion queue's depth.
    ///
    /// # Errors
    ///
    /// `EINVAL`: an impossible depth, or more completions than that wait. `ENOMEM`.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), Errno> {
        self.shared.cqs.resize(cq, depth)
    }

    /// Takes completions: how many.
    ///
    /// # Errors
    ///
    /// `EIO`: the queue overran, and what it held before is taken.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [ibv_wc]) -> Result<usize, Errno> {
        self.shared.cqs.poll(cq, out)
    }

    /// Asks for one event at the next completion (or the next solicited or failed one).
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Errno> {
        self.shared.cqs.arm(cq, solicited_only)
    }

    /// A new queue pair, in RESET, and its number.
    ///
    /// # Errors
    ///
    /// `EINVAL`: beyond the [`limits`], or no such domain or completion queue. `ENOMEM`: no memory, or no number is free.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(QpId, u32), Errno> {
        let shared = &mut self.shared;
        let max_sge = init.max_send_sge.max(init.max_recv_sge) as usize;
        let max_wr = init.max_send_wr.max(init.max_recv_wr);
        if max_sge > limits::MAX_SGE || max_wr > limits::MAX_QP_WR || init.max_inline_data > limits::MAX_INLINE {
            return Err(Errno::INVAL);
        }
        shared.pds.enter(init.pd)?;
        if let Err(error) = shared.cqs.enter(init.send_cq) {
            shared.pds.leave(init.pd);
            return Err(error);
        }
        let created = shared.cqs.enter(init.recv_cq).and_then(|()| {
            let created = self.qps.create(init, &shared.slots);
            if created.is_err() {
                shared.cqs.leave(init.recv_cq);
            }
            created
        });
        if created.is_err() {
            shared.cqs.leave(init.send_cq);
            shared.pds.leave(init.pd);
        }
        shared.peers.reserve(self.qps.len());
        shared.deferred.reserve(self.qps.len().saturating_sub(shared.deferred.len()));
        created
    }

    /// Ends a queue pair; its completions leave the completion queues, its unpolled events are dropped.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair. `EBUSY`: it is in a multicast group.
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), Errno> {
        let shared = &mut self.shared;
        let it = self.qps.get_mut(qp)?;
        if shared.groups.group_of(qp.0).is_some() {
            return Err(Errno::BUSY);
        }
        it.reset(shared);
        shared.cqs.leave(it.send_cq);
        shared.cqs.leave(it.recv_cq);
        shared.pds.leave(it.pd);
        shared.events.forget_qp(qp);
        self.qps.remove(qp);
        Ok(())
    }

    /// Applies a change that the caller has checked against the mask table. Drain the links first.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair.
    pub fn modify_qp(&mut self, qp: QpId, change: &ModifyQp) -> Result<(), Errno> {
        self.qps.get_mut(qp)?.modify(change, &mut self.shared);
        self.settle();
        Ok(())
    }

    /// What only the engine knows.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair.
    pub fn query_qp(&self, qp: QpId) -> Result<QpStatus, Errno> {
        Ok(self.qps.get(qp)?.status())
    }

    /// Posts a send request.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the queue is full. `EINVAL`: wrong state, or a request that the queue pair cannot hold.
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), Errno> {
        let posted = self.qps.get_mut(qp)?.post_send(request, &mut self.shared);
        self.release_next = true;
        self.settle();
        posted
    }

    /// How many more send requests the queue has room for.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair, or a state in which it takes none.
    pub fn send_room(&self, qp: QpId) -> Result<u32, Errno> {
        self.qps.get(qp)?.send_room()
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send).
    pub fn post_recv(&mut self, qp: QpId, wr_id: u64, list: &[ibv_sge]) -> Result<(), Errno> {
        let posted = self.qps.get_mut(qp)?.post_recv(wr_id, list, &mut self.shared);
        self.settle();
        posted
    }

    /// The next event for the process.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop()
    }

    /// A link to the process with `slot` is up (call it once for each slot of that process). Our own slot: the loopback,
    /// which gives every frame back to [`handle_frame`](Self::handle_frame) under the same id. `directory`: the peer's,
    /// mapped.
    pub fn handle_link_up(&mut self, slot: Slot, link: LinkId, directory: Option<Area>) {
        let shared = &mut self.shared;
        shared.peers.up(slot, link, directory);
        if shared.slots.contains(&slot) {
            // We are behind it with all our slots, whichever was asked for.
            for own in &shared.slots {
                shared.peers.up(*own, link, None);
            }
        }
        shared.peers.reserve(self.qps.len());
        for qp in self.qps.iter_mut().filter(|qp| qp.peer() == slot) {
            qp.schedule_requests(shared);
        }
    }

    /// The peer at the other end has died, or is no longer to be trusted.
    pub fn handle_link_down(&mut self, link: LinkId) {
        let shared = &mut self.shared;
        let slots = shared.peers.down(link);
        for qp in self.qps.iter_mut() {
            qp.handle_answer_link_down(link);
            qp.handle_datagram_link_down(link, shared);
            if slots.contains(&qp.peer()) {
                qp.handle_peer_death(shared);
            }
        }
        self.settle();
    }

    /// No process has that slot, or it refuses us.
    pub fn handle_unreachable(&mut self, slot: Slot) {
        let shared = &mut self.shared;
        if let Some(nanos) = shared.peers.unreachable(slot) {
            shared.timers.start(SLOT_TIMER | u32::from(slot.0), 0, nanos);
        }
        if shared.peers.link_of(slot).is_some() {
            // The peer has connected to us meanwhile. What is under way there is not sent again.
            return;
        }
        for qp in self.qps.iter_mut().filter(|qp| qp.peer() == slot && qp.may_transmit()) {
            qp.wait_for_hearing(shared);
        }
    }

    /// Whether datagrams wait for a link, or for who is in a group.
    #[must_use]
    pub fn has_waiting_datagrams(&self) -> bool {
        !self.shared.peers.parcels.is_empty() || self.shared.groups.is_waited_for()
    }

    /// Whether datagrams had to wait for this link.
    #[must_use]
    pub fn was_awaited(&self, link: LinkId) -> bool {
        self.shared.peers.was_awaited(link)
    }

    /// Something that only the driver can find.
    pub fn poll_wish(&mut self) -> Option<Wish> {
        self.shared.peers.pop_wish()
    }

    /// The processes that are in a multicast group, ours or not. What is sent to the group goes to them for `nanos`; then the
    /// driver is asked again.
    pub fn handle_members(&mut self, gid: Gid, members: &[Slot], nanos: u64) {
        let shared = &mut self.shared;
        let others = members.iter().copied().filter(|slot| slot.is_real() && !shared.slots.contains(slot)).collect();
        let Some((waiting, serial)) = shared.groups.found(gid, others) else { return };
        shared.timers.start(GROUP_TIMER | serial & OWNER_MASK, serial, nanos);
        for qp in waiting {
            if let Ok(qp) = self.qps.get_mut(QpId(qp)) {
                qp.schedule(&mut self.shared);
            }
        }
        self.settle();
    }

    /// Puts a queue pair for datagrams into a multicast group, where it may be already; true if it is this process's first one
    /// there: other processes are to be told.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such queue pair, not one for datagrams, or no group's address. `ENOMEM`: beyond the [`limits`].
    pub fn attach(&mut self, qp: QpId, gid: Gid) -> Result<bool, Errno> {
        if self.qps.get(qp)?.ud.is_none() || !gid.is_multicast() {
            return Err(Errno::INVAL);
        }
        self.shared.groups.attach(gid, qp.0)
    }

    /// Takes a queue pair out of a multicast group; true if it was this process's last one there.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it was not in it.
    pub fn detach(&mut self, qp: QpId, gid: Gid) -> Result<bool, Errno> {
        self.shared.groups.detach(gid, qp.0)
    }

    /// A group that the queue pair is in.
    #[must_use]
    pub fn group_of(&self, qp: QpId) -> Option<Gid> {
        self.shared.groups.group_of(qp.0)
    }

    /// Keeps a protection domain from being ended, as an address handle does.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such domain.
    pub fn hold_pd(&mut self, pd: PdId) -> Result<(), Errno> {
        self.shared.pds.enter(pd)
    }

    /// Ends one [`hold_pd`](Self::hold_pd).
    pub fn release_pd(&mut self, pd: PdId) {
        self.shared.pds.leave(pd);
    }

    /// A frame has come in. `header` is a private copy; `payload` may lie in the ring.
    pub fn handle_frame(&mut self, link: LinkId, header: &Header, payload: Source<'_>) {
        let Some(frame) = Frame::decode(header, payload.len()) else { return };
        let shared = &mut self.shared;
        let sender = Slot::of_qpn(frame.from);
        let begins = frame.kind.is_request() && (!frame.kind.is_cut() || frame.offset() == 0);
        if !shared.peers.serves(link, sender) {
            // Nobody speaks for another process. But a process that we know may have got one more slot: a link to that will
            // show it, and the request comes again (a datagram does not).
            if (begins || frame.kind == Kind::Datagram) && shared.peers.get(link).is_some() {
                if begins {
                    shared.peers.push_stray(link, &responder::dropped(&frame));
                }
                shared.peers.want(sender);
            }
            return;
        }
        if !frame.kind.is_of_connection() {
            return self.handle_unconnected(link, &frame, payload);
        }
        let Some(qp) = shared.own_index(frame.to).and_then(|index| self.qps.get_mut(QpId(index)).ok()) else {
            if begins {
                shared.peers.push_stray(link, &responder::dropped(&frame));
            }
            return;
        };
        let answers = frame.from == qp.attr.dest_qpn && shared.peers.link_of(sender) == Some(link);
        if frame.kind.is_request() {
            if let Some(ack) = frame.carried_ack().filter(|_| answers) {
                qp.handle_answer(&ack, Source::EMPTY, shared);
            }
            qp.handle_request(link, &frame, payload, shared);
        } else if answers {
            qp.handle_answer(&frame, payload, shared);
        }
        self.settle();
    }

    /// A frame that belongs to no connection.
    fn handle_unconnected(&mut self, link: LinkId, frame: &Frame, payload: Source<'_>) {
        let shared = &mut self.shared;
        if frame.kind == Kind::Want {
            return shared.grant(link, frame.key);
        }
        // The peer may change its ring at any time: what decides is taken out of it once.
        let mut grh = Grh::NONE;
        let Some(data) = payload.part(GRH_LEN, payload.len().saturating_sub(GRH_LEN)) else { return };
        payload.copy_to_slice(&mut grh.0);
        if frame.to == MULTICAST_QPN {
            let gid = grh.destination();
            let mut place = 0;
            while let Some((member, next)) = self.shared.groups.member_here(gid, place) {
                if let Ok(qp) = self.qps.get_mut(QpId(member)) {
                    qp.handle_datagram(frame, &grh, data, &mut self.shared);
                }
                place = next;
            }
        } else if let Some(index) = shared.own_index(frame.to) {
            if let Ok(qp) = self.qps.get_mut(QpId(index)) {
                qp.handle_datagram(frame, &grh, data, &mut self.shared);
            }
        }
        self.settle();
    }

    /// A link that has got something to send since it was last returned here (acknowledgements included: so ask after the
    /// drain of a link, not after each frame). A link whose transmission ended `Blocked` or `More` is the driver's to
    /// remember.
    pub fn poll_active_link(&mut self) -> Option<LinkId> {
        let active = self.shared.peers.pop_active();
        if active.is_none() && core::mem::take(&mut self.release_next) && !self.shared.deferred.is_empty() {
            self.release_acks();
            return self.shared.peers.pop_active();
        }
        active
    }

    /// Puts off the acknowledgements that become due from now on, or no longer does. For a drain by somebody who is about
    /// to look at completions, and may answer with requests: these then carry the acknowledgements.
    ///
    /// What was put off is sent after the next `post_send`, or by [`release_acks`](Self::release_acks): whoever puts off must
    /// see to it that this is called soon.
    pub fn defer_acks(&mut self, defer: bool) {
        self.shared.defer_acks = defer;
    }

    /// Sends what was put off.
    #[inline]
    pub fn release_acks(&mut self) {
        if !self.shared.deferred.is_empty() {
            self.release_all();
        }
    }

    fn release_all(&mut self) {
        while let Some(index) = self.shared.deferred.pop() {
            if let Ok(qp) = self.qps.get_mut(QpId(index)) {
                qp.release_ack(&mut self.shared);
            }
        }
    }

    /// Sends what there is for a link; copies at most about `limits::COPY_BUDGET` bytes.
    pub fn poll_transmit(&mut self, link: LinkId, out: &mut impl Outbound) -> Transmit {
        let mut budget = limits::COPY_BUDGET;
        let ended = self.transmit(link, out, &mut budget);
        self.settle();
        ended
    }

    fn transmit(&mut self, link: LinkId, out: &mut impl Outbound, budget: &mut usize) -> Transmit {
        let shared = &mut self.shared;
        loop {
            let Some(state) = shared.peers.get(link) else { return Transmit::Idle };
            if let Some(stray) = state.strays.front() {
                let payload = Source::of(&stray.payload);
                // What is longer than the ring takes is lost.
                if payload.len() <= out.max_payload() && !out.try_push(&stray.header, &Gather::one(&payload)) {
                    return Transmit::Blocked;
                }
                state.strays.pop_front();
                continue;
            }
            let Some(work) = state.work.pop_front() else { return Transmit::Idle };
            let Ok(qp) = self.qps.get_mut(QpId(work.qp())) else { continue };
            let ended = match work {
                Work::Requests(_) => qp.transmit(shared, out, budget),
                Work::Answers(_) => qp.answer(shared, out, budget),
                Work::Datagrams(_) => qp.transmit_datagrams(link, shared, out, budget),
            };
            let listed = match work {
                Work::Requests(_) | Work::Datagrams(_) => &mut qp.req.listed,
                Work::Answers(_) => &mut qp.resp.listed,
            };
            *listed = ended != Transmit::Idle;
            if !*listed && matches!(work, Work::Datagrams(_)) {
                // The next one may go over another link.
                qp.schedule_datagrams(shared);
            }
            let Some(state) = shared.peers.get(link) else { return Transmit::Idle };
            if ended != Transmit::Idle {
                // To the end of the line: a long message does not keep the others from the link.
                state.work.push_back(work);
                return ended;
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout). A timer that was just started reads as `Time(0)`, that is
    /// "now": so only who has timers needs a clock.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.shared.timers.next()
    }

    /// Starts new timers and fires those that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.shared.timers.advance(now);
        while let Some((owner, generation)) = self.shared.timers.pop_due(now) {
            if owner & SLOT_TIMER != 0 {
                #[allow(clippy::cast_possible_truncation, reason = "a slot was put there")]
                self.shared.peers.parcels.forgive(Slot(owner as u16));
            } else if owner & GROUP_TIMER != 0 {
                self.shared.groups.expire(generation);
            } else if let Ok(qp) = self.qps.get_mut(QpId(owner)) {
                qp.handle_timer(generation, &mut self.shared);
            }
        }
        self.settle();
    }

    /// A region for which a peer asked.
    pub fn poll_grant(&mut self) -> Option<Grant> {
        self.shared.grants.pop_front()
    }

    /// The peer of `link` granted us its region: the file is mapped at `area`, the region's bytes exactly.
    pub fn handle_mapping(&mut self, link: LinkId, rkey: u32, area: Area) {
        self.shared.peers.mapping_granted(link, rkey, area);
    }

    /// A completion queue that overran takes its queue pairs with it.
    #[inline]
    fn settle(&mut self) {
        if self.shared.cqs.has_overrun() {
            self.settle_overrun();
        }
    }

    #[cold]
    fn settle_overrun(&mut self) {
        while let Some(cq) = self.shared.cqs.take_overrun() {
            for qp in self.qps.iter_mut().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq) {
                if qp.state != QpState::Reset && qp.state != QpState::Err {
                    qp.event(&mut self.shared, ibv_event_type::IBV_EVENT_QP_FATAL);
                    qp.abandon_answers(&mut self.shared);
                    qp.fail(None, &mut self.shared);
                }
            }
        }
    }
}
