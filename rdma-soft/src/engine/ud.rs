//! Unreliable datagrams: each datagram is sent on its own and is not answered. Its request
//! completes when the datagram is on its way or lost.
//!
//! Requests complete in order. They are sent in order as far as links exist. A request to a process
//! without a link is passed over until there is one, as long as [`Purpose`] says at most;
//! later requests do not wait for it. The first request that goes over a link puts the queue pair
//! into the link's work list; the requests behind it that go over the same link are sent with it.
//!
//! A datagram is lost, and its sender's completion reports success, where a network would lose it:
//! no queue pair has the number, the process is dead or refuses a link, its ring stays full, no
//! receive request is posted, or the Q_Key differs. A datagram whose link is full waits as long as
//! [`Patience`] lasts.
//!
//! After 20 ms without space in a link, datagrams on this link are dropped at once until there is
//! space again. So a dead or stopped process delays no other destination.

use rdma_sys::{ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::Outbound;
use super::cq::set_imm;
use super::fault::{Operations, Unanswered};
use super::grh::{GRH_LEN, Grh};
use super::groups::Next;
use super::limits::MTU;
use super::memory::{Gather, Origin, Source};
use super::patience::Patience;
use super::peers::{Purpose, Reach, Work};
use super::qp::Qp;
use super::queue::boxed;
use super::receive::Receive;
use super::tables::Tables;
use super::types::{
    Address, Errno, Host, LinkId, Lookup, MULTICAST_QPN, Op, Path, PeerId, QpState, QpStatus, SendData, SendFlags,
    SendRequest, Transmit,
};
use super::wire::{self, Frame, Kind, NUMBER_MASK, after};

/// The destination of a request, and the progress of its delivery. A request to a group goes to the
/// members in the order of their slots, in rounds. A round passes over members that have no link
/// yet; the next round sends to those that have got a link since.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    address: Address,
    /// The first slot to which this round may still have to send.
    from: u16,
    /// This round passed over a member.
    incomplete: bool,
    /// This round sends to processes whose ordinal (`Process::number`) is greater than `since` and
    /// at most `until`.
    since: u32,
    until: u32,
}

impl Delivery {
    const fn new(address: Address) -> Self {
        Self { address, from: 0, incomplete: false, since: 0, until: 0 }
    }
}

/// Placeholder for a ring entry without a request.
const NO_ADDRESS: Address =
    Address { path: Path { host: Host::LOCAL, grh: Grh::NONE, group: None, sl: 0, slid: 0 }, qpn: 0, qkey: 0 };

/// The state of a queue pair for datagrams beyond its queues.
#[derive(Debug)]
pub(super) struct Ud {
    incarnation: u8,
    next_psn: u32,
    /// The deliveries, indexed like the ring of the send queue.
    deliveries: Box<[Delivery]>,
    /// Requests before `sq.next` wait for a link.
    waiting: bool,
    /// The link whose work list holds the queue pair.
    listed: Option<LinkId>,
    patience: Patience,
}

/// The next step for the request at `sq.next`.
enum Step {
    /// Send the request over this link to this process.
    Send(LinkId, PeerId),
    /// The request waits for a link; later requests do not wait for it.
    Wait,
    /// The request waits until the members of its group are known. Later requests wait, too: they
    /// may go to one of these members.
    Hold,
    /// The request was sent, or is lost.
    Done,
    /// The request cannot be sent and fails with this status.
    Wrong(ibv_wc_status),
}

impl Ud {
    pub(super) fn new(places: usize, incarnation: u8) -> Result<Self, Errno> {
        Ok(Self {
            incarnation,
            next_psn: 0,
            deliveries: boxed(places, Delivery::new(NO_ADDRESS))?,
            waiting: false,
            listed: None,
            patience: Patience::DATAGRAM,
        })
    }

    pub(super) const fn incarnation(&self) -> u8 {
        self.incarnation
    }

    pub(super) const fn status(&self, qp: &Qp) -> QpStatus {
        QpStatus { state: qp.state, sq_draining: qp.is_draining(), sq_psn: self.next_psn, rq_psn: qp.attr.rq_psn }
    }

