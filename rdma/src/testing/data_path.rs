//! The data path of the test provider: what was posted is kept, what completes is up to the test.
//! Numbers cite the invariants of [`super`].

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;

use rdma_sys::*;

use super::table::{FakeChannel, FakeContext, FakeCq, FakeQp, ring};
use super::{called, world};

#[derive(Default)]
pub(super) struct CqState {
    completions: VecDeque<ibv_wc>,
    /// Comes again and again when there is nothing else.
    flood: Option<ibv_wc>,
    armed: bool,
}

#[derive(Default)]
pub(super) struct QpState {
    pub(super) attr: Option<ibv_qp_attr>,
    posted: Vec<Posted>,
    /// The multicast groups that it is attached to.
    pub(super) groups: Vec<(crate::Gid, u16)>,
}

/// A request that the provider took.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) recv: bool,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) sges: Vec<ibv_sge>,
    /// The number of the address handle, the queue pair and the Q_Key, of a datagram.
    pub(crate) to: Option<(u32, u32, u32)>,
}

/// Which request a failing post blames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadWr {
    /// The first that was not taken: what the interface wants.
    Chain,
    /// None at all.
    Null,
    /// One that is not in the chain.
    Alien,
}

/// Makes the next post take some requests and fail then.
pub(crate) fn fail_post(accept: usize, errno: i32, blame: BadWr) {
    world(|world| world.post_fault = Some((accept, errno, blame)));
}

/// Takes that back, if there was no post.
pub(crate) fn unfail_post() {
    world(|world| world.post_fault = None);
}

/// What was posted to a queue pair of this provider, in order.
pub(crate) fn posted(qp: *mut ibv_qp) -> Vec<Posted> {
    // SAFETY: tests give a live queue pair of this provider (1).
    unsafe { &*qp.cast::<FakeQp>() }.state.lock().unwrap().posted.clone()
}

/// Puts a completion into a queue of this provider; raises its event if it is armed.
pub(crate) fn complete(cq: *mut ibv_cq, completion: ibv_wc) {
    // SAFETY: tests give a live queue of this provider (1).
    let fake = unsafe { &*cq.cast::<FakeCq>() };
    let mut state = fake.state.lock().unwrap();
    state.completions.push_back(completion);
    // SAFETY: a live queue of this provider, whose channel does not change (1).
    let channel = unsafe { (*cq).channel };
    if std::mem::take(&mut state.armed) && !channel.is_null() {
        // SAFETY: the queue's channel, which outlives it (1).
        let fake = unsafe { &*channel.cast::<FakeChannel>() };
        fake.events.lock().unwrap().push_back(cq.expose_provenance());
        // SAFETY: that channel's descriptor does not change.
        ring(unsafe { (*channel).fd });
    }
}

/// How many completions lie in a queue of this provider.
pub(crate) fn pending(cq: *mut ibv_cq) -> usize {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().completions.len()
}

/// Makes a queue of this provider raise no event for the next completion.
pub(crate) fn disarm(cq: *mut ibv_cq) {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().armed = false;
}

/// Makes a queue of this provider never run out of a completion.
pub(crate) fn flood(cq: *mut ibv_cq, completion: Option<ibv_wc>) {
    // SAFETY: tests give a live queue of this provider (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().flood = completion;
}

/// Raises an asynchronous event.
pub(crate) fn raise(context: *mut ibv_context, event: ibv_async_event) {
    // SAFETY: tests give an open context of this provider (1).
    unsafe { &*context.cast::<FakeContext>() }.events.lock().unwrap().push_back(event);
    // SAFETY: an open context of this provider (1), whose descriptor does not change.
    ring(unsafe { (*context).async_fd });
}

pub(super) fn fill(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
}

unsafe fn sges(list: *mut ibv_sge, count: c_int) -> Vec<ibv_sge> {
    let count = usize::try_from(count).unwrap();
    // SAFETY: a request points to as many entries as it says.
    (0..count).map(|index| unsafe { *list.wrapping_add(index) }).collect()
}

/// Takes requests from a chain until it ends or the test's fault says so.
fn post<W>(
    operation: &'static str,
    qp: *mut ibv_qp,
    mut wr: *mut W,
    bad: *mut *mut W,
    read: impl Fn(&W) -> (Posted, *mut W),
) -> c_int {
    let plain = called(operation);
    let fault = world(|world| world.post_fault.take());
    let (accept, errno, blame) =
        fault.unwrap_or(if plain == 0 { (usize::MAX, 0, BadWr::Chain) } else { (0, plain, BadWr::Chain) });
    // SAFETY: a queue pair of ours (1).
    let fake = unsafe { &*qp.cast::<FakeQp>() };
    let mut state = fake.state.lock().unwrap();
    let mut taken = 0;
    while !wr.is_null() && taken < accept {
        // SAFETY: a chain of valid requests, by the caller.
        let (posted, next) = read(unsafe { &*wr });
        state.posted.push(posted);
        wr = next;
        taken += 1;
    }
    if errno != 0 {
        let blamed = match blame {
            BadWr::Chain => wr,
            BadWr::Null => ptr::null_mut(),
            BadWr::Alien => ptr::dangling_mut(),
        };
        // SAFETY: room for the pointer, by the caller.
        unsafe { *bad = blamed };
    }
    errno
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    post("post_send", qp, wr, bad, |wr| {
        // SAFETY: the request's own list.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) };
        // SAFETY: a queue pair of ours (1).
        let is_datagram = unsafe { (*qp).qp_type } == ibv_qp_type::IBV_QPT_UD;
        let to = is_datagram.then(|| {
            // SAFETY: a request to a datagram queue pair has this part of the union.
            let ud = unsafe { wr.wr.ud };
            (super::handle_of(ud.ah), ud.remote_qpn, ud.remote_qkey)
        });
        let posted = Posted { wr_id: wr.wr_id, recv: false, opcode: wr.opcode.0, flags: wr.send_flags, sges, to };
        (posted, wr.next)
    })
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    post("post_recv", qp, wr, bad, |wr| {
        // SAFETY: the request's own list.
        let sges = unsafe { sges(wr.sg_list, wr.num_sge) };
        (Posted { wr_id: wr.wr_id, recv: true, opcode: 0, flags: 0, sges, to: None }, wr.next)
    })
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    let errno = called("poll_cq");
    if errno != 0 {
        return -errno;
    }
    // SAFETY: a queue of ours (1).
    let fake = unsafe { &*cq.cast::<FakeCq>() };
    let mut state = fake.state.lock().unwrap();
    let mut count = 0;
    while count < room {
        let Some(completion) = state.completions.pop_front().or(state.flood) else { break };
        // SAFETY: room for `room` completions, by the caller.
        unsafe { out.wrapping_add(usize::try_from(count).unwrap()).write(completion) };
        count += 1;
    }
    count
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _solicited_only: c_int) -> c_int {
    // SAFETY: a queue of ours (1).
    unsafe { &*cq.cast::<FakeCq>() }.state.lock().unwrap().armed = true;
    called("req_notify_cq")
}
