//! The ring of the requests that a send or receive queue has in flight.
//!
//! Each queue owns one ring. A slot holds the parts that one posted request parked (its segments
//! and its token) until its completion returns them. The `wr_id` of a request names its slot and
//! the use of the slot. So the poller finds the slot without a lock or a table of requests, and a
//! completion that names no current use releases nothing.
//!
//! Send and receive queues each own a ring, so that the data path shares no lock and no free list.
//! A resize changes the device's queue alone: a ring, and the reservations in completion queues,
//! are made for the largest depth, given at creation.
//!
//! # Files
//!
//! ```text
//!   mod.rs, info.rs         the ring and its slots; what a slot says of its request
//!   state.rs                who may touch a slot (checked by loom)
//!   producer.rs, shared.rs  the side that posts: in order, or wherever a slot is free
//!   table.rs                finds the ring of a completion
//!   results.rs, results/    reports of futures, outside of the slots (checked by loom)
//!   routed.rs, sink.rs, returned.rs
//!                           brings reports there; the memory that they return
//! ```
//!
//! # Invariants
//!
//! * **R1.** Only the thread that the slot's [`State`] names accesses its contents: the producer
//!   while the slot is free, the claimer while it is claimed, no thread while it is parked. The
//!   producer may also read the token and the description at any time: only it writes them.
//! * **R2.** A ring has one producer at a time: the holder of its [`Producer`] or
//!   [`SharedProducer`], through `&mut`.
//! * **R3.** While a slot is parked or claimed, its first `count` segments (or its sink) are
//!   initialised, and its keep-alive is if the slot is `keeping`. The claimer takes each out once,
//!   and only then frees the slot.
//! * **R4.** A ring is never freed: producers, pollers and claims may point to it without a time
//!   limit.
//! * **R5.** A pair (slot, lap) is used once: the producer never goes back, not even after a failed
//!   post, and a ring that is given to another queue pair continues with the next lap.

mod info;
mod producer;
#[cfg(feature = "aio")]
mod results;
mod returned;
#[cfg(feature = "aio")]
mod routed;
mod shared;
mod sink;
mod state;
mod table;

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) use info::{Info, MAX_SEGMENTS};
pub(crate) use producer::{Producer, Staged, Vacant};
#[cfg(feature = "aio")]
pub(crate) use results::{Cursor, Published, Results, Ticket};
pub(crate) use returned::ReturnedMemory;
#[cfg(feature = "aio")]
pub(crate) use routed::{Report, publish_single};
pub(crate) use shared::SharedProducer;
pub(crate) use sink::Sink;
use state::{Lap, State};
pub(crate) use table::{attach, attach_shared, claimed, detach, detach_shared, grab, is_in_flight};

use rdma_sys::{ibv_wc, ibv_wc_status};

use crate::mr::Segment;
use crate::panics::Panics;
use crate::types::Opcode;

/// The maximum number of slots of a ring: a `wr_id` has at most 16 bits for the slot.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;
/// The number of bits of a `wr_id` below the queue's number.
const USE_BITS: u32 = 44;
/// A `wr_id` less than this has the queue number 0, which is no queue's.
pub(crate) const FOREIGN_IDS: u64 = 1 << USE_BITS;
/// The topmost of these bits: set for a request with a sink, so that the thread that fetches its
/// completion need not access the slot. The bits below are the lap and then the slot, which takes
/// as many bits as the ring needs.
const SINK: u64 = 1 << (USE_BITS - 1);

/// Whether the completion of `wr_id` goes to a [`Sink`] or to the queue's results, and not to a
/// poller.
#[inline]
pub(crate) fn has_sink(wr_id: u64) -> bool {
    wr_id & SINK != 0
}

/// The first thing that a slot parks: a segment that the slot owns, or the sink of a request whose
/// memory is lent.
union First {
    segment: ManuallyDrop<Segment>,
    sink: ManuallyDrop<Arc<dyn Sink>>,
}

/// An object that a request in flight needs besides its memory: at present an address handle. It is
/// only ever dropped.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

struct Entry {
    token: u64,
    info: Info,
    first: MaybeUninit<First>,
    /// Initialised if `info` is `keeping`.
    keep_alive: MaybeUninit<KeepAlive>,
}

