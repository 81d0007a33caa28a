//! What a queue pair takes of a completion queue: room for its completions, and a ring for each of
//! its queues.

use std::sync::Arc;

use super::capacity::Retired;
use super::queue::CqInner;
use crate::error::Result;
use crate::handle::Handle;
use crate::qp::ring::{Cached, Producer, attach, detach};

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
            // Its caller polls and accounts for what is left behind.
            self.capacity.release(depth);
        } else {
            self.capacity.retire(depth, &self.sharing.crowd);
        }
    }

    /// The queue pairs destroyed so far; none if all their reservations are free again. Asked
    /// before a poll.
    pub(super) fn retired(&self) -> Option<Retired> {
        self.sharing.crowd.has_retired().then(|| self.capacity.retired())
    }

    /// A poll has found the queue empty.
    pub(super) fn found_empty(&self, retired: Option<Retired>) {
        if let Some(retired) = retired {
            self.capacity.found_empty(retired, &self.sharing.crowd);
        }
    }

    /// Takes everything out of the queue for the pollers, so that what destroyed queue pairs had
    /// reserved is free.
    fn drain(&self) -> Result<()> {
        let retired = self.retired();
        let (mut cached, mut left) = (Cached::nothing(), self.capacity.get() as usize);
        while left > 0 {
            match self.pump(&mut cached)? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        self.found_empty(retired);
        Ok(())
    }
}

/// A queue's ring and its reservation in its completion queue.
///
/// When it is dropped with something still parked, because nobody could tell that the device has
/// let go of it, both are not used again.
pub(crate) struct Attached {
    pub(crate) producer: Producer,
    cq: Arc<Handle<CqInner>>,
}

impl Attached {
    /// Reserves `depth` completions, and a ring with as many slots of `segments_each` segments.
    pub(crate) fn new(cq: &Arc<Handle<CqInner>>, depth: u32, segments_each: u32) -> Result<Self> {
        let depth = depth.max(1);
        cq.reserve(depth)?;
        let producer = attach(depth, segments_each).inspect_err(|_| cq.retire(depth))?;
        Ok(Self { producer, cq: Arc::clone(cq) })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.cq.context.is_forked() {
            // The device works for the parent; another thread of it may have had the locks.
            return;
        }
        let parked = self.producer.parked();
        if parked == 0 {
            detach(&self.producer);
            self.cq.retire(self.producer.depth());
        } else {
            tracing::warn!(parked, "requests are still in flight; their memory is leaked");
        }
    }
}
