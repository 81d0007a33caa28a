//! The handle of a started operation: waited for, asked, or awaited.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::Error;
use crate::communicator::Communicator;

/// A started operation: MPI's `MPI_Request`. Dropping the handle does not stop the operation; its
/// memory is then dropped when it ends.
///
/// It is a future, of any executor: the queue's thread wakes the task. After its result has been
/// taken by a poll, it gives an error. A task that the queue's own thread runs must not wait for
/// it: the operation begins when that thread is free.
#[doc(alias = "MPI_Request")]
#[derive(Debug)]
#[must_use = "the handle gives the result"]
pub struct Pending<R, E = Error>(Arc<Shared<R, E>>);

/// A started operation that gives back the memory on which it works, whether it fails or not.
pub type Started<M> = Pending<M, OperationError<M>>;

/// A started operation that gives back its memory, and a value with it.
pub type StartedWith<M, R> = Pending<(M, R), OperationError<M>>;

/// Why a started operation failed, and the memory that had moved into it.
///
/// It becomes an [`Error`] by `?`, which drops the memory.
pub struct OperationError<M> {
    /// The failure.
    pub error: Error,
    /// The memory, whose elements may be those before the operation, those after it, or a mixture.
    /// `None` if the operation still has it, because the queue's own thread has asked, or if it was
    /// given before.
    pub memory: Option<M>,
}

/// The side of the queue's thread, with the memory of the operation. Dropped without a result, it
/// says that the operation never ran, and gives the memory back.
#[derive(Debug)]
pub(crate) struct Outcome<M, R, E> {
    /// `None` once the result is given.
    memory: Option<M>,
    failure: fn(M, Error) -> E,
    shared: Arc<Shared<R, E>>,
}

/// Why a queue executes no more operations.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// An operation failed.
    Failed(Error),
    /// An operation panicked, so that nobody knows what state the communicator is in.
    Panicked(Error),
}

#[derive(Debug)]
struct Shared<R, E> {
    /// The queue's thread, which must not wait for its own operations.
    thread: ThreadId,
    state: Mutex<State<R, E>>,
    ended: Condvar,
}

#[derive(Debug)]
enum State<R, E> {
    Running(Option<Waker>),
    Ended(Result<R, E>),
    Taken,
}

/// The two sides of an operation on some memory, in a thread.
pub(crate) fn pair<M, R, E>(
    thread: ThreadId,
    memory: M,
    failure: fn(M, Error) -> E,
) -> (Outcome<M, R, E>, Pending<R, E>) {
    let state = Mutex::new(State::Running(None));
    let shared = Arc::new(Shared { thread, state, ended: Condvar::new() });
    (Outcome { memory: Some(memory), failure, shared: Arc::clone(&shared) }, Pending(shared))
}

impl<R, E> Shared<R, E> {
    fn lock(&self) -> MutexGuard<'_, State<R, E>> {
        // A panic of a thread that had the lock has changed nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result, unless there is one, and wakes whoever waits.
    fn end(&self, result: Result<R, E>) {
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

impl<M, R, E> Outcome<M, R, E> {
    /// The memory, of an operation that goes on.
    pub(crate) fn memory(&self) -> Option<&M> {
        self.memory.as_ref()
    }

    /// The memory, of an operation that goes on.
    pub(crate) fn memory_mut(&mut self) -> Option<&mut M> {
        self.memory.as_mut()
    }

    /// Gives the result of an operation that others have done.
    pub(crate) fn end<V>(mut self, result: Result<V, Error>, success: fn(M, V) -> R) {
        let Some(memory) = self.memory.take() else { return };
        self.shared.end(match result {
            Ok(value) => Ok(success(memory, value)),
            Err(error) => Err((self.failure)(memory, error)),
        });
    }

    /// Runs the operation, or gives the failure of an earlier one; gives the result.
    pub(super) fn run<V>(
        mut self,
        comm: Result<&mut Communicator, Error>,
        operation: impl FnOnce(&mut Communicator, &mut M) -> Result<V, Error>,
        success: fn(M, V) -> R,
    ) -> Result<(), Stop> {
        let Some(mut memory) = self.memory.take() else { return Ok(()) };
        // Nothing uses the communicator after a panic; the program looks at the memory as it does
        // after a failure. An operation that does not run is dropped there, too.
        let ran = catch_unwind(AssertUnwindSafe(|| comm.and_then(|comm| operation(comm, &mut memory))));
        let result = match ran {
            Ok(result) => result.map_err(Stop::Failed),
            Err(panic) => Err(Stop::Panicked(panicked(panic))),
        };
        let (result, done) = match result {
            Ok(value) => (Ok(success(memory, value)), Ok(())),
            Err(stop) => {
                let (Stop::Failed(error) | Stop::Panicked(error)) = &stop;
                (Err((self.failure)(memory, error.clone())), Err(stop))
            }
        };
        self.shared.end(result);
        done
    }
}

impl<M, R, E> Drop for Outcome<M, R, E> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let never_ran = Error::new("a started operation did not run: its queue was dropped");
            self.shared.end(Err((self.failure)(memory, never_ran)));
        }
    }
}

