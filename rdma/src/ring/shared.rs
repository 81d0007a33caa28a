//! The producer of a shared receive queue's ring, whose slots become free in any order.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::state::Lap;
use super::{Claimed, Ring, Staged, USE_BITS, Vacant};
use crate::panics::Panics;

/// The only producer of a ring whose requests end in any order: it fills free slots wherever they
/// are.
///
/// Several queue pairs take requests from one shared receive queue, and each ends its own in its
/// own time. The producer keeps a list of free slots, and searches the ring when the list is empty.
/// The ring has at least twice as many slots as the device holds requests. A search that finds
/// fewer than half of the slots free gives none: completions must be polled first. So a search
/// costs at most two slots for each request (a few, if batches are staged), and the laps of a ring
/// last for as many requests as those of any other queue.
///
/// Invariant **P2**: the slot of each `wr_id` in `free` is free, and stays so until this producer
/// parks it: only a producer ends a slot's freedom (R2). No slot of a batch that is staged is in
/// `free`: it left the list, and a search amid the batch leaves it out. Each `wr_id` in `free` is
/// of this `lap`, which begins with a search, and was never parked (R5): it leaves the list before.
pub(crate) struct SharedProducer {
    ring: NonNull<Ring>,
    /// The queue's number, shifted to its place in a `wr_id`.
    queue_bits: u64,
    /// The `wr_id`s of the next uses of free slots. Allocated for all slots.
    free: Vec<u64>,
    lap: Lap,
    /// The number of slots that the present list had, and that were taken off earlier ones.
    listed: usize,
    taken_before: u64,
    /// The most slots that a search found in use.
    most_busy: usize,
}

// SAFETY: moving a producer to another thread is sound: it is exclusive access to the free slots of
// a ring that is Sync (R2), and the ring is never freed (R4).
unsafe impl Send for SharedProducer {}
// SAFETY: sharing a producer is sound: `&SharedProducer` gives access to copies of plain fields and
// to the ring, which is Sync.
unsafe impl Sync for SharedProducer {}

impl SharedProducer {
    /// # Safety
    ///
    /// The ring has no other producer (R2), and `lap` was never used on the ring (R5).
    pub(super) unsafe fn new(ring: NonNull<Ring>, queue: u32, lap: Lap) -> Self {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let slots = unsafe { ring.as_ref() }.slots.len();
        let queue_bits = u64::from(queue) << USE_BITS;
        let free = Vec::with_capacity(slots);
        Self { ring, queue_bits, free, lap, listed: 0, taken_before: 0, most_busy: 0 }
    }

    #[inline]
    fn ring(&self) -> &Ring {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        unsafe { self.ring.as_ref() }
    }

    pub(super) fn queue(&self) -> u32 {
        // The number has at most 32 bits: `new` shifted it to its place from a u32.
        (self.queue_bits >> USE_BITS) as u32
    }

    /// The number of slots that are not free.
    pub(crate) fn busy(&self) -> usize {
        self.ring().slots.iter().filter(|slot| !slot.state.is_free()).count()
    }

    /// The number of parked slots.
    pub(crate) fn parked(&self) -> usize {
        self.ring().slots.iter().filter(|slot| slot.state.parked().is_some()).count()
    }

    /// The number of slots that were taken off the list so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken_before + (self.listed - self.free.len()) as u64
    }

    /// The most slots that were not free when the list was filled.
    pub(crate) fn most_busy(&self) -> usize {
        self.most_busy
    }

    /// Takes a free slot off the list, if there are enough. If the slot is not parked, a later
    /// search finds it again.
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_>> {
        let wr_id = match self.free.pop() {
            Some(wr_id) => wr_id,
            None => self.search()?,
        };
        Some(Vacant { slot: self.ring().slot(wr_id), wr_id, ring: self.ring })
    }

    /// As [`vacant`](Self::vacant), for one more request of a batch: not one of the slots `staged`,
    /// which are free until the batch is posted.
    pub(crate) fn vacant_beside(&mut self, staged: &[Staged]) -> Option<Vacant<'_>> {
        let wr_id = match self.free.pop() {
            Some(wr_id) => wr_id,
            None => self.search_beside(staged)?,
        };
        Some(Vacant { slot: self.ring().slot(wr_id), wr_id, ring: self.ring })
    }

    /// Parks a slot that [`vacant_beside`](Self::vacant_beside) returned.
    ///
    /// # Safety
    ///
    /// The slot is free, and meets the contract of [`Vacant::park`], without a sink.
    pub(crate) unsafe fn park(&mut self, Staged { wr_id }: Staged) {
        self.ring().slot(wr_id).state.park(wr_id);
    }

    fn next_lap(&self) -> Lap {
        self.lap.next(self.ring().lap_mask())
    }

    /// Fills the list, and takes the last slot off.
    #[cold]
    fn search(&mut self) -> Option<u64> {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let ring = unsafe { self.ring.as_ref() };
        let lap = self.next_lap();
        let first = self.queue_bits | ring.name(0, lap);
        // Filled in place: an `extend` costs twice as many instructions for each slot.
        self.free.resize(ring.slots.len(), 0);
        let (places, mut count) = (self.free.as_mut_slice(), 0);
        for (index, slot) in (0_u64..).zip(&ring.slots) {
            if slot.state.is_free() {
                // SAFETY: get_unchecked_mut requires an index within the list: the list has as many
                // places as there are slots, and `count` is the number of some slots before this
                // one.
                let place = unsafe { places.get_unchecked_mut(count) };
                *place = first | index;
                count += 1;
            }
        }
        self.most_busy = self.most_busy.max(ring.slots.len() - count);
        if count < ring.slots.len() / 2 {
            self.free.clear();
        } else {
            self.free.truncate(count);
            self.lap = lap;
        }
        // The list was empty: all of it had been taken.
        self.taken_before += self.listed as u64;
        self.listed = self.free.len();
        self.free.pop()
    }

    /// Fills the list with the free slots except those of `staged`, and takes the last one off.
    #[cold]
    fn search_beside(&mut self, staged: &[Staged]) -> Option<u64> {
        let last = self.search()?;
        self.free.push(last);
        // The list is in the order of the slots. A name without the number of its queue is none.
        let slot_bits = self.ring().slots.len() as u64 - 1;
        for &Staged { wr_id } in staged {
            if let Ok(at) = self.free.binary_search_by_key(&(wr_id & slot_bits), |listed| listed & slot_bits) {
                if let Some(listed) = self.free.get_mut(at) {
                    *listed &= slot_bits;
                }
            }
        }
        self.free.retain(|&listed| listed > slot_bits);
        self.listed = self.free.len();
        self.free.pop()
    }

    /// Claims a request that the device did not accept or no longer accesses.
    pub(crate) fn take_back(&self, Staged { wr_id }: Staged) -> Option<Claimed> {
        self.ring().claim(wr_id)
    }

    /// Releases all parked slots; the device must have lost access to them. Slots that a poller has
    /// claimed at this moment are released by the poller. Segments are dropped here, under no lock.
    pub(crate) fn reclaim(&self) {
        let mut panics = Panics::default();
        for wr_id in self.ring().slots.iter().filter_map(|slot| slot.state.parked()) {
            panics.catch(|| drop(self.take_back(Staged { wr_id })));
        }
        panics.resume();
    }

    pub(super) fn close(&self) {
        self.ring().resume.store(self.next_lap().count(), Ordering::Relaxed);
    }
}
