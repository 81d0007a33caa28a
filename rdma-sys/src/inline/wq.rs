//! Work queues and their indirection tables.

use super::{Unsupported, checked, unchecked, verbs_get_ctx_op};
use crate::bindings::*;
use libc::c_int;

unchecked! {
    /// Posts a list of receive requests. On failure `bad_recv_wr` is the first request that was not
    /// taken.
    fn ibv_post_wq_recv(wq: *mut ibv_wq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr) -> c_int
        = [object] post_recv;
}

checked! {
    /// Changes a work queue.
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int = extended [wq.context] modify_wq;
    /// Destroys a work queue.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = extended [wq.context] destroy_wq;
    /// Creates an indirection table of work queues.
    fn ibv_create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table = extended [context] create_rwq_ind_table;
    /// Destroys an indirection table.
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        = extended [rwq_ind_table.context] destroy_rwq_ind_table;
}

/// Creates a work queue.
///
/// # Errors
///
/// NULL, with the reason in `errno`: `EOPNOTSUPP` if the implementation lacks the operation.
///
/// # Safety
///
/// The [rules of the module](crate::inline), 1 to 6.
pub unsafe fn ibv_create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    let Some(create) = verbs_get_ctx_op!(context, create_wq) else {
        return <*mut ibv_wq>::unsupported();
    };
    // SAFETY: the function has the slot's type (4); the arguments are those that this function's
    // caller answers for (1 to 3).
    let wq = unsafe { create(context, wq_init_attr) };
    if wq.is_null() {
        return wq;
    }
    // SAFETY: the read requires attributes (2). The writes and the two initialisers require a work
    // queue that no other code uses: the operation just made it. NULL stands for default
    // attributes.
    #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one argument for one new object")]
    unsafe {
        (*wq).wq_context = (*wq_init_attr).wq_context;
        (*wq).events_completed = 0;
        libc::pthread_mutex_init(&raw mut (*wq).mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*wq).cond, std::ptr::null());
    }
    wq
}
