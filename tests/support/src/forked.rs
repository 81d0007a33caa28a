//! Forked children.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

/// Seconds after which a child that waits is ended.
const LIMIT: u32 = 60;

/// Whether `body` returns true in a forked child, within a minute.
///
/// `body` must not panic, and must not wait for a lock that another thread may hold, except to find
/// that out.
///
/// # Panics
///
/// If there can be no child.
#[must_use]
pub fn holds_in_child(body: impl FnOnce() -> bool) -> bool {
    // SAFETY: fork requires a child that calls only async-signal-safe functions: the child calls
    // the allocator, which glibc makes usable in a child, `body`, which must be as the docs say,
    // and functions that make one system call.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            // The signal ends the child.
            alarm::set(LIMIT);
            let code = i32::from(!body());
            // SAFETY: _exit has no requirements; it ends the child without running anything else.
            unsafe { nix::libc::_exit(code) }
        }
        ForkResult::Parent { child } => waitpid(child, None) == Ok(WaitStatus::Exited(child, 0)),
    }
}