    /// Enters a state after the attributes are set.
    pub(super) fn enter(&mut self, qp: &mut Qp, state: QpState, tables: &mut Tables) {
        match state {
            QpState::Reset => self.reset(qp, tables),
            QpState::Err => self.fail(qp, tables),
            QpState::Sqd => qp.begin_draining(self.has_begun(qp), tables),
            QpState::Rts => {
                if qp.state == QpState::Rtr {
                    self.next_psn = qp.attr.sq_psn;
                }
                qp.state = state;
                self.schedule(qp, tables);
            }
            QpState::Init | QpState::Rtr | QpState::Sqe => qp.state = state,
        }
    }

    /// Whether the request at `sq.next` was sent to a part of its group.
    fn has_begun(&self, qp: &Qp) -> bool {
        qp.sq.next < qp.sq.tail && self.deliveries[qp.sq.index(qp.sq.next)].from > 0
    }

    pub(super) fn reset(&mut self, qp: &mut Qp, tables: &mut Tables) {
        qp.reset(tables);
        tables.groups.forget(qp.id.0);
        self.incarnation = self.incarnation.wrapping_add(1);
        (self.waiting, self.listed) = (false, None);
        self.patience.forget();
    }

    /// Moves the queue pair to ERR.
    pub(super) fn fail(&mut self, qp: &mut Qp, tables: &mut Tables) {
        qp.fail(None, tables);
        self.waiting = false;
        self.patience.forget();
    }

    #[inline(never)]
    pub(super) fn post(
        &mut self,
        qp: &mut Qp,
        request: &SendRequest,
        data: SendData<'_>,
        address: &Address,
        tables: &mut Tables,
    ) -> Result<(), Errno> {
        if request.op != Op::Send {
            return Err(Errno::INVAL);
        }
        let judged;
        let request = if tables.faults.is_some() {
            judged = tables.judged(qp, request, data, Operations::DATAGRAM, false);
            &judged
        } else {
            request
        };
        let index = qp.sq.index(qp.sq.tail);
        if qp.post_send(request, data, tables)? {
            self.deliveries[index] = Delivery::new(*address);
            self.schedule(qp, tables);
        }
        Ok(())
    }

    /// Puts the queue pair into the list of the link that the next request goes over. Completes or
    /// passes over the requests before that one, which go over no link.
    pub(super) fn schedule(&mut self, qp: &mut Qp, tables: &mut Tables) {
        while self.listed.is_none() && qp.may_start() {
            match self.next_step(qp, tables) {
                Step::Send(link, peer) => {
                    if tables.peers.push_work(link, Work::Datagrams(qp.id.0)) {
                        self.listed = Some(link);
                    } else {
                        self.sent(qp, peer);
                    }
                }
                step => {
                    if !self.dispose(qp, &step, tables) {
                        return;
                    }
                }
            }
        }
    }

    /// Examines all waiting requests again, after a change that may concern them.
    pub(super) fn resume(&mut self, qp: &mut Qp, tables: &mut Tables) {
        if core::mem::take(&mut self.waiting) {
            qp.sq.next = qp.sq.head;
        }
        self.schedule(qp, tables);
    }

