//! The exported functions, by groups, and what they share.
//!
//! NVIDIA's documentation of the driver API is the contract of each function: its pointers are NULL
//! or valid for what it says. An `Option` of a reference has the layout of such a pointer.

mod context;
mod device;
mod memory;
mod module;
mod pointer;
mod stream;
mod vmm;

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::knobs::KNOBS;

/// A `CUresult` other than 0.
pub(crate) type Code = c_int;
/// An argument for a result; NULL is an error.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const NOT_PERMITTED: Code = 800;
pub(crate) const NOT_SUPPORTED: Code = 801;

/// Runs the body of a function, unless the function must fail.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<(), Code>) -> c_int {
    match KNOBS.fault(name) {
        Some(code) => code,
        None if stream::in_host_function() => NOT_PERMITTED,
        None if name != "cuInit" && !device::is_initialized() => NOT_INITIALIZED,
        None => body().err().unwrap_or(0),
    }
}

/// Writes a result.
pub(crate) fn put<T>(out: Out<'_, T>, value: T) -> Result<(), Code> {
    out.ok_or(INVALID_VALUE)?.write(value);
    Ok(())
}

/// The number of objects that exist.
#[unsafe(no_mangle)]
extern "C" fn stand_in_live() -> usize {
    vmm::live() + memory::live() + module::live() + stream::live() + crate::space::space().live()
}

/// A value that no other handle has.
pub(crate) fn new_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5000_0000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}
