//! An established connection, and the error of a failed attempt.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::LAST_LOOKS;
use crate::cm::EventChannel;
use crate::cm::event::{Event, EventKind};
use crate::cm::id::Id;
use crate::cm::message::{ConnectionParameters, PrivateData};
use crate::error::{Error, Result, gives_back};
use crate::qp::{InitializedQueuePair, QpControl};
use crate::transport::Rc;
use crate::wait::Deadline;

/// A connection attempt, or a datagram request (then without a queue pair), that failed.
#[non_exhaustive]
pub struct ConnectError<Q = InitializedQueuePair<Rc>> {
    /// The reason of the failure.
    pub error: Error,
    /// The peer's private data, if the peer rejected.
    pub private_data: PrivateData,
    /// The queue pair, given back.
    pub qp: Q,
}

impl<Q> ConnectError<Q> {
    pub(super) fn new(error: Error, qp: Q) -> Self {
        Self { error, private_data: PrivateData::default(), qp }
    }
}

gives_back!(ConnectError<Q>);

/// The connection manager's part of a connection. The queue pair is a separate object; either may
/// be dropped first.
///
/// Dropping the connection ends it: the peer sees a disconnect.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use rdma::cm::blocking::Connection;
/// # use rdma::QueuePair;
/// # use rdma::transport::Rc;
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

/// How often a waiting thread checks whether another thread has taken the event.
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
        /// The peer's private data, from its request or its answer; padded with zeros on InfiniBand
        /// and RoCE.
        private_data: &[u8] = &this.private_data;
        /// The parameters that the peer asked for, or agreed to.
        parameters: &ConnectionParameters = &this.parameters;
        /// The local address.
        local_addr: Option<SocketAddr> = this.id.local_addr();
        /// The peer's address.
        peer_addr: Option<SocketAddr> = this.id.peer_addr();
    }

    /// Ends the connection: [`Id::disconnect`].
    ///
    /// # Errors
    ///
    /// As for [`Id::disconnect`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{QueuePair, cm::blocking::Connection};
    /// # use rdma::transport::Rc;
    ///
    /// # fn f(connection: Connection, qp: QueuePair<Rc>) -> Result<(), rdma::Error> {
    /// connection.disconnect(&qp)?;
    /// connection.wait_disconnected(None)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect<'a>(&self, qp: impl Into<QpControl<'a, Rc>>) -> Result<()> {
        self.id.disconnect(qp)
    }

    /// Waits until either side has ended the connection; returns false after the timeout. Without a
    /// timeout, waits forever.
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
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
                // With no time left, pending events are still taken, up to a limit.
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

    /// Takes an event of the connection if one is pending, for programs that wait for the
    /// [descriptor](std::os::fd::AsFd).
    ///
    /// # Errors
    ///
    /// Errors of librdmacm.
    pub fn try_next_event(&self) -> Result<Option<Event>> {
        let event = self.channel.try_next_event()?;
        self.note(event.as_ref());
        Ok(event)
    }

    fn note(&self, event: Option<&Event>) {
        // A listener that gives up before it has heard of the connection rejects it.
        let ends = |kind: &EventKind| {
            use EventKind::*;
            matches!(kind, Disconnected | Rejected(_) | DeviceRemoval | TimewaitExit)
        };
        if event.is_some_and(|event| event.id == self.id.key() && ends(&event.kind)) {
            self.ended.store(true, Ordering::Release);
        }
    }

    /// The connection manager's id of the connection.
    #[must_use]
    pub fn id(&self) -> &Id<Rc> {
        &self.id
    }

    /// Continues in the form for event loops: returns the id and its channel.
    #[must_use]
    pub fn into_id(self) -> (Id<Rc>, EventChannel) {
        (self.id, self.channel)
    }
}

lends_descriptor! {
    /// The descriptor is readable while an event of the connection is pending.
    Connection, channel
}

debug_by_methods!(Connection: id, parameters);
