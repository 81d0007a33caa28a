//! Creation and destruction: limits, objects that keep others busy, error conventions, and the
//! state machine on a real object.

use std::ffi::c_int;
use std::io;
use std::ptr;

use rdma_sys::*;

use crate::common::{self, Config, Request, Side, open, pair, verbs};

type M = ibv_qp_attr_mask;
type S = ibv_qp_state;

/// The `errno` of a failed verb that returns a pointer.
fn errno<T>(result: *mut T) -> c_int {
    assert!(result.is_null());
    io::Error::last_os_error().raw_os_error().unwrap()
}

#[test]
fn used_objects_are_busy() {
    let side = Side::new(Config::default());
    // SAFETY: a live object, which stays alive because it is in use: refused.
    assert_eq!(unsafe { (verbs().ibv_dealloc_pd)(side.pd) }, libc::EBUSY);
    // SAFETY: a live queue, in use: refused.
    assert_eq!(unsafe { (verbs().ibv_destroy_cq)(side.cq) }, libc::EBUSY);
    // SAFETY: a live channel, in use: refused.
    assert_eq!(unsafe { (verbs().ibv_destroy_comp_channel)(side.channel) }, libc::EBUSY);
    // All objects still work.
    side.connect(side.endpoint());
    assert_eq!(side.post_recv(1, &[]), 0);
    assert_eq!(side.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 2, &[])), 0);
    side.wait();
    side.wait();
}

#[test]
fn a_region_can_be_registered_again() {
    const TRANSLATION: c_int = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0 as c_int;
    const ACCESS: c_int = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS.0 as c_int;
    let (peer, side) = pair(Config::default());
    let change = |flags, offset: u64, len, access| {
        let addr = ptr::without_provenance_mut(usize::try_from(side.addr(0) + offset).unwrap());
        // SAFETY: a live region; its memory lives as long, and holds the part.
        unsafe { (verbs().ibv_rereg_mr)(side.mr, flags, ptr::null_mut(), addr, len, access) }
    };
    let write_to = |offset: usize, rkey| {
        let request = Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 7, &[peer.sge(0, 8)]);
        assert_eq!(peer.post(&request.remote(side.addr(offset), rkey)), 0);
        peer.wait().status
    };
    // SAFETY: a live region that nobody changes meanwhile.
    let region = || unsafe { side.mr.read() };

    let old = region();
    assert_eq!(change(TRANSLATION, 4096, 4096, 0), 0);
    let part = region();
    assert_eq!((part.addr.addr() as u64, part.length, part.pd), (side.addr(4096), 4096, side.pd));
    assert_ne!(part.rkey, old.rkey);
    assert_eq!(write_to(4096 + 64, part.rkey), ibv_wc_status::IBV_WC_SUCCESS);

    // Invalid arguments are refused, and leave the region as it is.
    let input = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
    assert_eq!([change(8, 0, 1, 0), change(TRANSLATION, 0, 0, 0), change(TRANSLATION, 0, 1, 1)], [input; 3]);
    assert_eq!(change(ACCESS, 0, 0, 2), ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_CMD.0);
    assert_eq!(region().rkey, part.rkey);

    // The keys are those of the memory: a change of rights keeps them.
    for access in [0xf, 3] {
        assert_eq!(change(ACCESS, 0, 0, access), 0);
        assert_eq!((region().length, region().lkey, region().rkey), (4096, part.lkey, part.rkey));
        assert_eq!(write_to(4096 + 64, part.rkey), ibv_wc_status::IBV_WC_SUCCESS);
    }
    assert_eq!(change(ACCESS, 0, 0, 1), 0);
    assert_eq!(region().rkey, part.rkey);
    assert_eq!(write_to(4096 + 64, part.rkey), ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn the_command_descriptor_takes_no_commands() {
    let context = open();
    // SAFETY: an open context that nobody changes meanwhile.
    let descriptor = unsafe { (*context).cmd_fd };
    // SAFETY: the call reads one byte of a constant.
    assert_eq!(unsafe { libc::write(descriptor, c"x".as_ptr().cast(), 1) }, -1);
    // SAFETY: the flags of a descriptor are numbers.
    assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_GETFD) }, libc::FD_CLOEXEC);
    // SAFETY: an open context, which is not used any more.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
}

