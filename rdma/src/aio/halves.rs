//! The halves of a queue pair, for two tasks.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use super::registered::Registered;
use super::{Error, InFlight, QueuePair, Received, Requester};
use crate::error::Result as VerbResult;
use crate::qp::divided::{Divided, Part, Parts};
use crate::qp::op::{Operation, Work};
use crate::qp::{Owned, PostError, QpControl, RecvQueue, ReuniteError, SendQueue, Writable};
use crate::transport::Transport;

/// The half of a queue pair that starts requests: [`QueuePair::into_split`].
///
/// The halves may be dropped in any order, on any thread. The queue pair ends with the second. A
/// request of a dropped half goes on.
pub struct SendHalf<T: Transport> {
    part: Part<SendQueue, T, Registered>,
}

/// The half of a queue pair that awaits messages: [`QueuePair::into_split`].
///
/// After its drop, receives stay posted, and messages that were not taken keep their memory, until
/// the queue pair ends with its other handles.
pub struct RecvHalf<T: Transport> {
    part: Part<RecvQueue, T, Registered>,
}

/// A free slot for one request: [`SendHalf::reserve`].
#[derive(Debug)]
#[must_use = "the slot is held only until this is dropped"]
pub struct HalfSlot<'a, T: Transport> {
    half: &'a mut SendHalf<T>,
}

impl<T: Transport> SendHalf<T> {
    pub(super) fn split((send, recv): Parts<T, Registered>) -> (Self, RecvHalf<T>) {
        (Self { part: send }, RecvHalf { part: recv })
    }

    /// Posts a request, and returns the future of its completion: [`QueuePair::start`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::start`].
    #[inline]
    pub fn start<O: Operation<T>, L: Owned>(
        &mut self,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        let sent = self.part.divided().extra().sent;
        Registered::start::<T, O, L>(sent, self.part.queue_mut(), work)
    }

    /// Waits for a free slot for a request: [`QueuePair::reserve`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::reserve`].
    pub async fn reserve(&mut self) -> Result<HalfSlot<'_, T>, Error> {
        poll_fn(|cx| self.poll_room(cx)).await?;
        Ok(HalfSlot { half: self })
    }

    /// Polls until a slot is free for a request: [`QueuePair::poll_room`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::reserve`].
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let sent = self.part.divided().extra().sent;
        Registered::poll_room(sent, self.part.queue_mut(), cx)
    }

    /// Moves the queue pair to the error state, and waits until every request of this half has
    /// given its memory back. Receives end, too.
    ///
    /// # Errors
    ///
    /// An error of the change to the error state.
    pub async fn shutdown(&mut self) -> VerbResult<()> {
        let registered = self.part.divided().extra();
        registered.end();
        self.control().set_error()?;
        // Without a driver the drop of the queue pair ends the requests.
        let _driven = poll_fn(|cx| registered.poll_sends_ended(self.part.queue(), cx)).await;
        Ok(())
    }

    /// Lets several tasks start requests.
    #[must_use]
    pub fn into_requester(self) -> Requester<T> {
        Requester::new(self.part)
    }

    /// Puts the two halves of a queue pair together.
    ///
    /// # Errors
    ///
    /// With both halves, if they are of two queue pairs.
    pub fn reunite(self, recv: RecvHalf<T>) -> Result<QueuePair<T>, ReuniteError<Self, RecvHalf<T>>> {
        match Divided::reunite((self.part, recv.part)) {
            Ok(whole) => Ok(QueuePair::whole(whole)),
            Err((send, recv)) => Err(ReuniteError { send: Self { part: send }, recv: RecvHalf { part: recv } }),
        }
    }

    /// The number of requests whose future was dropped and that have not ended.
    #[must_use]
    pub fn abandoned(&self) -> usize {
        self.part.divided().extra().abandoned()
    }

    /// The queue pair, without its work queues.
    #[must_use]
    pub fn control(&self) -> QpControl<'_, T> {
        self.part.divided().control()
    }

    /// The send queue, for inspection.
    #[must_use]
    pub fn send_queue(&self) -> &SendQueue {
        self.part.queue()
    }
}

impl<T: Transport> HalfSlot<'_, T> {
    /// Posts a request: [`SendHalf::start`]. A slot is free for it.
    ///
    /// # Errors
    ///
    /// As for [`SendHalf::start`].
    pub fn start<O: Operation<T>, L: Owned>(
        self,
        work: Work<O, L>,
    ) -> Result<InFlight<L::Returned>, PostError<L::Returned>> {
        self.half.start(work)
    }
}

impl<T: Transport> RecvHalf<T> {
    /// Posts a receive: [`QueuePair::post_recv`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`].
    #[inline]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L) -> Result<(), PostError<L::Returned>> {
        self.part.queue_mut().post_routed::<T, L>(local)
    }

    /// Waits for the next message, or for a receive that failed: [`QueuePair::next_received`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::next_received`].
    pub async fn next_received(&mut self) -> Result<Received, Error> {
        poll_fn(|cx| self.poll_received(cx)).await
    }

    /// Polls for the next message: [`next_received`](Self::next_received).
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::next_received`].
    #[inline]
    pub fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Result<Received, Error>> {
        let received = self.part.divided().extra().received;
        Registered::poll_received(received, self.part.queue_mut(), cx)
    }

    /// Moves the queue pair to the error state, and waits until every receive has ended. Received
    /// messages stay for [`next_received`](Self::next_received); requests of the other half end,
    /// too, and a [`Requester`] refuses further ones.
    ///
    /// # Errors
    ///
    /// An error of the change to the error state.
    pub async fn shutdown(&mut self) -> VerbResult<()> {
        let registered = self.part.divided().extra();
        registered.end();
        self.control().set_error()?;
        // Without a driver the drop of the queue pair ends the requests.
        let _driven = poll_fn(|cx| registered.poll_receives_ended(self.part.queue(), cx)).await;
        Ok(())
    }

    /// The queue pair, without its work queues.
    #[must_use]
    pub fn control(&self) -> QpControl<'_, T> {
        self.part.divided().control()
    }

    /// The receive queue, for inspection.
    #[must_use]
    pub fn recv_queue(&self) -> &RecvQueue {
        self.part.queue()
    }
}

impl<T: Transport> fmt::Debug for SendHalf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHalf").field("qp", &self.control()).finish_non_exhaustive()
    }
}

impl<T: Transport> fmt::Debug for RecvHalf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvHalf").field("qp", &self.control()).finish_non_exhaustive()
    }
}
