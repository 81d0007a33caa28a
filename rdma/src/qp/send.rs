//! Posting to a send queue.
//!
//! # Invariants
//!
//! * **S1.** A queue half belongs to a queue pair that lives at least as long: the queue pair destroys itself before it
//!   releases its halves, and they cannot be taken out of it.
//! * **S2.** What the device was told of (addresses in a posted request) is parked in the ring, lent by a scope, or was copied
//!   while the request was posted.
//! * **S3.** A request's memory is given back without a completion only if the device cannot have taken the request: it
//!   comes at or after a `bad_wr` that lies in the chain that was posted.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_send_wr, ibv_sge};

#[cfg(doc)]
use super::QueuePair;
use super::Transport;
use super::gather::{Local, Owned, Refusal, SgeList};
use super::op::{Operation, SIGNALED, Work};
use super::post::PostError;
use super::ring::{Attached, Claimed, Info, Staged, Vacant};
use super::scratch::Scratch;
use super::to::LastAddress;
use crate::context::ContextInner;
use crate::error::{Error, ErrorKind, Operation as Verb, Result};
use crate::fork;
use crate::handle::Handle;
use crate::pd::PdInner;

/// Requests that a batch holds at most.
const MAX_BATCH: u32 = 64;

/// What a send queue was created for.
#[derive(Clone, Copy)]
pub(crate) struct SendLimits {
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// The device signals every request.
    pub(crate) signal_all: bool,
    /// Read sinks need remote write access.
    pub(crate) is_iwarp: bool,
    /// Bytes that a datagram can have.
    pub(crate) max_message: u32,
}

/// The send half of a queue pair.
///
/// Posting needs `&mut`; completions are polled from the completion queue, on any thread.
pub struct SendQueue {
    raw: *mut ibv_qp,
    pub(super) attached: Attached,
    pub(super) scratch: Scratch<ibv_send_wr>,
    limits: SendLimits,
    domain: *const PdInner,
    /// The process that it is for; after its end, one that will never be. Invariant **L1**: while it can be this one, `scratch`
    /// has room for a request.
    live_in: u32,
    context: Arc<Handle<ContextInner>>,
    /// The address handle that the latest datagram went to (A1 of [`to`](super::to)).
    pub(super) address: LastAddress,
}

// SAFETY: providers lock their queues (single-threaded modes are refused when a device is opened); the domain is only
// compared.
unsafe impl Send for SendQueue {}
// SAFETY: as above; `&SendQueue` posts nothing.
unsafe impl Sync for SendQueue {}

impl SendQueue {
    /// The half of a queue pair that was just created (S1).
    pub(crate) fn new(raw: *mut ibv_qp, attached: Attached, pd: &Arc<Handle<PdInner>>, limits: SendLimits) -> Self {
        let limits = SendLimits { max_sge: limits.max_sge.max(1), ..limits };
        let batch = attached.producer.depth().min(MAX_BATCH) as usize;
        Self {
            raw,
            attached,
            scratch: Scratch::new(batch, limits.max_sge as usize, |wr: &mut ibv_send_wr, list| wr.sg_list = list),
            limits,
            domain: pd.identity(),
            live_in: pd.context.fork,
            context: Arc::clone(&pd.context),
            address: LastAddress::none(),
        }
    }

