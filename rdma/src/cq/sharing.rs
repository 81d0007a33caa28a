//! What the pollers of one completion queue share: completions that one of them fetched and any of
//! them may hand out.
//!
//! A poller that is alone fetches up to [`FETCH`] completions at a time into its [`Batch`] and
//! hands them out without a lock. Where there are several, each fetches one at a time, so that what
//! nobody has asked for stays in the provider's queue. What was fetched all the same goes to the
//! backlog, which every poller looks at before it fetches: a batch that was open when a second
//! poller came, what a scope fetched beside its own, and what a dropped poller left.
//!
//! # Invariants
//!
//! * **B1.** The entries of a batch are written by its owner alone, and only while it is closed;
//!   others read them only while they hold it, which they can only while it is open.
//! * **B2.** Entries of an open batch may be handed out by the owner and by whoever takes their
//!   copies from the backlog. Whoever claims the request's slot first has the completion; for the
//!   other it names no request in flight.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

use crate::error::{Error, ErrorKind, Operation, Result};
use crate::qp::ring::has_sink;
use crate::wait;

/// Completions that a batch holds.
pub(super) const FETCH: usize = 16;

const CLOSED: u32 = 0;
const HELD: u32 = u32::MAX;
const COPIED: u32 = u32::MAX - 1;

/// Completions that one poller fetched together.
///
/// | state | the owner may | others may |
/// | --- | --- | --- |
/// | `CLOSED` | write and read | nothing |
/// | a count: open | read, and close it | hold it |
/// | `HELD` | read | read so many entries, and then set `COPIED` |
/// | `COPIED` | read, and close it | nothing |
pub(super) struct Batch<T> {
    state: AtomicU32,
    entries: UnsafeCell<[T; FETCH]>,
    /// Stands for the entries in loom's models.
    #[cfg(loom)]
    watched: loom::cell::UnsafeCell<()>,
}

// SAFETY: B1: the entries are written by one thread while nobody reads them.
unsafe impl<T: Copy + Send> Sync for Batch<T> {}

impl<T: Copy + Default> Batch<T> {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(CLOSED),
            entries: UnsafeCell::new([T::default(); FETCH]),
            #[cfg(loom)]
            watched: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Where the entries lie; all are initialised. Access is subject to B1.
    #[inline(always)]
    pub(super) fn start(&self) -> *mut T {
        self.entries.get().cast()
    }

    /// Opens the batch, which is closed and holds `count` entries: the owner writes it no more.
    pub(super) fn open(&self, count: u32) {
        self.state.store(count, Ordering::Release);
    }

    /// Closes the batch, so that the owner may write it. True if it was copied meanwhile.
    pub(super) fn close(&self) -> bool {
        loop {
            let state = self.state.load(Ordering::Relaxed);
            // Acquire: the reads of who copied it come before the owner's writes.
            if state != HELD && self.state.compare_exchange(state, CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return state == COPIED;
            }
            thread::yield_now();
        }
    }

    /// Whether the entries stand in the backlog too.
    pub(super) fn is_copied(&self) -> bool {
        self.state.load(Ordering::Acquire) == COPIED
    }

    /// Copies the entries of a batch that is open, but for the first: that one its owner is handing
    /// out. One thread at a time calls it.
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
            // SAFETY: B1: the batch is held, and it holds that many entries.
            to(unsafe { self.start().wrapping_add(at).read() });
        }
        self.state.store(COPIED, Ordering::Release);
    }
}

/// In one word, so that a poller sees at a glance whether it is alone and has nothing else to look
/// at: how many pollers there are, how many of them sleep, and whether there is a backlog, or a
/// reservation of a destroyed queue pair.
pub(super) struct Crowd(AtomicU64);

const BACKLOG: u64 = 1;
const RETIRED: u64 = 1 << 1;
const SLEEPER: u64 = 1 << 2;
const POLLER: u64 = 1 << 32;

