//! The inline functions of `rdma_cma.h` and `rdma_verbs.h`.

use std::{cell::RefCell, collections::VecDeque, ptr::null_mut};

use libc::{EINVAL, ENOMEM, c_int, c_uint, c_void, sockaddr};
use rdma_sys::*;

use crate::{
    library::Twins,
    regular::Case,
    special::{export, fake, twin},
    world::{Seen, Value, World, arrived, leak, observe},
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
    /// What the operations answer next; 0 where nothing stands.
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
        // SAFETY: a function of numbers.
        let seen = compare(&[], || rdma_seterrno(value), || unsafe { twin(value) });
        assert_eq!((seen.answer as c_int, seen.errno), (-c_int::from(value != 0), value));
    }
    true
}

fn get_local_addr(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_get_local_addr", fn(*mut rdma_cm_id) -> *mut sockaddr);
    let id = leak::<rdma_cm_id>();
    // SAFETY: the identifier is live.
    let (rust, c) = (unsafe { rdma_get_local_addr(id) }, unsafe { twin(id) });
    assert_eq!((rust, rust.is_null()), (c, false));
    true
}

fn get_peer_addr(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_get_peer_addr", fn(*mut rdma_cm_id) -> *mut sockaddr);
    let id = leak::<rdma_cm_id>();
    // SAFETY: the identifier is live.
    let (rust, c) = (unsafe { rdma_get_peer_addr(id) }, unsafe { twin(id) });
    assert_eq!((rust, rust.is_null()), (c, false));
    true
}

/// An identifier with all objects.
fn identifier(world: &World) -> *mut rdma_cm_id {
    let id = leak::<rdma_cm_id>();
    let filled = rdma_cm_id {
        verbs: world.context,
        qp: Value::make(world, 0),
        srq: Value::make(world, 0),
        pd: Value::make(world, 0),
        send_cq: Value::make(world, 0),
        recv_cq: Value::make(world, 0),
        send_cq_channel: leak(),
        recv_cq_channel: leak(),
        ..rdma_cm_id::default()
    };
    // SAFETY: it was just made.
    unsafe { id.write(filled) };
    id
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
    let id = identifier(&World::new());
    let memory = leak::<u64>().cast();
    // SAFETY: the identifier is live and has a domain, and the symbol is a fake that touches no memory.
    let seen = compare(&[], || unsafe { rust(&table, id, memory, 8) }, || unsafe { twin(id, memory, 8) });
    // SAFETY: the identifier is live.
    let pd = unsafe { (*id).pd };
    assert_eq!(seen.calls, [("ibv_reg_mr", vec![pd.word(), memory.word(), 8, access.into()])]);
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
    // SAFETY: this is the symbol's type.
    unsafe { twins.hook("ibv_dereg_mr", table.ibv_dereg_mr) };
    let mr = <*mut ibv_mr>::make(&World::new(), 0);
    // SAFETY: the region is live, and the symbol is a fake.
    let compare = |answer| compare(&[answer], || unsafe { table.rdma_dereg_mr(mr) }, || unsafe { twin(mr) });
    assert_eq!(compare(0).answer, 0);
    failed(&compare(EINVAL), EINVAL);
    true
}

/// What a list says: every entry's contents.
///
/// # Safety
///
/// There are so many entries.
unsafe fn entries(list: *const ibv_sge, number: c_int) -> Vec<u64> {
    let mut words = vec![number.word()];
    for index in 0..usize::try_from(number).expect("not negative") {
        let place = list.wrapping_add(index);
        // SAFETY: the caller's promise.
        let entry = unsafe { place.read() };
        words.extend([entry.addr, entry.length.into(), entry.lkey.into()]);
    }
    words
}

unsafe extern "C" fn sent(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller posts a request. (Only what its operation uses is read: in C the rest is undefined.)
    let request = unsafe { &*wr };
    let (next, opcode, flags) = (request.next.addr() as u64, request.opcode, request.send_flags);
    let mut words = vec![qp.word(), request.wr_id, next, opcode.0.into(), flags.into()];
    // SAFETY: as above.
    words.extend(unsafe { entries(request.sg_list, request.num_sge) });
    // SAFETY: the queue pair is live; the test says by its type which fields a send uses.
    let kind = unsafe { (*qp).qp_type };
    if opcode != ibv_wr_opcode::IBV_WR_SEND {
        // SAFETY: as above.
        let rdma = unsafe { request.wr.rdma };
        words.extend([rdma.remote_addr, rdma.rkey.into()]);
    } else if kind == ibv_qp_type::IBV_QPT_UD {
        // SAFETY: as above.
        let ud = unsafe { request.wr.ud };
        words.extend([ud.ah.word(), ud.remote_qpn.into(), ud.remote_qkey.into()]);
    }
    arrived("post_send", &words);
    // SAFETY: the caller made room.
    unsafe { bad.write(wr) };
    next_answer()
}

