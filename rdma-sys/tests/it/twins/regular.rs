//! The inline functions that pass one call on to one operation: most of them.

use libc::{c_int, c_uint, c_void};
use rdma_sys::*;

use super::{
    library::Twins,
    world::{Seen, Value, World, arrived, call, observe},
};

/// Compares one function with its twin; says whether the header has it.
pub(crate) type Case = (&'static str, fn(&Twins) -> bool);

/// The parts that all cases have: a fake operation that records its call, and the C function.
macro_rules! parts {
    ($twins:ident $name:ident $slot:ident ($($arg:ident: $ty:ty),*) $ret:ty) => {{
        unsafe extern "C" fn fake($($arg: $ty),*) -> $ret {
            arrived(stringify!($slot), &[$($arg.word()),*]);
            <$ret as Value>::answer()
        }
        type Function = unsafe extern "C" fn($($ty),*) -> $ret;
        // SAFETY: twin requires the function's type, which is the header's (3).
        let twin = unsafe { $twins.twin::<Function>(stringify!($name)) };
        let Some(twin) = twin else { return false };
        (fake as Function, twin)
    }};
}

/// The return type, which C calls void.
macro_rules! ret {
    () => {
        ()
    };
    ($ret:ty) => {
        $ret
    };
}

/// Functions that call a pointer in their object, unchecked.
macro_rules! in_object {
    ($(fn $name:ident($object:ident: $object_ty:ty $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)? = $slot:ident;)*) => {
        const IN_OBJECT: &[Case] = &[$((stringify!($name), |twins| {
            let (fake, twin) =
                parts!(twins $name $slot ($object: $object_ty $(, $arg: $ty)*) ret!($($ret)?));
            let world = World::new();
            let $object = <$object_ty>::make(&world, 0);
            let mut _index = 0;
            $(_index += 1; let $arg = <$ty>::make(&world, _index);)*
            // SAFETY: the write requires a live object that no other thread uses (1).
            unsafe { (*$object).$slot = Some(fake) };
            let rust = observe(call!(rdma_sys::$name($object $(, $arg)*)));
            let c = observe(call!(twin($object $(, $arg)*)));
            same(stringify!($name), "", &rust, &c, true);
            true
        }),)*];
    };
}

/// Functions that call an operation of the plain context, unchecked.
macro_rules! in_context {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $slot:ident;)*) => {
        const IN_CONTEXT: &[Case] = &[$((stringify!($name), |twins| {
            let (fake, twin) = parts!(twins $name $slot ($($arg: $ty),*) $ret);
            let world = World::new();
            let mut _index = 0;
            $(_index += 1; let $arg = <$ty>::make(&world, _index);)*
            world.edit(|extended| extended.context.ops.$slot = Some(fake));
            for is_extended in [true, false] {
                world.set(size_of::<verbs_context>(), is_extended);
                let rust = observe(call!(rdma_sys::$name($($arg),*)));
                let c = observe(call!(twin($($arg),*)));
                same(stringify!($name), "", &rust, &c, true);
            }
            true
        }),)*];
    };
}

/// Functions that call an operation of the extended context if it is there.
macro_rules! in_extended_context {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $slot:ident;)*) => {
        const IN_EXTENDED_CONTEXT: &[Case] = &[$((stringify!($name), |twins| {
            let (fake, twin) = parts!(twins $name $slot ($($arg: $ty),*) $ret);
            let world = World::new();
            let mut _index = 0;
            $(_index += 1; let $arg = <$ty>::make(&world, _index);)*
            let whole = size_of::<verbs_context>();
            let needed = whole - std::mem::offset_of!(verbs_context, $slot);
            for (how, slot, size, is_extended, arrives) in [
                ("present", Some(fake), whole, true, true),
                ("just within sz", Some(fake), needed, true, true),
                ("NULL", None, whole, true, false),
                ("outside sz by one", Some(fake), needed - 1, true, false),
                ("outside sz by its size", Some(fake), needed - size_of::<usize>(), true, false),
                ("sz is zero", Some(fake), 0, true, false),
                ("not extended", Some(fake), whole, false, false),
            ] {
                world.edit(|extended| extended.$slot = slot);
                world.set(size, is_extended);
                let rust = observe(call!(rdma_sys::$name($($arg),*)));
                if !arrives && stringify!($name) == "ibv_close_xrcd" {
                    // The header calls the operation unchecked, so its function would crash.
                    assert_eq!(rust.answer, libc::EOPNOTSUPP as u64, "{how}");
                    continue;
                }
                let c = observe(call!(twin($($arg),*)));
                same(stringify!($name), how, &rust, &c, arrives);
            }
            true
        }),)*];
    };
}

