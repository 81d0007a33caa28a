//! A queue pair whose requests are futures.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::driver::Handle;
use super::registered::Registered;
use super::{Error, InFlight, Received, RecvHalf, SendHalf};
use crate::error::{Error as VerbError, ErrorKind, Failed, Result as VerbResult, Verb};
use crate::qp::divided::Divided;
use crate::qp::op::{Operation, Work};
use crate::qp::{self, InitializedQueuePair, Owned, PostError, Writable};
use crate::transport::Transport;

/// A queue pair whose requests are futures, and whose received messages are awaited.
///
/// A [`Driver`](super::Driver) must run meanwhile. Dropping the queue pair destroys it: requests in
/// flight end with status `WR_FLUSH_ERR`.
///
/// # Examples
///
/// ```no_run
/// use rdma::aio::{Handle, QueuePair};
/// use rdma::{Buffer, op};
///
/// # async fn f(qp: rdma::QueuePair<rdma::transport::Rc>, handle: &Handle, room: Buffer, message: Buffer)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let mut qp = handle.queue_pair(qp)?;
/// qp.post_recv(room)?;
/// let sent = qp.start(op::send(message))?;
/// let message = sent.await.into_memory()?;
/// let answer = qp.next_received().await?;
/// # drop((message, answer));
/// # Ok(()) }
/// ```
pub struct QueuePair<T: Transport> {
    /// Declared first: dropped before the queue pair is destroyed.
    registered: Registered,
    inner: qp::QueuePair<T>,
}

/// A free slot for one request: [`QueuePair::reserve`].
#[derive(Debug)]
#[must_use = "the slot is held only until this is dropped"]
pub struct Slot<'a, T: Transport> {
    qp: &'a mut QueuePair<T>,
}

impl Handle {
    /// Makes futures of a queue pair's requests. Both its completion queues must be the driver's.
    ///
    /// Receives that were posted before keep reporting to the pollers of the queue, unless
    /// [`post_recv`](Self::post_recv) posted them.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the queue pair, for another completion queue; `Forked`.
    pub fn queue_pair<T: Transport>(&self, qp: qp::QueuePair<T>) -> Result<QueuePair<T>, Failed<qp::QueuePair<T>>> {
        if let Err(error) = self.check(&qp) {
            return Err(Failed::new(error, qp));
        }
        let registered = Registered::new(self, qp.send.results(), qp.recv.results());
        Ok(QueuePair { registered, inner: qp })
    }

    /// Posts a receive to a queue pair that is not connected yet, so that it is ready for the
    /// peer's first message. [`QueuePair::next_received`] returns the message later.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`](qp::QueuePair::post_recv); `InvalidInput` for a queue pair
    /// of another completion queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use rdma::aio::{Driver, DriverOptions, block_on};
    /// use rdma::{ConnectOptions, InitOptions, QueuePair, op};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&"soft0".parse()?)?.context;
    /// let (mut driver, handle) = Driver::new(&context, &DriverOptions::new())?;
    /// # std::thread::spawn(move || while driver.wait(None).is_ok() {});
    /// let pd = context.alloc_pd()?;
    /// let qp = QueuePair::builder(&pd).cq(handle.completion_queue()).max_inline_data(16).build()?;
    /// let mut qp = qp.init(&InitOptions::new())?;
    /// handle.post_recv(&mut qp, pd.allocate(64)?)?;
    /// // Only now a peer may learn of the endpoint. This queue pair is its own peer.
    /// let peer = qp.endpoint();
    /// let mut qp = handle.queue_pair(qp.connect(&peer, &ConnectOptions::new())?)?;
    /// qp.start(op::send_inline(b"hello"))?;
    /// let message = block_on(qp.next_received())?;
    /// assert_eq!(message.byte_len(), 5);
    /// # Ok(()) }
    /// ```
    pub fn post_recv<T: Transport, L: Owned + Writable>(
        &self,
        qp: &mut InitializedQueuePair<T>,
        local: L,
    ) -> Result<(), PostError<L::Returned>> {
        if let Err(error) = self.check(&qp.qp) {
            return Err(PostError::refused(error, local));
        }
        qp.qp.recv.post_routed::<T, L>(local)
    }

