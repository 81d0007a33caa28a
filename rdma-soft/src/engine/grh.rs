//! The 40 bytes in front of a datagram in its receive buffer: the header by which a network would
//! have routed the datagram.
//!
//! The header is a global route header (GRH) or, between IPv4 addresses (RoCE v2), 20 zero bytes
//! and the IPv4 header, as the kernel's rxe and hardware leave it there. Sender and receiver are on
//! one host, so the header routes nothing; but a receiver takes the address of its reply from it.

/// The length of a header in bytes.
pub(crate) const GRH_LEN: usize = 40;

/// UDP, in the protocol field of IPv4 and the next header field of IPv6.
const UDP: u8 = 17;
/// Bytes of the base transport header and the datagram header, which follow the network headers.
const TRANSPORT: usize = 12 + 8;
const UDP_HEADER: usize = 8;
const IPV4_HEADER: usize = 20;
const IMMEDIATE: usize = 4;
const CHECKSUM: usize = 4;

/// The address of a port or of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl Gid {
    /// Creates the IPv4-mapped GID, `::ffff:a.b.c.d`.
    pub(crate) fn from_ipv4(address: [u8; 4]) -> Self {
        Self(std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets())
    }

    /// Creates the GID of an address.
    pub(crate) fn from_address(address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(v4) => Self::from_ipv4(v4.octets()),
            std::net::IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// Returns the IPv4 address of an IPv4-mapped GID.
    pub(crate) fn to_ipv4(self) -> Option<[u8; 4]> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped().map(|address| address.octets())
    }

    /// Whether the GID names a group: `ff..`, or an IPv4 group in the form of RoCE v2
    /// (`::ffff:224.0.0.0` to `::ffff:239.255.255.255`).
    pub(crate) fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.to_ipv4().is_some_and(|address| address[0] & 0xf0 == 0xe0)
    }
}

/// The kind of network that a header belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// RoCE v2: IPv4 between IPv4 addresses, IPv6 otherwise.
    Ip,
    /// InfiniBand.
    InfiniBand,
}

/// The route of packets: the part of an address handle that enters the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// The kind of network.
    pub(crate) network: Network,
    /// The GID of the sender.
    pub(crate) source: Gid,
    /// The GID of the receiver.
    pub(crate) destination: Gid,
    /// The traffic class (type of service in IPv4).
    pub(crate) traffic_class: u8,
    /// The flow label, 20 bits; IPv4 has none.
    pub(crate) flow_label: u32,
    /// The hop limit (time to live in IPv4).
    pub(crate) hop_limit: u8,
}

/// A header in its memory format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grh(pub(crate) [u8; GRH_LEN]);

impl Grh {
    /// The header of a datagram that has none: zeros.
    pub(crate) const NONE: Self = Self([0; GRH_LEN]);

    /// Creates the header of packets on `route`, without the fields that depend on the packet's
    /// length.
    pub(crate) fn new(route: &Route) -> Self {
        let mut bytes = [0; GRH_LEN];
        let addresses = (route.source.to_ipv4(), route.destination.to_ipv4());
        if let (Network::Ip, (Some(source), Some(destination))) = (route.network, addresses) {
            bytes[20] = 0x45;
            bytes[21] = route.traffic_class;
            // "Do not fragment", which makes an identification unnecessary.
            bytes[26] = 0x40;
            (bytes[28], bytes[29]) = (route.hop_limit, UDP);
            bytes[32..36].copy_from_slice(&source);
            bytes[36..].copy_from_slice(&destination);
        } else {
            const IBA: u8 = 0x1b;
            let word = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0x000f_ffff;
            bytes[..4].copy_from_slice(&word.to_be_bytes());
            bytes[6] = if route.network == Network::Ip { UDP } else { IBA };
            bytes[7] = route.hop_limit;
            bytes[8..24].copy_from_slice(&route.source.0);
            bytes[24..].copy_from_slice(&route.destination.0);
        }
        Self(bytes)
    }

    /// Whether this is an IPv4 header behind 20 zero bytes.
    pub(crate) const fn is_ipv4(&self) -> bool {
        self.0[0] >> 4 != 6 && self.0[20] >> 4 == 4
    }

