//! State shared by the pollers of one completion queue: completions that one poller fetched and any
//! poller may hand out.
//!
//! A poller that is alone fetches up to [`FETCH`] completions at a time into its [`Batch`] and
//! hands them out without a lock. With several pollers, each fetches one at a time, so that all
//! other completions stay in the provider's queue. The backlog holds completions that were fetched
//! ahead all the same: a batch that was open when a second poller arrived, completions that a scope
//! fetched but that belong to no scope, and completions that a dropped poller left. Every poller
//! looks at the backlog before it fetches.
//!
//! # Invariants
//!
//! * **B1.** Only the owner of a batch writes its entries, and only while the batch is closed.
//!   Other threads read the entries only while they hold the batch, and can hold it only while it
//!   is open.
//! * **B2.** Entries of an open batch may be handed out both by the owner and by pollers that take
//!   copies of them from the backlog. The first of these to claim the request's slot has the
//!   completion; for the other, the entry names no request in flight.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};

use rdma_sys::ibv_wc;

use super::stats::{CqStats, Tally};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::fork;
use crate::ring::has_sink;
use crate::wait::Semaphore;

/// The number of completions that a batch holds.
pub(crate) const FETCH: usize = 16;

const CLOSED: u32 = 0;
const HELD: u32 = u32::MAX;
const COPIED: u32 = u32::MAX - 1;

/// Completions that one poller fetched together.
///
/// | state | the owner may | others may |
/// | --- | --- | --- |
/// | `CLOSED` | write and read | nothing |
/// | a count: open | read, and close it | hold it |
/// | `HELD` | read | read the counted entries, and then set `COPIED` |
/// | `COPIED` | read, and close it | nothing |
pub(super) struct Batch<T> {
    state: AtomicU32,
    entries: UnsafeCell<[T; FETCH]>,
    /// What the owner has done. Only the owner writes to it.
    pub(super) tally: Tally,
    /// Represents the entries in loom's models.
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
}

// SAFETY: Sync requires that shared access is free of data races: one thread writes the entries,
// and only while no other reads them (B1).
unsafe impl<T: Copy + Send> Sync for Batch<T> {}

impl<T: Copy + Default> Batch<T> {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(CLOSED),
            entries: UnsafeCell::new([T::default(); FETCH]),
            tally: Tally::default(),
            #[cfg(loom)]
            watched: loom::cell::UnsafeCell::new(()),
        }
    }

    /// The first entry; all entries are initialised. Access is subject to B1.
    #[inline(always)]
    pub(super) fn start(&self) -> NonNull<T> {
        NonNull::from(&self.entries).cast()
    }

    /// Opens a closed batch that holds `count` entries. The owner must not write it afterwards.
    pub(super) fn open(&self, count: u32) {
        self.state.store(count, Ordering::Release);
    }

    /// Closes the batch, so that the owner may write it. Returns whether it was copied meanwhile.
    pub(super) fn close(&self) -> bool {
        loop {
            let state = self.state.load(Ordering::Relaxed);
            // Acquire: the reads of the thread that copied the batch come before the owner's
            // writes.
            if state != HELD && self.state.compare_exchange(state, CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return state == COPIED;
            }
            thread::yield_now();
        }
    }

    /// Whether the entries are in the backlog too.
    pub(super) fn is_copied(&self) -> bool {
        self.state.load(Ordering::Acquire) == COPIED
    }

    /// Copies the entries of an open batch except the first, which the owner is handing out. One
    /// thread at a time calls this.
    fn copy(&self, mut to: impl FnMut(T)) {
        let count = self.state.load(Ordering::Relaxed);
        // Acquire: the owner's writes come before the reads below.
        if matches!(count, CLOSED | COPIED | HELD)
            || self.state.compare_exchange(count, HELD, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        #[cfg(loom)]
        self.watched.with(|_| ());
        for at in 1..count as usize {
            // SAFETY: the read requires an initialised entry that no thread writes: this thread
            // holds the batch (B1), which has `count` entries.
            to(unsafe { self.start().as_ptr().wrapping_add(at).read() });
        }
        self.state.store(COPIED, Ordering::Release);
    }
}

