//! The send half of a queue pair. S and A are the invariants of [`posting`](super::posting).

use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_send_wr};

use super::chain::MAX_BATCH;
use super::local::{Local, Owned, Refusal};
use super::op::{INLINE, Opcode, Operation, SIGNALED, Work};
#[cfg(feature = "aio")]
use super::posting::Routed;
use super::posting::{Half, Keep, Outcome, PostError, Segments};
use super::transport::Transport;
use crate::cq::Attached;
use crate::handle::Handle;
use crate::pd::PdInner;
use crate::ring::{Info, Vacant};
#[cfg(feature = "aio")]
use crate::ring::{Report, Results, Ticket};
use crate::types::Capabilities;
#[cfg(test)]
use crate::types::{AtomicCapability, TransportType};

/// The maximum length of a datagram on any port, in bytes; the limit until the port is known.
pub(super) const LONGEST_DATAGRAM: u32 = 4096;

/// The limits that a send queue was created with.
#[derive(Clone, Copy)]
pub(crate) struct SendLimits {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Whether the device signals every request.
    pub(crate) signal_all: bool,
    /// Whether the provider may write responses with the processor.
    pub(crate) processor_writes: bool,
    pub(crate) capabilities: Capabilities,
    /// The maximum length of a datagram, in bytes.
    pub(crate) max_message: u32,
}

/// The send half of a queue pair.
///
/// Posting needs `&mut`; completions are polled from the completion queue, on any thread.
pub struct SendQueue {
    pub(super) half: Half<ibv_send_wr>,
    pub(super) limits: SendLimits,
    /// The bytes of all requests that were posted.
    pub(super) bytes: u64,
}

impl SendQueue {
    /// Creates the send half of a new queue pair (S1).
    pub(crate) fn new(raw: *mut ibv_qp, attached: Attached, pd: &Arc<Handle<PdInner>>, limits: SendLimits) -> Self {
        let batch = attached.producer.depth().min(MAX_BATCH);
        Self { half: Half::new(raw, attached, pd, batch, limits.max_sge), limits, bytes: 0 }
    }

