//! One post, from the slot to the doorbell: what send and receive queues share.
//!
//! A post has three steps. *Stage* writes a work request, and a slot of the ring that is still
//! free: a refusal costs nothing. *Park* hands the slot to whoever polls its completion. *Submit*
//! calls the provider; its [`Outcome`] says where the memory is.
//!
//! # Invariants
//!
//! * **S1.** A queue half belongs to a queue pair that lives at least as long: the queue pair
//!   destroys itself before it releases its halves, and they cannot be taken out of it.
//! * **S2.** Memory that a posted request names is parked in the ring, lent by a scope, or was
//!   copied while the request was posted.
//! * **S3.** A request's memory is given back without a completion only if the device cannot have
//!   taken the request: it comes at or after a `bad_wr` that lies in the chain that was posted.
//! * **L1.** While [`Half::live_in`] can be this process, the chain has room for a request.
//! * **A1.** An address handle that a posted datagram names lives until that request has ended, or
//!   the queue pair was reset or destroyed. A queue keeps the handle of its latest datagram. A
//!   datagram to another one takes its place, and keeps it in the slot of its own request: requests
//!   of a send queue end in order, so when that one has ended, so have all that used the earlier
//!   handle. A datagram to the same handle as the one before counts and keeps nothing.
//! * **A2.** Of requests that the device did not take, the first that keeps a handle puts it back:
//!   those that were taken may still need it. The others keep handles that no request in flight
//!   names.

use std::fmt;
use std::mem;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use super::chain::{Chain, WorkRequest};
use super::local::{Local, Owned, Refusal, SgeList};
use super::ring::{Claimed, Info, KeepAlive, Staged, Vacant};
use crate::ah::AddressHandle;
use crate::context::ContextInner;
use crate::cq::Attached;
use crate::error::{Error, ErrorKind, Operation as Verb};
use crate::fork;
use crate::handle::Handle;
use crate::pd::PdInner;

/// A post that failed.
pub struct PostError<M> {
    error: Error,
    memory: Option<M>,
}

impl<M> PostError<M> {
    #[inline(always)]
    pub(super) fn new(error: Error, memory: Option<M>) -> Self {
        Self { error, memory }
    }

    /// The cause.
    #[must_use]
    pub fn error(&self) -> Error {
        self.error
    }

    /// The kind of the cause: [`ErrorKind::QueueFull`] asks for polling.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The memory of the request, if the device did not take it. `None` if the device may have
    /// taken it: the memory is in flight then, and the queue pair in the error state.
    #[must_use]
    pub fn into_memory(self) -> Option<M> {
        self.memory
    }

    /// [`error`](Self::error) and [`into_memory`](Self::into_memory).
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<M>) {
        (self.error, self.memory)
    }
}

impl<M> fmt::Debug for PostError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostError").field("error", &self.error).field("returned", &self.memory.is_some()).finish()
    }
}

impl<M> fmt::Display for PostError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for PostError<M> {}

impl<M> From<PostError<M>> for Error {
    fn from(error: PostError<M>) -> Self {
        error.error
    }
}

impl<M> From<PostError<M>> for std::io::Error {
    fn from(error: PostError<M>) -> Self {
        error.error.into()
    }
}

/// What became of a request.
#[must_use]
pub(super) enum Outcome {
    /// The device has it; its completion gives the memory back.
    InFlight,
    /// The device did not take it: the memory is the caller's.
    Returned(Error),
    /// The device may have taken it: the memory is the slot's, or has gone to whoever polled it.
    Unknown(Error),
}

impl Outcome {
    /// Surrenders the request's memory to the slot, or gives it back to the caller.
    #[inline(always)]
    pub(super) fn settle<M, R>(
        self,
        memory: M,
        surrender: impl FnOnce(M),
        give_back: impl FnOnce(M) -> R,
    ) -> Result<(), PostError<R>> {
        match self {
            Self::InFlight => {
                surrender(memory);
                Ok(())
            }
            Self::Returned(error) => Err(PostError::new(error, Some(give_back(memory)))),
            Self::Unknown(error) => {
                surrender(memory);
                Err(PostError::new(error, None))
            }
        }
    }
}

/// What keeps a request's memory valid while the device has it (S2).
pub(super) trait Keep {
    /// Whether a scope does.
    const SCOPED: bool = false;

    /// The same of a value.
    fn has_sink(&self) -> bool {
        Self::SCOPED
    }

    /// Puts it into the slot. The number of segments there.
    ///
    /// # Safety
    ///
    /// As for [`Owned::park`].
    unsafe fn park(&self, slot: &mut Vacant<'_>) -> usize;
}

/// The slot keeps the segments themselves.
pub(super) struct Segments<'a, L>(pub(super) &'a L);

