//! The data path: `post_send`, `post_recv` and `post_srq_recv`. Each takes the node's lock once for
//! a whole list of work requests and does not allocate.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use rdma_sys::{ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_wr_opcode};

use super::Errno;
use super::call::{Argument, Done, Handle, Out};
use super::object::{Pointee, Public};
use super::qp::QpShared;
use crate::engine::limits::MAX_SGE;
use crate::engine::{Address, Engine, Op, SendData, SendFlags, SendRequest, Source};
use crate::node::Node;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The fields that send and receive requests share.
pub(super) trait WorkRequest {
    fn next(&self) -> *mut Self;

    /// Pointer and length of the gather or scatter list.
    fn list(&self) -> (*const ibv_sge, c_int);
}

macro_rules! work_requests {
    ($($request:ty),*) => {
        $(impl WorkRequest for $request {
            #[inline]
            fn next(&self) -> *mut Self {
                self.next
            }

            #[inline]
            fn list(&self) -> (*const ibv_sge, c_int) {
                (self.sg_list, self.num_sge)
            }
        })*
    };
}

work_requests! { ibv_send_wr, ibv_recv_wr }

/// A linked list of work requests, or null. Promise 2 for such a list: each link is a request that
/// is readable and that nobody writes to during the call, its pointers are valid for the lengths
/// beside them, and the fields that its opcode and the transport of the queue pair require are
/// initialised.
pub(super) struct Requests<W>(*mut W);

impl<W> Argument for Requests<W> {
    type Raw = *mut W;

    #[inline]
    unsafe fn from_c(raw: *mut W) -> Self {
        Self(raw)
    }
}

/// A work request of a `Requests` list.
struct Request<'a, W>(&'a W);

impl<W> Clone for Request<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Request<'_, W> {}

impl<'a, W: WorkRequest> Request<'a, W> {
    /// The gather or scatter list.
    #[inline]
    fn entries(self) -> Result<&'a [ibv_sge], Errno> {
        let (list, count) = self.0.list();
        match usize::try_from(count) {
            Ok(0) => Ok(&[]),
            Ok(count) if count <= MAX_SGE && !list.is_null() => {
                // SAFETY: `from_raw_parts` requires `count` readable, initialised entries that
                // nobody changes, at an aligned pointer that is not null, of at most `isize::MAX`
                // bytes: promise 2 of the request; the guard above checks null and limits `count`
                // to `MAX_SGE`.
                Ok(unsafe { slice::from_raw_parts(list, count) })
            }
            _ => Err(Errno::INVAL),
        }
    }
}

/// The operands of an atomic in an `ibv_send_wr`. C leaves `swap` uninitialised for a
/// fetch-and-add.
#[repr(C)]
struct AtomicOperands {
    remote_addr: u64,
    compare_add: u64,
    swap: MaybeUninit<u64>,
    rkey: u32,
}

/// The send flags that the engine knows, without those that C does not have.
#[inline]
pub(super) const fn flags(raw: u32) -> SendFlags {
    #[allow(clippy::cast_possible_truncation, reason = "the flags that the engine knows are in the low bits")]
    let raw = raw as u8;
    SendFlags::from_bits_truncate(raw & !SendFlags::IMM.union(SendFlags::FAULT).bits())
}

