//! Completion queues.

use super::{Unsupported, checked, unchecked};
use crate::bindings::*;
use libc::c_int;

unchecked! {
    /// Takes up to `num_entries` completions; returns their number, or a negative value on failure.
    fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int = [context] poll_cq;
    /// Asks for one event on the completion channel at the next completion, or at the next
    /// solicited one.
    fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int = [context] req_notify_cq;
}

checked! {
    /// Creates an extended completion queue.
    fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = extended [context] create_cq_ex;
    /// Changes a completion queue's event moderation.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = extended [cq.context] modify_cq;
}
