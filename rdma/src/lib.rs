//! Safe RDMA verbs: as fast as C, and testable without a NIC.
//!
//! RDMA lets one process write to another's memory, or read from it, without system calls and
//! without copies by the kernel. This crate makes the verbs interface of Linux (`libibverbs`) safe,
//! and adds a software device, `soft0`, that needs no NIC, no kernel module and no root. A program
//! that works on `soft0` works on hardware.
//!
//! `rdma_net`, the crate above this one, has connections that need no verbs: begin there. The
//! [`guide`] goes from completions down to raw verbs, and says how to choose operations, size
//! queues and test without a NIC.
//!
//! # Objects
//!
//! | Object | What it is | Keeps |
//! | --- | --- | --- |
//! | [`Device`] | an RDMA device of this machine | the list that it is from |
//! | [`Context`] | an open device | its device |
//! | [`ProtectionDomain`] | the regions, queue pairs and address handles that may be used together | its context |
//! | [`CompletionChannel`] | a descriptor that wakes a thread when there are completions | its context |
//! | [`CompletionQueue`] | the reports of finished requests | its context and channel |
//! | [`Buffer`] | memory for messages, exclusive to its holder | its region and domain |
//! | [`ExposedRegion`] | memory that peers may read or write | its domain |
//! | [`SourceSlice`] | memory that nobody writes | its region and domain |
//! | [`QueuePair`] | one side of a connection ([`Rc`], or [`Uc`] without acknowledgements), or an endpoint of datagrams from and to many ([`Ud`]) | its domain and completion queues |
//! | [`SharedReceiveQueue`] | receives that several queue pairs share | its domain |
//! | [`cm::EventChannel`], [`cm::Id`] | events of the connection manager; one side of its connections | an id its channel, a channel the context that it was made of, if any |
//! | [`AddressHandle`] | the destination of datagrams | its domain; requests to it keep it |
//! | [`MulticastAttachment`] | a queue pair's membership of a group | nothing: the queue pair leaves its groups when it ends |
//!
//! A [`RemoteSlice`] names a peer's exposed memory, and an [`Endpoint`] or [`DatagramEndpoint`] a
//! peer's queue pair. All three are plain data with a fixed wire format.
//!
//! Children keep their parents alive, so any handle can be dropped at any time, and can live in any
//! struct or task. A forked child cannot use its parent's handles: calls fail with
//! [`ErrorKind::Forked`].
//!
//! # Connecting
//!
//! ```
//! use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let opened = rdma::open(&DeviceSelector::Any)?;
//! println!("using {}", opened.choice);
//! let pd = opened.context.alloc_pd()?;
//! let cq = opened.context.create_cq(64)?;
//!
//! // Both sides in one process; usually each has its own, and the endpoints travel over a socket.
//! let options = InitOptions::new().port(opened.port);
//! let a = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
//! let b = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
//! let (to_a, to_b) = (a.endpoint(), b.endpoint());
//! let a = a.connect(&to_b, &ConnectOptions::new())?;
//! let b = b.connect(&to_a, &ConnectOptions::new())?;
//! # Ok(()) }
//! ```
//!
//! A queue pair's type says which operations its state allows:
//!
//! ```text
//! builder ── build ──> PreparedQueuePair ── init ──> InitializedQueuePair ── connect ──> QueuePair
//!                      (RESET)                       (INIT: post receives)         (RTS: send too)
//! ```
//!
//! The connection manager, [`cm`], connects by IP address and port, as sockets do. iWARP has no
//! other way to connect.
//!
//! A connection of transport [`Uc`] ([`QueuePair::unreliable`]) connects by the same steps. Its
//! messages are not acknowledged: a message that cannot be delivered is lost without an error.
//!
//! A completion queue needs an entry for every request of its queue pairs: `max_send_wr` plus
//! `max_recv_wr` of each (16 each by default). [`QpBuilder::build`] fails if entries are missing.
//!
//! # Datagrams
//!
//! A queue pair of transport [`Ud`] has no peer. Each send is one packet and names its destination;
//! a receiver takes datagrams from every sender that knows its Q_Key. A lost datagram is neither
//! sent again nor reported. Reads, writes and atomic operations do not exist: requesting one does
//! not compile.
//!
//! ```text
//! datagram ── build ──> PreparedQueuePair ── init ──> InitializedQueuePair ── ready ──> QueuePair
//!                       (RESET)                       (INIT: post receives)       (RTS: send too)
//! ```
//!
//! ```
//! use rdma::{DatagramOptions, DeviceSelector, Grh, QueuePair, op};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let opened = rdma::open(&DeviceSelector::Any)?;
//! # let (pd, cq) = (opened.context.alloc_pd()?, opened.context.create_cq(64)?);
//! let options = DatagramOptions::new(0x1234_5678).port(opened.port);
//! let client = QueuePair::datagram(&pd).cq(&cq).max_inline_data(16).build()?;
//! let mut client = client.init(&options)?.ready()?;
//! let served = opened.context.create_cq(64)?;
//! let mut server = QueuePair::datagram(&pd).cq(&served).build()?.init(&options)?.ready()?;
//!
//! // A message arrives behind a header of 40 bytes, for which the memory needs space.
//! server.post_recv(pd.allocate(Grh::LEN + 1024)?, 0)?;
//! let to = server.endpoint()?;
//! let address = client.address_of(&to)?;
//! client.post_send(op::send_inline(b"hello").to(&address, to.qpn, to.qkey))?;
//!
//! let mut poller = served.poller();
//! let mut completion = poller.wait(None)?.expect("no time limit");
//! let datagram = completion.take_datagram().expect("a datagram");
//! assert_eq!(&datagram[..], b"hello");
//! // Enough to answer: `op::send(..).to(&back, source.qpn, qkey)`.
//! let source = datagram.source();
//! let back = server.answer(source)?;
//! # assert_eq!(source.qpn, client.qpn());
//! # Ok(()) }
//! ```
//!
//! [`QueuePair::attach_multicast`] joins a group. iWARP has no datagrams.
//!
//! # Ownership of memory
//!
//! Posting moves a [`Buffer`] into the queue; a [`Poller`] returns it with its [`Completion`]. A
//! buffer belongs to a local region: no peer can reach it. An [`ExposedRegion`] is never lent as a
//! slice; bytes are copied in and out, and the region stays usable while requests on its slices are
//! in flight. A [`SourceSlice`] is memory that nobody writes: it is sent from and read at the same
//! time. [`guide::memory`] says how memory that a program already has becomes one of them.
//!
//! | What happens | Where the buffer is then |
//! | --- | --- |
//! | the post fails | in the error ([`PostError::into_memory`]) |
//! | the completion comes, with success or an error | in [`Completion::take_buffer`]; freed if it is not taken |
//! | the request was unsignaled | in [`Completion::next_unsignaled`] of the next completion of its queue |
//! | the queue pair is reset, closed or dropped | freed, after the device has let go of it |
//! | the reset, close or drop fails | leaked, and logged |
//!
//! Operations are in [`op`]: `qp.post_send(op::read(sink, remote).token(7))?`.
//! [`QueuePair::scope`] lends memory for the duration of a closure. [`RawQueuePair`] is the unsafe
//! interface, close to C. Warnings go to the `tracing` crate, for example why the software device
//! refused a peer.
//!
//! # Platforms
//!
//! Linux on x86_64 and aarch64, with glibc or musl. A program that is linked statically with musl,
//! which is Rust's default there, has `soft0` but no hardware, because musl's `dlopen` then loads
//! no library: `RUSTFLAGS=-Ctarget-feature=-crt-static` links it dynamically.
//!
//! On macOS, a program with RDMA as an option compiles unchanged. [`Device::list`] is empty, and
//! [`open`] fails with [`OpenError::NoHardware`], whose text says "RDMA verbs and the software
//! device need Linux; this is macos". Other systems are a compile error.
//!
//! ```
//! use rdma::DeviceSelector;
//!
//! match rdma::open(&DeviceSelector::Hardware) {
//!     Ok(opened) => println!("over {}", opened.choice),
//!     // On macOS, too.
//!     Err(reason) => println!("over TCP: {reason}"),
//! }
//! ```
//!
//! # Features
//!
//! `soft` (default) builds the software device in. At run time `RDMA_SOFT=off` excludes it. The
//! module `soft` lets its requests fail, so that a program can test how it handles errors. With
//! `tls` it encrypts what it sends to other hosts. `aio` adds futures for any executor; `tokio` and
//! `smol` let them wait on these executors' descriptors. With `bytes`, `BytesMut` and `Bytes` can
//! be registered.
//!
//! [`Rc`]: transport::Rc
//! [`Uc`]: transport::Uc
//! [`Ud`]: transport::Ud

