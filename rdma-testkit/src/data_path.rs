//! The data path of the test provider: it keeps posted requests, and the test makes the
//! completions. Numbers cite the invariants of the crate.

use std::ffi::c_int;
use std::ptr;

use rdma_sys::*;

use super::objects::{FakeChannel, FakeContext, FakeCq, FakeQp, Posted, ring};
use super::world::{BadWr, called, world};

/// Makes the next post take `accept` requests and then fail.
pub fn fail_post(accept: usize, errno: i32, blame: BadWr) {
    world(|world| world.post_fault = Some((accept, errno, blame)));
}

/// Cancels [`fail_post`], if no post came.
pub fn unfail_post() {
    world(|world| world.post_fault = None);
}

/// The requests posted to a queue pair of this provider, in order.
#[must_use]
pub fn posted(qp: *mut ibv_qp) -> Vec<Posted> {
    // SAFETY: tests give a live queue pair of this provider (1).
    unsafe { &*qp.cast::<FakeQp>() }.state.lock().unwrap().posted.clone()
}

/// Puts a completion into a queue of this provider; raises its event if it is armed.
pub fn complete(cq: *mut ibv_cq, completion: ibv_wc) {
    // SAFETY: tests give a live queue of this provider (1).
    let fake = unsafe { &*cq.cast::<FakeCq>() };
    let mut state = fake.state.lock().unwrap();
    state.completions.push_back(completion);
    // SAFETY: the read requires a live queue of this provider (1); the field is constant.
    let channel = unsafe { (*cq).channel };
    if std::mem::take(&mut state.armed) && !channel.is_null() {
        // SAFETY: the cast requires a live channel of this provider: the queue's, which outlives it
        // (1).
        let fake = unsafe { &*channel.cast::<FakeChannel>() };
        fake.events.lock().unwrap().push_back(cq.expose_provenance());
        // SAFETY: the read requires a live channel of this provider (1); the field is constant.
        ring(unsafe { (*channel).fd });
    }
}

/// How many completions are in a queue of this provider.
#[must_use]
pub fn pending(cq: *mut ibv_cq) -> usize {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().completions.len()
}

/// Makes a queue of this provider raise no event for its next completion.
pub fn disarm(cq: *mut ibv_cq) {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().armed = false;
}

/// Makes a queue of this provider return `completion` without end, or no longer.
pub fn flood(cq: *mut ibv_cq, completion: Option<ibv_wc>) {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().flood = completion;
}

/// Raises an asynchronous event.
pub fn raise(context: *mut ibv_context, event: ibv_async_event) {
    // SAFETY: tests give an open context of this provider (1).
    unsafe { &*context.cast::<FakeContext>() }.events.lock().unwrap().push_back(event);
    // SAFETY: the read requires an open context of this provider (1); the field is constant.
    ring(unsafe { (*context).async_fd });
}

pub(crate) fn fill(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
}

pub(crate) unsafe fn sges(list: *mut ibv_sge, count: c_int) -> Vec<ibv_sge> {
    let count = usize::try_from(count).unwrap();
    // SAFETY: the read requires an entry of the list: a request points to as many as it says.
    (0..count).map(|index| unsafe { *list.wrapping_add(index) }).collect()
}

/// Takes requests from a chain until the chain ends or the test's fault stops it.
pub(crate) fn post<W>(
    operation: &'static str,
    queue: &mut Vec<Posted>,
    mut wr: *mut W,
    bad: *mut *mut W,
    read: impl Fn(&W) -> (Posted, *mut W),
) -> c_int {
    let plain = called(operation);
    let fault = world(|world| world.post_fault.take());
    let (accept, errno, blame) =
        fault.unwrap_or(if plain == 0 { (usize::MAX, 0, BadWr::Chain) } else { (0, plain, BadWr::Chain) });
    let mut taken = 0;
    while !wr.is_null() && taken < accept {
        // SAFETY: the reference requires a live request: the caller gives a chain of them.
        let (posted, next) = read(unsafe { &*wr });
        queue.push(posted);
        wr = next;
        taken += 1;
    }
    if errno != 0 {
        let blamed = match blame {
            BadWr::Chain => wr,
            BadWr::Null => ptr::null_mut(),
            BadWr::Alien => ptr::dangling_mut(),
        };
        // SAFETY: the caller gives space for the pointer.
        unsafe { *bad = blamed };
    }
    errno
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the cast requires a live queue pair of this provider (1): the caller gives one.
    let mut state = unsafe { &*qp.cast::<FakeQp>() }.state.lock().unwrap();
    post("post_send", &mut state.posted, wr, bad, |wr| {
        // SAFETY: sges requires a list of `num_sge` entries: the request's own.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) };
        // SAFETY: the read requires a live queue pair of this provider (1): the caller gives one.
        let is_datagram = unsafe { (*qp).qp_type } == ibv_qp_type::IBV_QPT_UD;
        let to = is_datagram.then(|| {
            // SAFETY: a union read requires the member that was written: `ud` in a datagram's
            // request.
            let ud = unsafe { wr.wr.ud };
            (super::handle_of(ud.ah), ud.remote_qpn, ud.remote_qkey)
        });
        let posted = Posted { wr_id: wr.wr_id, recv: false, opcode: wr.opcode.0, flags: wr.send_flags, sges, to };
        (posted, wr.next)
    })
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the cast requires a live queue pair of this provider (1): the caller gives one.
    let mut state = unsafe { &*qp.cast::<FakeQp>() }.state.lock().unwrap();
    post("post_recv", &mut state.posted, wr, bad, |wr| {
        // SAFETY: sges requires a list of `num_sge` entries: the request's own.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) };
        (Posted { wr_id: wr.wr_id, recv: true, opcode: 0, flags: 0, sges, to: None }, wr.next)
    })
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    let errno = called("poll_cq");
    if errno != 0 {
        return -errno;
    }
    // SAFETY: the cast requires a live queue of this provider (1): the caller gives one.
    let fake = unsafe { &*cq.cast::<FakeCq>() };
    let mut state = fake.state.lock().unwrap();
    let mut count = 0;
    while count < room {
        let Some(completion) = state.completions.pop_front().or(state.flood) else { break };
        // SAFETY: the caller gives space for `room` completions, and `count` is less.
        unsafe { out.wrapping_add(usize::try_from(count).unwrap()).write(completion) };
        count += 1;
    }
    count
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    // SAFETY: the cast requires a live queue of this provider (1): the caller gives one.
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().armed = true;
    called("req_notify_cq")
}
