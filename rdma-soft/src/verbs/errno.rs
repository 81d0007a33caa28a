//! Error numbers, and how C gets them.

use std::ffi::c_int;
use std::io;
use std::ptr;

use crate::engine::Errno;

/// Stores the number where C looks for it.
pub(super) fn set(errno: Errno) {
    // SAFETY: `__errno_location` has no requirement.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: it returned the calling thread's own `errno`, which is valid for writes as long as the thread lives.
    unsafe { *location = errno.0 };
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// The convention of the verbs that read an event or a table: 0, or -1 with `errno` set.
pub(crate) fn minus_one(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// The convention of the verbs that make an object: a pointer, or null with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conventions() {
        assert_eq!(minus_one(Err(Errno(libc::EFAULT))), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        assert!(pointer::<u8>(Err(Errno::NOMEM)).is_null());
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(Errno::from(io::Error::from_raw_os_error(libc::EMFILE)).0, libc::EMFILE);
    }
}
