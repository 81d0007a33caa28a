//! The receive half of a queue pair. S is an invariant of [`posting`](super::posting).

#[cfg(feature = "aio")]
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
#[cfg(feature = "aio")]
use std::task::{Context, Poll};

use rdma_sys::{ibv_qp, ibv_recv_wr};

use super::chain::MAX_BATCH;
use super::local::{Local, Owned, Refusal, SgeList, Writable};
#[cfg(feature = "aio")]
use super::posting::Routed;
use super::posting::{Half, Keep, Outcome, PostError, Segments};
use super::transport::Transport;
use crate::ah::Grh;
use crate::cq::Attached;
use crate::error::ErrorKind;
use crate::handle::Handle;
use crate::pd::PdInner;
use crate::ring::{Info, Vacant};
#[cfg(feature = "aio")]
use crate::ring::{Published, Report, Results, Ticket};
use crate::types::Opcode;

/// The receive half of a queue pair.
///
/// Posting needs `&mut`; completions are polled from the completion queue, on any thread.
pub struct RecvQueue {
    pub(super) half: Half<ibv_recv_wr>,
    /// Whether the provider may write received data with the processor.
    pub(super) processor_writes: bool,
    /// The routed receives whose messages nobody has taken, in the order of posting, which is that
    /// of arrival.
    #[cfg(feature = "aio")]
    routed: VecDeque<Ticket<'static, Report>>,
    /// Whether a task waits for a message although no receive is posted.
    #[cfg(feature = "aio")]
    is_awaited: bool,
}

impl RecvQueue {
    /// Creates the receive half of a new queue pair (S1).
    pub(crate) fn new(
        raw: *mut ibv_qp,
        attached: Attached,
        pd: &Arc<Handle<PdInner>>,
        max_sge: u32,
        processor_writes: bool,
    ) -> Self {
        let batch = attached.producer.depth().min(MAX_BATCH);
        Self {
            half: Half::new(raw, attached, pd, batch, max_sge),
            processor_writes,
            #[cfg(feature = "aio")]
            routed: VecDeque::new(),
            #[cfg(feature = "aio")]
            is_awaited: false,
        }
    }

    /// Refuses all requests: the queue pair takes its receives from a shared receive queue.
    pub(super) fn set_shared(&mut self) {
        self.half.refuse(ErrorKind::SharedReceives);
    }

    /// The number of requests that the queue can hold; 0 if the queue pair takes its receives from
    /// a shared receive queue.
    #[must_use]
    pub fn depth(&self) -> u32 {
        if self.half.is_live() { self.half.attached.producer.depth() } else { 0 }
    }

