//! `os.rs` for macOS.

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: libc::c_int) {
    // SAFETY: __error has no requirement; it returns a pointer to this thread's `errno`.
    let location = unsafe { libc::__error() };
    // SAFETY: `location` is valid for writes while the thread lives, and no other thread uses it.
    unsafe { *location = errno }
}

/// Whether the process has rights that its caller lacks, as a set-user-ID program has.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: issetugid has no requirement.
    unsafe { libc::issetugid() != 0 }
}