// Files. Larger folders have a map of their own in `mod.rs`.
//
//   guide/                      pages in Markdown, included by `mod.rs`; their programs are
//                               doctests
//   aio/, cm/, soft.rs          futures; the connection manager; controls of the software device
//   qp/, cq/, ring/             queue pairs and shared receive queues; completion queues; the
//                               rings of requests in flight
//   mr/, ah/                    memory regions; address handles
//   pd.rs, context/, device.rs  domains, open devices, the list of devices
//   credit/                     flow control of messages, without input and output
//   choose.rs, absence.rs       chooses a device and a port; explains why there is none
//   handle.rs, fork.rs          the owner of a C object, which destroys, drops or leaks it;
//                               forked children
//   wait.rs, panics.rs          waits for a descriptor; panics of user code, kept until the work
//                               around is done
//   os.rs, os/, platform.rs     what only Linux has, and its stand-in on other systems; the reason
//                               why those have no device
//   error.rs, errno.rs, types/  `Error`; calls that report in `errno`; the values of the verbs
//                               interface
//   testing.rs                  the device of rdma-testkit; it names types of `rdma`, because the
//                               crate under test is another copy than the one that rdma-testkit
//                               could name

#![allow(clippy::result_large_err, reason = "what a step that failed has consumed comes back with the error")]

