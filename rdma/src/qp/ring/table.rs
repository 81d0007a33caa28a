//! Which ring a completion belongs to, and how much of the completion queue is spoken for.
//!
//! The table only grows: an entry, once set, stays, so that a poller reads it without a lock. The ring of a queue that was
//! destroyed waits in the table for the next queue that it is large enough for.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::Lap;
use super::{Cached, Claimed, Grabbed, MAX_SLOTS, Producer, Ring, USE_BITS};
use crate::cq::CqInner;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::handle::Handle;

const CHUNK: usize = 256;
type Chunk = [AtomicPtr<Ring>; CHUNK];

/// The rings of all queues that report to one completion queue.
pub(crate) struct RingTable {
    chunks: [AtomicPtr<Chunk>; CHUNK],
    /// Completions that named no current use of a slot.
    stale: AtomicU64,
    control: Mutex<Control>,
    /// Completions that the completion queue can hold.
    capacity: u32,
}

struct Control {
    /// Entries of the table in use or idle.
    queues: usize,
    /// Queues that nobody uses at present.
    idle: Vec<u16>,
    reserved: u32,
}

/// A queue's ring and its reservation of the completion queue's entries, which it keeps alive (R4).
///
/// When it is dropped with something still parked, because nobody could tell that the device has let go of it, the ring and
/// the completion queue leak.
pub(crate) struct Attached {
    pub(crate) producer: Producer,
    cq: Arc<Handle<CqInner>>,
}

impl Attached {
    /// Reserves `depth` completions, and a ring with as many slots of `segments_each` segments.
    pub(crate) fn new(cq: &Arc<Handle<CqInner>>, depth: u32, segments_each: u32) -> Result<Self> {
        let depth = depth.max(1);
        // SAFETY: R4: the completion queue is kept alive by the value that is returned.
        let producer = unsafe { cq.rings.attach(depth, segments_each) }?;
        Ok(Self { producer, cq: Arc::clone(cq) })
    }
}

impl Drop for Attached {
    #[allow(clippy::mem_forget, reason = "what is parked must stay where the device may reach it")]
    fn drop(&mut self) {
        if self.cq.context.is_forked() {
            // The rings are the parent's, and so may be the lock of the table.
            std::mem::forget(Arc::clone(&self.cq));
            return;
        }
        let parked = self.producer.parked();
        if parked == 0 {
            self.cq.rings.detach(&self.producer);
        } else {
            std::mem::forget(Arc::clone(&self.cq));
            tracing::warn!(parked, "requests are still in flight; their memory and the completion queue are leaked");
        }
    }
}

