//! The connection manager: connections by IP address and port.
//!
//! The connection manager finds the device and the route to an address and agrees with the peer on
//! a connection. iWARP has no other way to connect. Hardware uses librdmacm; the software device
//! has a connection manager of its own, between processes of one host.
//!
//! # Two levels
//!
//! [`blocking`] does each step in one call. The level below serves event loops: an [`EventChannel`]
//! has a descriptor, each method of an [`Id`] starts a step, and [`EventChannel::try_next_event`]
//! returns the step's outcome. For tasks of an executor, `aio::connect` and `aio::Listener` do all
//! steps in one await.
//!
//! # Devices
//!
//! A host has one connection manager for all its RDMA hardware, and the software device has one of
//! its own. An [`EventChannel`] is of a connection manager, not of a device. The address decides on
//! the device of an id: [`Id::context`] tells the context of the device that a resolved address is
//! reached by, that a local address belongs to, or that a request arrived on.
//!
//! A program with one device opens it, and gives its [`Context`](crate::Context). A program for all
//! devices takes the context of each id ([`blocking::Listener::on`], [`blocking::resolve_on`]). A
//! queue pair of another device than the id's is refused with
//! [`WrongDevice`](crate::ErrorKind::WrongDevice), which names both.
//!
//! # Examples
//!
//! The program makes the queue pair as usual, on its own [`Context`](crate::Context):
//!
//! ```no_run
//! use std::time::Duration;
//! use rdma::QueuePair;
//! use rdma::transport::Rc;
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
//! active side must send first. Linux's siw (6.1 to 6.18) may leave that first message unread until
//! more bytes follow, if the message arrives before the passive side has accepted. Programs that
//! have another way to synchronize should wait until the passive side has accepted. Other programs
//! may post writes of no bytes while no answer comes (`op::write_inline(&[], ..)`, with any key):
//! such a write accesses no memory and wakes the passive side.
//!
//! # Lifetimes
//!
//! An id keeps its channel alive, and a channel the context that it was made of. A queue pair and
//! the id that connected it may be dropped in any order. Accepting or rejecting a request consumes
//! the request. In a forked child all calls fail with [`Forked`](crate::ErrorKind::Forked).
//!
//! # Safety
//!
//! 1. An `EventChannelInner` owns an event channel that its table made. The channel is destroyed
//!    once, after its ids, which hold an `Arc` of the `EventChannelInner`.
//! 2. A `RawId` owns an id that its channel's table made and that is on that channel. The id is
//!    destroyed once, when the handle of the `RawId` is dropped.
//! 3. A channel, its ids and the fields of their C structures are used only under the channel's
//!    lock; a migration takes the locks of both channels, in the order of their addresses.
//!    librdmacm writes to ids while it takes events.
//! 4. An event is taken, copied and acknowledged under one hold of the lock. Nothing points to the
//!    event afterwards, so destroying an id, migrating an id and leaving a group never wait for an
//!    acknowledgement.
//! 5. The pointers in events are looked up among the living ids of the channel, and used only if
//!    they are found there. A new id is taken over only if it is not among the living ids and is on
//!    this channel. If the listener migrates while a request arrives, librdmacm puts the new id on
//!    the listener's other channel, which our new id would not keep alive. Such an id is leaked.
//! 6. Some functions of librdmacm dereference the device of an id without a check: they are called
//!    only for an id that is bound to a device.
//! 7. No function is called in a forked child.
//! 8. When leaving a group fails, librdmacm has freed the object that the kernel's events of the
//!    group point to. From then on no event is taken from the channel or moved to another channel,
//!    unless the id was destroyed and its events with it.
//! 9. librdmacm's descriptor is not lent: a write to it is a command to the kernel, with the
//!    address that the kernel writes the answer to.

// The connection manager makes no queue pairs. librdmacm's own context of the device, its
// completion queues and its bring-up stay unused; `rdma_init_qp_attr` says which attributes our
// queue pairs need.
//
// Files:
//
//   manager.rs                   connection managers, and the contexts of their devices
//   id.rs, channel.rs, event.rs  ids, event channels, events
//   connect.rs, request.rs, datagram.rs
//                                connecting, accepting, resolving peers of datagrams
//   blocking/                    each step in one call, on the modules above alone
//   message.rs, reason.rs, sockaddr.rs
//                                private data and parameters; reasons of failures; addresses

pub mod blocking;
mod channel;
mod connect;
mod datagram;
mod event;
mod id;
mod manager;
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
use rdma_sys::rdma_port_space;
pub use request::ConnectRequest;

use crate::transport::{Rc, Transport, Ud};
pub use crate::types::{Ece, RejectReason, WrongDevice};

/// Longest private data of a request to connect, on InfiniBand and RoCE, in bytes.
const CONNECT_PRIVATE_DATA: usize = 56;
/// Longest private data of an answer.
const ACCEPT_PRIVATE_DATA: usize = 196;
/// Longest private data of a rejection.
const REJECT_PRIVATE_DATA: usize = 148;
/// Longest private data of each iWARP message: the largest `u8`, less four bytes that siw (6.1)
/// adds to every message.
const IWARP_PRIVATE_DATA: usize = 251;
/// Longest private data of a request for datagrams.
const UD_CONNECT_PRIVATE_DATA: usize = 180;
/// Longest private data of an answer to a request for datagrams.
const UD_ACCEPT_PRIVATE_DATA: usize = 136;

/// A transport that the connection manager connects: [`Rc`] on its TCP port space, [`Ud`] on its
/// UDP port space.
pub trait PortSpace: Transport {
    /// The C interface's number for the port space.
    const PORT_SPACE: rdma_port_space;
    /// Whether the port space exchanges datagrams instead of connecting.
    #[doc(hidden)]
    const DATAGRAM: bool;
    /// The request for this port space that an event carries, if the event carries one.
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
