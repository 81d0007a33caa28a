//! `ibv_cq_ex`: the extended polling interface, one completion at a time, field by field.
//!
//! A poll runs from a successful `start_poll` to `end_poll`; other threads that call `start_poll`
//! wait until then. `verbs.h` calls the function slots unchecked, so every slot is set: a field
//! that no completion of this device has reads as zero.

use std::ffi::{c_uint, c_void};
use std::mem::offset_of;
use std::slice;

use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_create_cq_wc_flags, ibv_pd, ibv_poll_cq_attr,
    ibv_wc, ibv_wc_opcode, ibv_wc_tm_info,
};

use super::call::fast::{call1, call2};
use super::call::{Argument, Handle, In, Made, Out};
use super::cq::{Current, Extras};
use super::object::{Object, set_field};
use super::pd::ParentUse;
use super::{Errno, cq};
use crate::engine::Time;
use crate::node::Node;

/// The field with the time at which a completion was added.
const TIMESTAMP: u64 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
/// Fields that `wc_flags` may request: all that completions of this device have.
const KNOWN_FIELDS: u64 = rdma_sys::IBV_WC_STANDARD_FLAGS as u64 | TIMESTAMP;
const MASK_FLAGS: u32 = 1;
const MASK_PD: u32 = 2;
const SINGLE_THREADED: u32 = 1;

/// The context's `create_cq_ex`.
pub(super) fn create_cq_ex(context: Handle<ibv_context>, attr: In<ibv_cq_init_attr_ex>) -> Made<ibv_cq_ex> {
    // SAFETY: `get_as` requires that every version of `ibv_cq_init_attr_ex` begins with the fields
    // of `OldestAttr`: these are the fields of its first version (the layout is asserted below).
    let asked = unsafe { attr.get_as::<OldestAttr>() }?;
    let flags = if asked.comp_mask & MASK_FLAGS != 0 { asked.flags } else { 0 };
    let unknown = asked.comp_mask & !(MASK_FLAGS | MASK_PD) != 0
        || asked.wc_flags & !KNOWN_FIELDS != 0
        || flags & !SINGLE_THREADED != 0;
    if unknown {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: `from_c` requires null or a channel that is alive during the call: promise 2 covers
    // the pointers in the structure.
    let channel = unsafe { Handle::from_c(asked.channel) };
    let mut extras = Extras { has_times: asked.wc_flags & TIMESTAMP != 0, parent: None };
    if asked.comp_mask & MASK_PD != 0 {
        // SAFETY: `from_c` requires null or a domain that is alive during the call: promise 2
        // covers the pointers in the structure, which has this one: its bit is set.
        let pd = unsafe { Handle::<ibv_pd>::from_c(attr.get()?.parent_domain) };
        extras.parent = Some(ParentUse::new(pd.get()?, context.get()?)?);
    }
    cq::create(&context, asked.cqe, asked.cq_context, &channel, asked.comp_vector, extras)
}

/// The first version of `ibv_cq_init_attr_ex`. A later version adds a parent domain, under a mask
/// bit.
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

/// A completion queue with its function slots set and everything else zero.
pub(super) fn slots() -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(call2(start_poll)),
        next_poll: Some(call1(next_poll)),
        end_poll: Some(call1(end_poll)),
        read_opcode: Some(call1(|cq: Queue| ibv_wc_opcode(read(&cq, |wc| wc.opcode.0)))),
        read_vendor_err: Some(call1(|cq: Queue| read(&cq, |wc| wc.vendor_err))),
        read_byte_len: Some(call1(|cq: Queue| read(&cq, |wc| wc.byte_len))),
        read_imm_data: Some(call1(|cq: Queue| read(&cq, imm_data))),
        read_qp_num: Some(call1(|cq: Queue| read(&cq, |wc| wc.qp_num))),
        read_src_qp: Some(call1(|cq: Queue| read(&cq, |wc| wc.src_qp))),
        read_wc_flags: Some(call1(|cq: Queue| -> c_uint { read(&cq, |wc| wc.wc_flags) })),
        read_slid: Some(call1(|cq: Queue| read(&cq, |wc| u32::from(wc.slid)))),
        read_sl: Some(call1(|cq: Queue| read(&cq, |wc| wc.sl))),
        read_dlid_path_bits: Some(call1(|cq: Queue| read(&cq, |wc| wc.dlid_path_bits))),
        read_completion_ts: Some(call1(read_time)),
        read_cvlan: Some(call1(|_: Queue| 0_u16)),
        read_flow_tag: Some(call1(|_: Queue| 0_u32)),
        read_tm_info: Some(call2(read_tm_info)),
        read_completion_wallclock_ns: Some(call1(|_: Queue| 0_u64)),
        ..Default::default()
    }
}

type Queue = Handle<ibv_cq_ex>;

/// Polls the next completion and makes it the current one; `ENOENT` if the CQ is empty.
fn advance(queue: &Object<ibv_cq_ex>) -> Result<(), Errno> {
    let (node, mut wc) = (Node::get()?, ibv_wc::default());
    let time = if queue.extras.has_times {
        node.poll_timed(queue.id(), &mut wc)?
    } else {
        (node.poll_cq(queue.id(), slice::from_mut(&mut wc))? != 0).then(Time::default)
    };
    let time = time.ok_or(Errno(libc::ENOENT))?;
    set_field!(queue, status, wc.status);
    set_field!(queue, wr_id, wc.wr_id);
    queue.current.with(|current| *current = Current { wc, time });
    Ok(())
}

fn start_poll(cq: Queue, attr: In<ibv_poll_cq_attr>) -> Result<(), Errno> {
    let queue = cq.get()?;
    if attr.get()?.comp_mask != 0 {
        return Err(Errno::INVAL);
    }
    queue.current.enter();
    // C calls `end_poll` only after a successful `start_poll`, so a failure must leave the gate.
    advance(queue).inspect_err(|_| queue.current.leave())
}

fn next_poll(cq: Queue) -> Result<(), Errno> {
    advance(cq.get()?)
}

fn end_poll(cq: Queue) {
    if let Ok(queue) = cq.get() {
        queue.current.leave();
    }
}

/// Reads a field of the current completion; zero if `cq` is not a live CQ.
fn read<R: Default>(cq: &Queue, field: impl FnOnce(&ibv_wc) -> R) -> R {
    cq.get().map_or_else(|_| R::default(), |queue| queue.current.with(|current| field(&current.wc)))
}

/// The time of the current completion, in nanoseconds.
fn read_time(cq: Queue) -> u64 {
    cq.get().map_or(0, |queue| queue.current.with(|current| current.time.0))
}

fn imm_data(wc: &ibv_wc) -> u32 {
    // SAFETY: reading a union field requires it to be initialised: both fields are a `u32`, and
    // every completion is fully initialised.
    unsafe { wc.__bindgen_anon_1.imm_data }
}

fn read_tm_info(_cq: Queue, info: Out<ibv_wc_tm_info>) {
    // The function has no result with which to report a null `info`.
    let _written = info.write(ibv_wc_tm_info::default());
}
