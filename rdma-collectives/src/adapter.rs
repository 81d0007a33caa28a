//! A device with a port and an address, and the settings of the path to the peers.

use rdma::cm::ConnOptions;
use rdma::cm::blocking::ResolveOptions;
use rdma::{
    AckTimeout, ConnectOptions, Context, DatagramOptions, DeviceSelector, GidEntry, InitOptions, Path, RemoteAccess,
};

use crate::Error;

/// An open device, a port and an address on it.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// The open device.
    pub context: Context,
    /// Number of the port.
    pub port: u8,
    /// The GID table entry; `None` is possible on InfiniBand ports.
    pub gid: Option<GidEntry>,
    /// The settings of the path to the peers.
    pub path: PathSettings,
}

/// Settings of the path to the peers, which become attributes of the queue pairs. `None` stands for
/// the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSettings {
    /// Traffic class of the packets; 0 by default.
    pub traffic_class: Option<u8>,
    /// Service level of the packets, from 0 to 15; 0 by default.
    pub service_level: Option<u8>,
    /// Time until a packet without acknowledgement is sent again, as an exponent from 0 to 31:
    /// 4.096 us * 2^N, and never for 0. 14 by default, which is 67 ms; the connection manager has
    /// its own.
    pub ack_timeout: Option<u8>,
    /// How often a packet is sent again before its peer counts as gone, from 0 to 7; 7 by default.
    pub retry_count: Option<u8>,
}

impl Adapter {
    /// Opens a device by its selector, with the GID that reaches farthest.
    ///
    /// # Errors
    /// If there is no such device or port, or it cannot be opened.
    pub fn open(device: &DeviceSelector) -> Result<Self, Error> {
        let opened = rdma::open(device)?;
        Self::new(&opened.context, opened.port)
    }

    /// Takes a port of an open device, with the GID that reaches farthest.
    ///
    /// # Errors
    /// If the port's GID table cannot be read.
    pub fn new(context: &Context, port: u8) -> Result<Self, Error> {
        let gid = context.best_gid(port)?;
        Ok(Self { context: context.clone(), port, gid, path: PathSettings::default() })
    }

    /// The device and the port: `mlx5_0:1`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}:{}", self.context.name(), self.port)
    }

    /// Options for connected queue pairs on this port and GID.
    pub fn init_options(&self, access: RemoteAccess) -> InitOptions {
        let options = InitOptions::new().port(self.port).remote_access(access);
        self.gid_index().into_iter().fold(options, InitOptions::gid_index)
    }

    /// Options for datagram queue pairs on this port and GID.
    pub fn datagram_options(&self, qkey: u32) -> DatagramOptions {
        let options = DatagramOptions::new(qkey).port(self.port);
        self.gid_index().into_iter().fold(options, DatagramOptions::gid_index)
    }

    fn gid_index(&self) -> Option<u8> {
        self.gid.and_then(|gid| u8::try_from(gid.index).ok())
    }
}

impl PathSettings {
    fn timeout(&self) -> Option<AckTimeout> {
        self.ack_timeout.and_then(AckTimeout::from_code)
    }

    /// Options to connect by an exchange of endpoints.
    pub fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new();
        let options = self.traffic_class.into_iter().fold(options, ConnectOptions::traffic_class);
        let options = self.service_level.into_iter().fold(options, ConnectOptions::service_level);
        let options = self.timeout().into_iter().fold(options, ConnectOptions::ack_timeout);
        self.retry_count.into_iter().fold(options, ConnectOptions::retry_count)
    }

    /// Options to resolve a route by the connection manager.
    ///
    /// # Errors
    /// If a service level is set, which the connection manager cannot be told.
    pub fn resolve_options(&self) -> Result<ResolveOptions, Error> {
        if self.service_level.is_some() {
            return Err(Error::invalid(
                "the connection manager takes the service level from the traffic class; give a traffic class in place \
                 of the service level, or connect without the connection manager",
            ));
        }
        let options = self.traffic_class.into_iter().fold(ResolveOptions::new(), ResolveOptions::tos);
        Ok(self.timeout().into_iter().fold(options, ResolveOptions::ack_timeout))
    }

    /// Options to connect by the connection manager.
    pub fn conn_options(&self) -> ConnOptions {
        self.retry_count.into_iter().fold(ConnOptions::new(), ConnOptions::retry_count)
    }

    /// Changes the path of datagrams.
    pub fn apply_to(&self, path: &mut Path) {
        path.service_level = self.service_level.unwrap_or(path.service_level);
        if let Some(route) = &mut path.route {
            route.traffic_class = self.traffic_class.unwrap_or(route.traffic_class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_manager_cannot_be_told_a_service_level() {
        let path = PathSettings { service_level: Some(1), ..PathSettings::default() };
        assert!(path.resolve_options().unwrap_err().to_string().contains("traffic class"));
        assert!(PathSettings::default().resolve_options().is_ok());
    }
}
