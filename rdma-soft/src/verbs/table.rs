//! The software device's functions in the table of libibverbs functions that `rdma-sys` defines.

use std::ffi::{c_int, c_void};

use rdma_sys::{Ibverbs, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_fork_status};

use super::call::{call0, call1, call2, call3, call4, call5, call6, fast};
use super::{ah, async_event, attr, channel, context, cq, device, mcast, mr, ops, pd, qp, qp_ex, srq, strings};

/// `ibv_get_async_event` in parts.
pub type GetAsyncEvent = unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event, u32) -> c_int;
/// `ibv_get_cq_event` in parts.
pub type GetCqEvent = unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void, u32) -> c_int;

/// `ibv_get_async_event` in parts.
pub(crate) const GET_ASYNC_EVENT: GetAsyncEvent = fast::call3(async_event::next_async_event);
/// `ibv_get_cq_event` in parts.
pub(crate) const GET_CQ_EVENT: GetCqEvent = fast::call4(channel::next_cq_event);

/// The software device's libibverbs.
///
/// The table is complete: functions that the device does not support fail with `EOPNOTSUPP`, each
/// in its own error convention.
///
/// ```
/// let verbs = rdma_soft::ibverbs();
/// let mut count = 0;
/// // SAFETY: `count` is valid for writes.
/// let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
/// assert_eq!(count, 1);
/// // SAFETY: the list is not used below.
/// unsafe { (verbs.ibv_free_device_list)(list) };
/// ```
#[must_use]
pub const fn ibverbs() -> &'static Ibverbs {
    static TABLE: Ibverbs = Ibverbs {
        ibv_get_device_list: call1(device::get_device_list),
        ibv_free_device_list: call1(device::free_device_list),
        ibv_get_device_name: call1(device::get_device_name),
        ibv_get_device_index: call1(device::get_device_index),
        ibv_get_device_guid: call1(device::get_device_guid),
        ibv_open_device: call1(ops::open_device),
        ibv_close_device: call1(context::close_device),
        ibv_import_device: call1(context::import_device),
        ibv_get_async_event: call2(async_event::get_async_event),
        ibv_ack_async_event: call1(async_event::ack_async_event),
        ibv_query_device: call2(attr::query_device),
        ibv_query_port: call3(attr::query_port_compat),
        ibv_query_port_speed: call3(attr::query_port_speed),
        ibv_query_gid: call4(attr::query_gid),
        _ibv_query_gid_ex: call6(attr::query_gid_ex),
        _ibv_query_gid_table: call5(attr::query_gid_table),
        ibv_query_pkey: call4(attr::query_pkey),
        ibv_get_pkey_index: call3(attr::get_pkey_index),
        ibv_alloc_pd: call1(pd::alloc_pd),
        ibv_dealloc_pd: call1(context::destroy),
        ibv_import_pd: call2(pd::import_pd),
        ibv_unimport_pd: call1(pd::unimport_pd),
        ibv_reg_mr: call4(mr::reg_mr),
        ibv_reg_mr_iova: call5(mr::reg_mr_iova),
        ibv_reg_mr_iova2: call5(mr::reg_mr_iova2),
        ibv_reg_mr_ex: call2(mr::reg_mr_ex),
        ibv_rereg_mr: call6(mr::rereg_mr),
        ibv_dereg_mr: call1(context::destroy),
        ibv_import_mr: call2(mr::import_mr),
        ibv_unimport_mr: call1(mr::unimport_mr),
        ibv_create_comp_channel: call1(channel::create_comp_channel),
        ibv_destroy_comp_channel: call1(context::destroy),
        ibv_create_cq: call5(cq::create_cq),
        ibv_resize_cq: call2(cq::resize_cq),
        ibv_destroy_cq: call1(context::destroy),
        ibv_get_cq_event: call3(channel::get_cq_event),
        ibv_ack_cq_events: call2(cq::ack_cq_events),
        ibv_create_srq: call2(srq::create_srq),
        ibv_modify_srq: call3(srq::modify_srq),
        ibv_query_srq: call2(srq::query_srq),
        ibv_destroy_srq: call1(context::destroy),
        ibv_create_qp: call2(qp::create_qp),
        ibv_qp_to_qp_ex: call1(qp_ex::qp_to_qp_ex),
        ibv_modify_qp: call3(qp::modify_qp),
        ibv_query_qp: call4(qp::query_qp),
        ibv_query_qp_data_in_order: call3(qp::query_qp_data_in_order),
        ibv_destroy_qp: call1(context::destroy),
        ibv_create_ah: call2(ah::create_ah),
        ibv_init_ah_from_wc: call5(ah::init_ah_from_wc),
        ibv_create_ah_from_wc: call4(ah::create_ah_from_wc),
        ibv_destroy_ah: call1(context::destroy),
        ibv_resolve_eth_l2_from_gid: call4(ah::resolve_eth_l2_from_gid),
        ibv_attach_mcast: call3(mcast::attach_mcast),
        ibv_detach_mcast: call3(mcast::detach_mcast),
        // No page is pinned, so a fork cannot separate a region from its pages by copy-on-write.
        ibv_fork_init: call0(|| 0_i32),
        ibv_is_fork_initialized: call0(|| ibv_fork_status::IBV_FORK_UNNEEDED),
        ibv_wc_status_str: call1(strings::wc_status_str),
        ibv_event_type_str: call1(strings::event_type_str),
        ibv_node_type_str: call1(strings::node_type_str),
        ibv_port_state_str: call1(strings::port_state_str),
        ibv_wr_opcode_str: call1(strings::wr_opcode_str),
        ibv_rate_to_mult: call1(strings::rate_to_mult),
        mult_to_ibv_rate: call1(strings::mult_to_rate),
        ibv_rate_to_mbps: call1(strings::rate_to_mbps),
        mbps_to_ibv_rate: call1(strings::mbps_to_rate),
        ..Ibverbs::UNSUPPORTED
    };
    &TABLE
}
