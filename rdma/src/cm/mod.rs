//! The connection manager: connections by IP address and port.
//!
//! It finds the device and the route to an address, and agrees with the peer on a connection; it is
//! the only way to connect on iWARP. On hardware this is librdmacm; the software device has its
//! own, between processes of one host.
//!
//! # Two levels
//!
//! [`blocking`] does each step in one call. Below it is the form for event loops: an
//! [`EventChannel`] has a descriptor, each method of an [`Id`] starts something, and
//! [`EventChannel::try_next_event`] says how it ended.
//!
//! The queue pair is the program's own, made as always, on the program's own [`Context`]:
//!
//! ```no_run
//! use std::time::Duration;
//! use rdma::{QueuePair, Rc};
//! use rdma::cm::ConnOptions;
//! use rdma::cm::blocking::{self, ListenOptions, Listener};
//!
//! # fn server(context: &rdma::Context) -> Result<(), Box<dyn std::error::Error>> {
//! // One end listens ...
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(32)?;
//! let address = "192.0.2.1:7174".parse()?;
//! let listener: Listener = Listener::bind(context, address, &ListenOptions::new())?;
//! let request = listener.next_request(None)?.expect("no time limit");
//! let mut qp = request.init(QueuePair::builder(&pd).cq(&cq).build()?)?;
//! qp.post_recv(pd.allocate(64)?, 1)?;
//! let (connection, qp) = request.accept(qp, &ConnOptions::new(), Duration::from_secs(10))?;
//! # Ok(()) }
//!
//! # fn client(context: &rdma::Context) -> Result<(), Box<dyn std::error::Error>> {
//! // ... and the other connects.
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(32)?;
//! let (server, timeout) = ("192.0.2.1:7174".parse()?, Duration::from_secs(5));
//! let route = blocking::resolve::<Rc>(context, None, server, timeout)?;
//! let mut qp = route.init(QueuePair::builder(&pd).cq(&cq).build()?)?;
//! qp.post_recv(pd.allocate(64)?, 1)?;
//! let options = ConnOptions::new().private_data(b"hello");
//! let (connection, qp) = route.connect(qp, &options, Duration::from_secs(10))?;
//! # Ok(()) }
//! ```
//!
//! # Order of things
//!
//! ```text
//!  active                                                  passive
//!  resolve_addr ──> AddrResolved                           bind_addr, listen
//!  resolve_route ─> RouteResolved
//!  init the queue pair, post receives
//!  connect ──────────────────────────────────────────────> ConnectRequest
//!                                                          init the queue pair, post receives
//!  ConnectResponse <────────────────────────────────────── accept
//!  establish ────────────────────────────────────────────> Established
//!  disconnect ───────────────────────────────────────────> Disconnected
//!  Disconnected <───────────────────────────────────────── disconnect
//! ```
//!
//! On iWARP `connect` ends in `Established` at once, and the kernel brings the queue pair up; the
//! active end must send first. Linux's siw (6.1 to 6.18) may leave that message unread if it comes
//! before the other end has accepted, until more bytes follow. Programs that can tell each other
//! wait for the other end's word; others may write no bytes while no answer comes
//! (`Write::inline(&[], ..)`, to any key), which touches nothing and wakes the other end.
//!
//! # Who keeps what
//!
//! Ids keep their channel, and a channel its context. A queue pair and the id that connected it may
//! go in any order. A request is consumed by accepting or rejecting it. In a forked child all calls
//! fail with [`ErrorKind::Forked`].
//!
//! # Safety
//!
//! 1. A `ChannelInner` owns an event channel that its table made. It is destroyed once, after its
//!    ids, which hold an `Arc` of it.
//! 2. A `RawId` owns an id that its channel's table made, and that is on that channel. It is
//!    destroyed once, by its drop.
//! 3. A channel, its ids and the fields of their C structures are used only under the channel's
//!    lock; a migration takes the locks of both channels, in the order of their addresses.
//!    librdmacm writes to ids while it takes events.
//! 4. An event is taken, copied and acknowledged under one hold of the lock, so that nothing points
//!    to it afterwards, and neither destroying nor migrating an id nor leaving a group waits for
//!    anybody.
//! 5. The pointers in events are looked up among the living ids of the channel, and used only if
//!    they are there. A new id is taken over only if it is not among them, and on this channel:
//!    librdmacm puts it on its listener's, which is another one if a request is made while the
//!    listener moves, and which nothing of ours would keep. Such an id is leaked.
//! 6. librdmacm looks at the device of an id without asking whether it has one: calls that do are
//!    made only if it has.
//! 7. Nothing is called in a forked child.
//! 8. When leaving a group fails, librdmacm has freed what the kernel's events of the group name:
//!    no event is taken from the channel any more, nor moved to another, unless the id was
//!    destroyed and the events with it.
//! 9. librdmacm's descriptor is not lent: what is written to it are commands to the kernel, with
//!    addresses to write answers to.

