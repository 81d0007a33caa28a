//! The unreliable connection: messages arrive in order and whole, or are lost without an answer. A
//! request completes when its message is on its way or lost.
//!
//! The sender loses a message where a network would: the peer's process is dead or refuses a link,
//! or its ring stays full as long as [`Patience`] lasts. The receiver drops a message that it
//! cannot execute: no receive request is posted or the posted one is too short, the peer lacks the
//! right, or a piece of the message is lost. A message takes its receive request from a shared
//! queue when its first piece is accepted; if a later piece is lost, the request is left to the
//! queue pair's next message. So a queue pair holds one shared request at most, whatever its peer
//! sends. A peer that stops in mid-message keeps it until the queue pair's next message uses it, or
//! the queue pair is reset or destroyed. Only a receive request whose own memory cannot be written
//! takes the queue pair to ERR.
//!
//! Memory that the processor cannot access is not sent from, and not received into.
//!
//! Writes take the link, never the direct path: without acknowledgements the sender does not know
//! when an earlier message has taken effect.

use rdma_sys::{ibv_event_type, ibv_wc_status};

use super::Outbound;
use super::fault::{Fault, Operations, Unanswered};
use super::memory::Source;
use super::mr::REMOTE_WRITE;
use super::patience::Patience;
use super::peers::{Purpose, Reach, Work};
use super::qp::Qp;
use super::receive::Receive;
use super::tables::Tables;
use super::transfer;
use super::types::{Errno, LinkId, Op, QpState, QpStatus, SendData, SendFlags, SendRequest, Transmit};
use super::wire::{self, Frame, Kind, after};

/// A message of which only a part has arrived.
#[derive(Clone, Copy, Debug)]
struct Inbound {
    link: LinkId,
    /// The last piece that has arrived.
    frame: Frame,
    /// The offset of the next piece.
    offset: u32,
}

/// How the request at `sq.next` begins.
enum Begin {
    /// Its message is sent.
    Go,
    /// It is complete, or the send queue has failed.
    Skip,
    /// It waits.
    Hold,
}

/// The outcome of a piece at the receiver.
enum Delivery {
    /// The piece is in place.
    Done,
    /// The message is dropped.
    Dropped,
    /// The memory of the receive request cannot be written.
    Failed,
}

/// The state of an unreliable connection beyond its queues.
#[derive(Debug)]
pub(super) struct Uc {
    incarnation: u8,
    /// The number of the next message to send.
    next_number: u32,
    /// Bytes of the message at `sq.next` that are sent.
    offset: u32,
    /// The message at `sq.next` waits for a link.
    waiting: bool,
    /// The link whose work list holds the queue pair.
    listed: Option<LinkId>,
    patience: Patience,
    /// The number after that of the last message that has arrived.
    expected: u32,
    inbound: Option<Inbound>,
    established: bool,
    /// Writes in this life that had a wrong key.
    wrong_keys: u32,
}

/// The most wrong keys that a peer may try where keys are secret: without acknowledgements, a
/// wrong key costs the peer nothing else.
const MAX_WRONG_KEYS: u32 = 64;

impl Uc {
    pub(super) fn new(incarnation: u8) -> Self {
        Self {
            incarnation,
            next_number: 0,
            offset: 0,
            waiting: false,
            listed: None,
            patience: Patience::CONNECTION,
            expected: 0,
            inbound: None,
            established: false,
            wrong_keys: 0,
        }
    }

    pub(super) const fn incarnation(&self) -> u8 {
        self.incarnation
    }

    pub(super) const fn status(&self, qp: &Qp) -> QpStatus {
        QpStatus { state: qp.state, sq_draining: qp.is_draining(), sq_psn: self.next_number, rq_psn: self.expected }
    }

