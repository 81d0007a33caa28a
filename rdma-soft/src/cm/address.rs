//! Addresses: from and to C's `sockaddr`, and which of them are this host's.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::engine::Errno;

/// Reads an address of C's.
///
/// # Safety
///
/// `address` is null, or valid for reads of the structure that its family says.
pub(super) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno::INVAL);
    }
    let family = address.wrapping_byte_add(offset_of!(sockaddr, sa_family)).cast::<libc::sa_family_t>();
    // SAFETY: the caller's promise: every address has its family. C's pointers are not aligned for certain.
    let family = unsafe { family.read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the caller's promise.
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the caller's promise.
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)))
        }
        _ => Err(Errno::INVAL),
    }
}

/// An address of ours as C has it, in room for any, zeroes behind it; and its length.
pub(super) fn storage(address: &SocketAddr) -> (sockaddr_storage, libc::socklen_t) {
    // SAFETY: `sockaddr_storage` is plain data, valid when zero.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            // SAFETY: as above.
            let mut to: sockaddr_in = unsafe { std::mem::zeroed() };
            to.sin_family = family(libc::AF_INET);
            to.sin_port = v4.port().to_be();
            to.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            // SAFETY: `storage` is larger than every address and aligned for each.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(to) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let mut to: sockaddr_in6 = unsafe { std::mem::zeroed() };
            to.sin6_family = family(libc::AF_INET6);
            to.sin6_port = v6.port().to_be();
            to.sin6_addr.s6_addr = v6.ip().octets();
            to.sin6_scope_id = v6.scope_id();
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(to) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, libc::socklen_t::try_from(len).unwrap_or(0))
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

/// The wildcard of an address's family, with port 0.
pub(super) fn any_of(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// The loopback address of an address's family, with its port.
pub(super) fn loopback_of(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, like.port())),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, like.port())),
    }
}

/// The same address with another port.
pub(super) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Whether the address, its port aside, is one of this host's. The kernel is asked, by a socket that is bound there and closed.
///
/// # Errors
///
/// Why it cannot be asked: there are no more descriptors, or there is no memory.
pub(super) fn is_local(address: &SocketAddr) -> Result<bool, Errno> {
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() {
        return Ok(false);
    }
    // A namespace whose loopback is down, or without IPv6: the device works all the same.
    if ip.is_loopback() {
        return Ok(true);
    }
    match UdpSocket::bind(with_port(*address, 0)) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => Err(Errno(errno)),
            _ => Ok(false),
        },
    }
}

/// The multicast GID of a group, as RoCE v2 makes it: an IPv4 group's is mapped, an IPv6 group's is itself.
pub(super) fn multicast_gid(group: &SocketAddr) -> [u8; 16] {
    match group.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The GID of an address.
pub(super) fn gid_of(address: &SocketAddr) -> [u8; 16] {
    multicast_gid(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_c() {
        for text in ["127.0.0.1:7471", "[::1]:80", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, len) = storage(&address);
            assert!(usize::try_from(len).unwrap() <= size_of::<sockaddr_storage>());
            // SAFETY: just made.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
        }
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 3));
        let storage = storage(&scoped).0;
        // SAFETY: just made.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(scoped));
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: null is refused, and of an unknown family only the family is read.
        assert_eq!(unsafe { read(std::ptr::null()) }, Err(Errno::INVAL));
        let (mut storage, _) = storage(&SocketAddr::from(([1, 2, 3, 4], 5)));
        storage.ss_family = 77;
        // SAFETY: as above.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, Err(Errno::INVAL));
    }

    #[test]
    fn whose_addresses() {
        let local = |text: &str| is_local(&text.parse().unwrap()).unwrap();
        assert!(local("127.0.0.1:5") && local("127.8.9.10:0") && local("[::1]:7"));
        // Addresses for documentation are nobody's.
        assert!(!local("192.0.2.1:5") && !local("[2001:db8::1]:5"));
        assert!(!local("0.0.0.0:5") && !local("224.0.0.1:5"));
    }

    #[test]
    fn groups() {
        let gid = |text: &str| Ipv6Addr::from(multicast_gid(&text.parse().unwrap())).to_string();
        assert_eq!(gid("239.1.2.3:0"), "::ffff:239.1.2.3");
        assert_eq!(gid("[ff0e::7]:0"), "ff0e::7");
    }
}
