//! Completion channels: a thread sleeps on one until a completion arrives.
//!
//! # Safety
//!
//! 1. A [`ChannelInner`] owns a channel that its context's function table created, or has it from
//!    the caller of `from_raw`, who keeps it. Its completion queues hold an `Arc` of its
//!    [`Handle`], so the channel is destroyed after them.
//! 2. The queue pointer that an event carries is used only to acknowledge the event, at once: the
//!    library keeps the queue alive until its events are acknowledged.
//! 3. The channel's descriptor is non-blocking and is not lent. A borrower could make it blocking
//!    or fill it, and then the thread that reports a completion would block.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys::ibv_comp_channel;

use crate::context::{Context, ContextInner};
use crate::error::{Error, Failed, Result, Verb};
use crate::handle::{Handle, Object, Ownership, Raw, constants, require, require_some};
use crate::types::{CqId, ForeignObject};
use crate::wait::{Deadline, EventDescriptor};

/// A source of events for any number of completion queues.
///
/// The descriptor ([`AsFd`](std::os::fd::AsFd)) is readable while events are pending, so it can be
/// given to poll, epoll and async runtimes. It serves no other purpose: it is an epoll that watches
/// the provider's descriptor. Events are acknowledged before they are returned, and name their
/// queue by [`CqId`]; the queue may have been destroyed meanwhile.
///
/// # Examples
///
/// A thread that sleeps for several queues:
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

/// The owned C channel (1).
pub(crate) struct ChannelInner {
    pub(crate) raw: *mut ibv_comp_channel,
    pub(crate) context: Arc<Handle<ContextInner>>,
    /// The channel's descriptor (3).
    events: EventDescriptor,
    ownership: Ownership,
}

// SAFETY: moving a channel to another thread is sound: libibverbs' functions may be called on one
// channel from any thread.
unsafe impl Send for ChannelInner {}
// SAFETY: sharing a channel is sound: libibverbs' functions may be called on one channel from
// several threads at a time.
unsafe impl Sync for ChannelInner {}

impl ChannelInner {
    /// The channel's own descriptor, for waits inside this crate; it must not be lent (3).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.events.own()
    }

    /// Takes and acknowledges the next event, if there is one.
    pub(crate) fn try_next_event(&self) -> Result<Option<CqId>> {
        self.context.check(Verb::GetCqEvent)?;
        let (mut cq, mut name) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: ibv_get_cq_event requires a live channel (1) and space for two pointers: locals.
        // The descriptor is non-blocking (3), so the call returns at once.
        let call = || unsafe { (self.context.table.ibv_get_cq_event)(self.raw, &raw mut cq, &raw mut name) };
        if let Err(error) = Error::check(Verb::GetCqEvent, call) {
            return error.or_nothing();
        }
        // SAFETY: ibv_ack_cq_events requires the live queue of an event that is not yet
        // acknowledged: the event was just taken, and the queue's destroy waits for this call (2).
        unsafe { (self.context.table.ibv_ack_cq_events)(cq, 1) };
        Ok(Some(CqId(name.addr() as u64)))
    }

    /// Waits for the next event and acknowledges it; none at the deadline.
    pub(crate) fn next_event(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        self.events.next(Verb::GetCqEvent, Deadline::after(timeout), || self.try_next_event())
    }
}

impl Object for ChannelInner {
    const DESTROY: Verb = Verb::DestroyChannel;
    const NAME: &'static str = "a completion channel";

    fn made_in(&self) -> u32 {
        self.context.fork
    }

    unsafe fn destroy(&mut self) -> Result<()> {
        // SAFETY: ibv_destroy_comp_channel requires a live channel of this table without queues:
        // the contract of this function.
        let call = || unsafe { (self.context.table.ibv_destroy_comp_channel)(self.raw) };
        self.ownership.end(|| Error::check(Self::DESTROY, call))
    }
}

impl Context {
    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports, for example too many open file descriptors.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_completion_channel(&self) -> Result<CompletionChannel> {
        self.inner.check(Verb::CreateChannel)?;
        // SAFETY: ibv_create_comp_channel requires an open context: `self` keeps it open.
        let call = || unsafe { (self.inner.table.ibv_create_comp_channel)(self.as_raw()) };
        let raw = Raw::created(Verb::CreateChannel, call)?.as_ptr();
        // SAFETY: `from_raw` requires a channel of this context that no other code destroys: it was
        // just created here.
        unsafe { CompletionChannel::from_raw(self, raw, Ownership::Destroy) }.map_err(|failed| {
            // SAFETY: ibv_destroy_comp_channel requires a live channel of this table without
            // queues: it was just created, and nobody else has the pointer.
            unsafe { (self.inner.table.ibv_destroy_comp_channel)(raw) };
            failed.error
        })
    }
}

impl CompletionChannel {
    /// Makes a handle of a channel that was created elsewhere, and makes its descriptor
    /// non-blocking.
    ///
    /// Events of completion queues that this crate did not create are acknowledged when they are
    /// taken, and are named by the address of the queue's user context.
    ///
    /// # Errors
    ///
    /// With the `Ownership`; the channel is not destroyed. `Foreign` for NULL and for a channel of
    /// another context; `Forked`; errors of creating the epoll that watches the channel's
    /// descriptor.
    ///
    /// # Safety
    ///
    /// Promises 1 to 4 of [`Ownership`].
    pub unsafe fn from_raw(
        context: &Context,
        raw: *mut ibv_comp_channel,
        ownership: Ownership,
    ) -> Result<Self, Failed<Ownership>> {
        let adopt = || {
            context.inner.check(Verb::FromRaw)?;
            require_some(raw)?;
            // `constants` requires a live object: not NULL, so this function's contract says so.
            let (of, fd) = constants!(raw => context, fd);
            require(of == context.as_raw(), ForeignObject::OtherContext)?;
            // SAFETY: EventDescriptor::new requires a descriptor that stays open while it is used:
            // that of the channel, which the new value keeps (1).
            unsafe { EventDescriptor::new(fd) }
        };
        let events = match adopt() {
            Ok(events) => events,
            Err(error) => return Err(Failed::new(error, ownership)),
        };
        let inner = Handle::new(ChannelInner { raw, context: Arc::clone(&context.inner), events, ownership });
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Waits for the next event and returns the queue that it names; none after the timeout.
    ///
    /// Without a timeout, the call waits for ever. A queue raises one event for each
    /// [`request_notify`](super::CompletionQueue::request_notify).
    ///
    /// # Errors
    ///
    /// `NoDevice` when the device is gone; any other error that the provider reports.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<CqId>> {
        self.inner.next_event(timeout)
    }

    /// Takes and acknowledges the next event, if there is one; does not wait.
    ///
    /// With edge-triggered epoll, call this until it returns none.
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
    /// `InUse`, with the handle, while a clone of the handle or a completion queue of the channel
    /// lives.
    pub fn close(self) -> Result<(), Failed<Self>> {
        Handle::close(self.inner).map(drop).map_err(|failed| failed.map(|inner| Self { inner }))
    }

    /// The C object, valid while this handle lives.
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
