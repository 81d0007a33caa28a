//! [`RdmaCm`]: the functions that librdmacm exports.

use crate::{bindings::*, table::UNKNOWN};
use libc::{c_char, c_int, c_void, sockaddr};

function_table! {
    /// The functions that librdmacm exports: those of the system's library ([`RdmaCm::system`]), or
    /// of another implementation, which fills a table of its own.
    ///
    /// librdmacm loads the libibverbs that the dynamic loader finds: it must get no objects of
    /// another libibverbs.
    pub struct RdmaCm from RDMACM;

    /// Creates an event channel.
    fn rdma_create_event_channel() -> *mut rdma_event_channel, null;
    /// Destroys an event channel. All its identifiers must be destroyed before.
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel), nothing;
    /// Creates an identifier: the connection manager's socket. Without a channel its calls are
    /// synchronous.
    fn rdma_create_id(
        channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space,
    ) -> c_int, minus_one;
    /// Creates a synchronous identifier for an address, with a queue pair if attributes are given.
    fn rdma_create_ep(
        id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr,
    ) -> c_int, minus_one;
    /// Destroys an identifier of [`rdma_create_ep`](field@Self::rdma_create_ep) and its queues.
    fn rdma_destroy_ep(id: *mut rdma_cm_id), nothing;
    /// Destroys an identifier. Waits until all its events are acknowledged.
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int, minus_one;
    /// Binds an identifier to a source address, and to its device if the address names one.
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int, minus_one;
    /// Finds device and path for a destination address: `RDMA_CM_EVENT_ADDR_RESOLVED`.
    fn rdma_resolve_addr(
        id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int,
    ) -> c_int, minus_one;
    /// Finds the route to the resolved address: `RDMA_CM_EVENT_ROUTE_RESOLVED`.
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int, minus_one;
    /// Creates a queue pair for an identifier, whose changes of state the connection manager makes.
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int, minus_one;
    /// Creates a queue pair for an identifier by extended attributes.
    fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int, minus_one;
    /// Destroys the queue pair of an identifier.
    fn rdma_destroy_qp(id: *mut rdma_cm_id), nothing;
    /// Creates a shared receive queue for an identifier.
    fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int, minus_one;
    /// Creates a shared receive queue for an identifier by extended attributes.
    fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int, minus_one;
    /// Destroys the shared receive queue of an identifier.
    fn rdma_destroy_srq(id: *mut rdma_cm_id), nothing;
    /// Asks the peer for a connection, or for its datagram queue pair.
    fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int, minus_one;
    /// Completes a connection whose queue pair the application brings up: the answer to
    /// `RDMA_CM_EVENT_CONNECT_RESPONSE`.
    fn rdma_establish(id: *mut rdma_cm_id) -> c_int, minus_one;
    /// Listens for requests at the address to which an identifier is bound.
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int, minus_one;
    /// Waits for a request at a synchronous listener, as a new identifier.
    fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int, minus_one;
    /// Accepts a request.
    fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int, minus_one;
    /// Rejects a request.
    fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int, minus_one;
    /// Rejects a request because of its enhanced connection options.
    fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int, minus_one;
    /// Tells the connection manager of an asynchronous event, such as `IBV_EVENT_COMM_EST`.
    fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int, minus_one;
    /// Ends a connection and moves the queue pair of the identifier to the error state.
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int, minus_one;
    /// Joins a multicast group: `RDMA_CM_EVENT_MULTICAST_JOIN`.
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int, minus_one;
    /// Leaves a multicast group and detaches the queue pair of the identifier.
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int, minus_one;
    /// Joins a multicast group, as a full member or as a sender only.
    fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void,
    ) -> c_int, minus_one;
    /// Waits for the next event of a channel. Each event must be acknowledged.
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int, minus_one;
    /// Acknowledges an event and frees it.
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int, minus_one;
    /// The local port of an identifier, in network byte order; 0 if it has none.
    fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16, value(0);
    /// The port of the peer, in network byte order; 0 if it has none.
    fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16, value(0);
    /// A NULL-terminated array of open contexts, one for each device, and their number.
    fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context, null;
    /// Frees an array of contexts, which stay open.
    fn rdma_free_devices(list: *mut *mut ibv_context), nothing;
    /// The text of an event.
    fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char, value(UNKNOWN.as_ptr());
    /// Sets an option of an identifier, such as `RDMA_OPTION_ID_REUSEADDR`.
    fn rdma_set_option(
        id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize,
    ) -> c_int, minus_one;
    /// Moves an identifier to another event channel, or makes it synchronous. Waits until all its
    /// events are acknowledged.
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int, minus_one;
    /// Resolves a host and a service, as getaddrinfo(3) does.
    fn rdma_getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo,
    ) -> c_int, minus_one;
    /// Frees a list of [`rdma_getaddrinfo`](field@Self::rdma_getaddrinfo).
    fn rdma_freeaddrinfo(res: *mut rdma_addrinfo), nothing;
    /// The attributes for a queue pair's change to `qp_attr.qp_state`, for an application that
    /// brings up a queue pair of its own.
    fn rdma_init_qp_attr(
        id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int,
    ) -> c_int, minus_one;
    /// Sets the enhanced connection options that go to the peer.
    fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int, minus_one;
    /// The enhanced connection options of the peer.
    fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int, minus_one;
    /// Resolves a host and a service by the name service of the fabric.
    fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo,
    ) -> c_int, minus_one, since "60";
    /// The result of [`rdma_resolve_addrinfo`](field@Self::rdma_resolve_addrinfo).
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int, minus_one, since "60";
    /// Puts an event of the application's own into the channel of an identifier.
    fn rdma_write_cm_event(
        id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64,
    ) -> c_int, minus_one, since "60";
}
