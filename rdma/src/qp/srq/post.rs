//! Posting to a shared receive queue. Numbers cite the invariants of [`super`].

use std::mem::ManuallyDrop;
use std::ptr;

use rdma_sys::{ibv_recv_wr, ibv_srq};

use super::{Held, SharedReceiveQueue};
use crate::ah::Grh;
use crate::error::{Error, ErrorKind, Verb};
use crate::fork;
use crate::panics::Panics;
use crate::qp::batch::{Batch, BatchQueue};
use crate::qp::chain::WorkRequest;
use crate::qp::local::{Owned, Refusal, SgeList, Writable};
use crate::qp::posting::{Ended, Keep, NotPosted, Outcome, PostError, Segments, post_error};
use crate::ring::{Claimed, Info, SharedProducer, Staged, Vacant};
use crate::transport::{Rc, Transport};
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

    /// Starts a batch of receives, posted with one doorbell. A batch holds 64 receives at most, and
    /// no more than the queue has free slots.
    ///
    /// # Examples
    ///
    /// ```
    /// # let pd = rdma::open(&rdma::DeviceSelector::Any)?.context.alloc_pd()?;
    /// let mut receives = rdma::SharedReceiveQueue::builder(&pd).max_wr(64).build()?;
    /// let mut memory = pd.allocate(64 * 4096)?;
    /// let mut batch = receives.batch();
    /// for token in 0..64 {
    ///     batch.push(memory.split_to(4096), token)?;
    /// }
    /// batch.submit().map_err(|error| error.error())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn batch(&mut self) -> SrqBatch<'_, T> {
        Batch::new(self)
    }

    #[inline(always)]
    fn post<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        // If posting panics, leak the memory: the slot may own it by then.
        let local = ManuallyDrop::new(local);
        // SAFETY: stage requires that the memory is forgotten unless the slot was freed: `settle`
        // forgets it with `surrender`, or returns it after the slot was freed.
        let outcome = match unsafe { self.stage(0, (&*local, token), |producer, _| producer.vacant()) } {
            Ok((slot, srq)) => {
                // SAFETY: park requires a slot that is described, with its number of segments:
                // `stage` did both.
                let (staged, _) = unsafe { slot.park() };
                self.submit_one(staged, srq)
            }
            Err(refusal) => Outcome::Returned(self.refused(refusal)),
        };
        outcome.settle(ManuallyDrop::into_inner(local), L::surrender, L::give_back)
    }

    /// Writes request `at` and fills a slot that `vacant` finds beside those of the batch, which is
    /// ready to be parked; a refusal changes nothing. Returns the C queue too.
    ///
    /// # Safety
    ///
    /// After the slot is parked, the memory is forgotten, unless the slot is freed by
    /// `forget_segments`.
    #[inline(always)]
    unsafe fn stage<L: Owned>(
        &mut self,
        at: u32,
        (local, token): (&L, u64),
        vacant: impl for<'p> FnOnce(&'p mut SharedProducer, &[Staged]) -> Option<Vacant<'p>>,
    ) -> Result<(Vacant<'_>, *mut ibv_srq), Refusal> {
        if self.live_in != fork::generation() {
            return Err(Refusal::Ended);
        }
        if self.processor_writes && local.is_out_of_reach() {
            return Err(Refusal::NotSupported);
        }
        let Some(Held { producer, inner }) = &mut self.held else { return Err(Refusal::Ended) };
        let domain = self.chain.domain;
        let (wr, sges) =
            if at == 0 { self.chain.request_0() } else { self.chain.request(at as usize).ok_or(Refusal::QueueFull)? };
        let mut list = SgeList::new(sges, domain);
        local.describe(&mut list)?;
        if T::IS_DATAGRAM && list.total() < Grh::LEN as u64 {
            return Err(Refusal::OutOfBounds);
        }
        let mut slot = vacant(producer, &self.batch).ok_or(Refusal::QueueFull)?;
        // SAFETY: `Keep::park` requires that the copies are used once: the contract of this
        // function.
        let count = unsafe { Segments(local).park(&mut slot) };
        slot.describe(token, Info::new(0, 0, Opcode::Recv).datagram(T::IS_DATAGRAM).with_count(count));
        wr.describe(slot.wr_id(), list.count());
        Ok((slot, inner.raw.as_ptr()))
    }

    /// Posts the request that was staged last.
    #[inline(always)]
    fn submit_one(&mut self, staged: Staged, srq: *mut ibv_srq) -> Outcome {
        match self.ring_doorbell(srq) {
            Ok(()) => Outcome::InFlight,
            Err((result, bad)) => self.refused_post(result, ptr::eq(bad, self.chain.first()), staged),
        }
    }

    /// Posts the chain of requests from the first on.
    #[inline(always)]
    fn ring_doorbell(&mut self, srq: *mut ibv_srq) -> Result<(), (i32, *mut ibv_recv_wr)> {
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_srq_recv requires a live queue (`held` has it: 1) of this process (the
        // callers checked), and a chain of requests whose lists and memory are valid while the
        // device may access them: the chain lives as long as `self`, and the memory is parked (3).
        let result = unsafe { rdma_sys::ibv_post_srq_recv(srq, self.chain.first(), &raw mut bad) };
        if result == 0 { Ok(()) } else { Err((result, bad)) }
    }

    /// Ends a request that the provider refused. `is_bad`: the provider says that it is this
    /// request that it has not taken (3).
    #[cold]
    fn refused_post(&mut self, result: i32, is_bad: bool, staged: Staged) -> Outcome {
        let error = post_error(Verb::PostSrqRecv, result);
        let claimed = self.held.as_ref().filter(|_| is_bad).and_then(|held| held.producer.take_back(staged));
        let Some(claimed) = claimed else {
            // The device may fill the memory at any time: the queue takes no more of it.
            self.live_in = fork::NEVER;
            return Outcome::Unknown(error, Some(Ended::SharedReceives));
        };
        claimed.forget_segments();
        self.counts.skipped += 1;
        self.counts.refused.count(error.kind(), 1);
        Outcome::Returned(error)
    }

    /// Counts a refused receive, and returns its error.
    #[cold]
    fn refused(&mut self, refusal: Refusal) -> Error {
        let ended = if self.inner().context().is_forked() { ErrorKind::Forked } else { ErrorKind::NoDevice };
        let kind = refusal.kind(ended);
        self.counts.refused.count(kind, 1);
        Error::new(Verb::PostSrqRecv, kind)
    }

    /// The number of receives that can be posted now, as far as this program knows: receives whose
    /// completions are not polled yet count as posted. The call checks each slot of the queue.
    #[must_use]
    pub fn room(&self) -> u32 {
        let busy = self.held.as_ref().map_or(0, |held| held.producer.busy());
        self.depth().saturating_sub(u32::try_from(busy).unwrap_or(u32::MAX))
    }
}

