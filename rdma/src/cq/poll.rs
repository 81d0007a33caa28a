//! Polling: fetches completions and routes each to its request.

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdma_sys::{ibv_cq, ibv_wc, ibv_wc_status};

use super::backoff::Backoff;
use super::completion::Completion;
use super::held::{Found, Held};
use super::queue::{CompletionQueue, CqInner};
use super::sharing::{Batch, FETCH, Waiting};
use crate::error::{Error, Result, Verb};
use crate::fork;
use crate::handle::Handle;
use crate::panics::Panics;
use crate::ring::{self, Cached, Grabbed, Info, has_sink};

/// [`FETCH`] in the type of the C interface.
const ENTRIES: i32 = 16;

/// Takes completions from a completion queue, one after the other.
///
/// Any number of pollers and [scopes](crate::QueuePair::scope) may work on one queue, in any
/// threads. Each completion goes to one of the pollers, or to the scope that its request belongs
/// to; the thread that fetches it makes no difference. A poller that polls alone receives the
/// completions of one queue pair in order.
///
/// The only poller of a queue fetches 16 completions at a time. If a queue has several pollers,
/// each fetches one at a time, which costs more, so create no more pollers than there are threads
/// that poll. Completions that a dropped poller had fetched but not handed out go to the next
/// poller that polls.
#[doc(alias = "ibv_poll_cq")]
pub struct Poller {
    pub(super) held: Held,
    /// The next entry of `batch` to hand out, and the number of entries left from there on. While
    /// none is left, the first entry of `batch`, to which the next fetch writes.
    next: NonNull<ibv_wc>,
    left: u32,
    raw: *mut ibv_cq,
    /// The [epoch](fork::epoch) in which the poller was in the process of the queue, and the queue
    /// quiet; `NO_EPOCH` while `source` is not `Device`, and so while entries are left.
    pub(super) quiet_in: u64,
    source: Source,
    cached: Cached,
    pub(super) backoff: Backoff,
    /// Invariant **F1**: all entries are initialised. While `source` is not `Open`, only this
    /// poller accesses them; while it is `Open`, no thread writes them.
    pub(super) batch: Arc<Batch<ibv_wc>>,
    /// Declared last, so that the queue outlives `raw`.
    pub(crate) cq: Arc<Handle<CqInner>>,
}

/// Origin of the entries that are being handed out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A single entry, which only this poller has.
    Device,
    /// Several entries that were fetched together; the batch is open.
    Open,
    /// The backlog: the entry is a copy that another poller has too.
    Copy,
}

// SAFETY: moving a poller to another thread is sound: the raw queue belongs to `cq`, which is Send
// and Sync; `next` points into `batch`, which the poller keeps; all other fields are Send.
unsafe impl Send for Poller {}
// SAFETY: sharing a poller is sound: `&Poller` gives access to the handle of the queue only, which
// is Sync.
unsafe impl Sync for Poller {}

impl CompletionQueue {
    /// Creates a poller for the queue.
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
        // In a forked child, where the poller does nothing, do not take the lock: another thread of
        // the parent may have held it at the time of the fork.
        let batch = if context.is_forked() { Arc::new(Batch::new()) } else { self.inner.sharing.join() };
        Poller {
            held: Held::NOTHING,
            next: batch.start(),
            left: 0,
            raw: self.inner.raw,
            quiet_in: fork::NO_EPOCH,
            source: Source::Device,
            cached: Cached::nothing(),
            backoff: Backoff::default(),
            batch,
            cq: Arc::clone(&self.inner),
        }
    }
}

