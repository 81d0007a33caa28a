//! A sink: the way of one request's report from its completion to its future, without a lock.
//!
//! | state | may access the report | changes the state |
//! | --- | --- | --- |
//! | `FREE` | no thread | who looks for free sinks, to `SPARE` (under the lock of the results) |
//! | `SPARE` | no thread | the holder of the [`Spare`]: begins a request, or drops it |
//! | `PENDING`, with `ABANDONED` or `WATCHED` | the completion | the completion, to `DONE`; any thread adds `WATCHED`; the holder of the [`Ticket`] adds `ABANDONED` |
//! | `DONE` | the holder of the ticket, or the completion if it was abandoned | the same, to `FREE` |

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};

const FREE: u32 = 0;
const PENDING: u32 = 1;
/// The future was dropped: the completion gives the report up.
const ABANDONED: u32 = 2;
/// A task waits: the completion looks for wakers.
const WATCHED: u32 = 4;
const DONE: u32 = 8;
const SPARE: u32 = 16;

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

/// A sink without a request. Its drop frees the sink.
pub(crate) struct Spare<'a, R>(&'a Sink<R>);

/// The sink of a request, as its future has it. Its drop abandons the request.
pub(crate) struct Ticket<'a, R>(&'a Sink<R>);

/// The rest of a completion's work when a sink was abandoned or is watched.
pub(super) struct Noticed<R> {
    /// The report, if nobody wants it.
    pub(super) given_up: Option<R>,
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

    /// Takes the sink if it is free. One thread at a time calls this.
    pub(super) fn reserve(&self) -> Option<Spare<'_, R>> {
        // Acquire: the last access to the report comes before the next request's.
        if self.state.load(Ordering::Acquire) != FREE {
            return None;
        }
        self.state.store(SPARE, Ordering::Relaxed);
        Some(Spare(self))
    }

    /// Publishes the report of the request, which `report` makes in its place. Returns none if
    /// there is nothing else to do.
    ///
    /// # Safety
    ///
    /// A [`Spare`] of this sink began a request, and this is the request's only publication.
    #[inline]
    pub(super) unsafe fn publish(&self, report: impl FnOnce() -> R) -> Option<Noticed<R>> {
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
    fn notice(&self, before: u32) -> Noticed<R> {
        // SAFETY: take requires a published report that this thread may access: it was published
        // above, and the future has abandoned it.
        let given_up = (before & ABANDONED != 0).then(|| unsafe { self.take() });
        Noticed { given_up, is_watched: before & WATCHED != 0 }
    }

    /// Moves the report out, and frees the sink.
    ///
    /// # Safety
    ///
    /// The state is `DONE`. The caller is the holder of the ticket, which it then forgets, or the
    /// completion of an abandoned request.
    #[inline]
    unsafe fn take(&self) -> R {
        #[cfg(loom)]
        self.accessed.with_mut(|_| ());
        // SAFETY: the read requires an initialised report that is moved out once: the state is
        // `DONE`, and only this caller may access it (the contract of this function).
        let report = unsafe { self.report.get().cast::<R>().read() };
        self.state.store(FREE, Ordering::Release);
        report
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

impl<'a, R> Spare<'a, R> {
    /// Begins a request.
    #[inline]
    pub(super) fn begin(self) -> Ticket<'a, R> {
        let sink = ManuallyDrop::new(self).0;
        // The slot's state publishes this to the completion.
        sink.state.store(PENDING, Ordering::Relaxed);
        Ticket(sink)
    }
}

impl<R> Drop for Spare<'_, R> {
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
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

    /// Takes the report; abandons the request if it has not ended.
    #[inline]
    pub(crate) fn take(self) -> Option<R> {
        if !self.is_done() {
            return None;
        }
        let sink = ManuallyDrop::new(self).0;
        // SAFETY: take requires the state `DONE`, which was just read, and a holder that forgets
        // the ticket, which is not dropped.
        Some(unsafe { sink.take() })
    }

    /// As [`Sink::watch`].
    pub(crate) fn watch(&self) -> bool {
        self.0.watch()
    }

    pub(super) fn is_watched(&self) -> bool {
        self.0.state.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Takes the request back.
    ///
    /// # Safety
    ///
    /// No completion of the request will publish a report.
    pub(crate) unsafe fn cancel(self) -> Spare<'a, R> {
        let sink = ManuallyDrop::new(self).0;
        sink.state.store(SPARE, Ordering::Relaxed);
        Spare(sink)
    }
}

impl<R> Drop for Ticket<'_, R> {
    fn drop(&mut self) {
        let before = self.0.state.fetch_or(ABANDONED, Ordering::AcqRel);
        if before == DONE {
            // SAFETY: take requires the state `DONE`, which was just read, and the holder of a
            // ticket that nobody uses again: it is being dropped. (The completion has come, so the
            // bit that was added means nothing to it.)
            drop(unsafe { self.0.take() });
        }
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