/// A slot, in one cache line: posting and polling a request of one segment accesses nothing else of
/// the ring.
#[repr(align(64))]
pub(crate) struct Slot {
    entry: UnsafeCell<Entry>,
    state: State,
}

/// A place for one of the segments after a slot's first.
type Extra = UnsafeCell<MaybeUninit<Segment>>;

pub(crate) struct Ring {
    slots: Box<[Slot]>,
    /// The segments after the first, `extra_each` per slot.
    extra: Box<[Extra]>,
    extra_each: usize,
    /// The number of slots that the present queue uses: its depth. Set before the first slot is
    /// parked.
    wrap: AtomicU32,
    /// The lap after the last that was used, for the next queue that gets this ring.
    resume: AtomicU64,
    /// The number of bits of a `wr_id` for the slot; the lap has the rest.
    index_bits: u32,
    /// The mask of these bits: the number of slots, a power of two, less one.
    index_mask: u64,
    /// The results of routed requests.
    #[cfg(feature = "aio")]
    results: routed::Place,
}

const _: () = assert!(size_of::<Slot>() == 64);

// SAFETY: moving a ring to another thread is sound: its state words are atomic, and its contents
// (segments, sinks, keep-alives) are Send and accessed by one thread at a time (R1).
unsafe impl Send for Ring {}
// SAFETY: sharing a ring is sound: `&Ring` gives access to the state words, which are atomic, and
// to contents under R1 only.
unsafe impl Sync for Ring {}

impl Ring {
    /// The shape of a ring for such a queue: the number of slots, and of segments after each slot's
    /// first.
    fn shape(depth: u32, segments_each: u32) -> (usize, usize) {
        // A power of two, so that masking any `wr_id` yields a slot.
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
            // Each queue starts at another lap, so that a `wr_id` that a faulty provider made up is
            // unlikely to name a request of another queue.
            resume: AtomicU64::new(u64::from(queue).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16),
            index_bits: slots.trailing_zeros(),
            index_mask: slots as u64 - 1,
            #[cfg(feature = "aio")]
            results: routed::Place::new(),
        }
    }

    /// Whether no request is in flight and no poller holds a slot.
    fn is_free(&self) -> bool {
        self.slots.iter().all(|slot| slot.state.is_free())
    }

    /// The address of segment `at` of slot `index`. Access is subject to R1.
    #[inline]
    fn segment(&self, index: u32, at: usize) -> *mut Segment {
        if at == 0 {
            self.slots[index as usize].first()
        } else {
            self.extra[index as usize * self.extra_each + at - 1].get().cast::<Segment>()
        }
    }

    /// The mask of a lap: the number of laps that a `wr_id` can name, less one.
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

    /// As [`slot_of`](Self::slot_of), the slot itself.
    #[inline(always)]
    fn slot(&self, wr_id: u64) -> &Slot {
        // SAFETY: get_unchecked requires an index within the slots: it is masked by their number
        // less one, which is set with them and never changes.
        unsafe { self.slots.get_unchecked(self.slot_of(wr_id) as usize) }
    }

    /// The lap that a `wr_id` names; the queue's number is masked out.
    #[inline]
    fn lap_of(&self, wr_id: u64) -> Lap {
        Lap::from_count(wr_id >> self.index_bits, self.lap_mask())
    }

    fn claim(&self, wr_id: u64) -> Option<Claimed> {
        let grabbed = self.slot(wr_id).grab(wr_id)?;
        Some(grabbed.into_claimed(NonNull::from(self), wr_id))
    }
}

impl Slot {
    /// Claims the use of the slot that `wr_id` names; `None` if that use is not in flight.
    #[inline(always)]
    fn grab(&self, wr_id: u64) -> Option<Grabbed> {
        if self.state.claim(wr_id) { Some(Grabbed { slot: NonNull::from(self) }) } else { None }
    }

    /// The address of the first segment. Access is subject to R1.
    #[inline]
    fn first(&self) -> *mut Segment {
        let entry = self.entry.get();
        // SAFETY: `&raw mut` requires a pointer into an allocation: the entry's. Only an address is
        // computed, nothing is read.
        let first = unsafe { &raw mut (*entry).first }.cast::<First>();
        // SAFETY: `&raw mut` requires a pointer into an allocation: the union's. Only an address is
        // computed, nothing is read.
        unsafe { &raw mut (*first).segment }.cast::<Segment>()
    }
}

