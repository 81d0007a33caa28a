//! The items of a pool that nobody has: caches of the cores over a shared stack, and the waiters.
//!
//! A thread takes from and returns to the cache in its *seat*. Threads have different seats as long
//! as there are enough, and a thread that finds its seat taken moves on, so in the common case no
//! two cores write to one line. Caches exchange batches with the *depot*, the stack that all share.
//! A taker that finds both empty looks into every cache, so an item is refused only if all are out.
//!
//! # No lost wake-up
//!
//! A waiter first raises `attention` and then looks for items everywhere, the depot before the
//! caches. Whoever stores an item in a cache or the depot checks `attention` while it holds that
//! container's lock, and brings the item to the waiters instead if it is raised. So either the
//! waiter looked after the item was stored, and finds it, or before, and then its raise is visible
//! to the check. An item that moves from the depot to a cache moves under both locks: a waiter that
//! saw the depot without it looks into the cache later. One that moves the other way is checked
//! like a stored one.
//!
//! # Invariants
//!
//! * **P1.** An item is in one place: in a cache, the depot or the slot of a waiter, or out.
//! * **P2.** The flag `closed` is final. Items that come after it are refused.
//! * **P3.** [`put`](Stock::put) accesses the stock after the item was stored only to release the
//!   lock of the cache that holds it, as its last access (L2). [`close`](Stock::close) takes each
//!   cache's lock, so once it has returned, no successful `put` from before accesses the stock.

use std::cell::Cell;
use std::collections::VecDeque;
#[cfg(not(loom))]
use std::sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize};
use std::sync::{PoisonError, atomic::Ordering};
use std::task::Waker;

#[cfg(loom)]
use loom::sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize};

use super::lock::{Guard, Lock};

/// Items in a full cache.
const CACHE: usize = if cfg!(loom) { 2 } else { 64 };
/// The most seats.
const SEATS: usize = 256;

/// The bit of `attention` for a stock that is closed. The other bits count the waiters.
const CLOSED: usize = 1;
const WAITER: usize = 2;

/// Keeps what one core writes away from the lines of others: two lines, because processors fetch
/// them in pairs.
#[repr(align(128))]
pub(in crate::mr) struct Padded<T>(pub(in crate::mr) T);

/// One thread's items, a stack, and its counts.
struct Cache<T> {
    items: [Option<T>; CACHE],
    len: usize,
    taken: u64,
    returned: u64,
}

impl<T> Cache<T> {
    fn new() -> Self {
        Self { items: std::array::from_fn(|_| None), len: 0, taken: 0, returned: 0 }
    }

    #[inline]
    fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.items.get_mut(self.len)?.take()
    }

    /// Takes an item out, to be used.
    #[inline]
    fn take(&mut self) -> Option<T> {
        let item = self.pop()?;
        self.taken += 1;
        Some(item)
    }

    /// Stores an item; the cache must have a free place.
    #[inline]
    fn push(&mut self, item: T) {
        self.items[self.len] = Some(item);
        self.len += 1;
    }
}

struct Depot<T> {
    items: Vec<T>,
    /// All items that were ever added.
    registered: usize,
    /// The most items that were not here at once.
    most_out: usize,
}

impl<T> Depot<T> {
    fn note_out(&mut self) {
        self.most_out = self.most_out.max(self.registered - self.items.len());
    }
}

struct Queue<T> {
    /// In order of their numbers.
    waiting: VecDeque<WaiterHandle<T>>,
    next: u64,
    closed: bool,
    /// Takes and returns by way of a waiter.
    handed: u64,
    /// All waiters that there were.
    waits: u64,
}

/// A taker that waits.
pub(super) struct Waiter<T> {
    number: u64,
    /// Locked after the queue, or by the waiter that has left the queue.
    slot: Mutex<Slot<T>>,
}

/// A handle to a waiter.
pub(super) type WaiterHandle<T> = Arc<Waiter<T>>;

struct Slot<T> {
    item: Option<T>,
    waker: Option<Waker>,
}

/// The counts of a stock at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) registered: usize,
    pub(super) taken: u64,
    pub(super) returned: u64,
    pub(super) waits: u64,
    pub(super) most_out: usize,
}

pub(super) struct Stock<T> {
    seats: Box<[Padded<Lock<Cache<T>>>]>,
    /// Items that a cache and the depot exchange at a time.
    batch: usize,
    /// Not 0 if there are waiters or the stock is closed. Written under the queue's lock.
    attention: Padded<AtomicUsize>,
    depot: Padded<Mutex<Depot<T>>>,
    queue: Padded<Mutex<Queue<T>>>,
}

