//! The inline functions of `verbs.h` that do more than pass one call on.

use libc::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM, c_int, c_uint, c_void};
use rdma_sys::*;

use super::{
    library::Twins,
    regular::Case,
    world::{Live, Seen, Value, World, arrived, call, leak, observe},
};

pub(crate) const CASES: &[Case] = &[
    ("ibv_cq_ex_to_cq", cq_ex_to_cq),
    ("verbs_get_ctx", get_ctx),
    ("ibv_inc_rkey", inc_rkey),
    ("ibv_is_qpt_supported", is_qpt_supported),
    ("ibv_flow_label_to_udp_sport", flow_label_to_udp_sport),
    ("ibv_alloc_mw", alloc_mw),
    ("ibv_dealloc_mw", dealloc_mw),
    ("ibv_bind_mw", bind_mw),
    ("ibv_memcpy_to_dm", memcpy_to_dm),
    ("ibv_memcpy_from_dm", memcpy_from_dm),
    ("ibv_post_srq_ops", post_srq_ops),
    ("ibv_create_wq", create_wq),
    ("__ibv_get_device_list", get_device_list),
    ("___ibv_query_port", query_port),
    ("ibv_query_gid_ex", query_gid_ex),
    ("ibv_query_gid_table", query_gid_table),
    ("ibv_query_comp_cntr_caps", query_comp_cntr_caps),
    ("__ibv_reg_mr", reg_mr),
    ("__ibv_reg_mr_iova", reg_mr_iova),
    ("ibv_create_srq_ex", create_srq_ex),
    ("ibv_create_qp_ex", create_qp_ex),
    ("ibv_query_device_ex", query_device_ex),
];

/// The C function, with its type.
macro_rules! twin {
    ($twins:ident, $name:literal, fn($($ty:ty),*) -> $ret:ty) => {
        // SAFETY: twin requires the function's type, which is the header's (3).
        match unsafe { $twins.twin::<unsafe extern "C" fn($($ty),*) -> $ret>($name) } {
            Some(twin) => twin,
            None => return false,
        }
    };
}
pub(crate) use twin;

/// A function that records its call and answers as `Value` does.
macro_rules! fake {
    ($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {{
        unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            arrived(stringify!($name), &[$($arg.word()),*]);
            <$ret as Value>::answer()
        }
        $name as unsafe extern "C" fn($($ty),*) -> $ret
    }};
}
pub(crate) use fake;

/// Puts a fake of an exported symbol behind both sides.
macro_rules! export {
    ($twins:ident, $table:ident, $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty) => {{
        let fake = fake!($name($($arg: $ty),*) -> $ret);
        // SAFETY: hook requires the symbol's type, which the table's entry has.
        unsafe { $twins.hook(stringify!($name), fake) };
        $table.$name = fake;
    }};
}
pub(crate) use export;

fn cq_ex_to_cq(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_cq_ex_to_cq", fn(*mut ibv_cq_ex) -> *mut ibv_cq);
    let cq = leak::<ibv_cq_ex>();
    assert_eq!(ibv_cq_ex_to_cq(cq), call!(twin(cq))());
    true
}

fn get_ctx(twins: &Twins) -> bool {
    let twin = twin!(twins, "verbs_get_ctx", fn(*mut ibv_context) -> *mut verbs_context);
    let world = World::new();
    for (is_extended, expected) in [(true, world.extended()), (false, std::ptr::null_mut())] {
        world.set(size_of::<verbs_context>(), is_extended);
        assert_eq!(call!(verbs_get_ctx(world.context))(), expected);
        // An older header's struct begins later; it ends with the same context.
        let c = call!(twin(world.context))();
        assert_eq!(c.is_null(), expected.is_null());
        assert!(!twins.newest || c == expected);
    }
    true
}

