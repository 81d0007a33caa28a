//! The device of an address.

use std::net::{IpAddr, SocketAddr};

use rdma::Device;
use rdma::soft::tcp::Address;
use rdma_collectives::address::leads_to;

use super::{DeviceOptions, Preferred, Wanted, active_ports};

/// The address that decides which device a service uses, unless the options name one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The address at which a server listens.
    At(SocketAddr),
    /// The server's address: packets to it leave from an address of this host.
    Towards(SocketAddr),
}

impl Place {
    /// The address of this host; `None` for a wildcard, and if there is no route.
    fn own(self) -> Option<IpAddr> {
        let own = match self {
            Self::At(address) => address.ip(),
            Self::Towards(server) => Address::towards(server).resolve().ok()?.ip(),
        };
        Some(own).filter(|own| !own.is_unspecified())
    }
}

impl DeviceOptions {
    /// Prefers the hardware to which an address of this host leads by the connection manager, else
    /// the software device, if there is hardware to choose from. A device that the options name
    /// comes first, as ever.
    #[must_use]
    pub fn at(self, place: Place) -> Self {
        let any = matches!(self.wanted(), Ok(Wanted::Any));
        let Some(own) = place.own().filter(|_| any) else { return self };
        let (software, hardware): (Vec<_>, Vec<_>) =
            Device::list().unwrap_or_default().into_iter().partition(Device::is_software);
        let software = software.first().map(Device::name);
        let leads = |device: &Device| {
            let is_usable = |context| active_ports(&context).next().is_some() && leads_to(&context, own).is_ok();
            device.open().is_ok_and(is_usable)
        };
        let names: Vec<_> = hardware.iter().map(|device| (device.name(), leads(device))).collect();
        Self { preferred: of_address(own, &names, software.as_deref()), ..self }
    }
}

/// The device for an address: of the hardware, the first to which the address leads, else the
/// software device if there is one.
fn of_address(own: IpAddr, hardware: &[(String, bool)], software: Option<&str>) -> Option<Preferred> {
    let owner = hardware.iter().find(|(_, leads)| *leads);
    let preferred = |device: &str, reason| Preferred { device: device.to_owned(), reason };
    match owner {
        Some((device, _)) => Some(preferred(device, format!("{own} is its address"))),
        None if hardware.is_empty() => None,
        None => software.map(|device| preferred(device, format!("{own} is no address of hardware"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hardware_of_an_address_comes_before_the_software_device() {
        let own = "10.0.0.1".parse().unwrap();
        let of = |hardware: &[(&str, bool)], software| {
            let hardware: Vec<_> = hardware.iter().map(|(name, leads)| ((*name).to_owned(), *leads)).collect();
            of_address(own, &hardware, software).map(|preferred| (preferred.device, preferred.reason))
        };
        let pair = |device: &str, reason: &str| Some((device.to_owned(), reason.to_owned()));
        assert_eq!(of(&[], Some("soft0")), None, "as without an address");
        let both = [("mlx5_0", false), ("mlx5_1", true)];
        assert_eq!(of(&both, Some("soft0")), pair("mlx5_1", "10.0.0.1 is its address"));
        assert_eq!(of(&both[..1], Some("my_soft")), pair("my_soft", "10.0.0.1 is no address of hardware"));
        assert_eq!(of(&both[..1], None), None, "as without an address");
    }

    #[test]
    fn a_place_has_an_address_of_this_host() {
        let own = |place: Place| place.own().map(|own| own.to_string());
        assert_eq!(own(Place::At("0.0.0.0:7".parse().unwrap())), None);
        assert_eq!(own(Place::At("127.0.0.2:7".parse().unwrap())), Some("127.0.0.2".to_owned()));
        assert_eq!(own(Place::Towards("127.0.0.1:7".parse().unwrap())), Some("127.0.0.1".to_owned()));
    }

    #[test]
    fn a_device_that_is_named_comes_first() {
        let place = Place::At("127.0.0.1:0".parse().unwrap());
        let named = DeviceOptions::named(Some("mlx5_9".to_owned())).at(place);
        assert_eq!(named.preferred, None);
        let hardware = DeviceOptions::named(Some("hardware".to_owned())).at(place);
        assert_eq!(hardware.preferred, None);
    }
}