impl Slot {
    /// Moves the keep-alive out of the slot.
    ///
    /// # Safety
    ///
    /// The caller may access the slot (R1). The slot holds a keep-alive that is not moved out again
    /// (R3).
    #[inline]
    unsafe fn read_keep_alive(&self) -> KeepAlive {
        let entry = self.entry.get();
        // SAFETY: `&raw` requires a pointer into an allocation: the entry's. Only an address is
        // computed, nothing is read.
        let place = unsafe { &raw const (*entry).keep_alive };
        // SAFETY: the read requires an initialised value that is moved out once: the contract of
        // this function (R3).
        unsafe { place.cast::<KeepAlive>().read() }
    }
}

/// A slot that was just claimed. The caller must convert or release it, because dropping it does
/// not free the slot.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Grabbed {
    slot: NonNull<Slot>,
}

impl Grabbed {
    /// The request's token and description.
    #[inline(always)]
    pub(crate) fn read(&self) -> (u64, Info) {
        // SAFETY: as_ref requires a valid slot: `slot` is one of a ring, which is never freed (R4).
        let entry = unsafe { self.slot.as_ref() }.entry.get();
        // SAFETY: the reference requires an initialised entry that no thread writes: this thread is
        // the claimer (R1), and the entry is initialised from the ring's creation on.
        let entry = unsafe { &*entry };
        (entry.token, entry.info)
    }

    /// Converts a slot whose request has [one segment](Info::is_single).
    #[inline(always)]
    pub(crate) fn into_single(self) -> Single {
        Single { slot: self.slot }
    }

    /// Frees the slot of a request that is [empty](Info::is_empty).
    #[inline(always)]
    pub(crate) fn release(self) {
        // SAFETY: as_ref requires a valid slot: `slot` is one of a ring, which is never freed (R4).
        unsafe { self.slot.as_ref() }.state.release();
    }

    /// Takes the keep-alive out of a [keeping](Info::is_keeping) slot.
    ///
    /// # Safety
    ///
    /// The slot is keeping, this is called once, and the caller then calls
    /// [`into_single`](Self::into_single) or [`release`](Self::release), which do not take the
    /// keep-alive again.
    #[inline]
    pub(crate) unsafe fn take_keep_alive(&self) -> KeepAlive {
        // SAFETY: as_ref requires a valid slot: `slot` is one of a ring, which is never freed (R4).
        let slot = unsafe { self.slot.as_ref() };
        // SAFETY: read_keep_alive requires a slot that this thread may access (R1: it is the
        // claimer) and a keep-alive that is taken once: the contract of this function.
        unsafe { slot.read_keep_alive() }
    }

    /// Converts the slot of any request.
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
            is_routed: info.is_routed(),
        }
    }
}

/// The ring that a poller found last: most completions belong to the same queue as the one before.
///
/// Invariant **K1**: once a ring was found, `ring` is the table's entry for `queue` (R4), which is
/// not 0, and `slots` are the ring's, `mask + 1` of them. Before that, `queue` is a number that no
/// `wr_id` can hold.
pub(crate) struct Cached {
    queue: u64,
    mask: u64,
    slots: NonNull<Slot>,
    ring: NonNull<Ring>,
}

// SAFETY: moving it to another thread is sound: it only refers to a ring, which is Sync.
unsafe impl Send for Cached {}

impl Cached {
    pub(crate) const fn nothing() -> Self {
        // A `wr_id` has fewer bits for the queue.
        Self { queue: u64::MAX, mask: 0, slots: NonNull::dangling(), ring: NonNull::dangling() }
    }
}

/// A claimed slot with one segment and no run, scope or keep-alive. Dropping it drops the segment
/// and frees the slot.
pub(crate) struct Single {
    slot: NonNull<Slot>,
}

// SAFETY: moving it to another thread is sound: it is exclusive access to one slot of a ring that
// is Sync, the slot's contents are Send, and the ring is never freed (R4).
unsafe impl Send for Single {}
// SAFETY: sharing it is sound: `&Single` gives `&Segment`, which is Sync.
unsafe impl Sync for Single {}

impl Single {
    /// A placeholder without a slot, which must only be dropped.
    pub(crate) fn none() -> Self {
        Self { slot: NonNull::dangling() }
    }