#[test]
fn null_is_refused_everywhere() {
    let v = verbs();
    // SAFETY: null is refused.
    assert_eq!(errno(unsafe { (v.ibv_open_device)(ptr::null_mut()) }), libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (v.ibv_close_device)(ptr::null_mut()) }, libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(errno(unsafe { (v.ibv_alloc_pd)(ptr::null_mut()) }), libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (v.ibv_dealloc_pd)(ptr::null_mut()) }, libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (v.ibv_dereg_mr)(ptr::null_mut()) }, libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (v.ibv_destroy_cq)(ptr::null_mut()) }, libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (v.ibv_destroy_qp)(ptr::null_mut()) }, libc::EINVAL);
    // SAFETY: null is refused.
    assert_eq!(unsafe { (v.ibv_destroy_comp_channel)(ptr::null_mut()) }, libc::EINVAL);
}

#[test]
fn completion_queue_limits() {
    let context = open();
    let create = |cqe, vector| {
        // SAFETY: an open context.
        unsafe { (verbs().ibv_create_cq)(context, cqe, ptr::null_mut(), ptr::null_mut(), vector) }
    };
    for (cqe, vector) in [(0, 0), (-1, 0), (c_int::MAX, 0), (1, 4), (1, c_int::MAX), (1, -1)] {
        assert_eq!(errno(create(cqe, vector)), libc::EINVAL);
    }
    // SAFETY: an open context, whose field never changes.
    assert_eq!(unsafe { (*context).num_comp_vectors }, 4);
    for vector in 1..4 {
        let cq = create(1, vector);
        assert!(!cq.is_null(), "vector {vector}");
        // SAFETY: a live queue, which is not used afterwards.
        assert_eq!(unsafe { (verbs().ibv_destroy_cq)(cq) }, 0);
    }
    let cq = create(17, 0);
    // SAFETY: a live queue.
    assert!(unsafe { (*cq).cqe } >= 17);
    // SAFETY: a live queue.
    assert_eq!(unsafe { (verbs().ibv_resize_cq)(cq, 40) }, 0);
    // SAFETY: a live queue.
    assert!(unsafe { (*cq).cqe } >= 40);
    // SAFETY: a live queue.
    assert_eq!(unsafe { (verbs().ibv_resize_cq)(cq, 0) }, libc::EINVAL);
    // A CQ cannot use the channel of another context.
    let other = open();
    // SAFETY: an open context.
    let channel = unsafe { (verbs().ibv_create_comp_channel)(other) };
    // SAFETY: an open context, a live channel.
    let foreign = unsafe { (verbs().ibv_create_cq)(context, 1, ptr::null_mut(), channel, 0) };
    assert_eq!(errno(foreign), libc::EINVAL);
    // SAFETY: a live object that nothing uses any more.
    assert_eq!(unsafe { (verbs().ibv_destroy_comp_channel)(channel) }, 0);
    // SAFETY: a live queue that nothing uses.
    assert_eq!(unsafe { (verbs().ibv_destroy_cq)(cq) }, 0);
    // SAFETY: an open context.
    assert_eq!(unsafe { (verbs().ibv_close_device)(other) }, 0);
    // SAFETY: an open context.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
}

