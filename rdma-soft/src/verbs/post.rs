//! The data path: `post_send` and `post_recv`. One lock for a whole list of requests, and no allocation.
//!
//! The entry points take lists of requests from C; the functions below them rely on C's promises (`verbs`, 1 and 2): each link of a
//! list is a request that can be read and that nobody writes to during the call, and the fields that its opcode and its queue pair's
//! transport ask for are initialised.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::Errno;
use super::object::{Object, Pointee};
use super::qp::QpShared;
use crate::engine::limits::MAX_SGE;
use crate::engine::{Address, Engine, Op, QpId, SendData, SendFlags, SendRequest, Source};
use crate::node::Node;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The gather or scatter list of a request.
///
/// # Safety
///
/// `list` is valid for reads of `count` entries (or `count` is not positive) for `'a`, and nobody writes to them meanwhile.
#[inline]
unsafe fn entries<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE && !list.is_null() => {
            // SAFETY: from_raw_parts wants `count` readable, initialised and unchanging entries at an aligned pointer that is not
            // null: the caller's contract, and the check above; 16 entries are less than `isize::MAX` bytes.
            Ok(unsafe { slice::from_raw_parts(list, count) })
        }
        _ => Err(Errno::INVAL),
    }
}

/// The operands of an atomic, as `ibv_send_wr` has them: an addition leaves `swap` uninitialised.
#[repr(C)]
struct AtomicOperands {
    remote_addr: u64,
    compare_add: u64,
    swap: MaybeUninit<u64>,
    rkey: u32,
}

/// The flags of a request that the engine knows.
#[inline]
pub(super) const fn flags(raw: u32) -> SendFlags {
    #[allow(clippy::cast_possible_truncation, reason = "the flags that the engine knows are in the low bits")]
    let raw = raw as u8;
    SendFlags::from_bits_truncate(raw & !SendFlags::IMM.bits())
}

/// The request without its data; what C left uninitialised is not read.
///
/// # Safety
///
/// The fields of `wr` that its opcode asks for are initialised.
#[inline(always)]
unsafe fn decode(wr: &ibv_send_wr) -> Result<SendRequest, Errno> {
    type Code = ibv_wr_opcode;
    let (op, with_imm) = match wr.opcode {
        Code::IBV_WR_SEND => (Op::Send, false),
        Code::IBV_WR_SEND_WITH_IMM => (Op::Send, true),
        Code::IBV_WR_RDMA_WRITE => (Op::Write, false),
        Code::IBV_WR_RDMA_WRITE_WITH_IMM => (Op::Write, true),
        Code::IBV_WR_RDMA_READ => (Op::Read, false),
        Code::IBV_WR_ATOMIC_CMP_AND_SWP => (Op::CompareSwap, false),
        Code::IBV_WR_ATOMIC_FETCH_AND_ADD => (Op::FetchAdd, false),
        // Invalidations, windows, segmentation: not here.
        _ => return Err(Errno::OPNOTSUPP),
    };
    let mut request = SendRequest {
        wr_id: wr.wr_id,
        remote_addr: 0,
        compare_add: 0,
        swap: 0,
        rkey: 0,
        imm: 0,
        op,
        flags: flags(wr.send_flags),
    };
    if with_imm {
        request.flags |= SendFlags::IMM;
        // SAFETY: a union of two `u32`, initialised for opcodes with an immediate (the caller's contract).
        request.imm = unsafe { wr.__bindgen_anon_1.imm_data };
    }
    match op {
        Op::Send => {}
        Op::Write | Op::Read => {
            // SAFETY: the union's member for these opcodes, plain integers, initialised (the caller's contract).
            let rdma = unsafe { wr.wr.rdma };
            (request.remote_addr, request.rkey) = (rdma.remote_addr, rdma.rkey);
        }
        Op::CompareSwap | Op::FetchAdd => {
            let operands = (&raw const wr.wr).cast::<AtomicOperands>();
            // SAFETY: the union, which is borrowed and aligned for 8 bytes, begins with its member for atomics, of the same layout
            // (asserted below); its fields are initialised for these opcodes, but for `swap`, which may be uninitialised here too.
            let operands = unsafe { &*operands };
            (request.remote_addr, request.rkey) = (operands.remote_addr, operands.rkey);
            request.compare_add = operands.compare_add;
            if op == Op::CompareSwap {
                // SAFETY: initialised for this opcode (the caller's contract).
                request.swap = unsafe { operands.swap.assume_init() };
            }
        }
    }
    Ok(request)
}

const _: () = {
    type Theirs = rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2;
    use std::mem::offset_of;
    assert!(size_of::<AtomicOperands>() == size_of::<Theirs>());
    assert!(offset_of!(AtomicOperands, compare_add) == offset_of!(Theirs, compare_add));
    assert!(offset_of!(AtomicOperands, swap) == offset_of!(Theirs, swap));
    assert!(offset_of!(AtomicOperands, rkey) == offset_of!(Theirs, rkey));
};

