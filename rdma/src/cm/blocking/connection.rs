//! A connection that is there, and one that did not come about.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::LAST_LOOKS;
use crate::cm::EventChannel;
use crate::cm::event::{Event, EventKind};
use crate::cm::id::Id;
use crate::cm::message::{ConnectionParameters, PrivateData};
use crate::error::{Error, Result};
use crate::qp::{InitializedQueuePair, QueuePair, Rc};
use crate::wait::Deadline;

/// A connection did not come about, or the answer where to send datagrams, which has no queue pair.
pub struct ConnectError<Q = InitializedQueuePair<Rc>> {
    /// Why.
    pub error: Error,
    /// What the peer had to say, if it rejected.
    pub private_data: PrivateData,
    /// The queue pair.
    pub qp: Q,
}

impl<Q> ConnectError<Q> {
    pub(super) fn new(error: Error, qp: Q) -> Self {
        Self { error, private_data: PrivateData::default(), qp }
    }
}

impl<Q> fmt::Debug for ConnectError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<Q> fmt::Display for ConnectError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<Q> std::error::Error for ConnectError<Q> {}

impl<Q> From<ConnectError<Q>> for Error {
    fn from(error: ConnectError<Q>) -> Self {
        error.error
    }
}

impl<Q> From<ConnectError<Q>> for std::io::Error {
    fn from(error: ConnectError<Q>) -> Self {
        error.error.into()
    }
}

/// What the connection manager has of a connection; its queue pair is apart from it, and either may
/// go first.
///
/// Dropping it ends the connection: the peer sees a disconnect.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma::cm::blocking::Connection;
/// # use rdma::{QueuePair, Rc};
///
/// # fn f(connection: Connection, qp: QueuePair<Rc>) -> Result<(), rdma::Error> {
/// if !connection.wait_disconnected(Some(Duration::from_secs(1)))? {
///     // What is in flight completes as flushed.
///     connection.disconnect(&qp)?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct Connection {
    id: Id<Rc>,
    channel: EventChannel,
    private_data: PrivateData,
    parameters: ConnectionParameters,
    ended: AtomicBool,
}

/// How often a thread that waits looks whether another has taken the event meanwhile.
const SHARED_WAIT: Duration = Duration::from_millis(100);

impl Connection {
    pub(in crate::cm) fn new(
        id: Id<Rc>,
        channel: EventChannel,
        private_data: PrivateData,
        parameters: ConnectionParameters,
    ) -> Self {
        Self { id, channel, private_data, parameters, ended: AtomicBool::new(false) }
    }

    getters! { |this|
        /// What the peer had to say as it connected or accepted, on InfiniBand and RoCE filled up
        /// with zeros.
        private_data: &[u8] = &this.private_data;
        /// What the peer asked for, or agreed to.
        parameters: &ConnectionParameters = &this.parameters;
        /// Our own address.
        local_addr: Option<SocketAddr> = this.id.local_addr();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.id.peer_addr();
    }

    /// Ends the connection: [`Id::disconnect`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{QueuePair, Rc, cm::blocking::Connection};
    ///
    /// # fn f(connection: Connection, qp: QueuePair<Rc>) -> Result<(), rdma::Error> {
    /// connection.disconnect(&qp)?;
    /// connection.wait_disconnected(None)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self, qp: &QueuePair<Rc>) -> Result<()> {
        self.id.disconnect(qp)
    }

    /// Waits until the connection has ended, by whatever end; false after the timeout. Without a
    /// timeout it waits for ever.
    ///
    /// # Errors
    ///
    /// What librdmacm reports.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// # use rdma::cm::blocking::Connection;
    ///
    /// # fn f(connection: Connection) -> Result<(), rdma::Error> {
    /// let ended = connection.wait_disconnected(Some(Duration::from_secs(1)))?;
    /// println!("the peer {}", if ended { "has gone" } else { "is still there" });
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = Deadline::after(timeout);
        while !self.ended.load(Ordering::Acquire) {
            if deadline.is_over() {
                // What is there is looked at even without time.
                for _ in 0..LAST_LOOKS {
                    if self.try_next_event()?.is_none() {
                        break;
                    }
                }
                break;
            }
            let event = self.channel.next_event_until(deadline.sooner(SHARED_WAIT))?;
            self.note(event.as_ref());
        }
        Ok(self.ended.load(Ordering::Acquire))
    }

    /// Takes an event of the connection if there is one, for who waits for the
    /// [descriptor](std::os::fd::AsFd).
    ///
    /// # Errors
    ///
    /// What librdmacm reports.
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        let event = self.channel.try_next_event()?;
        self.note(event.as_ref());
        Ok(event)
    }

    fn note(&self, event: Option<&Event>) {
        let ends = |kind: &EventKind| {
            matches!(kind, EventKind::Disconnected | EventKind::DeviceRemoval | EventKind::TimewaitExit)
        };
        if event.is_some_and(|event| ends(&event.kind)) {
            self.ended.store(true, Ordering::Release);
        }
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> &Id<Rc> {
        &self.id
    }

    /// The id, to go on in the form for event loops, and the channel that it is on.
    #[must_use]
    pub fn into_id(self) -> (Id<Rc>, EventChannel) {
        (self.id, self.channel)
    }
}

lends_descriptor! {
    /// The descriptor that becomes readable when something happens to the connection.
    Connection, channel
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).field("parameters", &self.parameters).finish_non_exhaustive()
    }
}
