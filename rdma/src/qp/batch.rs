//! Batches: requests that are posted together.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;

#[cfg(doc)]
use super::QueuePair;
use super::local::Owned;
use super::op::{Operation, Work};
use super::posting::{Ended, PostError, Segments};
use super::send::SendQueue;
use super::transport::{Rc, Transport};
use crate::cq::Released;
use crate::error::{Error, Result};
use crate::ring::{Claimed, Staged};

/// Requests for a send queue that are posted together, with one doorbell.
///
/// Nothing is posted before [`submit`](Self::submit). Dropping a batch without submitting it drops
/// its requests; forgetting it leaks them.
///
/// # Examples
///
/// ```
/// # use rdma::{Buffer, QueuePair, RemoteSlice};
/// # use rdma::transport::Rc;
/// # fn f(qp: &mut QueuePair<Rc>, parts: Vec<(Buffer, RemoteSlice)>) -> Result<(), rdma::Error> {
/// use rdma::op;
///
/// let mut batch = qp.batch();
/// for (buffer, remote) in parts {
///     batch.push(op::write(buffer, remote).unsignaled())?;
/// }
/// batch.push(op::send_inline(b"done"))?;
/// if let Err(mut error) = batch.submit() {
///     while let Some(mut rejected) = error.next_rejected() {
///         drop(rejected.take_buffer());
///     }
///     return Err(error.error());
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is posted before `submit`"]
pub struct Batch<'q, 'd, T: Transport = Rc> {
    queue: &'q mut SendQueue,
    /// The number of requests in the slots from the head on. These slots are still free, so only
    /// the producer touches them.
    len: u32,
    run: u32,
    /// The bytes of the requests.
    bytes: u64,
    inline: PhantomData<&'d [u8]>,
    transport: PhantomData<T>,
}

impl<'q, 'd, T: Transport> Batch<'q, 'd, T> {
    pub(super) fn new(queue: &'q mut SendQueue) -> Self {
        let run = queue.half.attached.producer.run();
        Self { queue, len: 0, run, bytes: 0, inline: PhantomData, transport: PhantomData }
    }

    /// The number of requests in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a request. Its inline data is copied only by `submit`.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`], with the request's memory; `QueueFull` also when the batch
    /// is full.
    #[inline]
    pub fn push<O: Operation<T>, L: Owned + 'd>(&mut self, work: Work<O, L>) -> Result<(), PostError<L::Returned>> {
        let before = self.queue.bytes;
        // SAFETY: `stage` requires that the parked copies are not used unless the original is
        // forgotten: on success `surrender` forgets it, and a failed `stage` leaves no copy in use.
        match unsafe { self.queue.stage::<T, O, L>(self.len, self.run, &work, &Segments(&work.local)) } {
            Ok((_, run)) => {
                self.len += 1;
                self.run = run;
                // Counted once they are posted.
                self.bytes += std::mem::replace(&mut self.queue.bytes, before) - before;
                work.local.surrender();
                Ok(())
            }
            Err(refusal) => Err(PostError::new(self.queue.half.refused(refusal), Some(work.local.give_back()))),
        }
    }

    /// Posts all requests, in order.
    ///
    /// # Errors
    ///
    /// The error holds the requests that the device did not accept. If the provider does not report
    /// which these are, all are in flight, and the queue pair goes to the error state.
    #[doc(alias = "ibv_post_send")]
    pub fn submit(self) -> Result<(), BatchError<'q>> {
        self.submit_unlogged().inspect_err(|error| error.without_requests::<()>().log())
    }

    /// As [`submit`](Self::submit), without a line in the log, for a caller that holds a lock: it
    /// takes [`BatchError::without_requests`], and calls [`PostError::log`] after it has released
    /// the lock.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit).
    pub fn submit_unlogged(self) -> Result<(), BatchError<'q>> {
        let mut this = ManuallyDrop::new(self);
        let (len, run, bytes) = (this.len, this.run, this.bytes);
        // SAFETY: ptr::read requires that the value is moved out once: `this` is not dropped, and
        // its `queue` is not used again.
        let queue = unsafe { ptr::read(&raw const this.queue) };
        this.len = 0;
        if len == 0 {
            return Ok(());
        }
        let first = queue.half.attached.producer.staged(0);
        // SAFETY: the callee requires that as many requests were staged and not submitted: `push`
        // staged them and counted them in `len`.
        let submitted = unsafe { queue.half.submit_all(len, run) };
        queue.bytes += bytes;
        match submitted {
            Ok(()) => Ok(()),
            Err((error, posted)) => {
                let (next, ended) = (posted.unwrap_or(len), posted.err());
                queue.uncount(next..len);
                Err(BatchError { error, ended, queue, first, next, len, current: None, restored: false })
            }
        }
    }
}

impl<T: Transport> Drop for Batch<'_, '_, T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the callee requires that as many requests were staged and not submitted:
            // `push` staged them and counted them in `len`.
            unsafe { self.queue.half.discard(self.len) };
        }
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The error of a batch that was not posted, or only in part.
///
/// The requests that the device did not accept are returned by
/// [`next_rejected`](Self::next_rejected); dropping the error drops the rest. Forgetting the error
/// keeps their slots occupied until the queue pair is reset or destroyed.
pub struct BatchError<'q> {
    error: Error,
    /// The end of the queue pair, if this error ended it.
    ended: Option<Ended>,
    queue: &'q mut SendQueue,
    first: Staged,
    /// The first request that was neither posted nor returned yet.
    next: u32,
    len: u32,
    current: Option<Claimed>,
    /// Whether the keep-alive that the posted requests need was put back (A2 of
    /// [`posting`](super::posting)).
    restored: bool,
}

impl BatchError<'_> {
    /// The cause.
    #[must_use]
    pub fn error(&self) -> Error {
        self.error
    }

    /// The error alone, which borrows nothing, for a caller of [`Batch::submit_unlogged`].
    #[must_use]
    pub fn without_requests<M>(&self) -> PostError<M> {
        match self.ended {
            Some(ended) => PostError::ended(self.error, ended),
            None => PostError::new(self.error, None),
        }
    }

    /// The number of requests that the device did not accept and that were not returned yet; zero
    /// if the provider does not report which.
    #[must_use]
    pub fn rejected(&self) -> usize {
        (self.len - self.next) as usize
    }

    /// Returns the next request that the device did not accept, with its memory.
    pub fn next_rejected(&mut self) -> Option<Released<'_>> {
        self.current = None;
        while self.next < self.len {
            let staged = self.queue.half.attached.producer.after(self.first, self.next);
            self.next += 1;
            self.current = self.queue.half.attached.producer.take_back(staged);
            if let Some(claimed) = &mut self.current {
                // The keep-alives of the other requests are dropped with them.
                if !self.restored {
                    self.restored = self.queue.half.restore_keep_alive(claimed);
                }
                break;
            }
        }
        self.current.as_mut().map(Released::new)
    }
}

impl Drop for BatchError<'_> {
    fn drop(&mut self) {
        while self.next_rejected().is_some() {}
    }
}

impl fmt::Display for BatchError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} of {} requests were not taken", self.error, self.rejected(), self.len)
    }
}

debug_is_display!(BatchError<'_>);

impl std::error::Error for BatchError<'_> {}

impl From<BatchError<'_>> for Error {
    fn from(error: BatchError<'_>) -> Self {
        error.error
    }
}
