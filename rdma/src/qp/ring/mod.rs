//! The ring of what a send or receive queue has in flight.
//!
//! Each queue owns one ring. A slot holds what one posted request parked (its segments, its token)
//! until its completion gives it back. The `wr_id` of a request names its slot and the use of it,
//! so the poller finds the slot without a lock or a table of requests, and a completion that names
//! no current use releases nothing.
//!
//! # Invariants
//!
//! * **R1.** A slot's contents are touched only by whom its [`State`] names: the producer while it
//!   is free, the claimer while it is claimed, nobody while it is parked.
//! * **R2.** A ring has one producer at a time: the holder of its [`Producer`], through `&mut`.
//! * **R3.** While a slot is parked or claimed, its `count` first segments (or its scope) are
//!   initialised, and its keep-alive if it is `keeping`. Whoever claims it takes each out
//!   once, and only then frees the slot.
//! * **R4.** A ring is never freed: producers, pollers and claims may point to it for as long as
//!   they like.
//! * **R5.** A pair (slot, lap) is used once: the producer never goes back, not even after a failed
//!   post, and a ring that is handed to another queue pair goes on with the next lap.

mod info;
mod producer;
mod sink;
mod state;
mod table;

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) use info::Info;
use producer::Panics;
pub(crate) use producer::{Producer, Staged, Vacant};
pub(crate) use sink::Sink;
use state::{Lap, State, parked_word};
pub(crate) use table::{attach, claimed, detach, grab, is_in_flight};

use rdma_sys::ibv_wc_status;

use crate::mr::Segment;
use crate::types::Opcode;

/// Slots that a ring has at most: a `wr_id` has 16 bits for them at most.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;
/// Bits of a `wr_id` below the queue's number.
const USE_BITS: u32 = 44;
/// The topmost of them: set for a request with a sink, so that whoever fetches its completion need
/// not touch the slot. Below it the lap, and the slot in as many bits as the ring needs.
const SINK: u64 = 1 << (USE_BITS - 1);

/// Whether the completion goes to a [`Sink`], and not to a poller.
#[inline]
pub(crate) fn has_sink(wr_id: u64) -> bool {
    wr_id & SINK != 0
}

/// What a slot parks first: a segment of its own, or the sink of a request whose memory is lent.
union First {
    segment: ManuallyDrop<Segment>,
    sink: ManuallyDrop<Arc<dyn Sink>>,
}

/// What a request in flight needs besides its memory: an address handle today. Only dropped.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

struct Entry {
    token: u64,
    info: Info,
    first: MaybeUninit<First>,
    /// Initialised if the info says so.
    keep_alive: MaybeUninit<KeepAlive>,
}

/// One line of cache: posting and polling a request of one segment touches nothing else of the
/// ring.
#[repr(align(64))]
pub(crate) struct Slot {
    entry: UnsafeCell<Entry>,
    state: State,
}

/// Where the segments after a slot's first lie.
type Extra = UnsafeCell<MaybeUninit<Segment>>;

pub(crate) struct Ring {
    slots: Box<[Slot]>,
    /// `extra_each` per slot.
    extra: Box<[Extra]>,
    extra_each: usize,
    /// Slots that the present queue uses: its depth. Set before the first slot is parked.
    wrap: AtomicU32,
    /// The lap after the last that was used, for the next queue that gets this ring.
    resume: AtomicU64,
    /// Bits that the slot takes of a `wr_id`; the lap has the rest.
    index_bits: u32,
    /// These bits.
    index_mask: u64,
}

const _: () = assert!(size_of::<Slot>() == 64);

// SAFETY: what is shared is the state words, which are atomic, and the contents, which R1 gives to
// one thread at a time. The contents (segments, scopes) are Send.
unsafe impl Send for Ring {}
// SAFETY: `&Ring` gives access to the state words, which are atomic, and to contents by R1 only.
unsafe impl Sync for Ring {}

impl Ring {
    /// Slots, and segments after each slot's first, of a ring for such a queue.
    fn shape(depth: u32, segments_each: u32) -> (usize, usize) {
        // A power of two, so that any `wr_id` names a slot, by masking.
        (depth.next_power_of_two() as usize, segments_each.saturating_sub(1) as usize)
    }

    fn new((slots, extra_each): (usize, usize), queue: u32) -> Self {
        let slot = || Slot {
            entry: UnsafeCell::new(Entry {
                token: 0,
                info: Info::new(0, 0, Opcode::Recv),
                first: MaybeUninit::uninit(),
                keep_alive: MaybeUninit::uninit(),
            }),
            state: State::new(),
        };
        Self {
            slots: (0..slots).map(|_| slot()).collect(),
            extra: (0..slots * extra_each).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
            extra_each,
            wrap: AtomicU32::new(0),
            // Another one for each queue: what a faulty provider makes of a `wr_id` is hardly
            // another queue's.
            resume: AtomicU64::new(u64::from(queue).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16),
            index_bits: slots.trailing_zeros(),
            index_mask: slots as u64 - 1,
        }
    }

