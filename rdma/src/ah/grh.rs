//! The global routing header (GRH): the first 40 bytes of a received datagram.

use rdma_sys::ibv_grh;

use crate::types::Gid;

/// The global routing header (GRH) of a datagram. On InfiniBand and RoCE v1 it is a header of its
/// own; on RoCE v2 it is the IPv6 header, or 20 undefined bytes and the IPv4 header.
///
/// The sender and the network wrote the header: do not trust it.
///
/// # Examples
///
/// ```
/// use rdma::Grh;
/// let mut bytes = [0; Grh::LEN];
/// bytes[0] = 0x60;
/// bytes[8..24].copy_from_slice(&"fe80::1".parse::<rdma::Gid>()?.to_bytes());
/// let grh = Grh::from_bytes(bytes);
/// assert_eq!(grh.source_gid().to_string(), "fe80::1");
/// # Ok::<(), rdma::ParseGidError>(())
/// ```
#[doc(alias = "ibv_grh")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grh([u8; GRH]);

const GRH: usize = 40;
/// Offset of an IPv4 header.
const IPV4: usize = 20;

impl Grh {
    /// Length of the header in a receive's memory, before the payload.
    pub const LEN: usize = GRH;

    /// Wraps the first 40 bytes of a receive's memory.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes as received.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    /// Whether the header is an IPv4 header.
    ///
    /// An IPv6 header has the end of its source address in place of the IPv4 header. If the bytes
    /// could be either, the IPv4 checksum decides.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        let header = &self.0[IPV4..];
        if self.0[0] >> 4 != 6 {
            return header[0] >> 4 == 4;
        }
        let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        header[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    fn gid_at(&self, at: usize) -> Gid {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.0[at..at + 16]);
        Gid::from_bytes(bytes)
    }

    fn ipv4_at(&self, at: usize) -> Gid {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        std::net::Ipv4Addr::from(bytes).into()
    }

    getters! { |this|
        /// The sender's GID.
        source_gid: Gid = if this.is_ipv4() { this.ipv4_at(32) } else { this.gid_at(8) };
        /// The GID that the datagram was sent to: one of ours, or a multicast group's.
        destination_gid: Gid = if this.is_ipv4() { this.ipv4_at(36) } else { this.gid_at(24) };
        /// The traffic class.
        traffic_class: u8 = if this.is_ipv4() { this.0[IPV4 + 1] } else { this.0[0] << 4 | this.0[1] >> 4 };
    }

    /// The flow label: 20 bits, 0 with IPv4.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        let word = u32::from_be_bytes([0, self.0[1] & 0xf, self.0[2], self.0[3]]);
        if self.is_ipv4() { 0 } else { word }
    }

    /// How many more routers the datagram could have crossed.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        if self.is_ipv4() { self.0[IPV4 + 8] } else { self.0[7] }
    }

    /// The C structure.
    pub(super) fn to_raw(self) -> ibv_grh {
        let [b0, b1, b2, b3, b4, b5, next_hdr, hop_limit, ..] = self.0;
        ibv_grh {
            version_tclass_flow: u32::from_ne_bytes([b0, b1, b2, b3]),
            paylen: u16::from_ne_bytes([b4, b5]),
            next_hdr,
            hop_limit,
            sgid: self.gid_at(8).to_raw(),
            dgid: self.gid_at(24).to_raw(),
        }
    }
}

debug_by_methods!(Grh: source_gid, destination_gid);

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(first: [u8; IPV4]) -> [u8; Grh::LEN] {
        let mut bytes = [0; Grh::LEN];
        bytes[..IPV4].copy_from_slice(&first);
        // An IPv4 header as sent on the network, with its checksum.
        bytes[IPV4..].copy_from_slice(&[
            0x45, 0x28, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x11, 0x00, 0x00, 10, 9, 0, 1, 10, 9, 0, 2,
        ]);
        let sum: u32 = bytes[IPV4..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[IPV4 + 10..IPV4 + 12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn ipv4_headers_are_recognised_whatever_lies_before_them() {
        let mut noise = [0xa5; IPV4];
        for first in [0, 0x60, 0x65, 0xff] {
            noise[0] = first;
            let grh = Grh::from_bytes(ipv4(noise));
            assert!(grh.is_ipv4());
            assert_eq!(grh.source_gid().to_string(), "::ffff:10.9.0.1");
            assert_eq!(grh.destination_gid().to_string(), "::ffff:10.9.0.2");
            assert_eq!((grh.traffic_class(), grh.hop_limit(), grh.flow_label()), (0x28, 0x40, 0));
        }
        noise[0] = 0x60;
        let mut broken = ipv4(noise);
        broken[39] ^= 1;
        assert!(!Grh::from_bytes(broken).is_ipv4(), "the checksum says that it is none");
    }

    #[test]
    fn ipv6_headers_are_read_in_network_order() {
        let mut bytes = [0; Grh::LEN];
        bytes[..8].copy_from_slice(&[0x61, 0x2a, 0xbc, 0xde, 0, 0, 0x1b, 7]);
        bytes[8..24].copy_from_slice(&"fe80::1".parse::<Gid>().unwrap().to_bytes());
        bytes[24..].copy_from_slice(&"ff12::7".parse::<Gid>().unwrap().to_bytes());
        let grh = Grh::from_bytes(bytes);
        assert!(!grh.is_ipv4());
        assert_eq!((grh.traffic_class(), grh.flow_label(), grh.hop_limit()), (0x12, 0xabcde, 7));
        assert_eq!(grh.source_gid().to_string(), "fe80::1");
        assert_eq!(grh.destination_gid().to_string(), "ff12::7");
        let raw = grh.to_raw();
        assert_eq!(u32::from_be(raw.version_tclass_flow), 0x612a_bcde);
        assert_eq!((raw.next_hdr, raw.hop_limit), (0x1b, 7));
        assert_eq!(Gid::from_raw(raw.dgid), grh.destination_gid());
        assert_eq!(size_of::<ibv_grh>(), Grh::LEN);
    }
}
