//! A value that is set once, and that a forked child inherits.
//!
//! A `OnceLock` is none: a child that is forked while it is set waits for its parent's thread for
//! ever.
//!
//! Invariants of [`Published`]:
//!
//! 1. The pointer is null or that of a box that [`set`](Published::set) has stored. Such a box is
//!    never freed, also when [`forget`](Published::forget) takes it out, and nobody writes to it.
//! 2. Only the call of `set` that made a box has its pointer until the pointer is stored.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The value, if it is set. No call waits for another thread.
#[derive(Debug)]
pub(crate) struct Published<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Published<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: as_ref requires null or a pointer to a live value that nobody writes to, for
        // ever: the box of a stored pointer is neither freed nor written to (1).
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value if there is none; returns the one that there is now.
    pub(crate) fn set(&self, value: T) -> &'static T {
        let fresh = Box::into_raw(Box::new(value));
        let stored = self.0.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        let current = match stored {
            Ok(_) => fresh,
            Err(current) => {
                // SAFETY: `Box::from_raw` requires the pointer of a box, once: `fresh` is one,
                // which nobody else has (2), since the failed exchange has not stored it.
                drop(unsafe { Box::from_raw(fresh) });
                current
            }
        };
        // SAFETY: the reference requires a live value that nobody writes to, for ever: `current` is
        // or was stored, so its box is neither freed nor written to (1).
        unsafe { &*current }
    }

    /// Forgets the value, unless another has taken its place. It is leaked: a thread may be reading
    /// it.
    pub(crate) fn forget(&self, value: &'static T) {
        let pointer = ptr::from_ref(value).cast_mut();
        let _forgotten = self.0.compare_exchange(pointer, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays_until_it_is_forgotten() {
        static VALUE: Published<String> = Published::new();
        assert_eq!(VALUE.get(), None);
        let first = std::thread::scope(|scope| {
            let threads = [1, 2, 3, 4].map(|thread| scope.spawn(move || VALUE.set(format!("{thread}"))));
            let set = threads.map(|thread| thread.join().unwrap());
            assert!(set.iter().all(|value| ptr::eq(*value, set[0])));
            set[0]
        });
        assert_eq!(VALUE.get(), Some(first));
        VALUE.forget(first);
        assert_eq!(VALUE.get(), None);
        let second = VALUE.set("second".to_owned());
        VALUE.forget(first);
        assert_eq!(VALUE.get(), Some(second));
        assert!(first.len() == 1, "what was forgotten can still be read");
    }
}
