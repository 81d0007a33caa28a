//! One post, from the slot to the doorbell: code that send and receive queues share.
//!
//! A post has three steps. *Stage* writes a work request and fills a slot of the ring that is still
//! free: a refused request changes nothing. *Park* hands the slot over to the thread that will poll
//! its completion. *Submit* calls the provider; its [`Outcome`] tells who owns the memory.
//!
//! # Invariants
//!
//! * **S1.** A queue half belongs to a queue pair that lives at least as long: the queue pair
//!   destroys the C object before it releases its halves, and the halves cannot be moved out of it.
//!   Owned halves reach them in their place (D1 of [`divided`](super::divided)).
//! * **S2.** Memory that a posted request names is parked in the ring, lent by a scope, or was
//!   copied while the request was posted.
//! * **S3.** A request's memory is returned without a completion only if the device cannot have
//!   accepted the request: the request is at or after a `bad_wr` that lies in the posted chain.
//! * **A1.** An address handle that a posted datagram names lives until that request has ended, or
//!   the queue pair was reset or destroyed. A queue keeps the handle of its latest datagram. A
//!   datagram to another handle replaces it and keeps the earlier handle in its own slot: requests
//!   of a send queue end in order, so once that datagram has ended, all requests that used the
//!   earlier handle have ended too. A datagram to the same handle as the one before changes and
//!   keeps nothing.
//! * **A2.** If the device did not accept some requests, the first of these that keeps a handle
//!   puts it back: accepted requests may still need it. The other requests keep handles that no
//!   request in flight names.

use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};

use super::chain::{Chain, WorkRequest};
use super::local::{Local, Owned, Refusal, SgeList};
use crate::ah::AddressHandle;
use crate::context::ContextInner;
use crate::cq::Attached;
use crate::error::{Error, ErrorKind, Verb, gives_back};
use crate::fork;
use crate::handle::Handle;
use crate::pd::PdInner;
use crate::ring::{Claimed, Info, KeepAlive, Slot, Staged, Vacant};
#[cfg(feature = "aio")]
use crate::ring::{Cursor, Report, Results, Ticket};

/// The error of a batch, and the number of requests that the device accepted; if that is not known,
/// the end of the queue.
pub(super) type NotPosted = (Error, Result<u32, Ended>);

/// The error of a failed post.
pub struct PostError<M> {
    error: Error,
    memory: Option<M>,
    /// The end of the queue, if this error ended it.
    ended: Option<Ended>,
}

/// The end of a queue whose device may have accepted a request that failed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ended {
    /// The queue pair was to be moved to the error state, with this result.
    QueuePair(i32),
    SharedReceives,
}

impl<M> PostError<M> {
    /// The error of a request that was not posted, and its memory, for a program that refuses
    /// requests before it posts them.
    #[inline(always)]
    #[must_use]
    pub fn new(error: Error, memory: Option<M>) -> Self {
        Self { error, memory, ended: None }
    }

    pub(super) fn ended(error: Error, ended: Ended) -> Self {
        Self { error, memory: None, ended: Some(ended) }
    }

    /// Logs that the queue has ended, if this error ended it, as [`QueuePair::post_send`] does.
    ///
    /// A caller of [`QueuePair::post_send_unlogged`] calls it once it holds no lock: a subscriber
    /// of the log is code of the program.
    ///
    /// [`QueuePair::post_send`]: crate::QueuePair::post_send
    /// [`QueuePair::post_send_unlogged`]: crate::QueuePair::post_send_unlogged
    #[cold]
    pub fn log(&self) {
        let error = self.error;
        match self.ended {
            None => {}
            Some(Ended::QueuePair(0)) => {
                tracing::error!(
                    name: "post_failed", target: "rdma",
                    %error, "a post failed without saying where; the queue pair was moved to the error state"
                );
            }
            Some(Ended::QueuePair(result)) => {
                tracing::error!(
                    name: "queue_pair_not_failed", target: "rdma",
                    %error, result, "a post failed without saying where; the queue pair could not be moved to the error state"
                );
            }
            Some(Ended::SharedReceives) => {
                tracing::error!(
                    name: "post_failed", target: "rdma",
                    %error, "a post to a shared receive queue failed without saying where; the queue has ended"
                );
            }
        }
    }

