//! What a device's transport allows.

use super::{AtomicCapability, TransportType};

/// What a device's transport allows: answers to ask for, in place of the transport's name.
///
/// iWARP differs from InfiniBand and RoCE in all of them.
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
    /// With what the device's atomics are atomic.
    pub atomics: AtomicCapability,
    /// The program changes the states of its queue pairs. Otherwise they are connected by
    /// [`cm`](crate::cm) only, and the kernel changes their states.
    pub manual_connect: bool,
    /// There are datagrams: queue pairs of transport [`Ud`](crate::Ud), address handles, multicast
    /// groups.
    pub datagrams: bool,
    /// A write can carry immediate data.
    pub write_with_immediate: bool,
    /// A read needs remote write access at its local end, so it lands in an
    /// [`ExposedRegion`](crate::ExposedRegion) only.
    pub read_needs_exposed_sink: bool,
    /// A request completes once the peer has acknowledged it. Otherwise it may complete once it is
    /// sent.
    pub acknowledged: bool,
    /// A reset ends the requests in flight. Otherwise only destroying the queue pair does.
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
            write_with_immediate: infiniband,
            read_needs_exposed_sink: !infiniband,
            acknowledged: infiniband,
            reset_ends_requests: infiniband,
        }
    }
}
