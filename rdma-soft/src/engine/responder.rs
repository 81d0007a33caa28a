//! The responder's side of a queue pair: executes requests in order, and owes answers in order.
//!
//! Answers are kept, not frames: reads and atomics in a ring of `max_dest_rd_atomic`, then at most one acknowledgement or
//! refusal, which speaks for all messages before it. So a peer that does not make room for answers costs no memory.

use std::collections::VecDeque;

use rdma_sys::{ibv_event_type, ibv_wc_opcode, ibv_wc_status};

use super::Outbound;
use super::cq::set_imm;
use super::frame::{self, Frame, Kind, Refusal, after, before};
use super::limits::MAX_RD_ATOMIC;
use super::memory::{Atomic, Gather, Source};
use super::mr::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::qp::Qp;
use super::shared::Shared;
use super::types::{LinkId, QpState, Transmit};

/// A message of which not everything has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
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

/// The responder's state.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// In the list of a link.
    pub(super) listed: bool,
    /// The number of the next message.
    pub(super) expected: u32,
    pub(super) inbound: Option<Inbound>,
    /// Requests of this attempt were refused or dropped: what follows of it is ignored.
    deaf_to: Option<u16>,
    /// Of the last request that was accepted.
    epoch: u16,
    link: Option<LinkId>,
    answers: VecDeque<Answer>,
    max_answers: usize,
    ack_due: bool,
    refusal: Option<Frame>,
    established: bool,
    /// In the list of those whose acknowledgements are put off.
    deferred: bool,
}

impl Responder {
    pub(super) fn begin(&mut self, expected: u32, max_dest_rd_atomic: u8) {
        self.expected = expected;
        self.max_answers = usize::from(max_dest_rd_atomic.min(MAX_RD_ATOMIC));
        self.answers.reserve_exact(self.max_answers);
    }

    /// The number and epoch that a request may acknowledge, if it goes where requests come from.
    pub(super) fn ack_to_carry(&self, link: Option<LinkId>) -> Option<(u32, u16)> {
        (self.ack_due && self.link == link && self.answers.is_empty() && self.refusal.is_none())
            .then(|| (before(self.expected), self.epoch))
    }

    /// A request has carried the acknowledgement.
    pub(super) const fn ack_sent(&mut self) {
        self.ack_due = false;
    }

    /// A new responder with the old one's memory.
    pub(super) fn recycled(mut self) -> Self {
        self.answers.clear();
        Self { answers: self.answers, deferred: self.deferred, ..Self::default() }
    }
}

/// What became of a request.
enum Outcome {
    /// Executed as far as it has come.
    Done,
    /// No receive was there.
    NotReady,
    /// Refused; the queue pair goes to ERR.
    Refused(Refusal, Option<ibv_event_type>),
}

const ACCESS: Outcome = Outcome::Refused(Refusal::Access, Some(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR));
const INVALID: Outcome = Outcome::Refused(Refusal::InvalidRequest, Some(ibv_event_type::IBV_EVENT_QP_REQ_ERR));

