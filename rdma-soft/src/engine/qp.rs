//! A queue pair: its attributes, states, and what both of its sides share.

use core::mem;

use rdma_sys::{ibv_event_type, ibv_sge, ibv_wc_opcode, ibv_wc_status};

use super::datagram::Datagrams;
use super::directory::Card;
use super::frame::NUMBER_MASK;
use super::mr::{REMOTE_ATOMIC, REMOTE_READ};
use super::peers::Work;
use super::queue::{Op, RecvQueue, SendQueue, fill_wqe};
use super::requester::Requester;
use super::responder::Responder;
use super::shared::Shared;
use super::types::{
    CqId, Element, Errno, Event, LinkId, ModifyQp, PdId, QpId, QpInit, QpState, QpStatus, SendData, SendRequest,
    Service, Slot,
};

/// What `modify` sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attributes {
    pub(super) access: u32,
    pub(super) dest_qpn: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) sqd_notify: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) id: QpId,
    pub(super) qpn: u32,
    pub(super) pd: PdId,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    pub(super) state: QpState,
    pub(super) attr: Attributes,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
    pub(super) req: Requester,
    pub(super) resp: Responder,
    /// Of a queue pair for datagrams.
    pub(super) ud: Option<Box<Datagrams>>,
    pub(super) sig_all: bool,
    token: u64,
}

impl Qp {
    pub(super) fn new(id: QpId, qpn: u32, init: &QpInit, incarnation: u8) -> Result<Self, Errno> {
        Ok(Self {
            id,
            qpn,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            state: QpState::Reset,
            attr: Attributes::default(),
            sq: SendQueue::new(init.max_send_wr, init.max_send_sge, init.max_inline_data)?,
            rq: RecvQueue::new(init.max_recv_wr, init.max_recv_sge)?,
            req: Requester::new(incarnation),
            resp: Responder::default(),
            ud: match init.service {
                Service::Connection => None,
                Service::Datagrams => Some(Box::new(Datagrams::new(init.max_send_wr)?)),
            },
            sig_all: init.sq_sig_all,
            token: init.token,
        })
    }

    /// The peer's slot; 0, which nobody has, without a peer.
    pub(super) const fn peer(&self) -> Slot {
        Slot::of_qpn(self.attr.dest_qpn)
    }

    pub(super) fn event(&self, shared: &mut Shared, event_type: ibv_event_type) {
        shared.events.push(Event::Async { event_type, element: Element::Qp(self.id, self.token) });
    }

    pub(super) const fn status(&self) -> QpStatus {
        QpStatus {
            state: self.state,
            sq_draining: matches!(self.state, QpState::Sqd) && !self.is_drained(),
            sq_psn: self.req.next_number,
            rq_psn: self.resp.expected,
        }
    }

    pub(super) fn modify(&mut self, change: &ModifyQp, shared: &mut Shared) {
        let attr = &mut self.attr;
        let set = |field: &mut u8, value: Option<u8>| *field = value.unwrap_or(*field);
        attr.access = change.access.unwrap_or(attr.access);
        if let Some(ud) = &mut self.ud {
            ud.qkey = change.qkey.unwrap_or(ud.qkey);
        } else {
            attr.dest_qpn = change.dest_qpn.map_or(attr.dest_qpn, |qpn| qpn & NUMBER_MASK);
        }
        attr.rq_psn = change.rq_psn.map_or(attr.rq_psn, |psn| psn & NUMBER_MASK);
        attr.sq_psn = change.sq_psn.map_or(attr.sq_psn, |psn| psn & NUMBER_MASK);
        attr.sqd_notify = change.sqd_notify.unwrap_or(attr.sqd_notify);
        set(&mut attr.max_rd_atomic, change.max_rd_atomic);
        set(&mut attr.max_dest_rd_atomic, change.max_dest_rd_atomic);
        set(&mut attr.min_rnr_timer, change.min_rnr_timer);
        set(&mut attr.timeout, change.timeout);
        set(&mut attr.retry_cnt, change.retry_cnt);
        set(&mut attr.rnr_retry, change.rnr_retry);
        match change.state {
            Some(state) if state != self.state => self.enter(state, shared),
            _ => {}
        }
        self.publish(shared);
    }

    /// Tells requesters that may reach us by themselves what they may do.
    fn publish(&self, shared: &mut Shared) {
        // Who has set nothing aside for reads takes none, by whatever way.
        let barred = if self.attr.max_dest_rd_atomic == 0 { REMOTE_READ | REMOTE_ATOMIC } else { 0 };
        let access = self.attr.access & !barred;
        let card = (self.hears() && self.ud.is_none()).then(|| Card::new(self.attr.dest_qpn, self.pd, access));
        shared.directory.set_card(self.id.0, card);
    }

