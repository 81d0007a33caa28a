//! The reliable connection: a requester, a responder, and the operations that need no link.
//!
//! The link is reliable and ordered, so there are no duplicates: a request is acknowledged,
//! refused, told to wait (RNR), or reported as dropped by a queue pair that may not take it. What
//! remains is the death of the peer's process: outstanding requests then fail with `RETRY_EXC_ERR`
//! when retries would have run out, after 200 ms at the latest (`timer::DEATH_NANOS`). Programs
//! rely on that time: `ibv_srq_pingpong` ends with requests of its peer outstanding.
//!
//! Acknowledgements are cumulative. While the application polls, its next request carries them
//! (`node/state.rs`).
//!
//! # Files
//!
//! ```text
//!   requester.rs, responder.rs  the two halves of a reliable connection
//!   direct.rs                   one-sided operations that need no link
//!   fetch.rs, inbox.rs          data from and for foreign memory
//! ```

mod direct;
mod fetch;
mod inbox;
mod requester;
mod responder;

use super::Outbound;
use super::directory::Card;
use super::fault::Operations;
use super::memory::{Source, Target};
use super::mr::{REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::peers::Work;
use super::qp::Qp;
use super::receive::Receive;
use super::tables::Tables;
use super::transfer;
use super::types::{Errno, Host, LinkId, Op, QpState, QpStatus, SendData, SendRequest, Transmit};
use super::wire::{Frame, Kind};

use requester::Requester;
use responder::Responder;

pub(super) use responder::dropped;

/// The state of a reliable connection beyond its queues.
#[derive(Debug)]
pub(super) struct Rc {
    req: Requester,
    resp: Responder,
    /// The peer asked for no more requests and data.
    paused: bool,
    held: Held,
}

/// Work that was taken off the link's list because the peer had asked to pause.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    requests: bool,
    answers: bool,
}

/// The outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
enum Handled {
    Yes,
    /// The payload is for foreign memory: store it first.
    Store,
}

impl Rc {
    pub(super) fn new(incarnation: u8) -> Self {
        Self { req: Requester::new(incarnation), resp: Responder::default(), paused: false, held: Held::default() }
    }

    /// Number of this life of the queue pair. Answers to an earlier life (before a reset, or of an
    /// earlier queue pair with the same number) carry another one.
    pub(super) const fn incarnation(&self) -> u8 {
        self.req.incarnation
    }

    pub(super) const fn status(&self, qp: &Qp) -> QpStatus {
        QpStatus {
            state: qp.state,
            sq_draining: qp.is_draining(),
            sq_psn: self.req.next_number,
            rq_psn: self.resp.expected,
        }
    }

    /// Enters a state after the attributes are set.
    pub(super) fn enter(&mut self, qp: &mut Qp, state: QpState, tables: &mut Tables) {
        match state {
            QpState::Reset => self.reset(qp, tables),
            QpState::Err => self.fail(qp, tables),
            QpState::Rtr => {
                qp.state = state;
                self.resp.begin(qp.attr.rq_psn, qp.attr.max_dest_rd_atomic);
                tables.peers.want(qp.peer());
            }
            QpState::Rts => {
                let first = qp.state == QpState::Rtr;
                qp.state = state;
                if first {
                    self.req.begin(&qp.attr);
                }
                self.schedule(qp, tables);
            }
            QpState::Sqd => qp.begin_draining(self.req.has_begun(qp), tables),
            QpState::Init | QpState::Sqe => qp.state = state,
        }
    }

    /// Publishes the rights that the connected requester has for direct operations.
    pub(super) fn publish(qp: &Qp, tables: &mut Tables) {
        // With `max_dest_rd_atomic` 0, direct reads and atomics are refused too.
        let barred = if qp.attr.max_dest_rd_atomic == 0 { REMOTE_READ | REMOTE_ATOMIC } else { 0 };
        let is_reached = qp.hears() && qp.attr.dest_host == Host::LOCAL && !tables.faults_bar_direct_requests();
        let card = is_reached.then(|| Card::new(qp.attr.dest_qpn, qp.pd, qp.attr.access & !barred));
        tables.directory.set_card(qp.id.0, card);
    }

    pub(super) fn reset(&mut self, qp: &mut Qp, tables: &mut Tables) {
        self.resp.abandon(qp, tables);
        qp.reset(tables);
        self.req = Requester::new(self.req.incarnation.wrapping_add(1));
        self.resp.recycle();
        (self.paused, self.held) = (false, Held::default());
    }

