//! Knowing, at the price of one load, that this is a forked child, in which nothing here may run: the engine's lock may be
//! held by a thread that does not exist, the rings are not mapped, and their other users are the parent's peers.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io;

/// True in the process that made it, false in its forked children.
#[derive(Debug)]
pub(crate) struct ForkGuard {
    /// One page, never unmapped, which the kernel wipes in a child; 1 in the parent.
    page: NonNull<AtomicU64>,
}

// SAFETY: a pointer to an atomic that stays mapped for ever.
unsafe impl Send for ForkGuard {}
// SAFETY: as for Send.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// A guard of this process.
    pub(crate) fn new() -> io::Result<Self> {
        let len = 4096;
        // SAFETY: mmap of fresh anonymous memory at an address of the kernel's choice touches nothing of ours.
        let page = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice about the page above, which nobody else knows.
        if unsafe { libc::madvise(page, len, libc::MADV_WIPEONFORK) } != 0 {
            let error = io::Error::last_os_error();
            // SAFETY: unmaps the page above, which nobody else knows.
            unsafe { libc::munmap(page, len) };
            return Err(error);
        }
        let page = NonNull::new(page.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let guard = Self { page };
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this process made the guard.
    #[inline]
    pub(crate) fn is_owner(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: as_ref wants a valid, aligned pointer: a page that is never unmapped, in a child too, only accessed
        // atomically.
        unsafe { self.page.as_ref() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_not_the_owner() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_owner());
        // SAFETY: the child does nothing but one load and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(guard.is_owner());
            // SAFETY: ends the child without running anything else.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waitpid writes one int to a live one.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        assert!(guard.is_owner());
    }
}
