//! The part of a queue pair that every service has: its identity, attributes, state and queues.

use rdma_sys::{ibv_event_type, ibv_sge, ibv_wc_opcode, ibv_wc_status};

use super::queue::SendQueue;
use super::receive::Receives;
use super::staging::Staging;
use super::tables::Tables;
use super::timer::Owner;
use super::types::{
    CqId, Element, Errno, Event, Host, ModifyQp, PdId, PeerId, QpId, QpInit, QpState, SendData, SendFlags, SendRequest,
};
use super::wire::NUMBER_MASK;

/// The attributes that `modify` sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attributes {
    pub(super) access: u32,
    pub(super) dest_host: Host,
    pub(super) dest_qpn: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    sqd_notify: bool,
}

impl Attributes {
    fn merge(&mut self, change: &ModifyQp) {
        fn set<T: Copy>(field: &mut T, value: Option<T>) {
            *field = value.unwrap_or(*field);
        }
        let number = |value: Option<u32>| value.map(|value| value & NUMBER_MASK);
        set(&mut self.access, change.access);
        set(&mut self.dest_host, change.dest_host);
        set(&mut self.dest_qpn, number(change.dest_qpn));
        set(&mut self.qkey, change.qkey);
        set(&mut self.rq_psn, number(change.rq_psn));
        set(&mut self.sq_psn, number(change.sq_psn));
        set(&mut self.sqd_notify, change.sqd_notify);
        set(&mut self.max_rd_atomic, change.max_rd_atomic);
        set(&mut self.max_dest_rd_atomic, change.max_dest_rd_atomic);
        set(&mut self.min_rnr_timer, change.min_rnr_timer);
        set(&mut self.timeout, change.timeout);
        set(&mut self.retry_cnt, change.retry_cnt);
        set(&mut self.rnr_retry, change.rnr_retry);
    }
}

/// The progress of a drain (SQD).
#[derive(Clone, Copy, Debug, Default)]
struct Drain {
    /// The position of the first request that must not start.
    limit: u64,
    reported: bool,
}

/// A queue pair without its service.
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
    pub(super) rq: Receives,
    /// The index of the connected queue pair, if it belongs to this process.
    pub(super) own_peer: Option<u32>,
    /// The staging bytes, once a request has named foreign memory.
    pub(super) staging: Option<Box<Staging>>,
    drain: Drain,
    token: u64,
}

impl Qp {
    pub(super) fn new(id: QpId, qpn: u32, init: &QpInit, tables: &Tables) -> Result<Self, Errno> {
        Ok(Self {
            id,
            qpn,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            state: QpState::Reset,
            attr: Attributes::default(),
            sq: SendQueue::new(init.max_send_wr, init.max_send_sge, init.max_inline_data, init.sq_sig_all)?,
            rq: Receives::new(init, tables)?,
            own_peer: None,
            staging: None,
            drain: Drain::default(),
            token: init.token,
        })
    }

    /// Returns the connected process. Without a connection its slot is 0, which no process has.
    pub(super) const fn peer(&self) -> PeerId {
        PeerId::of(self.attr.dest_host, self.attr.dest_qpn)
    }

    pub(super) fn event(&self, tables: &mut Tables, event_type: ibv_event_type) {
        tables.events.push(Event::Async { event_type, element: Element::Qp(self.id, self.token) });
    }

    /// Merges changed attributes; the service changes the state.
    pub(super) fn merge(&mut self, change: &ModifyQp, tables: &Tables) {
        self.attr.merge(change);
        self.find_peer(tables);
    }

    /// Looks for the connected queue pair in this process.
    pub(super) fn find_peer(&mut self, tables: &Tables) {
        self.own_peer = tables.own_index(self.attr.dest_host, self.attr.dest_qpn);
    }

    /// Whether the queue pair accepts requests and datagrams in its state.
    pub(super) const fn hears(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    pub(super) const fn takes_sends(&self) -> bool {
        !matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr)
    }