impl<T> Stock<T> {
    /// A stock for at most `limit` items, which `threads` threads use at a time.
    pub(super) fn new(limit: usize, threads: usize) -> Self {
        let seats = threads.clamp(1, SEATS).next_power_of_two();
        // At most half of all items sit in the caches, if there are more than a few.
        let batch = (limit / (seats * 4)).clamp(1, CACHE / 2);
        let depot = Depot { items: Vec::new(), registered: 0, most_out: 0 };
        let queue = Queue { waiting: VecDeque::new(), next: 0, closed: false, handed: 0, waits: 0 };
        Self {
            seats: (0..seats).map(|_| Padded(Lock::new(Cache::new()))).collect(),
            batch,
            attention: Padded(AtomicUsize::new(0)),
            depot: Padded(Mutex::new(depot)),
            queue: Padded(Mutex::new(queue)),
        }
    }

    fn depot(&self) -> MutexGuard<'_, Depot<T>> {
        self.depot.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cache of this thread's seat, or of the next one that no thread uses at the moment.
    #[inline]
    fn seat(&self) -> Guard<'_, Cache<T>> {
        let number = seat_number();
        match self.seats[number & (self.seats.len() - 1)].0.try_lock() {
            Some(cache) => cache,
            None => self.other_seat(number),
        }
    }

    #[cold]
    fn other_seat(&self, number: usize) -> Guard<'_, Cache<T>> {
        let mask = self.seats.len() - 1;
        for other in 1..self.seats.len() {
            let other = number.wrapping_add(other);
            if let Some(cache) = self.seats[other & mask].0.try_lock() {
                take_seat(other);
                return cache;
            }
        }
        self.seats[number & mask].0.lock()
    }

    /// An item, unless all are out.
    #[inline]
    pub(super) fn take(&self) -> Option<T> {
        let mut cache = self.seat();
        match cache.take() {
            Some(item) => Some(item),
            None => self.refill(cache),
        }
    }

    /// An item from the depot, with a batch for the empty cache, or from any cache.
    #[cold]
    fn refill(&self, mut cache: Guard<'_, Cache<T>>) -> Option<T> {
        let mut depot = self.depot();
        if let Some(item) = depot.items.pop() {
            for _ in 1..self.batch {
                let Some(item) = depot.items.pop() else { break };
                cache.push(item);
            }
            depot.note_out();
            cache.taken += 1;
            return Some(item);
        }
        drop(depot);
        // One lock at a time: two threads that look into each other's caches must not wait for each
        // other.
        drop(cache);
        self.seats.iter().find_map(|seat| seat.0.lock().take())
    }

    /// Stores an item that was taken.
    ///
    /// # Errors
    ///
    /// Returns the item if somebody waits for it or if the stock is closed: for
    /// [`put_slow`](Self::put_slow).
    ///
    /// # Safety
    ///
    /// `this` is valid until the item was stored, for example because the item keeps it valid, and
    /// then until [`close`](Self::close) has returned.
    #[inline]
    pub(super) unsafe fn put(this: *const Self, item: T) -> Result<(), T> {
        // SAFETY: the reference requires a valid stock: the item is not stored yet. Afterwards only
        // the cache is accessed, which `close` locks before it returns (P3).
        let stock = unsafe { &*this };
        let mut cache = stock.seat();
        // Relaxed: the lock orders this load and the raise of a waiter that has looked into this
        // cache.
        if stock.attention.0.load(Ordering::Relaxed) != 0 {
            return Err(item);
        }
        if cache.len >= stock.batch * 2 && !stock.unload(&mut cache) {
            return Err(item);
        }
        cache.push(item);
        cache.returned += 1;
        Ok(())
    }

    /// Moves the oldest batch of a cache to the depot, unless somebody waits.
    #[cold]
    fn unload(&self, cache: &mut Cache<T>) -> bool {
        let mut depot = self.depot();
        // As in `put`, for a waiter that has looked into the depot.
        if self.attention.0.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let batch = self.batch;
        let (oldest, others) = cache.items.split_at_mut(batch);
        depot.items.extend(oldest.iter_mut().filter_map(Option::take));
        oldest.swap_with_slice(&mut others[..batch]);
        cache.len -= batch;
        true
    }

    /// Gives an item that was taken to the first waiter, whose waker is returned, or stores it.
    ///
    /// # Errors
    ///
    /// Returns the item if the stock is closed.
    #[cold]
    pub(super) fn put_slow(&self, mut item: T) -> Result<Option<Waker>, T> {
        loop {
            let mut queue = self.queue();
            if queue.closed {
                return Err(item);
            }
            if let Some(waiter) = queue.waiting.pop_front() {
                queue.handed += 1;
                self.attention.0.fetch_sub(WAITER, Ordering::Relaxed);
                let mut slot = waiter.slot();
                slot.item = Some(item);
                return Ok(slot.waker.take());
            }
            drop(queue);
            // SAFETY: `put` requires a stock that stays valid: it is borrowed.
            match unsafe { Self::put(self, item) } {
                Ok(()) => return Ok(None),
                Err(refused) => item = refused,
            }
        }
    }

    /// Adds new items. Returns those that somebody waits for, for [`put_slow`](Self::put_slow).
    pub(super) fn add(&self, items: Vec<T>) -> Vec<T> {
        let mut depot = self.depot();
        depot.registered += items.len();
        // For all items, so that no return allocates.
        let away = depot.registered - depot.items.len();
        depot.items.reserve(away);
        // As in `put`, for a waiter that has looked into the depot.
        if self.attention.0.load(Ordering::Relaxed) != 0 {
            return items;
        }
        depot.items.extend(items);
        Vec::new()
    }

    /// Joins the waiters. The caller must then look for an item once more, and
    /// [`leave`](Self::leave) if it finds one.
    pub(super) fn join(&self, waker: &Waker) -> WaiterHandle<T> {
        // A waker's clone is a caller's code, and runs under no lock.
        let slot = Mutex::new(Slot { item: None, waker: Some(waker.clone()) });
        let mut queue = self.queue();
        let waiter = Arc::new(Waiter { number: queue.next, slot });
        queue.next += 1;
        queue.waits += 1;
        queue.waiting.push_back(Arc::clone(&waiter));
        self.attention.0.fetch_add(WAITER, Ordering::Relaxed);
        waiter
    }

    /// Leaves the waiters, and returns the item that the waiter was given before.
    pub(super) fn leave(&self, waiter: &Waiter<T>) -> Option<T> {
        let mut queue = self.queue();
        let place = queue.waiting.binary_search_by_key(&waiter.number, |other| other.number);
        let left = place.ok().and_then(|place| queue.waiting.remove(place));
        if left.is_some() {
            self.attention.0.fetch_sub(WAITER, Ordering::Relaxed);
        }
        drop(queue);
        // Dropped under no lock, with its waker.
        drop(left);
        waiter.slot().item.take()
    }

    /// The item that a waiter was given. Otherwise the waker is the one to wake from now on.
    pub(super) fn poll(waiter: &Waiter<T>, waker: &Waker) -> Option<T> {
        let mut slot = waiter.slot();
        if let Some(item) = slot.item.take() {
            return Some(item);
        }
        if slot.waker.as_ref().is_some_and(|present| present.will_wake(waker)) {
            return None;
        }
        drop(slot);
        // Cloned and dropped under no lock.
        let mut waker = Some(waker.clone());
        let mut slot = waiter.slot();
        std::mem::swap(&mut slot.waker, &mut waker);
        let item = slot.item.take();
        drop(slot);
        drop(waker);
        item
    }

    /// Refuses all items from now on, and returns those that are here.
    pub(super) fn close(&self) -> (Vec<T>, VecDeque<WaiterHandle<T>>) {
        let mut queue = self.queue();
        queue.closed = true;
        self.attention.0.fetch_or(CLOSED, Ordering::Relaxed);
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        // As a waiter looks: the depot before the caches. Every cache is locked (P3).
        let mut items = std::mem::take(&mut self.depot().items);
        for seat in &self.seats {
            let mut cache = seat.0.lock();
            items.extend(std::iter::from_fn(|| cache.pop()));
        }
        (items, waiting)
    }

    pub(super) fn counts(&self) -> Counts {
        let (registered, most_out) = {
            let depot = self.depot();
            (depot.registered, depot.most_out)
        };
        let (handed, waits) = {
            let queue = self.queue();
            (queue.handed, queue.waits)
        };
        let mut counts = Counts { registered, taken: handed, returned: handed, waits, most_out };
        for seat in &self.seats {
            let cache = seat.0.lock();
            counts.taken += cache.taken;
            counts.returned += cache.returned;
        }
        counts
    }
}

impl<T> Waiter<T> {
    fn slot(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(loom))]
mod seats {
    use super::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        /// Nothing is dropped with the thread, so threads that end leave nothing behind, and a
        /// buffer may be dropped by the last destructor of a thread.
        static SEAT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// The seat that this thread took last.
    #[inline]
    pub(in crate::mr) fn seat_number() -> usize {
        let number = SEAT.get();
        if number == usize::MAX { first_seat() } else { number }
    }

    #[cold]
    fn first_seat() -> usize {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1);
        take_seat(number);
        number
    }

    pub(super) fn take_seat(number: usize) {
        SEAT.set(number & (usize::MAX >> 1));
    }
}
#[cfg(loom)]
mod seats {
    use super::Cell;

    loom::thread_local! {
        static SEAT: Cell<usize> = Cell::new(0);
    }

    pub(in crate::mr) fn seat_number() -> usize {
        SEAT.with(Cell::get)
    }

    pub(super) fn take_seat(number: usize) {
        SEAT.with(|seat| seat.set(number));
    }
}
pub(in crate::mr) use seats::seat_number;
use seats::take_seat;

#[cfg(all(test, loom))]
mod loom_tests;
