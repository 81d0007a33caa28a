//! A port's network, as far as the port tells it, to find out which ports reach each other.
//!
//! InfiniBand ports reach each other on one subnet, which the prefix of a GID names, and in one
//! partition. RoCE ports need GIDs of one version of RoCE and one version of IP. What lies between
//! two ports is not seen: two InfiniBand fabrics with the usual prefix, or two IP networks without
//! a route, look like one, and a router between two InfiniBand subnets is not expected.

use std::fmt;
use std::net::Ipv6Addr;

use rdma::{GidEntry, GidKind, LinkLayer, TransportType};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::adapter::Adapter;

/// The port of a hardware device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    /// The device's transport: InfiniBand's or iWARP.
    transport: i32,
    link_layer: u8,
    /// The P_Key of the queue pairs, of which bit 15 is set in a full member; `None` if the port
    /// has none.
    partition: Option<u16>,
    /// The GID of the queue pairs, and the protocol that it selects.
    gid: Option<([u8; 16], u32)>,
}

/// The networks whose ports differ in more than an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    InfiniBand,
    Roce,
    Iwarp,
    Other,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Other => "another network",
        })
    }
}

/// How RoCE packets are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Addressing {
    is_routable: bool,
    is_ipv4: bool,
}

impl fmt::Display for Addressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, family) = (if self.is_routable { 2 } else { 1 }, if self.is_ipv4 { 4 } else { 6 });
        write!(f, "RoCE v{version} with IPv{family}")
    }
}

impl Port {
    /// The port of an adapter, with the queue pairs that [`Adapter`] makes.
    pub(crate) fn of(adapter: &Adapter) -> Result<Self, Error> {
        let Adapter { context, port, gid, .. } = adapter;
        Ok(Self {
            transport: context.device().transport().as_raw(),
            link_layer: context.port_attr(*port)?.link_layer().as_raw(),
            // iWARP ports need none.
            partition: context.pkey(*port, 0).ok(),
            gid: gid.map(|GidEntry { gid, kind, .. }| (gid.to_bytes(), kind.as_raw())),
        })
    }

    fn network(&self) -> Network {
        let is_ethernet = self.link_layer == LinkLayer::ETHERNET.as_raw();
        match self.transport {
            transport if transport == TransportType::IWARP.as_raw() => Network::Iwarp,
            transport if transport != TransportType::INFINIBAND.as_raw() => Network::Other,
            _ if is_ethernet => Network::Roce,
            _ => Network::InfiniBand,
        }
    }

    /// The subnet of an InfiniBand port, the first half of its GID.
    fn subnet(&self) -> Option<Ipv6Addr> {
        self.gid.map(|(gid, _)| (u128::from_be_bytes(gid) >> 64 << 64).into())
    }

    fn addressing(&self) -> Option<Addressing> {
        let (gid, kind) = self.gid?;
        let is_routable = kind == GidKind::ROCE_V2.as_raw();
        Some(Addressing { is_routable, is_ipv4: Ipv6Addr::from(gid).to_ipv4_mapped().is_some() })
    }

    /// Checks that two ports may reach each other. What one of them does not tell counts as equal.
    ///
    /// # Errors
    /// The reason why they do not, as a sentence about both.
    pub(crate) fn reaches(&self, other: &Self) -> Result<(), String> {
        let (network, theirs) = (self.network(), other.network());
        if network != theirs || self.transport != other.transport {
            return Err(format!("they are {network} and {theirs}"));
        }
        match network {
            Network::InfiniBand => {
                if let Some((own, theirs)) = self.subnet().zip(other.subnet()).filter(|(own, theirs)| own != theirs) {
                    return Err(format!("they are on two InfiniBand subnets, {own}/64 and {theirs}/64"));
                }
                match self.partition.zip(other.partition) {
                    Some((own, theirs)) if !shares_partition(own, theirs) => {
                        Err(format!("they are in two partitions, with P_Keys {own:#06x} and {theirs:#06x}"))
                    }
                    _ => Ok(()),
                }
            }
            Network::Roce => match self.addressing().zip(other.addressing()) {
                Some((own, theirs)) if own != theirs => {
                    Err(format!("their GIDs are of {own} and of {theirs}: choose others by their index"))
                }
                _ => Ok(()),
            },
            Network::Iwarp | Network::Other => Ok(()),
        }
    }
}

