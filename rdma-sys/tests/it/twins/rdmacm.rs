//! The inline functions of `rdma_cma.h` and `rdma_verbs.h`.

use std::{cell::RefCell, collections::VecDeque, ptr::null_mut};

use libc::{EINVAL, ENOMEM, c_int, c_uint, c_void, sockaddr};
use rdma_sys::*;

use super::{
    library::Twins,
    regular::Case,
    special::{export, fake, twin},
    world::{Live, Seen, Value, World, arrived, call, leak, observe},
};

pub(crate) const CASES: &[Case] = &[
    ("rdma_seterrno", seterrno),
    ("rdma_get_local_addr", get_local_addr),
    ("rdma_get_peer_addr", get_peer_addr),
    ("rdma_reg_msgs", reg_msgs),
    ("rdma_reg_read", reg_read),
    ("rdma_reg_write", reg_write),
    ("rdma_dereg_mr", dereg_mr),
    ("rdma_post_recvv", post_recvv),
    ("rdma_post_sendv", post_sendv),
    ("rdma_post_readv", post_readv),
    ("rdma_post_writev", post_writev),
    ("rdma_post_recv", post_recv),
    ("rdma_post_send", post_send),
    ("rdma_post_read", post_read),
    ("rdma_post_write", post_write),
    ("rdma_post_ud_send", post_ud_send),
    ("rdma_get_send_comp", get_send_comp),
    ("rdma_get_recv_comp", get_recv_comp),
];

thread_local! {
    /// The next answers of the operations; 0 after the last.
    static ANSWERS: RefCell<VecDeque<c_int>> = const { RefCell::new(VecDeque::new()) };
}

fn next_answer() -> c_int {
    ANSWERS.with_borrow_mut(|answers| answers.pop_front().unwrap_or(0))
}

/// Runs both sides with the same answers behind them: they do the same.
fn compare<T: Value>(answers: &[c_int], rust: impl FnOnce() -> T, c: impl FnOnce() -> T) -> Seen {
    ANSWERS.set(answers.iter().copied().collect());
    let rust = observe(rust);
    let left = ANSWERS.take();
    ANSWERS.set(answers.iter().copied().collect());
    let c = observe(c);
    assert_eq!((&rust, left), (&c, ANSWERS.take()), "{answers:?}");
    rust
}

/// An answer of -1 with that reason.
fn failed(seen: &Seen, errno: c_int) {
    assert_eq!((seen.answer as c_int, seen.errno), (-1, errno));
}

fn seterrno(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_seterrno", fn(c_int) -> c_int);
    for value in [0, 1, EINVAL, -1, c_int::MAX, c_int::MIN] {
        let seen = compare(&[], || rdma_seterrno(value), call!(twin(value)));
        assert_eq!((seen.answer as c_int, seen.errno), (-c_int::from(value != 0), value));
    }
    true
}

fn get_local_addr(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_get_local_addr", fn(*mut rdma_cm_id) -> *mut sockaddr);
    let id = leak::<rdma_cm_id>();
    let (rust, c) = (call!(rdma_get_local_addr(id))(), call!(twin(id))());
    assert_eq!((rust, rust.is_null()), (c, false));
    true
}

fn get_peer_addr(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_get_peer_addr", fn(*mut rdma_cm_id) -> *mut sockaddr);
    let id = leak::<rdma_cm_id>();
    let (rust, c) = (call!(rdma_get_peer_addr(id))(), call!(twin(id))());
    assert_eq!((rust, rust.is_null()), (c, false));
    true
}

/// An identifier with all objects.
fn identifier(world: &World) -> Live<rdma_cm_id> {
    Live::new(rdma_cm_id {
        verbs: world.context,
        qp: Value::make(world, 0),
        srq: Value::make(world, 0),
        pd: Value::make(world, 0),
        send_cq: Value::make(world, 0),
        recv_cq: Value::make(world, 0),
        send_cq_channel: leak(),
        recv_cq_channel: leak(),
        ..rdma_cm_id::default()
    })
}