    /// The number of requests that the queue can hold.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.half.attached.producer.depth()
    }

    /// The number of requests that can be posted now. The call checks that many slots of the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// # let region = pd.allocate_exposed(64, rdma::RemoteAccess::WRITE)?;
    /// use rdma::op;
    ///
    /// // As many requests at a time as the queue takes, without a `QueueFull`.
    /// for _ in 0..a.send_queue().room() {
    ///     a.post_send(op::write(pd.allocate(16)?, region.remote(..)?))?;
    /// }
    /// assert_eq!(a.send_queue().room(), 0);
    /// // The slot is free once the completion has been handled.
    /// drop(poller.wait(None)?);
    /// # drop(poller);
    /// assert!(a.send_queue().room() > 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn room(&self) -> u32 {
        self.half.attached.producer.room()
    }

    /// The number of bytes that a request can carry inline.
    #[must_use]
    pub fn max_inline_data(&self) -> u32 {
        self.limits.max_inline
    }

    /// Implements [`QueuePair::post_send`](super::QueuePair::post_send), but logs no error.
    #[inline]
    pub(super) fn post<T, O, L>(&mut self, work: Work<O, L>) -> Result<(), PostError<L::Returned>>
    where
        T: Transport,
        O: Operation<T>,
        L: Owned,
    {
        // If posting panics, leak the memory: the slot may own it by then.
        let work = std::mem::ManuallyDrop::new(work);
        // SAFETY: post_kept requires that the parked memory is not used unless it was returned:
        // `settle` forgets it with `surrender`, or returns it after the slot was freed.
        let outcome = unsafe { self.post_kept::<T, O, L>(&work, &Segments(&work.local)) };
        outcome.settle(std::mem::ManuallyDrop::into_inner(work).local, L::surrender, L::give_back)
    }

    /// The results of the queue's routed requests.
    #[cfg(feature = "aio")]
    pub(crate) fn results(&self) -> &'static Results<Report> {
        self.half.results()
    }

    /// Whether more than `reserved` requests can be posted now, where `reserved` can.
    #[cfg(feature = "aio")]
    pub(crate) fn has_room_after(&mut self, reserved: u32) -> bool {
        reserved < self.depth() && self.half.attached.producer.vacant_after(reserved).is_some()
    }

    /// The token of the request in the slot after the `reserved` next ones, if it is routed: its
    /// end frees the slot.
    #[cfg(feature = "aio")]
    pub(crate) fn routed_after(&self, reserved: u32) -> Option<u64> {
        self.half.attached.producer.routed_after(reserved)
    }

    /// Posts a request whose completion goes to the queue's results.
    #[cfg(feature = "aio")]
    #[inline]
    pub(crate) fn post_routed<T, O, L>(
        &mut self,
        work: Work<O, L>,
    ) -> Result<Ticket<'static, Report>, PostError<L::Returned>>
    where
        T: Transport,
        O: Operation<T>,
        L: Owned,
    {
        self.submit_routed::<T, O, L>(work)?.settle()
    }

    /// As [`post_routed`](Self::post_routed), for a caller that holds a lock: runs no code of the
    /// program. The rest is [`Submitted::settle`].
    #[cfg(feature = "aio")]
    #[inline(always)]
    pub(crate) fn submit_routed<T, O, L>(&mut self, work: Work<O, L>) -> Result<Submitted<L>, PostError<L::Returned>>
    where
        T: Transport,
        O: Operation<T>,
        L: Owned,
    {
        let Some(ticket) = self.half.begin() else { return Err(Half::<ibv_send_wr>::forked(work.local)) };
        // If posting panics, leak the memory: the slot may own it by then.
        let work = std::mem::ManuallyDrop::new(work.signaled(true).token(ticket.index().into()));
        // SAFETY: post_kept requires that the parked memory is not used unless it was returned:
        // `settle` forgets it with `surrender`, or returns it after the slot was freed.
        let outcome = unsafe { self.post_kept::<T, O, L>(&work, &Routed(&work.local)) };
        let local = std::mem::ManuallyDrop::new(std::mem::ManuallyDrop::into_inner(work).local);
        Ok(Submitted { ticket, outcome, local })
    }

    /// Posts a request whose memory `keep` keeps valid.
    ///
    /// # Safety
    ///
    /// The caller does not use the memory that `keep` puts into the slot, unless the outcome is
    /// [`Outcome::Returned`].
    #[inline(always)]
    pub(super) unsafe fn post_kept<T: Transport, O: Operation<T>, L: Local>(
        &mut self,
        work: &Work<O, L>,
        keep: &impl Keep,
    ) -> Outcome {
        let run = self.half.attached.producer.run();
        // SAFETY: stage requires that the parked memory is used once: the caller does not use it
        // (the contract of this function), and if it is returned, the slot was freed without using
        // it.
        match unsafe { self.stage(0, run, work, keep) } {
            Ok((slot, run_after)) => {
                // SAFETY: park requires a slot that is written and described: `stage` did both.
                let parked = unsafe { slot.park() };
                // SAFETY: submit_one requires that request 0 was staged last, and its slot parked:
                // just done.
                let outcome = unsafe { self.half.submit_one(parked, run_after) };
                if matches!(outcome, Outcome::Returned(_)) {
                    self.uncount(0..1);
                }
                outcome
            }
            Err(refusal) => Outcome::Returned(self.half.refused(refusal, 1)),
        }
    }

    /// Takes the bytes of requests that the device did not accept out of the count. The chain still
    /// has the requests.
    #[cold]
    pub(super) fn uncount(&mut self, rejected: Range<u32>) {
        self.bytes -= rejected.map(|at| self.half.chain.bytes(at as usize)).sum::<u64>();
    }

    /// Stages request `at`, with `run` unsignaled requests directly before it, and counts its
    /// bytes. Returns its slot and the number of unsignaled requests directly before the next
    /// request.
    ///
    /// # Safety
    ///
    /// As for [`Half::stage`].
    #[inline(always)]
    pub(super) unsafe fn stage<T: Transport, O: Operation<T>, L: Local>(
        &mut self,
        at: u32,
        run: u32,
        work: &Work<O, L>,
        keep: &impl Keep,
    ) -> Result<(Vacant<'_>, u32), Refusal> {
        let Self { half, limits, bytes } = self;
        // The provider copies inline data, which is only borrowed (S2).
        let flags = work.flags | L::INLINE;
        let asked = flags & SIGNALED != 0 || limits.signal_all;
        let forced = !asked && half.attached.producer.must_signal(run);
        let (domain, address) = (half.chain.domain, work.operation.address());
        let info = Info::new(run, 0, O::OPCODE);
        let mut total = 0;
        let fill = |wr: &mut ibv_send_wr, list: &mut super::local::SgeList<'_>| {
            let len = list.total();
            total = len;
            work.operation.fill(wr, len, list.count())?;
            if flags & INLINE != 0 && len > u64::from(limits.max_inline) {
                return Err(Refusal::TooLong);
            }
            if O::OPCODE.writes_local() && limits.processor_writes && work.local.is_out_of_reach() {
                return Err(Refusal::NotSupported);
            }
            if matches!(O::OPCODE, Opcode::Read) && limits.capabilities.read_needs_exposed_sink {
                if !work.local.is_open_to_writes() {
                    return Err(Refusal::NotSupported);
                }
                // If the list is empty, siw reads as many bytes as the list element of an earlier
                // request says.
                list.push_placeholder();
            }
            if let Some(address) = address {
                if !ptr::eq(address.domain(), domain) {
                    return Err(Refusal::InvalidInput);
                }
                if len > u64::from(limits.max_message) {
                    return Err(Refusal::TooLong);
                }
            }
            // Also where the device signals all: of a foreign queue pair that is only the builder's
            // or the driver's word.
            wr.send_flags = if asked || forced { flags | SIGNALED } else { flags };
            Ok(())
        };
        // SAFETY: `Half::stage` has the same contract as this function.
        let slot = unsafe { half.stage(at, (&work.local, work.token), keep, fill, (info, address)) }?;
        *bytes += total;
        Ok((slot, if asked || forced { 0 } else { run + 1 }))
    }

    /// Sets the maximum length of a datagram, in bytes.
    pub(super) fn set_max_message(&mut self, bytes: u32) {
        self.limits.max_message = bytes;
    }

    /// The maximum length of a datagram, in bytes.
    pub(super) fn max_message(&self) -> u32 {
        self.limits.max_message
    }
}