/// The number of pollers, the number of them that sleep, and whether there is a backlog or a
/// reservation of a destroyed queue pair. All are in one word, so that a single load tells a poller
/// whether it is alone and has nothing else to check.
pub(super) struct Crowd(AtomicU64);

/// One poller, so that the word of a poller that is alone is a short constant.
const POLLER: u64 = 1;
const POLLERS: u64 = (1 << 30) - 1;
const BACKLOG: u64 = 1 << 30;
const RETIRED: u64 = 1 << 31;
const SLEEPER: u64 = 1 << 32;

impl Crowd {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether there is one poller, awake, without a backlog or retired reservations. Each change
    /// that ends this begins an [epoch](fork::epoch).
    pub(super) fn is_quiet(&self) -> bool {
        self.0.load(Ordering::Relaxed) == POLLER
    }

    pub(super) fn is_alone(&self) -> bool {
        Self::pollers(self.0.load(Ordering::Relaxed)) < 2
    }

    /// Whether the caller is still the only poller; called after it opened its batch. A poller that
    /// joins later than this sees the batch open; this call reports any poller that joined earlier.
    pub(super) fn is_still_alone(&self) -> bool {
        // A read-modify-write reads the latest value, and a later one acquires all writes before
        // this.
        Self::pollers(self.0.fetch_add(0, Ordering::AcqRel)) < 2
    }

    pub(super) fn has_retired(&self) -> bool {
        self.0.load(Ordering::Relaxed) & RETIRED != 0
    }

    /// Sets or clears the flag for reservations of destroyed queue pairs. Called under the lock of
    /// the reservations.
    pub(super) fn set_retired(&self, retired: bool) {
        if retired {
            self.0.fetch_or(RETIRED, Ordering::Relaxed);
            fork::begin_epoch();
        } else {
            self.0.fetch_and(!RETIRED, Ordering::Relaxed);
        }
    }

    fn change(&self, by: u64) -> u64 {
        self.0.fetch_add(by, Ordering::AcqRel).wrapping_add(by)
    }

    const fn pollers(word: u64) -> u64 {
        word & POLLERS
    }

    const fn sleepers(word: u64) -> u64 {
        word / SLEEPER
    }
}

/// A completion in the backlog.
pub(super) struct Waiting {
    pub(super) wc: ibv_wc,
    /// Another poller has the completion too (B2).
    pub(super) is_copy: bool,
}

/// State shared by the pollers of one completion queue.
pub(crate) struct Sharing {
    pub(super) crowd: Crowd,
    /// The counts of scopes, of drivers, and of pollers that have gone.
    pub(super) tally: Tally,
    lists: Mutex<Lists>,
    /// A semaphore that wakes sleeping pollers. It is created when the first poller sleeps while
    /// there are others.
    bell: OnceLock<Semaphore>,
}

#[derive(Default)]
struct Lists {
    backlog: VecDeque<Waiting>,
    batches: Vec<Arc<Batch<ibv_wc>>>,
}

impl Lists {
    /// Copies the entries of an open batch to the front of the backlog, before everything that was
    /// fetched later. Entries with a sink are skipped: they were delivered when the batch was
    /// opened. Returns the number copied.
    fn copy(&mut self, batch: &Batch<ibv_wc>) -> usize {
        let mut count = 0;
        batch.copy(|wc| {
            if !has_sink(wc.wr_id) {
                self.backlog.insert(count, Waiting { wc, is_copy: true });
                count += 1;
            }
        });
        count
    }
}

