//! Posting requests through a queue pair and through its two halves.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::{Duration, Instant};

use super::batch::{Batch, RecvBatch};
use super::local::{Owned, Writable};
use super::op::{Operation, Work};
use super::posting::PostError;
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::transport::{Rc, Transport};
use super::{InitializedQueuePair, QueuePair};
use crate::cq::{Completion, Poller};
use crate::error::{Error, ErrorKind, Verb};

impl<T: Transport> QueuePair<T> {
    /// Posts a request to the send queue. The completion returns the request's memory.
    ///
    /// # Errors
    ///
    /// With the request's memory, if the device did not accept it: `QueueFull` until completions
    /// are polled; `OutOfBounds` if the remote slice is too short; `TooManySegments`; `TooLong`
    /// (for example a datagram longer than the port's MTU); `InvalidInput` (memory or an address
    /// handle of another protection domain, or other than one segment of 8 bytes for an atomic
    /// operation); `NotSupported` (a read into a [`Buffer`](crate::Buffer) on iWARP); or any error
    /// that the provider reports. Without the memory, if the device may have accepted the request
    /// although the provider reported an error: the memory stays in flight and the queue pair goes
    /// to the error state.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{Buffer, ErrorKind, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, buffer: Buffer) -> Result<Option<Buffer>, rdma::Error> {
    /// match qp.post_send(rdma::op::send(buffer).token(1)) {
    ///     Ok(()) => Ok(None),
    ///     // Not posted: the buffer is ours again.
    ///     Err(refused) if refused.kind() == ErrorKind::QueueFull => Ok(refused.into_memory()),
    ///     Err(refused) => Err(refused.error()),
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<O: Operation<T>, L: Owned>(&mut self, work: Work<O, L>) -> Result<(), PostError<L::Returned>> {
        self.post_send_unlogged(work).inspect_err(PostError::log)
    }

    /// As [`post_send`](Self::post_send), without a line in the log, for a caller that holds a
    /// lock: it calls [`PostError::log`] after it has released the lock.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send).
    #[inline]
    pub fn post_send_unlogged<O: Operation<T>, L: Owned>(
        &mut self,
        work: Work<O, L>,
    ) -> Result<(), PostError<L::Returned>> {
        self.send.post::<T, O, L>(work)
    }

    /// Posts a request to the send queue, and waits for a free slot if the queue is full.
    ///
    /// Completions that `poller` takes meanwhile are passed to `on_completion`, including receives
    /// if they report to the same queue. Only completions of this queue pair's sends free slots;
    /// `poller` must belong to their completion queue.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send), with `QueueFull` if no slot is free before
    /// `timeout`; as for [`Poller::wait`]; `InvalidInput` for a poller of another completion queue.
    ///
    /// ```
    /// # use rdma::{Poller, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, poller: &mut Poller) -> Result<(), rdma::Error> {
    /// let second = std::time::Duration::from_secs(1);
    /// for number in 0..1_000_000_u32 {
    ///     let bytes = number.to_ne_bytes();
    ///     let work = rdma::op::send_inline(&bytes).unsignaled();
    ///     qp.post_send_or_wait(work, poller, second, |completion| println!("{completion:?}"))?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn post_send_or_wait<O: Operation<T>, L: Owned>(
        &mut self,
        work: Work<O, L>,
        poller: &mut Poller,
        timeout: Duration,
        on_completion: impl FnMut(Completion<'_>),
    ) -> Result<(), PostError<L::Returned>> {
        self.split_mut().0.post_or_wait(work, poller, timeout, on_completion)
    }

