//! Forks: steps that a fork does not interrupt, and values that a child does not share with its
//! parent.
//!
//! A forked child has a copy of all memory, but only one thread: a lock that another thread held
//! stays locked in the child, and what that thread was changing stays half changed. So what a child
//! uses again is either changed in a [step](uninterrupted), for which `fork` waits, or made anew by
//! each process ([`PerProcess`]).

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use memmap2::MmapMut;
use nix::sys::mman::{MmapAdvise, madvise};

use super::{Named, Result};

static GATE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread is in a step.
    static IN_STEP: Cell<bool> = const { Cell::new(false) };
    /// The lock, between the handlers of a fork in this thread. Without a destructor, which might
    /// have run already in a thread that ends.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, ()>>>> = const { Cell::new(None) };
}

fn gate() -> MutexGuard<'static, ()> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a step that no fork of another thread interrupts. Only one thread is in a step; it must not
/// wait for another thread. A step may contain steps.
pub(crate) fn uninterrupted<R>(step: impl FnOnce() -> R) -> R {
    static ONCE: Once = Once::new();
    /// Leaves the step, also when it panics.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_STEP.set(false);
        }
    }
    if IN_STEP.get() {
        return step();
    }
    ONCE.call_once(|| register(Some(before), Some(after), Some(after)));
    // Before the lock is taken: a signal handler that forks finds either the mark, or the lock
    // free.
    IN_STEP.set(true);
    let _leave = Leave;
    let _gate = gate();
    step()
}

/// Runs a function in every child that is forked from now on. It must be async-signal-safe.
pub(crate) fn run_in_children(function: extern "C" fn()) {
    register(None, None, Some(function));
}

type Handler = unsafe extern "C" fn();

fn register(before: Option<Handler>, after: Option<Handler>, in_child: Option<Handler>) {
    // `nix` has no pthread_atfork. SAFETY: pthread_atfork wants functions that may run around any
    // fork. They live as long as the program; `before` and `after` lock and unlock one lock in the
    // forking thread, and what runs in a child besides is async-signal-safe (`run_in_children`).
    // Without memory for the registration, forks interrupt steps.
    unsafe { libc::pthread_atfork(before, after, in_child) };
}

extern "C" fn before() {
    // A signal handler that forks in the middle of a step of its own thread would wait for ever.
    if !IN_STEP.get() {
        HELD.set(Some(ManuallyDrop::new(gate())));
    }
}

extern "C" fn after() {
    if let Some(guard) = HELD.take() {
        drop(ManuallyDrop::into_inner(guard));
    }
}

/// A word that the kernel sets to zero in every child, however it is made; null before
/// [`identify`].
static IDENTITY: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Gives this process a number that no ancestor of it has.
pub(crate) fn identify() -> Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    uninterrupted(|| {
        if IDENTITY.load(Ordering::Acquire).is_null() {
            let page = MmapMut::map_anon(size_of::<AtomicU64>()).named("mmap")?;
            let start = ptr::NonNull::from(&*page).cast();
            // SAFETY: madvise wants a range of whole pages that may be wiped in a child: the
            // mapping, of which only this module knows.
            unsafe { madvise(start, page.len(), MmapAdvise::MADV_WIPEONFORK) }.named("madvise")?;
            IDENTITY.store(Box::leak(Box::new(page)).as_mut_ptr().cast(), Ordering::Release);
        }
        if let Some(word) = word().filter(|word| word.load(Ordering::Relaxed) == 0) {
            word.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    })
}

#[inline]
fn word() -> Option<&'static AtomicU64> {
    // SAFETY: as_ref wants null or a pointer to a live, aligned atomic: the start of a page that is
    // never unmapped, in no child either, and that holds only this atomic.
    unsafe { IDENTITY.load(Ordering::Acquire).as_ref() }
}

/// The number of this process; 0 in one that has none, such as a forked child that has not called
/// [`identify`].
#[inline]
pub(crate) fn process() -> u64 {
    word().map_or(0, |word| word.load(Ordering::Relaxed))
}

/// A value that each process makes for itself. In a forked child the parent's is out of reach, with
/// its locks and its threads.
#[derive(Debug)]
pub(crate) struct PerProcess<T: 'static> {
    /// Of the process that made the value.
    process: AtomicU64,
    value: AtomicPtr<T>,
}

impl<T: Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { process: AtomicU64::new(u64::MAX), value: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value of this process, if there is one.
    #[inline]
    pub(crate) fn get(&'static self) -> Option<&'static T> {
        if self.process.load(Ordering::Acquire) != process() {
            return None;
        }
        // SAFETY: as_ref wants null or a pointer to a value that lives: `get_or_make` stores
        // references to values that are never freed, and stores the process after them.
        unsafe { self.value.load(Ordering::Relaxed).as_ref() }
    }

    /// The value of this process; the first call makes it.
    pub(crate) fn get_or_make<E>(
        &'static self,
        make: impl FnOnce() -> std::result::Result<&'static T, E>,
    ) -> std::result::Result<&'static T, E> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        uninterrupted(|| {
            if let Some(value) = self.get() {
                return Ok(value);
            }
            let value = make()?;
            self.value.store(ptr::from_ref(value).cast_mut(), Ordering::Relaxed);
            self.process.store(process(), Ordering::Release);
            Ok(value)
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A forked child that does nothing until it is dropped.
    pub(in super::super) struct Sleeper(libc::pid_t);

    impl Sleeper {
        pub(in super::super) fn fork() -> Self {
            // SAFETY: the child makes system calls only.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: takes a number, and has the child die with the thread that forked it.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            Self(pid)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: the same child; no status is asked for.
            unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
        }
    }

    /// The exit code of a forked child.
    fn in_child(body: impl FnOnce() -> bool) {
        // SAFETY: the child runs the body, which takes no lock of other threads but the
        // allocator's, and `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!body());
            // SAFETY: ends the child without running anything else.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waitpid writes one int to a live one.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    }

    #[test]
    fn every_process_has_a_number_and_values_of_its_own() {
        static VALUE: PerProcess<u64> = PerProcess::new();
        let make = || VALUE.get_or_make(|| Ok::<_, ()>(Box::leak(Box::new(process())))).unwrap();
        identify().unwrap();
        let ours = process();
        assert!(ours != 0 && VALUE.get().is_none());
        assert_eq!((*make(), VALUE.get()), (ours, Some(&ours)));
        in_child(|| {
            let inert = process() == 0 && VALUE.get().is_none();
            identify().is_ok() && inert && process() > ours && *make() == process() && VALUE.get() == Some(&process())
        });
        assert_eq!((process(), VALUE.get()), (ours, Some(&ours)));
    }

    /// A child that is forked while other threads are in steps can make steps of its own.
    #[test]
    fn no_fork_interrupts_a_step() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    uninterrupted(|| uninterrupted(std::thread::yield_now));
                }
            });
            for _ in 0..64 {
                in_child(|| uninterrupted(|| true));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