/// The destination of a datagram.
///
/// # Safety
///
/// C's promises about a request of a queue pair for datagrams, and about the address handle in it.
unsafe fn address(shared: &QpShared, wr: &ibv_send_wr) -> Result<Address, Errno> {
    if !matches!(wr.opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the union's member for sends on such a queue pair, plain data, initialised (the caller's contract).
    let to = unsafe { wr.wr.ud };
    // SAFETY: of `Object::get`: a live address handle (the caller's contract).
    let handle = unsafe { Object::get(to.ah) }?;
    if handle.pd() != shared.pd() {
        return Err(Errno::INVAL);
    }
    Ok(Address { path: *handle.path(), qpn: to.remote_qpn, qkey: to.remote_qkey })
}

/// Calls `post` with a request and its data.
///
/// # Safety
///
/// C's promises about the request and what it points to.
#[inline(always)]
unsafe fn with_data(
    wr: &ibv_send_wr,
    post: impl FnOnce(&SendRequest, SendData<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: of `entries`: the list is as long as the request says, and stays as it is during the call (C's promise 2).
    let list = unsafe { entries(wr.sg_list, wr.num_sge) }?;
    // SAFETY: of `decode`: C has initialised what the opcode asks for.
    let request = unsafe { decode(wr) }?;
    let space;
    let data = if wr.send_flags & INLINE == 0 {
        SendData::List(list)
    } else {
        // SAFETY: of `inline_pieces`: C's promise 2 about inline data.
        space = unsafe { inline_pieces(list) };
        // `entries` has refused lists that are longer than the space.
        SendData::Inline(&space[..list.len()])
    };
    post(&request, data)
}

/// The pieces of inline data.
///
/// # Safety
///
/// The entries name memory that is readable, and not written by others, for `'a`.
unsafe fn inline_pieces<'a>(list: &[ibv_sge]) -> [Source<'a>; MAX_SGE] {
    let mut space = [Source::EMPTY; MAX_SGE];
    for (piece, entry) in space.iter_mut().zip(list) {
        let address = ptr::with_exposed_provenance(usize::try_from(entry.addr).unwrap_or(0));
        // SAFETY: of `Source::from_raw`: the caller's contract about this entry; a `u32` fits an `isize`.
        *piece = unsafe { Source::from_raw(address, entry.length as usize) };
    }
    space
}

/// # Safety
///
/// C's promises about the request and what it points to.
#[inline(never)]
unsafe fn send_datagram(engine: &mut Engine, shared: &QpShared, wr: &ibv_send_wr) -> Result<(), Errno> {
    // SAFETY: of `address`: the same contract, and the queue pair is for datagrams.
    let address = unsafe { address(shared, wr) }?;
    // SAFETY: of `with_data`: the same contract.
    unsafe { with_data(wr, |request, data| engine.post_datagram(shared.id(), request, data, &address)) }
}

/// A request in a list of C's.
trait Linked {
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Calls `post` for each request of a list, up to the first that fails, which `bad` then names: 0 or the error.
///
/// # Safety
///
/// C's promises about the queue pair, the list and the out parameter.
#[inline(always)]
unsafe fn post_list<W: Linked>(
    qp: *mut ibv_qp,
    list: *mut W,
    bad: *mut *mut W,
    mut post: impl FnMut(&mut Engine, &QpShared, &W) -> Result<(), Errno>,
) -> c_int {
    let mut next = list;
    // SAFETY: of `Object::get`: a live queue pair of ours (C's promise 1).
    let posted = unsafe { Object::get(ibv_qp::object(qp)) }.and_then(|shared| {
        Node::get()?.with(|engine| {
            // SAFETY: of `as_ref`: null, or a request that can be read and is not written to during the call (C's promise 2).
            while let Some(wr) = unsafe { next.as_ref() } {
                post(engine, shared, wr)?;
                next = wr.next();
            }
            Ok(())
        })
    });
    match posted {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: of `write`: an out parameter, valid for writes (C's promise 2).
            unsafe { bad.write(next) };
            errno.0
        }
    }
}

/// The context's `post_send`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let post = |engine: &mut Engine, shared: &QpShared, wr: &ibv_send_wr| {
        if shared.is_datagram() {
            // SAFETY: of `send_datagram`: a request of C's list, on a queue pair for datagrams (C's promises 1 and 2).
            unsafe { send_datagram(engine, shared, wr) }
        } else {
            let id: QpId = shared.id();
            // SAFETY: of `with_data`: a request of C's list (C's promise 2).
            unsafe { with_data(wr, |request, data| engine.post_send(id, request, data)) }
        }
    };
    // SAFETY: of `post_list`: C's promises about this function's arguments.
    unsafe { post_list(qp, list, bad, post) }
}

/// The context's `post_recv`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let post = |engine: &mut Engine, shared: &QpShared, wr: &ibv_recv_wr| {
        // SAFETY: of `entries`: the list is as long as the request says, and stays as it is during the call (C's promise 2).
        engine.post_recv(shared.id(), wr.wr_id, unsafe { entries(wr.sg_list, wr.num_sge) }?)
    };
    // SAFETY: of `post_list`: C's promises about this function's arguments.
    unsafe { post_list(qp, list, bad, post) }
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
            assert!(matches!(unsafe { decode(&wr) }, Err(Errno::OPNOTSUPP)));
        }
    }
}