    /// The number of requests that can be posted now. The call checks that many slots of the queue.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.half.is_live() { self.half.attached.producer.room() } else { 0 }
    }

    /// Implements [`QueuePair::post_recv`](super::QueuePair::post_recv), but logs no error.
    #[inline]
    pub(super) fn post<T, L>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>>
    where
        T: Transport,
        L: Owned + Writable,
    {
        // If posting panics, leak the memory: the slot may own it by then.
        let local = ManuallyDrop::new(local);
        // SAFETY: post_kept requires that the parked memory is not used unless it was returned:
        // `settle` forgets it with `surrender`, or returns it after the slot was freed.
        let outcome = unsafe { self.post_kept::<T, L>(&local, token, &Segments(&*local)) };
        outcome.settle(ManuallyDrop::into_inner(local), L::surrender, L::give_back)
    }

    /// The results of the queue's routed receives.
    #[cfg(feature = "aio")]
    pub(crate) fn results(&self) -> &'static Results<Report> {
        self.half.results()
    }

    /// Posts a receive whose completion goes to the queue's results.
    #[cfg(feature = "aio")]
    #[inline]
    pub(crate) fn post_routed<T, L>(&mut self, local: L) -> Result<(), PostError<L::Returned>>
    where
        T: Transport,
        L: Owned + Writable,
    {
        let Some(ticket) = self.half.begin() else { return Err(Half::<ibv_recv_wr>::forked(local)) };
        if self.is_awaited {
            ticket.watch();
        }
        // If posting panics, leak the memory: the slot may own it by then.
        let local = ManuallyDrop::new(local);
        // SAFETY: post_kept requires that the parked memory is not used unless it was returned:
        // `settle` forgets it with `surrender`, or returns it after the slot was freed.
        let outcome = unsafe { self.post_kept::<T, L>(&local, ticket.index().into(), &Routed(&*local)) };
        let posted = outcome.settle(ManuallyDrop::into_inner(local), L::surrender, L::give_back);
        let posted = posted.inspect_err(PostError::log);
        // SAFETY: posted requires the outcome of the ticket's request: it was just posted.
        let ticket = unsafe { Half::<ibv_recv_wr>::posted(ticket, posted) }?;
        // A refused receive wakes nobody: the task waits for the next.
        self.is_awaited = false;
        self.routed.push_back(ticket);
        Ok(())
    }

    /// Polls for the next message of a routed receive; `Ready(None)` if no driver would bring one.
    #[cfg(feature = "aio")]
    #[inline]
    pub(crate) fn poll_routed(&mut self, cx: &Context<'_>) -> Poll<Option<Published<'static, Report>>> {
        if !self.routed.front().is_some_and(Ticket::is_done) {
            match self.results().wait_for_first(self.routed.front(), cx) {
                None => return Poll::Ready(None),
                Some(false) => {
                    self.is_awaited = self.routed.is_empty();
                    return Poll::Pending;
                }
                Some(true) => {}
            }
        }
        Poll::Ready(self.routed.pop_front().and_then(Ticket::published))
    }

    /// Posts memory that `keep` keeps valid.
    ///
    /// # Safety
    ///
    /// The caller does not use the memory that `keep` puts into the slot, unless the outcome is
    /// [`Outcome::Returned`].
    #[inline(always)]
    pub(super) unsafe fn post_kept<T: Transport, L: Local>(
        &mut self,
        local: &L,
        token: u64,
        keep: &impl Keep,
    ) -> Outcome {
        // SAFETY: stage requires that the parked memory is used once: the caller does not use it
        // (the contract of this function), and if it is returned, the slot was freed without using
        // it.
        match unsafe { self.stage::<T, L>(0, (local, token), keep) } {
            Ok(slot) => {
                // SAFETY: park requires a slot that is written and described: `stage` did both.
                let parked = unsafe { slot.park() };
                // SAFETY: submit_one requires that request 0 was staged last, and its slot parked:
                // just done.
                unsafe { self.half.submit_one(parked, 0) }
            }
            Err(refusal) => Outcome::Returned(self.half.refused(refusal, 1)),
        }
    }

    /// Stages request `at`.
    ///
    /// # Safety
    ///
    /// As for [`Half::stage`].
    #[inline(always)]
    pub(super) unsafe fn stage<T: Transport, L: Local>(
        &mut self,
        at: u32,
        (local, token): (&L, u64),
        keep: &impl Keep,
    ) -> Result<Vacant<'_>, Refusal> {
        if self.processor_writes && local.is_out_of_reach() {
            return Err(Refusal::NotSupported);
        }
        let fill = |_: &mut ibv_recv_wr, list: &mut SgeList<'_>| {
            let has_room = !T::IS_DATAGRAM || list.total() >= Grh::LEN as u64;
            if has_room { Ok(()) } else { Err(Refusal::OutOfBounds) }
        };
        let info = Info::new(0, 0, Opcode::Recv).datagram(T::IS_DATAGRAM);
        // SAFETY: `Half::stage` has the same contract as this function.
        unsafe { self.half.stage(at, (local, token), keep, fill, (info, None)) }
    }
}

debug_by_methods!(RecvQueue: depth);
