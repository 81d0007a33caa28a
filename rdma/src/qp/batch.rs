//! Batches: requests that are posted together, to a send queue, a receive queue or a shared receive
//! queue.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr;

use super::local::{Owned, Writable};
use super::op::{Operation, Work};
use super::posting::{Ended, NotPosted, PostError, Segments};
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::transport::{Rc, Transport};
#[cfg(doc)]
use super::{QueuePair, SharedReceiveQueue};
use crate::cq::Released;
use crate::error::{Error, Result};
use crate::ring::{Claimed, Staged};

/// A queue to which several requests are posted with one doorbell.
pub(super) trait BatchQueue {
    /// What tells the requests of one batch from those of others.
    type First: Copy;

    /// Prepares a batch. Returns the number of unsignaled requests directly before it.
    fn begin(&mut self) -> (Self::First, u32);

    /// Posts the `len` requests that were staged since [`begin`](Self::begin). `run_after` is the
    /// number of unsignaled requests directly before the next.
    ///
    /// # Safety
    ///
    /// As many requests were staged, in order, and neither submitted nor discarded.
    unsafe fn submit(&mut self, len: u32, run_after: u32) -> Result<(), NotPosted>;

    /// Drops the `len` requests that were staged since [`begin`](Self::begin).
    ///
    /// # Safety
    ///
    /// As for [`submit`](Self::submit).
    unsafe fn discard(&mut self, len: u32);

    /// Takes request `at` of a submitted batch back, which the device has not accepted.
    fn take_back(&mut self, first: Self::First, at: u32) -> Option<Claimed>;

    /// Puts back what earlier requests need of a request that the device has not accepted. Called
    /// until it returns true.
    fn restore(&mut self, _claimed: &mut Claimed) -> bool {
        true
    }

    /// Counts the bytes of a batch that was submitted, of which the device has not accepted the
    /// requests `rejected`.
    fn count(&mut self, _bytes: u64, _rejected: Range<u32>) {}
}

macro_rules! batch_queues {
    ($($queue:ty { $($count:item)? })*) => {$(
        impl BatchQueue for $queue {
            type First = Staged;

            fn begin(&mut self) -> (Staged, u32) {
                (self.half.next_staged(), self.half.attached.producer.run())
            }

            unsafe fn submit(&mut self, len: u32, run_after: u32) -> Result<(), NotPosted> {
                // SAFETY: the callee has the same contract as this function.
                unsafe { self.half.submit_all(len, run_after) }
            }

            unsafe fn discard(&mut self, len: u32) {
                // SAFETY: the callee has the same contract as this function.
                unsafe { self.half.discard(len) };
            }

            fn take_back(&mut self, first: Staged, at: u32) -> Option<Claimed> {
                self.half.take_back_at(first, at)
            }

            fn restore(&mut self, claimed: &mut Claimed) -> bool {
                self.half.restore_keep_alive(claimed)
            }

            $($count)?
        }
    )*};
}
batch_queues! {
    SendQueue {
        fn count(&mut self, bytes: u64, rejected: Range<u32>) {
            self.bytes += bytes;
            if !rejected.is_empty() {
                self.uncount(rejected);
            }
        }
    }
    RecvQueue {}
}

/// Requests that are posted together, with one doorbell: for a send queue
/// ([`QueuePair::batch`]), a receive queue ([`QueuePair::recv_batch`]) or a shared receive queue
/// ([`SharedReceiveQueue::batch`]).
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
#[allow(private_bounds, reason = "the three queues are all that there are")]
pub struct Batch<'q, 'd, T: Transport = Rc, Q: BatchQueue = SendQueue> {
    queue: &'q mut Q,
    /// The slot of the first request. The slots of the batch are still free, so only the producer
    /// touches them.
    first: Q::First,
    len: u32,
    run: u32,
    /// The bytes of the requests.
    bytes: u64,
    inline: PhantomData<&'d [u8]>,
    transport: PhantomData<T>,
}

/// Receives for a receive queue that are posted together: [`QueuePair::recv_batch`].
pub type RecvBatch<'q, T = Rc> = Batch<'q, 'static, T, RecvQueue>;

impl<'d, T: Transport> Batch<'_, 'd, T> {
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
            Err(refusal) => Err(PostError::new(self.queue.half.refused(refusal, 1), Some(work.local.give_back()))),
        }
    }
}

impl<T: Transport> RecvBatch<'_, T> {
    /// Adds a receive, whose completion carries `token`.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`], with the memory; `QueueFull` also when the batch is full.
    #[inline]
    pub fn push<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        // SAFETY: `stage` requires that the parked copies are not used unless the original is
        // forgotten: on success `surrender` forgets it, and a failed `stage` leaves no copy in use.
        let staged = unsafe { self.queue.stage::<T, L>(self.len, (&local, token), &Segments(&local)) };
        let refusal = staged.err();
        let refused = refusal.map(|refusal| self.queue.half.refused(refusal, 1));
        self.pushed(local, refused)
    }
}