    /// Fills in the length and the checksum for a datagram with `len` bytes (at most 4096).
    pub(crate) fn sealed(mut self, len: usize, with_imm: bool) -> Self {
        let transport = TRANSPORT + if with_imm { IMMEDIATE } else { 0 } + len.next_multiple_of(4) + CHECKSUM;
        let of = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        if self.is_ipv4() {
            self.0[22..24].copy_from_slice(&of(IPV4_HEADER + UDP_HEADER + transport));
            let sum = self.0[20..].chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum: u32 = sum.sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            #[allow(clippy::cast_possible_truncation, reason = "a sum of ten words is folded in two steps")]
            let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
            self.0[30..32].copy_from_slice(&checksum.to_be_bytes());
        } else if self.0[0] >> 4 == 6 {
            let udp = if self.0[6] == UDP { UDP_HEADER } else { 0 };
            self.0[4..6].copy_from_slice(&of(udp + transport));
        }
        self
    }

    /// Returns the source address in the header.
    pub(crate) fn source(&self) -> Gid {
        self.address(32, 8)
    }

    /// Returns the destination address in the header.
    pub(crate) fn destination(&self) -> Gid {
        self.address(36, 24)
    }

    /// The address at one offset of an IPv4 header, and at another of a global route header.
    fn address(&self, of_ipv4: usize, of_global: usize) -> Gid {
        if self.is_ipv4() {
            let mut address = [0; 4];
            address.copy_from_slice(&self.0[of_ipv4..][..4]);
            Gid::from_ipv4(address)
        } else {
            let mut gid = [0; 16];
            gid.copy_from_slice(&self.0[of_global..][..16]);
            Gid(gid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Gid = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

    fn route(network: Network, destination: Gid) -> Route {
        let source = Gid::from_ipv4([10, 9, 0, 1]);
        Route { network, source, destination, traffic_class: 0x28, flow_label: 0x1_2345, hop_limit: 64 }
    }

    /// The bytes that rxe on Linux 6.1 wrote for 15 bytes with immediate, except for two fields:
    /// the identification, which is unnecessary, and the checksum, which rxe does not calculate for
    /// packets that stay on the host.
    #[test]
    fn an_ipv4_header_is_what_rxe_leaves_there() {
        let grh = Grh::new(&route(Network::Ip, Gid::from_ipv4([10, 9, 0, 1]))).sealed(15, true);
        assert_eq!(grh.0[..20], [0; 20]);
        let expected = [0x45, 0x28, 0, 0x48, 0, 0, 0x40, 0, 0x40, 0x11];
        assert_eq!(grh.0[20..30], expected);
        assert_eq!(grh.0[32..], [10, 9, 0, 1, 10, 9, 0, 1]);
        let sum: u32 = grh.0[20..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum is right");
        assert_eq!([grh.source(), grh.destination()], [Gid::from_ipv4([10, 9, 0, 1]); 2]);
    }

    #[test]
    fn a_global_route_header_has_the_addresses_whole() {
        for (network, next, len) in [(Network::Ip, 17, 48), (Network::InfiniBand, 0x1b, 40)] {
            let grh = Grh::new(&route(network, GROUP)).sealed(15, false);
            assert_eq!(grh.0[..8], [0x62, 0x81, 0x23, 0x45, 0, len, next, 64]);
            assert_eq!(grh.0[8..24], Gid::from_ipv4([10, 9, 0, 1]).0);
            assert_eq!((grh.source(), grh.destination()), (Gid::from_ipv4([10, 9, 0, 1]), GROUP));
        }
        assert_eq!(Grh::NONE.sealed(100, true), Grh::NONE);
    }

    #[test]
    fn groups() {
        assert!(GROUP.is_multicast());
        assert!(Gid::from_ipv4([224, 0, 0, 1]).is_multicast() && Gid::from_ipv4([239, 255, 0, 1]).is_multicast());
        assert!(!Gid::from_ipv4([10, 9, 0, 1]).is_multicast() && !Gid::from_ipv4([240, 0, 0, 1]).is_multicast());
        assert!(!Gid([0xfe; 16]).is_multicast());
    }
}
