//! The responder: executes requests in order and sends their answers in order.
//!
//! The responder stores answers, not frames: reads and atomics in a ring of `max_dest_rd_atomic`
//! entries, then at most one acknowledgement or refusal, which covers all messages before it. A
//! peer that does not free space for answers therefore costs no memory.

use std::collections::VecDeque;

use rdma_sys::{ibv_event_type, ibv_wc_status};

use super::super::Outbound;
use super::super::fault::Fault;
use super::super::limits::MAX_RD_ATOMIC;
use super::super::memory::{Atomic, Gather, Source};
use super::super::mr::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::super::peers::Work;
use super::super::qp::Qp;
use super::super::receive::Receive;
use super::super::tables::Tables;
use super::super::transfer;
use super::super::types::{LinkId, QpState, Transmit};
use super::super::wire::{self, Frame, Kind, Refusal, after, before};
use super::Handled;
use super::fetch::{self, Pushed};

/// A message of which only a part has arrived.
#[derive(Clone, Copy, Debug)]
struct Inbound {
    kind: Kind,
    total: u32,
    offset: u32,
}

/// An answer with data.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Read { number: u32, epoch: u16, key: u32, addr: u64, total: u32, sent: u32 },
    Atomic { number: u32, epoch: u16, result: u64 },
}

impl Answer {
    const fn to(&self) -> (u32, u16) {
        match *self {
            Self::Read { number, epoch, .. } | Self::Atomic { number, epoch, .. } => (number, epoch),
        }
    }
}

/// The responder's state.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// The queue pair's answers are in the work list of a link.
    pub(super) listed: bool,
    /// The number of the next message.
    pub(super) expected: u32,
    inbound: Option<Inbound>,
    /// A request of this attempt was refused or dropped: the rest of the attempt is ignored.
    deaf_to: Option<u16>,
    /// The epoch of the last request that was accepted.
    epoch: u16,
    link: Option<LinkId>,
    answers: VecDeque<Answer>,
    max_answers: usize,
    ack_due: bool,
    /// The requester waits for the acknowledgement that is due.
    ack_requested: bool,
    refusal: Option<Frame>,
    established: bool,
    /// The queue pair is in `Tables::deferred`.
    deferred: bool,
}

/// The outcome of a request's execution.
enum Outcome {
    /// The piece that has arrived was executed.
    Done,
    /// The piece is for foreign memory: store it first.
    Store,
    /// A fault has lost the request.
    Lost,
    /// No receive request was posted.
    NotReady,
    /// The request is refused; the queue pair goes to ERR.
    Refused(Refusal, Option<ibv_event_type>),
}

const ACCESS: Outcome = Outcome::Refused(Refusal::Access, Some(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR));
const INVALID: Outcome = Outcome::Refused(Refusal::InvalidRequest, Some(ibv_event_type::IBV_EVENT_QP_REQ_ERR));

/// The code of a `Dropped` that follows the answers to all requests before.
pub(super) const LOST_IN_ORDER: u8 = 1;

impl Responder {
    pub(super) fn begin(&mut self, expected: u32, max_dest_rd_atomic: u8) {
        self.expected = expected;
        self.max_answers = usize::from(max_dest_rd_atomic.min(MAX_RD_ATOMIC));
        self.answers.reserve_exact(self.max_answers);
    }

    /// Restores the initial state, but keeps the allocated memory and a place in
    /// `Tables::deferred`.
    pub(super) fn recycle(&mut self) {
        let mut answers = core::mem::take(&mut self.answers);
        answers.clear();
        *self = Self { answers, deferred: self.deferred, ..Self::default() };
    }

    /// Returns the number and epoch that a request may acknowledge. The acknowledgement must be the
    /// only answer due, and requests must come and go over the same link.
    pub(super) fn ack_to_carry(&self, qp: &Qp, tables: &Tables) -> Option<(u32, u16)> {
        let is_alone = self.ack_due && self.answers.is_empty() && self.refusal.is_none();
        (is_alone && self.link == tables.peers.link_of(qp.peer())).then(|| (before(self.expected), self.epoch))
    }

