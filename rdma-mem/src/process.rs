//! The calling process, among its ancestors and children; and functions that run around a fork.
//!
//! A process id tells them apart only until it is used again, and in a new PID namespace a child
//! may have its parent's. So a process has a [number](identify) of its own, in a page that the
//! kernel zeroes in every child, whichever call made the child.
//!
//! Nothing here takes a lock: a child that is forked in the middle of a call repeats it.

use std::ffi::c_int;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use memmap2::MmapMut;

use crate::error::SharedMemoryError;
use crate::os;

/// The process's number, in a page that is wiped in a child; null before [`identify`].
static NUMBER: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The number that the next process gets; a child goes on from its parent's.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Gives this process a number that none of its ancestors has, unless it has one, and returns it.
///
/// # Errors
///
/// `System` if the kernel has no page, or cannot wipe one in a child (Linux before 4.14). A child
/// never fails where an ancestor succeeded.
pub fn identify() -> Result<u64, SharedMemoryError> {
    let word = match word() {
        Some(word) => word,
        None => make_word()?,
    };
    match word.load(Ordering::Relaxed) {
        0 => {
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            let set = word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
            // Another thread may have been first.
            Ok(set.map_or_else(|number| number, |_| fresh))
        }
        number => Ok(number),
    }
}

/// The number of this process; 0 if it has none, as in a child that has not called [`identify`].
#[inline]
#[must_use]
pub fn number() -> u64 {
    word().map_or(0, |word| word.load(Ordering::Relaxed))
}

/// The number and the id of a process. The id tells a child apart where system calls are emulated
/// by a program that ignores the wish to wipe a page, as QEMU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    number: u64,
    id: u32,
}

impl Identity {
    /// The calling process.
    pub(crate) fn current() -> Result<Self, SharedMemoryError> {
        Ok(Self { number: identify()?, id: std::process::id() })
    }

    pub(crate) fn is_current(self) -> bool {
        self == Self { number: number(), id: std::process::id() }
    }
}

#[inline]
fn word() -> Option<&'static AtomicU64> {
    // SAFETY: as_ref requires null or a pointer to a live, aligned atomic: `make_word` stores only
    // pointers to the start of a page that is never unmapped, not in a child either, and that holds
    // only this atomic.
    unsafe { NUMBER.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make_word() -> Result<&'static AtomicU64, SharedMemoryError> {
    let mut page = MmapMut::map_anon(size_of::<AtomicU64>()).map_err(SharedMemoryError::mapping)?;
    os::wipe_in_children(&mut page).map_err(SharedMemoryError::system("madvise"))?;
    let made = page.as_mut_ptr().cast();
    match NUMBER.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // Never unmapped, and not in a box, which valgrind would call lost.
            let _kept = ManuallyDrop::new(page);
        }
        // Another thread was first.
        Err(_) => drop(page),
    }
    word().ok_or(SharedMemoryError::Size)
}

/// A function that runs around a fork.
pub type ForkHandler = extern "C" fn();

/// Functions that run around each fork of this process and of its children.
#[derive(Debug)]
pub struct ForkHandlers {
    before: Option<ForkHandler>,
    after: Option<ForkHandler>,
    in_child: Option<ForkHandler>,
    is_registered: AtomicBool,
}

impl ForkHandlers {
    /// Functions for the parent before a fork, for the parent after it, and for the child.
    ///
    /// # Safety
    ///
    /// The functions may run at any fork, also one in a signal handler, and several times at one
    /// fork. The one for the child runs in the copy of a process with several threads, so it waits
    /// for no lock that another thread may hold.
    #[must_use]
    pub const unsafe fn new(
        before: Option<ForkHandler>,
        after: Option<ForkHandler>,
        in_child: Option<ForkHandler>,
    ) -> Self {
        Self { before, after, in_child, is_registered: AtomicBool::new(false) }
    }

    /// Registers the functions, unless that is done.
    ///
    /// Threads that come at the same time, and a child that is forked meanwhile, may each register
    /// them, and nobody waits.
    ///
    /// # Errors
    ///
    /// No memory is left.
    #[inline]
    pub fn register(&'static self) -> io::Result<()> {
        if self.is_registered.load(Ordering::Acquire) { Ok(()) } else { self.register_by(atfork) }
    }

    #[cold]
    fn register_by(&'static self, call: impl FnOnce(&'static Self) -> c_int) -> io::Result<()> {
        match call(self) {
            0 => {
                self.is_registered.store(true, Ordering::Release);
                Ok(())
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// `nix` has no `pthread_atfork`.
fn atfork(handlers: &'static ForkHandlers) -> c_int {
    let unsafe_fn = |handler: Option<ForkHandler>| handler.map(|function| function as unsafe extern "C" fn());
    let (before, after, in_child) =
        (unsafe_fn(handlers.before), unsafe_fn(handlers.after), unsafe_fn(handlers.in_child));
    // SAFETY: pthread_atfork requires functions that may run around any fork, which the contract of
    // `ForkHandlers::new` says, and that stay loaded: glibc unregisters those of a library that is
    // unloaded, musl unloads none, and macOS none that has thread-local variables, as `std` has.
    unsafe { libc::pthread_atfork(before, after, in_child) }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use rdma_test_support::holds_in_child;

    use super::*;

    #[test]
    fn a_child_has_a_number_that_no_ancestor_has() {
        let ours = identify().unwrap();
        assert!(ours != 0 && number() == ours && identify().unwrap() == ours);
        assert!(holds_in_child(|| {
            let inert = number() == 0;
            let child = identify().unwrap_or(0);
            inert && child > ours && holds_in_child(|| number() == 0 && identify().is_ok_and(|number| number > child))
        }));
        assert_eq!(number(), ours);
    }

    /// The child finds the registration as far as its parent's thread had come.
    #[test]
    fn a_child_that_is_forked_while_handlers_are_registered_does_not_wait_for_them() {
        static CHILDREN: AtomicU64 = AtomicU64::new(0);
        extern "C" fn count() {
            CHILDREN.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: `ForkHandlers::new` requires functions that may run at any fork and take no lock:
        // `count` adds to an atomic.
        static HANDLERS: ForkHandlers = unsafe { ForkHandlers::new(None, None, Some(count)) };
        let counts = || {
            let before = CHILDREN.load(Ordering::Relaxed);
            holds_in_child(|| CHILDREN.load(Ordering::Relaxed) > before)
        };
        let forks = |handlers| {
            assert!(holds_in_child(|| HANDLERS.register().is_ok() && counts()), "before the registration");
            let done = atfork(handlers);
            assert!(holds_in_child(|| HANDLERS.register().is_ok() && counts()), "after it, but before it is noted");
            done
        };
        HANDLERS.register_by(forks).unwrap();
        assert!(counts());
    }
}