impl Poller {
    /// Returns the next completion, if there is one.
    ///
    /// Memory of the previous completion that was not taken is dropped.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports. An error returns no memory: only completions and the
    /// end of the queue pair do.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # type Result = std::result::Result<(), Box<dyn std::error::Error>>;
    /// # fn f(qp: &mut rdma::QueuePair<rdma::transport::Rc>, poller: &mut rdma::Poller) -> Result {
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
    // Always inlined, so that the completion stays in registers: its fields are one word each.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion<'_>>> {
        Ok(self.advance()?.map(|found| self.completion(found)))
    }

    /// The completion queue that the poller takes completions from.
    #[must_use]
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue { inner: Arc::clone(&self.cq) }
    }

    /// Makes a [`Completion`] of the entry that [`advance`](Self::advance) has just found.
    #[inline(always)]
    pub(super) fn completion(&mut self, Found { wc, token, info }: Found) -> Completion<'_> {
        // SAFETY: the reference requires an initialised entry that no thread writes while it is
        // borrowed: `wc` is in the batch, and only this poller writes the batch (F1), through `&mut
        // self`.
        let wc = unsafe { wc.as_ref() };
        let tally = &self.batch.tally;
        tally.completed();
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            tally.failed(wc.status);
        }
        Completion::new(wc, token, info, &mut self.held)
    }

    /// The next completion, if there is one. The way of a request with at most one segment has no
    /// loop and returns where it ends, so that the compiler keeps what it finds in registers.
    #[inline(always)]
    pub(super) fn advance(&mut self) -> Result<Option<Found>> {
        self.held.give_up();
        let Some(wc) = self.next()? else { return Ok(None) };
        let grabbed = self.grab(wc);
        if let Some(grabbed) = grabbed {
            let (token, info) = grabbed.read();
            if info.is_single() {
                self.held.set(grabbed.into_single());
                return Ok(Some(Found { wc, token, info }));
            }
            if info.is_empty() {
                grabbed.release();
                return Ok(Some(Found { wc, token, info }));
            }
        }
        self.advance_other(wc, grabbed)
    }

    /// Goes on from an entry of another request, or of none.
    #[cold]
    fn advance_other(&mut self, mut wc: NonNull<ibv_wc>, mut grabbed: Option<Grabbed>) -> Result<Option<Found>> {
        loop {
            if let Some((token, info)) = self.take_other(grabbed, wc) {
                return Ok(Some(Found { wc, token, info }));
            }
            let Some(next) = self.next()? else { return Ok(None) };
            wc = next;
            grabbed = self.grab(wc);
            if let Some((token, info)) = grabbed.and_then(|grabbed| self.take(grabbed)) {
                return Ok(Some(Found { wc, token, info }));
            }
        }
    }

    /// Removes the next entry of a batch of which some are left.
    #[inline]
    fn next_of_batch(&mut self) -> NonNull<ibv_wc> {
        let wc = self.next;
        self.left -= 1;
        self.next = match self.left {
            0 => self.batch.start(),
            // SAFETY: add requires a result within the batch: more entries are left, and they
            // follow `wc`.
            _ => unsafe { wc.add(1) },
        };
        wc
    }

    /// Claims the slot of an entry's request; none if the entry is stale.
    #[inline(always)]
    fn grab(&mut self, wc: NonNull<ibv_wc>) -> Option<Grabbed> {
        // SAFETY: the read requires an initialised entry that no thread writes: `wc` is an entry of
        // the batch that was fetched (F1).
        ring::grab(unsafe { wc.as_ref() }.wr_id, &mut self.cached)
    }

    /// Takes over a request with at most one segment and nothing else; leaves any other. Nothing is
    /// held when this is called.
    #[inline(always)]
    fn take(&mut self, grabbed: Grabbed) -> Option<(u64, Info)> {
        let (token, info) = grabbed.read();
        if info.is_single() {
            self.held.set(grabbed.into_single());
        } else if info.is_empty() {
            grabbed.release();
        } else {
            return None;
        }
        Some((token, info))
    }

    /// Handles a request with a keep-alive and at most one segment. The keep-alive is dropped now,
    /// since the request has ended.
    fn take_keeping(&mut self, grabbed: Grabbed, info: Info) {
        // SAFETY: take_keep_alive requires a request that has a keep-alive and whose keep-alive no
        // code below looks for: `info` has no run, scope or further segments, so only the
        // keep-alive makes it neither single nor empty, and nothing below uses it.
        let keep_alive = unsafe { grabbed.take_keep_alive() };
        if info.without_keep_alive().is_single() {
            self.held.set(grabbed.into_single());
        } else {
            grabbed.release();
        }
        // Dropped last: destroying the address handle may log, and a log subscriber may panic.
        // `held` owns the segment by then.
        drop(keep_alive);
    }

    /// Routes any other entry to its request. Returns none if the entry is stale or belongs to a
    /// scope or a future.
    fn take_other(&mut self, grabbed: Option<Grabbed>, wc: NonNull<ibv_wc>) -> Option<(u64, Info)> {
        // SAFETY: the read requires an initialised entry that no thread writes: `wc` is an entry of
        // the batch that was fetched (F1).
        let wc = unsafe { wc.as_ref() };
        let Some(grabbed) = grabbed else {
            self.count_stale(wc.wr_id);
            return None;
        };
        let (token, info) = grabbed.read();
        if info.without_keep_alive().is_at_most_single() {
            self.take_keeping(grabbed, info);
            return Some((token, info));
        }
        let claimed = ring::claimed(grabbed, wc.wr_id, &self.cached);
        if claimed.has_sink() {
            self.cq.count_delivered(wc);
            claimed.finish(wc);
            return None;
        }
        self.held.set_request(claimed);
        Some((token, info))
    }

    /// Counts a completion that names no request in flight, unless the completion was shared:
    /// another poller may have handed it out, or its sink may have received it.
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

    /// Returns the next entry of the batch, or fetches completions and returns the first.
    #[inline(always)]
    fn next(&mut self) -> Result<Option<NonNull<ibv_wc>>> {
        // While entries are left, `quiet_in` is `NO_EPOCH`.
        if self.quiet_in != fork::epoch(Ordering::Relaxed) {
            return if self.left != 0 { Ok(Some(self.next_of_batch())) } else { self.fetch_shared() };
        }
        // SAFETY: ibv_poll_cq requires a live completion queue of this process, and space for
        // `ENTRIES` entries that no thread accesses: `self` keeps the queue, this is its process in
        // the present epoch, and `next` is the start of the batch, because no entry is left. The
        // batch has `FETCH` entries and is not open, since `quiet_in` is not `NO_EPOCH` (F1).
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, ENTRIES, self.next.as_ptr()) };
        self.fetched(count, ENTRIES)
    }

    /// Returns the first of `count` entries that were fetched into space for `room`.
    #[inline(always)]
    fn fetched(&mut self, count: i32, room: i32) -> Result<Option<NonNull<ibv_wc>>> {
        if count == 1 { Ok(Some(self.next)) } else { self.fetched_other(count, room) }
    }

    /// As [`fetched`](Self::fetched), for any other count. Not inlined, so that a single completion
    /// costs one comparison.
    #[inline(never)]
    fn fetched_other(&mut self, count: i32, room: i32) -> Result<Option<NonNull<ibv_wc>>> {
        let first = self.next;
        match count {
            0 => {
                self.batch.tally.found(0);
                Ok(None)
            }
            2.. if count <= room => {
                self.batch.tally.found(count.unsigned_abs());
                self.open(count.unsigned_abs() - 1);
                Ok(Some(first))
            }
            _ => Err(poll_failed(count)),
        }
    }

    /// Opens the batch, so that other pollers can copy the entries after the first: `left` of them.
    #[cold]
    fn open(&mut self, left: u32) {
        let mut panics = Panics::default();
        for at in 1..=left as usize {
            let wc = self.entry(at);
            if has_sink(wc.wr_id) {
                self.cq.deliver(&wc, &mut self.cached, &mut panics);
            }
        }
        if panics.is_pending() {
            // The caller gets no entry: another poll finds them all in the backlog.
            let first = self.entry(0);
            if has_sink(first.wr_id) {
                self.cq.deliver(&first, &mut self.cached, &mut panics);
            }
            let entries = (0..=left as usize).map(|at| self.entry(at));
            entries.filter(|wc| !has_sink(wc.wr_id)).for_each(|wc| self.cq.sharing.push(wc));
            panics.resume();
        }
        self.left = left;
        // SAFETY: add requires a result within the batch, which has more than one entry.
        self.next = unsafe { self.batch.start().add(1) };
        self.source = Source::Open;
        self.quiet_in = fork::NO_EPOCH;
        self.batch.open(self.left + 1);
        if !self.cq.sharing.crowd.is_still_alone() {
            self.cq.sharing.spill(&self.batch);
        }
    }

    /// A copy of an entry of the batch, which is not open. `at` is less than `FETCH`.
    fn entry(&self, at: usize) -> ibv_wc {
        debug_assert!(at < FETCH && self.source != Source::Open);
        // SAFETY: the read requires an initialised entry that no thread writes: all `FETCH` entries
        // are, and only this poller writes the batch (F1).
        unsafe { self.batch.start().as_ptr().wrapping_add(at).read() }
    }

    /// Fetches on the slow path: there are several pollers, or a backlog, or the batch is open, or
    /// an epoch has begun.
    #[cold]
    fn fetch_shared(&mut self) -> Result<Option<NonNull<ibv_wc>>> {
        // Read before the checks that it stands for.
        let epoch = fork::epoch(Ordering::Acquire);
        self.cq.context.check(Verb::PollCq)?;
        if self.source == Source::Open {
            self.batch.close();
        }
        self.source = Source::Device;
        self.quiet_in = if self.cq.sharing.crowd.is_quiet() { epoch } else { fork::NO_EPOCH };
        let start = self.batch.start();
        if let Some(Waiting { wc, is_copy }) = self.cq.sharing.take() {
            // SAFETY: the write requires space for an entry that no other thread accesses: the
            // batch was just closed (F1).
            unsafe { start.write(wc) };
            if is_copy {
                self.source = Source::Copy;
                self.quiet_in = fork::NO_EPOCH;
            }
            return Ok(Some(start));
        }
        let retired = self.cq.retired();
        let room = if self.cq.sharing.crowd.is_alone() { ENTRIES } else { 1 };
        // SAFETY: ibv_poll_cq requires a live completion queue of this process, and space for
        // `room` entries that no thread accesses: `self` keeps the queue, the generation was
        // checked above, and the batch has `FETCH` entries and was just closed (F1).
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, room, start.as_ptr()) };
        if count == 0 {
            self.cq.found_empty(retired);
        }
        self.fetched(count, room)
    }

    /// Fetches completions for a scope that waits; returns whether there were any.
    pub(crate) fn pump(&mut self) -> Result<bool> {
        Ok(self.cq.pump(&mut self.cached, &mut Fetched::new())? > 0)
    }
}

