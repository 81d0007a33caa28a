//! The table of all rings of the process, by the queue number in a `wr_id`: it finds the ring of a
//! completion.
//!
//! A number names a queue independently of the completion queue that reports on it, as shared
//! receive queues require. The table only grows: an entry stays once it is set, so that a poller
//! reads it without a lock. The ring of a destroyed queue is kept for the next queue of its shape.

use std::collections::HashMap;
use std::hint;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::state::{Lap, is_parked};
use super::{Cached, Claimed, Grabbed, MAX_SLOTS, Producer, Ring, SharedProducer, USE_BITS};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::fork;

/// The number of entries of a chunk, and the number of chunks. Their product is the number of
/// queues that a `wr_id` can name.
const CHUNK: usize = 1 << ((64 - USE_BITS) / 2);
type Chunk = [AtomicPtr<Ring>; CHUNK];

static CHUNKS: [AtomicPtr<Chunk>; CHUNK] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK];
/// The next queue number; no queue has the number 0.
static QUEUES: AtomicU32 = AtomicU32::new(1);
static IDLE: AtomicPtr<Idle> = AtomicPtr::new(ptr::null_mut());

/// The number of slots, and of segments after each slot's first.
type Shape = (usize, usize);

/// The rings that no queue uses at present.
struct Idle {
    /// Fork generation that may use the rings. A forked child starts with none, since another
    /// thread of the parent may have held the lock.
    generation: u32,
    rings: Mutex<HashMap<Shape, Vec<u32>>>,
}

impl Idle {
    fn get() -> &'static Self {
        loop {
            let current = IDLE.load(Ordering::Acquire);
            // SAFETY: as_ref requires null or a valid pointer: it is null, or from `Box::into_raw`
            // below and never freed once another thread can see it.
            match unsafe { current.as_ref() } {
                Some(idle) if idle.generation == fork::generation() => return idle,
                _ => {
                    let new = Box::into_raw(Box::new(Self { generation: fork::generation(), rings: Mutex::default() }));
                    if IDLE.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                        // SAFETY: Box::from_raw requires a pointer from a box that is freed once:
                        // it was created above, and the exchange failed, so no other thread has
                        // seen it.
                        drop(unsafe { Box::from_raw(new) });
                    }
                }
            }
        }
    }

    fn rings(&self) -> MutexGuard<'_, HashMap<Shape, Vec<u32>>> {
        // Every change is complete before any call that could panic.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the producer of a ring for a queue of `depth` requests of `segments_each` segments.
pub(crate) fn attach(depth: u32, segments_each: u32) -> Result<Producer> {
    let (ring, queue, lap) = take(depth, segments_each)?;
    // SAFETY: Producer::new requires a ring without another producer and an unused lap: `take`
    // returns both. It requires a depth within the ring: `take` returned a ring of that shape.
    Ok(unsafe { Producer::new(NonNull::from(ring), queue, depth, lap) })
}

/// Returns the producer of a ring for a shared receive queue with at least `slots` slots.
pub(crate) fn attach_shared(slots: u32, segments_each: u32) -> Result<SharedProducer> {
    let (ring, queue, lap) = take(slots, segments_each)?;
    // SAFETY: SharedProducer::new requires a ring without another producer and an unused lap:
    // `take` returns both.
    Ok(unsafe { SharedProducer::new(NonNull::from(ring), queue, lap) })
}

/// Takes an idle ring, or adds one, for `depth` requests. Returns the ring, its number and a lap
/// that was never used. The ring has no other producer (R2): it was idle or is new, and is neither
/// any more.
fn take(depth: u32, segments_each: u32) -> Result<(&'static Ring, u32, Lap)> {
    if depth == 0 || depth > MAX_SLOTS {
        return Err(Error::new(Verb::CreateQp, ErrorKind::TooLong));
    }
    let shape = Ring::shape(depth, segments_each);
    let idle = Idle::get().rings().get_mut(&shape).and_then(|idle| {
        // Skip rings in which a poller still holds a slot, or was forgotten with one.
        let at = idle.iter().rposition(|&queue| ring(queue).is_some_and(Ring::is_free))?;
        Some(idle.swap_remove(at))
    });
    let queue = match idle {
        Some(queue) => queue,
        None => add(shape)?,
    };
    let ring = ring(queue).ok_or(Error::new(Verb::CreateQp, ErrorKind::Unknown))?;
    ring.wrap.store(depth, Ordering::Relaxed);
    #[cfg(feature = "aio")]
    ring.renew_results();
    // `resume` is the lap after the last one that was used (R5).
    Ok((ring, queue, Lap::from_count(ring.resume.load(Ordering::Relaxed), ring.lap_mask())))
}

