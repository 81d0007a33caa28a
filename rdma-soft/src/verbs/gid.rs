//! A port's GID table: IPv4 addresses on an Ethernet link, one link-local GID on an InfiniBand
//! link.
//!
//! Every device has a GID of its own, which no other device of the host has: on Ethernet the
//! loopback address 127.0.0.1 of `soft0`, 127.0.0.2 of `soft1` and so on, which Linux treats as
//! addresses of the host. `soft0` has the addresses of the host's interfaces, too.

use std::net::Ipv4Addr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use rdma_sys::{ibv_gid, ibv_gid_type};

use super::device::{self, DeviceState, LinkLayer};
use crate::engine::Gid;

impl std::fmt::Debug for GidEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", std::net::Ipv6Addr::from(self.address().0), self.interface)
    }
}

/// Largest GID table: address vectors index it with a `u8`.
const MAX_ENTRIES: usize = 256;

/// One entry of the GID table.
#[derive(Clone, Copy)]
pub(crate) struct GidEntry {
    pub(crate) gid: ibv_gid,
    pub(crate) gid_type: ibv_gid_type,
    /// Index of the network interface that has the address; 0 if none.
    pub(crate) interface: u32,
}

impl GidEntry {
    /// The address as the engine's `Gid`.
    pub(crate) fn address(&self) -> Gid {
        // SAFETY: reading a union field requires a valid value: `raw` is 16 initialised bytes, and
        // any bytes are a GID.
        Gid(unsafe { self.gid.raw })
    }
}

/// Makes the table. Addresses that other hosts can reach come first and loopback comes last,
/// because many programs use index 0.
pub(crate) fn table(device: &DeviceState) -> Vec<GidEntry> {
    match device.link_layer {
        LinkLayer::InfiniBand => {
            let gid = ibv_gid { raw: link_local(device.guid).0 };
            vec![GidEntry { gid, gid_type: ibv_gid_type::IBV_GID_TYPE_IB, interface: 0 }]
        }
        LinkLayer::Ethernet => {
            let entry = |(address, interface): (Ipv4Addr, u32)| GidEntry {
                gid: ibv_gid { raw: mapped(address).0 },
                gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
                interface,
            };
            addresses(device).into_iter().map(entry).collect()
        }
    }
}

/// The addresses of a device on an Ethernet link, with the index of each one's interface.
fn addresses(device: &DeviceState) -> Vec<(Ipv4Addr, u32)> {
    let mut addresses = host_addresses();
    let loopback = addresses.iter().find(|(address, _)| address.is_loopback());
    // 0 if loopback is down in this network namespace; the device works without it.
    let own = (own_address(device.index), loopback.map_or(0, |(_, interface)| *interface));
    if device.index != 0 {
        return vec![own];
    }
    addresses.retain(|(address, _)| device::all().all(|other| own_address(other.index) != *address));
    addresses.push(own);
    addresses.sort_by_key(|(address, interface)| (address.is_loopback(), address.is_link_local(), *interface));
    addresses.dedup_by_key(|(address, _)| *address);
    addresses.truncate(MAX_ENTRIES);
    addresses
}

/// The address that only the device with this number has.
pub(crate) fn own_address(index: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + u32::from(index))
}

/// Whether a device of this host has the GID now: the host may have gained addresses since a device
/// was opened.
pub(crate) fn is_of_host(link_layer: LinkLayer, gid: Gid) -> bool {
    match link_layer {
        LinkLayer::InfiniBand => device::all().any(|device| link_local(device.guid) == gid),
        LinkLayer::Ethernet => {
            device::all().any(|device| mapped(own_address(device.index)) == gid)
                || host_addresses().into_iter().any(|(address, _)| mapped(address) == gid)
        }
    }
}

/// The GID of an IPv4 address: `::ffff:a.b.c.d`.
fn mapped(address: Ipv4Addr) -> Gid {
    Gid(address.to_ipv6_mapped().octets())
}

/// The link-local GID: `fe80::` and the GUID.
fn link_local(guid: u64) -> Gid {
    let mut raw = [0; 16];
    raw[..2].copy_from_slice(&[0xfe, 0x80]);
    raw[8..].copy_from_slice(&guid.to_be_bytes());
    Gid(raw)
}

/// The IPv4 addresses of all interfaces that are up, with the index of each interface.
fn host_addresses() -> Vec<(Ipv4Addr, u32)> {
    let Ok(list) = getifaddrs() else { return Vec::new() };
    let up = list.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP));
    up.filter_map(|entry| {
        let address = entry.address?.as_sockaddr_in()?.ip();
        Some((address, if_nametoindex(entry.interface_name.as_str()).unwrap_or(0)))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u8, link_layer: LinkLayer) -> DeviceState {
        DeviceState { index, guid: 0x0212_3456_789a_bcde, link_layer }
    }

    #[test]
    fn an_ethernet_port_has_the_hosts_addresses_with_loopback_last() {
        let table = table(&device(0, LinkLayer::Ethernet));
        let last = table.last().unwrap().address();
        assert_eq!(last, mapped(Ipv4Addr::LOCALHOST));
        for entry in &table {
            assert_eq!(entry.address().0[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            assert!(is_of_host(LinkLayer::Ethernet, entry.address()));
            assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2);
        }
    }

    #[test]
    fn an_infiniband_port_has_its_guid() {
        let table = table(&device(0, LinkLayer::InfiniBand));
        assert_eq!(table.len(), 1);
        let expected = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde];
        assert_eq!(table[0].address().0, expected);
    }

    #[test]
    fn another_device_has_a_loopback_address_of_its_own() {
        let table = table(&device(2, LinkLayer::Ethernet));
        assert_eq!(table.len(), 1);
        assert_eq!(table[0].address(), mapped(Ipv4Addr::new(127, 0, 0, 3)));
        // This process has one device.
        assert!(!is_of_host(LinkLayer::Ethernet, table[0].address()));
    }
}