    /// Requests that it holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.attached.producer.depth()
    }

    /// Bytes that a request can carry inline.
    #[must_use]
    pub fn max_inline_data(&self) -> u32 {
        self.limits.max_inline
    }

    /// [`QueuePair::post_send`].
    #[inline]
    pub(super) fn post<T, O, L>(&mut self, work: Work<O, L>) -> Result<(), PostError<Work<O, L>>>
    where
        T: Transport,
        O: Operation<T>,
        L: Owned,
    {
        let run = self.attached.producer.run();
        // Should anything below panic, it is leaked: the slot may have it.
        let work = ManuallyDrop::new(work);
        // SAFETY: `work` is forgotten below once the request is posted, and the slot's copies are if it is not.
        let staged = self.stage(0, run, &work, false, |slot| unsafe {
            let mut count = 0;
            work.local.park(slot, &mut count);
            count
        });
        let (vacant, signaled) = match staged {
            Ok(staged) => staged,
            Err(refusal) => return Err(PostError::new(self.refused(refusal), Some(ManuallyDrop::into_inner(work)))),
        };
        let staged = vacant.staged();
        // SAFETY: `stage` described the slot, with as many segments as were written.
        unsafe { vacant.park() };
        self.attached.producer.advance(if signaled { 0 } else { run + 1 });
        match self.submit() {
            Ok(()) => {
                ManuallyDrop::into_inner(work).local.surrender();
                Ok(())
            }
            Err(failure) => {
                let error = failure.error();
                if self.take_back_one(failure.bad, staged, run) {
                    return Err(PostError::new(error, Some(ManuallyDrop::into_inner(work))));
                }
                // The slot has the memory now, or whoever polls it. First of all: `fail` logs, and a subscriber may panic.
                ManuallyDrop::into_inner(work).local.surrender();
                self.fail_unless_first(failure.bad);
                Err(PostError::new(error, None))
            }
        }
    }

    /// Fills in request `at` of the chain, in the slot `at` places after the head, where `run` unsignaled ones come before.
    /// `park` writes the segments and says how many. Nothing is handed over: it may be done over again.
    #[inline(always)]
    pub(super) fn stage<T: Transport, O: Operation<T>, L: Local>(
        &mut self,
        at: u32,
        run: u32,
        work: &Work<O, L>,
        scoped: bool,
        park: impl FnOnce(&mut Vacant<'_>) -> usize,
    ) -> Result<(Vacant<'_>, bool), Refusal> {
        if self.live_in != fork::generation() {
            return Err(Refusal::Ended);
        }
        let (wr, sges) = if at == 0 {
            // SAFETY: L1.
            unsafe { self.scratch.request_0() }
        } else {
            self.scratch.request(at as usize).ok_or(Refusal::QueueFull)?
        };
        let mut list = SgeList::new(sges, self.domain);
        work.local.describe(&mut list)?;
        let (mut segments, len) = list.finish();
        work.operation.fill(wr, len, segments)?;
        // S2: what only borrows its bytes is copied.
        let flags = work.flags | L::INLINE;
        if flags & super::op::INLINE != 0 && len > u64::from(self.limits.max_inline) {
            return Err(Refusal::TooLong);
        }
        if O::IS_READ && self.limits.is_iwarp {
            if !work.local.is_open_to_writes() {
                return Err(Refusal::NotSupported);
            }
            if segments == 0 {
                // siw takes a read's list for one of one element: without any, for what an earlier request has left there.
                *sges.first_mut().ok_or(Refusal::TooManySegments)? = ibv_sge { addr: 0, length: 0, lkey: 0 };
                segments = 1;
            }
        }
        if let Some(address) = work.operation.address() {
            if !ptr::eq(address.domain(), self.domain) {
                return Err(Refusal::InvalidInput);
            }
            if len > u64::from(self.limits.max_message) {
                return Err(Refusal::TooLong);
            }
        }
        let producer = &mut self.attached.producer;
        let asked = flags & SIGNALED != 0 || self.limits.signal_all;
        let forced = !asked && producer.must_signal(run);
        let Some(mut slot) = (if at == 0 { producer.vacant() } else { producer.vacant_after(at) }) else {
            return Err(Refusal::QueueFull);
        };
        let count = park(&mut slot);
        let mut info = Info::new(run, count, O::OPCODE).scoped(scoped).forced(forced);
        if let Some(address) = work.operation.address() {
            // A1.
            if let Some(earlier) = self.address.replace(address) {
                slot.set_address(earlier);
                info = info.addressed();
            }
        }
        slot.describe(work.token, info);
        wr.wr_id = slot.wr_id();
        wr.num_sge = segments;
        wr.send_flags = if forced { flags | SIGNALED } else { flags };
        Ok((slot, asked || forced))
    }

    /// Posts the chain that starts with the first of `wrs`.
    #[inline(always)]
    pub(super) fn submit(&mut self) -> Result<(), Failure> {
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_send wants a queue pair, which lives (S1), in this process (`stage` checked), and a chain of requests whose
        // lists and memory are valid: S2; both live as long as `self`.
        let result = unsafe { rdma_sys::ibv_post_send(self.raw, self.scratch.first(), &raw mut bad) };
        if result == 0 { Ok(()) } else { Err(Failure { result, bad }) }
    }

    /// After a failed post of one request: whether its memory is the caller's again. If not, it is surrendered next, and
    /// then [`fail_unless_first`](Self::fail_unless_first) is called. Calls nothing that could panic.
    #[cold]
    pub(super) fn take_back_one(&mut self, bad: *mut ibv_send_wr, staged: Staged, run: u32) -> bool {
        if !ptr::eq(bad, self.scratch.first()) {
            return false;
        }
        // S3: the device did not take it. The slot stays behind as a hole in the run.
        self.attached.producer.set_run(run + 1);
        match self.attached.producer.take_back(staged) {
            Some(mut claimed) => {
                self.restore_address(&mut claimed);
                claimed.forget_segments();
                true
            }
            // Completed although it was not taken: a provider that contradicts itself. Whoever polled it has the memory.
            None => false,
        }
    }

    /// Of a request that was not taken, the first one after those that were.
    pub(super) fn restore_address(&mut self, claimed: &mut Claimed) {
        if let Some(earlier) = claimed.take_address() {
            self.address.restore(earlier);
        }
    }

    /// After a failed post of one request whose memory was not taken back: the queue pair goes to ERR if it is not known
    /// which request failed.
    #[cold]
    pub(super) fn fail_unless_first(&self, bad: *mut ibv_send_wr) {
        if !ptr::eq(bad, self.scratch.first()) {
            self.fail();
        }
    }

    /// Moves the queue pair to ERR, where everything in flight is flushed: what happened to a post cannot be known.
    #[cold]
    pub(super) fn fail(&self) {
        set_error(&self.context, self.raw);
    }

    /// Releases everything in flight. The device has let go of it: the queue pair was reset.
    pub(crate) fn reclaim(&mut self) {
        self.attached.producer.reclaim();
        self.address = LastAddress::none();
    }

    /// The queue pair could not be destroyed: what the device may still use stays.
    pub(crate) fn leak(&mut self) {
        self.address.leak();
    }

    /// How many requests the device may still have.
    pub(super) fn in_flight(&self) -> usize {
        self.attached.producer.parked()
    }

    pub(super) fn is_iwarp(&self) -> bool {
        self.limits.is_iwarp
    }

    /// How long a datagram may be from now on.
    pub(super) fn set_max_message(&mut self, bytes: u32) {
        self.limits.max_message = bytes;
    }

    /// How long a datagram may be.
    pub(super) fn max_message(&self) -> u32 {
        self.limits.max_message
    }

    #[cold]
    pub(super) fn refused(&self, refusal: Refusal) -> Error {
        Error::new(Verb::PostSend, refusal.kind(ended(&self.context)))
    }

    /// Releases everything in flight, and takes no more: the queue pair was destroyed (S1).
    pub(crate) fn release_all(&mut self) {
        self.live_in = fork::NEVER;
        self.reclaim();
    }
}

