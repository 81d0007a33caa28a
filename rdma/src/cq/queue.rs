//! The completion queue itself. Numbers cite the invariants of [`super`].

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rdma_sys::ibv_cq;

use super::capacity::Capacity;
use super::channel::{ChannelInner, CompletionChannel};
use super::sharing::Sharing;
use super::stats::CqStats;
use crate::context::{Context, ContextInner};
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::handle::{Handle, Object, Ownership, Raw};
use crate::types::CqId;

/// A completion queue, shared by any number of queue pairs.
///
/// Handles are reference-counted: clones refer to the same queue, and queue pairs keep the queue
/// alive. Each queue pair reserves entries for all of its requests, so a queue needs the sum of
/// their depths.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// use rdma::QueuePair;
///
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(2 * (32 + 32))?;
/// let build = || QueuePair::builder(&pd).cq(&cq).max_send_wr(32).max_recv_wr(32).build();
/// let (first, second) = (build()?, build()?);
/// // A third one asks for more.
/// cq.resize(3 * (32 + 32))?;
/// let third = build()?;
/// # drop((first, second, third));
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_cq")]
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<Handle<CqInner>>,
}

/// The owned C completion queue (1).
pub(crate) struct CqInner {
    pub(crate) raw: *mut ibv_cq,
    pub(crate) context: Arc<Handle<ContextInner>>,
    pub(super) capacity: Capacity,
    pub(crate) channel: Option<Arc<Handle<ChannelInner>>>,
    pub(super) sharing: Sharing,
    /// The number of completions that named no request in flight.
    pub(super) stale: AtomicU64,
    /// Whether its completions carry `wr_id`s chosen by the caller.
    pub(crate) is_raw: bool,
    /// Whether a driver sleeps on the channel, whose events no other code may take.
    is_driven: AtomicBool,
    id: CqId,
    /// Entries of the C queue that are for requests of other code.
    others: u32,
    ownership: Ownership,
}

// SAFETY: libibverbs' functions may be called on one queue from any thread: providers lock their
// queues (devices in single-threaded mode are refused when they are opened).
unsafe impl Send for CqInner {}
// SAFETY: libibverbs' functions may be called on one queue from several threads at a time, for the
// same reason.
unsafe impl Sync for CqInner {}

impl CqInner {
    /// Creates a queue of at least `depth` entries.
    pub(crate) fn create(
        context: &Arc<Handle<ContextInner>>,
        depth: u32,
        channel: Option<&Arc<Handle<ChannelInner>>>,
        vector: u32,
    ) -> Result<Self> {
        context.check(Verb::CreateCq)?;
        let invalid = Error::new(Verb::CreateCq, ErrorKind::InvalidInput);
        if depth == 0 {
            return Err(invalid);
        }
        let cqe = i32::try_from(depth).map_err(|_| invalid)?;
        let vector = i32::try_from(vector).map_err(|_| invalid)?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, context)) {
            // The provider does not check that the channel belongs to the same device.
            return Err(invalid);
        }
        let id = CqId::fresh();
        let name = ptr::without_provenance_mut(usize::try_from(id.0).map_err(|_| invalid)?);
        let raw_channel = channel.map_or(ptr::null_mut(), |channel| channel.raw);
        // SAFETY: ibv_create_cq requires an open context, and a channel of that context or NULL:
        // the new value keeps both alive (1). The library never dereferences the user context
        // pointer, which is a number here.
        let call = || unsafe { (context.table.ibv_create_cq)(context.raw.as_ptr(), cqe, name, raw_channel, vector) };
        let raw = Raw::created(Verb::CreateCq, call)?.as_ptr();
        // SAFETY: the read requires a live queue whose `cqe` no thread writes: the queue is new,
        // and no other thread can resize it yet.
        let depth = u32::try_from(unsafe { (*raw).cqe }).unwrap_or(depth);
        Ok(Self::of(raw, context, channel, id, (depth, 0), Ownership::Destroy))
    }

    /// The owner of a queue with entries for this crate's requests and for those of other code.
    pub(super) fn of(
        raw: *mut ibv_cq,
        context: &Arc<Handle<ContextInner>>,
        channel: Option<&Arc<Handle<ChannelInner>>>,
        id: CqId,
        (depth, others): (u32, u32),
        ownership: Ownership,
    ) -> Self {
        Self {
            raw,
            context: Arc::clone(context),
            capacity: Capacity::new(depth),
            channel: channel.map(Arc::clone),
            sharing: Sharing::new(),
            stale: AtomicU64::new(0),
            is_raw: false,
            is_driven: AtomicBool::new(false),
            id,
            others,
            ownership,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.capacity.get()
    }

    /// Gives the events of the channel to a driver, or back to the queue's pollers.
    #[cfg(feature = "aio")]
    pub(crate) fn set_driven(&self, is_driven: bool) {
        self.is_driven.store(is_driven, Ordering::Relaxed);
    }

    /// The channel, unless its events belong to a driver.
    pub(super) fn free_channel(&self) -> Option<&Arc<Handle<ChannelInner>>> {
        self.channel.as_ref().filter(|_| !self.is_driven.load(Ordering::Relaxed))
    }

    /// Requests an event for the next completion.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        self.context.check(Verb::RequestNotify)?;
        // SAFETY: ibv_req_notify_cq requires a live queue (1) outside a forked child (3, checked
        // above).
        let call = || unsafe { rdma_sys::ibv_req_notify_cq(self.raw, i32::from(solicited_only)) };
        Error::check(Verb::RequestNotify, call)
    }
}

