//! The requester: sends requests in order, completes them in order, and retries as the queue pair's
//! attributes say.
//!
//! A request that goes through a link gets a message number. Answers come in the order of the
//! numbers, so one number, `una` (the oldest that is not answered), describes the progress; an
//! answer to a request acknowledges all requests before it.
//!
//! When the responder was not ready (RNR), or sent `Dropped` (a real device would send nothing),
//! everything from `una` on is sent again, as another *attempt*, after the wait that the
//! specification demands.

use rdma_sys::ibv_wc_status;

use super::super::Outbound;
use super::super::fault::Fault;
use super::super::limits::COPY_BUDGET;
use super::super::memory::{Source, Target};
use super::super::mr::LOCAL_WRITE;
use super::super::qp::{Attributes, Qp};
use super::super::queue::SendWqe;
use super::super::tables::Tables;
use super::super::timer::{DEATH_NANOS, Owner, ack_nanos, rnr_nanos};
use super::super::transfer;
use super::super::types::{Op, QpState, SendData, SendFlags, SendRequest, Transmit};
use super::super::wire::{self, Frame, Kind, Refusal, after, distance, precedes};
use super::Handled;
use super::direct::{self, Operation};
use super::fetch::{self, Pushed};
use super::responder::{LOST_IN_ORDER, Responder};

/// The longest operation, in bytes, that is executed directly while it is posted.
#[allow(clippy::cast_possible_truncation, reason = "a megabyte")]
const DIRECT_LIMIT: u32 = COPY_BUDGET as u32;

/// The RNR timer of a receiver that a fault makes not ready: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Reason for which nothing is sent for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    No,
    /// The responder had no receive request posted.
    Rnr,
    /// The responder dropped the request, or the peer cannot be reached.
    Silence,
    /// The peer's process has ended. The wait ends with a failure.
    Death,
}

