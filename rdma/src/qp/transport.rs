//! The transports of queue pairs.
//!
//! | Transport | Peers | Delivery | Operations |
//! | --- | --- | --- | --- |
//! | [`Rc`] | one | acknowledged, in order | messages, reads, writes, atomics |
//! | [`Uc`] | one | in order, or lost | messages, writes |
//! | [`Ud`] | any number | one packet, or lost | messages |

use std::fmt;

use super::QueuePair;
use super::attr::QpAttr;
pub use super::bring_up::Connected;
use crate::error::Result;
use crate::types::Capabilities;

mod sealed {
    pub trait Sealed {}
}

/// A transport, which determines the operations that a queue pair's type offers.
pub trait Transport: sealed::Sealed + Send + Sync + 'static {
    /// The transport's number in the C interface.
    const TYPE: rdma_sys::ibv_qp_type;
    /// Whether messages are datagrams: they name their destination, fit one packet, and arrive
    /// after a GRH.
    #[doc(hidden)]
    const IS_DATAGRAM: bool;
    /// Whether a device with these capabilities has the transport.
    #[doc(hidden)]
    fn is_supported(capabilities: &Capabilities) -> bool;
    /// Options of [`PreparedQueuePair::init`](crate::PreparedQueuePair::init).
    type InitOptions;
    /// The state kept between INIT and RTS.
    #[doc(hidden)]
    type Start: fmt::Debug + Copy + Send + Sync;

    /// Moves a queue pair to INIT.
    #[doc(hidden)]
    fn init(qp: &mut QueuePair<Self>, options: &Self::InitOptions) -> Result<Self::Start>
    where
        Self: Sized;

    /// Moves a queue pair to INIT with the connection manager's attributes.
    #[doc(hidden)]
    fn init_with(qp: &mut QueuePair<Self>, attr: &QpAttr) -> Result<Self::Start>
    where
        Self: Sized;
}

/// Reliable connected transport: messages, RDMA and atomics, in order, to one peer.
#[doc(alias = "IBV_QPT_RC")]
#[derive(Debug, Clone, Copy)]
pub enum Rc {}

impl sealed::Sealed for Rc {}

/// Unreliable connected transport: messages and RDMA writes, in order, to one peer, without
/// acknowledgements.
///
/// A message arrives whole or is lost, and its completion reports success in either case: it says
/// that the memory of the request is free. A message is lost with any packet of it, and if the
/// receiver has no receive posted, has one that is too short, or does not allow the write. A peer
/// that is gone is not noticed. Reads and atomic operations do not exist: requesting one does not
/// compile. iWARP has no unreliable connections.
///
/// # Examples
///
/// ```
/// use rdma::{ConnectOptions, DeviceSelector, InitOptions, QueuePair, op};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let opened = rdma::open(&DeviceSelector::Any)?;
/// let (pd, cq) = (opened.context.alloc_pd()?, opened.context.create_cq(64)?);
/// let options = InitOptions::new().port(opened.port);
/// let a = QueuePair::unreliable(&pd).cq(&cq).build()?.init(&options)?;
/// let b = QueuePair::unreliable(&pd).cq(&cq).build()?.init(&options)?;
/// let (to_a, to_b) = (a.endpoint(), b.endpoint());
/// let mut a = a.connect(&to_b, &ConnectOptions::new())?;
/// let mut b = b.connect(&to_a, &ConnectOptions::new())?;
///
/// // Without this receive the message would be lost.
/// b.post_recv(pd.allocate(16)?, 1)?;
/// let mut message = pd.allocate(5)?;
/// message.copy_from_slice(b"hello");
/// a.post_send(op::send(message))?;
/// let mut poller = cq.poller();
/// for _ in 0..2 {
///     poller.wait(None)?.expect("no time limit").status()?;
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "IBV_QPT_UC")]
#[derive(Debug, Clone, Copy)]
pub enum Uc {}

impl sealed::Sealed for Uc {}

/// Unreliable datagram transport: messages of one packet, to and from any number of peers. Lost
/// messages are not retransmitted.
///
/// A message arrives after a GRH of 40 bytes. It is dropped silently if the receiver has no receive
/// posted, or has another Q_Key than the message. iWARP has no datagrams.
#[doc(alias = "IBV_QPT_UD")]
#[derive(Debug, Clone, Copy)]
pub enum Ud {}

impl sealed::Sealed for Ud {}
