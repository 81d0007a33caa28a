//! Host functions of streams, in which no call of the driver is allowed.

use std::cell::Cell;

use crate::cuda_error::CudaError;

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

/// Refuses calls of this thread until the result is dropped: it runs a host function, in which a
/// call might wait for itself.
pub(crate) fn refuse_calls() -> impl Drop {
    struct Refusal;
    impl Drop for Refusal {
        fn drop(&mut self) {
            REFUSES.set(false);
        }
    }
    REFUSES.set(true);
    Refusal
}

/// Whether calls of this thread are refused.
pub(crate) fn refuses_calls() -> bool {
    REFUSES.get()
}

/// The error of a call in a host function.
pub(crate) fn check_allowed(call: &'static str) -> Result<(), CudaError> {
    if !refuses_calls() {
        return Ok(());
    }
    let reason = "a host function on a stream must not call CUDA";
    Err(CudaError::new(call, CudaError::NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", reason))
}
