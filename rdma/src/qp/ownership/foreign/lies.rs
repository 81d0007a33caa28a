//! Providers that say what is not true of the objects that `from_raw` takes: values out of range,
//! states that there are not, and pointers that lead to nothing.

use nix::errno::Errno;
use rdma_sys::{ibv_qp_attr, ibv_qp_state, ibv_srq_attr};

use super::*;

/// A capacity that a device reports.
fn cap(wr: u32, sge: u32, max_inline_data: u32) -> ibv_qp_cap {
    ibv_qp_cap { max_send_wr: wr, max_recv_wr: wr, max_send_sge: sge, max_recv_sge: sge, max_inline_data }
}

/// Answers queries of queue pairs with this until the value is dropped.
struct Lies;

impl Lies {
    fn of(cap: ibv_qp_cap, attr: ibv_qp_attr) -> Self {
        let init = ibv_qp_init_attr { cap, sq_sig_all: -1, ..ibv_qp_init_attr::default() };
        testing::answer_query_qp(Some((attr, init)));
        Self
    }
}

impl Drop for Lies {
    fn drop(&mut self) {
        testing::answer_query_qp(None);
    }
}

/// Sets a field of a C object while a closure runs.
macro_rules! with_field {
    ($raw:expr, $field:ident = $value:expr, $run:expr) => {{
        // SAFETY: the access requires a live object that nobody else uses: the test made it.
        let before = unsafe { std::mem::replace(&mut (*$raw).$field, $value) };
        $run;
        // SAFETY: as for the access before: `from_raw` has refused the object.
        unsafe { (*$raw).$field = before };
    }};
}

#[test]
fn capacities_out_of_range_are_refused_or_bounded() {
    let code = Code::new();
    let cq = code.context.create_cq(64).unwrap();
    let raw = code.rc(cq.as_raw());
    let builder = || QueuePair::builder(&code.pd).cq(&cq);
    let limited = || builder().max_send_wr(4).max_recv_wr(4);

    let most = Lies::of(cap(u32::MAX, u32::MAX, u32::MAX), ibv_qp_attr::default());
    let refused = adopt(&builder(), raw).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::CompletionQueueTooSmall { needed: 1 << 16, free: 64 });
    assert!(matches!(refused.object, Ownership::Destroy));
    // The device takes requests of 16 segments, and this queue pair has whatever inline data fits.
    let mut qp = adopt(&limited(), raw).unwrap();
    assert_eq!((qp.send.depth(), qp.recv.depth(), qp.send.max_inline_data()), (4, 4, u32::MAX));
    let list = |len: usize| (0..len).map(|_| code.pd.allocate(1).unwrap()).collect::<Vec<_>>();
    assert_eq!(qp.post_send(op::send(list(17))).unwrap_err().kind(), ErrorKind::TooManySegments);
    qp.post_send(op::send(list(16))).unwrap();
    assert_eq!(qp.post_recv(list(17), 0).unwrap_err().kind(), ErrorKind::TooManySegments);
    qp.post_recv(list(16), 0).unwrap();
    let text = vec![7_u8; 100_000];
    qp.post_send(op::send_inline(&text)).unwrap();
    let posted = testing::posted(raw);
    assert_eq!((posted[0].sges.len(), posted[1].sges.len()), (16, 16));
    assert_eq!(posted[2].sges.iter().map(|sge| sge.length).sum::<u32>(), 100_000);
    // A queue pair whose sends are all signaled, as -1 says.
    assert!(posted.iter().filter(|posted| !posted.recv).all(is_signaled));
    qp.post_send(op::send_inline(b"")).unwrap();
    qp.post_send(op::send_inline(b"")).unwrap();
    assert_eq!(qp.post_send(op::send_inline(b"")).unwrap_err().kind(), ErrorKind::QueueFull);
    drop((qp, most));
    assert_eq!((regions(), live("qp")), (0, 0));

    // A queue without entries: the provider says by ENOMEM that it is full, and the memory comes
    // back.
    let raw = code.rc(cq.as_raw());
    let least = Lies::of(cap(0, 0, 0), ibv_qp_attr::default());
    assert_eq!(adopt(&limited(), raw).unwrap_err().error.kind(), ErrorKind::InvalidInput);
    let mut qp = adopt(&builder(), raw).unwrap();
    testing::fail_post(0, libc::ENOMEM, testing::BadWr::Chain);
    assert_eq!(qp.post_send(op::send(code.pd.allocate(1).unwrap())).unwrap_err().kind(), ErrorKind::QueueFull);
    assert_eq!(qp.post_send(op::send(list(2))).unwrap_err().kind(), ErrorKind::TooManySegments);
    assert_eq!(qp.post_send(op::send_inline(b"1")).unwrap_err().kind(), ErrorKind::TooLong);
    drop((qp, least));
    assert_eq!((regions(), live("qp")), (0, 0));
}

