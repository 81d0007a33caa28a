//! Results of requests that belong to futures, outside of the ring.
//!
//! A slot of the ring is reused in order, so a result that waits for a slow future must not stay in
//! it. Whoever fetches the completion of such a request frees the slot and puts the report here:
//! the report of a send into the request's sink, that of a receive into one queue for the whole
//! work queue. The token in the slot is the sink's number.
//!
//! | sink | a completion | a poll of the future | a drop of the future |
//! | --- | --- | --- | --- |
//! | `Pending`: posted, or free | becomes `Done`, wakes the task | leaves its waker | becomes `Abandoned` |
//! | `Done` | none comes | takes the report, frees the sink | gives the report up, frees the sink |
//! | `Abandoned` | gives the report up, frees the sink | none comes | none comes |
//!
//! # Invariants
//!
//! * **W1.** A completion first publishes the report and then takes the waker; both under one lock.
//!   So a task either finds the report or has left a waker before the completion looks.
//! * **W2.** Wakers are cloned, woken and dropped, and reports dropped, outside of the lock: they
//!   are or hold code of the caller.
//! * **W3.** A slot is free before its report is published. So a task that was woken by a report
//!   finds room.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use std::sync::PoisonError;

use super::producer::Panics;
use crate::fork;

/// The token of a request whose report goes to the queue of received messages.
pub(crate) const RECEIVE: u64 = u64::MAX;

/// The number of sinks that are made at a time.
const GROWTH: u32 = 16;

/// The results of one work queue. A ring keeps its results for all queues that use it.
pub(crate) struct Results<R> {
    /// Fork generation that may take the lock.
    made_in: u32,
    state: Mutex<State<R>>,
}

struct State<R> {
    sinks: Vec<Sink<R>>,
    /// Free sinks. Each is `Pending(None)`.
    free: Vec<u32>,
    received: VecDeque<R>,
    /// The task that waits for a received message.
    receiver: Option<Waker>,
    /// The task that waits for room in the work queue, or until all its requests have ended.
    owner: Option<Waker>,
    /// Whether received messages still have a taker.
    is_open: bool,
    /// Whether a driver fetches completions.
    is_driven: bool,
}

enum Sink<R> {
    Pending(Option<Waker>),
    Done(R),
    Abandoned,
}

/// User code to run after the lock is released (W2).
#[must_use]
pub(crate) struct After<R> {
    pub(crate) wakers: [Option<Waker>; 2],
    pub(crate) given_up: Option<R>,
}

impl<R> After<R> {
    /// Whether there is nothing to do.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.wakers.iter().all(Option::is_none) && self.given_up.is_none()
    }
}

impl<R> Results<R> {
    pub(crate) fn new() -> Self {
        let state = State {
            sinks: Vec::new(),
            free: Vec::new(),
            received: VecDeque::new(),
            receiver: None,
            owner: None,
            is_open: true,
            is_driven: true,
        };
        Self { made_in: fork::generation(), state: Mutex::new(state) }
    }

    /// Whether this is a forked child of the process that made the results. Another thread of the
    /// parent may have held the lock: no other function may be called then.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.made_in != fork::generation()
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // Only failed allocations panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares the results for a new work queue.
    pub(crate) fn renew(&self) {
        let mut state = self.lock();
        (state.is_open, state.is_driven) = (true, true);
    }

    /// Returns a free sink, and moves the other free ones to the empty list `spare`: several at a
    /// time, so that few operations take the lock.
    #[cold]
    pub(crate) fn refill(&self, spare: &mut Vec<u32>) -> u32 {
        let mut state = self.lock();
        std::mem::swap(&mut state.free, spare);
        if let Some(index) = spare.pop() {
            return index;
        }
        let first = u32::try_from(state.sinks.len()).expect("fewer than 2^32 operations");
        state.sinks.extend((0..GROWTH).map(|_| Sink::Pending(None)));
        spare.extend((first + 1..first + GROWTH).rev());
        first
    }

    /// Takes back sinks that were not used.
    pub(crate) fn give_back(&self, spare: &mut Vec<u32>) {
        self.lock().free.append(spare);
    }

    /// Publishes the report of an ended request (W1, W3).
    #[inline]
    pub(crate) fn publish(&self, token: u64, report: R) -> After<R> {
        let mut state = self.lock();
        let owner = state.owner.take();
        let (waker, given_up) = if token == RECEIVE { state.receive(report) } else { state.complete(token, report) };
        After { wakers: [waker, owner], given_up }
    }

    /// Polls the future of a sink. The sink is free afterwards if a report is returned. Without a
    /// driver there is no report to wait for.
    #[inline]
    pub(crate) fn poll(&self, index: u32, cx: &Context<'_>) -> Poll<Option<R>> {
        let mut new = None;
        loop {
            let mut state = self.lock();
            let State { sinks, free, is_driven, .. } = &mut *state;
            let Some(sink) = sinks.get_mut(index as usize) else { return Poll::Ready(None) };
            let waker = match sink {
                Sink::Pending(waker) => waker,
                Sink::Done(_) => {
                    free.push(index);
                    let Sink::Done(report) = std::mem::replace(sink, Sink::Pending(None)) else {
                        return Poll::Ready(None);
                    };
                    return Poll::Ready(Some(report));
                }
                Sink::Abandoned => return Poll::Ready(None),
            };
            if !*is_driven {
                return Poll::Ready(None);
            }
            if leave(waker, &mut new, cx) {
                drop(state);
                // The waker left before, if any (W2).
                drop(new);
                return Poll::Pending;
            }
            drop(state);
            new = Some(cx.waker().clone());
        }
    }

