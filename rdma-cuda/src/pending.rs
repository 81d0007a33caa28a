//! Values that exist when work of a GPU is done.

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Result;
use crate::event::Event;
use crate::order::Ready;
use crate::waker::Watch;

/// A value that exists when work of a GPU is done: [`wait`](Self::wait) for it,
/// [`poll`](Self::poll) for it, or `await` it.
///
/// If the work failed, the value is lost: the driver does not say whether it still uses it.
#[must_use = "the work goes on, and its result is lost"]
pub struct Pending<T> {
    value: Option<T>,
    event: Event,
    watch: Option<Watch>,
}

impl<T> Pending<T> {
    pub(crate) fn new(value: T, event: Event) -> Self {
        Self { value: Some(value), event, watch: None }
    }

    /// Waits until the work is done.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    ///
    /// # Panics
    ///
    /// If the value has been taken already.
    pub fn wait(mut self) -> Result<T> {
        let done = self.event.wait();
        self.take(done)
    }

    /// The value, if the work is done; `None` if it is not done yet.
    ///
    /// # Errors
    ///
    /// The error of work that failed.
    ///
    /// # Panics
    ///
    /// If the value has been taken already.
    pub fn poll(&mut self) -> Result<Option<T>> {
        match self.event.is_done() {
            Ok(false) => Ok(None),
            Ok(true) => self.take(Ok(())).map(Some),
            Err(error) => self.take(Err(error)).map(Some),
        }
    }

    fn take(&mut self, done: Result<()>) -> Result<T> {
        self.watch = None;
        let value = self.value.take().expect("the value has been taken already");
        match done {
            Ok(()) => Ok(value),
            Err(error) => {
                let _leaked = ManuallyDrop::new(value);
                Err(error)
            }
        }
    }
}

impl Event {
    /// A slice that a NIC may read once the work before the event is done.
    pub fn ready<S>(&self, slice: S) -> Pending<Ready<S>> {
        Pending::new(Ready::new(slice), self.clone())
    }
}

// The value is never pinned: it only moves out.
impl<T> Unpin for Pending<T> {}

/// A thread of this crate polls the event and wakes the task: CUDA's host functions must not run
/// wakers, because these may call CUDA.
impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let pending = self.get_mut();
        if let Some(result) = Self::poll(pending).transpose() {
            return Poll::Ready(result);
        }
        let (event, waker) = (&pending.event, context.waker());
        pending.watch.get_or_insert_with(|| Watch::new(event.clone())).set(waker);
        // Work that ended before the waker was set wakes nobody.
        Self::poll(pending).transpose().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({:?})", self.event)
    }
}
