//! Posting and polling without bookkeeping: `unsafe`, at the cost of the C interface.
//!
//! A raw queue pair reports to raw completion queues only. Their completions carry the caller's
//! 64-bit `wr_id`, and no ring is involved. Raw and safe queues do not mix: a raw `wr_id` could
//! otherwise be mistaken for a safe request in flight.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_recv_wr, ibv_send_wr, ibv_wc};

use super::transport::Transport;
use super::{QpBuilder, QueuePair};
use crate::context::Context;
use crate::cq::{CompletionChannel, CompletionQueue, CqBuilder, CqInner};
use crate::error::{Error, ErrorKind, Failed, Result, Verb, gives_back};
use crate::handle::{Handle, Ownership};

/// A completion queue for raw queue pairs.
#[doc(alias = "ibv_cq")]
#[derive(Clone)]
pub struct RawCompletionQueue {
    inner: Arc<Handle<CqInner>>,
}

impl Context {
    /// Creates a completion queue for raw queue pairs, of at least `depth` entries.
    ///
    /// # Errors
    ///
    /// As for [`create_cq`](Self::create_cq).
    #[doc(alias = "ibv_create_cq")]
    pub fn create_raw_cq(&self, depth: u32, channel: Option<&CompletionChannel>) -> Result<RawCompletionQueue> {
        let mut inner = CqInner::create(&self.inner, depth, channel.map(|channel| &channel.inner), 0)?;
        inner.is_raw = true;
        Ok(RawCompletionQueue { inner: Arc::new(Handle::new(inner)) })
    }
}

impl RawCompletionQueue {
    /// Makes a handle of a completion queue that was created elsewhere, for raw queue pairs:
    /// [`CompletionQueue::from_raw`].
    ///
    /// # Errors
    ///
    /// As for [`CompletionQueue::from_raw`].
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`]; and `ibv_poll_cq` polls the queue.
    pub unsafe fn from_raw(
        builder: &CqBuilder,
        raw: *mut rdma_sys::ibv_cq,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        // SAFETY: `adopt` requires the contract of `CompletionQueue::from_raw`: the caller keeps
        // its part but for the numbers and the count of foreign completions, which concern pollers
        // alone.
        let mut inner = unsafe { CqInner::adopt(builder, raw, ownership) }?;
        inner.is_raw = true;
        Ok(Self { inner: Arc::new(Handle::new(inner)) })
    }

    /// Polls completions into `room`, and returns the part of `room` that was filled.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll<'a>(&self, room: &'a mut [ibv_wc]) -> Result<&'a [ibv_wc]> {
        self.inner.context.check(Verb::PollCq)?;
        let entries = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: ibv_poll_cq requires a live completion queue of this process, and space for
        // `entries` entries: `self` keeps the queue, the generation was checked above, and `room`
        // has at least `entries`.
        let count = unsafe { rdma_sys::ibv_poll_cq(self.inner.raw, entries, room.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) => room.get(..count).ok_or(Error::new(Verb::PollCq, ErrorKind::Unknown)),
            Err(_) => Err(Error::from_errno(Verb::PollCq, count)),
        }
    }

    /// Requests one event on the channel when the next completion arrives.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notify(&self, solicited_only: bool) -> Result<()> {
        self.inner.arm(solicited_only)
    }

    /// The number of completions that the queue can hold.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.inner.depth()
    }

    /// The C object, valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_cq {
        self.inner.raw
    }
}

debug_by_methods!(RawCompletionQueue: depth);

impl<T: Transport> QpBuilder<T> {
    /// Sets a raw completion queue for sends and receives, for a queue pair that will be
    /// [`into_raw`](QueuePair::into_raw).
    pub fn raw_cq(self, cq: &RawCompletionQueue) -> Self {
        // The safe handle stays inside the builder, so no safe poller can poll the completions of
        // raw posts.
        self.cq(&CompletionQueue { inner: Arc::clone(&cq.inner) })
    }
}

/// A queue pair that posts any request, under the caller's responsibility.
///
/// # Examples
///
/// ```
/// # use rdma::{DeviceSelector, QueuePair};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let opened = rdma::open(&DeviceSelector::Any)?;
/// # let pd = opened.context.alloc_pd()?;
/// let cq = opened.context.create_raw_cq(64, None)?;
/// let prepared = QueuePair::builder(&pd).raw_cq(&cq).build()?;
/// // Bring it up, then:
/// let qp = prepared.into_manual().into_raw()?;
/// println!("{:#x}", qp.control().qpn());
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp")]
pub struct RawQueuePair<T: Transport> {
    qp: QueuePair<T>,
}

impl<T: Transport> QueuePair<T> {
    /// Turns a queue pair that reports to raw completion queues into a raw one.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the queue pair, if it reports to a completion queue that is not raw.
    pub fn into_raw(self) -> Result<RawQueuePair<T>, Failed<Self>> {
        if self.control.send_cq.is_raw && self.control.recv_cq.is_raw {
            return Ok(RawQueuePair { qp: self });
        }
        Err(Failed::new(Error::new(Verb::CreateQp, ErrorKind::InvalidInput), self))
    }
}

/// The error of a failed raw post.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct RawPostError<W> {
    /// The cause.
    pub error: Error,
    /// The first request that was not posted, as reported by the provider; null if the provider
    /// reported none.
    pub bad_wr: *mut W,
}

