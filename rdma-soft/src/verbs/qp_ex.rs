//! `ibv_qp_ex`: the `ibv_wr_*` calls. They collect send requests after `wr_start`; `wr_complete`
//! posts them together.
//!
//! `verbs.h` calls the function slots unchecked, so every slot is set. A slot for an operation that
//! the device lacks makes `wr_complete` fail, as does any error of a slot since `wr_start`; no
//! request is posted then.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;

use rdma_sys::{
    ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_create_send_ops_flags, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_type, ibv_sge,
};

use super::builder::{Batch, Builder};
use super::call::fast::{call1, call2, call3, call4, call5, call6};
use super::call::{Argument, Data, Handle, InOut, List, Made};
use super::object::get_field;
use super::{Errno, post, qp};
use crate::engine::limits::MAX_SGE;
use crate::engine::{Address, Op, SendFlags, SendRequest};

/// The context's `create_qp_ex`.
pub(super) fn create_qp_ex(_context: Handle<ibv_context>, attr: InOut<ibv_qp_init_attr_ex>) -> Made<ibv_qp> {
    type Mask = ibv_qp_init_attr_mask;
    type Ops = ibv_qp_create_send_ops_flags;
    const KNOWN: u32 =
        Mask::IBV_QP_INIT_ATTR_PD.0 | Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0 | Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    const DATAGRAM_OPS: u32 = Ops::IBV_QP_EX_WITH_SEND.0 | Ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
    const UNRELIABLE_OPS: u32 =
        DATAGRAM_OPS | Ops::IBV_QP_EX_WITH_RDMA_WRITE.0 | Ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
    const OPS: u32 = UNRELIABLE_OPS
        | Ops::IBV_QP_EX_WITH_RDMA_READ.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0
        | Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
    let attr = attr.raw();
    if attr.is_null() {
        return Err(Errno::INVAL);
    }
    macro_rules! field {
        ($name:ident) => {{
            // SAFETY: a read requires a valid field: every version of the structure has the fields
            // up to `pd`, and a structure whose mask has the bit of a later field has that field
            // (promise 2). Later fields are read only after a check of their bit.
            unsafe { (*attr).$name }
        }};
    }
    let mask = field!(comp_mask);
    let has = |bit: Mask| mask & bit.0 != 0;
    let (has_flags, extended) = (has(Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS), has(Mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS));
    let known = u64::from(match field!(qp_type) {
        ibv_qp_type::IBV_QPT_UD => DATAGRAM_OPS,
        ibv_qp_type::IBV_QPT_UC => UNRELIABLE_OPS,
        _ => OPS,
    });
    if mask & !KNOWN != 0
        || (has_flags && field!(create_flags) != 0)
        || (extended && field!(send_ops_flags) & !known != 0)
    {
        return Err(Errno::OPNOTSUPP);
    }
    if !has(Mask::IBV_QP_INIT_ATTR_PD) {
        return Err(Errno::INVAL);
    }
    let pd = field!(pd);
    // SAFETY: `from_c` requires null or a domain that is alive during the call: promise 2 covers
    // the pointers in the structure.
    let pd = unsafe { Handle::from_c(pd) };
    // SAFETY: an exclusive reference requires a valid value that nobody else uses: the structure
    // begins with the fields of `ibv_qp_init_attr`, in the same order (the layout is asserted
    // below), and has at least that size (promise 2).
    let asked = unsafe { &mut *attr.cast::<ibv_qp_init_attr>() };
    qp::create(&pd, asked, extended).map(<*mut ibv_qp_ex>::cast)
}

const _: () = {
    assert!(offset_of!(ibv_qp_init_attr_ex, cap) == offset_of!(ibv_qp_init_attr, cap));
    assert!(offset_of!(ibv_qp_init_attr_ex, sq_sig_all) == offset_of!(ibv_qp_init_attr, sq_sig_all));
    assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) <= size_of::<ibv_qp_init_attr>());
};

