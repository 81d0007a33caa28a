//! The data path: `post_send` and `post_recv`. One lock for a whole list of requests, and no allocation.

use std::ffi::c_int;
use std::ptr;
use std::slice;

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::qp::QpShared;
use super::{Errno, ah, qp};
use crate::engine::limits::MAX_SGE;
use crate::engine::{Address, Engine, QpId, SendData, SendRequest, Source};
use crate::node::Node;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The gather or scatter list of a request.
///
/// # Safety
///
/// `list` is valid for reads of `count` entries (or `count` is not positive) for `'a`, and nobody writes to them meanwhile.
unsafe fn entries<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE && !list.is_null() => {
            // SAFETY: the caller's promise; not null.
            Ok(unsafe { slice::from_raw_parts(list, count) })
        }
        _ => Err(Errno::INVAL),
    }
}

/// The part of a request that its opcode says is there; what C left uninitialised is not read.
#[derive(Default)]
struct Operands {
    imm: u32,
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
    may_be_inline: bool,
}

/// # Safety
///
/// The fields of `wr` that its opcode asks for are initialised.
unsafe fn operands(wr: &ibv_send_wr) -> Result<Operands, Errno> {
    type Op = ibv_wr_opcode;
    let mut operands = Operands::default();
    if matches!(wr.opcode, Op::IBV_WR_RDMA_WRITE_WITH_IMM | Op::IBV_WR_SEND_WITH_IMM) {
        // SAFETY: the caller's promise.
        operands.imm = unsafe { wr.__bindgen_anon_1.imm_data };
    }
    match wr.opcode {
        Op::IBV_WR_SEND | Op::IBV_WR_SEND_WITH_IMM => operands.may_be_inline = true,
        Op::IBV_WR_RDMA_WRITE | Op::IBV_WR_RDMA_WRITE_WITH_IMM | Op::IBV_WR_RDMA_READ => {
            // SAFETY: the caller's promise.
            let rdma = unsafe { wr.wr.rdma };
            operands.remote_addr = rdma.remote_addr;
            operands.rkey = rdma.rkey;
            operands.may_be_inline = wr.opcode != Op::IBV_WR_RDMA_READ;
        }
        Op::IBV_WR_ATOMIC_CMP_AND_SWP | Op::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // Field by field, because an addition has no `swap`.
            // SAFETY: the caller's promise.
            operands.remote_addr = unsafe { wr.wr.atomic.remote_addr };
            // SAFETY: the caller's promise.
            operands.rkey = unsafe { wr.wr.atomic.rkey };
            // SAFETY: the caller's promise.
            operands.compare_add = unsafe { wr.wr.atomic.compare_add };
            if wr.opcode == Op::IBV_WR_ATOMIC_CMP_AND_SWP {
                // SAFETY: the caller's promise.
                operands.swap = unsafe { wr.wr.atomic.swap };
            }
        }
        // Invalidations, windows, segmentation: not here.
        _ => return Err(Errno::OPNOTSUPP),
    }
    Ok(operands)
}

/// Where a datagram goes.
///
/// # Safety
///
/// C's promises about a request of a queue pair for datagrams, and about the address handle in it.
unsafe fn address(shared: &QpShared, wr: &ibv_send_wr) -> Result<Address, Errno> {
    if !matches!(wr.opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise: a send on such a queue pair has these fields.
    let to = unsafe { wr.wr.ud };
    // SAFETY: the caller's promise.
    let handle = unsafe { ah::get(to.ah) }?;
    if handle.pd() != shared.pd() {
        return Err(Errno::INVAL);
    }
    Ok(Address { path: *handle.path(), qpn: to.remote_qpn, qkey: to.remote_qkey })
}

/// # Safety
///
/// C's promises about the request and what it points to.
#[inline(always)]
unsafe fn send(engine: &mut Engine, qp: QpId, wr: &ibv_send_wr, address: Option<&Address>) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let list = unsafe { entries(wr.sg_list, wr.num_sge) }?;
    // SAFETY: the caller's promise.
    let operands = unsafe { operands(wr) }?;
    let request = SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        imm: operands.imm,
        remote_addr: operands.remote_addr,
        rkey: operands.rkey,
        compare_add: operands.compare_add,
        swap: operands.swap,
        data: SendData::List(list),
        address,
    };
    if wr.send_flags & INLINE == 0 {
        engine.post_send(qp, &request)
    } else if operands.may_be_inline {
        // SAFETY: the caller's promise: inline data can be read during the call.
        unsafe { send_inline(engine, qp, &request, list) }
    } else {
        Err(Errno::INVAL)
    }
}

