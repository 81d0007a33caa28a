//! A provider without a device: posting stores the identifiers of signaled sends and of receives,
//! and polling reports success for them.
//!
//! The cost of a post and a poll with this provider is the cost of the code above a provider.

pub mod divided;

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rdma_sys::{
    ibv_context, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_srq, ibv_wc, ibv_wc_opcode,
    ibv_wc_status,
};

/// Most signaled requests that wait for a poll.
const DEPTH: usize = 256;

/// Identifiers that were posted and not yet polled. Atomics keep these C-callable functions sound
/// from any thread; no order between threads is needed, because a benchmark posts and polls on one
/// thread.
static IDS: [AtomicU64; DEPTH] = [const { AtomicU64::new(0) }; DEPTH];
static POSTED: AtomicUsize = AtomicUsize::new(0);
static POLLED: AtomicUsize = AtomicUsize::new(0);
static QP_NUM: AtomicU32 = AtomicU32::new(0);
/// The operation of the requests that were posted last.
static OPCODE: AtomicU32 = AtomicU32::new(ibv_wc_opcode::IBV_WC_SEND.0);

/// Replaces the posting and polling functions of `context` by the functions of this module.
///
/// # Safety
///
/// `context` is a live context, and no other thread uses the context or its objects during the
/// call. Until the context is closed, no memory access depends on a transfer by its queues.
pub unsafe fn install(context: *mut ibv_context) {
    // SAFETY: the reference requires a live context that nothing else uses at the same time: both
    // are conditions of this function.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
}

/// Stores the identifier of a request; false if there is no space.
#[inline]
fn store(wr_id: u64) -> bool {
    let posted = POSTED.load(Ordering::Relaxed);
    if posted.wrapping_sub(POLLED.load(Ordering::Relaxed)) == DEPTH {
        return false;
    }
    IDS[posted % DEPTH].store(wr_id, Ordering::Relaxed);
    POSTED.store(posted.wrapping_add(1), Ordering::Relaxed);
    true
}

/// Stores the identifiers of a chain of receives.
///
/// # Safety
///
/// The chain and `bad_wr` are as `ibv_post_recv` requires them.
#[inline]
unsafe fn store_receives(wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    OPCODE.store(ibv_wc_opcode::IBV_WC_RECV.0, Ordering::Relaxed);
    let mut next = wr;
    // SAFETY: `as_ref` requires null, or a request that nothing changes at the same time: the
    // condition of this function.
    while let Some(request) = unsafe { next.as_ref() } {
        if !store(request.wr_id) {
            // SAFETY: the write requires space for a pointer: the condition of this function.
            unsafe { *bad_wr = next };
            return libc::ENOMEM;
        }
        next = request.next;
    }
    0
}

unsafe extern "C" fn post_recv(_qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `store_receives` requires what ibv_post_recv requires of its caller.
    unsafe { store_receives(wr, bad_wr) }
}

unsafe extern "C" fn post_srq_recv(_srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: `store_receives` requires what ibv_post_srq_recv requires of its caller, as
    // ibv_post_recv does.
    unsafe { store_receives(wr, bad_wr) }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the read requires a live queue pair: ibv_post_send requires one of its caller.
    QP_NUM.store(unsafe { (*qp).qp_num }, Ordering::Relaxed);
    OPCODE.store(ibv_wc_opcode::IBV_WC_SEND.0, Ordering::Relaxed);
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the reference requires a request that nothing changes at the same time:
        // ibv_post_send requires of its caller a chain of valid requests for the duration of the
        // call.
        let request = unsafe { &*next };
        let is_signaled = request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
        if is_signaled && !store(request.wr_id) {
            // SAFETY: the write requires space for a pointer: ibv_post_send requires that of its
            // caller.
            unsafe { *bad_wr = next };
            return libc::ENOMEM;
        }
        next = request.next;
    }
    0
}

unsafe extern "C" fn poll_cq(_cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let polled = POLLED.load(Ordering::Relaxed);
    let waiting = POSTED.load(Ordering::Relaxed).wrapping_sub(polled);
    let count = waiting.min(usize::try_from(num_entries).unwrap_or(0));
    for index in 0..count {
        let id = IDS[polled.wrapping_add(index) % DEPTH].load(Ordering::Relaxed);
        let completion = ibv_wc {
            wr_id: id,
            status: ibv_wc_status::IBV_WC_SUCCESS,
            opcode: ibv_wc_opcode(OPCODE.load(Ordering::Relaxed)),
            qp_num: QP_NUM.load(Ordering::Relaxed),
            ..Default::default()
        };
        // SAFETY: write requires space for a completion: ibv_poll_cq requires of its caller space
        // for `num_entries` completions, and `index` is smaller.
        unsafe { wc.wrapping_add(index).write(completion) };
    }
    POLLED.store(polled.wrapping_add(count), Ordering::Relaxed);
    c_int::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rdma_sys::{ibv_poll_cq, ibv_post_send};

    use super::*;

    #[test]
    fn a_signaled_request_is_reported_once() {
        let mut context = ibv_context::default();
        // SAFETY: install requires a live context that nothing else uses: `context` is a local.
        unsafe { install(&raw mut context) };
        let mut qp = ibv_qp { qp_num: 7, context: &raw mut context, ..Default::default() };
        let mut cq = ibv_cq { context: &raw mut context, ..Default::default() };

        let send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        let mut second = ibv_send_wr { wr_id: 2, send_flags, ..Default::default() };
        let mut first = ibv_send_wr { wr_id: 1, next: &raw mut second, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_send requires a queue pair whose context has a `post_send`, a chain that
        // ends in NULL, and space for a pointer: all are locals, and `install` set `post_send`.
        assert_eq!(unsafe { ibv_post_send(&raw mut qp, &raw mut first, &raw mut bad) }, 0);

        let mut wc = [ibv_wc::default(); 4];
        // SAFETY: ibv_poll_cq requires a queue whose context has a `poll_cq`, and space for 4
        // completions: both are locals, and `install` set `poll_cq`.
        let mut poll = || unsafe { ibv_poll_cq(&raw mut cq, 4, wc.as_mut_ptr()) };
        assert_eq!((poll(), poll()), (1, 0));
        assert_eq!((wc[0].wr_id, wc[0].qp_num, wc[0].status), (2, 7, ibv_wc_status::IBV_WC_SUCCESS));
    }
}