impl Sharing {
    pub(super) fn new() -> Self {
        Self { crowd: Crowd::new(), tally: Tally::default(), lists: Mutex::default(), bell: OnceLock::new() }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Only failed allocations panic under the lock.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new poller and returns its batch.
    pub(super) fn join(&self) -> Arc<Batch<ibv_wc>> {
        let batch = Arc::new(Batch::new());
        // Joins before it looks at the batches: a poller that opens its batch later sees that it is
        // not alone.
        self.crowd.change(POLLER);
        fork::begin_epoch();
        let mut lists = self.lists();
        let batches = std::mem::take(&mut lists.batches);
        let copied = batches.iter().map(|batch| lists.copy(batch)).sum();
        lists.batches = batches;
        lists.batches.push(Arc::clone(&batch));
        self.publish(lists, copied);
        batch
    }

    /// Unregisters a poller. `rest` holds the completions that it has fetched and not handed out.
    pub(super) fn leave(&self, batch: &Arc<Batch<ibv_wc>>, rest: &[ibv_wc]) {
        let mut lists = self.lists();
        lists.batches.retain(|other| !Arc::ptr_eq(other, batch));
        // Under the lock, so that a sum has the counts once.
        self.tally.absorb(&batch.tally);
        for &wc in rest.iter().filter(|wc| !has_sink(wc.wr_id)).rev() {
            lists.backlog.push_front(Waiting { wc, is_copy: false });
        }
        self.crowd.change(POLLER.wrapping_neg());
        self.publish(lists, rest.len());
    }

    /// Adds what the pollers and the other threads have counted, and what there is now.
    pub(super) fn add_to(&self, stats: &mut CqStats) {
        let lists = self.lists();
        self.tally.add_to(stats);
        lists.batches.iter().for_each(|batch| batch.tally.add_to(stats));
        stats.pollers = u32::try_from(lists.batches.len()).unwrap_or(u32::MAX);
        stats.backlog = lists.backlog.len();
    }

    /// Copies a batch to the backlog, because its owner is no longer alone.
    pub(super) fn spill(&self, batch: &Batch<ibv_wc>) {
        let mut lists = self.lists();
        let copied = lists.copy(batch);
        self.publish(lists, copied);
    }

    /// Adds a completion that a scope fetched and that belongs to no scope.
    pub(super) fn push(&self, wc: ibv_wc) {
        let mut lists = self.lists();
        lists.backlog.push_back(Waiting { wc, is_copy: false });
        self.publish(lists, 1);
    }

    /// Announces to the other pollers that `added` completions are in the backlog.
    fn publish(&self, lists: MutexGuard<'_, Lists>, added: usize) {
        if added == 0 {
            return;
        }
        // Set under the lock, since `take` clears the flag under the lock.
        let word = self.crowd.0.fetch_or(BACKLOG, Ordering::AcqRel);
        fork::begin_epoch();
        drop(lists);
        self.ring(Crowd::sleepers(word).min(added as u64));
    }

    /// Takes the oldest completion of the backlog.
    pub(super) fn take(&self) -> Option<Waiting> {
        if self.crowd.0.load(Ordering::Relaxed) & BACKLOG == 0 {
            return None;
        }
        let mut lists = self.lists();
        let waiting = lists.backlog.pop_front();
        if lists.backlog.is_empty() {
            self.crowd.0.fetch_and(!BACKLOG, Ordering::AcqRel);
        }
        waiting
    }

    /// Counts a poller as asleep until the returned value is dropped.
    pub(super) fn fall_asleep(&self) -> Asleep<'_> {
        self.crowd.change(SLEEPER);
        Asleep(self)
    }

    /// The semaphore on which a sleeping poller waits beside the queue's channel; none if the
    /// poller is alone.
    pub(super) fn bell(&self) -> Result<Option<&Semaphore>> {
        if self.crowd.is_alone() { Ok(None) } else { self.make_bell().map(Some) }
    }

    fn make_bell(&self) -> Result<&Semaphore> {
        if self.bell.get().is_none() {
            // If another thread has set one meanwhile, the new semaphore is closed.
            let _unused = self.bell.set(Semaphore::new()?);
        }
        self.bell.get().ok_or(Error::new(Verb::WatchDescriptor, ErrorKind::Unknown))
    }

