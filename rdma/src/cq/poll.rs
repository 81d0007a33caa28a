//! Polling: completions are fetched, and routed to their requests.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_cq, ibv_wc};

use super::completion::Completion;
use super::{CompletionQueue, CqInner};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::fork;
use crate::handle::Handle;
use crate::mr::{Kind, Segment};
use crate::qp::ring::{Cached, Claimed, Grabbed, Info, RingTable, Single};

/// Completions that are fetched at a time.
const FETCH: usize = 16;
const ENTRIES: i32 = 16;

/// Takes completions from a completion queue, one after the other.
///
/// It fetches some at a time; those it has fetched and not yet handed out it keeps until the next call, or gives their
/// memory up when it is dropped. Any number of pollers may work on one queue, in any threads; each completion goes to one of
/// them. Completions of one queue pair come in order to who polls alone.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller {
    pub(super) held: Held,
    /// The next of `wcs` to be handed out, and how many are left from there on.
    next: *const ibv_wc,
    left: u32,
    wcs: Fetched,
    raw: *mut ibv_cq,
    /// The process that it is for, or, while something is deferred, one that will never be.
    live_in: u32,
    cached: Cached,
    /// Fetched while a scope waited; they come before what is fetched next.
    deferred: VecDeque<ibv_wc>,
    /// Last, so that it outlives what is held (R4), and `raw`.
    pub(crate) cq: Arc<Handle<CqInner>>,
}

/// Room for completions, apart from the poller: they are pointed to while the poller changes.
///
/// Invariant **F1**: an allocation of `FETCH` initialised completions, owned; no references to it last longer than a statement.
struct Fetched(NonNull<[ibv_wc; FETCH]>);

impl Fetched {
    fn new() -> Self {
        let room = Box::into_raw(Box::new([ibv_wc::default(); FETCH]));
        // SAFETY: the pointer of a box is not null.
        Self(unsafe { NonNull::new_unchecked(room) })
    }

    #[inline(always)]
    fn start(&self) -> *mut ibv_wc {
        self.0.as_ptr().cast()
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        // SAFETY: F1.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: the raw queue is `cq`'s, which is Send and Sync; `next` points into `wcs`, which is owned; the rest is Send.
unsafe impl Send for Poller {}
// SAFETY: `&Poller` gives nothing but the handle of the queue.
unsafe impl Sync for Poller {}

/// What the present completion gives back. It stays here, so that forgetting the completion is no harm.
///
/// Invariant **H1**: `single` says which of the two there is: a request with one segment and nothing before it, or `request`, where
/// it is [`Single::none`].
pub(super) struct Held {
    single: Option<Single>,
    /// Any other request, and one of the unsignaled ones before it.
    pub(super) request: Option<(Claimed, Option<Claimed>)>,
}

/// Where a completion is, and what its slot said.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// In the poller's `wcs`.
    pub(super) wc: *const ibv_wc,
    pub(super) token: u64,
    pub(super) info: Info,
}

// SAFETY: plain data but for two pointers: one into the poller's own room (F1), and one to a slot that the poller holds (R1),
// both used only while the poller is borrowed exclusively, on one thread at a time.
unsafe impl Send for Found {}
// SAFETY: as above; `&Found` gives copies of its fields, and reads of a completion that nobody writes.
unsafe impl Sync for Found {}

impl CompletionQueue {
    /// Makes a poller for the queue.
    #[must_use]
    pub fn poller(&self) -> Poller {
        let wcs = Fetched::new();
        Poller {
            held: Held::NOTHING,
            next: wcs.start(),
            left: 0,
            wcs,
            raw: self.inner.raw,
            live_in: self.inner.context.fork,
            cached: Cached::nothing(),
            deferred: VecDeque::new(),
            cq: Arc::clone(&self.inner),
        }
    }

    /// How many completions named no request in flight and were dropped: left behind of a queue pair that was reset or destroyed,
    /// or reported twice.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        self.inner.rings.stale()
    }
}

