//! The events of one attempt to connect or to accept.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rdma::cm::EventKind;
use rdma::{MadeIn, Verb};

use super::failure::{Failure, FailureKind};
use super::waiters::Task;

/// The events of an id that a future waits for.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    made_in: MadeIn,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<EventKind>,
    failure: Option<Failure>,
    waker: Option<Waker>,
    deadline: Option<Instant>,
    /// Whether the events have another receiver now.
    is_closed: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Returns it if the events of the id have another receiver now.
    pub(super) fn push(&self, event: EventKind) -> Option<EventKind> {
        self.change(|state| {
            if state.is_closed {
                return Some(event);
            }
            state.events.push_back(event);
            None
        })
    }

    /// Takes the events; further ones come back to the caller of [`push`](Self::push).
    pub(super) fn close(&self) -> VecDeque<EventKind> {
        let mut state = self.lock();
        state.is_closed = true;
        std::mem::take(&mut state.events)
    }

    pub(super) fn fail(&self, failure: Failure) {
        self.change(|state| state.failure = Some(failure));
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, waker) = {
            let mut state = self.lock();
            (change(&mut state), state.waker.take())
        };
        waker.into_iter().for_each(Waker::wake);
        result
    }

    /// Begins a step, which may take until `deadline`.
    pub(super) fn begin_step(&self, deadline: Instant) {
        self.lock().deadline = Some(deadline);
    }

    /// Waits for the next event.
    pub(super) fn poll_next(&self, cx: &Context<'_>) -> Poll<Result<EventKind, Failure>> {
        self.made_in.check(Verb::GetCmEvent)?;
        Task::poll(cx.waker(), true, |task| {
            let mut state = self.lock();
            if let Some(event) = state.events.pop_front() {
                return Poll::Ready(Ok(event));
            }
            if let Some(failure) = state.failure.take() {
                return Poll::Ready(Err(failure));
            }
            task.leave(&mut state.waker);
            Poll::Pending
        })
    }

    /// Ends the time of a step whose event has come. A task that was polled late may have found the
    /// event after that time.
    pub(super) fn end_step(&self) {
        let mut state = self.lock();
        state.deadline = None;
        drop(state.failure.take_if(|failure| failure.kind() == FailureKind::Timeout));
    }

    /// Fails the attempt if its time is over, else returns the end of its time.
    pub(super) fn handle_timeout(&self, now: Instant) -> Option<Instant> {
        let deadline = self.lock().deadline?;
        if now < deadline {
            return Some(deadline);
        }
        self.fail(Failure::new(FailureKind::Timeout));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_comes_too_late_is_given_back() {
        let mailbox = Mailbox::default();
        assert!(mailbox.push(EventKind::AddrResolved).is_none());
        assert_eq!(mailbox.close().len(), 1);
        assert!(matches!(mailbox.push(EventKind::Disconnected), Some(EventKind::Disconnected)));
    }
}
