//! The GID table of a port, and the choice of a GID.

use std::cmp::Reverse;
use std::fs;

use rdma_sys::{ibv_gid, ibv_gid_entry};

use super::Context;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::types::{Gid, GidKind, LinkLayer};

/// An entry of a port's GID table.
///
/// # Examples
///
/// ```
/// # let context = rdma::open(&rdma::DeviceSelector::Any)?.context;
/// use rdma::GidKind;
///
/// let routable = context.gid_table(1)?.into_iter().find(|entry| entry.kind == GidKind::ROCE_V2);
/// if let Some(entry) = routable {
///     println!("sgid_index {}", entry.index);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_gid_entry")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The entry's index in the table.
    pub index: u32,
    /// The port.
    pub port: u8,
    /// The protocol that the GID selects.
    pub kind: GidKind,
    /// The index of the GID's network interface (`if_nametoindex`); 0 if none.
    pub interface: u32,
}

/// The GIDs of one port.
pub(crate) fn table(context: &Context, port: u8) -> Result<Vec<GidEntry>> {
    // `port_attr` checks the port, and that this is no forked child.
    let len = context.port_attr(port)?.gid_table_len();
    match query_table(context) {
        Ok(mut entries) => {
            entries.retain(|entry| entry.port == port && !entry.gid.is_zero());
            Ok(entries)
        }
        Err(error) if error.kind() == ErrorKind::NotSupported => one_by_one(context, port, len),
        Err(error) => Err(error),
    }
}

/// The GIDs of all ports, in one call.
fn query_table(context: &Context) -> Result<Vec<GidEntry>> {
    let mut room = 0;
    for port in 1..=context.port_count() {
        room += context.port_attr(port)?.gid_table_len() as usize;
    }
    let mut raw = vec![ibv_gid_entry::default(); room];
    // SAFETY: ibv_query_gid_table requires an open context, which `context` keeps open, and space
    // for `room` entries: the vector's length.
    let count = unsafe { context.table().ibv_query_gid_table(context.as_raw(), raw.as_mut_ptr(), room, 0) };
    let Ok(count) = usize::try_from(count) else {
        return Err(Error::from_errno(Verb::QueryGid, i32::try_from(count).unwrap_or(0)));
    };
    raw.truncate(count);
    Ok(raw
        .into_iter()
        .map(|entry| GidEntry {
            gid: Gid::from_raw(entry.gid),
            index: entry.gid_index,
            port: u8::try_from(entry.port_num).unwrap_or(0),
            kind: GidKind::from_raw(entry.gid_type),
            interface: entry.ndev_ifindex,
        })
        .collect())
}

/// The GIDs of one port from an older library or kernel, which has the kinds in sysfs.
fn one_by_one(context: &Context, port: u8, len: u32) -> Result<Vec<GidEntry>> {
    let device = context.name();
    let mut entries = Vec::new();
    for index in 0..len {
        let gid = query(context, port, index)?;
        if gid.is_zero() {
            continue;
        }
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
        let kind = match fs::read_to_string(path) {
            Ok(text) if text.trim() == "RoCE v2" => GidKind::ROCE_V2,
            Ok(_) if context.port_attr(port)?.link_layer() == LinkLayer::ETHERNET => GidKind::ROCE_V1,
            _ => GidKind::INFINIBAND,
        };
        entries.push(GidEntry { gid, index, port, kind, interface: 0 });
    }
    Ok(entries)
}

/// The GID at one index.
pub(crate) fn query(context: &Context, port: u8, index: u32) -> Result<Gid> {
    if index >= context.port_attr(port)?.gid_table_len() {
        return Err(Error::new(Verb::QueryGid, ErrorKind::NotFound));
    }
    let index = i32::try_from(index).map_err(|_| Error::new(Verb::QueryGid, ErrorKind::NotFound))?;
    let mut gid = ibv_gid::default();
    // SAFETY: ibv_query_gid requires an open context, which `context` keeps open, and space for a
    // GID.
    let call = || unsafe { (context.table().ibv_query_gid)(context.as_raw(), port, index, &raw mut gid) };
    Error::check(Verb::QueryGid, call)?;
    Ok(Gid::from_raw(gid))
}

