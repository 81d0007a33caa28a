//! Completion queues: where finished work is reported.
//!
//! A queue pair that is attached to a completion queue reserves room in it for all its requests, so that the queue cannot
//! overrun.
//!
//! # Safety
//!
//! 1. A [`CqInner`] owns a completion queue that its context's table created. Queue pairs attached to it hold an `Arc` of its
//!    [`Handle`], so it is destroyed after them.
//! 2. The in-flight rings are dropped with the [`CqInner`], which is after the queue was destroyed or never: until then the
//!    device may still report on them.
//! 3. Events are acknowledged before they are returned, so destroying a queue does not wait for anybody.
//! 4. Nothing is called in a forked child.

mod channel;
mod completion;
mod datagram;
mod poll;
mod sharing;
mod wait;

use std::fmt;
use std::ptr;
use std::sync::Arc;

use rdma_sys::ibv_cq;

pub(crate) use channel::ChannelInner;
pub use channel::CompletionChannel;
pub use completion::{Completion, Released};
pub use datagram::Datagram;
pub use poll::Poller;

use crate::context::{Context, ContextInner};
use crate::error::{Error, ErrorKind, Failed, Operation, Result};
use crate::handle::{Handle, Object};
use crate::qp::ring::RingTable;
use crate::types::CqId;
use sharing::Sharing;

/// A queue of completions, on which any number of queue pairs report.
///
/// Counted: clones are handles to the same queue, and queue pairs keep it.
#[doc(alias = "ibv_cq")]
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<Handle<CqInner>>,
}

/// The queue itself (1).
pub(crate) struct CqInner {
    pub(crate) raw: *mut ibv_cq,
    pub(crate) context: Arc<Handle<ContextInner>>,
    pub(crate) depth: u32,
    pub(crate) channel: Option<Arc<Handle<ChannelInner>>>,
    pub(crate) rings: RingTable,
    sharing: Sharing,
    /// Its completions carry the caller's `wr_id`s.
    pub(crate) is_raw: bool,
    id: CqId,
}

// SAFETY: libibverbs' functions may be called on one queue from any thread: providers lock (single-threaded modes are
// refused when a device is opened).
unsafe impl Send for CqInner {}
// SAFETY: as above.
unsafe impl Sync for CqInner {}

impl CqInner {
    /// Creates a queue of at least `depth` entries.
    pub(crate) fn create(
        context: &Arc<Handle<ContextInner>>,
        depth: u32,
        channel: Option<&Arc<Handle<ChannelInner>>>,
        vector: u32,
    ) -> Result<Self> {
        context.check(Operation::CreateCq)?;
        let invalid = Error::new(Operation::CreateCq, ErrorKind::InvalidInput);
        if depth == 0 {
            return Err(invalid);
        }
        let cqe = i32::try_from(depth).map_err(|_| invalid)?;
        let vector = i32::try_from(vector).map_err(|_| invalid)?;
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.context, context)) {
            // The provider would not notice that it is another device's.
            return Err(invalid);
        }
        let id = CqId::fresh();
        let name = ptr::without_provenance_mut(usize::try_from(id.0).map_err(|_| invalid)?);
        let raw_channel = channel.map_or(ptr::null_mut(), |channel| channel.raw);
        // SAFETY: ibv_create_cq wants an open context and a channel of it or NULL, both kept by the new value (1). The
        // context pointer is opaque to it: ours is a number.
        let raw = unsafe { (context.table.ibv_create_cq)(context.raw.as_ptr(), cqe, name, raw_channel, vector) };
        if raw.is_null() {
            return Err(Error::last(Operation::CreateCq));
        }
        // SAFETY: a new queue; its depth does not change, as we never resize it.
        let depth = u32::try_from(unsafe { (*raw).cqe }).unwrap_or(depth);
        Ok(Self {
            raw,
            context: Arc::clone(context),
            depth,
            channel: channel.map(Arc::clone),
            rings: RingTable::new(depth),
            sharing: Sharing::new(),
            is_raw: false,
            id,
        })
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        self.context.check(Operation::RequestNotify)?;
        // SAFETY: the queue is alive (1), and this is no forked child (4).
        let result = unsafe { rdma_sys::ibv_req_notify_cq(self.raw, i32::from(solicited_only)) };
        Error::check(Operation::RequestNotify, result)
    }
}

impl Object for CqInner {
    const DESTROY: Operation = Operation::DestroyCq;
    const NAME: &'static str = "a completion queue";

    fn made_in(&self) -> u32 {
        self.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_cq wants a live queue of this table without queue pairs (this function's contract), whose
        // events are acknowledged or about to be (3).
        Error::check(Self::DESTROY, unsafe { (self.context.table.ibv_destroy_cq)(self.raw) })
    }
}

/// How to make a [`CompletionQueue`].
#[derive(Debug, Clone)]
#[must_use]
pub struct CqBuilder {
    context: Context,
    depth: u32,
    channel: Option<CompletionChannel>,
    vector: u32,
}

impl CqBuilder {
    /// The channel on which its events arrive. Without one it can only be polled.
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }

    /// The completion vector that raises its events; 0 if not said.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the device has no queues that deep or no such vector, or if the channel is another device's;
    /// `OutOfMemory`.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(self) -> Result<CompletionQueue> {
        let channel = self.channel.as_ref().map(|channel| &channel.inner);
        let inner = CqInner::create(&self.context.inner, self.depth, channel, self.vector)?;
        Ok(CompletionQueue { inner: Arc::new(Handle::new(inner)) })
    }
}

impl Context {
    /// Creates a completion queue of at least `depth` entries, to be polled.
    ///
    /// # Errors
    ///
    /// As for [`CqBuilder::build`].
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        self.cq_builder(depth).build()
    }

    /// Starts a completion queue of at least `depth` entries.
    pub fn cq_builder(&self, depth: u32) -> CqBuilder {
        CqBuilder { context: self.clone(), depth, channel: None, vector: 0 }
    }
}

impl CompletionQueue {
    /// Its name in events.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.inner.id
    }

    /// How many completions it holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.inner.depth
    }

    /// The channel on which its events arrive.
    #[must_use]
    pub fn channel(&self) -> Option<CompletionChannel> {
        self.inner.channel.as_ref().map(|inner| CompletionChannel { inner: Arc::clone(inner) })
    }

    /// Asks for one event on the channel when the next completion arrives.
    ///
    /// Completions that are already there raise none: poll once more after asking. With `solicited_only` a completion
    /// counts if it failed, or received a message that was sent as solicited.
    ///
    /// # Errors
    ///
    /// What the provider reports.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notify(&self, solicited_only: bool) -> Result<()> {
        self.inner.arm(solicited_only)
    }

    /// The open device.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { inner: Arc::clone(&self.inner.context) }
    }

    /// Destroys the queue.
    ///
    /// Dropping the last handle does the same; this says whether it worked.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone or a queue pair of it lives.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object. It is valid while this handle lives.
    ///
    /// Polling it behind this handle's back takes completions away from their requests: their buffers stay in flight.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.inner.raw
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").field("id", &self.inner.id.0).field("depth", &self.inner.depth).finish()
    }
}

#[cfg(test)]
mod tests;
