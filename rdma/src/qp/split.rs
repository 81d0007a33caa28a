//! The owned halves of a queue pair.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::batch::{Batch, RecvBatch};
use super::divided::{Divided, Part, WorkQueue};
use super::local::{Owned, Writable};
use super::op::{Operation, Work};
use super::posting::PostError;
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::transport::{Rc, Transport};
use super::{QpControl, QueueHalf, QueuePair, RecvHalf, SendHalf};
use crate::cq::{Completion, Poller};

/// An [`OwnedSendHalf`] or [`OwnedRecvHalf`].
///
/// The halves of a queue pair live in two threads or tasks, without a lock between them. They may
/// be dropped in any order, on any thread: the drop of the second destroys the queue pair. A half
/// that is forgotten keeps the queue pair, and the memory that is in flight, for ever.
///
/// Either half may look at the queue pair and move it to the error state
/// ([`control`](Self::control)). Other changes of its state, and its end with a result
/// ([`QueuePair::close`]), need both halves: [`reunite`](OwnedSendHalf::reunite) them.
///
/// The connection of a queue pair that the connection manager has connected is a value of its own.
/// The control of either half ends it: [`Connection::disconnect`].
///
/// [`Connection::disconnect`]: crate::cm::blocking::Connection::disconnect
pub struct OwnedHalf<Q, T: Transport> {
    part: Part<Q, T>,
}

/// The send half of a queue pair: [`QueuePair::into_split`].
pub type OwnedSendHalf<T = Rc> = OwnedHalf<SendQueue, T>;

/// The receive half of a queue pair: [`QueuePair::into_split`].
pub type OwnedRecvHalf<T = Rc> = OwnedHalf<RecvQueue, T>;

/// The halves that were to be reunited are of two queue pairs. Both come back.
#[derive(thiserror::Error)]
#[error("the halves are of two queue pairs: reunite those that one call of into_split returned")]
#[non_exhaustive]
pub struct ReuniteError<S, R> {
    /// The send half.
    pub send: S,
    /// The receive half.
    pub recv: R,
}

impl<S, R> fmt::Debug for ReuniteError<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T: Transport> QueuePair<T> {
    /// Splits the queue pair into two halves that live apart, for example in two threads.
    ///
    /// [`split_mut`](Self::split_mut) borrows the queue pair instead, and costs nothing; this
    /// function allocates once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, a, mut b, .. } = pair()?;
    /// # b.post_recv(pd.allocate(16)?, 0)?;
    /// let message = pd.allocate(16)?;
    /// let room = pd.allocate(16)?;
    /// let (mut send, mut recv) = a.into_split();
    /// let receiving = std::thread::spawn(move || recv.post(room, 1).map(|()| recv));
    /// send.post(rdma::op::send(message))?;
    /// let recv = receiving.join().expect("no panic")?;
    /// // Both halves again, for what needs all of the queue pair.
    /// let a = send.reunite(recv)?;
    /// # let _ = poller.poll()?;
    /// # drop(poller);
    /// a.close()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn into_split(self) -> (OwnedSendHalf<T>, OwnedRecvHalf<T>) {
        let (send, recv) = Divided::divide(self, ());
        (OwnedHalf { part: send }, OwnedHalf { part: recv })
    }
}

#[allow(private_bounds, reason = "the two queues are all that there are")]
impl<Q: WorkQueue, T: Transport> OwnedHalf<Q, T> {
    /// What either half may do: look at the queue pair, and move it to the error state.
    #[must_use]
    pub fn control(&self) -> QpControl<'_, T> {
        self.part.divided().control()
    }

    fn half(&mut self) -> QueueHalf<'_, Q, T> {
        QueueHalf::new(self.part.queue_mut())
    }
}

impl<T: Transport> OwnedSendHalf<T> {
    /// Posts a request: [`QueuePair::post_send`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<O: Operation<T>, L: Owned>(&mut self, work: Work<O, L>) -> Result<(), PostError<L::Returned>> {
        self.half().post(work)
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
        on_completion: impl FnMut(Completion<'_>),
    ) -> Result<(), PostError<L::Returned>> {
        self.half().post_or_wait(work, poller, timeout, on_completion)
    }

    /// Starts a batch of requests, posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, '_, T> {
        Batch::new(self.part.queue_mut())
    }

    /// The half as a borrowed one, for code that takes either.
    pub fn as_half(&mut self) -> SendHalf<'_, T> {
        self.half()
    }

    /// Puts the two halves of a queue pair together.
    ///
    /// # Errors
    ///
    /// With both halves, if they are of two queue pairs.
    pub fn reunite(self, recv: OwnedRecvHalf<T>) -> Result<QueuePair<T>, ReuniteError<Self, OwnedRecvHalf<T>>> {
        match Divided::reunite((self.part, recv.part)) {
            Ok((qp, ())) => Ok(qp),
            Err((send, recv)) => Err(ReuniteError { send: Self { part: send }, recv: OwnedHalf { part: recv } }),
        }
    }
}

impl<T: Transport> OwnedRecvHalf<T> {
    /// Posts a receive: [`QueuePair::post_recv`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        self.half().post(local, token)
    }

    /// Starts a batch of receives, posted with one doorbell: [`QueuePair::recv_batch`].
    pub fn batch(&mut self) -> RecvBatch<'_, T> {
        Batch::new(self.part.queue_mut())
    }

    /// The half as a borrowed one, for code that takes either.
    pub fn as_half(&mut self) -> RecvHalf<'_, T> {
        self.half()
    }
}

#[allow(private_bounds, reason = "the two queues are all that there are")]
impl<Q: WorkQueue, T: Transport> Deref for OwnedHalf<Q, T> {
    type Target = Q;

    fn deref(&self) -> &Q {
        self.part.queue()
    }
}

#[allow(private_bounds, reason = "the two queues are all that there are")]
impl<Q: WorkQueue + fmt::Debug, T: Transport> fmt::Debug for OwnedHalf<Q, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.queue().fmt(f)
    }
}
