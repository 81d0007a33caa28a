//! Conversion of socket addresses to C's form and back.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// An address in C's form, padded with zeros, because librdmacm compares some addresses as bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union RawAddr {
    storage: sockaddr_storage,
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

#[allow(clippy::cast_possible_truncation, reason = "address families are small")]
const INET: sa_family_t = libc::AF_INET as sa_family_t;
#[allow(clippy::cast_possible_truncation, reason = "address families are small")]
const INET6: sa_family_t = libc::AF_INET6 as sa_family_t;

impl RawAddr {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: zeroed requires a type for which zeros are a value: `sockaddr_storage` is
        // integers.
        let mut raw = Self { storage: unsafe { std::mem::zeroed() } };
        match address {
            SocketAddr::V4(address) => {
                // By fields, because some systems have another one in front.
                raw.v4.sin_family = INET;
                raw.v4.sin_port = address.port().to_be();
                raw.v4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            }
            SocketAddr::V6(address) => {
                raw.v6.sin6_family = INET6;
                raw.v6.sin6_port = address.port().to_be();
                raw.v6.sin6_flowinfo = address.flowinfo().to_be();
                raw.v6.sin6_addr.s6_addr = address.ip().octets();
                raw.v6.sin6_scope_id = address.scope_id();
            }
        }
        raw
    }

    /// A pointer for C functions that take any address and do not write to it.
    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut *self).cast()
    }
}

/// The address in C's storage; `None` for any family but IPv4 and IPv6, for example if never set.
pub(super) fn from_storage(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let raw = RawAddr { storage: *storage };
    match storage.ss_family {
        INET => {
            // SAFETY: a union read requires initialized bytes that are a valid value: the whole
            // storage was copied, and any bytes are an IPv4 address.
            let v4 = unsafe { raw.v4 };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        INET6 => {
            // SAFETY: a union read requires initialized bytes that are a valid value: the whole
            // storage was copied, and any bytes are an IPv6 address.
            let v6 = unsafe { raw.v6 };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let flow = u32::from_be(v6.sin6_flowinfo);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), flow, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in ["192.0.2.1:7174", "0.0.0.0:0", "[2001:db8::1]:65535", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddr::new(address);
            // SAFETY: a union read requires initialized bytes: `new` sets all bytes of the union.
            let storage = unsafe { raw.storage };
            assert_eq!(from_storage(&storage), Some(address));
        }
    }

    #[test]
    fn other_families_are_no_address() {
        // SAFETY: zeroed requires a type for which zeros are a value: `sockaddr_storage` is
        // integers.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(from_storage(&storage), None);
        storage.ss_family = 27;
        assert_eq!(from_storage(&storage), None);
    }

    #[test]
    fn padding_is_zero() {
        let raw = RawAddr::new("1.2.3.4:5".parse().unwrap());
        // SAFETY: a union read requires initialized bytes: `new` sets all bytes of the union.
        let storage = unsafe { raw.storage };
        // SAFETY: from_raw_parts requires initialized bytes of one live object: the storage is
        // integers, and the slice has its length.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const storage).cast::<u8>(), size_of_val(&storage)) };
        assert_eq!(bytes[2..8], [0, 5, 1, 2, 3, 4]);
        assert!(bytes[8..].iter().all(|&byte| byte == 0));
    }
}