    /// Whether nothing is in flight, nor held by a poller.
    fn is_free(&self) -> bool {
        self.slots.iter().all(|slot| slot.state.is_free())
    }

    /// Where segment `at` of slot `index` lies. Touching it is subject to R1.
    #[inline]
    fn segment(&self, index: u32, at: usize) -> *mut Segment {
        if at == 0 {
            self.slots[index as usize].first()
        } else {
            self.extra[index as usize * self.extra_each + at - 1].get().cast::<Segment>()
        }
    }

    /// How many laps a `wr_id` tells apart, less one.
    #[inline]
    fn lap_mask(&self) -> u64 {
        (SINK - 1) >> self.index_bits
    }

    /// The low bits of the `wr_id` of one use of one slot.
    #[inline]
    fn name(&self, index: u32, lap: Lap) -> u64 {
        lap.count() << self.index_bits | u64::from(index)
    }

    /// The slot that a `wr_id` names.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits at most")]
    fn slot_of(&self, wr_id: u64) -> u32 {
        (wr_id & self.index_mask) as u32
    }

    /// The lap that a `wr_id` names; its queue does not matter.
    #[inline]
    fn lap_of(&self, wr_id: u64) -> Lap {
        Lap::from_count(wr_id >> self.index_bits, self.lap_mask())
    }

    fn claim(&self, wr_id: u64) -> Option<Claimed> {
        let grabbed = self.slots.get(self.slot_of(wr_id) as usize)?.grab(wr_id)?;
        Some(grabbed.into_claimed(NonNull::from(self), wr_id))
    }
}

impl Slot {
    /// Claims one use of the slot; if that is not in flight, it is refused.
    #[inline(always)]
    fn grab(&self, wr_id: u64) -> Option<Grabbed> {
        if self.state.claim(parked_word(wr_id)) { Some(Grabbed { slot: NonNull::from(self) }) } else { None }
    }

    /// Where the first segment lies. Touching it is subject to R1.
    #[inline]
    fn first(&self) -> *mut Segment {
        let entry = self.entry.get();
        // SAFETY: only an address inside the entry is computed, nothing is read.
        let first = unsafe { &raw mut (*entry).first }.cast::<First>();
        // SAFETY: only an address inside the union is computed, nothing is read.
        unsafe { &raw mut (*first).segment }.cast::<Segment>()
    }
}

impl Slot {
    /// Moves the keep-alive out.
    ///
    /// # Safety
    ///
    /// The slot is the caller's by R1, and holds a handle that is not moved out again (R3).
    #[inline]
    unsafe fn read_keep_alive(&self) -> KeepAlive {
        let entry = self.entry.get();
        // SAFETY: only an address inside the entry is computed.
        let place = unsafe { &raw const (*entry).keep_alive };
        // SAFETY: it is initialised, and not moved out again: this function's contract (R3).
        unsafe { place.cast::<KeepAlive>().read() }
    }
}

/// A slot that was just claimed, to be made into what fits its request. It must be: it frees
/// nothing by itself.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Grabbed {
    slot: NonNull<Slot>,
}

impl Grabbed {
    /// The request's token, and what else the slot says of it.
    #[inline(always)]
    pub(crate) fn read(&self) -> (u64, Info) {
        // SAFETY: R4.
        let entry = unsafe { self.slot.as_ref() }.entry.get();
        // SAFETY: R1: we are the claimer. The entry is initialised from the ring's creation on.
        let entry = unsafe { &*entry };
        (entry.token, entry.info)
    }

    /// For a request with [one segment](Info::is_single).
    #[inline(always)]
    pub(crate) fn into_single(self) -> Single {
        Single { slot: self.slot }
    }

    /// For a request [without](Info::is_empty): the slot is free.
    #[inline(always)]
    pub(crate) fn release(self) {
        // SAFETY: R4.
        unsafe { self.slot.as_ref() }.state.release();
    }

    /// Takes the keep-alive out of an [keeping](Info::is_keeping) slot.
    ///
    /// # Safety
    ///
    /// It is one, this is called once, and what follows is [`into_single`](Self::into_single) or
    /// [`release`](Self::release): they do not look for the handle.
    #[inline]
    pub(crate) unsafe fn take_keep_alive(&self) -> KeepAlive {
        // SAFETY: R4.
        let slot = unsafe { self.slot.as_ref() };
        // SAFETY: `read_keep_alive` wants a slot that is ours (R1: we are the claimer) and a handle
        // that is taken once: this function's contract.
        unsafe { slot.read_keep_alive() }
    }