#[test]
fn queue_pair_limits_and_types() {
    let side = Side::new(Config::default());
    let refused = |spoil: &dyn Fn(&mut ibv_qp_init_attr)| {
        let mut init = side.init_attr();
        spoil(&mut init);
        // SAFETY: live objects, a valid structure.
        errno(unsafe { (verbs().ibv_create_qp)(side.pd, &raw mut init) })
    };
    assert_eq!(refused(&|init| init.qp_type = ibv_qp_type::IBV_QPT_XRC_SEND), libc::EOPNOTSUPP);
    assert_eq!(refused(&|init| init.qp_type = ibv_qp_type(77)), libc::EINVAL);
    assert_eq!(refused(&|init| init.cap.max_send_wr = u32::MAX), libc::EINVAL);
    assert_eq!(refused(&|init| init.cap.max_send_sge = 1000), libc::EINVAL);
    assert_eq!(refused(&|init| init.cap.max_inline_data = 1 << 20), libc::EINVAL);
    assert_eq!(refused(&|init| init.send_cq = ptr::null_mut()), libc::EINVAL);
    let other = Side::new(Config::default());
    assert_eq!(refused(&|init| init.recv_cq = other.cq), libc::EINVAL);

    let mut attr = ibv_device_attr::default();
    // SAFETY: an open context, a valid structure.
    assert_eq!(unsafe { (verbs().ibv_query_device)(side.context, &raw mut attr) }, 0);
    let mut init = side.init_attr();
    init.cap.max_send_wr = u32::try_from(attr.max_qp_wr).unwrap();
    init.cap.max_send_sge = u32::try_from(attr.max_sge).unwrap();
    init.cap.max_inline_data = 0;
    // SAFETY: live objects, a valid structure.
    let qp = unsafe { (verbs().ibv_create_qp)(side.pd, &raw mut init) };
    assert!(!qp.is_null(), "the reported limits hold");
    assert_eq!(init.cap.max_inline_data, 32, "programs send 16 bytes inline without asking for room");
    // SAFETY: a live queue pair.
    assert!(unsafe { (verbs().ibv_qp_to_qp_ex)(qp) }.is_null(), "it was not made for the extended interface");
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, 0);
}

/// The sockets of this process.
fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.unwrap().path().read_link().ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// A slot, of which a host has 4094, has queue pair numbers and no memory.
#[test]
fn a_lack_of_memory_takes_no_slot() {
    rdma_test_support::passes_alone(&["objects::where_memory_is_short"], &[]);
}

#[test]
#[ignore = "run alone, by the test above"]
fn where_memory_is_short() {
    let side = Side::new(Config::default());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let limit = size * 1024 + (300 << 20);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: setrlimit reads a limit that lives during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let mut init = side.init_attr();
    (init.cap.max_send_wr, init.cap.max_inline_data) = (1 << 15, 1024);
    // SAFETY: live objects, a valid structure.
    let mut create = || unsafe { (verbs().ibv_create_qp)(side.pd, &raw mut init) };
    let made: Vec<_> = std::iter::from_fn(|| Some(create()).filter(|qp| !qp.is_null())).collect();
    let before = sockets();
    for _ in 0..5 {
        assert_eq!(errno(create()), libc::ENOMEM);
    }
    assert_eq!(sockets(), before);
    for qp in made {
        // SAFETY: a live queue pair.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, 0);
    }
}

/// Another host has other processes behind the same queue pair numbers.
#[test]
fn a_connection_leads_to_this_host_or_nowhere() {
    let (a, b) = (Side::new(Config::default()), Side::new(Config::default()));
    assert_eq!(a.to_init(), 0);
    let (mut rtr, mask) = a.rtr_change(b.endpoint());
    let own = rtr.ah_attr.grh.dgid;
    rtr.ah_attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 77];
    assert_eq!(a.modify(&mut rtr, mask), libc::EHOSTUNREACH);
    rtr.ah_attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 0, 0, 1];
    assert_eq!(a.modify(&mut rtr, mask), libc::EINVAL, "a group");
    assert_eq!(a.state(), S::IBV_QPS_INIT, "a refused change changes nothing");
    rtr.ah_attr.grh.dgid = own;
    assert_eq!(a.modify(&mut rtr, mask), 0);
}

#[test]
fn queue_pair_numbers_differ_and_are_not_reserved() {
    let side = Side::new(Config::default());
    let queue_pairs: Vec<_> = (0..100).map(|_| side.make_qp()).collect();
    // SAFETY: live queue pairs.
    let mut numbers: Vec<u32> = queue_pairs.iter().map(|&qp| unsafe { (*qp).qp_num }).collect();
    assert!(numbers.iter().all(|&number| number > 1 && number < 0x00ff_ffff));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 100);
    for qp in queue_pairs {
        // SAFETY: alive, and not used any more.
        assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, 0);
    }
}

