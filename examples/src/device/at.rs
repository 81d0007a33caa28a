//! The device of an address.

use std::net::{IpAddr, SocketAddr};

use rdma::soft::tcp::Address;
use rdma::{Device, ErrorKind};
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
    /// Whether no other host takes part.
    pub(crate) fn is_loopback(self) -> bool {
        let (Self::At(address) | Self::Towards(address)) = self;
        address.ip().is_loopback()
    }

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
        let hardware: Vec<_> = hardware.iter().map(|device| (device.name(), Lead::of(device, own))).collect();
        Self { preferred: of_address(own, &hardware, software.as_deref()), ..self }
    }
}

/// Whether an address leads to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lead {
    Here,
    /// It leads to another device, or to none.
    Elsewhere,
    /// The device cannot be used, or nobody can tell, for this reason.
    Unknown(String),
}

impl Lead {
    fn of(device: &Device, own: IpAddr) -> Self {
        let context = match device.open() {
            Ok(context) => context,
            Err(error) => return Self::Unknown(error.to_string()),
        };
        if active_ports(&context).next().is_none() {
            return Self::Unknown("it has no active port".to_owned());
        }
        match leads_to(&context, own) {
            Ok(()) => Self::Here,
            Err(error) if matches!(error.kind(), ErrorKind::NoRoute | ErrorKind::WrongDevice(_)) => Self::Elsewhere,
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

/// The device for an address: of the hardware, the first to which the address leads, else the
/// software device if there is one.
fn of_address(own: IpAddr, hardware: &[(String, Lead)], software: Option<&str>) -> Option<Preferred> {
    let preferred = |device: &str, reason| Preferred { device: device.to_owned(), reason };
    if let Some((device, _)) = hardware.iter().find(|(_, lead)| *lead == Lead::Here) {
        return Some(preferred(device, format!("{own} is its address")));
    }
    let software = software.filter(|_| !hardware.is_empty())?;
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (device, lead) in hardware {
        let Lead::Unknown(why) = lead else { continue };
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, devices)) => devices.push(device),
            None => reasons.push((why, vec![device])),
        }
    }
    let reasons: Vec<String> = reasons.iter().map(|(why, devices)| format!("{}: {why}", devices.join(", "))).collect();
    Some(preferred(
        software,
        match reasons.is_empty() {
            true => format!("{own} is no address of hardware"),
            false => format!("{own} leads to no hardware that can be used ({})", reasons.join("; ")),
        },
    ))
}

#[cfg(test)]
mod tests {
    use rdma_collectives::address::of_device;

    use super::*;

    #[test]
    fn the_hardware_of_an_address_comes_before_the_software_device() {
        let own = "10.0.0.1".parse().unwrap();
        let of = |hardware: &[(&str, Lead)], software| {
            let hardware: Vec<_> = hardware.iter().map(|(name, lead)| ((*name).to_owned(), lead.clone())).collect();
            of_address(own, &hardware, software).map(|preferred| (preferred.device, preferred.reason))
        };
        let pair = |device: &str, reason: &str| Some((device.to_owned(), reason.to_owned()));
        assert_eq!(of(&[], Some("soft0")), None, "as without an address");
        let both = [("mlx5_0", Lead::Elsewhere), ("mlx5_1", Lead::Here)];
        assert_eq!(of(&both, Some("soft0")), pair("mlx5_1", "10.0.0.1 is its address"));
        assert_eq!(of(&both[..1], Some("my_soft")), pair("my_soft", "10.0.0.1 is no address of hardware"));
        assert_eq!(of(&both[..1], None), None, "as without an address");
        let unknown = |why: &str| Lead::Unknown(why.to_owned());
        let both = [("mlx5_0", unknown("it has no active port")), ("mlx5_1", Lead::Here)];
        assert_eq!(of(&both, Some("soft0")), pair("mlx5_1", "10.0.0.1 is its address"));
        let four = [
            ("mlx5_0", unknown("no rdma_cm")),
            ("mlx5_1", Lead::Elsewhere),
            ("mlx5_2", unknown("no rdma_cm")),
            ("mlx5_3", unknown("it has no active port")),
        ];
        let reasons = "mlx5_0, mlx5_2: no rdma_cm; mlx5_3: it has no active port";
        let said = format!("10.0.0.1 leads to no hardware that can be used ({reasons})");
        assert_eq!(of(&four, Some("soft0")), pair("soft0", &said));
    }

    #[test]
    fn addresses_of_a_device_lead_to_it_and_those_of_others_elsewhere() {
        let device = Device::list().unwrap().into_iter().find(Device::is_software).unwrap();
        let own = of_device(&DeviceOptions::named(Some(device.name())).open().unwrap().adapter).unwrap();
        assert_eq!(Lead::of(&device, own), Lead::Here);
        // An address of a documentation network, which no host has.
        assert_eq!(Lead::of(&device, "203.0.113.7".parse().unwrap()), Lead::Elsewhere);
    }

    /// The reason stands in the line of a device that opens, and in the error of one that does not.
    #[test]
    fn the_reason_of_a_choice_is_in_the_line_and_in_the_error() {
        let of = |device: &str| {
            let reason = "10.0.0.1 leads to no hardware that can be used (mlx5_0: EACCES)".to_owned();
            let preferred = Some(Preferred { device: device.to_owned(), reason });
            DeviceOptions { preferred, ..DeviceOptions::default() }.open()
        };
        assert!(of("soft0").unwrap().using().ends_with("hardware that can be used (mlx5_0: EACCES)"));
        let error = of("soft9").unwrap_err().to_string();
        assert!(error.contains("soft9") && error.contains("(mlx5_0: EACCES)"), "{error}");
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
