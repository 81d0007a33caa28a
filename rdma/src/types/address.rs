//! Addresses and identifiers: GUIDs, GIDs, LIDs.

use std::fmt;
use std::net::{AddrParseError, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use rdma_sys::ibv_gid;

/// A 64-bit globally unique identifier that the vendor gave a device or port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Guid(u64);

impl Guid {
    /// Makes a GUID from its value; the text form starts with the highest byte.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Reads the big-endian field of a C structure.
    #[must_use]
    pub(crate) const fn from_be(field: u64) -> Self {
        Self(u64::from_be(field))
    }

    /// The value.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [self.0 >> 48, self.0 >> 32, self.0 >> 16, self.0].map(|word| word & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

/// A local identifier: a port's 16-bit address in its InfiniBand subnet. 0 means no LID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lid(pub u16);

impl Lid {
    /// No LID, as on Ethernet.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({})", self.0)
    }
}

/// A 128-bit global identifier of a port, written like an IPv6 address.
///
/// # Examples
///
/// ```
/// use rdma::Gid;
/// let gid: Gid = "::ffff:192.0.2.1".parse()?;
/// assert_eq!(gid.ipv4(), Some("192.0.2.1".parse().unwrap()));
/// assert_eq!(gid.to_string(), "::ffff:192.0.2.1");
/// # Ok::<(), rdma::ParseGidError>(())
/// ```
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// All zero: an empty entry of a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// Makes a GID from its bytes in network order.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The GID's bytes in network order.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether the GID is all zero: an empty table entry.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The GID as an IPv6 address.
    #[must_use]
    pub const fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0))
    }

    /// The IPv4 address, if the GID is an IPv4-mapped IPv6 address.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        self.ipv6().to_ipv4_mapped()
    }

    /// Whether the GID is link-local: `fe80::/64`, or an IPv4 address in 169.254.0.0/16.
    #[must_use]
    pub fn is_link_local(self) -> bool {
        self.ipv4().map_or_else(|| self.ipv6().is_unicast_link_local(), |v4| v4.is_link_local())
    }

    /// Whether the GID is a loopback address.
    #[must_use]
    pub fn is_loopback(self) -> bool {
        self.ipv4().map_or_else(|| self.ipv6().is_loopback(), |v4| v4.is_loopback())
    }

    /// Whether the GID names a multicast group: `ff00::/8`, or an IPv4 address in 224.0.0.0/4.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.ipv4().map_or_else(|| self.ipv6().is_multicast(), |v4| v4.is_multicast())
    }

    /// The C union.
    #[must_use]
    pub fn to_raw(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }

    /// Converts from the C union.
    #[must_use]
    pub fn from_raw(raw: ibv_gid) -> Self {
        // SAFETY: a union read requires bytes that are a valid value: both members fill the union,
        // and any 16 bytes are a value of `raw`.
        Self(unsafe { raw.raw })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

/// The error of parsing a text that is not a GID.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("a GID is written like an IPv6 address, for example fe80::1 or ::ffff:192.0.2.1")]
pub struct ParseGidError(#[source] AddrParseError);

debug_is_display!(ParseGidError);

impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Ipv6Addr>().map(Self::from).map_err(ParseGidError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_reads_as_the_device_shows_it() {
        let field = u64::from_ne_bytes([0x50, 0x6b, 0x4b, 0x03, 0x00, 0xa1, 0xb2, 0xc3]);
        assert_eq!(Guid::from_be(field).to_string(), "506b:4b03:00a1:b2c3");
    }

    #[test]
    fn gids_know_their_reach() {
        let gid = |text: &str| text.parse::<Gid>().unwrap();
        assert!(gid("fe80::1").is_link_local());
        assert!(gid("::ffff:169.254.1.2").is_link_local());
        assert!(!gid("::ffff:10.0.0.1").is_link_local());
        assert!(gid("::ffff:127.0.0.1").is_loopback());
        assert!(gid("::1").is_loopback());
        assert!(gid("ff12::1").is_multicast() && gid("::ffff:239.1.2.3").is_multicast());
        assert!(!gid("fe80::1").is_multicast() && !gid("::ffff:10.0.0.1").is_multicast());
        assert_eq!(Gid::from_raw(gid("2001:db8::7").to_raw()), gid("2001:db8::7"));
        assert!("mlx5_0".parse::<Gid>().is_err());
    }
}