fn inc_rkey(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_inc_rkey", fn(u32) -> u32);
    for rkey in [0, 1, 0xfe, 0xff, 0x100, 0x1234_56ff, u32::MAX, 0x8000_0000] {
        assert_eq!(ibv_inc_rkey(rkey), call!(twin(rkey))(), "{rkey:#x}");
    }
    true
}

fn is_qpt_supported(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_is_qpt_supported", fn(u32, ibv_qp_type) -> c_int);
    for bit in 0..32 {
        for caps in [0, 1 << bit, !(1 << bit), u32::MAX] {
            let c = call!(twin(caps, ibv_qp_type(bit)))();
            assert_eq!(ibv_is_qpt_supported(caps, ibv_qp_type(bit)), c, "{caps:#x} {bit}");
        }
    }
    true
}

fn flow_label_to_udp_sport(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_flow_label_to_udp_sport", fn(u32) -> u16);
    for label in (0..1 << 21).step_by(37).chain([0xfffff, u32::MAX]) {
        assert_eq!(ibv_flow_label_to_udp_sport(label), call!(twin(label))(), "{label:#x}");
    }
    true
}

fn alloc_mw(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_alloc_mw", fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw);
    let world = World::new();
    let pd = <*mut ibv_pd>::make(&world, 0);
    for op in [None, Some(fake!(alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw))] {
        world.edit(|extended| extended.context.ops.alloc_mw = op);
        let rust = observe(call!(ibv_alloc_mw(pd, ibv_mw_type::IBV_MW_TYPE_2)));
        assert_eq!(rust, observe(call!(twin(pd, ibv_mw_type::IBV_MW_TYPE_2))));
        assert_eq!((rust.answer == 0, rust.errno == EOPNOTSUPP), (op.is_none(), op.is_none()));
    }
    true
}

fn dealloc_mw(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_dealloc_mw", fn(*mut ibv_mw) -> c_int);
    let world = World::new();
    let mw = <*mut ibv_mw>::make(&world, 0);
    // The header would call NULL.
    assert_eq!(call!(ibv_dealloc_mw(mw))(), EOPNOTSUPP);
    world.edit(|extended| extended.context.ops.dealloc_mw = Some(fake!(dealloc_mw(mw: *mut ibv_mw) -> c_int)));
    let rust = observe(call!(ibv_dealloc_mw(mw)));
    assert_eq!(rust, observe(call!(twin(mw))));
    true
}

fn bind_mw(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_bind_mw", fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int);
    let world = World::new();
    let op = fake!(bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int);
    world.edit(|extended| extended.context.ops.bind_mw = Some(op));
    let qp = <*mut ibv_qp>::make(&world, 0);
    let (here, elsewhere) = (<*mut ibv_pd>::make(&world, 0), <*mut ibv_pd>::make(&world, 0));
    let mut answers = Vec::new();
    for kind in [ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2] {
        for (region, pd) in [(false, here), (true, here), (true, elsewhere)] {
            for (addr, length) in [(0, 0), (0x1000, 0), (0, 8)] {
                let mr = Live::new(ibv_mr { pd, ..ibv_mr::default() }).ptr();
                let mw = ibv_mw { context: world.context, pd: here, type_: kind, ..ibv_mw::default() };
                let mw = Live::new(mw).ptr();
                let mr = if region { mr } else { std::ptr::null_mut() };
                let bind_info = ibv_mw_bind_info { mr, addr, length, mw_access_flags: 0 };
                let bind = Live::new(ibv_mw_bind { bind_info, ..ibv_mw_bind::default() }).ptr();
                let rust = observe(call!(ibv_bind_mw(qp, mw, bind)));
                assert_eq!(rust, observe(call!(twin(qp, mw, bind))));
                answers.push(rust.answer as c_int);
            }
        }
    }
    assert_eq!(answers[..9], [7, EINVAL, EINVAL, 7, 7, 7, EPERM, EPERM, EPERM]);
    assert_eq!(answers[9..], [EINVAL; 9]);
    true
}

