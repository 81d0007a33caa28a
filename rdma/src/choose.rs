//! Choosing a device and a port: by name, from the environment, or the best available.
//!
//! "Any" means active hardware first, in the library's order, and the software device only if there
//! is no such hardware. The result ([`Choice`]) and a `tracing` event say which device was chosen
//! and why; the software device is never a silent substitute. If it is chosen although there is
//! hardware, the event is a warning.

use std::fmt;
use std::str::FromStr;

use crate::absence::HardwareAbsence;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Verb};
use crate::platform::{self, HAS_DEVICES};
use crate::types::PortState;

/// Selects a device, and possibly its port.
///
/// As text: `any`, `hardware`, a name like `mlx5_0` or `soft0`, or a name and a port like
/// `mlx5_0:2`.
///
/// # Examples
///
/// ```
/// use rdma::DeviceSelector;
/// let selector: DeviceSelector = "mlx5_0:2".parse()?;
/// assert_eq!(selector, DeviceSelector::Named { name: "mlx5_0".into(), port: Some(2) });
/// assert_eq!("any".parse(), Ok(DeviceSelector::Any));
/// # Ok::<(), rdma::ParseSelectorError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DeviceSelector {
    /// Hardware with an active port if there is any; otherwise the software device. If there is
    /// hardware that cannot be used, [`open`] logs a warning with the reason. The software device
    /// reaches other hosts if it listens at an address (`RDMA_SOFT_TCP`, or `rdma::soft::tcp`); the
    /// [`Choice`] then says so.
    #[default]
    Any,
    /// Hardware with an active port: for jobs that the software device would be too slow for.
    Hardware,
    /// The named device.
    Named {
        /// Its name.
        name: String,
        /// Its port; the first active one if `None`.
        port: Option<u8>,
    },
}

/// The error of parsing a text that selects no device.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no device: write `any`, `hardware`, a name like mlx5_0, or a name and a port like mlx5_0:1")]
pub struct ParseSelectorError(String);

debug_is_display!(ParseSelectorError);

impl FromStr for DeviceSelector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseSelectorError(text.into());
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok().filter(|&port| port != 0).ok_or_else(error)?)),
            None => (text, None),
        };
        match (name, port) {
            ("any", None) => Ok(Self::Any),
            ("hardware", None) => Ok(Self::Hardware),
            ("" | "any" | "hardware", _) => Err(error()),
            _ if name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) => Err(error()),
            _ => Ok(Self::Named { name: name.into(), port }),
        }
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Hardware => f.write_str("hardware"),
            Self::Named { name, port: None } => f.write_str(name),
            Self::Named { name, port: Some(port) } => write!(f, "{name}:{port}"),
        }
    }
}

impl DeviceSelector {
    /// The environment variable that [`from_env`](Self::from_env) reads.
    pub const VARIABLE: &'static str = "RDMA_DEVICE";

    /// Reads `RDMA_DEVICE`; [`Any`](Self::Any) if the variable is unset or empty.
    ///
    /// # Errors
    ///
    /// The variable's value selects no device.
    ///
    /// # Examples
    ///
    /// ```
    /// let selector = rdma::DeviceSelector::from_env()?;
    /// println!("{selector} is asked for");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_env() -> Result<Self, OpenError> {
        match std::env::var(Self::VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse().map_err(OpenError::Environment),
            Err(std::env::VarError::NotUnicode(text)) => {
                Err(OpenError::Environment(ParseSelectorError(text.to_string_lossy().into_owned())))
            }
            _ => Ok(Self::Any),
        }
    }
}

/// An open device with an active port.
///
/// # Examples
///
/// ```
/// let opened = rdma::open(&rdma::DeviceSelector::Any)?;
/// println!("using {}: port {} of {}", opened.choice, opened.port, opened.context.name());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The device.
    pub context: Context,
    /// The port to use.
    pub port: u8,
    /// The device that was chosen, and why.
    pub choice: Choice,
}

/// The choice that [`open`] made and its reason; prints as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    device: String,
    port: u8,
    software: bool,
    reason: String,
    hardware_is_unusable: bool,
}