/// Why nothing can be posted to a queue that has ended.
#[cold]
pub(super) fn ended(context: &ContextInner) -> ErrorKind {
    if context.is_forked() { ErrorKind::Forked } else { ErrorKind::NoDevice }
}

/// What a provider said of a chain that it did not take, or not all.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    result: i32,
    pub(super) bad: *mut ibv_send_wr,
}

impl Failure {
    #[cold]
    pub(super) fn error(self) -> Error {
        post_error(Verb::PostSend, self.result)
    }
}

/// What a post that failed says.
#[cold]
pub(super) fn post_error(verb: Verb, result: i32) -> Error {
    match Error::check(verb, result) {
        Err(error) if error.errno() == Some(libc::ENOMEM) => error.with_kind(ErrorKind::QueueFull),
        Err(error) => error,
        Ok(()) => Error::new(verb, ErrorKind::Unknown),
    }
}

/// Moves a queue pair to ERR, without regard for its state.
#[cold]
pub(super) fn set_error(context: &ContextInner, raw: *mut ibv_qp) {
    let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
    let mask = i32::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(1);
    // SAFETY: ibv_modify_qp wants a queue pair, which lives (S1) and is of this table, and attributes.
    let result = unsafe { (context.table.ibv_modify_qp)(raw, &raw mut attr, mask) };
    tracing::error!(result, "a post failed without saying where; the queue pair was moved to the error state");
}

#[cfg(test)]
impl SendQueue {
    pub(super) fn pretend_iwarp(&mut self) {
        self.limits.is_iwarp = true;
    }

    pub(super) fn next_wr_id(&mut self) -> Option<u64> {
        self.attached.producer.vacant().map(|slot| slot.wr_id())
    }

    pub(super) fn skip_laps(&mut self, laps: u64) {
        self.attached.producer.skip_laps(laps);
    }

    pub(super) fn is_next_forced(&self) -> bool {
        self.attached.producer.must_signal(self.attached.producer.run())
    }
}

impl fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendQueue").field("depth", &self.depth()).finish_non_exhaustive()
    }
}