#[test]
fn memory_that_cannot_be_registered() {
    let side = Side::new(Config { memory: 4096, ..Config::default() });
    let addr = ptr::without_provenance_mut(usize::try_from(side.addr(0)).unwrap());
    let register = |addr, len, access: ibv_access_flags| {
        // SAFETY: a live domain; nothing is registered.
        errno(unsafe { (verbs().ibv_reg_mr)(side.pd, addr, len, c_int::try_from(access.0).unwrap()) })
    };
    assert_eq!(register(addr, 0, ibv_access_flags(1)), libc::EINVAL);
    assert_eq!(register(addr, usize::MAX, ibv_access_flags(1)), libc::EINVAL);
    assert_eq!(register(addr, 8, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE), libc::EINVAL);
    assert_eq!(register(addr, 8, ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL), libc::EOPNOTSUPP);
    assert_eq!(register(ptr::without_provenance_mut(4096), 8, ibv_access_flags(0)), libc::EFAULT);
    // Read-only memory.
    let text = "read only".as_ptr().cast_mut();
    assert_eq!(register(text.cast(), 9, ibv_access_flags(1)), libc::EFAULT);
    // SAFETY: a live domain; the text is never unmapped.
    let mr = unsafe { (verbs().ibv_reg_mr)(side.pd, text.cast(), 9, 4) };
    assert!(!mr.is_null());
    // SAFETY: a live domain and region.
    let rereg = unsafe { (verbs().ibv_rereg_mr)(mr, 4, side.pd, ptr::null_mut(), 0, 1) };
    assert_ne!(rereg, 0);
    // SAFETY: alive, and not used any more.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(mr) }, 0);
}