impl Poller {
    /// The next completion, if there is one.
    ///
    /// Memory of the last one that was not taken is given up.
    ///
    /// # Errors
    ///
    /// What the provider reports. No memory is given back then: only completions do that, or the end of the queue pair.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion<'_>>> {
        Ok(self.advance()?.map(|found| Completion::new(self, found)))
    }

    /// The completion queue.
    #[must_use]
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue { inner: Arc::clone(&self.cq) }
    }

    #[inline(always)]
    pub(super) fn advance(&mut self) -> Result<Option<Found>> {
        self.held.give_up();
        loop {
            let wc = if self.left != 0 {
                self.left -= 1;
                self.next
            } else {
                let Some(wc) = self.fetch()? else { return Ok(None) };
                wc
            };
            self.next = wc.wrapping_add(1);
            if let Some(found) = self.take(wc) {
                return Ok(Some(found));
            }
        }
    }

    /// Routes a completion of `wcs` to its request. Nothing is held when it is called.
    #[inline(always)]
    fn take(&mut self, wc: *const ibv_wc) -> Option<Found> {
        // SAFETY: F1: one that was fetched.
        let wr_id = unsafe { (*wc).wr_id };
        // SAFETY: R4: `self` keeps the completion queue, and drops what it holds first.
        let grabbed = unsafe { self.cq.rings.grab(wr_id, &mut self.cached) }?;
        let (token, info) = grabbed.read();
        if info.is_single() {
            self.held.set(grabbed.into_single());
        } else if info.is_empty() {
            grabbed.release();
        } else if !self.take_other(grabbed, wc) {
            return None;
        }
        Some(Found { wc, token, info })
    }

    /// A request with an address handle, and otherwise at most one segment: the handle is given up now, for the request has
    /// ended.
    fn take_addressed(&mut self, grabbed: Grabbed, info: Info) {
        // SAFETY: with neither run nor scope nor many segments, what makes it neither single nor empty is the handle; nothing
        // below looks for it.
        let address = unsafe { grabbed.take_address() };
        if info.without_address().is_single() {
            self.held.set(grabbed.into_single());
        } else {
            grabbed.release();
        }
        // Last of all: destroying it may log, and a subscriber may panic. The segment is held by then.
        drop(address);
    }

    #[cold]
    fn take_other(&mut self, grabbed: Grabbed, wc: *const ibv_wc) -> bool {
        // SAFETY: F1: one that was fetched.
        let &ibv_wc { wr_id, status, vendor_err, .. } = unsafe { &*wc };
        let (_, info) = grabbed.read();
        if info.without_address().is_at_most_single() {
            self.take_addressed(grabbed, info);
            return true;
        }
        let claimed = RingTable::claimed(grabbed, wr_id, &self.cached);
        if claimed.scoped {
            claimed.finish_scoped(status.0, vendor_err);
            return false;
        }
        self.held.set_request(claimed);
        true
    }

    /// Fetches more, and gives the first. Called with none left.
    #[inline(always)]
    fn fetch(&mut self) -> Result<Option<*const ibv_wc>> {
        if self.live_in != fork::generation() {
            return self.fetch_deferred();
        }
        let start = self.wcs.start();
        // SAFETY: ibv_poll_cq wants a completion queue, which `self` keeps, of this process (checked), and room for as many
        // entries as it is told of (F1).
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, ENTRIES, start) };
        let more = count.wrapping_sub(1) as u32;
        if more < ENTRIES.unsigned_abs() {
            self.left = more;
            return Ok(Some(start));
        }
        if count == 0 { Ok(None) } else { Err(poll_failed(count)) }
    }

    #[cold]
    fn fetch_deferred(&mut self) -> Result<Option<*const ibv_wc>> {
        self.cq.context.check(Operation::PollCq)?;
        let start = self.wcs.start();
        let mut count = 0;
        while count < ENTRIES.unsigned_abs() {
            let Some(wc) = self.deferred.pop_front() else { break };
            // SAFETY: F1: in bounds.
            unsafe { start.wrapping_add(count as usize).write(wc) };
            count += 1;
        }
        if self.deferred.is_empty() {
            self.live_in = self.cq.context.fork;
        }
        self.left = count.saturating_sub(1);
        Ok((count > 0).then_some(start.cast_const()))
    }

    /// For a scope that waits: fetches completions and hands those of scoped requests on. Others stay for `poll`.
    pub(crate) fn pump(&mut self) -> Result<bool> {
        self.cq.context.check(Operation::PollCq)?;
        let mut wcs = [ibv_wc::default(); FETCH];
        // SAFETY: as in `fetch`.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, ENTRIES, wcs.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| poll_failed(count))?.min(FETCH);
        for wc in &wcs[..count] {
            // SAFETY: R4: `self` keeps the completion queue.
            let Some(grabbed) = (unsafe { self.cq.rings.grab(wc.wr_id, &mut self.cached) }) else { continue };
            let claimed = RingTable::claimed(grabbed, wc.wr_id, &self.cached);
            if claimed.scoped {
                claimed.finish_scoped(wc.status.0, wc.vendor_err);
            } else {
                claimed.put_back();
                self.deferred.push_back(*wc);
                self.live_in = fork::NEVER;
            }
        }
        Ok(count > 0)
    }
}

