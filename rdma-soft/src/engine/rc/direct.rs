//! Direct operations: one-sided operations that the requester executes itself, because the target's
//! memory is in this process or mapped from the target's process.
//!
//! The target's queue pair and region are checked as the target's engine would check them. If any
//! check fails, or the region is not mapped yet, the request goes through the link, and the
//! target's engine executes the request or reports the error.
//! `Requester::may_overtake` keeps the order of operations.
//!
//! A region can be mapped if its memory is an `rdma_mem::SharedMemory`, a sealed memfd: a peer with
//! a queue pair to this process asks for the file and maps it. All other transfers travel in
//! frames.

use super::super::memory::{Atomic, Gather, Origin, Source, Target};
use super::super::mr::right_of;
use super::super::qp::Qp;
use super::super::tables::Tables;
use super::super::types::{LinkId, Op, PdId, SendData, SendRequest};

/// An operation, and the part of it to execute now.
#[derive(Clone, Copy)]
pub(super) struct Operation<'a> {
    pub(super) request: &'a SendRequest,
    pub(super) data: SendData<'a>,
    pub(super) total: u32,
    /// Offset in bytes at which the part begins; inline data is always one part.
    pub(super) at: u32,
    pub(super) len: u32,
}

/// The place of the target's memory.
#[derive(Clone, Copy)]
enum Place {
    /// In this process, in this protection domain.
    Here(PdId),
    /// In another process, mapped: the link to it, and the offset in the mapping of the request's
    /// first byte.
    Mapped(LinkId, usize),
}

/// Executes a part of an operation directly, if that is possible. The operation is not empty, and
/// the caller has checked that its order allows it to run now.
#[inline(always)]
pub(super) fn execute(qp: &Qp, operation: Operation<'_>, tables: &mut Tables) -> Option<()> {
    let place = locate(qp, &operation, tables)?;
    match operation.request.op {
        Op::Send => None,
        Op::Write => write(qp, operation, place, tables),
        Op::Read => read(qp, operation, place, tables),
        Op::CompareSwap | Op::FetchAdd => change(qp, operation, place, tables),
    }
}

/// Finds the target, and checks what the target's engine would check.
#[inline(always)]
fn locate(qp: &Qp, operation: &Operation<'_>, tables: &mut Tables) -> Option<Place> {
    let SendRequest { op, rkey, remote_addr, .. } = *operation.request;
    let right = right_of(op);
    if let Some(index) = qp.own_peer {
        return tables.directory.card(index)?.admits(qp.qpn, right).map(Place::Here);
    }
    let (peer, dest) = (qp.peer(), qp.attr.dest_qpn);
    let link = tables.peers.link_of(peer)?;
    let directory = tables.peers.directory(link, peer.slot)?;
    let pd = directory.card(dest).admits(qp.qpn, right)?;
    let entry = directory.entry(rkey, pd, right)?;
    let offset = remote_addr.checked_sub(entry.iova)?;
    if offset > entry.len || u64::from(operation.total) > entry.len - offset {
        return None;
    }
    if !tables.peers.is_mapped(link, rkey, entry.serial) {
        tables.peers.want_mapping(link, rkey, entry.serial, dest, qp.qpn);
        return None;
    }
    Some(Place::Mapped(link, usize::try_from(offset).ok()?))
}

#[inline(always)]
fn write(qp: &Qp, operation: Operation<'_>, place: Place, tables: &Tables) -> Option<()> {
    let Operation { data, at, len, .. } = operation;
    let target = target(operation, place, tables)?.part(at as usize, len as usize)?;
    let copied = match data {
        SendData::List([sge]) => {
            target.write(tables.mrs.piece(qp.pd, sge, at as usize, len as usize)?);
            true
        }
        SendData::List(list) => tables.mrs.gather(qp.pd, list, at, len as usize, |gather| gather.copy_to(target))?,
        SendData::Inline(parts) => Gather::of(parts).copy_to(target),
    };
    copied.then_some(())
}

fn read(qp: &Qp, operation: Operation<'_>, place: Place, tables: &Tables) -> Option<()> {
    let Operation { request, data, total, at, len } = operation;
    let (SendData::List(list), part) = (data, at as usize) else { return None };
    let (source, origin) = match place {
        Place::Here(pd) => {
            let whole =
                tables.mrs.source(request.rkey, pd, right_of(request.op), request.remote_addr, total as usize)?;
            (whole.part(part, len as usize)?, Origin::Memory)
        }
        Place::Mapped(link, offset) => {
            (tables.peers.mapping(link, request.rkey)?.source(offset + part, len as usize)?, Origin::PeerCache)
        }
    };
    tables.mrs.scatter(qp.pd, list, at, source, origin).then_some(())
}

fn change(qp: &Qp, operation: Operation<'_>, place: Place, tables: &Tables) -> Option<()> {
    let Operation { request, data: SendData::List(list), .. } = operation else { return None };
    if request.remote_addr % 8 != 0 {
        return None;
    }
    let change = match request.op {
        Op::CompareSwap => Atomic::CompareSwap { compare: request.compare_add, swap: request.swap },
        _ => Atomic::Add(request.compare_add),
    };
    let result = target(operation, place, tables)?.atomic(change)?.to_ne_bytes();
    // This cannot fail: the list was checked just before, under the same lock.
    let _ = tables.mrs.scatter(qp.pd, list, 0, Source::of(&result), Origin::Memory);
    Some(())
}

#[inline(always)]
fn target<'a>(operation: Operation<'_>, place: Place, tables: &'a Tables) -> Option<Target<'a>> {
    let (SendRequest { op, rkey, remote_addr, .. }, total) = (*operation.request, operation.total as usize);
    match place {
        Place::Here(pd) => tables.mrs.target(rkey, pd, right_of(op), remote_addr, total),
        Place::Mapped(link, offset) => tables.peers.mapping(link, rkey)?.target(offset, total),
    }
}