/// What arrives for a receive, whatever queue it is for.
///
/// # Safety
///
/// The caller posts a request.
unsafe fn received(name: &'static str, queue: u64, wr: *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller posts a request.
    let request = unsafe { wr.read() };
    let mut words = vec![queue, request.wr_id, request.next.addr() as u64];
    // SAFETY: as above.
    words.extend(unsafe { entries(request.sg_list, request.num_sge) });
    arrived(name, &words);
    next_answer()
}

unsafe extern "C" fn received_by_qp(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { received("post_recv", qp.word(), wr) }
}

unsafe extern "C" fn received_by_srq(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { received("post_srq_recv", srq.word(), wr) }
}

/// A context whose queues record their requests, and an identifier in it.
fn recording() -> *mut rdma_cm_id {
    let world = World::new();
    // SAFETY: the context was just made.
    let ops = unsafe { &mut (*world.context).ops };
    ops.post_send = Some(sent);
    ops.post_recv = Some(received_by_qp);
    ops.post_srq_recv = Some(received_by_srq);
    identifier(&world)
}

/// The application's word for a request.
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
    let id = recording();
    for name in ["post_srq_recv", "post_recv"] {
        for (list, n) in lists() {
            // SAFETY: the identifier has both queues; the operations are fakes.
            let rust = || unsafe { rdma_post_recvv(id, CONTEXT, list, n) };
            // SAFETY: as above.
            let seen = both(rust, || unsafe { twin(id, CONTEXT, list, n) });
            assert_eq!(seen.calls[0].0, name);
        }
        // SAFETY: the identifier is live. From now on it has no shared queue.
        unsafe { (*id).srq = null_mut() };
    }
    true
}

fn post_sendv(twins: &Twins) -> bool {
    let twin = twin!(twins, "rdma_post_sendv", fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int) -> c_int);
    let id = recording();
    for (list, n) in lists() {
        for flags in [0, FLAGS, -1] {
            // SAFETY: the identifier has a queue pair; the operation is a fake.
            let rust = || unsafe { rdma_post_sendv(id, CONTEXT, list, n, flags) };
            // SAFETY: as above.
            both(rust, || unsafe { twin(id, CONTEXT, list, n, flags) });
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
    let id = recording();
    for (list, n) in lists() {
        // SAFETY: the identifier has a queue pair; the operation is a fake.
        let rust = || unsafe { rdma_post_readv(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY) };
        // SAFETY: as above.
        both(rust, || unsafe { twin(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY) });
    }
    true
}

fn post_writev(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_writev",
        fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32) -> c_int
    );
    let id = recording();
    for (list, n) in lists() {
        // SAFETY: the identifier has a queue pair; the operation is a fake.
        let rust = || unsafe { rdma_post_writev(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY) };
        // SAFETY: as above.
        both(rust, || unsafe { twin(id, CONTEXT, list, n, FLAGS, REMOTE, RKEY) });
    }
    true
}

/// Memory of 64 bytes, and a region of it.
fn region() -> (*mut c_void, *mut ibv_mr) {
    let memory: *mut c_void = leak::<[u64; 8]>().cast();
    let mr = leak::<ibv_mr>();
    // SAFETY: it was just made.
    unsafe { mr.write(ibv_mr { addr: memory, length: 64, lkey: 0x77, ..ibv_mr::default() }) };
    (memory, mr)
}

fn post_recv(twins: &Twins) -> bool {
    let twin =
        twin!(twins, "rdma_post_recv", fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr) -> c_int);
    let id = recording();
    let (memory, mr) = region();
    for (offset, length) in [(0, 64), (0, 0), (64, 0), (63, 1), (8, 16)] {
        let addr = memory.wrapping_byte_add(offset);
        // SAFETY: the identifier has both queues; the operations are fakes that touch no memory.
        let rust = || unsafe { rdma_post_recv(id, CONTEXT, addr, length, mr) };
        // SAFETY: as above.
        both(rust, || unsafe { twin(id, CONTEXT, addr, length, mr) });
    }
    // What the header's assertion stops in C.
    for (offset, length) in [(0, 65), (64, 1), (usize::MAX, 1), (1, 64)] {
        let addr = memory.wrapping_byte_add(offset);
        // SAFETY: as above.
        let posted = std::panic::catch_unwind(|| unsafe { rdma_post_recv(id, CONTEXT, addr, length, mr) });
        assert_eq!(posted.is_err(), cfg!(debug_assertions), "{offset} {length}");
    }
    true
}

