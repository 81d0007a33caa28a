//! Results of requests that belong to futures, outside of the ring.
//!
//! A slot of the ring is reused in order, so a result that waits for a slow future must not stay in
//! it. Whoever fetches the completion of such a request frees the slot and puts the report into the
//! request's [sink], whose number is the token in the slot. The future has the sink's
//! [`Ticket`]. Neither takes the lock unless a task waits: the lock is for wakers.
//!
//! # Invariants
//!
//! * **W1.** A completion publishes its report before it looks whether the sink is watched. A task
//!   leaves its waker before it watches the sink, and looks for the report after that. So a task
//!   finds the report, or the completion finds the waker.
//! * **W2.** Wakers are cloned, woken and dropped, and reports dropped, outside of the lock: they
//!   are or hold code of the caller.
//! * **W3.** A slot is free before its report is published. So a task that was woken by a report
//!   finds a free slot.
//! * **W4.** The token of a routed request is the number of a sink among the results of its own
//!   ring. The sink began this request, and one completion publishes its report: the one that
//!   claimed the slot.

#[cfg(all(test, loom))]
mod loom_tests;
mod sink;
mod sinks;

use std::slice;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use self::sink::{Noticed, Sink};
pub(crate) use self::sink::{Published, Ticket};
use self::sinks::Sinks;
use crate::fork;
use crate::panics::Panics;

/// The results of one work queue. A ring keeps its results for all queues that use it.
pub(crate) struct Results<R> {
    /// Fork generation that may take the lock.
    made_in: u32,
    sinks: Sinks<R>,
    state: Mutex<State>,
}

struct State {
    /// The task that waits for each sink.
    wakers: Vec<Option<Waker>>,
    /// The task that waits for the next of several sinks in order: for a received message.
    receiver: Option<Waker>,
    /// The task that waits for a free slot of the work queue, or until all its requests have ended.
    owner: Option<Waker>,
    /// Whether a driver fetches completions.
    is_driven: bool,
}

/// User code to run after a publication (W2).
#[must_use]
pub(crate) struct After<'a, R> {
    pub(crate) wakers: [Option<Waker>; 3],
    pub(crate) given_up: Option<Published<'a, R>>,
}

/// The place of a work queue in its results: where it looks for the next free sink. It passes
/// through all sinks again and again.
pub(crate) struct Cursor<'a, R> {
    rest: slice::Iter<'a, Sink<R>>,
    /// The step of the table that `rest` belongs to.
    step: usize,
    /// The number of free sinks found in this pass.
    found: usize,
}

impl<R> Cursor<'_, R> {
    pub(crate) fn new() -> Self {
        Self { rest: [].iter(), step: usize::MAX, found: 0 }
    }
}

impl<R> Results<R> {
    pub(crate) fn new() -> Self {
        let state = State { wakers: Vec::new(), receiver: None, owner: None, is_driven: true };
        Self { made_in: fork::generation(), sinks: Sinks::new(), state: Mutex::new(state) }
    }

    /// Whether this is a forked child of the process that made the results. Another thread of the
    /// parent may have held the lock: no function that takes it may be called then.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.made_in != fork::generation()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only failed allocations panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares the results for a new work queue.
    pub(crate) fn renew(&self) {
        self.lock().is_driven = true;
    }

    /// Begins a request with the next free sink. None in a forked child that needs the lock.
    ///
    /// # Safety
    ///
    /// One thread at a time calls this, with the only cursor in use.
    #[inline]
    pub(crate) unsafe fn begin<'a>(&'a self, cursor: &mut Cursor<'a, R>) -> Option<Ticket<'a, R>> {
        loop {
            let Some(sink) = cursor.rest.next() else {
                self.continue_pass(cursor)?;
                continue;
            };
            // SAFETY: the callee requires one thread at a time: the contract of this function.
            if let Some(ticket) = unsafe { sink.begin() } {
                cursor.found += 1;
                return Some(ticket);
            }
        }
    }