impl Choice {
    getters! { |this|
        /// The device's name.
        device: &str = &this.device;
        /// The port.
        port: u8 = this.port;
        /// Whether the device is this crate's software device.
        is_software: bool = this.software;
        /// Why this device was chosen.
        reason: &str = &this.reason;
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.software { " (software device)" } else { "" };
        write!(f, "{} port {}{kind}: {}", self.device, self.port, self.reason)
    }
}

/// The reason why no device could be opened; prints as one line, with a remedy.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// `RDMA_DEVICE` selects no device.
    Environment(ParseSelectorError),
    /// No device has this name.
    Unknown {
        /// The name.
        name: String,
        /// The names of the existing devices.
        known: Vec<String>,
    },
    /// The device has no such port.
    NoPort {
        /// The device.
        name: String,
        /// The port asked for.
        port: u8,
        /// How many ports the device has.
        count: u8,
    },
    /// The port, or every port of the device, is not active.
    PortDown {
        /// The device.
        name: String,
        /// The port, if one was asked for.
        port: Option<u8>,
    },
    /// There is no usable hardware, and the selector, the build or the system (one other than
    /// Linux) allows no other device.
    NoHardware {
        /// The reason.
        reason: String,
    },
    /// There is no usable hardware, and the environment (`RDMA_SOFT=off`) excludes the software
    /// device.
    SoftwareOff {
        /// Why there is no hardware.
        reason: String,
    },
    /// The device cannot be opened or queried.
    Device {
        /// The device.
        name: String,
        /// The reason.
        error: Error,
    },
    /// The devices cannot be listed.
    List(Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(error) => write!(f, "{}: {error}", DeviceSelector::VARIABLE),
            Self::Unknown { name, known } if known.is_empty() => {
                let off = if Device::software_is_off() { " (RDMA_SOFT=off leaves soft0 out)" } else { "" };
                write!(f, "no device `{name}`{off}: there are none (`devinfo --why` says why)")
            }
            Self::Unknown { name, known } => write!(f, "no device `{name}`: there is {}", known.join(", ")),
            Self::NoPort { name, port, count } => {
                write!(f, "{name} has no port {port}: its ports are numbered 1 to {count}")
            }
            Self::PortDown { name, port: Some(port) } => {
                write!(f, "port {port} of {name} is not active: choose another, or bring the link up")
            }
            Self::PortDown { name, port: None } => {
                write!(f, "{name} has no active port: choose another device, or bring the link up")
            }
            Self::NoHardware { reason } => {
                let substitute =
                    if HAS_DEVICES { "; soft0 can be used instead, between hosts with RDMA_SOFT_TCP" } else { "" };
                write!(f, "no usable RDMA hardware: {reason}{substitute}")
            }
            Self::SoftwareOff { reason } => {
                write!(f, "no usable RDMA hardware: {reason}; unset RDMA_SOFT to use the software device")
            }
            Self::Device { name, error } => write!(f, "{name}: {error}"),
            Self::List(error) => error.fmt(f),
        }
    }
}

debug_is_display!(OpenError);

impl std::error::Error for OpenError {}

impl From<OpenError> for std::io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Environment(_) => std::io::ErrorKind::InvalidInput,
            OpenError::Device { error, .. } | OpenError::List(error) => return Self::from(*error),
            OpenError::PortDown { .. } => std::io::ErrorKind::NotConnected,
            _ => std::io::ErrorKind::NotFound,
        };
        Self::new(kind, error)
    }
}

/// Opens the selected device, and finds an active port.
///
/// # Errors
///
/// One line that says what is missing and how to fix it.
pub fn open(selector: &DeviceSelector) -> Result<Opened, OpenError> {
    check_system(std::env::consts::OS)?;
    let hardware = Device::hardware().map_err(OpenError::List)?;
    Device::check_environment().map_err(OpenError::List)?;
    let software = || Device::software().map_err(OpenError::List);
    let opened = match selector {
        DeviceSelector::Named { name, port } => {
            let devices = hardware.into_iter().chain(software()?).collect();
            named(devices, name, *port)
        }
        DeviceSelector::Hardware => best(&hardware).map_err(|Unusable { reason, .. }| OpenError::NoHardware { reason }),
        DeviceSelector::Any => match best(&hardware) {
            Ok(opened) => Ok(opened),
            Err(unusable) => fall_back(software()?, unusable),
        },
    }?;
    announce(&opened.choice);
    Ok(opened)
}

