//! The op tables of a context: what the inline functions of `verbs.h` call.
//!
//! The classic table is called unchecked, so nothing that has a caller is null. The extended table is checked for size and
//! null, and answers `EOPNOTSUPP` by itself where a slot is null; only `close_xrcd` is called unchecked.

use std::ffi::c_int;

use rdma_sys::{ibv_context_ops, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_srq, ibv_xrcd, verbs_context};

use super::{Errno, attr, cq, cq_ex, post, qp_ex};

/// The table that every consumer calls.
pub(crate) fn classic() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        post_srq_recv: Some(no_srq_recv),
        bind_mw: Some(no_bind_mw),
        dealloc_mw: Some(no_dealloc_mw),
        ..Default::default()
    }
}

/// The table in front of the context.
pub(crate) fn extended() -> verbs_context {
    verbs_context {
        query_port: Some(attr::query_port),
        query_device_ex: Some(attr::query_device_ex),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        create_qp_ex: Some(qp_ex::create_qp_ex),
        close_xrcd: Some(no_close_xrcd),
        ..Default::default()
    }
}

unsafe extern "C" fn no_srq_recv(_: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: C's promise: valid for writes.
    unsafe { bad.write(wr) };
    Errno::OPNOTSUPP.0
}

extern "C" fn no_bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    Errno::OPNOTSUPP.0
}

extern "C" fn no_dealloc_mw(_: *mut ibv_mw) -> c_int {
    Errno::OPNOTSUPP.0
}

extern "C" fn no_close_xrcd(_: *mut ibv_xrcd) -> c_int {
    Errno::OPNOTSUPP.0
}
