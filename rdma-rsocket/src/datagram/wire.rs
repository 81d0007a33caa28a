//! The wire format of rsocket datagrams, as librdmacm speaks it: the header of a packet between the
//! UDP sockets, and the header of a datagram between queue pairs.
//!
//! Everything decoded here is from a peer and may hold any value.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The first word of a packet.
const TAG: [u8; 4] = [0x55; 4];
const DATA: u8 = 0;
const CONTROL: u8 = 7;
/// Bytes of a packet's header before the address.
const PACKET_FIXED: usize = 12;
/// Bytes of a datagram's header before an IPv4 address, and before the flow of IPv6.
const DATAGRAM_FIXED: usize = 4;
/// Bytes of the longest header of a datagram.
pub(super) const HEADER_MOST: usize = DATAGRAM_FIXED + 4 + 16;
/// Bytes of the longest header of a packet.
pub(super) const PACKET_HEADER_MOST: usize = PACKET_FIXED + 16;

/// The purpose of a packet between UDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Carries a datagram, and asks for the queue pair of the receiver.
    Data,
    /// Only names the queue pair of the sender.
    Control,
}

/// The header of a packet between UDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketHeader {
    pub(super) operation: Operation,
    /// The sender's queue pair.
    pub(super) pair: u32,
    /// The sender's address.
    pub(super) address: IpAddr,
}

impl PacketHeader {
    pub(super) fn encode(self) -> Vec<u8> {
        let (version, address) = match self.address {
            IpAddr::V4(v4) => (4, v4.octets().to_vec()),
            IpAddr::V6(v6) => (6, v6.octets().to_vec()),
        };
        let operation = if self.operation == Operation::Data { DATA } else { CONTROL };
        let len = if version == 4 { PACKET_FIXED + 4 } else { PACKET_HEADER_MOST };
        let len = u8::try_from(len).unwrap_or(u8::MAX);
        [&TAG[..], &[version, operation, len, 0], &(self.pair & 0xff_ffff).to_be_bytes(), &address].concat()
    }

    /// Decodes the header of a packet, and returns the data after it.
    pub(super) fn decode(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (&[t0, t1, t2, t3, version, operation, len, _, q0, q1, q2, q3], rest) = packet.split_first_chunk()?;
        let (address, data) = match version {
            4 => rest.split_first_chunk::<4>().map(|(v4, data)| (IpAddr::from(*v4), data))?,
            6 => rest.split_first_chunk::<16>().map(|(v6, data)| (IpAddr::from(*v6), data))?,
            _ => return None,
        };
        let operation = match operation {
            DATA => Operation::Data,
            CONTROL => Operation::Control,
            _ => return None,
        };
        let is_valid = [t0, t1, t2, t3] == TAG && usize::from(len) == packet.len() - data.len();
        let pair = u32::from_be_bytes([q0, q1, q2, q3]) & 0xff_ffff;
        is_valid.then_some((Self { operation, pair, address }, data))
    }
}

/// The header of a datagram between queue pairs: the sender's address.
pub(super) fn encode_source(source: SocketAddr) -> Vec<u8> {
    let port = source.port().to_be_bytes();
    match source {
        SocketAddr::V4(v4) => [&[4, 8][..], &port, &v4.ip().octets()].concat(),
        SocketAddr::V6(v6) => {
            // The header holds the flow as `sockaddr_in6` does.
            [&[6, 24][..], &port, &v6.flowinfo().to_ne_bytes(), &v6.ip().octets()].concat()
        }
    }
}

/// Decodes the header of a datagram: the sender's address and the length of the header.
pub(super) fn decode_source(datagram: &[u8]) -> Option<(SocketAddr, usize)> {
    let (&[version, len, p0, p1], rest) = datagram.split_first_chunk()?;
    let port = u16::from_be_bytes([p0, p1]);
    match (version, len) {
        (4, 8) => rest.first_chunk::<4>().map(|v4| (SocketAddr::from((*v4, port)), 8)),
        (6, 24) => {
            let (flow, rest) = rest.split_first_chunk()?;
            let ip = Ipv6Addr::from(*rest.first_chunk::<16>()?);
            Some((SocketAddrV6::new(ip, port, u32::from_ne_bytes(*flow), 0).into(), 24))
        }
        _ => None,
    }
}

/// A sender's address in the scope of the local address that the datagram has come to: a header
/// names no scope.
pub(super) fn in_scope_of(source: SocketAddr, local: SocketAddr) -> SocketAddr {
    match (source, local) {
        (SocketAddr::V6(mut source), SocketAddr::V6(local)) if source.ip().is_unicast_link_local() => {
            source.set_scope_id(local.scope_id());
            source.into()
        }
        _ => source,
    }
}

/// An address without what may differ between packets of one peer: the flow of IPv6, and the scope
/// of an address that has none.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => {
            let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_address() -> impl Strategy<Value = SocketAddr> {
        (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from)
    }

    proptest! {
        #[test]
        fn headers_survive_the_wire(source in any_address(), pair in 0..1_u32 << 24, is_data: bool, data: Vec<u8>) {
            let operation = if is_data { Operation::Data } else { Operation::Control };
            let header = PacketHeader { operation, pair, address: source.ip() };
            let packet = [header.encode(), data.clone()].concat();
            prop_assert_eq!(PacketHeader::decode(&packet), Some((header, data.as_slice())));
            let datagram = [encode_source(source), data].concat();
            let len = if source.is_ipv4() { 8 } else { HEADER_MOST };
            prop_assert_eq!(decode_source(&datagram), Some((source, len)));
        }

        #[test]
        fn any_bytes_are_headers_or_nothing(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..64), version in 3..8_u8, len in 7..30_u8,
        ) {
            // Makes the first checks pass.
            if let Some(start) = bytes.first_chunk_mut::<7>() {
                *start = [0x55, 0x55, 0x55, 0x55, version, start[5] & 7, len];
            }
            if let Some((header, data)) = PacketHeader::decode(&bytes) {
                prop_assert_eq!(header.encode().len() + data.len(), bytes.len());
            }
            if let Some(start) = bytes.first_chunk_mut::<2>() {
                *start = [version, len];
            }
            if let Some((source, len)) = decode_source(&bytes) {
                prop_assert_eq!(&encode_source(source), &bytes[..len]);
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_librdmacm() {
        let header = PacketHeader { operation: Operation::Control, pair: 0x0001_0203, address: [10, 0, 0, 1].into() };
        assert_eq!(header.encode(), [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 1, 2, 3, 10, 0, 0, 1]);
        assert_eq!(encode_source(([10, 0, 0, 1], 0x1234).into()), [4, 8, 0x12, 0x34, 10, 0, 0, 1]);
    }

    #[test]
    fn only_addresses_of_a_link_have_a_scope() {
        let v6 = |ip: &str, flow, scope| SocketAddrV6::new(ip.parse().unwrap(), 1, flow, scope).into();
        let local = v6("fe80::2", 0, 7);
        assert_eq!(in_scope_of(v6("fe80::1", 0, 0), local), v6("fe80::1", 0, 7));
        assert_eq!(in_scope_of(v6("2001:db8::1", 0, 0), local), v6("2001:db8::1", 0, 0));
        assert_eq!(plain(v6("fe80::1", 9, 7)), v6("fe80::1", 0, 7));
        assert_eq!(plain(v6("2001:db8::1", 9, 7)), v6("2001:db8::1", 0, 0));
    }
}
