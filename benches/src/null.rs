//! A provider that does nothing: posting remembers the ids of signaled requests, polling reports success for them.
//!
//! What is left of a post and a poll over it is the cost of the code above the provider.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rdma_sys::{ibv_context, ibv_cq, ibv_qp, ibv_send_flags, ibv_send_wr, ibv_wc, ibv_wc_opcode, ibv_wc_status};

/// Signaled requests that may wait to be polled.
const DEPTH: usize = 256;

/// What was posted and not yet polled. Atomics, so that these C-callable functions are sound from any thread; the order
/// between threads does not matter, because a benchmark posts and polls from one.
static IDS: [AtomicU64; DEPTH] = [const { AtomicU64::new(0) }; DEPTH];
static POSTED: AtomicUsize = AtomicUsize::new(0);
static POLLED: AtomicUsize = AtomicUsize::new(0);
static QP_NUM: AtomicU32 = AtomicU32::new(0);

/// Replaces the posting and polling functions of `context` by ones that do nothing.
///
/// # Safety
///
/// `context` is a live context, and no other thread uses it or its objects' functions during the call. Until it is closed,
/// nothing may depend on its queues really moving anything.
pub unsafe fn install(context: *mut ibv_context) {
    // SAFETY: `context` is live and nobody else reads or writes it now: the caller's promise.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = Some(post_send);
    ops.poll_cq = Some(poll_cq);
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller of `ibv_post_send` passes a live queue pair.
    QP_NUM.store(unsafe { (*qp).qp_num }, Ordering::Relaxed);
    let mut next = wr;
    while !next.is_null() {
        // SAFETY: the caller of `ibv_post_send` passes a chain of valid requests that ends in NULL.
        let request = unsafe { &*next };
        if request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0 {
            let posted = POSTED.load(Ordering::Relaxed);
            if posted.wrapping_sub(POLLED.load(Ordering::Relaxed)) == DEPTH {
                // SAFETY: the caller of `ibv_post_send` passes a place for the first request that was not taken.
                unsafe { *bad_wr = next };
                return libc::ENOMEM;
            }
            IDS[posted % DEPTH].store(request.wr_id, Ordering::Relaxed);
            POSTED.store(posted.wrapping_add(1), Ordering::Relaxed);
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
        // SAFETY: the caller of `ibv_poll_cq` passes room for `num_entries` completions, and `index` is below that.
        let wc = unsafe { wc.add(index) };
        // SAFETY: as above: `wc` is a writable completion.
        unsafe { report(wc, id) };
    }
    POLLED.store(polled.wrapping_add(count), Ordering::Relaxed);
    c_int::try_from(count).unwrap_or(0)
}

/// Writes the fields that a provider fills in for a send.
///
/// # Safety
///
/// `wc` is a writable completion.
unsafe fn report(wc: *mut ibv_wc, id: u64) {
    let completion = ibv_wc {
        wr_id: id,
        status: ibv_wc_status::IBV_WC_SUCCESS,
        opcode: ibv_wc_opcode::IBV_WC_SEND,
        qp_num: QP_NUM.load(Ordering::Relaxed),
        wc_flags: 0,
        ..Default::default()
    };
    // SAFETY: the caller's promise.
    unsafe { ptr::write(wc, completion) };
}

#[cfg(test)]
mod tests {
    use rdma_sys::{ibv_poll_cq, ibv_post_send};

    use super::*;

    #[test]
    fn what_was_posted_signaled_is_reported_once() {
        // SAFETY: these structures are plain data, for which all zeros is a value.
        let mut context: ibv_context = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut qp: ibv_qp = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut cq: ibv_cq = unsafe { std::mem::zeroed() };
        // SAFETY: the context is a local that nothing else uses.
        unsafe { install(&raw mut context) };
        (qp.qp_num, qp.context, cq.context) = (7, &raw mut context, &raw mut context);

        let mut second =
            ibv_send_wr { wr_id: 2, send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0, ..Default::default() };
        let mut first = ibv_send_wr { wr_id: 1, next: &raw mut second, ..Default::default() };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is as whole as the functions of this module need, and the chain of two ends in NULL.
        assert_eq!(unsafe { ibv_post_send(&raw mut qp, &raw mut first, &raw mut bad) }, 0);

        let mut wc = [ibv_wc::default(); 4];
        // SAFETY: as above for the queue; there is room for four completions.
        assert_eq!(unsafe { ibv_poll_cq(&raw mut cq, 4, wc.as_mut_ptr()) }, 1);
        assert_eq!((wc[0].wr_id, wc[0].qp_num, wc[0].status), (2, 7, ibv_wc_status::IBV_WC_SUCCESS));
        // SAFETY: as above.
        assert_eq!(unsafe { ibv_poll_cq(&raw mut cq, 4, wc.as_mut_ptr()) }, 0);
    }
}