    /// Moves the queue pair to ERR without a failed request; tells the requester at the other side
    /// which requests were executed.
    pub(super) fn fail(&mut self, qp: &mut Qp, tables: &mut Tables) {
        self.resp.abandon(qp, tables);
        qp.fail(None, tables);
    }

    #[inline(always)]
    pub(super) fn post(
        &mut self,
        qp: &mut Qp,
        request: &SendRequest,
        data: SendData<'_>,
        tables: &mut Tables,
    ) -> Result<(), Errno> {
        if tables.faults.is_some() {
            return self.post_judged(qp, request, data, tables);
        }
        self.post_now(qp, request, data, tables)
    }

    #[inline(always)]
    fn post_now(
        &mut self,
        qp: &mut Qp,
        request: &SendRequest,
        data: SendData<'_>,
        tables: &mut Tables,
    ) -> Result<(), Errno> {
        if let Some(total) = Requester::execute_directly(qp, request, data, tables) {
            qp.complete_unqueued(request, total, tables);
        } else if qp.post_send(request, data, tables)? {
            if request.op != Op::Send {
                self.req.transmit_directly(qp, tables);
            }
            self.schedule(qp, tables);
        }
        Ok(())
    }

    /// Posts a request while a plan of faults is set.
    #[cold]
    fn post_judged(
        &mut self,
        qp: &mut Qp,
        request: &SendRequest,
        data: SendData<'_>,
        tables: &mut Tables,
    ) -> Result<(), Errno> {
        let request = tables.judged(qp, request, data, Operations::of(request.op), true);
        self.post_now(qp, &request, data, tables)
    }

    /// Completes the oldest request, which a fault has held back.
    pub(super) fn end_late(&mut self, qp: &mut Qp, tables: &mut Tables) {
        self.req.end_late(qp, tables);
        self.schedule(qp, tables);
    }

    /// Puts the requests into their link's work list, if there is something to send and nothing to
    /// wait for.
    #[inline]
    pub(super) fn schedule(&mut self, qp: &Qp, tables: &mut Tables) {
        if self.req.listed || !self.req.may_transmit(qp) {
            return;
        }
        match tables.peers.link_of(qp.peer()) {
            Some(link) => self.req.listed = tables.peers.push_work(link, Work::Requests(qp.id.0)),
            None => tables.peers.want(qp.peer()),
        }
    }

    /// Sends requests. Unless the result is `Idle`, the queue pair must be put into the link's list
    /// again.
    pub(super) fn transmit(
        &mut self,
        qp: &mut Qp,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        if self.paused {
            self.held.requests = true;
            return Transmit::Idle;
        }
        let ended = self.req.transmit(qp, &mut self.resp, tables, out, budget);
        self.req.listed = ended != Transmit::Idle;
        ended
    }

    /// Sends answers.
    pub(super) fn answer(
        &mut self,
        qp: &mut Qp,
        tables: &mut Tables,
        out: &mut impl Outbound,
        budget: &mut usize,
    ) -> Transmit {
        if self.paused && self.resp.has_data() {
            self.held.answers = true;
            return Transmit::Idle;
        }
        let ended = self.resp.transmit(qp, tables, out, budget);
        self.resp.listed = ended != Transmit::Idle;
        ended
    }

    /// Handles a frame from the process that `link` leads to.
    #[inline]
    pub(super) fn handle_frame(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        frame: &Frame,
        payload: Source<'_>,
        tables: &mut Tables,
    ) {
        if qp.staging.is_some() && self.queue(qp, link, frame, payload, tables) {
            return;
        }
        if self.handle_now(qp, link, frame, payload, tables) == Handled::Store {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to_slice(&mut bytes);
            self.store(qp, link, frame, bytes, tables);
        }
    }

    /// Whether the payload of a frame is likely to have a place after its first bytes. Nothing
    /// waits for foreign memory, which is stored in copies of its own.
    pub(super) fn may_cut(&self, qp: &Qp, frame: &Frame, tables: &Tables) -> bool {
        qp.staging.is_none()
            && match frame.kind {
                Kind::Send => qp.rq.front_len(tables).is_some_and(|len| frame.total <= len),
                Kind::Write => write_target(qp, frame, 0, tables).is_some(),
                Kind::ReadData => true,
                _ => false,
            }
    }