    /// For any request.
    fn into_claimed(self, ring: NonNull<Ring>, wr_id: u64) -> Claimed {
        let (token, info) = self.read();
        Claimed {
            ring,
            wr_id,
            token,
            info,
            run: info.run(),
            count: info.count(),
            taken: 0,
            scoped: info.is_scoped(),
            keeping: info.is_keeping(),
        }
    }
}

/// A ring that a poller found last: most completions are of the same queue as those before.
///
/// Invariant **K1**: the ring is the table's entry for the queue (R4); it is none's at first.
/// `slots` are the ring's, `mask + 1` of them.
pub(crate) struct Cached {
    queue: u64,
    mask: u64,
    slots: NonNull<Slot>,
    ring: NonNull<Ring>,
}

// SAFETY: a reference to a ring, which is Sync.
unsafe impl Send for Cached {}

impl Cached {
    pub(crate) const fn nothing() -> Self {
        // No queue has this number.
        Self { queue: u64::MAX, mask: 0, slots: NonNull::dangling(), ring: NonNull::dangling() }
    }
}

/// A claimed slot with one segment and no other duties. Dropping it drops the segment.
pub(crate) struct Single {
    slot: NonNull<Slot>,
}

// SAFETY: as for Claimed.
unsafe impl Send for Single {}
// SAFETY: `&Single` gives `&Segment`, which is Sync.
unsafe impl Sync for Single {}

impl Single {
    /// One that stands for nothing: it has no slot, and must only be dropped.
    pub(crate) fn none() -> Self {
        Self { slot: NonNull::dangling() }
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: R4.
        unsafe { self.slot.as_ref() }
    }

    /// The segment, to look at.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        let segment = self.slot().first();
        // SAFETY: R1: the slot is claimed, by us; R3: it has one segment, which is not taken before
        // `self` is gone.
        unsafe { &*segment }
    }

    /// The segment. The slot is free afterwards.
    #[inline]
    pub(crate) fn take(self) -> Segment {
        let this = ManuallyDrop::new(self);
        let first = this.slot().first();
        // SAFETY: R1: the slot is claimed, by us; R3: it has one segment. Field by field, so that
        // it need not go through memory.
        let &Segment { ref region, pointer, len } = unsafe { &*first };
        // SAFETY: valid for reads; `this` is not dropped, so that it is moved out once.
        let region = unsafe { ptr::read(region) };
        let segment = Segment { region, pointer, len };
        this.slot().state.release();
        segment
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if self.slot == NonNull::dangling() {
            return;
        }
        // SAFETY: R1 and R3: the slot is claimed and has one segment, which is moved out once:
        // `self` ends here.
        let segment = unsafe { self.slot().first().read() };
        // Before the segment is dropped, which may panic.
        self.slot().state.release();
        drop(segment);
    }
}

/// A claimed slot: what a request parked, on its way back. Dropping it drops what was not taken,
/// and frees the slot.
pub(crate) struct Claimed {
    ring: NonNull<Ring>,
    wr_id: u64,
    pub(crate) token: u64,
    /// Unsignaled requests before this one that may still be parked.
    run: u32,
    count: u16,
    taken: u16,
    pub(crate) info: Info,
    pub(crate) scoped: bool,
    keeping: bool,
}

// SAFETY: a claim is exclusive access to one slot of a ring that is Sync, and its contents are
// Send. R4 is for whoever holds it.
unsafe impl Send for Claimed {}
// SAFETY: nothing is reachable through `&Claimed` but copies of plain fields.
unsafe impl Sync for Claimed {}

impl Claimed {
    #[inline]
    fn ring(&self) -> &Ring {
        // SAFETY: R4.
        unsafe { self.ring.as_ref() }
    }

    #[inline]
    fn index(&self) -> u32 {
        self.ring().slot_of(self.wr_id)
    }

