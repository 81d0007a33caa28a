//! What one must know to send datagrams to a queue pair, and its bytes on the wire.

use super::endpoint::EndpointError;
use crate::types::{Gid, Lid, Mtu};

/// The address of a datagram queue pair, to be given to peers by any means.
///
/// # Examples
///
/// ```
/// use rdma::{DatagramEndpoint, Lid, Mtu};
/// let endpoint = DatagramEndpoint {
///     qpn: 17,
///     qkey: 0x1234_5678,
///     gid: Some("::ffff:192.0.2.1".parse()?),
///     lid: Lid::NONE,
///     mtu: Mtu::MTU_1024,
/// };
/// assert_eq!(DatagramEndpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramEndpoint {
    /// The queue pair's number: 24 bits.
    pub qpn: u32,
    /// Its queue key.
    pub qkey: u32,
    /// The port's GID: always on Ethernet.
    pub gid: Option<Gid>,
    /// The port's LID: on InfiniBand.
    pub lid: Lid,
    /// The port's active MTU: a longer message does not arrive.
    pub mtu: Mtu,
}

impl DatagramEndpoint {
    /// The length on the wire.
    pub const LEN: usize = 32;
    /// The version of the format; not one of [`Endpoint`](super::Endpoint)'s.
    const VERSION: u8 = 0x81;

    /// The bytes to send: version, MTU, LID, queue pair number, queue key, four zeros, GID; numbers in network order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1] = u8::try_from(self.mtu.as_raw()).unwrap_or(0);
        bytes[2..4].copy_from_slice(&self.lid.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[16..].copy_from_slice(&self.gid.unwrap_or_default().to_bytes());
        bytes
    }

    /// Reads and checks what a peer sent.
    ///
    /// # Errors
    ///
    /// The bytes have the wrong length or version, or a field that cannot be.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| EndpointError::Length(bytes.len()))?;
        let [version, mtu, l0, l1, q0, q1, q2, q3, k0, k1, k2, k3, z0, z1, z2, z3, gid @ ..] = *bytes;
        if version != Self::VERSION {
            return Err(EndpointError::Version(version));
        }
        let mtu = Mtu::from_raw(mtu.into());
        let qpn = u32::from_be_bytes([q0, q1, q2, q3]);
        if mtu.bytes().is_none() {
            return Err(EndpointError::Field("MTU"));
        }
        if qpn == 0 || qpn >= 1 << 24 {
            return Err(EndpointError::Field("queue pair number"));
        }
        if [z0, z1, z2, z3] != [0; 4] {
            return Err(EndpointError::Field("reserved byte"));
        }
        let gid = Gid::from_bytes(gid);
        Ok(Self {
            qpn,
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            gid: (!gid.is_zero()).then_some(gid),
            lid: Lid(u16::from_be_bytes([l0, l1])),
            mtu,
        })
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
        assert_eq!(DatagramEndpoint::from_bytes(&good[1..]), Err(EndpointError::Length(31)));
        for (at, value) in [(0, 1), (1, 0), (1, 6), (4, 1), (12, 1), (15, 255)] {
            let mut bad = good;
            bad[at] = value;
            assert!(DatagramEndpoint::from_bytes(&bad).is_err(), "byte {at} = {value}");
        }
        assert_eq!(Endpoint::from_bytes(&good), Err(EndpointError::Version(0x81)));
    }
}