/// Returns a ring in which nothing is parked to the idle rings.
pub(crate) fn detach(producer: &Producer) {
    producer.close();
    idle(producer.queue());
}

/// As [`detach`], for the ring of a shared receive queue.
pub(crate) fn detach_shared(producer: &SharedProducer) {
    producer.close();
    idle(producer.queue());
}

fn idle(queue: u32) {
    if let Some(ring) = ring(queue) {
        let shape = (ring.slots.len(), ring.extra_each);
        Idle::get().rings().entry(shape).or_default().push(queue);
    }
}

fn add(shape: Shape) -> Result<u32> {
    let too_many = Error::new(Verb::CreateQp, ErrorKind::TooLong);
    let next = |queue: u32| (queue < 1 << (64 - USE_BITS)).then_some(queue + 1);
    let queue = QUEUES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_err(|_| too_many)?;
    let place = &CHUNKS[queue as usize / CHUNK];
    if place.load(Ordering::Relaxed).is_null() {
        let empty: Chunk = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNK];
        let new = Box::into_raw(Box::new(empty));
        if place.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: Box::from_raw requires a pointer from a box that is freed once: it was
            // created above, and the exchange failed, so no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
    }
    let ring = Box::into_raw(Box::new(Ring::new(shape, queue)));
    // SAFETY: the reference requires a valid pointer: it was set above, and chunks are never freed.
    let chunk = unsafe { &*place.load(Ordering::Acquire) };
    chunk[queue as usize % CHUNK].store(ring, Ordering::Release);
    Ok(queue)
}

fn ring(queue: u32) -> Option<&'static Ring> {
    let chunk = CHUNKS[queue as usize / CHUNK].load(Ordering::Acquire);
    // SAFETY: as_ref requires null or a valid pointer: it is null or a chunk, which is never freed.
    let chunk = unsafe { chunk.as_ref() }?;
    // SAFETY: as_ref requires null or a valid pointer: it is null or a ring, which is never freed
    // (R4).
    unsafe { chunk[queue as usize % CHUNK].load(Ordering::Acquire).as_ref() }
}

/// Claims the slot of the request `wr_id`; `None` if `wr_id` names no request in flight.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the parts of the identifier are cut out of it")]
pub(crate) fn grab(wr_id: u64, cached: &mut Cached) -> Option<Grabbed> {
    let queue = wr_id >> USE_BITS;
    if queue != cached.queue {
        find(queue as u32, cached)?;
    }
    // SAFETY: assert_unchecked requires a true condition: `wr_id` has the number of the ring's
    // queue, which is not 0 (K1), so it is larger than all words that lack one.
    unsafe { hint::assert_unchecked(is_parked(wr_id)) };
    // SAFETY: add requires an offset within the allocation: the masked index is that of one of the
    // ring's slots (K1).
    let slot = unsafe { cached.slots.add((wr_id & cached.mask) as usize) };
    // SAFETY: as_ref requires a valid slot: the slots are the ring's (K1), which is never freed
    // (R4).
    unsafe { slot.as_ref() }.grab(wr_id)
}

#[cold]
fn find(queue: u32, cached: &mut Cached) -> Option<()> {
    let ring = ring(queue)?;
    let slots = NonNull::from(&*ring.slots).cast();
    *cached = Cached { queue: queue.into(), mask: ring.index_mask, slots, ring: NonNull::from(ring) };
    Some(())
}

/// Whether `wr_id` names a request in flight.
#[allow(clippy::cast_possible_truncation, reason = "the number is cut out of the identifier")]
pub(crate) fn is_in_flight(wr_id: u64) -> bool {
    ring((wr_id >> USE_BITS) as u32)
        .is_some_and(|ring| ring.slots[ring.slot_of(wr_id) as usize].state.parked() == Some(wr_id))
}

/// Converts a grabbed slot into the general form, [`Claimed`].
pub(crate) fn claimed(grabbed: Grabbed, wr_id: u64, cached: &Cached) -> Claimed {
    grabbed.into_claimed(cached.ring, wr_id)
}
