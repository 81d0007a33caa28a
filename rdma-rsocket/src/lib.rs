//! Sockets over RDMA: the functions of librdmacm's `rsocket.h` in Rust.
//!
//! An rsocket has the interface of a socket and moves its data by RDMA, without a call of the
//! kernel. [`Socket`] is the safe interface; [`Descriptors`] has the functions of `rsocket.h` under
//! their names, on numbers of sockets. Both run over the function tables of `rdma-sys`: the
//! system's libraries ([`Libraries::system`]), or the software device of `rdma-soft`.
//!
//! The wire format is librdmacm's, so the other side may be a program of the C library.
//!
//! # What differs from sockets
//!
//! * A number of an rsocket is no descriptor for read(2), poll(2) or close(2). [`poll()`] takes
//!   both. So do the lists of [`Descriptors::repoll_create`], which differ from epoll(7) in this:
//!   `EPOLLET` and `EPOLLEXCLUSIVE` have no effect, and a list is in no other list.
//! * `SO_LINGER` bounds the time that a close waits until its data is sent. Without the option, the
//!   bound is 10 seconds. With the time 0 the connection is aborted.
//! * A blocking call always fails with `EINTR` after a signal, whatever `SA_RESTART` says, except
//!   shutdown and close, which go on. No call raises `SIGPIPE`.
//! * A non-blocking connect makes progress during calls on the socket, [`poll()`] included.
//! * A forked child does not share the sockets of its parent: every call on them fails with
//!   `EBADF`, and the parent keeps its connections. The child may make sockets of its own.
//! * With `SO_KEEPALIVE`, a thread that waits in a call on the socket probes the peer every
//!   `TCP_KEEPIDLE` seconds.
//! * Out-of-band data, ancillary data, and devices without RDMA write with
//!   immediate data (iWARP) are not supported.
//!
//! # Trust
//!
//! A peer can write to the receive buffer, to two lists, and to the memory that [`Socket::map`]
//! shares, at any time. Buffer and lists are copied before they are used. Lengths, credits and list
//! entries of a peer are checked: a peer that breaks the protocol ends its connection with
//! `EPROTO`, and the connections of others go on.

// Threads: one mutex protects a socket. A thread that must wait joins the socket's sleepers,
// unlocks, and sleeps in poll(2) on the descriptors of the libraries and on a bell of its own,
// which whoever changes the socket rings. A listener has a thread that accepts connections; no
// other thread serves a socket.
//
// Files:
//
//   descriptors.rs, descriptors/  `rsocket.h` on numbers
//   epoll.rs, poll.rs             the lists of `repoll_create`; waits for several sockets
//   socket.rs                     `Socket`, the safe interface
//   stream/                       connected sockets and listeners; `flow` (buffers and credits)
//                                 has no input or output
//   datagram/                     datagram sockets; `queue` has a UD queue pair, `destinations`
//                                 the paths
//   shared.rs, wait.rs            the mutex and the sleepers; waits and bells
//   wire.rs                       the wire format of streams: messages in immediate data,
//                                 connection data
//   verbs/                        the only module that calls the libraries
//   settings.rs, buffers.rs       options of a socket; positions in lists of buffers
//   number.rs                     numbers of sockets in `rsocket.h`
//   process.rs                    tells a forked child from its parent

mod buffers;
mod datagram;
mod descriptors;
mod epoll;
mod number;
mod poll;
mod process;
mod settings;
mod shared;
mod socket;
mod stream;
mod verbs;
mod wait;
mod wire;

pub use descriptors::Descriptors;
pub use poll::{PollEntry, poll};
pub use settings::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
pub use socket::Socket;
pub use verbs::Libraries;

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
