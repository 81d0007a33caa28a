//! The events of one attempt to connect or to accept.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::connection::Core;
use super::failure::{Failure, FailureKind};
use super::node::{Route, Shared};
use super::protocol::Refuse;
use super::waiters::leave_waker;
use crate::cm::{EventKind, IdKey, Rejection};
use crate::error::{Error, ErrorKind, Operation};

/// The events of an id that a future waits for.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
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
    fn close(&self) -> VecDeque<EventKind> {
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

    /// Ends the time of a step whose event has come. A task that was polled late may have found the
    /// event after that time.
    fn end_step(&self) {
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

/// An attempt to connect or to accept: receives the events of its id until it is dropped.
pub(super) struct Attempt<'a> {
    shared: &'a Shared,
    id: IdKey,
    mailbox: Arc<Mailbox>,
    /// Whether the id's events go to this attempt.
    is_routed: bool,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(shared: &'a Shared, id: IdKey) -> Result<Self, Failure> {
        let mailbox = Arc::new(Mailbox::default());
        shared.set_route(id, Route::Mailbox(Arc::clone(&mailbox)))?;
        Ok(Self { shared, id, mailbox, is_routed: true })
    }

    /// Waits for the next event that `wanted` accepts.
    pub(super) async fn wait<R>(
        &self,
        timeout: Duration,
        mut wanted: impl FnMut(EventKind) -> Option<R>,
    ) -> Result<R, Failure> {
        let deadline = Instant::now() + timeout;
        self.mailbox.lock().deadline = Some(deadline);
        self.shared.note_deadline(deadline);
        loop {
            if let Some(found) = wanted(checked(self.next().await?)?) {
                self.mailbox.end_step();
                return Ok(found);
            }
        }
    }

    async fn next(&self) -> Result<EventKind, Failure> {
        poll_fn(|cx| {
            let mut state = self.mailbox.lock();
            if let Some(event) = state.events.pop_front() {
                return Poll::Ready(Ok(event));
            }
            if let Some(failure) = state.failure.take() {
                return Poll::Ready(Err(failure));
            }
            let replaced = leave_waker(&mut state.waker, cx.waker());
            drop(state);
            drop(replaced);
            Poll::Pending
        })
        .await
    }

    /// Gives the events of the id to a connection: those to come, and those that are here.
    pub(super) fn hand_over(mut self, core: &Arc<Core>) -> Result<(), Failure> {
        self.shared.hand_over(self.id, core)?;
        self.is_routed = false;
        self.mailbox.close().into_iter().try_for_each(|event| checked(event).map(drop))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_routed {
            self.shared.remove_route(self.id);
        }
    }
}

/// The event, or the failure that it reports.
fn checked(event: EventKind) -> Result<EventKind, Failure> {
    Err(match event {
        EventKind::AddrError(error)
        | EventKind::RouteError(error)
        | EventKind::ConnectError(error)
        | EventKind::Unreachable(error) => from_error(error),
        EventKind::Rejected(rejection) => from_rejection(&rejection),
        EventKind::DeviceRemoval => Error::new(Operation::GetCmEvent, ErrorKind::NoDevice).into(),
        EventKind::Disconnected => Failure::new(FailureKind::PeerGone),
        event => return Ok(event),
    })
}

fn from_error(error: Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::Timeout => FailureKind::Timeout,
        ErrorKind::NotListening => FailureKind::Refused,
        _ => FailureKind::Local,
    };
    Failure::with_error(kind, error)
}

fn from_rejection(rejection: &Rejection) -> Failure {
    match Refuse::from_bytes(&rejection.private_data) {
        Some(refuse) => Failure::refused(&refuse),
        None => Failure::with_error(FailureKind::Refused, rejection.to_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    #[test]
    fn a_task_that_is_polled_late_has_the_whole_time_for_its_next_step() {
        let (node, _driver) = crate::net::Node::new(
            &crate::open(&"soft0".parse().unwrap()).unwrap().context,
            &crate::net::NodeOptions::new(),
        )
        .unwrap();
        let attempt = Attempt::new(node.shared(), IdKey::fresh()).unwrap();
        let mut cx = std::task::Context::from_waker(Waker::noop());
        let resolved = |event| matches!(event, EventKind::AddrResolved).then_some(());
        let short = Duration::from_millis(1);
        let mut step = std::pin::pin!(attempt.wait(short, resolved));
        assert!(step.as_mut().poll(&mut cx).is_pending());
        assert!(attempt.mailbox.push(EventKind::AddrResolved).is_none());
        assert!(attempt.mailbox.handle_timeout(Instant::now() + short).is_none());
        assert!(matches!(step.poll(&mut cx), Poll::Ready(Ok(()))));
        let next = std::pin::pin!(attempt.wait(Duration::from_secs(60), resolved));
        assert!(next.poll(&mut cx).is_pending(), "the time of the step before");
    }

    #[test]
    fn an_event_that_comes_too_late_is_given_back() {
        let mailbox = Mailbox::default();
        assert!(mailbox.push(EventKind::AddrResolved).is_none());
        assert_eq!(mailbox.close().len(), 1);
        assert!(matches!(mailbox.push(EventKind::Disconnected), Some(EventKind::Disconnected)));
    }
}
