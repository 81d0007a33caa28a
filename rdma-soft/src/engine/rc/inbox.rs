//! Payload for foreign memory: a frame takes effect when its payload is stored. Meanwhile the
//! frames behind it wait in the inbox, so the connection keeps its order.
//!
//! The link is not held up: other queue pairs use it. Instead, the peer is asked to pause before
//! the inbox holds too much. A peer that does not pause has its requests dropped.
//!
//! Holding up the link would stop other queue pairs, and an RNR NAK would spend the sender's
//! retries.

use rdma_sys::ibv_wc_status;

use super::super::foreign::{CopyEnd, Direction, ForeignRange, Waiter};
use super::super::memory::{Source, Target};
use super::super::mr::{LOCAL_WRITE, REMOTE_WRITE, entry_at};
use super::super::qp::Qp;
use super::super::receive::Receive;
use super::super::staging::{Storing, Waiting};
use super::super::tables::Tables;
use super::super::types::{LinkId, QpState};
use super::super::wire::{Frame, Kind};
use super::responder::Unstored;
use super::{Handled, Rc, responder};

/// The memory for the next bytes of a payload.
enum Place<'a> {
    Host(Target<'a>, usize),
    Foreign(ForeignRange),
}

/// The progress of a payload.
enum Step {
    /// All of it is stored.
    Stored,
    /// A copy is running.
    Copies,
    /// There is no memory for it.
    NoMemory,
}

impl Rc {
    /// Keeps a frame of the connection until those before it are done; false if there are none, or
    /// the frame is none of the connection.
    #[cold]
    pub(super) fn queue(
        &mut self,
        qp: &mut Qp,
        link: LinkId,
        frame: &Frame,
        payload: Source<'_>,
        tables: &mut Tables,
    ) -> bool {
        let is_ours = frame.from == qp.attr.dest_qpn
            && tables.peers.leads_to_host(link, qp.attr.dest_host)
            && (frame.kind.is_request() || tables.peers.link_of(qp.peer()) == Some(link));
        if !qp.is_storing() || !is_ours || frame.kind.is_flow() || !qp.hears() {
            return false;
        }
        let fetched = if frame.kind.is_request() { 0 } else { qp.bytes_to_fetch() };
        let Some(staging) = qp.staging.as_deref_mut() else { return false };
        if staging.inbox.is_full(payload.len(), fetched) {
            self.overflow(qp, link, frame, tables);
        } else {
            staging.inbox.push(link, frame, payload);
        }
        poll_pause(qp, link, tables);
        true
    }

    /// Drops all that waits: the peer has not paused. Its requests are lost, as on a network that
    /// drops packets.
    fn overflow(&mut self, qp: &mut Qp, link: LinkId, frame: &Frame, tables: &mut Tables) {
        let waiting = qp.staging().inbox.take_waiting();
        if !frame.kind.is_request() || waiting.iter().any(|waiting| !waiting.frame.kind.is_request()) {
            return qp.fail(Some(ibv_wc_status::IBV_WC_BAD_RESP_ERR), tables);
        }
        self.resp.drop_request(link, frame, tables);
    }

    /// Begins to store the payload of a frame.
    pub(super) fn store(&mut self, qp: &mut Qp, link: LinkId, frame: &Frame, payload: Vec<u8>, tables: &mut Tables) {
        // The result of an atomic is in the header.
        let payload = if frame.kind == Kind::AtomicData { frame.addr.to_ne_bytes().to_vec() } else { payload };
        let storing = Storing { link, frame: *frame, len: payload.len(), payload, done: 0 };
        self.store_on(qp, storing, tables);
    }

    /// Stores more of a payload.
    fn store_on(&mut self, qp: &mut Qp, mut storing: Storing, tables: &mut Tables) {
        match step(qp, &mut storing, tables) {
            Step::Copies => qp.staging().inbox.storing = Some(storing),
            Step::Stored => self.stored(qp, &storing, tables),
            Step::NoMemory => self.not_stored(qp, &storing, Unstored::NoMemory, tables),
        }
    }

    fn stored(&mut self, qp: &mut Qp, storing: &Storing, tables: &mut Tables) {
        let Storing { link, ref frame, len, .. } = *storing;
        if frame.kind.is_request() {
            self.resp.stored(qp, link, frame, len, tables);
        } else {
            self.req.stored(qp, frame, len, tables);
            self.schedule(qp, tables);
        }
    }

    fn not_stored(&mut self, qp: &mut Qp, storing: &Storing, why: Unstored, tables: &mut Tables) {
        if storing.frame.kind.is_request() {
            self.resp.not_stored(qp, storing.link, &storing.frame, why, tables);
        } else {
            qp.fail(Some(ibv_wc_status::IBV_WC_LOC_PROT_ERR), tables);
        }
    }

    /// Handles the end of a copy.
    pub(in super::super) fn handle_copied(&mut self, qp: &mut Qp, waiter: Waiter, end: CopyEnd, tables: &mut Tables) {
        match waiter {
            Waiter::Request => {
                qp.staging().request.end(end);
                self.schedule(qp, tables);
            }
            Waiter::Answer => {
                qp.staging().answer.end(end);
                self.resp.schedule_answers(qp, tables);
            }
            Waiter::Inbox => self.handle_stored(qp, end, tables),
        }
    }