    /// Wakes `count` sleeping pollers.
    fn ring(&self, count: u64) {
        if count > 0 {
            // If no descriptor can be created, the pollers find the backlog when the channel wakes
            // them.
            let _woken = self.make_bell().map(|bell| bell.post(count));
        }
    }
}

/// A poller that counts as asleep.
pub(super) struct Asleep<'a>(&'a Sharing);

impl Asleep<'_> {
    /// Wakes another sleeping poller. Called by a poller that was woken and has found a completion:
    /// there may be more completions, and it has taken the event from the other pollers.
    pub(super) fn wake_another(self) {
        let sharing = self.0;
        drop(self);
        let word = sharing.crowd.0.load(Ordering::Relaxed);
        sharing.ring(Crowd::sleepers(word).min(1));
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.crowd.change(SLEEPER.wrapping_neg());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;

    struct Queue {
        batch: Batch<usize>,
        crowd: Crowd,
        slots: [AtomicBool; 6],
    }

    impl Queue {
        /// An empty queue with one poller.
        fn with_a_poller() -> Arc<Self> {
            let slots = std::array::from_fn(|_| AtomicBool::new(false));
            let queue = Self { batch: Batch::new(), crowd: Crowd::new(), slots };
            queue.crowd.change(POLLER);
            Arc::new(queue)
        }

        fn claim(&self, name: usize) -> usize {
            // Like the claim of a slot: a failed claim orders nothing.
            let claim = self.slots[name].compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            usize::from(claim.is_ok())
        }

        fn fill(&self, names: std::ops::Range<usize>) -> u32 {
            let count = u32::try_from(names.len()).unwrap();
            self.batch.watched.with_mut(|_| ());
            for (at, name) in names.enumerate() {
                // SAFETY: access to the entries must be free of data races: B1, which `watched`
                // checks.
                unsafe { self.batch.start().as_ptr().wrapping_add(at).write(name) };
            }
            self.batch.open(count);
            count
        }

        fn read(&self, at: u32) -> usize {
            self.batch.watched.with(|_| ());
            // SAFETY: access to the entries must be free of data races: B1, which `watched` checks.
            unsafe { self.batch.start().as_ptr().wrapping_add(at as usize).read() }
        }
    }

    #[test]
    fn a_second_poller_sees_what_the_first_has_fetched_or_is_given_it() {
        loom::model(|| {
            let queue = Queue::with_a_poller();
            let second = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    queue.crowd.change(POLLER);
                    let mut copies = Vec::new();
                    queue.batch.copy(|name| copies.push(name));
                    copies.iter().map(|&name| queue.claim(name)).sum::<usize>()
                })
            };
            // Hands out the first entry and then pauses: the other entries must not be hidden
            // meanwhile.
            let count = queue.fill(0..3);
            let mut handed_out = queue.claim(queue.read(0));
            let mut spilled = Vec::new();
            if !queue.crowd.is_still_alone() {
                queue.batch.copy(|name| spilled.push(name));
            }
            handed_out += (1..count).map(|at| queue.claim(queue.read(at))).sum::<usize>();
            queue.batch.close();
            // The next batch may be written: no other thread reads the batch any more.
            queue.fill(3..5);
            handed_out += (0..2).map(|at| queue.claim(queue.read(at))).sum::<usize>();
            let others = second.join().unwrap();
            assert_eq!(handed_out + others, 5, "each completion is handed out once");
        });
    }

    #[test]
    fn what_lies_in_an_idle_batch_is_found_by_one_side() {
        loom::model(|| {
            let queue = Queue::with_a_poller();
            let second = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    queue.crowd.change(POLLER);
                    let mut copies = 0;
                    queue.batch.copy(|_| copies += 1);
                    copies
                })
            };
            queue.fill(0..3);
            let mut spilled = 0;
            if !queue.crowd.is_still_alone() {
                queue.batch.copy(|_| spilled += 1);
            }
            // Both entries must be found, since the first poller does not poll again.
            assert_eq!(second.join().unwrap() + spilled, 2);
        });
    }
}