/// The failure of an operation that panicked, with the text of the panic if it has one.
fn panicked(panic: Box<dyn Any + Send>) -> Error {
    let text = match panic.downcast::<String>() {
        Ok(text) => format!(": {text}"),
        Err(panic) => match panic.downcast_ref::<&'static str>() {
            Some(text) => format!(": {text}"),
            None => {
                // The value's own code may panic when it is dropped.
                Box::leak(panic);
                String::new()
            }
        },
    };
    Error::new(format!("a started operation panicked{text}"))
}

impl<R, E: From<Error>> State<R, E> {
    fn take(&mut self) -> Option<Result<R, E>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Ended(result) => Some(result),
            Self::Taken => Some(Err(Error::invalid("the result of a started operation was taken before").into())),
            running @ Self::Running(_) => {
                *self = running;
                None
            }
        }
    }
}

impl<R, E: From<Error>> Pending<R, E> {
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
    /// The failure of this operation, or of an earlier one of the same queue; that it did not run,
    /// because the queue was dropped; `InvalidInput` if the operation goes on and this is the
    /// queue's own thread, which would wait for itself.
    #[doc(alias = "MPI_Wait")]
    pub fn wait(self) -> Result<R, E> {
        self.refuse_own_thread()?;
        let running = |state: &mut State<R, E>| matches!(state, State::Running(_));
        let mut state = self.0.ended.wait_while(self.0.lock(), running).unwrap_or_else(PoisonError::into_inner);
        state.take().unwrap_or_else(|| Err(Error::new("a started operation goes on").into()))
    }

    /// Waits as [`wait`](Self::wait) does, but not beyond a moment.
    ///
    /// # Errors
    /// The handle, if the operation goes on.
    pub fn wait_until(self, deadline: Instant) -> Result<Result<R, E>, Self> {
        if let Err(refused) = self.refuse_own_thread() {
            return Ok(Err(refused));
        }
        let running = |state: &mut State<R, E>| matches!(state, State::Running(_));
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.0.ended.wait_timeout_while(self.0.lock(), left, running);
        let result = waited.unwrap_or_else(PoisonError::into_inner).0.take();
        result.ok_or(self)
    }

    /// Waits as [`wait`](Self::wait) does, for so long at most.
    ///
    /// # Errors
    /// The handle, if the operation goes on.
    pub fn wait_for(self, limit: Duration) -> Result<Result<R, E>, Self> {
        let now = Instant::now();
        self.wait_until(now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30)))
    }

    /// Refuses a wait of the queue's own thread for an operation that goes on.
    fn refuse_own_thread(&self) -> Result<(), E> {
        if thread::current().id() != self.0.thread || self.is_done() {
            return Ok(());
        }
        Err(Error::invalid("an operation of a queue waits for a later one of the same queue, which runs after it")
            .into())
    }
}

impl<R, E: From<Error>> Future for Pending<R, E> {
    type Output = Result<R, E>;

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
        state.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<M> OperationError<M> {
    pub(crate) fn new(memory: M, error: Error) -> Self {
        Self { error, memory: Some(memory) }
    }
}

impl<M> fmt::Debug for OperationError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<M> fmt::Display for OperationError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for OperationError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<M> From<Error> for OperationError<M> {
    fn from(error: Error) -> Self {
        Self { error, memory: None }
    }
}

impl<M> From<OperationError<M>> for Error {
    fn from(failed: OperationError<M>) -> Self {
        failed.error
    }
}
