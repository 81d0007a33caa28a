//! `ibv_cq_ex`: completions one at a time, field by field.
//!
//! A poll runs from a successful `start_poll` to `end_poll`; other threads wait outside meanwhile. The slots have no size check
//! in `verbs.h`, so every one is filled: what no completion of this device has reads as zero.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode,
    ibv_wc_tm_info,
};

use super::errno::{pointer, status};
use super::gate::Gate;
use super::{Errno, cq};

/// The completion that is being looked at.
#[derive(Debug, Default)]
pub(crate) struct Poller(Gate<Current>);

#[derive(Default)]
struct Current(ibv_wc);

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wr_id {:#x}", self.0.wr_id)
    }
}

/// What `wc_flags` may ask for: all that a completion of this device has.
const KNOWN_FIELDS: u64 = rdma_sys::IBV_WC_STANDARD_FLAGS as u64;
const MASK_FLAGS: u32 = 1;
const SINGLE_THREADED: u32 = 1;

/// The context's `create_cq_ex`.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: C's promise: valid for reads, in the length of some version of the structure, all of which begin with these fields.
    let asked = unsafe { &*attr.cast::<OldestAttr>() };
    let flags = if asked.comp_mask & MASK_FLAGS != 0 { asked.flags } else { 0 };
    let unknown =
        asked.comp_mask & !MASK_FLAGS != 0 || asked.wc_flags & !KNOWN_FIELDS != 0 || flags & !SINGLE_THREADED != 0;
    if unknown {
        return pointer(Err(Errno::OPNOTSUPP));
    }
    // SAFETY: C's promises about the context and the channel.
    pointer(unsafe { cq::create(context, asked.cqe, asked.cq_context, asked.channel, asked.comp_vector) })
}

/// `ibv_cq_init_attr_ex` as it began; a domain came later, under a mask bit that this device does not know.
#[repr(C)]
struct OldestAttr {
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    wc_flags: u64,
    comp_mask: u32,
    flags: u32,
}

const _: () = assert!(offset_of!(OldestAttr, flags) == offset_of!(ibv_cq_init_attr_ex, flags));

/// An extended queue with its slots filled and everything else zero.
pub(crate) fn slots() -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        read_completion_ts: Some(no_u64),
        read_cvlan: Some(no_u16),
        read_flow_tag: Some(no_u32),
        read_tm_info: Some(read_tm_info),
        read_completion_wallclock_ns: Some(no_u64),
        ..Default::default()
    }
}

/// Makes the next completion the current one; `ENOENT` if there is none.
///
/// # Safety
///
/// C's promise about the queue.
unsafe fn advance(cq: *mut ibv_cq_ex) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let state = unsafe { cq::get(cq.cast()) }?;
    let wc = cq::poll_one(state)?.ok_or(Errno(libc::ENOENT))?;
    // SAFETY: the live object's own field, which C only reads, and only between start and end.
    unsafe { (*cq).status = wc.status };
    // SAFETY: as above.
    unsafe { (*cq).wr_id = wc.wr_id };
    state.poller().0.with(|current| current.0 = wc);
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: C's promise about the queue.
    let state = match unsafe { cq::get(cq.cast()) } {
        Ok(state) => state,
        Err(errno) => return errno.0,
    };
    // SAFETY: C's promise: valid for reads.
    if unsafe { (*attr).comp_mask } != 0 {
        return Errno::INVAL.0;
    }
    state.poller().0.enter();
    // SAFETY: C's promise about the queue.
    let started = unsafe { advance(cq) };
    if started.is_err() {
        // Nothing was started, so nothing will be ended.
        state.poller().0.leave();
    }
    status(started)
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: C's promise about the queue.
    status(unsafe { advance(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: C's promise about the queue.
    if let Ok(state) = unsafe { cq::get(cq.cast()) } {
        state.poller().0.leave();
    }
}

/// Reads something out of the current completion.
///
/// # Safety
///
/// C's promise about the queue.
unsafe fn read<R: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&ibv_wc) -> R) -> R {
    // SAFETY: the caller's promise.
    unsafe { cq::get(cq.cast()) }
        .map_or_else(|_| R::default(), |state| state.poller().0.with(|current| field(&current.0)))
}

macro_rules! readers {
    ($($name:ident -> $type:ty, |$wc:ident| $field:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: C's promise about the queue.
            unsafe { read(cq, |$wc| $field) }
        })*
    };
}

readers! {
    read_vendor_err -> u32, |wc| wc.vendor_err;
    read_byte_len -> u32, |wc| wc.byte_len;
    read_qp_num -> u32, |wc| wc.qp_num;
    read_src_qp -> u32, |wc| wc.src_qp;
    read_wc_flags -> c_uint, |wc| wc.wc_flags;
    read_slid -> u32, |wc| u32::from(wc.slid);
    read_sl -> u8, |wc| wc.sl;
    read_dlid_path_bits -> u8, |wc| wc.dlid_path_bits;
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: C's promise about the queue.
    ibv_wc_opcode(unsafe { read(cq, |wc| wc.opcode.0) })
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: both variants are a `u32`, and a completion is initialised wholly.
    let field = |wc: &ibv_wc| unsafe { wc.__bindgen_anon_1.imm_data };
    // SAFETY: C's promise about the queue.
    unsafe { read(cq, field) }
}

extern "C" fn no_u64(_: *mut ibv_cq_ex) -> u64 {
    0
}

extern "C" fn no_u32(_: *mut ibv_cq_ex) -> u32 {
    0
}

extern "C" fn no_u16(_: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn read_tm_info(_: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: C's promise: valid for writes.
    unsafe { info.write(ibv_wc_tm_info::default()) };
}