/// Space for the completions that one call fetches.
pub(crate) struct Fetched([ibv_wc; FETCH]);

impl Fetched {
    pub(crate) fn new() -> Self {
        Self([ibv_wc::default(); FETCH])
    }
}

impl CqInner {
    /// Fetches completions, delivers those that have a sink, and adds the others to the backlog.
    /// Returns the number fetched.
    pub(crate) fn pump(&self, cached: &mut Cached, Fetched(wcs): &mut Fetched) -> Result<usize> {
        self.context.check(Verb::PollCq)?;
        let retired = self.retired();
        // SAFETY: ibv_poll_cq requires a live completion queue of this process, and space for
        // `ENTRIES` entries: `self` owns the queue, the generation was checked above, and `wcs` has
        // `FETCH` entries.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.raw, ENTRIES, wcs.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| poll_failed(count))?.min(FETCH);
        if count == 0 {
            self.found_empty(retired);
        }
        self.sharing.tally.found_shared(count);
        // Fetched completions must all be delivered, even if user code panics.
        let mut panics = Panics::default();
        for wc in &wcs[..count] {
            if has_sink(wc.wr_id) {
                self.deliver(wc, cached, &mut panics);
            } else if ring::is_in_flight(wc.wr_id) {
                self.sharing.push(*wc);
            } else {
                self.count_stale();
            }
        }
        panics.resume();
        Ok(count)
    }

