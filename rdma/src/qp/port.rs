//! The port and GID of a queue pair.

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, Verb};
use crate::types::{Gid, Lid, LinkLayer, Mtu, Path, PortState, Route};

/// The number of routers that a packet may cross by default.
const HOP_LIMIT: u8 = 64;

/// The port and GID that a queue pair uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen {
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: Option<Gid>,
    pub(super) lid: Lid,
    pub(super) mtu: Mtu,
    link_layer: LinkLayer,
}

impl Chosen {
    /// Chooses the port and GID given by the options, or the best ones.
    pub(super) fn choose(context: &Context, port: Option<u8>, gid_index: Option<u8>) -> Result<Self> {
        let down = Error::new(Verb::ModifyQp, ErrorKind::PortDown);
        let port = match port {
            Some(port) => port,
            None => context.first_active_port()?.ok_or(down)?,
        };
        let port_attr = context.port_attr(port)?;
        if port_attr.state() != PortState::ACTIVE {
            return Err(down);
        }
        let link_layer = port_attr.link_layer();
        let (gid_index, gid) = match gid_index {
            Some(index) => (index, Some(context.gid(port, index.into())?).filter(|gid| !gid.is_zero())),
            None => match context.best_gid(port)? {
                Some(entry) => (u8::try_from(entry.index).unwrap_or(0), Some(entry.gid)),
                None => (0, None),
            },
        };
        if gid.is_none() && link_layer == LinkLayer::ETHERNET && context.capabilities().manual_connect {
            return Err(Error::new(Verb::QueryGid, ErrorKind::NotFound));
        }
        Ok(Self { port, gid_index, gid, lid: port_attr.lid(), mtu: port_attr.active_mtu(), link_layer })
    }

    /// The path to a peer: by GID on Ethernet and between subnets, by LID within one subnet.
    pub(super) fn path_to(&self, (gid, lid): (Option<Gid>, Lid), operation: Verb) -> Result<Path> {
        let by_lid = self.link_layer != LinkLayer::ETHERNET && self.lid.0 != 0 && lid.0 != 0;
        let ends = self.gid.zip(gid);
        let is_same_subnet = ends.is_none_or(|(ours, theirs)| ours.to_bytes()[..8] == theirs.to_bytes()[..8]);
        let route = ends.filter(|_| !by_lid || !is_same_subnet).map(|(_, gid)| Route {
            gid,
            source_index: self.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
        });
        if route.is_none() && !by_lid {
            return Err(Error::new(operation, ErrorKind::Incompatible));
        }
        Ok(Path { port: self.port, lid, route, ..Path::default() })
    }
}