#[cold]
fn poll_failed(result: i32) -> Error {
    match Error::check(Operation::PollCq, result) {
        Err(error) => error,
        Ok(()) => Error::new(Operation::PollCq, ErrorKind::Unknown),
    }
}

impl Held {
    const NOTHING: Self = Self { single: None, request: None };

    #[inline(always)]
    fn give_up(&mut self) {
        if self.single.is_some() {
            self.give_up_rest();
        }
    }

    #[cold]
    fn give_up_rest(&mut self) {
        self.single = None;
        self.request = None;
    }

    /// Replaces nothing.
    #[inline(always)]
    fn set(&mut self, single: Single) {
        debug_assert!(self.single.is_none());
        // SAFETY: valid for writes. None needs no drop, and should there ever be something, it is leaked.
        unsafe { ptr::write(&raw mut self.single, Some(single)) };
    }

    /// Replaces nothing.
    fn set_request(&mut self, claimed: Claimed) {
        self.single = Some(Single::none());
        self.request = Some((claimed, None));
    }

    /// The next segment, to look at.
    #[inline]
    pub(super) fn peek(&self) -> Option<&Segment> {
        match &self.request {
            Some((claimed, _)) => claimed.peek(),
            None => self.single.as_ref().map(Single::segment),
        }
    }

    /// The next segment, if it is of that kind.
    #[inline(always)]
    pub(super) fn take_if(&mut self, found: Found, kind: Kind) -> Option<Segment> {
        if !found.info.is_single() {
            return self.take_other_if(kind);
        }
        let single = self.single.as_ref()?;
        if single.segment().kind() != kind {
            return None;
        }
        // SAFETY: valid for reads; replaced below before anything can see or drop it, so it is moved out once.
        let single = unsafe { ptr::read(single) };
        // SAFETY: valid for writes. What was there was moved out.
        unsafe { ptr::write(&raw mut self.single, None) };
        Some(single.take())
    }

    #[cold]
    fn take_other_if(&mut self, kind: Kind) -> Option<Segment> {
        if self.peek()?.kind() != kind {
            return None;
        }
        match &mut self.request {
            Some((claimed, _)) => claimed.take(),
            // There was an address handle beside it.
            None => self.single.take().map(Single::take),
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.held.give_up();
        // What was fetched will not come again.
        loop {
            let wc = match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    self.next
                }
                None => match self.fetch_deferred() {
                    Ok(Some(wc)) => wc,
                    _ => break,
                },
            };
            self.next = wc.wrapping_add(1);
            self.take(wc);
            self.held.give_up();
        }
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("queue", &self.raw).finish_non_exhaustive()
    }
}