/// The region of a request, which may be missing, and lengths: more than 32 bits are cut off in C.
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
    let id = recording();
    for (addr, length, region) in pieces() {
        for mr in [region, null_mut()] {
            // SAFETY: the identifier has a queue pair; the operation is a fake that touches no memory.
            let rust = || unsafe { rdma_post_send(id, CONTEXT, addr, length, mr, FLAGS) };
            // SAFETY: as above.
            both(rust, || unsafe { twin(id, CONTEXT, addr, length, mr, FLAGS) });
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
    let id = recording();
    for (addr, length, mr) in pieces() {
        // SAFETY: the identifier has a queue pair; the operation is a fake that touches no memory.
        let rust = || unsafe { rdma_post_read(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY) };
        // SAFETY: as above.
        both(rust, || unsafe { twin(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY) });
    }
    true
}

fn post_write(twins: &Twins) -> bool {
    let twin = twin!(
        twins,
        "rdma_post_write",
        fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32) -> c_int
    );
    let id = recording();
    for (addr, length, region) in pieces() {
        for mr in [region, null_mut()] {
            // SAFETY: the identifier has a queue pair; the operation is a fake that touches no memory.
            let rust = || unsafe { rdma_post_write(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY) };
            // SAFETY: as above.
            both(rust, || unsafe { twin(id, CONTEXT, addr, length, mr, FLAGS, REMOTE, RKEY) });
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
    let id = recording();
    let ah = leak::<ibv_ah>();
    // SAFETY: the identifier is live.
    let qp = unsafe { (*id).qp };
    // SAFETY: so is its queue pair.
    unsafe { (*qp).qp_type = ibv_qp_type::IBV_QPT_UD };
    for (addr, length, region) in pieces() {
        for mr in [region, null_mut()] {
            // SAFETY: the identifier has a queue pair; the operation is a fake that touches no memory.
            let rust = || unsafe { rdma_post_ud_send(id, CONTEXT, addr, length, mr, FLAGS, ah, 0x123) };
            // SAFETY: as above.
            let seen = both(rust, || unsafe { twin(id, CONTEXT, addr, length, mr, FLAGS, ah, 0x123) });
            assert!(seen.calls[0].1.ends_with(&[ah.word(), 0x123, 0x0123_4567]));
        }
    }
    true
}

type Wait = unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int;

/// Both ways to wait: the queue polled, asked for an event, polled again and waited for, with each answer there.
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
    /// Answers that the queue that is waited for is ready.
    unsafe extern "C" fn event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        context: *mut *mut c_void,
    ) -> c_int {
        arrived("ibv_get_cq_event", &[channel.word()]);
        let (ready, id) = EVENT.with_borrow(|event| *event);
        // SAFETY: the caller made room.
        unsafe { cq.write(ready) };
        // SAFETY: as above.
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
    // SAFETY: this is the symbol's type.
    unsafe { twins.hook("ibv_get_cq_event", table.ibv_get_cq_event) };
    // SAFETY: as above.
    unsafe { twins.hook("ibv_ack_cq_events", table.ibv_ack_cq_events) };
    let world = World::new();
    // SAFETY: the context was just made.
    let ops = unsafe { &mut (*world.context).ops };
    ops.poll_cq = Some(poll);
    ops.req_notify_cq = Some(notify);
    let id = identifier(&world);
    // SAFETY: the identifier is live.
    let (cq, channel) = queue_of(unsafe { &*id });
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
        // SAFETY: queues and channels are there, their operations are fakes, and there is room for the completion.
        let seen = compare(script, || unsafe { rust(&table, id, wc) }, || unsafe { twin(id, wc) });
        for (name, words) in &seen.calls {
            assert_eq!(words[0], if *name == "ibv_get_cq_event" { channel.word() } else { cq.word() }, "{name}");
        }
        answers.push((seen.answer as c_int, seen.errno));
    }
    // What the fakes leave in errno is 77.
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