    /// Moves a cursor to the next step of the table. At the end of a pass that found fewer than
    /// half of the sinks free, makes another step: so a request passes two sinks on average at
    /// most.
    #[cold]
    fn continue_pass<'a>(&'a self, cursor: &mut Cursor<'a, R>) -> Option<()> {
        if self.is_forked() {
            return None;
        }
        let mut step = cursor.step.wrapping_add(1);
        if self.sinks.step(step).is_none() {
            let mut state = self.lock();
            if cursor.found * 2 > state.wakers.len() {
                step = 0;
            } else {
                state.wakers.resize(self.sinks.grow(), None);
            }
            cursor.found = 0;
        }
        cursor.step = step;
        cursor.rest = self.sinks.step(step)?.iter();
        Some(())
    }

    /// Publishes the report of an ended request (W1, W3), which `report` makes in its place.
    /// Returns the user code to run.
    ///
    /// # Safety
    ///
    /// `token` names a sink of these results that began the request, and this is the request's only
    /// publication (W4).
    #[inline]
    pub(crate) unsafe fn publish(&self, token: u64, report: impl FnOnce() -> R) -> Option<After<'_, R>> {
        let sink = self.sinks.get(token)?;
        // SAFETY: the callee has the same contract as this function.
        let noticed = unsafe { sink.publish(report) }?;
        Some(self.follow(token, noticed))
    }

    #[cold]
    fn follow<'a>(&self, token: u64, Noticed { given_up, is_watched }: Noticed<'a, R>) -> After<'a, R> {
        let wakers = if is_watched { self.take_wakers(token) } else { [const { None }; 3] };
        After { wakers, given_up }
    }

    fn take_wakers(&self, token: u64) -> [Option<Waker>; 3] {
        let mut state = self.lock();
        let index = usize::try_from(token).unwrap_or(usize::MAX);
        let waker = state.wakers.get_mut(index).and_then(Option::take);
        [waker, state.receiver.take(), state.owner.take()]
    }

    /// Polls the future of a request; its ticket is gone afterwards if a report is returned.
    /// Without a driver there is no report to wait for.
    #[inline]
    pub(crate) fn poll<'a>(
        &self,
        ticket: &mut Option<Ticket<'a, R>>,
        cx: &Context<'_>,
    ) -> Poll<Option<Published<'a, R>>> {
        match ticket {
            Some(pending) if !pending.is_done() => {
                let index = pending.index() as usize;
                if !self.leave(cx, |state| state.wakers.get_mut(index)) {
                    return Poll::Ready(None);
                }
                if pending.watch() {
                    return Poll::Pending;
                }
                // The report has come meanwhile, and its completion has not seen the waker.
                self.forget_waker(index);
            }
            _ => {}
        }
        Poll::Ready(ticket.take().and_then(Ticket::published))
    }

    /// Abandons a request. Its task's waker is dropped, and its report if it has come.
    pub(crate) fn abandon(&self, ticket: Ticket<'_, R>) {
        if ticket.is_watched() && !self.is_forked() {
            self.forget_waker(ticket.index() as usize);
        }
        drop(ticket);
    }

    #[cold]
    fn forget_waker(&self, index: usize) {
        let mut state = self.lock();
        let waker = state.wakers.get_mut(index).and_then(Option::take);
        drop(state);
        drop(waker);
    }

    /// Drops the wakers of the work queue's own tasks (W2): the queue ends, and they wait no more.
    /// The futures of its requests keep theirs.
    pub(crate) fn forget_tasks(&self) {
        let mut state = self.lock();
        let tasks = [state.receiver.take(), state.owner.take()];
        drop(state);
        drop(tasks);
    }

    /// Waits for the first of several requests; without one, until the driver ends. Returns whether
    /// to look again: the report came meanwhile. None if no driver would bring one.
    #[cold]
    pub(crate) fn wait_for_first(&self, first: Option<&Ticket<'_, R>>, cx: &Context<'_>) -> Option<bool> {
        let is_left = self.leave(cx, |state| Some(&mut state.receiver));
        is_left.then(|| first.is_some_and(|ticket| !ticket.watch()))
    }

    /// Polls until `is_ready`, which looks at slots of the ring; `Ready(false)` if no driver would
    /// change them. `first` is the token of the request whose end makes it ready; none stands for
    /// all requests.
    pub(crate) fn poll_owner(
        &self,
        cx: &Context<'_>,
        first: Option<u64>,
        mut is_ready: impl FnMut() -> bool,
    ) -> Poll<bool> {
        if is_ready() {
            return Poll::Ready(true);
        }
        if !self.leave(cx, |state| Some(&mut state.owner)) {
            return Poll::Ready(false);
        }
        match first.and_then(|token| self.sinks.get(token)) {
            Some(sink) => _ = sink.watch(),
            None => self.sinks.iter().for_each(|sink| _ = sink.watch()),
        }
        // A completion that found its sink unwatched has freed its slot before (W3).
        if is_ready() { Poll::Ready(true) } else { Poll::Pending }
    }

    /// Leaves the task's waker in a place, unless a waker of the same task is there. Returns false
    /// if no driver would wake it.
    #[cold]
    fn leave(&self, cx: &Context<'_>, place: impl Fn(&mut State) -> Option<&mut Option<Waker>>) -> bool {
        let mut new = None;
        loop {
            let mut state = self.lock();
            if !state.is_driven {
                return false;
            }
            let Some(place) = place(&mut state) else { return false };
            let is_there = place.as_ref().is_some_and(|old| old.will_wake(cx.waker()));
            if is_there || new.is_some() {
                if !is_there {
                    std::mem::swap(place, &mut new);
                }
                drop(state);
                // The waker left before, if any (W2).
                drop(new);
                return true;
            }
            drop(state);
            new = Some(cx.waker().clone());
        }
    }

    /// Records that no driver fetches completions any more, and wakes every task.
    pub(crate) fn undrive(&self) {
        let mut state = self.lock();
        state.is_driven = false;
        let mut wakers: Vec<_> = state.wakers.iter_mut().filter_map(Option::take).collect();
        wakers.extend(state.receiver.take());
        wakers.extend(state.owner.take());
        drop(state);
        let mut panics = Panics::default();
        wakers.into_iter().for_each(|waker| panics.catch(|| waker.wake()));
        panics.resume();
    }

    /// The number of requests that were abandoned and have not ended.
    pub(crate) fn abandoned(&self) -> usize {
        self.sinks.iter().filter(|sink| sink.is_abandoned()).count()
    }
}
