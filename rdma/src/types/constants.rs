//! C enumerations and flags.

use rdma_sys::{self as sys, ibv_access_flags};

use super::c_enum::c_enum;

c_enum! {
    /// The largest payload of a packet on a path.
    #[doc(alias = "ibv_mtu")]
    Mtu(u32) {
        /// 256 bytes.
        MTU_256 = sys::ibv_mtu::IBV_MTU_256.0, "256";
        /// 512 bytes.
        MTU_512 = sys::ibv_mtu::IBV_MTU_512.0, "512";
        /// 1024 bytes.
        MTU_1024 = sys::ibv_mtu::IBV_MTU_1024.0, "1024";
        /// 2048 bytes.
        MTU_2048 = sys::ibv_mtu::IBV_MTU_2048.0, "2048";
        /// 4096 bytes.
        MTU_4096 = sys::ibv_mtu::IBV_MTU_4096.0, "4096";
    }
}

impl Mtu {
    /// The size in bytes, if the value is one of the five known.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }

    /// The MTU of exactly this many bytes, if there is one.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 | 512 | 1024 | 2048 | 4096 => Some(Self(bytes.trailing_zeros() - 7)),
            _ => None,
        }
    }
}

c_enum! {
    /// The logical state of a port.
    #[doc(alias = "ibv_port_state")]
    PortState(u32) {
        /// No state.
        NOP = sys::ibv_port_state::IBV_PORT_NOP.0, "PORT_NOP";
        /// No link.
        DOWN = sys::ibv_port_state::IBV_PORT_DOWN.0, "PORT_DOWN";
        /// Linked; the subnet manager has not configured it.
        INIT = sys::ibv_port_state::IBV_PORT_INIT.0, "PORT_INIT";
        /// Configured, about to become active.
        ARMED = sys::ibv_port_state::IBV_PORT_ARMED.0, "PORT_ARMED";
        /// In use.
        ACTIVE = sys::ibv_port_state::IBV_PORT_ACTIVE.0, "PORT_ACTIVE";
        /// In use, with a link that is being repaired.
        ACTIVE_DEFER = sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER.0, "PORT_ACTIVE_DEFER";
    }
}

c_enum! {
    /// The physical state of a port.
    PhysState(u8) {
        /// Not connecting.
        SLEEP = 1, "SLEEP";
        /// Looking for a partner.
        POLLING = 2, "POLLING";
        /// Switched off.
        DISABLED = 3, "DISABLED";
        /// Training.
        TRAINING = 4, "PORT_CONFIGURATION TRAINING";
        /// The link is up.
        LINK_UP = 5, "LINK_UP";
        /// Recovering from errors.
        RECOVERY = 6, "LINK_ERROR_RECOVERY";
        /// A test of the link.
        PHY_TEST = 7, "PHY TEST";
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

bitflags::bitflags! {
    /// The operations that peers may do.
    ///
    /// Rights are given twice: to a region, for its memory, and to a queue pair, as a limit for its
    /// peer. An operation needs both.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RemoteAccess: u32 {
        /// RDMA reads.
        const READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// RDMA writes.
        const WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// Compare-and-swap and fetch-and-add.
        const ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_convert_both_ways() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(Mtu::from_bytes(bytes).unwrap().bytes(), Some(bytes));
        }
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::from_raw(0).bytes(), None);
        assert_eq!(Mtu::from_raw(77).bytes(), None);
    }

    #[test]
    fn unknown_values_are_kept_and_shown() {
        let state = PortState::from_raw(99);
        assert_eq!(state.as_raw(), 99);
        assert_eq!(state.to_string(), "unknown (99)");
        assert_eq!(format!("{state:?}"), "PortState(99)");
        assert_eq!(format!("{:?}", PortState::ACTIVE), "ACTIVE");
        assert_eq!(RemoteAccess::from_bits_retain(1 << 30).bits(), 1 << 30);
    }
}
