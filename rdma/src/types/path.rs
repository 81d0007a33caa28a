//! Paths through the network to a port.

use rdma_sys::{ibv_ah_attr, ibv_global_route};

use super::address::{Gid, Lid};

/// The path to a peer: of a connection, or for an [`AddressHandle`](crate::AddressHandle).
///
/// # Examples
///
/// ```
/// use rdma::{Path, Route};
/// let gid = "::ffff:192.0.2.7".parse()?;
/// let path = Path::new(1).route(Route::new(gid).source_index(1).hop_limit(64));
/// assert_eq!(Path::from_raw(&path.to_raw()), path);
/// # Ok::<(), rdma::ParseGidError>(())
/// ```
#[doc(alias = "ibv_ah_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Path {
    /// The local port.
    pub port: u8,
    /// The peer's LID; 0 on Ethernet.
    pub lid: Lid,
    /// The route by GID: required on Ethernet and between subnets.
    pub route: Option<Route>,
    /// The service level: 0 to 15.
    pub service_level: u8,
    /// Offset to the port's base LID, which selects the source LID, on InfiniBand.
    pub source_path_bits: u8,
    /// The maximum rate of the path (`ibv_rate`); 0 means the port's rate.
    pub static_rate: u8,
}

/// The part of a [`Path`] that crosses subnets.
#[doc(alias = "ibv_global_route")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Route {
    /// The peer's GID.
    pub gid: Gid,
    /// The index of the local GID.
    pub source_index: u8,
    /// How many routers a packet may cross.
    pub hop_limit: u8,
    /// The traffic class; on RoCE v2 that of the IP header.
    pub traffic_class: u8,
    /// The flow label: 20 bits.
    pub flow_label: u32,
}

impl Route {
    /// A route to a GID, of no router, from the GID with index 0.
    #[must_use]
    pub fn new(gid: Gid) -> Self {
        Self { gid, ..Self::default() }
    }

    setters! {
        /// Sets the index of the local GID.
        #[must_use]
        source_index(index: u8) = index;

        /// Sets how many routers a packet may cross.
        #[must_use]
        hop_limit(routers: u8) = routers;

        /// Sets the traffic class.
        #[must_use]
        traffic_class(class: u8) = class;

        /// Sets the flow label: 20 bits.
        #[must_use]
        flow_label(label: u32) = label;
    }
}

impl Path {
    /// A path from a local port, which needs a LID or a route.
    #[must_use]
    pub fn new(port: u8) -> Self {
        Self { port, ..Self::default() }
    }

    setters! {
        /// Sets the peer's LID.
        #[must_use]
        lid(lid: Lid) = lid;

        /// Sets the route by GID.
        #[must_use]
        route(route: Route) = Some(route);

        /// Sets the service level: 0 to 15.
        #[must_use]
        service_level(level: u8) = level;
    }

    /// Converts from the C structure.
    #[must_use]
    pub fn from_raw(raw: &ibv_ah_attr) -> Self {
        let route = (raw.is_global != 0).then_some(Route {
            gid: Gid::from_raw(raw.grh.dgid),
            source_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
        });
        Self {
            port: raw.port_num,
            lid: Lid(raw.dlid),
            route,
            service_level: raw.sl,
            source_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
        }
    }

    /// The C structure.
    #[must_use]
    pub fn to_raw(self) -> ibv_ah_attr {
        let grh = self.route.map_or_else(ibv_global_route::default, |route| ibv_global_route {
            dgid: route.gid.to_raw(),
            flow_label: route.flow_label,
            sgid_index: route.source_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        });
        ibv_ah_attr {
            grh,
            dlid: self.lid.0,
            sl: self.service_level,
            src_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            is_global: self.route.is_some().into(),
            port_num: self.port,
        }
    }
}