impl Qp {
    /// A request has come in on a link that its sender's process is behind.
    pub(super) fn handle_request(&mut self, link: LinkId, frame: &Frame, payload: Source<'_>, shared: &mut Shared) {
        if frame.from != self.attr.dest_qpn || matches!(self.state, QpState::Reset | QpState::Init) {
            // Not connected, or to somebody else: nothing of ours changes.
            shared.peers.push_stray(link, &dropped(frame));
            return;
        }
        if self.resp.deaf_to == Some(frame.epoch) {
            return;
        }
        if !self.hears() || !self.is_next(frame) {
            self.resp.deaf_to = Some(frame.epoch);
            self.resp.inbound = None;
            shared.peers.push_stray(link, &dropped(frame));
            return;
        }
        if self.resp.link != Some(link) {
            // The old link's answers have nobody left to read them.
            shared.peers.forget_answers(self.id.0);
            self.resp.listed = false;
            self.resp.answers.clear();
            self.resp.refusal = None;
            self.resp.link = Some(link);
        }
        self.resp.epoch = frame.epoch;
        self.resp.deaf_to = None;
        if self.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            self.event(shared, ibv_event_type::IBV_EVENT_COMM_EST);
        }
        match self.execute(frame, payload, shared) {
            Outcome::Done => return self.advance(frame, payload.len(), link, shared),
            Outcome::NotReady => self.refuse(Kind::RnrNak, self.attr.min_rnr_timer, frame),
            Outcome::Refused(refusal, event) => {
                self.refuse(Kind::Nak, refusal as u8, frame);
                if let Some(event) = event {
                    self.event(shared, event);
                }
                self.fail(None, shared);
            }
        }
        self.schedule_answers(link, shared);
    }

    /// Whether a request is the next piece of the message that is expected.
    fn is_next(&self, frame: &Frame) -> bool {
        if frame.number != self.resp.expected {
            return false;
        }
        match self.resp.inbound {
            Some(inbound) => (inbound.kind, inbound.total, inbound.offset) == (frame.kind, frame.total, frame.offset()),
            None => !frame.kind.is_cut() || frame.offset() == 0,
        }
    }

    fn refuse(&mut self, kind: Kind, code: u8, frame: &Frame) {
        let mut refusal = Frame::new(kind, frame.from, frame.to, frame.number, frame.epoch);
        refusal.code = code;
        self.resp.refusal = Some(refusal);
        self.resp.ack_due = false;
        self.resp.deaf_to = Some(frame.epoch);
        self.resp.inbound = None;
    }

    /// A piece was executed.
    fn advance(&mut self, frame: &Frame, len: usize, link: LinkId, shared: &mut Shared) {
        if frame.kind.is_cut() {
            let end = frame.offset() as usize + len;
            if end < frame.total as usize {
                let offset = u32::try_from(end).unwrap_or(u32::MAX);
                self.resp.inbound = Some(Inbound { kind: frame.kind, total: frame.total, offset });
                return;
            }
            self.resp.inbound = None;
        }
        self.resp.expected = after(self.resp.expected);
        // The data of a read or an atomic is its acknowledgement.
        self.resp.ack_due = matches!(frame.kind, Kind::Send | Kind::Write | Kind::WriteDone);
        if self.resp.ack_due && shared.defer_acks {
            if !self.resp.deferred {
                self.resp.deferred = true;
                shared.deferred.push(self.id.0);
            }
        } else {
            self.schedule_answers(link, shared);
        }
    }

    /// Sends an acknowledgement that was put off, unless a request has carried it meanwhile.
    pub(super) fn release_ack(&mut self, shared: &mut Shared) {
        self.resp.deferred = false;
        if let Some(link) = self.resp.link.filter(|_| self.resp.ack_due) {
            self.schedule_answers(link, shared);
        }
    }

    fn execute(&mut self, frame: &Frame, payload: Source<'_>, shared: &mut Shared) -> Outcome {
        match frame.kind {
            Kind::Send => self.execute_send(frame, payload, shared),
            Kind::Write | Kind::WriteDone => self.execute_write(frame, payload, shared),
            Kind::Read => self.execute_read(frame, shared),
            Kind::CompareSwap => {
                self.execute_atomic(frame, Atomic::CompareSwap { compare: frame.a, swap: frame.b }, shared)
            }
            Kind::FetchAdd => self.execute_atomic(frame, Atomic::Add(frame.a), shared),
            _ => INVALID,
        }
    }

    fn execute_send(&mut self, frame: &Frame, payload: Source<'_>, shared: &mut Shared) -> Outcome {
        let Some((wqe, list)) = self.rq.front() else { return Outcome::NotReady };
        if wqe.total < frame.total {
            self.complete_receive(frame, ibv_wc_status::IBV_WC_LOC_LEN_ERR, shared);
            return Outcome::Refused(Refusal::InvalidRequest, None);
        }
        if !shared.mrs.scatter(self.pd, list, frame.offset(), payload) {
            self.complete_receive(frame, ibv_wc_status::IBV_WC_LOC_PROT_ERR, shared);
            return Outcome::Refused(Refusal::Operation, None);
        }
        if frame.offset() as usize + payload.len() == frame.total as usize {
            self.complete_receive(frame, ibv_wc_status::IBV_WC_SUCCESS, shared);
        }
        Outcome::Done
    }

    fn execute_write(&mut self, frame: &Frame, payload: Source<'_>, shared: &mut Shared) -> Outcome {
        let with_imm = frame.flags & frame::IMM != 0;
        if with_imm && self.rq.front().is_none() {
            return Outcome::NotReady;
        }
        let mut is_last = true;
        if frame.kind == Kind::Write && frame.total != 0 {
            if self.attr.access & REMOTE_WRITE == 0 {
                return ACCESS;
            }
            // The whole range is checked with each piece: the region may go away between two.
            let whole = shared.mrs.remote_target(frame.key, self.pd, REMOTE_WRITE, frame.addr, frame.total as usize);
            let Some(target) = whole.and_then(|target| target.part(frame.offset() as usize, payload.len())) else {
                return ACCESS;
            };
            target.write(payload);
            is_last = frame.offset() as usize + payload.len() == frame.total as usize;
        }
        if with_imm && is_last {
            self.complete_receive(frame, ibv_wc_status::IBV_WC_SUCCESS, shared);
        }
        Outcome::Done
    }

    fn execute_read(&mut self, frame: &Frame, shared: &Shared) -> Outcome {
        if frame.total != 0 {
            let total = frame.total as usize;
            let allowed = self.attr.access & REMOTE_READ != 0;
            if !allowed || shared.mrs.remote_source(frame.key, self.pd, REMOTE_READ, frame.addr, total).is_none() {
                return ACCESS;
            }
        }
        if self.resp.answers.len() >= self.resp.max_answers {
            return INVALID;
        }
        let (number, epoch, key, addr, total) = (frame.number, frame.epoch, frame.key, frame.addr, frame.total);
        self.resp.answers.push_back(Answer::Read { number, epoch, key, addr, total, sent: 0 });
        Outcome::Done
    }

    fn execute_atomic(&mut self, frame: &Frame, change: Atomic, shared: &Shared) -> Outcome {
        if frame.addr % 8 != 0 || self.resp.answers.len() >= self.resp.max_answers {
            return INVALID;
        }
        if self.attr.access & REMOTE_ATOMIC == 0 {
            return ACCESS;
        }
        let Some(target) = shared.mrs.remote_target(frame.key, self.pd, REMOTE_ATOMIC, frame.addr, 8) else {
            return ACCESS;
        };
        // Only a region whose address and iova differ in their last bits has no aligned word here.
        let Some(result) = target.atomic(change) else { return INVALID };
        self.resp.answers.push_back(Answer::Atomic { number: frame.number, epoch: frame.epoch, result });
        Outcome::Done
    }

    /// The oldest receive is complete.
    fn complete_receive(&mut self, frame: &Frame, status: ibv_wc_status, shared: &mut Shared) {
        let Some(wqe) = self.rq.pop() else { return };
        let solicited = frame.flags & frame::SOLICITED != 0;
        let (qpn, src_qp) = (self.qpn, self.attr.dest_qpn);
        shared.cqs.push(self.recv_cq, solicited, &mut shared.events, |wc| {
            wc.opcode = match frame.kind {
                Kind::Send => ibv_wc_opcode::IBV_WC_RECV,
                _ => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            };
            (wc.wr_id, wc.status, wc.byte_len) = (wqe.wr_id, status, frame.total);
            (wc.qp_num, wc.src_qp) = (qpn, src_qp);
            if frame.flags & frame::IMM != 0 {
                set_imm(wc, frame.imm());
            }
        });
    }

    /// Sends the answers that are due.
    pub(super) fn answer(&mut self, shared: &mut Shared, out: &mut impl Outbound, budget: &mut usize) -> Transmit {
        while let Some(answer) = self.resp.answers.front().copied() {
            if *budget == 0 {
                return Transmit::More;
            }
            match answer {
                Answer::Atomic { number, epoch, result } => {
                    let mut frame = Frame::new(Kind::AtomicData, self.attr.dest_qpn, self.qpn, number, epoch);
                    frame.addr = result;
                    if !out.try_push(&frame.encode(), &Gather::EMPTY) {
                        return Transmit::Blocked;
                    }
                    self.resp.answers.pop_front();
                }
                Answer::Read { .. } => match self.answer_read(answer, shared, out, budget) {
                    Some(true) => {}
                    Some(false) => return Transmit::Blocked,
                    None => {
                        // The region is gone, or its rights are.
                        self.resp.answers.clear();
                        self.refuse_read(answer, shared);
                    }
                },
            }
        }
        if let Some(refusal) = self.resp.refusal {
            if !out.try_push(&refusal.encode(), &Gather::EMPTY) {
                return Transmit::Blocked;
            }
            self.resp.refusal = None;
        } else if self.resp.ack_due {
            if !out.try_push(&self.ack().encode(), &Gather::EMPTY) {
                return Transmit::Blocked;
            }
            self.resp.ack_due = false;
        }
        Transmit::Idle
    }

    fn ack(&self) -> Frame {
        Frame::new(Kind::Ack, self.attr.dest_qpn, self.qpn, before(self.resp.expected), self.resp.epoch)
    }

    /// Sends a piece of a read: whether there was room; `None` if the memory may no longer be read.
    fn answer_read(
        &mut self,
        answer: Answer,
        shared: &Shared,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Option<bool> {
        let Answer::Read { number, epoch, key, addr, total, sent } = answer else { return None };
        let len = (total - sent).min(u32::try_from(out.max_payload()).unwrap_or(u32::MAX));
        let mut frame = Frame::new(Kind::ReadData, self.attr.dest_qpn, self.qpn, number, epoch);
        frame.total = total;
        frame.set_offset(sent, 0);
        let payload = if total == 0 {
            Source::EMPTY
        } else {
            let whole = shared.mrs.remote_source(key, self.pd, REMOTE_READ, addr, total as usize)?;
            whole.part(sent as usize, len as usize)?
        };
        if !out.try_push(&frame.encode(), &Gather::one(&payload)) {
            return Some(false);
        }
        *budget = budget.saturating_sub(len.max(64) as usize);
        if sent + len == total {
            self.resp.answers.pop_front();
        } else if let Some(Answer::Read { sent, .. }) = self.resp.answers.front_mut() {
            *sent += len;
        }
        Some(true)
    }

    fn refuse_read(&mut self, answer: Answer, shared: &mut Shared) {
        let Answer::Read { number, epoch, .. } = answer else { return };
        let mut refusal = Frame::new(Kind::Nak, self.attr.dest_qpn, self.qpn, number, epoch);
        refusal.code = Refusal::Access as u8;
        self.resp.refusal = Some(refusal);
        self.resp.ack_due = false;
        self.resp.deaf_to = Some(epoch);
        self.event(shared, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);
        self.fail(None, shared);
    }

    /// The queue pair stops answering. The peer hears at once what it would otherwise find out by waiting: what was done, and
    /// that the rest was not heard.
    pub(super) fn abandon_answers(&mut self, shared: &mut Shared) {
        let Some(link) = self.resp.link else { return };
        let owed = self.resp.answers.front().map(|answer| match *answer {
            Answer::Read { number, epoch, .. } | Answer::Atomic { number, epoch, .. } => (number, epoch),
        });
        let (to, from) = (self.attr.dest_qpn, self.qpn);
        if let Some((number, epoch)) = owed {
            shared.peers.push_stray(link, &Frame::new(Kind::Ack, to, from, before(number), epoch));
            shared.peers.push_stray(link, &Frame::new(Kind::Dropped, to, from, number, epoch));
            self.resp.deaf_to = Some(epoch);
        } else {
            if self.resp.ack_due {
                shared.peers.push_stray(link, &self.ack());
            }
            if let Some(refusal) = self.resp.refusal {
                shared.peers.push_stray(link, &refusal);
            } else if self.resp.inbound.is_some() {
                let (number, epoch) = (self.resp.expected, self.resp.epoch);
                shared.peers.push_stray(link, &Frame::new(Kind::Dropped, to, from, number, epoch));
                self.resp.deaf_to = Some(epoch);
            }
        }
        self.resp.answers.clear();
        self.resp.ack_due = false;
        self.resp.refusal = None;
        self.resp.inbound = None;
    }

    /// The link that requests came in on is gone.
    pub(super) fn handle_answer_link_down(&mut self, link: LinkId) {
        if self.resp.link == Some(link) {
            self.resp.link = None;
            self.resp.listed = false;
            self.resp.answers.clear();
            self.resp.ack_due = false;
            self.resp.refusal = None;
            self.resp.inbound = None;
            self.resp.deaf_to = None;
        }
    }
}

/// Tells a requester that its request was not heard.
pub(super) fn dropped(request: &Frame) -> Frame {
    Frame::new(Kind::Dropped, request.from, request.to, request.number, request.epoch)
}
