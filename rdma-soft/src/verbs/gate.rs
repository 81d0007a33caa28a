//! A lock that one call acquires and a later call releases: `start_poll` and `end_poll`, `wr_start`
//! and `wr_complete`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A value with a lock that outlives the call that acquires it.
#[derive(Debug, Default)]
pub(crate) struct Gate<T> {
    inner: Mutex<Inner<T>>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Inner<T> {
    entered: bool,
    /// Callers that sleep in [`Gate::enter`].
    waiting: usize,
    value: T,
}

impl<T> Gate<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(Inner { entered: false, waiting: 0, value }), left: Condvar::new() }
    }

    /// Acquires the lock; waits while another caller holds it.
    pub(crate) fn enter(&self) {
        let mut inner = self.lock();
        while inner.entered {
            inner.waiting += 1;
            inner = self.left.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
        inner.entered = true;
    }

    /// Releases the lock and wakes one waiter. Has no effect if nobody holds the lock.
    ///
    /// `Condvar::notify_one` is a system call even if nobody waits, so it is left out then.
    pub(crate) fn leave(&self) {
        let mut inner = self.lock();
        inner.entered = false;
        let is_awaited = inner.waiting > 0;
        drop(inner);
        if is_awaited {
            self.left.notify_one();
        }
    }

    /// Calls `work` with the value. Meant for the holder of the lock, but sound for any caller.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock().value)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn one_at_a_time() {
        let gate = Gate::new(0_u32);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        gate.enter();
                        let before = gate.with(|value| *value);
                        thread::yield_now();
                        gate.with(|value| *value = before + 1);
                        gate.leave();
                    }
                });
            }
        });
        assert_eq!(gate.with(|value| *value), 2000);
    }
}