    /// Records that a request has carried the acknowledgement.
    pub(super) const fn ack_sent(&mut self) {
        self.ack_due = false;
    }

    /// Whether answers with data are due.
    pub(super) fn has_data(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Sends the answers that are due, if the peer can be reached.
    pub(super) fn schedule_answers(&mut self, qp: &Qp, tables: &mut Tables) {
        if let Some(link) = self.link {
            self.schedule(qp, link, tables);
        }
    }

    fn schedule(&mut self, qp: &Qp, link: LinkId, tables: &mut Tables) {
        if !self.listed {
            self.listed = tables.peers.push_work(link, Work::Answers(qp.id.0));
        }
    }

    /// Handles a request that came in over a link to its sender's process.
    pub(super) fn handle_request(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        frame: &Frame,
        payload: Source<'_>,
        tables: &mut Tables,
    ) -> Handled {
        let is_peer = frame.from == qp.attr.dest_qpn && tables.peers.leads_to_host(link, qp.attr.dest_host);
        if !is_peer || matches!(qp.state, QpState::Reset | QpState::Init) {
            // Not connected, or connected to another queue pair: drop the request and change
            // nothing.
            tables.peers.push_control(link, &dropped(frame));
            return Handled::Yes;
        }
        if self.deaf_to == Some(frame.epoch) {
            return Handled::Yes;
        }
        if !qp.hears() || !self.is_next(frame) {
            self.drop_request(link, frame, tables);
            return Handled::Yes;
        }
        if self.link != Some(link) {
            // The peer would not accept answers on the old link.
            tables.peers.forget_answers(qp.id.0);
            self.listed = false;
            self.answers.clear();
            self.refusal = None;
            self.link = Some(link);
        }
        self.epoch = frame.epoch;
        self.deaf_to = None;
        if qp.state == QpState::Rtr && !self.established {
            self.established = true;
            qp.event(tables, ibv_event_type::IBV_EVENT_COMM_EST);
        }
        if tables.faults.is_some() && self.inbound.is_none() && self.inject(qp, link, frame, tables) {
            return Handled::Yes;
        }
        let outcome = self.execute(qp, frame, payload, tables);
        if matches!(outcome, Outcome::Store) {
            return Handled::Store;
        }
        self.conclude(qp, link, frame, payload.len(), outcome, tables);
        Handled::Yes
    }

    /// Drops a request, and with it the rest of its attempt.
    pub(super) fn drop_request(&mut self, link: LinkId, frame: &Frame, tables: &mut Tables) {
        self.deaf_to = Some(frame.epoch);
        self.inbound = None;
        tables.peers.push_control(link, &dropped(frame));
    }

    /// Lets the fault happen that a plan has for the request that begins with `frame`. True if the
    /// request is not executed.
    #[cold]
    fn inject(&mut self, qp: &mut Qp, link: LinkId, frame: &Frame, tables: &mut Tables) -> bool {
        let Some(fault) = tables.judge_arrival(qp, frame) else { return false };
        let outcome = match fault {
            Fault::Loss(_) => Outcome::Lost,
            Fault::Rnr(_) => Outcome::NotReady,
            Fault::Access => ACCESS,
            Fault::Operation => {
                if frame.kind == Kind::Send && qp.rq.front(qp.pd, tables).is_some() {
                    transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_LOC_PROT_ERR, tables);
                }
                Outcome::Refused(Refusal::Operation, None)
            }
            Fault::Flush | Fault::CqError => {
                self.conclude(qp, link, frame, 0, Outcome::Lost, tables);
                if fault == Fault::CqError {
                    tables.cqs.overflow(qp.recv_cq, &mut tables.events);
                } else {
                    qp.fail(None, tables);
                }
                return true;
            }
            Fault::Delay(..)
            | Fault::Late(..)
            | Fault::Protection
            | Fault::Response
            | Fault::PortDown(_)
            | Fault::DeviceFatal
            | Fault::Die => return false,
        };
        self.conclude(qp, link, frame, 0, outcome, tables);
        true
    }