    /// Enters a state after the attributes are set.
    pub(super) fn enter(&mut self, qp: &mut Qp, state: QpState, tables: &mut Tables) {
        match state {
            QpState::Reset => self.reset(qp, tables),
            QpState::Err => self.fail(qp, tables),
            QpState::Rtr => {
                qp.state = state;
                self.expected = qp.attr.rq_psn;
                tables.peers.want(qp.peer());
            }
            QpState::Rts => {
                if qp.state == QpState::Rtr {
                    self.next_number = qp.attr.sq_psn;
                }
                qp.state = state;
                self.schedule(qp, tables);
            }
            QpState::Sqd => qp.begin_draining(self.offset > 0, tables),
            QpState::Init | QpState::Sqe => qp.state = state,
        }
    }

    pub(super) fn reset(&mut self, qp: &mut Qp, tables: &mut Tables) {
        qp.reset(tables);
        *self = Self::new(self.incarnation.wrapping_add(1));
    }

    /// Moves the queue pair to ERR.
    pub(super) fn fail(&mut self, qp: &mut Qp, tables: &mut Tables) {
        qp.fail(None, tables);
        self.patience.forget();
        (self.offset, self.waiting, self.inbound) = (0, false, None);
    }

    pub(super) fn post(
        &mut self,
        qp: &mut Qp,
        request: &SendRequest,
        data: SendData<'_>,
        tables: &mut Tables,
    ) -> Result<(), Errno> {
        if request.op.fetches() {
            return Err(Errno::INVAL);
        }
        let judged;
        let request = if tables.faults.is_some() {
            judged = tables.judged(qp, request, data, Operations::of(request.op), false);
            &judged
        } else {
            request
        };
        if qp.post_send(request, data, tables)? {
            self.schedule(qp, tables);
        }
        Ok(())
    }

    /// Puts the queue pair into the work list of the link to its peer. Completes the requests
    /// before the first one that goes over a link.
    pub(super) fn schedule(&mut self, qp: &mut Qp, tables: &mut Tables) {
        self.waiting = false;
        while self.listed.is_none() && qp.may_start() {
            match tables.reach(qp.peer(), Purpose::Process) {
                Reach::Wait => {
                    self.waiting = true;
                    return;
                }
                Reach::Link(link, _) if tables.peers.push_work(link, Work::Requests(qp.id.0)) => {
                    self.listed = Some(link);
                }
                Reach::Link(..) | Reach::Lost => match self.begin(qp, tables) {
                    Begin::Go => self.finish(qp, tables),
                    Begin::Skip => {}
                    Begin::Hold => return,
                },
            }
        }
    }

    /// Whether a message waits for a link.
    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Checks the request at `sq.next` before any of it is sent. If it is wrong, the send queue
    /// fails.
    fn is_valid(&mut self, qp: &mut Qp, tables: &mut Tables) -> bool {
        let position = qp.sq.next;
        let error = transfer::local_error(qp, qp.sq.at(position), position, tables);
        if let Some(status) = error {
            self.fail_sends(qp, status, tables);
        }
        error.is_none()
    }

    /// Stops the send queue at the request at `sq.next`, which completes with `status`.
    fn fail_sends(&mut self, qp: &mut Qp, status: ibv_wc_status, tables: &mut Tables) {
        self.offset = 0;
        self.patience.stop(qp.id, tables);
        qp.fail_sends(status, tables);
    }

    /// Completes the request at `sq.next`: its message is sent or lost.
    fn finish(&mut self, qp: &mut Qp, tables: &mut Tables) {
        self.next_number = after(self.next_number);
        self.offset = 0;
        qp.sq.next += 1;
        qp.complete_send(tables);
        qp.report_drained(tables);
    }