/// A routed request that was submitted, and whose memory still has two owners: this value, which
/// leaks it if it is dropped, and the slot.
#[cfg(feature = "aio")]
#[must_use]
pub(crate) struct Submitted<L> {
    ticket: Ticket<'static, Report>,
    outcome: Outcome,
    local: std::mem::ManuallyDrop<L>,
}

#[cfg(feature = "aio")]
impl<L: Owned> Submitted<L> {
    /// Surrenders the memory to the slot, or returns it, and logs the end of the queue.
    #[inline(always)]
    pub(crate) fn settle(self) -> Result<Ticket<'static, Report>, PostError<L::Returned>> {
        let Self { ticket, outcome, local } = self;
        let posted = outcome.settle(std::mem::ManuallyDrop::into_inner(local), L::surrender, L::give_back);
        let posted = posted.inspect_err(PostError::log);
        // SAFETY: posted requires the outcome of the ticket's request: `submit_routed` posted it.
        unsafe { Half::<ibv_send_wr>::posted(ticket, posted) }
    }
}

#[cfg(test)]
impl SendQueue {
    pub(super) fn pretend_iwarp(&mut self) {
        self.limits.capabilities = Capabilities::new(TransportType::IWARP, AtomicCapability::NONE);
    }

    pub(super) fn next_wr_id(&mut self) -> Option<u64> {
        self.half.attached.producer.vacant().map(|slot| slot.wr_id())
    }

    pub(super) fn skip_laps(&mut self, laps: u64) {
        self.half.attached.producer.skip_laps(laps);
    }

    pub(super) fn is_next_forced(&self) -> bool {
        self.half.attached.producer.must_signal(self.half.attached.producer.run())
    }
}

debug_by_methods!(SendQueue: depth);
