//! The requester's side of a queue pair: sends requests in order, completes them in order, retries as told.
//!
//! A request that goes through a link gets a message number. Answers come in the order of the numbers, so `una` (the oldest
//! number that is not answered) says it all; an answer to a request answers all before it.
//!
//! When the responder was not ready (RNR) or deaf (`Dropped`: where a real device would say nothing), everything from `una`
//! on is sent again, as another *attempt*, after the wait that the specification has for it.

use rdma_sys::{ibv_event_type, ibv_wc_status};

use super::Outbound;
use super::direct::Direct;
use super::frame::{self, Frame, Kind, Refusal, after, distance, precedes};
use super::limits::{COPY_BUDGET, MAX_MESSAGE};
use super::memory::{Gather, Source};
use super::mr::LOCAL_WRITE;
use super::qp::{Attributes, Qp};
use super::queue::{Op, SendWqe};
use super::shared::Shared;
use super::timer::{ack_nanos, rnr_nanos};
use super::types::{QpState, Transmit};

/// Why nothing is sent for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    /// The responder had no receive.
    Rnr,
    /// Nobody hears.
    Silence,
}

/// The requester's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester {
    /// In the list of a link.
    pub(super) listed: bool,
    /// Tells this life of the queue pair from earlier ones, in answers.
    pub(super) incarnation: u8,
    attempt: u8,
    /// The number of the next message.
    pub(super) next_number: u32,
    /// The oldest number that is not answered.
    pub(super) una: u32,
    /// How much of the message at `sq.next` is sent.
    offset: u32,
    /// Reads and atomics that wait for their data.
    fetching: u8,
    pub(super) wait: Wait,
    /// The timer that counts.
    pub(super) timer: u32,
    retries: u8,
    rnr_retries: u8,
    /// The request at `sq.next` cannot be sent; it fails when all before it are complete.
    stalled: Option<ibv_wc_status>,
    /// In SQD: the first request that must not start.
    drain_limit: u64,
    drained: bool,
    /// The last message that changes memory by a key, unless it was answered.
    last_change: Option<u32>,
}

impl Requester {
    pub(super) const fn new(incarnation: u8) -> Self {
        Self {
            listed: false,
            incarnation,
            attempt: 0,
            next_number: 0,
            una: 0,
            offset: 0,
            fetching: 0,
            wait: Wait::No,
            timer: 0,
            retries: 0,
            rnr_retries: 0,
            stalled: None,
            drain_limit: 0,
            drained: false,
            last_change: None,
        }
    }

    pub(super) const fn begin(&mut self, attr: &Attributes) {
        self.next_number = attr.sq_psn;
        self.una = attr.sq_psn;
        self.refill(attr);
    }

    /// Gives back all retries: something was answered.
    const fn refill(&mut self, attr: &Attributes) {
        self.retries = attr.retry_cnt;
        self.rnr_retries = attr.rnr_retry;
    }

    /// The queue pair is in ERR.
    pub(super) const fn stop(&mut self) {
        self.wait = Wait::No;
        self.stalled = None;
        self.offset = 0;
    }

    const fn epoch(&self) -> u16 {
        (self.incarnation as u16) << 8 | self.attempt as u16
    }

    /// Whether a message with this number is under way, whole, or (`or_begun`) at least in part.
    const fn is_open(&self, number: u32, or_begun: bool) -> bool {
        let begun = or_begun && self.offset > 0;
        distance(self.una, number) < distance(self.una, self.next_number) + begun as u32
    }

    /// Whether nothing at all is under way.
    pub(super) const fn is_idle(&self) -> bool {
        self.una == self.next_number && self.offset == 0
    }

    /// Whether a write may overtake what is under way: no earlier change of memory is.
    pub(super) fn may_overtake(&self) -> bool {
        self.offset == 0 && self.last_change.is_none_or(|number| precedes(number, self.una))
    }
}

/// How the request at `sq.next` may begin.
enum Begin {
    /// Send it.
    Go,
    /// Not now.
    Hold,
    /// It was done without the link.
    Skip,
    /// It is being done without the link.
    More,
}

impl Qp {
    /// Whether the request at `sq.next` may be sent as far as the queue pair's state goes.
    pub(super) const fn may_transmit(&self) -> bool {
        if self.sq.next >= self.sq.tail || !matches!(self.req.wait, Wait::No) || self.req.stalled.is_some() {
            return false;
        }
        match self.state {
            QpState::Rts => true,
            QpState::Sqd => self.sq.next < self.req.drain_limit,
            _ => false,
        }
    }

    /// In SQD: whether everything that was begun is complete.
    pub(super) const fn is_drained(&self) -> bool {
        self.sq.head >= self.req.drain_limit
    }

