//! The two halves of a queue pair, lent out separately.
//!
//! They are handed out as values of their own, and not as `&mut SendQueue`: two such references could be swapped, and each
//! queue pair would then release what the other has in flight (S1 of [`send`](super::send)).

use std::fmt;
use std::ops::Deref;

use super::gather::{Owned, Writable};
use super::op::{Operation, Work};
use super::post::{Batch, PostError};
use super::recv::RecvQueue;
use super::send::SendQueue;

/// The send half of a queue pair, for one thread: [`QueuePair::split_mut`](super::QueuePair::split_mut).
pub struct SendHalf<'a> {
    queue: &'a mut SendQueue,
}

/// The receive half of a queue pair, for one thread: [`QueuePair::split_mut`](super::QueuePair::split_mut).
pub struct RecvHalf<'a> {
    queue: &'a mut RecvQueue,
}

impl<'a> SendHalf<'a> {
    pub(super) fn new(queue: &'a mut SendQueue) -> Self {
        Self { queue }
    }

    /// Posts a request: [`QueuePair::post_send`](super::QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<O: Operation, L: Owned>(&mut self, work: Work<O, L>) -> Result<(), PostError<Work<O, L>>> {
        self.queue.post(work)
    }

    /// Starts a batch of requests, posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, '_> {
        self.queue.batch()
    }
}

impl<'a> RecvHalf<'a> {
    pub(super) fn new(queue: &'a mut RecvQueue) -> Self {
        Self { queue }
    }

    /// Posts memory for a message: [`QueuePair::post_recv`](super::QueuePair::post_recv).
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L>> {
        self.queue.post(local, token)
    }
}

impl Deref for SendHalf<'_> {
    type Target = SendQueue;

    fn deref(&self) -> &SendQueue {
        self.queue
    }
}

impl Deref for RecvHalf<'_> {
    type Target = RecvQueue;

    fn deref(&self) -> &RecvQueue {
        self.queue
    }
}

impl fmt::Debug for SendHalf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}

impl fmt::Debug for RecvHalf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}
