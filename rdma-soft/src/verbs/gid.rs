//! A port's GID table: IPv4 addresses on an Ethernet link, one link-local GID on an InfiniBand
//! link. With `RDMA_SOFT_TCP`, the chosen address of `soft0`, which may be IPv6, comes first.
//!
//! Every device has a GID of its own, which no other device of the host has: on Ethernet the
//! loopback address 127.0.0.1 of `soft0`, 127.0.0.2 of `soft1` and so on, which Linux treats as
//! addresses of the host. `soft0` has the addresses of the host's interfaces, too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::LinkAddr;
use rdma_sys::{ibv_gid, ibv_gid_type};

use super::Errno;
use super::device::{self, DeviceState, LinkLayer};
use crate::engine::{Gid, Host};
use crate::link::hosts::HostUse;
use crate::log::log;
use crate::node::Node;

impl std::fmt::Debug for GidEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", Ipv6Addr::from(self.address().0), self.interface)
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
            let entry = |(address, interface): (IpAddr, u32)| GidEntry {
                gid: ibv_gid { raw: Gid::from_address(address).0 },
                gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2,
                interface,
            };
            with_chosen(device, addresses(device)).into_iter().map(entry).collect()
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

/// Puts the address at which `soft0` listens for other hosts in front of its others.
fn with_chosen(device: &DeviceState, addresses: Vec<(Ipv4Addr, u32)>) -> Vec<(IpAddr, u32)> {
    let mut addresses: Vec<_> = addresses.into_iter().map(|(address, at)| (IpAddr::V4(address), at)).collect();
    if let Some(chosen) = chosen().filter(|_| device.index == 0) {
        let interface = interface_of(chosen);
        addresses.retain(|(address, _)| *address != chosen);
        addresses.insert(0, (chosen, interface));
        addresses.truncate(MAX_ENTRIES);
    }
    addresses
}

/// The address at which this process listens for other hosts.
fn chosen() -> Option<IpAddr> {
    Some(Node::get().ok()?.remote.as_ref()?.address.ip())
}

/// Checks that the address at which this process listens for other hosts can be a GID of `soft0`.
///
/// # Errors
///
/// `EINVAL`: the link layer is InfiniBand, or the address is another device's own.
pub(super) fn check_chosen(node: &Node, device: &DeviceState) -> Result<(), Errno> {
    let Some(chosen) = node.remote.as_ref().map(|remote| remote.address.ip()) else { return Ok(()) };
    can_be_gid(chosen, device).map_err(|why| {
        log!(ERROR, "{chosen} cannot be the address for other hosts: {why}");
        Errno::INVAL
    })
}

/// Checks that an address can be a GID of `soft0`.
///
/// # Errors
///
/// Why not: the link layer is InfiniBand, or the address is another device's own.
fn can_be_gid(address: IpAddr, device: &DeviceState) -> Result<(), String> {
    if device.link_layer != LinkLayer::Ethernet {
        return Err("the link layer has to be Ethernet; unset RDMA_SOFT_LINK_LAYER".to_owned());
    }
    match device::all().find(|other| other.index != 0 && own_address(other.index) == address) {
        Some(other) => Err(format!("that is the address of {}; choose another one", other.name)),
        None => Ok(()),
    }
}

/// Checks that this process can listen at an address for other hosts: see [`can_be_gid`].
pub(crate) fn can_listen(address: IpAddr) -> Result<(), String> {
    device::all().find(|device| device.index == 0).map_or(Ok(()), |device| can_be_gid(address, device))
}

/// Index of the interface with an address: that of loopback for every loopback address.
fn interface_of(address: IpAddr) -> u32 {
    let Ok(mut list) = getifaddrs() else { return 0 };
    let has = |entry: &InterfaceAddress| {
        let found = entry.address.as_ref().and_then(|found| {
            let v4 = found.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| found.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        });
        found.is_some_and(|found| found == address || (found.is_loopback() && address.is_loopback()))
    };
    list.find(has).map_or(0, |entry| if_nametoindex(entry.interface_name.as_str()).unwrap_or(0))
}

/// Where a GID leads.
#[derive(Debug)]
pub(super) enum Place {
    /// To a device of this host.
    Here,
    /// To another host.
    There(HostUse),
}

impl Place {
    /// The host's number.
    pub(super) fn host(&self) -> Host {
        match self {
            Self::Here => Host::LOCAL,
            Self::There(host) => host.id(),
        }
    }
}