    /// Handles the end of a copy of payload, and then the frames that have waited for it.
    fn handle_stored(&mut self, qp: &mut Qp, end: CopyEnd, tables: &mut Tables) {
        let Some(mut storing) = qp.staging().inbox.storing.take() else { return };
        let link = storing.link;
        if qp.state == QpState::Err {
            self.drop_inbox(qp, &storing, tables);
            qp.flush_late(tables);
            return;
        }
        match end {
            CopyEnd::Done(bytes) => {
                storing.done += bytes.len();
                if storing.payload.is_empty() {
                    storing.payload = bytes;
                }
                self.store_on(qp, storing, tables);
            }
            CopyEnd::Fault => self.not_stored(qp, &storing, Unstored::NoMemory, tables),
            CopyEnd::Failed | CopyEnd::Unknown => self.not_stored(qp, &storing, Unstored::Failed, tables),
        }
        while !qp.is_storing() {
            let Some(Waiting { link, frame, payload }) = qp.staging().inbox.pop() else { break };
            match self.handle_now(qp, link, &frame, Source::of(&payload), tables) {
                Handled::Yes => {}
                Handled::Store => self.store(qp, link, &frame, payload, tables),
            }
        }
        poll_pause(qp, link, tables);
    }

    /// Drops the frame that was being stored and those behind it, because the queue pair is in ERR.
    /// The peer learns of the first request.
    fn drop_inbox(&mut self, qp: &mut Qp, storing: &Storing, tables: &mut Tables) {
        let waiting = qp.staging().inbox.take_waiting();
        let frames = core::iter::once((storing.link, storing.frame));
        let mut frames = frames.chain(waiting.into_iter().map(|waiting| (waiting.link, waiting.frame)));
        if let Some((link, frame)) = frames.find(|(_, frame)| frame.kind.is_request()) {
            tables.peers.push_control(link, &responder::dropped(&frame));
        }
        poll_pause(qp, storing.link, tables);
    }

    /// Handles the peer's `Pause` or `Resume`.
    pub(super) fn pause(&mut self, qp: &Qp, pause: bool, tables: &mut Tables) {
        self.paused = pause;
        if pause {
            return;
        }
        // Puts the held work back into the link's work list.
        if core::mem::take(&mut self.held.requests) {
            self.req.listed = false;
        }
        if core::mem::take(&mut self.held.answers) {
            self.resp.listed = false;
            self.resp.schedule_answers(qp, tables);
        }
        self.schedule(qp, tables);
    }
}

/// Asks the peer to pause, or to go on, if it is time for that.
fn poll_pause(qp: &mut Qp, link: LinkId, tables: &mut Tables) {
    let (to, from) = (qp.attr.dest_qpn, qp.qpn);
    if let Some(pause) = qp.staging().inbox.poll_pause() {
        let kind = if pause { Kind::Pause } else { Kind::Resume };
        tables.peers.push_control(link, &Frame::new(kind, to, from, 0, 0));
    }
}

/// Stores payload until a copy is needed.
fn step(qp: &Qp, storing: &mut Storing, tables: &mut Tables) -> Step {
    while storing.done < storing.len {
        let (done, left) = (storing.done, storing.len - storing.done);
        match place(qp, &storing.frame, done, left, tables) {
            None => return Step::NoMemory,
            Some(Place::Host(target, len)) => {
                let Some(part) = Source::of(&storing.payload).part(done, len) else { return Step::NoMemory };
                target.write(part);
                storing.done += len;
            }
            Some(Place::Foreign(range)) => {
                let bytes = if range.len == storing.len {
                    core::mem::take(&mut storing.payload)
                } else {
                    storing.payload[done..done + range.len].to_vec()
                };
                tables.copy((qp.id, Waiter::Inbox), Direction::Store, &range, bytes);
                return Step::Copies;
            }
        }
    }
    Step::Stored
}

/// Returns the memory for the payload of a frame, from `done` on, of which `left` bytes remain; it
/// may be shorter.
fn place<'a>(qp: &Qp, frame: &Frame, done: usize, left: usize, tables: &'a Tables) -> Option<Place<'a>> {
    let at = frame.offset() as usize + done;
    let (list, pd, at) = match frame.kind {
        Kind::Write => {
            // Check the whole range each time: the region may be deregistered between two copies.
            let whole = tables.mrs.foreign(frame.key, qp.pd, REMOTE_WRITE, frame.addr, frame.total as usize)?;
            return whole.part(at, left).map(Place::Foreign);
        }
        Kind::Send => {
            let Receive { list, pd, .. } = qp.rq.current(qp.pd)?;
            (list, pd, at)
        }
        Kind::ReadData => (qp.sq.list(qp.sq.head), qp.pd, at),
        _ => (qp.sq.list(qp.sq.head), qp.pd, done),
    };
    let (sge, skip, room) = entry_at(list, at)?;
    let len = room.min(left);
    if let Some(target) = tables.mrs.local_target(pd, sge, skip, len) {
        return Some(Place::Host(target, len));
    }
    let addr = sge.addr.checked_add(skip as u64)?;
    tables.mrs.foreign(sge.lkey, pd, LOCAL_WRITE, addr, len).map(Place::Foreign)
}