    fn check<T: Transport>(&self, qp: &qp::QueuePair<T>) -> VerbResult<()> {
        let ours = &self.completion_queue().inner;
        ours.context.check(Verb::CreateQp)?;
        let is_ours = Arc::ptr_eq(ours, &qp.control.send_cq) && Arc::ptr_eq(ours, &qp.control.recv_cq);
        if is_ours { Ok(()) } else { Err(VerbError::new(Verb::CreateQp, ErrorKind::InvalidInput)) }
    }
}

impl<T: Transport> QueuePair<T> {
    /// Posts a request, always signaled, and returns the future of its completion.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`](qp::QueuePair::post_send). On `QueueFull`,
    /// [`reserve`](Self::reserve) waits for a free slot.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/aio.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ends { pd, mut a, mut b } = ends()?;
    /// use rdma::op;
    ///
    /// b.post_recv(pd.allocate(16)?)?;
    /// // Both are in flight before the first is awaited.
    /// let (first, second) = (a.start(op::send_inline(b"one"))?, a.start(op::send_inline(b"two"))?);
    /// # b.post_recv(pd.allocate(16)?)?;
    /// block_on(async {
    ///     first.await.into_memory()?;
    ///     second.await.into_memory()?;
    ///     Ok::<(), Error>(())
    /// })?;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn start<O: Operation<T>, L: Owned>(
        &mut self,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        Registered::start::<T, O, L>(self.registered.sent, &mut self.inner.send, work)
    }

    /// Waits for a free slot for a request. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// `DriverGone` if no completion would free a slot; `Forked`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn f(qp: &mut rdma::aio::QueuePair<rdma::transport::Rc>, message: rdma::Buffer)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let sent = qp.reserve().await?.start(rdma::op::send(message))?;
    /// # drop(sent);
    /// # Ok(()) }
    /// ```
    pub async fn reserve(&mut self) -> Result<Slot<'_, T>, Error> {
        poll_fn(|cx| self.poll_room(cx)).await?;
        Ok(Slot { qp: self })
    }

    /// Polls until a slot is free for a request: [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// As for [`reserve`](Self::reserve).
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Registered::poll_room(self.registered.sent, &mut self.inner.send, cx)
    }

    /// Posts a receive: memory for one message.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`](qp::QueuePair::post_recv).
    #[inline]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L) -> Result<(), PostError<L::Returned>> {
        self.inner.recv.post_routed::<T, L>(local)
    }

    /// Waits for the next message, or for a receive that failed. Messages come in the order in
    /// which their receives were posted. Dropping the future loses no message.
    ///
    /// Receives from a [`SharedReceiveQueue`](crate::SharedReceiveQueue) do not come here, but to
    /// the pollers of the completion queue.
    ///
    /// # Errors
    ///
    /// `DriverGone` if no message would arrive; `Forked`.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/aio.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ends { pd, mut a, mut b } = ends()?;
    /// b.post_recv(pd.allocate(16)?)?;
    /// let sent = a.start(rdma::op::send_inline(b"hello"))?;
    /// let mut received = block_on(b.next_received())?;
    /// received.status()?;
    /// let length = received.byte_len();
    /// let buffer = received.take_buffer().ok_or("the receive had a buffer")?;
    /// assert_eq!(&buffer[..length], b"hello");
    /// # block_on(sent).into_memory()?;
    /// # Ok(()) }
    /// ```
    pub async fn next_received(&mut self) -> Result<Received, Error> {
        poll_fn(|cx| self.poll_received(cx)).await
    }

    /// Polls for the next message: [`next_received`](Self::next_received).
    ///
    /// # Errors
    ///
    /// As for [`next_received`](Self::next_received).
    #[inline]
    pub fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Result<Received, Error>> {
        Registered::poll_received(self.registered.received, &mut self.inner.recv, cx)
    }

    /// Ends all requests: moves the queue pair to the error state, and waits until every request in
    /// flight has given its memory back. Received messages stay for
    /// [`next_received`](Self::next_received).
    ///
    /// The device flushes requests without waiting for the peer. A caller that sets a time limit
    /// all the same may drop the future and then the queue pair, which ends the requests at once.
    /// Receives that were posted before the queue pair became asynchronous, other than by
    /// [`Handle::post_recv`], are waited for too: a poller of the queue must take them.
    ///
    /// # Errors
    ///
    /// An error of the change to the error state.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/aio.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ends { pd, mut a, mut b } = ends()?;
    /// b.post_recv(pd.allocate(16)?)?;
    /// // No message will come: the receive ends with an error and gives its buffer back.
    /// block_on(b.shutdown())?;
    /// let mut received = block_on(b.next_received())?;
    /// assert!(received.status().is_err() && received.take_buffer().is_some());
    /// # drop(a);
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&mut self) -> VerbResult<()> {
        let Self { registered, inner } = self;
        registered.end();
        inner.set_error()?;
        // Without a driver the drop of the queue pair ends the requests.
        let _driven = poll_fn(|cx| registered.poll_sends_ended(&inner.send, cx)).await;
        let _driven = poll_fn(|cx| registered.poll_receives_ended(&inner.recv, cx)).await;
        Ok(())
    }

    /// The number of requests whose future was dropped and that have not ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/aio.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ends { pd, mut a, mut b } = ends()?;
    /// # let region = pd.allocate_exposed(64, rdma::RemoteAccess::WRITE)?;
    /// # drop(b.queue_pair());
    /// // The write goes on without its future; its buffer is freed when it has ended.
    /// drop(a.start(rdma::op::write(pd.allocate(16)?, region.remote(..)?))?);
    /// assert!(a.abandoned() <= 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn abandoned(&self) -> usize {
        self.registered.abandoned()
    }

    /// Splits the queue pair into two halves for two tasks: one starts requests, the other awaits
    /// messages. [`SendHalf::into_requester`] lets several tasks start requests.
    ///
    /// # Examples
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doctests/aio.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Ends { pd, a, mut b } = ends()?;
    /// # b.post_recv(pd.allocate(16)?)?;
    /// let (mut send, mut recv) = a.into_split();
    /// recv.post_recv(pd.allocate(16)?)?;
    /// // Another task, or another thread.
    /// let receiving = std::thread::spawn(move || block_on(recv.next_received()).map(|_| recv));
    /// block_on(send.start(rdma::op::send_inline(b"question"))?).into_memory()?;
    /// # block_on(b.next_received())?.status()?;
    /// # block_on(b.start(rdma::op::send_inline(b"answer"))?).into_memory()?;
    /// let recv = receiving.join().expect("no panic")?;
    /// let a = send.reunite(recv)?;
    /// # drop(a);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn into_split(self) -> (SendHalf<T>, RecvHalf<T>) {
        SendHalf::split(Divided::divide(self.inner, self.registered))
    }

    /// The queue pair that two parts make.
    pub(super) fn whole((inner, registered): (qp::QueuePair<T>, Registered)) -> Self {
        Self { registered, inner }
    }

    /// The queue pair, for inspection.
    #[must_use]
    pub fn queue_pair(&self) -> &qp::QueuePair<T> {
        &self.inner
    }
}

impl<T: Transport> Slot<'_, T> {
    /// Posts a request: [`QueuePair::start`]. A slot is free for it.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::start`].
    pub fn start<O: Operation<T>, L: Owned>(
        self,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        self.qp.start(work)
    }
}

impl<T: Transport> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
