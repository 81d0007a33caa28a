//! The producer: the side of a ring that posts.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Claimed, First, Info, KeepAlive, Lap, Ring, SINK, Sink, Slot, USE_BITS};
use crate::mr::Segment;
use crate::panics::Panics;

/// The only producer of a ring: it fills slots in order and decides which requests must be
/// signaled.
///
/// Invariant **P1**: `slots` are the ring's, and `end` lies `depth` slots after the first; `depth`
/// is at most the ring's length. `head` is one of the slots before `end`, and `next_id` is its
/// `wr_id`.
pub(crate) struct Producer {
    slots: NonNull<Slot>,
    head: NonNull<Slot>,
    end: NonNull<Slot>,
    next_id: u64,
    depth: u32,
    /// The number of slots directly before the head that hold unsignaled requests not yet followed
    /// by a signaled one.
    run: u32,
    ring: NonNull<Ring>,
    /// The queue's number, shifted to its place in a `wr_id`.
    queue_bits: u64,
    lap: Lap,
    /// How often the head came to the end of the ring.
    turns: u64,
}

// SAFETY: moving a producer to another thread is sound: it is exclusive access to the free slots of
// a ring that is Sync (R2), and the ring is never freed (R4).
unsafe impl Send for Producer {}
// SAFETY: sharing a producer is sound: `&Producer` gives access to copies of plain fields and to
// the ring, which is Sync.
unsafe impl Sync for Producer {}

/// A free slot at or after the head, for the producer to fill.
// Public only because a hidden method of a sealed trait takes it.
#[allow(missing_debug_implementations, reason = "nobody can name it")]
pub struct Vacant<'a> {
    pub(super) slot: &'a Slot,
    pub(super) wr_id: u64,
    pub(super) ring: NonNull<Ring>,
}

/// One use of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    pub(super) wr_id: u64,
}

impl Producer {
    /// # Safety
    ///
    /// The ring has no other producer (R2), `depth` is at least 1 and at most the ring's length,
    /// and `lap` was never used on the ring (R5).
    pub(super) unsafe fn new(ring: NonNull<Ring>, queue: u32, depth: u32, lap: Lap) -> Self {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let slots = unsafe { ring.as_ref() }.slots.as_ptr().cast_mut();
        // SAFETY: new_unchecked requires a pointer that is not null: it comes from a slice.
        let slots = unsafe { NonNull::new_unchecked(slots) };
        // SAFETY: add requires an offset within the slots or just past them: `depth` is at most
        // their number (the contract of this function).
        let end = unsafe { slots.add(depth as usize) };
        let queue_bits = u64::from(queue) << USE_BITS;
        let mut this = Self { slots, head: slots, end, next_id: 0, depth, run: 0, ring, queue_bits, lap, turns: 0 };
        this.start(lap);
        this
    }

    /// Moves the head to the start of the ring, for lap `lap`.
    fn start(&mut self, lap: Lap) {
        self.head = self.slots;
        self.lap = lap;
        self.next_id = self.queue_bits | self.ring().name(0, lap);
    }

    fn next_lap(&self) -> Lap {
        self.lap.next(self.ring().lap_mask())
    }

    #[inline]
    pub(super) fn ring(&self) -> &Ring {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        unsafe { self.ring.as_ref() }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn queue(&self) -> u32 {
        // The number has at most 32 bits: `new` shifted it to its place from a u32.
        (self.queue_bits >> USE_BITS) as u32
    }

    /// The head's index.
    fn head(&self) -> u32 {
        let bytes = self.head.addr().get() - self.slots.addr().get();
        // The index is less than `depth` (P1).
        u32::try_from(bytes / size_of::<Slot>()).unwrap_or(0)
    }

    fn place(&self, ahead: u32) -> (u32, Lap) {
        let index = self.head() + ahead;
        if index >= self.depth { (index - self.depth, self.next_lap()) } else { (index, self.lap) }
    }

    /// Returns the slot at the head, if it is free.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_>> {
        // SAFETY: as_ref requires a valid slot: the head is a slot of the ring (P1), which is never
        // freed (R4).
        let slot = unsafe { self.head.as_ref() };
        slot.state.is_free().then_some(Vacant { slot, wr_id: self.next_id, ring: self.ring })
    }

