//! Safe RDMA verbs: as fast as C, and testable without a NIC.
//!
//! RDMA lets one process put data into another's memory, or take it from there, without system calls and without copies by
//! the kernel. This crate is the verbs interface of Linux (`libibverbs`) made safe, together with a software device, `soft0`,
//! that needs no NIC, no kernel module and no root: what works on it works on hardware.
//!
//! # Objects
//!
//! | Object | What it is | Keeps |
//! | --- | --- | --- |
//! | [`Device`] | something that can be opened | the list that it is from |
//! | [`Context`] | an open device | its device |
//! | [`ProtectionDomain`] | what may be used together | its context |
//! | [`CompletionChannel`] | where to sleep until there are completions | its context |
//! | [`CompletionQueue`] | where finished work is reported | its context and channel |
//! | [`Buffer`] | memory for messages, exclusive to its holder | its region and domain |
//! | [`ExposedRegion`] | memory that peers may read or write | its domain |
//! | [`QueuePair`] | one end of a connection | its domain and completion queues |
//!
//! A [`RemoteSlice`] names a peer's exposed memory and an [`Endpoint`] its queue pair; both are plain data with a fixed wire format.
//!
//! Parents are counted: any handle can be dropped at any time, and lives in any struct or task. A forked child cannot use the
//! handles of its parent: calls fail with [`ErrorKind::Forked`].
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
//! // Two ends in one process; usually each has its own, and the endpoints travel over a socket.
//! let options = InitOptions::new().port(opened.port);
//! let a = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
//! let b = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
//! let (to_a, to_b) = (a.endpoint(), b.endpoint());
//! let a = a.connect(&to_b, &ConnectOptions::new())?;
//! let b = b.connect(&to_a, &ConnectOptions::new())?;
//! # Ok(()) }
//! ```
//!
//! A queue pair's type says what it can do:
//!
//! ```text
//! builder ── build ──> PreparedQueuePair ── init ──> InitializedQueuePair ── connect ──> QueuePair
//!                      (RESET)                       (INIT: post receives)              (RTS: send too)
//! ```
//!
//! A completion queue needs a place for every request of its queue pairs, `max_send_wr` and `max_recv_wr` (16 each, if not
//! said): [`QpBuilder::build`] fails where it has fewer.
//!
//! # Who has the memory
//!
//! Posting moves a [`Buffer`] into the queue; a [`Poller`] hands it back with its [`Completion`]. A buffer is a local region's: no
//! peer can reach it. An [`ExposedRegion`] is never lent as a slice; bytes are copied in and out, and it stays usable while
//! requests on its slices are under way.
//!
//! | What happens | Where the buffer is then |
//! | --- | --- |
//! | the post fails | in the error ([`PostError::into_request`]) |
//! | the completion comes, with success or an error | in [`Completion::take_buffer`]; freed if it is not taken |
//! | the request was unsignaled | in [`Completion::next_unsignaled`] of the next completion of its queue |
//! | the queue pair is reset, closed or dropped | freed, after the device has let go of it |
//! | that fails | leaked, and logged |
//!
//! Operations are in [`op`]: `qp.post_send(op::Read::new(sink, remote).token(7))?`. [`QueuePair::scope`] lends memory for the
//! length of a closure; [`RawQueuePair`] is the C interface's way, unsafe. Warnings go to the `tracing` crate, among them why the
//! software device refused a peer.
//!
//! # Features
//!
//! `soft` (default) builds the software device in. `RDMA_SOFT=off` leaves it out of a run.

mod absence;
mod address;
mod async_event;
mod attr;
mod choose;
pub mod cm;
mod context;
mod cq;
mod device;
mod error;
mod fork;
mod gid;
mod mr;
mod pd;
mod qp;
#[cfg(test)]
mod testing;
mod types;
mod wait;

pub use absence::{Finding, HardwareAbsence};
pub use address::{AddressHandle, Grh, Source};
pub use async_event::{AsyncEvent, AsyncEventKind, EventSource};
pub use attr::{DeviceAttr, PortAttr};
pub use choose::{Choice, DeviceSelector, OpenError, Opened, ParseSelectorError, open};
pub use context::Context;
pub use cq::{Completion, CompletionChannel, CompletionQueue, CqBuilder, CqId, Datagram, Poller, Released};
pub use device::Device;
pub use error::{Error, ErrorKind, Failed, Operation, Result};
pub use gid::GidEntry;
pub use mr::{
    Buffer, ExposedRegion, ExposedSlice, Gpu, Host, IntoMemoryError, LentSlice, LentSliceMut, Memory, MemoryOwner,
    Placement, RemoteSlice, RemoteSliceError, RevokeError,
};
pub use pd::ProtectionDomain;
pub use qp::op;
pub use qp::{
    Batch, BatchError, Borrowed, ConnectOptions, DatagramEndpoint, DatagramOptions, Endpoint, EndpointError, HostBytes,
    InitOptions, InitializedQueuePair, Inline, Local, MULTICAST_QPN, MulticastAttachment, Owned, Path, PostError,
    PreparedQueuePair, QpAttr, QpAttrMask, QpBuilder, QpInfo, QpState, QueuePair, RawCompletionQueue, RawPostError,
    RawQueuePair, Rc, RecvHalf, RecvQueue, Route, Scope, ScopeError, SendHalf, SendQueue, Transport, Ud, Writable,
};
pub use types::{
    AckTimeout, AtomicCapability, Gid, GidKind, Guid, Lid, LinkLayer, Mtu, NodeType, ParseGidError, PhysState,
    PortState, RemoteAccess, RnrTimer, TransportType, WcError, WcStatus,
};