    /// The cause.
    #[must_use]
    pub fn error(&self) -> Error {
        self.error
    }

    /// The kind of the cause. On [`ErrorKind::QueueFull`], poll completions and post again.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The memory of the request, if the device did not accept it. `None` if the device may have
    /// accepted it: the memory is then in flight, and the queue pair is in the error state.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, mut poller, mut a, b: _b, .. } = pair()?;
    /// # let region = pd.allocate_exposed(64, rdma::RemoteAccess::WRITE)?;
    /// use rdma::{ErrorKind, op};
    ///
    /// for _ in 0..100 {
    ///     let mut buffer = pd.allocate(16)?;
    ///     // If the queue is full, the buffer comes back, to be posted once there is room.
    ///     while let Err(refused) = a.post_send(op::write(buffer, region.remote(..)?)) {
    ///         assert_eq!(refused.kind(), ErrorKind::QueueFull);
    ///         buffer = refused.into_memory().ok_or("the device may have the buffer")?;
    ///         drop(poller.wait(None)?);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn into_memory(self) -> Option<M> {
        self.memory
    }

    /// Takes the memory of the request, if the device did not accept it; the error stays, to be
    /// [logged](Self::log).
    pub fn take_memory(&mut self) -> Option<M> {
        self.memory.take()
    }

    /// The error of a request that was not posted.
    #[cfg(feature = "aio")]
    pub(crate) fn refused<L: Owned<Returned = M>>(error: Error, local: L) -> Self {
        Self::new(error, Some(local.give_back()))
    }

    /// Whether the device may have accepted the request.
    #[cfg(feature = "aio")]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.memory.is_none()
    }

    /// Returns both [`error`](Self::error) and [`into_memory`](Self::into_memory).
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<M>) {
        (self.error, self.memory)
    }
}

gives_back!(PostError<M>);

/// The result of submitting a request.
#[must_use]
pub(super) enum Outcome {
    /// The device has the request; the completion returns its memory.
    InFlight,
    /// The device did not accept the request: the caller owns the memory.
    Returned(Error),
    /// The device may have accepted the request: the slot owns the memory, or has passed it to the
    /// thread that polled the completion. With the end of the queue, unless that completion told
    /// that the device had the request.
    Unknown(Error, Option<Ended>),
}

impl Outcome {
    /// Surrenders the request's memory to the slot, or returns it to the caller. An error is not
    /// logged yet: [`PostError::log`] does that.
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
            Self::Unknown(error, ended) => {
                surrender(memory);
                Err(PostError { error, memory: None, ended })
            }
        }
    }
}

/// The owner that keeps a request's memory valid while the device has the request (S2).
pub(super) trait Keep {
    /// Whether a scope keeps the memory.
    const SCOPED: bool = false;

    /// Whether completions go to the queue's results.
    const ROUTED: bool = false;

    /// Puts the keeper into the slot. Returns the number of segments parked there.
    ///
    /// # Safety
    ///
    /// As for [`Owned::park`].
    unsafe fn park(&self, slot: &mut Vacant<'_>) -> usize;
}

/// A keeper for owned memory: the slot holds the segments themselves.
pub(super) struct Segments<'a, L>(pub(super) &'a L);

impl<L: Owned> Keep for Segments<'_, L> {
    #[inline(always)]
    unsafe fn park(&self, slot: &mut Vacant<'_>) -> usize {
        let mut count = 0;
        // SAFETY: `Owned::park` has the same contract as this function.
        unsafe { self.0.park(slot, &mut count) };
        count
    }
}

/// A keeper for owned memory whose completion goes to the queue's results.
#[cfg(feature = "aio")]
pub(super) struct Routed<'a, L>(pub(super) &'a L);

#[cfg(feature = "aio")]
impl<L: Owned> Keep for Routed<'_, L> {
    const ROUTED: bool = true;

    #[inline(always)]
    unsafe fn park(&self, slot: &mut Vacant<'_>) -> usize {
        slot.route();
        // SAFETY: the callee has the same contract as this function.
        unsafe { Segments(self.0).park(slot) }
    }
}

