//! The librdmacm face of the device: connections between processes of one host, without a kernel module or a daemon.
//!
//! ```text
//!   application ── rdma_resolve_addr, rdma_connect, rdma_get_cm_event ...
//!        │
//!   calls, events, id, qp ...   C objects and their public fields, as librdmacm has them
//!        │                      one mutex: service::State
//!   entry, machine              ids; the protocol's states and timers, without input and output
//!        │
//!   service                     one thread: sockets and the clock
//!        │
//!   port, socket, message       ports are names of abstract Unix sockets; a packet is a message
//! ```
//!
//! What holds for verbs' functions ("C's promise", see `verbs`) holds here, with ids, channels and events for objects.
//!
//! # Trust
//!
//! Only processes of the same user are heard, on both ends, as the kernel says who they are. Such a peer is not trusted: every
//! packet is decoded from a private copy and may say anything; a machine takes each in each state. What a peer can hold here is
//! bounded: silent connections, requests that wait at a listener, meaningless messages. It can make a queue pair's
//! *attributes* wrong, as it can on a network; the queue pair then checks them.

mod address;
mod addrinfo;
mod calls;
mod channel;
mod device;
mod endpoint;
mod entry;
mod events;
mod id;
mod machine;
mod message;
mod options;
mod port;
mod qp;
mod service;
mod socket;
mod table;
mod wire;

pub use table::rdmacm;