    /// Whether this is a [placeholder](Self::none).
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.slot == NonNull::dangling()
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: as_ref requires a valid slot: only a placeholder has none, and that is only
        // dropped. Other slots are in a ring, which is never freed (R4).
        unsafe { self.slot.as_ref() }
    }

    /// The segment, without taking it.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        let segment = self.slot().first();
        // SAFETY: the reference requires an initialised segment that no thread writes: this thread
        // has claimed the slot (R1), and it has one segment (R3), which is not taken while `self`
        // is borrowed.
        unsafe { &*segment }
    }

    /// Takes the segment and frees the slot.
    #[inline]
    pub(crate) fn take(self) -> Segment {
        let this = ManuallyDrop::new(self);
        let first = this.slot().first();
        // SAFETY: the reference requires an initialised segment that no thread writes: this thread
        // has claimed the slot (R1), and it has one segment (R3). It is copied field by field, so
        // that the compiler can keep it in registers.
        let &Segment { ref region, pointer, len } = unsafe { &*first };
        // SAFETY: ptr::read requires an initialised value that is moved out once: the segment is
        // initialised (R3), and `this` is not dropped.
        let region = unsafe { ptr::read(region) };
        let segment = Segment { region, pointer, len };
        this.slot().state.release();
        segment
    }
}

impl Drop for Single {
    fn drop(&mut self) {
        if self.is_none() {
            return;
        }
        // SAFETY: the read requires an initialised segment that is moved out once: the slot is
        // claimed (R1) and has one segment (R3), and `self` ends here.
        let segment = unsafe { self.slot().first().read() };
        // Released before the segment is dropped, because that may panic.
        self.slot().state.release();
        drop(segment);
    }
}

/// A claimed slot of any request. Dropping it drops the parts that were not taken, and frees the
/// slot.
pub(crate) struct Claimed {
    ring: NonNull<Ring>,
    wr_id: u64,
    pub(crate) token: u64,
    /// The number of slots before this one whose unsignaled requests may still be parked.
    run: u32,
    count: u16,
    taken: u16,
    pub(crate) info: Info,
    pub(crate) scoped: bool,
    keeping: bool,
    /// Whether the report goes to the queue's results, which has not happened yet.
    is_routed: bool,
}

// SAFETY: moving a claim to another thread is sound: it is exclusive access to one slot of a ring
// that is Sync, the slot's contents are Send, and the ring is never freed (R4).
unsafe impl Send for Claimed {}
// SAFETY: sharing a claim is sound: `&Claimed` gives access to copies of plain fields and to
// `&Segment`, which is Sync.
unsafe impl Sync for Claimed {}

impl Claimed {
    #[inline]
    fn ring(&self) -> &Ring {
        // SAFETY: as_ref requires a valid ring: a ring is never freed (R4).
        unsafe { self.ring.as_ref() }
    }

    #[inline]
    fn index(&self) -> u32 {
        self.ring().slot_of(self.wr_id)
    }

