//! [`RdmaCm`]: the functions that librdmacm exports.

use crate::{bindings::*, load, table::UNKNOWN};
use libc::{c_char, c_int, c_void, sockaddr};

function_table! {
    /// The functions that librdmacm exports: the system's ([`RdmaCm::system`]), or another implementation's.
    ///
    /// librdmacm brings the libibverbs that the dynamic loader finds: objects of another one must not be given to it.
    pub struct RdmaCm;

    fn rdma_create_event_channel() -> *mut rdma_event_channel, null;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel), nothing;
    fn rdma_create_id(
        channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space,
    ) -> c_int, minus_one;
    fn rdma_create_ep(
        id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr,
    ) -> c_int, minus_one;
    fn rdma_destroy_ep(id: *mut rdma_cm_id), nothing;
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int, minus_one;
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int, minus_one;
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int,
    ) -> c_int, minus_one;
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int, minus_one;
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int, minus_one;
    fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int, minus_one;
    fn rdma_destroy_qp(id: *mut rdma_cm_id), nothing;
    fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int, minus_one;
    fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int, minus_one;
    fn rdma_destroy_srq(id: *mut rdma_cm_id), nothing;
    fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int, minus_one;
    fn rdma_establish(id: *mut rdma_cm_id) -> c_int, minus_one;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int, minus_one;
    fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int, minus_one;
    fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int, minus_one;
    fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int, minus_one;
    fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int, minus_one;
    fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int, minus_one;
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int, minus_one;
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int, minus_one;
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int, minus_one;
    fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void,
    ) -> c_int, minus_one;
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int, minus_one;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int, minus_one;
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16, value(0);
    fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16, value(0);
    fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context, null;
    fn rdma_free_devices(list: *mut *mut ibv_context), nothing;
    fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char, value(UNKNOWN.as_ptr());
    fn rdma_set_option(
        id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize,
    ) -> c_int, minus_one;
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int, minus_one;
    fn rdma_getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo,
    ) -> c_int, minus_one;
    fn rdma_freeaddrinfo(res: *mut rdma_addrinfo), nothing;
    fn rdma_init_qp_attr(
        id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int,
    ) -> c_int, minus_one;
    fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int, minus_one;
    fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int, minus_one;
    fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo,
    ) -> c_int, minus_one, since "60";
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int, minus_one, since "60";
    fn rdma_write_cm_event(
        id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64,
    ) -> c_int, minus_one, since "60";
}

impl RdmaCm {
    /// The system's librdmacm: the path in `RDMA_RDMACM_PATH` if that is set, else `librdmacm.so.1` wherever the
    /// dynamic loader finds it. It is loaded once and never unloaded; what an older one lacks fails with `EOPNOTSUPP`
    /// when called.
    ///
    /// # Errors
    ///
    /// The library cannot be loaded. The error says what was tried, and the next call tries again.
    #[cfg(not(feature = "linked"))]
    pub fn system() -> Result<&'static Self, load::LoadError> {
        static TABLE: std::sync::OnceLock<RdmaCm> = std::sync::OnceLock::new();
        load::load_once(&TABLE, load::RDMACM, Self::from_library)
    }

    /// The librdmacm that this program is linked with.
    ///
    /// # Errors
    ///
    /// None: without the library the program would not have started.
    #[cfg(feature = "linked")]
    pub fn system() -> Result<&'static Self, load::LoadError> {
        static TABLE: std::sync::OnceLock<RdmaCm> = std::sync::OnceLock::new();
        Ok(TABLE.get_or_init(Self::from_program))
    }
}
