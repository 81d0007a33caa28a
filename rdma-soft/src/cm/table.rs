//! The device as a librdmacm: its functions in the table that `rdma-sys` defines.

use std::ffi::{CStr, c_char};

use rdma_sys::{RdmaCm, rdma_cm_event_type};

use super::{calls, endpoint, multicast, options};

/// The software device's librdmacm.
///
/// Connections between the processes of one user on one host (and within a process), to every address of the host; port spaces
/// TCP, UDP and IB with IP addresses. It is complete but for shared receive queues, which the device does not have, and
/// `AF_IB` addresses: they fail with `EOPNOTSUPP` and `EINVAL`.
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
pub fn rdmacm() -> &'static RdmaCm {
    static TABLE: RdmaCm = RdmaCm {
        rdma_create_event_channel: calls::create_event_channel,
        rdma_destroy_event_channel: calls::destroy_event_channel,
        rdma_create_id: calls::create_id,
        rdma_create_ep: endpoint::create_ep,
        rdma_destroy_ep: endpoint::destroy_ep,
        rdma_destroy_id: calls::destroy_id,
        rdma_bind_addr: calls::bind_addr,
        rdma_resolve_addr: calls::resolve_addr,
        rdma_resolve_route: calls::resolve_route,
        rdma_create_qp: calls::create_qp,
        rdma_create_qp_ex: calls::create_qp_ex,
        rdma_destroy_qp: calls::destroy_qp,
        rdma_connect: calls::connect,
        rdma_establish: calls::establish,
        rdma_listen: calls::listen,
        rdma_get_request: endpoint::get_request,
        rdma_accept: calls::accept,
        rdma_reject: calls::reject,
        rdma_reject_ece: calls::reject_ece,
        rdma_notify: calls::notify,
        rdma_disconnect: calls::disconnect,
        rdma_join_multicast: multicast::join,
        rdma_leave_multicast: multicast::leave,
        rdma_join_multicast_ex: multicast::join_ex,
        rdma_get_cm_event: calls::get_cm_event,
        rdma_ack_cm_event: calls::ack_cm_event,
        rdma_get_src_port: calls::get_src_port,
        rdma_get_dst_port: calls::get_dst_port,
        rdma_get_devices: calls::get_devices,
        rdma_free_devices: calls::free_devices,
        rdma_event_str: event_str,
        rdma_set_option: options::set_option,
        rdma_migrate_id: calls::migrate_id,
        rdma_getaddrinfo: endpoint::getaddrinfo,
        rdma_freeaddrinfo: endpoint::freeaddrinfo,
        rdma_init_qp_attr: calls::init_qp_attr,
        rdma_set_local_ece: calls::set_local_ece,
        rdma_get_remote_ece: calls::get_remote_ece,
        rdma_resolve_addrinfo: endpoint::resolve_addrinfo,
        rdma_query_addrinfo: endpoint::query_addrinfo,
        rdma_write_cm_event: calls::write_cm_event,
        // Shared receive queues, which the device does not have.
        ..RdmaCm::UNSUPPORTED
    };
    &TABLE
}

/// `rdma_event_str`.
extern "C" fn event_str(event: rdma_cm_event_type) -> *const c_char {
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