/// Whether members of partitions talk: they are of one, and not both limited members.
fn shares_partition(a: u16, b: u16) -> bool {
    (a ^ b) & 0x7fff == 0 && (a | b) & 0x8000 != 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const PREFIX: u64 = 0xfe80 << 48;
    const V1: u32 = 1;
    const V2: u32 = 2;

    /// A port with the usual prefix and a node number.
    pub(crate) const INFINIBAND: Port =
        Port { transport: 0, link_layer: 1, partition: Some(0xffff), gid: Some((gid(PREFIX, 5), 0)) };
    pub(crate) const ROCE: Port = Port { link_layer: 2, gid: Some((ipv4(1), V2)), ..INFINIBAND };
    pub(crate) const IWARP: Port = Port { transport: 1, link_layer: 2, partition: None, gid: None };

    const fn gid(prefix: u64, last: u64) -> [u8; 16] {
        ((prefix as u128) << 64 | last as u128).to_be_bytes()
    }

    const fn ipv4(last: u64) -> [u8; 16] {
        gid(0, 0xffff_0a00_0000 | last)
    }

    impl Port {
        /// The port of a link layer that tells nothing else.
        pub(crate) fn pretended(link_layer: u8) -> Self {
            Self { transport: 0, link_layer, partition: None, gid: None }
        }

        /// The port on another InfiniBand subnet.
        pub(crate) const fn on(self, prefix: u64) -> Self {
            Self { gid: Some((gid(prefix, 9), 0)), ..self }
        }
    }

    #[test]
    fn ports_of_one_network_reach_each_other() {
        let roce = |gid, kind| Port { gid: Some((gid, kind)), ..ROCE };
        let member = |partition| Port { partition: Some(partition), ..INFINIBAND };
        let bare = |port: Port| Port { gid: None, partition: None, ..port };
        for (a, b, why) in [
            (INFINIBAND, INFINIBAND.on(PREFIX), None),
            (INFINIBAND, INFINIBAND.on(7), Some("they are on two InfiniBand subnets, fe80::/64 and 0:0:0:7::/64")),
            (INFINIBAND, bare(INFINIBAND), None),
            (member(0xffff), member(0x7fff), None),
            (member(0x8001), member(0x8001), None),
            (member(0x7fff), member(0x7fff), Some("in two partitions, with P_Keys 0x7fff and 0x7fff")),
            (member(0xffff), member(0x8001), Some("in two partitions, with P_Keys 0xffff and 0x8001")),
            (ROCE, roce(ipv4(2), V2), None),
            (ROCE, bare(ROCE), None),
            (ROCE, roce(gid(PREFIX, 1), V2), Some("of RoCE v2 with IPv4 and of RoCE v2 with IPv6")),
            (ROCE, roce(ipv4(2), V1), Some("of RoCE v2 with IPv4 and of RoCE v1 with IPv4")),
            // Old kernels call RoCE v1 InfiniBand.
            (roce(ipv4(1), V1), roce(ipv4(2), 0), None),
            // Networks of Ethernet have prefixes of many kinds.
            (roce(gid(1, 1), V2), roce(gid(2, 1), V2), None),
            (IWARP, IWARP.on(7), None),
            (ROCE, INFINIBAND, Some("they are RoCE and InfiniBand")),
            (ROCE, IWARP, Some("they are RoCE and iWARP")),
            (Port { transport: 7, ..ROCE }, Port { transport: 8, ..ROCE }, Some("another network and another network")),
        ] {
            let said = [a.reaches(&b).err(), b.reaches(&a).err()];
            assert_eq!(said.clone().map(|said| said.is_some()), [why.is_some(); 2], "{a:?} {b:?}: {said:?}");
            assert!(why.is_none_or(|why| said[0].as_deref().unwrap().contains(why)), "{said:?}");
        }
    }
}