gives_back!(RawPostError<W>);

impl<T: Transport> RawQueuePair<T> {
    /// Posts a chain of requests to the send queue: `ibv_post_send` without any bookkeeping.
    ///
    /// # Safety
    ///
    /// `chain` is a valid, terminated chain of requests. The memory that it names stays valid until
    /// the device no longer accesses it: until a completion that covers the request, or a reset or
    /// destroy that succeeded. Until then, nothing else writes the memory, and nothing else reads
    /// memory that the device writes. The caller accounts for the queue's unsignaled requests and
    /// completions.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_send(&mut self, chain: *mut ibv_send_wr) -> Result<(), RawPostError<ibv_send_wr>> {
        let mut bad_wr = ptr::null_mut();
        // SAFETY: ibv_post_send requires a live queue pair (`self` owns it) and a valid chain whose
        // memory stays valid: the caller's promise.
        let result = unsafe { rdma_sys::ibv_post_send(self.qp.control.raw, chain, &raw mut bad_wr) };
        if result == 0 {
            return Ok(());
        }
        Err(RawPostError { error: super::posting::post_error(Verb::PostSend, result), bad_wr })
    }

    /// Posts a chain of requests to the receive queue: `ibv_post_recv` without any bookkeeping.
    ///
    /// # Safety
    ///
    /// As for [`post_send`](Self::post_send).
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_recv(&mut self, chain: *mut ibv_recv_wr) -> Result<(), RawPostError<ibv_recv_wr>> {
        let mut bad_wr = ptr::null_mut();
        // SAFETY: ibv_post_recv requires a live queue pair (`self` owns it) and a valid chain whose
        // memory stays valid: the caller's promise.
        let result = unsafe { rdma_sys::ibv_post_recv(self.qp.control.raw, chain, &raw mut bad_wr) };
        if result == 0 {
            return Ok(());
        }
        Err(RawPostError { error: super::posting::post_error(Verb::PostRecv, result), bad_wr })
    }

    /// The safe queue pair, for its number, state and attributes.
    #[must_use]
    pub fn control(&self) -> &QueuePair<T> {
        &self.qp
    }

    /// Changes attributes: [`QueuePair::modify`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::modify`].
    pub fn modify(&mut self, attr: &super::QpAttr) -> Result<()> {
        self.qp.modify(attr)
    }
}

impl<T: Transport> fmt::Debug for RawQueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawQueuePair").field("qpn", &self.qp.qpn()).finish_non_exhaustive()
    }
}