impl<L: Owned> Keep for Segments<'_, L> {
    #[inline(always)]
    unsafe fn park(&self, slot: &mut Vacant<'_>) -> usize {
        let mut count = 0;
        // SAFETY: `Owned::park` has the same condition.
        unsafe { self.0.park(slot, &mut count) };
        count
    }
}

/// A send or receive queue, without what is particular to either.
pub(super) struct Half<W> {
    raw: *mut ibv_qp,
    pub(super) attached: Attached,
    pub(super) chain: Chain<W>,
    pub(super) domain: *const PdInner,
    /// The fork generation that may post; `NEVER` once the queue pair is destroyed.
    live_in: u32,
    context: Arc<Handle<ContextInner>>,
    /// The address handle of the latest datagram (A1).
    address: Option<KeepAlive>,
}

// SAFETY: providers lock their queues (single-threaded modes are refused when a device is opened);
// the domain is only compared.
unsafe impl<W> Send for Half<W> {}
// SAFETY: `&Half` posts nothing.
unsafe impl<W> Sync for Half<W> {}

impl<W: WorkRequest> Half<W> {
    /// The half of a queue pair that was just created (S1), with room for chains of `requests`.
    pub(super) fn new(
        raw: *mut ibv_qp,
        attached: Attached,
        pd: &Arc<Handle<PdInner>>,
        requests: u32,
        max_sge: u32,
    ) -> Self {
        Self {
            raw,
            attached,
            chain: Chain::new(requests.max(1) as usize, max_sge as usize),
            domain: pd.identity(),
            live_in: pd.context.fork,
            context: Arc::clone(&pd.context),
            address: None,
        }
    }

