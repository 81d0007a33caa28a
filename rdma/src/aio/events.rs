//! Futures of events: of connections, of devices, and of completion channels.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use super::Readiness;
use crate::cm;
use crate::context::{AsyncEvent, Context as Device};
use crate::cq::CompletionChannel;
use crate::error::{Error, Result, Verb};
use crate::types::CqId;

/// An object whose descriptor is readable while events wait.
pub trait Source {
    /// An event of the object.
    type Event;

    /// Takes an event if one is pending.
    ///
    /// # Errors
    ///
    /// Errors of the provider or of the connection manager.
    fn try_next(&self) -> Result<Option<Self::Event>>;
}

impl Source for cm::EventChannel {
    type Event = cm::Event;

    fn try_next(&self) -> Result<Option<cm::Event>> {
        self.try_next_event()
    }
}

impl Source for Device {
    type Event = AsyncEvent;

    fn try_next(&self) -> Result<Option<AsyncEvent>> {
        self.try_next_event()
    }
}

impl Source for CompletionChannel {
    type Event = CqId;

    fn try_next(&self) -> Result<Option<CqId>> {
        self.try_next_event()
    }
}

/// The events of an object, to be awaited: connection events of a
/// [`cm::EventChannel`], asynchronous events of a [`Context`](crate::Context), or the queues that a
/// [`CompletionChannel`] names.
///
/// # Examples
///
/// A server's connection requests on tokio, with the feature `tokio`:
///
#[cfg_attr(feature = "tokio", doc = "```no_run")]
#[cfg_attr(not(feature = "tokio"), doc = "```ignore")]
/// # async fn f(context: &rdma::Context) -> Result<(), Box<dyn std::error::Error>> {
/// use rdma::{aio, cm::EventChannel};
/// use rdma::transport::Rc;
///
/// let channel = EventChannel::of(context)?;
/// let id = channel.create_id::<Rc>()?;
/// id.bind_addr("0.0.0.0:7471".parse()?)?;
/// id.listen(16)?;
/// let mut events = aio::Events::new(channel.clone(), aio::tokio::Readable::new(&channel)?);
/// loop {
///     println!("{:?}", events.next().await?);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Events<S, R> {
    source: S,
    readiness: R,
}

impl<S: Source, R: Readiness> Events<S, R> {
    /// Awaits the events of `source`, whose descriptor `readiness` waits for.
    pub fn new(source: S, readiness: R) -> Self {
        Self { source, readiness }
    }

    /// The object whose events are awaited.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Waits for the next event. Dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// Errors of the source, and of waiting for its descriptor.
    pub async fn next(&mut self) -> Result<S::Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<S::Event>> {
        loop {
            if let Some(event) = self.source.try_next()? {
                return Poll::Ready(Ok(event));
            }
            let waited = ready!(self.readiness.poll_readable(cx));
            waited.map_err(|error| Error::from_io(Verb::WatchDescriptor, &error))?;
        }
    }
}
