//! How much of a completion queue is spoken for: queue pairs reserve their depths, so that it
//! cannot overrun.
//!
//! A provider may leave completions of a destroyed queue pair behind. So its reservation lasts
//! until a poll after the destroy has found the queue empty, or has taken out as much as can have
//! been in it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sharing::Crowd;
use crate::error::{Error, ErrorKind, Operation, Result};

/// The reservations of one completion queue.
pub(super) struct Capacity(Mutex<Reserved>);

struct Reserved {
    /// Entries that the queue has.
    capacity: u32,
    /// Entries reserved, those of destroyed queue pairs included that are not known to be empty.
    reserved: u32,
    /// What destroyed queue pairs had reserved since the start, and how much of it is free again.
    retired: u64,
    freed: u64,
}

impl Capacity {
    pub(super) fn new(capacity: u32) -> Self {
        Self(Mutex::new(Reserved { capacity, reserved: 0, retired: 0, freed: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, Reserved> {
        // Nothing under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> u32 {
        self.lock().capacity
    }

    /// Changes the number of entries, by what `resize` makes of it, to no less than is reserved.
    pub(super) fn resize(&self, depth: u32, resize: impl FnOnce() -> Result<u32>) -> Result<u32> {
        let mut state = self.lock();
        if depth < state.reserved {
            let kind = ErrorKind::CompletionQueueTooSmall { needed: state.reserved, free: depth };
            return Err(Error::new(Operation::ResizeCq, kind));
        }
        state.capacity = resize()?;
        Ok(state.capacity)
    }

    pub(super) fn reserve(&self, depth: u32) -> Result<()> {
        let mut state = self.lock();
        let free = state.capacity.saturating_sub(state.reserved);
        if depth > free {
            return Err(Error::new(Operation::CreateQp, ErrorKind::CompletionQueueTooSmall { needed: depth, free }));
        }
        state.reserved += depth;
        Ok(())
    }

    /// Gives a reservation back at once: nothing can be left behind that counts.
    pub(super) fn release(&self, depth: u32) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(depth);
    }

    /// Gives a reservation back once the queue has been found empty.
    pub(super) fn retire(&self, depth: u32, crowd: &Crowd) {
        let mut state = self.lock();
        state.retired += u64::from(depth);
        crowd.set_retired(true);
    }

    /// What has been destroyed so far.
    pub(super) fn retired(&self) -> Retired {
        Retired(self.lock().retired)
    }

    /// The queue was found empty after all that had been destroyed.
    pub(super) fn found_empty(&self, Retired(retired): Retired, crowd: &Crowd) {
        let mut state = self.lock();
        let more = retired.saturating_sub(state.freed);
        state.freed += more;
        state.reserved = state.reserved.saturating_sub(u32::try_from(more).unwrap_or(u32::MAX));
        crowd.set_retired(state.freed < state.retired);
    }
}

/// A point in the sequence of destroyed queue pairs.
#[derive(Clone, Copy)]
pub(super) struct Retired(u64);
