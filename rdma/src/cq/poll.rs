//! Polling: completions, and the memory that they give back.

use std::fmt;
use std::sync::Arc;

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::{CompletionQueue, CqInner};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::mr::{Buffer, ExposedSlice, Gpu, Kind, Segment};
use crate::qp::op::Opcode;
use crate::qp::ring::Claimed;
use crate::types::{WcError, WcStatus};

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
    /// At least `FETCH` entries: those from `next` to `len` were fetched and not handed out.
    wcs: Vec<ibv_wc>,
    next: usize,
    len: usize,
    held: Held,
    /// Last, so that it outlives what is held (R4).
    pub(crate) cq: Arc<CqInner>,
}

/// What the present completion gives back. It stays here, so that forgetting the completion is no harm.
#[derive(Default)]
struct Held {
    /// The segment of a request that had one: its slot is free already.
    segment: Option<Segment>,
    /// A request with more than that.
    request: Option<Claimed>,
    /// An unsignaled request before it.
    unsignaled: Option<Claimed>,
}

/// Where a completion is, and what its slot said.
#[derive(Clone, Copy)]
pub(super) struct Found {
    at: usize,
    token: u64,
    opcode: Opcode,
    forced: bool,
}

impl CompletionQueue {
    /// Makes a poller for the queue.
    #[must_use]
    pub fn poller(&self) -> Poller {
        let wcs = vec![ibv_wc::default(); FETCH];
        Poller { wcs, next: 0, len: 0, held: Held::default(), cq: Arc::clone(&self.inner) }
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
        Ok(self.advance()?.map(|found| Completion { poller: self, found }))
    }

    /// The completion queue.
    #[must_use]
    pub fn completion_queue(&self) -> CompletionQueue {
        CompletionQueue { inner: Arc::clone(&self.cq) }
    }

    #[inline]
    pub(super) fn advance(&mut self) -> Result<Option<Found>> {
        self.held.give_up();
        loop {
            if self.next == self.len && !self.fetch()? {
                return Ok(None);
            }
            let at = self.next;
            self.next += 1;
            if let Some(found) = self.take(at) {
                return Ok(Some(found));
            }
        }
    }

    /// Routes a completion to its request.
    #[inline]
    fn take(&mut self, at: usize) -> Option<Found> {
        let wc = self.wcs.get(at)?;
        // SAFETY: R4: `self` keeps the completion queue, and drops the claim first.
        let mut claimed = unsafe { self.cq.rings.claim(wc.wr_id) }?;
        let found = Found { at, token: claimed.token, opcode: claimed.opcode, forced: claimed.forced };
        if claimed.is_simple() {
            self.held.segment = claimed.take();
        } else if claimed.scoped {
            claimed.finish_scoped(wc.status.0, wc.vendor_err);
            return None;
        } else {
            self.held.request = Some(claimed);
        }
        Some(found)
    }

    /// Fetches more; false if there are none. Called with none left.
    #[inline]
    fn fetch(&mut self) -> Result<bool> {
        self.cq.context.check(Operation::PollCq)?;
        (self.next, self.len) = (0, 0);
        let room = self.wcs.as_mut_ptr();
        // SAFETY: ibv_poll_cq wants a completion queue, which `self` keeps, of this process (checked), and room for as many
        // entries as it is told of.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.cq.raw, ENTRIES, room) };
        if count <= 0 {
            return if count == 0 { Ok(false) } else { Err(poll_failed(count)) };
        }
        // Whatever the provider says, there is room for no more.
        self.len = usize::try_from(count).unwrap_or(0).min(FETCH);
        Ok(true)
    }

