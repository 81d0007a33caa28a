//! Functions that fail with `EOPNOTSUPP`, by error convention. They read no argument, so they stand
//! in for functions of every signature.

use std::ffi::{c_int, c_void};
use std::ptr;

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: `__errno_location` has no requirement; it returns a pointer to this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid for writes while the thread lives, and no other thread uses it.
    unsafe { *errno = value };
}

/// For functions that return a pointer.
pub(crate) extern "C" fn null() -> *mut c_void {
    set_errno(libc::EOPNOTSUPP);
    ptr::null_mut()
}

/// For functions that return an error number.
pub(crate) extern "C" fn errno() -> c_int {
    libc::EOPNOTSUPP
}

/// For functions that return -1, as an `int` or as a wider number.
pub(crate) extern "C" fn minus_one() -> isize {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// For functions that have nothing to do: they return 0, or nothing.
pub(crate) extern "C" fn zero() -> usize {
    0
}
