//! A started operation.

use std::future::Future;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use rdma_collectives::{Error, StartedWith};

use crate::error::{exception, invalid, late};
use crate::memory::{self, Memory};
use crate::wait;

/// The memory of an operation.
pub(crate) type Memories = Vec<Memory>;

/// The value that an operation returns beside its memory.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Nothing.
    Nothing,
    /// A rank.
    Rank(usize),
    /// Numbers of elements.
    Counts(Vec<usize>),
    /// The operation was refused before it began. That is a value for the queue, which goes on.
    Refused(Error),
}

impl Value {
    /// The result of an operation that has returned this value.
    fn result(self) -> Result<Self, Error> {
        match self {
            Self::Refused(error) => Err(error),
            value => Ok(value),
        }
    }
}

/// A started operation: `wait()` it, ask `is_done()`, or `await` it.
///
/// It keeps the memory of the operation until that has ended.
#[pyclass(frozen, module = "rdma_collectives")]
pub(crate) struct Work {
    /// The process that has started the operation: a forked child lacks the thread that runs it.
    process: u32,
    state: Mutex<State>,
    /// The event that tells an event loop of the operation's end.
    event: Mutex<Option<Arc<Event>>>,
}

/// A started operation of the library.
pub(crate) enum Started {
    Operation(StartedWith<Memories, Value>),
    Sent(StartedWith<Memory, ()>),
    Received(StartedWith<Memory, usize>),
}

enum State {
    Running(Started),
    Ended(Result<Value, Error>),
    /// While a thread takes the result.
    Taken,
}

/// An event descriptor that is written when the operation ends.
struct Event(EventFd);

impl Started {
    /// Waits for so long at most; the memory joins the list of `memory::release`.
    fn wait_for(self, limit: Duration) -> Result<Result<Value, Error>, Self> {
        match self {
            Self::Operation(started) => match started.wait_for(limit) {
                Ok(ended) => Ok(ended.map_err(Error::from).and_then(|(_memory, value)| value.result())),
                Err(started) => Err(Self::Operation(started)),
            },
            Self::Sent(started) => match started.wait_for(limit) {
                Ok(ended) => Ok(ended.map(|_memory| Value::Nothing).map_err(Error::from)),
                Err(started) => Err(Self::Sent(started)),
            },
            Self::Received(started) => match started.wait_for(limit) {
                Ok(ended) => Ok(ended.map(|(_memory, from)| Value::Rank(from)).map_err(Error::from)),
                Err(started) => Err(Self::Received(started)),
            },
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Operation(started) => started.is_done(),
            Self::Sent(started) => started.is_done(),
            Self::Received(started) => started.is_done(),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Value, Error>> {
        match self {
            Self::Operation(started) => Pin::new(started)
                .poll(context)
                .map(|ended| ended.map_err(Error::from).and_then(|(_memory, value)| value.result())),
            Self::Sent(started) => {
                Pin::new(started).poll(context).map(|ended| ended.map(|_memory| Value::Nothing).map_err(Error::from))
            }
            Self::Received(started) => Pin::new(started)
                .poll(context)
                .map(|ended| ended.map(|(_memory, from)| Value::Rank(from)).map_err(Error::from)),
        }
    }
}

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        // The counter cannot overflow by one write.
        let _written = self.0.write(1);
    }
}

impl Work {
    pub(crate) fn new(process: u32, started: Started) -> Self {
        Self { process, state: Mutex::new(State::Running(started)), event: Mutex::new(None) }
    }

    /// Waits for so long at most, without the interpreter's lock; `None` if the operation goes on.
    fn ended_within(&self, limit: Duration) -> Option<Result<Value, Error>> {
        if std::process::id() != self.process {
            return Some(Err(Error::invalid("this is a forked child, and the operation is its parent's")));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::Running(started) => match started.wait_for(limit) {
                Ok(result) => {
                    *state = State::Ended(result.clone());
                    Some(result)
                }
                Err(started) => {
                    *state = State::Running(started);
                    None
                }
            },
            State::Ended(result) => {
                *state = State::Ended(result.clone());
                Some(result)
            }
            // Only after a panic.
            State::Taken => Some(Err(Error::new("the result of an operation is lost"))),
        }
    }

    /// Waits, and returns the value.
    pub(crate) fn finish(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<Py<PyAny>> {
        let ended = wait::in_slices(py, limit, |slice| self.ended_within(slice));
        memory::release(py);
        match (ended?, limit) {
            (Some(Ok(Value::Nothing | Value::Refused(_))), _) => Ok(py.None()),
            (Some(Ok(Value::Rank(rank))), _) => Ok(rank.into_pyobject(py)?.into_any().unbind()),
            (Some(Ok(Value::Counts(counts))), _) => Ok(counts.into_pyobject(py)?.into_any().unbind()),
            (Some(Err(error)), _) => Err(exception(py, &error)),
            (None, limit) => Err(late(py, limit.unwrap_or_default().as_secs_f64())),
        }
    }
}

#[pymethods]
impl Work {
    /// Waits until the operation has ended, for `timeout` seconds at most, and returns its value.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.finish(py, seconds(py, "timeout", timeout)?)
    }

    /// Whether the operation has ended.
    fn is_done(&self, py: Python<'_>) -> bool {
        // Another thread may be in a slice of its wait.
        py.detach(|| match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(started) => started.is_done(),
            State::Ended(_) | State::Taken => true,
        })
    }

    /// A descriptor that becomes readable when the operation has ended, for event loops. It belongs
    /// to this object.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let mut event = self.event.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = &*event {
            return Ok(event.0.as_raw_fd());
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let made = EventFd::from_value_and_flags(0, flags);
        let made = Arc::new(Event(made.map_err(|error| PyOSError::new_err(error as i32))?));
        let (waker, fd) = (Waker::from(Arc::clone(&made)), made.0.as_raw_fd());
        *event = Some(Arc::clone(&made));
        drop(event);
        py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let State::Running(started) = &mut *state else { return made.wake() };
            if let Poll::Ready(result) = started.poll(&mut Context::from_waker(&waker)) {
                *state = State::Ended(result);
                made.wake();
            }
        });
        Ok(fd)
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let waits = py.import(intern!(py, "rdma_collectives._await"))?;
        waits.call_method1(intern!(py, "ended"), (slf,))?.call_method0(intern!(py, "__await__"))
    }
}

/// A number of seconds as a duration.
pub(crate) fn seconds(py: Python<'_>, name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let duration = seconds.map(Duration::try_from_secs_f64).transpose();
    duration.map_err(|_| invalid(py, &format!("`{name}`: give a number of seconds, not below 0")))
}

impl Drop for Work {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // The memory is the parent's, and a thread that there is not may have locked the state.
            return;
        }
        // The memory of an operation that has ended, whose result nobody has taken.
        *self.state.get_mut().unwrap_or_else(PoisonError::into_inner) = State::Taken;
        Python::try_attach(memory::release);
    }
}