    /// Posts a receive: memory for one message. The memory is a [`Buffer`](crate::Buffer), an
    /// [`ExposedSlice`](crate::ExposedSlice), an array, tuple or vector of them, or `()` for
    /// messages without data. The completion carries `token` and returns the memory.
    ///
    /// A datagram arrives after a GRH of 40 bytes ([`Grh`](crate::Grh)): the memory must have space
    /// for both.
    ///
    /// # Errors
    ///
    /// With the memory, if the device did not accept it: `QueueFull`, `TooManySegments`, `TooLong`,
    /// `OutOfBounds` (fewer than 40 bytes for a datagram), `InvalidInput` (memory of another
    /// protection domain), or any error that the provider reports. Without the memory, if the
    /// device may have accepted it although the provider reported an error: the memory stays in
    /// flight and the queue pair goes to the error state.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{Buffer, Poller, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, poller: &mut Poller) -> Result<(), rdma::Error> {
    /// let mut completion = poller.wait(None)?.expect("no time limit");
    /// println!("{} bytes", completion.byte_len());
    /// if let Some(buffer) = completion.take_buffer() {
    ///     // The same memory for the next message.
    ///     qp.post_recv(buffer, completion.token())?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        self.post_recv_unlogged(local, token).inspect_err(PostError::log)
    }

    /// As [`post_recv`](Self::post_recv), without a line in the log, for a caller that holds a
    /// lock: it calls [`PostError::log`] after it has released the lock.
    ///
    /// # Errors
    ///
    /// As for [`post_recv`](Self::post_recv).
    #[inline(always)]
    pub fn post_recv_unlogged<L: Owned + Writable>(
        &mut self,
        local: L,
        token: u64,
    ) -> Result<(), PostError<L::Returned>> {
        self.recv.post::<T, L>(local, token)
    }

    /// Starts a batch of requests for the send queue, posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, '_, T> {
        Batch::new(&mut self.send)
    }

    /// Starts a batch of receives, posted with one doorbell.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut a, .. } = pair()?;
    /// let mut memory = pd.allocate(8 * 64)?;
    /// let mut batch = a.recv_batch();
    /// for token in 0..8 {
    ///     batch.push(memory.split_to(64), token)?;
    /// }
    /// if let Err(mut error) = batch.submit() {
    ///     while let Some(mut rejected) = error.next_rejected() {
    ///         drop(rejected.take_buffer());
    ///     }
    ///     return Err(error.error().into());
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_post_recv")]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, T> {
        Batch::new(&mut self.recv)
    }

    /// Splits the queue pair into its two halves, for use by two threads at a time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{Buffer, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, message: Buffer, room: Buffer) {
    /// let (mut send, mut recv) = qp.split_mut();
    /// std::thread::scope(|threads| {
    ///     threads.spawn(move || send.post(rdma::op::send(message)));
    ///     threads.spawn(move || recv.post(room, 0));
    /// });
    /// # }
    /// ```
    pub fn split_mut(&mut self) -> (SendHalf<'_, T>, RecvHalf<'_, T>) {
        (QueueHalf::new(&mut self.send), QueueHalf::new(&mut self.recv))
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
    /// Posts a receive: [`QueuePair::post_recv`]. Receives posted before connecting are ready for
    /// the peer's first message.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        self.qp.post_recv(local, token)
    }

    /// Starts a batch of receives, posted with one doorbell: [`QueuePair::recv_batch`].
    #[doc(alias = "ibv_post_recv")]
    pub fn recv_batch(&mut self) -> RecvBatch<'_, T> {
        self.qp.recv_batch()
    }
}

/// The send half of a queue pair, for one thread: [`QueuePair::split_mut`].
pub type SendHalf<'a, T = Rc> = QueueHalf<'a, SendQueue, T>;

/// The receive half of a queue pair, for one thread: [`QueuePair::split_mut`].
pub type RecvHalf<'a, T = Rc> = QueueHalf<'a, RecvQueue, T>;

/// A [`SendHalf`] or [`RecvHalf`].
// A separate type, not `&mut SendQueue`: two such references could be swapped, and each queue pair
// would then release the other's requests (S1 of `posting`).
pub struct QueueHalf<'a, Q, T: Transport> {
    queue: &'a mut Q,
    transport: PhantomData<T>,
}

impl<'a, Q, T: Transport> QueueHalf<'a, Q, T> {
    pub(super) fn new(queue: &'a mut Q) -> Self {
        Self { queue, transport: PhantomData }
    }
}

impl<T: Transport> SendHalf<'_, T> {
    /// Posts a request: [`QueuePair::post_send`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<O: Operation<T>, L: Owned>(&mut self, work: Work<O, L>) -> Result<(), PostError<L::Returned>> {
        self.queue.post::<T, O, L>(work).inspect_err(PostError::log)
    }

    /// Posts a request, and waits for a free slot if the queue is full:
    /// [`QueuePair::post_send_or_wait`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send_or_wait`].
    pub fn post_or_wait<O: Operation<T>, L: Owned>(
        &mut self,
        work: Work<O, L>,
        poller: &mut Poller,
        timeout: Duration,
        mut on_completion: impl FnMut(Completion<'_>),
    ) -> Result<(), PostError<L::Returned>> {
        let start = Instant::now();
        while self.queue.half.attached.producer.vacant().is_none() && start.elapsed() < timeout {
            if !self.queue.half.attached.is_of(&poller.cq) {
                let wrong = Error::new(Verb::PostSend, ErrorKind::InvalidInput);
                return Err(PostError::new(wrong, Some(work.local.give_back())));
            }
            // Wake up now and then: another poller of the queue may free slots too.
            let patience = timeout.saturating_sub(start.elapsed()).min(Duration::from_millis(1));
            match poller.wait(Some(patience)) {
                Ok(Some(completion)) => on_completion(completion),
                Ok(None) => {}
                Err(error) => return Err(PostError::new(error, Some(work.local.give_back()))),
            }
        }
        self.post(work)
    }

    /// Starts a batch of requests, posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, '_, T> {
        Batch::new(self.queue)
    }
}

impl<T: Transport> RecvHalf<'_, T> {
    /// Posts a receive: [`QueuePair::post_recv`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        self.queue.post::<T, L>(local, token).inspect_err(PostError::log)
    }

    /// Starts a batch of receives, posted with one doorbell: [`QueuePair::recv_batch`].
    pub fn batch(&mut self) -> RecvBatch<'_, T> {
        Batch::new(self.queue)
    }
}

impl<Q, T: Transport> Deref for QueueHalf<'_, Q, T> {
    type Target = Q;

    fn deref(&self) -> &Q {
        self.queue
    }
}

impl<Q: fmt::Debug, T: Transport> fmt::Debug for QueueHalf<'_, Q, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}