#[macro_use]
mod macros;

mod absence;
mod ah;
#[cfg(feature = "aio")]
pub mod aio;
mod choose;
pub mod cm;
mod context;
mod cq;
pub mod credit;
mod device;
mod errno;
mod error;
mod fork;
pub mod guide;
mod handle;
mod mr;
#[cfg_attr(not(target_os = "linux"), path = "os/elsewhere.rs")]
#[cfg_attr(not(feature = "aio"), allow(dead_code, reason = "a part is for the reactor"))]
mod os;
mod panics;
mod pd;
mod platform;
mod qp;
mod ring;
#[cfg(feature = "soft")]
pub mod soft;
#[cfg(test)]
mod testing;
mod types;
mod wait;

pub use absence::{Finding, HardwareAbsence};
pub use ah::{AddressHandle, Grh, Source};
pub use choose::{Choice, DeviceSelector, OpenError, Opened, ParseSelectorError, open};
pub use context::{
    AsyncEvent, AsyncEventKind, Context, DeviceAttr, DeviceAttrEx, EventSource, EventTap, GidEntry, PortAttr,
    PortCounters,
};
pub use cq::{
    Backoff, Completion, CompletionChannel, CompletionQueue, CqBuilder, CqStats, Datagram, Message, Pause, Pauses,
    Poller, Released, Wakeup,
};
pub use device::Device;
pub use error::{Error, ErrorKind, Failed, Result, Verb};
pub use fork::MadeIn;
pub use handle::Ownership;
pub use mr::{
    Buffer, CopierThreads, ExposedRegion, ExposedSlice, FileMap, FileSource, Gpu, Host, HugePages, ImplicitRegion,
    LentSlice, LentSliceMut, MappedRegion, Memory, MemoryOwner, Pages, Placement, Pool, PoolBuilder, PoolStats,
    Prefetch, RawOwner, RawSource, RegionMap, RegisterOptions, RemoteSlice, RemoteSliceError, RevokeError,
    ScopedMemory, SharedOwner, SinkSlice, SourceOwner, SourceSlice, TakeBuffer,
};
pub use pd::ProtectionDomain;
pub use qp::{
    AddressCache, Batch, BatchError, Borrowed, ConnectOptions, DatagramEndpoint, DatagramOptions, Endpoint, HostBytes,
    InitOptions, InitializedQueuePair, Inline, Local, MULTICAST_QPN, MulticastAttachment, Owned, OwnedHalf,
    OwnedRecvHalf, OwnedSendHalf, Part, PostError, PreparedQueuePair, QpAttr, QpBuilder, QpControl, QpInfo, QpStats,
    QueueHalf, QueuePair, RawCompletionQueue, RawPostError, RawQueuePair, RecvBatch, RecvHalf, RecvQueue, RecvStats,
    ReuniteError, Scope, ScopeError, SendHalf, SendQueue, SendStats, Sendable, SharedReceiveQueue, SrqBatch,
    SrqBuilder, SrqPoster, SrqStats, Writable,
};
pub use qp::{op, transport};
/// Memory that others write to at the same time: the types with which exposed regions are made and
/// reached.
pub use rdma_mem as mem;
pub use rdma_mem::{Copier, CopyFailed};
/// The C interface, for what this crate has no safe item for, and for [`RawQueuePair`].
pub use rdma_sys as sys;
pub use rdma_sys::{Variable, trusted_variable};
pub use types::{
    AckTimeout, AtomicCapability, Capabilities, CqId, ForeignObject, Gid, GidKind, Guid, Lid, LinkLayer, Mtu, NodeType,
    OptionLimit, ParseGidError, Path, PathOptions, PhysState, PortState, QpAttrMask, QpState, RemoteAccess, RnrTimer,
    Route, SrqId, TransportType, WcError, WcStatus, WireError,
};

/// The programs of the README are doctests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