    /// The next segment, without taking it.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&Segment> {
        if self.taken == self.count {
            return None;
        }
        let segment = self.ring().segment(self.index(), usize::from(self.taken));
        // SAFETY: the reference requires an initialised segment that no thread writes: this thread
        // is the claimer (R1), and segments from `taken` to `count` are initialised (R3). The
        // borrow of `self` prevents `take`.
        Some(unsafe { &*segment })
    }

    /// Whether no segment was taken.
    pub(crate) fn is_untouched(&self) -> bool {
        self.taken == 0
    }

    /// Takes the next segment.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Segment> {
        if self.taken == self.count {
            return None;
        }
        let segment = self.ring().segment(self.index(), usize::from(self.taken));
        self.taken += 1;
        // SAFETY: the read requires an initialised segment that is moved out once: this thread is
        // the claimer (R1), segments from `taken` to `count` were initialised (R3), and `taken` has
        // moved past this one.
        Some(unsafe { segment.read() })
    }

    /// Claims the oldest unsignaled request that this request's completion releases and that is
    /// still parked.
    #[inline]
    pub(crate) fn next_unsignaled(&mut self) -> Option<Self> {
        while self.run > 0 {
            let back = self.run;
            self.run -= 1;
            // A run is shorter than the ring, so going back passes the ring's start at most once.
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
            // A request with a sink was posted signaled. It is in the run only if its post failed
            // without the provider reporting which requests it accepted.
            let claimed = ring.claim(name).or_else(|| ring.claim(name | SINK));
            if let Some(mut claimed) = claimed {
                // The earlier request's run is part of this one's.
                claimed.run = 0;
                if claimed.is_routed {
                    // Its drop publishes its report.
                    continue;
                }
                return Some(claimed);
            }
        }
        None
    }

    /// Whether nothing is left to take, so that the slot may be freed at once.
    #[inline]
    pub(crate) fn is_exhausted(&self) -> bool {
        self.taken == self.count && self.run == 0 && !self.scoped && !self.keeping
    }

    /// Takes the sink that receives the request's completion, if there is one.
    fn take_sink(&mut self) -> Option<Arc<dyn Sink>> {
        if !std::mem::take(&mut self.scoped) {
            return None;
        }
        let first = self.ring().segment(self.index(), 0).cast::<First>();
        // SAFETY: `&raw` requires a pointer into an allocation: the entry's. Only an address is
        // computed, nothing is read.
        let sink = unsafe { &raw const (*first).sink };
        // SAFETY: the read requires an initialised sink that is moved out once: the slot is claimed
        // (R1) and `scoped`, so it holds one (R3), and `scoped` was cleared.
        Some(ManuallyDrop::into_inner(unsafe { sink.read() }))
    }

    /// Takes the request's keep-alive, if there is one.
    pub(crate) fn take_keep_alive(&mut self) -> Option<KeepAlive> {
        if !std::mem::take(&mut self.keeping) {
            return None;
        }
        let slot = &self.ring().slots[self.index() as usize];
        // SAFETY: read_keep_alive requires a slot that this thread may access, with a keep-alive
        // that is moved out once: the slot is claimed (R1) and `keeping`, so it holds one (R3), and
        // `keeping` was cleared.
        Some(unsafe { slot.read_keep_alive() })
    }

    /// Frees the slot without dropping the segments, which the caller of a failed post still owns.
    pub(crate) fn forget_segments(mut self) {
        self.taken = self.count;
        self.is_routed = false;
        if let Some(sink) = self.take_sink() {
            sink.abandoned();
        }
    }

    /// Whether the completion goes to a sink or to the queue's results.
    pub(crate) fn has_sink(&self) -> bool {
        self.scoped || self.is_routed
    }

    /// Frees the slot, and then tells the request's sink or the queue's results, if there are any,
    /// how the request ended.
    pub(crate) fn finish(mut self, wc: &ibv_wc) {
        #[cfg(feature = "aio")]
        if self.is_routed {
            return self.publish(wc);
        }
        let sink = self.take_sink();
        let mut panics = Panics::default();
        panics.catch(|| drop(self));
        if let Some(sink) = sink {
            sink.finished(wc.status, wc.vendor_err);
        }
        panics.resume();
    }
}

impl Drop for Claimed {
    #[inline]
    fn drop(&mut self) {
        #[cfg(feature = "aio")]
        if self.is_routed {
            return self.publish_flushed();
        }
        self.drop_rest_and_release();
    }
}

impl Claimed {
    /// Drops what is left, and frees the slot.
    #[inline]
    fn drop_rest_and_release(&mut self) {
        let panics = if self.is_exhausted() { Panics::default() } else { self.drop_rest() };
        self.ring().slots[self.index() as usize].state.release();
        panics.resume();
    }
}

impl Claimed {
    /// Drops everything that is left. Drops of caller-supplied owners may panic. The panic is
    /// returned after everything has been dropped: a slot that was skipped would block the queue
    /// for ever.
    #[cold]
    fn drop_rest(&mut self) -> Panics {
        if let Some(sink) = self.take_sink() {
            // The request ended with its queue pair, or a later completion releases it.
            sink.finished(ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0);
        }
        // Destroying an address handle may log, and a log subscriber may panic.
        let keep_alive = self.take_keep_alive();
        let mut panics = Panics::default();
        panics.catch(|| drop(keep_alive));
        while let Some(earlier) = self.next_unsignaled() {
            panics.catch(|| drop(earlier));
        }
        while let Some(segment) = self.take() {
            panics.catch(|| drop(segment));
        }
        panics
    }
}