    /// Where the payload of a frame belongs that continues a message: `len` bytes, or fewer if they
    /// belong to different places. [`handle_frame`](Self::handle_frame) would put them there.
    pub(super) fn place<'a>(
        &self,
        qp: &'a Qp,
        link: LinkId,
        frame: &Frame,
        len: usize,
        tables: &'a Tables,
    ) -> Option<Target<'a>> {
        if qp.staging.is_some() {
            return None;
        }
        match frame.kind {
            Kind::Send if self.resp.continues(qp, link, frame, tables) => {
                let Receive { wqe, list, pd } = qp.rq.current(qp.pd)?;
                let fits = frame.total <= wqe.total;
                tables.mrs.next_target(pd, list, frame.offset(), len).filter(|_| fits)
            }
            Kind::Write if self.resp.continues(qp, link, frame, tables) => write_target(qp, frame, len, tables),
            Kind::ReadData if answers(qp, link, frame, tables) => self.req.place(qp, frame, len, tables),
            _ => None,
        }
    }

    /// Handles a frame when all frames before it are done.
    #[inline(always)]
    fn handle_now(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        frame: &Frame,
        payload: Source<'_>,
        tables: &mut Tables,
    ) -> Handled {
        if frame.kind.is_request() {
            if let Some(ack) = frame.carried_ack().filter(|_| answers(qp, link, frame, tables)) {
                let _acknowledged = self.handle_answer(qp, &ack, Source::EMPTY, tables);
            }
            self.resp.handle_request(qp, link, frame, payload, tables)
        } else if !answers(qp, link, frame, tables) {
            Handled::Yes
        } else if frame.kind.is_flow() {
            self.pause(qp, frame.kind == Kind::Pause, tables);
            Handled::Yes
        } else {
            self.handle_answer(qp, frame, payload, tables)
        }
    }

    fn handle_answer(&mut self, qp: &mut Qp, frame: &Frame, payload: Source<'_>, tables: &mut Tables) -> Handled {
        let handled = self.req.handle_answer(qp, frame, payload, tables);
        self.schedule(qp, tables);
        handled
    }

    pub(super) fn handle_timer(&mut self, qp: &mut Qp, generation: u32, tables: &mut Tables) {
        self.req.handle_timer(qp, generation, tables);
        self.schedule(qp, tables);
    }

    /// The peer cannot be reached, at least for now.
    pub(super) fn handle_unreachable(&mut self, qp: &Qp, tables: &mut Tables) {
        if self.req.may_transmit(qp) {
            self.req.wait_for_hearing(qp, tables);
        }
    }

    /// A link is gone. With `is_last`, no other link leads to the peer: the peer is dead.
    pub(super) fn handle_link_down(&mut self, qp: &mut Qp, link: LinkId, is_last: bool, tables: &mut Tables) {
        if self.paused && tables.peers.link_of(qp.peer()) != Some(link) {
            // The peer's `Resume` may be lost with the link.
            self.pause(qp, false, tables);
        }
        if let Some(staging) = &mut qp.staging {
            staging.inbox.forget_link(link);
        }
        self.resp.handle_link_down(link);
        if is_last {
            self.req.handle_peer_death(qp, tables);
        }
    }

    /// Whether the peer waits for the acknowledgement that is due.
    pub(super) const fn is_ack_requested(&self) -> bool {
        self.resp.is_ack_requested()
    }

    /// Sends a deferred acknowledgement, unless a request has carried it meanwhile.
    pub(super) fn release_ack(&mut self, qp: &Qp, tables: &mut Tables) {
        self.resp.release_ack(qp, tables);
    }
}

/// Whether a frame may answer requests: only the connected queue pair may, and only over the link
/// on which requests go to it.
#[inline]
fn answers(qp: &Qp, link: LinkId, frame: &Frame, tables: &Tables) -> bool {
    frame.from == qp.attr.dest_qpn && tables.peers.link_of(qp.peer()) == Some(link)
}

/// Where `len` bytes of a write's payload belong, if the peer may write there.
fn write_target<'a>(qp: &Qp, frame: &Frame, len: usize, tables: &'a Tables) -> Option<Target<'a>> {
    let may_write = qp.attr.access & REMOTE_WRITE != 0;
    transfer::write_target(qp, frame, len, tables).filter(|_| may_write)
}