    /// The next segment, to look at.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&Segment> {
        if self.taken == self.count {
            return None;
        }
        let segment = self.ring().segment(self.index(), usize::from(self.taken));
        // SAFETY: R1: we are the claimer; R3: segments from `taken` to `count` are initialised. The
        // borrow of `self` keeps `take` away from it.
        Some(unsafe { &*segment })
    }

    /// The next segment.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Segment> {
        if self.taken == self.count {
            return None;
        }
        let segment = self.ring().segment(self.index(), usize::from(self.taken));
        self.taken += 1;
        // SAFETY: R1: we are the claimer; R3: segments from `taken` to `count` are initialised;
        // `taken` has moved on, so that it is moved out once.
        Some(unsafe { segment.read() })
    }

    /// Claims the oldest unsignaled request that this one's completion releases and that is still
    /// parked.
    #[inline]
    pub(crate) fn next_unsignaled(&mut self) -> Option<Self> {
        while self.run > 0 {
            let back = self.run;
            self.run -= 1;
            // A run is shorter than the ring, so the way back passes its start once at most.
            let (ring, lap) = (self.ring(), self.ring().lap_of(self.wr_id));
            let (index, lap) = match self.index().checked_sub(back) {
                Some(index) => (index, lap),
                None => match (self.index() + ring.wrap.load(Ordering::Relaxed)).checked_sub(back) {
                    Some(index) => (index, lap.previous(ring.lap_mask())),
                    None => continue,
                },
            };
            let queue = self.wr_id & u64::MAX << USE_BITS;
            let name = queue | ring.name(index, lap);
            // One with a sink was posted signaled, and lies here if its post failed in an unknown
            // way.
            let claimed = ring.claim(name).or_else(|| ring.claim(name | SINK));
            if let Some(mut claimed) = claimed {
                // Its own run is part of ours.
                claimed.run = 0;
                return Some(claimed);
            }
        }
        None
    }

    /// Whether nothing is left to hand out, so that the slot may be freed at once.
    #[inline]
    pub(crate) fn is_exhausted(&self) -> bool {
        self.taken == self.count && self.run == 0 && !self.scoped && !self.keeping
    }

    /// Where the request's completion goes.
    fn take_sink(&mut self) -> Option<Arc<dyn Sink>> {
        if !std::mem::take(&mut self.scoped) {
            return None;
        }
        let first = self.ring().segment(self.index(), 0).cast::<First>();
        // SAFETY: only an address inside the entry is computed.
        let sink = unsafe { &raw const (*first).sink };
        // SAFETY: R1 and R3: the slot is claimed and `scoped`, so it holds an initialised sink;
        // `scoped` was cleared, so that it is moved out once.
        Some(ManuallyDrop::into_inner(unsafe { sink.read() }))
    }

    /// The keep-alive that the request keeps.
    pub(crate) fn take_keep_alive(&mut self) -> Option<KeepAlive> {
        if !std::mem::take(&mut self.keeping) {
            return None;
        }
        let slot = &self.ring().slots[self.index() as usize];
        // SAFETY: R1 and R3: the slot is claimed and `keeping`, so it holds an initialised
        // handle; `keeping` was cleared, so that it is moved out once.
        Some(unsafe { slot.read_keep_alive() })
    }

    /// Frees the slot without dropping the segments: the caller of a failed post still has them.
    pub(crate) fn forget_segments(mut self) {
        self.taken = self.count;
        if let Some(sink) = self.take_sink() {
            sink.abandoned();
        }
    }

    /// Frees the slot, and then tells the request's sink, if it has one, how the request ended.
    pub(crate) fn finish(mut self, status: ibv_wc_status, vendor_error: u32) {
        let sink = self.take_sink();
        let mut panics = Panics::default();
        panics.catch(|| drop(self));
        if let Some(sink) = sink {
            sink.finished(status, vendor_error);
        }
        panics.resume();
    }
}

impl Drop for Claimed {
    #[inline]
    fn drop(&mut self) {
        let panic = if self.is_exhausted() { None } else { self.drop_rest() };
        self.ring().slots[self.index() as usize].state.release();
        if let Some(panic) = panic.filter(|_| !std::thread::panicking()) {
            resume_unwind(panic);
        }
    }
}

impl Claimed {
    /// Runs the drops of users' owners. What they panic with is returned when everything is given
    /// up: slots that were skipped would block the queue for ever.
    #[cold]
    fn drop_rest(&mut self) -> Option<Box<dyn Any + Send>> {
        if let Some(sink) = self.take_sink() {
            // Released with its queue pair, or by a later completion.
            sink.finished(ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
        }
        // Destroying a handle may log, and a subscriber may panic.
        let keep_alive = self.take_keep_alive();
        let mut panic = catch_unwind(AssertUnwindSafe(|| drop(keep_alive))).err();
        while let Some(earlier) = self.next_unsignaled() {
            panic = catch_unwind(AssertUnwindSafe(|| drop(earlier))).err().or(panic);
        }
        while let Some(segment) = self.take() {
            panic = catch_unwind(AssertUnwindSafe(|| drop(segment))).err().or(panic);
        }
        panic
    }
}
