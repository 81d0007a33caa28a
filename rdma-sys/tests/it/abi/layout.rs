// What the ABI test compares: layouts and constants of libibverbs and librdmacm, from the headers of rdma-core 65.0-1.1.
// Made by `cargo xtask bindings`; do not edit.

layout! {
    "struct ib_uverbs_flow_action_esp_keymat_aes_gcm" ib_uverbs_flow_action_esp_keymat_aes_gcm {
        "iv" iv : __u64;
        "iv_algo" iv_algo : __u32;
        "salt" salt : __u32;
        "icv_len" icv_len : __u32;
        "key_len" key_len : __u32;
        "aes_key" aes_key : [__u32; 8usize];
    }
    "struct ib_uverbs_flow_action_esp_replay_bmp" ib_uverbs_flow_action_esp_replay_bmp {
        "size" size : __u32;
    }
    "struct ib_uverbs_flow_action_esp_encap" ib_uverbs_flow_action_esp_encap {
        "val_ptr" __bindgen_anon_1.val_ptr : *mut ::core::ffi::c_void;
        "val_ptr_data_u64" __bindgen_anon_1.val_ptr_data_u64 : __u64;
        "next_ptr" __bindgen_anon_2.next_ptr : *mut ib_uverbs_flow_action_esp_encap;
        "next_ptr_data_u64" __bindgen_anon_2.next_ptr_data_u64 : __u64;
        "len" len : __u16;
        "type" type_ : __u16;
    }
    "struct ib_uverbs_flow_action_esp" ib_uverbs_flow_action_esp {
        "spi" spi : __u32;
        "seq" seq : __u32;
        "tfc_pad" tfc_pad : __u32;
        "flags" flags : __u32;
        "hard_limit_pkts" hard_limit_pkts : __u64;
    }
    "union ibv_gid" ibv_gid {
        "raw" raw : [u8; 16usize];
        "global" global : ibv_gid__bindgen_ty_1;
        "global.subnet_prefix" global.subnet_prefix : __be64;
        "global.interface_id" global.interface_id : __be64;
    }
    "struct ibv_gid_entry" ibv_gid_entry {
        "gid" gid : ibv_gid;
        "gid_index" gid_index : u32;
        "port_num" port_num : u32;
        "gid_type" gid_type : u32;
        "ndev_ifindex" ndev_ifindex : u32;
    }
    "struct ibv_alloc_dm_attr" ibv_alloc_dm_attr {
        "length" length : usize;
        "log_align_req" log_align_req : u32;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_dm" ibv_dm {
        "context" context : *mut ibv_context;
        "memcpy_to_dm" memcpy_to_dm : ::core::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm, dm_offset: u64, host_addr: *const ::core::ffi::c_void, length: usize) -> ::core::ffi::c_int>;
        "memcpy_from_dm" memcpy_from_dm : ::core::option::Option<unsafe extern "C" fn(host_addr: *mut ::core::ffi::c_void, dm: *mut ibv_dm, dm_offset: u64, length: usize) -> ::core::ffi::c_int>;
        "comp_mask" comp_mask : u32;
        "handle" handle : u32;
    }
    "struct ibv_device_attr" ibv_device_attr {
        "fw_ver" fw_ver : [::core::ffi::c_char; 64usize];
        "node_guid" node_guid : __be64;
        "sys_image_guid" sys_image_guid : __be64;
        "max_mr_size" max_mr_size : u64;
        "page_size_cap" page_size_cap : u64;
        "vendor_id" vendor_id : u32;
        "vendor_part_id" vendor_part_id : u32;
        "hw_ver" hw_ver : u32;
        "max_qp" max_qp : ::core::ffi::c_int;
        "max_qp_wr" max_qp_wr : ::core::ffi::c_int;
        "device_cap_flags" device_cap_flags : ::core::ffi::c_uint;
        "max_sge" max_sge : ::core::ffi::c_int;
        "max_sge_rd" max_sge_rd : ::core::ffi::c_int;
        "max_cq" max_cq : ::core::ffi::c_int;
        "max_cqe" max_cqe : ::core::ffi::c_int;
        "max_mr" max_mr : ::core::ffi::c_int;
        "max_pd" max_pd : ::core::ffi::c_int;
        "max_qp_rd_atom" max_qp_rd_atom : ::core::ffi::c_int;
        "max_ee_rd_atom" max_ee_rd_atom : ::core::ffi::c_int;
        "max_res_rd_atom" max_res_rd_atom : ::core::ffi::c_int;
        "max_qp_init_rd_atom" max_qp_init_rd_atom : ::core::ffi::c_int;
        "max_ee_init_rd_atom" max_ee_init_rd_atom : ::core::ffi::c_int;
        "atomic_cap" atomic_cap : ibv_atomic_cap;
        "max_ee" max_ee : ::core::ffi::c_int;
        "max_rdd" max_rdd : ::core::ffi::c_int;
        "max_mw" max_mw : ::core::ffi::c_int;
        "max_raw_ipv6_qp" max_raw_ipv6_qp : ::core::ffi::c_int;
        "max_raw_ethy_qp" max_raw_ethy_qp : ::core::ffi::c_int;
        "max_mcast_grp" max_mcast_grp : ::core::ffi::c_int;
        "max_mcast_qp_attach" max_mcast_qp_attach : ::core::ffi::c_int;
        "max_total_mcast_qp_attach" max_total_mcast_qp_attach : ::core::ffi::c_int;
        "max_ah" max_ah : ::core::ffi::c_int;
        "max_fmr" max_fmr : ::core::ffi::c_int;
        "max_map_per_fmr" max_map_per_fmr : ::core::ffi::c_int;
        "max_srq" max_srq : ::core::ffi::c_int;
        "max_srq_wr" max_srq_wr : ::core::ffi::c_int;
        "max_srq_sge" max_srq_sge : ::core::ffi::c_int;
        "max_pkeys" max_pkeys : u16;
        "local_ca_ack_delay" local_ca_ack_delay : u8;
        "phys_port_cnt" phys_port_cnt : u8;
    }
    "struct ibv_query_device_ex_input" ibv_query_device_ex_input {
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_odp_caps" ibv_odp_caps {
        "general_caps" general_caps : u64;
        "per_transport_caps" per_transport_caps : ibv_odp_caps__bindgen_ty_1;
        "per_transport_caps.rc_odp_caps" per_transport_caps.rc_odp_caps : u32;
        "per_transport_caps.uc_odp_caps" per_transport_caps.uc_odp_caps : u32;
        "per_transport_caps.ud_odp_caps" per_transport_caps.ud_odp_caps : u32;
    }
    "struct ibv_tso_caps" ibv_tso_caps {
        "max_tso" max_tso : u32;
        "supported_qpts" supported_qpts : u32;
    }
    "struct ibv_rss_caps" ibv_rss_caps {
        "supported_qpts" supported_qpts : u32;
        "max_rwq_indirection_tables" max_rwq_indirection_tables : u32;
        "max_rwq_indirection_table_size" max_rwq_indirection_table_size : u32;
        "rx_hash_fields_mask" rx_hash_fields_mask : u64;
        "rx_hash_function" rx_hash_function : u8;
    }
    "struct ibv_packet_pacing_caps" ibv_packet_pacing_caps {
        "qp_rate_limit_min" qp_rate_limit_min : u32;
        "qp_rate_limit_max" qp_rate_limit_max : u32;
        "supported_qpts" supported_qpts : u32;
    }
    "struct ibv_tm_caps" ibv_tm_caps {
        "max_rndv_hdr_size" max_rndv_hdr_size : u32;
        "max_num_tags" max_num_tags : u32;
        "flags" flags : u32;
        "max_ops" max_ops : u32;
        "max_sge" max_sge : u32;
    }
    "struct ibv_cq_moderation_caps" ibv_cq_moderation_caps {
        "max_cq_count" max_cq_count : u16;
        "max_cq_period" max_cq_period : u16;
    }
    "struct ibv_pci_atomic_caps" ibv_pci_atomic_caps {
        "fetch_add" fetch_add : u16;
        "swap" swap : u16;
        "compare_swap" compare_swap : u16;
    }
    "struct ibv_device_attr_ex" ibv_device_attr_ex {
        "orig_attr" orig_attr : ibv_device_attr;
        "comp_mask" comp_mask : u32;
        "odp_caps" odp_caps : ibv_odp_caps;
        "completion_timestamp_mask" completion_timestamp_mask : u64;
        "hca_core_clock" hca_core_clock : u64;
        "device_cap_flags_ex" device_cap_flags_ex : u64;
        "tso_caps" tso_caps : ibv_tso_caps;
        "rss_caps" rss_caps : ibv_rss_caps;
        "max_wq_type_rq" max_wq_type_rq : u32;
        "packet_pacing_caps" packet_pacing_caps : ibv_packet_pacing_caps;
        "raw_packet_caps" raw_packet_caps : u32;
        "tm_caps" tm_caps : ibv_tm_caps;
        "cq_mod_caps" cq_mod_caps : ibv_cq_moderation_caps;
        "max_dm_size" max_dm_size : u64;
        "pci_atomic_caps" pci_atomic_caps : ibv_pci_atomic_caps;
        "xrc_odp_caps" xrc_odp_caps : u32;
        "phys_port_cnt_ex" phys_port_cnt_ex : u32;
    }
    "struct ibv_port_attr" ibv_port_attr {
        "state" state : ibv_port_state;
        "max_mtu" max_mtu : ibv_mtu;
        "active_mtu" active_mtu : ibv_mtu;
        "gid_tbl_len" gid_tbl_len : ::core::ffi::c_int;
        "port_cap_flags" port_cap_flags : u32;
        "max_msg_sz" max_msg_sz : u32;
        "bad_pkey_cntr" bad_pkey_cntr : u32;
        "qkey_viol_cntr" qkey_viol_cntr : u32;
        "pkey_tbl_len" pkey_tbl_len : u16;
        "lid" lid : u16;
        "sm_lid" sm_lid : u16;
        "lmc" lmc : u8;
        "max_vl_num" max_vl_num : u8;
        "sm_sl" sm_sl : u8;
        "subnet_timeout" subnet_timeout : u8;
        "init_type_reply" init_type_reply : u8;
        "active_width" active_width : u8;
        "active_speed" active_speed : u8;
        "phys_state" phys_state : u8;
        "link_layer" link_layer : u8;
        "flags" flags : u8;
        "port_cap_flags2" port_cap_flags2 : u16;
        "active_speed_ex" active_speed_ex : u32;
    }
    "struct ibv_async_event" ibv_async_event {
        "element" element : ibv_async_event__bindgen_ty_1;
        "element.cq" element.cq : *mut ibv_cq;
        "element.qp" element.qp : *mut ibv_qp;
        "element.srq" element.srq : *mut ibv_srq;
        "element.wq" element.wq : *mut ibv_wq;
        "element.port_num" element.port_num : ::core::ffi::c_int;
        "event_type" event_type : ibv_event_type;
    }
    "struct ibv_wc" ibv_wc {
        "wr_id" wr_id : u64;
        "status" status : ibv_wc_status;
        "opcode" opcode : ibv_wc_opcode;
        "vendor_err" vendor_err : u32;
        "byte_len" byte_len : u32;
        "imm_data" __bindgen_anon_1.imm_data : __be32;
        "invalidated_rkey" __bindgen_anon_1.invalidated_rkey : u32;
        "qp_num" qp_num : u32;
        "src_qp" src_qp : u32;
        "wc_flags" wc_flags : ::core::ffi::c_uint;
        "pkey_index" pkey_index : u16;
        "slid" slid : u16;
        "sl" sl : u8;
        "dlid_path_bits" dlid_path_bits : u8;
    }
    "struct ibv_mw_bind_info" ibv_mw_bind_info {
        "mr" mr : *mut ibv_mr;
        "addr" addr : u64;
        "length" length : u64;
        "mw_access_flags" mw_access_flags : ::core::ffi::c_uint;
    }
    "struct ibv_dmah" ibv_dmah {
        "context" context : *mut ibv_context;
    }
    "struct ibv_pd" ibv_pd {
        "context" context : *mut ibv_context;
        "handle" handle : u32;
    }
    "struct ibv_td_init_attr" ibv_td_init_attr {
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_td" ibv_td {
        "context" context : *mut ibv_context;
    }
    "struct ibv_xrcd_init_attr" ibv_xrcd_init_attr {
        "comp_mask" comp_mask : u32;
        "fd" fd : ::core::ffi::c_int;
        "oflags" oflags : ::core::ffi::c_int;
    }
    "struct ibv_xrcd" ibv_xrcd {
        "context" context : *mut ibv_context;
    }
    "struct ibv_mr" ibv_mr {
        "context" context : *mut ibv_context;
        "pd" pd : *mut ibv_pd;
        "addr" addr : *mut ::core::ffi::c_void;
        "length" length : usize;
        "handle" handle : u32;
        "lkey" lkey : u32;
        "rkey" rkey : u32;
    }
    "struct ibv_mr_init_attr" ibv_mr_init_attr {
        "length" length : usize;
        "access" access : ::core::ffi::c_int;
        "comp_mask" comp_mask : u64;
        "iova" iova : u64;
        "addr" addr : *mut ::core::ffi::c_void;
        "fd" fd : ::core::ffi::c_int;
        "fd_offset" fd_offset : u64;
        "dmah" dmah : *mut ibv_dmah;
        "buf" buf : *mut ibv_buf;
    }
    "struct ibv_mw" ibv_mw {
        "context" context : *mut ibv_context;
        "pd" pd : *mut ibv_pd;
        "rkey" rkey : u32;
        "handle" handle : u32;
        "type" type_ : ibv_mw_type;
    }
    "struct ibv_global_route" ibv_global_route {
        "dgid" dgid : ibv_gid;
        "flow_label" flow_label : u32;
        "sgid_index" sgid_index : u8;
        "hop_limit" hop_limit : u8;
        "traffic_class" traffic_class : u8;
    }
    "struct ibv_grh" ibv_grh {
        "version_tclass_flow" version_tclass_flow : __be32;
        "paylen" paylen : __be16;
        "next_hdr" next_hdr : u8;
        "hop_limit" hop_limit : u8;
        "sgid" sgid : ibv_gid;
        "dgid" dgid : ibv_gid;
    }
    "struct ibv_ah_attr" ibv_ah_attr {
        "grh" grh : ibv_global_route;
        "dlid" dlid : u16;
        "sl" sl : u8;
        "src_path_bits" src_path_bits : u8;
        "static_rate" static_rate : u8;
        "is_global" is_global : u8;
        "port_num" port_num : u8;
    }
    "struct ibv_srq_attr" ibv_srq_attr {
        "max_wr" max_wr : u32;
        "max_sge" max_sge : u32;
        "srq_limit" srq_limit : u32;
    }
    "struct ibv_srq_init_attr" ibv_srq_init_attr {
        "srq_context" srq_context : *mut ::core::ffi::c_void;
        "attr" attr : ibv_srq_attr;
    }
    "struct ibv_tm_cap" ibv_tm_cap {
        "max_num_tags" max_num_tags : u32;
        "max_ops" max_ops : u32;
    }
    "struct ibv_srq_init_attr_ex" ibv_srq_init_attr_ex {
        "srq_context" srq_context : *mut ::core::ffi::c_void;
        "attr" attr : ibv_srq_attr;
        "comp_mask" comp_mask : u32;
        "srq_type" srq_type : ibv_srq_type;
        "pd" pd : *mut ibv_pd;
        "xrcd" xrcd : *mut ibv_xrcd;
        "cq" cq : *mut ibv_cq;
        "tm_cap" tm_cap : ibv_tm_cap;
    }
    "struct ibv_wq_init_attr" ibv_wq_init_attr {
        "wq_context" wq_context : *mut ::core::ffi::c_void;
        "wq_type" wq_type : ibv_wq_type;
        "max_wr" max_wr : u32;
        "max_sge" max_sge : u32;
        "pd" pd : *mut ibv_pd;
        "cq" cq : *mut ibv_cq;
        "comp_mask" comp_mask : u32;
        "create_flags" create_flags : u32;
    }
    "struct ibv_wq_attr" ibv_wq_attr {
        "attr_mask" attr_mask : u32;
        "wq_state" wq_state : ibv_wq_state;
        "curr_wq_state" curr_wq_state : ibv_wq_state;
        "flags" flags : u32;
        "flags_mask" flags_mask : u32;
    }
    "struct ibv_rwq_ind_table" ibv_rwq_ind_table {
        "context" context : *mut ibv_context;
        "ind_tbl_handle" ind_tbl_handle : ::core::ffi::c_int;
        "ind_tbl_num" ind_tbl_num : ::core::ffi::c_int;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_rwq_ind_table_init_attr" ibv_rwq_ind_table_init_attr {
        "log_ind_tbl_size" log_ind_tbl_size : u32;
        "ind_tbl" ind_tbl : *mut *mut ibv_wq;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_qp_cap" ibv_qp_cap {
        "max_send_wr" max_send_wr : u32;
        "max_recv_wr" max_recv_wr : u32;
        "max_send_sge" max_send_sge : u32;
        "max_recv_sge" max_recv_sge : u32;
        "max_inline_data" max_inline_data : u32;
    }
    "struct ibv_qp_init_attr" ibv_qp_init_attr {
        "qp_context" qp_context : *mut ::core::ffi::c_void;
        "send_cq" send_cq : *mut ibv_cq;
        "recv_cq" recv_cq : *mut ibv_cq;
        "srq" srq : *mut ibv_srq;
        "cap" cap : ibv_qp_cap;
        "qp_type" qp_type : ibv_qp_type;
        "sq_sig_all" sq_sig_all : ::core::ffi::c_int;
    }
    "struct ibv_rx_hash_conf" ibv_rx_hash_conf {
        "rx_hash_function" rx_hash_function : u8;
        "rx_hash_key_len" rx_hash_key_len : u8;
        "rx_hash_key" rx_hash_key : *mut u8;
        "rx_hash_fields_mask" rx_hash_fields_mask : u64;
    }
    "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex {
        "qp_context" qp_context : *mut ::core::ffi::c_void;
        "send_cq" send_cq : *mut ibv_cq;
        "recv_cq" recv_cq : *mut ibv_cq;
        "srq" srq : *mut ibv_srq;
        "cap" cap : ibv_qp_cap;
        "qp_type" qp_type : ibv_qp_type;
        "sq_sig_all" sq_sig_all : ::core::ffi::c_int;
        "comp_mask" comp_mask : u32;
        "pd" pd : *mut ibv_pd;
        "xrcd" xrcd : *mut ibv_xrcd;
        "create_flags" create_flags : u32;
        "max_tso_header" max_tso_header : u16;
        "rwq_ind_tbl" rwq_ind_tbl : *mut ibv_rwq_ind_table;
        "rx_hash_conf" rx_hash_conf : ibv_rx_hash_conf;
        "source_qpn" source_qpn : u32;
        "send_ops_flags" send_ops_flags : u64;
    }
    "struct ibv_qp_open_attr" ibv_qp_open_attr {
        "comp_mask" comp_mask : u32;
        "qp_num" qp_num : u32;
        "xrcd" xrcd : *mut ibv_xrcd;
        "qp_context" qp_context : *mut ::core::ffi::c_void;
        "qp_type" qp_type : ibv_qp_type;
    }
    "struct ibv_qp_attr" ibv_qp_attr {
        "qp_state" qp_state : ibv_qp_state;
        "cur_qp_state" cur_qp_state : ibv_qp_state;
        "path_mtu" path_mtu : ibv_mtu;
        "path_mig_state" path_mig_state : ibv_mig_state;
        "qkey" qkey : u32;
        "rq_psn" rq_psn : u32;
        "sq_psn" sq_psn : u32;
        "dest_qp_num" dest_qp_num : u32;
        "qp_access_flags" qp_access_flags : ::core::ffi::c_uint;
        "cap" cap : ibv_qp_cap;
        "ah_attr" ah_attr : ibv_ah_attr;
        "alt_ah_attr" alt_ah_attr : ibv_ah_attr;
        "pkey_index" pkey_index : u16;
        "alt_pkey_index" alt_pkey_index : u16;
        "en_sqd_async_notify" en_sqd_async_notify : u8;
        "sq_draining" sq_draining : u8;
        "max_rd_atomic" max_rd_atomic : u8;
        "max_dest_rd_atomic" max_dest_rd_atomic : u8;
        "min_rnr_timer" min_rnr_timer : u8;
        "port_num" port_num : u8;
        "timeout" timeout : u8;
        "retry_cnt" retry_cnt : u8;
        "rnr_retry" rnr_retry : u8;
        "alt_port_num" alt_port_num : u8;
        "alt_timeout" alt_timeout : u8;
        "rate_limit" rate_limit : u32;
    }
    "struct ibv_qp_rate_limit_attr" ibv_qp_rate_limit_attr {
        "rate_limit" rate_limit : u32;
        "max_burst_sz" max_burst_sz : u32;
        "typical_pkt_sz" typical_pkt_sz : u16;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_data_buf" ibv_data_buf {
        "addr" addr : *mut ::core::ffi::c_void;
        "length" length : usize;
    }
    "struct ibv_sge" ibv_sge {
        "addr" addr : u64;
        "length" length : u32;
        "lkey" lkey : u32;
    }
    "struct ibv_fd_arr" ibv_fd_arr {
        "arr" arr : *mut ::core::ffi::c_int;
        "count" count : u32;
    }
    "struct ibv_send_wr" ibv_send_wr {
        "wr_id" wr_id : u64;
        "next" next : *mut ibv_send_wr;
        "sg_list" sg_list : *mut ibv_sge;
        "num_sge" num_sge : ::core::ffi::c_int;
        "opcode" opcode : ibv_wr_opcode;
        "send_flags" send_flags : ::core::ffi::c_uint;
        "imm_data" __bindgen_anon_1.imm_data : __be32;
        "invalidate_rkey" __bindgen_anon_1.invalidate_rkey : u32;
        "wr" wr : ibv_send_wr__bindgen_ty_2;
        "wr.rdma" wr.rdma : ibv_send_wr__bindgen_ty_2__bindgen_ty_1;
        "wr.rdma.remote_addr" wr.rdma.remote_addr : u64;
        "wr.rdma.rkey" wr.rdma.rkey : u32;
        "wr.atomic" wr.atomic : ibv_send_wr__bindgen_ty_2__bindgen_ty_2;
        "wr.atomic.remote_addr" wr.atomic.remote_addr : u64;
        "wr.atomic.compare_add" wr.atomic.compare_add : u64;
        "wr.atomic.swap" wr.atomic.swap : u64;
        "wr.atomic.rkey" wr.atomic.rkey : u32;
        "wr.ud" wr.ud : ibv_send_wr__bindgen_ty_2__bindgen_ty_3;
        "wr.ud.ah" wr.ud.ah : *mut ibv_ah;
        "wr.ud.remote_qpn" wr.ud.remote_qpn : u32;
        "wr.ud.remote_qkey" wr.ud.remote_qkey : u32;
        "qp_type" qp_type : ibv_send_wr__bindgen_ty_3;
        "qp_type.xrc" qp_type.xrc : ibv_send_wr__bindgen_ty_3__bindgen_ty_1;
        "qp_type.xrc.remote_srqn" qp_type.xrc.remote_srqn : u32;
        "bind_mw" __bindgen_anon_2.bind_mw : ibv_send_wr__bindgen_ty_4__bindgen_ty_1;
        "bind_mw.mw" __bindgen_anon_2.bind_mw.mw : *mut ibv_mw;
        "bind_mw.rkey" __bindgen_anon_2.bind_mw.rkey : u32;
        "bind_mw.bind_info" __bindgen_anon_2.bind_mw.bind_info : ibv_mw_bind_info;
        "tso" __bindgen_anon_2.tso : ibv_send_wr__bindgen_ty_4__bindgen_ty_2;
        "tso.hdr" __bindgen_anon_2.tso.hdr : *mut ::core::ffi::c_void;
        "tso.hdr_sz" __bindgen_anon_2.tso.hdr_sz : u16;
        "tso.mss" __bindgen_anon_2.tso.mss : u16;
    }
    "struct ibv_recv_wr" ibv_recv_wr {
        "wr_id" wr_id : u64;
        "next" next : *mut ibv_recv_wr;
        "sg_list" sg_list : *mut ibv_sge;
        "num_sge" num_sge : ::core::ffi::c_int;
    }
    "struct ibv_ops_wr" ibv_ops_wr {
        "wr_id" wr_id : u64;
        "next" next : *mut ibv_ops_wr;
        "opcode" opcode : ibv_ops_wr_opcode;
        "flags" flags : ::core::ffi::c_int;
        "tm" tm : ibv_ops_wr__bindgen_ty_1;
        "tm.unexpected_cnt" tm.unexpected_cnt : u32;
        "tm.handle" tm.handle : u32;
        "tm.add" tm.add : ibv_ops_wr__bindgen_ty_1__bindgen_ty_1;
        "tm.add.recv_wr_id" tm.add.recv_wr_id : u64;
        "tm.add.sg_list" tm.add.sg_list : *mut ibv_sge;
        "tm.add.num_sge" tm.add.num_sge : ::core::ffi::c_int;
        "tm.add.tag" tm.add.tag : u64;
        "tm.add.mask" tm.add.mask : u64;
    }
    "struct ibv_mw_bind" ibv_mw_bind {
        "wr_id" wr_id : u64;
        "send_flags" send_flags : ::core::ffi::c_uint;
        "bind_info" bind_info : ibv_mw_bind_info;
    }
    "struct ibv_srq" ibv_srq {
        "context" context : *mut ibv_context;
        "srq_context" srq_context : *mut ::core::ffi::c_void;
        "pd" pd : *mut ibv_pd;
        "handle" handle : u32;
        "mutex" mutex : pthread_mutex_t;
        "cond" cond : pthread_cond_t;
        "events_completed" events_completed : u32;
    }
    "struct ibv_wq" ibv_wq {
        "context" context : *mut ibv_context;
        "wq_context" wq_context : *mut ::core::ffi::c_void;
        "pd" pd : *mut ibv_pd;
        "cq" cq : *mut ibv_cq;
        "wq_num" wq_num : u32;
        "handle" handle : u32;
        "state" state : ibv_wq_state;
        "wq_type" wq_type : ibv_wq_type;
        "post_recv" post_recv : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_wq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> ::core::ffi::c_int>;
        "mutex" mutex : pthread_mutex_t;
        "cond" cond : pthread_cond_t;
        "events_completed" events_completed : u32;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_qp" ibv_qp {
        "context" context : *mut ibv_context;
        "qp_context" qp_context : *mut ::core::ffi::c_void;
        "pd" pd : *mut ibv_pd;
        "send_cq" send_cq : *mut ibv_cq;
        "recv_cq" recv_cq : *mut ibv_cq;
        "srq" srq : *mut ibv_srq;
        "handle" handle : u32;
        "qp_num" qp_num : u32;
        "state" state : ibv_qp_state;
        "qp_type" qp_type : ibv_qp_type;
        "mutex" mutex : pthread_mutex_t;
        "cond" cond : pthread_cond_t;
        "events_completed" events_completed : u32;
    }
    "struct ibv_qp_ex" ibv_qp_ex {
        "qp_base" qp_base : ibv_qp;
        "comp_mask" comp_mask : u64;
        "wr_id" wr_id : u64;
        "wr_flags" wr_flags : ::core::ffi::c_uint;
        "wr_atomic_cmp_swp" wr_atomic_cmp_swp : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64)>;
        "wr_atomic_fetch_add" wr_atomic_fetch_add : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64)>;
        "wr_bind_mw" wr_bind_mw : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info)>;
        "wr_local_inv" wr_local_inv : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>;
        "wr_rdma_read" wr_rdma_read : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>;
        "wr_rdma_write" wr_rdma_write : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64)>;
        "wr_rdma_write_imm" wr_rdma_write_imm : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32)>;
        "wr_send" wr_send : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>;
        "wr_send_imm" wr_send_imm : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, imm_data: __be32)>;
        "wr_send_inv" wr_send_inv : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, invalidate_rkey: u32)>;
        "wr_send_tso" wr_send_tso : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, hdr: *mut ::core::ffi::c_void, hdr_sz: u16, mss: u16)>;
        "wr_set_ud_addr" wr_set_ud_addr : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32)>;
        "wr_set_xrc_srqn" wr_set_xrc_srqn : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, remote_srqn: u32)>;
        "wr_set_inline_data" wr_set_inline_data : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, addr: *mut ::core::ffi::c_void, length: usize)>;
        "wr_set_inline_data_list" wr_set_inline_data_list : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf)>;
        "wr_set_sge" wr_set_sge : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32)>;
        "wr_set_sge_list" wr_set_sge_list : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge)>;
        "wr_start" wr_start : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>;
        "wr_complete" wr_complete : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex) -> ::core::ffi::c_int>;
        "wr_abort" wr_abort : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex)>;
        "wr_atomic_write" wr_atomic_write : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const ::core::ffi::c_void)>;
        "wr_flush" wr_flush : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8)>;
    }
    "struct ibv_ece" ibv_ece {
        "vendor_id" vendor_id : u32;
        "options" options : u32;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_comp_channel" ibv_comp_channel {
        "context" context : *mut ibv_context;
        "fd" fd : ::core::ffi::c_int;
        "refcnt" refcnt : ::core::ffi::c_int;
    }
    "struct ibv_cq" ibv_cq {
        "context" context : *mut ibv_context;
        "channel" channel : *mut ibv_comp_channel;
        "cq_context" cq_context : *mut ::core::ffi::c_void;
        "handle" handle : u32;
        "cqe" cqe : ::core::ffi::c_int;
        "mutex" mutex : pthread_mutex_t;
        "cond" cond : pthread_cond_t;
        "comp_events_completed" comp_events_completed : u32;
        "async_events_completed" async_events_completed : u32;
    }
    "struct ibv_poll_cq_attr" ibv_poll_cq_attr {
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_wc_tm_info" ibv_wc_tm_info {
        "tag" tag : u64;
        "priv" priv_ : u32;
    }
    "struct ibv_cq_ex" ibv_cq_ex {
        "context" context : *mut ibv_context;
        "channel" channel : *mut ibv_comp_channel;
        "cq_context" cq_context : *mut ::core::ffi::c_void;
        "handle" handle : u32;
        "cqe" cqe : ::core::ffi::c_int;
        "mutex" mutex : pthread_mutex_t;
        "cond" cond : pthread_cond_t;
        "comp_events_completed" comp_events_completed : u32;
        "async_events_completed" async_events_completed : u32;
        "comp_mask" comp_mask : u32;
        "status" status : ibv_wc_status;
        "wr_id" wr_id : u64;
        "start_poll" start_poll : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> ::core::ffi::c_int>;
        "next_poll" next_poll : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ::core::ffi::c_int>;
        "end_poll" end_poll : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>;
        "read_opcode" read_opcode : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>;
        "read_vendor_err" read_vendor_err : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>;
        "read_byte_len" read_byte_len : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>;
        "read_imm_data" read_imm_data : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> __be32>;
        "read_qp_num" read_qp_num : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>;
        "read_src_qp" read_src_qp : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>;
        "read_wc_flags" read_wc_flags : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ::core::ffi::c_uint>;
        "read_slid" read_slid : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>;
        "read_sl" read_sl : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>;
        "read_dlid_path_bits" read_dlid_path_bits : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>;
        "read_completion_ts" read_completion_ts : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>;
        "read_cvlan" read_cvlan : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>;
        "read_flow_tag" read_flow_tag : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>;
        "read_tm_info" read_tm_info : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)>;
        "read_completion_wallclock_ns" read_completion_wallclock_ns : ::core::option::Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>;
    }
    "struct ibv_moderate_cq" ibv_moderate_cq {
        "cq_count" cq_count : u16;
        "cq_period" cq_period : u16;
    }
    "struct ibv_modify_cq_attr" ibv_modify_cq_attr {
        "attr_mask" attr_mask : u32;
        "moderate" moderate : ibv_moderate_cq;
    }
    "struct ibv_ah" ibv_ah {
        "context" context : *mut ibv_context;
        "pd" pd : *mut ibv_pd;
        "handle" handle : u32;
    }
    "struct ibv_flow_eth_filter" ibv_flow_eth_filter {
        "dst_mac" dst_mac : [u8; 6usize];
        "src_mac" src_mac : [u8; 6usize];
        "ether_type" ether_type : u16;
        "vlan_tag" vlan_tag : u16;
    }
    "struct ibv_flow_spec_eth" ibv_flow_spec_eth {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_eth_filter;
        "mask" mask : ibv_flow_eth_filter;
    }
    "struct ibv_flow_ipv4_filter" ibv_flow_ipv4_filter {
        "src_ip" src_ip : u32;
        "dst_ip" dst_ip : u32;
    }
    "struct ibv_flow_spec_ipv4" ibv_flow_spec_ipv4 {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_ipv4_filter;
        "mask" mask : ibv_flow_ipv4_filter;
    }
    "struct ibv_flow_ipv4_ext_filter" ibv_flow_ipv4_ext_filter {
        "src_ip" src_ip : u32;
        "dst_ip" dst_ip : u32;
        "proto" proto : u8;
        "tos" tos : u8;
        "ttl" ttl : u8;
        "flags" flags : u8;
    }
    "struct ibv_flow_spec_ipv4_ext" ibv_flow_spec_ipv4_ext {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_ipv4_ext_filter;
        "mask" mask : ibv_flow_ipv4_ext_filter;
    }
    "struct ibv_flow_ipv6_filter" ibv_flow_ipv6_filter {
        "src_ip" src_ip : [u8; 16usize];
        "dst_ip" dst_ip : [u8; 16usize];
        "flow_label" flow_label : u32;
        "next_hdr" next_hdr : u8;
        "traffic_class" traffic_class : u8;
        "hop_limit" hop_limit : u8;
    }
    "struct ibv_flow_spec_ipv6" ibv_flow_spec_ipv6 {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_ipv6_filter;
        "mask" mask : ibv_flow_ipv6_filter;
    }
    "struct ibv_flow_esp_filter" ibv_flow_esp_filter {
        "spi" spi : u32;
        "seq" seq : u32;
    }
    "struct ibv_flow_spec_esp" ibv_flow_spec_esp {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_esp_filter;
        "mask" mask : ibv_flow_esp_filter;
    }
    "struct ibv_flow_tcp_udp_filter" ibv_flow_tcp_udp_filter {
        "dst_port" dst_port : u16;
        "src_port" src_port : u16;
    }
    "struct ibv_flow_spec_tcp_udp" ibv_flow_spec_tcp_udp {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_tcp_udp_filter;
        "mask" mask : ibv_flow_tcp_udp_filter;
    }
    "struct ibv_flow_gre_filter" ibv_flow_gre_filter {
        "c_ks_res0_ver" c_ks_res0_ver : u16;
        "protocol" protocol : u16;
        "key" key : u32;
    }
    "struct ibv_flow_spec_gre" ibv_flow_spec_gre {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_gre_filter;
        "mask" mask : ibv_flow_gre_filter;
    }
    "struct ibv_flow_mpls_filter" ibv_flow_mpls_filter {
        "label" label : u32;
    }
    "struct ibv_flow_spec_mpls" ibv_flow_spec_mpls {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_mpls_filter;
        "mask" mask : ibv_flow_mpls_filter;
    }
    "struct ibv_flow_tunnel_filter" ibv_flow_tunnel_filter {
        "tunnel_id" tunnel_id : u32;
    }
    "struct ibv_flow_spec_tunnel" ibv_flow_spec_tunnel {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "val" val : ibv_flow_tunnel_filter;
        "mask" mask : ibv_flow_tunnel_filter;
    }
    "struct ibv_flow_spec_action_tag" ibv_flow_spec_action_tag {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "tag_id" tag_id : u32;
    }
    "struct ibv_flow_spec_action_drop" ibv_flow_spec_action_drop {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
    }
    "struct ibv_flow_spec_action_handle" ibv_flow_spec_action_handle {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "action" action : *const ibv_flow_action;
    }
    "struct ibv_flow_spec_counter_action" ibv_flow_spec_counter_action {
        "type" type_ : ibv_flow_spec_type;
        "size" size : u16;
        "counters" counters : *mut ibv_counters;
    }
    "struct ibv_flow_spec" ibv_flow_spec {
        "hdr" __bindgen_anon_1.hdr : ibv_flow_spec__bindgen_ty_1__bindgen_ty_1;
        "hdr.type" __bindgen_anon_1.hdr.type_ : ibv_flow_spec_type;
        "hdr.size" __bindgen_anon_1.hdr.size : u16;
        "eth" __bindgen_anon_1.eth : ibv_flow_spec_eth;
        "ipv4" __bindgen_anon_1.ipv4 : ibv_flow_spec_ipv4;
        "tcp_udp" __bindgen_anon_1.tcp_udp : ibv_flow_spec_tcp_udp;
        "ipv4_ext" __bindgen_anon_1.ipv4_ext : ibv_flow_spec_ipv4_ext;
        "ipv6" __bindgen_anon_1.ipv6 : ibv_flow_spec_ipv6;
        "esp" __bindgen_anon_1.esp : ibv_flow_spec_esp;
        "tunnel" __bindgen_anon_1.tunnel : ibv_flow_spec_tunnel;
        "gre" __bindgen_anon_1.gre : ibv_flow_spec_gre;
        "mpls" __bindgen_anon_1.mpls : ibv_flow_spec_mpls;
        "flow_tag" __bindgen_anon_1.flow_tag : ibv_flow_spec_action_tag;
        "drop" __bindgen_anon_1.drop : ibv_flow_spec_action_drop;
        "handle" __bindgen_anon_1.handle : ibv_flow_spec_action_handle;
        "flow_count" __bindgen_anon_1.flow_count : ibv_flow_spec_counter_action;
    }
    "struct ibv_flow_attr" ibv_flow_attr {
        "comp_mask" comp_mask : u32;
        "type" type_ : ibv_flow_attr_type;
        "size" size : u16;
        "priority" priority : u16;
        "num_of_specs" num_of_specs : u8;
        "port" port : u8;
        "flags" flags : u32;
    }
    "struct ibv_flow" ibv_flow {
        "comp_mask" comp_mask : u32;
        "context" context : *mut ibv_context;
        "handle" handle : u32;
    }
    "struct ibv_flow_action" ibv_flow_action {
        "context" context : *mut ibv_context;
    }
    "struct ibv_flow_action_esp_attr" ibv_flow_action_esp_attr {
        "esp_attr" esp_attr : *mut ib_uverbs_flow_action_esp;
        "keymat_proto" keymat_proto : ib_uverbs_flow_action_esp_keymat;
        "keymat_len" keymat_len : u16;
        "keymat_ptr" keymat_ptr : *mut ::core::ffi::c_void;
        "replay_proto" replay_proto : ib_uverbs_flow_action_esp_replay;
        "replay_len" replay_len : u16;
        "replay_ptr" replay_ptr : *mut ::core::ffi::c_void;
        "esp_encap" esp_encap : *mut ib_uverbs_flow_action_esp_encap;
        "comp_mask" comp_mask : u32;
        "esn" esn : u32;
    }
    "struct _ibv_device_ops" _ibv_device_ops {
        "_dummy1" _dummy1 : ::core::option::Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: ::core::ffi::c_int) -> *mut ibv_context>;
        "_dummy2" _dummy2 : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context)>;
    }
    "struct ibv_device" ibv_device {
        "_ops" _ops : _ibv_device_ops;
        "node_type" node_type : ibv_node_type;
        "transport_type" transport_type : ibv_transport_type;
        "name" name : [::core::ffi::c_char; 64usize];
        "dev_name" dev_name : [::core::ffi::c_char; 64usize];
        "dev_path" dev_path : [::core::ffi::c_char; 256usize];
        "ibdev_path" ibdev_path : [::core::ffi::c_char; 256usize];
    }
    "struct ibv_context_ops" ibv_context_ops {
        "_compat_query_device" _compat_query_device : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> ::core::ffi::c_int>;
        "_compat_query_port" _compat_query_port : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> ::core::ffi::c_int>;
        "_compat_alloc_pd" _compat_alloc_pd : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_dealloc_pd" _compat_dealloc_pd : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_reg_mr" _compat_reg_mr : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_rereg_mr" _compat_rereg_mr : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_dereg_mr" _compat_dereg_mr : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "alloc_mw" alloc_mw : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw>;
        "bind_mw" bind_mw : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> ::core::ffi::c_int>;
        "dealloc_mw" dealloc_mw : ::core::option::Option<unsafe extern "C" fn(mw: *mut ibv_mw) -> ::core::ffi::c_int>;
        "_compat_create_cq" _compat_create_cq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "poll_cq" poll_cq : ::core::option::Option<unsafe extern "C" fn(cq: *mut ibv_cq, num_entries: ::core::ffi::c_int, wc: *mut ibv_wc) -> ::core::ffi::c_int>;
        "req_notify_cq" req_notify_cq : ::core::option::Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: ::core::ffi::c_int) -> ::core::ffi::c_int>;
        "_compat_cq_event" _compat_cq_event : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_resize_cq" _compat_resize_cq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_destroy_cq" _compat_destroy_cq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_create_srq" _compat_create_srq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_modify_srq" _compat_modify_srq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_query_srq" _compat_query_srq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_destroy_srq" _compat_destroy_srq : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "post_srq_recv" post_srq_recv : ::core::option::Option<unsafe extern "C" fn(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> ::core::ffi::c_int>;
        "_compat_create_qp" _compat_create_qp : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_query_qp" _compat_query_qp : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_modify_qp" _compat_modify_qp : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_destroy_qp" _compat_destroy_qp : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "post_send" post_send : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> ::core::ffi::c_int>;
        "post_recv" post_recv : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> ::core::ffi::c_int>;
        "_compat_create_ah" _compat_create_ah : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_destroy_ah" _compat_destroy_ah : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_attach_mcast" _compat_attach_mcast : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_detach_mcast" _compat_detach_mcast : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
        "_compat_async_event" _compat_async_event : ::core::option::Option<unsafe extern "C" fn() -> *mut ::core::ffi::c_void>;
    }
    "struct ibv_context" ibv_context {
        "device" device : *mut ibv_device;
        "ops" ops : ibv_context_ops;
        "cmd_fd" cmd_fd : ::core::ffi::c_int;
        "async_fd" async_fd : ::core::ffi::c_int;
        "num_comp_vectors" num_comp_vectors : ::core::ffi::c_int;
        "mutex" mutex : pthread_mutex_t;
        "abi_compat" abi_compat : *mut ::core::ffi::c_void;
    }
    "struct ibv_cq_init_attr_ex" ibv_cq_init_attr_ex {
        "cqe" cqe : u32;
        "cq_context" cq_context : *mut ::core::ffi::c_void;
        "channel" channel : *mut ibv_comp_channel;
        "comp_vector" comp_vector : u32;
        "wc_flags" wc_flags : u64;
        "comp_mask" comp_mask : u32;
        "flags" flags : u32;
        "parent_domain" parent_domain : *mut ibv_pd;
    }
    "struct ibv_comp_cntr_caps" ibv_comp_cntr_caps {
        "max_value" max_value : u64;
        "max_counters" max_counters : u32;
        "supported_qp_attach_ops" supported_qp_attach_ops : u32;
    }
    "struct ibv_comp_cntr" ibv_comp_cntr {
        "context" context : *mut ibv_context;
        "handle" handle : u32;
    }
    "struct ibv_comp_cntr_init_attr" ibv_comp_cntr_init_attr {
        "comp_mask" comp_mask : u32;
        "type" type_ : ibv_comp_cntr_type;
        "flags" flags : u32;
    }
    "struct ibv_qp_attach_comp_cntr_attr" ibv_qp_attach_comp_cntr_attr {
        "comp_mask" comp_mask : u32;
        "op_mask" op_mask : u32;
    }
    "struct ibv_parent_domain_init_attr" ibv_parent_domain_init_attr {
        "pd" pd : *mut ibv_pd;
        "td" td : *mut ibv_td;
        "comp_mask" comp_mask : u32;
        "alloc" alloc : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut ::core::ffi::c_void, size: usize, alignment: usize, resource_type: u64) -> *mut ::core::ffi::c_void>;
        "free" free : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, pd_context: *mut ::core::ffi::c_void, ptr: *mut ::core::ffi::c_void, resource_type: u64)>;
        "pd_context" pd_context : *mut ::core::ffi::c_void;
    }
    "struct ibv_dmah_init_attr" ibv_dmah_init_attr {
        "comp_mask" comp_mask : u32;
        "cpu_id" cpu_id : u32;
        "ph" ph : u8;
        "tph_mem_type" tph_mem_type : u8;
    }
    "struct ibv_counters_init_attr" ibv_counters_init_attr {
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_counters" ibv_counters {
        "context" context : *mut ibv_context;
    }
    "struct ibv_counter_attach_attr" ibv_counter_attach_attr {
        "counter_desc" counter_desc : ibv_counter_description;
        "index" index : u32;
        "comp_mask" comp_mask : u32;
    }
    "struct ibv_values_ex" ibv_values_ex {
        "comp_mask" comp_mask : u32;
        "raw_clock" raw_clock : timespec;
    }
    "struct verbs_context" verbs_context {
        "free_buf" free_buf : ::core::option::Option<unsafe extern "C" fn(buf: *mut ibv_buf)>;
        "alloc_buf" alloc_buf : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut ::core::ffi::c_void>;
        "dm_export_dmabuf_fd" dm_export_dmabuf_fd : ::core::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> ::core::ffi::c_int>;
        "reg_mr_ex" reg_mr_ex : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr>;
        "dealloc_dmah" dealloc_dmah : ::core::option::Option<unsafe extern "C" fn(dmah: *mut ibv_dmah) -> ::core::ffi::c_int>;
        "alloc_dmah" alloc_dmah : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah>;
        "query_port" query_port : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr, port_attr_len: usize) -> ::core::ffi::c_int>;
        "advise_mr" advise_mr : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sges: u32) -> ::core::ffi::c_int>;
        "alloc_null_mr" alloc_null_mr : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd) -> *mut ibv_mr>;
        "read_counters" read_counters : ::core::option::Option<unsafe extern "C" fn(counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32) -> ::core::ffi::c_int>;
        "attach_counters_point_flow" attach_counters_point_flow : ::core::option::Option<unsafe extern "C" fn(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> ::core::ffi::c_int>;
        "create_counters" create_counters : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr) -> *mut ibv_counters>;
        "destroy_counters" destroy_counters : ::core::option::Option<unsafe extern "C" fn(counters: *mut ibv_counters) -> ::core::ffi::c_int>;
        "reg_dm_mr" reg_dm_mr : ::core::option::Option<unsafe extern "C" fn(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: ::core::ffi::c_uint) -> *mut ibv_mr>;
        "alloc_dm" alloc_dm : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm>;
        "free_dm" free_dm : ::core::option::Option<unsafe extern "C" fn(dm: *mut ibv_dm) -> ::core::ffi::c_int>;
        "modify_flow_action_esp" modify_flow_action_esp : ::core::option::Option<unsafe extern "C" fn(action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr) -> ::core::ffi::c_int>;
        "destroy_flow_action" destroy_flow_action : ::core::option::Option<unsafe extern "C" fn(action: *mut ibv_flow_action) -> ::core::ffi::c_int>;
        "create_flow_action_esp" create_flow_action_esp : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action>;
        "modify_qp_rate_limit" modify_qp_rate_limit : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> ::core::ffi::c_int>;
        "alloc_parent_domain" alloc_parent_domain : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>;
        "dealloc_td" dealloc_td : ::core::option::Option<unsafe extern "C" fn(td: *mut ibv_td) -> ::core::ffi::c_int>;
        "alloc_td" alloc_td : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td>;
        "modify_cq" modify_cq : ::core::option::Option<unsafe extern "C" fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> ::core::ffi::c_int>;
        "post_srq_ops" post_srq_ops : ::core::option::Option<unsafe extern "C" fn(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> ::core::ffi::c_int>;
        "destroy_rwq_ind_table" destroy_rwq_ind_table : ::core::option::Option<unsafe extern "C" fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> ::core::ffi::c_int>;
        "create_rwq_ind_table" create_rwq_ind_table : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table>;
        "destroy_wq" destroy_wq : ::core::option::Option<unsafe extern "C" fn(wq: *mut ibv_wq) -> ::core::ffi::c_int>;
        "modify_wq" modify_wq : ::core::option::Option<unsafe extern "C" fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> ::core::ffi::c_int>;
        "create_wq" create_wq : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq>;
        "query_rt_values" query_rt_values : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> ::core::ffi::c_int>;
        "create_cq_ex" create_cq_ex : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>;
        "priv" priv_ : *mut verbs_ex_private;
        "query_device_ex" query_device_ex : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, attr_size: usize) -> ::core::ffi::c_int>;
        "ibv_destroy_flow" ibv_destroy_flow : ::core::option::Option<unsafe extern "C" fn(flow: *mut ibv_flow) -> ::core::ffi::c_int>;
        "ABI_placeholder2" ABI_placeholder2 : ::core::option::Option<unsafe extern "C" fn()>;
        "ibv_create_flow" ibv_create_flow : ::core::option::Option<unsafe extern "C" fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow>;
        "ABI_placeholder1" ABI_placeholder1 : ::core::option::Option<unsafe extern "C" fn()>;
        "open_qp" open_qp : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp>;
        "create_qp_ex" create_qp_ex : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, qp_init_attr_ex: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>;
        "get_srq_num" get_srq_num : ::core::option::Option<unsafe extern "C" fn(srq: *mut ibv_srq, srq_num: *mut u32) -> ::core::ffi::c_int>;
        "create_srq_ex" create_srq_ex : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, srq_init_attr_ex: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>;
        "open_xrcd" open_xrcd : ::core::option::Option<unsafe extern "C" fn(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>;
        "close_xrcd" close_xrcd : ::core::option::Option<unsafe extern "C" fn(xrcd: *mut ibv_xrcd) -> ::core::ffi::c_int>;
        "_ABI_placeholder3" _ABI_placeholder3 : u64;
        "sz" sz : usize;
        "context" context : ibv_context;
    }
    "struct ibv_sa_path_rec" ibv_sa_path_rec {
        "dgid" dgid : ibv_gid;
        "sgid" sgid : ibv_gid;
        "dlid" dlid : __be16;
        "slid" slid : __be16;
        "raw_traffic" raw_traffic : ::core::ffi::c_int;
        "flow_label" flow_label : __be32;
        "hop_limit" hop_limit : u8;
        "traffic_class" traffic_class : u8;
        "reversible" reversible : ::core::ffi::c_int;
        "numb_path" numb_path : u8;
        "pkey" pkey : __be16;
        "sl" sl : u8;
        "mtu_selector" mtu_selector : u8;
        "mtu" mtu : u8;
        "rate_selector" rate_selector : u8;
        "rate" rate : u8;
        "packet_life_time_selector" packet_life_time_selector : u8;
        "packet_life_time" packet_life_time : u8;
        "preference" preference : u8;
    }
    "struct ibv_sa_mcmember_rec" ibv_sa_mcmember_rec {
        "mgid" mgid : ibv_gid;
        "port_gid" port_gid : ibv_gid;
        "qkey" qkey : u32;
        "mlid" mlid : u16;
        "mtu_selector" mtu_selector : u8;
        "mtu" mtu : u8;
        "traffic_class" traffic_class : u8;
        "pkey" pkey : u16;
        "rate_selector" rate_selector : u8;
        "rate" rate : u8;
        "packet_life_time_selector" packet_life_time_selector : u8;
        "packet_life_time" packet_life_time : u8;
        "sl" sl : u8;
        "flow_label" flow_label : u32;
        "hop_limit" hop_limit : u8;
        "scope" scope : u8;
        "join_state" join_state : u8;
        "proxy_join" proxy_join : ::core::ffi::c_int;
    }
    "struct ibv_sa_service_rec" ibv_sa_service_rec {
        "id" id : u64;
        "gid" gid : ibv_gid;
        "pkey" pkey : u16;
        "lease" lease : u32;
        "key" key : [u8; 16usize];
        "name" name : [u8; 64usize];
        "data8" data8 : [u8; 16usize];
        "data16" data16 : [u16; 8usize];
        "data32" data32 : [u32; 4usize];
        "data64" data64 : [u64; 2usize];
    }
    "struct ibv_path_record" ibv_path_record {
        "service_id" service_id : __be64;
        "dgid" dgid : ibv_gid;
        "sgid" sgid : ibv_gid;
        "dlid" dlid : __be16;
        "slid" slid : __be16;
        "flowlabel_hoplimit" flowlabel_hoplimit : __be32;
        "tclass" tclass : u8;
        "reversible_numpath" reversible_numpath : u8;
        "pkey" pkey : __be16;
        "qosclass_sl" qosclass_sl : __be16;
        "mtu" mtu : u8;
        "rate" rate : u8;
        "packetlifetime" packetlifetime : u8;
        "preference" preference : u8;
        "reserved" reserved : [u8; 6usize];
    }
    "struct ibv_path_data" ibv_path_data {
        "flags" flags : u32;
        "reserved" reserved : u32;
        "path" path : ibv_path_record;
    }
    "struct rdma_ib_addr" rdma_ib_addr {
        "sgid" sgid : ibv_gid;
        "dgid" dgid : ibv_gid;
        "pkey" pkey : __be16;
    }
    "struct rdma_addr" rdma_addr {
        "src_addr" __bindgen_anon_1.src_addr : sockaddr;
        "src_sin" __bindgen_anon_1.src_sin : sockaddr_in;
        "src_sin6" __bindgen_anon_1.src_sin6 : sockaddr_in6;
        "src_storage" __bindgen_anon_1.src_storage : sockaddr_storage;
        "dst_addr" __bindgen_anon_2.dst_addr : sockaddr;
        "dst_sin" __bindgen_anon_2.dst_sin : sockaddr_in;
        "dst_sin6" __bindgen_anon_2.dst_sin6 : sockaddr_in6;
        "dst_storage" __bindgen_anon_2.dst_storage : sockaddr_storage;
        "addr" addr : rdma_addr__bindgen_ty_3;
        "addr.ibaddr" addr.ibaddr : rdma_ib_addr;
    }
    "struct rdma_route" rdma_route {
        "addr" addr : rdma_addr;
        "path_rec" path_rec : *mut ibv_sa_path_rec;
        "num_paths" num_paths : ::core::ffi::c_int;
    }
    "struct rdma_event_channel" rdma_event_channel {
        "fd" fd : ::core::ffi::c_int;
    }
    "struct rdma_cm_id" rdma_cm_id {
        "verbs" verbs : *mut ibv_context;
        "channel" channel : *mut rdma_event_channel;
        "context" context : *mut ::core::ffi::c_void;
        "qp" qp : *mut ibv_qp;
        "route" route : rdma_route;
        "ps" ps : rdma_port_space;
        "port_num" port_num : u8;
        "event" event : *mut rdma_cm_event;
        "send_cq_channel" send_cq_channel : *mut ibv_comp_channel;
        "send_cq" send_cq : *mut ibv_cq;
        "recv_cq_channel" recv_cq_channel : *mut ibv_comp_channel;
        "recv_cq" recv_cq : *mut ibv_cq;
        "srq" srq : *mut ibv_srq;
        "pd" pd : *mut ibv_pd;
        "qp_type" qp_type : ibv_qp_type;
    }
    "struct rdma_conn_param" rdma_conn_param {
        "private_data" private_data : *const ::core::ffi::c_void;
        "private_data_len" private_data_len : u8;
        "responder_resources" responder_resources : u8;
        "initiator_depth" initiator_depth : u8;
        "flow_control" flow_control : u8;
        "retry_count" retry_count : u8;
        "rnr_retry_count" rnr_retry_count : u8;
        "srq" srq : u8;
        "qp_num" qp_num : u32;
    }
    "struct rdma_ud_param" rdma_ud_param {
        "private_data" private_data : *const ::core::ffi::c_void;
        "private_data_len" private_data_len : u8;
        "ah_attr" ah_attr : ibv_ah_attr;
        "qp_num" qp_num : u32;
        "qkey" qkey : u32;
    }
    "struct rdma_cm_event" rdma_cm_event {
        "id" id : *mut rdma_cm_id;
        "listen_id" listen_id : *mut rdma_cm_id;
        "event" event : rdma_cm_event_type;
        "status" status : ::core::ffi::c_int;
        "param" param : rdma_cm_event__bindgen_ty_1;
        "param.conn" param.conn : rdma_conn_param;
        "param.ud" param.ud : rdma_ud_param;
        "param.arg" param.arg : u64;
    }
    "struct rdma_addrinfo" rdma_addrinfo {
        "ai_flags" ai_flags : ::core::ffi::c_int;
        "ai_family" ai_family : ::core::ffi::c_int;
        "ai_qp_type" ai_qp_type : ::core::ffi::c_int;
        "ai_port_space" ai_port_space : ::core::ffi::c_int;
        "ai_src_len" ai_src_len : socklen_t;
        "ai_dst_len" ai_dst_len : socklen_t;
        "ai_src_addr" ai_src_addr : *mut sockaddr;
        "ai_dst_addr" ai_dst_addr : *mut sockaddr;
        "ai_src_canonname" ai_src_canonname : *mut ::core::ffi::c_char;
        "ai_dst_canonname" ai_dst_canonname : *mut ::core::ffi::c_char;
        "ai_route_len" ai_route_len : usize;
        "ai_route" ai_route : *mut ::core::ffi::c_void;
        "ai_connect_len" ai_connect_len : usize;
        "ai_connect" ai_connect : *mut ::core::ffi::c_void;
        "ai_next" ai_next : *mut rdma_addrinfo;
    }
    "struct rdma_cm_join_mc_attr_ex" rdma_cm_join_mc_attr_ex {
        "comp_mask" comp_mask : u32;
        "join_flags" join_flags : u32;
        "addr" addr : *mut sockaddr;
    }
}