fn memcpy_to_dm(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_memcpy_to_dm", fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int);
    let data = leak::<u64>().cast_const().cast();
    // The header would call NULL.
    let dm = leak::<ibv_dm>();
    assert_eq!(call!(ibv_memcpy_to_dm(dm, 1, data, 2))(), EOPNOTSUPP);
    let op = fake!(memcpy_to_dm(dm: *mut ibv_dm, offset: u64, data: *const c_void, length: usize) -> c_int);
    let dm = Live::new(ibv_dm { memcpy_to_dm: Some(op), ..ibv_dm::default() }).ptr();
    let rust = observe(call!(ibv_memcpy_to_dm(dm, 1, data, 2)));
    assert_eq!(rust, observe(call!(twin(dm, 1, data, 2))));
    true
}

fn memcpy_from_dm(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_memcpy_from_dm", fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int);
    let data = leak::<u64>().cast();
    // The header would call NULL.
    let dm = leak::<ibv_dm>();
    assert_eq!(call!(ibv_memcpy_from_dm(data, dm, 1, 2))(), EOPNOTSUPP);
    let op = fake!(memcpy_from_dm(data: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int);
    let dm = Live::new(ibv_dm { memcpy_from_dm: Some(op), ..ibv_dm::default() }).ptr();
    let rust = observe(call!(ibv_memcpy_from_dm(data, dm, 1, 2)));
    assert_eq!(rust, observe(call!(twin(data, dm, 1, 2))));
    true
}

fn post_srq_ops(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_post_srq_ops", fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int);
    let world = World::new();
    let (srq, wr) = (<*mut ibv_srq>::make(&world, 0), leak::<ibv_ops_wr>());
    let op = fake!(post_srq_ops(srq: *mut ibv_srq, wr: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr) -> c_int);
    let bad = Live::new(std::ptr::null_mut());
    for op in [None, Some(op)] {
        world.edit(|extended| extended.post_srq_ops = op);
        let rust = observe(call!(ibv_post_srq_ops(srq, wr, bad.ptr())));
        let rust_bad = bad.get();
        bad.set(std::ptr::null_mut());
        assert_eq!(rust, observe(call!(twin(srq, wr, bad.ptr()))));
        assert_eq!(rust_bad, bad.get());
        bad.set(std::ptr::null_mut());
        assert_eq!(rust_bad, if op.is_none() { wr } else { std::ptr::null_mut() });
    }
    true
}

fn create_wq(twins: &Twins) -> bool {
    unsafe extern "C" fn create(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
        arrived("create_wq", &[context.word(), attr.word()]);
        let wq = leak::<ibv_wq>();
        // SAFETY: write_bytes requires a valid place, which was just made. The function must
        // overwrite the bytes.
        unsafe { wq.write_bytes(0xee, 1) };
        wq
    }
    unsafe extern "C" fn fail(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
        arrived("create_wq", &[context.word(), attr.word()]);
        std::ptr::null_mut()
    }
    let twin = twin!(twins, "ibv_create_wq", fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq);
    let world = World::new();
    let wq_context = std::ptr::without_provenance_mut(0x77);
    let attr = Live::new(ibv_wq_init_attr { wq_context, ..ibv_wq_init_attr::default() }).ptr();
    for op in [None, Some(fail as unsafe extern "C" fn(_, _) -> _)] {
        world.edit(|extended| extended.create_wq = op);
        let rust = observe(call!(ibv_create_wq(world.context, attr)));
        assert_eq!(rust, observe(call!(twin(world.context, attr))));
        assert_eq!(rust.answer, 0);
    }
    world.edit(|extended| extended.create_wq = Some(create));
    let bytes = |wq: *mut ibv_wq| {
        // SAFETY: from_raw_parts requires the initialised bytes of a live object: `create` leaked
        // it, and wrote every byte.
        unsafe { std::slice::from_raw_parts(wq.cast::<u8>(), size_of::<ibv_wq>()) }
    };
    let rust = call!(ibv_create_wq(world.context, attr))();
    let c = call!(twin(world.context, attr))();
    assert_eq!(bytes(rust), bytes(c));
    true
}

fn get_device_list(twins: &Twins) -> bool {
    let twin = twin!(twins, "__ibv_get_device_list", fn(*mut c_int) -> *mut *mut ibv_device);
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device);
    let number = leak::<c_int>();
    assert_eq!(observe(call!((table.ibv_get_device_list)(number))), observe(call!(twin(number))));
    true
}

