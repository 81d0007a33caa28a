//! The two halves of a queue pair, lent out separately.
//!
//! They are handed out as values of their own, and not as `&mut SendQueue`: two such references could be swapped, and each
//! queue pair would then release what the other has in flight (S1 of [`send`](super::send)).

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use super::gather::{Owned, Writable};
use super::op::{Operation, Work};
use super::post::{Batch, PostError};
use super::recv::RecvQueue;
use super::send::SendQueue;
use super::{Rc, Transport};

/// The send half of a queue pair, for one thread: [`QueuePair::split_mut`](super::QueuePair::split_mut).
pub struct SendHalf<'a, T: Transport = Rc> {
    queue: &'a mut SendQueue,
    transport: PhantomData<T>,
}

/// The receive half of a queue pair, for one thread: [`QueuePair::split_mut`](super::QueuePair::split_mut).
pub struct RecvHalf<'a, T: Transport = Rc> {
    queue: &'a mut RecvQueue,
    transport: PhantomData<T>,
}

impl<'a, T: Transport> SendHalf<'a, T> {
    pub(super) fn new(queue: &'a mut SendQueue) -> Self {
        Self { queue, transport: PhantomData }
    }

    /// Posts a request: [`QueuePair::post_send`](super::QueuePair::post_send).
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<O: Operation<T>, L: Owned>(&mut self, work: Work<O, L>) -> Result<(), PostError<Work<O, L>>> {
        self.queue.post::<T, O, L>(work)
    }

    /// Starts a batch of requests, posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, '_, T> {
        Batch::new(self.queue)
    }
}

impl<'a, T: Transport> RecvHalf<'a, T> {
    pub(super) fn new(queue: &'a mut RecvQueue) -> Self {
        Self { queue, transport: PhantomData }
    }

    /// Posts memory for a message: [`QueuePair::post_recv`](super::QueuePair::post_recv).
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L>> {
        self.queue.post::<T, L>(local, token)
    }
}

impl<T: Transport> Deref for SendHalf<'_, T> {
    type Target = SendQueue;

    fn deref(&self) -> &SendQueue {
        self.queue
    }
}

impl<T: Transport> Deref for RecvHalf<'_, T> {
    type Target = RecvQueue;

    fn deref(&self) -> &RecvQueue {
        self.queue
    }
}

impl<T: Transport> fmt::Debug for SendHalf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}

impl<T: Transport> fmt::Debug for RecvHalf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}
