//! Signal handlers of the application, and the waits that they interrupt.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Signals of which a handler says nothing about waits: they report a fault of the thread itself.
const FAULTS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// Waits between two readings of the handlers: reading them takes some microseconds.
const WAITS_PER_READING: u32 = 256;

/// Whether read(2) goes on after every installed handler: all have `SA_RESTART`, or there is none.
///
/// `epoll_wait` cannot tell: after any handler it fails with `EINTR`, and so it does after the
/// process was stopped.
pub(crate) fn all_restart() -> bool {
    let mut signals = (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal));
    signals.all(|signal| handler_flags(signal).is_none_or(|flags| flags & libc::SA_RESTART != 0))
}

/// [`all_restart`] as of one of the last few hundred calls.
pub(crate) fn all_restarted() -> bool {
    static WAITS: AtomicU32 = AtomicU32::new(0);
    static RESTARTED: AtomicBool = AtomicBool::new(false);
    if WAITS.fetch_add(1, Ordering::Relaxed) % WAITS_PER_READING == 0 {
        RESTARTED.store(all_restart(), Ordering::Relaxed);
    }
    RESTARTED.load(Ordering::Relaxed)
}

/// The flags of a signal's handler, if there is one, or was one that has reset itself.
fn handler_flags(signal: i32) -> Option<i32> {
    // SAFETY: zeroed requires a type for which all zeroes is a value: sigaction consists of
    // integers and an optional function pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // Not through `nix`, which can only replace a handler.
    // SAFETY: sigaction requires null or a valid new action, and null or space for the old one.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    // The kernel resets a handler that runs once before it runs, but leaves the flags: it may be
    // the one that has ended the wait.
    let is_handled = match action.sa_sigaction {
        libc::SIG_DFL => action.sa_flags & libc::SA_RESETHAND != 0,
        handler => handler != libc::SIG_IGN,
    };
    (result == 0 && is_handled).then_some(action.sa_flags)
}
