//! [`Ibverbs`]: the functions that libibverbs exports.
//!
//! The inline functions of `verbs.h` that call an exported symbol are methods of the table, under
//! the header's name (`inline/exported.rs`). Where both exist (`ibv_reg_mr`, `ibv_query_port`), C
//! code calls the method by that name, and the field is the bare symbol.

use crate::{bindings::*, table::UNKNOWN};
use libc::{c_char, c_int, c_uint, c_void};

function_table! {
    /// The functions that libibverbs exports: those of the system's library ([`Ibverbs::system`]),
    /// or of another implementation, which fills a table of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma_sys::{Ibverbs, ibv_pd};
    ///
    /// unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> libc::c_int {
    ///     0
    /// }
    ///
    /// static TABLE: Ibverbs = Ibverbs { ibv_dealloc_pd: dealloc_pd, ..Ibverbs::UNSUPPORTED };
    /// ```
    pub struct Ibverbs from IBVERBS;

    /// The text of a completion's status.
    fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char, value(UNKNOWN.as_ptr());
    /// A rate as a multiple of 2.5 Gbit/s; -1 if it is not a multiple.
    fn ibv_rate_to_mult(rate: ibv_rate) -> c_int, value(-1);
    /// The rate of a multiple of 2.5 Gbit/s; `IBV_RATE_MAX` if there is no such rate.
    fn mult_to_ibv_rate(mult: c_int) -> ibv_rate, value(ibv_rate::IBV_RATE_MAX);
    /// A rate in Mbit/s; -1 for an unknown rate.
    fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int, value(-1);
    /// The rate of a number of Mbit/s; `IBV_RATE_MAX` if there is no such rate.
    fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate, value(ibv_rate::IBV_RATE_MAX);
    /// The name of a work request's operation.
    fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char, value(UNKNOWN.as_ptr()), since "45";
    /// The extended form of a queue pair that was created with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`;
    /// NULL for other queue pairs.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, null;
    /// A NULL-terminated array of the devices, and their number unless that is NULL. Free the array
    /// by [`ibv_free_device_list`](field@Self::ibv_free_device_list).
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device, null;
    /// Frees an array of devices. Devices that are open stay usable.
    fn ibv_free_device_list(list: *mut *mut ibv_device), nothing;
    /// The name of a device, such as `mlx5_0`.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char, value(std::ptr::null());
    /// The index that the kernel gave a device; -1 without an index.
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int, minus_one;
    /// The node GUID of a device, in network byte order; 0 if it has none.
    fn ibv_get_device_guid(device: *mut ibv_device) -> __be64, value(0);
    /// Opens a device.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, null;
    /// Closes a device. Destroy the objects of the context before: this call does not.
    fn ibv_close_device(context: *mut ibv_context) -> c_int, minus_one;
    /// Makes a context from the command descriptor of a context of another process.
    fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context, null;
    /// Makes a protection domain of the same context from its handle in another process.
    fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd, null;
    /// Frees an imported protection domain without deallocating the domain.
    fn ibv_unimport_pd(pd: *mut ibv_pd), nothing;
    /// Makes a memory region of the same domain from its handle in another process.
    fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr, null;
    /// Frees an imported memory region without deregistering the region.
    fn ibv_unimport_mr(mr: *mut ibv_mr), nothing;
    /// Makes device memory of the same context from its handle in another process.
    fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm, null;
    /// Frees imported device memory without freeing the memory.
    fn ibv_unimport_dm(dm: *mut ibv_dm), nothing;
    /// Waits for the next asynchronous event of a context. Each event must be acknowledged.
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, minus_one;
    /// Acknowledges an asynchronous event. The destroy of an object waits for its events.
    fn ibv_ack_async_event(event: *mut ibv_async_event), nothing;
    /// The attributes of a device. [`ibv_query_device_ex`](Self::ibv_query_device_ex) returns more.
    fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int, errno;
    /// The first 48 bytes of a port's attributes: the symbol behind the method
    /// [`ibv_query_port`](Self::ibv_query_port), which returns all of them.
    fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int, errno;
    /// The speed of a port, in units of 100 Mbit/s.
    fn ibv_query_port_speed(
        context: *mut ibv_context, port_num: u32, port_speed: *mut u64,
    ) -> c_int, errno, since "62";
    /// An entry of a port's GID table. [`ibv_query_gid_ex`](Self::ibv_query_gid_ex) returns the
    /// type too.
    fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int, minus_one;
    /// The symbol behind [`ibv_query_gid_ex`](Self::ibv_query_gid_ex).
    fn _ibv_query_gid_ex(
        context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize,
    ) -> c_int, errno;
    /// The symbol behind [`ibv_query_gid_table`](Self::ibv_query_gid_table).
    fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize,
    ) -> isize, negative_errno;
    /// An entry of a port's partition key table, in network byte order.
    fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int, minus_one;
    /// The index of a partition key in a port's table.
    fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int, minus_one;
    /// Allocates a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, null;
    /// Deallocates a protection domain. Fails while an object of the domain exists.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, errno;
    /// Registers memory that peers address from `iova` on, with optional access flags.
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
    ) -> *mut ibv_mr, null;
    /// Registers memory: the symbol behind the method [`ibv_reg_mr`](Self::ibv_reg_mr), without
    /// optional access flags.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr, null;
    /// Registers memory that peers address from `iova` on: the symbol behind the method
    /// [`ibv_reg_mr_iova`](Self::ibv_reg_mr_iova), without optional access flags.
    fn ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int,
    ) -> *mut ibv_mr, null;
    /// Registers memory of another device, such as a GPU, by the descriptor of its dma-buf.
    fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
    ) -> *mut ibv_mr, null;
    /// Registers memory by a structure of attributes.
    fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr, null, since "59";
    /// Changes the domain, the memory or the access flags of a memory region, which keeps its
    /// handle. The result is an `ibv_rereg_mr_err_code`: a region whose change failed at
    /// `IBV_REREG_MR_ERR_CMD` or later may only be deregistered. Most devices deregister the region
    /// and register it again.
    fn ibv_rereg_mr(
        mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int,
    ) -> c_int, minus_one;
    /// Deregisters memory.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, errno;
    /// Creates a completion channel.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel, null;
    /// Destroys a completion channel. Fails while a completion queue uses the channel.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int, errno;
    /// A dma-buf descriptor of device memory.
    fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int, minus_one, since "62";
    /// Creates a completion queue of at least `cqe` entries.
    fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int,
    ) -> *mut ibv_cq, null;
    /// Changes the number of entries of a completion queue; completions in the queue stay. Fails if
    /// more completions are in the queue, and on devices that cannot resize.
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int, errno;
    /// Destroys a completion queue. Fails while a queue pair uses the queue; waits until all events
    /// of the queue are acknowledged.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, errno;
    /// Waits for the next event of a completion channel: the queue, and the context that was given
    /// when the queue was created. Each event must be acknowledged.
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void,
    ) -> c_int, minus_one;
    /// Acknowledges events of a completion queue.
    fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint), nothing;
    /// The symbol behind [`ibv_query_comp_cntr_caps`](Self::ibv_query_comp_cntr_caps).
    fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize,
    ) -> c_int, errno, since "65";
    /// Creates a completion counter.
    fn ibv_create_comp_cntr(
        context: *mut ibv_context, cc_attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr, null, since "65";
    /// Destroys a completion counter.
    fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int, errno, since "65";
    /// Sets the number of successful completions of a counter.
    fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int, errno, since "65";
    /// Sets the number of failed completions of a counter.
    fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int, errno, since "65";
    /// Adds to the number of successful completions of a counter.
    fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int, errno, since "65";
    /// Adds to the number of failed completions of a counter.
    fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int, errno, since "65";
    /// Reads the number of successful completions of a counter.
    fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int, errno, since "65";
    /// Reads the number of failed completions of a counter.
    fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int, errno, since "65";
    /// Creates a shared receive queue.
    fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq, null;
    /// Changes the depth or the limit of a shared receive queue.
    fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int, errno;
    /// The attributes of a shared receive queue.
    fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int, errno;
    /// Destroys a shared receive queue. Fails while a queue pair uses the queue.
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int, errno;
    /// Creates a queue pair; `qp_init_attr.cap` becomes the provider's choice.
    fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, null;
    /// Allocates memory by the provider's method, and a handle to it in `buf`.
    fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void, null, since "64";
    /// A dma-buf descriptor of memory of [`ibv_alloc_buf`](field@Self::ibv_alloc_buf).
    fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int, minus_one, since "65";
    /// Frees memory of [`ibv_alloc_buf`](field@Self::ibv_alloc_buf).
    fn ibv_free_buf(buf: *mut ibv_buf), nothing, since "64";
    /// Registers memory of [`ibv_alloc_buf`](field@Self::ibv_alloc_buf).
    fn ibv_reg_buf_mr(
        pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize, access: c_int,
    ) -> *mut ibv_mr, null, since "64";
    /// Allocates a DMA handle: hints on how the device accesses memory.
    fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah, null, since "59";
    /// Frees a DMA handle.
    fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int, errno, since "59";
    /// Changes attributes of a queue pair, its state included.
    /// [`QpTransition`](crate::QpTransition) has the attributes of each change.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int, errno;
    /// Lets a completion counter count the completions of a queue pair.
    fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp, comp_cntr: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int, errno, since "65";
    /// Whether the bytes of a received operation arrive in order: 1 or 0, or
    /// `ibv_query_qp_data_in_order_caps` if `flags` ask for them.
    fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int, value(0);
    /// Attributes of a queue pair. Providers may fill more than the mask names.
    fn ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr,
    ) -> c_int, errno;
    /// Destroys a queue pair. Waits until all asynchronous events of the queue pair are
    /// acknowledged.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, errno;
    /// Creates an address handle.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah, null;
    /// Fills the attributes of an address handle for the sender of a datagram.
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr,
    ) -> c_int, minus_one;
    /// Creates an address handle for the sender of a datagram.
    fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah, null;
    /// Destroys an address handle.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int, errno;
    /// Attaches a datagram queue pair to a multicast group.
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int, errno;
    /// Detaches a queue pair from a multicast group.
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int, errno;
    /// Prepares libibverbs for `fork`, on kernels before 5.12. Those let a parent's write to a page
    /// that is pinned for a device go to a copy, which the device does not see; after this call
    /// libibverbs keeps such pages out of children. Newer kernels copy pinned pages for the child
    /// at `fork`, so the call does nothing there and
    /// [`ibv_is_fork_initialized`](field@Self::ibv_is_fork_initialized) is `IBV_FORK_UNNEEDED`.
    fn ibv_fork_init() -> c_int, errno;
    /// Whether `fork` is safe: by [`ibv_fork_init`](field@Self::ibv_fork_init), or because the
    /// kernel needs no help.
    fn ibv_is_fork_initialized() -> ibv_fork_status, value(ibv_fork_status::IBV_FORK_DISABLED);
    /// The text of a node type.
    fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char, value(UNKNOWN.as_ptr());
    /// The text of a port's state.
    fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char, value(UNKNOWN.as_ptr());
    /// The text of an asynchronous event.
    fn ibv_event_type_str(event: ibv_event_type) -> *const c_char, value(UNKNOWN.as_ptr());
    /// Finds the Ethernet address and VLAN of the destination of an address handle.
    fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16,
    ) -> c_int, negative_errno;
    /// Sets the enhanced connection options of a queue pair, before it goes to INIT.
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, errno;
    /// The enhanced connection options of a queue pair.
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int, errno;
}