    pub(super) fn begin_draining(&mut self, shared: &mut Shared) {
        let begun = self.req.offset > 0 || (self.sq.next < self.sq.tail && self.sq.at(self.sq.next).progress > 0);
        self.req.drain_limit = self.sq.next + u64::from(begun);
        self.req.drained = false;
        self.report_drained(shared);
    }

    fn report_drained(&mut self, shared: &mut Shared) {
        if self.state == QpState::Sqd && self.is_drained() && !self.req.drained {
            self.req.drained = true;
            if self.attr.sqd_notify {
                self.event(shared, ibv_event_type::IBV_EVENT_SQ_DRAINED);
            }
        }
    }

    /// Sends requests until there are no more, the link is full, or the budget is spent.
    pub(super) fn transmit(&mut self, shared: &mut Shared, out: &mut impl Outbound, budget: &mut usize) -> Transmit {
        while self.may_transmit() {
            if self.req.offset == 0 {
                if self.sq.at(self.sq.next).done {
                    // Done without the link before an attempt was repeated.
                    self.sq.next += 1;
                    self.complete(shared);
                    continue;
                }
                match self.begin_request(shared, budget) {
                    Begin::Go => {}
                    Begin::Hold => return Transmit::Idle,
                    Begin::Skip => continue,
                    Begin::More => return Transmit::More,
                }
            }
            if *budget == 0 {
                return Transmit::More;
            }
            if !self.push_segment(shared, out, budget) {
                return if self.req.stalled.is_some() || self.state == QpState::Err {
                    Transmit::Idle
                } else {
                    Transmit::Blocked
                };
            }
        }
        Transmit::Idle
    }

    fn begin_request(&mut self, shared: &mut Shared, budget: &mut usize) -> Begin {
        // Fields, not copies: what was just posted is still on its way to the cache, in small pieces.
        let wqe = self.sq.at(self.sq.next);
        let with_imm = wqe.with_imm;
        if wqe.fence && self.req.fetching > 0 {
            return Begin::Hold;
        }
        if let Some(status) = self.local_error(wqe, shared) {
            self.stall(status, shared);
            return Begin::Hold;
        }
        if wqe.op.fetches() && self.req.fetching >= self.attr.max_rd_atomic {
            return Begin::Hold;
        }
        match self.try_direct(shared, budget) {
            Direct::No => Begin::Go,
            Direct::Partly => Begin::More,
            Direct::Done if with_imm => {
                self.sq.at_mut(self.sq.next).written = true;
                Begin::Go
            }
            Direct::Done => {
                self.sq.at_mut(self.sq.next).done = true;
                self.sq.next += 1;
                self.complete(shared);
                Begin::Skip
            }
        }
    }

    /// Does what was just posted at once, if nothing is ahead of it and the target is within reach.
    pub(super) fn transmit_directly(&mut self, shared: &mut Shared) {
        if self.req.listed || self.sq.next + 1 != self.sq.tail || !self.may_transmit() {
            return;
        }
        let wqe = self.sq.at(self.sq.next);
        if wqe.op != Op::Send && !wqe.with_imm && self.req.offset == 0 {
            let mut budget = COPY_BUDGET;
            let _ = self.begin_request(shared, &mut budget);
        }
    }

    /// What is wrong with a request by itself.
    fn local_error(&self, wqe: &SendWqe, shared: &Shared) -> Option<ibv_wc_status> {
        if wqe.total > MAX_MESSAGE || (wqe.op.is_atomic() && wqe.total != 8) {
            return Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
        }
        if wqe.op.fetches() && self.attr.max_rd_atomic == 0 {
            return Some(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
        }
        let rights = if wqe.op.fetches() { LOCAL_WRITE } else { 0 };
        if !wqe.inline && !shared.mrs.check(self.pd, self.sq.list(self.sq.next), rights) {
            return Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR);
        }
        None
    }

    /// The request at `sq.next` fails, once all before it are complete.
    fn stall(&mut self, status: ibv_wc_status, shared: &mut Shared) {
        self.req.stalled = Some(status);
        self.complete(shared);
    }

