//! A queue pair whose requests are futures.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::driver::Handle;
use super::{Error, InFlight, Received, RecvHalf, SendHalf};
use crate::error::{Error as VerbError, ErrorKind, Failed, Result as VerbResult, Verb};
use crate::panics::Panics;
use crate::qp::divided::Divided;
use crate::qp::op::{Operation, Work};
use crate::qp::{self, InitializedQueuePair, Owned, PostError, RecvQueue, SendQueue, Writable};
use crate::ring::{Report, Results};
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

/// A queue pair's place at its driver. Its drop, before the queue pair ends, gives it up.
pub(super) struct Registered {
    pub(super) sent: &'static Results<Report>,
    pub(super) received: &'static Results<Report>,
    handle: Handle,
    /// Whether a [`Requester`](super::Requester) refuses requests.
    is_ended: AtomicBool,
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
        let sent = qp.send.results();
        let received = qp.recv.results();
        self.shared().add([sent, received]);
        let registered = Registered { sent, received, handle: self.clone(), is_ended: AtomicBool::new(false) };
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

impl Registered {
    /// Posts a request to the send queue: [`QueuePair::start`].
    #[inline]
    pub(super) fn start<T: Transport, O: Operation<T>, L: Owned>(
        sent: &'static Results<Report>,
        queue: &mut SendQueue,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        // Vectors of segments that cannot be told apart do not compile.
        let _ = const { L::SEGMENTS };
        let ticket = queue.post_routed::<T, O, L>(work)?;
        Ok(InFlight::new(sent, ticket, L::collect))
    }

    /// Polls until a slot of the send queue is free: [`QueuePair::poll_room`].
    pub(super) fn poll_room(
        sent: &'static Results<Report>,
        queue: &mut SendQueue,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Error>> {
        // Sends end in order, so the oldest frees its slot first.
        let oldest = queue.routed_after(0);
        poll_owner(sent, cx, oldest, || queue.has_room_after(0))
    }

    /// Polls for the next message: [`QueuePair::poll_received`].
    #[inline]
    pub(super) fn poll_received(
        received: &'static Results<Report>,
        queue: &mut RecvQueue,
        cx: &Context<'_>,
    ) -> Poll<Result<Received, Error>> {
        if received.is_forked() {
            return Poll::Ready(Err(Error::Forked));
        }
        queue.poll_routed(cx).map(|report| report.map(Received::new).ok_or(Error::DriverGone))
    }

    /// Polls until no send is in flight.
    pub(super) fn poll_sends_ended(&self, queue: &SendQueue, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        poll_owner(self.sent, cx, None, || queue.room() == queue.depth())
    }

    /// Polls until no receive is in flight.
    pub(super) fn poll_receives_ended(&self, queue: &RecvQueue, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        poll_owner(self.received, cx, None, || queue.room() == queue.depth())
    }

    /// The number of requests that were abandoned and have not ended.
    pub(super) fn abandoned(&self) -> usize {
        if self.is_forked() { 0 } else { self.sent.abandoned() }
    }

    /// Whether this is a forked child, in which the results' locks may not be taken.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.sent.is_forked()
    }

    /// Has requesters refuse further requests.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    /// Drops the waker of the task that waited for the send queue.
    pub(super) fn forget_owner(&self) {
        if !self.is_forked() {
            self.sent.forget_tasks();
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The destroy, which follows, ends what is in flight.
        if !self.is_forked() {
            self.handle.shared().remove([self.sent, self.received]);
            let mut panics = Panics::default();
            panics.catch(|| self.sent.forget_tasks());
            panics.catch(|| self.received.forget_tasks());
            panics.resume();
        }
    }
}

/// Polls until requests have ended: as [`Results::poll_owner`].
fn poll_owner(
    results: &Results<Report>,
    cx: &Context<'_>,
    first: Option<u64>,
    is_ready: impl FnMut() -> bool,
) -> Poll<Result<(), Error>> {
    if results.is_forked() {
        return Poll::Ready(Err(Error::Forked));
    }
    let driven = results.poll_owner(cx, first, is_ready);
    driven.map(|is_driven| if is_driven { Ok(()) } else { Err(Error::DriverGone) })
}

impl<T: Transport> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
