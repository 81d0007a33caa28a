//! Calls of the C library that differ between systems, for Linux. `os/elsewhere.rs` takes the place
//! of this file on other systems.

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: libc::c_int) {
    // SAFETY: __errno_location has no requirement; it returns a pointer to this thread's `errno`.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: `location` is valid for writes while the thread lives, and no other thread uses it.
    unsafe { *location = errno }
}

/// Whether the process has rights that its caller lacks, as a set-user-ID program has.
pub(crate) fn is_privileged() -> bool {
    // SAFETY: getauxval has no requirement.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
