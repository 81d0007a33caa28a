//! The verbs that wait for an event, in parts, for C programs that cancel a thread in such a verb.
//!
//! A cancellation (`pthread_cancel`) unwinds the thread's stack, which is undefined behaviour in
//! Rust frames that have something to drop. In C, the thread sleeps in read(2) of a descriptor.
//! With these functions the caller makes that read(2), from a frame that has nothing to drop:
//!
//! 1. Call the part with `reads` 0.
//! 2. If it returns [`READ`], read 8 bytes from the descriptor of the channel or context, and call
//!    the part with one more `reads`.
//! 3. Any other value is the result of the verb, whose name the field has.
//!
//! The parts themselves have cancellation points, so the caller disables cancellation for them
//! (`pthread_setcancelstate`).

pub use crate::cm::{GetCmEvent, GetRequest};
pub use crate::verbs::{GetAsyncEvent, GetCqEvent, READ};
use crate::{cm, verbs};

/// The verbs that wait for an event, in parts. The last argument is the number of reads.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are those of the verbs")]
#[non_exhaustive]
pub struct Parts {
    pub ibv_get_async_event: GetAsyncEvent,
    pub ibv_get_cq_event: GetCqEvent,
    pub rdma_get_cm_event: GetCmEvent,
    pub rdma_get_request: GetRequest,
}

/// The software device's verbs in parts.
#[must_use]
pub const fn parts() -> Parts {
    Parts {
        ibv_get_async_event: verbs::GET_ASYNC_EVENT,
        ibv_get_cq_event: verbs::GET_CQ_EVENT,
        rdma_get_cm_event: cm::GET_CM_EVENT,
        rdma_get_request: cm::GET_REQUEST,
    }
}
