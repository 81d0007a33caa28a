//! The process that owns a socket: a forked child must not use its parent's.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A process, among its parents and children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// The calling process.
    ///
    /// A child of a bare `clone` system call runs no fork handlers, and passes for its parent.
    pub(crate) fn current() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: pthread_atfork requires functions that may run around any fork: the only one
            // is `in_child`, which is safe to call from a signal handler too. If the registration
            // fails for lack of memory, a child passes for its parent.
            let _registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }
}

/// Counts a fork: an atomic add takes no lock and allocates nothing.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