#[test]
fn states_and_ports_that_there_are_not_are_refused_or_unknown() {
    let code = Code::new();
    let cq = code.context.create_cq(64).unwrap();
    let (raw, few) = (code.rc(cq.as_raw()), cap(4, 1, 0));
    let state = |state: u32| ibv_qp_attr { qp_state: ibv_qp_state(state), ..ibv_qp_attr::default() };
    for wrong in [7, 77, u32::MAX] {
        let _lies = Lies::of(few, state(wrong));
        is_refused(adopt_prepared(&QueuePair::builder(&code.pd).cq(&cq), raw), Is::NotReset);
    }
    let lies = Lies::of(few, state(77));
    let mut qp = adopt(&QueuePair::builder(&code.pd).cq(&cq), raw).unwrap();
    assert_eq!(qp.state().unwrap(), QpState::from_raw(77));
    // Nothing is known of the state, so the provider decides.
    qp.post_send(op::send(code.pd.allocate(1).unwrap())).unwrap();
    drop((qp, lies));

    let ud = || code.qp(cq.as_raw(), ptr::null_mut(), ibv_qp_type::IBV_QPT_UD);
    let builder = QueuePair::datagram(&code.pd).cq(&cq);
    for port_num in [0, 1, 3, 255] {
        let attr = ibv_qp_attr { port_num, qkey: u32::MAX, ..state(77) };
        let _lies = Lies::of(few, attr);
        let qp = adopt(&builder, ud()).unwrap();
        // A port that is down, or that there is not, is none.
        let endpoint = qp.endpoint();
        assert!(endpoint.is_err_and(|error| error.kind() == ErrorKind::InvalidInput), "port {port_num}");
    }
    // The second query fails: the queue pair is as it was.
    let (raw, lies) = (ud(), Lies::of(few, state(3)));
    fail("query_qp", 0);
    fail("query_qp", libc::EIO);
    let failed = adopt(&builder, raw).unwrap_err();
    assert_eq!((failed.error.verb(), failed.error.errno()), (Verb::QueryQp, Some(libc::EIO)));
    assert!(matches!(failed.object, Ownership::Destroy) && live("qp") == 1);
    drop((adopt(&builder, raw).unwrap(), lies));
    assert_eq!((live("qp"), regions()), (0, 0));
}

#[test]
fn objects_whose_pointers_lead_elsewhere_are_refused_and_not_followed() {
    let code = Code::new();
    let cq = code.context.create_cq(64).unwrap();
    let raw = code.rc(cq.as_raw());
    let builder = QueuePair::builder(&code.pd).cq(&cq);
    let nowhere = 0xdead_beef_usize;
    for at in [0, nowhere] {
        with_field!(raw, context = ptr::without_provenance_mut(at), is_refused(adopt(&builder, raw), Is::OtherContext));
        with_field!(raw, pd = ptr::without_provenance_mut(at), is_refused(adopt(&builder, raw), Is::OtherDomain));
        let queue = ptr::without_provenance_mut(at);
        with_field!(raw, send_cq = queue, is_refused(adopt(&builder, raw), Is::OtherCompletionQueue));
        with_field!(raw, recv_cq = queue, is_refused(adopt(&builder, raw), Is::OtherCompletionQueue));
    }
    let srq = ptr::without_provenance_mut(nowhere);
    with_field!(raw, srq = srq, is_refused(adopt(&builder, raw), Is::OtherSharedReceives));
    for kind in [0, 1, u32::MAX] {
        with_field!(raw, qp_type = ibv_qp_type(kind), is_refused(adopt(&builder, raw), Is::OtherTransport(kind)));
    }
    drop(adopt(&builder, raw).unwrap());

    let (depth, raw) = (code.context.cq_builder(64), code.cq(64));
    with_field!(raw, context = ptr::null_mut(), is_refused(adopt_cq(&depth, raw), Is::OtherContext));
    for cqe in [0, -1, i32::MIN] {
        with_field!(raw, cqe = cqe, is_refused(adopt_cq(&depth, raw), Is::TooFewEntries(0)));
    }
    drop(adopt_cq(&depth, raw).unwrap());

    let (receives, raw) = (SharedReceiveQueue::builder(&code.pd), code.srq());
    let refuse = |raw, reason| is_refused(adopt_srq(&receives, raw, Ownership::Destroy), reason);
    with_field!(raw, context = ptr::null_mut(), refuse(raw, Is::OtherContext));
    with_field!(raw, pd = ptr::null_mut(), refuse(raw, Is::OtherDomain));
    drop(adopt_srq(&receives, raw, Ownership::Destroy).unwrap());

    let bytes = vec![7_u8; 64];
    let raw = code.mr(bytes.as_ptr(), 64);
    let mut owner = bytes;
    for (at, length) in [(0, 64), (usize::MAX, 1), (usize::MAX, usize::MAX)] {
        let addr = ptr::without_provenance_mut(at);
        with_field!(raw, addr = addr, {
            with_field!(raw, length = length, {
                let (error, bytes) = adopt_buffer(&code.pd, raw, owner).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Foreign(Is::OtherMemory));
                owner = bytes;
            });
        });
    }
    drop(adopt_buffer(&code.pd, raw, owner).unwrap());
    assert_eq!(["qp", "cq", "srq", "mr"].map(live), [0, 1, 0, 0]);
}

