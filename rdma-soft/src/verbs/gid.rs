//! The port's GID table: the host's IPv4 addresses on an Ethernet link, one link-local GID on an
//! InfiniBand link.

use std::net::Ipv4Addr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use rdma_sys::{ibv_gid, ibv_gid_type};

use super::device::LinkLayer;
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
pub(crate) fn table(link_layer: LinkLayer, guid: u64) -> Vec<GidEntry> {
    match link_layer {
        LinkLayer::InfiniBand => {
            vec![GidEntry { gid: link_local(guid), gid_type: ibv_gid_type::IBV_GID_TYPE_IB, interface: 0 }]
        }
        LinkLayer::Ethernet => {
            let mut addresses = host_addresses();
            if !addresses.iter().any(|(address, _)| address.is_loopback()) {
                // Loopback is down in this network namespace; the device works without it.
                addresses.push((Ipv4Addr::LOCALHOST, 0));
            }
            addresses.sort_by_key(|(address, interface)| (address.is_loopback(), address.is_link_local(), *interface));
            addresses.dedup_by_key(|(address, _)| *address);
            addresses.truncate(MAX_ENTRIES);
            let entry = |(address, interface): (Ipv4Addr, u32)| GidEntry {
                gid: mapped(address),
                gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
                interface,
            };
            addresses.into_iter().map(entry).collect()
        }
    }
}

/// The GID of an IPv4 address: `::ffff:a.b.c.d`.
fn mapped(address: Ipv4Addr) -> ibv_gid {
    ibv_gid { raw: address.to_ipv6_mapped().octets() }
}

/// The link-local GID: `fe80::` and the GUID.
fn link_local(guid: u64) -> ibv_gid {
    let mut raw = [0; 16];
    raw[..2].copy_from_slice(&[0xfe, 0x80]);
    raw[8..].copy_from_slice(&guid.to_be_bytes());
    ibv_gid { raw }
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

    fn raw(entry: &GidEntry) -> [u8; 16] {
        // SAFETY: reading a union field requires a valid value: `raw` is 16 initialised bytes, and
        // any bytes are a GID.
        unsafe { entry.gid.raw }
    }

    #[test]
    fn an_ethernet_port_has_the_hosts_addresses_with_loopback_last() {
        let table = table(LinkLayer::Ethernet, 1);
        let last = raw(table.last().unwrap());
        assert_eq!(last, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
        for entry in &table {
            assert_eq!(raw(entry)[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            assert_eq!(entry.gid_type, ibv_gid_type::IBV_GID_TYPE_ROCE_V2);
        }
    }

    #[test]
    fn an_infiniband_port_has_its_guid() {
        let table = table(LinkLayer::InfiniBand, 0x0212_3456_789a_bcde);
        assert_eq!(table.len(), 1);
        let expected = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde];
        assert_eq!(raw(&table[0]), expected);
    }
}
