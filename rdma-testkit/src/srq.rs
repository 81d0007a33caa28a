//! Shared receive queues of the test provider. Numbers cite the invariants of the crate.

use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;

use rdma_sys::*;

use super::data_path::{post, sges};
use super::objects::{Posted, boxed, fails, unboxed};
use super::world::{called, world};

#[repr(C)]
struct FakeSrq {
    base: ibv_srq,
    posted: Mutex<Vec<Posted>>,
    attr: Mutex<ibv_srq_attr>,
}

/// The requests posted to a queue of this provider, in order.
#[must_use]
pub fn posted_to_srq(srq: *mut ibv_srq) -> Vec<Posted> {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*srq.cast::<FakeSrq>() }.posted.lock().unwrap().clone()
}

/// Grants twice the number of requests that was asked for.
pub(crate) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    if fails("create_srq") {
        return ptr::null_mut();
    }
    // SAFETY: the caller gives valid attributes.
    let init = unsafe { &mut *init };
    init.attr.max_wr *= 2;
    // SAFETY: the caller gives a live domain of this provider (1).
    let context = unsafe { (*pd).context };
    let base = ibv_srq { context, pd, srq_context: init.srq_context, ..ibv_srq::default() };
    boxed("srq", FakeSrq { base, posted: Mutex::default(), attr: Mutex::new(init.attr) })
}

pub(crate) unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let errno = called("modify_srq");
    if errno != 0 {
        return errno;
    }
    // SAFETY: the caller gives valid attributes.
    let ibv_srq_attr { max_wr, srq_limit, .. } = unsafe { *attr };
    // SAFETY: the caller gives a live queue of this provider (1).
    let mut held = unsafe { &*srq.cast::<FakeSrq>() }.attr.lock().unwrap();
    if mask as u32 & ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 == 0 {
        held.srq_limit = srq_limit;
    } else {
        held.max_wr = 2 * max_wr;
    }
    0
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller gives a live queue of this provider (1).
    let held = *unsafe { &*srq.cast::<FakeSrq>() }.attr.lock().unwrap();
    let answer = world(|world| world.srq_answer).unwrap_or(held);
    // SAFETY: the caller gives space for the attributes.
    unsafe { *attr = answer };
    called("query_srq")
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let errno = called("destroy_srq");
    if errno == 0 {
        // SAFETY: unboxed requires a pointer from boxed, once: made by create_srq (1).
        unsafe { unboxed::<FakeSrq, _>("srq", srq) };
    }
    errno
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a live queue of this provider (1).
    let mut posted = unsafe { &*srq.cast::<FakeSrq>() }.posted.lock().unwrap();
    post("post_srq_recv", &mut posted, wr, bad, |wr| {
        // SAFETY: sges requires a list of `num_sge` entries: the request's own.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) };
        (Posted { wr_id: wr.wr_id, recv: true, opcode: 0, flags: 0, sges, to: None }, wr.next)
    })
}