/// Both functions did the same: a call arrived, or the answer is `EOPNOTSUPP` in one of its forms.
fn same(name: &str, how: &str, rust: &Seen, c: &Seen, arrives: bool) {
    assert_eq!(rust, c, "{name} ({how})");
    assert_eq!(rust.calls.len(), usize::from(arrives), "{name} ({how})");
    if !arrives {
        let unsupported = libc::EOPNOTSUPP;
        let is_pointer = rust.answer == 0;
        let expected = if is_pointer { (0, unsupported) } else { (unsupported as u64, 0) };
        assert_eq!((rust.answer, rust.errno), expected, "{name} ({how})");
    }
}

/// All of them.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    [IN_OBJECT, IN_CONTEXT, IN_EXTENDED_CONTEXT].into_iter().flatten()
}

in_object! {
    fn ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) = wr_atomic_cmp_swp;
    fn ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) = wr_atomic_fetch_add;
    fn ibv_wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) = wr_atomic_write;
    fn ibv_wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info) = wr_bind_mw;
    fn ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = wr_local_inv;
    fn ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = wr_rdma_read;
    fn ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) = wr_rdma_write;
    fn ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: __be32) = wr_rdma_write_imm;
    fn ibv_wr_send(qp: *mut ibv_qp_ex) = wr_send;
    fn ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: __be32) = wr_send_imm;
    fn ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) = wr_send_inv;
    fn ibv_wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) = wr_send_tso;
    fn ibv_wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) = wr_set_ud_addr;
    fn ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) = wr_set_xrc_srqn;
    fn ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) = wr_set_inline_data;
    fn ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: usize, buf_list: *const ibv_data_buf) = wr_set_inline_data_list;
    fn ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) = wr_set_sge;
    fn ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) = wr_set_sge_list;
    fn ibv_wr_start(qp: *mut ibv_qp_ex) = wr_start;
    fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int = wr_complete;
    fn ibv_wr_abort(qp: *mut ibv_qp_ex) = wr_abort;
    fn ibv_wr_flush(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8) = wr_flush;
    fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int = start_poll;
    fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int = next_poll;
    fn ibv_end_poll(cq: *mut ibv_cq_ex) = end_poll;
    fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode = read_opcode;
    fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 = read_vendor_err;
    fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 = read_byte_len;
    fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 = read_imm_data;
    fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 = read_imm_data;
    fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 = read_qp_num;
    fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 = read_src_qp;
    fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint = read_wc_flags;
    fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 = read_slid;
    fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 = read_sl;
    fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 = read_dlid_path_bits;
    fn ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64 = read_completion_ts;
    fn ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 = read_completion_wallclock_ns;
    fn ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16 = read_cvlan;
    fn ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32 = read_flow_tag;
    fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info) = read_tm_info;
    fn ibv_post_wq_recv(wq: *mut ibv_wq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> c_int = post_recv;
}

in_context! {
    fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int = poll_cq;
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int = req_notify_cq;
    fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int = post_send;
    fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int = post_recv;
    fn ibv_post_srq_recv(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> c_int = post_srq_recv;
}

in_extended_context! {
    fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex = create_cq_ex;
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = modify_cq;
    fn ibv_open_qp(context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = open_qp;
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int = modify_qp_rate_limit;
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = get_srq_num;
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd = open_xrcd;
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = close_xrcd;
    fn ibv_advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int = advise_mr;
    fn ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = alloc_dm;
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = free_dm;
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = alloc_null_mr;
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint) -> *mut ibv_mr = reg_dm_mr;
    fn ibv_alloc_td(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td = alloc_td;
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = dealloc_td;
    fn ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd = alloc_parent_domain;
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int = query_rt_values;
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow = ibv_create_flow;
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int = ibv_destroy_flow;
    fn ibv_create_flow_action_esp(ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action = create_flow_action_esp;
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int = modify_flow_action_esp;
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int = destroy_flow_action;
    fn ibv_create_counters(context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr) -> *mut ibv_counters = create_counters;
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = destroy_counters;
    fn ibv_attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int = attach_counters_point_flow;
    fn ibv_read_counters(counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32) -> c_int = read_counters;
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int = modify_wq;
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = destroy_wq;
    fn ibv_create_rwq_ind_table(context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table = create_rwq_ind_table;
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int = destroy_rwq_ind_table;
}
