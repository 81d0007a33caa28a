//! Scopes: requests on borrowed memory.
//!
//! # Invariants
//!
//! * **C1.** Memory that a scope's requests use is borrowed for `'env`, which outlives the scope's
//!   call. The call does not return or unwind before the device no longer accesses the memory, or
//!   the process ends.
//! * **C2.** `Shared::outstanding` counts the scope's requests that the device may still work on.
//!   The count goes up before a request is parked, and down when its slot is claimed (completed, or
//!   released with the queue pair).

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma_sys::ibv_wc_status;

use super::QueuePair;
use super::local::{Local, Writable};
use super::op::{Operation, Work};
use super::posting::{Keep, PostError};
use super::transport::Transport;
use crate::cq::{Backoff, Pauses, Poller};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::mr::{LentSlice, LentSliceMut};
use crate::panics::Panics;
use crate::ring::{Sink, Vacant};
use crate::types::{WcError, WcStatus};

/// The time that flushing may take once a scope's queue pair is in the error state.
const GRACE: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };

/// How a scope waits: no channel wakes it.
const BACKOFF: Backoff =
    Backoff { spins: 200, yields: Duration::from_millis(1), longest_nap: Duration::from_micros(100) };

/// The state that one scope shares with the pollers of its requests.
pub(crate) struct Shared {
    outstanding: AtomicUsize,
    /// The first failure: status and vendor code, with the bit `FAILED`; 0 if there is none.
    failure: AtomicU64,
}

const FAILED: u64 = 1 << 63;

impl Sink for Shared {
    /// One request has ended (C2).
    fn finished(&self, status: ibv_wc_status, vendor_error: u32) {
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            let failure = FAILED | u64::from(status.0 & 0x7fff_ffff) << 32 | u64::from(vendor_error);
            // Only the first failure is kept.
            let _ = self.failure.compare_exchange(0, failure, Ordering::Relaxed, Ordering::Relaxed);
        }
        // Release: a thread that sees the count reach zero also sees the claim of the slot before
        // it.
        self.outstanding.fetch_sub(1, Ordering::Release);
    }

    /// The device did not accept one request: the caller owns its memory again (C2).
    fn abandoned(&self) {
        self.outstanding.fetch_sub(1, Ordering::Release);
    }
}

impl Shared {
    fn is_done(&self) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0
    }

    fn failure(&self) -> Option<WcError> {
        let failure = self.failure.load(Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation, reason = "cut to its halves")]
        let (status, vendor_err) = ((failure >> 32) as u32 & 0x7fff_ffff, failure as u32);
        (failure & FAILED != 0).then(|| WcError { status: WcStatus::from_raw(status), vendor_err })
    }
}

/// A keeper for borrowed memory: the scope keeps the memory valid, and the slot keeps the scope's
/// state.
impl Keep for Arc<Shared> {
    const SCOPED: bool = true;

    unsafe fn park(&self, slot: &mut Vacant<'_>) -> usize {
        // The request is counted before it is parked (C2).
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        slot.set_sink(Self::clone(self));
        0
    }
}

/// Memory that can be lent to a [`Scope`]: [`LentSlice`], [`LentSliceMut`], and lists of them.
pub trait Borrowed<'env>: Local {}

impl<'env> Borrowed<'env> for LentSlice<'env> {}
impl<'env> Borrowed<'env> for LentSliceMut<'env> {}
impl<'env, L: Borrowed<'env>, const N: usize> Borrowed<'env> for [L; N] {}
impl<'env, L: Borrowed<'env>> Borrowed<'env> for Vec<L> {}
impl<'env, A: Borrowed<'env>, B: Borrowed<'env>> Borrowed<'env> for (A, B) {}
impl<'env> Borrowed<'env> for () {}

/// Posts requests on borrowed memory. Created by [`QueuePair::scope`].
///
/// # Examples
///
/// This writes two parts of one buffer, one after the other:
///
/// ```no_run
/// # use std::time::Duration;
/// # fn f(qp: &mut rdma::QueuePair<rdma::transport::Rc>, poller: &mut rdma::Poller, buffer: &mut rdma::Buffer,
/// #      remote: rdma::RemoteSlice) -> Result<(), Box<dyn std::error::Error>> {
/// use rdma::op;
///
/// qp.scope(poller, Duration::from_secs(1), |scope| {
///     scope.post_send(op::write(buffer.lend(..512), remote)).map_err(|refused| refused.error())?;
///     // The first part has arrived when this returns.
///     scope.wait()?;
///     scope.post_send(op::write(buffer.lend(512..), remote)).map_err(|refused| refused.error())?;
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })??;
/// # Ok(()) }
/// ```
pub struct Scope<'scope, 'env: 'scope, T: Transport> {
    qp: &'scope mut QueuePair<T>,
    poller: &'scope mut Poller,
    shared: Arc<Shared>,
    deadline: Instant,
    env: PhantomData<&'env mut &'env ()>,
}