/// The requester's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester {
    /// The queue pair's requests are in the work list of a link.
    pub(super) listed: bool,
    /// Number of this life of the queue pair. Answers to an earlier life (before a reset, or of an
    /// earlier queue pair with the same number) carry another one.
    pub(super) incarnation: u8,
    attempt: u8,
    /// The number of the next message.
    pub(super) next_number: u32,
    /// The oldest number that is not answered.
    una: u32,
    /// Bytes of the message at `sq.next` that are sent.
    offset: u32,
    /// Reads and atomics that wait for their data.
    fetching: u8,
    wait: Wait,
    /// Generation of the current timer; timers with another generation are ignored.
    timer: u32,
    retries: u8,
    rnr_retries: u8,
    /// The request at `sq.next` cannot be sent; it fails with this status when all before it are
    /// complete.
    stalled: Option<ibv_wc_status>,
    /// The last message that changes memory by a key; it may have been answered since.
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
            last_change: None,
        }
    }

    pub(super) const fn begin(&mut self, attr: &Attributes) {
        self.next_number = attr.sq_psn;
        self.una = attr.sq_psn;
        self.refill(attr);
    }

    /// Restores both retry counters: the peer made progress.
    const fn refill(&mut self, attr: &Attributes) {
        self.retries = attr.retry_cnt;
        self.rnr_retries = attr.rnr_retry;
    }

    const fn epoch(&self) -> u16 {
        (self.incarnation as u16) << 8 | self.attempt as u16
    }

    /// Whether a message with this number is in flight, whole, or (`or_begun`) at least in part.
    const fn is_open(&self, number: u32, or_begun: bool) -> bool {
        let begun = or_begun && self.offset > 0;
        distance(self.una, number) < distance(self.una, self.next_number) + begun as u32
    }

    /// Whether an operation may be executed directly now. A write may overtake requests in flight
    /// unless one of them changes memory; a read or an atomic starts only when nothing is in
    /// flight.
    pub(super) fn may_overtake(&self, op: Op, qp: &Qp) -> bool {
        match op {
            Op::Send => false,
            Op::Write => self.offset == 0 && self.last_change.is_none_or(|number| precedes(number, self.una)),
            _ => self.offset == 0 && self.una == self.next_number && qp.sq.head == qp.sq.next,
        }
    }

    /// Whether the request at `sq.next` may be sent.
    #[inline]
    pub(super) const fn may_transmit(&self, qp: &Qp) -> bool {
        qp.may_start() && matches!(self.wait, Wait::No) && self.stalled.is_none()
    }

    /// Whether a part of the request at `sq.next` was sent or executed directly.
    pub(super) fn has_begun(&self, qp: &Qp) -> bool {
        self.offset > 0 || (qp.sq.next < qp.sq.tail && qp.sq.at(qp.sq.next).progress > 0)
    }

    /// Sends requests until there are no more, the link is full, or the budget is spent.
    pub(super) fn transmit(
        &mut self,
        qp: &mut Qp,
        resp: &mut Responder,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        while self.may_transmit(qp) {
            if self.offset == 0 {
                match self.begin_request(qp, tables, budget) {
                    Begin::Go => {}
                    Begin::Hold => return Transmit::Idle,
                    Begin::Skip => continue,
                    Begin::More => return Transmit::More,
                }
            }
            if *budget == 0 {
                return Transmit::More;
            }
            match self.push_segment(qp, resp, tables, out, budget) {
                Ok(Pushed::Yes(_)) => {}
                Ok(Pushed::NoRoom) => return Transmit::Blocked,
                Ok(Pushed::Waits) => return Transmit::Idle,
                Err(status) => {
                    self.stall(qp, status, tables);
                    return Transmit::Idle;
                }
            }
        }
        Transmit::Idle
    }

    #[inline]
    fn begin_request(&mut self, qp: &mut Qp, tables: &mut Tables, budget: &mut usize) -> Begin {
        let position = qp.sq.next;
        let wqe = qp.sq.at(position);
        if wqe.done {
            // The request was executed directly before an attempt was repeated.
            return self.skip(qp, tables);
        }
        let op = wqe.request.op;
        if wqe.has(SendFlags::FENCE) && self.fetching > 0 {
            return Begin::Hold;
        }
        if wqe.has(SendFlags::FAULT) && self.inject(qp, tables) {
            return Begin::Hold;
        }
        let wqe = qp.sq.at(position);
        if let Some(status) = transfer::local_error(qp, wqe, position, tables) {
            self.stall(qp, status, tables);
            return Begin::Hold;
        }
        if op.fetches() && self.fetching >= qp.attr.max_rd_atomic {
            return Begin::Hold;
        }
        if wqe.total == 0 || wqe.written || !self.may_overtake(op, qp) {
            return Begin::Go;
        }
        self.begin_directly(qp, tables, budget)
    }

    /// Executes the request at `sq.next`, or a part of it, directly (without the link) if that is
    /// possible.
    fn begin_directly(&mut self, qp: &mut Qp, tables: &mut Tables, budget: &mut usize) -> Begin {
        let position = qp.sq.next;
        let wqe = qp.sq.at(position);
        let inline;
        let (data, limit) = if wqe.inline {
            inline = [qp.sq.inline(position)];
            (SendData::Inline(&inline), wqe.total)
        } else {
            (SendData::List(qp.sq.list(position)), clamp(*budget).max(64))
        };
        if wqe.request.op.is_atomic() && !tables.mrs.check(qp.pd, qp.sq.list(position), LOCAL_WRITE) {
            // The result is for foreign memory.
            return Begin::Go;
        }
        let len = (wqe.total - wqe.progress).min(limit);
        let operation = Operation { request: &wqe.request, data, total: wqe.total, at: wqe.progress, len };
        if *budget == 0 {
            return Begin::More;
        }
        if direct::execute(qp, operation, tables).is_none() {
            qp.sq.at_mut(position).progress = 0;
            return Begin::Go;
        }
        *budget = budget.saturating_sub(len.max(64) as usize);
        let wqe = qp.sq.at_mut(position);
        wqe.progress += len;
        if wqe.progress < wqe.total {
            return Begin::More;
        }
        if wqe.has(SendFlags::IMM) {
            wqe.written = true;
            return Begin::Go;
        }
        wqe.done = true;
        // Once for each request: a repeated attempt, which skips it, is no progress.
        self.refill(&qp.attr);
        self.skip(qp, tables)
    }

    /// Steps over the request at `sq.next`, which needs no link.
    fn skip(&mut self, qp: &mut Qp, tables: &mut Tables) -> Begin {
        qp.sq.next += 1;
        self.complete(qp, tables);
        Begin::Skip
    }

    /// Executes a request directly instead of posting it, if the send queue is empty and the target
    /// is within reach; the request then needs no place in the queue. Returns its length.
    #[inline(always)]
    pub(super) fn execute_directly(
        qp: &Qp,
        request: &SendRequest,
        data: SendData<'_>,
        tables: &mut Tables,
    ) -> Option<u32> {
        let op = request.op;
        let is_one_sided = op != Op::Send && !request.flags.intersects(SendFlags::IMM.union(SendFlags::FAULT));
        if !is_one_sided || qp.state != QpState::Rts || !qp.sq.is_empty() {
            return None;
        }
        let total = qp.sq.admit(op, data).ok().filter(|total| (1..=DIRECT_LIMIT).contains(total))?;
        if op.fetches() {
            let SendData::List(list) = data else { return None };
            let fits = qp.attr.max_rd_atomic > 0 && (op == Op::Read || total == 8);
            if !fits || !tables.mrs.check(qp.pd, list, LOCAL_WRITE) {
                return None;
            }
        }
        direct::execute(qp, Operation { request, data, total, at: 0, len: total }, tables)?;
        Some(total)
    }

    /// Executes the request that was just posted, which is no send, directly, if every request
    /// before it is sent and the target is within reach.
    pub(super) fn transmit_directly(&mut self, qp: &mut Qp, tables: &mut Tables) {
        if self.listed || qp.sq.next + 1 != qp.sq.tail || self.offset != 0 || !self.may_transmit(qp) {
            return;
        }
        let wqe = qp.sq.at(qp.sq.next);
        if !wqe.has(SendFlags::IMM) {
            let mut budget = COPY_BUDGET;
            // A request that must go through the link is sent when the queue pair is scheduled.
            let _begin: Begin = self.begin_request(qp, tables, &mut budget);
        }
    }

    /// Lets the fault happen that waits for the request at `sq.next`. True if the request does not
    /// start now.
    #[cold]
    fn inject(&mut self, qp: &mut Qp, tables: &mut Tables) -> bool {
        if !tables.has_fault(qp.id, qp.sq.next) {
            return false;
        }
        if self.una != self.next_number {
            // Earlier requests are answered first, so that the fault is this request's alone.
            return true;
        }
        match tables.take_fault(qp.id, qp.sq.next) {
            Some(Fault::Delay(nanos, _)) => tables.delay(qp.id, nanos),
            Some(Fault::Loss(_) | Fault::PortDown(_)) => self.wait_for_hearing(qp, tables),
            Some(Fault::Rnr(_)) => self.back_off(qp, MIN_RNR_TIMER, tables),
            Some(Fault::Operation) => self.stall(qp, ibv_wc_status::IBV_WC_REM_OP_ERR, tables),
            Some(Fault::Protection) => self.stall(qp, ibv_wc_status::IBV_WC_LOC_PROT_ERR, tables),
            Some(Fault::Response) => self.stall(qp, ibv_wc_status::IBV_WC_BAD_RESP_ERR, tables),
            Some(Fault::Flush) => self.fail(qp, None, tables),
            Some(Fault::CqError) => tables.cqs.overflow(qp.send_cq, &mut tables.events),
            Some(Fault::Late(..) | Fault::Access | Fault::DeviceFatal | Fault::Die) | None => return false,
        }
        true
    }

    /// Lets the request at `sq.next` fail with `status` once all before it are complete.
    fn stall(&mut self, qp: &mut Qp, status: ibv_wc_status, tables: &mut Tables) {
        self.stalled = Some(status);
        self.complete(qp, tables);
    }

    /// Sends the next piece of the request at `sq.next`.
    fn push_segment(
        &mut self,
        qp: &mut Qp,
        resp: &mut Responder,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Result<Pushed, ibv_wc_status> {
        let position = qp.sq.next;
        let wqe = qp.sq.at(position);
        let request = &wqe.request;
        let mut frame = Frame::new(kind_of(wqe), qp.attr.dest_qpn, qp.qpn, self.next_number, self.epoch());
        (frame.addr, frame.key, frame.total) = (request.remote_addr, request.rkey, wqe.total);
        let (carries, total) = (!request.op.fetches() && !wqe.written, wqe.total);
        let len = if carries { out.piece(total - self.offset) } else { 0 };
        match request.op {
            Op::CompareSwap => (frame.a, frame.b) = (request.compare_add, request.swap),
            Op::FetchAdd => frame.a = request.compare_add,
            Op::Read => {}
            Op::Send | Op::Write => frame.set_offset(self.offset, request.imm),
        }
        frame.flags = wire::request_flags(request.flags);
        if wqe.has(SendFlags::SIGNALED) {
            frame.flags |= wire::ACK_REQUEST;
        }
        let carried = if frame.can_carry() { resp.ack_to_carry(qp, tables) } else { None };
        if let Some((number, epoch)) = carried {
            frame.carry_ack(number, epoch);
        }
        let header = frame.encode();
        let pushed = transfer::push_piece(qp, &header, (self.offset, len), tables, out);
        let pushed = match pushed {
            Some(true) => Pushed::Yes(len),
            Some(false) => Pushed::NoRoom,
            None => fetch::push_request(qp, self.offset, len, tables, |payload| out.try_push(&header, payload))?,
        };
        let Pushed::Yes(len) = pushed else { return Ok(pushed) };
        if carried.is_some() {
            resp.ack_sent();
        }
        *budget = budget.saturating_sub(len.max(64) as usize);
        self.offset += len;
        if !carries || self.offset == total {
            self.sent(qp);
        }
        Ok(pushed)
    }

    /// Records that the request at `sq.next` was sent whole.
    fn sent(&mut self, qp: &mut Qp) {
        let number = self.next_number;
        let wqe = qp.sq.at_mut(qp.sq.next);
        wqe.number = number;
        if wqe.request.op.fetches() {
            self.fetching += 1;
        }
        if wqe.request.op.changes_memory() {
            self.last_change = Some(number);
        }
        self.next_number = after(number);
        self.offset = 0;
        qp.sq.next += 1;
    }

    /// Completes answered and directly executed requests in order, up to the first other one.
    fn complete(&mut self, qp: &mut Qp, tables: &mut Tables) {
        while qp.sq.head < qp.sq.next {
            let wqe = qp.sq.at(qp.sq.head);
            if !wqe.done {
                if !precedes(wqe.number, self.una) {
                    break;
                }
                if wqe.request.op.fetches() {
                    // An answer acknowledged a later request, but the data for this one never came.
                    return qp.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), tables);
                }
            }
            if wqe.has(SendFlags::FAULT) && tables.completes_late(qp.id, qp.sq.head) {
                return;
            }
            qp.complete_send(tables);
        }
        match self.stalled {
            Some(status) if qp.sq.head == qp.sq.next => qp.fail(Some(status), tables),
            _ => qp.report_drained(tables),
        }
    }

    /// Completes the oldest request, which a fault has held back.
    pub(super) fn end_late(&mut self, qp: &mut Qp, tables: &mut Tables) {
        tables.end_late(qp.id, qp.sq.head);
        if qp.state != QpState::Err {
            self.complete(qp, tables);
        }
    }

    /// Completes the answered requests that faults hold back: what comes now is about the first
    /// request without an answer.
    fn release_late(&mut self, qp: &mut Qp, tables: &mut Tables) {
        while qp.state != QpState::Err && qp.sq.head < qp.sq.next {
            let wqe = qp.sq.at(qp.sq.head);
            if !wqe.has(SendFlags::FAULT) || !(wqe.done || precedes(wqe.number, self.una)) {
                return;
            }
            self.end_late(qp, tables);
        }
    }

    /// Moves the queue pair to ERR. The oldest request without an answer completes with `status`,
    /// if it is given; the others are flushed.
    fn fail(&mut self, qp: &mut Qp, status: Option<ibv_wc_status>, tables: &mut Tables) {
        self.release_late(qp, tables);
        qp.fail(status, tables);
    }

    /// Handles an answer from the connected queue pair on the right link.
    pub(super) fn handle_answer(
        &mut self,
        qp: &mut Qp,
        frame: &Frame,
        payload: Source<'_>,
        tables: &mut Tables,
    ) -> Handled {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) || frame.epoch >> 8 != u16::from(self.incarnation) {
            return Handled::Yes;
        }
        let of_this_attempt = frame.epoch == self.epoch();
        match frame.kind {
            Kind::Ack if self.is_open(frame.number, false) => self.acknowledge(qp, after(frame.number), tables),
            Kind::Nak if self.is_open(frame.number, true) => self.handle_nak(qp, frame, tables),
            Kind::RnrNak if of_this_attempt && self.is_open(frame.number, true) => self.handle_rnr(qp, frame, tables),
            Kind::Dropped if of_this_attempt && self.is_open(frame.number, true) => {
                self.handle_dropped(qp, frame, tables);
            }
            Kind::ReadData | Kind::AtomicData if self.is_open(frame.number, false) => {
                return self.handle_data(qp, frame, payload, tables);
            }
            _ => {}
        }
        Handled::Yes
    }

    /// Records that everything before `una` is answered.
    fn acknowledge(&mut self, qp: &mut Qp, una: u32, tables: &mut Tables) {
        if una != self.una {
            self.una = una;
            self.refill(&qp.attr);
            self.complete(qp, tables);
        }
    }

    /// Completes everything before message `number`. False if that was not possible, and the queue
    /// pair is in ERR.
    #[must_use]
    fn acknowledge_before(&mut self, qp: &mut Qp, number: u32, tables: &mut Tables) -> bool {
        self.acknowledge(qp, number, tables);
        self.release_late(qp, tables);
        if qp.state == QpState::Err {
            return false;
        }
        let wqe = qp.sq.at(qp.sq.head);
        let is_it = if qp.sq.head == qp.sq.next { self.offset > 0 } else { wqe.number == number && !wqe.done };
        if !is_it {
            qp.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), tables);
        }
        is_it
    }

    fn handle_nak(&mut self, qp: &mut Qp, frame: &Frame, tables: &mut Tables) {
        let status = match Refusal::from_bits(frame.code) {
            Some(Refusal::InvalidRequest) => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            Some(Refusal::Access) => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            Some(Refusal::Operation) => ibv_wc_status::IBV_WC_REM_OP_ERR,
            None => ibv_wc_status::IBV_WC_BAD_RESP_ERR,
        };
        if self.acknowledge_before(qp, frame.number, tables) {
            qp.fail(Some(status), tables);
        }
    }

    fn handle_rnr(&mut self, qp: &mut Qp, frame: &Frame, tables: &mut Tables) {
        if self.acknowledge_before(qp, frame.number, tables) {
            self.back_off(qp, frame.code, tables);
        }
    }

    /// Waits for the receiver, as long as the RNR timer `code` says, or fails if no retry is left.
    fn back_off(&mut self, qp: &mut Qp, code: u8, tables: &mut Tables) {
        if qp.attr.rnr_retry != 7 {
            if self.rnr_retries == 0 {
                return self.fail(qp, Some(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR), tables);
            }
            self.rnr_retries -= 1;
        }
        tables.counters.rnr_waits += 1;
        self.start_waiting(qp, Wait::Rnr, rnr_nanos(code), tables);
    }

    fn handle_dropped(&mut self, qp: &mut Qp, frame: &Frame, tables: &mut Tables) {
        if frame.code != LOST_IN_ORDER || self.acknowledge_before(qp, frame.number, tables) {
            self.wait_for_hearing(qp, tables);
        }
    }

    /// Waits before another attempt: a request was dropped, or the peer cannot be reached.
    pub(super) fn wait_for_hearing(&mut self, qp: &Qp, tables: &mut Tables) {
        if self.wait == Wait::No {
            self.start_waiting(qp, Wait::Silence, ack_nanos(qp.attr.timeout), tables);
        }
    }

    fn start_waiting(&mut self, qp: &Qp, wait: Wait, nanos: u64, tables: &mut Tables) {
        self.wait = wait;
        self.timer = self.timer.wrapping_add(1);
        tables.timers.start(Owner::Qp(qp.id), self.timer, nanos);
    }

    /// Ends a wait: sends again, or fails if no retry is left.
    pub(super) fn handle_timer(&mut self, qp: &mut Qp, generation: u32, tables: &mut Tables) {
        if generation != self.timer || qp.state == QpState::Err {
            return;
        }
        match core::mem::replace(&mut self.wait, Wait::No) {
            Wait::No => return,
            Wait::Rnr => {}
            Wait::Silence if self.retries == 0 => {
                return self.fail(qp, Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR), tables);
            }
            Wait::Silence => {
                self.retries -= 1;
                tables.counters.retries += 1;
            }
            Wait::Death if qp.sq.is_empty() => return,
            Wait::Death => return self.fail(qp, Some(ibv_wc_status::IBV_WC_RETRY_EXC_ERR), tables),
        }
        self.release_late(qp, tables);
        self.go_back(qp);
    }

    /// Prepares everything from `una` on to be sent again.
    fn go_back(&mut self, qp: &mut Qp) {
        let mut first = None;
        for position in qp.sq.head..(qp.sq.next + 1).min(qp.sq.tail) {
            let wqe = qp.sq.at_mut(position);
            if !wqe.done {
                wqe.progress = 0;
                first.get_or_insert(position);
            }
        }
        qp.sq.next = first.unwrap_or(qp.sq.next);
        self.next_number = self.una;
        self.offset = 0;
        self.fetching = 0;
        self.stalled = None;
        self.last_change = None;
        self.attempt = self.attempt.wrapping_add(1);
    }

    /// Handles a piece of a read's data, or an atomic's result.
    fn handle_data(&mut self, qp: &mut Qp, frame: &Frame, payload: Source<'_>, tables: &mut Tables) -> Handled {
        if !self.acknowledge_before(qp, frame.number, tables) {
            return Handled::Yes;
        }
        let position = qp.sq.head;
        let wqe = *qp.sq.at(position);
        let result = frame.addr.to_ne_bytes();
        let payload = if frame.kind == Kind::AtomicData { Source::of(&result) } else { payload };
        if !is_expected(frame, &wqe) {
            qp.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), tables);
        } else if tables.mrs.scatter(qp.pd, qp.sq.list(position), wqe.progress, payload, frame.origin()) {
            self.advance(qp, frame, payload.len(), tables);
        } else if tables.mrs.check_all(qp.pd, qp.sq.list(position), LOCAL_WRITE) {
            return Handled::Store;
        } else {
            qp.fail(Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR), tables);
        }
        Handled::Yes
    }

    /// Where data belongs that continues that of the oldest request.
    pub(super) fn place<'a>(&self, qp: &'a Qp, frame: &Frame, len: usize, tables: &'a Tables) -> Option<Target<'a>> {
        if !self.awaits(qp, frame) || frame.offset() == 0 {
            return None;
        }
        tables.mrs.next_target(qp.pd, qp.sq.list(qp.sq.head), frame.offset(), len)
    }

    /// Whether a frame has the next data of the oldest request.
    fn awaits(&self, qp: &Qp, frame: &Frame) -> bool {
        if frame.epoch != self.epoch() || !self.is_open(frame.number, false) || qp.sq.head >= qp.sq.next {
            return false;
        }
        let wqe = qp.sq.at(qp.sq.head);
        wqe.number == frame.number && is_expected(frame, wqe)
    }

    /// Records that data is stored in foreign memory.
    pub(super) fn stored(&mut self, qp: &mut Qp, frame: &Frame, len: usize, tables: &mut Tables) {
        if self.awaits(qp, frame) {
            self.advance(qp, frame, len, tables);
        }
    }

    /// Records that a piece of data for the oldest request is in place.
    fn advance(&mut self, qp: &mut Qp, frame: &Frame, len: usize, tables: &mut Tables) {
        let wqe = qp.sq.at_mut(qp.sq.head);
        let progress = wqe.progress + clamp(len);
        wqe.progress = progress;
        if progress == wqe.total {
            wqe.done = true;
            self.fetching = self.fetching.saturating_sub(1);
            self.acknowledge(qp, after(frame.number), tables);
        }
    }

    /// The last link to the peer is gone. No process is left that could answer, so posted requests
    /// fail, but not at once: a program that has what it needs from its peer ends with requests
    /// outstanding, and relies on its NIC to send them again for a while.
    pub(super) fn handle_peer_death(&mut self, qp: &Qp, tables: &mut Tables) {
        self.listed = false;
        if matches!(qp.state, QpState::Rts | QpState::Sqd) && !qp.sq.is_empty() {
            let attempts = u64::from(self.retries) + 1;
            let nanos = DEATH_NANOS.min(ack_nanos(qp.attr.timeout).saturating_mul(attempts));
            self.start_waiting(qp, Wait::Death, nanos, tables);
        }
    }
}

/// Whether a frame has the next data of a request.
fn is_expected(frame: &Frame, wqe: &SendWqe) -> bool {
    match frame.kind {
        Kind::AtomicData => wqe.request.op.is_atomic(),
        _ => wqe.request.op == Op::Read && frame.offset() == wqe.progress && frame.total == wqe.total,
    }
}

/// The way in which the request at `sq.next` may begin.
enum Begin {
    /// Send the request through the link.
    Go,
    /// Not now.
    Hold,
    /// The request needs no link: it is executed already.
    Skip,
    /// The request is executed directly in parts; more parts are left.
    More,
}

fn kind_of(wqe: &SendWqe) -> Kind {
    match wqe.request.op {
        _ if wqe.written => Kind::WriteDone,
        Op::Send => Kind::Send,
        Op::Write => Kind::Write,
        Op::Read => Kind::Read,
        Op::CompareSwap => Kind::CompareSwap,
        Op::FetchAdd => Kind::FetchAdd,
    }
}

fn clamp(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