/// The common part of send and receive queues.
pub(super) struct Half<W> {
    raw: *mut ibv_qp,
    pub(super) attached: Attached,
    pub(super) chain: Chain<W>,
    /// Fork generation that may post; `NEVER` once the queue pair is destroyed.
    live_in: u32,
    /// The error of posts to a queue that is not live.
    ended: ErrorKind,
    context: Arc<Handle<ContextInner>>,
    /// The address handle of the latest datagram (A1).
    address: Option<KeepAlive>,
    /// Slots that the ring's head has passed although the device did not accept their requests.
    skipped: u64,
    pub(super) refused: Refused,
    /// Where the next routed request looks for its sink.
    #[cfg(feature = "aio")]
    cursor: Cursor<'static, Report>,
}

// SAFETY: moving a half to another thread is sound: providers lock their queues (devices in
// single-threaded mode are refused when they are opened).
unsafe impl<W> Send for Half<W> {}
// SAFETY: sharing a half is sound: no method on `&Half` posts.
unsafe impl<W> Sync for Half<W> {}

impl<W: WorkRequest> Half<W> {
    /// Creates a half of a new queue pair (S1), with space for chains of `requests`.
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
            chain: Chain::new(requests as usize, max_sge as usize, pd.identity()),
            live_in: pd.context.fork,
            ended: ErrorKind::NoDevice,
            context: Arc::clone(&pd.context),
            address: None,
            skipped: 0,
            refused: Refused::default(),
            #[cfg(feature = "aio")]
            cursor: Cursor::new(),
        }
    }

    /// Writes request `at`, and fills the slot `at` places after the head with `keep`.
    ///
    /// `fill` completes the request once its list is written; `info` is the slot's description
    /// without the number of segments. The slot, which is returned, is ready to be
    /// [parked](Vacant::park). Until then it is free, and can be staged again.
    ///
    /// # Safety
    ///
    /// Each segment that `keep` puts into the slot is used once: after the slot is parked, the
    /// caller forgets the original, unless [`Claimed::forget_segments`] frees the slot.
    #[inline(always)]
    pub(super) unsafe fn stage<L: Local, K: Keep>(
        &mut self,
        at: u32,
        (local, token): (&L, u64),
        keep: &K,
        fill: impl FnOnce(&mut W, &mut SgeList<'_>) -> Result<(), Refusal>,
        (info, address): (Info, Option<&AddressHandle>),
    ) -> Result<Vacant<'_>, Refusal> {
        if self.live_in != fork::generation() {
            return Err(Refusal::Ended);
        }
        let domain = self.chain.domain;
        let (wr, sges) =
            if at == 0 { self.chain.request_0() } else { self.chain.request(at as usize).ok_or(Refusal::QueueFull)? };
        let mut list = SgeList::new(sges, domain);
        local.describe(&mut list)?;
        fill(wr, &mut list)?;
        let producer = &mut self.attached.producer;
        let Some(mut slot) = (if at == 0 { producer.vacant() } else { producer.vacant_after(at) }) else {
            return Err(Refusal::QueueFull);
        };
        // SAFETY: `Keep::park` requires that the copies are used once: the contract of this
        // function.
        let count = unsafe { keep.park(&mut slot) };
        let mut info = info.with_count(count).scoped(K::SCOPED).routed(K::ROUTED);
        if let Some(address) = address {
            let is_same =
                self.address.as_ref().is_some_and(|last| ptr::addr_eq(Arc::as_ptr(last), Arc::as_ptr(&address.inner)));
            if !is_same {
                // This request keeps the handle that earlier datagrams used (A1).
                if let Some(earlier) = self.address.replace(address.inner.clone()) {
                    slot.set_keep_alive(earlier);
                    info = info.keeping();
                }
            }
        }
        slot.describe(token, info);
        wr.describe(slot.wr_id(), list.count());
        Ok(slot)
    }

    /// Posts the request that was staged at the head, whose slot was parked. `run_after` is the
    /// number of unsignaled requests directly before the next.
    ///
    /// # Safety
    ///
    /// The latest [`stage`](Self::stage) was of request 0, and [`Vacant::park`] of its slot
    /// returned these values.
    #[inline(always)]
    pub(super) unsafe fn submit_one(&mut self, (parked, slot): (Staged, NonNull<Slot>), run_after: u32) -> Outcome {
        // SAFETY: advance_past requires the slot at the head: `stage` returned it for request 0,
        // and the head has not moved since (the contract of this function).
        unsafe { self.attached.producer.advance_past(slot, run_after) };
        match self.ring_doorbell() {
            Ok(()) => Outcome::InFlight,
            Err((result, bad)) => self.take_back(result, bad, parked),
        }
    }

    /// The use of the slot of the request that is staged next, at the head.
    pub(super) fn next_staged(&self) -> Staged {
        self.attached.producer.staged(0)
    }

    /// Takes back request `at` of a batch whose first request was `first`, if the device has not
    /// accepted it (S3) and no completion has taken it.
    pub(super) fn take_back_at(&self, first: Staged, at: u32) -> Option<Claimed> {
        self.attached.producer.take_back(self.attached.producer.after(first, at))
    }

    /// Posts the `len` requests that were staged from the head on. On failure, also returns the
    /// number of requests that the device accepted; if that is not known, the queue pair has ended.
    ///
    /// # Safety
    ///
    /// [`stage`](Self::stage) succeeded for each of them, in order.
    pub(super) unsafe fn submit_all(&mut self, len: u32, run_after: u32) -> Result<(), NotPosted> {
        let run = self.attached.producer.run();
        // SAFETY: the callee requires free slots from the head on that are written and described:
        // `stage` found each slot free and did both.
        unsafe { self.attached.producer.park(len) };
        self.attached.producer.advance_by(len, run_after);
        if self.live_in != fork::generation() {
            // The process has forked since the requests were staged.
            self.attached.producer.set_run(run + len);
            self.skipped += u64::from(len);
            return Err((self.refused(Refusal::Ended, len), Ok(0)));
        }
        self.chain.link(len, true);
        let result = self.ring_doorbell();
        self.chain.link(len, false);
        let Err((result, bad)) = result else { return Ok(()) };
        let error = post_error(W::VERB, result);
        let posted = self.chain.position(bad, len).ok_or_else(|| self.fail());
        if posted.is_ok() {
            // The rejected requests can be taken back (S3). The signaled request may be among them,
            // so the next signaled completion must look back over all of the batch.
            self.attached.producer.set_run(run + len);
        }
        if let Ok(posted) = posted {
            self.skipped += u64::from(len - posted);
            self.refused.count(error.kind(), len - posted);
        }
        Err((error, posted))
    }

    #[inline(always)]
    fn ring_doorbell(&mut self) -> Result<(), (i32, *mut W)> {
        let mut bad = ptr::null_mut();
        // SAFETY: `W::post` requires a live queue pair (S1) of this process (`stage` checked), and
        // a chain of requests whose lists and memory are valid while the device may access them
        // (S2): the chain lives as long as `self`.
        let result = unsafe { W::post(self.raw, self.chain.first(), &mut bad) };
        if result == 0 { Ok(()) } else { Err((result, bad)) }
    }

    #[cold]
    fn take_back(&mut self, result: i32, bad: *mut W, parked: Staged) -> Outcome {
        let error = post_error(W::VERB, result);
        if !ptr::eq(bad, self.chain.first()) {
            return Outcome::Unknown(error, Some(self.fail()));
        }
        // The device did not accept the request (S3).
        match self.attached.producer.take_back(parked) {
            Some(mut claimed) => {
                // The slot stays in the run as a hole.
                self.attached.producer.set_run(claimed.info.run() + 1);
                self.restore_keep_alive(&mut claimed);
                claimed.forget_segments();
                self.skipped += 1;
                self.refused.count(error.kind(), 1);
                Outcome::Returned(error)
            }
            // The provider reported a completion of a request that it also refused.
            None => Outcome::Unknown(error, None),
        }
    }

    /// Moves the queue pair to ERR, which flushes all requests in flight: it is unknown whether the
    /// device accepted a request.
    #[cold]
    fn fail(&self) -> Ended {
        let mut attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        let mask = i32::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(1);
        // SAFETY: ibv_modify_qp requires a live queue pair of this table (S1) and attributes that
        // live during the call: a local.
        let result = unsafe { (self.context.table.ibv_modify_qp)(self.raw, &raw mut attr, mask) };
        Ended::QueuePair(result)
    }

    /// Counts refused posts, and returns their error.
    #[cold]
    pub(super) fn refused(&mut self, refusal: Refusal, posts: u32) -> Error {
        let ended = if self.context.is_forked() { ErrorKind::Forked } else { self.ended };
        let kind = refusal.kind(ended);
        self.refused.count(kind, posts);
        Error::new(W::VERB, kind)
    }

    /// Puts back the keep-alive of a request that the device did not accept. Called until the first
    /// such request that keeps one (A2); returns whether `claimed` kept one.
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
        // SAFETY: the callee requires free slots from the head on that are written and described:
        // `stage` found each slot free and did both.
        unsafe { self.attached.producer.discard(len, &mut self.address) };
    }

    /// Refuses all requests from now on, with this error.
    pub(super) fn refuse(&mut self, error: ErrorKind) {
        self.live_in = fork::NEVER;
        self.ended = error;
    }

    /// Whether requests can be posted.
    pub(super) fn is_live(&self) -> bool {
        self.live_in != fork::NEVER
    }

    /// The number of requests that the device may still have.
    pub(super) fn in_flight(&self) -> usize {
        self.attached.producer.parked()
    }

    /// The number of requests that were posted so far, and of those in flight.
    pub(super) fn requests(&self) -> (u64, u32) {
        let posted = self.attached.producer.passed() - self.skipped;
        (posted, u32::try_from(self.in_flight()).unwrap_or(u32::MAX))
    }

    /// Releases all requests in flight. The queue pair was reset, so the device no longer accesses
    /// their memory.
    pub(super) fn reclaim(&mut self) {
        self.attached.producer.reclaim();
        self.address = None;
    }

    /// Releases all requests in flight and refuses new ones: the queue pair was destroyed (S1).
    pub(super) fn release_all(&mut self) {
        self.live_in = fork::NEVER;
        self.reclaim();
    }

    /// Leaks the latest address handle: the queue pair could not be destroyed, so the device may
    /// still use it.
    #[allow(clippy::mem_forget, reason = "requests that the device still has need it")]
    pub(super) fn leak(&mut self) {
        mem::forget(self.address.take());
    }
}

