//! Polling: completions are fetched, and routed to their requests.

use std::fmt;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_sys::{ibv_cq, ibv_wc};

use super::backoff::Backoff;
use super::completion::Completion;
use super::held::{Found, Held};
use super::queue::{CompletionQueue, CqInner};
use super::sharing::{Batch, FETCH, Waiting};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::fork;
use crate::handle::Handle;
use crate::qp::ring::{self, Cached, Grabbed, Info, has_sink};

/// [`FETCH`] as the C interface has it.
const ENTRIES: i32 = 16;

/// Takes completions from a completion queue, one after the other.
///
/// Any number of pollers and [scopes](crate::QueuePair::scope) may work on one queue, in any
/// threads. Each completion goes to one of the pollers, or to the scope that its request belongs
/// to, whoever fetches it. Completions of one queue pair come in order to a poller that polls
/// alone.
///
/// A poller that is the queue's only one fetches 16 completions at a time; where there are more,
/// each fetches one at a time, which costs more, so make no more of them than poll. What a dropped
/// poller has not handed out comes to the next one that polls.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller {
    pub(super) held: Held,
    /// The next entry of `batch` to be handed out, and how many are left from there on.
    next: *const ibv_wc,
    left: u32,
    raw: *mut ibv_cq,
    /// The process that it is for, or, while `source` is another than the device, one that will
    /// never be.
    live_in: u32,
    source: Source,
    cached: Cached,
    pub(super) backoff: Backoff,
    /// Invariant **F1**: its entries are initialised, and written by this poller only, while
    /// `source` is not `Open`.
    batch: Arc<Batch<ibv_wc>>,
    /// Last, so that it outlives `raw`.
    pub(crate) cq: Arc<Handle<CqInner>>,
}

/// Where the entries come from that are handed out now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// One that was just fetched.
    Device,
    /// Several: the batch is open.
    Open,
    /// The backlog, and another poller has it too.
    Copy,
}

// SAFETY: the raw queue is `cq`'s, which is Send and Sync; `next` points into `batch`, which is
// kept; the rest is Send.
unsafe impl Send for Poller {}
// SAFETY: `&Poller` gives nothing but the handle of the queue.
unsafe impl Sync for Poller {}

impl CompletionQueue {
    /// Makes a poller for the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let cq = context.create_cq(64)?;
    /// // One poller for each thread that polls.
    /// let mut poller = cq.poller();
    /// assert!(poller.poll()?.is_none());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn poller(&self) -> Poller {
        let context = &self.inner.context;
        // In a forked child, where the poller does nothing, another thread may have had the lock.
        let batch = if context.is_forked() { Arc::new(Batch::new()) } else { self.inner.sharing.join() };
        Poller {
            held: Held::NOTHING,
            next: batch.start(),
            left: 0,
            raw: self.inner.raw,
            live_in: context.fork,
            source: Source::Device,
            cached: Cached::nothing(),
            backoff: Backoff::default(),
            batch,
            cq: Arc::clone(&self.inner),
        }
    }
}

