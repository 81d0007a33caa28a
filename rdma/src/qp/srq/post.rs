//! Posting to a shared receive queue. Numbers cite the invariants of [`super`].

use std::mem::ManuallyDrop;
use std::ptr;

use rdma_sys::ibv_srq;

use super::{Held, SharedReceiveQueue};
use crate::ah::Grh;
use crate::error::{Error, ErrorKind, Verb};
use crate::fork;
use crate::qp::chain::WorkRequest;
use crate::qp::local::{Owned, Refusal, SgeList, Writable};
use crate::qp::posting::{Ended, Keep, Outcome, PostError, Segments, post_error};
use crate::ring::{Info, Staged};
use crate::transport::Transport;
use crate::types::Opcode;

impl<T: Transport> SharedReceiveQueue<T> {
    /// Posts a receive. The completion of the message that takes it returns the memory, with
    /// `token`.
    ///
    /// If a queue pair ends while a message is under way to it, the receive that the message has
    /// taken has no completion: its memory stays in flight until the queue is destroyed, and the
    /// queue can take one receive less. A server that calls
    /// [`set_error`](crate::QueuePair::set_error) and polls before it drops a queue pair loses
    /// none.
    ///
    /// # Errors
    ///
    /// With the memory, if the device did not accept the receive: `QueueFull` until messages have
    /// taken receives and their completions are polled; `TooManySegments`; `InvalidInput` (memory
    /// of another protection domain); `OutOfBounds` for a datagram's receive of less than 40 bytes;
    /// or any error that the provider reports. Without the memory, if the device may have accepted
    /// the receive although the provider reported an error: the memory stays in flight, and the
    /// queue takes no further receives.
    ///
    /// # Examples
    ///
    /// A server that posts each receive again:
    ///
    /// ```
    /// # use rdma::{Error, Poller, SharedReceiveQueue};
    /// # fn f(receives: &mut SharedReceiveQueue, poller: &mut Poller) -> Result<(), Error> {
    /// while let Some(mut completion) = poller.wait(None)? {
    ///     let (client, len, token) = (completion.qpn(), completion.byte_len(), completion.token());
    ///     let Some(buffer) = completion.take_buffer() else { continue };
    ///     println!("{client:#x}: {:?}", buffer.get(..len));
    ///     receives.post_recv(buffer, token)?;
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post_recv<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        self.post(local, token).inspect_err(PostError::log)
    }

    /// As [`post_recv`](Self::post_recv), without a line in the log, for a caller that holds a
    /// lock: it calls [`PostError::log`] after it has released the lock.
    ///
    /// # Errors
    ///
    /// As for [`post_recv`](Self::post_recv).
    #[inline]
    pub fn post_recv_unlogged<L: Owned + Writable>(
        &mut self,
        local: L,
        token: u64,
    ) -> Result<(), PostError<L::Returned>> {
        self.post(local, token)
    }

    #[inline(always)]
    fn post<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        // If posting panics, leak the memory: the slot may own it by then.
        let local = ManuallyDrop::new(local);
        // SAFETY: stage requires that the memory is forgotten unless the slot was freed: `settle`
        // forgets it with `surrender`, or returns it after the slot was freed.
        let outcome = match unsafe { self.stage(&*local, token) } {
            Ok((staged, srq)) => self.submit(staged, srq),
            Err(refusal) => Outcome::Returned(self.refused(refusal)),
        };
        outcome.settle(ManuallyDrop::into_inner(local), L::surrender, L::give_back)
    }

    /// Writes the request and parks its memory in a free slot; a refusal changes nothing. Returns
    /// the C queue too.
    ///
    /// # Safety
    ///
    /// After success the memory is forgotten, unless the slot is freed by `forget_segments`.
    #[inline(always)]
    unsafe fn stage<L: Owned>(&mut self, local: &L, token: u64) -> Result<(Staged, *mut ibv_srq), Refusal> {
        if self.live_in != fork::generation() {
            return Err(Refusal::Ended);
        }
        if self.processor_writes && local.is_out_of_reach() {
            return Err(Refusal::NotSupported);
        }
        let Some(Held { producer, inner }) = &mut self.held else { return Err(Refusal::Ended) };
        let domain = self.chain.domain;
        let (wr, sges) = self.chain.request_0();
        let mut list = SgeList::new(sges, domain);
        local.describe(&mut list)?;
        if T::IS_DATAGRAM && list.total() < Grh::LEN as u64 {
            return Err(Refusal::OutOfBounds);
        }
        let mut slot = producer.vacant().ok_or(Refusal::QueueFull)?;
        // SAFETY: `Keep::park` requires that the copies are used once: the contract of this
        // function.
        let count = unsafe { Segments(local).park(&mut slot) };
        slot.describe(token, Info::new(0, 0, Opcode::Recv).datagram(T::IS_DATAGRAM).with_count(count));
        wr.describe(slot.wr_id(), list.count());
        // SAFETY: park requires a slot that is described, with its number of segments: just done.
        let (staged, _) = unsafe { slot.park() };
        Ok((staged, inner.raw.as_ptr()))
    }

    /// Posts the request that was staged last.
    #[inline(always)]
    fn submit(&mut self, staged: Staged, srq: *mut ibv_srq) -> Outcome {
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_srq_recv requires a live queue (`stage` returned it: 1) of this process
        // (`stage` checked),
        // and a chain of requests whose lists and memory are valid while the device may access
        // them: the chain lives as long as `self`, and the memory is parked (3).
        let result = unsafe { rdma_sys::ibv_post_srq_recv(srq, self.chain.first(), &raw mut bad) };
        if result == 0 { Outcome::InFlight } else { self.take_back(result, ptr::eq(bad, self.chain.first()), staged) }
    }

    /// Ends a request that the provider refused. `is_bad`: the provider says that it is this
    /// request that it has not taken (3).
    #[cold]
    fn take_back(&mut self, result: i32, is_bad: bool, staged: Staged) -> Outcome {
        let error = post_error(Verb::PostSrqRecv, result);
        let claimed = self.held.as_ref().filter(|_| is_bad).and_then(|held| held.producer.take_back(staged));
        let Some(claimed) = claimed else {
            // The device may fill the memory at any time: the queue takes no more of it.
            self.live_in = fork::NEVER;
            return Outcome::Unknown(error, Some(Ended::SharedReceives));
        };
        claimed.forget_segments();
        Outcome::Returned(error)
    }

    #[cold]
    fn refused(&self, refusal: Refusal) -> Error {
        let ended = if self.inner().context().is_forked() { ErrorKind::Forked } else { ErrorKind::NoDevice };
        Error::new(Verb::PostSrqRecv, refusal.kind(ended))
    }

    /// The number of receives that can be posted now, as far as this program knows: receives whose
    /// completions are not polled yet count as posted. The call checks each slot of the queue.
    #[must_use]
    pub fn room(&self) -> u32 {
        let busy = self.held.as_ref().map_or(0, |held| held.producer.busy());
        self.depth().saturating_sub(u32::try_from(busy).unwrap_or(u32::MAX))
    }
}
