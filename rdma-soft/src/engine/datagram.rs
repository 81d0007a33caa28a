//! Unreliable datagrams: each goes its own way, is not answered, and is complete for its sender when it is on its way or lost.
//!
//! A queue pair sends in the order of its requests. The request at `sq.next` is put into the list of the link to its process, and
//! all that follow it to the same process go with it. A datagram is lost, and its sender's completion says success, where a
//! network would lose it: nobody has the number, the process is dead or refuses us, its ring stays full, no receive is
//! posted, the Q_Key is another. One that waits for a link is copied (see `parcels`); one whose link is full waits for
//! [`PATIENCE`] at most, and those after it no longer do: so no peer can hold up a sender.

use rdma_sys::{ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::Outbound;
use super::cq::set_imm;
use super::frame::{self, Frame, Kind, NUMBER_MASK, after};
use super::grh::{GRH_LEN, Grh};
use super::groups::Next;
use super::limits::MTU;
use super::memory::{Gather, Source, Target};
use super::peers::Work;
use super::qp::Qp;
use super::queue::{Op, boxed, fill_wqe};
use super::shared::Shared;
use super::types::{Address, Errno, LinkId, MULTICAST_QPN, Path, QpState, SendData, SendRequest, Slot, Transmit, Wish};

/// How long a datagram waits for room in a ring, in nanoseconds: many times what a process that runs needs to make some.
const PATIENCE: u64 = 20_000_000;

/// Nowhere.
const NO_ADDRESS: Address = Address { path: Path { grh: Grh::NONE, group: None, sl: 0, slid: 0 }, qpn: 0, qkey: 0 };

/// What a queue pair for datagrams has beyond the others.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) qkey: u32,
    /// Where each request goes, by its place in the ring.
    addresses: Box<[Address]>,
    /// The link in whose list the queue pair is, if it is in one.
    at: LinkId,
    /// The link is full, and the timer counts.
    blocked: bool,
}

impl Datagrams {
    pub(super) fn new(max_send_wr: u32) -> Result<Self, Errno> {
        let len = max_send_wr.max(1).next_power_of_two() as usize;
        Ok(Self { qkey: 0, addresses: boxed(len, NO_ADDRESS)?, at: LinkId(0), blocked: false })
    }

    pub(super) const fn reset(&mut self) {
        self.qkey = 0;
        self.stop();
    }

    /// Nothing is sent any more, and the timer is cancelled.
    pub(super) const fn stop(&mut self) {
        self.blocked = false;
    }
}

/// What is to be done with the request at `sq.next`.
enum Stop {
    /// It goes to this process, over this link.
    Link(LinkId, Slot),
    /// It goes to this process, to which there is no link.
    Away(Slot),
    /// Where it goes is being looked for.
    Later,
    /// Nothing is left to do.
    Done,
    /// It cannot be sent.
    Wrong(ibv_wc_status),
}