type Register = unsafe extern "C" fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr;

fn registers(
    twins: &Twins,
    twin: Register,
    rust: unsafe fn(&Ibverbs, *mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr,
    access: c_uint,
) {
    let mut table = Ibverbs::UNSUPPORTED;
    export!(twins, table, ibv_reg_mr(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int
    ) -> *mut ibv_mr);
    let identifier = identifier(&World::new());
    let (id, memory) = (identifier.ptr(), leak::<u64>().cast());
    let seen = compare(&[], call!(rust(&table, id, memory, 8)), call!(twin(id, memory, 8)));
    assert_eq!(seen.calls, [("ibv_reg_mr", vec![identifier.get().pd.word(), memory.word(), 8, access.into()])]);
}

fn reg_msgs(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_reg_msgs", fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr);
    registers(twins, twin, Ibverbs::rdma_reg_msgs, 1);
    true
}

fn reg_read(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_reg_read", fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr);
    registers(twins, twin, Ibverbs::rdma_reg_read, 1 | 4);
    true
}

fn reg_write(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_reg_write", fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr);
    registers(twins, twin, Ibverbs::rdma_reg_write, 1 | 2);
    true
}

fn dereg_mr(twins: &Twins) -> bool {
    unsafe extern "C" fn dereg(mr: *mut ibv_mr) -> c_int {
        arrived("ibv_dereg_mr", &[mr.word()]);
        next_answer()
    }
    let twin = twin!(twins, "rdma_dereg_mr", fn(*mut ibv_mr) -> c_int);
    let table = Ibverbs { ibv_dereg_mr: dereg, ..Ibverbs::UNSUPPORTED };
    // SAFETY: hook requires the symbol's type, which the table's entry has.
    unsafe { twins.hook("ibv_dereg_mr", table.ibv_dereg_mr) };
    let mr = <*mut ibv_mr>::make(&World::new(), 0);
    let compare = |answer| compare(&[answer], call!(table.rdma_dereg_mr(mr)), call!(twin(mr)));
    assert_eq!(compare(0).answer, 0);
    failed(&compare(EINVAL), EINVAL);
    true
}

/// The number and the contents of a list's entries.
///
/// # Safety
///
/// The list has so many entries.
unsafe fn entries(list: *const ibv_sge, number: c_int) -> Vec<u64> {
    let mut words = vec![number.word()];
    for index in 0..usize::try_from(number).expect("not negative") {
        let place = list.wrapping_add(index);
        // SAFETY: read requires an entry of the list, which has `number` of them by this function's
        // condition.
        let entry = unsafe { place.read() };
        words.extend([entry.addr, entry.length.into(), entry.lkey.into()]);
    }
    words
}

unsafe extern "C" fn sent(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the reference requires a request that nothing changes meanwhile: the functions under
    // test post one of their own. (Only fields that the operation uses are read: in C the others
    // are undefined.)
    let request = unsafe { &*wr };
    let (next, opcode, flags) = (request.next.addr() as u64, request.opcode, request.send_flags);
    let mut words = vec![qp.word(), request.wr_id, next, opcode.0.into(), flags.into()];
    // SAFETY: entries requires a list of that length, as every request of this test has.
    words.extend(unsafe { entries(request.sg_list, request.num_sge) });
    // SAFETY: the read requires a live queue pair (1).
    let kind = unsafe { (*qp).qp_type };
    if opcode != ibv_wr_opcode::IBV_WR_SEND {
        // SAFETY: the read of the union requires that this field was written, as of every read and
        // write.
        let rdma = unsafe { request.wr.rdma };
        words.extend([rdma.remote_addr, rdma.rkey.into()]);
    } else if kind == ibv_qp_type::IBV_QPT_UD {
        // SAFETY: the read of the union requires that this field was written, as of every datagram.
        let ud = unsafe { request.wr.ud };
        words.extend([ud.ah.word(), ud.remote_qpn.into(), ud.remote_qkey.into()]);
    }
    arrived("post_send", &words);
    // SAFETY: write requires space for a pointer, to which every caller of the operation points.
    unsafe { bad.write(wr) };
    next_answer()
}

/// Records a receive for either kind of queue.
///
/// # Safety
///
/// `wr` is a request with its list.
unsafe fn received(name: &'static str, queue: u64, wr: *mut ibv_recv_wr) -> c_int {
    // SAFETY: read requires a request, by this function's condition.
    let request = unsafe { wr.read() };
    let mut words = vec![queue, request.wr_id, request.next.addr() as u64];
    // SAFETY: entries requires the request's list, by this function's condition.
    words.extend(unsafe { entries(request.sg_list, request.num_sge) });
    arrived(name, &words);
    next_answer()
}

unsafe extern "C" fn received_by_qp(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: received requires a request with its list, as the functions under test post.
    unsafe { received("post_recv", qp.word(), wr) }
}

unsafe extern "C" fn received_by_srq(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: received requires a request with its list, as the functions under test post.
    unsafe { received("post_srq_recv", srq.word(), wr) }
}

/// A context whose queues record their requests, and an identifier in it.
fn recording() -> Live<rdma_cm_id> {
    let world = World::new();
    world.edit(|extended| {
        extended.context.ops.post_send = Some(sent);
        extended.context.ops.post_recv = Some(received_by_qp);
        extended.context.ops.post_srq_recv = Some(received_by_srq);
    });
    identifier(&world)
}

/// The application's identifier of a request.
const CONTEXT: *mut c_void = std::ptr::without_provenance_mut(0xfeed_0000_1234);
const REMOTE: u64 = 0x1234_5678_9abc_def0;
const RKEY: u32 = 0xdead_beef;
const FLAGS: c_int = 0xa;

/// Lists of 0, 1 and 3 entries.
fn lists() -> Vec<(*mut ibv_sge, c_int)> {
    let list: Vec<_> = (1..4).map(|n| ibv_sge { addr: n << 40, length: n as u32 * 7, lkey: n as u32 }).collect();
    let list = list.leak().as_mut_ptr();
    vec![(null_mut(), 0), (list, 1), (list, 3)]
}

/// Compares for a verb that succeeds and one that fails.
fn both(rust: impl Fn() -> c_int, c: impl Fn() -> c_int) -> Seen {
    failed(&compare(&[ENOMEM], &rust, &c), ENOMEM);
    let seen = compare(&[0], rust, c);
    assert_eq!((seen.answer, seen.calls.len()), (0, 1));
    seen
}

fn post_recvv(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_post_recvv", fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int) -> c_int);
    let identifier = recording();
    let id = identifier.ptr();
    for name in ["post_srq_recv", "post_recv"] {
        for (list, n) in lists() {
            let rust = call!(rdma_post_recvv(id, CONTEXT, list, n));
            let seen = both(rust, call!(twin(id, CONTEXT, list, n)));
            assert_eq!(seen.calls[0].0, name);
        }
        identifier.edit(|id| id.srq = null_mut());
    }
    true
}

fn post_sendv(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_post_sendv", fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int) -> c_int);
    let identifier = recording();
    let id = identifier.ptr();
    for (list, n) in lists() {
        for flags in [0, FLAGS, -1] {
            let rust = call!(rdma_post_sendv(id, CONTEXT, list, n, flags));
            both(rust, call!(twin(id, CONTEXT, list, n, flags)));
        }
    }
    true
}

fn post_readv(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_readv",
        fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32) -> c_int
    );
    let identifier = recording();
    let id = identifier.ptr();
    for (list, n) in lists() {
        let rust = call!(rdma_post_readv(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY));
        both(rust, call!(twin(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY)));
    }
    true
}

