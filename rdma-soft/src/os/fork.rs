//! Fork safety: steps that a fork does not interrupt, and values that a child does not share with
//! its parent.
//!
//! A forked child has a copy of all memory, but only one thread: a lock that another thread held
//! stays locked in the child, and data that the other thread was changing stays half changed. So
//! data that a child uses again is either changed in a [step](uninterrupted), for which `fork`
//! waits, or made anew by each process ([`PerProcess`]).
//!
//! In a forked child, inherited objects fail every call, and the first new call makes a node, an
//! agent and a slot: the children of a pre-fork server open the device as they open a NIC.

use std::cell::Cell;
use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_mem::process::{self, ForkHandlers};

use super::Result;

/// The lock of the steps of one process.
struct Gate {
    process: u64,
    lock: Mutex<()>,
}

/// The gate of the process that used it last; null at first. A child makes its own: a fork that
/// began before its parent's first step may have interrupted that step.
static GATE: AtomicPtr<Gate> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Whether this thread is in a step.
    static IN_STEP: Cell<bool> = const { Cell::new(false) };
    /// The gate's lock, held between the handlers before and after a fork in this thread.
    /// `ManuallyDrop` keeps the variable without a destructor, which an ending thread might have
    /// run already.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, ()>>>> = const { Cell::new(None) };
}

fn gate() -> MutexGuard<'static, ()> {
    // Without a number, in a process that can have no device, parent and child share one gate.
    let process = process::identify().unwrap_or(0);
    loop {
        let current = GATE.load(Ordering::Acquire);
        // SAFETY: as_ref requires null or a pointer to a live value: the exchange below stores only
        // boxes, which are never freed then, and stores them (release) after they are made.
        if let Some(gate) = unsafe { current.as_ref() }.filter(|gate| gate.process == process) {
            return gate.lock.lock().unwrap_or_else(PoisonError::into_inner);
        }
        let fresh = Box::into_raw(Box::new(Gate { process, lock: Mutex::new(()) }));
        if GATE.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: `Box::from_raw` requires the pointer of a box, once: it was made above, and
            // the failed exchange has not stored it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Runs a step that no fork in another thread interrupts. Only one thread at a time runs a step,
/// and a step must not wait for another thread. Steps may be nested.
pub(crate) fn uninterrupted<R>(step: impl FnOnce() -> R) -> R {
    // SAFETY: `ForkHandlers::new` requires functions that may run at any fork, several times:
    // `before` locks the gate unless this thread has it, and `after` unlocks it once. `after` waits
    // for no lock.
    static HANDLERS: ForkHandlers = unsafe { ForkHandlers::new(Some(before), Some(after), Some(after)) };
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
    // If the registration fails for lack of memory, forks interrupt steps.
    let _registered = HANDLERS.register();
    // Set before the lock is taken: a signal handler that forks in this thread finds either the
    // mark set or the lock free.
    IN_STEP.set(true);
    let _leave = Leave;
    let _gate = gate();
    step()
}

extern "C" fn before() {
    // In a step of its own thread, a forking signal handler would wait for the lock for ever.
    if !IN_STEP.get() {
        let held = HELD.take().unwrap_or_else(|| ManuallyDrop::new(gate()));
        HELD.set(Some(held));
    }
}

extern "C" fn after() {
    if let Some(guard) = HELD.take() {
        drop(ManuallyDrop::into_inner(guard));
    }
}

/// Gives this process a number that none of its ancestors has.
pub(crate) fn identify() -> Result<()> {
    process::identify()?;
    Ok(())
}

/// The number of this process; 0 if it has none, as in a forked child that has not called
/// [`identify`].
#[inline]
pub(crate) fn process() -> u64 {
    process::number()
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
        // SAFETY: as_ref requires null or a pointer to a live value: `get_or_make` stores only
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

    /// The value of this process, which is the default one at first.
    pub(crate) fn get_or_default(&'static self) -> &'static T
    where
        T: Default,
    {
        let Ok(value) = self.get_or_make(|| Ok::<_, Infallible>(Box::leak(Box::default())));
        value
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Barrier;

    use rdma_test_support::holds_in_child;

    use super::*;

    /// A forked child that does nothing until it is dropped.
    pub(in super::super) struct Sleeper(libc::pid_t);

    impl Sleeper {
        pub(in super::super) fn fork() -> Self {
            // SAFETY: fork requires a child that calls only async-signal-safe functions: the child
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
            // SAFETY: waitpid requires null or a place for the status: null. The pid is the same
            // child.
            unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
        }
    }

    /// Runs `body` in a forked child and asserts that it returns true within a minute.
    pub(in super::super) fn in_child(body: impl FnOnce() -> bool) {
        assert!(holds_in_child(body));
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

    /// Interrupts a step by a fork, as one that has begun before the first step of the process:
    /// `step` calls its argument where it is interrupted. Asserts that `body` returns true in the
    /// child.
    pub(in super::super) fn interrupted(step: impl FnOnce(&dyn Fn()) + Send, body: impl FnOnce() -> bool) {
        let (begun, end) = (Barrier::new(2), Barrier::new(2));
        let holds = std::thread::scope(|scope| {
            scope.spawn(|| {
                uninterrupted(|| {
                    step(&|| {
                        begun.wait();
                        end.wait();
                    });
                });
            });
            begun.wait();
            // The handler before the fork does not wait for the step.
            IN_STEP.set(true);
            let holds = holds_in_child(|| {
                IN_STEP.set(false);
                body()
            });
            IN_STEP.set(false);
            end.wait();
            holds
        });
        assert!(holds);
    }

    #[test]
    fn a_child_does_not_wait_for_a_step_that_its_fork_has_interrupted() {
        static VALUE: PerProcess<u64> = PerProcess::new();
        interrupted(
            |here| here(),
            || uninterrupted(|| identify().is_ok() && VALUE.get_or_make(|| Ok::<_, ()>(&7)) == Ok(&7)),
        );
    }
}
