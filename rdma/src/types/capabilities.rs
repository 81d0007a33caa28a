//! The capabilities of a device's transport.

use super::{AtomicCapability, TransportType};

/// The capabilities of a device's transport: programs test these instead of the transport's name.
///
/// iWARP differs from InfiniBand and RoCE in each of them except `atomics`.
///
/// # Examples
///
/// ```
/// let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// let can = context.capabilities();
/// if !can.manual_connect {
///     println!("{} connects by rdma::cm only", can.transport);
/// }
/// # Ok::<(), rdma::OpenError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_excessive_bools, reason = "independent answers")]
pub struct Capabilities {
    /// The transport protocol.
    pub transport: TransportType,
    /// The operations with which the device's atomics are atomic.
    pub atomics: AtomicCapability,
    /// Whether the program changes the states of its queue pairs. If not, only [`cm`](crate::cm)
    /// connects queue pairs, and the kernel changes their states.
    pub manual_connect: bool,
    /// Whether the device has datagrams: queue pairs of transport
    /// [`Ud`](crate::transport::Ud), address handles and multicast groups.
    pub datagrams: bool,
    /// Whether the device has unreliable connections: queue pairs of transport
    /// [`Uc`](crate::transport::Uc).
    pub unreliable_connections: bool,
    /// Whether a write can carry immediate data.
    pub write_with_immediate: bool,
    /// Whether a read needs remote write access to its local memory. The sink must then be an
    /// [`ExposedRegion`](crate::ExposedRegion).
    pub read_needs_exposed_sink: bool,
    /// Whether a request on a reliable connection completes only once the peer has acknowledged it.
    /// If not, it may complete once it is sent.
    pub acknowledged: bool,
    /// Whether a sender waits until the peer has posted a receive. If not, a message without a
    /// receive breaks the connection.
    pub waits_for_receives: bool,
    /// Whether the side that connected must send the first message.
    pub active_side_sends_first: bool,
    /// Whether a reset ends the requests in flight. If not, only destroying the queue pair ends
    /// them.
    pub reset_ends_requests: bool,
}

impl Capabilities {
    pub(crate) fn new(transport: TransportType, atomics: AtomicCapability) -> Self {
        let infiniband = transport != TransportType::IWARP;
        Self {
            transport,
            atomics,
            manual_connect: infiniband,
            datagrams: infiniband,
            unreliable_connections: infiniband,
            write_with_immediate: infiniband,
            read_needs_exposed_sink: !infiniband,
            acknowledged: infiniband,
            waits_for_receives: infiniband,
            active_side_sends_first: !infiniband,
            reset_ends_requests: infiniband,
        }
    }
}