fn post_writev(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_writev",
        fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32) -> c_int
    );
    let identifier = recording();
    let id = identifier.ptr();
    for (list, n) in lists() {
        let rust = call!(rdma_post_writev(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY));
        both(rust, call!(twin(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY)));
    }
    true
}

/// Memory of 64 bytes, and a region of it.
fn region() -> (*mut c_void, *mut ibv_mr) {
    let memory: *mut c_void = leak::<[u64; 8]>().cast();
    (memory, Live::new(ibv_mr { addr: memory, length: 64, lkey: 0x77, ..ibv_mr::default() }).ptr())
}

fn post_recv(twins: &Twins) -> bool {
    let twin =
        twin!(twins, "rdma_post_recv", fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr) -> c_int);
    let identifier = recording();
    let id = identifier.ptr();
    let (memory, mr) = region();
    for (offset, length) in [(0, 64), (0, 0), (64, 0), (63, 1), (8, 16)] {
        let addr = memory.wrapping_byte_add(offset);
        let rust = call!(rdma_post_recv(id, CONTEXT, addr, length, mr));
        both(rust, call!(twin(id, CONTEXT, addr, length, mr)));
    }
    // In C the header's assertion stops these.
    for (offset, length) in [(0, 65), (64, 1), (usize::MAX, 1), (1, 64)] {
        let addr = memory.wrapping_byte_add(offset);
        let posted = std::panic::catch_unwind(call!(rdma_post_recv(id, CONTEXT, addr, length, mr)));
        assert_eq!(posted.is_err(), cfg!(debug_assertions), "{offset} {length}");
    }
    true
}