fn query_port(twins: &Twins) -> bool {
    unsafe extern "C" fn legacy(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int {
        arrived("ibv_query_port", &[context.word(), port.word(), attr.addr() as u64]);
        // SAFETY: write_bytes requires space for 48 bytes, to which the symbol's callers point: the
        // attributes had so many when the symbol was made.
        unsafe { attr.cast::<u8>().write_bytes(0x5a, 48) };
        3
    }
    unsafe extern "C" fn op(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, length: usize) -> c_int {
        arrived("query_port", &[context.word(), port.word(), attr.word(), length.word()]);
        4
    }
    let twin = twin!(twins, "___ibv_query_port", fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int);
    let table = Ibverbs { ibv_query_port: legacy, ..Ibverbs::UNSUPPORTED };
    // SAFETY: hook requires the symbol's type, which the table's entry has.
    unsafe { twins.hook("ibv_query_port", table.ibv_query_port) };
    let world = World::new();
    let attr = leak::<ibv_port_attr>();
    let dirty = || {
        // SAFETY: write_bytes requires a live object that no other thread uses (1).
        unsafe { attr.write_bytes(0xff, 1) };
    };
    // Both know so many bytes of the struct.
    let known = twins.size_of_port_attr();
    let bytes = || {
        // SAFETY: from_raw_parts requires the initialised bytes of a live object (1): `dirty` wrote
        // every byte.
        unsafe { std::slice::from_raw_parts(attr.cast::<u8>(), known as usize) }.to_vec()
    };
    for (op, expected) in [(None, 3), (Some(op as unsafe extern "C" fn(_, _, _, _) -> _), 4)] {
        world.edit(|extended| extended.query_port = op);
        dirty();
        let mut rust = observe(call!(table.ibv_query_port(world.context, 2, attr)));
        let rust_bytes = bytes();
        dirty();
        let c = observe(call!(twin(world.context, 2, attr)));
        assert_eq!(rust_bytes, bytes());
        if op.is_some() {
            let length = rust.calls[0].1.last_mut().unwrap();
            assert_eq!(*length, size_of::<ibv_port_attr>() as u64);
            *length = known;
        }
        assert_eq!(rust, c);
        assert_eq!(rust.answer, expected);
    }
    true
}

fn query_gid_ex(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_query_gid_ex", fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32) -> c_int);
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, _ibv_query_gid_ex(
        context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize
    ) -> c_int);
    let (world, entry) = (World::new(), leak());
    let rust = observe(call!(table.ibv_query_gid_ex(world.context, 1, 2, entry, 3)));
    assert_eq!(rust, observe(call!(twin(world.context, 1, 2, entry, 3))));
    true
}

fn query_gid_table(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_query_gid_table", fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32) -> isize);
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, number: usize, flags: u32, size: usize
    ) -> isize);
    let (world, entry) = (World::new(), leak());
    let rust = observe(call!(table.ibv_query_gid_table(world.context, entry, 1, 3)));
    assert_eq!(rust, observe(call!(twin(world.context, entry, 1, 3))));
    let missing = call!(Ibverbs::UNSUPPORTED.ibv_query_gid_table(world.context, entry, 1, 3))();
    assert_eq!(missing, -(EOPNOTSUPP as isize));
    true
}