    /// For a scope that waits: fetches completions and hands those of scoped requests on. Others stay for `poll`.
    pub(crate) fn pump(&mut self) -> Result<bool> {
        self.cq.context.check(Operation::PollCq)?;
        if self.next == self.len {
            (self.next, self.len) = (0, 0);
        }
        self.wcs.resize(self.wcs.len().max(self.len + FETCH), ibv_wc::default());
        let room = &raw mut self.wcs[self.len..];
        // SAFETY: as in `fetch`: at least FETCH entries lie behind the first `len`.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.cq.raw, ENTRIES, room.cast()) };
        if count < 0 {
            return Err(poll_failed(count));
        }
        let count = usize::try_from(count).unwrap_or(0).min(FETCH);
        let mut kept = self.len;
        for at in self.len..self.len + count {
            let wc = self.wcs[at];
            // SAFETY: R4: `self` keeps the completion queue.
            let Some(claimed) = (unsafe { self.cq.rings.claim(wc.wr_id) }) else { continue };
            if claimed.scoped {
                claimed.finish_scoped(wc.status.0, wc.vendor_err);
            } else {
                claimed.put_back();
                self.wcs[kept] = wc;
                kept += 1;
            }
        }
        self.len = kept;
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
    #[inline]
    fn give_up(&mut self) {
        if self.segment.is_some() || self.request.is_some() {
            self.give_up_rest();
        }
    }

    #[cold]
    fn give_up_rest(&mut self) {
        *self = Self::default();
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // What was fetched will not come again.
        while self.next < self.len {
            self.held.give_up();
            let at = self.next;
            self.next += 1;
            self.take(at);
        }
        self.held.give_up();
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("fetched", &(self.len - self.next)).finish_non_exhaustive()
    }
}

/// A finished request, and the memory that it gives back.
///
/// Take the memory with [`take_buffer`](Self::take_buffer) and its siblings; what is not taken is given up. A request with
/// several pieces of memory occupies its place in the queue until they are taken or the completion is dropped.
pub struct Completion<'a> {
    poller: &'a mut Poller,
    found: Found,
}

impl<'a> Completion<'a> {
    pub(super) fn new(poller: &'a mut Poller, found: Found) -> Self {
        Self { poller, found }
    }

    #[inline]
    fn wc(&self) -> &ibv_wc {
        &self.poller.wcs[self.found.at]
    }

    /// Whether it went well.
    ///
    /// # Errors
    ///
    /// How it failed. The queue pair is in the error state then.
    #[inline]
    pub fn status(&self) -> Result<(), WcError> {
        let wc = self.wc();
        if wc.status == ibv_wc_status::IBV_WC_SUCCESS {
            return Ok(());
        }
        Err(WcError { status: WcStatus::from_raw(wc.status.0), vendor_err: wc.vendor_err })
    }

    /// The number that the request was given.
    #[inline]
    #[must_use]
    pub fn token(&self) -> u64 {
        self.found.token
    }