    /// Sends the next piece of the request at `sq.next`; false if it could not be.
    fn push_segment(&mut self, shared: &mut Shared, out: &mut impl Outbound, budget: &mut usize) -> bool {
        let position = self.sq.next;
        let wqe = self.sq.at(position);
        let total = wqe.total;
        let mut frame =
            Frame::new(wqe.op.frame(), self.attr.dest_qpn, self.qpn, self.req.next_number, self.req.epoch());
        (frame.addr, frame.key, frame.total) = (wqe.remote_addr, wqe.rkey, wqe.total);
        let offset = self.req.offset;
        let carries = !wqe.op.fetches() && !wqe.written;
        let len = if carries { (wqe.total - offset).min(clamp(out.max_payload())) } else { 0 };
        match wqe.op {
            Op::CompareSwap => (frame.a, frame.b) = (wqe.compare_add, wqe.swap),
            Op::FetchAdd => frame.a = wqe.compare_add,
            Op::Read => {}
            Op::Send | Op::Write => frame.set_offset(offset, wqe.imm),
        }
        if wqe.with_imm {
            frame.flags |= frame::IMM;
        }
        if wqe.solicited {
            frame.flags |= frame::SOLICITED;
        }
        if wqe.written {
            frame.kind = Kind::WriteDone;
        }
        let link = shared.peers.link_of(self.peer());
        let carried = self.resp.ack_to_carry(link).filter(|_| frame.can_carry());
        if let Some((number, epoch)) = carried {
            frame.carry_ack(number, epoch);
        }
        let pushed = if len == 0 {
            out.try_push(&frame.encode(), &Gather::EMPTY)
        } else if wqe.inline {
            let Some(part) = self.sq.inline(position).part(offset as usize, len as usize) else { return false };
            out.try_push(&frame.encode(), &Gather::one(&part))
        } else {
            let list = self.sq.list(position);
            let push = |gather: &Gather<'_>| out.try_push(&frame.encode(), gather);
            let Some(pushed) = shared.mrs.gather(self.pd, list, offset, len as usize, push) else {
                self.stall(ibv_wc_status::IBV_WC_LOC_PROT_ERR, shared);
                return false;
            };
            pushed
        };
        if !pushed {
            return false;
        }
        if carried.is_some() {
            self.resp.ack_sent();
        }
        *budget = budget.saturating_sub(len.max(64) as usize);
        self.req.offset = offset + len;
        if !carries || self.req.offset == total {
            self.sent();
        }
        true
    }

    /// The request at `sq.next` was sent whole.
    fn sent(&mut self) {
        let number = self.req.next_number;
        let wqe = self.sq.at_mut(self.sq.next);
        wqe.number = number;
        if wqe.op.fetches() {
            self.req.fetching += 1;
        }
        if wqe.op.changes_memory() {
            self.req.last_change = Some(number);
        }
        self.req.next_number = after(number);
        self.req.offset = 0;
        self.sq.next += 1;
    }

