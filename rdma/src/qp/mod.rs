//! Queue pairs: one side of a connection, or an endpoint for datagrams to any peer.
//!
//! ```text
//! builder ─ build ─> PreparedQueuePair ─ init ─> InitializedQueuePair ─ connect ─> QueuePair
//!                    (RESET)                     (INIT: post receives)            (RTS: send too)
//!                            <─────────────────────── reset ──────────────────────────
//! ```
//!
//! A datagram queue pair has the same steps, with `ready` instead of `connect`. Reliable and
//! unreliable connections differ in the attributes of RTR and RTS
//! ([`Connected`](transport::Connected)) and in their operations.
//!
//! # Files
//!
//! ```text
//!   mod.rs, control.rs, attr.rs  the queue pair; modify, query, destroy; attributes
//!   view.rs                      what can be done without a work queue
//!   transport.rs                 the transports
//!   builder.rs, bring_up.rs      creation; the steps to RTS (`Connected` shares them between `Rc`
//!                                and `Uc`)
//!   foreign.rs                   queue pairs that other code has made
//!   unreliable.rs, datagram.rs   bring-up of `Uc` and of `Ud`
//!   endpoint.rs, datagram_endpoint.rs, port.rs
//!                                addresses of queue pairs, and their wire formats
//!   op.rs, local.rs              operations; their local memory
//!   post.rs, batch.rs, scope.rs  the ways to post: one request, several, borrowed memory
//!   send.rs, recv.rs             the two halves, to which all of these post
//!   split.rs, divided.rs         owned halves; the queue pair that they share
//!   posting.rs, chain.rs         stage, park, submit; the C work requests
//!   srq/, multicast.rs           shared receive queues; multicast groups
//!   raw.rs                       posts and polls without bookkeeping
//!   shortcut.rs                  fills a receive queue
//!   stats.rs                     what the queues have done
//!   transition.rs, scatter.rs    explains refused changes of state; which providers copy by
//!                                processor
//!   ownership/                   tests of who owns memory in flight
//! ```
//!
//! # Safety
//!
//! 1. A [`QpInner`] owns a queue pair that its context's function table created, or has it from the
//!    caller of `from_raw`, who keeps it. The queue pair is destroyed once, by the owner or, if it
//!    is kept, by other code later. It keeps its domain and completion queues alive.
//! 2. Buffers and address handles in flight are released only by completions, or after the destroy
//!    or the reset succeeded. If a destroy fails, the rings, the parents and the latest address
//!    handle are leaked. A queue pair that other code destroys is let go of when nothing is in
//!    flight; otherwise that counts as a destroy that fails.
//! 3. No provider function is called in a forked child.
//! 4. A queue pair on iWARP is not reset while requests are in flight. iWARP has no reset state:
//!    drivers report success, but the receives stay posted and the next connection would fill them.

mod attr;
mod batch;
mod bring_up;
mod builder;
mod chain;
mod control;
mod datagram;
mod datagram_endpoint;
pub(crate) mod divided;
mod endpoint;
mod foreign;
mod local;
mod multicast;
pub mod op;
#[cfg(test)]
mod ownership;
mod port;
mod post;
pub(crate) mod posting;
pub(crate) mod raw;
pub(crate) mod recv;
mod scatter;
pub(crate) mod scope;
pub(crate) mod send;
mod shortcut;
pub(crate) mod split;
mod srq;
mod stats;
mod transition;
pub mod transport;
mod unreliable;
mod view;

use std::fmt;
use std::marker::PhantomData;

pub use attr::QpAttr;
pub use batch::{Batch, BatchError, RecvBatch};
pub use bring_up::{ConnectOptions, InitOptions, InitializedQueuePair, PreparedQueuePair};
pub use builder::QpBuilder;
pub use control::QpInfo;
pub(crate) use control::QpInner;
pub use datagram::{AddressCache, DatagramOptions};
pub use datagram_endpoint::DatagramEndpoint;
pub use endpoint::Endpoint;
pub use local::{HostBytes, Inline, Local, Owned, Part, Sendable, Writable};
pub use multicast::{MULTICAST_QPN, MulticastAttachment};
pub use post::{QueueHalf, RecvHalf, SendHalf};
pub use posting::PostError;
pub use raw::{RawCompletionQueue, RawPostError, RawQueuePair};
pub use recv::RecvQueue;
pub use scope::{Borrowed, Scope, ScopeError};
pub use send::SendQueue;
pub use split::{OwnedHalf, OwnedRecvHalf, OwnedSendHalf, ReuniteError};
pub use srq::{SharedReceiveQueue, SrqBatch, SrqBuilder, SrqPoster, SrqStats};
pub use stats::{QpStats, RecvStats, SendStats};
use transport::{Rc, Transport, Uc, Ud};
pub use view::QpControl;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Failed, Result, Verb};
use crate::panics::Panics;
use crate::pd::ProtectionDomain;
use crate::types::{Ece, QpState};