/// Finds where a GID leads from the address `source` of a device. `is_own` says that the device's
/// table has the GID.
///
/// # Errors
///
/// `EHOSTUNREACH`: to another host, but not from the address at which this process listens; or the
/// GID is no address of a host. `ENOMEM`: too many hosts are in use.
pub(super) fn find(device: &DeviceState, is_own: bool, source: Gid, gid: Gid) -> Result<Place, Errno> {
    const UNREACHABLE: Errno = Errno(libc::EHOSTUNREACH);
    let remote = Node::get()?.remote.as_ref().filter(|_| device.index == 0 && device.link_layer == LinkLayer::Ethernet);
    let is_here = || is_own || is_of_host(device.link_layer, gid);
    let Some(remote) = remote else {
        return if is_here() { Ok(Place::Here) } else { Err(UNREACHABLE) };
    };
    let (own, address) = (remote.address.ip(), Ipv6Addr::from(gid.0).to_canonical());
    if !remote.is_elsewhere(address, is_here) {
        return Ok(Place::Here);
    }
    let is_address = !address.is_unspecified() && !address.is_multicast();
    if !is_address || source != Gid::from_address(own) || address.is_ipv4() != own.is_ipv4() {
        return Err(UNREACHABLE);
    }
    remote.hold(address).map(Place::There).ok_or(Errno::NOMEM)
}

/// The address that only the device with this number has.
pub(crate) fn own_address(index: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + u32::from(index))
}

/// Whether a device of this host has the GID now: the host may have gained addresses since a device
/// was opened.
fn is_of_host(link_layer: LinkLayer, gid: Gid) -> bool {
    match link_layer {
        LinkLayer::InfiniBand => device::all().any(|device| link_local(device.guid) == gid),
        LinkLayer::Ethernet => {
            device::all().any(|device| mapped(own_address(device.index)) == gid)
                || host_addresses().into_iter().any(|(address, _)| mapped(address) == gid)
        }
    }
}

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// The Ethernet address of a GID on an Ethernet link: the group's by its rule, else that of this
/// host's interface with the address, all zero for loopback. `None` if no interface has it.
pub(super) fn mac(gid: Gid) -> Option<Mac> {
    let [.., b, c, d] = gid.0;
    let is_ipv4_group = gid.0[..12] == [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if is_ipv4_group {
        return Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]);
    }
    if gid.is_multicast() {
        return Some([0x33, 0x33, gid.0[12], b, c, d]);
    }
    if device::all().any(|device| mapped(own_address(device.index)) == gid) {
        return Some(Mac::default());
    }
    let entries: Vec<InterfaceAddress> = getifaddrs().ok()?.collect();
    let has_address = |entry: &&InterfaceAddress| {
        let address = entry.address.as_ref().and_then(|address| Some(address.as_sockaddr_in()?.ip()));
        entry.flags.contains(InterfaceFlags::IFF_UP) && address.is_some_and(|address| mapped(address) == gid)
    };
    // An alias such as eth0:1 is an address of the interface eth0.
    let label = &entries.iter().find(has_address)?.interface_name;
    let interface = label.split_once(':').map_or(label.as_str(), |(interface, _)| interface);
    let of_interface = entries.iter().filter(|entry| entry.interface_name == interface);
    // Interfaces without Ethernet addresses, such as tunnels, have addresses of other lengths.
    let links = of_interface.filter_map(|entry| entry.address.as_ref()?.as_link_addr());
    links.filter(|link| link.halen() == size_of::<Mac>()).find_map(LinkAddr::addr)
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
        DeviceState { index, name: format!("soft{index}"), guid: 0x0212_3456_789a_bcde, link_layer }
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
    fn groups_and_loopback_have_ethernet_addresses() {
        let of = |address: &str| mac(Gid(address.parse::<Ipv6Addr>().unwrap().octets()));
        assert_eq!(of("::ffff:127.0.0.1"), Some([0; 6]));
        assert_eq!(of("ff0e::ffff:239.200.1.2"), Some([0x01, 0x00, 0x5e, 0x48, 1, 2]));
        assert_eq!(of("ff12::1:203:405"), Some([0x33, 0x33, 2, 3, 4, 5]));
        // No interface has it.
        assert_eq!(of("::ffff:0.0.0.0"), None);
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