type Pair = Handle<ibv_qp_ex>;

/// `ibv_qp_to_qp_ex`: null if the queue pair was not created with `send_ops_flags`.
pub(super) fn qp_to_qp_ex(qp: Handle<ibv_qp>) -> *mut ibv_qp_ex {
    let extended = qp.get().is_ok_and(|shared| shared.builder().is_some());
    if extended { qp.raw().cast() } else { ptr::null_mut() }
}

/// A queue pair with its function slots set and everything else zero.
pub(super) fn slots() -> ibv_qp_ex {
    type Bind = *const ibv_mw_bind_info;
    const PLAIN: SendFlags = SendFlags::empty();
    ibv_qp_ex {
        wr_start: Some(call1(wr_start)),
        wr_complete: Some(call1(wr_complete)),
        wr_abort: Some(call1(wr_abort)),
        wr_send: Some(call1(|qp: Pair| push(&qp, Op::Send, PLAIN, 0, 0, |_| ()))),
        wr_send_imm: Some(call2(|qp: Pair, imm: u32| push(&qp, Op::Send, SendFlags::IMM, 0, 0, |wr| wr.imm = imm))),
        wr_rdma_write: Some(call3(|qp: Pair, rkey: u32, addr: u64| push(&qp, Op::Write, PLAIN, rkey, addr, |_| ()))),
        wr_rdma_write_imm: Some(call4(|qp: Pair, rkey: u32, addr: u64, imm: u32| {
            push(&qp, Op::Write, SendFlags::IMM, rkey, addr, |wr| wr.imm = imm);
        })),
        wr_rdma_read: Some(call3(|qp: Pair, rkey: u32, addr: u64| push(&qp, Op::Read, PLAIN, rkey, addr, |_| ()))),
        wr_atomic_cmp_swp: Some(call5(|qp: Pair, rkey: u32, addr: u64, compare: u64, swap: u64| {
            push(&qp, Op::CompareSwap, PLAIN, rkey, addr, |wr| (wr.compare_add, wr.swap) = (compare, swap));
        })),
        wr_atomic_fetch_add: Some(call4(|qp: Pair, rkey: u32, addr: u64, add: u64| {
            push(&qp, Op::FetchAdd, PLAIN, rkey, addr, |wr| wr.compare_add = add);
        })),
        wr_set_ud_addr: Some(call4(wr_set_ud_addr)),
        wr_set_sge: Some(call4(|qp: Pair, lkey: u32, addr: u64, length: u32| {
            with_batch(&qp, |batch| batch.set_list(&[ibv_sge { addr, length, lkey }]));
        })),
        wr_set_sge_list: Some(call3(wr_set_sge_list)),
        wr_set_inline_data: Some(call3(wr_set_inline_data)),
        wr_set_inline_data_list: Some(call3(wr_set_inline_data_list)),
        // Operations that the device does not support.
        wr_bind_mw: Some(call4(|qp: Pair, _: *mut ibv_mw, _: u32, _: Bind| refuse(&qp))),
        wr_local_inv: Some(call2(|qp: Pair, _: u32| refuse(&qp))),
        wr_send_inv: Some(call2(|qp: Pair, _: u32| refuse(&qp))),
        wr_send_tso: Some(call4(|qp: Pair, _: *mut c_void, _: u16, _: u16| refuse(&qp))),
        wr_set_xrc_srqn: Some(call2(|qp: Pair, _: u32| refuse(&qp))),
        wr_atomic_write: Some(call4(|qp: Pair, _: u32, _: u64, _: *const c_void| refuse(&qp))),
        wr_flush: Some(call6(|qp: Pair, _: u32, _: u64, _: usize, _: u8, _: u8| refuse(&qp))),
        ..Default::default()
    }
}

/// The builder of a live queue pair; `None` without the extended interface.
fn builder(qp: &Pair) -> Option<&Builder> {
    qp.get().ok()?.builder()
}