    /// Abandons the request of a sink. Returns its report, if it has one, for the caller to drop.
    #[must_use]
    pub(crate) fn abandon(&self, index: u32) -> Option<R> {
        let mut state = self.lock();
        let sink = state.sinks.get_mut(index as usize)?;
        let left = std::mem::replace(sink, Sink::Abandoned);
        match left {
            Sink::Done(report) => {
                *sink = Sink::Pending(None);
                state.free.push(index);
                Some(report)
            }
            Sink::Pending(waker) => {
                drop(state);
                drop(waker);
                None
            }
            Sink::Abandoned => None,
        }
    }

    /// Polls for the next received message; `Ready(None)` if no driver would bring one.
    #[inline]
    pub(crate) fn poll_received(&self, cx: &Context<'_>) -> Poll<Option<R>> {
        let mut new = None;
        loop {
            let mut state = self.lock();
            if let Some(report) = state.received.pop_front() {
                return Poll::Ready(Some(report));
            }
            if !state.is_driven {
                return Poll::Ready(None);
            }
            if leave(&mut state.receiver, &mut new, cx) {
                drop(state);
                drop(new);
                return Poll::Pending;
            }
            drop(state);
            new = Some(cx.waker().clone());
        }
    }

    /// Polls until `is_ready`, which looks at slots of the ring; `Ready(false)` if no driver would
    /// change them.
    pub(crate) fn poll_owner(&self, cx: &Context<'_>, mut is_ready: impl FnMut() -> bool) -> Poll<bool> {
        if is_ready() {
            return Poll::Ready(true);
        }
        let mut new = None;
        loop {
            let mut state = self.lock();
            if !state.is_driven {
                return Poll::Ready(false);
            }
            if leave(&mut state.owner, &mut new, cx) {
                drop(state);
                drop(new);
                // A completion that found no waker has freed its slot before (W3).
                return if is_ready() { Poll::Ready(true) } else { Poll::Pending };
            }
            drop(state);
            new = Some(cx.waker().clone());
        }
    }

    /// Gives up received messages that nobody will take. Returns them for the caller to drop.
    #[must_use]
    pub(crate) fn close(&self) -> VecDeque<R> {
        let mut state = self.lock();
        state.is_open = false;
        std::mem::take(&mut state.received)
    }

    /// Records that no driver fetches completions any more, and wakes every task.
    pub(crate) fn undrive(&self) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        state.is_driven = false;
        for sink in &mut state.sinks {
            if let Sink::Pending(waker) = sink {
                wakers.extend(waker.take());
            }
        }
        wakers.extend(state.receiver.take());
        wakers.extend(state.owner.take());
        drop(state);
        let mut panics = Panics::default();
        wakers.into_iter().for_each(|waker| panics.catch(|| waker.wake()));
        panics.resume();
    }

    /// The number of requests that were abandoned and have not ended.
    pub(crate) fn abandoned(&self) -> usize {
        self.lock().sinks.iter().filter(|sink| matches!(sink, Sink::Abandoned)).count()
    }
}

impl<R> State<R> {
    /// Publishes a report in its sink. Returns the waker, or the report that nobody wants.
    #[inline]
    fn complete(&mut self, token: u64, report: R) -> (Option<Waker>, Option<R>) {
        let index = usize::try_from(token).unwrap_or(usize::MAX);
        let Some(sink) = self.sinks.get_mut(index) else { return (None, Some(report)) };
        match sink {
            Sink::Pending(waker) => {
                let waker = waker.take();
                *sink = Sink::Done(report);
                (waker, None)
            }
            Sink::Abandoned => {
                *sink = Sink::Pending(None);
                #[allow(clippy::cast_possible_truncation, reason = "sinks are numbered by a u32")]
                self.free.push(index as u32);
                (None, Some(report))
            }
            // One request uses a sink at a time, and it ends once.
            Sink::Done(_) => (None, Some(report)),
        }
    }

    #[inline]
    fn receive(&mut self, report: R) -> (Option<Waker>, Option<R>) {
        if !self.is_open {
            return (None, Some(report));
        }
        self.received.push_back(report);
        (self.receiver.take(), None)
    }
}

/// Leaves the waker `new` in `place`, unless the place holds a waker of the same task. Returns
/// false if a waker must be made first. The waker that was replaced is in `new` afterwards.
fn leave(place: &mut Option<Waker>, new: &mut Option<Waker>, cx: &Context<'_>) -> bool {
    if place.as_ref().is_some_and(|old| old.will_wake(cx.waker())) {
        return true;
    }
    if new.is_none() {
        return false;
    }
    std::mem::swap(place, new);
    true
}
#[cfg(all(test, loom))]
mod loom_tests;