    /// Whether requests wait for a link.
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting
    }

    fn next_step(&mut self, qp: &Qp, tables: &mut Tables) -> Step {
        let position = qp.sq.next;
        let wqe = qp.sq.at(position);
        let delivery = &mut self.deliveries[qp.sq.index(position)];
        // C10-93.1.1: a datagram longer than the MTU is not sent, and that is no error.
        if wqe.done || wqe.total > MTU {
            return Step::Done;
        }
        if wqe.has(SendFlags::FAULT) {
            match tables.fault_of_unanswered(qp, position) {
                Unanswered::Sent => {}
                Unanswered::Waits => return Step::Hold,
                Unanswered::Lost | Unanswered::Flushed => return Step::Done,
                Unanswered::Fails(status) => return Step::Wrong(status),
            }
        }
        if !wqe.inline && !tables.mrs.check(qp.pd, qp.sq.list(position), 0) {
            return Step::Wrong(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        }
        let Address { path, qpn, .. } = delivery.address;
        let Some(gid) = path.group else {
            let peer = PeerId::of(path.host, qpn);
            if delivery.from > 0 || qpn == MULTICAST_QPN || !peer.slot.is_real() {
                return Step::Done;
            }
            return match tables.reach(peer, Purpose::Process) {
                Reach::Link(link, _) => Step::Send(link, peer),
                Reach::Wait => Step::Wait,
                Reach::Lost => Step::Done,
            };
        };
        if qpn != MULTICAST_QPN {
            return Step::Done;
        }
        if delivery.from == 0 && delivery.until == 0 {
            delivery.until = tables.peers.reached();
        }
        loop {
            let (next, asks) = tables.groups.next(gid, delivery.from, tables.slots[0], qp.id.0);
            if asks {
                tables.peers.look_up(Lookup::Members(gid));
            }
            match next {
                Next::Later => return Step::Hold,
                Next::Member(slot) => {
                    let peer = PeerId::local(slot);
                    match tables.reach(peer, Purpose::Group) {
                        Reach::Link(link, number) if delivery.since < number && number <= delivery.until => {
                            return Step::Send(link, peer);
                        }
                        Reach::Link(_, number) => delivery.incomplete |= number > delivery.until,
                        Reach::Wait => delivery.incomplete = true,
                        Reach::Lost => {}
                    }
                    delivery.from = slot.0 + 1;
                }
                Next::End if delivery.incomplete => {
                    let again = tables.peers.reached() != delivery.until;
                    (delivery.since, delivery.until) = (delivery.until, tables.peers.reached());
                    (delivery.from, delivery.incomplete) = (0, false);
                    if !again {
                        return Step::Wait;
                    }
                }
                Next::End => return Step::Done,
            }
        }
    }

    /// Records that the request at `sq.next` was sent to a process, or is lost on its way there.
    fn sent(&mut self, qp: &Qp, peer: PeerId) {
        self.deliveries[qp.sq.index(qp.sq.next)].from = peer.slot.0 + 1;
    }

    /// Handles a request that goes over no link now; false if the queue stops at this request.
    fn dispose(&mut self, qp: &mut Qp, step: &Step, tables: &mut Tables) -> bool {
        match step {
            Step::Send(..) | Step::Hold => return false,
            Step::Wait => {
                self.waiting = true;
                qp.sq.next += 1;
            }
            Step::Done => {
                self.next_psn = after(self.next_psn);
                let position = qp.sq.next;
                qp.sq.at_mut(position).done = true;
                qp.sq.next += 1;
                while qp.sq.head < qp.sq.next && qp.sq.at(qp.sq.head).done {
                    qp.complete_send(tables);
                }
                qp.report_drained(tables);
            }
            Step::Wrong(_) if qp.sq.head < qp.sq.next => return false,
            Step::Wrong(status) => {
                self.patience.stop(qp.id, tables);
                qp.fail_sends(*status, tables);
            }
        }
        true
    }

    /// Calls `with` with the request at `sq.next` as a frame and its payload; `None` if a region of
    /// its list is gone.
    fn with_frame<R>(&self, qp: &Qp, tables: &Tables, with: impl FnOnce(&Frame, &Gather<'_>) -> R) -> Option<R> {
        let position = qp.sq.next;
        let wqe = qp.sq.at(position);
        let address = &self.deliveries[qp.sq.index(position)].address;
        let len = wqe.total as usize;
        let mut frame = Frame::new(Kind::Datagram, address.qpn, qp.qpn, self.next_psn, 0);
        frame.key = if address.qkey >> 31 == 1 { qp.attr.qkey } else { address.qkey };
        (frame.addr, frame.code) = (u64::from(address.path.slid), address.path.sl);
        #[allow(clippy::cast_possible_truncation, reason = "at most the MTU and the header")]
        let total = (GRH_LEN + len) as u32;
        frame.total = total;
        frame.set_offset(0, wqe.request.imm);
        frame.flags = wire::request_flags(wqe.request.flags);
        if address.path.grh != Grh::NONE {
            frame.flags |= wire::GRH;
        }
        let grh = address.path.grh.sealed(len, wqe.has(SendFlags::IMM));
        let head = Source::of(&grh.0);
        if wqe.inline {
            let parts = [head, qp.sq.inline(position)];
            Some(with(&frame, &Gather::of(&parts)))
        } else {
            tables.mrs.gather_behind(head, qp.pd, qp.sq.list(position), |gather| with(&frame, gather))
        }
    }

    /// Sends the requests that go over `link`, up to the first one that goes over another link.
    pub(super) fn transmit(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        while qp.may_start() {
            match self.next_step(qp, tables) {
                Step::Send(at, peer) if at == link => {
                    if *budget == 0 {
                        return Transmit::More;
                    }
                    let pushed = self.with_frame(qp, tables, |frame, gather| {
                        // A datagram that is longer than the link's frames is lost.
                        (gather.len(), gather.len() > out.max_payload() || out.try_push(&frame.encode(), gather))
                    });
                    // The memory is never missing: `next_step` checked it just before, under the
                    // same lock.
                    let (len, pushed) = pushed.unwrap_or((0, true));
                    *budget = budget.saturating_sub(len.max(64));
                    if !self.patience.ends(qp.id, link, pushed, tables) {
                        return Transmit::Blocked;
                    }
                    self.sent(qp, peer);
                }
                Step::Send(..) => break,
                step => {
                    if !self.dispose(qp, &step, tables) {
                        break;
                    }
                }
            }
        }
        self.listed = None;
        // The next request may go over another link.
        self.schedule(qp, tables);
        Transmit::Idle
    }

    /// Stops waiting for a link that has been full for too long.
    pub(super) fn handle_timer(&mut self, generation: u32, tables: &mut Tables) {
        self.patience.handle_timer(generation, self.listed, &mut tables.peers);
    }

    /// Handles the loss of a link, and with it of the list that the queue pair may be in.
    pub(super) fn handle_link_down(&mut self, qp: &mut Qp, link: LinkId, tables: &mut Tables) {
        if self.listed == Some(link) {
            self.listed = None;
            self.patience.stop(qp.id, tables);
            self.schedule(qp, tables);
        }
    }

    /// Handles a datagram for this queue pair; `grh` and `data` are its payload.
    pub(super) fn handle_datagram(
        &mut self,
        qp: &mut Qp,
        frame: &Frame,
        grh: &Grh,
        data: Source<'_>,
        tables: &mut Tables,
    ) {
        if !qp.hears() || frame.key != qp.attr.qkey {
            return;
        }
        if tables.faults.is_some() && tables.judge_message(qp, frame).is_some() {
            return;
        }
        let Some(Receive { wqe, list, pd }) = qp.rq.front(qp.pd, tables) else {
            tables.counters.dropped += 1;
            return;
        };
        #[allow(clippy::cast_possible_truncation, reason = "40")]
        const BEHIND_GRH: u32 = GRH_LEN as u32;
        let status = if wqe.total < frame.total {
            ibv_wc_status::IBV_WC_LOC_LEN_ERR
        } else if tables.mrs.scatter(pd, list, 0, Source::of(&grh.0), Origin::Memory)
            && tables.mrs.scatter(pd, list, BEHIND_GRH, data, Origin::Memory)
        {
            ibv_wc_status::IBV_WC_SUCCESS
        } else {
            ibv_wc_status::IBV_WC_LOC_PROT_ERR
        };
        qp.rq.pop();
        match status {
            ibv_wc_status::IBV_WC_SUCCESS => tables.counters.receive(frame.total),
            _ => tables.counters.failed += 1,
        }
        let solicited = frame.flags & wire::SOLICITED != 0;
        let qpn = qp.qpn;
        tables.cqs.push(qp.recv_cq, solicited, &mut tables.events, |wc| {
            (wc.wr_id, wc.status, wc.opcode) = (wqe.wr_id, status, ibv_wc_opcode::IBV_WC_RECV);
            (wc.qp_num, wc.src_qp, wc.byte_len) = (qpn, frame.from & NUMBER_MASK, frame.total);
            // The fields hold 4 and 16 bits; mask, because the frame may hold anything.
            wc.sl = frame.code & 15;
            #[allow(clippy::cast_possible_truncation, reason = "a local identifier has 16 bits")]
            let slid = frame.addr as u16;
            wc.slid = slid;
            if frame.flags & wire::GRH != 0 {
                wc.wc_flags |= ibv_wc_flags::IBV_WC_GRH.0;
            }
            if frame.flags & wire::IMM != 0 {
                set_imm(wc, frame.imm());
            }
        });
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            self.fail(qp, tables);
        }
    }
}