fn with_batch(qp: &Pair, work: impl FnOnce(&mut Batch)) {
    if let Some(builder) = builder(qp) {
        builder.with(work);
    }
}

/// Makes `wr_complete` fail with `EOPNOTSUPP`.
fn refuse(qp: &Pair) {
    with_batch(qp, |batch| batch.fail(Errno::OPNOTSUPP));
}

fn wr_start(qp: Pair) {
    if let Some(builder) = builder(&qp) {
        builder.enter();
        builder.with(Batch::clear);
    }
}

fn wr_complete(qp: Pair) -> Result<(), Errno> {
    let shared = qp.get()?;
    let builder = shared.builder().ok_or(Errno::OPNOTSUPP)?;
    let posted = builder.with(|batch| batch.post(shared.id()));
    builder.leave();
    posted
}

fn wr_abort(qp: Pair) {
    if let Some(builder) = builder(&qp) {
        builder.leave();
    }
}

/// Adds a request with the `wr_id` and `wr_flags` that C has set in the public part.
fn push(qp: &Pair, op: Op, flag: SendFlags, rkey: u32, remote_addr: u64, fill: impl FnOnce(&mut SendRequest)) {
    let Ok(shared) = qp.get() else { return };
    let (wr_id, flags) = (get_field!(shared, wr_id), post::flags(get_field!(shared, wr_flags)) | flag);
    let mut request = SendRequest { wr_id, remote_addr, compare_add: 0, swap: 0, rkey, imm: 0, op, flags };
    fill(&mut request);
    with_batch(qp, |batch| batch.push(request));
}

fn wr_set_ud_addr(qp: Pair, handle: Handle<ibv_ah>, qpn: u32, qkey: u32) {
    let Ok(shared) = qp.get() else { return };
    with_batch(&qp, |batch| match handle.get() {
        Ok(handle) if handle.pd() == shared.pd() => batch.set_address(Address { path: *handle.path(), qpn, qkey }),
        _ => batch.fail(Errno::INVAL),
    });
}

fn wr_set_sge_list(qp: Pair, count: usize, list: List<ibv_sge>) {
    with_batch(&qp, |batch| {
        if count > MAX_SGE {
            return batch.fail(Errno::INVAL);
        }
        // SAFETY: `get_all` requires the length from C's argument: `count`.
        match unsafe { list.get_all(count) } {
            Ok(list) => batch.set_list(list),
            Err(errno) => batch.fail(errno),
        }
    });
}

fn wr_set_inline_data(qp: Pair, data: Data, len: usize) {
    // SAFETY: `add_inline` requires the length from C's argument: `len`.
    with_batch(&qp, |batch| unsafe { add_inline(batch, &data.0, len, true) });
}

/// Appends inline data to the newest request of a batch, or replaces its data.
///
/// # Safety
///
/// `len` is the length that C passed beside `data`.
unsafe fn add_inline(batch: &mut Batch, data: &List<u8>, len: usize, first: bool) {
    // SAFETY: `get_all` has the same contract.
    match unsafe { data.get_all(len) } {
        Ok(piece) => batch.add_inline(piece, first),
        Err(errno) => batch.fail(errno),
    }
}

fn wr_set_inline_data_list(qp: Pair, count: usize, list: List<ibv_data_buf>) {
    with_batch(&qp, |batch| {
        batch.add_inline(&[], true);
        // SAFETY: `get_all` requires the length from C's argument: `count`.
        let list = unsafe { list.get_all(count) }.unwrap_or_else(|errno| {
            batch.fail(errno);
            &[]
        });
        for &ibv_data_buf { addr, length } in list {
            // SAFETY: `from_c` requires a pointer that is valid for the length beside it: promise 2
            // for the entries of the list.
            let piece = unsafe { List::from_c(addr.cast_const().cast::<u8>()) };
            // SAFETY: `add_inline` requires the length from C: the entry's `length`.
            unsafe { add_inline(batch, &piece, length, false) };
        }
    });
}