/// Memory, lengths and the region of requests. C cuts lengths off at 32 bits.
fn pieces() -> impl Iterator<Item = (*mut c_void, usize, *mut ibv_mr)> {
    let (memory, mr) = region();
    [0, 1, 64, u32::MAX as usize, (1 << 32) + 5].into_iter().map(move |length| (memory, length, mr))
}

fn post_send(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_send",
        fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int) -> c_int
    );
    let identifier = recording();
    let id = identifier.ptr();
    for (addr, length, region) in pieces() {
        for mr in [region, null_mut()] {
            let rust = call!(rdma_post_send(id, CONTEXT, addr, length, mr, FLAGS));
            both(rust, call!(twin(id, CONTEXT, addr, length, mr, FLAGS)));
        }
    }
    true
}

fn post_read(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_read",
        fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32) -> c_int
    );
    let identifier = recording();
    let id = identifier.ptr();
    for (addr, length, mr) in pieces() {
        let rust = call!(rdma_post_read(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY));
        both(rust, call!(twin(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY)));
    }
    true
}

fn post_write(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_write",
        fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32) -> c_int
    );
    let identifier = recording();
    let id = identifier.ptr();
    for (addr, length, region) in pieces() {
        for mr in [region, null_mut()] {
            let rust = call!(rdma_post_write(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY));
            both(rust, call!(twin(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY)));
        }
    }
    true
}

fn post_ud_send(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_ud_send",
        fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, *mut ibv_ah, u32) -> c_int
    );
    let identifier = recording();
    let id = identifier.ptr();
    let ah = leak::<ibv_ah>();
    // SAFETY: the write requires a live queue pair that no other thread uses (1).
    unsafe { (*identifier.get().qp).qp_type = ibv_qp_type::IBV_QPT_UD };
    for (addr, length, region) in pieces() {
        for mr in [region, null_mut()] {
            let rust = call!(rdma_post_ud_send(id, CONTEXT, addr, length, mr, FLAGS, ah, 0x123));
            let seen = both(rust, call!(twin(id, CONTEXT, addr, length, mr, FLAGS, ah, 0x123)));
            assert!(seen.calls[0].1.ends_with(&[ah.word(), 0x123, 0x0123_4567]));
        }
    }
    true
}

