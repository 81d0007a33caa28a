//! Waits of Python's threads: without the interpreter's lock, and ended by signals.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rdma_collectives::Error;

use crate::error::exception;

/// The longest time between two looks at the signals.
const SLICE: Duration = Duration::from_millis(50);

/// Calls `wait` with a short limit until it returns a value, without the interpreter's lock.
/// Between the calls, signals are handled; `None` at the end of `limit`.
pub(crate) fn in_slices<T: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    mut wait: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
        if let Some(value) = py.detach(|| wait(left)) {
            return Ok(Some(value));
        }
        py.check_signals()?;
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(None);
        }
    }
}

/// Runs code that may take long in a thread of its own, and waits for it; `None` at the end of
/// `limit`. A signal whose handler raises an exception ends the wait, too. The code goes on then,
/// and its result is dropped.
pub(crate) fn on_thread<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    limit: Option<Duration>,
    code: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<Option<T>> {
    let (sender, receiver) = sync_channel(1);
    let thread = std::thread::Builder::new().name(name.to_owned());
    // A caller who has gone leaves no receiver.
    let started = thread.spawn(move || drop(sender.send(code())));
    started.map_err(|error| exception(py, &Error::not_started(format_args!("the thread {name}"), &error)))?;
    let receiver = Mutex::new(receiver);
    let result = in_slices(py, limit, |slice| {
        let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
        match receiver.recv_timeout(slice) {
            Err(RecvTimeoutError::Timeout) => None,
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::new("a thread of the module panicked"))),
        }
    })?;
    result.transpose().map_err(|error| exception(py, &error))
}
