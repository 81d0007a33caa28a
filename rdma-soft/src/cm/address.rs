//! Addresses: conversion from and to C's `sockaddr`, source addresses, and local addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::{io, ptr};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use nix::sys::socket::{SockaddrStorage, bind};

use crate::engine::Errno;
use crate::os::route::{self, udp_socket};
use crate::verbs::call::Argument;

/// Reads a C socket address. `EINVAL` for null, or a family other than IPv4 and IPv6.
///
/// # Safety
///
/// `address` is null, or valid for reads of its family and of the structure that belongs to this
/// family.
pub(super) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: `read_unaligned` requires readable bytes: every address structure begins with its
    // family (the caller's contract). The pointer may be unaligned.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: `read_unaligned` requires readable bytes: the family is that of a
            // `sockaddr_in` (the caller's contract).
            let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: `read_unaligned` requires readable bytes: the family is that of a
            // `sockaddr_in6` (the caller's contract).
            let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => Err(Errno::INVAL),
    }
}

/// A pointer to a socket address: null, or valid for reads of the structure of its family (promise
/// 2).
pub(super) struct Addr(*const sockaddr);

impl Argument for Addr {
    type Raw = *mut sockaddr;

    unsafe fn from_c(raw: *mut sockaddr) -> Self {
        Self(raw)
    }
}

impl Addr {
    pub(super) fn get(&self) -> Result<SocketAddr, Errno> {
        // SAFETY: `read` requires null, or an address that is valid for its family: promise 2.
        unsafe { read(self.0) }
    }

    /// `None` for null.
    pub(super) fn optional(&self) -> Result<Option<SocketAddr>, Errno> {
        if self.0.is_null() { Ok(None) } else { self.get().map(Some) }
    }
}

/// The C form of an address, with zeroes behind the structure of its family.
pub(super) fn storage(address: SocketAddr) -> sockaddr_storage {
    let storage = SockaddrStorage::from(address);
    // SAFETY: `read` requires initialised bytes: `SockaddrStorage` is a union with a
    // `sockaddr_storage`, and `From` zeroes the union before it writes the address.
    unsafe { ptr::from_ref(&storage).cast::<sockaddr_storage>().read() }
}

/// The port of an address in C form; 0 if the storage holds no IP address.
pub(super) fn port_of(storage: &sockaddr_storage) -> u16 {
    // SAFETY: `read` requires an address that is valid for its family: a `sockaddr_storage` has
    // space for the structure of every family.
    unsafe { read(ptr::from_ref(storage).cast()) }.map_or(0, |address| address.port())
}

/// The wildcard address of the same family, with port 0.
pub(super) fn any_of(like: &SocketAddr) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// The loopback address of the same family, with the same port.
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

/// The local address from which packets to a destination leave, with port 0: the routing table's
/// choice, or loopback if there is no route, because the device does not need one.
pub(super) fn source_for(destination: &SocketAddr) -> SocketAddr {
    with_port(route::source(destination).unwrap_or_else(|_| loopback_of(destination)), 0)
}

/// Makes a UDP socket and binds it to an address.
fn bound_to(address: &SocketAddr) -> io::Result<UdpSocket> {
    let socket = udp_socket(address)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(*address))?;
    Ok(socket)
}

/// Whether an address is one of this host's; its port is ignored. Binds a UDP socket to the address
/// to find out.
///
/// # Errors
///
/// `EMFILE`, `ENFILE`, `ENOBUFS` or `ENOMEM` if no socket can be made.
pub(super) fn is_local(address: &SocketAddr) -> Result<bool, Errno> {
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() {
        return Ok(false);
    }
    // The device works even if loopback is down or IPv6 is missing, so do not ask the kernel.
    if ip.is_loopback() {
        return Ok(true);
    }
    match bound_to(&with_port(*address, 0)) {
        // A socket can be bound to a broadcast address too, but not connected to it.
        Ok(socket) => Ok(!socket
            .connect(with_port(*address, 9))
            .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)),
        Err(error) => match error.raw_os_error() {
            Some(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => Err(Errno(errno)),
            _ => Ok(false),
        },
    }
}

/// The RoCE v2 GID of an address or of a multicast group: IPv4 addresses are mapped into IPv6.
pub(super) fn gid_of(address: &SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_c() {
        for text in ["127.0.0.1:7471", "[::1]:80", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = storage(address);
            // SAFETY: `read` requires an address that is valid for its family: `storage` made it.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(address));
            assert_eq!(port_of(&storage), address.port());
        }
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 3));
        let storage = storage(scoped);
        // SAFETY: `read` requires an address that is valid for its family: `storage` made it.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, Ok(scoped));
    }

    #[test]
    fn other_families_are_refused() {
        // SAFETY: `read` accepts null.
        assert_eq!(unsafe { read(ptr::null()) }, Err(Errno::INVAL));
        let mut storage = storage(SocketAddr::from(([1, 2, 3, 4], 5)));
        storage.ss_family = 77;
        // SAFETY: `read` requires a readable family, and no more for an unknown one.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, Err(Errno::INVAL));
    }

    #[test]
    fn whose_addresses() {
        let local = |text: &str| is_local(&text.parse().unwrap()).unwrap();
        assert!(local("127.0.0.1:5") && local("127.8.9.10:0") && local("[::1]:7"));
        // No host has the addresses reserved for documentation.
        assert!(!local("192.0.2.1:5") && !local("[2001:db8::1]:5"));
        assert!(!local("0.0.0.0:5") && !local("224.0.0.1:5") && !local("255.255.255.255:5"));
    }

    #[test]
    fn packets_to_a_group_leave_from_an_address_of_ours() {
        for group in ["239.1.2.3:0", "[ff0e::7]:0"] {
            let source = source_for(&group.parse().unwrap());
            assert!(source.port() == 0 && is_local(&source).unwrap(), "{source}");
        }
    }

    #[test]
    fn groups() {
        let gid = |text: &str| Ipv6Addr::from(gid_of(&text.parse().unwrap())).to_string();
        assert_eq!(gid("239.1.2.3:0"), "::ffff:239.1.2.3");
        assert_eq!(gid("[ff0e::7]:0"), "ff0e::7");
    }
}
