//! Shared receive queues and XRC domains.

use super::{Unsupported, checked, unchecked, verbs_get_ctx_op};
use crate::bindings::*;
use libc::{EOPNOTSUPP, c_int};

unchecked! {
    /// Posts a list of receive requests. On failure `bad_recv_wr` is the first request that was not
    /// taken.
    fn ibv_post_srq_recv(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> c_int
        = [context] post_srq_recv;
}

checked! {
    /// The number by which a peer names an XRC shared receive queue.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = extended [srq.context] get_srq_num;
    /// Opens an XRC domain.
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = extended [context] open_xrcd;
    /// Closes an XRC domain. (The header calls the operation unchecked.)
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = extended [xrcd.context] close_xrcd;
}

/// Posts a list of tag matching operations.
///
/// # Errors
///
/// A positive errno value, and `bad_op` is the first operation that was not taken: the first of the
/// list, with `EOPNOTSUPP`, if the implementation lacks tag matching.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 6.
#[inline]
pub unsafe fn ibv_post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int {
    // SAFETY: the read requires a live queue (1).
    let context = unsafe { (*srq).context };
    let Some(post) = verbs_get_ctx_op!(context, post_srq_ops) else {
        // SAFETY: the write requires space for a pointer (2).
        unsafe { bad_op.write(op) };
        return EOPNOTSUPP;
    };
    // SAFETY: the function has the slot's type (4); the arguments are those that this function's
    // caller answers for (1 to 3).
    unsafe { post(srq, op, bad_op) }
}
