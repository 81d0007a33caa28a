//! Posting to a queue pair: errors, batches, and the queue pair's own methods.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;

use super::gather::{Owned, Writable};
use super::halves::{RecvHalf, SendHalf};
use super::op::{Operation, Work};
use super::recv::RecvQueue;
use super::ring::{Claimed, Staged};
use super::send::SendQueue;
use super::{InitializedQueuePair, QueuePair, Rc, Transport};
use crate::cq::Released;
use crate::error::{Error, ErrorKind, Result};

/// A post that failed.
pub struct PostError<R> {
    error: Error,
    request: Option<R>,
}

impl<R> PostError<R> {
    #[inline(always)]
    pub(super) fn new(error: Error, request: Option<R>) -> Self {
        Self { error, request }
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> Error {
        self.error
    }

    /// In what way: [`ErrorKind::QueueFull`] asks for polling.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// What the device did not take. None if it may have: the memory is in flight then and the queue pair in the error state.
    #[must_use]
    pub fn into_request(self) -> Option<R> {
        self.request
    }

    /// Both.
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<R>) {
        (self.error, self.request)
    }
}

impl<R> fmt::Debug for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostError").field("error", &self.error).field("returned", &self.request.is_some()).finish()
    }
}

impl<R> fmt::Display for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<R> std::error::Error for PostError<R> {}

impl<R> From<PostError<R>> for Error {
    fn from(error: PostError<R>) -> Self {
        error.error
    }
}

impl<R> From<PostError<R>> for std::io::Error {
    fn from(error: PostError<R>) -> Self {
        error.error.into()
    }
}

impl<T: Transport> QueuePair<T> {
    /// Posts a request to the send queue. Its memory comes back with its completion.
    ///
    /// # Errors
    ///
    /// With the request, if the device did not take it: `QueueFull` until completions are polled; `OutOfBounds` where the
    /// remote slice is too short; `TooManySegments`, `TooLong` (a datagram longer than the port's MTU, for one), `InvalidInput`
    /// (memory or an address handle of another protection domain, or no single 8 bytes for an atomic operation),
    /// `NotSupported` (a read into a [`Buffer`](crate::Buffer) on iWARP); or what the provider reports. Without the request, if the
    /// device may have taken it although it reported an error: its memory stays in flight and the queue pair goes to the error
    /// state.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<O: Operation<T>, L: Owned>(&mut self, work: Work<O, L>) -> Result<(), PostError<Work<O, L>>> {
        self.send.post::<T, O, L>(work)
    }

    /// Posts memory for one message: a [`Buffer`](crate::Buffer), an [`ExposedSlice`](crate::ExposedSlice), an array, tuple or
    /// vector of them, or `()` for messages without data. It comes back with the completion, which carries `token`.
    ///
    /// A datagram comes with a header of 40 bytes before it ([`Grh`](crate::Grh)): the memory must have room for both.
    ///
    /// # Errors
    ///
    /// With the memory, if the device did not take it: `QueueFull`, `TooManySegments`, `TooLong`, `OutOfBounds` (less than a
    /// datagram's header needs), `InvalidInput` (memory of another protection domain), or what the provider reports. Without
    /// it, if the device may have taken it although it reported an error: it stays in flight and the queue pair goes to the
    /// error state.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L>> {
        self.recv.post::<T, L>(local, token)
    }

    /// Starts a batch of requests for the send queue, posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, '_, T> {
        Batch::new(&mut self.send)
    }

    /// Both halves, to be used by two threads at a time.
    pub fn split_mut(&mut self) -> (SendHalf<'_, T>, RecvHalf<'_, T>) {
        (SendHalf::new(&mut self.send), RecvHalf::new(&mut self.recv))
    }

    /// The receive half.
    #[must_use]
    pub fn recv_queue(&self) -> &RecvQueue {
        &self.recv
    }

    /// The send half.
    #[must_use]
    pub fn send_queue(&self) -> &SendQueue {
        &self.send
    }
}

impl<T: Transport> InitializedQueuePair<T> {
    /// Posts memory for a message: [`QueuePair::post_recv`]. What is posted before connecting is there when the peer's first
    /// message arrives.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L>> {
        self.qp.post_recv(local, token)
    }
}

/// Requests for a send queue that are posted together.
///
/// Nothing is posted before [`submit`](Self::submit); a batch that is dropped without it drops its requests, one that is
/// forgotten leaks them.
#[must_use = "nothing is posted before `submit`"]
pub struct Batch<'q, 'd, T: Transport = Rc> {
    queue: &'q mut SendQueue,
    /// Requests in the slots after the head. The slots are still free, so that only we touch them.
    len: u32,
    run: u32,
    inline: PhantomData<&'d [u8]>,
    transport: PhantomData<T>,
}

