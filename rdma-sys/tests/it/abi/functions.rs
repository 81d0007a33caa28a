// Exported functions of libibverbs and librdmacm, from the headers of rdma-core 65.0-1.1.
// Made by `cargo xtask bindings`; do not edit.

use super::bindings::*;
use libc::sockaddr;

unsafe extern "C" {
    pub fn ibv_wc_status_str(status: ibv_wc_status) -> *const ::core::ffi::c_char;
    pub fn ibv_rate_to_mult(rate: ibv_rate) -> ::core::ffi::c_int;
    pub fn mult_to_ibv_rate(mult: ::core::ffi::c_int) -> ibv_rate;
    pub fn ibv_rate_to_mbps(rate: ibv_rate) -> ::core::ffi::c_int;
    pub fn mbps_to_ibv_rate(mbps: ::core::ffi::c_int) -> ibv_rate;
    pub fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const ::core::ffi::c_char;
    pub fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub fn ibv_get_device_list(num_devices: *mut ::core::ffi::c_int) -> *mut *mut ibv_device;
    pub fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub fn ibv_get_device_name(device: *mut ibv_device) -> *const ::core::ffi::c_char;
    pub fn ibv_get_device_index(device: *mut ibv_device) -> ::core::ffi::c_int;
    pub fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn ibv_close_device(context: *mut ibv_context) -> ::core::ffi::c_int;
    pub fn ibv_import_device(cmd_fd: ::core::ffi::c_int) -> *mut ibv_context;
    pub fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
    pub fn ibv_unimport_pd(pd: *mut ibv_pd);
    pub fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
    pub fn ibv_unimport_mr(mr: *mut ibv_mr);
    pub fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;
    pub fn ibv_unimport_dm(dm: *mut ibv_dm);
    pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> ::core::ffi::c_int;
    pub fn ibv_ack_async_event(event: *mut ibv_async_event);
    pub fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> ::core::ffi::c_int;
    pub fn ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut _compat_ibv_port_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> ::core::ffi::c_int;
    pub fn ibv_query_gid(
        context: *mut ibv_context,
        port_num: u8,
        index: ::core::ffi::c_int,
        gid: *mut ibv_gid,
    ) -> ::core::ffi::c_int;
    pub fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> ::core::ffi::c_int;
    pub fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
    pub fn ibv_query_pkey(
        context: *mut ibv_context,
        port_num: u8,
        index: ::core::ffi::c_int,
        pkey: *mut __be16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: __be16) -> ::core::ffi::c_int;
    pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> ::core::ffi::c_int;
    pub fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        iova: u64,
        access: ::core::ffi::c_uint,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        iova: u64,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: ::core::ffi::c_int,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;
    pub fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: ::core::ffi::c_int,
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        access: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> ::core::ffi::c_int;
    pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> ::core::ffi::c_int;
    pub fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> ::core::ffi::c_int;
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: ::core::ffi::c_int,
        cq_context: *mut ::core::ffi::c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: ::core::ffi::c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_resize_cq(cq: *mut ibv_cq, cqe: ::core::ffi::c_int) -> ::core::ffi::c_int;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> ::core::ffi::c_int;
    pub fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: ::core::ffi::c_uint);
    pub fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        caps_size: usize,
    ) -> ::core::ffi::c_int;
    pub fn ibv_create_comp_cntr(context: *mut ibv_context, cc_attr: *mut ibv_comp_cntr_init_attr)
    -> *mut ibv_comp_cntr;
    pub fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> ::core::ffi::c_int;
    pub fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> ::core::ffi::c_int;
    pub fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> ::core::ffi::c_int;
    pub fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> ::core::ffi::c_int;
    pub fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> ::core::ffi::c_int;
    pub fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> ::core::ffi::c_int;
    pub fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> ::core::ffi::c_int;
    pub fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub fn ibv_modify_srq(
        srq: *mut ibv_srq,
        srq_attr: *mut ibv_srq_attr,
        srq_attr_mask: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> ::core::ffi::c_int;
    pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> ::core::ffi::c_int;
    pub fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut ::core::ffi::c_void;
    pub fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> ::core::ffi::c_int;
    pub fn ibv_free_buf(buf: *mut ibv_buf);
    pub fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr;
    pub fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;
    pub fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> ::core::ffi::c_int;
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: ::core::ffi::c_int) -> ::core::ffi::c_int;
    pub fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> ::core::ffi::c_int;
    pub fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: ::core::ffi::c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> ::core::ffi::c_int;
    pub fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    pub fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr,
    ) -> ::core::ffi::c_int;
    pub fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah;
    pub fn ibv_destroy_ah(ah: *mut ibv_ah) -> ::core::ffi::c_int;
    pub fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> ::core::ffi::c_int;
    pub fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> ::core::ffi::c_int;
    pub fn ibv_fork_init() -> ::core::ffi::c_int;
    pub fn ibv_is_fork_initialized() -> ibv_fork_status;
    pub fn ibv_node_type_str(node_type: ibv_node_type) -> *const ::core::ffi::c_char;
    pub fn ibv_port_state_str(port_state: ibv_port_state) -> *const ::core::ffi::c_char;
    pub fn ibv_event_type_str(event: ibv_event_type) -> *const ::core::ffi::c_char;
    pub fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context,
        attr: *mut ibv_ah_attr,
        eth_mac: *mut u8,
        vid: *mut u16,
    ) -> ::core::ffi::c_int;
    pub fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> ::core::ffi::c_int;
    pub fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> ::core::ffi::c_int;
    pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
    pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    pub fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut ::core::ffi::c_void,
        ps: rdma_port_space,
    ) -> ::core::ffi::c_int;
    pub fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> ::core::ffi::c_int;
    pub fn rdma_destroy_ep(id: *mut rdma_cm_id);
    pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> ::core::ffi::c_int;
    pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> ::core::ffi::c_int;
    pub fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        timeout_ms: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: ::core::ffi::c_int) -> ::core::ffi::c_int;
    pub fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> ::core::ffi::c_int;
    pub fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> ::core::ffi::c_int;
    pub fn rdma_destroy_qp(id: *mut rdma_cm_id);
    pub fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> ::core::ffi::c_int;
    pub fn rdma_establish(id: *mut rdma_cm_id) -> ::core::ffi::c_int;
    pub fn rdma_listen(id: *mut rdma_cm_id, backlog: ::core::ffi::c_int) -> ::core::ffi::c_int;
    pub fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> ::core::ffi::c_int;
    pub fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> ::core::ffi::c_int;
    pub fn rdma_reject(
        id: *mut rdma_cm_id,
        private_data: *const ::core::ffi::c_void,
        private_data_len: u8,
    ) -> ::core::ffi::c_int;
    pub fn rdma_reject_ece(
        id: *mut rdma_cm_id,
        private_data: *const ::core::ffi::c_void,
        private_data_len: u8,
    ) -> ::core::ffi::c_int;
    pub fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> ::core::ffi::c_int;
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> ::core::ffi::c_int;
    pub fn rdma_join_multicast(
        id: *mut rdma_cm_id,
        addr: *mut sockaddr,
        context: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> ::core::ffi::c_int;
    pub fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id,
        mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> ::core::ffi::c_int;
    pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> ::core::ffi::c_int;
    pub fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16;
    pub fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16;
    pub fn rdma_get_devices(num_devices: *mut ::core::ffi::c_int) -> *mut *mut ibv_context;
    pub fn rdma_free_devices(list: *mut *mut ibv_context);
    pub fn rdma_event_str(event: rdma_cm_event_type) -> *const ::core::ffi::c_char;
    pub fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: ::core::ffi::c_int,
        optname: ::core::ffi::c_int,
        optval: *mut ::core::ffi::c_void,
        optlen: usize,
    ) -> ::core::ffi::c_int;
    pub fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> ::core::ffi::c_int;
    pub fn rdma_getaddrinfo(
        node: *const ::core::ffi::c_char,
        service: *const ::core::ffi::c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> ::core::ffi::c_int;
    pub fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);
    pub fn rdma_init_qp_attr(
        id: *mut rdma_cm_id,
        qp_attr: *mut ibv_qp_attr,
        qp_attr_mask: *mut ::core::ffi::c_int,
    ) -> ::core::ffi::c_int;
    pub fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> ::core::ffi::c_int;
    pub fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> ::core::ffi::c_int;
    pub fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const ::core::ffi::c_char,
        service: *const ::core::ffi::c_char,
        hints: *const rdma_addrinfo,
    ) -> ::core::ffi::c_int;
    pub fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> ::core::ffi::c_int;
    pub fn rdma_write_cm_event(
        id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: ::core::ffi::c_int,
        arg: u64,
    ) -> ::core::ffi::c_int;
    pub fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> ::core::ffi::c_int;
    pub fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> ::core::ffi::c_int;
    pub fn rdma_destroy_srq(id: *mut rdma_cm_id);
}