enums! {
    ib_uverbs_access_flags
    ib_uverbs_query_port_flags
    ib_uverbs_flow_action_esp_keymat
    ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo
    ib_uverbs_flow_action_esp_replay
    ib_uverbs_flow_action_esp_flags
    ib_uverbs_advise_mr_advice
    ib_uverbs_advise_mr_flag
    ibv_gid_type
    ibv_node_type
    ibv_transport_type
    ibv_device_cap_flags
    ibv_fork_status
    ibv_atomic_cap
    ibv_dm_mask
    ibv_odp_general_caps
    ibv_odp_transport_cap_bits
    ibv_rx_hash_function_flags
    ibv_rx_hash_fields
    ibv_raw_packet_caps
    ibv_tm_cap_flags
    ibv_pci_atomic_op_size
    ibv_mtu
    ibv_port_state
    ibv_port_cap_flags
    ibv_port_cap_flags2
    ibv_event_type
    ibv_wc_status
    ibv_wc_opcode
    ibv_create_cq_wc_flags
    ibv_wc_flags
    ibv_access_flags
    ibv_xrcd_init_attr_mask
    ibv_rereg_mr_flags
    ibv_mr_init_attr_mask
    ibv_mw_type
    ibv_rate
    ibv_srq_attr_mask
    ibv_srq_type
    ibv_srq_init_attr_mask
    ibv_wq_type
    ibv_wq_init_attr_mask
    ibv_wq_flags
    ibv_wq_state
    ibv_wq_attr_mask
    ibv_ind_table_init_attr_mask
    ibv_qp_type
    ibv_qp_init_attr_mask
    ibv_qp_create_flags
    ibv_qp_create_send_ops_flags
    ibv_qp_open_attr_mask
    ibv_qp_attr_mask
    ibv_query_qp_data_in_order_flags
    ibv_query_qp_data_in_order_caps
    ibv_qp_state
    ibv_mig_state
    ibv_wr_opcode
    ibv_send_flags
    ibv_placement_type
    ibv_selectivity_level
    ibv_ops_wr_opcode
    ibv_ops_flags
    ibv_cq_attr_mask
    ibv_flow_flags
    ibv_flow_attr_type
    ibv_flow_spec_type
    ibv_flow_action_esp_mask
    ibv_cq_init_attr_mask
    ibv_create_cq_attr_flags
    ibv_qp_attach_comp_cntr_op
    ibv_comp_cntr_type
    ibv_parent_domain_init_attr_mask
    ibv_tph_mem_type
    ibv_dmah_init_attr_mask
    ibv_counter_description
    ibv_read_counters_flags
    ibv_values_mask
    ibv_rereg_mr_err_code
    rdma_cm_event_type
    rdma_port_space
    rdma_cm_join_mc_attr_mask
    rdma_cm_mc_join_flags
}