/// Receives for a shared receive queue that are posted together: [`SharedReceiveQueue::batch`].
pub type SrqBatch<'q, T = Rc> = Batch<'q, 'static, T, SharedReceiveQueue<T>>;

impl<T: Transport> SrqBatch<'_, T> {
    /// Adds a receive, whose completion carries `token`.
    ///
    /// # Errors
    ///
    /// As for [`SharedReceiveQueue::post_recv`], with the memory; `QueueFull` also when the batch
    /// is full.
    pub fn push<L: Owned + Writable>(&mut self, local: L, token: u64) -> Result<(), PostError<L::Returned>> {
        let (queue, len) = self.parts();
        // SAFETY: stage requires that the memory is forgotten once the slot is parked: on success
        // `surrender` forgets it, and a failed `stage` leaves no copy in use.
        let staged = match unsafe { queue.stage(len, (&local, token), SharedProducer::vacant_beside) } {
            Ok((slot, _)) => Ok(slot.staged()),
            Err(refusal) => Err(refusal),
        };
        let refused = match staged {
            Ok(staged) => {
                queue.batch.push(staged);
                queue.counts.staged += 1;
                None
            }
            Err(refusal) => Some(queue.refused(refusal)),
        };
        self.pushed(local, refused)
    }
}

impl<T: Transport> SharedReceiveQueue<T> {
    /// Parks the slots of the batch that was staged.
    ///
    /// # Safety
    ///
    /// The slots of `batch` are free, and written and described.
    unsafe fn park_batch(&mut self) {
        let Some(Held { producer, .. }) = &mut self.held else { return };
        for &staged in &self.batch {
            // SAFETY: park requires a free slot that is written and described, without a sink: the
            // contract of this function; `Segments` sets no sink.
            unsafe { producer.park(staged) };
        }
    }
}

impl<T: Transport> BatchQueue for SharedReceiveQueue<T> {
    type First = ();

    fn begin(&mut self) -> ((), u32) {
        self.batch.clear();
        // Those of a batch that was forgotten: their slots are free.
        self.counts.skip_staged();
        ((), 0)
    }

    unsafe fn submit(&mut self, len: u32, _: u32) -> Result<(), NotPosted> {
        // SAFETY: park_batch requires free slots that are written and described: `push` staged them
        // (the contract of this function).
        unsafe { self.park_batch() };
        let srq = match &self.held {
            Some(held) if self.live_in == fork::generation() => held.inner.raw.as_ptr(),
            // The process has forked since the requests were staged.
            _ => {
                self.counts.skip_staged();
                return Err((self.refused(Refusal::Ended), Ok(0)));
            }
        };
        self.counts.staged = 0;
        self.chain.link(len, true);
        let result = self.ring_doorbell(srq);
        self.chain.link(len, false);
        let Err((result, bad)) = result else { return Ok(()) };
        let posted = self.chain.position(bad, len).ok_or(Ended::SharedReceives);
        let error = post_error(Verb::PostSrqRecv, result);
        match posted {
            Ok(posted) => {
                self.counts.skipped += u64::from(len - posted);
                self.counts.refused.count(error.kind(), len - posted);
            }
            // The device may fill the memory at any time: the queue takes no more of it.
            Err(_) => self.live_in = fork::NEVER,
        }
        Err((error, posted))
    }

    unsafe fn discard(&mut self, len: u32) {
        self.counts.skip_staged();
        // SAFETY: park_batch requires free slots that are written and described: `push` staged them
        // (the contract of this function).
        unsafe { self.park_batch() };
        let mut panics = Panics::default();
        for at in 0..len {
            panics.catch(|| drop(self.take_back((), at)));
        }
        panics.resume();
    }

    fn take_back(&mut self, (): (), at: u32) -> Option<Claimed> {
        let staged = *self.batch.get(at as usize)?;
        self.held.as_ref()?.producer.take_back(staged)
    }
}