    /// Records the outcome of a piece of `len` bytes.
    #[inline]
    fn conclude(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        frame: &Frame,
        len: usize,
        outcome: Outcome,
        tables: &mut Tables,
    ) {
        match outcome {
            Outcome::Done | Outcome::Store => return self.advance(qp, frame, len, link, tables),
            Outcome::Lost => self.refuse(Kind::Dropped, LOST_IN_ORDER, frame),
            Outcome::NotReady => self.refuse(Kind::RnrNak, qp.attr.min_rnr_timer, frame),
            Outcome::Refused(refusal, event) => {
                self.refuse(Kind::Nak, refusal as u8, frame);
                if let Some(event) = event {
                    qp.event(tables, event);
                }
                qp.fail(None, tables);
            }
        }
        self.schedule(qp, link, tables);
    }

    /// Records that a piece is stored in foreign memory.
    pub(super) fn stored(&mut self, qp: &mut Qp, link: LinkId, frame: &Frame, len: usize, tables: &mut Tables) {
        if self.is_current(link, frame) {
            let is_last = frame.offset() as usize + len == frame.total as usize;
            if is_last && (frame.kind == Kind::Send || frame.flags & wire::IMM != 0) {
                transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_SUCCESS, tables);
            }
            self.conclude(qp, link, frame, len, Outcome::Done, tables);
        }
    }

    /// Refuses a piece that cannot be stored in foreign memory.
    pub(super) fn not_stored(&mut self, qp: &mut Qp, link: LinkId, frame: &Frame, why: Unstored, tables: &mut Tables) {
        if self.is_current(link, frame) {
            let outcome = match (frame.kind, why) {
                (Kind::Send, _) => {
                    transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_LOC_PROT_ERR, tables);
                    Outcome::Refused(Refusal::Operation, None)
                }
                (_, Unstored::NoMemory) => ACCESS,
                (_, Unstored::Failed) => Outcome::Refused(Refusal::Operation, None),
            };
            self.conclude(qp, link, frame, 0, outcome, tables);
        }
    }

    /// Whether a piece that was being stored is still awaited: its link is up, and the rest of its
    /// attempt was not dropped.
    fn is_current(&self, link: LinkId, frame: &Frame) -> bool {
        self.link == Some(link) && self.deaf_to != Some(frame.epoch) && self.is_next(frame)
    }

    /// Whether a frame of a link continues the message in progress, so that it would be executed.
    pub(super) fn continues(&self, qp: &Qp, link: LinkId, frame: &Frame, tables: &Tables) -> bool {
        let is_peer = frame.from == qp.attr.dest_qpn && tables.peers.leads_to_host(link, qp.attr.dest_host);
        is_peer && qp.hears() && self.inbound.is_some() && self.epoch == frame.epoch && self.is_current(link, frame)
    }

    /// Whether a frame is the next piece of the expected message.
    fn is_next(&self, frame: &Frame) -> bool {
        if frame.number != self.expected {
            return false;
        }
        match self.inbound {
            Some(inbound) => (inbound.kind, inbound.total, inbound.offset) == (frame.kind, frame.total, frame.offset()),
            None => !frame.kind.is_cut() || frame.offset() == 0,
        }
    }

    fn refuse(&mut self, kind: Kind, code: u8, frame: &Frame) {
        let mut refusal = Frame::new(kind, frame.from, frame.to, frame.number, frame.epoch);
        refusal.code = code;
        self.refusal = Some(refusal);
        self.ack_due = false;
        self.deaf_to = Some(frame.epoch);
        self.inbound = None;
    }

    /// Records that a piece was executed.
    fn advance(&mut self, qp: &Qp, frame: &Frame, len: usize, link: LinkId, tables: &mut Tables) {
        if frame.kind.is_cut() {
            let end = frame.offset() as usize + len;
            if end < frame.total as usize {
                let offset = u32::try_from(end).unwrap_or(u32::MAX);
                self.inbound = Some(Inbound { kind: frame.kind, total: frame.total, offset });
                return;
            }
            self.inbound = None;
        }
        self.expected = after(self.expected);
        let is_requested = frame.flags & wire::ACK_REQUEST != 0;
        self.ack_requested = is_requested || (self.ack_due && self.ack_requested);
        // The data of a read or an atomic acknowledges it.
        self.ack_due = matches!(frame.kind, Kind::Send | Kind::Write | Kind::WriteDone);
        if !self.ack_due || !tables.defer_acks {
            self.schedule(qp, link, tables);
        } else if !self.deferred {
            self.deferred = true;
            tables.deferred.push(qp.id.0);
        }
    }

    /// Whether the peer waits for the acknowledgement that is due.
    pub(super) const fn is_ack_requested(&self) -> bool {
        self.ack_due && self.ack_requested
    }

    pub(super) fn release_ack(&mut self, qp: &Qp, tables: &mut Tables) {
        self.deferred = false;
        if let Some(link) = self.link.filter(|_| self.ack_due) {
            self.schedule(qp, link, tables);
        }
    }

    fn execute(&mut self, qp: &mut Qp, frame: &Frame, payload: Source<'_>, tables: &mut Tables) -> Outcome {
        match frame.kind {
            Kind::Send => execute_send(qp, frame, payload, tables),
            Kind::Write | Kind::WriteDone => execute_write(qp, frame, payload, tables),
            Kind::Read => self.execute_read(qp, frame, tables),
            Kind::CompareSwap => {
                self.execute_atomic(qp, frame, Atomic::CompareSwap { compare: frame.a, swap: frame.b }, tables)
            }
            Kind::FetchAdd => self.execute_atomic(qp, frame, Atomic::Add(frame.a), tables),
            _ => INVALID,
        }
    }

    fn execute_read(&mut self, qp: &Qp, frame: &Frame, tables: &Tables) -> Outcome {
        if frame.total != 0 {
            let total = frame.total as usize;
            let is_ours = tables.mrs.source(frame.key, qp.pd, REMOTE_READ, frame.addr, total).is_some()
                || tables.mrs.foreign(frame.key, qp.pd, REMOTE_READ, frame.addr, total).is_some();
            if qp.attr.access & REMOTE_READ == 0 || !is_ours {
                return ACCESS;
            }
        }
        if self.answers.len() >= self.max_answers {
            return INVALID;
        }
        let (number, epoch, key, addr, total) = (frame.number, frame.epoch, frame.key, frame.addr, frame.total);
        self.answers.push_back(Answer::Read { number, epoch, key, addr, total, sent: 0 });
        Outcome::Done
    }

    fn execute_atomic(&mut self, qp: &Qp, frame: &Frame, change: Atomic, tables: &Tables) -> Outcome {
        if frame.addr % 8 != 0 || self.answers.len() >= self.max_answers {
            return INVALID;
        }
        if qp.attr.access & REMOTE_ATOMIC == 0 {
            return ACCESS;
        }
        let Some(target) = tables.mrs.target(frame.key, qp.pd, REMOTE_ATOMIC, frame.addr, 8) else {
            return ACCESS;
        };
        // The word is unaligned only if the region's address and iova differ in their lowest three
        // bits.
        let Some(result) = target.atomic(change) else { return INVALID };
        self.answers.push_back(Answer::Atomic { number: frame.number, epoch: frame.epoch, result });
        Outcome::Done
    }

    /// Sends the answers that are due.
    pub(super) fn transmit(
        &mut self,
        qp: &mut Qp,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        while let Some(answer) = self.answers.front_mut() {
            if *budget == 0 {
                return Transmit::More;
            }
            match send_answer(answer, qp, tables, out, budget) {
                Piece::Last => {
                    self.answers.pop_front();
                    if let Some(staging) = &mut qp.staging {
                        staging.answer.clear();
                    }
                }
                Piece::Part => {}
                Piece::NoRoom => return Transmit::Blocked,
                Piece::Waits => return Transmit::Idle,
                Piece::Refused(refusal) => self.refuse_read(qp, refusal, tables),
            }
        }
        let owed = self.refusal.or_else(|| self.ack_due.then(|| self.ack(qp)));
        if let Some(frame) = owed {
            if !out.try_push(&frame.encode(), &Gather::EMPTY) {
                return Transmit::Blocked;
            }
            if self.refusal.take().is_none() {
                self.ack_due = false;
            }
        }
        Transmit::Idle
    }

    fn ack(&self, qp: &Qp) -> Frame {
        Frame::new(Kind::Ack, qp.attr.dest_qpn, qp.qpn, before(self.expected), self.epoch)
    }

    /// Refuses the oldest read: its region is gone, or the region's rights are, or a copy has
    /// failed.
    fn refuse_read(&mut self, qp: &mut Qp, why: Refusal, tables: &mut Tables) {
        let Some((number, epoch)) = self.answers.front().map(Answer::to) else { return };
        self.answers.clear();
        let mut refusal = Frame::new(Kind::Nak, qp.attr.dest_qpn, qp.qpn, number, epoch);
        refusal.code = why as u8;
        self.refusal = Some(refusal);
        self.ack_due = false;
        self.deaf_to = Some(epoch);
        qp.event(tables, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
        qp.fail(None, tables);
    }

    /// Stops answering. Tells the peer at once which requests were executed and that the rest was
    /// dropped, instead of letting the peer wait for its timeout.
    pub(super) fn abandon(&mut self, qp: &Qp, tables: &mut Tables) {
        let Some(link) = self.link else { return };
        let frame = |kind, (number, epoch)| Frame::new(kind, qp.attr.dest_qpn, qp.qpn, number, epoch);
        let mut unheard = None;
        if let Some((number, epoch)) = self.answers.front().map(Answer::to) {
            tables.peers.push_control(link, &frame(Kind::Ack, (before(number), epoch)));
            unheard = Some((number, epoch));
        } else {
            if self.ack_due {
                tables.peers.push_control(link, &self.ack(qp));
            }
            if let Some(refusal) = self.refusal {
                tables.peers.push_control(link, &refusal);
            } else if self.inbound.is_some() {
                unheard = Some((self.expected, self.epoch));
            }
        }
        if let Some(message) = unheard {
            tables.peers.push_control(link, &frame(Kind::Dropped, message));
            self.deaf_to = Some(message.1);
        }
        self.owe_nothing();
    }

    /// Forgets everything that belongs to a link that is gone.
    pub(super) fn handle_link_down(&mut self, link: LinkId) {
        if self.link == Some(link) {
            self.link = None;
            self.listed = false;
            self.deaf_to = None;
            self.owe_nothing();
        }
    }

    fn owe_nothing(&mut self) {
        self.answers.clear();
        self.ack_due = false;
        self.refusal = None;
        self.inbound = None;
    }
}