    /// What the request was.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        let wc = self.wc();
        let is_write = wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
        if self.found.opcode == Opcode::Recv && is_write && self.status().is_ok() {
            return Opcode::RecvWriteImm;
        }
        self.found.opcode
    }

    /// Bytes received, read, or written by the peer; 0 for other requests and failed ones. A number from the device: check it
    /// before use as a length.
    #[inline]
    #[must_use]
    pub fn byte_len(&self) -> usize {
        match self.found.opcode {
            Opcode::Send | Opcode::Write => 0,
            _ if self.status().is_err() => 0,
            _ => self.wc().byte_len as usize,
        }
    }

    /// The immediate data that came with it.
    #[inline]
    #[must_use]
    pub fn imm(&self) -> Option<u32> {
        let wc = self.wc();
        let with_imm = wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        if self.found.opcode != Opcode::Recv || !with_imm || self.status().is_err() {
            return None;
        }
        // SAFETY: any 32 bits are a number; the flag says that they are immediate data.
        Some(u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }))
    }

    /// The number of the queue pair.
    #[inline]
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.wc().qp_num
    }

    /// Whether the request was posted unsignaled, and the queue had it signaled so as not to fill up.
    #[inline]
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.found.forced
    }

    /// What the peer's 8 bytes were before an atomic operation that went well. Call it before the memory is taken.
    #[must_use]
    pub fn old_value(&self) -> Option<u64> {
        let is_atomic = matches!(self.found.opcode, Opcode::CompareSwap | Opcode::FetchAdd);
        if !is_atomic || self.status().is_err() {
            return None;
        }
        self.peek().and_then(Segment::word)
    }

    /// The next piece of memory, to look at.
    #[inline]
    fn peek(&self) -> Option<&Segment> {
        let held = &self.poller.held;
        held.segment.as_ref().or_else(|| held.request.as_ref()?.peek())
    }

    #[inline]
    fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        if self.peek()?.kind() != kind {
            return None;
        }
        let held = &mut self.poller.held;
        held.segment.take().or_else(|| held.request.as_mut()?.take())
    }

    /// The request's next piece of memory, if it is a buffer.
    #[inline]
    #[must_use = "the buffer is given up otherwise"]
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        Buffer::<crate::mr::Host>::try_from_segment(self.take_if(Kind::LocalHost)?).ok()
    }

    /// The request's next piece of memory, if it is a buffer of a GPU.
    #[must_use = "the buffer is given up otherwise"]
    pub fn take_gpu_buffer(&mut self) -> Option<Buffer<Gpu>> {
        Buffer::<Gpu>::try_from_segment(self.take_if(Kind::LocalGpu)?).ok()
    }

    /// The request's next piece of memory, if it is a slice of an exposed region.
    #[must_use = "the slice is given up otherwise"]
    pub fn take_exposed(&mut self) -> Option<ExposedSlice> {
        ExposedSlice::try_from_segment(self.take_if(Kind::Exposed)?).ok()
    }

    /// The next of the unsignaled requests that this completion releases, oldest first. If this one went well, so did they.
    pub fn next_unsignaled(&mut self) -> Option<Released<'_>> {
        let held = &mut self.poller.held;
        held.unsignaled = None;
        held.unsignaled = held.request.as_mut()?.next_unsignaled();
        held.unsignaled.as_mut().map(Released::new)
    }
}

impl Drop for Completion<'_> {
    #[inline]
    fn drop(&mut self) {
        self.poller.held.give_up();
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

/// A request without a completion of its own, and the memory that it gives back: one that was posted unsignaled, or that
/// the device did not take.
pub struct Released<'a> {
    claimed: &'a mut Claimed,
}

impl<'a> Released<'a> {
    pub(crate) fn new(claimed: &'a mut Claimed) -> Self {
        Self { claimed }
    }

    /// The number that the request was given.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.claimed.token
    }

    /// What the request was.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        self.claimed.opcode
    }

    fn take_if(&mut self, kind: Kind) -> Option<Segment> {
        if self.claimed.peek()?.kind() == kind { self.claimed.take() } else { None }
    }

    /// The request's next piece of memory, if it is a buffer.
    #[must_use = "the buffer is given up otherwise"]
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        Buffer::<crate::mr::Host>::try_from_segment(self.take_if(Kind::LocalHost)?).ok()
    }

    /// The request's next piece of memory, if it is a buffer of a GPU.
    #[must_use = "the buffer is given up otherwise"]
    pub fn take_gpu_buffer(&mut self) -> Option<Buffer<Gpu>> {
        Buffer::<Gpu>::try_from_segment(self.take_if(Kind::LocalGpu)?).ok()
    }

    /// The request's next piece of memory, if it is a slice of an exposed region.
    #[must_use = "the slice is given up otherwise"]
    pub fn take_exposed(&mut self) -> Option<ExposedSlice> {
        ExposedSlice::try_from_segment(self.take_if(Kind::Exposed)?).ok()
    }
}

impl fmt::Debug for Released<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Released").field("token", &self.token()).field("opcode", &self.opcode()).finish_non_exhaustive()
    }
}
