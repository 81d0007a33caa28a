//! The state word of one slot, which tells who may access the slot's contents.
//!
//! | state | may access the contents | changes the state |
//! | --- | --- | --- |
//! | `FREE` | the producer (the exclusive holder of the queue) | the producer, by a store |
//! | a `wr_id`: parked | no thread: the device owns the contents | the thread that wins the exchange to `CLAIMED` |
//! | `CLAIMED` | the claimer | the claimer, by a store to `FREE` |
//!
//! The word of a parked slot is the request's `wr_id`, so that neither a post nor a poll computes
//! it. The words `FREE` and `CLAIMED` are no request's: no queue has the number 0, which they have
//! in the place of the queue's. A `wr_id` consists of the queue, the lap and the slot. The lap
//! counts how often the producer has passed through the ring, and the producer visits each slot
//! once a lap. So no `wr_id` of a ring is used twice, and a completion can only claim the use that
//! it was made for. Lap and slot share 43 bits. A stale completion, kept by a poller that has
//! fetched it and is not used, would name a newer request only after 2^43 requests of its queue: a
//! hundred days at a million a second. With 32 bits it would be minutes.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

const FREE: u64 = 0;
const CLAIMED: u64 = 1;

/// The number of times that the producer has passed through the ring, modulo the range that a
/// `wr_id` can hold. The functions take that range as a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lap(u64);

impl Lap {
    #[cfg(all(test, not(loom)))]
    pub(crate) const FIRST: Self = Self(0);

    /// A lap from a count that may exceed the mask.
    pub(crate) const fn from_count(count: u64, mask: u64) -> Self {
        Self(count & mask)
    }

    pub(crate) const fn count(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn next(self, mask: u64) -> Self {
        Self(self.0.wrapping_add(1) & mask)
    }

    #[inline]
    pub(crate) const fn previous(self, mask: u64) -> Self {
        Self(self.0.wrapping_sub(1) & mask)
    }
}

/// Whether a word is a `wr_id` that a slot can be parked as, and not [`FREE`] or [`CLAIMED`].
#[inline(always)]
pub(crate) const fn is_parked(word: u64) -> bool {
    word > CLAIMED
}

/// The state word of a slot.
#[derive(Debug)]
pub(crate) struct State(AtomicU64);

impl State {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(FREE))
    }

    /// Whether the producer may fill the slot. Acquire: the claimer's last access comes before the
    /// producer's first.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire) == FREE
    }

    /// Hands the contents over to the device, and to the thread that claims them by this `wr_id`.
    /// Only the producer calls this, on a free slot.
    #[inline(always)]
    pub(crate) fn park(&self, wr_id: u64) {
        debug_assert!(is_parked(wr_id));
        self.0.store(wr_id, Ordering::Release);
    }

    /// Claims the use that `wr_id` names. Returns false if the slot is in any other state.
    #[inline(always)]
    pub(crate) fn claim(&self, wr_id: u64) -> bool {
        if !is_parked(wr_id) {
            return false;
        }
        // Acquire: the producer's stores to the contents come before the claimer's reads. A failed
        // exchange accesses no contents, so it needs no ordering.
        self.0.compare_exchange(wr_id, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The `wr_id` if the slot is parked; used to reclaim a queue that the device no longer
    /// accesses.
    pub(crate) fn parked(&self) -> Option<u64> {
        let word = self.0.load(Ordering::Relaxed);
        is_parked(word).then_some(word)
    }

    /// Returns the slot to the producer. Only the claimer calls this, after its last access.
    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MASK: u64 = u64::MAX >> 21;

    #[test]
    fn a_use_is_claimed_once_and_only_by_its_own_word() {
        let state = State::new();
        let id = 7;
        assert!(state.is_free());
        assert!(!state.claim(id));
        // Words that no producer makes: free and claimed states never match.
        assert!(!state.claim(FREE) && !state.claim(CLAIMED));
        state.park(id);
        assert!(!state.is_free());
        assert!(!state.claim(id + 1));
        assert!(!state.claim(id - 1));
        assert!(!state.claim(FREE) && !state.claim(CLAIMED));
        assert_eq!(state.parked(), Some(id));
        assert!(state.claim(id));
        assert!(!state.claim(id));
        assert!(!state.claim(FREE) && !state.claim(CLAIMED));
        assert_eq!((state.is_free(), state.parked()), (false, None));
        state.release();
        assert!(state.is_free());
        assert!(!state.claim(id));
    }

    #[test]
    fn laps_wrap() {
        assert_eq!(Lap::FIRST.previous(MASK).next(MASK), Lap::FIRST);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Slot {
        state: State,
        contents: UnsafeCell<u64>,
    }

    // SAFETY: Sync requires that shared access is free of data races: the contents are accessed
    // only by the thread that `State` names, and loom checks exactly that.
    unsafe impl Sync for Slot {}

    fn park(slot: &Slot, id: u64, value: u64) {
        assert!(slot.state.is_free());
        // SAFETY: the write requires exclusive access: the slot is free and this is the only
        // producer.
        slot.contents.with_mut(|contents| unsafe { *contents = value });
        slot.state.park(id);
    }

    fn take(slot: &Slot, id: u64) -> Option<u64> {
        if !slot.state.claim(id) {
            return None;
        }
        // SAFETY: the write requires exclusive access: this thread is the claimer. Because it
        // writes, loom reports a race with any reader that is not ordered after it.
        let value = slot.contents.with_mut(|contents| unsafe { std::mem::replace(&mut *contents, 0) });
        slot.state.release();
        Some(value)
    }

    #[test]
    fn two_pollers_and_a_reset_claim_each_use_once() {
        loom::model(|| {
            let slot = Arc::new(Slot { state: State::new(), contents: UnsafeCell::new(0) });
            let id = 2;
            park(&slot, id, 7);
            let poller = |slot: Arc<Slot>| thread::spawn(move || take(&slot, id));
            let first = poller(slot.clone());
            let second = poller(slot.clone());
            // The reset claims any slot that is parked.
            let reset = slot.state.parked().and_then(|id| take(&slot, id));
            let taken = [first.join().unwrap(), second.join().unwrap(), reset];
            assert_eq!(taken.iter().flatten().collect::<Vec<_>>(), [&7]);
        });
    }

    #[test]
    fn the_producer_reuses_a_slot_while_a_stale_completion_arrives() {
        loom::model(|| {
            let slot = Arc::new(Slot { state: State::new(), contents: UnsafeCell::new(0) });
            let (old, new) = (2, 9);
            park(&slot, old, 1);
            let poller = {
                let slot = slot.clone();
                thread::spawn(move || (take(&slot, old), take(&slot, old)))
            };
            let mut reposted = false;
            if slot.state.is_free() {
                park(&slot, new, 2);
                reposted = true;
            }
            let (first, duplicate) = poller.join().unwrap();
            assert_eq!(first, Some(1));
            assert_eq!(duplicate, None);
            if reposted {
                assert_eq!(take(&slot, new), Some(2));
            }
        });
    }
}