    /// Sends messages over `link` until there are no more, the link is full, or the budget is
    /// spent.
    pub(super) fn transmit(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        while qp.may_start() {
            // A change of the address vector applies to the next message.
            if self.offset == 0 && tables.peers.link_of(qp.peer()) != Some(link) {
                break;
            }
            if *budget == 0 {
                return Transmit::More;
            }
            if self.offset == 0 {
                match self.begin(qp, tables) {
                    Begin::Go => {}
                    Begin::Skip => continue,
                    Begin::Hold => {
                        // The end of the delay lists the queue pair again.
                        self.listed = None;
                        return Transmit::Idle;
                    }
                }
            }
            if !self.push_piece(qp, link, tables, out, budget) {
                return Transmit::Blocked;
            }
        }
        self.listed = None;
        self.schedule(qp, tables);
        Transmit::Idle
    }

    /// Checks the request at `sq.next`, and lets the fault happen that waits for it.
    fn begin(&mut self, qp: &mut Qp, tables: &mut Tables) -> Begin {
        if qp.sq.at(qp.sq.next).has(SendFlags::FAULT) {
            match tables.fault_of_unanswered(qp, qp.sq.next) {
                Unanswered::Sent => {}
                Unanswered::Waits => return Begin::Hold,
                Unanswered::Lost => {
                    self.finish(qp, tables);
                    return Begin::Skip;
                }
                Unanswered::Fails(status) => {
                    self.fail_sends(qp, status, tables);
                    return Begin::Skip;
                }
                Unanswered::Flushed => {
                    self.fail(qp, tables);
                    return Begin::Skip;
                }
            }
        }
        if self.is_valid(qp, tables) { Begin::Go } else { Begin::Skip }
    }

    /// Sends the next piece of the message at `sq.next`; false if the piece waits for space.
    fn push_piece(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> bool {
        let wqe = qp.sq.at(qp.sq.next);
        let (request, total) = (&wqe.request, wqe.total);
        let kind = if request.op == Op::Send { Kind::UcSend } else { Kind::UcWrite };
        let mut frame = Frame::new(kind, qp.attr.dest_qpn, qp.qpn, self.next_number, u16::from(self.incarnation) << 8);
        (frame.addr, frame.key, frame.total) = (request.remote_addr, request.rkey, total);
        frame.set_offset(self.offset, request.imm);
        frame.flags = wire::request_flags(request.flags);
        let len = out.piece(total - self.offset);
        let Some(pushed) = transfer::push_piece(qp, &frame.encode(), (self.offset, len), tables, out) else {
            self.fail_sends(qp, ibv_wc_status::IBV_WC_LOC_PROT_ERR, tables);
            return true;
        };
        *budget = budget.saturating_sub(len.max(64) as usize);
        if !self.patience.ends(qp.id, link, pushed, tables) {
            return false;
        }
        self.offset += len;
        // A message of which a piece is lost is lost as a whole.
        if !pushed || self.offset == total {
            self.finish(qp, tables);
        }
        true
    }

    /// Stops waiting for a link that has been full for too long.
    pub(super) fn handle_timer(&mut self, generation: u32, tables: &mut Tables) {
        self.patience.handle_timer(generation, self.listed, &mut tables.peers);
    }

    /// Handles the loss of a link: a message of which a part has gone over the link is lost, in
    /// either direction.
    pub(super) fn handle_link_down(&mut self, qp: &mut Qp, link: LinkId, tables: &mut Tables) {
        self.inbound = self.inbound.filter(|inbound| inbound.link != link);
        if self.listed == Some(link) {
            self.listed = None;
            self.patience.stop(qp.id, tables);
            if self.offset > 0 {
                self.finish(qp, tables);
            }
            self.schedule(qp, tables);
        }
    }

    /// Handles a piece of a message for this queue pair.
    pub(super) fn handle_message(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        frame: &Frame,
        payload: Source<'_>,
        tables: &mut Tables,
    ) {
        let is_peer = frame.from == qp.attr.dest_qpn && tables.peers.leads_to_host(link, qp.attr.dest_host);
        if !is_peer || !qp.hears() || !self.is_awaited(link, frame) {
            return;
        }
        if qp.state == QpState::Rtr && !core::mem::replace(&mut self.established, true) {
            qp.event(tables, ibv_event_type::IBV_EVENT_COMM_EST);
        }
        if tables.faults.is_some() && frame.offset() == 0 && self.inject(qp, frame, tables) {
            self.expected = after(frame.number);
            return;
        }
        let end = frame.offset() as usize + payload.len();
        let is_last = end == frame.total as usize;
        let delivery = match frame.kind {
            Kind::UcSend => deliver_send(qp, frame, payload, tables),
            _ if tables.keys_are_secret && self.wrong_keys >= MAX_WRONG_KEYS => Delivery::Dropped,
            _ => deliver_write(qp, frame, payload, tables, &mut self.wrong_keys),
        };
        self.expected = after(frame.number);
        match delivery {
            Delivery::Done if !is_last => {
                let offset = u32::try_from(end).unwrap_or(u32::MAX);
                self.inbound = Some(Inbound { link, frame: *frame, offset });
            }
            Delivery::Done if frame.kind == Kind::UcSend || frame.flags & wire::IMM != 0 => {
                transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_SUCCESS, tables);
            }
            Delivery::Done => {}
            Delivery::Dropped => tables.counters.dropped += 1,
            Delivery::Failed => {
                transfer::complete_receive(qp, frame, ibv_wc_status::IBV_WC_LOC_PROT_ERR, tables);
                self.fail(qp, tables);
            }
        }
    }