/// The error with which a scope ended.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// A request failed; the queue pair is in the error state.
    #[error(transparent)]
    Failed(WcError),
    /// Not all requests finished by the deadline; the queue pair was moved to the error state, or
    /// destroyed.
    #[error("the scope's requests did not finish by the deadline")]
    TimedOut,
    /// Polling the completion queue failed.
    #[error(transparent)]
    Poll(Error),
}

debug_is_display!(ScopeError);

impl<T: Transport> QueuePair<T> {
    /// Runs `body`, which posts requests that borrow the caller's buffers, and waits for all these
    /// requests before it returns or unwinds.
    ///
    /// `poller` must belong to the queue's completion queue. Completions of other requests that
    /// arrive meanwhile are left to that queue's pollers, which may be any number in other threads.
    /// The memory of requests posted unsignaled before the scope is dropped when the scope's
    /// requests complete.
    ///
    /// If requests are unfinished after `timeout`, the queue pair is moved to the error state,
    /// which flushes them. If they still do not finish, the queue pair is destroyed and cannot be
    /// used any more; one that other code destroys is reset. If even that fails, the device may
    /// still access borrowed memory, and the process is aborted.
    ///
    /// A panic of the body, or of a waker or an owner of memory whose completion the scope fetches,
    /// goes on once all requests have ended.
    ///
    /// # Errors
    ///
    /// The first failure of a request, `TimedOut` at the deadline, or an error of polling. The
    /// value that `body` returned is then lost.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rdma::{Buffer, Poller, QueuePair, RemoteSlice};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &mut QueuePair<Rc>, poller: &mut Poller, buffer: &mut Buffer, remote: RemoteSlice)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let lent = buffer.lend_mut(..64);
    /// qp.scope(poller, Duration::from_secs(1), |scope| {
    ///     scope.post_send(rdma::op::read(lent, remote)).map_err(|refused| refused.error())
    /// })??;
    /// println!("{:?}", &buffer[..64]);
    /// # Ok(()) }
    /// ```
    pub fn scope<'env, R>(
        &mut self,
        poller: &mut Poller,
        timeout: Duration,
        body: impl for<'scope> FnOnce(&mut Scope<'scope, 'env, T>) -> R,
    ) -> Result<R, ScopeError> {
        let shared = Arc::new(Shared { outstanding: AtomicUsize::new(0), failure: AtomicU64::new(0) });
        let now = Instant::now();
        let mut scope = Scope {
            qp: self,
            poller,
            shared,
            deadline: now.checked_add(timeout).unwrap_or(now + Duration::from_secs(1 << 30)),
            env: PhantomData,
        };
        // This function waits for the requests whatever the body does: it owns the scope, and the
        // body only borrows it (C1). The payload of its panic leaks if anything below panics,
        // because the payload's drop may panic, too.
        let result = panic::catch_unwind(AssertUnwindSafe(|| body(&mut scope))).map_err(ManuallyDrop::new);
        // Nothing here may unwind with memory in flight (C1): panics of owners and wakers wait.
        let mut panics = Panics::default();
        let finished = panic::catch_unwind(AssertUnwindSafe(|| scope.finish(&mut panics)));
        if !scope.may_end() {
            // Returning would end the borrow of memory that the device may still write.
            process::abort();
        }
        panics.resume();
        let (finished, forced) = finished.unwrap_or_else(|payload| panic::resume_unwind(payload));
        // Log only now, with nothing in flight: a log subscriber may panic.
        if forced {
            let qpn = scope.qp.qpn();
            tracing::warn!(
                name: "scope_timed_out", target: "rdma",
                qpn, "a scope's requests did not finish in time; its queue pair went to the error state"
            );
        }
        match result {
            Ok(value) => finished.map(|()| value),
            Err(payload) => panic::resume_unwind(ManuallyDrop::into_inner(payload)),
        }
    }
}

