//! A device with a port and an address, and the options of the path to the peers.

use rdma::{Context, DatagramOptions, DeviceSelector, GidEntry, InitOptions, PathOptions, RemoteAccess};

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
    /// The options of the path to the peers.
    pub path: PathOptions,
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
        Ok(Self { context: context.clone(), port, gid, path: PathOptions::new() })
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

/// Refuses options of the path that are out of range, or that a device's transport cannot be told.
pub(crate) fn check_path(adapter: &Adapter) -> Result<(), Error> {
    let transport = adapter.context.device().transport();
    adapter.path.check_for(transport).map_err(|limit| Error::invalid(limit.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_the_path_out_of_range_is_named() {
        let mut adapter = crate::testing::soft0();
        assert!(check_path(&adapter).is_ok());
        adapter.path = PathOptions::new().service_level(16);
        let error = check_path(&adapter).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        assert_eq!(error.to_string(), "the option service_level has an invalid value: it may be 0 to 15");
    }
}
