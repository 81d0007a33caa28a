//! A queue pair's place at its driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::driver::Handle;
use super::{Error, InFlight, Received};
use crate::panics::Panics;
use crate::qp::op::{Operation, Work};
use crate::qp::{Owned, PostError, RecvQueue, SendQueue};
use crate::ring::{Report, Results};
use crate::transport::Transport;

/// A queue pair's place at its driver, with the results of its work queues. Its drop, before the
/// queue pair ends, gives it up.
pub(super) struct Registered {
    pub(super) sent: &'static Results<Report>,
    pub(super) received: &'static Results<Report>,
    handle: Handle,
    /// Whether a [`Requester`](super::Requester) refuses requests.
    is_ended: AtomicBool,
}

impl Registered {
    pub(super) fn new(handle: &Handle, sent: &'static Results<Report>, received: &'static Results<Report>) -> Self {
        handle.shared().add([sent, received]);
        Self { sent, received, handle: handle.clone(), is_ended: AtomicBool::new(false) }
    }

    /// Posts a request to the send queue: [`QueuePair::start`](super::QueuePair::start).
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

    /// Polls until a slot of the send queue is free:
    /// [`QueuePair::poll_room`](super::QueuePair::poll_room).
    pub(super) fn poll_room(
        sent: &'static Results<Report>,
        queue: &mut SendQueue,
        cx: &Context<'_>,
    ) -> Poll<Result<(), Error>> {
        // Sends end in order, so the oldest frees its slot first.
        let oldest = queue.routed_after(0);
        poll_owner(sent, cx, oldest, || queue.has_room_after(0))
    }

    /// Polls for the next message: [`QueuePair::poll_received`](super::QueuePair::poll_received).
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