    /// Returns the slot `ahead` places after the head, if it is free. `ahead` is less than the
    /// depth.
    pub(crate) fn vacant_after(&mut self, ahead: u32) -> Option<Vacant<'_>> {
        let (index, lap) = self.place(ahead);
        let wr_id = self.queue_bits | self.ring().name(index, lap);
        let ring = self.ring;
        let slot = self.ring().slots.get(index as usize)?;
        slot.state.is_free().then_some(Vacant { slot, wr_id, ring })
    }

    /// The number of consecutive free slots from the head on: as many requests can be posted now.
    pub(crate) fn room(&self) -> u32 {
        let is_free = |&ahead: &u32| self.ring().slots[self.place(ahead).0 as usize].state.is_free();
        (0..self.depth).take_while(is_free).map(|_| 1).sum()
    }

    /// Whether the request after `run` unsignaled requests must be signaled. Half a ring of
    /// unsignaled requests is the limit, so that the poller frees slots before the producer runs
    /// out.
    #[inline]
    pub(crate) fn must_signal(&self, run: u32) -> bool {
        run + 1 >= self.depth.div_ceil(2)
    }

    /// The number of unsignaled requests since the last signaled one.
    #[inline]
    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// Moves the head past its slot, which was parked or is skipped (R5: never back).
    pub(crate) fn advance(&mut self, run: u32) {
        // SAFETY: advance_past requires the slot at the head: it is.
        unsafe { self.advance_past(self.head, run) };
    }

    /// As [`advance`](Self::advance), for a caller that has the slot.
    ///
    /// # Safety
    ///
    /// The slot is the one at the head.
    #[inline(always)]
    pub(crate) unsafe fn advance_past(&mut self, slot: NonNull<Slot>, run: u32) {
        debug_assert_eq!(slot, self.head);
        self.run = run;
        // SAFETY: add requires a result within the slots or just past them: the head was before
        // `end` (P1).
        self.head = unsafe { slot.add(1) };
        self.next_id = self.next_id.wrapping_add(1);
        if self.head == self.end {
            self.turn();
        }
    }

    /// Moves the head past several slots.
    pub(crate) fn advance_by(&mut self, slots: u32, run: u32) {
        for _ in 0..slots {
            self.advance(run);
        }
    }

    #[cold]
    fn turn(&mut self) {
        let lap = self.next_lap();
        self.start(lap);
        self.turns += 1;
    }

    /// The number of slots that the head has passed so far.
    pub(crate) fn passed(&self) -> u64 {
        self.turns * u64::from(self.depth) + u64::from(self.head())
    }

    #[cfg(test)]
    pub(crate) fn skip_laps(&mut self, laps: u64) {
        let mask = self.ring().lap_mask();
        let (head, lap) = (self.head(), Lap::from_count(self.lap.count().wrapping_add(laps), mask));
        self.start(lap);
        // SAFETY: add requires a result within the slots: it is the earlier head (P1).
        self.head = unsafe { self.slots.add(head as usize) };
        self.next_id += u64::from(head);
    }

    /// The next use of the slot `ahead` places after the head.
    pub(crate) fn staged(&self, ahead: u32) -> Staged {
        let (index, lap) = self.place(ahead);
        Staged { wr_id: self.queue_bits | self.ring().name(index, lap) }
    }

    /// The use of the slot `ahead` places after `first`.
    pub(crate) fn after(&self, first: Staged, ahead: u32) -> Staged {
        let (index, lap) = (self.ring().slot_of(first.wr_id), self.ring().lap_of(first.wr_id));
        let (index, lap) = match (index + ahead).checked_sub(self.depth) {
            None => (index + ahead, lap),
            Some(index) => (index, lap.next(self.ring().lap_mask())),
        };
        Staged { wr_id: self.queue_bits | self.ring().name(index, lap) }
    }

    /// Parks the `count` slots from the head on.
    ///
    /// # Safety
    ///
    /// Each slot is free and meets the contract of [`Vacant::park`], without a sink.
    pub(crate) unsafe fn park(&mut self, count: u32) {
        for ahead in 0..count {
            let Staged { wr_id } = self.staged(ahead);
            self.ring().slots[self.ring().slot_of(wr_id) as usize].state.park(wr_id);
        }
    }

    /// The token of the request in the slot `ahead` places after the head, if it is routed. `ahead`
    /// is less than the depth.
    #[cfg(feature = "aio")]
    pub(crate) fn routed_after(&self, ahead: u32) -> Option<u64> {
        let (index, _) = self.place(ahead);
        let entry = self.ring().slots.get(index as usize)?.entry.get();
        // SAFETY: the reference requires an initialised entry that no thread writes: it is from the
        // ring's creation on, and only this producer writes to it (R1).
        let entry = unsafe { &*entry };
        entry.info.is_routed().then_some(entry.token)
    }

    /// Drops the contents of the `count` slots from the head on. The head stays: the device has not
    /// seen these uses. `restore` receives the first of their keep-alives.
    ///
    /// # Safety
    ///
    /// As for [`park`](Self::park).
    pub(crate) unsafe fn discard(&mut self, count: u32, restore: &mut Option<KeepAlive>) {
        // SAFETY: park requires free slots that are written and described: the contract of this
        // function.
        unsafe { self.park(count) };
        let mut first = true;
        let mut panics = Panics::default();
        for ahead in 0..count {
            let Some(mut claimed) = self.take_back(self.staged(ahead)) else { continue };
            panics.catch(|| {
                if let Some(earlier) = claimed.take_keep_alive().filter(|_| first) {
                    first = false;
                    *restore = Some(earlier);
                }
                drop(claimed);
            });
        }
        panics.resume();
    }

    /// Sets the number of unsignaled requests and holes directly before the head.
    pub(crate) fn set_run(&mut self, run: u32) {
        self.run = run.min(self.depth - 1);
    }

    /// Claims a request that the device did not accept or no longer accesses.
    pub(crate) fn take_back(&self, Staged { wr_id }: Staged) -> Option<Claimed> {
        let mut claimed = self.ring().claim(wr_id)?;
        // The run stays with the queue: the next signaled completion releases it.
        claimed.run = 0;
        Some(claimed)
    }

    /// Releases all parked slots; the device must have lost access to them. Slots that a poller has
    /// claimed at this moment are released by the poller. Segments are dropped here, under no lock.
    pub(crate) fn reclaim(&mut self) {
        let mut panics = Panics::default();
        for index in 0..self.depth {
            if let Some(wr_id) = self.ring().slots.get(index as usize).and_then(|slot| slot.state.parked()) {
                panics.catch(|| drop(self.take_back(Staged { wr_id })));
            }
        }
        self.run = 0;
        panics.resume();
    }

    /// The number of parked slots.
    pub(crate) fn parked(&self) -> usize {
        self.ring().slots.iter().filter(|slot| slot.state.parked().is_some()).count()
    }

    pub(super) fn close(&self) {
        self.ring().resume.store(self.next_lap().count(), Ordering::Relaxed);
    }
}