    /// Restores the state that the queue pair had after its creation: removes all posted requests
    /// and their completions.
    pub(super) fn reset(&mut self, tables: &mut Tables) {
        tables.timers.cancel(Owner::Qp(self.id));
        tables.forget_faults(self.id);
        tables.peers.forget(self.id.0);
        tables.directory.set_card(self.id.0, None);
        tables.cqs.purge(self.send_cq, self.qpn);
        tables.cqs.purge(self.recv_cq, self.qpn);
        self.state = QpState::Reset;
        self.attr = Attributes::default();
        self.own_peer = None;
        self.staging = None;
        self.drain = Drain::default();
        self.sq.clear();
        self.rq.clear();
    }

    /// Moves the queue pair to ERR. Completes the oldest send request with `status`, if it is
    /// given, and flushes all other requests.
    pub(super) fn fail(&mut self, status: Option<ibv_wc_status>, tables: &mut Tables) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        tables.directory.set_card(self.id.0, None);
        tables.timers.cancel(Owner::Qp(self.id));
        if self.is_storing() {
            // The copy may write to the memory of a request.
            self.staging().flush = Some(status);
        } else {
            self.flush_all(status, tables);
        }
    }

    /// Flushes the requests of a queue pair that went to ERR while a payload was being stored.
    pub(super) fn flush_late(&mut self, tables: &mut Tables) {
        if let Some(status) = self.staging().flush.take() {
            self.flush_all(status, tables);
        }
    }

    fn flush_all(&mut self, status: Option<ibv_wc_status>, tables: &mut Tables) {
        self.flush_sends(status, tables);
        while let Some(wqe) = self.rq.pop() {
            self.flush(self.recv_cq, wqe.wr_id, ibv_wc_opcode::IBV_WC_RECV, tables);
        }
        if self.rq.srq().is_some() {
            self.event(tables, ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// Returns the staging bytes.
    pub(super) fn staging(&mut self) -> &mut Staging {
        self.staging.get_or_insert_default()
    }

    /// Whether payload for foreign memory is being stored.
    pub(super) fn is_storing(&self) -> bool {
        self.staging.as_ref().is_some_and(|staging| staging.inbox.is_storing())
    }

    /// Returns the length of all reads and atomics that are not complete.
    pub(super) fn bytes_to_fetch(&self) -> usize {
        let open = (self.sq.head..self.sq.tail).map(|position| self.sq.at(position));
        open.filter(|wqe| wqe.request.op.fetches()).map(|wqe| wqe.total as usize).sum()
    }

    /// Completes all send requests: the oldest with `status`, if it is given, the others as
    /// flushed.
    pub(super) fn flush_sends(&mut self, mut status: Option<ibv_wc_status>, tables: &mut Tables) {
        while self.sq.head < self.sq.tail {
            let request = self.sq.at(self.sq.head).request;
            let status = status.take().unwrap_or(ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            self.complete_failed(self.send_cq, request.wr_id, request.op.completion(), status, tables);
            self.sq.head += 1;
        }
        self.sq.next = self.sq.head;
    }

    /// Moves the queue pair to SQE: completes the oldest send request with `status` and flushes the
    /// others.
    pub(super) fn fail_sends(&mut self, status: ibv_wc_status, tables: &mut Tables) {
        self.state = QpState::Sqe;
        self.flush_sends(Some(status), tables);
        tables.forget_faults(self.id);
    }

    /// Completes a request as flushed.
    pub(super) fn flush(&self, cq: CqId, wr_id: u64, opcode: ibv_wc_opcode, tables: &mut Tables) {
        self.complete_failed(cq, wr_id, opcode, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, tables);
    }

    fn complete_failed(&self, cq: CqId, wr_id: u64, opcode: ibv_wc_opcode, status: ibv_wc_status, tables: &mut Tables) {
        let is_flushed = status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        let counters = &mut tables.counters;
        *(if is_flushed { &mut counters.flushed } else { &mut counters.failed }) += 1;
        tables.cqs.push(cq, false, &mut tables.events, |wc| {
            (wc.wr_id, wc.opcode, wc.status, wc.qp_num) = (wr_id, opcode, status, self.qpn);
        });
    }

    /// Completes the oldest send request successfully.
    #[inline]
    pub(super) fn complete_send(&mut self, tables: &mut Tables) {
        let wqe = self.sq.at(self.sq.head);
        tables.counters.request(wqe.total);
        if wqe.has(SendFlags::SIGNALED) {
            self.report(&wqe.request, wqe.total, tables);
        }
        self.sq.head += 1;
    }

    /// Completes a request that was executed without a place in the queue.
    #[inline(always)]
    pub(super) fn complete_unqueued(&self, request: &SendRequest, total: u32, tables: &mut Tables) {
        tables.counters.request(total);
        if request.flags.contains(SendFlags::SIGNALED) || self.sq.sig_all {
            self.report(request, total, tables);
        }
    }

    #[inline(always)]
    fn report(&self, request: &SendRequest, total: u32, tables: &mut Tables) {
        let byte_len = if request.op.fetches() { total } else { 0 };
        tables.cqs.push(self.send_cq, false, &mut tables.events, |wc| {
            (wc.wr_id, wc.opcode, wc.qp_num) = (request.wr_id, request.op.completion(), self.qpn);
            wc.byte_len = byte_len;
        });
    }

    /// Whether the state allows the request at `sq.next`, if there is one, to start.
    #[inline]
    pub(super) const fn may_start(&self) -> bool {
        self.sq.next < self.sq.tail
            && match self.state {
                QpState::Rts => true,
                QpState::Sqd => self.sq.next < self.drain.limit,
                _ => false,
            }
    }

    /// Enters SQD. `begun`: the request at `sq.next` has started.
    pub(super) fn begin_draining(&mut self, begun: bool, tables: &mut Tables) {
        self.state = QpState::Sqd;
        self.drain = Drain { limit: self.sq.next + u64::from(begun), reported: false };
        self.report_drained(tables);
    }

    /// In SQD: reports once that all started requests are complete.
    #[inline]
    pub(super) fn report_drained(&mut self, tables: &mut Tables) {
        if self.state == QpState::Sqd && self.sq.head >= self.drain.limit && !self.drain.reported {
            self.drain.reported = true;
            if self.attr.sqd_notify {
                self.event(tables, ibv_event_type::IBV_EVENT_SQ_DRAINED);
            }
        }
    }

    pub(super) const fn is_draining(&self) -> bool {
        matches!(self.state, QpState::Sqd) && self.sq.head < self.drain.limit
    }

    /// Puts a send request into the queue; false if the state flushes the request at once.
    #[inline(always)]
    pub(super) fn post_send(
        &mut self,
        request: &SendRequest,
        data: SendData<'_>,
        tables: &mut Tables,
    ) -> Result<bool, Errno> {
        if !self.takes_sends() {
            return Err(Errno::INVAL);
        }
        let total = self.sq.admit(request.op, data)?;
        if matches!(self.state, QpState::Err | QpState::Sqe) && !self.is_storing() {
            self.flush(self.send_cq, request.wr_id, request.op.completion(), tables);
            return Ok(false);
        }
        self.sq.push(request, data, total);
        // In ERR, the request waits to be flushed.
        Ok(self.state != QpState::Err)
    }

    pub(super) fn post_recv(&mut self, wr_id: u64, list: &[ibv_sge], tables: &mut Tables) -> Result<(), Errno> {
        if self.state == QpState::Reset {
            return Err(Errno::INVAL);
        }
        let is_flushed = self.state == QpState::Err && !self.is_storing();
        let queue = self.rq.own()?;
        queue.admit(list)?;
        if is_flushed {
            self.flush(self.recv_cq, wr_id, ibv_wc_opcode::IBV_WC_RECV, tables);
        } else {
            queue.push(wr_id, list);
        }
        Ok(())
    }

    pub(super) const fn send_room(&self) -> Result<u32, Errno> {
        if self.takes_sends() { Ok(self.sq.room()) } else { Err(Errno::INVAL) }
    }
}
