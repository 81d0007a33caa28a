//! The op tables of a context, which the inline functions of `verbs.h` call, and the functions that
//! open a context with these tables.
//!
//! `verbs.h` calls the classic table unchecked, so no slot with a caller is null. `verbs.h` checks
//! the extended table for size and null, and returns `EOPNOTSUPP` itself for a null slot; only
//! `close_xrcd` is called unchecked.

use std::sync::Arc;

use rdma_sys::{
    ibv_context, ibv_context_ops, ibv_device, ibv_dm, ibv_mw, ibv_mw_bind, ibv_qp, ibv_td, ibv_xrcd, verbs_context,
};

use super::call::{Made, call1, call2, call3, call4, call5, fast};
use super::context::{self, ContextState, Tables};
use super::{Errno, attr, cq, cq_ex, device, dm, mr, pd, post, qp_ex};

static TABLES: Tables = Tables { classic, extended, cq: cq_ex::slots, qp: qp_ex::slots };

/// `ibv_open_device`.
pub(super) fn open_device(ibv_device: *mut ibv_device) -> Made<ibv_context> {
    context::open(ibv_device, &TABLES).map(|(context, _)| context)
}

/// Opens the device with this number; `ENODEV` if there is none or `RDMA_SOFT=off` disables it.
pub(crate) fn open_wanted(index: u8) -> Result<(*mut ibv_context, Arc<ContextState>), Errno> {
    let device = device::wanted()?.get(usize::from(index)).copied().ok_or(Errno(libc::ENODEV))?;
    context::open(device, &TABLES)
}

/// The classic table, in the `ibv_context`.
fn classic() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(fast::call2(cq::req_notify_cq)),
        post_send: Some(fast::call3(post::post_send)),
        post_recv: Some(fast::call3(post::post_recv)),
        post_srq_recv: Some(fast::call3(post::post_srq_recv)),
        bind_mw: Some(call3(|_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind| Errno::OPNOTSUPP.0)),
        dealloc_mw: Some(call1(|_: *mut ibv_mw| Errno::OPNOTSUPP.0)),
        ..Default::default()
    }
}

/// The extended table, in the `verbs_context` in front of the `ibv_context`.
fn extended() -> verbs_context {
    verbs_context {
        query_port: Some(call4(attr::query_port)),
        advise_mr: Some(call5(mr::advise_mr)),
        alloc_td: Some(call2(pd::alloc_td)),
        dealloc_td: Some(call1(context::destroy::<ibv_td>)),
        alloc_parent_domain: Some(call2(pd::alloc_parent_domain)),
        query_device_ex: Some(call4(attr::query_device_ex)),
        alloc_dm: Some(call2(dm::alloc_dm)),
        free_dm: Some(call1(context::destroy::<ibv_dm>)),
        reg_dm_mr: Some(call5(dm::reg_dm_mr)),
        query_rt_values: Some(call2(attr::query_rt_values)),
        create_cq_ex: Some(call2(cq_ex::create_cq_ex)),
        create_qp_ex: Some(call2(qp_ex::create_qp_ex)),
        close_xrcd: Some(call1(|_: *mut ibv_xrcd| Errno::OPNOTSUPP.0)),
        ..Default::default()
    }
}