fn execute_send(qp: &mut Qp, frame: &Frame, payload: Source<'_>, tables: &mut Tables) -> Outcome {
    let Some(Receive { wqe, list, pd }) = qp.rq.front(qp.pd, tables) else { return Outcome::NotReady };
    if wqe.total < frame.total {
        transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_LOC_LEN_ERR, tables);
        return Outcome::Refused(Refusal::InvalidRequest, None);
    }
    if !tables.mrs.scatter(pd, list, frame.offset(), payload, frame.origin()) {
        if tables.mrs.check_all(pd, list, LOCAL_WRITE) {
            return Outcome::Store;
        }
        transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_LOC_PROT_ERR, tables);
        return Outcome::Refused(Refusal::Operation, None);
    }
    if frame.offset() as usize + payload.len() == frame.total as usize {
        transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_SUCCESS, tables);
    }
    Outcome::Done
}

fn execute_write(qp: &mut Qp, frame: &Frame, payload: Source<'_>, tables: &mut Tables) -> Outcome {
    let with_imm = frame.flags & wire::IMM != 0;
    if with_imm && qp.rq.front(qp.pd, tables).is_none() {
        return Outcome::NotReady;
    }
    let mut is_last = true;
    if frame.total != 0 && qp.attr.access & REMOTE_WRITE == 0 {
        return ACCESS;
    }
    if frame.kind == Kind::WriteDone {
        // The completion will have this length: that of memory to which the peer may write.
        let target = tables.mrs.target(frame.key, qp.pd, REMOTE_WRITE, frame.addr, frame.total as usize);
        if frame.total != 0 && target.is_none() {
            return ACCESS;
        }
    } else if frame.total != 0 {
        if !transfer::write_payload(qp, frame, payload, tables) {
            let is_foreign =
                tables.mrs.foreign(frame.key, qp.pd, REMOTE_WRITE, frame.addr, frame.total as usize).is_some();
            return if is_foreign { Outcome::Store } else { ACCESS };
        }
        is_last = frame.offset() as usize + payload.len() == frame.total as usize;
    }
    if with_imm && is_last {
        transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_SUCCESS, tables);
    }
    Outcome::Done
}