#[test]
fn a_region_may_have_another_address_for_its_users() {
    let (a, b) = pair(Config::default());
    let addr = ptr::with_exposed_provenance_mut(usize::try_from(b.addr(0)).unwrap());
    // SAFETY: a live domain; the memory is that of the side, which lives longer.
    let mr = unsafe { (verbs().ibv_reg_mr_iova2)(b.pd, addr, 4096, 0x1000_0000, 0xf) };
    // SAFETY: a live region.
    let rkey = unsafe { (*mr).rkey };
    a.put(0, b"there");
    let write = Request::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, 1, &[a.sge(0, 5)]);
    assert_eq!(a.post(&write.clone().remote(0x1000_0000 + 10, rkey)), 0);
    a.success(1);
    assert_eq!(b.peek(10, 5), b"there");
    let base = ibv_mr_init_attr { length: 4096, access: 0xf, addr, iova: 0x2000_0000, ..Default::default() };
    let extended = |comp_mask| {
        let mut attr = ibv_mr_init_attr { comp_mask, ..base };
        // SAFETY: a live domain, and valid attributes of memory that lives longer.
        unsafe { (verbs().ibv_reg_mr_ex)(b.pd, &raw mut attr) }
    };
    assert_eq!(errno(extended(1)), libc::EINVAL, "no address");
    assert_eq!(errno(extended(2 | 4)), libc::EOPNOTSUPP, "a dma-buf");
    for (comp_mask, iova) in [(1 | 2, 0x2000_0000), (2, b.addr(0))] {
        let other = extended(comp_mask);
        // SAFETY: a live region.
        let key = unsafe { (*other).rkey };
        assert_eq!(a.post(&write.clone().remote(iova + 20, key)), 0);
        a.success(1);
        assert_eq!(b.peek(20, 5), b"there");
        // SAFETY: alive, and not used any more.
        assert_eq!(unsafe { (verbs().ibv_dereg_mr)(other) }, 0);
    }
    // SAFETY: alive, and not used any more.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(mr) }, 0);
    assert_eq!(a.post(&write.remote(0x1000_0000 + 10, rkey)), 0);
    a.expect(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn the_state_machine_on_a_queue_pair() {
    let side = Side::new(Config::default());
    let remote = side.endpoint();
    let (mut init, init_mask) = side.init_change();
    let (mut rtr, rtr_mask) = side.rtr_change(remote);
    let (mut rts, rts_mask) = side.rts_change();
    assert_eq!(side.modify(&mut rtr, rtr_mask), libc::EINVAL, "RESET to RTR");
    assert_eq!(side.modify(&mut init, init_mask & !M::IBV_QP_PORT.0), libc::EINVAL, "a missing attribute");
    assert_eq!(side.modify(&mut init, init_mask | M::IBV_QP_SQ_PSN.0), libc::EINVAL, "one too many");
    init.port_num = 2;
    assert_eq!(side.modify(&mut init, init_mask), libc::EINVAL, "no such port");
    init.port_num = 1;
    assert_eq!(side.state(), S::IBV_QPS_RESET, "a refused change changes nothing");
    assert_ne!(side.post_recv(0, &[]), 0, "no receives in RESET");
    assert_eq!(side.modify(&mut init, init_mask), 0);
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { (*side.qp).state }, S::IBV_QPS_INIT);
    assert_eq!(side.post_recv(1, &[]), 0, "receives from INIT on");
    assert_ne!(side.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 1, &[])), 0, "no sends in INIT");
    rtr.ah_attr.is_global = 0;
    assert_eq!(side.modify(&mut rtr, rtr_mask), libc::EINVAL, "RoCE needs a GID");
    rtr.ah_attr.is_global = 1;
    assert_eq!(side.modify(&mut rtr, rtr_mask), 0);
    assert_eq!(side.modify(&mut rts, rts_mask & !M::IBV_QP_TIMEOUT.0), libc::EINVAL);
    assert_eq!(side.modify(&mut rts, rts_mask), 0);
    let (attr, made) = side.query();
    assert_eq!((attr.qp_state, attr.cur_qp_state), (S::IBV_QPS_RTS, S::IBV_QPS_RTS));
    assert_eq!((attr.dest_qp_num, attr.path_mtu, attr.port_num), (remote.qpn, rtr.path_mtu, 1));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (rts.timeout, rts.retry_cnt, rts.rnr_retry));
    assert_eq!((attr.min_rnr_timer, attr.max_rd_atomic, attr.max_dest_rd_atomic), (rtr.min_rnr_timer, 4, 4));
    assert_eq!((attr.sq_psn, attr.rq_psn), (5, 5));
    assert_eq!(attr.qp_access_flags, common::ALL_ACCESS);
    assert_eq!((made.send_cq, made.recv_cq, made.qp_type), (side.cq, side.cq, ibv_qp_type::IBV_QPT_RC));
    assert_eq!(made.cap, attr.cap);
    let mut wrong = ibv_qp_attr { cur_qp_state: S::IBV_QPS_RTR, min_rnr_timer: 3, ..Default::default() };
    let mask = M::IBV_QP_CUR_STATE.0 | M::IBV_QP_MIN_RNR_TIMER.0;
    assert_eq!(side.modify(&mut wrong, mask), libc::EINVAL, "the caller is wrong about the state");
    wrong.cur_qp_state = S::IBV_QPS_RTS;
    assert_eq!(side.modify(&mut wrong, mask), 0);
    assert_eq!(side.query().0.min_rnr_timer, 3);
    assert_eq!(side.set_state(S::IBV_QPS_SQE), libc::EINVAL);
    assert_eq!(side.set_state(ibv_qp_state(9)), libc::EINVAL);
    assert_eq!(side.set_state(S::IBV_QPS_ERR), 0);
    side.expect(1, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
    assert_eq!(side.set_state(S::IBV_QPS_RTS), libc::EINVAL);
    assert_eq!(side.set_state(S::IBV_QPS_RESET), 0);
    assert_eq!(side.query().0.timeout, 0, "RESET forgets");
}

