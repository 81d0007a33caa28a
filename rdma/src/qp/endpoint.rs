//! Addresses of connected queue pairs, and their wire format.

use crate::types::wire::{self, CONNECTION, WireError};
use crate::types::{Gid, Lid, Mtu};

/// The address of a queue pair, to be sent to the peer by any means: a socket, a file, a command
/// line.
///
/// # Examples
///
/// ```
/// use rdma::{Endpoint, Mtu};
/// let endpoint = Endpoint::new(17, 0x123456, Mtu::MTU_1024).gid("::ffff:192.0.2.1".parse()?);
/// assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Endpoint {
    /// The queue pair's number: 24 bits.
    pub qpn: u32,
    /// The PSN of the first packet that the queue pair sends: 24 bits.
    pub psn: u32,
    /// The port's GID; always present on Ethernet.
    pub gid: Option<Gid>,
    /// The port's LID; present on InfiniBand.
    pub lid: Lid,
    /// The port's active MTU.
    pub mtu: Mtu,
    /// The number of reads and atomics that the queue pair serves at a time.
    pub responder_resources: u8,
}

/// The length on the wire for either transport, in bytes.
pub(super) const LEN: usize = 32;

/// The fields that the endpoints of both transports share. The wire format is: version, MTU, LID,
/// queue pair number, 8 bytes specific to the transport, GID. Numbers are in network byte order.
pub(super) struct Common {
    pub(super) qpn: u32,
    pub(super) gid: Option<Gid>,
    pub(super) lid: Lid,
    pub(super) mtu: Mtu,
}

impl Common {
    pub(super) fn to_bytes(&self, version: u8, own: [u8; 8]) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = version;
        bytes[1] = u8::try_from(self.mtu.as_raw()).unwrap_or(0);
        bytes[2..4].copy_from_slice(&self.lid.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[8..16].copy_from_slice(&own);
        bytes[16..].copy_from_slice(&self.gid.unwrap_or_default().to_bytes());
        bytes
    }

    /// Parses and checks the shared fields of the bytes that a peer sent; the caller parses the
    /// returned transport-specific bytes.
    pub(super) fn from_bytes(bytes: &[u8], ours: u8) -> Result<(Self, [u8; 8]), WireError> {
        let bytes: &[u8; LEN] = wire::whole(bytes, ours)?;
        let [_, mtu, l0, l1, q0, q1, q2, q3, o0, o1, o2, o3, o4, o5, o6, o7, gid @ ..] = *bytes;
        let mtu = Mtu::from_raw(mtu.into());
        if mtu.bytes().is_none() {
            return Err(WireError::Field("MTU"));
        }
        let qpn = u32::from_be_bytes([q0, q1, q2, q3]);
        if qpn == 0 || qpn >= 1 << 24 {
            return Err(WireError::Field("queue pair number"));
        }
        let gid = Gid::from_bytes(gid);
        let gid = (!gid.is_zero()).then_some(gid);
        let lid = Lid(u16::from_be_bytes([l0, l1]));
        Ok((Self { qpn, gid, lid, mtu }, [o0, o1, o2, o3, o4, o5, o6, o7]))
    }
}

/// Fails unless all reserved bytes are zero.
pub(super) fn check_reserved(bytes: &[u8]) -> Result<(), WireError> {
    if bytes.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(WireError::Field("reserved byte")) }
}

impl Endpoint {
    /// The address of a queue pair without GID and LID that serves one read or atomic at a time.
    #[must_use]
    pub const fn new(qpn: u32, psn: u32, mtu: Mtu) -> Self {
        Self { qpn, psn, gid: None, lid: Lid::NONE, mtu, responder_resources: 1 }
    }

    setters! {
        /// Sets the port's GID.
        #[must_use]
        gid(gid: Gid) = Some(gid);

        /// Sets the port's LID.
        #[must_use]
        lid(lid: Lid) = lid;

        /// Sets the number of reads and atomics that the queue pair serves at a time.
        #[must_use]
        responder_resources(count: u8) = count;
    }

    /// The length on the wire, in bytes.
    pub const LEN: usize = LEN;
    /// The version of the format.
    const VERSION: u8 = CONNECTION | 1;

    /// The bytes to send: version, MTU, LID, queue pair number, PSN, responder resources, three
    /// zeros, GID. Numbers are in network byte order.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let Self { qpn, psn, gid, lid, mtu, responder_resources } = *self;
        let [p0, p1, p2, p3] = psn.to_be_bytes();
        Common { qpn, gid, lid, mtu }.to_bytes(Self::VERSION, [p0, p1, p2, p3, responder_resources, 0, 0, 0])
    }

    /// Parses and checks the bytes that a peer sent.
    ///
    /// # Errors
    ///
    /// The bytes have the wrong length or version, or a field with an impossible value.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let (Common { qpn, gid, lid, mtu }, own) = Common::from_bytes(bytes, Self::VERSION)?;
        let [p0, p1, p2, p3, responder_resources, reserved @ ..] = own;
        let psn = u32::from_be_bytes([p0, p1, p2, p3]);
        if psn >= 1 << 24 {
            return Err(WireError::Field("packet number"));
        }
        check_reserved(&reserved)?;
        Ok(Self { qpn, psn, gid, lid, mtu, responder_resources })
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
    fn what_is_wrong_is_said() {
        let of_version = |version| {
            let mut bytes = endpoint().to_bytes();
            bytes[0] = version;
            Endpoint::from_bytes(&bytes).unwrap_err().to_string()
        };
        assert!(of_version(2).contains("version 2, ours is 1"));
        assert!(of_version(0x81).contains("are an endpoint for datagrams"));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = endpoint().to_bytes();
        assert_eq!(Endpoint::from_bytes(&good[1..]), Err(WireError::Length { expected: 32, len: 31 }));
        assert_eq!(Endpoint::from_bytes(&[]), Err(WireError::Length { expected: 32, len: 0 }));
        for (at, value) in [(0, 2), (1, 0), (1, 6), (4, 1), (8, 255), (14, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Endpoint::from_bytes(&bad).is_err(), "byte {at} = {value}");
        }
    }
}