impl Vacant<'_> {
    /// This use of the slot, once it is parked.
    pub(crate) fn staged(&self) -> Staged {
        Staged { wr_id: self.wr_id }
    }

    /// The `wr_id` under which the slot will be in flight.
    #[inline(always)]
    pub(crate) fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The place of the request's segment `at`. It may only be written, and only while this slot is
    /// free.
    #[inline(always)]
    pub(crate) fn segment(&mut self, at: usize) -> *mut Segment {
        if at == 0 {
            return self.slot.first();
        }
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        let ring = unsafe { self.ring.as_ref() };
        ring.segment(ring.slot_of(self.wr_id), at)
    }

    /// Writes the token and the description. The slot stays free.
    #[inline(always)]
    pub(crate) fn describe(&mut self, token: u64, info: Info) {
        let entry = self.slot.entry.get();
        // SAFETY: the reference requires an initialised entry that no other thread accesses: the
        // slot is free (R1) and this is its only producer (R2). An entry is initialised from the
        // ring's creation on, except its first segment and keep-alive, which are MaybeUninit.
        let entry = unsafe { &mut *entry };
        entry.token = token;
        entry.info = info;
    }

    /// Parks the slot (R3). Returns the use of the slot, and the slot.
    ///
    /// # Safety
    ///
    /// [`describe`](Self::describe) was called. The description has the number of segments that
    /// were written. It is scoped if, and only if, `set_sink` was called; routed if, and only if,
    /// `route` was called; and keeping if, and only if, `set_keep_alive` was called.
    #[inline(always)]
    pub(crate) unsafe fn park(self) -> (Staged, NonNull<Slot>) {
        self.slot.state.park(self.wr_id);
        (Staged { wr_id: self.wr_id }, NonNull::from(self.slot))
    }

    /// Writes a sink in place of the first segment, for a request whose memory is lent.
    pub(crate) fn set_sink(&mut self, sink: Arc<dyn Sink>) {
        let first = self.slot.first().cast::<First>();
        // SAFETY: the write requires a valid place that no other thread accesses: the slot is free
        // (R1), this is its only producer (R2), and the place is the union's.
        unsafe { first.write(First { sink: ManuallyDrop::new(sink) }) };
        self.wr_id |= SINK;
    }

    /// Names the request as one whose completion goes to the queue's results.
    #[cfg(feature = "aio")]
    #[inline(always)]
    pub(crate) fn route(&mut self) {
        self.wr_id |= SINK;
    }

    /// Writes a keep-alive beside the request's memory.
    #[inline]
    pub(crate) fn set_keep_alive(&mut self, keep_alive: KeepAlive) {
        let entry = self.slot.entry.get();
        // SAFETY: `&raw` requires a pointer into an allocation: the entry's. Only an address is
        // computed, nothing is read.
        let place = unsafe { &raw mut (*entry).keep_alive };
        // SAFETY: the write requires a valid place that no other thread accesses: the slot is free
        // (R1) and this is its only producer (R2). The old value was moved out or is leaked.
        unsafe { place.cast::<KeepAlive>().write(keep_alive) };
    }
}