/// Fails on a system without devices, whatever is selected.
fn check_system(system: &str) -> Result<(), OpenError> {
    platform::obstacle(system).map_or(Ok(()), |reason| Err(OpenError::NoHardware { reason }))
}

/// Logs the choice: as a warning if it is the software device although there is hardware.
fn announce(choice: &Choice) {
    let Choice { device, port, software, hardware_is_unusable, .. } = choice;
    if *hardware_is_unusable {
        tracing::warn!(name: "software_fallback", target: "rdma", device, port, software, "{choice}");
    } else {
        tracing::info!(name: "device_chosen", target: "rdma", device, port, software, "{choice}");
    }
}

/// Why no hardware can be used.
#[derive(Debug)]
struct Unusable {
    reason: String,
    /// Whether there is hardware.
    is_installed: bool,
}

fn named(devices: Vec<Device>, name: &str, port: Option<u8>) -> Result<Opened, OpenError> {
    let Some(device) = devices.iter().find(|device| device.name() == name) else {
        let known = devices.iter().map(Device::name).collect();
        return Err(OpenError::Unknown { name: name.into(), known });
    };
    let failed = |error| OpenError::Device { name: name.into(), error };
    let context = device.open().map_err(failed)?;
    let chosen = match port {
        None => context.first_active_port().map_err(failed)?,
        Some(port) if port > context.port_count() => {
            return Err(OpenError::NoPort { name: name.into(), port, count: context.port_count() });
        }
        Some(port) => Some(port).filter(|_| is_active(&context, port)),
    };
    let port = chosen.ok_or(OpenError::PortDown { name: name.into(), port })?;
    Ok(opened(context, port, "selected by name".into()))
}

/// Opens the first hardware device with an active port, or says why there is none.
fn best(devices: &[Device]) -> Result<Opened, Unusable> {
    let mut reasons = Vec::new();
    let mut is_installed = !devices.is_empty();
    for device in devices {
        match device.open().and_then(|context| Ok((context.first_active_port()?, context))) {
            Ok((Some(port), context)) => {
                let reason = "the first hardware device with an active port".into();
                return Ok(opened(context, port, reason));
            }
            Ok((None, _)) => reasons.push(format!("{} has no active port", device.name())),
            Err(error) => reasons.push(format!("{}: {error}", device.name())),
        }
    }
    if reasons.is_empty() {
        let absence = HardwareAbsence::diagnose();
        is_installed |= absence.as_ref().is_some_and(HardwareAbsence::is_installed);
        reasons.push(absence.map_or_else(|| "none is listed".into(), |absence| absence.summary()));
    }
    Err(Unusable { reason: reasons.join("; "), is_installed })
}

fn fall_back(software: Vec<Device>, unusable: Unusable) -> Result<Opened, OpenError> {
    let Unusable { reason, is_installed } = unusable;
    let Some(device) = software.first() else {
        return Err(if Device::software_is_off() {
            OpenError::SoftwareOff { reason }
        } else {
            OpenError::NoHardware { reason }
        });
    };
    let failed = |error| OpenError::Device { name: device.name(), error };
    let context = device.open().map_err(failed)?;
    let down = Error::new(Verb::QueryPort, ErrorKind::PortDown);
    let port = context.first_active_port().and_then(|port| port.ok_or(down)).map_err(failed)?;
    let mut opened = opened(context, port, format!("no usable RDMA hardware: {reason}"));
    opened.choice.hardware_is_unusable = is_installed;
    Ok(opened)
}

fn is_active(context: &Context, port: u8) -> bool {
    context.port_attr(port).is_ok_and(|attr| attr.state() == PortState::ACTIVE)
}

