//! Conversion of error numbers: into C's `errno`, and from `io::Error`.

use std::io;

use crate::engine::Errno;

/// Sets the calling thread's `errno`.
pub(super) fn set(errno: Errno) {
    // SAFETY: `__errno_location` has no requirement.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: a write requires a valid pointer: `__errno_location` returned the calling thread's
    // own `errno`, which is valid for writes as long as the thread lives.
    unsafe { *location = errno.0 };
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_keep_their_number() {
        assert_eq!(Errno::from(io::Error::from_raw_os_error(libc::EMFILE)).0, libc::EMFILE);
    }
}
