//! The steps of a transfer that reliable and unreliable connections share.

use rdma_sys::{ibv_wc_opcode, ibv_wc_status};

use super::Outbound;
use super::cq::set_imm;
use super::limits::{MAX_MESSAGE, SHORTEST_LIMIT};
use super::memory::{Gather, Source, Target};
use super::mr::{LOCAL_WRITE, REMOTE_WRITE};
use super::qp::Qp;
use super::queue::SendWqe;
use super::tables::Tables;
use super::wire::{self, Frame, Header, Kind};

/// Returns the error that a request has by itself, before anything is sent.
#[inline]
pub(super) fn local_error(qp: &Qp, wqe: &SendWqe, position: u64, tables: &Tables) -> Option<ibv_wc_status> {
    let op = wqe.request.op;
    if wqe.total > MAX_MESSAGE || (op.is_atomic() && wqe.total != 8) {
        return Some(ibv_wc_status::IBV_WC_LOC_LEN_ERR);
    }
    if op.fetches() && qp.attr.max_rd_atomic == 0 {
        return Some(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR);
    }
    // A short message of one entry fits one frame: gathering it checks its key before anything is
    // sent.
    let is_one = wqe.total <= SHORTEST_LIMIT && qp.sq.list(position).len() <= 1;
    if wqe.inline || (is_one && !op.fetches()) {
        return None;
    }
    let rights = if op.fetches() { LOCAL_WRITE } else { 0 };
    let is_ours = tables.mrs.check_all(qp.pd, qp.sq.list(position), rights);
    (!is_ours).then_some(ibv_wc_status::IBV_WC_LOC_PROT_ERR)
}

/// Pushes the bytes from `offset` on, `len` of them, of the request at `sq.next`; `None` if the
/// processor cannot read them. With `len` 0, pushes the header alone.
#[inline]
pub(super) fn push_piece(
    qp: &Qp,
    header: &Header,
    (offset, len): (u32, u32),
    tables: &Tables,
    out: &mut impl Outbound,
) -> Option<bool> {
    let position = qp.sq.next;
    if len == 0 {
        Some(out.try_push(header, &Gather::EMPTY))
    } else if qp.sq.at(position).inline {
        let part = qp.sq.inline(position).part(offset as usize, len as usize);
        part.map(|part| out.try_push(header, &Gather::one(&part)))
    } else {
        let push = |gather: &Gather<'_>| out.try_push(header, gather);
        tables.mrs.gather(qp.pd, qp.sq.list(position), offset, len as usize, push)
    }
}

/// Stores the payload of a write that is not empty; false if the processor may not, or cannot,
/// write to the memory.
#[inline]
pub(super) fn write_payload(qp: &Qp, frame: &Frame, payload: Source<'_>, tables: &Tables) -> bool {
    let part = write_target(qp, frame, payload.len(), tables);
    part.map(|target| target.write_from(payload, frame.origin())).is_some()
}

/// Returns where `len` bytes of a write's payload belong, if the region allows remote writes and
/// the processor can write to it.
#[inline]
pub(super) fn write_target<'a>(qp: &Qp, frame: &Frame, len: usize, tables: &'a Tables) -> Option<Target<'a>> {
    // Check the whole range with each piece: the region may be deregistered between two pieces.
    let whole = tables.mrs.target(frame.key, qp.pd, REMOTE_WRITE, frame.addr, frame.total as usize)?;
    whole.part(frame.offset() as usize, len)
}

/// Completes the oldest receive request.
pub(super) fn complete_receive(qp: &mut Qp, frame: &Frame, status: ibv_wc_status, tables: &mut Tables) {
    let Some(wqe) = qp.rq.pop() else { return };
    let solicited = frame.flags & wire::SOLICITED != 0;
    let (qpn, src_qp) = (qp.qpn, qp.attr.dest_qpn);
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => tables.counters.receive(frame.total),
        _ => tables.counters.failed += 1,
    }
    tables.cqs.push(qp.recv_cq, solicited, &mut tables.events, |wc| {
        wc.opcode = match frame.kind {
            Kind::Send | Kind::UcSend => ibv_wc_opcode::IBV_WC_RECV,
            _ => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        };
        (wc.wr_id, wc.status, wc.byte_len) = (wqe.wr_id, status, frame.total);
        (wc.qp_num, wc.src_qp) = (qpn, src_qp);
        if frame.flags & wire::IMM != 0 {
            set_imm(wc, frame.imm());
        }
    });
}
