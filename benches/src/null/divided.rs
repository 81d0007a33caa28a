//! A provider without a device for several threads: each completion queue has a list of its own, so
//! threads whose queue pairs have different completion queues share nothing.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rdma_sys::{
    ibv_context, ibv_cq, ibv_qp, ibv_send_flags, ibv_send_wr, ibv_wc, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use super::DEPTH;

/// Most completion queues of a process.
const QUEUES: usize = 16;

/// The completion queues, each at the index of its list. An entry is written once.
static OWNERS: [AtomicPtr<ibv_cq>; QUEUES] = [const { AtomicPtr::new(ptr::null_mut()) }; QUEUES];
static LISTS: [List; QUEUES] = [const { List::new() }; QUEUES];

/// Requests that were posted and not yet polled.
///
/// Atomics keep the functions of this module sound from any thread. A list is right if one thread
/// at a time posts to it, and one polls it.
#[repr(align(128))]
struct List {
    posted: AtomicUsize,
    polled: AtomicUsize,
    requests: [Request; DEPTH],
}

struct Request {
    wr_id: AtomicU64,
    qp_num: AtomicU32,
    opcode: AtomicU32,
}

impl List {
    const fn new() -> Self {
        Self { posted: AtomicUsize::new(0), polled: AtomicUsize::new(0), requests: [const { Request::new() }; DEPTH] }
    }

    /// The list of a completion queue, which gets one if it has none; none if there are too many.
    fn of(cq: *mut ibv_cq) -> Option<&'static Self> {
        for (owner, list) in OWNERS.iter().zip(&LISTS) {
            let known = owner.load(Ordering::Relaxed);
            let is_own = known == cq || known.is_null() && Self::claim(owner, cq);
            if is_own {
                return Some(list);
            }
        }
        None
    }

    /// Gives a list to a completion queue; false if another one has got it.
    fn claim(owner: &AtomicPtr<ibv_cq>, cq: *mut ibv_cq) -> bool {
        let claimed = owner.compare_exchange(ptr::null_mut(), cq, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok() || claimed == Err(cq)
    }

    /// Adds a request; false if there is no space.
    fn push(&self, wr_id: u64, qp_num: u32, opcode: ibv_wc_opcode) -> bool {
        let posted = self.posted.load(Ordering::Relaxed);
        if posted.wrapping_sub(self.polled.load(Ordering::Acquire)) == DEPTH {
            return false;
        }
        let request = &self.requests[posted % DEPTH];
        request.wr_id.store(wr_id, Ordering::Relaxed);
        request.qp_num.store(qp_num, Ordering::Relaxed);
        request.opcode.store(opcode.0, Ordering::Relaxed);
        self.posted.store(posted.wrapping_add(1), Ordering::Release);
        true
    }

    /// Takes the oldest request.
    fn pop(&self) -> Option<ibv_wc> {
        let polled = self.polled.load(Ordering::Relaxed);
        if polled == self.posted.load(Ordering::Acquire) {
            return None;
        }
        let request = &self.requests[polled % DEPTH];
        let completion = ibv_wc {
            wr_id: request.wr_id.load(Ordering::Relaxed),
            status: ibv_wc_status::IBV_WC_SUCCESS,
            opcode: ibv_wc_opcode(request.opcode.load(Ordering::Relaxed)),
            qp_num: request.qp_num.load(Ordering::Relaxed),
            ..Default::default()
        };
        self.polled.store(polled.wrapping_add(1), Ordering::Release);
        Some(completion)
    }
}

impl Request {
    const fn new() -> Self {
        Self { wr_id: AtomicU64::new(0), qp_num: AtomicU32::new(0), opcode: AtomicU32::new(0) }
    }
}

/// Replaces the functions of `context` that post sends and poll by the functions of this module.
///
/// # Safety
///
/// As for [`install`](super::install).
pub unsafe fn install(context: *mut ibv_context) {
    // SAFETY: the reference requires a live context that nothing else uses at the same time: both
    // are conditions of this function.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = Some(post_send);
    ops.poll_cq = Some(poll_cq);
}

/// The opcode of the completion of a request.
fn completed(opcode: ibv_wr_opcode) -> ibv_wc_opcode {
    match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
            ibv_wc_opcode::IBV_WC_RDMA_WRITE
        }
        ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
        _ => ibv_wc_opcode::IBV_WC_SEND,
    }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the read requires a live queue pair: ibv_post_send requires one of its caller.
    let cq = unsafe { (*qp).send_cq };
    // SAFETY: as for the read above.
    let qp_num = unsafe { (*qp).qp_num };
    let list = List::of(cq);
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the reference requires a request that nothing changes at the same time:
        // ibv_post_send requires of its caller a chain of valid requests for the duration of the
        // call.
        let request = unsafe { &*next };
        let is_signaled = request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
        let store = |list: &List| list.push(request.wr_id, qp_num, completed(request.opcode));
        if is_signaled && !list.is_some_and(store) {
            // SAFETY: the write requires space for a pointer: ibv_post_send requires that of its
            // caller.
            unsafe { *bad_wr = next };
            return libc::ENOMEM;
        }
        next = request.next;
    }
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let Some(list) = List::of(cq) else { return 0 };
    let mut count = 0;
    while count < num_entries {
        let Some(completion) = list.pop() else { break };
        // SAFETY: write requires space for a completion: ibv_poll_cq requires of its caller space
        // for `num_entries` completions, and `count` is smaller.
        unsafe { wc.wrapping_add(usize::try_from(count).unwrap_or(0)).write(completion) };
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use rdma_sys::{ibv_poll_cq, ibv_post_send};

    use super::*;

    #[test]
    fn each_completion_queue_has_its_own_requests() {
        let mut context = ibv_context::default();
        // SAFETY: install requires a live context that nothing else uses: `context` is a local.
        unsafe { install(&raw mut context) };
        let mut cqs = [(); 2].map(|()| ibv_cq { context: &raw mut context, ..Default::default() });
        for (number, cq) in (1..).zip(&mut cqs) {
            let mut qp =
                ibv_qp { qp_num: number, context: &raw mut context, send_cq: &raw mut *cq, ..Default::default() };
            let send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
            let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            let mut request = ibv_send_wr { wr_id: number.into(), opcode, send_flags, ..Default::default() };
            let mut bad = ptr::null_mut();
            // SAFETY: ibv_post_send requires a queue pair whose context has a `post_send`, a chain
            // that ends in NULL, and space for a pointer: all are locals, and `install` set
            // `post_send`.
            assert_eq!(unsafe { ibv_post_send(&raw mut qp, &raw mut request, &raw mut bad) }, 0);
        }
        for (number, cq) in (1..).zip(&mut cqs) {
            let mut wc = [ibv_wc::default(); 4];
            // SAFETY: ibv_poll_cq requires a queue whose context has a `poll_cq`, and space for 4
            // completions: both are locals, and `install` set `poll_cq`.
            let mut poll = || unsafe { ibv_poll_cq(&raw mut *cq, 4, wc.as_mut_ptr()) };
            assert_eq!((poll(), poll()), (1, 0));
            assert_eq!((wc[0].wr_id, wc[0].qp_num), (number.into(), number));
            assert_eq!(wc[0].opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
        }
    }
}