#[allow(private_bounds, reason = "the three queues are all that there are")]
impl<'q, T: Transport, Q: BatchQueue> Batch<'q, '_, T, Q> {
    pub(super) fn new(queue: &'q mut Q) -> Self {
        let (first, run) = queue.begin();
        Self { queue, first, len: 0, run, bytes: 0, inline: PhantomData, transport: PhantomData }
    }

    /// The queue, and the number of requests that were staged.
    pub(super) fn parts(&mut self) -> (&mut Q, u32) {
        (self.queue, self.len)
    }

    /// Counts a request that was staged, and surrenders its memory to the slot; or returns it.
    #[inline]
    pub(super) fn pushed<L: Owned>(&mut self, local: L, refused: Option<Error>) -> Result<(), PostError<L::Returned>> {
        match refused {
            None => {
                self.len += 1;
                local.surrender();
                Ok(())
            }
            Some(error) => Err(PostError::new(error, Some(local.give_back()))),
        }
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

    /// Posts all requests, in order.
    ///
    /// # Errors
    ///
    /// The error holds the requests that the device did not accept. If the provider does not report
    /// which these are, all are in flight, and the queue pair goes to the error state; a shared
    /// receive queue takes no further receives.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    pub fn submit(self) -> Result<(), BatchError<'q, Q>> {
        self.submit_unlogged().inspect_err(|error| error.without_requests::<()>().log())
    }

    /// As [`submit`](Self::submit), without a line in the log, for a caller that holds a lock: it
    /// takes [`BatchError::without_requests`], and calls [`PostError::log`] after it has released
    /// the lock.
    ///
    /// # Errors
    ///
    /// As for [`submit`](Self::submit).
    pub fn submit_unlogged(self) -> Result<(), BatchError<'q, Q>> {
        let mut this = ManuallyDrop::new(self);
        let (first, len, run, bytes) = (this.first, this.len, this.run, this.bytes);
        // SAFETY: ptr::read requires that the value is moved out once: `this` is not dropped, and
        // its `queue` is not used again.
        let queue = unsafe { ptr::read(&raw const this.queue) };
        this.len = 0;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the callee requires that as many requests were staged and not submitted: `push`
        // staged them and counted them in `len`.
        match unsafe { queue.submit(len, run) } {
            Ok(()) => {
                queue.count(bytes, len..len);
                Ok(())
            }
            Err((error, posted)) => {
                let (next, ended) = (posted.unwrap_or(len), posted.err());
                queue.count(bytes, next..len);
                Err(BatchError { error, ended, queue, first, next, len, current: None, restored: false })
            }
        }
    }
}

impl<T: Transport, Q: BatchQueue> Drop for Batch<'_, '_, T, Q> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the callee requires that as many requests were staged and not submitted:
            // `push` staged them and counted them in `len`.
            unsafe { self.queue.discard(self.len) };
        }
    }
}

impl<T: Transport, Q: BatchQueue> fmt::Debug for Batch<'_, '_, T, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The error of a batch that was not posted, or only in part.
///
/// The requests that the device did not accept are returned by
/// [`next_rejected`](Self::next_rejected); dropping the error drops the rest. Forgetting the error
/// keeps their slots occupied until the queue pair is reset or destroyed, or the shared receive
/// queue destroyed.
#[allow(private_bounds, reason = "the three queues are all that there are")]
pub struct BatchError<'q, Q: BatchQueue = SendQueue> {
    error: Error,
    /// The end of the queue, if this error ended it.
    ended: Option<Ended>,
    queue: &'q mut Q,
    first: Q::First,
    /// The first request that was neither posted nor returned yet.
    next: u32,
    len: u32,
    current: Option<Claimed>,
    /// Whether the keep-alive that the posted requests need was put back (A2 of
    /// [`posting`](super::posting)).
    restored: bool,
}

#[allow(private_bounds, reason = "the three queues are all that there are")]
impl<Q: BatchQueue> BatchError<'_, Q> {
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
            self.current = self.queue.take_back(self.first, self.next);
            self.next += 1;
            if let Some(claimed) = &mut self.current {
                // The keep-alives of the other requests are dropped with them.
                if !self.restored {
                    self.restored = self.queue.restore(claimed);
                }
                break;
            }
        }
        self.current.as_mut().map(Released::new)
    }
}

impl<Q: BatchQueue> Drop for BatchError<'_, Q> {
    fn drop(&mut self) {
        while self.next_rejected().is_some() {}
    }
}

impl<Q: BatchQueue> fmt::Display for BatchError<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} of {} requests were not taken", self.error, self.rejected(), self.len)
    }
}

impl<Q: BatchQueue> fmt::Debug for BatchError<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<Q: BatchQueue> std::error::Error for BatchError<'_, Q> {}

impl<Q: BatchQueue> From<BatchError<'_, Q>> for Error {
    fn from(error: BatchError<'_, Q>) -> Self {
        error.error
    }
}
