//! The blocking connection manager: each step is one call that waits for its outcome.
//!
//! ```
//! use std::time::Duration;
//! use rdma::cm::blocking::{self, ListenOptions, Listener};
//! use rdma::cm::ConnOptions;
//! use rdma::{Error, QueuePair, op};
//! use rdma::transport::Rc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const LIMIT: Duration = Duration::from_secs(10);
//! let context = rdma::open(&"soft0".parse()?)?.context;
//! let any_port = "127.0.0.1:0".parse()?;
//! let listener: Listener = Listener::bind(&context, any_port, &ListenOptions::new())?;
//! let address = listener.local_addr();
//!
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(32)?);
//! let server = std::thread::spawn(move || -> Result<(), Error> {
//!     let request = listener.next_request(Some(LIMIT))?.expect("somebody connects");
//!     assert!(request.private_data().starts_with(b"hello"));
//!     let mut qp = request.init(QueuePair::builder(&pd).cq(&cq).build()?)?;
//!     // Before the connection is there: the peer may send at once.
//!     qp.post_recv(pd.allocate(64)?, 1)?;
//!     let (connection, _qp) = request.accept(qp, &ConnOptions::new(), LIMIT)?;
//!     assert_eq!(cq.poller().wait(Some(LIMIT))?.expect("a message").byte_len(), 3);
//!     assert!(connection.wait_disconnected(Some(LIMIT))?);
//!     Ok(())
//! });
//!
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(32)?);
//! let route = blocking::resolve::<Rc>(&context, None, address, LIMIT)?;
//! let qp = route.init(QueuePair::builder(&pd).cq(&cq).max_inline_data(8).build()?)?;
//! let options = ConnOptions::new().private_data(b"hello");
//! let (connection, mut qp) = route.connect(qp, &options, LIMIT)?;
//! qp.post_send(op::send_inline(b"hey")).map_err(Error::from)?;
//! cq.poller().wait(Some(LIMIT))?.expect("it is sent").status()?;
//! connection.disconnect(&qp)?;
//! server.join().expect("no panic")?;
//! # Ok(()) }
//! ```
//!
//! Every listener and every connection has an event channel of its own, so none takes another's
//! events. Threads can share all of them, and each has a descriptor for programs that wait for
//! several at once.

mod active;
mod connection;
mod datagram;
mod listener;

use std::time::Duration;

pub use active::{ResolveOptions, Resolved, resolve, resolve_on, resolve_with};
pub use connection::{ConnectError, Connection};
pub use datagram::{Joined, join};
#[cfg(feature = "aio")]
pub(crate) use listener::is_established;
pub use listener::{IncomingConnection, ListenOptions, Listener};

use super::event::{Event, EventKind};
use super::message::PrivateData;
use super::{EventChannel, IdKey};
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::qp::InitializedQueuePair;
use crate::transport::Rc;
use crate::types::Ece;
use crate::wait::Deadline;

/// How many pending events are still taken after the deadline. The limit keeps a stream of events
/// from extending the deadline.
const LAST_LOOKS: u32 = 1024;

/// The reason why an awaited event does not come, with the private data of a peer that refused.
pub(crate) type Failure = (Error, PrivateData);

pub(crate) fn failure(error: Error) -> Failure {
    (error, PrivateData::default())
}

/// Waits for the next event of an id that is not a failure, and drops those of other ids of the
/// channel.
fn next(channel: &EventChannel, own: IdKey, operation: Verb, deadline: Deadline) -> Result<EventKind, Failure> {
    let kind = loop {
        match channel.next_event_until(deadline).map_err(failure)? {
            Some(Event { id, kind, .. }) if id == own => break kind,
            // A stream of events must not extend the deadline.
            _ if deadline.is_over() => return Err(failure(Error::new(operation, ErrorKind::Timeout))),
            // Another id's event; or the descriptor was readable, but the channel has no event.
            _ => {}
        }
    };
    outcome(kind, operation)
}

/// The event, or the failure that it reports.
pub(crate) fn outcome(kind: EventKind, operation: Verb) -> Result<EventKind, Failure> {
    let error = match kind {
        EventKind::AddrError(error)
        | EventKind::RouteError(error)
        | EventKind::ConnectError(error)
        | EventKind::Unreachable(error)
        | EventKind::MulticastError { error, .. } => error,
        EventKind::Rejected(rejection) => return Err((rejection.to_error(), rejection.private_data)),
        EventKind::DeviceRemoval => Error::new(operation, ErrorKind::NoDevice),
        EventKind::Disconnected => Error::new(operation, ErrorKind::Disconnected),
        other => return Ok(other),
    };
    Err(failure(error))
}

/// Waits for the event of an id that `wanted` accepts; skips its other events that are not
/// failures, and those of other ids.
pub(super) fn wait_for<R>(
    (channel, own): (&EventChannel, IdKey),
    operation: Verb,
    deadline: Deadline,
    mut wanted: impl FnMut(EventKind) -> Option<R>,
) -> Result<R, Failure> {
    loop {
        if let Some(found) = wanted(next(channel, own, operation, deadline)?) {
            return Ok(found);
        }
        // A stream of events must not extend the deadline.
        if deadline.is_over() {
            return Err(failure(Error::new(operation, ErrorKind::Timeout)));
        }
    }
}

/// The deadline of a step; a timeout out of range means no deadline.
fn deadline(timeout: Duration) -> Deadline {
    Deadline::after(Some(timeout))
}

/// The provider's ECE options, if it has any.
fn ece(qp: &InitializedQueuePair<Rc>) -> Result<Option<Ece>> {
    match qp.qp.ece() {
        Ok(ece) => Ok(Some(ece).filter(|ece| ece.vendor_id != 0)),
        Err(error) if error.kind() == ErrorKind::NotSupported => Ok(None),
        Err(error) => Err(error),
    }
}

/// Applies the peer's ECE options if both sides have the same vendor id, else no options.
fn apply_ece(qp: &InitializedQueuePair<Rc>, ours: Ece, theirs: Ece) -> Result<()> {
    let options = if theirs.vendor_id == ours.vendor_id { theirs.options } else { 0 };
    match qp.qp.set_ece(Ece { options, ..ours }) {
        Err(error) if error.kind() != ErrorKind::NotSupported => Err(error),
        _ => Ok(()),
    }
}
