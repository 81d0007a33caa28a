//! Waits for a buffer: a future, and a thread that sleeps.

use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::class::{Class, Waiter};
use super::{Buffer, Pool};
use crate::error::{Error, ErrorKind, Result, Verb};

/// The future of [`Pool::take_async`].
///
/// Dropping it ends the wait; a buffer that it was given goes to the next waiter.
#[must_use = "futures do nothing unless awaited"]
pub struct TakeBuffer<'pool> {
    /// The class that serves the length, or the reason why none does.
    class: Result<&'pool Arc<Class>>,
    len: usize,
    waiter: Option<Waiter>,
}

impl<'pool> TakeBuffer<'pool> {
    pub(super) fn new(class: Result<&'pool Arc<Class>>, len: usize) -> Self {
        Self { class, len, waiter: None }
    }
}

impl Future for TakeBuffer<'_> {
    type Output = Result<Buffer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Buffer>> {
        let class = self.class?;
        let len = self.len;
        class.made_in.check(Verb::TakeBuffer)?;
        if let Some(waiter) = &self.waiter {
            let Some(buffer) = Class::poll(waiter, cx.waker(), len) else { return Poll::Pending };
            self.waiter = None;
            return Poll::Ready(Ok(buffer));
        }
        if let Some(buffer) = class.take(len)? {
            return Poll::Ready(Ok(buffer));
        }
        self.waiter = Some(class.join(cx.waker()));
        // Once more, for what came back before the waiter joined.
        let taken = class.take(len);
        if matches!(taken, Ok(None)) {
            return Poll::Pending;
        }
        self.end();
        Poll::Ready(taken.map(|buffer| buffer.expect("not none")))
    }
}

impl TakeBuffer<'_> {
    fn end(&mut self) {
        if let (Ok(class), Some(waiter)) = (self.class, self.waiter.take()) {
            if class.made_in.is_forked() {
                // The parent's, which a thread of the parent may have been about to change.
                let _leaked = ManuallyDrop::new(waiter);
            } else {
                class.leave(&waiter);
            }
        }
    }
}

impl Drop for TakeBuffer<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for TakeBuffer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Pool {
    /// Takes a buffer of `len` bytes, and waits for one if all are in use. Other tasks run
    /// meanwhile, on any executor. Waiters are served in the order in which they came.
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take), except `WouldBlock`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// use std::future::Future;
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    ///
    /// let pool = rdma::Pool::builder(&pd).class(4096, 1).build()?;
    /// let first = pool.take(4096)?;
    /// let mut second = pin!(pool.take_async(4096));
    /// let mut cx = Context::from_waker(Waker::noop());
    /// assert!(second.as_mut().poll(&mut cx).is_pending());
    /// drop(first);
    /// let Poll::Ready(buffer) = second.poll(&mut cx) else { panic!("one came back") };
    /// assert_eq!(buffer?.len(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_async(&self, len: usize) -> TakeBuffer<'_> {
        TakeBuffer::new(self.class(len), len)
    }

    /// Takes a buffer of `len` bytes; the thread sleeps until there is one, at most for the given
    /// time.
    ///
    /// Another thread must give buffers back: buffers in requests come back when their completions
    /// are polled.
    ///
    /// # Errors
    ///
    /// `Timeout`; as for [`take`](Self::take), except `WouldBlock`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let pool = rdma::Pool::builder(&pd).class(4096, 1).build()?;
    /// let only = pool.take(100)?;
    /// std::thread::scope(|scope| {
    ///     let waiting = scope.spawn(|| pool.take_blocking(200, None));
    ///     drop(only);
    ///     assert_eq!(waiting.join().expect("no panic")?.len(), 200);
    ///     Ok::<(), rdma::Error>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_blocking(&self, len: usize, limit: Option<Duration>) -> Result<Buffer> {
        // Common: no waker is made.
        match self.take(len) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            taken => return taken,
        }
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut future = self.take_async(len);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(taken) = Pin::new(&mut future).poll(&mut cx) {
                return taken;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match left {
                // A wake-up between the poll and this call makes the call return at once.
                None => thread::park(),
                Some(left) if left.is_zero() => return Err(Error::new(Verb::TakeBuffer, ErrorKind::Timeout)),
                Some(left) => thread::park_timeout(left),
            }
        }
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