#[test]
fn the_send_queue_drains() {
    let (a, b) = pair(Config::default());
    assert_eq!(a.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 1, &[])), 0);
    let mut attr = ibv_qp_attr { qp_state: S::IBV_QPS_SQD, en_sqd_async_notify: 1, ..Default::default() };
    assert_eq!(a.modify(&mut attr, M::IBV_QP_STATE.0 | M::IBV_QP_EN_SQD_ASYNC_NOTIFY.0), 0);
    assert_eq!(a.query().0.sq_draining, 1);
    assert_eq!(b.post_recv(2, &[]), 0);
    a.success(1);
    let mut event = a.async_event().unwrap();
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_SQ_DRAINED);
    // SAFETY: an event that was just read.
    unsafe { (verbs().ibv_ack_async_event)(&raw mut event) };
    assert_eq!(a.query().0.sq_draining, 0);
    // Requests posted in SQD wait for RTS.
    assert_eq!(a.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 3, &[])), 0);
    assert_eq!(b.post_recv(4, &[]), 0);
    assert!(a.poll().is_none());
    assert_eq!(a.set_state(S::IBV_QPS_RTS), 0);
    a.success(3);
}

#[test]
fn closing_a_context_ends_its_objects() {
    let (a, b) = pair(Config { timeout: 8, retry_cnt: 1, ..Config::default() });
    // Not dropped: closing the context below ends its objects.
    let b = std::mem::ManuallyDrop::new(b);
    let context = b.context;
    let (qp, cq, mr, pd, channel) = (b.qp, b.cq, b.mr, b.pd, b.channel);
    // SAFETY: an open context; what is left of its objects is refused from now on.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, 0);
    // SAFETY: the memory of an object whose context was closed is still there: refused.
    assert_eq!(unsafe { (verbs().ibv_destroy_qp)(qp) }, libc::EINVAL);
    // SAFETY: the memory of an object whose context was closed is still there: refused.
    assert_eq!(unsafe { (verbs().ibv_dereg_mr)(mr) }, libc::EINVAL);
    // SAFETY: the memory of an object whose context was closed is still there: refused.
    assert_eq!(unsafe { (verbs().ibv_destroy_cq)(cq) }, libc::EINVAL);
    // SAFETY: the memory of an object whose context was closed is still there: refused.
    assert_eq!(unsafe { (verbs().ibv_dealloc_pd)(pd) }, libc::EINVAL);
    // SAFETY: the memory of an object whose context was closed is still there: refused.
    assert_eq!(unsafe { (verbs().ibv_destroy_comp_channel)(channel) }, libc::EINVAL);
    // SAFETY: the memory of an object whose context was closed is still there: refused.
    assert_eq!(unsafe { (verbs().ibv_close_device)(context) }, libc::EINVAL);
    // The peer's requests to the ended queue pair fail.
    assert_eq!(a.post(&Request::new(ibv_wr_opcode::IBV_WR_SEND, 1, &[])), 0);
    a.expect(1, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn what_the_device_lacks_fails_in_each_convention() {
    let side = Side::new(Config::default());
    let v = verbs();
    // SAFETY: an unsupported verb, which fails without reading its arguments.
    assert_eq!(errno(unsafe { (v.ibv_import_dm)(side.context, 0) }), libc::EOPNOTSUPP);
    // SAFETY: a live domain.
    assert_eq!(errno(unsafe { (v.ibv_reg_dmabuf_mr)(side.pd, 0, 8, 0, -1, 0) }), libc::EOPNOTSUPP);
    // SAFETY: a live queue pair; null is not read.
    assert_eq!(unsafe { (v.ibv_set_ece)(side.qp, ptr::null_mut()) }, libc::EOPNOTSUPP);
    // SAFETY: the function has no requirement.
    assert_eq!(unsafe { (v.ibv_fork_init)() }, 0);
    // SAFETY: the function has no requirement.
    assert_eq!(unsafe { (v.ibv_is_fork_initialized)() }, ibv_fork_status::IBV_FORK_UNNEEDED);
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { (v.ibv_query_qp_data_in_order)(side.qp, ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0) }, 1);
    // SAFETY: a live queue pair.
    assert_eq!(unsafe { (v.ibv_query_qp_data_in_order)(side.qp, ibv_wr_opcode::IBV_WR_SEND, 0) }, 0);
}