/// # Safety
///
/// Each entry of `list` is valid for reads during the call.
unsafe fn send_inline(engine: &mut Engine, qp: QpId, request: &SendRequest<'_>, list: &[ibv_sge]) -> Result<(), Errno> {
    let mut space = [Source::EMPTY; MAX_SGE];
    for (piece, entry) in space.iter_mut().zip(list) {
        let address = ptr::with_exposed_provenance(usize::try_from(entry.addr).unwrap_or(0));
        // SAFETY: the caller's promise: `length` bytes, which fits an `isize`, can be read there during the call.
        *piece = unsafe { Source::from_raw(address, entry.length as usize) };
    }
    // `entries` has refused lists that are longer than the space.
    let pieces = space.get(..list.len()).ok_or(Errno::INVAL)?;
    engine.post_send(qp, &SendRequest { data: SendData::Inline(pieces), ..*request })
}

/// # Safety
///
/// C's promises about the request and what it points to.
#[inline(never)]
unsafe fn send_datagram(engine: &mut Engine, shared: &QpShared, wr: &ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let address = unsafe { address(shared, wr) }?;
    // SAFETY: the caller's promise.
    unsafe { send(engine, shared.id(), wr, Some(&address)) }
}

/// The context's `post_send`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut next = list;
    // SAFETY: C's promise about the queue pair.
    let posted = unsafe { qp::get(qp) }.and_then(|shared| {
        Node::get()?.with(|engine| {
            while !next.is_null() {
                // SAFETY: C's promise: a link of its list, valid for reads, and nobody writes to it meanwhile.
                let wr = unsafe { &*next };
                if shared.is_datagram() {
                    // SAFETY: C's promises about the request.
                    unsafe { send_datagram(engine, shared, wr) }?;
                } else {
                    // SAFETY: as above.
                    unsafe { send(engine, shared.id(), wr, None) }?;
                }
                next = wr.next;
            }
            Ok(())
        })
    });
    match posted {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: C's promise: valid for writes.
            unsafe { bad.write(next) };
            errno.0
        }
    }
}

/// The context's `post_recv`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = list;
    // SAFETY: C's promise about the queue pair.
    let posted = unsafe { qp::get(qp) }.and_then(|shared| {
        Node::get()?.with(|engine| {
            while !next.is_null() {
                // SAFETY: C's promise: a link of its list, valid for reads, and nobody writes to it meanwhile.
                let wr = unsafe { &*next };
                // SAFETY: C's promise about the request.
                let scatter = unsafe { entries(wr.sg_list, wr.num_sge) }?;
                engine.post_recv(shared.id(), wr.wr_id, scatter)?;
                next = wr.next;
            }
            Ok(())
        })
    });
    match posted {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: C's promise: valid for writes.
            unsafe { bad.write(next) };
            errno.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked_before_they_are_read() {
        let list = [ibv_sge::default(); 2];
        // SAFETY: two entries.
        assert_eq!(unsafe { entries(list.as_ptr(), 2) }.unwrap().len(), 2);
        // SAFETY: nothing is read.
        assert!(unsafe { entries(ptr::null(), 0) }.unwrap().is_empty());
        for (list, count) in [(list.as_ptr(), -1), (list.as_ptr(), 17), (ptr::null(), 1)] {
            // SAFETY: refused before anything is read.
            assert_eq!(unsafe { entries(list, count) }, Err(Errno::INVAL));
        }
    }

    #[test]
    fn operations_that_the_device_lacks_are_refused() {
        for opcode in [ibv_wr_opcode::IBV_WR_LOCAL_INV, ibv_wr_opcode::IBV_WR_TSO, ibv_wr_opcode(99)] {
            let wr = ibv_send_wr { opcode, ..Default::default() };
            // SAFETY: all of it is initialised.
            assert!(matches!(unsafe { operands(&wr) }, Err(Errno::OPNOTSUPP)));
        }
    }
}