impl<'q, 'd, T: Transport> Batch<'q, 'd, T> {
    pub(super) fn new(queue: &'q mut SendQueue) -> Self {
        let run = queue.attached.producer.run();
        Self { queue, len: 0, run, inline: PhantomData, transport: PhantomData }
    }

    /// How many requests it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a request. Bytes that are to be copied are copied by `submit`.
    ///
    /// # Errors
    ///
    /// With the request, as for [`QueuePair::post_send`]; `QueueFull` also when the batch is.
    #[inline]
    pub fn push<O: Operation<T>, L: Owned + 'd>(&mut self, work: Work<O, L>) -> Result<(), PostError<Work<O, L>>> {
        // SAFETY: `work` is forgotten below; if `stage` fails, nothing was parked.
        let staged = self.queue.stage::<T, O, L>(self.len, self.run, &work, false, |slot| unsafe {
            let mut count = 0;
            work.local.park(slot, &mut count);
            count
        });
        match staged {
            Ok((_, signaled)) => {
                self.len += 1;
                self.run = if signaled { 0 } else { self.run + 1 };
                work.local.surrender();
                Ok(())
            }
            Err(refusal) => Err(PostError::new(self.queue.refused(refusal), Some(work))),
        }
    }

    /// Posts all requests, in order.
    ///
    /// # Errors
    ///
    /// With those that the device did not take. If it does not say which, all are in flight, and the queue pair goes to the
    /// error state.
    #[doc(alias = "ibv_post_send")]
    pub fn submit(self) -> Result<(), BatchError<'q>> {
        let mut this = ManuallyDrop::new(self);
        let (len, run) = (this.len, this.run);
        // SAFETY: `this` is neither dropped nor used again, so the borrow is moved out once.
        let queue = unsafe { ptr::read(&raw const this.queue) };
        this.len = 0;
        if len == 0 {
            return Ok(());
        }
        let (first, run_before) = (queue.attached.producer.staged(0), queue.attached.producer.run());
        queue.scratch.link(len as usize);
        // SAFETY: `push` described these slots and wrote their segments.
        unsafe { queue.attached.producer.park(len) };
        queue.attached.producer.advance_by(len, run);
        let result = queue.submit();
        queue.scratch.unlink(len as usize);
        let Err(failure) = result else { return Ok(()) };
        let error = failure.error();
        let posted = queue.scratch.position(failure.bad, len);
        match posted {
            // S3. What the chain was to signal may be among the rejected: let the next signaled completion look back over all.
            Some(_) => queue.attached.producer.set_run(run_before + len),
            None => queue.fail(),
        }
        Err(BatchError { error, queue, first, next: posted.unwrap_or(len), len, current: None, restored: false })
    }
}

impl<T: Transport> Drop for Batch<'_, '_, T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: `push` described these slots and wrote their segments; nothing was handed over.
            unsafe { self.queue.attached.producer.discard(self.len, self.queue.address.place()) };
        }
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A batch that was not posted, or only in part.
///
/// What the device did not take is handed out by [`next_rejected`](Self::next_rejected); dropping the error drops the rest.
/// Forgetting it keeps their slots occupied until the queue pair is reset or destroyed.
pub struct BatchError<'q> {
    error: Error,
    queue: &'q mut SendQueue,
    first: Staged,
    /// The first request that was neither posted nor handed out yet.
    next: u32,
    len: u32,
    current: Option<Claimed>,
    /// The address handle of what the device took is back (A2 of [`to`](super::to)).
    restored: bool,
}

impl BatchError<'_> {
    /// Why.
    #[must_use]
    pub fn error(&self) -> Error {
        self.error
    }

    /// How many requests the device did not take and that were not handed out yet. Zero if that cannot be known.
    #[must_use]
    pub fn rejected(&self) -> usize {
        (self.len - self.next) as usize
    }

    /// The next request that the device did not take, with its memory.
    pub fn next_rejected(&mut self) -> Option<Released<'_>> {
        self.current = None;
        while self.next < self.len {
            let staged = self.queue.attached.producer.after(self.first, self.next);
            self.next += 1;
            self.current = self.queue.attached.producer.take_back(staged);
            if let Some(claimed) = &mut self.current {
                if let Some(address) = claimed.take_address().filter(|_| !self.restored) {
                    self.restored = true;
                    self.queue.address.restore(address);
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

impl fmt::Debug for BatchError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchError")
            .field("error", &self.error)
            .field("rejected", &self.rejected())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for BatchError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} of {} requests were not taken", self.error, self.rejected(), self.len)
    }
}

impl std::error::Error for BatchError<'_> {}

impl From<BatchError<'_>> for Error {
    fn from(error: BatchError<'_>) -> Self {
        error.error
    }
}
