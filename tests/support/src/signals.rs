//! Signals that interrupt system calls.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

extern "C" fn on_signal(_signal: i32) {}

/// Installs a handler that does nothing. Only for a test with a process of its own.
///
/// # Panics
///
/// If the signal cannot be handled.
pub fn handle(signal: Signal, flags: SaFlags) {
    let action = SigAction::new(SigHandler::Handler(on_signal), flags, SigSet::empty());
    // SAFETY: sigaction requires a handler that is async-signal-safe: this one does nothing.
    let _before = unsafe { sigaction(signal, &action) }.expect("a signal that can be handled");
}

/// Runs `body` while signals arrive at this thread, some 10,000 a second. Only for a test with a
/// process of its own.
///
/// # Panics
///
/// If `body` panics.
pub fn in_storm<R>(flags: SaFlags, body: impl FnOnce() -> R) -> R {
    handle(Signal::SIGUSR1, flags);
    let (target, is_over) = (Target(pthread_self()), AtomicBool::new(false));
    let worked = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // The thread lives: it waits for the end of this one.
                target.kill(Signal::SIGUSR1).expect("a thread that lives");
                thread::sleep(Duration::from_micros(50));
            }
        });
        let worked = catch_unwind(AssertUnwindSafe(body));
        is_over.store(true, Ordering::Relaxed);
        worked
    });
    worked.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The thread that gets the signals. musl's name of a thread is a pointer.
struct Target(Pthread);

// SAFETY: Sync requires that threads may use the value at the same time: it is only passed to
// pthread_kill, which any thread may call.
unsafe impl Sync for Target {}

impl Target {
    fn kill(&self, signal: Signal) -> nix::Result<()> {
        pthread_kill(self.0, signal)
    }
}
