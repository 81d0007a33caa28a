//! The handle of a started operation: waited for, asked, or awaited.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::Error;

/// A started operation: MPI's `MPI_Request`. Dropping the handle does not stop the operation.
///
/// It is a future, of any executor: the queue's thread wakes the task. After its result has been
/// taken by a poll, it gives an error.
#[doc(alias = "MPI_Request")]
#[derive(Debug)]
#[must_use = "the handle gives the result"]
pub struct Pending<R>(Arc<Shared<R>>);

/// The side of the queue's thread. Dropped without a result, it says that the operation never ran.
#[derive(Debug)]
pub(super) struct Outcome<R>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R> {
    state: Mutex<State<R>>,
    ended: Condvar,
}

#[derive(Debug)]
enum State<R> {
    Running(Option<Waker>),
    Ended(Result<R, Error>),
    Taken,
}

/// The two sides of an operation.
pub(super) fn pair<R>() -> (Outcome<R>, Pending<R>) {
    let shared = Arc::new(Shared { state: Mutex::new(State::Running(None)), ended: Condvar::new() });
    (Outcome(Arc::clone(&shared)), Pending(shared))
}

impl<R> Shared<R> {
    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // A panic of a thread that had the lock has changed nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result, unless there is one, and wakes whoever waits.
    fn end(&self, result: Result<R, Error>) {
        let waker = {
            let mut state = self.lock();
            let State::Running(waker) = &mut *state else { return };
            let waker = waker.take();
            *state = State::Ended(result);
            waker
        };
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<R> Outcome<R> {
    pub(super) fn give(self, result: Result<R, Error>) {
        self.0.end(result);
    }
}

impl<R> Drop for Outcome<R> {
    fn drop(&mut self) {
        self.0.end(Err(never_ran()));
    }
}

impl<R> State<R> {
    fn take(&mut self) -> Option<Result<R, Error>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Ended(result) => Some(result),
            running => {
                *self = running;
                None
            }
        }
    }
}

impl<R> Pending<R> {
    /// Whether the operation has ended, so that [`wait`](Self::wait) returns at once: MPI's
    /// `MPI_Test`.
    #[doc(alias = "MPI_Test")]
    #[must_use]
    pub fn is_done(&self) -> bool {
        !matches!(*self.0.lock(), State::Running(_))
    }

    /// Waits until the operation has ended and returns its result: MPI's `MPI_Wait`.
    ///
    /// # Errors
    /// The failure of this operation, or of an earlier one of the same queue; or that it did not
    /// run, because the queue was dropped.
    #[doc(alias = "MPI_Wait")]
    pub fn wait(self) -> Result<R, Error> {
        let running = |state: &mut State<R>| matches!(state, State::Running(_));
        let mut state = self.0.ended.wait_while(self.0.lock(), running).unwrap_or_else(PoisonError::into_inner);
        state.take().unwrap_or_else(|| Err(never_ran()))
    }

    /// Waits as [`wait`](Self::wait) does, but not beyond a moment.
    ///
    /// # Errors
    /// The handle, if the operation goes on.
    pub fn wait_until(self, deadline: Instant) -> Result<Result<R, Error>, Self> {
        let running = |state: &mut State<R>| matches!(state, State::Running(_));
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.0.ended.wait_timeout_while(self.0.lock(), left, running);
        let result = waited.unwrap_or_else(PoisonError::into_inner).0.take();
        result.ok_or(self)
    }

    /// Waits as [`wait`](Self::wait) does, for so long at most.
    ///
    /// # Errors
    /// The handle, if the operation goes on.
    pub fn wait_for(self, limit: Duration) -> Result<Result<R, Error>, Self> {
        let now = Instant::now();
        self.wait_until(now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30)))
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A waker's own code runs without the lock.
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if let State::Running(known) = &mut *state {
            let old = known.replace(waker);
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        Poll::Ready(state.take().unwrap_or_else(|| Err(never_ran())))
    }
}

/// The result of an operation that was dropped before it ended.
fn never_ran() -> Error {
    Error::new("a started operation did not run: its queue was dropped, or an earlier one panicked")
}