/// A queue pair that is ready to send and receive.
///
/// Posting takes `&mut self`; completions are polled from the completion queue. Dropping the queue
/// pair destroys it: requests in flight are abandoned, and their buffers are freed once the device
/// has no access to them.
///
/// # Examples
///
/// Two queue pairs of one process. Usually each process has one, and the endpoints are exchanged
/// over a socket.
///
/// ```
/// use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, op};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let opened = rdma::open(&DeviceSelector::Any)?;
/// let (pd, cq) = (opened.context.alloc_pd()?, opened.context.create_cq(64)?);
/// let options = InitOptions::new().port(opened.port);
/// let mut a = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
/// let b = QueuePair::builder(&pd).cq(&cq).build()?.init(&options)?;
/// a.post_recv(pd.allocate(4096)?, 1)?;
/// let (to_a, to_b) = (a.endpoint(), b.endpoint());
/// let _a = a.connect(&to_b, &ConnectOptions::new())?;
/// let mut b = b.connect(&to_a, &ConnectOptions::new())?;
///
/// let mut message = pd.allocate(5)?;
/// message.copy_from_slice(b"hello");
/// b.post_send(op::send(message).token(2))?;
/// let mut poller = cq.poller();
/// for _ in 0..2 {
///     let mut completion = poller.wait(None)?.expect("no time limit");
///     completion.status()?;
///     let buffer = completion.take_buffer().expect("the buffer that was posted");
///     assert_eq!(&buffer[..5], b"hello");
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_qp")]
pub struct QueuePair<T: Transport> {
    pub(crate) control: QpInner,
    pub(crate) send: SendQueue,
    pub(crate) recv: RecvQueue,
    pub(crate) transport: PhantomData<T>,
}

impl QueuePair<Rc> {
    /// Starts the configuration of a reliable connected queue pair in a domain.
    pub fn builder(pd: &ProtectionDomain) -> QpBuilder<Rc> {
        QpBuilder::new(pd)
    }
}

