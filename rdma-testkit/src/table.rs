//! The control path of the test provider. Numbers cite the invariants of the crate.

use std::ffi::{c_char, c_int, c_void};
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Mutex;

use rdma_sys::*;

use super::objects::{FakeChannel, FakeContext, FakeCq, FakeQp, QpState, boxed, eventfd, fails, unboxed};
use super::world::{DmaBuf, called, set_errno, world};
use super::{data_path, datagrams};

pub(crate) static TABLE: Ibverbs = Ibverbs {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_get_device_name: get_device_name,
    ibv_get_device_guid: get_device_guid,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_query_device: query_device,
    ibv_query_port: query_port,
    ibv_query_gid: query_gid,
    _ibv_query_gid_table: query_gid_table,
    ibv_query_pkey: query_pkey,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr: reg_mr,
    ibv_reg_mr_iova: reg_mr_iova,
    ibv_reg_mr_iova2: reg_mr_iova2,
    ibv_reg_dmabuf_mr: reg_dmabuf_mr,
    ibv_dereg_mr: dereg_mr,
    ibv_create_comp_channel: create_channel,
    ibv_destroy_comp_channel: destroy_channel,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_get_async_event: get_async_event,
    ibv_ack_async_event: ack_async_event,
    ibv_create_cq: create_cq,
    ibv_resize_cq: resize_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_create_srq: super::srq::create_srq,
    ibv_modify_srq: super::srq::modify_srq,
    ibv_query_srq: super::srq::query_srq,
    ibv_destroy_srq: super::srq::destroy_srq,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_query_qp: query_qp,
    ibv_destroy_qp: destroy_qp,
    ibv_query_ece: super::cm::query_ece,
    ibv_set_ece: super::cm::set_ece,
    ibv_create_ah: datagrams::create_ah,
    ibv_destroy_ah: datagrams::destroy_ah,
    ibv_init_ah_from_wc: datagrams::init_ah_from_wc,
    ibv_attach_mcast: datagrams::attach_mcast,
    ibv_detach_mcast: datagrams::detach_mcast,
    ..Ibverbs::UNSUPPORTED
};

/// Reads one event from an eventfd; false, with errno set, if there is none.
fn take(fd: c_int) -> bool {
    let mut value = 0;
    // SAFETY: eventfd_read requires an eventfd and space for the value.
    unsafe { libc::eventfd_read(fd, &raw mut value) == 0 }
}

fn close(fd: c_int) {
    // SAFETY: close requires a descriptor that nobody else uses: the destroyed object owned it.
    unsafe { libc::close(fd) };
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if fails("get_device_list") {
        return ptr::null_mut();
    }
    let device = |name| {
        let mut device = ibv_device {
            node_type: ibv_node_type::IBV_NODE_CA,
            transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
            ..ibv_device::default()
        };
        name_device(&mut device, name);
        boxed("device", device)
    };
    let mut list: Vec<*mut ibv_device> = vec![device("fake0")];
    list.extend(world(|world| world.more_devices.clone()).into_iter().map(device));
    // SAFETY: the caller gives space for the count.
    unsafe { *count = c_int::try_from(list.len()).unwrap() };
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Gives a device its name.
pub(crate) fn name_device(device: &mut ibv_device, name: &str) {
    for (to, from) in device.name.iter_mut().zip(name.bytes()) {
        #[allow(clippy::cast_possible_wrap, reason = "a letter")]
        {
            *to = from as _;
        }
    }
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    let mut len = 1;
    // SAFETY: the read requires a place of the array: get_device_list ended it with NULL.
    while !unsafe { *list.wrapping_add(len - 1) }.is_null() {
        len += 1;
    }
    // SAFETY: from_raw requires a pointer that into_raw returned, once: get_device_list made the
    // array, whose length this is.
    let list = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, len)) };
    for &device in &list[..len - 1] {
        // SAFETY: unboxed requires a pointer from boxed, once: get_device_list made the device (1).
        unsafe { unboxed::<ibv_device, _>("device", device) };
    }
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the place requires a live device of this provider: the caller gives one (1).
    unsafe { &raw const (*device).name }.cast()
}