constants! {
    IBV_ACCESS_OPTIONAL_FIRST = IBV_ACCESS_OPTIONAL_FIRST;
    IBV_DEVICE_RAW_SCATTER_FCS = IBV_DEVICE_RAW_SCATTER_FCS;
    IBV_DEVICE_PCI_WRITE_END_PADDING = IBV_DEVICE_PCI_WRITE_END_PADDING;
    IBV_DEVICE_CC_DMA_BOUNCE = IBV_DEVICE_CC_DMA_BOUNCE;
    ETHERNET_LL_SIZE = ETHERNET_LL_SIZE;
    IB_ROCE_UDP_ENCAP_VALID_PORT_MIN = IB_ROCE_UDP_ENCAP_VALID_PORT_MIN;
    IB_ROCE_UDP_ENCAP_VALID_PORT_MAX = IB_ROCE_UDP_ENCAP_VALID_PORT_MAX;
    IB_GRH_FLOWLABEL_MASK = IB_GRH_FLOWLABEL_MASK;
    IBV_PATH_RECORD_REVERSIBLE = IBV_PATH_RECORD_REVERSIBLE;
    IBV_PATH_FLAG_GMP = IBV_PATH_FLAG_GMP;
    IBV_PATH_FLAG_PRIMARY = IBV_PATH_FLAG_PRIMARY;
    IBV_PATH_FLAG_ALTERNATE = IBV_PATH_FLAG_ALTERNATE;
    IBV_PATH_FLAG_OUTBOUND = IBV_PATH_FLAG_OUTBOUND;
    IBV_PATH_FLAG_INBOUND = IBV_PATH_FLAG_INBOUND;
    IBV_PATH_FLAG_INBOUND_REVERSE = IBV_PATH_FLAG_INBOUND_REVERSE;
    IBV_PATH_FLAG_BIDIRECTIONAL = IBV_PATH_FLAG_BIDIRECTIONAL;
    RDMA_IB_IP_PS_MASK = RDMA_IB_IP_PS_MASK;
    RDMA_IB_IP_PORT_MASK = RDMA_IB_IP_PORT_MASK;
    RDMA_IB_IP_PS_TCP = RDMA_IB_IP_PS_TCP;
    RDMA_IB_IP_PS_UDP = RDMA_IB_IP_PS_UDP;
    RDMA_IB_PS_IB = RDMA_IB_PS_IB;
    RDMA_UDP_QKEY = RDMA_UDP_QKEY;
    RAI_PASSIVE = RAI_PASSIVE;
    RAI_NUMERICHOST = RAI_NUMERICHOST;
    RAI_NOROUTE = RAI_NOROUTE;
    RAI_FAMILY = RAI_FAMILY;
    RAI_SA = RAI_SA;
    RAI_DNS = RAI_DNS;
    IB_UVERBS_ACCESS_LOCAL_WRITE = ib_uverbs_access_flags::IB_UVERBS_ACCESS_LOCAL_WRITE.0;
    IB_UVERBS_ACCESS_REMOTE_WRITE = ib_uverbs_access_flags::IB_UVERBS_ACCESS_REMOTE_WRITE.0;
    IB_UVERBS_ACCESS_REMOTE_READ = ib_uverbs_access_flags::IB_UVERBS_ACCESS_REMOTE_READ.0;
    IB_UVERBS_ACCESS_REMOTE_ATOMIC = ib_uverbs_access_flags::IB_UVERBS_ACCESS_REMOTE_ATOMIC.0;
    IB_UVERBS_ACCESS_MW_BIND = ib_uverbs_access_flags::IB_UVERBS_ACCESS_MW_BIND.0;
    IB_UVERBS_ACCESS_ZERO_BASED = ib_uverbs_access_flags::IB_UVERBS_ACCESS_ZERO_BASED.0;
    IB_UVERBS_ACCESS_ON_DEMAND = ib_uverbs_access_flags::IB_UVERBS_ACCESS_ON_DEMAND.0;
    IB_UVERBS_ACCESS_HUGETLB = ib_uverbs_access_flags::IB_UVERBS_ACCESS_HUGETLB.0;
    IB_UVERBS_ACCESS_FLUSH_GLOBAL = ib_uverbs_access_flags::IB_UVERBS_ACCESS_FLUSH_GLOBAL.0;
    IB_UVERBS_ACCESS_FLUSH_PERSISTENT = ib_uverbs_access_flags::IB_UVERBS_ACCESS_FLUSH_PERSISTENT.0;
    IB_UVERBS_ACCESS_RELAXED_ORDERING = ib_uverbs_access_flags::IB_UVERBS_ACCESS_RELAXED_ORDERING.0;
    IB_UVERBS_ACCESS_OPTIONAL_RANGE = ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0;
    IB_UVERBS_QPF_GRH_REQUIRED = ib_uverbs_query_port_flags::IB_UVERBS_QPF_GRH_REQUIRED.0;
    IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM = ib_uverbs_flow_action_esp_keymat::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM.0;
    IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ = ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo::IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ.0;
    IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE = ib_uverbs_flow_action_esp_replay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE.0;
    IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP = ib_uverbs_flow_action_esp_replay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT.0;
    IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = ib_uverbs_flow_action_esp_flags::IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW.0;
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH.0;
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE.0;
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0;
    IB_UVERBS_ADVISE_MR_FLAG_FLUSH = ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;
    IBV_GID_TYPE_IB = ibv_gid_type::IBV_GID_TYPE_IB.0;
    IBV_GID_TYPE_ROCE_V1 = ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0;
    IBV_GID_TYPE_ROCE_V2 = ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0;
    IBV_NODE_UNKNOWN = ibv_node_type::IBV_NODE_UNKNOWN.0;
    IBV_NODE_CA = ibv_node_type::IBV_NODE_CA.0;
    IBV_NODE_SWITCH = ibv_node_type::IBV_NODE_SWITCH.0;
    IBV_NODE_ROUTER = ibv_node_type::IBV_NODE_ROUTER.0;
    IBV_NODE_RNIC = ibv_node_type::IBV_NODE_RNIC.0;
    IBV_NODE_USNIC = ibv_node_type::IBV_NODE_USNIC.0;
    IBV_NODE_USNIC_UDP = ibv_node_type::IBV_NODE_USNIC_UDP.0;
    IBV_NODE_UNSPECIFIED = ibv_node_type::IBV_NODE_UNSPECIFIED.0;
    IBV_TRANSPORT_UNKNOWN = ibv_transport_type::IBV_TRANSPORT_UNKNOWN.0;
    IBV_TRANSPORT_IB = ibv_transport_type::IBV_TRANSPORT_IB.0;
    IBV_TRANSPORT_IWARP = ibv_transport_type::IBV_TRANSPORT_IWARP.0;
    IBV_TRANSPORT_USNIC = ibv_transport_type::IBV_TRANSPORT_USNIC.0;
    IBV_TRANSPORT_USNIC_UDP = ibv_transport_type::IBV_TRANSPORT_USNIC_UDP.0;
    IBV_TRANSPORT_UNSPECIFIED = ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED.0;
    IBV_DEVICE_RESIZE_MAX_WR = ibv_device_cap_flags::IBV_DEVICE_RESIZE_MAX_WR.0;
    IBV_DEVICE_BAD_PKEY_CNTR = ibv_device_cap_flags::IBV_DEVICE_BAD_PKEY_CNTR.0;
    IBV_DEVICE_BAD_QKEY_CNTR = ibv_device_cap_flags::IBV_DEVICE_BAD_QKEY_CNTR.0;
    IBV_DEVICE_RAW_MULTI = ibv_device_cap_flags::IBV_DEVICE_RAW_MULTI.0;
    IBV_DEVICE_AUTO_PATH_MIG = ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG.0;
    IBV_DEVICE_CHANGE_PHY_PORT = ibv_device_cap_flags::IBV_DEVICE_CHANGE_PHY_PORT.0;
    IBV_DEVICE_UD_AV_PORT_ENFORCE = ibv_device_cap_flags::IBV_DEVICE_UD_AV_PORT_ENFORCE.0;
    IBV_DEVICE_CURR_QP_STATE_MOD = ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD.0;
    IBV_DEVICE_SHUTDOWN_PORT = ibv_device_cap_flags::IBV_DEVICE_SHUTDOWN_PORT.0;
    IBV_DEVICE_INIT_TYPE = ibv_device_cap_flags::IBV_DEVICE_INIT_TYPE.0;
    IBV_DEVICE_PORT_ACTIVE_EVENT = ibv_device_cap_flags::IBV_DEVICE_PORT_ACTIVE_EVENT.0;
    IBV_DEVICE_SYS_IMAGE_GUID = ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID.0;
    IBV_DEVICE_RC_RNR_NAK_GEN = ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN.0;
    IBV_DEVICE_SRQ_RESIZE = ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0;
    IBV_DEVICE_N_NOTIFY_CQ = ibv_device_cap_flags::IBV_DEVICE_N_NOTIFY_CQ.0;
    IBV_DEVICE_MEM_WINDOW = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW.0;
    IBV_DEVICE_UD_IP_CSUM = ibv_device_cap_flags::IBV_DEVICE_UD_IP_CSUM.0;
    IBV_DEVICE_XRC = ibv_device_cap_flags::IBV_DEVICE_XRC.0;
    IBV_DEVICE_MEM_MGT_EXTENSIONS = ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0;
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    IBV_DEVICE_RC_IP_CSUM = ibv_device_cap_flags::IBV_DEVICE_RC_IP_CSUM.0;
    IBV_DEVICE_RAW_IP_CSUM = ibv_device_cap_flags::IBV_DEVICE_RAW_IP_CSUM.0;
    IBV_DEVICE_MANAGED_FLOW_STEERING = ibv_device_cap_flags::IBV_DEVICE_MANAGED_FLOW_STEERING.0;
    IBV_FORK_DISABLED = ibv_fork_status::IBV_FORK_DISABLED.0;
    IBV_FORK_ENABLED = ibv_fork_status::IBV_FORK_ENABLED.0;
    IBV_FORK_UNNEEDED = ibv_fork_status::IBV_FORK_UNNEEDED.0;
    IBV_ATOMIC_NONE = ibv_atomic_cap::IBV_ATOMIC_NONE.0;
    IBV_ATOMIC_HCA = ibv_atomic_cap::IBV_ATOMIC_HCA.0;
    IBV_ATOMIC_GLOB = ibv_atomic_cap::IBV_ATOMIC_GLOB.0;
    IBV_DM_MASK_HANDLE = ibv_dm_mask::IBV_DM_MASK_HANDLE.0;
    IBV_ODP_SUPPORT = ibv_odp_general_caps::IBV_ODP_SUPPORT.0;
    IBV_ODP_SUPPORT_IMPLICIT = ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0;
    IBV_ODP_SUPPORT_SEND = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SEND.0;
    IBV_ODP_SUPPORT_RECV = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_RECV.0;
    IBV_ODP_SUPPORT_WRITE = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE.0;
    IBV_ODP_SUPPORT_READ = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ.0;
    IBV_ODP_SUPPORT_ATOMIC = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC.0;
    IBV_ODP_SUPPORT_SRQ_RECV = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SRQ_RECV.0;
    IBV_ODP_SUPPORT_FLUSH = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_FLUSH.0;
    IBV_ODP_SUPPORT_ATOMIC_WRITE = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC_WRITE.0;
    IBV_RX_HASH_FUNC_TOEPLITZ = ibv_rx_hash_function_flags::IBV_RX_HASH_FUNC_TOEPLITZ.0;
    IBV_RX_HASH_SRC_IPV4 = ibv_rx_hash_fields::IBV_RX_HASH_SRC_IPV4.0;
    IBV_RX_HASH_DST_IPV4 = ibv_rx_hash_fields::IBV_RX_HASH_DST_IPV4.0;
    IBV_RX_HASH_SRC_IPV6 = ibv_rx_hash_fields::IBV_RX_HASH_SRC_IPV6.0;
    IBV_RX_HASH_DST_IPV6 = ibv_rx_hash_fields::IBV_RX_HASH_DST_IPV6.0;
    IBV_RX_HASH_SRC_PORT_TCP = ibv_rx_hash_fields::IBV_RX_HASH_SRC_PORT_TCP.0;
    IBV_RX_HASH_DST_PORT_TCP = ibv_rx_hash_fields::IBV_RX_HASH_DST_PORT_TCP.0;
    IBV_RX_HASH_SRC_PORT_UDP = ibv_rx_hash_fields::IBV_RX_HASH_SRC_PORT_UDP.0;
    IBV_RX_HASH_DST_PORT_UDP = ibv_rx_hash_fields::IBV_RX_HASH_DST_PORT_UDP.0;
    IBV_RX_HASH_IPSEC_SPI = ibv_rx_hash_fields::IBV_RX_HASH_IPSEC_SPI.0;
    IBV_RX_HASH_INNER = ibv_rx_hash_fields::IBV_RX_HASH_INNER.0;
    IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING.0;
    IBV_RAW_PACKET_CAP_SCATTER_FCS = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_SCATTER_FCS.0;
    IBV_RAW_PACKET_CAP_IP_CSUM = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_IP_CSUM.0;
    IBV_RAW_PACKET_CAP_DELAY_DROP = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_DELAY_DROP.0;
    IBV_TM_CAP_RC = ibv_tm_cap_flags::IBV_TM_CAP_RC.0;
    IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP.0;
    IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP.0;
    IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP.0;
    IBV_MTU_256 = ibv_mtu::IBV_MTU_256.0;
    IBV_MTU_512 = ibv_mtu::IBV_MTU_512.0;
    IBV_MTU_1024 = ibv_mtu::IBV_MTU_1024.0;
    IBV_MTU_2048 = ibv_mtu::IBV_MTU_2048.0;
    IBV_MTU_4096 = ibv_mtu::IBV_MTU_4096.0;
    IBV_PORT_NOP = ibv_port_state::IBV_PORT_NOP.0;
    IBV_PORT_DOWN = ibv_port_state::IBV_PORT_DOWN.0;
    IBV_PORT_INIT = ibv_port_state::IBV_PORT_INIT.0;
    IBV_PORT_ARMED = ibv_port_state::IBV_PORT_ARMED.0;
    IBV_PORT_ACTIVE = ibv_port_state::IBV_PORT_ACTIVE.0;
    IBV_PORT_ACTIVE_DEFER = ibv_port_state::IBV_PORT_ACTIVE_DEFER.0;
    IBV_LINK_LAYER_UNSPECIFIED = IBV_LINK_LAYER_UNSPECIFIED;
    IBV_LINK_LAYER_INFINIBAND = IBV_LINK_LAYER_INFINIBAND;
    IBV_LINK_LAYER_ETHERNET = IBV_LINK_LAYER_ETHERNET;
    IBV_PORT_SM = ibv_port_cap_flags::IBV_PORT_SM.0;
    IBV_PORT_NOTICE_SUP = ibv_port_cap_flags::IBV_PORT_NOTICE_SUP.0;
    IBV_PORT_TRAP_SUP = ibv_port_cap_flags::IBV_PORT_TRAP_SUP.0;
    IBV_PORT_OPT_IPD_SUP = ibv_port_cap_flags::IBV_PORT_OPT_IPD_SUP.0;
    IBV_PORT_AUTO_MIGR_SUP = ibv_port_cap_flags::IBV_PORT_AUTO_MIGR_SUP.0;
    IBV_PORT_SL_MAP_SUP = ibv_port_cap_flags::IBV_PORT_SL_MAP_SUP.0;
    IBV_PORT_MKEY_NVRAM = ibv_port_cap_flags::IBV_PORT_MKEY_NVRAM.0;
    IBV_PORT_PKEY_NVRAM = ibv_port_cap_flags::IBV_PORT_PKEY_NVRAM.0;
    IBV_PORT_LED_INFO_SUP = ibv_port_cap_flags::IBV_PORT_LED_INFO_SUP.0;
    IBV_PORT_SYS_IMAGE_GUID_SUP = ibv_port_cap_flags::IBV_PORT_SYS_IMAGE_GUID_SUP.0;
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = ibv_port_cap_flags::IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP.0;
    IBV_PORT_EXTENDED_SPEEDS_SUP = ibv_port_cap_flags::IBV_PORT_EXTENDED_SPEEDS_SUP.0;
    IBV_PORT_CAP_MASK2_SUP = ibv_port_cap_flags::IBV_PORT_CAP_MASK2_SUP.0;
    IBV_PORT_CM_SUP = ibv_port_cap_flags::IBV_PORT_CM_SUP.0;
    IBV_PORT_SNMP_TUNNEL_SUP = ibv_port_cap_flags::IBV_PORT_SNMP_TUNNEL_SUP.0;
    IBV_PORT_REINIT_SUP = ibv_port_cap_flags::IBV_PORT_REINIT_SUP.0;
    IBV_PORT_DEVICE_MGMT_SUP = ibv_port_cap_flags::IBV_PORT_DEVICE_MGMT_SUP.0;
    IBV_PORT_VENDOR_CLASS_SUP = ibv_port_cap_flags::IBV_PORT_VENDOR_CLASS_SUP.0;
    IBV_PORT_DR_NOTICE_SUP = ibv_port_cap_flags::IBV_PORT_DR_NOTICE_SUP.0;
    IBV_PORT_CAP_MASK_NOTICE_SUP = ibv_port_cap_flags::IBV_PORT_CAP_MASK_NOTICE_SUP.0;
    IBV_PORT_BOOT_MGMT_SUP = ibv_port_cap_flags::IBV_PORT_BOOT_MGMT_SUP.0;
    IBV_PORT_LINK_LATENCY_SUP = ibv_port_cap_flags::IBV_PORT_LINK_LATENCY_SUP.0;
    IBV_PORT_CLIENT_REG_SUP = ibv_port_cap_flags::IBV_PORT_CLIENT_REG_SUP.0;
    IBV_PORT_IP_BASED_GIDS = ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0;
    IBV_PORT_SET_NODE_DESC_SUP = ibv_port_cap_flags2::IBV_PORT_SET_NODE_DESC_SUP.0;
    IBV_PORT_INFO_EXT_SUP = ibv_port_cap_flags2::IBV_PORT_INFO_EXT_SUP.0;
    IBV_PORT_VIRT_SUP = ibv_port_cap_flags2::IBV_PORT_VIRT_SUP.0;
    IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = ibv_port_cap_flags2::IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP.0;
    IBV_PORT_LINK_WIDTH_2X_SUP = ibv_port_cap_flags2::IBV_PORT_LINK_WIDTH_2X_SUP.0;
    IBV_PORT_LINK_SPEED_HDR_SUP = ibv_port_cap_flags2::IBV_PORT_LINK_SPEED_HDR_SUP.0;
    IBV_PORT_LINK_SPEED_NDR_SUP = ibv_port_cap_flags2::IBV_PORT_LINK_SPEED_NDR_SUP.0;
    IBV_PORT_LINK_SPEED_XDR_SUP = ibv_port_cap_flags2::IBV_PORT_LINK_SPEED_XDR_SUP.0;
    IBV_EVENT_CQ_ERR = ibv_event_type::IBV_EVENT_CQ_ERR.0;
    IBV_EVENT_QP_FATAL = ibv_event_type::IBV_EVENT_QP_FATAL.0;
    IBV_EVENT_QP_REQ_ERR = ibv_event_type::IBV_EVENT_QP_REQ_ERR.0;
    IBV_EVENT_QP_ACCESS_ERR = ibv_event_type::IBV_EVENT_QP_ACCESS_ERR.0;
    IBV_EVENT_COMM_EST = ibv_event_type::IBV_EVENT_COMM_EST.0;
    IBV_EVENT_SQ_DRAINED = ibv_event_type::IBV_EVENT_SQ_DRAINED.0;
    IBV_EVENT_PATH_MIG = ibv_event_type::IBV_EVENT_PATH_MIG.0;
    IBV_EVENT_PATH_MIG_ERR = ibv_event_type::IBV_EVENT_PATH_MIG_ERR.0;
    IBV_EVENT_DEVICE_FATAL = ibv_event_type::IBV_EVENT_DEVICE_FATAL.0;
    IBV_EVENT_PORT_ACTIVE = ibv_event_type::IBV_EVENT_PORT_ACTIVE.0;
    IBV_EVENT_PORT_ERR = ibv_event_type::IBV_EVENT_PORT_ERR.0;
    IBV_EVENT_LID_CHANGE = ibv_event_type::IBV_EVENT_LID_CHANGE.0;
    IBV_EVENT_PKEY_CHANGE = ibv_event_type::IBV_EVENT_PKEY_CHANGE.0;
    IBV_EVENT_SM_CHANGE = ibv_event_type::IBV_EVENT_SM_CHANGE.0;
    IBV_EVENT_SRQ_ERR = ibv_event_type::IBV_EVENT_SRQ_ERR.0;
    IBV_EVENT_SRQ_LIMIT_REACHED = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED.0;
    IBV_EVENT_QP_LAST_WQE_REACHED = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED.0;
    IBV_EVENT_CLIENT_REREGISTER = ibv_event_type::IBV_EVENT_CLIENT_REREGISTER.0;
    IBV_EVENT_GID_CHANGE = ibv_event_type::IBV_EVENT_GID_CHANGE.0;
    IBV_EVENT_WQ_FATAL = ibv_event_type::IBV_EVENT_WQ_FATAL.0;
    IBV_EVENT_DEVICE_SPEED_CHANGE = ibv_event_type::IBV_EVENT_DEVICE_SPEED_CHANGE.0;
    IBV_WC_SUCCESS = ibv_wc_status::IBV_WC_SUCCESS.0;
    IBV_WC_LOC_LEN_ERR = ibv_wc_status::IBV_WC_LOC_LEN_ERR.0;
    IBV_WC_LOC_QP_OP_ERR = ibv_wc_status::IBV_WC_LOC_QP_OP_ERR.0;
    IBV_WC_LOC_EEC_OP_ERR = ibv_wc_status::IBV_WC_LOC_EEC_OP_ERR.0;
    IBV_WC_LOC_PROT_ERR = ibv_wc_status::IBV_WC_LOC_PROT_ERR.0;
    IBV_WC_WR_FLUSH_ERR = ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0;
    IBV_WC_MW_BIND_ERR = ibv_wc_status::IBV_WC_MW_BIND_ERR.0;
    IBV_WC_BAD_RESP_ERR = ibv_wc_status::IBV_WC_BAD_RESP_ERR.0;
    IBV_WC_LOC_ACCESS_ERR = ibv_wc_status::IBV_WC_LOC_ACCESS_ERR.0;
    IBV_WC_REM_INV_REQ_ERR = ibv_wc_status::IBV_WC_REM_INV_REQ_ERR.0;
    IBV_WC_REM_ACCESS_ERR = ibv_wc_status::IBV_WC_REM_ACCESS_ERR.0;
    IBV_WC_REM_OP_ERR = ibv_wc_status::IBV_WC_REM_OP_ERR.0;
    IBV_WC_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RETRY_EXC_ERR.0;
    IBV_WC_RNR_RETRY_EXC_ERR = ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR.0;
    IBV_WC_LOC_RDD_VIOL_ERR = ibv_wc_status::IBV_WC_LOC_RDD_VIOL_ERR.0;
    IBV_WC_REM_INV_RD_REQ_ERR = ibv_wc_status::IBV_WC_REM_INV_RD_REQ_ERR.0;
    IBV_WC_REM_ABORT_ERR = ibv_wc_status::IBV_WC_REM_ABORT_ERR.0;
    IBV_WC_INV_EECN_ERR = ibv_wc_status::IBV_WC_INV_EECN_ERR.0;
    IBV_WC_INV_EEC_STATE_ERR = ibv_wc_status::IBV_WC_INV_EEC_STATE_ERR.0;
    IBV_WC_FATAL_ERR = ibv_wc_status::IBV_WC_FATAL_ERR.0;
    IBV_WC_RESP_TIMEOUT_ERR = ibv_wc_status::IBV_WC_RESP_TIMEOUT_ERR.0;
    IBV_WC_GENERAL_ERR = ibv_wc_status::IBV_WC_GENERAL_ERR.0;
    IBV_WC_TM_ERR = ibv_wc_status::IBV_WC_TM_ERR.0;
    IBV_WC_TM_RNDV_INCOMPLETE = ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE.0;
    IBV_WC_SEND = ibv_wc_opcode::IBV_WC_SEND.0;
    IBV_WC_RDMA_WRITE = ibv_wc_opcode::IBV_WC_RDMA_WRITE.0;
    IBV_WC_RDMA_READ = ibv_wc_opcode::IBV_WC_RDMA_READ.0;
    IBV_WC_COMP_SWAP = ibv_wc_opcode::IBV_WC_COMP_SWAP.0;
    IBV_WC_FETCH_ADD = ibv_wc_opcode::IBV_WC_FETCH_ADD.0;
    IBV_WC_BIND_MW = ibv_wc_opcode::IBV_WC_BIND_MW.0;
    IBV_WC_LOCAL_INV = ibv_wc_opcode::IBV_WC_LOCAL_INV.0;
    IBV_WC_TSO = ibv_wc_opcode::IBV_WC_TSO.0;
    IBV_WC_FLUSH = ibv_wc_opcode::IBV_WC_FLUSH.0;
    IBV_WC_ATOMIC_WRITE = ibv_wc_opcode::IBV_WC_ATOMIC_WRITE.0;
    IBV_WC_RECV = ibv_wc_opcode::IBV_WC_RECV.0;
    IBV_WC_RECV_RDMA_WITH_IMM = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM.0;
    IBV_WC_TM_ADD = ibv_wc_opcode::IBV_WC_TM_ADD.0;
    IBV_WC_TM_DEL = ibv_wc_opcode::IBV_WC_TM_DEL.0;
    IBV_WC_TM_SYNC = ibv_wc_opcode::IBV_WC_TM_SYNC.0;
    IBV_WC_TM_RECV = ibv_wc_opcode::IBV_WC_TM_RECV.0;
    IBV_WC_TM_NO_TAG = ibv_wc_opcode::IBV_WC_TM_NO_TAG.0;
    IBV_WC_DRIVER1 = ibv_wc_opcode::IBV_WC_DRIVER1.0;
    IBV_WC_DRIVER2 = ibv_wc_opcode::IBV_WC_DRIVER2.0;
    IBV_WC_DRIVER3 = ibv_wc_opcode::IBV_WC_DRIVER3.0;
    IBV_WC_IP_CSUM_OK_SHIFT = IBV_WC_IP_CSUM_OK_SHIFT;
    IBV_WC_EX_WITH_BYTE_LEN = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0;
    IBV_WC_EX_WITH_IMM = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0;
    IBV_WC_EX_WITH_QP_NUM = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0;
    IBV_WC_EX_WITH_SRC_QP = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP.0;
    IBV_WC_EX_WITH_SLID = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID.0;
    IBV_WC_EX_WITH_SL = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SL.0;
    IBV_WC_EX_WITH_DLID_PATH_BITS = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_DLID_PATH_BITS.0;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
    IBV_WC_EX_WITH_CVLAN = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_CVLAN.0;
    IBV_WC_EX_WITH_FLOW_TAG = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_FLOW_TAG.0;
    IBV_WC_EX_WITH_TM_INFO = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_TM_INFO.0;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    IBV_WC_STANDARD_FLAGS = IBV_WC_STANDARD_FLAGS;
    IBV_CREATE_CQ_SUP_WC_FLAGS = IBV_CREATE_CQ_SUP_WC_FLAGS;
    IBV_WC_GRH = ibv_wc_flags::IBV_WC_GRH.0;
    IBV_WC_WITH_IMM = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    IBV_WC_IP_CSUM_OK = ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
    IBV_WC_WITH_INV = ibv_wc_flags::IBV_WC_WITH_INV.0;
    IBV_WC_TM_SYNC_REQ = ibv_wc_flags::IBV_WC_TM_SYNC_REQ.0;
    IBV_WC_TM_MATCH = ibv_wc_flags::IBV_WC_TM_MATCH.0;
    IBV_WC_TM_DATA_VALID = ibv_wc_flags::IBV_WC_TM_DATA_VALID.0;
    IBV_ACCESS_LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    IBV_ACCESS_REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    IBV_ACCESS_REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    IBV_ACCESS_REMOTE_ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    IBV_ACCESS_MW_BIND = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
    IBV_ACCESS_ZERO_BASED = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
    IBV_ACCESS_ON_DEMAND = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
    IBV_ACCESS_HUGETLB = ibv_access_flags::IBV_ACCESS_HUGETLB.0;
    IBV_ACCESS_FLUSH_GLOBAL = ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0;
    IBV_ACCESS_FLUSH_PERSISTENT = ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0;
    IBV_ACCESS_RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    IBV_XRCD_INIT_ATTR_FD = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0;
    IBV_XRCD_INIT_ATTR_OFLAGS = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    IBV_XRCD_INIT_ATTR_RESERVED = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_RESERVED.0;
    IBV_REREG_MR_CHANGE_TRANSLATION = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0;
    IBV_REREG_MR_CHANGE_PD = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD.0;
    IBV_REREG_MR_CHANGE_ACCESS = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS.0;
    IBV_REREG_MR_FLAGS_SUPPORTED = ibv_rereg_mr_flags::IBV_REREG_MR_FLAGS_SUPPORTED.0;
    IBV_REG_MR_MASK_IOVA = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_IOVA.0;
    IBV_REG_MR_MASK_ADDR = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_ADDR.0;
    IBV_REG_MR_MASK_FD = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD.0;
    IBV_REG_MR_MASK_FD_OFFSET = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_FD_OFFSET.0;
    IBV_REG_MR_MASK_DMAH = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_DMAH.0;
    IBV_REG_MR_MASK_BUF = ibv_mr_init_attr_mask::IBV_REG_MR_MASK_BUF.0;
    IBV_MW_TYPE_1 = ibv_mw_type::IBV_MW_TYPE_1.0;
    IBV_MW_TYPE_2 = ibv_mw_type::IBV_MW_TYPE_2.0;
    IBV_RATE_MAX = ibv_rate::IBV_RATE_MAX.0;
    IBV_RATE_2_5_GBPS = ibv_rate::IBV_RATE_2_5_GBPS.0;
    IBV_RATE_5_GBPS = ibv_rate::IBV_RATE_5_GBPS.0;
    IBV_RATE_10_GBPS = ibv_rate::IBV_RATE_10_GBPS.0;
    IBV_RATE_20_GBPS = ibv_rate::IBV_RATE_20_GBPS.0;
    IBV_RATE_30_GBPS = ibv_rate::IBV_RATE_30_GBPS.0;
    IBV_RATE_40_GBPS = ibv_rate::IBV_RATE_40_GBPS.0;
    IBV_RATE_60_GBPS = ibv_rate::IBV_RATE_60_GBPS.0;
    IBV_RATE_80_GBPS = ibv_rate::IBV_RATE_80_GBPS.0;
    IBV_RATE_120_GBPS = ibv_rate::IBV_RATE_120_GBPS.0;
    IBV_RATE_14_GBPS = ibv_rate::IBV_RATE_14_GBPS.0;
    IBV_RATE_56_GBPS = ibv_rate::IBV_RATE_56_GBPS.0;
    IBV_RATE_112_GBPS = ibv_rate::IBV_RATE_112_GBPS.0;
    IBV_RATE_168_GBPS = ibv_rate::IBV_RATE_168_GBPS.0;
    IBV_RATE_25_GBPS = ibv_rate::IBV_RATE_25_GBPS.0;
    IBV_RATE_100_GBPS = ibv_rate::IBV_RATE_100_GBPS.0;
    IBV_RATE_200_GBPS = ibv_rate::IBV_RATE_200_GBPS.0;
    IBV_RATE_300_GBPS = ibv_rate::IBV_RATE_300_GBPS.0;
    IBV_RATE_28_GBPS = ibv_rate::IBV_RATE_28_GBPS.0;
    IBV_RATE_50_GBPS = ibv_rate::IBV_RATE_50_GBPS.0;
    IBV_RATE_400_GBPS = ibv_rate::IBV_RATE_400_GBPS.0;
    IBV_RATE_600_GBPS = ibv_rate::IBV_RATE_600_GBPS.0;
    IBV_RATE_800_GBPS = ibv_rate::IBV_RATE_800_GBPS.0;
    IBV_RATE_1200_GBPS = ibv_rate::IBV_RATE_1200_GBPS.0;
    IBV_SRQ_MAX_WR = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0;
    IBV_SRQ_LIMIT = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
    IBV_SRQT_BASIC = ibv_srq_type::IBV_SRQT_BASIC.0;
    IBV_SRQT_XRC = ibv_srq_type::IBV_SRQT_XRC.0;
    IBV_SRQT_TM = ibv_srq_type::IBV_SRQT_TM.0;
    IBV_SRQ_INIT_ATTR_TYPE = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    IBV_SRQ_INIT_ATTR_PD = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    IBV_SRQ_INIT_ATTR_XRCD = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_XRCD.0;
    IBV_SRQ_INIT_ATTR_CQ = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_CQ.0;
    IBV_SRQ_INIT_ATTR_TM = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TM.0;
    IBV_SRQ_INIT_ATTR_RESERVED = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_RESERVED.0;
    IBV_WQT_RQ = ibv_wq_type::IBV_WQT_RQ.0;
    IBV_WQ_INIT_ATTR_FLAGS = ibv_wq_init_attr_mask::IBV_WQ_INIT_ATTR_FLAGS.0;
    IBV_WQ_INIT_ATTR_RESERVED = ibv_wq_init_attr_mask::IBV_WQ_INIT_ATTR_RESERVED.0;
    IBV_WQ_FLAGS_CVLAN_STRIPPING = ibv_wq_flags::IBV_WQ_FLAGS_CVLAN_STRIPPING.0;
    IBV_WQ_FLAGS_SCATTER_FCS = ibv_wq_flags::IBV_WQ_FLAGS_SCATTER_FCS.0;
    IBV_WQ_FLAGS_DELAY_DROP = ibv_wq_flags::IBV_WQ_FLAGS_DELAY_DROP.0;
    IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = ibv_wq_flags::IBV_WQ_FLAGS_PCI_WRITE_END_PADDING.0;
    IBV_WQ_FLAGS_RESERVED = ibv_wq_flags::IBV_WQ_FLAGS_RESERVED.0;
    IBV_WQS_RESET = ibv_wq_state::IBV_WQS_RESET.0;
    IBV_WQS_RDY = ibv_wq_state::IBV_WQS_RDY.0;
    IBV_WQS_ERR = ibv_wq_state::IBV_WQS_ERR.0;
    IBV_WQS_UNKNOWN = ibv_wq_state::IBV_WQS_UNKNOWN.0;
    IBV_WQ_ATTR_STATE = ibv_wq_attr_mask::IBV_WQ_ATTR_STATE.0;
    IBV_WQ_ATTR_CURR_STATE = ibv_wq_attr_mask::IBV_WQ_ATTR_CURR_STATE.0;
    IBV_WQ_ATTR_FLAGS = ibv_wq_attr_mask::IBV_WQ_ATTR_FLAGS.0;
    IBV_WQ_ATTR_RESERVED = ibv_wq_attr_mask::IBV_WQ_ATTR_RESERVED.0;
    IBV_CREATE_IND_TABLE_RESERVED = ibv_ind_table_init_attr_mask::IBV_CREATE_IND_TABLE_RESERVED.0;
    IBV_QPT_RC = ibv_qp_type::IBV_QPT_RC.0;
    IBV_QPT_UC = ibv_qp_type::IBV_QPT_UC.0;
    IBV_QPT_UD = ibv_qp_type::IBV_QPT_UD.0;
    IBV_QPT_RAW_PACKET = ibv_qp_type::IBV_QPT_RAW_PACKET.0;
    IBV_QPT_XRC_SEND = ibv_qp_type::IBV_QPT_XRC_SEND.0;
    IBV_QPT_XRC_RECV = ibv_qp_type::IBV_QPT_XRC_RECV.0;
    IBV_QPT_DRIVER = ibv_qp_type::IBV_QPT_DRIVER.0;
    IBV_QP_INIT_ATTR_PD = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    IBV_QP_INIT_ATTR_XRCD = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
    IBV_QP_INIT_ATTR_CREATE_FLAGS = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER.0;
    IBV_QP_INIT_ATTR_IND_TABLE = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_IND_TABLE.0;
    IBV_QP_INIT_ATTR_RX_HASH = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_RX_HASH.0;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = ibv_qp_create_flags::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0;
    IBV_QP_CREATE_SCATTER_FCS = ibv_qp_create_flags::IBV_QP_CREATE_SCATTER_FCS.0;
    IBV_QP_CREATE_CVLAN_STRIPPING = ibv_qp_create_flags::IBV_QP_CREATE_CVLAN_STRIPPING.0;
    IBV_QP_CREATE_SOURCE_QPN = ibv_qp_create_flags::IBV_QP_CREATE_SOURCE_QPN.0;
    IBV_QP_CREATE_PCI_WRITE_END_PADDING = ibv_qp_create_flags::IBV_QP_CREATE_PCI_WRITE_END_PADDING.0;
    IBV_QP_EX_WITH_RDMA_WRITE = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE.0;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
    IBV_QP_EX_WITH_SEND = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND.0;
    IBV_QP_EX_WITH_SEND_WITH_IMM = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
    IBV_QP_EX_WITH_RDMA_READ = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_RDMA_READ.0;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0;
    IBV_QP_EX_WITH_LOCAL_INV = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_LOCAL_INV.0;
    IBV_QP_EX_WITH_BIND_MW = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_BIND_MW.0;
    IBV_QP_EX_WITH_SEND_WITH_INV = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND_WITH_INV.0;
    IBV_QP_EX_WITH_TSO = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_TSO.0;
    IBV_QP_EX_WITH_FLUSH = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_FLUSH.0;
    IBV_QP_EX_WITH_ATOMIC_WRITE = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_ATOMIC_WRITE.0;
    IBV_QP_OPEN_ATTR_NUM = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_NUM.0;
    IBV_QP_OPEN_ATTR_XRCD = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_XRCD.0;
    IBV_QP_OPEN_ATTR_CONTEXT = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_CONTEXT.0;
    IBV_QP_OPEN_ATTR_TYPE = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_TYPE.0;
    IBV_QP_OPEN_ATTR_RESERVED = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_RESERVED.0;
    IBV_QP_STATE = ibv_qp_attr_mask::IBV_QP_STATE.0;
    IBV_QP_CUR_STATE = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
    IBV_QP_EN_SQD_ASYNC_NOTIFY = ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
    IBV_QP_ACCESS_FLAGS = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
    IBV_QP_PKEY_INDEX = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0;
    IBV_QP_PORT = ibv_qp_attr_mask::IBV_QP_PORT.0;
    IBV_QP_QKEY = ibv_qp_attr_mask::IBV_QP_QKEY.0;
    IBV_QP_AV = ibv_qp_attr_mask::IBV_QP_AV.0;
    IBV_QP_PATH_MTU = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0;
    IBV_QP_TIMEOUT = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0;
    IBV_QP_RETRY_CNT = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0;
    IBV_QP_RNR_RETRY = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
    IBV_QP_RQ_PSN = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0;
    IBV_QP_MAX_QP_RD_ATOMIC = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
    IBV_QP_ALT_PATH = ibv_qp_attr_mask::IBV_QP_ALT_PATH.0;
    IBV_QP_MIN_RNR_TIMER = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
    IBV_QP_SQ_PSN = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
    IBV_QP_MAX_DEST_RD_ATOMIC = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
    IBV_QP_PATH_MIG_STATE = ibv_qp_attr_mask::IBV_QP_PATH_MIG_STATE.0;
    IBV_QP_CAP = ibv_qp_attr_mask::IBV_QP_CAP.0;
    IBV_QP_DEST_QPN = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0;
    IBV_QP_RATE_LIMIT = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0;
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = ibv_query_qp_data_in_order_flags::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS.0;
    IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = ibv_query_qp_data_in_order_flags::IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY.0;
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = ibv_query_qp_data_in_order_caps::IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG.0;
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = ibv_query_qp_data_in_order_caps::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES.0;
    IBV_QPS_RESET = ibv_qp_state::IBV_QPS_RESET.0;
    IBV_QPS_INIT = ibv_qp_state::IBV_QPS_INIT.0;
    IBV_QPS_RTR = ibv_qp_state::IBV_QPS_RTR.0;
    IBV_QPS_RTS = ibv_qp_state::IBV_QPS_RTS.0;
    IBV_QPS_SQD = ibv_qp_state::IBV_QPS_SQD.0;
    IBV_QPS_SQE = ibv_qp_state::IBV_QPS_SQE.0;
    IBV_QPS_ERR = ibv_qp_state::IBV_QPS_ERR.0;
    IBV_QPS_UNKNOWN = ibv_qp_state::IBV_QPS_UNKNOWN.0;
    IBV_MIG_MIGRATED = ibv_mig_state::IBV_MIG_MIGRATED.0;
    IBV_MIG_REARM = ibv_mig_state::IBV_MIG_REARM.0;
    IBV_MIG_ARMED = ibv_mig_state::IBV_MIG_ARMED.0;
    IBV_WR_RDMA_WRITE = ibv_wr_opcode::IBV_WR_RDMA_WRITE.0;
    IBV_WR_RDMA_WRITE_WITH_IMM = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0;
    IBV_WR_SEND = ibv_wr_opcode::IBV_WR_SEND.0;
    IBV_WR_SEND_WITH_IMM = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM.0;
    IBV_WR_RDMA_READ = ibv_wr_opcode::IBV_WR_RDMA_READ.0;
    IBV_WR_ATOMIC_CMP_AND_SWP = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP.0;
    IBV_WR_ATOMIC_FETCH_AND_ADD = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD.0;
    IBV_WR_LOCAL_INV = ibv_wr_opcode::IBV_WR_LOCAL_INV.0;
    IBV_WR_BIND_MW = ibv_wr_opcode::IBV_WR_BIND_MW.0;
    IBV_WR_SEND_WITH_INV = ibv_wr_opcode::IBV_WR_SEND_WITH_INV.0;
    IBV_WR_TSO = ibv_wr_opcode::IBV_WR_TSO.0;
    IBV_WR_DRIVER1 = ibv_wr_opcode::IBV_WR_DRIVER1.0;
    IBV_WR_FLUSH = ibv_wr_opcode::IBV_WR_FLUSH.0;
    IBV_WR_ATOMIC_WRITE = ibv_wr_opcode::IBV_WR_ATOMIC_WRITE.0;
    IBV_SEND_FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
    IBV_SEND_SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
    IBV_SEND_SOLICITED = ibv_send_flags::IBV_SEND_SOLICITED.0;
    IBV_SEND_INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
    IBV_SEND_IP_CSUM = ibv_send_flags::IBV_SEND_IP_CSUM.0;
    IBV_FLUSH_GLOBAL = ibv_placement_type::IBV_FLUSH_GLOBAL.0;
    IBV_FLUSH_PERSISTENT = ibv_placement_type::IBV_FLUSH_PERSISTENT.0;
    IBV_FLUSH_RANGE = ibv_selectivity_level::IBV_FLUSH_RANGE.0;
    IBV_FLUSH_MR = ibv_selectivity_level::IBV_FLUSH_MR.0;
    IBV_WR_TAG_ADD = ibv_ops_wr_opcode::IBV_WR_TAG_ADD.0;
    IBV_WR_TAG_DEL = ibv_ops_wr_opcode::IBV_WR_TAG_DEL.0;
    IBV_WR_TAG_SYNC = ibv_ops_wr_opcode::IBV_WR_TAG_SYNC.0;
    IBV_OPS_SIGNALED = ibv_ops_flags::IBV_OPS_SIGNALED.0;
    IBV_OPS_TM_SYNC = ibv_ops_flags::IBV_OPS_TM_SYNC.0;
    IBV_CQ_ATTR_MODERATE = ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
    IBV_CQ_ATTR_RESERVED = ibv_cq_attr_mask::IBV_CQ_ATTR_RESERVED.0;
    IBV_FLOW_ATTR_FLAGS_DONT_TRAP = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_DONT_TRAP.0;
    IBV_FLOW_ATTR_FLAGS_EGRESS = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_EGRESS.0;
    IBV_FLOW_ATTR_NORMAL = ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL.0;
    IBV_FLOW_ATTR_ALL_DEFAULT = ibv_flow_attr_type::IBV_FLOW_ATTR_ALL_DEFAULT.0;
    IBV_FLOW_ATTR_MC_DEFAULT = ibv_flow_attr_type::IBV_FLOW_ATTR_MC_DEFAULT.0;
    IBV_FLOW_ATTR_SNIFFER = ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER.0;
    IBV_FLOW_SPEC_ETH = ibv_flow_spec_type::IBV_FLOW_SPEC_ETH.0;
    IBV_FLOW_SPEC_IPV4 = ibv_flow_spec_type::IBV_FLOW_SPEC_IPV4.0;
    IBV_FLOW_SPEC_IPV6 = ibv_flow_spec_type::IBV_FLOW_SPEC_IPV6.0;
    IBV_FLOW_SPEC_IPV4_EXT = ibv_flow_spec_type::IBV_FLOW_SPEC_IPV4_EXT.0;
    IBV_FLOW_SPEC_ESP = ibv_flow_spec_type::IBV_FLOW_SPEC_ESP.0;
    IBV_FLOW_SPEC_TCP = ibv_flow_spec_type::IBV_FLOW_SPEC_TCP.0;
    IBV_FLOW_SPEC_UDP = ibv_flow_spec_type::IBV_FLOW_SPEC_UDP.0;
    IBV_FLOW_SPEC_VXLAN_TUNNEL = ibv_flow_spec_type::IBV_FLOW_SPEC_VXLAN_TUNNEL.0;
    IBV_FLOW_SPEC_GRE = ibv_flow_spec_type::IBV_FLOW_SPEC_GRE.0;
    IBV_FLOW_SPEC_MPLS = ibv_flow_spec_type::IBV_FLOW_SPEC_MPLS.0;
    IBV_FLOW_SPEC_INNER = ibv_flow_spec_type::IBV_FLOW_SPEC_INNER.0;
    IBV_FLOW_SPEC_ACTION_TAG = ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_TAG.0;
    IBV_FLOW_SPEC_ACTION_DROP = ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_DROP.0;
    IBV_FLOW_SPEC_ACTION_HANDLE = ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_HANDLE.0;
    IBV_FLOW_SPEC_ACTION_COUNT = ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_COUNT.0;
    IBV_FLOW_ACTION_ESP_MASK_ESN = ibv_flow_action_esp_mask::IBV_FLOW_ACTION_ESP_MASK_ESN.0;
    IBV_SYSFS_NAME_MAX = IBV_SYSFS_NAME_MAX;
    IBV_SYSFS_PATH_MAX = IBV_SYSFS_PATH_MAX;
    IBV_CQ_INIT_ATTR_MASK_FLAGS = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    IBV_CQ_INIT_ATTR_MASK_PD = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0;
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_SEND.0;
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_RECV.0;
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ.0;
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ.0;
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE.0;
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = ibv_qp_attach_comp_cntr_op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE.0;
    IBV_COMP_CNTR_TYPE_WRS = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS.0;
    IBV_COMP_CNTR_TYPE_BYTES = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_BYTES.0;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC.0;
    IBV_TPH_MEM_TYPE_VM = ibv_tph_mem_type::IBV_TPH_MEM_TYPE_VM.0;
    IBV_TPH_MEM_TYPE_PM = ibv_tph_mem_type::IBV_TPH_MEM_TYPE_PM.0;
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = ibv_dmah_init_attr_mask::IBV_DMAH_INIT_ATTR_MASK_CPU_ID.0;
    IBV_DMAH_INIT_ATTR_MASK_PH = ibv_dmah_init_attr_mask::IBV_DMAH_INIT_ATTR_MASK_PH.0;
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = ibv_dmah_init_attr_mask::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE.0;
    IBV_COUNTER_PACKETS = ibv_counter_description::IBV_COUNTER_PACKETS.0;
    IBV_COUNTER_BYTES = ibv_counter_description::IBV_COUNTER_BYTES.0;
    IBV_READ_COUNTERS_ATTR_PREFER_CACHED = ibv_read_counters_flags::IBV_READ_COUNTERS_ATTR_PREFER_CACHED.0;
    IBV_VALUES_MASK_RAW_CLOCK = ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    IBV_VALUES_MASK_RESERVED = ibv_values_mask::IBV_VALUES_MASK_RESERVED.0;
    IBV_REREG_MR_ERR_INPUT = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
    IBV_REREG_MR_ERR_DONT_FORK_NEW = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_DONT_FORK_NEW.0;
    IBV_REREG_MR_ERR_DO_FORK_OLD = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_DO_FORK_OLD.0;
    IBV_REREG_MR_ERR_CMD = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD.0;
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW.0;
    RDMA_CM_EVENT_ADDR_RESOLVED = rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED.0;
    RDMA_CM_EVENT_ADDR_ERROR = rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR.0;
    RDMA_CM_EVENT_ROUTE_RESOLVED = rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED.0;
    RDMA_CM_EVENT_ROUTE_ERROR = rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR.0;
    RDMA_CM_EVENT_CONNECT_REQUEST = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST.0;
    RDMA_CM_EVENT_CONNECT_RESPONSE = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE.0;
    RDMA_CM_EVENT_CONNECT_ERROR = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR.0;
    RDMA_CM_EVENT_UNREACHABLE = rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE.0;
    RDMA_CM_EVENT_REJECTED = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED.0;
    RDMA_CM_EVENT_ESTABLISHED = rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED.0;
    RDMA_CM_EVENT_DISCONNECTED = rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED.0;
    RDMA_CM_EVENT_DEVICE_REMOVAL = rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL.0;
    RDMA_CM_EVENT_MULTICAST_JOIN = rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_JOIN.0;
    RDMA_CM_EVENT_MULTICAST_ERROR = rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR.0;
    RDMA_CM_EVENT_ADDR_CHANGE = rdma_cm_event_type::RDMA_CM_EVENT_ADDR_CHANGE.0;
    RDMA_CM_EVENT_TIMEWAIT_EXIT = rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT.0;
    RDMA_CM_EVENT_ADDRINFO_RESOLVED = rdma_cm_event_type::RDMA_CM_EVENT_ADDRINFO_RESOLVED.0;
    RDMA_CM_EVENT_ADDRINFO_ERROR = rdma_cm_event_type::RDMA_CM_EVENT_ADDRINFO_ERROR.0;
    RDMA_CM_EVENT_USER = rdma_cm_event_type::RDMA_CM_EVENT_USER.0;
    RDMA_CM_EVENT_INTERNAL = rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL.0;
    RDMA_PS_IPOIB = rdma_port_space::RDMA_PS_IPOIB.0;
    RDMA_PS_TCP = rdma_port_space::RDMA_PS_TCP.0;
    RDMA_PS_UDP = rdma_port_space::RDMA_PS_UDP.0;
    RDMA_PS_IB = rdma_port_space::RDMA_PS_IB.0;
    RDMA_MAX_RESP_RES = RDMA_MAX_RESP_RES;
    RDMA_MAX_INIT_DEPTH = RDMA_MAX_INIT_DEPTH;
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0;
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
    RDMA_CM_JOIN_MC_ATTR_RESERVED = rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_RESERVED.0;
    RDMA_MC_JOIN_FLAG_FULLMEMBER = rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_FULLMEMBER.0;
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER = rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;
    RDMA_MC_JOIN_FLAG_RESERVED = rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_RESERVED.0;
    RDMA_OPTION_ID = RDMA_OPTION_ID;
    RDMA_OPTION_IB = RDMA_OPTION_IB;
    RDMA_OPTION_ID_TOS = RDMA_OPTION_ID_TOS;
    RDMA_OPTION_ID_REUSEADDR = RDMA_OPTION_ID_REUSEADDR;
    RDMA_OPTION_ID_AFONLY = RDMA_OPTION_ID_AFONLY;
    RDMA_OPTION_ID_ACK_TIMEOUT = RDMA_OPTION_ID_ACK_TIMEOUT;
    RDMA_OPTION_IB_PATH = RDMA_OPTION_IB_PATH;
}
