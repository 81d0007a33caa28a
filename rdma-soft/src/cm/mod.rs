//! The librdmacm of the device: connections between processes of one host, without a kernel module
//! or a daemon.
//!
//! ```text
//!   application ── rdma_resolve_addr, rdma_connect, rdma_get_cm_event ...
//!        │
//!   calls, endpoint, multicast, options    the functions
//!   events, qp, id                         C objects and their public fields
//!        │                                 one mutex: service::State
//!   connect, service                       calls; one thread: sockets and the clock
//!   report, path                           events, address vectors and attributes
//!   entry, machine                         ids; the protocol's states and timers, IO-free
//!        │
//!   port, message                          names of abstract Unix sockets; packets
//! ```
//!
//! The arguments of the functions carry the promises of every caller of a verb, which
//! [`crate::verbs`] numbers.
//!
//! # Trust
//!
//! Only processes of the same user are heard, on both ends, as the kernel says who they are. Such a
//! peer is not trusted: every packet is decoded from a private copy and may say anything; a machine
//! takes each in each state. What a peer can hold here is bounded: silent connections, requests
//! that wait at a listener, meaningless messages. It can make a queue pair's *attributes* wrong, as
//! it can on a network; the queue pair then checks them.

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
mod message;
mod multicast;
mod options;
mod path;
mod port;
mod qp;
mod report;
mod service;
mod table;

pub use table::rdmacm;