/// Decodes a send request, without its data. Reads only fields that are initialised for the opcode.
#[inline(always)]
fn decode(Request(wr): Request<'_, ibv_send_wr>) -> Result<SendRequest, Errno> {
    type Code = ibv_wr_opcode;
    let (op, with_imm) = match wr.opcode {
        Code::IBV_WR_SEND => (Op::Send, false),
        Code::IBV_WR_SEND_WITH_IMM => (Op::Send, true),
        Code::IBV_WR_RDMA_WRITE => (Op::Write, false),
        Code::IBV_WR_RDMA_WRITE_WITH_IMM => (Op::Write, true),
        Code::IBV_WR_RDMA_READ => (Op::Read, false),
        Code::IBV_WR_ATOMIC_CMP_AND_SWP => (Op::CompareSwap, false),
        Code::IBV_WR_ATOMIC_FETCH_AND_ADD => (Op::FetchAdd, false),
        // Invalidations, memory windows and segmentation offload are not supported.
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
        // SAFETY: reading a union field requires it to be initialised: both fields are a `u32`,
        // initialised for opcodes with an immediate (promise 2).
        request.imm = unsafe { wr.__bindgen_anon_1.imm_data };
    }
    match op {
        Op::Send => {}
        Op::Write | Op::Read => {
            // SAFETY: reading a union field requires it to be initialised: `rdma` is the field for
            // these opcodes, plain integers, initialised (promise 2).
            let rdma = unsafe { wr.wr.rdma };
            (request.remote_addr, request.rkey) = (rdma.remote_addr, rdma.rkey);
        }
        Op::CompareSwap | Op::FetchAdd => {
            let operands = (&raw const wr.wr).cast::<AtomicOperands>();
            // SAFETY: a reference requires an aligned, valid value during the borrow: the union is
            // borrowed and aligned to 8 bytes, and has the field for atomics at its start, with the
            // layout of `AtomicOperands` (asserted below); C initialises its fields for these
            // opcodes (promise 2), except `swap`, which is a `MaybeUninit`.
            let operands = unsafe { &*operands };
            (request.remote_addr, request.rkey) = (operands.remote_addr, operands.rkey);
            request.compare_add = operands.compare_add;
            if op == Op::CompareSwap {
                // SAFETY: `assume_init` requires an initialised value: C sets `swap` for a
                // compare-and-swap (promise 2).
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

/// The destination of a UD send request.
fn address(shared: &QpShared, Request(wr): Request<'_, ibv_send_wr>) -> Result<Address, Errno> {
    if !matches!(wr.opcode, ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM) {
        return Err(Errno::INVAL);
    }
    // SAFETY: reading a union field requires it to be initialised: `ud` is the field for sends on a
    // UD queue pair, plain data, initialised (promise 2).
    let to = unsafe { wr.wr.ud };
    // SAFETY: `from_c` requires null or an address handle that is alive during the call: promise 2
    // covers the pointers of the request.
    let handle = unsafe { Handle::from_c(to.ah) };
    let handle = handle.get()?;
    if handle.pd() != shared.pd() {
        return Err(Errno::INVAL);
    }
    Ok(Address { path: *handle.path(), qpn: to.remote_qpn, qkey: to.remote_qkey })
}

/// Decodes a request and calls `post` with it and its data.
#[inline(always)]
fn with_data(
    wr: Request<'_, ibv_send_wr>,
    post: impl FnOnce(&SendRequest, SendData<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let list = wr.entries()?;
    let request = decode(wr)?;
    let space;
    let data = if wr.0.send_flags & INLINE == 0 {
        SendData::List(list)
    } else {
        space = inline_pieces(list);
        // In bounds: `entries` refuses lists longer than `MAX_SGE`.
        SendData::Inline(&space[..list.len()])
    };
    post(&request, data)
}

/// The pieces of inline data, to which the gather list of an inline request points.
fn inline_pieces(list: &[ibv_sge]) -> [Source<'_>; MAX_SGE] {
    let mut space = [Source::EMPTY; MAX_SGE];
    for (piece, entry) in space.iter_mut().zip(list) {
        let address = ptr::with_exposed_provenance(usize::try_from(entry.addr).unwrap_or(0));
        // SAFETY: `Source::from_raw` requires memory that is readable and that nobody writes to, of
        // at most `isize::MAX` bytes: promise 2 for the gather list of an inline request, during
        // the call; a `u32` fits an `isize`.
        *piece = unsafe { Source::from_raw(address, entry.length as usize) };
    }
    space
}

#[inline(never)]
fn send_datagram(engine: &mut Engine, shared: &QpShared, wr: Request<'_, ibv_send_wr>) -> Result<(), Errno> {
    let address = address(shared, wr)?;
    with_data(wr, |request, data| engine.post_datagram(shared.id(), request, data, &address))
}

/// Calls `post` for each request of a list. At the first failure stops and writes that request to
/// `bad`.
#[inline(always)]
fn post_list<P: Pointee, W: WorkRequest>(
    queue: &Handle<P>,
    Requests(list): Requests<W>,
    bad: &Out<*mut W>,
    mut post: impl FnMut(&mut Engine, &<P::Object as Public>::Private, Request<'_, W>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut next = list;
    let posted = queue.get().and_then(|shared| {
        Node::get()?.with(|engine| {
            // SAFETY: `as_ref` requires null, or a request that is readable and that nobody writes
            // to during the borrow: promise 2 for each link of the list.
            while let Some(wr) = unsafe { next.as_ref() } {
                post(engine, shared, Request(wr))?;
                next = wr.next();
            }
            Ok(())
        })
    });
    posted.inspect_err(|_| {
        let _written = bad.write(next);
    })
}

/// The context's `post_send`.
#[inline]
pub(super) fn post_send(qp: Handle<ibv_qp>, list: Requests<ibv_send_wr>, bad: Out<*mut ibv_send_wr>) -> Done {
    post_list(&qp, list, &bad, |engine, shared, wr| {
        if shared.is_datagram() {
            send_datagram(engine, shared, wr)
        } else {
            with_data(wr, |request, data| engine.post_send(shared.id(), request, data))
        }
    })
}

/// The context's `post_recv`.
#[inline]
pub(super) fn post_recv(qp: Handle<ibv_qp>, list: Requests<ibv_recv_wr>, bad: Out<*mut ibv_recv_wr>) -> Done {
    post_list(&qp, list, &bad, |engine, shared, wr| engine.post_recv(shared.id(), wr.0.wr_id, wr.entries()?))
}

/// The context's `post_srq_recv`.
#[inline]
pub(super) fn post_srq_recv(srq: Handle<ibv_srq>, list: Requests<ibv_recv_wr>, bad: Out<*mut ibv_recv_wr>) -> Done {
    post_list(&srq, list, &bad, |engine, srq, wr| engine.post_srq_recv(srq.id(), wr.0.wr_id, wr.entries()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked_before_they_are_read() {
        let mut list = [ibv_sge::default(); 2];
        let sg_list = list.as_mut_ptr();
        let count = |sg_list, num_sge| {
            let wr = ibv_recv_wr { sg_list, num_sge, ..Default::default() };
            Request(&wr).entries().map(<[ibv_sge]>::len)
        };
        assert_eq!(count(sg_list, 2), Ok(2));
        assert_eq!(count(ptr::null_mut(), 0), Ok(0));
        for (list, num_sge) in [(sg_list, -1), (sg_list, 17), (ptr::null_mut(), 1)] {
            assert_eq!(count(list, num_sge), Err(Errno::INVAL));
        }
    }

    #[test]
    fn operations_that_the_device_lacks_are_refused() {
        for opcode in [ibv_wr_opcode::IBV_WR_LOCAL_INV, ibv_wr_opcode::IBV_WR_TSO, ibv_wr_opcode(99)] {
            let wr = ibv_send_wr { opcode, ..Default::default() };
            assert!(matches!(decode(Request(&wr)), Err(Errno::OPNOTSUPP)));
        }
    }
}
