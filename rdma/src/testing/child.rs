//! Forked children.

/// Whether `body` returns true in a forked child, within a minute.
///
/// `body` waits for no lock that another thread may hold, except to find that out: a child that
/// waits is ended.
pub(crate) fn holds_in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: fork wants a child that calls only async-signal-safe functions: the child calls the
    // allocator, which glibc makes usable in a child, `body`, which must be as the docs say, and
    // functions that make one system call.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: alarm has no requirements. Its signal ends the child.
        unsafe { libc::alarm(60) };
        let code = i32::from(!body());
        // SAFETY: _exit has no requirements; it ends the child without running anything else.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waitpid wants room for a status: a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}
