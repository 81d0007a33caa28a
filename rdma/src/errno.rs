//! Calls of C functions that leave the reason of a failure in the thread's `errno`.
//!
//! Some providers fail without a reason, as siw's does for a queue pair. Here `errno` is 0 before
//! each call, so that the error of an earlier call does not pass for the reason. A failure without
//! a reason has the number 0.
//!
//! The calls of the data path do without: see [`Error::of_data_path`](crate::Error::of_data_path).

use std::ffi::c_int;
use std::ptr::NonNull;

use nix::errno::Errno;

/// Calls a function that creates an object, or returns NULL and sets `errno`.
pub(crate) fn created<C>(call: impl FnOnce() -> *mut C) -> Result<NonNull<C>, i32> {
    Errno::clear();
    NonNull::new(call()).ok_or_else(Errno::last_raw)
}

/// Calls a function that returns 0, or an `errno` of either sign, or -1 and sets `errno`.
pub(crate) fn check(call: impl FnOnce() -> c_int) -> Result<(), i32> {
    Errno::clear();
    match call() {
        0 => Ok(()),
        // EPERM is 1, so a provider that returned it as -1 is misunderstood; no known one does.
        -1 => Err(Errno::last_raw()),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_error_is_not_the_reason_of_a_failure() {
        Errno::EEXIST.set();
        assert_eq!(created(std::ptr::null_mut::<u8>), Err(0));
        Errno::EEXIST.set();
        assert_eq!(check(|| -1), Err(0));
    }

    #[test]
    fn the_reason_is_returned_or_in_errno() {
        let sets = |errno: Errno| {
            errno.set();
            -1
        };
        assert_eq!(check(|| sets(Errno::ENOMEM)), Err(libc::ENOMEM));
        assert_eq!(check(|| libc::EINVAL), Err(libc::EINVAL));
        assert_eq!(check(|| -libc::EINVAL), Err(-libc::EINVAL));
        assert_eq!(check(|| 0), Ok(()));
        let mut value = 1;
        let object = &raw mut value;
        assert_eq!(created(|| object).map(NonNull::as_ptr), Ok(object));
    }
}