    /// Lets the fault happen that a plan has for the message that begins with `frame`. True if the
    /// message is dropped.
    #[cold]
    fn inject(&mut self, qp: &mut Qp, frame: &Frame, tables: &mut Tables) -> bool {
        let Some(fault) = tables.judge_message(qp, frame) else { return false };
        match fault {
            Fault::Flush => self.fail(qp, tables),
            Fault::CqError => tables.cqs.overflow(qp.recv_cq, &mut tables.events),
            _ => {}
        }
        true
    }

    /// Whether a piece continues the message in progress or begins one. A message that is not
    /// continued is dropped.
    fn is_awaited(&mut self, link: LinkId, frame: &Frame) -> bool {
        let of = |link: LinkId, frame: &Frame| (link, frame.kind, frame.epoch, frame.number, frame.total);
        let continues =
            |inbound: Inbound| inbound.offset == frame.offset() && of(inbound.link, &inbound.frame) == of(link, frame);
        self.inbound.take().is_some_and(continues) || frame.offset() == 0
    }
}

fn deliver_send(qp: &mut Qp, frame: &Frame, payload: Source<'_>, tables: &mut Tables) -> Delivery {
    if qp.rq.front_len(tables).is_none_or(|len| frame.total > len) {
        return Delivery::Dropped;
    }
    let Some(Receive { list, pd, .. }) = qp.rq.front(qp.pd, tables) else { return Delivery::Dropped };
    let is_stored = tables.mrs.scatter(pd, list, frame.offset(), payload, frame.origin());
    if is_stored { Delivery::Done } else { Delivery::Failed }
}

fn deliver_write(
    qp: &mut Qp,
    frame: &Frame,
    payload: Source<'_>,
    tables: &mut Tables,
    wrong_keys: &mut u32,
) -> Delivery {
    let notifies = frame.flags & wire::IMM != 0;
    if notifies && qp.rq.front_len(tables).is_none() {
        return Delivery::Dropped;
    }
    let may_write = qp.attr.access & REMOTE_WRITE != 0;
    let is_stored = frame.total == 0 || (may_write && transfer::write_payload(qp, frame, payload, tables));
    *wrong_keys = wrong_keys.saturating_add(u32::from(may_write && !is_stored));
    let is_accepted = is_stored && (!notifies || qp.rq.front(qp.pd, tables).is_some());
    if is_accepted { Delivery::Done } else { Delivery::Dropped }
}