impl Crowd {
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// One poller, awake, and nothing else.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.0.load(Ordering::Relaxed) == POLLER
    }

    pub(super) fn is_alone(&self) -> bool {
        self.0.load(Ordering::Relaxed) < 2 * POLLER
    }

    /// After a batch was opened. Whoever comes later than this sees it open; of whoever came
    /// earlier this tells.
    pub(super) fn is_still_alone(&self) -> bool {
        // Read by a read-modify-write, so that it is the latest value, and a later one acquires
        // what came before this.
        self.0.fetch_add(0, Ordering::AcqRel) < 2 * POLLER
    }

    pub(super) fn has_retired(&self) -> bool {
        self.0.load(Ordering::Relaxed) & RETIRED != 0
    }

    /// Called under the lock of the reservations.
    pub(super) fn set_retired(&self, retired: bool) {
        if retired {
            self.0.fetch_or(RETIRED, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!RETIRED, Ordering::Relaxed);
        }
    }

    fn change(&self, by: u64) -> u64 {
        self.0.fetch_add(by, Ordering::AcqRel).wrapping_add(by)
    }

    fn sleepers(word: u64) -> u64 {
        (word % POLLER) / SLEEPER
    }
}

/// A completion in the backlog.
pub(super) struct Waiting {
    pub(super) wc: ibv_wc,
    /// Another poller has it too (B2).
    pub(super) is_copy: bool,
}

/// What the pollers of one completion queue share.
pub(crate) struct Sharing {
    pub(super) crowd: Crowd,
    lists: Mutex<Lists>,
    /// Readable while there is something for pollers that sleep; made when the first sleeps while
    /// there are others.
    bell: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct Lists {
    backlog: VecDeque<Waiting>,
    batches: Vec<Arc<Batch<ibv_wc>>>,
}

impl Lists {
    /// Puts what an open batch holds before everything that was fetched later; sinks have got
    /// theirs.
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
        Self { crowd: Crowd::new(), lists: Mutex::default(), bell: OnceLock::new() }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Nothing under the lock panics but allocations that fail.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch for a new poller.
    pub(super) fn join(&self) -> Arc<Batch<ibv_wc>> {
        let batch = Arc::new(Batch::new());
        // Before it looks: a poller that opens its batch later sees that it is not alone.
        self.crowd.change(POLLER);
        let mut lists = self.lists();
        let batches = std::mem::take(&mut lists.batches);
        let copied = batches.iter().map(|batch| lists.copy(batch)).sum();
        lists.batches = batches;
        lists.batches.push(Arc::clone(&batch));
        self.publish(lists, copied);
        batch
    }

    /// Ends a poller. `rest` is what it has fetched and not handed out.
    pub(super) fn leave(&self, batch: &Arc<Batch<ibv_wc>>, rest: &[ibv_wc]) {
        let mut lists = self.lists();
        lists.batches.retain(|other| !Arc::ptr_eq(other, batch));
        for &wc in rest.iter().filter(|wc| !has_sink(wc.wr_id)).rev() {
            lists.backlog.push_front(Waiting { wc, is_copy: false });
        }
        self.crowd.change(POLLER.wrapping_neg());
        self.publish(lists, rest.len());
    }

    /// Gives others a batch whose owner is not alone any more.
    pub(super) fn spill(&self, batch: &Batch<ibv_wc>) {
        let mut lists = self.lists();
        let copied = lists.copy(batch);
        self.publish(lists, copied);
    }

    /// Adds a completion that was fetched by a scope and is not a scope's.
    pub(super) fn push(&self, wc: ibv_wc) {
        let mut lists = self.lists();
        lists.backlog.push_back(Waiting { wc, is_copy: false });
        self.publish(lists, 1);
    }

    /// Tells others that so many completions were added.
    fn publish(&self, lists: MutexGuard<'_, Lists>, added: usize) {
        if added == 0 {
            return;
        }
        // Under the lock, as `take` clears it.
        let word = self.crowd.0.fetch_or(BACKLOG, Ordering::AcqRel);
        drop(lists);
        self.ring(Crowd::sleepers(word).min(added as u64));
    }

    /// The oldest completion of the backlog.
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