    /// Delivers a completion to its request's sink. Panics of user code go to `panics`.
    #[inline(always)]
    fn deliver(&self, wc: &ibv_wc, cached: &mut Cached, panics: &mut Panics) {
        let grabbed = ring::grab(wc.wr_id, cached);
        if grabbed.is_some() {
            self.count_delivered(wc);
        }
        match grabbed {
            #[cfg(feature = "aio")]
            Some(grabbed) if grabbed.read().1.is_routed_single() => ring::publish_single(grabbed, wc, cached, panics),
            Some(grabbed) => panics.catch(|| ring::claimed(grabbed, wc.wr_id, cached).finish(wc)),
            None => self.count_stale(),
        }
    }

    /// Counts a completion that is delivered to a sink.
    #[inline(always)]
    fn count_delivered(&self, wc: &ibv_wc) {
        self.sharing.tally.completed_shared();
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            self.sharing.tally.failed(wc.status);
        }
    }

    fn count_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }
}

#[cold]
fn poll_failed(result: i32) -> Error {
    Error::of_data_path(Verb::PollCq, result)
}

impl Drop for Poller {
    fn drop(&mut self) {
        if self.cq.context.is_forked() {
            // Another thread of the parent may have held the lock at the time of the fork.
            return;
        }
        let is_copied = self.source == Source::Open && self.batch.close();
        let left = if is_copied { 0 } else { self.left as usize };
        // SAFETY: slice::from_raw_parts requires `left` initialised entries from `next` on that no
        // thread writes: they were fetched, and only this poller writes the batch (F1).
        let rest = unsafe { slice::from_raw_parts(self.next.as_ptr(), left) };
        self.cq.sharing.leave(&self.batch, rest);
        // Dropped last: the drop of a buffer's owner may panic.
        self.held.give_up();
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("queue", &self.raw).finish_non_exhaustive()
    }
}