impl Object for CqInner {
    const DESTROY: Verb = Verb::DestroyCq;
    const NAME: &'static str = "a completion queue";

    fn made_in(&self) -> u32 {
        self.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_cq requires a live queue of this table without queue pairs: the
        // contract of this function. It blocks until the queue's events are acknowledged, which
        // they are at once (2).
        let call = || unsafe { (self.context.table.ibv_destroy_cq)(self.raw) };
        self.ownership.end(|| Error::check(Self::DESTROY, call))
    }
}

/// Configuration of a new [`CompletionQueue`].
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// // Capacity for the requests of its queue pairs, and a channel to sleep on.
/// let cq = context.cq_builder(256).events().completion_vector(0).build()?;
/// assert!(cq.depth() >= 256 && cq.channel().is_some());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct CqBuilder {
    pub(super) context: Context,
    pub(super) depth: u32,
    pub(super) channel: Option<CompletionChannel>,
    vector: u32,
    events: bool,
}

impl CqBuilder {
    /// Gives the queue its own channel, on which its pollers sleep in
    /// [`wait`](super::Poller::wait).
    pub fn events(mut self) -> Self {
        self.events = true;
        self
    }

    /// The channel on which the queue's events arrive. Without a channel, the queue can only be
    /// polled.
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }

    /// The completion vector that raises the queue's events: less than
    /// [`Context::completion_vectors`], 0 by default. Vectors are interrupts, which the system
    /// gives to cores: one queue for each core, with a vector of its own, keeps events there.
    pub fn completion_vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the device does not support this depth, or if the channel belongs to
    /// another device; `NoCompletionVector`; `OutOfMemory`.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(mut self) -> Result<CompletionQueue> {
        let vectors = self.context.completion_vectors();
        // Vector 0 is the default, also of a device that reports none.
        if self.vector > 0 && self.vector >= vectors {
            return Err(Error::new(Verb::CreateCq, ErrorKind::NoCompletionVector(vectors)));
        }
        if self.events && self.channel.is_none() {
            self.channel = Some(self.context.create_completion_channel()?);
        }
        let channel = self.channel.as_ref().map(|channel| &channel.inner);
        let inner = CqInner::create(&self.context.inner, self.depth, channel, self.vector)?;
        Ok(CompletionQueue { inner: Arc::new(Handle::new(inner)) })
    }
}

impl Context {
    /// Creates a completion queue of at least `depth` entries, without a channel.
    ///
    /// # Errors
    ///
    /// As for [`CqBuilder::build`].
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        self.cq_builder(depth).build()
    }

    /// Starts the configuration of a completion queue of at least `depth` entries.
    pub fn cq_builder(&self, depth: u32) -> CqBuilder {
        CqBuilder { context: self.clone(), depth, channel: None, vector: 0, events: false }
    }
}