unsafe extern "C" fn get_device_guid(_: *mut ibv_device) -> u64 {
    0x0102_0304_0506_0708_u64.to_be()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    if fails("open_device") {
        return ptr::null_mut();
    }
    let mut base = ibv_context { device, async_fd: eventfd(), num_comp_vectors: 1, ..ibv_context::default() };
    data_path::fill(&mut base.ops);
    base.ops.post_srq_recv = Some(super::srq::post_srq_recv);
    boxed("context", FakeContext { base, events: Mutex::default() })
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    let errno = called("close_device");
    if errno == 0 {
        // SAFETY: the caller gives a live context of this provider (1).
        close(unsafe { (*context).async_fd });
        // SAFETY: unboxed requires a pointer from boxed, once: made by open_device (1).
        unsafe { unboxed::<FakeContext, _>("context", context) };
    }
    errno
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    let values = ibv_device_attr {
        phys_port_cnt: 2,
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_GLOB,
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        max_qp_wr: 1024,
        max_sge: 16,
        max_cqe: 4096,
        max_srq: 16,
        device_cap_flags: ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0,
        max_srq_wr: 1024,
        max_srq_sge: 4,
        ..ibv_device_attr::default()
    };
    // SAFETY: the caller gives space for the attributes.
    unsafe { *attr = values };
    called("query_device")
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int {
    let state = if port == 2 && !world(|world| world.port_is_down) {
        ibv_port_state::IBV_PORT_ACTIVE
    } else {
        ibv_port_state::IBV_PORT_DOWN
    };
    let attr: *mut ibv_port_attr = attr.cast();
    let values = ibv_port_attr {
        state,
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: ibv_mtu::IBV_MTU_1024,
        gid_tbl_len: 4,
        pkey_tbl_len: 1,
        link_layer: 2,
        ..ibv_port_attr::default()
    };
    // SAFETY: the caller gives space for the whole structure: `rdma` calls it with an
    // ibv_port_attr.
    unsafe { *attr = values };
    called("query_port")
}

const GIDS: [(&str, u32); 4] = [("fe80::1", 1), ("::ffff:10.0.0.1", 1), ("::ffff:10.0.0.1", 2), ("::", 0)];

fn gid(index: usize) -> ibv_gid {
    ibv_gid { raw: GIDS[index].0.parse::<Ipv6Addr>().unwrap().octets() }
}

unsafe extern "C" fn query_gid(_: *mut ibv_context, _port: u8, index: c_int, out: *mut ibv_gid) -> c_int {
    if fails("query_gid") {
        return -1;
    }
    // SAFETY: the caller gives space for a GID.
    unsafe { *out = gid(usize::try_from(index).unwrap()) };
    0
}

unsafe extern "C" fn query_gid_table(
    _: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    _flags: u32,
    _size: usize,
) -> isize {
    let errno = called("query_gid_table");
    if errno != 0 {
        return -isize::try_from(errno).unwrap();
    }
    assert!(max >= 3);
    for (index, &(_, gid_type)) in GIDS.iter().enumerate().take(3) {
        let gid_index = u32::try_from(index).unwrap();
        let entry = ibv_gid_entry { gid: gid(index), gid_index, port_num: 2, gid_type, ndev_ifindex: 1 };
        // SAFETY: the caller gives space for `max` entries.
        unsafe { entries.wrapping_add(index).write(entry) };
    }
    3
}

unsafe extern "C" fn query_pkey(_: *mut ibv_context, _port: u8, _index: c_int, pkey: *mut u16) -> c_int {
    if fails("query_pkey") {
        return -1;
    }
    // SAFETY: the caller gives space for the key.
    unsafe { *pkey = 0xffff };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    if fails("alloc_pd") {
        return ptr::null_mut();
    }
    boxed("pd", ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let errno = called("dealloc_pd");
    if errno == 0 {
        // SAFETY: unboxed requires a pointer from boxed, once: made by alloc_pd (1).
        unsafe { unboxed::<ibv_pd, _>("pd", pd) };
    }
    errno
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    world(|world| world.accesses.push(access));
    if fails("reg_mr") {
        return ptr::null_mut();
    }
    // SAFETY: the caller gives a live domain of this provider (1).
    let context = unsafe { (*pd).context };
    boxed("mr", ibv_mr { context, pd, addr, length, handle: 0, lkey: 0x11, rkey: 0x22 })
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    world(|world| world.iovas.push(iova));
    // SAFETY: reg_mr requires a live domain of this provider (1): the caller gives one.
    unsafe { reg_mr(pd, addr, length, i32::try_from(access).unwrap()) }
}

unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: reg_mr_iova2 requires a live domain of this provider (1): the caller gives one.
    unsafe { reg_mr_iova2(pd, addr, length, iova, u32::try_from(access).unwrap()) }
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    world(|world| world.dma_bufs.push(DmaBuf { offset, length, iova, fd, access }));
    if fails("reg_dmabuf_mr") {
        return ptr::null_mut();
    }
    if fd < 0 {
        set_errno(libc::EBADF);
        return ptr::null_mut();
    }
    // SAFETY: the caller gives a live domain of this provider (1).
    let context = unsafe { (*pd).context };
    // As in libibverbs, the address is the offset.
    let addr = ptr::without_provenance_mut(usize::try_from(offset).unwrap());
    boxed("mr", ibv_mr { context, pd, addr, length, handle: 0, lkey: 0x33, rkey: 0x44 })
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    let errno = called("dereg_mr");
    if errno == 0 {
        // SAFETY: unboxed requires a pointer from boxed, once: made by reg_mr (1).
        unsafe { unboxed::<ibv_mr, _>("mr", mr) };
    }
    errno
}

unsafe extern "C" fn create_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    if fails("create_channel") {
        return ptr::null_mut();
    }
    let base = ibv_comp_channel { context, fd: eventfd(), refcnt: 0 };
    boxed("channel", FakeChannel { base, events: Mutex::default() })
}