/// The outcome of sending a piece of an answer.
enum Piece {
    /// The piece was sent; the answer is complete.
    Last,
    /// The piece was sent; more pieces are left.
    Part,
    /// The link is full.
    NoRoom,
    /// The data is being fetched from foreign memory.
    Waits,
    /// The memory may no longer be read, or a copy has failed.
    Refused(Refusal),
}

/// Why a payload was not stored in foreign memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unstored {
    /// The region is gone, or the region's rights are, or the memory is not mapped.
    NoMemory,
    /// The copy has failed.
    Failed,
}

/// Sends the next piece of an answer.
fn send_answer(
    answer: &mut Answer,
    qp: &mut Qp,
    tables: &mut Tables,
    out: &mut impl Outbound,
    budget: &mut usize,
) -> Piece {
    let (to, from) = (qp.attr.dest_qpn, qp.qpn);
    let frame = |kind, number, epoch| Frame::new(kind, to, from, number, epoch);
    let (pushed, last) = match answer {
        Answer::Atomic { number, epoch, result } => {
            let mut frame = frame(Kind::AtomicData, *number, *epoch);
            frame.addr = *result;
            (if out.try_push(&frame.encode(), &Gather::EMPTY) { Pushed::Yes(0) } else { Pushed::NoRoom }, true)
        }
        Answer::Read { number, epoch, key, addr, total, sent } => {
            let mut frame = frame(Kind::ReadData, *number, *epoch);
            frame.total = *total;
            frame.set_offset(*sent, 0);
            let header = frame.encode();
            let len = out.piece(*total - *sent) as usize;
            let payload = if *total == 0 {
                Some(Source::EMPTY)
            } else {
                let whole = tables.mrs.source(*key, qp.pd, REMOTE_READ, *addr, *total as usize);
                whole.and_then(|whole| whole.part(*sent as usize, len))
            };
            let mut push = |payload: &Gather<'_>| out.try_push(&header, payload);
            let pushed = match payload {
                Some(payload) if push(&Gather::one(&payload)) => Pushed::Yes(u32::try_from(len).unwrap_or(0)),
                Some(_) => Pushed::NoRoom,
                None => {
                    let range = tables.mrs.foreign(*key, qp.pd, REMOTE_READ, *addr, *total as usize);
                    let rest = range.and_then(|range| range.part(*sent as usize, (*total - *sent) as usize));
                    let Some(rest) = rest else { return Piece::Refused(Refusal::Access) };
                    match fetch::push_answer(qp, (*number, *epoch, *sent), &rest, len, tables, push) {
                        Ok(pushed) => pushed,
                        Err(refusal) => return Piece::Refused(refusal),
                    }
                }
            };
            if let Pushed::Yes(len) = pushed {
                *sent += len;
            }
            (pushed, *sent == *total)
        }
    };
    match pushed {
        Pushed::Waits => Piece::Waits,
        Pushed::NoRoom => Piece::NoRoom,
        Pushed::Yes(len) => {
            *budget = budget.saturating_sub(len.max(64) as usize);
            if last { Piece::Last } else { Piece::Part }
        }
    }
}

/// Creates the answer to a request that is dropped.
pub(in super::super) fn dropped(request: &Frame) -> Frame {
    Frame::new(Kind::Dropped, request.from, request.to, request.number, request.epoch)
}