fn query_comp_cntr_caps(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_query_comp_cntr_caps", fn(*mut ibv_context, *mut ibv_comp_cntr_caps) -> c_int);
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, _ibv_query_comp_cntr_caps(
        context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize
    ) -> c_int);
    let (world, caps) = (World::new(), leak());
    let rust = observe(call!(table.ibv_query_comp_cntr_caps(world.context, caps)));
    assert_eq!(rust, observe(call!(twin(world.context, caps))));
    true
}

/// Access flags: none, some, optional ones, both, one behind the optional ones.
const ACCESS: [c_uint; 6] = [0, 0xf, 1 << 20, 1 << 29, (1 << 24) | 1, 1 << 30];

/// The table that both registrations need.
fn registering(twins: &Twins) -> Ibverbs {
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, ibv_reg_mr(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int
    ) -> *mut ibv_mr);
    export!(twins, table, ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int
    ) -> *mut ibv_mr);
    export!(twins, table, ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint
    ) -> *mut ibv_mr);
    table
}

/// The old symbol was called if no flag is optional, else the new one.
fn routed(seen: &Seen, access: c_uint, old: &str) {
    let optional = access & IBV_ACCESS_OPTIONAL_RANGE != 0;
    assert_eq!(seen.calls[0].0, if optional { "ibv_reg_mr_iova2" } else { old }, "{access:#x}");
}

fn reg_mr(twins: &Twins) -> bool {
    let twin = twin!(twins, "__ibv_reg_mr", fn(*mut ibv_pd, *mut c_void, usize, c_uint, c_int) -> *mut ibv_mr);
    let table = registering(twins);
    let world = World::new();
    let (pd, memory) = (<*mut ibv_pd>::make(&world, 0), leak::<u64>().cast());
    for access in ACCESS {
        let rust = observe(call!(table.ibv_reg_mr(pd, memory, 8, access)));
        // With the 1 the macro says that the flags are a constant.
        assert_eq!(rust, observe(call!(twin(pd, memory, 8, access, 1))), "{access:#x}");
        routed(&rust, access, "ibv_reg_mr");
    }
    true
}

fn reg_mr_iova(twins: &Twins) -> bool {
    let twin =
        twin!(twins, "__ibv_reg_mr_iova", fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint, c_int) -> *mut ibv_mr);
    let table = registering(twins);
    let world = World::new();
    let (pd, memory) = (<*mut ibv_pd>::make(&world, 0), leak::<u64>().cast());
    for access in ACCESS {
        let rust = observe(call!(table.ibv_reg_mr_iova(pd, memory, 8, 9, access)));
        assert_eq!(rust, observe(call!(twin(pd, memory, 8, 9, access, 1))), "{access:#x}");
        routed(&rust, access, "ibv_reg_mr_iova");
    }
    true
}

fn create_srq_ex(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_create_srq_ex", fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq);
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq);
    let world = World::new();
    let pd = <*mut ibv_pd>::make(&world, 0);
    let attr = Live::new(ibv_srq_init_attr_ex { pd, ..ibv_srq_init_attr_ex::default() });
    let op = fake!(create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq);
    let mut plain = 0;
    for op in [None, Some(op)] {
        world.edit(|extended| extended.create_srq_ex = op);
        for mask in 0..64 {
            for kind in [ibv_srq_type::IBV_SRQT_BASIC, ibv_srq_type::IBV_SRQT_XRC, ibv_srq_type::IBV_SRQT_TM] {
                attr.edit(|attr| (attr.comp_mask, attr.srq_type) = (mask, kind));
                let rust = observe(call!(table.ibv_create_srq_ex(world.context, attr.ptr())));
                let c = observe(call!(twin(world.context, attr.ptr())));
                assert_eq!(rust, c, "{mask:#x} {kind:?}");
                plain += usize::from(rust.calls.first().is_some_and(|call| call.0 == "ibv_create_srq"));
            }
        }
    }
    // With the domain's bit alone for all three types, with the type's bit for the basic one.
    assert_eq!(plain, 2 * 4);
    true
}