unsafe extern "C" fn destroy_channel(channel: *mut ibv_comp_channel) -> c_int {
    let errno = called("destroy_channel");
    if errno == 0 {
        // SAFETY: the caller gives a live channel of this provider (1).
        close(unsafe { (*channel).fd });
        // SAFETY: unboxed requires a pointer from boxed, once: made by create_channel (1).
        unsafe { unboxed::<FakeChannel, _>("channel", channel) };
    }
    errno
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    name: *mut *mut c_void,
) -> c_int {
    if fails("get_cq_event") {
        return -1;
    }
    // SAFETY: the caller gives a live channel of this provider (1).
    let fake = unsafe { &*channel.cast::<FakeChannel>() };
    if !take(fake.base.fd) {
        return -1;
    }
    let raw = fake.events.lock().unwrap().pop_front().unwrap();
    let raw: *mut ibv_cq = ptr::with_exposed_provenance_mut(raw);
    // SAFETY: the read requires a live queue: a queue is not destroyed while it has events.
    let context = unsafe { (*raw).cq_context };
    // SAFETY: the caller gives space for the pointers.
    unsafe { *name = context };
    // SAFETY: the caller gives space for the pointers.
    unsafe { *cq = raw };
    0
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, _count: u32) {
    let _errno = called("ack_cq_events");
}

unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    if fails("get_async_event") {
        return -1;
    }
    // SAFETY: the caller gives a live context of this provider (1).
    let fake = unsafe { &*context.cast::<FakeContext>() };
    if !take(fake.base.async_fd) {
        return -1;
    }
    // SAFETY: the caller gives space for an event.
    unsafe { *event = fake.events.lock().unwrap().pop_front().unwrap() };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {
    let _errno = called("ack_async_event");
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    if fails("create_cq") {
        return ptr::null_mut();
    }
    let base = ibv_cq { context, channel, cq_context, cqe, ..ibv_cq::default() };
    boxed("cq", FakeCq { base, state: Mutex::default() })
}

unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let errno = called("resize_cq");
    if errno == 0 {
        // SAFETY: the write requires a live queue of ours (1) that nobody reads: the caller holds
        // its lock.
        unsafe { (*cq).cqe = cqe };
    }
    errno
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let errno = called("destroy_cq");
    if errno == 0 {
        // SAFETY: unboxed requires a pointer from boxed, once: made by create_cq (1).
        unsafe { unboxed::<FakeCq, _>("cq", cq) };
    }
    errno
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if fails("create_qp") {
        return ptr::null_mut();
    }
    // SAFETY: the caller gives valid attributes.
    let init = unsafe { &*init };
    let base = ibv_qp {
        // SAFETY: the caller gives a live domain of this provider (1).
        context: unsafe { (*pd).context },
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        qp_num: 0x1234,
        qp_type: init.qp_type,
        ..ibv_qp::default()
    };
    let state = QpState { cap: init.cap, sq_sig_all: init.sq_sig_all, ..QpState::default() };
    boxed("qp", FakeQp { base, state: Mutex::new(state) })
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let errno = called("modify_qp");
    let mask = u32::try_from(mask).unwrap();
    if errno == 0 {
        // SAFETY: the caller gives valid attributes.
        world(|world| world.modified.push((unsafe { *attr }, mask)));
    }
    if errno == 0 && mask & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0 {
        // SAFETY: the caller gives a live queue pair of this provider (1).
        let fake = unsafe { &*qp.cast::<FakeQp>() };
        // SAFETY: the caller gives valid attributes.
        fake.state.lock().unwrap().attr = Some(unsafe { *attr });
    }
    errno
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller gives a live queue pair of this provider (1).
    let fake = unsafe { &*qp.cast::<FakeQp>() };
    let state = fake.state.lock().unwrap();
    let (cap, sq_sig_all) = (state.cap, state.sq_sig_all);
    let truth = (state.attr.unwrap_or_default(), ibv_qp_init_attr { cap, sq_sig_all, ..ibv_qp_init_attr::default() });
    let answer = world(|world| world.qp_answer).unwrap_or(truth);
    // SAFETY: the caller gives space for the attributes.
    unsafe { *attr = answer.0 };
    // SAFETY: the caller gives space for the attributes.
    unsafe { *init = answer.1 };
    called("query_qp")
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let mut errno = called("destroy_qp");
    // SAFETY: the caller gives a live queue pair of this provider (1).
    if !unsafe { &*qp.cast::<FakeQp>() }.state.lock().unwrap().groups.is_empty() {
        errno = libc::EBUSY;
    }
    if errno == 0 {
        // SAFETY: unboxed requires a pointer from boxed, once: made by create_qp (1).
        unsafe { unboxed::<FakeQp, _>("qp", qp) };
    }
    errno
}
