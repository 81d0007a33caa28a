//! Reservations of a completion queue's entries: each queue pair reserves its depths, so that the
//! completion queue cannot overrun.
//!
//! A provider may leave completions of a destroyed queue pair in the queue. The reservation
//! therefore lasts until a poll after the destroy has found the queue empty, or polls have removed
//! as many completions as the queue can hold.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sharing::Crowd;
use crate::error::{Error, ErrorKind, Result, Verb};

/// The reservations of one completion queue.
pub(super) struct Capacity(Mutex<Reserved>);

struct Reserved {
    /// Entries in the queue.
    capacity: u32,
    /// Reserved entries, including those of destroyed queue pairs until the queue was found empty.
    reserved: u32,
    /// Entries that destroyed queue pairs had reserved since the start, and how many of these are
    /// free again.
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

    /// Changes the number of entries to the number that `resize` returns; fails if `depth` is less
    /// than the reserved number.
    pub(super) fn resize(&self, depth: u32, resize: impl FnOnce() -> Result<u32>) -> Result<u32> {
        let mut state = self.lock();
        if depth < state.reserved {
            let kind = ErrorKind::CompletionQueueTooSmall { needed: state.reserved, free: depth };
            return Err(Error::new(Verb::ResizeCq, kind));
        }
        state.capacity = resize()?;
        Ok(state.capacity)
    }

    pub(super) fn reserve(&self, depth: u32) -> Result<()> {
        let mut state = self.lock();
        let free = state.capacity.saturating_sub(state.reserved);
        if depth > free {
            return Err(Error::new(Verb::CreateQp, ErrorKind::CompletionQueueTooSmall { needed: depth, free }));
        }
        state.reserved += depth;
        Ok(())
    }

    /// Frees a reservation at once. Used for raw queues, whose caller accounts for the completions
    /// left in them.
    pub(super) fn release(&self, depth: u32) {
        let mut state = self.lock();
        state.reserved = state.reserved.saturating_sub(depth);
    }

    /// Frees a reservation once the queue has been found empty.
    pub(super) fn retire(&self, depth: u32, crowd: &Crowd) {
        let mut state = self.lock();
        state.retired += u64::from(depth);
        crowd.set_retired(true);
    }

    /// The point reached in the sequence of destroyed queue pairs.
    pub(super) fn retired(&self) -> Retired {
        Retired(self.lock().retired)
    }

    /// Frees the reservations of all queue pairs destroyed before `retired` was read: the queue was
    /// found empty after that.
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
