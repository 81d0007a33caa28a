//! The share of a completion queue that a queue pair holds: reserved entries, and a ring for each
//! of its work queues.

use std::sync::Arc;

use super::capacity::Retired;
use super::poll::Fetched;
use super::queue::CqInner;
use crate::error::Result;
use crate::handle::Handle;
use crate::ring::{Cached, Producer, attach, detach};

impl CqInner {
    fn reserve(&self, depth: u32) -> Result<()> {
        match self.capacity.reserve(depth) {
            Err(_) if self.sharing.crowd.has_retired() => {
                self.drain()?;
                self.capacity.reserve(depth)
            }
            result => result,
        }
    }

    fn retire(&self, depth: u32) {
        if self.is_raw {
            // The caller polls a raw queue and accounts for the completions left in it.
            self.capacity.release(depth);
        } else {
            self.capacity.retire(depth, &self.sharing.crowd);
        }
    }

    /// The queue pairs destroyed so far, to pass to `found_empty`; none if no destroyed queue pair
    /// still holds a reservation. Read this before the poll.
    pub(super) fn retired(&self) -> Option<Retired> {
        self.sharing.crowd.has_retired().then(|| self.capacity.retired())
    }

    /// Records that a poll found the queue empty.
    pub(super) fn found_empty(&self, retired: Option<Retired>) {
        if let Some(retired) = retired {
            self.capacity.found_empty(retired, &self.sharing.crowd);
        }
    }

    /// Moves all completions from the queue to the pollers' backlog or their scopes, so that the
    /// reservations of destroyed queue pairs become free.
    fn drain(&self) -> Result<()> {
        let retired = self.retired();
        let (mut cached, mut fetched, mut left) = (Cached::nothing(), Fetched::new(), self.capacity.get() as usize);
        while left > 0 {
            match self.pump(&mut cached, &mut fetched)? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        self.found_empty(retired);
        Ok(())
    }
}

/// A work queue's ring and its reservation in its completion queue.
///
/// If requests are still parked when this is dropped, the device may still use their memory. The
/// ring and the reservation are then leaked.
pub(crate) struct Attached {
    pub(crate) producer: Producer,
    /// The entries that are reserved.
    reserved: u32,
    cq: Arc<Handle<CqInner>>,
}

impl Attached {
    /// Reserves `depth` completion queue entries, and creates a ring of `depth` slots with
    /// `segments_each` segments each.
    pub(crate) fn new(cq: &Arc<Handle<CqInner>>, depth: u32, segments_each: u32) -> Result<Self> {
        let depth = depth.max(1);
        cq.reserve(depth)?;
        let producer = attach(depth, segments_each).inspect_err(|_| cq.retire(depth))?;
        Ok(Self { producer, reserved: depth, cq: Arc::clone(cq) })
    }

    /// Creates a ring for a queue to which nothing is posted.
    pub(crate) fn unused(cq: &Arc<Handle<CqInner>>) -> Result<Self> {
        Ok(Self { producer: attach(1, 1)?, reserved: 0, cq: Arc::clone(cq) })
    }

    /// Whether the work queue reports to this completion queue.
    pub(crate) fn is_of(&self, cq: &Arc<Handle<CqInner>>) -> bool {
        Arc::ptr_eq(&self.cq, cq)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.cq.context.is_forked() {
            // In a forked child the device still works for the parent, and another thread of the
            // parent may have held the locks at the time of the fork.
            return;
        }
        let parked = self.producer.parked();
        if parked == 0 {
            detach(&self.producer);
            self.cq.retire(self.reserved);
        } else {
            tracing::warn!(
                name: "requests_leaked", target: "rdma",
                parked, "requests are still in flight; their memory is leaked"
            );
        }
    }
}

/// Entries of a completion queue that the requests of a shared receive queue need, for all queue
/// pairs that use both queues.
pub(crate) struct Reservation {
    entries: u32,
    cq: Arc<Handle<CqInner>>,
}

impl Reservation {
    /// Reserves `entries` entries.
    pub(crate) fn new(cq: &Arc<Handle<CqInner>>, entries: u32) -> Result<Self> {
        cq.reserve(entries)?;
        Ok(Self { entries, cq: Arc::clone(cq) })
    }

    /// Fetches all completions for the pollers, before a queue pair ends: with it the provider
    /// forgets those of its receives, whose slots would then stay in flight.
    pub(crate) fn rescue(&self) {
        if !self.cq.is_raw {
            // If polling fails, so does the program's next poll.
            let _fetched = self.cq.drain();
        }
    }

    /// Whether the entries are of this queue.
    pub(crate) fn is_of(&self, cq: &Arc<Handle<CqInner>>) -> bool {
        Arc::ptr_eq(&self.cq, cq)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // In a forked child another thread of the parent may have held the lock at the time of the
        // fork.
        if !self.cq.context.is_forked() {
            self.cq.retire(self.entries);
        }
    }
}
