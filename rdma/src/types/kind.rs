//! What kind of thing a device, a port or a GID is.

use rdma_sys as sys;

use super::c_enum::c_enum;

c_enum! {
    /// The kind of node that a device is.
    #[doc(alias = "ibv_node_type")]
    NodeType(i32) {
        /// Not known.
        UNKNOWN = sys::ibv_node_type::IBV_NODE_UNKNOWN.0, "unknown";
        /// A channel adapter.
        CA = sys::ibv_node_type::IBV_NODE_CA.0, "InfiniBand channel adapter";
        /// A switch.
        SWITCH = sys::ibv_node_type::IBV_NODE_SWITCH.0, "InfiniBand switch";
        /// A router.
        ROUTER = sys::ibv_node_type::IBV_NODE_ROUTER.0, "InfiniBand router";
        /// An iWARP NIC.
        RNIC = sys::ibv_node_type::IBV_NODE_RNIC.0, "iWARP NIC";
        /// A usNIC.
        USNIC = sys::ibv_node_type::IBV_NODE_USNIC.0, "usNIC";
        /// A usNIC over UDP.
        USNIC_UDP = sys::ibv_node_type::IBV_NODE_USNIC_UDP.0, "usNIC UDP";
        /// A kind that the vendor does not name.
        UNSPECIFIED = sys::ibv_node_type::IBV_NODE_UNSPECIFIED.0, "unspecified";
    }
}

c_enum! {
    /// The transport protocol of a device.
    #[doc(alias = "ibv_transport_type")]
    TransportType(i32) {
        /// Not known.
        UNKNOWN = sys::ibv_transport_type::IBV_TRANSPORT_UNKNOWN.0, "unknown";
        /// InfiniBand, on its own network or on Ethernet (RoCE).
        INFINIBAND = sys::ibv_transport_type::IBV_TRANSPORT_IB.0, "InfiniBand";
        /// iWARP: RDMA over TCP.
        IWARP = sys::ibv_transport_type::IBV_TRANSPORT_IWARP.0, "iWARP";
        /// usNIC.
        USNIC = sys::ibv_transport_type::IBV_TRANSPORT_USNIC.0, "usNIC";
        /// usNIC over UDP.
        USNIC_UDP = sys::ibv_transport_type::IBV_TRANSPORT_USNIC_UDP.0, "usNIC UDP";
        /// A protocol that the vendor does not name.
        UNSPECIFIED = sys::ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED.0, "unspecified";
    }
}

c_enum! {
    /// The kind of network that a port is on.
    LinkLayer(u8) {
        /// Not specified: InfiniBand, by convention.
        UNSPECIFIED = 0, "Unspecified";
        /// InfiniBand: addresses are LIDs, with GIDs between subnets.
        INFINIBAND = 1, "InfiniBand";
        /// Ethernet (RoCE, iWARP): addresses are GIDs.
        ETHERNET = 2, "Ethernet";
    }
}

c_enum! {
    /// The protocol that a GID selects.
    #[doc(alias = "ibv_gid_type")]
    GidKind(u32) {
        /// InfiniBand; old kernels report it for RoCE v1 too.
        INFINIBAND = sys::ibv_gid_type::IBV_GID_TYPE_IB.0, "IB";
        /// RoCE v1: its own Ethernet type, not routable.
        ROCE_V1 = sys::ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0, "RoCE v1";
        /// RoCE v2: over UDP, routable.
        ROCE_V2 = sys::ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0, "RoCE v2";
    }
}

c_enum! {
    /// The operations with which a device's atomic operations are atomic.
    #[doc(alias = "ibv_atomic_cap")]
    AtomicCapability(u32) {
        /// The device has no atomic operations.
        NONE = sys::ibv_atomic_cap::IBV_ATOMIC_NONE.0, "ATOMIC_NONE";
        /// Other atomics of the same device.
        DEVICE = sys::ibv_atomic_cap::IBV_ATOMIC_HCA.0, "ATOMIC_HCA";
        /// Also the processor's atomics and other devices'.
        GLOBAL = sys::ibv_atomic_cap::IBV_ATOMIC_GLOB.0, "ATOMIC_GLOB";
    }
}
