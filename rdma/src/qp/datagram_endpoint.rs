//! Addresses of datagram queue pairs, and their wire format.

use super::endpoint::{self, Common};
use crate::types::wire::{DATAGRAMS, WireError};
use crate::types::{Gid, Lid, Mtu};

/// The address of a datagram queue pair, to be sent to peers by any means.
///
/// # Examples
///
/// ```
/// use rdma::{DatagramEndpoint, Mtu};
/// let gid = "::ffff:192.0.2.1".parse()?;
/// let endpoint = DatagramEndpoint::new(17, 0x1234_5678, Mtu::MTU_1024).gid(gid);
/// assert_eq!(DatagramEndpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DatagramEndpoint {
    /// The queue pair's number: 24 bits.
    pub qpn: u32,
    /// The queue pair's Q_Key.
    pub qkey: u32,
    /// The port's GID; always present on Ethernet.
    pub gid: Option<Gid>,
    /// The port's LID; present on InfiniBand.
    pub lid: Lid,
    /// The port's active MTU: longer messages do not arrive.
    pub mtu: Mtu,
}

impl DatagramEndpoint {
    /// The address of a queue pair without GID and LID.
    #[must_use]
    pub const fn new(qpn: u32, qkey: u32, mtu: Mtu) -> Self {
        Self { qpn, qkey, gid: None, lid: Lid::NONE, mtu }
    }

    setters! {
        /// Sets the port's GID.
        #[must_use]
        gid(gid: Gid) = Some(gid);

        /// Sets the port's LID.
        #[must_use]
        lid(lid: Lid) = lid;
    }

    /// The length on the wire, in bytes.
    pub const LEN: usize = endpoint::LEN;
    /// The version of the format.
    const VERSION: u8 = DATAGRAMS | 1;

    /// The bytes to send: version, MTU, LID, queue pair number, Q_Key, four zeros, GID. Numbers are
    /// in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let Self { qpn, qkey, gid, lid, mtu } = *self;
        let [k0, k1, k2, k3] = qkey.to_be_bytes();
        Common { qpn, gid, lid, mtu }.to_bytes(Self::VERSION, [k0, k1, k2, k3, 0, 0, 0, 0])
    }

    /// Parses and checks the bytes that a peer sent.
    ///
    /// # Errors
    ///
    /// The bytes have the wrong length or version, or a field with an impossible value.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let (Common { qpn, gid, lid, mtu }, own) = Common::from_bytes(bytes, Self::VERSION)?;
        let [k0, k1, k2, k3, reserved @ ..] = own;
        endpoint::check_reserved(&reserved)?;
        Ok(Self { qpn, qkey: u32::from_be_bytes([k0, k1, k2, k3]), gid, lid, mtu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::Endpoint;

    fn endpoint() -> DatagramEndpoint {
        DatagramEndpoint {
            qpn: 0x01_0203,
            qkey: 0x8a0b_0c0d,
            gid: Some(Gid::from_bytes([9; 16])),
            lid: Lid(0x0506),
            mtu: Mtu::MTU_4096,
        }
    }

    #[test]
    fn the_bytes_are_fixed() {
        let bytes = endpoint().to_bytes();
        assert_eq!(bytes[..16], [0x81, 5, 5, 6, 0, 1, 2, 3, 0x8a, 11, 12, 13, 0, 0, 0, 0]);
        assert_eq!(bytes[16..], [9; 16]);
        assert_eq!(DatagramEndpoint::from_bytes(&bytes), Ok(endpoint()));
        let no_gid = DatagramEndpoint { gid: None, ..endpoint() };
        assert_eq!(DatagramEndpoint::from_bytes(&no_gid.to_bytes()), Ok(no_gid));
    }

    #[test]
    fn nonsense_is_refused_and_so_is_the_other_kind() {
        let good = endpoint().to_bytes();
        assert_eq!(DatagramEndpoint::from_bytes(&good[..31]), Err(WireError::Length { expected: 32, len: 31 }));
        for (at, value) in [(0, 1), (1, 0), (1, 6), (4, 1), (12, 1), (15, 255)] {
            let mut bad = good;
            bad[at] = value;
            assert!(DatagramEndpoint::from_bytes(&bad).is_err(), "byte {at} = {value}");
        }
        assert_eq!(Endpoint::from_bytes(&good), Err(WireError::Version { theirs: 0x81, ours: 1 }));
    }
}