impl Poller {
    /// The next completion, if there is one.
    ///
    /// Memory of the last one that was not taken is given up.
    ///
    /// # Errors
    ///
    /// What the provider reports. No memory is given back then: only completions do that, or the
    /// end of the queue pair.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # type Result = std::result::Result<(), Box<dyn std::error::Error>>;
    /// # fn f(qp: &mut rdma::QueuePair<rdma::Rc>, poller: &mut rdma::Poller) -> Result {
    /// use rdma::op::Opcode;
    ///
    /// while let Some(mut completion) = poller.poll()? {
    ///     completion.status()?;
    ///     let (opcode, token) = (completion.opcode(), completion.token());
    ///     let len = completion.byte_len();
    ///     if let (Opcode::Recv, Some(buffer)) = (opcode, completion.take_buffer()) {
    ///         println!("{:?}", buffer.get(..len));
    ///         // The same memory for the next message.
    ///         qp.post_recv(buffer, token)?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion<'_>>> {
        Ok(self.advance()?.map(|found| self.completion(found)))
    }

    /// The completion queue.
    #[must_use]
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue { inner: Arc::clone(&self.cq) }
    }

    /// What [`advance`](Self::advance) has just found.
    #[inline(always)]
    pub(super) fn completion(&mut self, Found { wc, token, info }: Found) -> Completion<'_> {
        // SAFETY: F1: it lies in the batch, which this poller alone writes, and not while it is
        // borrowed.
        Completion::new(unsafe { &*wc }, token, info, &mut self.held)
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

    /// Routes a completion of the batch to its request. Nothing is held when it is called.
    #[inline(always)]
    fn take(&mut self, wc: *const ibv_wc) -> Option<Found> {
        // SAFETY: F1: one that was fetched.
        let wr_id = unsafe { (*wc).wr_id };
        let Some(grabbed) = ring::grab(wr_id, &mut self.cached) else {
            self.count_stale(wr_id);
            return None;
        };
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

    /// A request with a keep-alive, and otherwise at most one segment: the handle is given up
    /// now, for the request has ended.
    fn take_keeping(&mut self, grabbed: Grabbed, info: Info) {
        // SAFETY: with neither run nor scope nor many segments, what makes it neither single nor
        // empty is the handle; nothing below looks for it.
        let keep_alive = unsafe { grabbed.take_keep_alive() };
        if info.without_keep_alive().is_single() {
            self.held.set(grabbed.into_single());
        } else {
            grabbed.release();
        }
        // Dropped last: destroying it may log, and a subscriber may panic. The segment is held by
        // then.
        drop(keep_alive);
    }

    #[cold]
    fn take_other(&mut self, grabbed: Grabbed, wc: *const ibv_wc) -> bool {
        // SAFETY: F1: one that was fetched.
        let &ibv_wc { wr_id, status, vendor_err, .. } = unsafe { &*wc };
        let (_, info) = grabbed.read();
        if info.without_keep_alive().is_at_most_single() {
            self.take_keeping(grabbed, info);
            return true;
        }
        let claimed = ring::claimed(grabbed, wr_id, &self.cached);
        if claimed.scoped {
            claimed.finish(status, vendor_err);
            return false;
        }
        self.held.set_request(claimed);
        true
    }

    /// A completion that names no request in flight: another poller may have handed it out, or its
    /// sink have got it.
    #[cold]
    fn count_stale(&self, wr_id: u64) {
        let was_shared = match self.source {
            Source::Device => false,
            Source::Open => has_sink(wr_id) || self.batch.is_copied(),
            Source::Copy => true,
        };
        if !was_shared {
            self.cq.count_stale();
        }
    }

    /// Fetches more, and gives the first. Called with none left.
    #[inline(always)]
    fn fetch(&mut self) -> Result<Option<*const ibv_wc>> {
        if self.live_in != fork::generation() || !self.cq.sharing.crowd.is_quiet() {
            return self.fetch_shared();
        }
        // SAFETY: ibv_poll_cq wants a completion queue, which `self` keeps, of this process
        // (checked), and room for as many entries as it is told of: F1, `live_in` says that the
        // batch is not open.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, ENTRIES, self.batch.start()) };
        self.fetched(count, ENTRIES)
    }

    #[inline(always)]
    fn fetched(&mut self, count: i32, room: i32) -> Result<Option<*const ibv_wc>> {
        let more = count.wrapping_sub(1) as u32;
        if more < room.unsigned_abs() {
            self.left = more;
            if more != 0 {
                self.open();
            }
            return Ok(Some(self.batch.start()));
        }
        if count == 0 { Ok(None) } else { Err(poll_failed(count)) }
    }

    /// Lets others see what was fetched beyond the first.
    #[cold]
    fn open(&mut self) {
        for at in 1..=self.left as usize {
            // SAFETY: F1: one that was fetched.
            let wc = unsafe { self.batch.start().wrapping_add(at).read() };
            if has_sink(wc.wr_id) {
                self.cq.deliver(&wc, &mut self.cached);
            }
        }
        self.source = Source::Open;
        self.live_in = fork::NEVER;
        self.batch.open(self.left + 1);
        if !self.cq.sharing.crowd.is_still_alone() {
            self.cq.sharing.spill(&self.batch);
        }
    }

    /// Fetches where there are other pollers, or were, or after the batch was open.
    #[cold]
    fn fetch_shared(&mut self) -> Result<Option<*const ibv_wc>> {
        self.cq.context.check(Operation::PollCq)?;
        if self.source == Source::Open {
            self.batch.close();
        }
        self.source = Source::Device;
        self.live_in = self.cq.context.fork;
        let start = self.batch.start();
        if let Some(Waiting { wc, is_copy }) = self.cq.sharing.take() {
            // SAFETY: F1: the batch was just closed.
            unsafe { start.write(wc) };
            if is_copy {
                self.source = Source::Copy;
                self.live_in = fork::NEVER;
            }
            return Ok(Some(start));
        }
        let retired = self.cq.retired();
        let room = if self.cq.sharing.crowd.is_alone() { ENTRIES } else { 1 };
        // SAFETY: ibv_poll_cq wants a completion queue, which `self` keeps, of this process
        // (checked), and room for as many entries as it is told of: F1, the batch was just closed.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, room, start) };
        if count == 0 {
            self.cq.found_empty(retired);
        }
        self.fetched(count, room)
    }

    /// For a scope that waits: whether there were completions.
    pub(crate) fn pump(&mut self) -> Result<bool> {
        Ok(self.cq.pump(&mut self.cached)? > 0)
    }
}