    /// Counts a poller as asleep until the value is dropped.
    pub(super) fn fall_asleep(&self) -> Asleep<'_> {
        self.crowd.change(SLEEPER);
        Asleep(self)
    }

    /// What a sleeping poller waits on beside the queue's channel, if it is not alone.
    pub(super) fn bell(&self) -> Result<Option<BorrowedFd<'_>>> {
        if self.crowd.is_alone() { Ok(None) } else { self.make_bell().map(Some) }
    }

    fn make_bell(&self) -> Result<BorrowedFd<'_>> {
        if self.bell.get().is_none() {
            // If another thread was faster, this one is closed.
            let _unused = self.bell.set(wait::semaphore()?);
        }
        self.bell.get().map(AsFd::as_fd).ok_or(Error::new(Operation::WatchDescriptor, ErrorKind::Unknown))
    }

    /// Wakes so many of those that sleep.
    fn ring(&self, count: u64) {
        if count > 0 {
            // Without descriptors they find it when the channel wakes them.
            let _woken = self.make_bell().map(|bell| wait::post(bell, count));
        }
    }
}

/// A poller that sleeps.
pub(super) struct Asleep<'a>(&'a Sharing);

impl Asleep<'_> {
    /// It was woken and has found something: there may be more, and the event was taken from the
    /// others.
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
        fn claim(&self, name: usize) -> usize {
            // As a slot's claim: it orders nothing if it fails.
            let claim = self.slots[name].compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            usize::from(claim.is_ok())
        }

        fn fill(&self, names: std::ops::Range<usize>) -> u32 {
            let count = u32::try_from(names.len()).unwrap();
            self.batch.watched.with_mut(|_| ());
            for (at, name) in names.enumerate() {
                // SAFETY: B1, which `watched` checks.
                unsafe { self.batch.start().wrapping_add(at).write(name) };
            }
            self.batch.open(count);
            count
        }

        fn read(&self, at: u32) -> usize {
            self.batch.watched.with(|_| ());
            // SAFETY: B1, which `watched` checks.
            unsafe { self.batch.start().wrapping_add(at as usize).read() }
        }
    }

    #[test]
    fn a_second_poller_sees_what_the_first_has_fetched_or_is_given_it() {
        loom::model(|| {
            let queue = Arc::new(Queue {
                batch: Batch::new(),
                crowd: Crowd::new(),
                slots: std::array::from_fn(|_| AtomicBool::new(false)),
            });
            queue.crowd.change(POLLER);
            let second = {
                let queue = Arc::clone(&queue);
                loom::thread::spawn(move || {
                    queue.crowd.change(POLLER);
                    let mut copies = Vec::new();
                    queue.batch.copy(|name| copies.push(name));
                    copies.iter().map(|&name| queue.claim(name)).sum::<usize>()
                })
            };
            // Hands out the first, and is then not used for a while: the rest is not hidden.
            let count = queue.fill(0..3);
            let mut handed_out = queue.claim(queue.read(0));
            let mut spilled = Vec::new();
            if !queue.crowd.is_still_alone() {
                queue.batch.copy(|name| spilled.push(name));
            }
            handed_out += (1..count).map(|at| queue.claim(queue.read(at))).sum::<usize>();
            queue.batch.close();
            // The next batch may be written: nobody reads it any more.
            queue.fill(3..5);
            handed_out += (0..2).map(|at| queue.claim(queue.read(at))).sum::<usize>();
            let others = second.join().unwrap();
            assert_eq!(handed_out + others, 5, "each completion is handed out once");
        });
    }

    #[test]
    fn what_lies_in_an_idle_batch_is_found_by_one_side() {
        loom::model(|| {
            let queue = Arc::new(Queue {
                batch: Batch::new(),
                crowd: Crowd::new(),
                slots: std::array::from_fn(|_| AtomicBool::new(false)),
            });
            queue.crowd.change(POLLER);
            let second = {
                let queue = Arc::clone(&queue);
                loom::thread::spawn(move || {
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
            // Not 0: the first poller is not used again.
            assert_eq!(second.join().unwrap() + spilled, 2);
        });
    }
}
