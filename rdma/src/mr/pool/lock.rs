//! A lock that is tried rather than waited for, and that its last holder may free.
//!
//! # Invariants
//!
//! * **L1.** The value is accessed by the holder alone: the thread that changed `held` to `true`,
//!   until it stores `false`.
//! * **L2.** The store of `false` is the holder's last access to the lock. A thread that locks it
//!   afterwards may free it.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Failed attempts after which a waiting thread sleeps between two of them: the holder may be a
/// thread of lower priority, which would never run otherwise.
#[cfg(not(loom))]
const PATIENCE: u32 = 64;

/// A value for one thread at a time. Critical sections are some instructions long and run no code
/// of a caller.
pub(super) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
    /// Represents the value in loom's models.
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
}

// SAFETY: Sync requires that shared access is free of data races: one thread at a time has the
// value (L1), which is Send.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            watched: loom::cell::UnsafeCell::new(()),
        }
    }

    /// The value, unless another thread has it.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: the last holder's accesses come before this thread's.
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { lock: NonNull::from(self), lifetime: PhantomData })
    }

    /// The value, once no other thread has it.
    pub(super) fn lock(&self) -> Guard<'_, T> {
        #[cfg(not(loom))]
        let mut attempts = 0_u32;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            #[cfg(not(loom))]
            if attempts >= PATIENCE {
                thread::sleep(std::time::Duration::from_micros(50));
                continue;
            } else {
                attempts += 1;
            }
            thread::yield_now();
        }
    }
}

/// Tells loom that the value is freed: no access of another thread may be concurrent.
#[cfg(loom)]
impl<T> Drop for Lock<T> {
    fn drop(&mut self) {
        self.watched.with_mut(|_| ());
    }
}

/// The right to the value of a [`Lock`].
///
/// Holds a pointer and not a reference, because the lock may be freed while the guard's drop
/// returns (L2).
pub(super) struct Guard<'a, T> {
    lock: NonNull<Lock<T>>,
    lifetime: PhantomData<&'a Lock<T>>,
}

impl<T> Guard<'_, T> {
    fn lock(&self) -> &Lock<T> {
        // SAFETY: as_ref requires a valid lock: it is borrowed until the guard ends.
        unsafe { self.lock.as_ref() }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        #[cfg(loom)]
        self.lock().watched.with(|_| ());
        // SAFETY: the reference requires that no thread writes the value: this one has it (L1), and
        // the guard is borrowed.
        unsafe { &*self.lock().value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        #[cfg(loom)]
        self.lock().watched.with_mut(|_| ());
        // SAFETY: the reference requires that nobody else accesses the value: this thread has it
        // (L1), and the guard is borrowed exclusively.
        unsafe { &mut *self.lock().value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reference requires a valid flag: the lock is borrowed until the guard ends.
        // It is the flag's alone, which other threads may free once it is false (L2).
        let held = unsafe { &(*self.lock.as_ptr()).held };
        // Release: this thread's accesses come before the next holder's.
        held.store(false, Ordering::Release);
    }
}
