//! Fork safety: steps that a fork does not interrupt, and values that a child does not share with
//! its parent.
//!
//! A forked child has a copy of all memory, but only one thread: a lock that another thread held
//! stays locked in the child, and data that the other thread was changing stays half changed. So
//! data that a child uses again is either changed in a [step](uninterrupted), for which `fork`
//! waits, or made anew by each process ([`PerProcess`]).

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
    /// The gate's lock, held between the handlers before and after a fork in this thread.
    /// `ManuallyDrop` keeps the variable without a destructor, which an ending thread might have
    /// run already.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, ()>>>> = const { Cell::new(None) };
}

fn gate() -> MutexGuard<'static, ()> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a step that no fork in another thread interrupts. Only one thread at a time runs a step,
/// and a step must not wait for another thread. Steps may be nested.
pub(crate) fn uninterrupted<R>(step: impl FnOnce() -> R) -> R {
    static ONCE: Once = Once::new();
    /// Ends the step, also on a panic.
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
    // Set before the lock is taken: a signal handler that forks in this thread finds either the
    // mark set or the lock free.
    IN_STEP.set(true);
    let _leave = Leave;
    let _gate = gate();
    step()
}

/// Runs `function` in every child that is forked from now on. `function` must be async-signal-safe.
pub(crate) fn run_in_children(function: extern "C" fn()) {
    register(None, None, Some(function));
}

type Handler = unsafe extern "C" fn();

fn register(before: Option<Handler>, after: Option<Handler>, in_child: Option<Handler>) {
    // `nix` has no pthread_atfork. If the registration fails for lack of memory, forks interrupt
    // steps.
    // SAFETY: pthread_atfork wants functions that may run around any fork. The functions live as
    // long as the program; `before` and `after` lock and unlock one lock in the forking thread, and
    // any other function in a child is async-signal-safe (`run_in_children`).
    unsafe { libc::pthread_atfork(before, after, in_child) };
}

extern "C" fn before() {
    // In a step of its own thread, a forking signal handler would wait for the lock for ever.
    if !IN_STEP.get() {
        HELD.set(Some(ManuallyDrop::new(gate())));
    }
}

extern "C" fn after() {
    if let Some(guard) = HELD.take() {
        drop(ManuallyDrop::into_inner(guard));
    }
}

/// A word that the kernel zeroes in every child, whichever call made the child; null before
/// [`identify`].
static IDENTITY: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Gives this process a number that none of its ancestors has.
pub(crate) fn identify() -> Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    uninterrupted(|| {
        if IDENTITY.load(Ordering::Acquire).is_null() {
            let page = MmapMut::map_anon(size_of::<AtomicU64>()).named("mmap")?;
            let start = ptr::NonNull::from(&*page).cast();
            // SAFETY: madvise wants a range of whole pages that may be wiped in a child: the range
            // is the mapping, which only this module uses.
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
    // SAFETY: as_ref wants null or a pointer to a live, aligned atomic: the pointer is to the start
    // of a page that is never unmapped, not in a child either, and that holds only this atomic.
    unsafe { IDENTITY.load(Ordering::Acquire).as_ref() }
}

/// The number of this process; 0 if it has none, as in a forked child that has not called
/// [`identify`].
#[inline]
pub(crate) fn process() -> u64 {
    word().map_or(0, |word| word.load(Ordering::Relaxed))
}

/// A value that each process makes for itself. A forked child cannot reach its parent's value,
/// including the locks and threads in it.
#[derive(Debug)]
pub(crate) struct PerProcess<T: 'static> {
    /// Number of the process that made the value.
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
        // SAFETY: as_ref wants null or a pointer to a live value: `get_or_make` stores only
        // references to values that are never freed, and stores `process` (release) after the
        // value.
        unsafe { self.value.load(Ordering::Relaxed).as_ref() }
    }

    /// The value of this process, made by the first call.
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
            // SAFETY: fork wants a child that calls only async-signal-safe functions: the child
            // makes system calls only.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: PR_SET_PDEATHSIG takes a number and reads no memory; the child is killed
                // when the thread that forked it dies.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
                loop {
                    // SAFETY: pause has no requirements; it waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            Self(pid)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // SAFETY: kill takes numbers; the pid is a child of this process that is not reaped
            // yet.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: waitpid wants null or a place for the status: null. The pid is the same
            // child.
            unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
        }
    }

    /// Runs `body` in a forked child and asserts that it returns true.
    fn in_child(body: impl FnOnce() -> bool) {
        // SAFETY: fork wants a child that calls only async-signal-safe functions: the child runs
        // `body`, which takes no lock of other threads but the allocator's, and `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = i32::from(!body());
            // SAFETY: _exit has no requirements; it ends the child without running anything else.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: waitpid wants a place for the status: `status` is a live int.
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

    /// A child that is forked while other threads run steps can run steps of its own.
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
