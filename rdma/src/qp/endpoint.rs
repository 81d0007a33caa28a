//! What one end of a connection must know about the other, and its bytes on the wire.

use std::fmt;

use crate::types::{Gid, Lid, Mtu};

/// The address of a queue pair, to be given to the peer by any means: a socket, a file, a command line.
///
/// # Examples
///
/// ```
/// use rdma::{Endpoint, Gid, Lid, Mtu};
/// let endpoint = Endpoint {
///     qpn: 17,
///     psn: 0x123456,
///     gid: Some("::ffff:192.0.2.1".parse()?),
///     lid: Lid::NONE,
///     mtu: Mtu::MTU_1024,
///     responder_resources: 16,
/// };
/// assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The queue pair's number: 24 bits.
    pub qpn: u32,
    /// The number of its first packet: 24 bits.
    pub psn: u32,
    /// The port's GID: always on Ethernet.
    pub gid: Option<Gid>,
    /// The port's LID: on InfiniBand.
    pub lid: Lid,
    /// The port's active MTU.
    pub mtu: Mtu,
    /// How many reads and atomics it serves at a time.
    pub responder_resources: u8,
}

/// Bytes that are no [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointError {
    /// Not [`Endpoint::LEN`] bytes, but this many.
    Length(usize),
    /// Of another version of the format.
    Version(u8),
    /// A field has a value that it cannot have.
    Field(&'static str),
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "an endpoint is {} bytes long, these are {len}", Endpoint::LEN),
            Self::Version(version) => write!(
                f,
                "the peer's endpoint has format version {version}, ours is {}: use the same version at both ends",
                Endpoint::VERSION
            ),
            Self::Field(field) => write!(f, "the peer's endpoint has an impossible {field}"),
        }
    }
}

impl std::error::Error for EndpointError {}

impl Endpoint {
    /// The length on the wire.
    pub const LEN: usize = 32;
    /// The version of the format.
    const VERSION: u8 = 1;

    /// The bytes to send: version, MTU, LID, queue pair number, packet number, responder resources, three zeros, GID; numbers
    /// in network order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1] = u8::try_from(self.mtu.as_raw()).unwrap_or(0);
        bytes[2..4].copy_from_slice(&self.lid.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.psn.to_be_bytes());
        bytes[12] = self.responder_resources;
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
        let [version, mtu, l0, l1, q0, q1, q2, q3, p0, p1, p2, p3, responder_resources, z0, z1, z2, gid @ ..] = *bytes;
        if version != Self::VERSION {
            return Err(EndpointError::Version(version));
        }
        let mtu = Mtu::from_raw(mtu.into());
        let qpn = u32::from_be_bytes([q0, q1, q2, q3]);
        let psn = u32::from_be_bytes([p0, p1, p2, p3]);
        if mtu.bytes().is_none() {
            return Err(EndpointError::Field("MTU"));
        }
        if qpn == 0 || qpn >= 1 << 24 {
            return Err(EndpointError::Field("queue pair number"));
        }
        if psn >= 1 << 24 {
            return Err(EndpointError::Field("packet number"));
        }
        if [z0, z1, z2] != [0; 3] {
            return Err(EndpointError::Field("reserved byte"));
        }
        let gid = Gid::from_bytes(gid);
        let gid = (!gid.is_zero()).then_some(gid);
        Ok(Self { qpn, psn, gid, lid: Lid(u16::from_be_bytes([l0, l1])), mtu, responder_resources })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            qpn: 0x01_0203,
            psn: 0x0a_0b0c,
            gid: Some(Gid::from_bytes([9; 16])),
            lid: Lid(0x0506),
            mtu: Mtu::MTU_4096,
            responder_resources: 16,
        }
    }

    #[test]
    fn the_bytes_are_fixed() {
        let bytes = endpoint().to_bytes();
        assert_eq!(bytes[..16], [1, 5, 5, 6, 0, 1, 2, 3, 0, 10, 11, 12, 16, 0, 0, 0]);
        assert_eq!(bytes[16..], [9; 16]);
        assert_eq!(Endpoint::from_bytes(&bytes), Ok(endpoint()));
        let no_gid = Endpoint { gid: None, ..endpoint() };
        assert_eq!(Endpoint::from_bytes(&no_gid.to_bytes()), Ok(no_gid));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = endpoint().to_bytes();
        assert_eq!(Endpoint::from_bytes(&good[1..]), Err(EndpointError::Length(31)));
        assert_eq!(Endpoint::from_bytes(&[]), Err(EndpointError::Length(0)));
        for (at, value) in [(0, 2), (1, 0), (1, 6), (4, 1), (8, 255), (14, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Endpoint::from_bytes(&bad).is_err(), "byte {at} = {value}");
        }
    }
}