type Wait = unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int;

/// Compares a wait: the queue is polled, asked for an event, polled again and waited for, with each
/// answer at each step.
fn waits(
    twins: &Twins,
    twin: Wait,
    rust: unsafe fn(&Ibverbs, *mut rdma_cm_id, *mut ibv_wc) -> c_int,
    queue_of: fn(&rdma_cm_id) -> (*mut ibv_cq, *mut ibv_comp_channel),
) {
    unsafe extern "C" fn poll(cq: *mut ibv_cq, number: c_int, wc: *mut ibv_wc) -> c_int {
        arrived("poll_cq", &[cq.word(), number.word(), wc.word()]);
        next_answer()
    }
    unsafe extern "C" fn notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
        arrived("req_notify_cq", &[cq.word(), solicited_only.word()]);
        next_answer()
    }
    /// Answers that the expected queue is ready.
    unsafe extern "C" fn event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> c_int {
        arrived("ibv_get_cq_event", &[channel.word()]);
        let (ready, id) = EVENT.with_borrow(|event| *event);
        // SAFETY: write requires space for a pointer, to which every caller of the symbol points.
        unsafe { cq.write(ready) };
        // SAFETY: write requires space for a pointer, to which every caller of the symbol points.
        unsafe { context.write(id) };
        next_answer()
    }
    unsafe extern "C" fn ack(cq: *mut ibv_cq, number: c_uint) {
        arrived("ibv_ack_cq_events", &[cq.word(), number.word()]);
    }
    thread_local! {
        static EVENT: RefCell<(*mut ibv_cq, *mut c_void)> = const { RefCell::new((null_mut(), null_mut())) };
    }
    let table = Ibverbs { ibv_get_cq_event: event, ibv_ack_cq_events: ack, ..Ibverbs::UNSUPPORTED };
    // SAFETY: hook requires the symbol's type, which the table's entry has.
    unsafe { twins.hook("ibv_get_cq_event", table.ibv_get_cq_event) };
    // SAFETY: hook requires the symbol's type, which the table's entry has.
    unsafe { twins.hook("ibv_ack_cq_events", table.ibv_ack_cq_events) };
    let world = World::new();
    world.edit(|extended| {
        extended.context.ops.poll_cq = Some(poll);
        extended.context.ops.req_notify_cq = Some(notify);
    });
    let identifier = identifier(&world);
    let (cq, channel) = queue_of(&identifier.get());
    let id = identifier.ptr();
    EVENT.set((cq, id.cast()));
    let wc = leak::<ibv_wc>();
    let mut answers = Vec::new();
    for script in [
        &[1][..],
        &[-1],
        &[-5],
        &[0, 0, 1],
        &[0, 0, -1],
        &[0, EINVAL],
        &[0, 0, 0, -1],
        &[0, 0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[0, 0, 0, 0, 0, 0, 0, -1],
    ] {
        let seen = compare(script, call!(rust(&table, id, wc)), call!(twin(id, wc)));
        for (name, words) in &seen.calls {
            assert_eq!(words[0], if *name == "ibv_get_cq_event" { channel.word() } else { cq.word() }, "{name}");
        }
        answers.push((seen.answer as c_int, seen.errno));
    }
    // The fakes leave 77 in errno.
    let minus = |errno| (-1, errno);
    assert_eq!(
        answers,
        [(1, 77), minus(-1), minus(-5), (1, 77), minus(-1), minus(EINVAL), minus(77), (1, 77), (1, 77), minus(77),]
    );
}

fn get_send_comp(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_get_send_comp", fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int);
    waits(twins, twin, Ibverbs::rdma_get_send_comp, |id| (id.send_cq, id.send_cq_channel));
    true
}

fn get_recv_comp(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_get_recv_comp", fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int);
    waits(twins, twin, Ibverbs::rdma_get_recv_comp, |id| (id.recv_cq, id.recv_cq_channel));
    true
}