impl CqInner {
    /// Fetches completions, delivers those that have a sink, and leaves the others to all pollers.
    /// How many there were.
    pub(super) fn pump(&self, cached: &mut Cached) -> Result<usize> {
        self.context.check(Operation::PollCq)?;
        let retired = self.retired();
        let mut wcs = [ibv_wc::default(); FETCH];
        // SAFETY: ibv_poll_cq wants a completion queue, of this process (checked), and room.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, ENTRIES, wcs.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| poll_failed(count))?.min(FETCH);
        if count == 0 {
            self.found_empty(retired);
        }
        for wc in &wcs[..count] {
            if has_sink(wc.wr_id) {
                self.deliver(wc, cached);
            } else if ring::is_in_flight(wc.wr_id) {
                self.sharing.push(*wc);
            } else {
                self.count_stale();
            }
        }
        Ok(count)
    }

    /// Gives a completion to the sink that its request named.
    fn deliver(&self, wc: &ibv_wc, cached: &mut Cached) {
        match ring::grab(wc.wr_id, cached) {
            Some(grabbed) => ring::claimed(grabbed, wc.wr_id, cached).finish(wc.status, wc.vendor_err),
            None => self.count_stale(),
        }
    }

    fn count_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }
}

#[cold]
fn poll_failed(result: i32) -> Error {
    match Error::check(Operation::PollCq, result) {
        Err(error) => error,
        Ok(()) => Error::new(Operation::PollCq, ErrorKind::Unknown),
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if self.cq.context.is_forked() {
            // Another thread of the parent may have had the lock.
            return;
        }
        let is_copied = self.source == Source::Open && self.batch.close();
        let left = if is_copied { 0 } else { self.left as usize };
        // SAFETY: F1: from `next` on, that many entries were fetched. Nobody writes them.
        let rest = unsafe { slice::from_raw_parts(self.next, left) };
        self.cq.sharing.leave(&self.batch, rest);
        // Given up last: an owner's drop may panic.
        self.held.give_up();
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("queue", &self.raw).finish_non_exhaustive()
    }
}