impl Qp {
    /// Posts a datagram. (What is posted to a connection does not come by here: its path is short.)
    #[inline(never)]
    pub(super) fn post_datagram(&mut self, request: &SendRequest<'_>, shared: &mut Shared) -> Result<(), Errno> {
        let (Some((Op::Send, with_imm)), Some(address)) = (Op::from_verbs(request.opcode), request.address) else {
            return Err(Errno::INVAL);
        };
        if !self.takes_sends() {
            return Err(Errno::INVAL);
        }
        if self.sq.room() == 0 {
            return Err(Errno::NOMEM);
        }
        let fits = match request.data {
            SendData::List(list) => list.len() <= self.sq.max_sge(),
            SendData::Inline(parts) => {
                let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
                total.is_some_and(|total| total <= self.sq.max_inline())
            }
        };
        if !fits {
            return Err(Errno::INVAL);
        }
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
            self.complete_failed(self.send_cq, request.wr_id, Op::Send.completion(), flushed, shared);
            return Ok(());
        }
        let index = self.sq.index(self.sq.tail);
        let wqe = match request.data {
            SendData::List(list) => self.sq.push_list(list),
            SendData::Inline(parts) => self.sq.push_inline(parts),
        };
        fill_wqe(wqe, request, Op::Send, with_imm, self.sig_all);
        if let Some(ud) = &mut self.ud {
            ud.addresses[index] = *address;
        }
        self.schedule_datagrams(shared);
        Ok(())
    }

    /// Deals with the requests that go over no link, and gets the queue pair into the list of the link that the next one goes over.
    pub(super) fn schedule_datagrams(&mut self, shared: &mut Shared) {
        while !self.req.listed && self.may_transmit() {
            match self.next_stop(shared) {
                Stop::Link(link, slot) => {
                    self.req.listed = shared.peers.push_work(link, Work::Datagrams(self.id.0));
                    match &mut self.ud {
                        Some(ud) if self.req.listed => ud.at = link,
                        _ => self.datagram_sent(slot),
                    }
                }
                Stop::Later => return,
                other => self.dispose(&other, shared),
            }
        }
    }

    fn next_stop(&mut self, shared: &mut Shared) -> Stop {
        let position = self.sq.next;
        let wqe = self.sq.at(position);
        let Some(ud) = &self.ud else { return Stop::Done };
        let address = &ud.addresses[self.sq.index(position)];
        // C10-93.1.1: what is longer than the MTU is not sent, and that is no error.
        if wqe.total > MTU {
            return Stop::Done;
        }
        if !wqe.inline && !shared.mrs.check(self.pd, self.sq.list(position), 0) {
            return Stop::Wrong(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        }
        let from = u16::try_from(wqe.progress).unwrap_or(u16::MAX);
        let slot = match address.path.group {
            None if from == 0 && address.qpn != MULTICAST_QPN => Slot::of_qpn(address.qpn),
            Some(gid) if address.qpn == MULTICAST_QPN => {
                let (next, asks) = shared.groups.next(gid, from, shared.slots[0], self.id.0);
                if asks {
                    shared.peers.wish(Wish::Members(gid));
                }
                match next {
                    Next::Member(slot) => slot,
                    Next::End => return Stop::Done,
                    Next::Later => return Stop::Later,
                }
            }
            // Sent to all that it goes to; or a group's address without its number, or the number without the address.
            _ => return Stop::Done,
        };
        if !slot.is_real() {
            return Stop::Done;
        }
        shared.peers.link_of(slot).map_or(Stop::Away(slot), |link| Stop::Link(link, slot))
    }

    /// The request at `sq.next` was sent to a process, or is lost on its way there.
    fn datagram_sent(&mut self, slot: Slot) {
        self.sq.at_mut(self.sq.next).progress = u32::from(slot.0) + 1;
    }

    /// Deals with a request that goes over no link now.
    fn dispose(&mut self, stop: &Stop, shared: &mut Shared) {
        match stop {
            Stop::Link(..) | Stop::Later => {}
            Stop::Away(slot) => {
                self.park(*slot, shared);
                self.datagram_sent(*slot);
            }
            Stop::Done => {
                self.req.next_number = after(self.req.next_number);
                self.req.una = self.req.next_number;
                self.sq.at_mut(self.sq.next).done = true;
                self.sq.next += 1;
                self.complete(shared);
            }
            Stop::Wrong(status) => {
                self.state = QpState::Sqe;
                self.stop_timer(shared);
                self.flush_sends(Some(*status), shared);
            }
        }
    }

    /// Copies the request at `sq.next`, to be sent when there is a link.
    fn park(&self, slot: Slot, shared: &mut Shared) {
        let index = self.sq.index(self.sq.next);
        let is_for_group = self.ud.as_ref().is_some_and(|ud| ud.addresses[index].path.group.is_some());
        if !shared.peers.parcels.has_room(slot, is_for_group) {
            return;
        }
        let mut copy = None;
        self.with_datagram(shared, |frame, gather| {
            let mut payload = vec![0; gather.len()].into_boxed_slice();
            let copied = gather.copy_to(Target::of(&mut payload));
            copy = copied.then(|| (frame.encode(), payload));
        });
        if let Some((header, payload)) = copy {
            shared.peers.parcels.add(slot, header, payload);
            shared.peers.want(slot);
        }
    }

    /// Calls `with` with the request at `sq.next` as a frame and its payload; `None` if its memory is gone.
    fn with_datagram<R>(&self, shared: &Shared, with: impl FnOnce(&Frame, &Gather<'_>) -> R) -> Option<R> {
        let position = self.sq.next;
        let wqe = self.sq.at(position);
        let ud = self.ud.as_ref()?;
        let address = &ud.addresses[self.sq.index(position)];
        let len = wqe.total as usize;
        let mut frame = Frame::new(Kind::Datagram, address.qpn, self.qpn, self.req.next_number, 0);
        frame.key = if address.qkey >> 31 == 1 { ud.qkey } else { address.qkey };
        (frame.addr, frame.code) = (u64::from(address.path.slid), address.path.sl);
        #[allow(clippy::cast_possible_truncation, reason = "at most the MTU and the header")]
        let total = (GRH_LEN + len) as u32;
        frame.total = total;
        frame.set_offset(0, wqe.imm);
        if wqe.with_imm {
            frame.flags |= frame::IMM;
        }
        if wqe.solicited {
            frame.flags |= frame::SOLICITED;
        }
        if address.path.grh != Grh::NONE {
            frame.flags |= frame::GRH;
        }
        let grh = address.path.grh.sealed(len, wqe.with_imm);
        let head = Source::of(&grh.0);
        if wqe.inline {
            let parts = [head, self.sq.inline(position)];
            Some(with(&frame, &Gather::of(&parts)))
        } else {
            shared.mrs.gather_behind(head, self.pd, self.sq.list(position), |gather| with(&frame, gather))
        }
    }

    /// Sends the requests that go over `link`, up to the first that does not.
    pub(super) fn transmit_datagrams(
        &mut self,
        link: LinkId,
        shared: &mut Shared,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        while self.may_transmit() {
            match self.next_stop(shared) {
                Stop::Link(at, slot) if at == link => {
                    if *budget == 0 {
                        return Transmit::More;
                    }
                    let pushed = self.with_datagram(shared, |frame, gather| {
                        // One that is longer than the ring takes is lost.
                        (gather.len(), gather.len() > out.max_payload() || out.try_push(&frame.encode(), gather))
                    });
                    // Its memory was there a moment ago, under the same lock.
                    let (len, pushed) = pushed.unwrap_or((0, true));
                    *budget = budget.saturating_sub(len.max(64));
                    if !self.waits_no_longer(link, pushed, shared) {
                        return Transmit::Blocked;
                    }
                    self.datagram_sent(slot);
                }
                Stop::Link(..) | Stop::Later => break,
                other => self.dispose(&other, shared),
            }
        }
        Transmit::Idle
    }

    /// After an attempt to send over a link: whether the request is done with.
    fn waits_no_longer(&mut self, link: LinkId, pushed: bool, shared: &mut Shared) -> bool {
        let (Some(state), Some(ud)) = (shared.peers.get(link), &mut self.ud) else { return true };
        if !pushed && !state.stuck {
            if !ud.blocked {
                ud.blocked = true;
                self.req.timer = self.req.timer.wrapping_add(1);
                shared.timers.start(self.id.0, self.req.timer, PATIENCE);
            }
            return false;
        }
        state.stuck = !pushed;
        self.stop_timer(shared);
        true
    }

    fn stop_timer(&mut self, shared: &mut Shared) {
        if self.ud.as_mut().is_some_and(|ud| core::mem::replace(&mut ud.blocked, false)) {
            shared.timers.cancel(self.id.0);
        }
    }

    /// The link has been full for too long.
    pub(super) fn stop_waiting(&mut self, shared: &mut Shared) {
        let Some(ud) = &mut self.ud else { return };
        if core::mem::replace(&mut ud.blocked, false) {
            if let Some(link) = shared.peers.get(ud.at) {
                link.stuck = true;
                shared.peers.activate(ud.at);
            }
        }
    }

    /// A link is gone, and with it the list that the queue pair may be in.
    pub(super) fn handle_datagram_link_down(&mut self, link: LinkId, shared: &mut Shared) {
        if self.req.listed && self.ud.as_ref().is_some_and(|ud| ud.at == link) {
            self.req.listed = false;
            self.stop_timer(shared);
            self.schedule_datagrams(shared);
        }
    }

    /// A datagram has come in for this queue pair: `grh` and `data` are its payload.
    pub(super) fn handle_datagram(&mut self, frame: &Frame, grh: &Grh, data: Source<'_>, shared: &mut Shared) {
        let Some(ud) = &self.ud else { return };
        if !self.hears() || frame.key != ud.qkey {
            return;
        }
        let Some((wqe, list)) = self.rq.front() else { return };
        let in_place = || {
            let head = Source::of(&grh.0);
            shared.mrs.scatter(self.pd, list, 0, head)
                && shared.mrs.scatter(self.pd, list, u32::try_from(GRH_LEN).unwrap_or(0), data)
        };
        let status = if wqe.total < frame.total {
            ibv_wc_status::IBV_WC_LOC_LEN_ERR
        } else if in_place() {
            ibv_wc_status::IBV_WC_SUCCESS
        } else {
            ibv_wc_status::IBV_WC_LOC_PROT_ERR
        };
        self.rq.pop();
        let solicited = frame.flags & frame::SOLICITED != 0;
        let qpn = self.qpn;
        shared.cqs.push(self.recv_cq, solicited, &mut shared.events, |wc| {
            (wc.wr_id, wc.status, wc.opcode) = (wqe.wr_id, status, ibv_wc_opcode::IBV_WC_RECV);
            (wc.qp_num, wc.src_qp, wc.byte_len) = (qpn, frame.from & NUMBER_MASK, frame.total);
            // Four bits and sixteen have a place there, whatever came.
            wc.sl = frame.code & 15;
            #[allow(clippy::cast_possible_truncation, reason = "a local identifier has 16 bits")]
            let slid = frame.addr as u16;
            wc.slid = slid;
            if frame.flags & frame::GRH != 0 {
                wc.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
            }
            if frame.flags & frame::IMM != 0 {
                set_imm(wc, frame.imm());
            }
        });
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            self.fail(None, shared);
        }
    }
}