impl CompletionQueue {
    /// The identifier that names the queue in events.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.inner.id
    }

    /// The number of completions that the queue can hold.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.inner.depth()
    }

    /// The number of completions that named no request in flight and were dropped: they belonged to
    /// a queue pair that was reset or destroyed since, or were reported twice.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, cq, mut poller, a, mut b, .. } = pair()?;
    /// b.post_recv(pd.allocate(16)?, 0)?;
    /// // The queue pair ends with a receive in flight, whose completion nobody can use any more.
    /// drop((a, b));
    /// assert!(poller.poll()?.is_none());
    /// println!("{} completions named no request", cq.stale_completions());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        self.inner.stale.load(Ordering::Relaxed)
    }

    /// What the queue has done since its creation. Pollers go on meanwhile: counters may be some
    /// completions apart from each other. All are 0 in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { pd, cq, mut poller, mut a, mut b, .. } = pair()?;
    /// a.post_recv(pd.allocate(16)?, 1)?;
    /// a.set_error()?;
    /// let completion = poller.wait(None)?.expect("no time limit");
    /// assert!(completion.status().is_err());
    /// let stats = cq.stats();
    /// assert_eq!((stats.completions, stats.failed, stats.flushed), (1, 1, 1));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> CqStats {
        let Self { inner } = self;
        if inner.context.is_forked() {
            // Another thread of the parent may have held the lock at the time of the fork.
            return CqStats::default();
        }
        let mut stats = CqStats { stale: self.stale_completions(), ..CqStats::default() };
        inner.sharing.add_to(&mut stats);
        stats
    }

    /// Changes the number of completions that the queue can hold, and returns the new number: at
    /// least `depth`.
    ///
    /// Queue pairs keep their reservations, so `depth` cannot be less than their sum.
    ///
    /// # Errors
    ///
    /// `CompletionQueueTooSmall`, with the reserved number of entries; `InvalidInput` for a depth
    /// of 0 or more than the device supports; `NotSupported` if the provider cannot resize queues.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
    /// let cq = context.create_cq(16)?;
    /// assert!(cq.resize(64)? >= 64);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, depth: u32) -> Result<u32> {
        let Self { inner } = self;
        inner.context.check(Verb::ResizeCq)?;
        let cqe = depth.checked_add(inner.others).and_then(|cqe| i32::try_from(cqe).ok()).filter(|_| depth > 0);
        let cqe = cqe.ok_or(Error::new(Verb::ResizeCq, ErrorKind::InvalidInput))?;
        inner.capacity.resize(depth, || {
            // SAFETY: ibv_resize_cq requires a live queue (1) outside a forked child (3, checked
            // above).
            let call = || unsafe { (inner.context.table.ibv_resize_cq)(inner.raw, cqe) };
            Error::check(Verb::ResizeCq, call)?;
            // SAFETY: the read requires a live queue (1) whose `cqe` no other thread writes: only
            // this function changes the field, under the lock of the reservations.
            let cqe = u32::try_from(unsafe { (*inner.raw).cqe });
            Ok(cqe.map_or(depth, |cqe| cqe.saturating_sub(inner.others)))
        })
    }

    /// The channel on which the queue's events arrive; none while an `aio::Driver` takes
    /// them.
    #[must_use]
    pub fn channel(&self) -> Option<CompletionChannel> {
        self.inner.free_channel().map(|inner| CompletionChannel { inner: Arc::clone(inner) })
    }

    /// Requests one event on the channel when the next completion arrives.
    ///
    /// Completions that are already in the queue raise no event: poll once more after this call.
    /// With `solicited_only`, only failed completions and receives of messages sent as solicited
    /// raise the event.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    ///
    /// # Examples
    ///
    /// An event loop that waits on the channel's descriptor ([`Poller::wait`](super::Poller::wait)
    /// does all this itself):
    ///
    /// ```no_run
    /// # fn f(cq: &rdma::CompletionQueue, channel: &rdma::CompletionChannel) -> rdma::Result<()> {
    /// let mut poller = cq.poller();
    /// loop {
    ///     cq.request_notify(false)?;
    ///     while let Some(completion) = poller.poll()? {
    ///         println!("{completion:?}");
    ///     }
    ///     channel.next_event(None)?;
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notify(&self, solicited_only: bool) -> Result<()> {
        self.inner.arm(solicited_only)
    }

    /// The open device that the queue belongs to.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { inner: Arc::clone(&self.inner.context) }
    }

    /// Destroys the queue.
    ///
    /// Dropping the last handle does the same; this function also returns whether it succeeded.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone of the handle or a queue pair of the queue lives.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object, valid while this handle lives.
    ///
    /// Do not poll it directly: that takes completions away from their requests, whose buffers then
    /// stay in flight.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.inner.raw
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("id", &self.inner.id.0).field("depth", &self.depth()).finish()
    }
}