impl<'env, T: Transport> Scope<'_, 'env, T> {
    /// Posts a request on lent memory. The scope succeeds only if the request does; there is no
    /// completion to poll.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`]; `InvalidInput` if the scope's poller is not the send
    /// queue's.
    pub fn post_send<O: Operation<T>, L: Borrowed<'env>>(&mut self, work: Work<O, L>) -> Result<(), PostError<L>> {
        let wrong = Error::new(Verb::PostSend, ErrorKind::InvalidInput);
        if !Arc::ptr_eq(&self.poller.cq, &self.qp.control.send_cq) {
            return Err(PostError::new(wrong, Some(work.local)));
        }
        let work = work.signaled(true);
        // SAFETY: post_kept requires that the caller does not use memory that is parked in the
        // slot: lent memory is not parked, so the caller keeps it.
        let outcome = unsafe { self.qp.send.post_kept::<T, O, L>(&work, &self.shared) };
        outcome.settle(work.local, drop, |local| local).inspect_err(PostError::log)
    }

    /// Posts a receive into lent memory. The scope succeeds only if a message arrives.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_recv`]; `InvalidInput` if the scope's poller is not the receive
    /// queue's.
    pub fn post_recv<L: Borrowed<'env> + Writable>(&mut self, local: L) -> Result<(), PostError<L>> {
        let wrong = Error::new(Verb::PostRecv, ErrorKind::InvalidInput);
        if !Arc::ptr_eq(&self.poller.cq, &self.qp.control.recv_cq) {
            return Err(PostError::new(wrong, Some(local)));
        }
        // SAFETY: post_kept requires that the caller does not use memory that is parked in the
        // slot: lent memory is not parked, so the caller keeps it.
        let outcome = unsafe { self.qp.recv.post_kept::<T, L>(&local, 0, &self.shared) };
        outcome.settle(local, drop, |local| local).inspect_err(PostError::log)
    }

    /// The queue pair, for inspection.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair<T> {
        self.qp
    }

    /// Waits until all requests posted so far have finished. The memory stays borrowed until the
    /// scope ends.
    ///
    /// # Errors
    ///
    /// The first failure so far, `TimedOut` at the deadline, or an error of polling.
    pub fn wait(&mut self) -> Result<(), ScopeError> {
        let mut panics = Panics::default();
        let polled = self.pump_until(self.deadline, &mut panics);
        panics.resume();
        self.result(polled)
    }

    /// The result so far, after polling had a result.
    fn result(&self, polled: Result<()>) -> Result<(), ScopeError> {
        if let Some(failure) = self.shared.failure() {
            return Err(ScopeError::Failed(failure));
        }
        if self.shared.is_done() { Ok(()) } else { Err(polled.err().map_or(ScopeError::TimedOut, ScopeError::Poll)) }
    }

    /// Polls until all requests have ended, or until the deadline. Panics of the owners and wakers
    /// of other requests go to `panics`.
    fn pump_until(&mut self, deadline: Instant, panics: &mut Panics) -> Result<()> {
        let (mut pauses, mut start, mut rounds) = (Pauses::default(), None, 0_u32);
        while !self.shared.is_done() {
            // Check the deadline while completions arrive too: a stream of other requests' or
            // invalid completions must not extend it.
            rounds = rounds.wrapping_add(1);
            if rounds % 64 == 0 && Instant::now() >= deadline {
                break;
            }
            let mut is_fetched = Ok(true);
            panics.catch(|| is_fetched = self.poller.pump());
            if is_fetched? {
                (pauses, start) = (Pauses::default(), None);
                continue;
            }
            BACKOFF.pause(&mut pauses, || start.get_or_insert_with(Instant::now).elapsed()).take();
        }
        Ok(())
    }

    /// Whether the device no longer accesses the lent memory (C1). In a forked child this is true:
    /// the device works on the parent's memory, not on this process's copy.
    fn may_end(&self) -> bool {
        self.shared.is_done() || self.qp.control.context.is_forked()
    }

    /// Ends all requests, by force if needed (C1), and logs nothing before they have ended. The
    /// second value is true if the queue pair had to be moved to the error state.
    fn finish(&mut self, panics: &mut Panics) -> (Result<(), ScopeError>, bool) {
        let polled = self.pump_until(self.deadline, panics);
        let result = self.result(polled);
        if self.may_end() {
            return (result, false);
        }
        // An error here needs no handling: it shows in requests that do not finish.
        let _ = self.qp.set_error();
        let _ = self.pump_until(Instant::now() + GRACE, panics);
        if self.shared.is_done() {
            return (result, true);
        }
        // A destroy or reset that succeeds releases the parked slots, and so ends the requests.
        let mut is_refused = false;
        panics.catch(|| {
            if let Err(error) = self.qp.end_requests() {
                is_refused = true;
                let text = "the device keeps access to memory that was only lent to it; the process is aborted";
                tracing::error!(name: "lent_memory_kept", target: "rdma", %error, "{text}");
            }
        });
        // A slot that another thread's poller has just claimed is not parked any more; that poller
        // tells the sink in a moment.
        let patience = Instant::now() + GRACE;
        while !is_refused && !self.shared.is_done() && Instant::now() < patience {
            thread::yield_now();
        }
        (result, true)
    }
}

impl<T: Transport> fmt::Debug for Scope<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outstanding = self.shared.outstanding.load(Ordering::Relaxed);
        f.debug_struct("Scope").field("outstanding", &outstanding).finish_non_exhaustive()
    }
}
