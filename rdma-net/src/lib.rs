//! Connections with messages and flow control, for programs that do not want to know verbs.
//!
//! A [`Node`] is a device with its connections; its [`Driver`] does the work, as a task of any
//! executor or on a thread. A [`Listener`] accepts peers, [`Node::connect`] connects to one, and a
//! [`Connection`] carries messages in both directions: reliable, in order, whole, and as long as
//! both sides allow.
//!
//! ```
//! use rdma::aio::block_on;
//! use rdma_net::{Failure, ListenOptions, Node, NodeOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let context = rdma::open(&"soft0".parse()?)?.context;
//! let (node, driver) = Node::new(&context, &NodeOptions::new())?;
//! std::thread::spawn(move || driver.run_blocking());
//! let mut listener = node.listen("127.0.0.1:0".parse()?, &ListenOptions::new())?;
//! let address = listener.local_addr();
//!
//! // An echo server.
//! let server = std::thread::spawn(move || {
//!     block_on(async {
//!         let (to, mut from) = listener.accept().await?.accept().await?.split();
//!         while let Some(message) = from.next().await? {
//!             to.send(&message).await?;
//!         }
//!         Ok::<(), Failure>(())
//!     })
//! });
//!
//! block_on(async {
//!     let mut connection = node.connect(address).await?;
//!     connection.send("hello").await?;
//!     assert_eq!(&connection.next().await?.expect("an answer")[..], b"hello");
//!     connection.close().await
//! })?;
//! server.join().expect("no panic")?;
//! # Ok(()) }
//! ```
//!
//! # Flow control
//!
//! Each side posts `window` receives and tells the peer how many messages it may send. A message
//! never finds the peer without a receive, whatever the application does: a sender waits in
//! [`Sender::send`] instead. A received message stays in its receive buffer, and a spare buffer
//! takes its place, so a program may hold twice the window of messages before the peer must wait.
//!
//! # Long messages
//!
//! A message of more than a few fragments is copied once, into memory that the connection exposes;
//! the peer's device reads it into the peer's [`Message`]. [`Sender::send_exposed`] saves that copy
//! too: the peer reads memory of the application. The peer reads ahead no more than its
//! [longest message](NodeOptions::max_message), so its memory is bounded whatever is sent.
//!
//! # One-sided operations
//!
//! A program exposes memory of the connection's [domain](Connection::domain) and sends the
//! [`RemoteSlice`](rdma::RemoteSlice) to the peer, which reads, writes and changes the memory with
//! [`Remote`]. RDMA encrypts nothing, and a slice is a bearer token: whoever has it, or guesses its
//! 32-bit key, can use the region on a connection of the same domain until the region is dropped.
//! All connections of a node have one domain, or each has
//! [its own](NodeOptions::separate_domains).
//!
//! Many operations are cheap together: a [batch](Remote::batch) has one doorbell, and
//! [`Remote::fetch_all`] reads any number of slices so.
//!
//! # Ends
//!
//! Dropping the [`Sender`] ends the data of one direction: the peer's [`Receiver::next`] returns
//! `None` after the last message. [`Connection::close`] waits until the peer has confirmed all of
//! it; [`Sender::close_with`] does the same from one of the halves, and [`Sender::closed`] waits
//! for the end whatever its reason. A peer that breaks the protocol, dies or falls silent fails
//! this connection and no other; all waits then return the same [`Failure`].
//!
//! [`Node::shutdown`] ends a whole node.
//!
//! # Cancellation
//!
//! Any future may be dropped at any time: no message is lost or torn. A message whose `send` was
//! dropped is sent as a whole or not at all. A future that waits and is neither polled nor dropped
//! stops nobody else: others wait for it for 50 ms at most.
//!
//! # Forks
//!
//! In a forked child all calls fail, and drops do nothing: the connections belong to the parent.
//! The child may make nodes of its own. Over [`Exchange::Tcp`] a peer notices the end of the parent
//! by its silence only, as long as a child lives on that has not called `exec`.
//!
//! # Platforms
//!
//! Those of [`rdma`]: Linux, and macOS without devices. There a program compiles unchanged, and
//! [`rdma::open`] says why it has no device, before there is a node.
//!
//! # Features
//!
//! | Feature | What it adds |
//! | --- | --- |
//! | `soft` (default) | the software device is built in |
//! | `tokio` | a driver as a task (`Driver::spawn`), the traits of tokio for byte streams |
//! | `smol` | a driver sleeps on a descriptor of async-io |
//! | `futures` | `Stream` and `Sink` of messages: [`Receiver`], [`Sender`], [`Connection`] |
//! | `futures-io` | the traits of `futures-io` for byte streams |
//! | `bytes` | a [`Message`], and what was [`Fetched`], become `Bytes` without a copy |
//!
//! [`Receiver::poll_next`], [`Sender::poll_ready`] and the methods beside them need no feature.
//!
//! The [`guide`] has programs for each page; the crate's folder `examples` has nine to start from.

// Files. This crate is on the public interface of `rdma` alone, without `unsafe`.
//
//   guide/                          pages in Markdown, included by `mod.rs`; their programs are
//                                   doctests, and those over other crates (`*.rs`) are compiled
//                                   and run by the workspace `thirdparty`
//   stream.rs                       the byte stream
//   node.rs, driver.rs, shutdown.rs
//                                   the handle of a node; completions, events and timeouts; the
//                                   end of a node
//   listener.rs, connect.rs         the two ways to a connection
//   attempt.rs, mailbox.rs          one attempt to connect or to accept, and the events that it
//                                   waits for
//   requests.rs                     requests of peers that wait at a listener
//   load.rs                         which driver of a node takes the next connection
//   tables.rs                       the connections of a node, and the receivers of events
//   device_events.rs                asynchronous events of the device
//   connection/                     the protocol, a queue pair and buffers under one lock, and
//                                   the handles
//   exchange.rs, tcp/               the connection manager and an exchange over TCP behind one
//                                   interface
//   link.rs                         the queue pair of a connection
//   shared.rs                       what connections use, and where they leave deadlines and ends
//                                   for the driver
//   receives.rs, read_buffers.rs    receives that connections share; memory into which a node
//                                   reads
//   protocol/                       the protocol without input and output
//   options.rs, failure.rs          options; the error of a connection
//   stats.rs                        what connections and nodes have done
//   waiters.rs, panics.rs           queues of tasks; panics of user code
//   wait.rs, wait/                  sockets that have changed: on Linux, elsewhere

#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "what a step that failed has consumed comes back with the error")]

#[macro_use]
mod macros;

mod attempt;
mod connect;
mod connection;
mod device_events;
mod driver;
mod exchange;
mod failure;
pub mod guide;
mod link;
mod listener;
mod load;
mod mailbox;
mod node;
mod options;
mod panics;
mod protocol;
mod read_buffers;
mod receives;
mod requests;
mod shared;
mod shutdown;
mod stats;
mod stream;
mod tables;
mod tcp;
#[cfg_attr(not(target_os = "linux"), path = "wait/elsewhere.rs")]
mod wait;
mod waiters;

#[cfg(test)]
mod tests;

pub use connection::{
    Batch, Connection, Fetched, Message, Notifications, Outcome, Permit, Receiver, Remote, ReuniteError, Sender,
};
pub use driver::Driver;
pub use failure::{Failure, FailureKind};
pub use listener::{Incoming, Listener};
pub use node::Node;
pub use options::{Exchange, ListenOptions, NodeOptions};
pub use protocol::{RefuseCode, Violation};
pub use shutdown::CutOff;
pub use stats::{ConnectionStats, NodeStats};
pub use stream::Stream;

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
