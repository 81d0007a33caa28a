//! A lock that a panic leaves usable.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex without poison: what a thread that panicked has left is as good as what a failed call
/// leaves, so the next thread goes on with it.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
