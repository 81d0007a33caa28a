//! Steps that all exported functions share.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::codes::{Code, INVALID_VALUE, NOT_INITIALIZED, NOT_PERMITTED};
use crate::knobs::KNOBS;

/// An argument for a result; NULL is an error.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Whether `cuInit` has been called.
pub(crate) static INITIALIZED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread runs a host function, which must not call CUDA.
    pub(crate) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of a function, unless the function must fail.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Code>) -> c_int {
    match KNOBS.fault(name) {
        Some(code) => code,
        None if IN_HOST_FUNCTION.get() => NOT_PERMITTED,
        None if name != "cuInit" && !INITIALIZED.load(Ordering::Acquire) => NOT_INITIALIZED,
        None => body().err().unwrap_or(0),
    }
}

/// Writes a result.
pub(crate) fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Code> {
    out.ok_or(INVALID_VALUE)?.write(value);
    Ok(())
}

/// A value that no other handle has.
pub(crate) fn new_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5000_0000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}
