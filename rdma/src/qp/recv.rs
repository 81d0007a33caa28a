//! Posting to a receive queue. The invariants are those of [`send`](super::send).

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_recv_wr};

use super::Transport;
use super::gather::{Local, Owned, Refusal, SgeList, Writable};
use super::post::PostError;
use super::ring::{Attached, Claimed, Info, Staged, Vacant};
use super::scratch::Scratch;
use super::send::{ended, post_error, set_error};
use crate::ah::Grh;
use crate::context::ContextInner;
use crate::error::{Error, Operation as Verb};
use crate::fork;
use crate::handle::Handle;
use crate::pd::PdInner;
use crate::types::Opcode;

/// The receive half of a queue pair.
///
/// Posting needs `&mut`; completions are polled from the completion queue, on any thread.
pub struct RecvQueue {
    raw: *mut ibv_qp,
    attached: Attached,
    scratch: Scratch<ibv_recv_wr>,
    domain: *const PdInner,
    /// The process that it is for; after its end, one that will never be. Invariant **L1**: while it can be this one, `scratch`
    /// has room for a request.
    live_in: u32,
    context: Arc<Handle<ContextInner>>,
}

// SAFETY: as for SendQueue.
unsafe impl Send for RecvQueue {}
// SAFETY: as for SendQueue.
unsafe impl Sync for RecvQueue {}

impl RecvQueue {
    /// The half of a queue pair that was just created (S1).
    pub(crate) fn new(raw: *mut ibv_qp, attached: Attached, pd: &Arc<Handle<PdInner>>, max_sge: u32) -> Self {
        Self {
            raw,
            attached,
            scratch: Scratch::new(1, max_sge.max(1) as usize, |wr: &mut ibv_recv_wr, list| wr.sg_list = list),
            domain: pd.identity(),
            live_in: pd.context.fork,
            context: Arc::clone(&pd.context),
        }
    }

    /// Requests that it holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.attached.producer.depth()
    }

    /// [`QueuePair::post_recv`](super::QueuePair::post_recv).
    #[inline]
    pub(super) fn post<T: Transport, L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L>> {
        // Should anything below panic, it is leaked: the slot may have it.
        let local = ManuallyDrop::new(local);
        // SAFETY: `local` is forgotten below once the request is posted, and the slot's copies are if it is not.
        let staged = self.stage::<T, L>(&local, token, false, |slot| unsafe {
            let mut count = 0;
            local.park(slot, &mut count);
            count
        });
        let vacant = match staged {
            Ok(vacant) => vacant,
            Err(refusal) => return Err(PostError::new(self.refuse(refusal), Some(ManuallyDrop::into_inner(local)))),
        };
        let staged = vacant.staged();
        // SAFETY: `stage` described the slot, with as many segments as were written.
        unsafe { vacant.park() };
        match self.submit() {
            Ok(()) => {
                ManuallyDrop::into_inner(local).surrender();
                Ok(())
            }
            Err((error, bad)) => {
                if self.take_back_one(bad, staged) {
                    return Err(PostError::new(error, Some(ManuallyDrop::into_inner(local))));
                }
                // The slot has the memory now, or whoever polls it. First of all: what follows logs, and may panic.
                ManuallyDrop::into_inner(local).surrender();
                self.fail_unless_first(bad);
                Err(PostError::new(error, None))
            }
        }
    }

    /// How many requests the device may still have.
    pub(super) fn in_flight(&self) -> usize {
        self.attached.producer.parked()
    }

    /// Fills in the request and the slot at the head. `park` writes the segments and says how many.
    #[inline(always)]
    pub(super) fn stage<T: Transport, L: Local>(
        &mut self,
        local: &L,
        token: u64,
        scoped: bool,
        park: impl FnOnce(&mut Vacant<'_>) -> usize,
    ) -> Result<Vacant<'_>, Refusal> {
        if self.live_in != fork::generation() {
            return Err(Refusal::Ended);
        }
        // SAFETY: L1.
        let (wr, sges) = unsafe { self.scratch.request_0() };
        let mut list = SgeList::new(sges, self.domain);
        local.describe(&mut list)?;
        let (segments, len) = list.finish();
        if T::IS_DATAGRAM && len < Grh::LEN as u64 {
            return Err(Refusal::OutOfBounds);
        }
        let Some(mut slot) = self.attached.producer.vacant() else { return Err(Refusal::QueueFull) };
        let count = park(&mut slot);
        slot.describe(token, Info::new(0, count, Opcode::Recv).scoped(scoped).datagram(T::IS_DATAGRAM));
        wr.wr_id = slot.wr_id();
        wr.next = ptr::null_mut();
        wr.num_sge = segments;
        Ok(slot)
    }

    /// Posts the request that was staged and parked.
    #[inline]
    pub(super) fn submit(&mut self) -> Result<(), (Error, *mut ibv_recv_wr)> {
        self.attached.producer.advance(0);
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_recv wants a queue pair, which lives (S1), in this process (`stage` checked), and a request whose list
        // and memory are valid: S2; both live as long as `self`.
        let result = unsafe { rdma_sys::ibv_post_recv(self.raw, self.scratch.first(), &raw mut bad) };
        if result == 0 { Ok(()) } else { Err((post_error(Verb::PostRecv, result), bad)) }
    }

    /// As [`SendQueue::take_back_one`](super::SendQueue::take_back_one).
    #[cold]
    pub(super) fn take_back_one(&mut self, bad: *mut ibv_recv_wr, staged: Staged) -> bool {
        // S3: the device did not take it. If it was completed all the same, whoever polled it has the memory.
        ptr::eq(bad, self.scratch.first())
            && self.attached.producer.take_back(staged).map(Claimed::forget_segments).is_some()
    }

    /// As [`SendQueue::fail_unless_first`](super::SendQueue::fail_unless_first).
    #[cold]
    pub(super) fn fail_unless_first(&self, bad: *mut ibv_recv_wr) {
        if !ptr::eq(bad, self.scratch.first()) {
            set_error(&self.context, self.raw);
        }
    }

    /// Releases everything in flight. The device has let go of it: the queue pair was reset.
    pub(crate) fn reclaim(&mut self) {
        self.attached.producer.reclaim();
    }

    #[cold]
    pub(super) fn refuse(&self, refusal: Refusal) -> Error {
        Error::new(Verb::PostRecv, refusal.kind(ended(&self.context)))
    }

    /// Releases everything in flight, and takes no more: the queue pair was destroyed (S1).
    pub(crate) fn release_all(&mut self) {
        self.live_in = fork::NEVER;
        self.attached.producer.reclaim();
    }
}

impl fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvQueue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}