fn opened(context: Context, port: u8, mut reason: String) -> Opened {
    let software = context.is_software();
    if let Some(address) = context.device().address_for_hosts() {
        reason += &format!("; it reaches other hosts over TCP from {address}");
    }
    let choice = Choice { device: context.name(), port, software, reason, hardware_is_unusable: false };
    Opened { context, port, choice }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use rdma_test_support::OnEvent;

    use super::*;
    use crate::testing;

    #[test]
    fn selectors_read_back_as_written() {
        for text in ["any", "hardware", "mlx5_0", "mlx5_0:2", "soft0", "rxe_eth0:1"] {
            assert_eq!(text.parse::<DeviceSelector>().unwrap().to_string(), text);
        }
        for text in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:300", "mlx5_0:x", "any:1", "a b", "../x", "a:1:2"] {
            assert!(text.parse::<DeviceSelector>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_first_active_port_of_the_first_device_is_taken() {
        let opened = best(&[testing::device()]).unwrap();
        assert_eq!(opened.port, 2);
        assert_eq!(opened.choice.to_string(), "fake0 port 2: the first hardware device with an active port");
    }

    #[test]
    fn what_is_wrong_with_each_device_is_said() {
        let device = testing::device();
        testing::fail("open_device", libc::EACCES);
        let unusable = best(std::slice::from_ref(&device)).unwrap_err();
        let reason = &unusable.reason;
        assert!(reason.starts_with("fake0: ibv_open_device: permission denied"), "{reason}");
        assert!(unusable.is_installed);
        let error = fall_back(Vec::new(), unusable).unwrap_err();
        assert!(error.to_string().starts_with("no usable RDMA hardware: fake0: "), "{error}");
    }

    #[test]
    fn a_substitute_for_hardware_that_cannot_be_used_is_a_warning() {
        let chosen = |is_installed| {
            let unusable = Unusable { reason: "mlx5_0 has no active port".into(), is_installed };
            fall_back(vec![testing::device()], unusable).unwrap().choice
        };
        let levels = |choice: &Choice| {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let levels = Arc::clone(&seen);
            let record = move |event: &tracing::Event<'_>| levels.lock().unwrap().push(*event.metadata().level());
            tracing::subscriber::with_default(OnEvent(record), || announce(choice));
            seen.lock().unwrap().clone()
        };
        assert_eq!(levels(&chosen(true)), [tracing::Level::WARN]);
        assert_eq!(levels(&chosen(false)), [tracing::Level::INFO]);
        assert!(chosen(true).to_string().contains("mlx5_0 has no active port"));
    }

    #[test]
    fn a_named_port_must_exist_and_be_active() {
        let name = |port| named(vec![testing::device()], "fake0", port);
        assert_eq!(name(None).unwrap().port, 2);
        assert_eq!(name(Some(2)).unwrap().choice.port(), 2);
        assert_eq!(name(Some(1)).unwrap_err(), OpenError::PortDown { name: "fake0".into(), port: Some(1) });
        assert_eq!(name(Some(3)).unwrap_err(), OpenError::NoPort { name: "fake0".into(), port: 3, count: 2 });
        let known = vec![String::from("fake0")];
        assert_eq!(
            named(vec![testing::device()], "x", None).unwrap_err(),
            OpenError::Unknown { name: "x".into(), known }
        );
    }

    #[test]
    fn a_system_without_devices_is_the_reason() {
        assert_eq!(check_system("linux"), Ok(()));
        let text = check_system("macos").unwrap_err().to_string();
        let reason = "RDMA verbs and the software device need Linux; this is macos";
        assert!(text.starts_with(&format!("no usable RDMA hardware: {reason}")), "{text}");
    }

    #[test]
    fn an_unknown_device_is_named_with_those_there_are() {
        let selector = DeviceSelector::Named { name: "nonesuch7".into(), port: None };
        let text = open(&selector).unwrap_err().to_string();
        assert!(text.contains("no device `nonesuch7`"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}