    /// Writes request `at` of the chain, and the slot `at` places after the head, which keeps
    /// `keep`. `fill` completes the request for so many segments and bytes, and `info` says what
    /// the slot is told beyond the number of segments. Nothing is handed over: it may be done over
    /// again.
    ///
    /// # Safety
    ///
    /// What `keep` puts into the slot is not used twice: once the slot is parked, the caller
    /// forgets the original unless the slot is given up by [`Claimed::forget_segments`].
    #[inline(always)]
    pub(super) unsafe fn stage<L: Local, K: Keep>(
        &mut self,
        at: u32,
        (local, token): (&L, u64),
        keep: &K,
        fill: impl FnOnce(&mut W, &mut SgeList<'_>) -> Result<(), Refusal>,
        (info, address): (Info, Option<&AddressHandle>),
    ) -> Result<(), Refusal> {
        if self.live_in != fork::generation() {
            return Err(Refusal::Ended);
        }
        let (wr, sges) = if at == 0 {
            // SAFETY: L1: the queue is live.
            unsafe { self.chain.request_0() }
        } else {
            self.chain.request(at as usize).ok_or(Refusal::QueueFull)?
        };
        let mut list = SgeList::new(sges, self.domain);
        local.describe(&mut list)?;
        fill(wr, &mut list)?;
        let producer = &mut self.attached.producer;
        let Some(mut slot) = (if at == 0 { producer.vacant() } else { producer.vacant_after(at) }) else {
            return Err(Refusal::QueueFull);
        };
        // SAFETY: this function's own condition.
        let count = unsafe { keep.park(&mut slot) };
        let mut info = info.with_count(count).scoped(K::SCOPED);
        if let Some(address) = address {
            let is_same =
                self.address.as_ref().is_some_and(|last| ptr::addr_eq(Arc::as_ptr(last), Arc::as_ptr(&address.inner)));
            if !is_same {
                // A1.
                if let Some(earlier) = self.address.replace(address.inner.clone()) {
                    slot.set_keep_alive(earlier);
                    info = info.keeping();
                }
            }
        }
        slot.describe(token, info);
        wr.describe(slot.wr_id(), list.count());
        if at > 0 {
            self.chain.link(at as usize);
        }
        Ok(())
    }

    /// Posts the request that was staged at the head. `run` is how many unsignaled ones lie before
    /// it, `run_after` before the next.
    ///
    /// # Safety
    ///
    /// The latest [`stage`](Self::stage) was of request 0, with this `keep`, and succeeded.
    #[inline(always)]
    pub(super) unsafe fn submit_one(&mut self, keep: &impl Keep, run: u32, run_after: u32) -> Outcome {
        // SAFETY: `stage` found the slot free, wrote and described it.
        let staged = unsafe { self.attached.producer.park_head(keep.has_sink()) };
        self.attached.producer.advance(run_after);
        match self.ring_doorbell() {
            Ok(()) => Outcome::InFlight,
            Err((result, bad)) => self.take_back(result, bad, staged, run),
        }
    }

    /// Posts the `len` requests that were staged from the head on. How many the device took, if
    /// that is known.
    ///
    /// # Safety
    ///
    /// [`stage`](Self::stage) succeeded for each of them, in order.
    pub(super) unsafe fn submit_all(&mut self, len: u32, run_after: u32) -> Result<(), (Error, Option<u32>)> {
        let run = self.attached.producer.run();
        // SAFETY: `stage` found the slots free, wrote and described them.
        unsafe { self.attached.producer.park(len) };
        self.attached.producer.advance_by(len, run_after);
        let Err((result, bad)) = self.ring_doorbell() else { return Ok(()) };
        let posted = self.chain.position(bad, len);
        match posted {
            // S3. The signaled request may be among the rejected: the next signaled completion
            // looks back over all.
            Some(_) => self.attached.producer.set_run(run + len),
            None => self.fail(),
        }
        Err((post_error(W::VERB, result), posted))
    }

    #[inline(always)]
    fn ring_doorbell(&mut self) -> Result<(), (i32, *mut W)> {
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair that lives (S1), in this process (`stage` checked), and a chain of
        // requests whose lists and memory are valid (S2); both live as long as `self`.
        let result = unsafe { W::post(self.raw, self.chain.first(), &mut bad) };
        if result == 0 { Ok(()) } else { Err((result, bad)) }
    }

    #[cold]
    fn take_back(&mut self, result: i32, bad: *mut W, staged: Staged, run: u32) -> Outcome {
        let error = post_error(W::VERB, result);
        if !ptr::eq(bad, self.chain.first()) {
            self.fail();
            return Outcome::Unknown(error);
        }
        // S3: the device did not take it. The slot stays behind as a hole in the run.
        self.attached.producer.set_run(run + 1);
        match self.attached.producer.take_back(staged) {
            Some(mut claimed) => {
                self.restore_keep_alive(&mut claimed);
                claimed.forget_segments();
                Outcome::Returned(error)
            }
            // Completed although it was not taken: a provider that contradicts itself.
            None => Outcome::Unknown(error),
        }
    }

    /// Moves the queue pair to ERR, where everything in flight is flushed: whether the device took
    /// a request is unknown.
    #[cold]
    fn fail(&self) {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        let mask = i32::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(1);
        // SAFETY: ibv_modify_qp wants a queue pair of this table, which lives (S1), and attributes.
        let result = unsafe { (self.context.table.ibv_modify_qp)(self.raw, &raw mut attr, mask) };
        tracing::error!(result, "a post failed without saying where; the queue pair was moved to the error state");
    }

    #[cold]
    pub(super) fn refused(&self, refusal: Refusal) -> Error {
        let ended = if self.context.is_forked() { ErrorKind::Forked } else { ErrorKind::NoDevice };
        Error::new(W::VERB, refusal.kind(ended))
    }

    /// A2: for the first request that was not taken and keeps a handle.
    pub(super) fn restore_keep_alive(&mut self, claimed: &mut Claimed) -> bool {
        let Some(earlier) = claimed.take_keep_alive() else { return false };
        self.address = Some(earlier);
        true
    }

    /// Drops `len` staged requests that were not submitted.
    ///
    /// # Safety
    ///
    /// As for [`submit_all`](Self::submit_all).
    pub(super) unsafe fn discard(&mut self, len: u32) {
        // SAFETY: `stage` found the slots free, wrote and described them.
        unsafe { self.attached.producer.discard(len, &mut self.address) };
    }

    /// How many requests the device may still have.
    pub(super) fn in_flight(&self) -> usize {
        self.attached.producer.parked()
    }

    /// Releases everything in flight. The device has let go of it: the queue pair was reset.
    pub(super) fn reclaim(&mut self) {
        self.attached.producer.reclaim();
        self.address = None;
    }

    /// Releases everything in flight, and takes no more: the queue pair was destroyed (S1).
    pub(super) fn release_all(&mut self) {
        self.live_in = fork::NEVER;
        self.reclaim();
    }

    /// The queue pair could not be destroyed: an address handle that the device may still use
    /// stays.
    #[allow(clippy::mem_forget, reason = "requests that the device still has need it")]
    pub(super) fn leak(&mut self) {
        mem::forget(self.address.take());
    }
}

/// The error of a post that a provider refused.
#[cold]
pub(super) fn post_error(verb: Verb, result: i32) -> Error {
    match Error::check(verb, result) {
        Err(error) if error.errno() == Some(libc::ENOMEM) => error.with_kind(ErrorKind::QueueFull),
        Err(error) => error,
        Ok(()) => Error::new(verb, ErrorKind::Unknown),
    }
}