/// Whether the order of a port's GID table says which entry to use.
///
/// On InfiniBand all GIDs of a port have the same reach, and the first always exists. The software
/// device puts the address at which it listens for other hosts first, be it loopback or IPv6: from
/// its other addresses it reaches this host alone.
pub(crate) fn is_in_order(context: &Context, layer: LinkLayer) -> bool {
    layer != LinkLayer::ETHERNET || context.is_software()
}

/// The entry with the widest reach; the first one if the table is in order.
pub(crate) fn best(entries: Vec<GidEntry>, is_in_order: bool) -> Option<GidEntry> {
    entries.into_iter().filter(|entry| !entry.gid.is_zero()).max_by_key(|entry| {
        let rank = if is_in_order { (0, 0) } else { rank(entry) };
        (rank, Reverse(entry.index))
    })
}

fn rank(entry: &GidEntry) -> (u8, u8) {
    let protocol = u8::from(entry.kind == GidKind::ROCE_V2);
    let reach = match entry.gid {
        gid if gid.is_link_local() => 0,
        gid if gid.is_loopback() => 1,
        gid if gid.ipv4().is_none() => 2,
        _ => 3,
    };
    (protocol, reach)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(table: &[(&str, GidKind)]) -> Vec<GidEntry> {
        (0..)
            .zip(table)
            .map(|(index, &(gid, kind))| GidEntry { gid: gid.parse().unwrap(), index, port: 1, kind, interface: 0 })
            .collect()
    }

    #[test]
    fn on_ethernet_the_routable_roce_v2_address_wins() {
        // The GID table of a ConnectX with one IPv4 and one global IPv6 address.
        let table = entries(&[
            ("fe80::526b:4bff:fea1:b2c3", GidKind::ROCE_V1),
            ("fe80::526b:4bff:fea1:b2c3", GidKind::ROCE_V2),
            ("::ffff:192.0.2.7", GidKind::ROCE_V1),
            ("::ffff:192.0.2.7", GidKind::ROCE_V2),
            ("2001:db8::7", GidKind::ROCE_V1),
            ("2001:db8::7", GidKind::ROCE_V2),
        ]);
        assert_eq!(best(table.clone(), false).unwrap().index, 3);
        assert_eq!(best(table, true).unwrap().index, 0);
    }

    #[test]
    fn every_address_is_better_than_none() {
        let only_local = entries(&[("fe80::1", GidKind::ROCE_V1)]);
        assert_eq!(best(only_local, false).unwrap().index, 0);
        let loopback = entries(&[("fe80::1", GidKind::ROCE_V2), ("::ffff:127.0.0.1", GidKind::ROCE_V2)]);
        assert_eq!(best(loopback, false).unwrap().index, 1);
        assert_eq!(best(Vec::new(), false), None);
        assert_eq!(best(entries(&[("::", GidKind::INFINIBAND)]), true), None);
    }

    #[test]
    fn equals_go_to_the_lowest_index() {
        let table = entries(&[("::ffff:10.0.0.1", GidKind::ROCE_V2), ("::ffff:10.0.0.2", GidKind::ROCE_V2)]);
        assert_eq!(best(table, false).unwrap().index, 0);
    }

    #[test]
    fn the_first_entry_of_a_table_in_order_wins() {
        for chosen in ["::ffff:127.0.0.2", "2001:db8::7", "::1"] {
            let table = entries(&[(chosen, GidKind::ROCE_V2), ("::ffff:10.0.0.1", GidKind::ROCE_V2)]);
            assert_eq!(best(table.clone(), true).unwrap().index, 0, "{chosen}");
            assert_eq!(best(table, false).unwrap().index, 1, "{chosen}");
        }
    }
}