/// The refused posts of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Refused {
    /// All refused posts.
    pub(super) all: u64,
    /// Those that found the queue full.
    pub(super) full: u64,
}

impl Refused {
    pub(super) fn count(&mut self, kind: ErrorKind, posts: u32) {
        self.all += u64::from(posts);
        if kind == ErrorKind::QueueFull {
            self.full += u64::from(posts);
        }
    }
}

#[cfg(feature = "aio")]
impl<W: WorkRequest> Half<W> {
    /// The results of the queue's routed requests.
    #[inline]
    pub(super) fn results(&self) -> &'static Results<Report> {
        self.attached.producer.results()
    }

    /// Begins a routed request: its token is the ticket's index (W4 of the ring's results). None in
    /// a forked child.
    #[inline]
    pub(super) fn begin(&mut self) -> Option<Ticket<'static, Report>> {
        // SAFETY: begin requires one caller at a time, with one cursor: this half has the ring's
        // only producer (R2 of the ring), and one cursor.
        unsafe { self.results().begin(&mut self.cursor) }
    }

    /// The ticket of a request that was posted; otherwise its sink is free again, or the request
    /// abandoned.
    ///
    /// # Safety
    ///
    /// `posted` is the outcome of posting the request of `ticket` to this queue.
    #[inline]
    pub(super) unsafe fn posted<M>(
        ticket: Ticket<'static, Report>,
        posted: Result<(), PostError<M>>,
    ) -> Result<Ticket<'static, Report>, PostError<M>> {
        match posted {
            Ok(()) => Ok(ticket),
            Err(refused) => {
                if !refused.is_in_flight() {
                    // SAFETY: cancel requires that no completion publishes a report: the device
                    // did not accept the request, and its slot was freed.
                    unsafe { ticket.cancel() };
                }
                Err(refused)
            }
        }
    }

    /// The error of a routed request in a forked child.
    #[cold]
    pub(super) fn forked<L: Owned>(local: L) -> PostError<L::Returned> {
        PostError::refused(Error::new(W::VERB, ErrorKind::Forked), local)
    }
}

/// Converts the provider's result of a refused post.
#[cold]
pub(super) fn post_error(verb: Verb, result: i32) -> Error {
    match Error::of_data_path(verb, result) {
        error if error.errno() == Some(libc::ENOMEM) => error.with_kind(ErrorKind::QueueFull),
        error => error,
    }
}