impl RingTable {
    /// For a completion queue of `capacity` entries.
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK],
            stale: AtomicU64::new(0),
            control: Mutex::new(Control { queues: 0, idle: Vec::new(), reserved: 0 }),
            capacity,
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // Every change below is complete before anything that could panic.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `depth` completions, and a ring with as many slots of `segments_each` segments.
    ///
    /// # Safety
    ///
    /// The producer keeps this table alive and in place (R4): its holder holds a reference to the completion queue.
    unsafe fn attach(&self, depth: u32, segments_each: u32) -> Result<Producer> {
        if depth == 0 || depth > MAX_SLOTS {
            return Err(Error::new(Operation::CreateQp, ErrorKind::TooLong));
        }
        let mut control = self.control();
        let free = self.capacity.saturating_sub(control.reserved);
        if depth > free {
            return Err(Error::new(Operation::CreateQp, ErrorKind::CompletionQueueTooSmall { needed: depth, free }));
        }
        let queue = match self.idle_ring(&mut control, depth, segments_each) {
            Some(queue) => queue,
            None => self.add_ring(&mut control, depth, segments_each)?,
        };
        control.reserved += depth;
        drop(control);
        let ring = NonNull::new(self.ring(queue)).ok_or(Error::new(Operation::CreateQp, ErrorKind::Unknown))?;
        // SAFETY: R4: entries stay until the table is dropped, which the caller prevents.
        let idle = unsafe { ring.as_ref() };
        idle.wrap.store(depth, Ordering::Relaxed);
        let lap = Lap::from_count(idle.resume.load(Ordering::Relaxed), idle.lap_mask());
        // SAFETY: R2: the queue was idle or new, and is neither any more; `depth` was checked, and the ring is large enough;
        // R5: `resume` is the lap after the last one used; R4 is the caller's.
        Ok(unsafe { Producer::new(ring, queue, depth, lap) })
    }

    /// The smallest idle ring that fits.
    fn idle_ring(&self, control: &mut Control, depth: u32, segments_each: u32) -> Option<u16> {
        let fits = |&(_, queue): &(usize, &u16)| {
            // SAFETY: R4: entries stay as long as the table, and are null or a ring.
            unsafe { self.ring(*queue).as_ref() }.is_some_and(|ring| ring.fits(depth, segments_each))
        };
        // SAFETY: as above; null is not among those that fit.
        let size =
            |&(_, queue): &(usize, &u16)| unsafe { self.ring(*queue).as_ref() }.map_or(0, |ring| ring.slots.len());
        let position = control.idle.iter().enumerate().filter(fits).min_by_key(size)?.0;
        Some(control.idle.swap_remove(position))
    }

    fn add_ring(&self, control: &mut Control, depth: u32, segments_each: u32) -> Result<u16> {
        // More queues on one completion queue than a `wr_id` can tell apart.
        let queue = u16::try_from(control.queues).map_err(|_| Error::new(Operation::CreateQp, ErrorKind::TooLong))?;
        let chunk = &self.chunks[usize::from(queue) / CHUNK];
        if chunk.load(Ordering::Relaxed).is_null() {
            let empty: Chunk = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK];
            chunk.store(Box::into_raw(Box::new(empty)), Ordering::Release);
        }
        let ring = Box::into_raw(Box::new(Ring::new(depth, segments_each)));
        // SAFETY: not null: set here or before, under the lock; chunks stay as long as the table.
        let chunk = unsafe { &*chunk.load(Ordering::Relaxed) };
        chunk[usize::from(queue) % CHUNK].store(ring, Ordering::Release);
        control.queues += 1;
        Ok(queue)
    }

    fn ring(&self, queue: u16) -> *mut Ring {
        let chunk = self.chunks[usize::from(queue) / CHUNK].load(Ordering::Acquire);
        // SAFETY: null or a chunk, which stays as long as the table.
        match unsafe { chunk.as_ref() } {
            Some(chunk) => chunk[usize::from(queue) % CHUNK].load(Ordering::Acquire),
            None => ptr::null_mut(),
        }
    }

    /// Claims what the request `wr_id` parked; `None` if that names no request in flight.
    ///
    /// # Safety
    ///
    /// What is made of it is dropped before the table (R4), and `cached` is used with no other table.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the parts of the identifier are cut out of it")]
    pub(crate) unsafe fn grab(&self, wr_id: u64, cached: &mut Cached) -> Option<Grabbed> {
        let queue = wr_id >> USE_BITS;
        if queue != cached.queue {
            self.find(queue as u16, cached)?;
        }
        // SAFETY: K1: masked, the index is that of one of the ring's slots.
        let slot = unsafe { cached.slots.add((wr_id & cached.mask) as usize) };
        // SAFETY: K1, R4.
        unsafe { slot.as_ref() }.grab(wr_id)
    }

    #[cold]
    fn find(&self, queue: u16, cached: &mut Cached) -> Option<()> {
        let ring = NonNull::new(self.ring(queue))?;
        // SAFETY: R4: entries stay as long as the table.
        let Ring { slots, index_mask, .. } = unsafe { ring.as_ref() };
        *cached = Cached { queue: queue.into(), mask: *index_mask, slots: NonNull::from(&**slots).cast(), ring };
        Some(())
    }

    /// What a grabbed request is in full.
    pub(crate) fn claimed(grabbed: Grabbed, wr_id: u64, cached: &Cached) -> Claimed {
        grabbed.into_claimed(cached.ring, wr_id)
    }

    /// Counts a completion that named no request in flight.
    pub(crate) fn count_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }

    /// Completions that named no request in flight: what a provider left behind of a queue pair that was reset or
    /// destroyed, or reported twice.
    pub(crate) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// Takes a ring back in which nothing is parked.
    fn detach(&self, producer: &Producer) {
        producer.close();
        let mut control = self.control();
        control.reserved = control.reserved.saturating_sub(producer.depth());
        control.idle.push(producer.queue());
    }
}

impl Drop for RingTable {
    fn drop(&mut self) {
        for chunk in &mut self.chunks {
            let chunk = *chunk.get_mut();
            if chunk.is_null() {
                continue;
            }
            // SAFETY: from `Box::into_raw`, and nobody else frees it.
            let mut chunk = unsafe { Box::from_raw(chunk) };
            for ring in chunk.iter_mut().map(|ring| *ring.get_mut()).filter(|ring| !ring.is_null()) {
                // SAFETY: as above. R4: no producer, poller or claim is left.
                drop(unsafe { Box::from_raw(ring) });
            }
        }
    }
}
