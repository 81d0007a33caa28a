//! The device's librdmacm: connections between processes, without a kernel module or a daemon.
//!
//! A connection within a host is a Unix socket. With `RDMA_SOFT_TCP`, one to another host is a TCP
//! connection that begins with the handshake of links ([`crate::node::ports`]). An id that is bound
//! to the chosen address or to none connects from the chosen one. A listener at the chosen address
//! or at the wildcard takes connections of other hosts; one at another address of the host does
//! not. Groups (`rdma_join_multicast`) stay within a host.
//!
//! ```text
//!   application ── rdma_resolve_addr, rdma_connect, rdma_get_cm_event ...
//!        │
//!   calls, endpoint, multicast, options    the functions
//!   events, qp, srq, id                       C objects and their public fields
//!        │                                 one mutex: service::State
//!   connect, dial, service                 calls; one thread: sockets and the clock
//!   report, path                           events, address vectors and attributes
//!   entry, machine                         ids; the protocol's states and timers, IO-free
//!        │
//!   port, transport, wire                  names of abstract Unix sockets; sockets; packets
//! ```
//!
//! Beside them: `channel` has event channels, `device` the contexts of the devices, `address` and
//! `addrinfo` addresses, `table` the table of functions.
//!
//! Callers of these functions make the promises that callers of a verb make; [`crate::verbs`]
//! numbers them.
//!
//! # Trust
//!
//! Within a host both sides accept only peers of the same user; the kernel reports the peer's user
//! id. Another host proves that it holds the key, and its requests come from its address. Even such
//! a peer is not trusted: every packet is decoded from a private copy and may hold any bytes, and a
//! machine handles every message in every state. The resources that a peer can occupy are bounded:
//! silent connections, requests in a listener's backlog, meaningless messages. A peer can send
//! wrong queue pair *attributes*, as on a network; `modify_qp` checks their values.

mod address;
mod addrinfo;
mod calls;
mod channel;
mod connect;
mod device;
mod dial;
mod endpoint;
mod entry;
mod events;
mod id;
mod machine;
mod multicast;
mod options;
mod path;
mod port;
mod qp;
mod report;
mod service;
mod srq;
mod table;
mod transport;
mod wire;

pub(crate) use table::{GET_CM_EVENT, GET_REQUEST};
pub use table::{GetCmEvent, GetRequest, rdmacm};
