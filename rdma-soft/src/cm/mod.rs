//! The device's librdmacm: connections between the processes of one host, without a kernel module
//! or a daemon.
//!
//! ```text
//!   application ── rdma_resolve_addr, rdma_connect, rdma_get_cm_event ...
//!        │
//!   calls, endpoint, multicast, options    the functions
//!   events, qp, srq, id                       C objects and their public fields
//!        │                                 one mutex: service::State
//!   connect, service                       calls; one thread: sockets and the clock
//!   report, path                           events, address vectors and attributes
//!   entry, machine                         ids; the protocol's states and timers, IO-free
//!        │
//!   port, message                          names of abstract Unix sockets; packets
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
//! Both sides accept only peers of the same user; the kernel reports the peer's user id. Even such
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
mod wire;

pub(crate) use table::{GET_CM_EVENT, GET_REQUEST};
pub use table::{GetCmEvent, GetRequest, rdmacm};
