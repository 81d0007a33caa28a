//! The threads of this library.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;

use nix::sys::signal::{SigSet, SigmaskHow};

use super::{Named, Result};

/// Stack size of a thread in bytes: enough for a subscriber of the log.
const STACK: usize = 256 << 10;

// `libc` lacks this function. A cancellation of the asynchronous type could unwind out of it; no
// thread of that type may call the functions of this library.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The argument of `pthread_setcancelstate` that keeps cancellations pending, in glibc and musl.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Keeps a cancellation (`pthread_cancel`) of this thread pending as long as the value exists.
/// A cancellation would unwind Rust frames. Entry points for C ([`crate::verbs::call`]) have such a
/// value; on the data path, only the system calls have one.
#[derive(Debug)]
pub(crate) struct NoCancellation {
    before: c_int,
    /// The state belongs to the thread.
    _of_thread: PhantomData<*const ()>,
}

impl NoCancellation {
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // SAFETY: `pthread_setcancelstate` requires a valid state, and null or space for the state
        // before.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before, _of_thread: PhantomData }
    }
}

impl Drop for NoCancellation {
    fn drop(&mut self) {
        // SAFETY: `pthread_setcancelstate` requires a valid state: this thread was in it before.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}

/// Starts a thread that handles no signals: the application's handlers run in the application's
/// threads.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    spawn_with_stack(name, STACK, body)
}

/// Like [`spawn`], with a stack of `size` bytes.
pub(crate) fn spawn_with_stack(name: &str, size: usize, body: impl FnOnce() + Send + 'static) -> Result<()> {
    // A new thread inherits the signal mask of its creator.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).named("pthread_sigmask")?;
    let started = std::thread::Builder::new().name(name.into()).stack_size(size).spawn(body);
    before.thread_set_mask().named("pthread_sigmask")?;
    started.map(drop).named("clone")
}
