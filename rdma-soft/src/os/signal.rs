//! Signal handlers of the application, and the waits that they interrupt.

use std::sync::atomic::{AtomicU32, Ordering};

/// Signals of which a handler says nothing about waits: they report a fault of the thread itself.
const FAULTS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// Waits between two readings of the handlers: reading them takes some microseconds.
const WAITS_PER_READING: u32 = 256;

/// What the installed signal handlers do to read(2), which `epoll_wait` cannot tell: after any
/// handler it fails with `EINTR`, and so it does after the process was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handlers {
    /// A read goes on: all handlers have `SA_RESTART`, or there is none.
    Restart,
    /// A read fails with `EINTR`: no handler has `SA_RESTART`.
    Interrupt,
    /// A read goes on after some signals and fails after others.
    Mixed,
}

impl Handlers {
    /// Reads the handlers from the kernel.
    pub(crate) fn read() -> Self {
        let signals = (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal));
        let (restart, interrupt): (Vec<i32>, Vec<i32>) =
            signals.filter_map(handler_flags).partition(|flags| flags & libc::SA_RESTART != 0);
        match (restart.is_empty(), interrupt.is_empty()) {
            (_, true) => Self::Restart,
            (true, false) => Self::Interrupt,
            (false, false) => Self::Mixed,
        }
    }

    /// Whether the handlers are [`Mixed`](Self::Mixed), as of one of the last few hundred calls.
    pub(crate) fn are_mixed() -> bool {
        static WAITS: AtomicU32 = AtomicU32::new(0);
        static MIXED: AtomicU32 = AtomicU32::new(0);
        if WAITS.fetch_add(1, Ordering::Relaxed) % WAITS_PER_READING == 0 {
            MIXED.store((Self::read() == Self::Mixed).into(), Ordering::Relaxed);
        }
        MIXED.load(Ordering::Relaxed) != 0
    }
}

/// The flags of a signal's handler, if there is one.
fn handler_flags(signal: i32) -> Option<i32> {
    // SAFETY: zeroed wants a type for which all zeroes is a value: sigaction consists of integers
    // and an optional function pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // Not through `nix`, which can only replace a handler.
    // SAFETY: sigaction wants null or a valid new action, and null or room for the old one.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    let is_handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    (result == 0 && is_handled).then_some(action.sa_flags)
}