impl<T: Transport> QueuePair<T> {
    /// The queue pair number: 24 bits.
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.control.qpn
    }

    /// The open device that the queue pair belongs to.
    #[must_use]
    pub fn context(&self) -> Context {
        self.control.context()
    }

    /// The queue pair without its work queues, as each half of a split queue pair has it too.
    #[must_use]
    pub fn control(&self) -> QpControl<'_, T> {
        QpControl::new(&self.control)
    }

    /// The state that the device reports.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    pub fn state(&self) -> Result<QpState> {
        self.control.state()
    }

    /// All attributes that the device reports.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { mut a, .. } = pair()?;
    /// println!("{:?}", a.query()?);
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        self.control.query()
    }

    /// Whether the device places the peer's writes in order, byte by byte: a reader that sees the
    /// last byte of a message then sees all of it.
    ///
    /// The specification promises this order only at the completion. `false` if the device does not
    /// report it.
    ///
    /// # Errors
    ///
    /// `Forked` in a forked child.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma_testkit::{Pair, pair};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let Pair { a, .. } = pair()?;
    /// if a.writes_in_order()? {
    ///     println!("the receiver may watch the last byte of a message");
    /// } else {
    ///     println!("the receiver waits for a completion");
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn writes_in_order(&self) -> Result<bool> {
        self.control.check(Verb::QueryQp)?;
        let table = self.control.context.table;
        let write = rdma_sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        // SAFETY: ibv_query_qp_data_in_order requires a live queue pair (1) and a process that is
        // not a forked child (3, checked above).
        let answer = unsafe { (table.ibv_query_qp_data_in_order)(self.control.raw, write, 0) };
        // Without flags the answer is 0 or 1.
        Ok(answer == 1)
    }

    /// The provider's enhanced connection establishment (ECE) options, to be offered to the peer
    /// with [`Id::set_local_ece`](crate::cm::Id::set_local_ece).
    ///
    /// # Errors
    ///
    /// `NotSupported` if the provider has no ECE options.
    #[doc(alias = "ibv_query_ece")]
    pub fn ece(&self) -> Result<Ece> {
        self.control.ece()
    }

    /// Sets the ECE options that the peer accepted. Call this before the queue pair is ready to
    /// receive.
    ///
    /// # Errors
    ///
    /// `NotSupported` if the provider has no ECE options, `InvalidInput` if the options are not the
    /// provider's.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, ece: Ece) -> Result<()> {
        self.control.set_ece(ece)
    }

    /// Changes attributes, including the state, for changes that the typed steps do not offer.
    ///
    /// A change to RESET frees the buffers of all requests in flight.
    ///
    /// # Errors
    ///
    /// `InvalidTransition` names attributes that are missing or not allowed; `InvalidInput` means
    /// that the set of attributes is right but a value is wrong. `InUse` for a change to RESET on
    /// iWARP while requests are in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn f(qp: &mut rdma::QueuePair<rdma::transport::Rc>) -> Result<(), rdma::Error> {
    /// use rdma::{QpAttr, RemoteAccess};
    ///
    /// // From now on the peer may only read.
    /// qp.modify(&QpAttr::new().access(RemoteAccess::READ))?;
    /// # Ok(()) }
    /// ```
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        let resets = attr.target() == Some(QpState::RESET);
        let is_ended = || self.in_flight() == 0;
        if resets && !self.send.limits.capabilities.reset_ends_requests && !is_ended() {
            // On iWARP a reset would not end the requests in flight (4).
            return Err(Error::new(Verb::ModifyQp, ErrorKind::InUse));
        }
        if resets {
            self.control.rescue_receives();
        }
        self.control.modify(attr)?;
        if T::IS_DATAGRAM {
            datagram::follow(&mut self.control, &mut self.send, attr);
        }
        if resets {
            // The device no longer accesses any request's memory (2). An owner's drop may panic,
            // and the other queue must be free all the same.
            let mut panics = Panics::default();
            panics.catch(|| self.send.half.reclaim());
            panics.catch(|| self.recv.half.reclaim());
            panics.resume();
        }
        Ok(())
    }

    /// Moves the queue pair to the error state: all requests in flight complete as flushed.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{Error, Poller, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: &QueuePair<Rc>, poller: &mut Poller, posted: usize) -> Result<(), Error> {
    /// qp.set_error()?;
    /// // Every request in flight gives its memory back with status WR_FLUSH_ERR.
    /// for _ in 0..posted {
    ///     let mut completion = poller.wait(None)?.expect("no time limit");
    ///     drop(completion.take_buffer());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn set_error(&self) -> Result<()> {
        self.control.modify(&QpAttr::to(QpState::ERR))
    }

    /// Moves the queue pair back to RESET, the state in which [`QpBuilder::build`] left it. Buffers
    /// in flight are freed.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports, with the queue pair. `InUse` on iWARP while requests
    /// are in flight, receives included, because a reset does not end them there: call
    /// [`set_error`](Self::set_error) or drop the queue pair to end them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rdma::{ConnectOptions, Endpoint, InitOptions, QueuePair};
    /// # use rdma::transport::Rc;
    /// # fn f(qp: QueuePair<Rc>, peer: &Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// // To another peer.
    /// let qp = qp.reset()?.init(&InitOptions::new())?.connect(peer, &ConnectOptions::new())?;
    /// # Ok(()) }
    /// ```
    pub fn reset(mut self) -> Result<PreparedQueuePair<T>, Failed<Self>> {
        match self.modify(&QpAttr::to(QpState::RESET)) {
            Ok(()) => Ok(PreparedQueuePair::new(self)),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Destroys the queue pair and frees the memory of requests in flight.
    ///
    /// Dropping the queue pair does the same; this function also returns whether it succeeded.
    ///
    /// # Errors
    ///
    /// Any error that the provider reports, with the queue pair, which has left its multicast
    /// groups. On the software device it may be in the error state: `InUse` if a copy of GPU memory
    /// takes too long. `InUse` for a queue pair that other code destroys ([`Ownership::Keep`]),
    /// while requests are in flight: [`set_error`](Self::set_error) and polling end them.
    ///
    /// [`Ownership::Keep`]: crate::Ownership::Keep
    ///
    /// # Examples
    ///
    /// ```
    /// # fn f(qp: rdma::QueuePair<rdma::transport::Rc>) {
    /// if let Err(failed) = qp.close() {
    ///     eprintln!("{:?} is still there: {}", failed.object, failed.error);
    /// }
    /// # }
    /// ```
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(mut self) -> Result<(), Failed<Self>> {
        match self.destroy() {
            Ok(()) => Ok(()),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// The number of requests that the device may still have.
    fn in_flight(&self) -> usize {
        self.send.half.in_flight() + self.recv.half.in_flight()
    }

    /// Ends all requests in flight without their completions.
    fn end_requests(&mut self) -> Result<()> {
        if self.control.is_kept() { self.modify(&QpAttr::to(QpState::RESET)) } else { self.destroy() }
    }

    fn destroy(&mut self) -> Result<()> {
        if self.control.is_kept() && self.in_flight() > 0 {
            return Err(Error::new(Verb::DestroyQp, ErrorKind::InUse));
        }
        self.control.destroy()?;
        // The device no longer accesses any request's memory (2). An owner's drop may panic, and
        // the other queue must be free all the same.
        let mut panics = Panics::default();
        panics.catch(|| self.send.half.release_all());
        panics.catch(|| self.recv.half.release_all());
        panics.resume();
        Ok(())
    }

    /// The C object, valid while this handle lives.
    ///
    /// The handle does not track requests and changes that are made through the pointer.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_qp {
        self.control.raw
    }
}

impl<T: Transport> Drop for QueuePair<T> {
    fn drop(&mut self) {
        if self.control.is_destroyed() {
            return;
        }
        let forked = self.control.check(Verb::DestroyQp).is_err();
        let result: Result<(), Error> = if forked { Ok(()) } else { self.destroy() };
        // Leak before logging: a log subscriber may panic.
        if forked || result.is_err() {
            self.control.leak();
            self.send.half.leak();
        }
        if let Err(error) = &result {
            tracing::warn!(
                name: "queue_pair_not_destroyed", target: "rdma",
                %error, qpn = self.qpn(), "a queue pair could not be destroyed; it and its buffers are leaked"
            );
        }
    }
}

impl<T: Transport> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("qpn", &format_args!("{:#08x}", self.qpn())).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