pub mod blocking;
mod channel;
mod connect;
mod datagram;
mod event;
mod id;
mod message;
mod reason;
mod request;
mod sockaddr;
#[cfg(test)]
mod tests;

pub use channel::{EventChannel, IdKey};
pub use connect::ConnOptions;
pub use datagram::{Membership, UdOptions};
pub use event::{Event, EventKind};
pub use id::Id;
pub use message::{Accepted, ConnectionParameters, MulticastGroup, PrivateData, Rejection, UdPeer};
use rdma_sys::{RdmaCm, rdma_port_space};
pub use request::ConnectRequest;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::qp::{Rc, Transport, Ud};
pub use crate::types::{Ece, RejectReason, WrongDevice};

/// How much a request to connect can carry on InfiniBand and RoCE.
const CONNECT_PRIVATE_DATA: usize = 56;
/// How much an answer can carry.
const ACCEPT_PRIVATE_DATA: usize = 196;
/// How much a rejection can carry.
const REJECT_PRIVATE_DATA: usize = 148;
/// How much each message of iWARP's can carry: what a byte can count, less four that siw (6.1) adds
/// without asking.
const IWARP_PRIVATE_DATA: usize = 251;
/// How much a request for datagrams can carry.
const UD_CONNECT_PRIVATE_DATA: usize = 180;
/// How much an answer to that can carry.
const UD_ACCEPT_PRIVATE_DATA: usize = 136;

/// A transport that the connection manager connects: [`Rc`] on its TCP port space, [`Ud`] on its
/// UDP port space.
pub trait PortSpace: Transport {
    /// The C interface's number for the port space.
    const PORT_SPACE: rdma_port_space;
    /// Whether it asks for datagrams.
    #[doc(hidden)]
    const DATAGRAM: bool;
    /// The request of this port space that an event is, if it is one.
    #[doc(hidden)]
    fn request(kind: EventKind) -> Option<ConnectRequest<Self>>
    where
        Self: Sized;
}

impl PortSpace for Rc {
    const PORT_SPACE: rdma_port_space = rdma_port_space::RDMA_PS_TCP;
    const DATAGRAM: bool = false;

    fn request(kind: EventKind) -> Option<ConnectRequest<Self>> {
        match kind {
            EventKind::ConnectRequest(request) => Some(request),
            _ => None,
        }
    }
}

impl PortSpace for Ud {
    const PORT_SPACE: rdma_port_space = rdma_port_space::RDMA_PS_UDP;
    const DATAGRAM: bool = true;

    fn request(kind: EventKind) -> Option<ConnectRequest<Self>> {
        match kind {
            EventKind::UdConnectRequest(request) => Some(request),
            _ => None,
        }
    }
}

/// The connection manager that the context's device belongs to.
fn table(context: &Context) -> Result<&'static RdmaCm> {
    #[cfg(test)]
    if let Some(table) = crate::testing::cm::table() {
        return Ok(table);
    }
    if context.is_software() {
        return software();
    }
    RdmaCm::system().map_err(|error| {
        tracing::debug!(%error, "no connection manager");
        Error::new(Operation::LoadLibrary, ErrorKind::NotSupported)
    })
}

/// The software device's.
#[cfg(feature = "soft")]
fn software() -> Result<&'static RdmaCm> {
    Ok(rdma_soft::rdmacm())
}

/// The software device's: not in this build.
#[cfg(not(feature = "soft"))]
fn software() -> Result<&'static RdmaCm> {
    Err(Error::new(Operation::CreateEventChannel, ErrorKind::NotSupported))
}