fn create_qp_ex(twins: &Twins) -> bool {
    let twin = twin!(twins, "ibv_create_qp_ex", fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp);
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp);
    let world = World::new();
    let pd = <*mut ibv_pd>::make(&world, 0);
    let attr = Live::new(ibv_qp_init_attr_ex { pd, ..ibv_qp_init_attr_ex::default() });
    let op = fake!(create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp);
    for op in [None, Some(op)] {
        world.edit(|extended| extended.create_qp_ex = op);
        for mask in 0..128 {
            attr.edit(|attr| attr.comp_mask = mask);
            let rust = observe(call!(table.ibv_create_qp_ex(world.context, attr.ptr())));
            assert_eq!(rust, observe(call!(twin(world.context, attr.ptr()))), "{mask:#x}");
        }
    }
    true
}

fn query_device_ex(twins: &Twins) -> bool {
    /// Answers the value that the test left in the attributes.
    unsafe extern "C" fn op(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        size: usize,
    ) -> c_int {
        arrived("query_device_ex", &[context.word(), input.word(), attr.word(), size.word()]);
        // SAFETY: the read requires attributes: the test passes live ones, whose field it wrote
        // (1).
        unsafe { (*attr).comp_mask as c_int }
    }
    unsafe extern "C" fn legacy(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        arrived("ibv_query_device", &[context.word(), attr.word()]);
        // SAFETY: write_bytes requires space for attributes: the test passes live ones (1).
        unsafe { attr.write_bytes(0x5a, 1) };
        3
    }
    type Query =
        unsafe extern "C" fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex) -> c_int;
    // SAFETY: twin requires the function's type, which is the header's (3).
    let Some(twin) = (unsafe { twins.twin::<Query>("ibv_query_device_ex") }) else { return false };
    let table = Ibverbs { ibv_query_device: legacy, ..Ibverbs::UNSUPPORTED };
    // SAFETY: hook requires the symbol's type, which the table's entry has.
    unsafe { twins.hook("ibv_query_device", table.ibv_query_device) };
    let world = World::new();
    let attr = leak::<ibv_device_attr_ex>();
    let asking = Live::new(ibv_query_device_ex_input { comp_mask: 1 }).ptr();
    let idle = leak::<ibv_query_device_ex_input>();
    let prepare = |answer: c_int| {
        // SAFETY: write_bytes requires a live object that no other thread uses (1).
        unsafe { attr.write_bytes(0xff, 1) };
        // SAFETY: the write requires a live object that no other thread uses (1). (A copy would not
        // keep the padding.)
        unsafe { (*attr).comp_mask = answer as u32 };
    };
    let bytes = || {
        // SAFETY: from_raw_parts requires the initialised bytes of a live object (1): `prepare`
        // wrote every byte.
        unsafe { std::slice::from_raw_parts(attr.cast::<u8>(), size_of::<ibv_device_attr_ex>()) }.to_vec()
    };
    let mut answers = Vec::new();
    for op in [None, Some(op as unsafe extern "C" fn(_, _, _, _) -> _)] {
        world.edit(|extended| extended.query_device_ex = op);
        for answer in [0, EPERM, EOPNOTSUPP, ENOSYS] {
            for input in [std::ptr::null(), idle.cast_const(), asking.cast_const()] {
                prepare(answer);
                let rust = observe(call!(table.ibv_query_device_ex(world.context, input, attr)));
                let rust_bytes = bytes();
                prepare(answer);
                assert_eq!(rust, observe(call!(twin(world.context, input, attr))));
                assert_eq!(rust_bytes, bytes());
                answers.push(rust.answer as c_int);
            }
        }
    }
    assert_eq!(answers[..3], [3, 3, EINVAL]);
    assert_eq!(answers[12..], [0, 0, EINVAL, EPERM, EPERM, EINVAL, 3, 3, EINVAL, 3, 3, EINVAL]);
    true
}
