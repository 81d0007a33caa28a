//! A sink: the way of one request's report from its completion to its future, without a lock.
//!
//! | state | may access the report | changes the state |
//! | --- | --- | --- |
//! | `FREE` | no thread | the [`Cursor`] of the results, which begins a request |
//! | `PENDING`, with `ABANDONED` or `WATCHED` | the completion | the completion, to `DONE`; any thread adds `WATCHED`; the holder of the [`Ticket`] adds `ABANDONED` |
//! | `DONE` | the holder of the ticket, or the completion if it was abandoned | the same, to `FREE` |
//!
//! [`Cursor`]: super::Cursor

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const PENDING: u32 = 1;
/// The future was dropped: the completion gives the report up.
const ABANDONED: u32 = 2;
/// A task waits: the completion looks for wakers.
const WATCHED: u32 = 4;
const DONE: u32 = 8;

/// The sink of one request at a time.
pub(super) struct Sink<R> {
    state: AtomicU32,
    index: u32,
    /// Initialised while the state is `DONE`.
    report: UnsafeCell<MaybeUninit<R>>,
    /// Represents the report in loom's models.
    #[cfg(loom)]
    accessed: loom::cell::UnsafeCell<()>,
}

// SAFETY: Sync requires that shared access is free of data races: the state names the one thread
// that accesses the report, and a report may move to another thread.
unsafe impl<R: Send> Sync for Sink<R> {}

/// The sink of a request, as its future has it. Its drop abandons the request.
pub(crate) struct Ticket<'a, R>(&'a Sink<R>);

/// A published report, in its sink. Its drop drops the report, and frees the sink.
pub(crate) struct Published<'a, R>(&'a Sink<R>);

// SAFETY: moving it to another thread is sound: it is exclusive access to a report, which is Send,
// and to the state, which is atomic.
unsafe impl<R: Send> Send for Published<'_, R> {}
// SAFETY: sharing it is sound: `&Published` gives `&R`, which is Sync.
unsafe impl<R: Send + Sync> Sync for Published<'_, R> {}

/// The rest of a completion's work when a sink was abandoned or is watched.
pub(super) struct Noticed<'a, R> {
    /// The report, if nobody wants it.
    pub(super) given_up: Option<Published<'a, R>>,
    pub(super) is_watched: bool,
}

impl<R> Sink<R> {
    pub(super) fn new(index: u32) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            index,
            report: UnsafeCell::new(MaybeUninit::uninit()),
            #[cfg(loom)]
            accessed: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Begins a request if the sink is free.
    ///
    /// # Safety
    ///
    /// One thread at a time calls this.
    #[inline]
    pub(super) unsafe fn begin(&self) -> Option<Ticket<'_, R>> {
        // Acquire: the last access to the report comes before the next request's.
        if self.state.load(Ordering::Acquire) != FREE {
            return None;
        }
        // The state of the request's slot publishes this to the completion.
        self.state.store(PENDING, Ordering::Relaxed);
        Some(Ticket(self))
    }

    /// Publishes the report of the request, which `report` makes in its place. Returns none if
    /// there is nothing else to do.
    ///
    /// # Safety
    ///
    /// A request was begun, and this is its only publication.
    #[inline]
    pub(super) unsafe fn publish(&self, report: impl FnOnce() -> R) -> Option<Noticed<'_, R>> {
        #[cfg(loom)]
        self.accessed.with_mut(|_| ());
        // SAFETY: the write requires that no other thread accesses the report: the request is
        // pending, and this is its completion (the contract of this function).
        unsafe { self.report.get().cast::<R>().write(report()) };
        // Release: the report comes before the state. Acquire: a watcher's waker does too.
        let before = self.state.swap(DONE, Ordering::AcqRel);
        if before == PENDING { None } else { Some(self.notice(before)) }
    }

    #[cold]
    fn notice(&self, before: u32) -> Noticed<'_, R> {
        // The report was published, and belongs to this thread if the future has abandoned it.
        let given_up = if before & ABANDONED == 0 { None } else { Some(Published(self)) };
        Noticed { given_up, is_watched: before & WATCHED != 0 }
    }

    /// Asks the completion, if it is still to come, to look for wakers. Returns whether it will.
    pub(super) fn watch(&self) -> bool {
        // Release: the waker was left before. Acquire: the slot was freed before the report was
        // published (W3).
        let add = |state| (state & PENDING != 0).then_some(state | WATCHED);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.state.load(Ordering::Relaxed) & ABANDONED != 0
    }
}

impl<'a, R> Ticket<'a, R> {
    /// The number of the sink: the request's token.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.0.index
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        // Acquire: the report comes before the state.
        self.0.state.load(Ordering::Acquire) == DONE
    }

    /// The report; abandons the request if it has not ended.
    #[inline]
    pub(crate) fn published(self) -> Option<Published<'a, R>> {
        if !self.is_done() {
            return None;
        }
        // The only ticket is the only claim to the report.
        Some(Published(ManuallyDrop::new(self).0))
    }

    /// As [`Sink::watch`].
    pub(crate) fn watch(&self) -> bool {
        self.0.watch()
    }

    pub(super) fn is_watched(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Takes the request back, and frees the sink.
    ///
    /// # Safety
    ///
    /// No completion of the request will publish a report.
    pub(crate) unsafe fn cancel(self) {
        ManuallyDrop::new(self).0.state.store(FREE, Ordering::Release);
    }
}

impl<R> Drop for Ticket<'_, R> {
    fn drop(&mut self) {
        let before = self.0.state.fetch_or(ABANDONED, Ordering::AcqRel);
        if before == DONE {
            // The completion has come, so the bit that was added means nothing to it.
            drop(Published(self.0));
        }
    }
}

impl<R> Published<'_, R> {
    #[inline]
    fn place(&self) -> *mut R {
        #[cfg(loom)]
        self.0.accessed.with_mut(|_| ());
        self.0.report.get().cast()
    }
}

impl<R> Deref for Published<'_, R> {
    type Target = R;

    #[inline]
    fn deref(&self) -> &R {
        // SAFETY: the reference requires an initialised report that no thread writes: the state is
        // `DONE`, and this value is the only claim to the report, borrowed.
        unsafe { &*self.place() }
    }
}

impl<R> DerefMut for Published<'_, R> {
    #[inline]
    fn deref_mut(&mut self) -> &mut R {
        // SAFETY: the reference requires an initialised report that nothing else accesses: the
        // state is `DONE`, and this value is the only claim to the report, borrowed mutably.
        unsafe { &mut *self.place() }
    }
}

impl<R> Drop for Published<'_, R> {
    #[inline]
    fn drop(&mut self) {
        struct Free<'a>(&'a AtomicU32);

        impl Drop for Free<'_> {
            fn drop(&mut self) {
                self.0.store(FREE, Ordering::Release);
            }
        }

        // Frees the sink even if the drop of the report panics.
        let _free = Free(&self.0.state);
        // SAFETY: drop_in_place requires an initialised report that nothing else accesses and that
        // is dropped once: the state is `DONE`, and this value, the only claim to the report, ends
        // here.
        unsafe { self.place().drop_in_place() };
    }
}

#[cfg(all(test, loom))]
impl<R> Ticket<'_, R> {
    /// As the drop of a ticket, with a bug: the completion may come between the two steps.
    pub(super) fn abandon_in_two_steps(self) {
        if self.is_done() {
            return;
        }
        ManuallyDrop::new(self).0.state.store(PENDING | ABANDONED, Ordering::Release);
    }
}