#[test]
fn shared_receive_queues_out_of_range_are_refused_or_bounded() {
    let code = Code::new();
    let raw = code.srq();
    let builder = || SharedReceiveQueue::builder(&code.pd);
    let lie = |max_wr, max_sge| testing::answer_query_srq(Some(ibv_srq_attr { max_wr, max_sge, srq_limit: u32::MAX }));
    lie(0, 1);
    is_refused(adopt_srq(&builder(), raw, Ownership::Destroy), Is::TooFewEntries(0));
    lie(4, 0);
    let refused = adopt_srq(&builder(), raw, Ownership::Destroy).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    lie(u32::MAX, u32::MAX);
    let mut srq = adopt_srq(&builder(), raw, Ownership::Destroy).unwrap();
    assert_eq!(srq.depth(), 1 << 15);
    let refused = srq.post_recv((0..5).map(|_| code.pd.allocate(1).unwrap()).collect::<Vec<_>>(), 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooManySegments);
    srq.post_recv(code.pd.allocate(1).unwrap(), 1).unwrap();
    testing::answer_query_srq(None);
    drop((refused, srq));
    assert_eq!((live("srq"), regions()), (0, 0));
}

#[test]
fn descriptors_that_are_none_are_errors() {
    let code = Code::new();
    // SAFETY: ibv_create_comp_channel requires an open context.
    let raw = unsafe { (code.context.table().ibv_create_comp_channel)(code.context.as_raw()) };
    for fd in [-1, i32::MIN, i32::MAX] {
        with_field!(raw, fd = fd, {
            let failed = adopt_channel(&code.context, raw).unwrap_err();
            assert_eq!((failed.error.verb(), failed.error.errno()), (Verb::WatchDescriptor, Some(Errno::EBADF as i32)));
            assert!(matches!(failed.object, Ownership::Destroy));
        });
    }
    drop(adopt_channel(&code.context, raw).unwrap());
    assert_eq!(live("channel"), 0);

    let device = code.context.device();
    // SAFETY: ibv_open_device requires a live device of this table, which the context keeps.
    let raw = unsafe { (device.table().ibv_open_device)(device.as_raw()) };
    with_field!(raw, device = ptr::null_mut(), is_refused(adopt_context(device, raw), Is::OtherContext));
    with_field!(raw, async_fd = -1, {
        assert_eq!(adopt_context(device, raw).unwrap_err().error.errno(), Some(Errno::EBADF as i32));
    });
    with_field!(raw, num_comp_vectors = -1, {
        // SAFETY: from_raw requires an open context that nobody else uses: just opened.
        let kept = unsafe { Context::from_raw(device, raw, Ownership::Keep) }.unwrap();
        assert_eq!(kept.completion_vectors(), 0);
    });
    drop(adopt_context(device, raw).unwrap());
    assert_eq!(live("context"), 1, "that of the test");
}
