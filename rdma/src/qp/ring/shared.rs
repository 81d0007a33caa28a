//! The producer of a shared receive queue's ring, whose slots become free in any order.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::producer::Panics;
use super::state::{Lap, id_of_word, parked_word};
use super::{Claimed, Ring, Staged, USE_BITS, Vacant};

/// The only producer of a ring whose requests end in any order: it fills free slots wherever they
/// are.
///
/// Several queue pairs take requests from one shared receive queue, and each ends its own in its
/// own time. The producer keeps a list of free slots, and searches the ring when the list is empty.
/// The ring has at least twice as many slots as the device holds requests. A search that finds
/// fewer than half of the slots free gives none: completions must be polled first. So a search
/// costs at most two slots for each request, and the laps of a ring last for as many requests as
/// those of any other queue.
///
/// Invariant **P2**: each slot in `free` is free, and stays so until this producer parks it: only a
/// producer ends a slot's freedom (R2). No slot in `free` was used in this `lap`, which begins with
/// a search (R5).
pub(crate) struct SharedProducer {
    ring: NonNull<Ring>,
    /// The queue's number, shifted to its place in a `wr_id`.
    queue_bits: u64,
    /// Allocated for all slots.
    free: Vec<u32>,
    lap: Lap,
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
        Self { ring, queue_bits, free: Vec::with_capacity(slots), lap }
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

    /// Returns a free slot, if there are enough.
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_>> {
        if self.free.is_empty() {
            self.search();
        }
        let &index = self.free.last()?;
        let ring = self.ring;
        let wr_id = self.queue_bits | self.ring().name(index, self.lap);
        Some(Vacant { slot: &self.ring().slots[index as usize], wr_id, ring })
    }

    fn next_lap(&self) -> Lap {
        self.lap.next(self.ring().lap_mask())
    }

    #[cold]
    fn search(&mut self) {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let slots = &unsafe { self.ring.as_ref() }.slots;
        let free = (0..).zip(slots).filter(|(_, slot)| slot.state.is_free()).map(|(index, _)| index);
        self.free.extend(free);
        if self.free.len() < slots.len() / 2 {
            self.free.clear();
        } else {
            self.lap = self.next_lap();
        }
    }

    /// Parks the slot that [`vacant`](Self::vacant) returned last (R3).
    ///
    /// # Safety
    ///
    /// [`Vacant::describe`] was called on the slot, with the number of segments that were written,
    /// and without a sink or a keep-alive.
    #[inline]
    pub(crate) unsafe fn park(&mut self) -> Option<Staged> {
        let index = self.free.pop()?;
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let ring = unsafe { self.ring.as_ref() };
        let wr_id = self.queue_bits | ring.name(index, self.lap);
        ring.slots[index as usize].state.park(parked_word(wr_id));
        Some(Staged { wr_id })
    }

    /// Claims a request that the device did not accept or no longer accesses.
    pub(crate) fn take_back(&self, Staged { wr_id }: Staged) -> Option<Claimed> {
        self.ring().claim(wr_id)
    }

    /// Releases all parked slots; the device must have lost access to them. Slots that a poller has
    /// claimed at this moment are released by the poller. Segments are dropped here, under no lock.
    pub(crate) fn reclaim(&self) {
        let mut panics = Panics::default();
        for word in self.ring().slots.iter().filter_map(|slot| slot.state.parked()) {
            let id = id_of_word(word) & !(u64::MAX << USE_BITS);
            panics.catch(|| drop(self.take_back(Staged { wr_id: self.queue_bits | id })));
        }
        panics.resume();
    }

    pub(super) fn close(&self) {
        self.ring().resume.store(self.next_lap().count(), Ordering::Relaxed);
    }
}