    /// Completes what can be, in order.
    pub(super) fn complete(&mut self, shared: &mut Shared) {
        while self.sq.head < self.sq.next {
            let wqe = self.sq.at(self.sq.head);
            if !wqe.done {
                if !precedes(wqe.number, self.req.una) {
                    break;
                }
                if wqe.op.fetches() {
                    // A later request was answered and this one was not.
                    self.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), shared);
                    return;
                }
            }
            if wqe.signaled {
                let byte_len = if wqe.op.fetches() { wqe.total } else { 0 };
                let (wr_id, opcode, qpn) = (wqe.wr_id, wqe.op.completion(), self.qpn);
                shared.cqs.push(self.send_cq, false, &mut shared.events, |wc| {
                    (wc.wr_id, wc.opcode, wc.qp_num, wc.byte_len) = (wr_id, opcode, qpn, byte_len);
                });
            }
            self.sq.head += 1;
        }
        match self.req.stalled {
            Some(status) if self.sq.head == self.sq.next => self.fail(Some(status), shared),
            _ => self.report_drained(shared),
        }
    }

    /// An answer has come in on the right link from the right queue pair.
    pub(super) fn handle_answer(&mut self, frame: &Frame, payload: Source<'_>, shared: &mut Shared) {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || frame.epoch >> 8 != u16::from(self.req.incarnation) {
            return;
        }
        let this_attempt = frame.epoch == self.req.epoch();
        match frame.kind {
            Kind::Ack if self.req.is_open(frame.number, false) => self.acknowledge(after(frame.number), shared),
            Kind::Nak if self.req.is_open(frame.number, true) => self.handle_nak(frame, shared),
            Kind::RnrNak if this_attempt && self.req.is_open(frame.number, true) => self.handle_rnr(frame, shared),
            Kind::Dropped if this_attempt && self.req.is_open(frame.number, true) => self.wait_for_hearing(shared),
            Kind::ReadData | Kind::AtomicData if self.req.is_open(frame.number, false) => {
                self.handle_data(frame, payload, shared);
            }
            _ => {}
        }
        self.schedule_requests(shared);
    }

    /// Everything before `una` is answered.
    fn acknowledge(&mut self, una: u32, shared: &mut Shared) {
        if una != self.req.una {
            self.req.una = una;
            self.req.refill(&self.attr);
            self.complete(shared);
        }
    }

    /// Completes everything before message `number`; false if that was not possible, and the queue pair is in ERR.
    #[must_use]
    fn acknowledge_before(&mut self, number: u32, shared: &mut Shared) -> bool {
        self.acknowledge(number, shared);
        if self.state == QpState::Err {
            return false;
        }
        let wqe = self.sq.at(self.sq.head);
        let is_it = if self.sq.head == self.sq.next { self.req.offset > 0 } else { wqe.number == number && !wqe.done };
        if !is_it {
            self.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), shared);
        }
        is_it
    }

    fn handle_nak(&mut self, frame: &Frame, shared: &mut Shared) {
        let status = match Refusal::from_bits(frame.code) {
            Some(Refusal::InvalidRequest) => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            Some(Refusal::Access) => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            Some(Refusal::Operation) => ibv_wc_status::IBV_WC_REM_OP_ERR,
            None => ibv_wc_status::IBV_WC_BAD_RESP_ERR,
        };
        if self.acknowledge_before(frame.number, shared) {
            self.fail(Some(status), shared);
        }
    }

    fn handle_rnr(&mut self, frame: &Frame, shared: &mut Shared) {
        if !self.acknowledge_before(frame.number, shared) {
            return;
        }
        if self.attr.rnr_retry != 7 {
            if self.req.rnr_retries == 0 {
                self.fail(Some(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR), shared);
                return;
            }
            self.req.rnr_retries -= 1;
        }
        self.start_waiting(Wait::Rnr, rnr_nanos(frame.code), shared);
    }

    /// A request was dropped, or there is nobody to send it to.
    pub(super) fn wait_for_hearing(&mut self, shared: &mut Shared) {
        if self.req.wait == Wait::No {
            self.start_waiting(Wait::Silence, ack_nanos(self.attr.timeout), shared);
        }
    }

    fn start_waiting(&mut self, wait: Wait, nanos: u64, shared: &mut Shared) {
        self.req.wait = wait;
        self.req.timer = self.req.timer.wrapping_add(1);
        shared.timers.start(self.id.0, self.req.timer, nanos);
    }

    /// The wait is over.
    pub(super) fn handle_timer(&mut self, generation: u32, shared: &mut Shared) {
        if generation != self.req.timer {
            return;
        }
        if self.ud.is_some() {
            return self.stop_waiting(shared);
        }
        match core::mem::replace(&mut self.req.wait, Wait::No) {
            Wait::No => return,
            Wait::Rnr => {}
            Wait::Silence => {
                if self.req.retries == 0 {
                    self.fail(Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR), shared);
                    return;
                }
                self.req.retries -= 1;
            }
        }
        self.go_back();
        self.schedule_requests(shared);
    }

    /// Everything from `una` on is to be sent again.
    fn go_back(&mut self) {
        let mut first = None;
        for position in self.sq.head..(self.sq.next + 1).min(self.sq.tail) {
            let wqe = self.sq.at_mut(position);
            if !wqe.done {
                wqe.progress = 0;
                first.get_or_insert(position);
            }
        }
        self.sq.next = first.unwrap_or(self.sq.next);
        self.req.next_number = self.req.una;
        self.req.offset = 0;
        self.req.fetching = 0;
        self.req.stalled = None;
        self.req.last_change = None;
        self.req.attempt = self.req.attempt.wrapping_add(1);
    }

    /// A piece of a read, or an atomic's result.
    fn handle_data(&mut self, frame: &Frame, payload: Source<'_>, shared: &mut Shared) {
        if !self.acknowledge_before(frame.number, shared) {
            return;
        }
        let position = self.sq.head;
        let wqe = *self.sq.at(position);
        let result = frame.addr.to_ne_bytes();
        let (is_mine, payload) = match frame.kind {
            Kind::AtomicData => (wqe.op.is_atomic(), Source::of(&result)),
            _ => {
                let fits = frame.offset() == wqe.progress && frame.total == wqe.total;
                (wqe.op == Op::Read && fits, payload)
            }
        };
        if !is_mine {
            self.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), shared);
            return;
        }
        if !shared.mrs.scatter(self.pd, self.sq.list(position), wqe.progress, payload) {
            self.fail(Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR), shared);
            return;
        }
        let progress = wqe.progress + clamp(payload.len());
        let wqe = self.sq.at_mut(position);
        wqe.progress = progress;
        if progress == wqe.total {
            wqe.done = true;
            self.req.fetching = self.req.fetching.saturating_sub(1);
            self.acknowledge(after(frame.number), shared);
        }
    }

    /// The link to the peer is gone. What was posted fails at once: whoever could answer is dead.
    pub(super) fn handle_peer_death(&mut self, shared: &mut Shared) {
        self.req.listed = false;
        if matches!(self.state, QpState::Rts | QpState::Sqd) && !self.sq.is_empty() {
            self.fail(Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR), shared);
        }
    }
}

fn clamp(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
