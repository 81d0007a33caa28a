//! The send half of a queue pair. L, S and A are the invariants of [`posting`](super::posting).

use std::fmt;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_send_wr};

use super::Transport;
use super::local::{Local, Owned, Refusal};
use super::op::{INLINE, Opcode, Operation, SIGNALED, Work};
use super::posting::{Half, Keep, Outcome, PostError, Segments};
use super::ring::Info;
use crate::cq::Attached;
use crate::handle::Handle;
use crate::pd::PdInner;
use crate::types::Capabilities;
#[cfg(test)]
use crate::types::{AtomicCapability, TransportType};

/// Requests that a batch holds at most.
const MAX_BATCH: u32 = 64;

/// What a send queue was created for.
#[derive(Clone, Copy)]
pub(crate) struct SendLimits {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// The device signals every request.
    pub(crate) signal_all: bool,
    pub(crate) capabilities: Capabilities,
    /// Bytes that a datagram can have.
    pub(crate) max_message: u32,
}

/// The send half of a queue pair.
///
/// Posting needs `&mut`; completions are polled from the completion queue, on any thread.
pub struct SendQueue {
    pub(super) half: Half<ibv_send_wr>,
    pub(super) limits: SendLimits,
}

impl SendQueue {
    /// The half of a queue pair that was just created (S1).
    pub(crate) fn new(raw: *mut ibv_qp, attached: Attached, pd: &Arc<Handle<PdInner>>, limits: SendLimits) -> Self {
        let batch = attached.producer.depth().min(MAX_BATCH);
        Self { half: Half::new(raw, attached, pd, batch, limits.max_sge), limits }
    }

    /// Requests that it holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.half.attached.producer.depth()
    }

    /// How many requests can be posted now. It looks at as many slots of the queue.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.half.attached.producer.room()
    }

    /// Bytes that a request can carry inline.
    #[must_use]
    pub fn max_inline_data(&self) -> u32 {
        self.limits.max_inline
    }

    /// [`QueuePair::post_send`](super::QueuePair::post_send).
    #[inline]
    pub(super) fn post<T, O, L>(&mut self, work: Work<O, L>) -> Result<(), PostError<L::Returned>>
    where
        T: Transport,
        O: Operation<T>,
        L: Owned,
    {
        // Should posting panic, the memory is leaked: the slot may have it.
        let work = std::mem::ManuallyDrop::new(work);
        // SAFETY: `settle` forgets the memory by `surrender`, or has it back after the slot was
        // given up.
        let outcome = unsafe { self.post_kept::<T, O, L>(&work, &Segments(&work.local)) };
        outcome.settle(std::mem::ManuallyDrop::into_inner(work).local, L::surrender, L::give_back)
    }

    /// Posts a request whose memory `keep` keeps.
    ///
    /// # Safety
    ///
    /// What `keep` puts into the slot is not used by the caller, unless the outcome is
    /// [`Outcome::Returned`].
    #[inline(always)]
    pub(super) unsafe fn post_kept<T: Transport, O: Operation<T>, L: Local>(
        &mut self,
        work: &Work<O, L>,
        keep: &impl Keep,
    ) -> Outcome {
        let run = self.half.attached.producer.run();
        // SAFETY: the caller does not use what was kept; the slot is given up where it is returned.
        match unsafe { self.stage(0, run, work, keep) } {
            // SAFETY: staged just now.
            Ok(run_after) => unsafe { self.half.submit_one(keep, run, run_after) },
            Err(refusal) => Outcome::Returned(self.half.refused(refusal)),
        }
    }

    /// Stages request `at` of a chain, where `run` unsignaled ones come before. How many come
    /// before the next.
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
    ) -> Result<u32, Refusal> {
        let Self { half, limits } = self;
        // S2: what is only borrowed is copied.
        let flags = work.flags | L::INLINE;
        let asked = flags & SIGNALED != 0 || limits.signal_all;
        let forced = !asked && half.attached.producer.must_signal(run);
        let (domain, address) = (half.domain, work.operation.address());
        let info = Info::new(run, 0, O::OPCODE).forced(forced);
        let fill = |wr: &mut ibv_send_wr, list: &mut super::local::SgeList<'_>| {
            let len = list.total();
            work.operation.fill(wr, len, list.count())?;
            if flags & INLINE != 0 && len > u64::from(limits.max_inline) {
                return Err(Refusal::TooLong);
            }
            if matches!(O::OPCODE, Opcode::Read) && limits.capabilities.read_needs_exposed_sink {
                if !work.local.is_open_to_writes() {
                    return Err(Refusal::NotSupported);
                }
                // siw reads as much as an earlier request's element says if a list is empty.
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
            wr.send_flags = if forced { flags | SIGNALED } else { flags };
            Ok(())
        };
        // SAFETY: the caller's condition is the same.
        unsafe { half.stage(at, (&work.local, work.token), keep, fill, (info, address)) }?;
        Ok(if asked || forced { 0 } else { run + 1 })
    }

    /// How long a datagram may be from now on.
    pub(super) fn set_max_message(&mut self, bytes: u32) {
        self.limits.max_message = bytes;
    }

    /// How long a datagram may be.
    pub(super) fn max_message(&self) -> u32 {
        self.limits.max_message
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

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}