    /// Whether requests are executed.
    pub(super) const fn hears(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    fn enter(&mut self, state: QpState, shared: &mut Shared) {
        match state {
            QpState::Reset => self.reset(shared),
            QpState::Err => {
                self.abandon_answers(shared);
                self.fail(None, shared);
            }
            QpState::Rtr => {
                self.state = state;
                self.resp.begin(self.attr.rq_psn, self.attr.max_dest_rd_atomic);
                if self.ud.is_none() {
                    shared.peers.want(self.peer());
                }
            }
            QpState::Rts => {
                let first = self.state == QpState::Rtr;
                self.state = state;
                if first {
                    self.req.begin(&self.attr);
                }
                self.schedule(shared);
            }
            QpState::Sqd => {
                self.state = state;
                self.begin_draining(shared);
            }
            QpState::Init | QpState::Sqe => self.state = state,
        }
    }

    /// Back to the state of creation: everything posted is forgotten, and so are its completions.
    pub(super) fn reset(&mut self, shared: &mut Shared) {
        self.abandon_answers(shared);
        shared.timers.cancel(self.id.0);
        shared.peers.forget(self.id.0);
        shared.groups.forget(self.id.0);
        shared.cqs.purge(self.send_cq, self.qpn);
        shared.cqs.purge(self.recv_cq, self.qpn);
        self.state = QpState::Reset;
        self.publish(shared);
        self.attr = Attributes::default();
        (self.sq.head, self.sq.next, self.sq.tail) = (0, 0, 0);
        (self.rq.head, self.rq.tail) = (0, 0);
        self.req = Requester::new(self.req.incarnation.wrapping_add(1));
        self.resp = mem::take(&mut self.resp).recycled();
        if let Some(ud) = &mut self.ud {
            ud.reset();
        }
    }

    /// To ERR: the oldest send request completes with `status`, if there is one, and everything else is flushed.
    pub(super) fn fail(&mut self, status: Option<ibv_wc_status>, shared: &mut Shared) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.publish(shared);
        shared.timers.cancel(self.id.0);
        self.req.stop();
        if let Some(ud) = &mut self.ud {
            ud.stop();
        }
        self.flush_sends(status, shared);
        while let Some(wqe) = self.rq.pop() {
            self.flush_receive(wqe.wr_id, shared);
        }
        self.resp.inbound = None;
    }

    /// The oldest send request completes with `status`, all others as flushed.
    pub(super) fn flush_sends(&mut self, status: Option<ibv_wc_status>, shared: &mut Shared) {
        let mut status = status;
        while self.sq.head < self.sq.tail {
            let wqe = self.sq.at(self.sq.head);
            let status = status.take().unwrap_or(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            self.complete_failed(self.send_cq, wqe.wr_id, wqe.op.completion(), status, shared);
            self.sq.head += 1;
        }
        self.sq.next = self.sq.head;
    }

    fn flush_receive(&self, wr_id: u64, shared: &mut Shared) {
        let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        self.complete_failed(self.recv_cq, wr_id, ibv_wc_opcode::IBV_WC_RECV, flushed, shared);
    }

    pub(super) fn complete_failed(
        &self,
        cq: CqId,
        wr_id: u64,
        opcode: ibv_wc_opcode,
        status: ibv_wc_status,
        shared: &mut Shared,
    ) {
        shared.cqs.push(cq, false, &mut shared.events, |wc| {
            (wc.wr_id, wc.opcode, wc.status, wc.qp_num) = (wr_id, opcode, status, self.qpn);
        });
    }

    pub(super) const fn takes_sends(&self) -> bool {
        !matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr)
    }

    pub(super) const fn send_room(&self) -> Result<u32, Errno> {
        if self.takes_sends() { Ok(self.sq.room()) } else { Err(Errno::INVAL) }
    }

    #[inline(always)]
    pub(super) fn post_send(&mut self, request: &SendRequest<'_>, shared: &mut Shared) -> Result<(), Errno> {
        if self.ud.is_some() {
            return self.post_datagram(request, shared);
        }
        if !self.takes_sends() {
            return Err(Errno::INVAL);
        }
        let (op, with_imm) = Op::from_verbs(request.opcode).ok_or(Errno::INVAL)?;
        if self.sq.room() == 0 {
            return Err(Errno::NOMEM);
        }
        match request.data {
            SendData::List(list) => {
                if list.len() > self.sq.max_sge() {
                    return Err(Errno::INVAL);
                }
                if self.state != QpState::Err {
                    let wqe = self.sq.push_list(list);
                    fill_wqe(wqe, request, op, with_imm, self.sig_all);
                }
            }
            SendData::Inline(parts) => {
                let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.len()));
                if op.fetches() || total.is_none_or(|total| total > self.sq.max_inline()) {
                    return Err(Errno::INVAL);
                }
                if self.state != QpState::Err {
                    let wqe = self.sq.push_inline(parts);
                    fill_wqe(wqe, request, op, with_imm, self.sig_all);
                }
            }
        }
        if self.state == QpState::Err {
            let flushed = ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
            self.complete_failed(self.send_cq, request.wr_id, op.completion(), flushed, shared);
        } else {
            self.transmit_directly(shared);
            self.schedule_requests(shared);
        }
        Ok(())
    }

    pub(super) fn post_recv(&mut self, wr_id: u64, list: &[ibv_sge], shared: &mut Shared) -> Result<(), Errno> {
        if self.state == QpState::Reset || list.len() > self.rq.max_sge() {
            return Err(Errno::INVAL);
        }
        if self.rq.is_full() {
            return Err(Errno::NOMEM);
        }
        if self.state == QpState::Err {
            self.flush_receive(wr_id, shared);
        } else {
            self.rq.push(wr_id, list);
        }
        Ok(())
    }

    /// Gets moving what there is to send.
    pub(super) fn schedule(&mut self, shared: &mut Shared) {
        if self.ud.is_some() {
            self.schedule_datagrams(shared);
        } else {
            self.schedule_requests(shared);
        }
    }

    /// Gets requests moving, if there is something to send and nothing to wait for.
    pub(super) fn schedule_requests(&mut self, shared: &mut Shared) {
        if self.req.listed || !self.may_transmit() {
            return;
        }
        match shared.peers.link_of(self.peer()) {
            Some(link) => self.req.listed = shared.peers.push_work(link, Work::Requests(self.id.0)),
            None => shared.peers.want(self.peer()),
        }
    }

    /// Gets answers moving.
    pub(super) fn schedule_answers(&mut self, link: LinkId, shared: &mut Shared) {
        if !self.resp.listed {
            self.resp.listed = shared.peers.push_work(link, Work::Answers(self.id.0));
        }
    }
}
