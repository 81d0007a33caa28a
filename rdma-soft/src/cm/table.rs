//! The software device's functions in the table of librdmacm functions that `rdma-sys` defines.

use std::ffi::{CStr, c_char, c_int};

use rdma_sys::{RdmaCm, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};

use super::{calls, endpoint, multicast, options, srq};
use crate::verbs::call::{call0, call1, call2, call3, call4, call5, fast};

/// `rdma_get_cm_event` in parts.
pub type GetCmEvent = unsafe extern "C" fn(*mut rdma_event_channel, *mut *mut rdma_cm_event, u32) -> c_int;
/// `rdma_get_request` in parts; the descriptor is that of the listener's channel.
pub type GetRequest = unsafe extern "C" fn(*mut rdma_cm_id, *mut *mut rdma_cm_id, u32) -> c_int;

/// `rdma_get_cm_event` in parts.
pub(crate) const GET_CM_EVENT: GetCmEvent = fast::call3(calls::next_cm_event);
/// `rdma_get_request` in parts.
pub(crate) const GET_REQUEST: GetRequest = fast::call3(endpoint::next_request);

/// The software device's librdmacm.
///
/// Connects the processes of one user on one host (and both sides within a process) at every
/// address of the host, in the port spaces TCP, UDP and IB with IP addresses. The table is
/// complete; `AF_IB` addresses fail with `EINVAL`.
///
/// ```
/// let cm = rdma_soft::rdmacm();
/// // SAFETY: there is nothing to promise.
/// let channel = unsafe { (cm.rdma_create_event_channel)() };
/// assert!(!channel.is_null());
/// // SAFETY: just made, and not used below.
/// unsafe { (cm.rdma_destroy_event_channel)(channel) };
/// ```
#[must_use]
pub const fn rdmacm() -> &'static RdmaCm {
    static TABLE: RdmaCm = RdmaCm {
        rdma_create_event_channel: call0(calls::create_event_channel),
        rdma_destroy_event_channel: call1(calls::destroy_event_channel),
        rdma_create_id: call4(calls::create_id),
        rdma_create_ep: call4(endpoint::create_ep),
        rdma_destroy_ep: call1(endpoint::destroy_ep),
        rdma_destroy_id: call1(calls::destroy_id),
        rdma_bind_addr: call2(calls::bind_addr),
        rdma_resolve_addr: call4(calls::resolve_addr),
        rdma_resolve_route: call2(calls::resolve_route),
        rdma_create_qp: call3(calls::create_qp),
        rdma_create_qp_ex: call2(calls::create_qp_ex),
        rdma_destroy_qp: call1(calls::destroy_qp),
        rdma_create_srq: call3(srq::create_srq),
        rdma_create_srq_ex: call2(srq::create_srq_ex),
        rdma_destroy_srq: call1(srq::destroy_srq),
        rdma_connect: call2(calls::connect),
        rdma_establish: call1(calls::establish),
        rdma_listen: call2(calls::listen),
        rdma_get_request: call2(endpoint::get_request),
        rdma_accept: call2(calls::accept),
        rdma_reject: call3(calls::reject),
        rdma_reject_ece: call3(calls::reject_ece),
        rdma_notify: call2(calls::notify),
        rdma_disconnect: call1(calls::disconnect),
        rdma_join_multicast: call3(multicast::join),
        rdma_leave_multicast: call2(multicast::leave),
        rdma_join_multicast_ex: call3(multicast::join_ex),
        rdma_get_cm_event: call2(calls::get_cm_event),
        rdma_ack_cm_event: call1(calls::ack_cm_event),
        rdma_get_src_port: call1(calls::get_src_port),
        rdma_get_dst_port: call1(calls::get_dst_port),
        rdma_get_devices: call1(calls::get_devices),
        rdma_free_devices: call1(calls::free_devices),
        rdma_event_str: call1(event_str),
        rdma_set_option: call5(options::set_option),
        rdma_migrate_id: call2(calls::migrate_id),
        rdma_getaddrinfo: call4(endpoint::getaddrinfo),
        rdma_freeaddrinfo: call1(endpoint::freeaddrinfo),
        rdma_init_qp_attr: call3(calls::init_qp_attr),
        rdma_set_local_ece: call2(calls::set_local_ece),
        rdma_get_remote_ece: call2(calls::get_remote_ece),
        rdma_resolve_addrinfo: call4(endpoint::resolve_addrinfo),
        rdma_query_addrinfo: call2(endpoint::query_addrinfo),
        rdma_write_cm_event: call4(calls::write_cm_event),
    };
    &TABLE
}

/// `rdma_event_str`.
fn event_str(event: rdma_cm_event_type) -> *const c_char {
    const NAMES: [&CStr; 18] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    ];
    let index = usize::try_from(event.0).unwrap_or(usize::MAX);
    NAMES.get(index).copied().unwrap_or(c"UNKNOWN EVENT").as_ptr()
}
