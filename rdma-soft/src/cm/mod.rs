//! The librdmacm of the device: connections between processes of one host, without a kernel module
//! or a daemon.
//!
//! ```text
//!   application ── rdma_resolve_addr, rdma_connect, rdma_get_cm_event ...
//!        │
//!   calls, endpoint, multicast, options    the functions
//!   events, qp, id                         C objects and their public fields, as librdmacm has them
//!        │                                 one mutex: service::State
//!   connect, service                       what calls do; one thread: sockets and the clock
//!   report, path                           events, address vectors and attributes
//!   entry, machine                         ids; the protocol's states and timers, without input and output
//!        │
//!   port, message                          ports are names of abstract Unix sockets; a packet is a message
//! ```
//!
//! # C's promises
//!
//! A caller of librdmacm's functions promises, as a caller of the C library does:
//!
//! 1. A pointer to an id, channel, event or address list is null or came from these functions, and
//!    nobody frees the object during the call, or uses it after it was freed.
//! 2. Any other pointer is null or valid for what its type says, for reads and where the function
//!    writes for writes, and nobody else changes what it points to during the call.
//! 3. No other thread uses a public field of an object during a call that reads or writes it.
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
