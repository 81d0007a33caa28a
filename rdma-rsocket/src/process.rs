//! The process that owns a socket: a forked child must not use its parent's.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// How many forks lie between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether forks are counted.
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// A process, among its parents and children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// The calling process.
    ///
    /// A child of a bare `clone` system call runs no fork handlers, and passes for its parent.
    pub(crate) fn current() -> Self {
        // No lock: a child of a thread that forks meanwhile would find it locked for ever. Two
        // threads that register at the same time count each fork twice, which does no harm.
        if !IS_REGISTERED.load(Ordering::Acquire) {
            // SAFETY: pthread_atfork requires functions that may run around any fork: the only one
            // is `in_child`, which is safe to call from a signal handler too. If the registration
            // fails for lack of memory, a child passes for its parent.
            let _registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            IS_REGISTERED.store(true, Ordering::Release);
        }
        Self(GENERATION.load(Ordering::Relaxed))
    }
}

/// Counts a fork: an atomic add takes no lock and allocates nothing.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A value that every process makes for itself. A forked child does not see its parent's, whose
/// locks other threads of the parent may have held.
///
/// # Invariants
///
/// * **E1.** The pointer is null, or an entry that this module has made by `Box`.
/// * **E2.** An entry is freed only with the whole value, in the process that made it.
pub(crate) struct PerProcess<T> {
    entry: AtomicPtr<Entry<T>>,
    _owned: PhantomData<Box<Entry<T>>>,
}

struct Entry<T> {
    owner: Owner,
    value: T,
}

impl<T: Default + Send> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { entry: AtomicPtr::new(ptr::null_mut()), _owned: PhantomData }
    }

    /// The calling process's value. Any thread may make it, and another drop it.
    pub(crate) fn get(&self) -> &T {
        let owner = Owner::current();
        let mut seen = self.entry.load(Ordering::Acquire);
        loop {
            // SAFETY: as_ref requires null or an entry (E1) that lives as long as the borrow (E2)
            // and is not changed: nobody has a mutable reference to one.
            if let Some(entry) = unsafe { seen.as_ref() }.filter(|entry| entry.owner == owner) {
                return &entry.value;
            }
            let new = Box::into_raw(Box::new(Entry { owner, value: T::default() }));
            match self.entry.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                // The parent's entry stays as it is (E2).
                Ok(_) => seen = new,
                Err(other) => {
                    // SAFETY: from_raw requires a box that nobody else has: it was just made, and
                    // not published.
                    drop(unsafe { Box::from_raw(new) });
                    seen = other;
                }
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let entry = *self.entry.get_mut();
        // SAFETY: as_ref requires null or an entry (E1), which nobody changes.
        if unsafe { entry.as_ref() }.is_some_and(|entry| entry.owner == Owner::current()) {
            // SAFETY: from_raw requires a box (E1) that nobody else uses: this value, from which
            // all references are borrowed, is being dropped.
            drop(unsafe { Box::from_raw(entry) });
        }
    }
}

impl<T: Default + Send> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + Send + fmt::Debug> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    #[test]
    fn threads_share_one_value() {
        let value = PerProcess::<Mutex<u32>>::new();
        thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(|| *value.get().lock().unwrap() += 1))));
        assert_eq!(*value.get().lock().unwrap(), 8);
    }
}
