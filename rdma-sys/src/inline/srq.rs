//! Shared receive queues and XRC domains.

use super::{Unsupported, checked, unchecked, verbs_get_ctx_op};
use crate::bindings::*;
use libc::{EOPNOTSUPP, c_int};

unchecked! {
    /// Posts a list of receive requests. On failure `bad_recv_wr` is the first that was not taken.
    fn ibv_post_srq_recv(srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> c_int
        = [context] post_srq_recv;
}

checked! {
    /// The number by which a peer names an XRC shared receive queue.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = [srq.context] get_srq_num;
    /// Opens an XRC domain.
    fn ibv_open_xrcd(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = [context] open_xrcd;
    /// Closes an XRC domain. (The header calls the operation unchecked.)
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = [xrcd.context] close_xrcd;
}

/// Posts a list of tag matching operations.
///
/// # Errors
///
/// A positive errno value, and `bad_op` is the first that was not taken: all of them with `EOPNOTSUPP` if the
/// implementation lacks the operation.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 6.
#[inline]
pub unsafe fn ibv_post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int {
    // SAFETY: by 1, the queue is live.
    let context = unsafe { (*srq).context };
    let Some(post) = verbs_get_ctx_op!(context, post_srq_ops) else {
        // SAFETY: by 2, there is room for the pointer.
        unsafe { bad_op.write(op) };
        return EOPNOTSUPP;
    };
    // SAFETY: by 4, it has this type; by 1 to 3, the arguments are what it expects.
    unsafe { post(srq, op, bad_op) }
}
