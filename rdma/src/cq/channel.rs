//! Completion channels: sleeping until there are completions.
//!
//! # Safety
//!
//! 1. A [`ChannelInner`] owns a channel that its context's table created. Its completion queues
//!    hold an `Arc` of its [`Handle`], so it is destroyed after them.
//! 2. The pointer that an event brings is used only to acknowledge the event, at once: until then
//!    the library keeps the queue.
//! 3. The channel's descriptor is non-blocking and is not lent: made blocking, or filled, it would
//!    stop whoever reports a completion.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::ibv_comp_channel;

use crate::context::{Context, ContextInner};
use crate::error::{Error, Failed, Operation, Result};
use crate::handle::{Handle, Object};
use crate::types::CqId;
use crate::wait::{Deadline, EventDescriptor};

/// A source of events for any number of completion queues.
///
/// The descriptor ([`AsFd`](std::os::fd::AsFd)) is readable while events wait: it fits poll, epoll
/// and async runtimes, and is good for nothing else (it is an epoll that watches the provider's
/// descriptor). An event is acknowledged before it is returned and names its queue by [`CqId`]; it
/// may name a queue that was destroyed meanwhile.
///
/// # Examples
///
/// One thread that sleeps for several queues:
///
/// ```
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let channel = context.create_completion_channel()?;
/// let queue = || context.cq_builder(16).channel(&channel).build();
/// let (requests, replies) = (queue()?, queue()?);
/// requests.request_notify(false)?;
/// replies.request_notify(false)?;
/// match channel.next_event(Some(Duration::from_millis(1)))? {
///     Some(id) if id == requests.id() => println!("requests have completed"),
///     Some(_) => println!("replies have completed"),
///     None => println!("nothing yet"),
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_comp_channel")]
#[derive(Clone)]
pub struct CompletionChannel {
    pub(crate) inner: Arc<Handle<ChannelInner>>,
}

/// The channel itself (1).
pub(crate) struct ChannelInner {
    pub(crate) raw: *mut ibv_comp_channel,
    pub(crate) context: Arc<Handle<ContextInner>>,
    /// The channel's descriptor (3).
    events: EventDescriptor,
}

// SAFETY: libibverbs' functions may be called on one channel from any thread.
unsafe impl Send for ChannelInner {}
// SAFETY: libibverbs' functions may be called on one channel from several threads at a time.
unsafe impl Sync for ChannelInner {}

impl ChannelInner {
    /// The channel's own descriptor, to wait on; not to be lent (3).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.events.own()
    }

    /// The next event, acknowledged, if there is one.
    pub(crate) fn try_next_event(&self) -> Result<Option<CqId>> {
        self.context.check(Operation::GetCqEvent)?;
        let (mut cq, mut name) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: ibv_get_cq_event wants a channel (1) and room for two pointers; the descriptor is
        // non-blocking.
        let result = unsafe { (self.context.table.ibv_get_cq_event)(self.raw, &raw mut cq, &raw mut name) };
        if result != 0 {
            return Error::last(Operation::GetCqEvent).or_nothing();
        }
        // SAFETY: the queue of the event just taken, which its destroy waits for until here (2).
        unsafe { (self.context.table.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(CqId(name.addr() as u64)))
    }

    /// The next event, acknowledged; none at the deadline.
    pub(crate) fn next_event(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        self.events.next(Operation::GetCqEvent, Deadline::after(timeout), || self.try_next_event())
    }
}

impl Object for ChannelInner {
    const DESTROY: Operation = Operation::DestroyChannel;
    const NAME: &'static str = "a completion channel";

    fn made_in(&self) -> u32 {
        self.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_comp_channel wants a live channel of this table without queues: this
        // function's contract.
        Error::check(Self::DESTROY, unsafe { (self.context.table.ibv_destroy_comp_channel)(self.raw) })
    }
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// What the provider reports, for example no more file descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_completion_channel(&self) -> Result<CompletionChannel> {
        self.inner.check(Operation::CreateChannel)?;
        // SAFETY: ibv_create_comp_channel wants an open context, which `self` keeps open.
        let raw = unsafe { (self.inner.table.ibv_create_comp_channel)(self.as_raw()) };
        if raw.is_null() {
            return Err(Error::last(Operation::CreateChannel));
        }
        // SAFETY: just created in this context, and nobody else knows it.
        unsafe { CompletionChannel::from_raw(self, raw) }
    }
}

impl CompletionChannel {
    /// Takes over a channel that was created elsewhere, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// No epoll can be made that watches its descriptor; the channel is then destroyed.
    ///
    /// # Safety
    ///
    /// `raw` was created in this context, and is not destroyed by anybody else. Events of
    /// completion queues that were not made by this crate are acknowledged when they are taken, and
    /// named by the address of their context.
    pub unsafe fn from_raw(context: &Context, raw: *mut ibv_comp_channel) -> Result<Self> {
        // SAFETY: the caller's channel is alive, and this field does not change.
        let fd = unsafe { (*raw).fd };
        // SAFETY: EventDescriptor::new wants a descriptor that stays open: the new value keeps the
        // channel (1).
        let events = unsafe { EventDescriptor::new(fd) }.inspect_err(|_| {
            // SAFETY: ibv_destroy_comp_channel wants a channel of this table that no queue uses:
            // the caller's promise.
            unsafe { (context.inner.table.ibv_destroy_comp_channel)(raw) };
        })?;
        let inner = Handle::new(ChannelInner { raw, context: Arc::clone(&context.inner), events });
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Waits for the next event and says which queue has completions; none after the timeout.
    ///
    /// Without a timeout it waits for ever. A queue raises one event for each
    /// [`request_notify`](super::CompletionQueue::request_notify).
    ///
    /// # Errors
    ///
    /// `NoDevice` when the device is gone; what the provider reports.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        self.inner.next_event(timeout)
    }

    /// Takes an event if there is one.
    ///
    /// With edge-triggered epoll, call it until there is none.
    ///
    /// # Errors
    ///
    /// As for [`next_event`](Self::next_event).
    pub fn try_next_event(&self) -> Result<Option<CqId>> {
        self.inner.try_next_event()
    }

    /// Destroys the channel.
    ///
    /// # Errors
    ///
    /// `InUse`, with the handle, while a clone or a completion queue of it lives.
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object. It is valid while this handle lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_comp_channel {
        self.inner.raw
    }
}

lends_descriptor! {
    CompletionChannel, inner.events
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}
